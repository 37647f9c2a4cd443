//! The byte vector that dynasm writes to.
//!
//! dynasm's own assemblers come with a registry of labels, an error state and a memory that they own. The backend needs
//! none of these: the code goes to a `Vec<u8>` that lives as long as the backend, and labels are the business of
//! [`bpf_jit_code::layout::Layout`].
//!
//! Invariant: a dynamic immediate that dynasm cannot encode makes it panic, so every use of these macros has checked
//! its immediates before.

/// Appends the code that dynasm encodes to a byte vector: a word with dynamic fields by `push_u32`, constant bytes by
/// `extend`.
pub(crate) struct Sink<'a>(pub(crate) &'a mut Vec<u8>);

impl Sink<'_> {
    pub(crate) fn push_u32(&mut self, word: u32) {
        self.0.extend_from_slice(&word.to_le_bytes());
    }
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// `asm!(code; add x0, x1, x2)` appends instructions to the byte vector `code`.
macro_rules! asm {
    ($code:expr; $($insn:tt)*) => {
        ::dynasmrt::dynasm!($crate::asm::Sink(&mut *$code) ; .arch aarch64 ; $($insn)*)
    };
}
pub(crate) use asm;

/// `asm_w!(code, width; add R(d), R(n), R(m))`: like `asm!`, with `R` standing for `W` or `X` registers and `RSP` for
/// `WSP` or `XSP`.
macro_rules! asm_w {
    (@ $code:expr, $width:expr, [$($w:tt)*] [$($x:tt)*] R($r:expr) $($rest:tt)*) => {
        $crate::asm::asm_w!(@ $code, $width, [$($w)* W($r)] [$($x)* X($r)] $($rest)*)
    };
    (@ $code:expr, $width:expr, [$($w:tt)*] [$($x:tt)*] RSP($r:expr) $($rest:tt)*) => {
        $crate::asm::asm_w!(@ $code, $width, [$($w)* WSP($r)] [$($x)* XSP($r)] $($rest)*)
    };
    (@ $code:expr, $width:expr, [$($w:tt)*] [$($x:tt)*] $t:tt $($rest:tt)*) => {
        $crate::asm::asm_w!(@ $code, $width, [$($w)* $t] [$($x)* $t] $($rest)*)
    };
    (@ $code:expr, $width:expr, [$($w:tt)*] [$($x:tt)*]) => {
        match $width {
            ::bpf_isa::Width::W32 => $crate::asm::asm!($code; $($w)*),
            ::bpf_isa::Width::W64 => $crate::asm::asm!($code; $($x)*),
        }
    };
    ($code:expr, $width:expr; $($insn:tt)*) => {
        $crate::asm::asm_w!(@ $code, $width, [] [] $($insn)*)
    };
}
pub(crate) use asm_w;
