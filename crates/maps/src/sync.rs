//! The one place that chooses between real atomics and loom's.
//!
//! Everything whose interleavings loom explores (`hash::free_list`, `hash::table`, `lock`) takes its atomics from
//! here and its memory from [`Table`], so that the explored code is the shipped code.

#[cfg(loom)]
mod imp {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use loom::thread::yield_now;
}

#[cfg(not(loom))]
mod imp {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use std::thread::yield_now;
}

pub(crate) use imp::*;

#[cfg(loom)]
pub(crate) use loom_table::Table;

#[cfg(not(loom))]
pub(crate) use crate::mem::{Table, prefetch_write};

/// Does nothing: loom models no caches.
#[cfg(loom)]
pub(crate) fn prefetch_write<T>(_: *const T) {}

/// Loom's atomics are neither zero-initialised nor of their real size, so under loom a table is a boxed slice.
#[cfg(loom)]
mod loom_table {
    use crate::errno::Errno;

    #[derive(Debug)]
    pub(crate) struct Table<T>(Box<[T]>);

    impl<T: Default> Table<T> {
        pub(crate) fn zeroed(len: usize) -> Result<Self, Errno> {
            Ok(Self((0..len).map(|_| T::default()).collect()))
        }
    }

    impl<T> std::ops::Deref for Table<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.0
        }
    }
}
