//! Maps with types: sizes are checked once, when the handle is made.
//!
//! Keys and values are plain data (`zerocopy`): every bit pattern is valid and there is no padding, so operations
//! only copy bytes. If the map comes from an object with BTF, Rust's integers and floats must be of the kind that the
//! object declares. The fields of a Rust structure are not known, so only its size is compared.
//!
//! ```
//! use bpf_maps::{Map, MapDef, MapType, typed::TypedHash};
//! use bpf_quiesce::{Domain, Options};
//!
//! let domain = Domain::new(Options::default());
//! let map = Map::create(MapDef::new("hits", MapType::Hash, 4, 8, 1024), &domain)?;
//! let hits: TypedHash<u32, u64> = map.typed()?;
//! hits.insert(&7, &1)?;
//! assert_eq!(hits.get(&7)?, Some(1));
//! assert!(map.typed::<TypedHash<u32, u32>>().is_err());
//! # Ok::<(), bpf_maps::MapError>(())
//! ```

use std::any::TypeId;
use std::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::def::{Kind, MapType, update};
use crate::errno::Errno;
use crate::error::MapError;
use crate::host::until_failure;
use crate::map::Map;
use crate::mem::{WORD, round_up8};
use crate::ops::Cursor;

/// Types that can be keys and values: plain data without padding.
pub trait Plain: FromBytes + IntoBytes + Immutable + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + 'static> Plain for T {}

/// The kind of a Rust type, if it is a primitive type.
fn kind_of<T: 'static>() -> Option<Kind> {
    macro_rules! is_one_of {
        ($($t:ty),*) => { [$(TypeId::of::<$t>()),*].contains(&TypeId::of::<T>()) };
    }
    // Single bytes match any kind: `char` is signed in BTF, and is text or a small number in Rust.
    if is_one_of!(u16, u32, u64, u128, usize) {
        Some(Kind::Unsigned)
    } else if is_one_of!(i16, i32, i64, i128, isize) {
        Some(Kind::Signed)
    } else if is_one_of!(f32, f64) {
        Some(Kind::Float)
    } else {
        None
    }
}

fn check_kind<T: 'static>(map: &Map, what: &'static str, declared: Option<Kind>) -> Result<(), MapError> {
    match (declared, kind_of::<T>()) {
        (Some(expected), Some(got)) if expected != got => {
            let (expected, got) = (expected.name(), got.name());
            Err(MapError::Kind { map: map.name().to_owned(), what, expected, got })
        }
        _ => Ok(()),
    }
}

/// A typed handle.
pub trait TypedMap: Sized {
    /// Creates the handle after checking type, sizes and kinds.
    ///
    /// # Errors
    /// [`MapError::WrongType`], [`MapError::Size`] or [`MapError::Kind`].
    fn from_map(map: Map) -> Result<Self, MapError>;
}

impl Map {
    /// A typed handle of this map.
    ///
    /// # Errors
    /// [`MapError::WrongType`], [`MapError::Size`] or [`MapError::Kind`].
    pub fn typed<T: TypedMap>(&self) -> Result<T, MapError> {
        T::from_map(self.clone())
    }

    fn check_types<K: 'static, V: 'static>(&self, types: &[MapType], expected: &'static str) -> Result<(), MapError> {
        let map = || self.name().to_owned();
        if !types.contains(&self.map_type()) {
            return Err(MapError::WrongType { map: map(), expected, got: self.map_type() });
        }
        let sizes = [("key", self.def().key_size, size_of::<K>()), ("value", self.def().value_size, size_of::<V>())];
        for (what, expected, got) in sizes {
            if expected as usize != got {
                return Err(MapError::Size { map: map(), what, expected: expected as usize, got });
            }
        }
        // An array's key is an index, whatever its declared type.
        if !self.is_array() {
            check_kind::<K>(self, "key", self.def().key_kind)?;
        }
        check_kind::<V>(self, "value", self.def().value_kind)
    }
}

