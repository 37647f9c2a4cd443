//! Hashes of sockets, and the operations of programs on maps of sockets (`SOCKHASH`, `SOCKMAP`).
//!
//! Problem: in the kernel an entry is a counted reference to a socket. Here sockets belong to the host, and maps know
//! nothing of them. Approach: an entry is a number that stands for a socket. The host writes it, or a `sockops`
//! program does with the socket's cookie. A program's look-up returns the number to the runtime, which asks the host
//! for the socket; programs see neither the number nor its address. A map by index is an
//! [`IndexMap`](crate::redirect::IndexMap), a map by key a hash of such numbers. Numbers are stored whole, whatever
//! the size of a value in the host's view.
//!
//! Source: `net/core/sock_map.c` (Linux 6.18).

use std::sync::Arc;

use bpf_quiesce::Domain;

use crate::def::{MAX_SOCKET_KEY, MapDef, MapType, update};
use crate::errno::{Errno, OpResult};
use crate::hash::HashMap;
use crate::header::{LookupFn, MapHeader};
use crate::ops::{Cursor, MapOps};

/// Bytes of a socket's number.
const NUMBER_SIZE: u32 = 8;
const NUMBER: usize = NUMBER_SIZE as usize;

/// Sockets by a key.
#[derive(Debug)]
pub(crate) struct SocketHash {
    hash: HashMap,
    key_size: usize,
    value_size: usize,
}

/// The definition of the hash that stores the numbers.
fn hash_def(def: &MapDef) -> MapDef {
    MapDef::new(&def.name, MapType::Hash, def.key_size, NUMBER_SIZE, def.max_entries)
}

/// The lookup function of maps of sockets: returns null, because programs cannot access an entry's memory.
///
/// # Safety
/// See [`LookupFn`].
pub(crate) unsafe extern "C" fn lookup_nothing(_: *const MapHeader, _: *const u8, _: u32) -> *mut u8 {
    std::ptr::null_mut()
}

impl SocketHash {
    pub(crate) fn memory_needed(def: &MapDef, slots: u32) -> u64 {
        HashMap::memory_needed(&hash_def(def), slots)
    }

    pub(crate) fn new(def: &MapDef, domain: &Arc<Domain>, seed: Option<u64>) -> OpResult<Self> {
        Ok(Self {
            hash: HashMap::new(&hash_def(def), domain, seed, None)?,
            key_size: def.key_size as usize,
            value_size: def.value_size as usize,
        })
    }

    /// Copies a number in the host's view: as many bytes as a value has.
    fn narrow(&self, number: [u8; NUMBER], out: &mut [u8]) {
        out.copy_from_slice(&number[..self.value_size]);
    }
}

impl MapOps for SocketHash {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        lookup_nothing
    }

    fn host_value_size(&self) -> usize {
        self.value_size
    }

    unsafe fn program_delete(&self, key: *const u8, slot: u32) -> OpResult {
        // SAFETY: readable for the key size (contract).
        unsafe { with_key(key, self.key_size, |key| self.hash.delete(key, slot)) }.unwrap_or(Err(Errno::EINVAL))
    }

    fn socket(&self, key: &[u8], slot: u32) -> OpResult<u64> {
        let mut number = [0; NUMBER];
        self.hash.lookup(key, &mut number, 0, slot)?;
        Ok(u64::from_ne_bytes(number))
    }

    fn set_socket(&self, key: &[u8], number: u64, flags: u64, slot: u32) -> OpResult {
        if flags > update::EXIST {
            return Err(Errno::EINVAL);
        }
        self.hash.update(key, &number.to_ne_bytes(), flags, slot)
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64, slot: u32) -> OpResult {
        let mut number = [0; NUMBER];
        self.hash.lookup(key, &mut number, flags, slot)?;
        self.narrow(number, out);
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64, slot: u32) -> OpResult {
        self.set_socket(key, widened(value)?, flags, slot)
    }

    fn delete(&self, key: &[u8], slot: u32) -> OpResult {
        self.hash.delete(key, slot)
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> OpResult {
        self.hash.next_key(key, out)
    }

    fn next_at(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8], slot: u32) -> OpResult {
        let mut number = [0; NUMBER];
        self.hash.next_at(cursor, key, &mut number, slot)?;
        self.narrow(number, value);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.hash.len()
    }

    fn memory_usage(&self) -> u64 {
        self.hash.memory_usage()
    }
}

/// The number in a value of four or eight bytes.
pub(crate) fn widened(value: &[u8]) -> OpResult<u64> {
    let mut number = [0; NUMBER];
    number.get_mut(..value.len()).ok_or(Errno::EINVAL)?.copy_from_slice(value);
    Ok(u64::from_ne_bytes(number))
}

/// Copies a program's key, whose memory may be shared, and passes the copy to `f`. `None` for a key longer than
/// [`MAX_SOCKET_KEY`].
///
/// # Safety
/// `len` bytes must be readable at `at`.
pub(crate) unsafe fn with_key<T>(at: *const u8, len: usize, f: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let mut bytes = [0; MAX_SOCKET_KEY as usize];
    let key = bytes.get_mut(..len)?;
    // SAFETY: `len` bytes are readable (contract), and the copy has that length.
    unsafe { std::ptr::copy(at, key.as_mut_ptr(), len) };
    Some(f(key))
}
