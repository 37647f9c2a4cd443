//! The Linux kernel as an oracle and as a peer, through bpf(2).
//!
//! The same instruction bytes that our engines run are loaded into the kernel, run there with BPF_PROG_TEST_RUN, and
//! their machine code is read back. Two difficulties shape this module. A container or an emulator may refuse the
//! system call: [`available`] says so once, with the reason, and callers report a skip. And a raw program (r1 = memory,
//! r2 = length) has no counterpart in the kernel: [`RawProgram`] puts three instructions in front that point r1 at
//! the value of an array map and set r2, so that the rest of the stream is unchanged.
//!
//! Every `unsafe` block is one system call on attributes that live in this module's stack frame. Structures follow
//! include/uapi/linux/bpf.h, cut after the last field used: the kernel takes any length and zero-fills.

pub mod arena;
pub mod pinned;

use bpf_isa::{Callee, Imm64, Insn, Reg, Src, Width};
pub use bpf_uapi::{MapType, ProgramType};
use std::{
    fmt, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::OnceLock,
};

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const OBJ_GET: libc::c_long = 7;
const PROG_TEST_RUN: libc::c_long = 10;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const MAP_FREEZE: libc::c_long = 22;

/// Space for the verifier's log of a refused program. Longer logs are cut (ENOSPC is ignored: the program failed
/// anyway).
const LOG_SIZE: usize = 1 << 20;

/// Linux refuses test runs of XDP and socket programs on less than an Ethernet header (net/bpf/test_run.c).
const MIN_PACKET: usize = 14;

/// The kernel cannot be asked here.
#[derive(Clone, Debug, thiserror::Error)]
#[error("bpf(2) is not to be had: {0}")]
pub struct Unavailable(String);

/// Whether this process may load programs, found out once by loading one.
pub fn available() -> Result<(), Unavailable> {
    static ANSWER: OnceLock<Result<(), Unavailable>> = OnceLock::new();
    ANSWER
        .get_or_init(|| {
            let exit = [Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(0) }, Insn::Exit];
            let bytes = bpf_isa::encode(&exit).map_err(|e| Unavailable(e.to_string()))?;
            Program::load(ProgramType::Xdp, &bytes).map(drop).map_err(|e| Unavailable(e.to_string()))
        })
        .clone()
}

/// The kernel refused a program.
#[derive(Debug)]
pub struct LoadError {
    /// The error of the system call.
    pub error: io::Error,
    /// Log of the kernel's verifier; empty if the refusal came before it.
    pub log: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        // The reason stands in the last lines, before the statistics.
        let reason = self.log.lines().rev().find(|line| !line.is_empty() && !line.starts_with("processed "));
        reason.map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

impl std::error::Error for LoadError {}

/// bpf(2) on these attributes.
///
/// # Safety
/// `attr` begins like the member of `union bpf_attr` that `command` takes, and every address and length in it names
/// memory that the kernel may read, or write where the command writes, until this returns.
unsafe fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<i32> {
    // SAFETY: the caller vouches for the addresses and lengths in the attributes; the attributes themselves are
    // `size_of::<T>()` bytes behind an exclusive reference.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// The address of memory that the kernel only reads.
fn address<T>(slice: &[T]) -> u64 {
    slice.as_ptr().expose_provenance() as u64
}

/// Takes ownership of a descriptor that a bpf(2) command just created.
fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the commands that call this return a new descriptor, which nobody else knows.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A map in the kernel.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key_size: usize,
    /// Bytes of an element's value as system calls copy it ([`copied`]).
    value_size: usize,
}

/// Bytes of an element's value as system calls copy it: of a per-CPU map the values of all possible CPUs, each in whole
/// words.
fn copied(map_type: u32, value_size: u32) -> io::Result<usize> {
    const PER_CPU: [MapType; 4] =
        [MapType::PerCpuHash, MapType::PerCpuArray, MapType::LruPerCpuHash, MapType::PerCpuCgroupStorage];
    let value_size = value_size as usize;
    if !PER_CPU.iter().any(|of| of.number() == map_type) {
        return Ok(value_size);
    }
    // The end of a list of ranges.
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = list.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<usize>().ok());
    let cpus = last.map(|n| n + 1).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(value_size.next_multiple_of(8) * cpus)
}

