//! Result types of host functions.
//!
//! Numbers go into r0 as in C, and their type bounds the range that the verifier assumes for r0. Addresses are harder:
//! the program may use an address to the end of its run, long after the function has returned and dropped its handles.
//! So programs only get memory whose release waits for a grace period of their engine ([`Pinned`], [`PinnedMap`]): a
//! run in which the address was returned is inside its guard, and nothing is counted or stored for it.
//!
//! Such memory is shared with every thread that runs the program, so the host copies in and out atomically, as with
//! [`SharedBytes`](super::SharedBytes).
//!
//! A function that returns `Result<Infallible, HelperError>` always ends the run; nothing behind a call of it is
//! verified.

use super::Caller;
use super::bytes::{copy_in, copy_out};
use crate::context::int::IntType;
use crate::engine::Engine;
use crate::error::HelperError;
use bpf_maps::{Map, MapError, MapType, program as map_ops};
use bpf_quiesce::{Domain, Owned, Settles};
use bpf_uapi::Errno;
use bpf_verifier::Ret;
use core::convert::Infallible;
use core::marker::PhantomData;
use core::sync::atomic::AtomicU64;
use std::fmt;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type a host function may return.
///
/// # Safety
/// The result of `into_r0` must have the facts of [`HostRet::RET`] for the rest of the caller's run.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a host function",
    label = "programs cannot be given this",
    note = "addresses are returned as `Option<Pinned<T>>` or `Option<PinnedValue<V>>`"
)]
pub unsafe trait HostRet {
    /// The facts that the verifier may assume about r0.
    const RET: Ret;
    /// The integer type, if the result is an integer.
    const INT: Option<IntType> = None;
    /// Converts the result to r0 of the caller's program.
    ///
    /// # Errors
    /// [`HelperError`], which ends the run.
    fn into_r0<H: ?Sized>(self, caller: &mut Caller<'_, H>) -> Result<u64, HelperError>;
}

macro_rules! integers {
    ($($int:ty: $name:ident, $ret:expr;)*) => {$(
        // SAFETY: the range is the type's.
        unsafe impl HostRet for $int {
            const RET: Ret = $ret;
            const INT: Option<IntType> = Some(IntType::$name);
            #[inline]
            fn into_r0<H: ?Sized>(self, _: &mut Caller<'_, H>) -> Result<u64, HelperError> {
                // Signed types are sign-extended, unsigned ones zero-extended.
                Ok(self as u64)
            }
        }
    )*};
}
integers! {
    bool: Bool, Ret::Between(0, 1);
    u8: U8, Ret::Between(0, u8::MAX as i64);
    u16: U16, Ret::Between(0, u16::MAX as i64);
    u32: U32, Ret::Between(0, u32::MAX as i64);
    i8: I8, Ret::Between(i8::MIN as i64, i8::MAX as i64);
    i16: I16, Ret::Between(i16::MIN as i64, i16::MAX as i64);
    i32: I32, Ret::Between(i32::MIN as i64, i32::MAX as i64);
    u64: U64, Ret::Scalar;
    i64: I64, Ret::Scalar;
}

// SAFETY: 0 is 0.
unsafe impl HostRet for () {
    const RET: Ret = Ret::Between(0, 0);
    #[inline]
    fn into_r0<H: ?Sized>(self, _: &mut Caller<'_, H>) -> Result<u64, HelperError> {
        Ok(0)
    }
}

// SAFETY: there is no value of it, so `into_r0` does not return.
unsafe impl HostRet for Infallible {
    const RET: Ret = Ret::Never;
    #[inline]
    fn into_r0<H: ?Sized>(self, _: &mut Caller<'_, H>) -> Result<u64, HelperError> {
        match self {}
    }
}

// SAFETY: an error leaves no r0; all else is `T`'s.
unsafe impl<T: HostRet> HostRet for Result<T, HelperError> {
    const RET: Ret = T::RET;
    const INT: Option<IntType> = T::INT;
    #[inline]
    fn into_r0<H: ?Sized>(self, caller: &mut Caller<'_, H>) -> Result<u64, HelperError> {
        self.and_then(|value| value.into_r0(caller))
    }
}

/// The bytes a program may use behind a returned address.
const fn memory_or_null<T>() -> Ret {
    const { assert!(size_of::<T>() > 0, "a value of some bytes") };
    Ret::MemOrNull { bytes: const { super::args::bytes_of::<T>() }, writable: true }
}

/// An address in memory whose release waits for a grace period of `domain`.
fn address<H: ?Sized>(at: *mut u8, owner: &impl Owned, caller: &Caller<'_, H>) -> Result<u64, HelperError> {
    caller.domain().owns(owner).map_err(HelperError::new)?;
    Ok(at.expose_provenance() as u64)
}

/// Memory of a `T` that host functions may return to programs, which read and write it. Clones are the same memory. It
/// is freed a grace period after the last clone was dropped.
///
/// ```
/// # use bpf_runtime::{*, host::Pinned, isa::assemble};
/// # let engine = Engine::new(Config::new())?;
/// # let mut linker = Linker::<()>::new(&engine);
/// let limits: Pinned<[u32; 4]> = Pinned::new(&engine, &[10, 20, 30, 40]);
/// let shared = limits.clone();
/// linker.func(1001, "limits", move |_: &mut Caller<'_, ()>, enabled: u32| (enabled != 0).then(|| shared.clone()))?;
/// let program = linker.loader::<Raw>().insns(
///     "third",
///     assemble("r1 = 1\ncall 1001\nif r0 == 0 goto +1\nr0 = *(u32 *)(r0 + 8)\nexit")?,
/// )?;
/// assert_eq!(program.run_on(&mut [])?, 30);
/// limits.set(&[1, 2, 3, 4]);
/// assert_eq!(program.run_on(&mut [])?, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pinned<T> {
    words: Arc<Words>,
    /// Invariant, since the `T` there is read and replaced through a shared handle; a `T` is bytes, so threads may
    /// share it.
    value: PhantomData<fn(T) -> T>,
}

