//! Contexts of programs.
//!
//! A *context* is what r1 points to at entry. Its [`ContextLayout`] is the one description that verifier, interpreter
//! and JIT share. A context type implements [`Context`]; shipped are [`Raw`] (r1 = a buffer, r2 = its length),
//! [`Xdp`](crate::net::Xdp) and [`Skb`](crate::net::Skb), and a `#[repr(C)]` struct of the user's derives
//! [`BpfContext`](crate::BpfContext).

pub mod derive;
pub(crate) mod frags;
pub(crate) mod int;
pub(crate) mod network;
pub(crate) mod packet;
pub(crate) mod places;
pub(crate) mod sk_lookup;
pub(crate) mod skb;
pub(crate) mod sock_addr;
pub(crate) mod sock_ops;
pub(crate) mod socket;

use std::sync::LazyLock;

use bpf_object::{CoreField, CoreType, FieldType};
pub use bpf_verifier::ContextLayout;
use bpf_verifier::{FieldKind, Region};

use crate::error::RunError;

/// The least address of memory for programs.
const LEAST: usize = crate::num::index(Region::MIN_START);

/// The address of every empty slice in a context. A slice's own address depends on its alignment, and may be so low
/// that a pointer before it wraps round.
pub(crate) const EMPTY: usize = 2 * LEAST;

/// Whether the address is one that the verifier assumes no memory to have. Null is none of these.
#[inline(always)]
pub(crate) fn is_low(at: *mut u8) -> bool {
    at.addr().wrapping_sub(1) < LEAST - 1
}

/// Refuses memory whose start is below what the verifier assumes.
#[inline(always)]
pub(crate) fn check_start(at: *mut u8) -> Result<(), RunError> {
    if is_low(at) { Err(RunError::LowAddress { address: at.addr(), least: LEAST }) } else { Ok(()) }
}

/// The addresses a run starts with. Made by [`Context::parts`] from data that the caller has borrowed for the run.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// r1: where the context is.
    pub context: *mut u8,
    /// Its length in bytes.
    pub context_len: usize,
    /// The packet that LD_ABS and LD_IND read.
    pub packet: *mut u8,
    /// Its length in bytes. On raw contexts this is also r2.
    pub packet_len: usize,
    /// The buffer in which the context's pointers may move; null if the regions of the context do not move.
    pub memory: *mut u8,
    /// Its length in bytes.
    pub memory_len: usize,
}

impl Parts {
    /// Context, packet and memory.
    #[inline(always)]
    pub(crate) fn slices(self) -> (*mut [u8], *mut [u8], *mut [u8]) {
        let slice = core::ptr::slice_from_raw_parts_mut;
        (
            slice(self.context, self.context_len),
            slice(self.packet, self.packet_len),
            slice(self.memory, self.memory_len),
        )
    }

    /// Makes the parts from the result of [`Parts::slices`].
    #[inline]
    pub(crate) fn of_slices(context: *mut [u8], packet: *mut [u8], memory: *mut [u8]) -> Parts {
        Parts {
            context: context.cast(),
            context_len: context.len(),
            packet: packet.cast(),
            packet_len: packet.len(),
            memory: memory.cast(),
            memory_len: memory.len(),
        }
    }

