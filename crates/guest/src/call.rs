//! Calls of helpers by their number.

/// A helper as a function pointer of this type, which LLVM compiles to a call of the number.
macro_rules! helper {
    ($id:literal: fn($($arg:ty),*) -> $ret:ty) => {{
        if cfg!(target_arch = "bpf") {
            // SAFETY: on BPF a call of a constant address is a call of the helper with this number. Its arguments and
            // result are those of the kernel's prototype, which the verifier checks.
            unsafe { core::mem::transmute::<usize, unsafe extern "C" fn($($arg),*) -> $ret>($id) }
        } else {
            unimplemented!("programs run as BPF: compile them with `bpf build`, and load them with bpf-runtime")
        }
    }};
}
pub(crate) use helper;
