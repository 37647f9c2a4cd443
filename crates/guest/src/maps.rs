//! Maps, as statics with [`map`](crate::map).
//!
//! Problem: loaders learn a map's type, sizes and capacity from BTF: a struct whose members are pointers to arrays (of
//! which the length is the number meant) and to the key's and value's types. Approach: each type here is that struct,
//! always null; what a program does with it passes its address to a helper.
//!
//! Values are shared with every program, thread and the host, so there are no references to them: [`Value`] reads,
//! writes and counts in place.

use crate::call::helper;
pub use crate::plain::Plain;
use crate::ring::Reserved;
use core::ffi::c_void;
use core::marker::PhantomData;

/// A type of map.
pub trait Map: Sync {}

/// Whether an element may be there before it is put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Insert {
    /// It may (`BPF_ANY`).
    Any = 0,
    /// It may not (`BPF_NOEXIST`).
    New = 1,
    /// It must (`BPF_EXIST`).
    Replace = 2,
}

/// What a helper refused, as its error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused(pub i32);

#[inline(always)]
fn done(result: i64) -> Result<(), Refused> {
    #[allow(clippy::cast_possible_truncation, reason = "error numbers are small")]
    if result < 0 { Err(Refused(result as i32)) } else { Ok(()) }
}

/// A value of a map, in place. While the program uses it, others may change it; an element that is removed keeps its
/// memory until the run has ended.
#[derive(Debug)]
pub struct Value<'m, V> {
    at: *mut V,
    /// It lives as long as the map, and only copies of a `V` go in and out.
    map: PhantomData<&'m V>,
}

impl<V: Plain> Value<'_, V> {
    /// A copy of it.
    #[inline(always)]
    pub fn get(&self) -> V {
        // SAFETY: the helper returned the address of a value of the map, which is aligned and stays for the run.
        unsafe { self.at.read() }
    }

    /// Puts another one in its place.
    #[inline(always)]
    pub fn set(&self, value: V) {
        // SAFETY: as in `get`; programs may write values of the map.
        unsafe { self.at.write(value) };
    }

    /// Its address, for fields of it.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut V {
        self.at
    }
}

