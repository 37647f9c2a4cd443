//! A recorded run, repeated by the interpreter.
//!
//! The memory of the run lies at the addresses that it had, so every register has the recorded value, and a number that
//! a program makes of an address is the same. Memory of others is not there: a load from it has the value of the log, a
//! store to it goes nowhere. A function of the host is not called: its result and what it wrote are those of the log.
//!
//! Each event of the log names its instruction, and the run must ask for the events in their order, end after as many
//! instructions, with the same result and the same memory. So what a replay shows is the recorded run, or it ends with
//! [`ReplayError::Differs`].

use crate::abi::machine_stack::{NoRoom, Room};
use crate::error::record::{RecordingError, ReplayError};
use crate::exec::image::Part;
use crate::exec::log::{digest, kind, loaded};
use crate::exec::observed::{Observed, Observer};
use crate::exec::watch::Place;
use crate::record::bytes::Reader;
use crate::record::recording::{Code, End, Logged, Recorded, Recording, Rights};
use bpf_interp::{Caller, Env, HostMemory, Machine, Memory, Options, Step, Stop, StopKind};
use bpf_isa::{Imm64, Insn, InsnIdx, Program};
use core::borrow::Borrow;
use core::sync::atomic::AtomicU8;

/// Instructions of one replay, at most, if the caller says nothing else: about a second.
const DEFAULT_STEPS: u64 = 1 << 24;
/// A function that is entered has a stack to clear, and counts as one instruction for each so many bytes.
const STACK_STEP: u64 = 256;
/// An access looks for its memory part by part, and counts as one instruction more for each so many.
const PARTS_STEP: usize = 64;
/// Functions that have begun and not returned, at most, and fewer on a small stack ([`Room`]): each takes a few KiB of
/// the thread's stack. A run whose tail calls are in the main program has at most 8.
const MAX_FUNCTIONS: usize = 128;

/// A run that was repeated.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Replayed {
    /// Its result, or the message of the error with which it ended.
    pub result: Result<u64, String>,
    /// Number of instructions.
    pub steps: u64,
    /// The context after the run.
    pub context: Vec<u8>,
}

impl Recording {
    /// Repeats the recorded run of this number, and shows each instruction to the observer. Which steps were shown is
    /// known to be right only when this returns without an error.
    ///
    /// A replay has at most 2^24 instructions; [`Recording::replay_within`] takes another bound.
    ///
    /// # Errors
    /// [`ReplayError`]: the run cannot be repeated exactly.
    pub fn replay(&self, run: usize, observer: &mut dyn Observer) -> Result<Replayed, ReplayError> {
        self.replay_within(run, DEFAULT_STEPS, observer)
    }