#[repr(C)]
#[derive(Default)]
struct MapCreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
}

#[repr(C)]
#[derive(Default)]
struct MapElemAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Map {
    /// Creates a map.
    pub fn create(kind: MapType, key_size: u32, value_size: u32, max_entries: u32) -> io::Result<Map> {
        Map::create_raw(kind.number(), [key_size, value_size, max_entries], 0, None)
    }

    /// Creates a map of any type, by the kernel's numbers; `inner`: what a map of maps holds.
    pub fn create_raw(kind: u32, sizes: [u32; 3], flags: u32, inner: Option<&Map>) -> io::Result<Map> {
        let [key_size, value_size, max_entries] = sizes;
        let inner_map_fd = inner.map_or(0, |map| map.fd() as u32);
        let mut attr =
            MapCreateAttr { map_type: kind, key_size, value_size, max_entries, map_flags: flags, inner_map_fd };
        // SAFETY: BPF_MAP_CREATE takes these fields and follows no address.
        let fd = unsafe { bpf(MAP_CREATE, &mut attr) }?;
        Ok(Map { fd: owned(fd), key_size: key_size as usize, value_size: copied(kind, value_size)? })
    }

    /// Its descriptor, for [`Imm64::Map`] and [`Imm64::MapValue`].
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sets the element of this key (flags: BPF_ANY). A prog array takes the descriptor of a program as its value.
    pub fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.check(key, value)?;
        let mut attr = MapElemAttr {
            map_fd: self.fd() as u32,
            key: address(key),
            value: address(value),
            ..MapElemAttr::default()
        };
        // SAFETY: `check` found key and value to have the map's sizes; the kernel only reads them.
        unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
    }

    /// Nobody writes it from here any more; of a map that programs only read, they know the contents then.
    pub fn freeze(&self) -> io::Result<()> {
        let mut fd = self.fd() as u32;
        // SAFETY: BPF_MAP_FREEZE takes the descriptor and follows no address.
        unsafe { bpf(MAP_FREEZE, &mut fd) }.map(drop)
    }

    /// Copies the value of this key out; of a per-CPU map the values of all possible CPUs.
    pub fn lookup(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        let mut value = vec![0u8; self.value_size];
        self.check(key, &value)?;
        let mut attr = MapElemAttr {
            map_fd: self.fd() as u32,
            key: address(key),
            value: value.as_mut_ptr().expose_provenance() as u64,
            ..MapElemAttr::default()
        };
        // SAFETY: the key has the map's key size; the value buffer has as many bytes as the kernel copies of an element
        // of the map's type, and is exclusively ours.
        unsafe { bpf(MAP_LOOKUP_ELEM, &mut attr) }?;
        Ok(value)
    }

    fn check(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if key.len() == self.key_size && value.len() == self.value_size {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::InvalidInput))
        }
    }
}

/// A program in the kernel.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

/// The result of a test run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestRun {
    /// The low half of r0.
    pub result: u32,
    /// Mean time of one run.
    pub nanoseconds: u32,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
}

#[repr(C)]
#[derive(Default)]
struct InfoAttr {
    fd: u32,
    info_len: u32,
    info: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgInfo {
    prog_type: u32,
    id: u32,
    tag: [u8; 8],
    jited_prog_len: u32,
    xlated_prog_len: u32,
    jited_prog_insns: u64,
    xlated_prog_insns: u64,
    load_time: u64,
    created_by_uid: u32,
    nr_map_ids: u32,
    map_ids: u64,
    name: [u8; 16],
    ifindex: u32,
    gpl_compatible: u32,
    netns_dev: u64,
    netns_ino: u64,
    nr_jited_ksyms: u32,
    nr_jited_func_lens: u32,
    jited_ksyms: u64,
    jited_func_lens: u64,
    /// BTF, source lines and statistics, which nobody here asks for.
    unused: [u64; 11],
    verified_insns: u32,
    end: u32,
}

impl Program {
    /// Loads instructions, eight bytes a slot. The licence given is GPL-compatible, so that no helper is refused for
    /// it.
    pub fn load(kind: ProgramType, insns: &[u8]) -> Result<Program, LoadError> {
        Self::load_for(kind, 0, insns)
    }