/// The memory, eight-byte aligned.
struct Words {
    words: Box<[AtomicU64]>,
    domain: Settles,
}

impl Drop for Words {
    fn drop(&mut self) {
        let words = core::mem::take(&mut self.words);
        self.domain.enqueue(move || drop(words));
    }
}

impl<T> Clone for Pinned<T> {
    fn clone(&self) -> Self {
        Pinned { words: Arc::clone(&self.words), value: PhantomData }
    }
}

impl<T> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("bytes", &size_of::<T>()).finish_non_exhaustive()
    }
}

impl<T: FromBytes + IntoBytes + Immutable> Pinned<T> {
    /// Memory for the programs of this engine.
    pub fn new(engine: &Engine, value: &T) -> Self {
        let words = (0..size_of::<T>().div_ceil(size_of::<u64>())).map(|_| AtomicU64::new(0)).collect();
        let domain = Settles(Arc::clone(engine.domain()));
        let pinned = Pinned { words: Arc::new(Words { words, domain }), value: PhantomData };
        pinned.set(value);
        pinned
    }

    fn start(&self) -> *mut u8 {
        self.words.words.as_ptr().cast_mut().cast()
    }

    /// Returns a copy of the bytes. A copy during a program's write may have old and new bytes.
    pub fn get(&self) -> T {
        let mut value = T::new_zeroed();
        // SAFETY: there are at least `size_of::<T>()` bytes of atomic words.
        unsafe { copy_out(self.start(), value.as_mut_bytes()) };
        value
    }

    /// Copies `value` in.
    pub fn set(&self, value: &T) {
        // SAFETY: as in `get`; atomics may be written through shared references.
        unsafe { copy_in(self.start(), value.as_bytes()) };
    }
}

// SAFETY: there are `size_of::<T>()` bytes, aligned to 8, all initialised, in atomics, so writable; `address` checks
// that they stay for the run.
unsafe impl<T: FromBytes + IntoBytes + Immutable> HostRet for Option<Pinned<T>> {
    const RET: Ret = memory_or_null::<T>();
    #[inline]
    fn into_r0<H: ?Sized>(self, caller: &mut Caller<'_, H>) -> Result<u64, HelperError> {
        self.map_or(Ok(0), |pinned| address(pinned.start(), &*pinned.words, caller))
    }
}

impl Owned for Words {
    fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    fn named(&self) -> (&'static str, &str) {
        ("memory", "Pinned")
    }
}

/// A map whose values host functions may return to programs. Clones are the same map. The map is dropped a grace period
/// after the last clone and value.
///
/// ```
/// # use bpf_runtime::{*, host::PinnedMap, maps::{MapDef, MapType}};
/// # let engine = Engine::new(Config::new())?;
/// # let mut linker = Linker::<()>::new(&engine);
/// let map = engine.create_map(MapDef::new("quota", MapType::Hash, 4, 8, 16))?;
/// map.update(&7u32.to_ne_bytes(), &100u64.to_ne_bytes(), 0)?;
/// let quota: PinnedMap<u32, u64> = PinnedMap::new(&map)?;
/// linker.func(1001, "quota", move |c: &mut Caller<'_, ()>, user: u32| quota.lookup(c, &user))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PinnedMap<K, V> {
    map: Arc<Held>,
    /// Invariant in `V`, which is read and replaced through a shared handle; `K` is only read, and both are bytes, so
    /// threads may share them.
    types: PhantomData<fn(K, V) -> V>,
}

/// A map that is dropped after a grace period.
struct Held(Map);

impl Drop for Held {
    fn drop(&mut self) {
        let map = self.0.clone();
        self.0.domain().enqueue(move || drop(map));
        // The map owns the domain, and the domain now owns the map.
        self.0.domain().settle();
    }
}

