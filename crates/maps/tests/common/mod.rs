//! Helpers that several test files share: domains, and the kernel's maps through bpf(2).

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use bpf_maps::MapDef;
use bpf_quiesce::{Domain, Options};

/// A domain with this many execution slots.
pub fn domain(max_slots: u32) -> Arc<Domain> {
    Domain::new(Options::new().max_slots(max_slots))
}

/// A result as both sides report it: bytes or an error number.
pub type Outcome = Result<Vec<u8>, i32>;

/// The kernel's `num_possible_cpus`, which sizes per-CPU values.
pub fn possible_cpus() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|n| n.parse::<u32>().ok());
    last.map_or(1, |n| n + 1)
}

/// A map in the kernel.
pub struct KernelMap {
    fd: OwnedFd,
    key_size: usize,
    value_size: usize,
}

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP: libc::c_long = 1;
const MAP_UPDATE: libc::c_long = 2;
const MAP_DELETE: libc::c_long = 3;
const MAP_NEXT_KEY: libc::c_long = 4;
const MAP_LOOKUP_AND_DELETE: libc::c_long = 21;
const MAP_FREEZE: libc::c_long = 22;
const MAP_LOOKUP_BATCH: libc::c_long = 24;
const MAP_LOOKUP_AND_DELETE_BATCH: libc::c_long = 25;
const MAP_UPDATE_BATCH: libc::c_long = 26;
const MAP_DELETE_BATCH: libc::c_long = 27;

/// `union bpf_attr`, large enough for the commands above.
#[repr(C, align(8))]
struct Attr([u8; 128]);

impl Attr {
    fn new() -> Self {
        Self([0; 128])
    }

    fn u32(mut self, offset: usize, value: u32) -> Self {
        self.0[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, offset: usize, value: u64) -> Self {
        self.0[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn call(&mut self, command: libc::c_long) -> Result<i32, i32> {
        // SAFETY: the attributes are a local, zero beyond what the command knows; the pointers in them are valid for
        // the sizes of the map (set by the methods below).
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), self.0.len()) };
        if result < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(result as i32) }
    }
}

impl KernelMap {
    /// Creates the kernel's map of this definition.
    pub fn create(def: &MapDef) -> Result<Self, i32> {
        // The inner map only has to live until the outer one has copied its shape.
        let inner = def.inner.as_deref().map(Self::create).transpose()?;
        let mut attr = Attr::new()
            .u32(20, inner.as_ref().map_or(0, |inner| inner.fd.as_raw_fd() as u32))
            .u32(0, def.map_type as u32)
            .u32(4, def.key_size)
            .u32(8, def.value_size)
            .u32(12, def.max_entries)
            .u32(16, def.flags)
            .u64(64, def.map_extra);
        let fd = attr.call(MAP_CREATE)?;
        let round = (def.value_size as usize).next_multiple_of(8);
        Ok(Self {
            // SAFETY: a new descriptor that nobody else owns.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            key_size: def.key_size as usize,
            value_size: if def.map_type.is_per_cpu() {
                round * possible_cpus() as usize
            } else {
                def.value_size as usize
            },
        })
    }

    /// Whether this process may use bpf(2); prints that the test is skipped if not.
    pub fn available(test: &str) -> bool {
        let def = MapDef::new("probe", bpf_maps::MapType::Array, 4, 4, 1);
        let available = Self::create(&def).is_ok();
        if !available {
            eprintln!("SKIPPED {test}: bpf(2) is not permitted here, so nothing was compared with the kernel");
        }
        available
    }

    fn element(&self, command: libc::c_long, key: Option<&[u8]>, value: *mut u8, flags: u64) -> Result<(), i32> {
        let key = key.filter(|_| self.key_size > 0).map_or(std::ptr::null(), <[u8]>::as_ptr);
        let attr = Attr::new().u32(0, self.fd.as_raw_fd() as u32).u64(8, key as u64);
        attr.u64(16, value as u64).u64(24, flags).call(command).map(|_| ())
    }

    pub fn lookup(&self, key: &[u8], flags: u64) -> Outcome {
        let mut value = vec![0; self.value_size];
        self.element(MAP_LOOKUP, Some(key), value.as_mut_ptr(), flags).map(|()| value)
    }

    /// A lookup that passes a value in, as bloom filters require.
    pub fn contains(&self, value: &[u8]) -> Outcome {
        let mut value = value.to_vec();
        self.element(MAP_LOOKUP, None, value.as_mut_ptr(), 0).map(|()| Vec::new())
    }

    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Outcome {
        self.element(MAP_UPDATE, Some(key), value.as_ptr().cast_mut(), flags).map(|()| Vec::new())
    }

    pub fn delete(&self, key: &[u8]) -> Outcome {
        self.element(MAP_DELETE, Some(key), std::ptr::null_mut(), 0).map(|()| Vec::new())
    }

    pub fn take(&self, key: &[u8], flags: u64) -> Outcome {
        let mut value = vec![0; self.value_size];
        self.element(MAP_LOOKUP_AND_DELETE, Some(key), value.as_mut_ptr(), flags).map(|()| value)
    }

    pub fn next_key(&self, key: Option<&[u8]>) -> Outcome {
        let mut next = vec![0; self.key_size];
        self.element(MAP_NEXT_KEY, key, next.as_mut_ptr(), 0).map(|()| next)
    }

    /// The descriptor, as a value of a map of maps.
    pub fn as_value(&self) -> [u8; 4] {
        self.fd.as_raw_fd().to_ne_bytes()
    }

    pub fn freeze(&self) -> Result<(), i32> {
        Attr::new().u32(0, self.fd.as_raw_fd() as u32).call(MAP_FREEZE).map(|_| ())
    }

    fn batch(
        &self,
        command: libc::c_long,
        keys: *const u8,
        values: *const u8,
        count: u32,
        flags: u64,
    ) -> (u32, Result<(), i32>) {
        // in_batch 0, out_batch 8, keys 16, values 24, count 32, map_fd 36, elem_flags 40, flags 48.
        let mut cursor = [0u8; 512];
        let mut attr = Attr::new()
            .u64(8, cursor.as_mut_ptr() as u64)
            .u64(16, keys as u64)
            .u64(24, values as u64)
            .u32(32, count)
            .u32(36, self.fd.as_raw_fd() as u32)
            .u64(40, flags);
        let result = attr.call(command).map(|_| ());
        (u32::from_ne_bytes(attr.0[32..36].try_into().unwrap()), result)
    }

    /// The first `count` elements: keys, values, how many, and the error number.
    pub fn lookup_batch(&self, count: u32, delete: bool) -> (Vec<u8>, Vec<u8>, u32, Result<(), i32>) {
        let mut keys = vec![0; self.key_size * count as usize];
        let mut values = vec![0; self.value_size * count as usize];
        let command = if delete { MAP_LOOKUP_AND_DELETE_BATCH } else { MAP_LOOKUP_BATCH };
        let (got, result) = self.batch(command, keys.as_mut_ptr(), values.as_mut_ptr(), count, 0);
        (keys, values, got, result)
    }

    pub fn update_batch(&self, keys: &[u8], values: &[u8], flags: u64) -> (u32, Result<(), i32>) {
        let count = keys.len() / self.key_size;
        self.batch(MAP_UPDATE_BATCH, keys.as_ptr(), values.as_ptr(), count as u32, flags)
    }

    pub fn delete_batch(&self, keys: &[u8]) -> (u32, Result<(), i32>) {
        self.batch(MAP_DELETE_BATCH, keys.as_ptr(), std::ptr::null(), (keys.len() / self.key_size) as u32, 0)
    }
}