    /// Repeats the run as [`Recording::replay`] does, of at most so many instructions. A call, and a call back, counts
    /// as one instruction more for each 256 bytes of a stack, and an access to memory for each 64 parts of the run's
    /// memory.
    ///
    /// # Errors
    /// As [`Recording::replay`].
    pub fn replay_within(&self, run: usize, steps: u64, observer: &mut dyn Observer) -> Result<Replayed, ReplayError> {
        let runs = self.runs.len();
        let Some(Recorded { image, log, end }) = self.runs.get(run) else {
            return Err(ReplayError::NoRun { run, runs });
        };
        match (end, log) {
            (End::Unfinished, _) => return Err(ReplayError::Unfinished),
            (End::Failed(error), None) => return Err(ReplayError::Stopped { error: error.clone() }),
            (End::Returned(_) | End::Failed(_), Some(log)) => {
                if let Some(what) = &log.lost {
                    return Err(ReplayError::Lost { what: what.clone() });
                }
                if log.is_cut {
                    return Err(ReplayError::Cut);
                }
                if log.steps > steps {
                    return Err(ReplayError::TooLong { limit: steps });
                }
            }
            (End::Returned(_), None) => {}
        }
        let none = Logged { steps: u64::MAX, ..Logged::default() };
        let (native, log) = (log.is_none(), log.as_ref().unwrap_or(&none));
        // Aligned as they were, so that the same accesses are atomic.
        let mut buffers: Vec<Vec<u8>> = Vec::new();
        let mut at = 0;
        for Part { start, len, .. } in &image.parts {
            let before = crate::num::index(start % 8);
            let mut buffer = vec![0; before + len + 8];
            let shift = before.wrapping_sub(buffer.as_ptr().addr()) % 8;
            buffer[shift..shift + len].copy_from_slice(image.bytes.get(at..at + len).unwrap_or_default());
            at += len;
            buffers.push(buffer);
        }
        let mut memory = Memory::new();
        memory.place_frames(log.frames.clone());
        for (part, buffer) in image.parts.iter().zip(&mut buffers) {
            let Part { start, len, writable } = part;
            let before = crate::num::index(start % 8);
            let shift = before.wrapping_sub(buffer.as_ptr().addr()) % 8;
            let bytes = &mut buffer[shift..shift + len];
            let is_context = core::ptr::eq(part, &raw const image.parts[0]);
            if is_context && !self.rights.is_empty() {
                self.give_context(&mut memory, bytes, *start);
            } else if *writable {
                memory.add_writable_at(bytes, *start);
            } else {
                memory.add_read_only_at(bytes, *start);
            }
        }
        let options = Options { stack_bytes: crate::num::index(self.frame_bytes.into()), ..Options::default() };
        let mut machine = Machine::new(memory, options);
        let mut env = Replay {
            recording: self,
            stack_steps: u64::from(self.frame_bytes) / STACK_STEP,
            parts: image.parts.len() + self.rights.len(),
            events: Reader::new(&log.events),
            limit: log.steps,
            steps: 0,
            fuel: steps,
            is_spent: false,
            deep: None,
            room: Room::of_replay(),
            code: At(0, &self.codes[0]),
            entered: &log.entered,
            tail_calls: 0,
            at: InsnIdx(0),
            value: Value([const { AtomicU8::new(0) }; 8]),
            fails: matches!(end, End::Failed(_)) && !log.returned,
            is_over: false,
            wrong: None,
            ended: false,
            observer,
        };
        if env.room.check().is_err() {
            return Err(ReplayError::TooDeep { limit: 0 });
        }
        let (r1, r2) = image.parts.first().map_or((0, 0), |part| (part.start, part.len as u64));
        let result = machine.run(&mut env, &At(0, &self.codes[0]), [r1, r2]);
        let (insn, step) = (env.at, env.steps.saturating_sub(1));
        let differs = |what| Err(ReplayError::Differs { insn, step, what });
        if env.ended {
            return Err(ReplayError::Ended);
        }
        // A call back that the budget ends fails, as none in the recording does.
        if env.is_spent {
            return Err(ReplayError::TooLong { limit: steps });
        }
        if let Some(limit) = env.deep {
            return Err(ReplayError::TooDeep { limit });
        }
        if let Some(what) = env.wrong {
            return differs(what);
        }
        match (&result, end) {
            (Ok(r0), End::Returned(recorded)) if r0 == recorded || native && self.void => {}
            (Ok(_), End::Returned(_)) => return differs("its result is another one"),
            // A run that returns with a lock fails.
            (Ok(_), _) if log.returned => {}
            (Ok(_), _) => return differs("it returns, and the recorded one failed"),
            (Err(_), End::Returned(_)) => return differs("it fails, and the recorded one returned"),
            (Err(_), _) if log.returned => return differs("it fails, and the recorded one returned"),
            (Err(_), _) => {}
        }
        if !native {
            if env.steps != log.steps {
                return differs("it has fewer instructions");
            }
            if !env.events.is_at_end() {
                return differs("it asks for less");
            }
            let rights = |number: usize| if number == 0 { &*self.rights } else { &[] };
            let parts = image.parts.iter().enumerate().map(|(number, part)| now(&machine, part, rights(number)));
            if digest(parts.collect::<Vec<_>>().iter().map(Vec::as_slice)) != log.after {
                return differs("it leaves another context");
            }
        }
        let context = image.parts.first().map(|part| now(&machine, part, &self.rights));
        let result = match end {
            End::Failed(error) => Err(error.clone()),
            End::Returned(_) | End::Unfinished => result.map_err(|stop| stop.to_string()),
        };
        Ok(Replayed { result, steps: env.steps, context: context.unwrap_or_default() })
    }
}

