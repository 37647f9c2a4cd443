//! Bytes of a serialised module: how each part of one is written and read.
//!
//! Numbers are little endian; lists and strings have their length before them. Reading ends for any bytes, reserves no
//! more elements than bytes are left, and returns `None` for malformed values.

use bpf_jit_code::{
    Arch, Code, FrameShape, Needs, PatchSlot, PcEntry, Reloc, RelocKind, Symbol, TailCallSite, TailTarget,
};
use core::ops::Range;

/// The bytes written so far.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

/// The bytes that are left to be read.
pub(super) struct Reader<'b>(pub(super) &'b [u8]);

impl<'b> Reader<'b> {
    pub(super) fn bytes(&mut self, len: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }
}

/// A value with a form as bytes.
pub(super) trait Wire: Sized {
    fn put(&self, to: &mut Writer);
    fn get(from: &mut Reader<'_>) -> Option<Self>;
}

macro_rules! numbers {
    ($($int:ident)*) => {
        $(impl Wire for $int {
            fn put(&self, to: &mut Writer) {
                to.0.extend_from_slice(&self.to_le_bytes());
            }
            fn get(from: &mut Reader<'_>) -> Option<Self> {
                Some($int::from_le_bytes(from.array()?))
            }
        })*
    };
}

numbers! { u8 u32 u64 i32 i64 }

impl Wire for usize {
    fn put(&self, to: &mut Writer) {
        (*self as u64).put(to);
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        u64::get(from)?.try_into().ok()
    }
}

impl Wire for bool {
    fn put(&self, to: &mut Writer) {
        u8::from(*self).put(to);
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        match u8::get(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Wire for String {
    fn put(&self, to: &mut Writer) {
        self.len().put(to);
        to.0.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        let len = usize::get(from)?;
        Some(std::str::from_utf8(from.bytes(len)?).ok()?.to_owned())
    }
}

/// Bytes that are copied unchanged.
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Wire for Bytes {
    fn put(&self, to: &mut Writer) {
        self.0.len().put(to);
        to.0.extend_from_slice(&self.0);
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        let len = usize::get(from)?;
        Some(Bytes(from.bytes(len)?.to_vec()))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, to: &mut Writer) {
        self.is_some().put(to);
        if let Some(value) = self {
            value.put(to);
        }
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        Some(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
}

impl Wire for Range<u32> {
    fn put(&self, to: &mut Writer) {
        (self.start, self.end).put(to);
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        let (start, end) = Wire::get(from)?;
        Some(start..end)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, to: &mut Writer) {
        self.len().put(to);
        self.iter().for_each(|value| value.put(to));
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        let len = usize::get(from)?;
        // Each element takes at least one byte.
        let mut values = Vec::with_capacity(len.min(from.0.len()));
        for _ in 0..len {
            values.push(T::get(from)?);
        }
        Some(values)
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, to: &mut Writer) {
        self.0.put(to);
        self.1.put(to);
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        Some((A::get(from)?, B::get(from)?))
    }
}

impl<A: Wire, B: Wire, C: Wire> Wire for (A, B, C) {
    fn put(&self, to: &mut Writer) {
        self.0.put(to);
        self.1.put(to);
        self.2.put(to);
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        Some((A::get(from)?, B::get(from)?, C::get(from)?))
    }
}

/// A structure: its fields, in this order.
macro_rules! structures {
    ($($type:ty { $($field:ident),* })*) => {
        $(impl Wire for $type {
            fn put(&self, to: &mut Writer) {
                $(self.$field.put(to);)*
            }
            fn get(from: &mut Reader<'_>) -> Option<Self> {
                $(let $field = Wire::get(from)?;)*
                Some(Self { $($field),* })
            }
        })*
    };
}

structures! {
    Symbol { kind, index }
    Reloc { at, kind, symbol }
    PcEntry { code, insn }
    FrameShape { bytes, below_caller, return_address }
    TailCallSite { insn, target }
}

/// An enumeration without fields: a number for each of its variants.
macro_rules! enumerations {
    ($($type:ty { $($variant:ident = $number:literal),* })*) => {
        $(impl Wire for $type {
            fn put(&self, to: &mut Writer) {
                let number: u8 = match self {
                    $(<$type>::$variant => $number,)*
                };
                number.put(to);
            }
            fn get(from: &mut Reader<'_>) -> Option<Self> {
                match u8::get(from)? {
                    $($number => Some(<$type>::$variant),)*
                    _ => None,
                }
            }
        })*
    };
}

enumerations! {
    Arch { X64 = 0, Arm64 = 1 }
    Needs { Nothing = 0, Slot = 1, Run = 2 }
    RelocKind { X64Rel32 = 0, X64Abs64 = 1, Arm64Branch26 = 2, Arm64Mov48 = 3 }
}

impl Wire for TailTarget {
    fn put(&self, to: &mut Writer) {
        match *self {
            TailTarget::Indirect => None,
            TailTarget::Direct { table, index, bypass, target, out } => {
                Some(((table, index), (bypass.at(), target.at()), out))
            }
        }
        .put(to);
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        let Some(((table, index), (bypass, target), out)) = Option::get(from)? else {
            return Some(TailTarget::Indirect);
        };
        let slot = |at: u32| PatchSlot::new(Arch::HOST?, at).ok();
        Some(TailTarget::Direct { table, index, bypass: slot(bypass)?, target: slot(target)?, out })
    }
}

/// Leaves out `pc_map`, `unwind` and `homes`, which only debuggers read.
impl Wire for Code {
    fn put(&self, to: &mut Writer) {
        let Code { arch, bytes, relocs, entries, tables, tail_calls, frames, needs, .. } = self;
        arch.put(to);
        bytes.len().put(to);
        to.0.extend_from_slice(bytes);
        relocs.put(to);
        entries.put(to);
        tables.put(to);
        tail_calls.put(to);
        frames.put(to);
        needs.put(to);
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        let mut code = Code::new(Arch::get(from)?);
        code.bytes = Bytes::get(from)?.0;
        (code.relocs, code.entries) = (Wire::get(from)?, Wire::get(from)?);
        code.tables = Wire::get(from)?;
        (code.tail_calls, code.frames) = (Wire::get(from)?, Wire::get(from)?);
        code.needs = Needs::get(from)?;
        Some(code)
    }
}

/// A hash that detects accidental changes; it is not cryptographic.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    words.fold(bytes.len() as u64 ^ MIX, |sum, word| (sum ^ word).wrapping_mul(MIX).rotate_left(29))
}
