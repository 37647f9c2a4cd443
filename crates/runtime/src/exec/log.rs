//! The log of an interpreted run's inputs: values that it loaded from memory that others share, addresses of maps, and
//! results and writes of host functions.
//!
//! Problem: a recorded run must be repeated exactly, in another process, though other threads may have changed maps
//! during the run. Approach: whatever does not follow from the context and the program is logged in the order in which
//! the run got it. A load is logged with the value that the program got, not with the content of a map, so other
//! threads do no harm. A function of the host is logged with its result and with the bytes of the run's own memory that
//! it changed, which are found by comparison.
//!
//! Invariant: a run that begins with the same memory at the same addresses, and gets the values of the log in their
//! order, executes the same instructions with the same registers.

use crate::exec::watch::Watch;
use bpf_interp::{Machine, Stop};
use bpf_isa::{Insn, InsnIdx, Program, Reg};

/// The kinds of events, each an event's first byte.
pub(crate) mod kind {
    /// The instruction (u32), the address (u64) and the value (u64) of a load.
    pub(crate) const LOAD: u8 = 1;
    /// The value (u64) of a reference to a map or a map's value.
    pub(crate) const RESOLVE: u8 = 2;
    /// The call (u32), the writes before the call back, its function (u64) and its five arguments (u64).
    pub(crate) const CALL_BACK: u8 = 3;
    /// The call (u32), whether it has thrown (u8), r0 (u64), and the writes.
    pub(crate) const RETURN: u8 = 4;
    /// The call (u32), which ended the run, and the writes.
    pub(crate) const FAIL: u8 = 5;
}

/// The log of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) events: Vec<u8>,
    /// Upper bound on the bytes of `events`.
    limit: usize,
    /// Whether events are missing, because they did not fit.
    pub(crate) is_cut: bool,
    /// Number of instructions that began.
    pub(crate) steps: u64,
    /// Addresses of the stacks of the frames, the outermost first.
    pub(crate) frames: Vec<u64>,
    /// The digest of the memory that the run was given, after the run: [`crate::exec::image::Image::digest_now`].
    pub(crate) after: u64,
    /// The load of the last step, and the register that gets its value.
    loads: Option<(InsnIdx, Reg)>,
    /// The address at which the last step left the run's own memory.
    foreign: Option<u64>,
    /// The run's own memory, before a function of the host.
    before: Vec<u8>,
}

/// The register that gets a value from memory.
pub(crate) fn loaded(insn: &Insn) -> Option<Reg> {
    if let Insn::Load { dst, .. } | Insn::LoadAcquire { dst, .. } = *insn {
        return Some(dst);
    }
    if let Insn::Atomic { op, src, .. } = *insn { op.result(src) } else { None }
}

/// A hash that tells apart memory that differs by accident; it is not cryptographic.
pub(crate) fn digest<'b>(parts: impl Iterator<Item = &'b [u8]>) -> u64 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    parts.fold(MIX, |sum, bytes| {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
        words.fold(sum ^ bytes.len() as u64, |sum, word| (sum ^ word).wrapping_mul(MIX).rotate_left(29))
    })
}

fn peek(machine: &Machine<'_>, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // The machine has said that the memory is there.
    machine.peek(at, &mut bytes);
    bytes
}

impl Log {
    /// Begins the log of another run, of at most `limit` bytes.
    pub(crate) fn begin(&mut self, limit: usize) {
        self.events.clear();
        self.frames.clear();
        (self.limit, self.is_cut, self.steps, self.after) = (limit, false, 0, 0);
        (self.loads, self.foreign) = (None, None);
    }

    fn event(&mut self, add: impl FnOnce(&mut Vec<u8>)) {
        if self.is_cut {
            return;
        }
        let len = self.events.len();
        add(&mut self.events);
        if self.events.len() > self.limit {
            self.events.truncate(len);
            self.is_cut = true;
        }
    }

