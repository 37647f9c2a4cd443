//! The state of a run, and the view of it that the host's functions get.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::error::Error;

use bpf_isa::{InsnIdx, Size};

use crate::memory::{Extent, Place};
use crate::{DEFAULT_STACK_BYTES, Env, Memory, Stop, StopKind};

/// The largest number of tail calls taken in a run (Linux: MAX_TAIL_CALL_CNT).
pub const MAX_TAIL_CALLS: u32 = 33;

/// The upper half of a callback's address; the lower half is the slot. The address is not canonical on any
/// supported machine, so no memory has it.
const CALLBACK_TAG: u64 = 0xbf00_0000_0000_0000;

/// The address of the subprogram that starts at `slot`, as [`bpf_isa::Imm64::Func`] loads it.
pub(crate) fn callback_address(slot: InsnIdx) -> u64 {
    CALLBACK_TAG | u64::from(slot.0)
}

/// The inverse of [`callback_address`].
pub(crate) fn callback_slot(address: u64) -> Option<InsnIdx> {
    u32::try_from(address ^ CALLBACK_TAG).ok().map(InsnIdx)
}

/// The limits of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Bytes of stack of each frame, rounded up to a multiple of 8.
    pub stack_bytes: usize,
    /// The number of taken back-edges and calls that a run may make; `None` for any number. A back-edge is a jump to
    /// itself or to a lower slot. Calls are those of helpers, host functions, subprograms and callbacks, and tail
    /// calls.
    pub budget: Option<u64>,
    /// Ends the run, at points where the budget is counted, once the word's topmost bit is set.
    pub interrupt: Option<&'a AtomicU64>,
    /// The value of every byte of a stack when its frame is entered: 0, except in tests that detect reads of
    /// unwritten bytes.
    pub stack_fill: u8,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options { stack_bytes: DEFAULT_STACK_BYTES, budget: None, interrupt: None, stack_fill: 0 }
    }
}

/// The state of a run that all its frames share.
#[derive(Debug)]
pub struct Machine<'a> {
    pub(crate) memory: Memory<'a>,
    /// The initial r2 of the run. A tail call passes it on with the context; see [`crate::Env::tail_call`].
    pub(crate) r2: u64,
    pub(crate) tail_calls: u32,
    /// Whether the current call has thrown, and no main program has handled it yet.
    pub(crate) thrown: bool,
    /// The remaining budget, if any program had one.
    budget: Option<u64>,
    /// Whether the current program has a budget.
    counts: bool,
    interrupt: Option<&'a AtomicU64>,
}