    /// Loads a program for one of the hooks of its type, by the kernel's number (`enum bpf_attach_type`).
    pub fn load_for(kind: ProgramType, hook: u32, insns: &[u8]) -> Result<Program, LoadError> {
        Self::load_flagged(kind, hook, 0, insns)
    }

    fn load_flagged(kind: ProgramType, hook: u32, flags: u32, insns: &[u8]) -> Result<Program, LoadError> {
        match Self::load_logged(kind, (hook, flags), insns, &mut []) {
            Ok(program) => Ok(program),
            // Again with a log: asking for one up front would slow down every load that succeeds.
            Err(error) => {
                let mut log = vec![0u8; LOG_SIZE];
                match Self::load_logged(kind, (hook, flags), insns, &mut log) {
                    Ok(program) => Ok(program),
                    Err(_) => {
                        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                        Err(LoadError { error, log: String::from_utf8_lossy(&log[..end]).into_owned() })
                    }
                }
            }
        }
    }

    fn load_logged(kind: ProgramType, (hook, flags): (u32, u32), insns: &[u8], log: &mut [u8]) -> io::Result<Program> {
        let mut attr = ProgLoadAttr {
            prog_type: kind.number(),
            insn_cnt: (insns.len() / 8) as u32,
            insns: address(insns),
            license: c"Dual MIT/GPL".as_ptr().expose_provenance() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr().expose_provenance() as u64 },
            kern_version: 0,
            prog_flags: flags,
            prog_name: [0; 16],
            prog_ifindex: 0,
            expected_attach_type: hook,
        };
        // SAFETY: `insns` has `insn_cnt` slots (rounded down), the licence ends in a zero byte, and the log is
        // `log_size` bytes exclusively ours, or absent.
        let fd = unsafe { bpf(PROG_LOAD, &mut attr) }?;
        Ok(Program { fd: owned(fd) })
    }

    /// Its descriptor, as the value of a prog array.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Runs it `repeat` times on a packet of at least 14 bytes. `metadata` bytes at its start are the XDP metadata
    /// area (a multiple of 4; 0 for other types).
    pub fn test_run(&self, packet: &[u8], metadata: u32, repeat: u32) -> io::Result<TestRun> {
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let context = [metadata, packet.len() as u32, 0, 0, 0, 0];
        let mut attr = TestRunAttr {
            prog_fd: self.fd() as u32,
            data_size_in: packet.len() as u32,
            data_in: address(packet),
            repeat,
            ..TestRunAttr::default()
        };
        if metadata != 0 {
            attr.ctx_size_in = size_of_val(&context) as u32;
            attr.ctx_in = address(&context);
        }
        // SAFETY: packet and context have the lengths given and are only read; no output buffer is passed.
        unsafe { bpf(PROG_TEST_RUN, &mut attr) }?;
        Ok(TestRun { result: attr.retval, nanoseconds: attr.duration })
    }

    /// Runs it once on a packet; the result and what the kernel gives back: the packet, or a dissector's flow keys.
    pub fn test_run_output(&self, packet: &[u8]) -> io::Result<(u32, Vec<u8>)> {
        // Longer than any packet that a program can make.
        let mut output = vec![0u8; packet.len().max(1 << 17)];
        let mut attr = TestRunAttr {
            prog_fd: self.fd() as u32,
            data_size_in: packet.len() as u32,
            data_in: address(packet),
            data_size_out: output.len() as u32,
            data_out: output.as_mut_ptr().expose_provenance() as u64,
            repeat: 1,
            ..TestRunAttr::default()
        };
        // SAFETY: the packet has the length given and is only read; the output buffer has the length given and is ours.
        unsafe { bpf(PROG_TEST_RUN, &mut attr) }?;
        output.truncate(attr.data_size_out as usize);
        Ok((attr.retval, output))
    }