impl Recording {
    /// Gives the machine the parts of the context, each with its rights.
    fn give_context<'m>(&self, memory: &mut Memory<'m>, context: &'m mut [u8], start: u64) {
        let (mut rest, mut at) = (context, 0);
        for Rights { offset, len, writable } in &self.rights {
            let (offset, len) = (crate::num::index((*offset).into()), crate::num::index((*len).into()));
            // The parts ascend and do not overlap: `Recording::parse`.
            let Some((_, tail)) = core::mem::take(&mut rest).split_at_mut_checked(offset - at) else { return };
            let (bytes, tail) = tail.split_at_mut(len.min(tail.len()));
            let address = start.wrapping_add(offset as u64);
            (rest, at) = (tail, offset + len);
            if *writable {
                memory.add_writable_at(bytes, address);
            } else {
                memory.add_guarded_at(bytes, address);
            }
        }
    }
}

/// The bytes of a part of the memory.
fn now(machine: &Machine<'_>, part: &Part, rights: &[Rights]) -> Vec<u8> {
    let mut bytes = vec![0; part.len];
    if rights.is_empty() {
        machine.peek(part.start, &mut bytes);
    }
    for Rights { offset, len, .. } in rights {
        let (offset, len) = (crate::num::index((*offset).into()), crate::num::index((*len).into()));
        let end = (offset + len).min(bytes.len());
        if let Some(bytes) = bytes.get_mut(offset..end) {
            machine.peek(part.start.wrapping_add(offset as u64), bytes);
        }
    }
    bytes
}

/// A program of a recording, and its number in the run.
#[derive(Clone, Copy, Debug)]
struct At<'r>(usize, &'r Code);

impl Borrow<Program> for At<'_> {
    fn borrow(&self) -> &Program {
        &self.1.program
    }
}

/// The host of a replay.
struct Replay<'r, 'o> {
    recording: &'r Recording,
    /// The cost of a function that is entered.
    stack_steps: u64,
    /// Number of parts of the run's memory, besides its stacks.
    parts: usize,
    events: Reader<'r>,
    /// Number of instructions that began in the recorded run.
    limit: u64,
    steps: u64,
    /// Instructions that the caller still allows, and whether there were too few.
    fuel: u64,
    is_spent: bool,
    /// Number of functions that may have begun and not returned, if the run has more.
    deep: Option<usize>,
    room: Room,
    /// The program of the instruction.
    code: At<'r>,
    /// The place in the recording of each program that a tail call may enter.
    entered: &'r [u32],
    /// Number of tail calls that the run has taken.
    tail_calls: usize,
    at: InsnIdx,
    /// The bytes of the value that the instruction loads.
    value: Value,
    /// Whether the recorded run has failed.
    fails: bool,
    /// Whether the run has as many instructions as the recorded one.
    is_over: bool,
    /// How the run differs from the recorded one.
    wrong: Option<&'static str>,
    /// Whether the observer has ended the replay.
    ended: bool,
    observer: &'o mut dyn Observer,
}

/// The event of a call.
enum Called {
    CallsBack(u64, [u64; 5]),
    Returns(u64, bool),
    Fails,
}

/// The bytes of a value, aligned for every access.
#[repr(align(8))]
struct Value([AtomicU8; 8]);

