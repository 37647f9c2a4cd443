//! Maps, declared as statics with [`map`](crate::map).
//!
//! Problem: loaders read a map's type, sizes and capacity from BTF: a struct whose members are pointers to arrays
//! (whose length is the number) and to the types of key and value. Approach: each type here is that struct, always
//! null; operations pass its address to a helper.
//!
//! Values are shared with all programs, threads and the host, so there are no references to them: [`Value`] reads,
//! writes and counts in place.

#[doc(hidden)]
pub use crate::definition::Definition;
pub use crate::definition::{Insert, Map};
pub use crate::plain::Plain;
use crate::ring::Reserved;
use crate::sys;
use core::marker::PhantomData;

/// The refusal of a helper, with its error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused(pub i32);

#[inline(always)]
fn done(result: i64) -> Result<(), Refused> {
    #[allow(clippy::cast_possible_truncation, reason = "error numbers are small")]
    if result < 0 { Err(Refused(result as i32)) } else { Ok(()) }
}

/// A value of a map, in place. Other programs and the host may change it meanwhile; a removed element keeps its
/// memory until the run has ended.
#[derive(Debug)]
pub struct Value<'m, V> {
    at: *mut V,
    /// The value lives as long as the map, and only copies of a `V` go in and out.
    map: PhantomData<&'m V>,
}

impl<V: Plain> Value<'_, V> {
    /// Returns a copy of the value.
    #[inline(always)]
    pub fn get(&self) -> V {
        // SAFETY: the helper returned the address of a value of the map, which is aligned and stays for the run.
        unsafe { self.at.read() }
    }

    /// Overwrites the value.
    #[inline(always)]
    pub fn set(&self, value: V) {
        // SAFETY: the helper returned the address of a value of the map, which is aligned, stays for the run, and may
        // be written.
        unsafe { self.at.write(value) };
    }

    /// The address of the value, for access to its fields.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut V {
        self.at
    }
}

macro_rules! counters {
    ($($int:ty),*) => {$(
        impl Value<'_, $int> {
            /// Adds atomically and returns the previous number. Wraps around.
            #[inline(always)]
            pub fn fetch_add(&self, more: $int) -> $int {
                let before;
                // rustc has no atomics for this target, because the first version of BPF lacked compare-and-swap.
                #[cfg(target_arch = "bpf")]
                // SAFETY: the value is eight aligned bytes that stay for the run, and the instruction changes them
                // atomically.
                unsafe {
                    core::arch::asm!(
                        "{value} = atomic_fetch_add((u64 *)({at} + 0), {value})",
                        at = in(reg) self.at,
                        value = inout(reg) more => before,
                        options(nostack),
                    );
                }
                #[cfg(not(target_arch = "bpf"))]
                {
                    before = self.get();
                    self.set(before.wrapping_add(more));
                }
                before
            }
        }
    )*};
}
counters!(u64, i64);

/// Copies a value to the stack, because a reference may lead into the context, where helpers accept no arguments.
#[inline(always)]
fn copy<T: Plain>(of: &T) -> T {
    // SAFETY: a `T` is plain bytes, which may be copied.
    unsafe { core::ptr::read(of) }
}

#[inline(always)]
fn lookup<'m, M: Map, K: Plain, V>(map: &'m M, key: &K) -> Option<Value<'m, V>> {
    let at = sys::lookup(map, &copy(key));
    (!at.is_null()).then_some(Value { at: at.cast(), map: PhantomData })
}

#[inline(always)]
fn update<M: Map, K: Plain, V: Plain>(map: &M, key: &K, value: &V, insert: Insert) -> Result<(), Refused> {
    done(sys::update(map, &copy(key), &copy(value), insert))
}

#[inline(always)]
fn delete<M: Map, K: Plain>(map: &M, key: &K) -> Result<(), Refused> {
    done(sys::delete(map, &copy(key)))
}

/// The members that all maps with keys have, with the names that loaders require.
macro_rules! definition {
    ($(#[$doc:meta])* $name:ident<$($k:ident, $v:ident)?> = $number:literal) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name<$($k: 'static, $v: 'static,)? const N: usize> {
            r#type: *const [i32; $number],
            $(key: *const $k, value: *const $v,)?
            max_entries: *const [i32; N],
        }

        // SAFETY: it has no contents: all pointers in it are null.
        unsafe impl<$($k, $v,)? const N: usize> Sync for $name<$($k, $v,)? N> {}
        impl<$($k, $v,)? const N: usize> Map for $name<$($k, $v,)? N> {
            const DEFINITION: Definition = Definition::new::<$($k, $v)?>($number, N);
        }

        impl<$($k: Plain, $v: Plain,)? const N: usize> $name<$($k, $v,)? N> {
            /// Creates the map, for a static.
            #[allow(clippy::new_without_default, reason = "a map is a static")]
            pub const fn new() -> Self {
                use core::ptr::null;
                $name {
                    r#type: null(),
                    $(key: null::<$k>(), value: null::<$v>(),)?
                    max_entries: null(),
                }
            }
        }
    };
}

