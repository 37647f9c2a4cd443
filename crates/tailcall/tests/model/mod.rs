//! The abstract machine: records the steps of the real code as events, and explores all interleavings of them with a
//! CPU.
//!
//! The CPU is as weak as an architecture may allow: for either instruction of a site it may execute the content of
//! memory, or any content since its last instruction barrier. It enters and leaves runs at any time; a grace period
//! waits for the run it is in. One CPU suffices: CPUs do not affect each other, and a second one only makes the
//! updater wait longer.
#![allow(dead_code, reason = "each test file uses a part of it")]

use bpf_tailcall::{Fences, Insn, Slot, Slots, Target};
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

/// A step of an updater that a CPU can observe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// Wrote an instruction of a site.
    Poke(usize, Slot, Insn),
    /// Every CPU discards its fetched instructions.
    Barrier,
    /// Started a grace period for the runs in progress.
    Begin(u32),
    /// Waited until these runs were over.
    Wait(u32),
    /// Freed a program.
    Free(usize),
}

/// A detected error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Violation {
    /// A CPU unwound its frame and ran into the nop.
    FellThrough,
    /// A CPU was in a freed program, or jumped into one.
    Freed,
    /// Memory held two nops.
    TwoNops,
}

/// Memory, and its history.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) memory: Vec<(Insn, Insn)>,
    pub(crate) events: Vec<Event>,
    /// Number of steps so far that could have failed.
    pub(crate) fallible: usize,
    /// The steps that fail.
    pub(crate) failing: Vec<usize>,
    pub(crate) periods: u32,
    /// Whether the model is over: programs dropped from then on are not recorded as freed.
    pub(crate) over: bool,
}

pub(crate) type Shared = Rc<RefCell<World>>;

impl World {
    fn step(&mut self) -> Result<(), Fault> {
        self.fallible += 1;
        if self.failing.contains(&(self.fallible - 1)) { Err(Fault) } else { Ok(()) }
    }
}

/// An injected failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault;

/// The instructions of site number `.1` in memory.
#[derive(Debug)]
pub(crate) struct ModelSlots(pub(crate) Shared, pub(crate) usize);

impl Slots for ModelSlots {
    type Error = Fault;