    /// Runs it once on a packet and a context, as its program type has it (`struct xdp_md`, `struct __sk_buff`, ...; a
    /// type without packets takes an empty one): the result, and what packet and context are afterwards.
    pub fn test_run_context(&self, packet: &[u8], context: &[u8]) -> io::Result<(u32, Vec<u8>, Vec<u8>)> {
        let mut output = vec![0u8; if packet.is_empty() { 0 } else { packet.len().max(1 << 17) }];
        let mut after = vec![0u8; context.len()];
        let mut attr = TestRunAttr {
            prog_fd: self.fd() as u32,
            data_size_in: packet.len() as u32,
            data_in: if packet.is_empty() { 0 } else { address(packet) },
            data_size_out: output.len() as u32,
            data_out: if packet.is_empty() { 0 } else { output.as_mut_ptr().expose_provenance() as u64 },
            // Programs without packets take no number of runs.
            repeat: u32::from(!packet.is_empty()),
            ctx_size_in: context.len() as u32,
            ctx_in: address(context),
            ctx_size_out: after.len() as u32,
            ctx_out: after.as_mut_ptr().expose_provenance() as u64,
            ..TestRunAttr::default()
        };
        // SAFETY: packet and context have the lengths given and are only read; the buffers have the lengths given and
        // are exclusively ours.
        unsafe { bpf(PROG_TEST_RUN, &mut attr) }?;
        output.truncate(attr.data_size_out as usize);
        Ok((attr.retval, output, after))
    }

    /// The machine code of each of its functions, main first. Needs CAP_SYS_ADMIN or equal; empty without the JIT.
    pub fn machine_code(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut sizes = ProgInfo::default();
        // SAFETY: `sizes` has no addresses set, so that the kernel writes nothing but the structure.
        unsafe { self.info(&mut sizes) }?;
        let mut code = vec![0u8; sizes.jited_prog_len as usize];
        let mut lengths = vec![0u32; sizes.nr_jited_func_lens as usize];
        let mut info = ProgInfo {
            jited_prog_len: sizes.jited_prog_len,
            jited_prog_insns: code.as_mut_ptr().expose_provenance() as u64,
            nr_jited_func_lens: sizes.nr_jited_func_lens,
            jited_func_lens: lengths.as_mut_ptr().expose_provenance() as u64,
            ..ProgInfo::default()
        };
        // SAFETY: both buffers are exclusively ours and have the number of elements that `info` states.
        unsafe { self.info(&mut info) }?;
        let mut rest = code.as_slice();
        lengths
            .iter()
            .map(|&length| {
                let (function, after) = rest
                    .split_at_checked(length as usize)
                    .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
                rest = after;
                Ok(function.to_vec())
            })
            .collect()
    }

    /// Its length in slots of eight bytes as the JIT saw it: the verifier removes what cannot be reached and adds
    /// checks.
    pub fn rewritten_len(&self) -> io::Result<usize> {
        let mut info = ProgInfo::default();
        // SAFETY: no addresses are set, so that the kernel writes nothing but the structure.
        unsafe { self.info(&mut info) }?;
        Ok(info.xlated_prog_len as usize / 8)
    }

    /// How many instructions its verifier walked, over all paths.
    pub fn verified_insns(&self) -> io::Result<u32> {
        let mut info = ProgInfo::default();
        // SAFETY: no addresses are set, so that the kernel writes nothing but the structure.
        unsafe { self.info(&mut info) }?;
        Ok(info.verified_insns)
    }