macro_rules! hashes {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {$(
        definition!($(#[$doc])* $name<K, V> = $number);

        impl<K: Plain, V: Plain, const N: usize> $name<K, V, N> {
            /// Returns the value of a key, if it is present.
            #[inline(always)]
            pub fn get(&self, key: &K) -> Option<Value<'_, V>> {
                lookup(self, key)
            }

            /// Inserts or replaces an element.
            ///
            /// # Errors
            /// [`Refused`]: the map is full, or `insert` forbids it.
            #[inline(always)]
            pub fn insert(&self, key: &K, value: &V, insert: Insert) -> Result<(), Refused> {
                update(self, key, value, insert)
            }

            /// Returns the value of a key, after inserting `value` if the key is absent; `None` if the map is full.
            #[inline(always)]
            pub fn get_or_insert(&self, key: &K, value: &V) -> Option<Value<'_, V>> {
                if let Some(found) = self.get(key) {
                    return Some(found);
                }
                // If another program inserts first, its value is returned.
                let _ = self.insert(key, value, Insert::New);
                self.get(key)
            }

            /// Removes an element.
            ///
            /// # Errors
            /// [`Refused`]: the key is absent.
            #[inline(always)]
            pub fn remove(&self, key: &K) -> Result<(), Refused> {
                delete(self, key)
            }
        }
    )*};
}
hashes! {
    /// A hash map of up to `N` elements.
    HashMap = 1;
    /// A hash map with a value for each execution slot.
    PerCpuHashMap = 5;
    /// A hash map that evicts elements that were not used recently.
    LruHashMap = 9;
    /// A [`LruHashMap`] with a value for each execution slot.
    LruPerCpuHashMap = 10;
}

macro_rules! arrays {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name<V: 'static, const N: usize> {
            r#type: *const [i32; $number],
            key: *const u32,
            value: *const V,
            max_entries: *const [i32; N],
        }

        // SAFETY: it has no contents: all pointers in it are null.
        unsafe impl<V, const N: usize> Sync for $name<V, N> {}
        impl<V, const N: usize> Map for $name<V, N> {
            const DEFINITION: Definition = Definition::new::<u32, V>($number, N);
        }

        impl<V: Plain, const N: usize> $name<V, N> {
            /// Creates the map, for a static.
            #[allow(clippy::new_without_default, reason = "a map is a static")]
            pub const fn new() -> Self {
                use core::ptr::null;
                $name { r#type: null(), key: null(), value: null(), max_entries: null() }
            }

            /// Returns the value at an index, if it is below `N`.
            #[inline(always)]
            pub fn get(&self, index: u32) -> Option<Value<'_, V>> {
                lookup(self, &index)
            }
        }
    )*};
}
arrays! {
    /// `N` values, zero at first.
    Array = 2;
    /// `N` values for each execution slot.
    PerCpuArray = 6;
}

/// A ring buffer of `N` bytes from programs to the host.
#[repr(C)]
#[derive(Debug)]
pub struct RingBuf<const N: usize> {
    r#type: *const [i32; 27],
    max_entries: *const [i32; N],
}

// SAFETY: it has no contents: all pointers in it are null.
unsafe impl<const N: usize> Sync for RingBuf<N> {}
impl<const N: usize> Map for RingBuf<N> {
    const DEFINITION: Definition = Definition::new::<(), ()>(27, N);
}

impl<const N: usize> RingBuf<N> {
    /// Creates the map, for a static.
    #[allow(clippy::new_without_default, reason = "a map is a static")]
    pub const fn new() -> Self {
        RingBuf { r#type: core::ptr::null(), max_entries: core::ptr::null() }
    }

    /// Reserves room for a record, which is discarded unless it is submitted; `None` if the ring is full.
    #[inline(always)]
    pub fn reserve<T: Plain>(&self) -> Option<Reserved<T>> {
        Reserved::new(sys::reserve(self))
    }

    /// Copies a record into the ring.
    ///
    /// # Errors
    /// [`Refused`]: the ring is full.
    #[inline(always)]
    pub fn output<T: Plain>(&self, record: &T) -> Result<(), Refused> {
        done(sys::output(self, &copy(record)))
    }
}

/// A table of `N` programs for tail calls.
#[repr(C)]
#[derive(Debug)]
pub struct ProgArray<const N: usize> {
    r#type: *const [i32; 3],
    key: *const u32,
    value: *const u32,
    max_entries: *const [i32; N],
}

// SAFETY: it has no contents: all pointers in it are null.
unsafe impl<const N: usize> Sync for ProgArray<N> {}
impl<const N: usize> Map for ProgArray<N> {
    const DEFINITION: Definition = Definition::new::<u32, u32>(3, N);
}

impl<const N: usize> ProgArray<N> {
    /// Creates the map, for a static.
    #[allow(clippy::new_without_default, reason = "a map is a static")]
    pub const fn new() -> Self {
        use core::ptr::null;
        ProgArray { r#type: null(), key: null(), value: null(), max_entries: null() }
    }

    /// Continues in the program at an index; returns only if the slot is empty.
    #[inline(always)]
    pub fn tail_call<C: crate::Context>(&self, context: &mut C, index: u32) {
        sys::tail_call(context, self, index);
    }
}
