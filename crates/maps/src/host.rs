//! The untyped host API beyond single keys: values without keys, iteration, batches, mapped arrays.

use bpf_os::fd::{AsFd, BorrowedFd, OwnedFd};

use bpf_os::file::{Seals, seal};

use crate::array::ArrayMap;
use crate::def::{MapType, update};
use crate::errno::Errno;
use crate::error::MapError;
use crate::map::Map;
use crate::ops::Cursor;
use crate::slots::Slots;

/// The progress of a batch operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Batch {
    /// Elements transferred.
    pub count: usize,
    /// Whether there are no more elements, which the kernel reports as `ENOENT` with a valid count.
    pub end: bool,
}

impl Map {
    /// Adds a value to a queue, stack or bloom filter; `flags` as in [`update`], where `EXIST` makes room in a full
    /// queue.
    ///
    /// # Errors
    /// `E2BIG` when full; `EOPNOTSUPP` for types with keys.
    pub fn push(&self, value: &[u8], flags: u64) -> Result<(), MapError> {
        self.without_keys("push")?;
        self.update(&[], value, flags)
    }

    /// Takes the next value of a queue or stack, if there is one.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for other types.
    pub fn pop(&self, out: &mut [u8]) -> Result<bool, MapError> {
        self.without_keys("pop")?;
        present(self.lookup_and_delete(&[], out, 0))
    }

    /// Reads the next value of a queue or stack, if there is one. For a bloom filter: whether `out` was perhaps pushed.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for other types.
    pub fn peek(&self, out: &mut [u8]) -> Result<bool, MapError> {
        self.without_keys("peek")?;
        present(self.lookup(&[], out, 0))
    }

    fn without_keys(&self, op: &'static str) -> Result<(), MapError> {
        match self.map_type() {
            MapType::Queue | MapType::Stack | MapType::BloomFilter => Ok(()),
            _ => Err(self.error(op, Errno::EOPNOTSUPP)),
        }
    }

    /// Copies the element after `cursor` and moves the cursor there; false at the end. Whatever other threads do, a
    /// cursor reaches the end, and meets a key that is present throughout exactly once. (A trie's values come with
    /// the longer prefixes first, a queue's in the order in which they would be taken.)
    ///
    /// # Errors
    /// `ENOTSUPP` for types that cannot be iterated over; `EINVAL` for a cursor that has been moved in another map.
    pub fn next(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        self.readable("next")?;
        self.check_key(key)?;
        self.check_value(value)?;
        if *cursor.map.get_or_insert(self.id()) != self.id() {
            return Err(self.error("next", Errno::EINVAL));
        }
        present(self.run("next", |ops, slot| ops.next_at(cursor, key, value, slot)))
    }

