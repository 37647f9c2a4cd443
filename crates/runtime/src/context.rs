//! What a program runs on.
//!
//! A *context* is what r1 points to at entry. Its [`ContextLayout`] is the one description that verifier, interpreter and JIT
//! share. A context type implements [`Context`]; shipped are [`Raw`] (r1 = a buffer, r2 = its length) and [`Flat`] (a
//! `#[repr(C)]` struct of the user's).

use core::marker::PhantomData;
use std::sync::LazyLock;

pub use bpf_verifier::ContextLayout;
use bpf_verifier::{Access, Field, FieldKind};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The addresses a run starts with. Made by [`Context::parts`] from data that the caller has borrowed for the run.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// r1: where the context is.
    pub context: *mut u8,
    /// Its length in bytes.
    pub context_len: usize,
    /// What LD_ABS and LD_IND read.
    pub packet: *mut u8,
    /// Its length in bytes. On raw contexts this is also r2.
    pub packet_len: usize,
    /// Memory beside the context that the context points into; null if there is none.
    pub memory: *mut u8,
    /// Its length in bytes.
    pub memory_len: usize,
}

/// A kind of context.
///
/// # Safety
/// `parts` must return memory that is valid for reads, and as far as the layout lets programs write also for writes, while the
/// borrow of `data` lasts, and that agrees with `layout`.
pub unsafe trait Context: 'static {
    /// What the host passes to a run: borrowed for the run 'r, and pointing to what is borrowed for 'p.
    type Data<'r, 'p>
    where
        'p: 'r;

    /// The layout programs are verified against.
    fn layout() -> &'static ContextLayout;

    /// The addresses for one run.
    fn parts(data: &mut Self::Data<'_, '_>) -> Parts;
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

/// A struct of plain integers that is passed as it lies in memory.
pub trait FlatContext: FromBytes + IntoBytes + Immutable + KnownLayout + Send + 'static {
    /// Its name, for messages; programs of differently named contexts do not tail-call each other.
    const NAME: &'static str;
    /// Its fields: name, byte offset, size in bytes, whether programs may write it. Bytes in no field are not accessible.
    const FIELDS: &'static [(&'static str, u32, u32, bool)];
}

/// A flat struct as context: r1 points to it.
#[derive(Debug)]
pub struct Flat<T>(PhantomData<T>);

// SAFETY: the parts are those of the mutable borrow; `FlatContext` requires a type of which all bytes may be read and hold
// any value.
unsafe impl<T: FlatContext> Context for Flat<T> {
    type Data<'r, 'p>
        = &'r mut T
    where
        'p: 'r;

    fn layout() -> &'static ContextLayout {
        layout_of::<T>()
    }

    #[inline]
    fn parts(data: &mut &mut T) -> Parts {
        let bytes = data.as_mut_bytes();
        Parts {
            context: bytes.as_mut_ptr(),
            context_len: bytes.len(),
            packet: core::ptr::null_mut(),
            packet_len: 0,
            memory: core::ptr::null_mut(),
            memory_len: 0,
        }
    }
}

/// One layout a type, made at first use. A generic function has no static of its own, hence the table.
fn layout_of<T: FlatContext>() -> &'static ContextLayout {
    use std::any::TypeId;
    use std::collections::HashMap;
    use std::sync::{Mutex, PoisonError};
    static LAYOUTS: LazyLock<Mutex<HashMap<TypeId, &'static ContextLayout>>> = LazyLock::new(Default::default);
    // The map is never left half changed, so a poisoned lock is as good as any.
    let mut layouts = LAYOUTS.lock().unwrap_or_else(PoisonError::into_inner);
    layouts.entry(TypeId::of::<T>()).or_insert_with(|| {
        let size = size_of::<T>() as u32;
        let fields = T::FIELDS
            .iter()
            .filter(|(_, offset, len, _)| offset.checked_add(*len).is_some_and(|end| end <= size))
            .map(|&(name, offset, len, writable)| Field {
                name: name.into(),
                offset,
                size: len,
                access: if writable { Access::ReadWrite } else { Access::Read },
                kind: FieldKind::Scalar,
                host_offset: offset,
                host_size: len,
            })
            .collect();
        // At most one leak a context type.
        Box::leak(Box::new(ContextLayout {
            name: T::NAME.into(),
            raw: false,
            fields,
            regions: Vec::new(),
            legacy_loads: false,
            returns: None,
        }))
    })
}