    /// BPF_OBJ_GET_INFO_BY_FD.
    ///
    /// # Safety
    /// Every non-zero address in `info` names a buffer of the length stated beside it that the kernel may write.
    unsafe fn info(&self, info: &mut ProgInfo) -> io::Result<()> {
        let mut attr = InfoAttr {
            fd: self.fd() as u32,
            info_len: size_of::<ProgInfo>() as u32,
            info: std::ptr::from_mut(info).expose_provenance() as u64,
        };
        // SAFETY: `info` is `info_len` bytes behind an exclusive reference; the caller vouches for the addresses and
        // lengths in it.
        unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr) }.map(drop)
    }
}

/// A raw program (r1 = memory, r2 = length) in the kernel, its memory the value of an array map.
#[derive(Debug)]
pub struct RawProgram {
    program: Program,
    memory: Map,
    length: usize,
}

impl RawProgram {
    /// Loads `insns` behind `r1 = memory; r2 = length`. The memory starts as zeros.
    pub fn load(insns: &[u8], length: u32) -> Result<RawProgram, LoadError> {
        let not_verified = |error| LoadError { error, log: String::new() };
        // A map value of no bytes does not exist.
        let memory = Map::create(MapType::Array, 4, length.max(1), 1).map_err(not_verified)?;
        let mut stream = bpf_isa::encode(&Self::prologue(memory.fd(), length))
            .map_err(|e| not_verified(io::Error::new(io::ErrorKind::InvalidInput, e.to_string())))?;
        stream.extend(insns);
        let program = Program::load(ProgramType::Xdp, &stream)?;
        Ok(RawProgram { program, memory, length: length as usize })
    }

    fn prologue(map: RawFd, length: u32) -> [Insn; 3] {
        [
            Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::MapValue { map, off: 0 } },
            Insn::SecondSlot,
            Insn::Mov { width: Width::W32, dst: Reg::R2, src: Src::Imm(length as i32) },
        ]
    }

    /// Puts `memory` in place, runs `repeat` times (each run sees what the one before left), and reads it back.
    pub fn run(&self, memory: &mut [u8], repeat: u32) -> io::Result<TestRun> {
        self.set_memory(memory)?;
        let run = self.repeat(repeat)?;
        if self.length != 0 {
            memory.copy_from_slice(&self.memory.lookup(&[0; 4])?);
        }
        Ok(run)
    }

    /// Puts `memory` in place.
    pub fn set_memory(&self, memory: &[u8]) -> io::Result<()> {
        if memory.len() != self.length {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        if self.length == 0 { Ok(()) } else { self.memory.update(&[0; 4], memory) }
    }

    /// Runs `repeat` times on the memory as it is.
    pub fn repeat(&self, repeat: u32) -> io::Result<TestRun> {
        self.program.test_run(&[0; MIN_PACKET], 0, repeat)
    }

    /// Its length in slots of eight bytes as the JIT saw it, without the prologue.
    pub fn rewritten_len(&self) -> io::Result<usize> {
        Ok(self.program.rewritten_len()?.saturating_sub(Self::prologue(0, 0).len()))
    }

    /// The machine code of each function, main first, the prologue included (see [`prologue_bytes`]).
    pub fn machine_code(&self) -> io::Result<Vec<Vec<u8>>> {
        self.program.machine_code()
    }
}

/// How many bytes of machine code the instructions cost that [`RawProgram`] puts in front: measured, by the
/// difference that they make to an empty program.
pub fn prologue_bytes(length: u32) -> Result<usize, LoadError> {
    let not_verified = |error| LoadError { error, log: String::new() };
    let empty = [Insn::Mov { width: Width::W32, dst: Reg::R0, src: Src::Imm(0) }, Insn::Exit];
    let bytes = bpf_isa::encode(&empty)
        .map_err(|e| not_verified(io::Error::new(io::ErrorKind::InvalidInput, e.to_string())))?;
    let total = |code: Vec<Vec<u8>>| code.iter().map(Vec::len).sum::<usize>();
    let bare = Program::load(ProgramType::Xdp, &bytes)?.machine_code().map(total).map_err(not_verified)?;
    let wrapped = RawProgram::load(&bytes, length)?.machine_code().map(total).map_err(not_verified)?;
    Ok(wrapped.saturating_sub(bare))
}