    /// All elements, as copies. An error is the last item.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter { map: self, cursor: Cursor::default(), failed: false }
    }

    /// Copies elements from `cursor` on, as many as `keys` has room for; `values` must have room for as many.
    ///
    /// # Errors
    /// `EINVAL` for buffers of other sizes, `ENOTSUPP` for types without the operation.
    pub fn lookup_batch(&self, cursor: &mut Cursor, keys: &mut [u8], values: &mut [u8]) -> Result<Batch, MapError> {
        self.readable("lookup_batch")?;
        self.has_batch("lookup_batch")?;
        self.batch("lookup_batch", cursor, keys, values, |_, _| Ok(true))
    }

    /// Copies elements as [`Map::lookup_batch`] does and removes each; returns the elements that this call removed.
    ///
    /// # Errors
    /// As [`Map::lookup_batch`]; only hashes have the operation.
    pub fn lookup_and_delete_batch(
        &self,
        cursor: &mut Cursor,
        keys: &mut [u8],
        values: &mut [u8],
    ) -> Result<Batch, MapError> {
        const OP: &str = "lookup_and_delete_batch";
        self.readable(OP)?;
        self.writable(OP)?;
        match self.map_type() {
            MapType::Hash | MapType::PerCpuHash | MapType::LruHash | MapType::LruPerCpuHash => {}
            _ => return Err(self.error(OP, Errno::ENOTSUPP)),
        }
        // A key that another thread removed first is not returned here.
        self.batch(OP, cursor, keys, values, |key, value| present(self.lookup_and_delete(key, value, 0)))
    }

    fn batch(
        &self,
        op: &'static str,
        cursor: &mut Cursor,
        keys: &mut [u8],
        values: &mut [u8],
        mut keep: impl FnMut(&[u8], &mut [u8]) -> Result<bool, MapError>,
    ) -> Result<Batch, MapError> {
        let (key_size, value_size) = (self.def().key_size as usize, self.host_value_size());
        let room = self.batch_room(op, keys.len(), values.len(), value_size)?;
        let mut count = 0;
        while count < room {
            let key = &mut keys[count * key_size..][..key_size];
            let value = &mut values[count * value_size..][..value_size];
            if !self.next(cursor, key, value)? {
                return Ok(Batch { count, end: true });
            }
            if keep(key, value)? {
                count += 1;
            }
        }
        Ok(Batch { count, end: false })
    }

    /// Updates many keys; stops at the first error and says how many went in. Like the kernel, `flags` may only ask for
    /// the lock, or name slots.
    ///
    /// # Errors
    /// The error is in the result beside the count; `EINVAL` for buffers that do not match or other flags.
    pub fn update_batch(&self, keys: &[u8], values: &[u8], flags: u64) -> (usize, Result<(), MapError>) {
        const OP: &str = "update_batch";
        let flags_fit =
            if Slots::split(flags).1 & !update::F_LOCK == 0 { Ok(()) } else { Err(self.error(OP, Errno::EINVAL)) };
        let room = self.writable(OP).and(self.has_batch(OP)).and(flags_fit);
        let value_size = self.host_bytes(flags);
        let room = room.and_then(|()| self.batch_room(OP, keys.len(), values.len(), value_size));
        if let Err(error) = room {
            return (0, Err(error));
        }
        let pairs = keys.chunks_exact(self.def().key_size as usize).zip(values.chunks_exact(value_size));
        until_error(pairs.map(|(key, value)| self.update(key, value, flags)))
    }

    /// Removes many keys; stops at the first error and returns the number of removed keys.
    ///
    /// # Errors
    /// The error is in the result beside the count.
    pub fn delete_batch(&self, keys: &[u8]) -> (usize, Result<(), MapError>) {
        const OP: &str = "delete_batch";
        if let Err(error) = self.writable(OP) {
            return (0, Err(error));
        }
        if self.is_array() || !self.ops().has_batch() {
            return (0, Err(self.error(OP, Errno::ENOTSUPP)));
        }
        until_error(keys.chunks(self.def().key_size as usize).map(|key| self.delete(key)))
    }

    fn has_batch(&self, op: &'static str) -> Result<(), MapError> {
        if self.ops().has_batch() { Ok(()) } else { Err(self.error(op, Errno::ENOTSUPP)) }
    }

    /// How many elements two buffers have room for.
    fn batch_room(&self, op: &'static str, keys: usize, values: usize, value_size: usize) -> Result<usize, MapError> {
        let key_size = self.def().key_size as usize;
        let fits = key_size != 0 && keys.is_multiple_of(key_size) && keys / key_size * value_size == values;
        if fits { Ok(keys / key_size) } else { Err(self.error(op, Errno::EINVAL)) }
    }

    /// The memory file of an array with the MMAPABLE flag. A process that maps it sees the values
    /// (`round_up(value_size, 8)` bytes each) as programs write them. The file's length is sealed; the file of a
    /// frozen map can only be read and mapped for reading.
    ///
    /// # Errors
    /// `EPERM` for maps without the flag.
    pub fn mmap_fd(&self) -> Result<BorrowedFd<'_>, MapError> {
        let file = self.memory_file().ok_or_else(|| self.error("mmap", Errno::EPERM))?;
        if !self.gate().lend() {
            seal(file, Seals::FutureWrites).map_err(|error| self.error("mmap", error.into()))?;
        }
        Ok(file.as_fd())
    }

    /// Whether [`Map::mmap_fd`] has given out the memory file. The owner of a copy of the descriptor needs no handle
    /// of the map to see the values, and to change them if the map was not frozen.
    #[must_use]
    pub fn is_mmap_lent(&self) -> bool {
        self.gate().is_lent()
    }

    /// The memory file of an array with the MMAPABLE flag.
    pub(crate) fn memory_file(&self) -> Option<&OwnedFd> {
        self.ops().as_any().downcast_ref::<ArrayMap>()?.file()
    }

    /// Sets the value of `key`, present or absent.
    ///
    /// # Errors
    /// As [`Map::update`].
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), MapError> {
        self.update(key, value, update::ANY)
    }
}

/// Whether an operation found its element.
fn present(result: Result<(), MapError>) -> Result<bool, MapError> {
    match result {
        Ok(()) => Ok(true),
        Err(MapError::Op { errno: Errno::ENOENT, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn until_error(results: impl Iterator<Item = Result<(), MapError>>) -> (usize, Result<(), MapError>) {
    let mut count = 0;
    for result in results {
        if let Err(error) = result {
            return (count, Err(error));
        }
        count += 1;
    }
    (count, Ok(()))
}

/// Iterates over the results of `next` until it returns `None` or an error. The iteration ends with the first error,
/// because an error may be permanent and a loop that skips errors must end.
pub(crate) fn until_failure<T>(
    mut next: impl FnMut() -> Result<Option<T>, MapError>,
) -> impl Iterator<Item = Result<T, MapError>> {
    let mut failed = false;
    core::iter::from_fn(move || {
        let item = if failed { None } else { next().transpose() };
        failed |= matches!(item, Some(Err(_)));
        item
    })
}

/// The elements of a map; see [`Map::next`].
#[derive(Debug)]
pub struct Iter<'a> {
    map: &'a Map,
    cursor: Cursor,
    /// Whether an error was returned: the iteration has ended, as in [`until_failure`].
    failed: bool,
}

impl Iterator for Iter<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>), MapError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let mut element = || {
            let mut key = self.map.buffer(self.map.def().key_size as usize)?;
            let mut value = self.map.buffer(self.map.host_value_size())?;
            Ok(self.map.next(&mut self.cursor, &mut key, &mut value)?.then_some((key, value)))
        };
        let element = element().transpose();
        self.failed = matches!(element, Some(Err(_)));
        element
    }
}