impl<'r> Replay<'r, '_> {
    /// An event is missing. The instruction with which a run has failed may have none.
    fn missing(&mut self, what: &'static str) {
        if !(self.fails && self.steps == self.limit) {
            self.wrong.get_or_insert(what);
        }
    }

    /// Whether the recorded run has ended in the last step, by the instruction itself: the run was not given the memory
    /// of an access, or a check that the verifier had left to run time failed. Only calls that fail have an event then.
    /// The checks are not recorded, so that instruction is not executed.
    fn has_failed(&self) -> bool {
        let mut next = self.events.clone();
        self.fails && self.steps == self.limit && !(next.u8().is_ok() && next.u32().is_ok_and(|at| at == self.at.0))
    }

    /// Subtracts the cost of some work from the steps that the caller allows. Returns whether that was enough.
    fn spend(&mut self, cost: u64) -> bool {
        let left = self.fuel.checked_sub(cost);
        self.is_spent |= left.is_none();
        self.fuel = left.unwrap_or(0);
        left.is_some()
    }

    /// Reads an event of this kind at this instruction.
    fn event(&mut self, expected: u8, at: InsnIdx) -> Result<(), RecordingError> {
        let place = self.events.at();
        if self.events.u8()? != expected || self.events.u32()? != at.0 {
            return self.events.error(place, "another event");
        }
        Ok(())
    }

    /// The value that the instruction at `at` loads from this address.
    fn load(&mut self, at: InsnIdx, address: u64) -> Result<u64, RecordingError> {
        self.event(kind::LOAD, at)?;
        let place = self.events.at();
        if self.events.u64()? != address {
            return self.events.error(place, "another address");
        }
        self.events.u64()
    }

    /// Applies what a function has written.
    fn writes(&mut self, machine: &mut Machine<'_>) -> Result<(), RecordingError> {
        for _ in 0..self.events.u32()? {
            let (place, address) = (self.events.at(), self.events.u64()?);
            let bytes = self.events.counted()?;
            if !machine.poke(address, bytes) {
                return self.events.error(place, "a write to memory that is not the run's");
            }
        }
        Ok(())
    }

    /// The next event of the call at `at`.
    fn called(&mut self, at: InsnIdx, machine: &mut Machine<'_>) -> Result<Called, RecordingError> {
        let place = self.events.at();
        let event = self.events.u8()?;
        if self.events.u32()? != at.0 {
            return self.events.error(place, "an event of another instruction");
        }
        match event {
            kind::CALL_BACK => {
                self.writes(machine)?;
                let callback = self.events.u64()?;
                let mut args = [0; 5];
                for arg in &mut args {
                    *arg = self.events.u64()?;
                }
                Ok(Called::CallsBack(callback, args))
            }
            kind::RETURN => {
                let (thrown, r0) = (self.events.bool()?, self.events.u64()?);
                self.writes(machine)?;
                Ok(Called::Returns(r0, thrown))
            }
            kind::FAIL => self.writes(machine).map(|()| Called::Fails),
            _ => self.events.error(place, "no event of a call"),
        }
    }

    /// Repeats the call of a function of the host.
    fn call(&mut self, caller: &mut Caller<'_, '_, At<'r>>) -> Result<u64, Stop> {
        let at = caller.at();
        loop {
            match self.called(at, caller.machine_mut()) {
                Ok(Called::CallsBack(..)) if !self.spend(self.stack_steps) => return Err(caller.fail("too long")),
                Ok(Called::CallsBack(callback, args)) => {
                    let result = caller.call(self, callback, args);
                    if let Err(stop) = result {
                        // The function of the host has failed with the call back.
                        if !matches!(self.called(at, caller.machine_mut()), Ok(Called::Fails)) {
                            self.missing("a function that it calls back fails");
                        }
                        return Err(stop);
                    }
                }
                Ok(Called::Returns(r0, thrown)) => {
                    if thrown {
                        caller.throw();
                    }
                    return Ok(r0);
                }
                Ok(Called::Fails) => return Err(caller.fail("the function has failed")),
                Err(_) => {
                    self.missing("it calls a function of the host otherwise");
                    return Err(caller.fail("no result was recorded"));
                }
            }
        }
    }
}