/// Whether the program uses only what [`RawProgram`] can offer the kernel: no maps, variables or host functions.
pub fn self_contained(insns: &[Insn]) -> bool {
    insns.iter().all(|insn| {
        !matches!(
            insn,
            Insn::LoadImm64 {
                imm: Imm64::Map(_)
                    | Imm64::MapValue { .. }
                    | Imm64::Var(_)
                    | Imm64::MapIdx(_)
                    | Imm64::MapIdxValue { .. },
                ..
            } | Insn::Call(Callee::Host(_))
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Vec<u8> {
        bpf_isa::encode(&bpf_isa::assemble(text).unwrap()).unwrap()
    }

    fn with_kernel(what: &str, test: fn()) {
        match available() {
            Ok(()) => test(),
            Err(why) => crate::skipped(what, &why),
        }
    }

    #[test]
    fn a_raw_program_reads_and_writes_its_memory() {
        with_kernel("a_raw_program_reads_and_writes_its_memory", || {
            let code = raw("r0 = *(u8 *)(r1 + 3)\n*(u8 *)(r1 + 0) = 7\nw0 += w2\nexit");
            let program = RawProgram::load(&code, 8).unwrap();
            let mut memory = [0, 0, 0, 90, 0, 0, 0, 0];
            let run = program.run(&mut memory, 3).unwrap();
            assert_eq!((run.result, memory[0]), (98, 7));
            assert!(program.run(&mut [0; 7], 1).is_err());
        });
    }

    #[test]
    fn the_verifier_changes_lengths_and_says_so() {
        with_kernel("the_verifier_changes_lengths_and_says_so", || {
            let length = |text| RawProgram::load(&raw(text), 8).unwrap().rewritten_len().unwrap();
            assert_eq!(length("r0 = r2\nexit"), 2);
            // The divisor is checked.
            assert!(length("r0 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr0 /= r3\nexit") > 4);
            // The jump is always taken.
            assert!(length("r0 = 1\nif r2 == 8 goto +2\nr0 = 2\nr0 = 3\nexit") < 5);
        });
    }

    #[test]
    fn a_refusal_carries_the_verifiers_words() {
        with_kernel("a_refusal_carries_the_verifiers_words", || {
            let error = RawProgram::load(&raw("r0 = *(u8 *)(r1 + 8)\nexit"), 8).unwrap_err();
            assert_eq!(error.error.raw_os_error(), Some(libc::EACCES));
            assert!(error.log.contains("invalid access to map value"), "{}", error.log);
            assert!(error.to_string().len() > error.error.to_string().len(), "{error}");
        });
    }

    #[test]
    fn machine_code_comes_by_function() {
        with_kernel("machine_code_comes_by_function", || {
            let code = raw("call pc+1\nexit\nr0 = 42\nexit");
            let program = RawProgram::load(&code, 8).unwrap();
            assert_eq!(program.repeat(1).unwrap().result, 42);
            let code = program.machine_code().unwrap();
            assert_eq!(code.len(), 2);
            assert!(code.iter().all(|function| function.len() > 4));
            assert!(prologue_bytes(8).unwrap() > 0);
        });
    }

    #[test]
    fn maps_keep_what_they_are_given() {
        with_kernel("maps_keep_what_they_are_given", || {
            let map = Map::create(MapType::Hash, 4, 2, 8).unwrap();
            map.update(&[1, 0, 0, 0], &[5, 6]).unwrap();
            assert_eq!(map.lookup(&[1, 0, 0, 0]).unwrap(), [5, 6]);
            assert_eq!(map.lookup(&[2, 0, 0, 0]).unwrap_err().raw_os_error(), Some(libc::ENOENT));
            assert!(map.update(&[1], &[5, 6]).is_err());
        });
    }
}