impl<'a> Machine<'a> {
    /// Creates a machine whose runs use this memory.
    pub fn new(mut memory: Memory<'a>, options: Options<'a>) -> Machine<'a> {
        memory.set_frame_bytes(options.stack_bytes);
        memory.set_fill(options.stack_fill);
        let Options { budget, interrupt, .. } = options;
        Machine { memory, r2: 0, tail_calls: 0, thrown: false, budget, counts: budget.is_some(), interrupt }
    }

    /// Number of tail calls that the run has taken.
    pub fn tail_calls(&self) -> u32 {
        self.tail_calls
    }

    /// The remaining budget; `None` if no program had one.
    pub fn budget(&self) -> Option<u64> {
        self.budget
    }

    /// Number of frames in use. The last is the innermost.
    pub fn frames(&self) -> usize {
        self.memory.frames()
    }

    /// A copy of the stack of a frame, lowest address first, so that the frame's r10 points to its end. `None` if
    /// that frame is not in use.
    pub fn stack(&self, frame: usize) -> Option<Vec<u8>> {
        let (addr, len) = self.memory.stack(frame)?;
        let mut bytes = vec![0; len];
        self.memory.find(addr, len, false)?.copy_out(&mut bytes);
        Some(bytes)
    }

    /// The address of the stack of each frame that the run has entered so far, the outermost first: see
    /// [`Memory::place_frames`].
    pub fn frame_starts(&self) -> Vec<u64> {
        self.memory.frame_starts().collect()
    }

    /// Reads the run's own memory: its stacks and what [`Memory`] was given, not what the host adds. Returns whether
    /// all of the bytes are there.
    pub fn peek(&self, addr: u64, bytes: &mut [u8]) -> bool {
        let Some(place) = self.memory.find(addr, bytes.len(), false) else { return false };
        place.copy_out(bytes);
        true
    }

    /// Writes to the run's own memory, for a host that repeats a run. Returns whether functions of the host may write
    /// all of the bytes: all but memory that was given as `&[u8]`.
    pub fn poke(&mut self, addr: u64, bytes: &[u8]) -> bool {
        let Some(place) = self.memory.find_unfrozen(addr, bytes.len()) else { return false };
        place.copy_in(bytes);
        true
    }

    /// Address and length of the stack of each frame in use, the outermost first.
    pub fn stacks(&self) -> impl Iterator<Item = (u64, usize)> {
        (0..self.frames()).filter_map(|frame| self.memory.stack(frame))
    }

    /// Counts a taken back-edge or a call.
    #[inline]
    pub(crate) fn tick(&mut self) -> Result<(), StopKind> {
        // The budget first, as in machine code: if there are two reasons to stop, every engine reports the same one.
        match &mut self.budget {
            Some(0) if self.counts => return Err(StopKind::Budget),
            Some(left) if self.counts => *left -= 1,
            Some(_) | None => {}
        }
        // Relaxed: the flag publishes no other memory, and a slightly late stop is acceptable.
        if self.interrupt.is_some_and(|word| word.load(Ordering::Relaxed) >> 63 != 0) {
            return Err(StopKind::Interrupted);
        }
        Ok(())
    }

    /// The limits of the current program: whether it has a budget, and the word that interrupts it.
    #[inline]
    pub(crate) fn limits(&self) -> (bool, Option<&'a AtomicU64>) {
        (self.counts, self.interrupt)
    }

    /// Sets the limits of the current program ([`Machine::limits`]), and leaves the rest of the budget as it is.
    #[inline]
    pub(crate) fn restore(&mut self, (counts, interrupt): (bool, Option<&'a AtomicU64>)) {
        (self.counts, self.interrupt) = (counts, interrupt);
    }

    /// Sets the remaining budget, which is spent, to at least one tick.
    pub(crate) fn renew(&mut self, ticks: u64) -> Result<(), StopKind> {
        if ticks == 0 {
            return Err(StopKind::Budget);
        }
        self.budget = Some(ticks);
        Ok(())
    }

    /// The place of an access: in the run's own memory, otherwise as the host grants.
    #[inline]
    pub(crate) fn place<'m, E: Env + ?Sized, L: Extent>(
        &'m self,
        env: &'m mut E,
        addr: u64,
        len: L,
        write: bool,
    ) -> Result<Place<'m, L>, StopKind> {
        if let Some(place) = self.memory.find(addr, len, write) {
            return Ok(place);
        }
        match env.region(addr, len.count(), write).and_then(|memory| Place::of_host(addr, len, memory)) {
            Some(place) => Ok(place),
            None => Err(StopKind::BadAccess { addr, size: len.count(), write }),
        }
    }

    /// The place of an atomic access: a [`Machine::place`] that is aligned.
    pub(crate) fn atomic_place<'m, E: Env + ?Sized>(
        &'m self,
        env: &'m mut E,
        addr: u64,
        size: Size,
        write: bool,
    ) -> Result<Place<'m, Size>, StopKind> {
        let place = self.place(env, addr, size, write)?;
        if place.is_aligned() { Ok(place) } else { Err(StopKind::UnalignedAtomic { addr, size: size.bytes() }) }
    }
}

/// The position of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// The instruction being executed.
    pub(crate) pc: InsnIdx,
    /// The program's number, counted by the tail calls before it.
    pub(crate) program: u32,
    /// Number of frames of this program, this one included.
    pub(crate) depth: u32,
}

impl Frame {
    pub(crate) fn stop(&self, kind: StopKind) -> Stop {
        Stop { at: self.pc, program: self.program, kind, callers: Vec::new() }
    }
}

/// A call of a helper or host function in the host's view: the calling program, and the operations that the function
/// may use on the run.
///
/// The methods that access memory or call back take the host again (`self` of the [`Env`] method), because it may own
/// some of the memory.
pub struct Caller<'c, 'a, C> {
    pub(crate) machine: &'c mut Machine<'a>,
    pub(crate) code: &'c C,
    pub(crate) frame: Frame,
}