    /// Copies the run's own memory.
    fn keep(&mut self, machine: &Machine<'_>) {
        self.before.clear();
        if self.is_cut {
            return;
        }
        for (at, len) in machine.writable() {
            let from = self.before.len();
            self.before.resize(from + crate::num::index(len), 0);
            // The machine has said that the memory is there.
            machine.peek(at, &mut self.before[from..]);
        }
    }

    /// Returns the changes since [`Log::keep`]: the number of writes, then address, length and bytes of each.
    fn writes(&self, machine: &Machine<'_>) -> Vec<u8> {
        let (mut count, mut out, mut from) = (0u32, vec![0; 4], 0);
        if self.is_cut {
            return out;
        }
        for (start, len) in machine.writable() {
            let now = peek(machine, start, crate::num::index(len));
            let before = self.before.get(from..from + now.len()).unwrap_or_default();
            from += now.len();
            let mut at = 0;
            while let Some(same) = now[at..].iter().zip(&before[at.min(before.len())..]).position(|(a, b)| a != b) {
                at += same;
                let differ = now[at..].iter().zip(&before[at..]).take_while(|(a, b)| a != b).count();
                out.extend_from_slice(&(start + at as u64).to_le_bytes());
                out.extend_from_slice(&crate::num::small(differ).to_le_bytes());
                out.extend_from_slice(&now[at..at + differ]);
                (at, count) = (at + differ, count + 1);
            }
        }
        out[..4].copy_from_slice(&count.to_le_bytes());
        out
    }
}

impl Watch for Log {
    fn step(&mut self, at: InsnIdx, regs: &[u64; 11], program: &Program, _: &Machine<'_>) {
        if let (Some((load, reg)), Some(address)) = (self.loads, self.foreign) {
            self.event(|events| {
                events.push(kind::LOAD);
                events.extend_from_slice(&load.0.to_le_bytes());
                events.extend_from_slice(&address.to_le_bytes());
                events.extend_from_slice(&regs[reg.index()].to_le_bytes());
            });
        }
        self.foreign = None;
        self.loads = program.insns().get(at.index()).and_then(loaded).map(|reg| (at, reg));
        self.steps += 1;
    }

    fn foreign(&mut self, address: u64) {
        self.foreign = Some(address);
    }

    fn resolved(&mut self, value: Option<u64>) {
        let Some(value) = value else { return };
        self.event(|events| {
            events.push(kind::RESOLVE);
            events.extend_from_slice(&value.to_le_bytes());
        });
    }

    fn call_begins(&mut self, machine: &Machine<'_>) {
        self.keep(machine);
    }

    fn calls_back(&mut self, machine: &Machine<'_>, at: InsnIdx, callback: u64, args: [u64; 5]) {
        let writes = self.writes(machine);
        self.event(|events| {
            events.push(kind::CALL_BACK);
            events.extend_from_slice(&at.0.to_le_bytes());
            events.extend_from_slice(&writes);
            [callback].iter().chain(&args).for_each(|value| events.extend_from_slice(&value.to_le_bytes()));
        });
    }

    fn called_back(&mut self, machine: &Machine<'_>) {
        self.keep(machine);
    }

    fn call_ends(&mut self, machine: &Machine<'_>, at: InsnIdx, result: &Result<u64, Stop>, thrown: bool) {
        let writes = self.writes(machine);
        self.event(|events| match result {
            Ok(r0) => {
                events.push(kind::RETURN);
                events.extend_from_slice(&at.0.to_le_bytes());
                events.push(thrown.into());
                events.extend_from_slice(&r0.to_le_bytes());
                events.extend_from_slice(&writes);
            }
            Err(_) => {
                events.push(kind::FAIL);
                events.extend_from_slice(&at.0.to_le_bytes());
                events.extend_from_slice(&writes);
            }
        });
    }

    fn ends(&mut self, machine: &Machine<'_>) {
        self.frames.extend(machine.frame_starts());
    }
}
