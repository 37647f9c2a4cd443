//! The kernel's queue, stack, Bloom filter and ring buffer, which BPF programs drive as [`super::kernel`] drives maps
//! with keys.

use super::bytes;
use super::kernel::{Attr, LOOP, MAP_CREATE, MAP_UPDATE, Program, constant, insn, load, owned};
use bpf_maps::MapType;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The operations of one iteration of a program's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Pushes a value and pops one.
    PushPop,
    /// Queries a Bloom filter for a value. `true`: for a value that was added, which is below this number; `false`: for
    /// a value that was not added.
    Peek(u32, bool),
    /// Writes a record of 64 bytes.
    Output,
}

/// A kernel map without keys, and a program for it.
#[derive(Debug)]
pub struct Keyless {
    map: OwnedFd,
    program: Program,
}

/// Returns a program that repeats the round. r6: a random number; r7: rounds left; the value or the record lies on
/// the stack.
fn code(round: Round, map: &OwnedFd) -> Vec<u64> {
    let mut code = vec![insn(0x85, 0, 0, 0, 7)]; // r0 = bpf_get_prandom_u32()
    code.push(insn(0xbf, 6, 0, 0, 0)); // r6 = r0
    if let Round::Peek(present, is_in) = round {
        code.push(insn(0x97, 6, 0, 0, (present - LOOP) as i32)); // r6 %= present - LOOP
        if !is_in {
            code.push(insn(0x07, 6, 0, 0, present as i32)); // r6 += present
        }
    }
    code.push(insn(0xb7, 7, 0, 0, LOOP as i32)); // r7 = LOOP
    for word in 0..8 {
        code.push(insn(0x7a, 10, 0, -64 + 8 * word, 7)); // record = 7, 7 …
    }
    let top = code.len();
    code.push(insn(0x7b, 10, 6, -64, 0)); // its first word, the value = r6
    let mut call = |helper: i32, flags_in: Option<(u8, i32)>| {
        code.extend(constant(1, 1, map.as_raw_fd() as u64));
        code.push(insn(0xbf, 2, 10, 0, 0)); // r2 = r10
        code.push(insn(0x07, 2, 0, 0, -64)); // r2 += the value
        if let Some((flags, size)) = flags_in {
            code.push(insn(0xb7, 3, 0, 0, size)); // r3 = size of a record
            code.push(insn(0xb7, flags, 0, 0, 0)); // no flags
        }
        code.push(insn(0x85, 0, 0, 0, helper));
    };
    match round {
        Round::PushPop => {
            call(87, Some((3, 0)));
            call(88, None);
        }
        Round::Peek(..) => call(89, None),
        Round::Output => call(130, Some((4, 64))),
    }
    code.push(insn(0x07, 6, 0, 0, 1)); // r6 += 1
    code.push(insn(0x07, 7, 0, 0, -1)); // r7 -= 1
    let back = top as i16 - code.len() as i16 - 1;
    code.push(insn(0x55, 7, 0, back, 0)); // if r7 != 0 goto top
    code.push(insn(0xb7, 0, 0, 0, 0)); // r0 = 0
    code.push(insn(0x95, 0, 0, 0, 0)); // exit
    code
}

impl Keyless {
    /// Creates a map and its program; `None` if this process may not use bpf(2). A Bloom filter holds the 8-byte
    /// numbers below its number of entries.
    pub fn new(map_type: MapType, value: u32, entries: u32, round: Round) -> Option<Self> {
        let attr = Attr::new().u32(0, map_type as u32).u32(8, value).u32(12, entries);
        let map = owned(attr.call(MAP_CREATE)?);
        if let Round::Peek(present, _) = round {
            for n in 0..u64::from(present) {
                let attr = Attr::new().u32(0, map.as_raw_fd() as u32).u64(16, bytes(&[n]).as_ptr() as u64);
                attr.call(MAP_UPDATE)?;
            }
        }
        let program = load(&code(round, &map))?;
        Some(Self { map, program })
    }

    /// Does at least this many rounds; returns their number.
    pub fn run(&self, rounds: u32) -> u32 {
        self.program.run(rounds as usize);
        rounds.div_ceil(LOOP) * LOOP
    }

    /// Maps the ring buffer of this many bytes for a consumer.
    pub fn ring(&self, size: usize) -> Option<Ring> {
        Ring::new(&self.map, size)
    }
}

/// The consumer's view of a kernel ring buffer: the consumer's page, the producer's page, and the records mapped
/// twice in a row.
#[derive(Debug)]
pub struct Ring {
    consumer: *mut u8,
    producer: *mut u8,
    page: usize,
    size: usize,
}

impl Ring {
    fn new(map: &OwnedFd, size: usize) -> Option<Self> {
        // SAFETY: a constant of the system.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        let mapped = |length: usize, prot, offset: usize| {
            let offset = libc::off_t::try_from(offset).ok()?;
            // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
            let at =
                unsafe { libc::mmap(std::ptr::null_mut(), length, prot, libc::MAP_SHARED, map.as_raw_fd(), offset) };
            (at != libc::MAP_FAILED).then_some(at.cast::<u8>())
        };
        // If the second mapping fails, the first is not unmapped: the benchmark ends then.
        let consumer = mapped(page, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let producer = mapped(page + 2 * size, libc::PROT_READ, page)?;
        Some(Self { consumer, producer, page, size })
    }

    /// Consumes all records that are available; returns their number and the sum of their first words.
    pub fn consume(&self) -> (u32, u64) {
        // SAFETY: the consumer's position, at the start of its page, which only this thread writes.
        let consumed = unsafe { AtomicU64::from_ptr(self.consumer.cast()) };
        // SAFETY: the producer's position, at the start of its page.
        let produced = unsafe { AtomicU64::from_ptr(self.producer.cast()) };
        let (mut at, mut records, mut sum) = (consumed.load(Ordering::Relaxed), 0, 0u64);
        // Acquire pairs with the kernel's release of the position.
        while at < produced.load(Ordering::Acquire) {
            // SAFETY: the records begin a page after the producer's position, `size` bytes that are mapped twice in a
            // row.
            let record = unsafe { self.producer.add(self.page + at as usize % self.size) };
            // SAFETY: the record's length, which the kernel releases with the busy bit.
            let length = unsafe { AtomicU32::from_ptr(record.cast()) }.load(Ordering::Acquire);
            // SAFETY: a record has eight bytes of header and here 64 of data.
            let data = unsafe { record.add(8) };
            // SAFETY: the first eight of them, aligned, and complete by now.
            let first = unsafe { AtomicU64::from_ptr(data.cast()) };
            sum = sum.wrapping_add(first.load(Ordering::Relaxed));
            records += 1;
            at += u64::from((length & 0x3fff_ffff).next_multiple_of(8)) + 8;
            // Release: the kernel may write over the record now.
            consumed.store(at, Ordering::Release);
        }
        (records, sum)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with these lengths, and not used any more.
        unsafe { libc::munmap(self.consumer.cast(), self.page) };
        // SAFETY: mapped by `new` with this length, and not used any more.
        unsafe { libc::munmap(self.producer.cast(), self.page + 2 * self.size) };
    }
}