macro_rules! counters {
    ($($int:ty),*) => {$(
        impl Value<'_, $int> {
            /// Adds, with all others who do, and returns what was there before. Wraps around.
            #[inline(always)]
            pub fn fetch_add(&self, more: $int) -> $int {
                let before;
                // rustc has no atomics for a target without compare-and-swap, which BPF was at first.
                #[cfg(target_arch = "bpf")]
                // SAFETY: the value is eight aligned bytes that stay for the run, which the instruction changes at
                // once.
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

/// A copy on the stack: helpers are not given addresses in the context, where what a program has may lie.
#[inline(always)]
fn copy<T: Plain>(of: &T) -> T {
    // SAFETY: it is plain bytes, of which a copy is another one.
    unsafe { core::ptr::read(of) }
}

#[inline(always)]
fn lookup<'m, M, K: Plain, V>(map: &'m M, key: &K) -> Option<Value<'m, V>> {
    let key = &copy(key);
    let call = helper!(1: fn(*const c_void, *const c_void) -> *mut c_void);
    // SAFETY: the map is one, and the key has its size.
    let at = unsafe { call((&raw const *map).cast(), (&raw const *key).cast()) };
    (!at.is_null()).then_some(Value { at: at.cast(), map: PhantomData })
}

#[inline(always)]
fn update<M, K: Plain, V: Plain>(map: &M, key: &K, value: &V, insert: Insert) -> Result<(), Refused> {
    let (key, value) = (&copy(key), &copy(value));
    let call = helper!(2: fn(*const c_void, *const c_void, *const c_void, u64) -> i64);
    let (key, value) = ((&raw const *key).cast(), (&raw const *value).cast());
    // SAFETY: the map is one, and key and value have its sizes.
    done(unsafe { call((&raw const *map).cast(), key, value, insert as u64) })
}

#[inline(always)]
fn delete<M, K: Plain>(map: &M, key: &K) -> Result<(), Refused> {
    let key = &copy(key);
    let call = helper!(3: fn(*const c_void, *const c_void) -> i64);
    // SAFETY: the map is one, and the key has its size.
    done(unsafe { call((&raw const *map).cast(), (&raw const *key).cast()) })
}

/// The members that all maps with keys have, under the names that loaders look for.
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

        // SAFETY: there is nothing in it: it is always null.
        unsafe impl<$($k, $v,)? const N: usize> Sync for $name<$($k, $v,)? N> {}
        impl<$($k, $v,)? const N: usize> Map for $name<$($k, $v,)? N> {}

        impl<$($k: Plain, $v: Plain,)? const N: usize> $name<$($k, $v,)? N> {
            /// The map.
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
            /// The value of a key.
            #[inline(always)]
            pub fn get(&self, key: &K) -> Option<Value<'_, V>> {
                lookup(self, key)
            }

            /// Puts an element.
            ///
            /// # Errors
            /// [`Refused`]: the map is full, or `insert` forbids it.
            #[inline(always)]
            pub fn insert(&self, key: &K, value: &V, insert: Insert) -> Result<(), Refused> {
                update(self, key, value, insert)
            }

            /// The value of a key, this one if there is none; `None` if the map is full.
            #[inline(always)]
            pub fn get_or_insert(&self, key: &K, value: &V) -> Option<Value<'_, V>> {
                if let Some(found) = self.get(key) {
                    return Some(found);
                }
                // If another program was faster, its value is the one.
                let _ = self.insert(key, value, Insert::New);
                self.get(key)
            }

            /// Removes an element.
            ///
            /// # Errors
            /// [`Refused`]: there is none.
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
    /// One with values for each execution slot.
    PerCpuHashMap = 5;
    /// A hash map that lets the least recently used elements go.
    LruHashMap = 9;
    /// One with values for each execution slot.
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

        // SAFETY: there is nothing in it: it is always null.
        unsafe impl<V, const N: usize> Sync for $name<V, N> {}
        impl<V, const N: usize> Map for $name<V, N> {}

        impl<V: Plain, const N: usize> $name<V, N> {
            /// The map.
            #[allow(clippy::new_without_default, reason = "a map is a static")]
            pub const fn new() -> Self {
                use core::ptr::null;
                $name { r#type: null(), key: null(), value: null(), max_entries: null() }
            }

            /// The value at an index, if it is below `N`.
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

/// A ring buffer of `N` bytes to the host.
#[repr(C)]
#[derive(Debug)]
pub struct RingBuf<const N: usize> {
    r#type: *const [i32; 27],
    max_entries: *const [i32; N],
}

// SAFETY: there is nothing in it: it is always null.
unsafe impl<const N: usize> Sync for RingBuf<N> {}
impl<const N: usize> Map for RingBuf<N> {}

impl<const N: usize> RingBuf<N> {
    /// The map.
    #[allow(clippy::new_without_default, reason = "a map is a static")]
    pub const fn new() -> Self {
        RingBuf { r#type: core::ptr::null(), max_entries: core::ptr::null() }
    }

    /// Room for a record, which is given up unless it is submitted; `None` if the ring is full.
    #[inline(always)]
    pub fn reserve<T: Plain>(&self) -> Option<Reserved<T>> {
        let call = helper!(131: fn(*const c_void, u64, u64) -> *mut c_void);
        // SAFETY: the map is a ring buffer.
        let at = unsafe { call((&raw const *self).cast(), size_of::<T>() as u64, 0) };
        Reserved::new(at.cast())
    }

    /// Copies a record into the ring.
    ///
    /// # Errors
    /// [`Refused`]: the ring is full.
    #[inline(always)]
    pub fn output<T: Plain>(&self, record: &T) -> Result<(), Refused> {
        let call = helper!(130: fn(*const c_void, *const c_void, u64, u64) -> i64);
        let record = &copy(record);
        let bytes = (&raw const *record).cast();
        // SAFETY: the map is a ring buffer, and the record has these bytes.
        done(unsafe { call((&raw const *self).cast(), bytes, size_of::<T>() as u64, 0) })
    }
}

/// `N` programs to go on in.
#[repr(C)]
#[derive(Debug)]
pub struct ProgArray<const N: usize> {
    r#type: *const [i32; 3],
    key: *const u32,
    value: *const u32,
    max_entries: *const [i32; N],
}

// SAFETY: there is nothing in it: it is always null.
unsafe impl<const N: usize> Sync for ProgArray<N> {}
impl<const N: usize> Map for ProgArray<N> {}

impl<const N: usize> ProgArray<N> {
    /// The map.
    #[allow(clippy::new_without_default, reason = "a map is a static")]
    pub const fn new() -> Self {
        use core::ptr::null;
        ProgArray { r#type: null(), key: null(), value: null(), max_entries: null() }
    }

    /// Goes on in the program at an index, and comes back only if there is none.
    #[inline(always)]
    pub fn tail_call<C: crate::Context>(&self, context: &mut C, index: u32) {
        let call = helper!(12: fn(*mut c_void, *const c_void, u32) -> i64);
        // SAFETY: the context is the program's, and the map a prog array.
        unsafe { call((&raw mut *context).cast(), (&raw const *self).cast(), index) };
    }
}