impl<'r> Env for Replay<'r, '_> {
    type Code = At<'r>;

    fn enters(&mut self, machine: &Machine<'_>) -> Result<(), StopKind> {
        if machine.frames() >= MAX_FUNCTIONS {
            self.deep = Some(MAX_FUNCTIONS);
            return Err(StopKind::CallDepth);
        }
        self.room.check().map_err(|NoRoom { needed, left }| {
            self.deep = Some(machine.frames());
            StopKind::Stack { needed, left }
        })
    }

    fn helper(&mut self, _: u32, _: [u64; 5], caller: &mut Caller<'_, '_, At<'r>>) -> Result<u64, Stop> {
        self.call(caller)
    }

    fn host_function(&mut self, _: i32, _: [u64; 5], caller: &mut Caller<'_, '_, At<'r>>) -> Result<u64, Stop> {
        self.call(caller)
    }

    fn resolve(&mut self, _: &At<'r>, _: Imm64) -> Option<u64> {
        let value = self.event(kind::RESOLVE, self.at).and_then(|()| self.events.u64());
        if value.is_err() {
            self.missing("it refers to a map otherwise");
        }
        value.ok()
    }

    fn region(&mut self, addr: u64, _: u64, write: bool) -> Option<HostMemory<'_>> {
        let loads = self.code.1.program.insns().get(self.at.index()).and_then(loaded).is_some();
        if loads {
            let Ok(value) = self.load(self.at, addr) else {
                self.missing("it loads another value");
                return None;
            };
            self.value = Value(value.to_le_bytes().map(AtomicU8::new));
        }
        // A store goes nowhere: whatever is loaded from there later is in the log.
        (loads || write).then(|| HostMemory::instead(&self.value.0))
    }

    fn exception(&self, code: &At<'r>) -> Option<InsnIdx> {
        code.1.exception
    }

    fn tail_call(&mut self, _: u64, _: u32, caller: &mut Caller<'_, '_, At<'r>>) -> Result<Option<At<'r>>, Stop> {
        let place = self.event(kind::TAIL_CALL, caller.at()).and_then(|()| self.events.u32());
        let code = match place {
            Ok(0) => return Ok(None),
            Ok(place) => self.entered.get(crate::num::index(place.into()) - 1),
            Err(_) => None,
        };
        // `Recording::parse` has checked the places.
        match code.and_then(|code| self.recording.codes.get(crate::num::index((*code).into()))) {
            Some(code) => {
                self.tail_calls += 1;
                Ok(Some(At(self.tail_calls, code)))
            }
            None => {
                self.missing("it makes a tail call otherwise");
                Err(caller.fail("no tail call was recorded"))
            }
        }
    }

    fn observe(&mut self, step: &Step<'_, At<'r>>, machine: &Machine<'_>) {
        if self.steps == self.limit {
            self.is_over = true;
            return;
        }
        let At(number, code) = *step.code;
        let insn = code.program.insns().get(step.at.index());
        let calls = matches!(insn, Some(Insn::Call(_)));
        let accesses = calls || insn.is_some_and(|insn| insn.memory_access().is_some());
        let parts = if accesses { (self.parts + machine.frames()) / PARTS_STEP } else { 0 };
        let stack = if calls { self.stack_steps } else { 0 };
        if !self.spend(1 + parts as u64 + stack) {
            return;
        }
        (self.code, self.at) = (*step.code, step.at);
        self.steps += 1;
        let place = Place { at: step.at, program: &code.program, number, name: &code.listing.name };
        self.ended = !self.observer.step(&Observed::new(&place, step.regs, machine));
    }

    fn admits(&mut self, _: &Step<'_, At<'r>>) -> bool {
        let goes_on = !self.ended && !self.is_over && !self.is_spent && self.deep.is_none() && self.wrong.is_none();
        goes_on && !self.has_failed()
    }
}