impl<C> fmt::Debug for Caller<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("frame", &self.frame).field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl<'a, C> Caller<'_, 'a, C> {
    /// The calling program.
    pub fn code(&self) -> &C {
        self.code
    }

    /// The call instruction.
    pub fn at(&self) -> InsnIdx {
        self.frame.pc
    }

    /// The machine that runs the program.
    pub fn machine(&self) -> &Machine<'a> {
        self.machine
    }

    /// Sets the limits of the program that a tail call enters, as [`Options`] do for the first. With `budget`, it
    /// spends the remaining budget of an earlier program, or this one if there was none; with `None`, it does not
    /// count. They hold until the frame that makes the tail call returns: its caller is under its own limits again.
    pub fn allow(&mut self, budget: Option<u64>, interrupt: Option<&'a AtomicU64>) {
        self.machine.counts = budget.is_some();
        self.machine.budget = self.machine.budget.or(budget);
        self.machine.interrupt = interrupt;
    }

    /// The call throws: all functions return its result, up to the main program, which handles it
    /// ([`crate::Env::exception`]).
    pub fn throw(&mut self) {
        self.machine.thrown = true;
    }

    /// Says where LD_ABS and LD_IND find the packet from here on ([`Memory::set_packet`]): a helper has moved it.
    pub fn set_packet(&mut self, addr: u64, len: u64) {
        self.machine.memory.set_packet(addr, len);
    }

    /// The machine that runs the program, for hosts that write its memory ([`Machine::poke`]).
    pub fn machine_mut(&mut self) -> &mut Machine<'a> {
        self.machine
    }

    /// A [`Stop`] at the call.
    pub fn stop(&self, kind: StopKind) -> Stop {
        self.frame.stop(kind)
    }

    /// A [`Stop`] at the call, for a failure of the host's own.
    pub fn fail(&self, error: impl Into<Box<dyn Error + Send + Sync>>) -> Stop {
        self.stop(StopKind::Helper(error.into()))
    }

    /// Whether the program may read, or write, all of these bytes: for hosts that then access them by address, which
    /// is possible where memory lies at its own address ([`Memory::add_writable`], not [`Memory::add_writable_at`] or
    /// [`Memory::place_frames`]). Even no bytes must lie somewhere: in, or at the end of, memory the program may access
    /// so.
    ///
    /// # Errors
    /// [`StopKind::BadAccess`]: the access is not allowed.
    pub fn check<E: Env<Code = C> + ?Sized>(
        &self,
        env: &mut E,
        addr: u64,
        len: usize,
        write: bool,
    ) -> Result<(), Stop> {
        self.machine.place(env, addr, len, write).map(drop).map_err(|kind| self.stop(kind))
    }

    /// [`Caller::check`] for the run's own memory only: its stacks and what [`Memory`] was given, not what the host
    /// adds.
    ///
    /// # Errors
    /// [`StopKind::BadAccess`]: it may not, or the bytes lie elsewhere.
    pub fn check_own(&self, addr: u64, len: usize, write: bool) -> Result<(), Stop> {
        match self.machine.memory.find(addr, len, write) {
            Some(_) => Ok(()),
            None => Err(self.stop(StopKind::BadAccess { addr, size: len as u64, write })),
        }
    }

    /// Reads the program's memory into `bytes`.
    ///
    /// # Errors
    /// [`StopKind::BadAccess`]: the program may not read them all.
    pub fn read<E: Env<Code = C> + ?Sized>(&self, env: &mut E, addr: u64, bytes: &mut [u8]) -> Result<(), Stop> {
        if !bytes.is_empty() {
            self.machine.place(env, addr, bytes.len(), false).map_err(|kind| self.stop(kind))?.copy_out(bytes);
        }
        Ok(())
    }

    /// Writes `bytes` to the program's memory.
    ///
    /// # Errors
    /// [`StopKind::BadAccess`]: the program may not write them all.
    pub fn write<E: Env<Code = C> + ?Sized>(&mut self, env: &mut E, addr: u64, bytes: &[u8]) -> Result<(), Stop> {
        if !bytes.is_empty() {
            self.machine.place(env, addr, bytes.len(), true).map_err(|kind| self.stop(kind))?.copy_in(bytes);
        }
        Ok(())
    }
}