/// The value, or `None` if its key is absent.
fn optional<T>(result: Result<(), MapError>, value: T) -> Result<Option<T>, MapError> {
    match result {
        Ok(()) => Ok(Some(value)),
        Err(MapError::Op { errno: Errno::ENOENT, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The flags that name an execution slot.
fn of_slot(slot: u32) -> u64 {
    update::F_CPU | u64::from(slot) << 32
}

/// The value that a key has in one execution slot.
fn slot_value<V: Plain>(map: &Map, key: &[u8], slot: u32) -> Result<Option<V>, MapError> {
    let mut value = V::new_zeroed();
    let found = map.lookup(key, value.as_mut_bytes(), of_slot(slot));
    optional(found, value)
}

/// The values of all slots in host order, each padded to 8 bytes.
fn from_slots<V: Plain>(map: &Map, bytes: &[u8]) -> Result<Vec<V>, MapError> {
    let chunks = bytes.chunks_exact(round_up8(size_of::<V>()));
    let mut values = Vec::new();
    let room = values.try_reserve_exact(chunks.len());
    room.map_err(|_| map.system("allocating the values of all slots", Errno::ENOMEM))?;
    values.extend(chunks.filter_map(|bytes| V::read_from_prefix(bytes).ok().map(|(value, _)| value)));
    Ok(values)
}

fn to_slots<V: Plain>(map: &Map, values: &[V]) -> Result<Vec<u8>, MapError> {
    let stride = round_up8(size_of::<V>());
    let expected = map.host_value_size() / stride;
    if values.len() != expected {
        let (name, got) = (map.name().to_owned(), values.len());
        return Err(MapError::Size { map: name, what: "number of per-slot values", expected, got });
    }
    let mut bytes = map.buffer(values.len() * stride)?;
    for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(stride)) {
        bytes[..size_of::<V>()].copy_from_slice(value.as_bytes());
    }
    Ok(bytes)
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident<$($param:ident),+>, key $key:ty, value $value:ty, types $types:expr, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name<$($param),+> {
            map: Map,
            _types: PhantomData<fn($($param),+) -> ($($param,)+)>,
        }

        impl<$($param: Plain),+> TypedMap for $name<$($param),+> {
            fn from_map(map: Map) -> Result<Self, MapError> {
                map.check_types::<$key, $value>($types, $expected)?;
                Ok(Self { map, _types: PhantomData })
            }
        }

        impl<$($param),+> $name<$($param),+> {
            /// The untyped handle.
            #[must_use]
            pub fn map(&self) -> &Map {
                &self.map
            }
        }
    };
}

handle!(
    /// A hash, LRU hash or trie (whose `K` begins with the prefix length in bits, a `u32`).
    TypedHash<K, V>, key K, value V,
    types &[MapType::Hash, MapType::LruHash, MapType::LpmTrie], "hash, lru_hash or lpm_trie"
);
handle!(
    /// A per-CPU hash or LRU per-CPU hash.
    TypedPerCpuHash<K, V>, key K, value V,
    types &[MapType::PerCpuHash, MapType::LruPerCpuHash], "percpu_hash or lru_percpu_hash"
);
handle!(
    /// An array.
    TypedArray<V>, key u32, value V, types &[MapType::Array], "array"
);
handle!(
    /// A per-CPU array.
    TypedPerCpuArray<V>, key u32, value V, types &[MapType::PerCpuArray], "percpu_array"
);
handle!(
    /// A queue or stack.
    TypedQueue<V>, key (), value V, types &[MapType::Queue, MapType::Stack], "queue or stack"
);
handle!(
    /// A bloom filter.
    TypedBloomFilter<V>, key (), value V, types &[MapType::BloomFilter], "bloom_filter"
);

impl<K: Plain, V: Plain> TypedHash<K, V> {
    /// Returns a copy of the value of `key`.
    ///
    /// # Errors
    /// Access rights, or no execution slot.
    pub fn get(&self, key: &K) -> Result<Option<V>, MapError> {
        let mut value = V::new_zeroed();
        let found = self.map.lookup(key.as_bytes(), value.as_mut_bytes(), 0);
        optional(found, value)
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// `E2BIG` (for tries `ENOSPC`) when full.
    pub fn insert(&self, key: &K, value: &V) -> Result<(), MapError> {
        self.update(key, value, update::ANY)
    }

    /// Sets the value of `key`, as `flags` allow.
    ///
    /// # Errors
    /// As [`Map::update`].
    pub fn update(&self, key: &K, value: &V, flags: u64) -> Result<(), MapError> {
        self.map.update(key.as_bytes(), value.as_bytes(), flags)
    }

    /// Removes `key` and returns whether it was present.
    ///
    /// # Errors
    /// Access rights, or no execution slot.
    pub fn remove(&self, key: &K) -> Result<bool, MapError> {
        Ok(optional(self.map.delete(key.as_bytes()), ())?.is_some())
    }

    /// Removes `key` and returns its value.
    ///
    /// # Errors
    /// `ENOTSUPP` for tries.
    pub fn take(&self, key: &K) -> Result<Option<V>, MapError> {
        let mut value = V::new_zeroed();
        let found = self.map.lookup_and_delete(key.as_bytes(), value.as_mut_bytes(), 0);
        optional(found, value)
    }

    /// All elements, as copies; see [`Map::next`]. An error is the last item.
    pub fn iter(&self) -> impl Iterator<Item = Result<(K, V), MapError>> + '_ {
        let mut cursor = Cursor::default();
        until_failure(move || {
            let (mut key, mut value) = (K::new_zeroed(), V::new_zeroed());
            let found = self.map.next(&mut cursor, key.as_mut_bytes(), value.as_mut_bytes())?;
            Ok(found.then_some((key, value)))
        })
    }
}

impl<K: Plain, V: Plain> TypedPerCpuHash<K, V> {
    /// Copies of the values of `key`, one per execution slot.
    ///
    /// # Errors
    /// Access rights, or no execution slot.
    pub fn get(&self, key: &K) -> Result<Option<Vec<V>>, MapError> {
        self.map.get(key.as_bytes())?.map(|bytes| from_slots(&self.map, &bytes)).transpose()
    }

    /// Sets the values of `key`, one per execution slot.
    ///
    /// # Errors
    /// [`MapError::Size`] for another number of values; `E2BIG` when full.
    pub fn insert(&self, key: &K, values: &[V]) -> Result<(), MapError> {
        self.map.update(key.as_bytes(), &to_slots(&self.map, values)?, update::ANY)
    }

    /// A copy of the value that `key` has in one execution slot.
    ///
    /// # Errors
    /// `ERANGE` for a slot that does not exist.
    pub fn get_slot(&self, key: &K, slot: u32) -> Result<Option<V>, MapError> {
        slot_value(&self.map, key.as_bytes(), slot)
    }

    /// Sets the value that `key` has in one execution slot. If the key is new, its values in the others are zero.
    ///
    /// # Errors
    /// `ERANGE` for a slot that does not exist; `E2BIG` when full.
    pub fn insert_slot(&self, key: &K, slot: u32, value: &V) -> Result<(), MapError> {
        self.map.update(key.as_bytes(), value.as_bytes(), of_slot(slot))
    }

    /// Sets the values of `key` in all execution slots to the same.
    ///
    /// # Errors
    /// `E2BIG` when full.
    pub fn insert_same(&self, key: &K, value: &V) -> Result<(), MapError> {
        self.map.update(key.as_bytes(), value.as_bytes(), update::F_ALL_CPUS)
    }

    /// Removes `key` and returns whether it was present.
    ///
    /// # Errors
    /// Access rights, or no execution slot.
    pub fn remove(&self, key: &K) -> Result<bool, MapError> {
        Ok(optional(self.map.delete(key.as_bytes()), ())?.is_some())
    }

    /// All elements, as copies; see [`Map::next`]. An error is the last item.
    pub fn iter(&self) -> impl Iterator<Item = Result<(K, Vec<V>), MapError>> + '_ {
        let mut cursor = Cursor::default();
        let mut bytes = Vec::new();
        until_failure(move || {
            if bytes.is_empty() {
                bytes = self.map.buffer(self.map.host_value_size())?;
            }
            let mut key = K::new_zeroed();
            let found = self.map.next(&mut cursor, key.as_mut_bytes(), &mut bytes)?;
            found.then(|| Ok((key, from_slots(&self.map, &bytes)?))).transpose()
        })
    }
}

impl<V: Plain> TypedArray<V> {
    /// Returns a copy of element `index`; `None` if it is out of range.
    ///
    /// # Errors
    /// Access rights, or no execution slot.
    pub fn get(&self, index: u32) -> Result<Option<V>, MapError> {
        let mut value = V::new_zeroed();
        let found = self.map.lookup(index.as_bytes(), value.as_mut_bytes(), 0);
        optional(found, value)
    }

    /// Sets element `index`.
    ///
    /// # Errors
    /// `E2BIG` out of range.
    pub fn set(&self, index: u32, value: &V) -> Result<(), MapError> {
        self.map.update(index.as_bytes(), value.as_bytes(), update::ANY)
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.map.def().max_entries
    }

    /// False, because an array is never empty; here for symmetry with [`TypedArray::len`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<V: Plain> TypedPerCpuArray<V> {
    /// Copies of the values of element `index`, one per execution slot; `None` out of range.
    ///
    /// # Errors
    /// Access rights, or no execution slot.
    pub fn get(&self, index: u32) -> Result<Option<Vec<V>>, MapError> {
        self.map.get(index.as_bytes())?.map(|bytes| from_slots(&self.map, &bytes)).transpose()
    }

    /// Sets the values of element `index`, one per execution slot.
    ///
    /// # Errors
    /// [`MapError::Size`] for another number of values; `E2BIG` out of range.
    pub fn set(&self, index: u32, values: &[V]) -> Result<(), MapError> {
        self.map.update(index.as_bytes(), &to_slots(&self.map, values)?, update::ANY)
    }

    /// A copy of the value that element `index` has in one execution slot; `None` for an index out of range.
    ///
    /// # Errors
    /// `ERANGE` for a slot that does not exist.
    pub fn get_slot(&self, index: u32, slot: u32) -> Result<Option<V>, MapError> {
        slot_value(&self.map, index.as_bytes(), slot)
    }

    /// Sets the value that element `index` has in one execution slot.
    ///
    /// # Errors
    /// `ERANGE` for a slot that does not exist; `E2BIG` for an index out of range.
    pub fn set_slot(&self, index: u32, slot: u32, value: &V) -> Result<(), MapError> {
        self.map.update(index.as_bytes(), value.as_bytes(), of_slot(slot))
    }

    /// Sets the values of element `index` in all execution slots to the same.
    ///
    /// # Errors
    /// `E2BIG` for an index out of range.
    pub fn set_same(&self, index: u32, value: &V) -> Result<(), MapError> {
        self.map.update(index.as_bytes(), value.as_bytes(), update::F_ALL_CPUS)
    }

    /// The number of values of an element.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.map.host_value_size() / (size_of::<V>().div_ceil(WORD) * WORD)
    }
}