    fn poke(&self, slot: Slot, old: Insn, new: Insn) -> Result<(), Fault> {
        let mut world = self.0.borrow_mut();
        world.step()?;
        let (bypass, target) = &mut world.memory[self.1];
        let place = match slot {
            Slot::Bypass => bypass,
            Slot::Target => target,
        };
        assert_eq!(*place, old, "the state does not agree with the text");
        *place = new;
        world.events.push(Event::Poke(self.1, slot, new));
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ModelFences(pub(crate) Shared);

impl Fences for ModelFences {
    type Error = Fault;
    type Period = u32;

    fn core_barrier(&self) -> Result<(), Fault> {
        let mut world = self.0.borrow_mut();
        world.step()?;
        world.events.push(Event::Barrier);
        Ok(())
    }

    fn start(&self) -> u32 {
        let mut world = self.0.borrow_mut();
        let period = world.periods;
        world.periods += 1;
        world.events.push(Event::Begin(period));
        period
    }

    fn is_over(&self, period: &u32) -> bool {
        self.0.borrow_mut().events.push(Event::Wait(*period));
        true
    }
}

/// A program, freed with its last handle.
#[derive(Clone, Debug)]
pub(crate) struct Handle(Rc<Program>);

#[derive(Debug)]
struct Program(Shared, usize);

impl Handle {
    pub(crate) fn new(world: &Shared, address: usize) -> Handle {
        Handle(Rc::new(Program(world.clone(), address)))
    }
}

impl Target for Handle {
    fn address(&self) -> usize {
        self.0.1
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let mut world = self.0.borrow_mut();
        if !world.over {
            world.events.push(Event::Free(self.1));
        }
    }
}

/// An instruction's bit in a set.
fn bit(insn: Insn) -> u64 {
    match insn {
        Insn::Nop => 1,
        Insn::Out => 2,
        Insn::Jump(program) => 4 << program,
    }
}

/// The instructions in a set.
fn members(set: u64) -> impl Iterator<Item = Insn> {
    (0..64).filter(move |i| set & 1 << i != 0).map(|i| match i {
        0 => Insn::Nop,
        1 => Insn::Out,
        program => Insn::Jump(program - 2),
    })
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Cpu {
    /// The thread is in no run.
    Idle,
    /// In a run, before any site.
    Running,
    /// Between the two instructions of this site.
    Between(usize),
    /// The thread runs this program.
    In(usize),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    at: usize,
    memory: Vec<[u64; 2]>,
    /// For each instruction, the contents that the CPU may execute.
    fetch: Vec<[u64; 2]>,
    cpu: Cpu,
    /// The periods that wait for the CPU's run.
    waiting: u64,
    freed: u64,
}

/// Returns the first violation found in any interleaving, and the number of states explored.
pub(crate) fn explore(sites: usize, events: &[Event]) -> (Option<Violation>, usize) {
    let start = [bit(Insn::Out), bit(Insn::Nop)];
    let first =
        State { at: 0, memory: vec![start; sites], fetch: vec![start; sites], cpu: Cpu::Idle, waiting: 0, freed: 0 };
    let (mut seen, mut todo) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(state) = todo.pop() {
        let mut next = Vec::new();
        let stepped = cpu_steps(&state, &mut next).and_then(|()| updater_step(&state, events, &mut next));
        if let Err(violation) = stepped {
            return (Some(violation), seen.len());
        }
        for state in next {
            if seen.insert(state.clone()) {
                todo.push(state);
            }
        }
    }
    (None, seen.len())
}

fn cpu_steps(state: &State, next: &mut Vec<State>) -> Result<(), Violation> {
    let leave = || State { cpu: Cpu::Idle, waiting: 0, ..state.clone() };
    match state.cpu {
        Cpu::Idle => next.push(State { cpu: Cpu::Running, ..state.clone() }),
        Cpu::Running => {
            next.push(leave());
            for (site, [bypass, _]) in state.fetch.iter().enumerate() {
                // Out leads back to the state before the site.
                if bypass & bit(Insn::Nop) != 0 {
                    next.push(State { cpu: Cpu::Between(site), ..state.clone() });
                }
            }
        }
        Cpu::Between(site) => {
            for insn in members(state.fetch[site][1]) {
                match insn {
                    Insn::Nop => return Err(Violation::FellThrough),
                    Insn::Jump(program) if state.freed & 1 << program != 0 => return Err(Violation::Freed),
                    Insn::Jump(program) => next.push(State { cpu: Cpu::In(program), ..state.clone() }),
                    Insn::Out => unreachable!("never written to a target"),
                }
            }
        }
        Cpu::In(_) => next.push(leave()),
    }
    Ok(())
}

fn updater_step(state: &State, events: &[Event], next: &mut Vec<State>) -> Result<(), Violation> {
    let Some(event) = events.get(state.at) else { return Ok(()) };
    let mut after = State { at: state.at + 1, ..state.clone() };
    match *event {
        Event::Poke(site, slot, insn) => {
            let slot = if slot == Slot::Bypass { 0 } else { 1 };
            after.memory[site][slot] = bit(insn);
            after.fetch[site][slot] |= bit(insn);
            if after.memory[site] == [bit(Insn::Nop); 2] {
                return Err(Violation::TwoNops);
            }
        }
        Event::Barrier => after.fetch.clone_from(&state.memory),
        Event::Begin(period) if state.cpu != Cpu::Idle => after.waiting |= 1 << period,
        Event::Begin(_) => {}
        Event::Wait(period) if state.waiting & 1 << period != 0 => return Ok(()),
        Event::Wait(_) => {}
        Event::Free(program) if state.cpu == Cpu::In(program) => return Err(Violation::Freed),
        Event::Free(program) => after.freed |= 1 << program,
    }
    next.push(after);
    Ok(())
}
