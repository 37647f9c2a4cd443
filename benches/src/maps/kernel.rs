//! The kernel's map as a contender: BPF programs drive it through BPF_PROG_TEST_RUN.
//!
//! Each program loops over a fixed number of operations with the generator of keys of the other contenders, so that
//! many operations share the cost of the system call and of the program's entry. The programs have a dozen
//! instructions, encoded here.

use super::{Contender, Job, Key, Operation, RANDOM, SPREAD, Shape};
use bpf_maps::MapDef;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Operations in one run of a program: a bounded loop that the verifier walks.
pub(super) const LOOP: u32 = 512;

pub(super) const MAP_CREATE: libc::c_long = 0;
pub(super) const MAP_UPDATE: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const PROG_TEST_RUN: libc::c_long = 10;

/// `union bpf_attr`, large enough for the commands above.
#[repr(C, align(8))]
pub(super) struct Attr([u8; 128]);

impl Attr {
    pub(super) fn new() -> Self {
        Self([0; 128])
    }

    pub(super) fn u32(mut self, offset: usize, value: u32) -> Self {
        self.0[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    pub(super) fn u64(mut self, offset: usize, value: u64) -> Self {
        self.0[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    pub(super) fn call(mut self, command: libc::c_long) -> Option<i32> {
        // SAFETY: the attributes are a local, zero beyond what the command knows; pointers in them outlive the call.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), self.0.len()) };
        i32::try_from(result).ok().filter(|&result| result >= 0)
    }
}

pub(super) fn owned(fd: i32) -> OwnedFd {
    // SAFETY: a descriptor that the kernel has just made for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A program of the kernel, which one call runs many times.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Does at least this many operations.
    pub fn run(&self, operations: usize) {
        let packet = [0u8; 64];
        let repeat = operations.div_ceil(LOOP as usize) as u32;
        // Offsets in the attributes: prog_fd 0, data_size_in 8, data_in 16, repeat 32.
        let attr = Attr::new().u32(0, self.0.as_raw_fd() as u32).u32(8, packet.len() as u32);
        let ran = attr.u64(16, packet.as_ptr() as u64).u32(32, repeat).call(PROG_TEST_RUN);
        assert!(ran.is_some(), "the program does not run");
    }
}

/// A kernel map and its programs.
#[derive(Debug)]
pub struct Kernel {
    map: OwnedFd,
    /// Number of values of a key.
    values: usize,
    key_bytes: usize,
    programs: Vec<(Operation, Program)>,
}

/// Returns the kernel's number of possible CPUs: a per-CPU map has a value for each.
fn possible_cpus() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|n| n.parse::<usize>().ok());
    last.map_or(1, |n| n + 1)
}

impl Kernel {
    /// Creates the kernel's map of this definition, with `elements` keys present, and programs for these operations;
    /// `None` if this process may not use bpf(2).
    pub fn new(def: &MapDef, shape: Shape, elements: usize, operations: &[Operation]) -> Option<Self> {
        let attr = Attr::new().u32(0, def.map_type as u32).u32(4, def.key_size).u32(8, def.value_size);
        let map = owned(attr.u32(12, def.max_entries).u32(16, def.flags).call(MAP_CREATE)?);
        let program = |&operation| Some((operation, load(&code(operation, &map, shape, elements, def))?));
        let programs = operations.iter().map(program).collect::<Option<_>>()?;
        let values = if def.map_type.is_per_cpu() { possible_cpus() } else { 1 };
        Some(Self { map, values, key_bytes: def.key_size as usize, programs })
    }
}

impl<const K: usize, const V: usize> Contender<K, V> for Kernel {
    fn run(&self, job: Job) {
        let program = self.programs.iter().find(|(operation, _)| *operation == job.operation);
        program.expect("a program for the operation").1.run(job.count);
    }

    fn insert(&self, key: Key<K>, value: [u64; V]) {
        assert!(self.key_bytes <= K * 8, "a key of the map's size");
        let value = value.repeat(self.values);
        let attr = Attr::new().u32(0, self.map.as_raw_fd() as u32).u64(8, key.as_ptr() as u64);
        assert!(attr.u64(16, value.as_ptr() as u64).call(MAP_UPDATE).is_some(), "room");
    }
}

/// Encodes one instruction: opcode, destination, source, offset, immediate.
pub(super) fn insn(opcode: u8, dst: u8, src: u8, offset: i16, imm: i32) -> u64 {
    let [a, b] = offset.to_le_bytes();
    let [c, d, e, f] = imm.to_le_bytes();
    u64::from_le_bytes([opcode, src << 4 | dst, a, b, c, d, e, f])
}

/// Encodes the load of a 64-bit constant; `source` 1 makes it a map descriptor.
pub(super) fn constant(dst: u8, source: u8, value: u64) -> [u64; 2] {
    [insn(0x18, dst, source, 0, value as i32), insn(0, 0, 0, 0, (value >> 32) as i32)]
}

/// Returns the program. r6: random number; r7: rounds left; r8 and r9: the two multipliers. The key lies at the top
/// of the stack, the value below it.
fn code(what: Operation, map: &OwnedFd, shape: Shape, elements: usize, def: &MapDef) -> Vec<u64> {
    let (key_words, value_words) = ((def.key_size as usize).div_ceil(8), def.value_size as usize / 8);
    let (key_at, value_at) = (-8 * key_words as i16, -8 * (key_words + value_words) as i16);
    let mut code = vec![insn(0x85, 0, 0, 0, 7)]; // r0 = bpf_get_prandom_u32()
    code.push(insn(0xbf, 6, 0, 0, 0)); // r6 = r0
    code.push(insn(0x67, 6, 0, 0, 32)); // r6 <<= 32
    code.push(insn(0xb7, 7, 0, 0, LOOP as i32)); // r7 = LOOP
    code.extend(constant(8, 0, RANDOM));
    code.extend(constant(9, 0, SPREAD));
    for word in 0..value_words as i16 {
        code.push(insn(0x7b, 10, 9, value_at + 8 * word, 0)); // value = r9
    }
    let top = code.len();
    code.push(insn(0x2f, 6, 8, 0, 0)); // r6 *= RANDOM
    code.push(insn(0x07, 6, 0, 0, 1)); // r6 += 1
    code.push(insn(0xbf, 1, 6, 0, 0)); // r1 = r6
    if matches!(what, Operation::InsertDelete | Operation::Insert) {
        code.push(insn(0x77, 1, 0, 0, 24)); // r1 >>= 24: threads' keys collide as rarely as elsewhere
        code.push(insn(0x07, 1, 0, 0, elements as i32)); // r1 += elements
    } else {
        code.push(insn(0x77, 1, 0, 0, 32)); // r1 >>= 32
        code.push(insn(0x27, 1, 0, 0, elements as i32)); // r1 *= elements
        code.push(insn(0x77, 1, 0, 0, 32)); // r1 >>= 32
    }
    for word in 0..key_words as i16 {
        code.push(insn(0xbf, 2, 1, 0, 0)); // r2 = r1
        if shape == Shape::Words {
            code.push(insn(0x07, 2, 0, 0, word.into())); // r2 += word
        }
        if shape != Shape::Index {
            code.push(insn(0x2f, 2, 9, 0, 0)); // r2 *= SPREAD
        }
        if shape == Shape::Prefix {
            code.push(insn(0x67, 2, 0, 0, 32)); // r2 <<= 32
            code.push(insn(0x47, 2, 0, 0, 32)); // r2 |= 32
        }
        code.push(insn(0x7b, 10, 2, key_at + 8 * word, 0)); // key[word] = r2
    }
    let mut call = |helper: i32, with_value: bool| {
        code.extend(constant(1, 1, map.as_raw_fd() as u64));
        code.push(insn(0xbf, 2, 10, 0, 0)); // r2 = r10
        code.push(insn(0x07, 2, 0, 0, key_at.into())); // r2 += key
        if with_value {
            code.push(insn(0xbf, 3, 10, 0, 0)); // r3 = r10
            code.push(insn(0x07, 3, 0, 0, value_at.into())); // r3 += value
            code.push(insn(0xb7, 4, 0, 0, 0)); // r4 = BPF_ANY
        }
        code.push(insn(0x85, 0, 0, 0, helper));
    };
    match what {
        Operation::Lookup => {
            call(1, false);
            code.push(insn(0x15, 0, 0, 1, 0)); // if r0 == 0 skip
            code.push(insn(0x79, 0, 0, 0, 0)); // r0 = *r0
        }
        Operation::Update | Operation::Insert => call(2, true),
        Operation::InsertDelete => {
            call(2, true);
            call(3, false);
        }
    }
    code.push(insn(0x07, 7, 0, 0, -1)); // r7 -= 1
    let back = top as i16 - code.len() as i16 - 1;
    code.push(insn(0x55, 7, 0, back, 0)); // if r7 != 0 goto top
    code.push(insn(0xb7, 0, 0, 0, 0)); // r0 = 0
    code.push(insn(0x95, 0, 0, 0, 0)); // exit
    code
}

pub(super) fn load(code: &[u64]) -> Option<Program> {
    let license = c"GPL";
    // Offsets in the attributes: prog_type 0 (socket filter), insn_cnt 4, insns 8, license 16.
    let attr = Attr::new().u32(0, 1).u32(4, code.len() as u32).u64(8, code.as_ptr() as u64);
    attr.u64(16, license.as_ptr() as u64).call(PROG_LOAD).map(|fd| Program(owned(fd)))
}