impl<K, V> Clone for PinnedMap<K, V> {
    fn clone(&self) -> Self {
        PinnedMap { map: Arc::clone(&self.map), types: PhantomData }
    }
}

impl<K, V> fmt::Debug for PinnedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PinnedMap").field(&self.map.0).finish()
    }
}

impl<K: IntoBytes + Immutable, V: FromBytes + IntoBytes + Immutable> PinnedMap<K, V> {
    /// A handle of this map.
    ///
    /// # Errors
    /// [`MapError::WrongType`] for types without look-up by key; [`MapError::Size`]; [`MapError::InvalidDef`] for maps
    /// that programs may not read and write, or whose values hold a spin lock, a timer or objects.
    pub fn new(map: &Map) -> Result<Self, MapError> {
        let (def, name) = (map.def(), || map.name().to_owned());
        match def.map_type {
            MapType::Hash
            | MapType::Array
            | MapType::PerCpuHash
            | MapType::PerCpuArray
            | MapType::LruHash
            | MapType::LruPerCpuHash
            | MapType::LpmTrie => {}
            got => return Err(MapError::WrongType { map: name(), expected: "one whose values are found by key", got }),
        }
        for (what, expected, got) in [("key", def.key_size, size_of::<K>()), ("value", def.value_size, size_of::<V>())]
        {
            if expected as usize != got {
                return Err(MapError::Size { map: name(), what, expected: expected as usize, got });
            }
        }
        let fields = def.spin_lock.is_some() || def.deferred().next().is_some() || def.owned.is_some();
        if fields || def.program_rights() != (true, true) {
            let expected = "values that programs may read and write as they are".to_owned();
            let (map, map_type) = (name(), def.map_type);
            return Err(MapError::InvalidDef { map, map_type, errno: Errno::EINVAL.0, expected });
        }
        Ok(PinnedMap { map: Arc::new(Held(map.clone())), types: PhantomData })
    }

    /// The map.
    pub fn map(&self) -> &Map {
        &self.map.0
    }

    /// The value of a key, of per-CPU maps that of the caller's execution slot; `None` if it is absent. To be returned
    /// to the caller.
    ///
    /// # Errors
    /// If the map belongs to another engine than the calling program.
    #[inline]
    pub fn lookup<H: ?Sized>(&self, caller: &Caller<'_, H>, key: &K) -> Result<Option<PinnedValue<V>>, HelperError> {
        let map = &self.map.0;
        caller.domain().owns(map).map_err(HelperError::new)?;
        // SAFETY: the map lives, the key has its size (`new`), and the slot is that of a run in the map's domain.
        let at = unsafe { map_ops::lookup(map.as_ptr(), key.as_bytes().as_ptr(), caller.slot()) };
        Ok((!at.is_null()).then(|| PinnedValue { at, map: Arc::clone(&self.map), value: PhantomData }))
    }
}

/// A value of a map, in place: what [`PinnedMap::lookup`] found. If its element is removed, and the map puts another
/// one there, it is that one's value, as in programs.
pub struct PinnedValue<V> {
    at: *mut u8,
    map: Arc<Held>,
    /// Invariant, since the `V` there is read and replaced through a shared reference.
    value: PhantomData<fn(V) -> V>,
}

impl<V> fmt::Debug for PinnedValue<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedValue").field("map", &self.map.0).finish_non_exhaustive()
    }
}

impl<V: FromBytes + IntoBytes + Immutable> PinnedValue<V> {
    /// A copy of the bytes as they are now; if another thread writes meanwhile, it may be partly old and partly new.
    ///
    /// # Errors
    /// [`MapError::NoSlot`] in a forked child: the value is its parent's.
    pub fn get(&self) -> Result<V, MapError> {
        self.map.0.check_process()?;
        let mut value = V::new_zeroed();
        // SAFETY: a value of the map, which lives as long as `self`; its size is `V`'s (`PinnedMap::new`), and all
        // access is atomic or by machine code.
        unsafe { copy_out(self.at, value.as_mut_bytes()) };
        Ok(value)
    }

    /// Copies `value` in.
    ///
    /// # Errors
    /// As [`PinnedValue::get`].
    pub fn set(&self, value: &V) -> Result<(), MapError> {
        self.map.0.check_process()?;
        // SAFETY: as in `get`; programs may write the map's values, and so may the host.
        unsafe { copy_in(self.at, value.as_bytes()) };
        Ok(())
    }
}

// SAFETY: a map's value has the size of `V` (`PinnedMap::new`), is aligned to 8 and initialised, and programs may write
// it; `address` checks that the map stays for the run.
unsafe impl<V: FromBytes + IntoBytes + Immutable> HostRet for Option<PinnedValue<V>> {
    const RET: Ret = memory_or_null::<V>();
    #[inline]
    fn into_r0<H: ?Sized>(self, caller: &mut Caller<'_, H>) -> Result<u64, HelperError> {
        self.map_or(Ok(0), |value| address(value.at, &value.map.0, caller))
    }
}
