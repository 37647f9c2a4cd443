//! Arenas in the kernel, and programs that may sleep: in Linux 6.18, these alone may allocate pages of one.
//!
//! The installed loader may be older than arenas, so a test binds the instructions itself: descriptors of maps, numbers
//! of functions.

use super::{LoadError, MAP_CREATE, PROG_TEST_RUN, Program, ProgramType, TestRunAttr, bpf, owned};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

/// `BPF_F_SLEEPABLE`.
const SLEEPABLE: u32 = 1 << 4;

/// `union bpf_attr` of BPF_MAP_CREATE as far as `map_extra`.
#[repr(C)]
#[derive(Default)]
struct ArenaAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
    map_ifindex: u32,
    btf: [u32; 4],
    /// 0: any address.
    map_extra: u64,
}

/// An arena in the kernel, mapped here: only then do its programs know their addresses.
#[derive(Debug)]
pub struct Arena {
    fd: OwnedFd,
    memory: *mut libc::c_void,
    bytes: usize,
}

impl Arena {
    /// An arena of so many pages, which begins with these bytes.
    pub fn create(pages: u32, begins: &[u8]) -> io::Result<Arena> {
        let bytes = pages as usize * 4096;
        if begins.len() > bytes {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let (map_type, map_flags) = (bpf_uapi::MapType::Arena.number(), bpf_uapi::flags::create::MMAPABLE);
        let mut attr = ArenaAttr { map_type, max_entries: pages, map_flags, ..ArenaAttr::default() };
        // SAFETY: BPF_MAP_CREATE takes these fields and follows no address.
        let fd = owned(unsafe { bpf(MAP_CREATE, &mut attr) }?);
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, shared, fd.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: so many bytes are mapped there and writable, and nobody runs yet.
        unsafe { memory.cast::<u8>().copy_from_nonoverlapping(begins.as_ptr(), begins.len()) };
        Ok(Arena { fd, memory, bytes })
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping that `create` has made, of which nothing is left.
        unsafe { libc::munmap(self.memory, self.bytes) };
    }
}

impl Program {
    /// Loads a program of type `syscall`, which may sleep.
    pub fn load_syscall(insns: &[u8]) -> Result<Program, LoadError> {
        Self::load_flagged(ProgramType::Syscall, 0, SLEEPABLE, insns)
    }

    /// Runs a program of type `syscall` on no context. Returns the low half of r0.
    pub fn run_syscall(&self) -> io::Result<u32> {
        let mut attr = TestRunAttr { prog_fd: self.fd() as u32, ..TestRunAttr::default() };
        // SAFETY: no buffer is passed.
        unsafe { bpf(PROG_TEST_RUN, &mut attr) }?;
        Ok(attr.retval)
    }
}