impl<V: Plain> TypedQueue<V> {
    /// Adds a value.
    ///
    /// # Errors
    /// `E2BIG` when full.
    pub fn push(&self, value: &V) -> Result<(), MapError> {
        self.map.push(value.as_bytes(), update::ANY)
    }

    /// Adds a value; if the map is full, it first drops the oldest one.
    ///
    /// # Errors
    /// Access rights, or no execution slot.
    pub fn push_over(&self, value: &V) -> Result<(), MapError> {
        self.map.push(value.as_bytes(), update::EXIST)
    }

    /// Takes the next value.
    ///
    /// # Errors
    /// Access rights, or no execution slot.
    pub fn pop(&self) -> Result<Option<V>, MapError> {
        let mut value = V::new_zeroed();
        Ok(self.map.pop(value.as_mut_bytes())?.then_some(value))
    }

    /// Reads the next value.
    ///
    /// # Errors
    /// Access rights, or no execution slot.
    pub fn peek(&self) -> Result<Option<V>, MapError> {
        let mut value = V::new_zeroed();
        Ok(self.map.peek(value.as_mut_bytes())?.then_some(value))
    }
}

impl<V: Plain + Copy> TypedBloomFilter<V> {
    /// Adds a value.
    ///
    /// # Errors
    /// Access rights, or no execution slot.
    pub fn push(&self, value: &V) -> Result<(), MapError> {
        self.map.push(value.as_bytes(), update::ANY)
    }

    /// Returns `false` if the value was certainly not pushed, and `true` if it probably was.
    ///
    /// # Errors
    /// Access rights, or no execution slot.
    pub fn may_contain(&self, value: &V) -> Result<bool, MapError> {
        let mut value = *value;
        self.map.peek(value.as_mut_bytes())
    }
}