    /// Refuses parts that the verifier's proofs do not cover: more bytes than it assumes, and memory so low that a
    /// pointer in front of it wraps round.
    ///
    /// # Errors
    /// [`RunError::TooLong`], [`RunError::LowAddress`].
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), Box<RunError>> {
        if self.packet_len > Region::MAX_LEN as usize {
            return Err(too_long(self.packet_len));
        }
        if is_low(self.context) | is_low(self.packet) | is_low(self.memory) {
            return Err(self.too_low());
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn too_low(&self) -> Box<RunError> {
        let starts = [self.context, self.packet, self.memory];
        let low = starts.into_iter().filter(|at| is_low(*at)).map(|at| at.addr()).min();
        Box::new(RunError::LowAddress { address: low.unwrap_or(0), least: LEAST })
    }

    /// A struct that is passed as it lies in memory.
    #[inline]
    pub fn of_context<T>(context: &mut T) -> Parts {
        let context_len = size_of::<T>();
        let (context, none) = match context_len {
            // A type without bytes is at its alignment.
            0 => (core::ptr::without_provenance_mut(EMPTY), core::ptr::null_mut()),
            _ => (core::ptr::from_mut(context).cast(), core::ptr::null_mut()),
        };
        Parts { context, context_len, packet: none, packet_len: 0, memory: none, memory_len: 0 }
    }
}

#[cold]
#[inline(never)]
fn too_long(len: usize) -> Box<RunError> {
    Box::new(RunError::TooLong { len, max: Region::MAX_LEN as usize })
}

/// A kind of context.
///
/// # Safety
/// `parts` must return memory that is valid for reads, and as far as the layout lets programs write also for writes,
/// while the borrow of `data` lasts, and that agrees with `layout`. Each region that a pointer in the context leads to
/// must begin at or above [`Region::MIN_START`], or be empty and begin there or at address 0. (Runs check the addresses
/// in `parts` themselves.)
pub unsafe trait Context: 'static {
    /// The data that the host passes to a run: borrowed for the run 'r, with pointers to data borrowed for 'p.
    type Data<'r, 'p>
    where
        'p: 'r;

    /// The layout programs are verified against.
    fn layout() -> &'static ContextLayout;

    /// The types that programs on it know by name, for their CO-RE relocations. By default the context's struct, whose
    /// fields are pointers, unsigned numbers, and arrays of these.
    fn types() -> Vec<CoreType> {
        let layout = Self::layout();
        let fields: Vec<_> = layout.fields.iter().map(core_field).collect();
        let size = layout.fields.last().map_or(0, |f| f.offset + f.size);
        vec![CoreType::Struct { name: layout.name.clone(), size, fields }]
    }

    /// Returns the context's structure if the host defines it and may change it. An object that was compiled against
    /// another version of the structure is refused where it would access another field than it means
    /// ([`LoadError::ContextLayout`](crate::LoadError::ContextLayout)). `None` by default: the structures of the
    /// kernel's contexts are fixed.
    fn own_struct() -> Option<CoreType> {
        None
    }

    /// The addresses for one run.
    fn parts(data: &mut Self::Data<'_, '_>) -> Parts;
}

/// Returns a field of a layout as CO-RE relocations know it: a pointer if it has the size of one, an unsigned number,
/// or an array of words or bytes.
pub(crate) fn core_field(field: &bpf_verifier::Field) -> CoreField {
    let ty = match (field.kind, field.size) {
        (FieldKind::Socket, _) => FieldType::Pointer(Some("bpf_sock".into())),
        (FieldKind::Data(_) | FieldKind::DataEnd(_), 8) => FieldType::Pointer(None),
        (_, size @ (1 | 2 | 4 | 8)) => FieldType::unsigned(size),
        (_, size) if size.is_multiple_of(4) => FieldType::array(FieldType::unsigned(4), size / 4),
        (_, size) => FieldType::array(FieldType::unsigned(1), size),
    };
    CoreField { name: field.name.clone(), offset: field.offset, ty }
}

/// A buffer: r1 points to its first byte, r2 is its length. LD_ABS reads it.
#[derive(Debug)]
pub enum Raw {}

// SAFETY: the parts are those of the mutable slice, and the raw layout is "a buffer and its length".
unsafe impl Context for Raw {
    type Data<'r, 'p>
        = &'r mut [u8]
    where
        'p: 'r;

    fn layout() -> &'static ContextLayout {
        static LAYOUT: LazyLock<ContextLayout> = LazyLock::new(|| ContextLayout::raw(true));
        &LAYOUT
    }

    #[inline]
    fn parts(data: &mut &mut [u8]) -> Parts {
        let len = data.len();
        // No memory is the null pointer, not the dangling one that an empty slice has.
        let context = if len == 0 { core::ptr::null_mut() } else { data.as_mut_ptr() };
        Parts {
            context,
            context_len: len,
            packet: context,
            packet_len: len,
            memory: core::ptr::null_mut(),
            memory_len: 0,
        }
    }
}
