//! Tests the real code against every interleaving with an abstract CPU, and again with steps dropped or swapped.
//!
//! All sequences of up to five commands (set a slot, clear it, settle), without failures, with every step failing
//! once, and with every step and all later ones failing. The steps of the code are recorded as events; the model
//! explores all interleavings of them with a CPU that may hold stale fetches.

use crate::model::{Event, Fault, Handle, ModelFences, ModelSlots, Shared, Violation, World, explore};
use bpf_tailcall::{Change, Clock, Insn, Sites, Slot, Target, UpdateError};
use std::cell::RefCell;
use std::rc::Rc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Command {
    Set,
    Clear,
    Settle,
}

use Command::{Clear, Set, Settle};

/// A table with one slot, as in the runtime: a replaced program of the slot is released a grace period later.
struct Table {
    world: Shared,
    clock: Clock<ModelFences>,
    sites: Sites<ModelSlots, Handle, u32>,
    program: Option<Handle>,
    replaced: Vec<(u32, Handle)>,
    programs: usize,
}

impl Table {
    fn new(sites: usize, failing: Vec<usize>) -> Table {
        let memory = vec![(Insn::Out, Insn::Nop); sites];
        let world: Shared = Rc::new(RefCell::new(World { memory, failing, ..World::default() }));
        let clock = Clock::new(ModelFences(world.clone()));
        let mut table = Table {
            world: world.clone(),
            clock,
            sites: Sites::default(),
            program: None,
            replaced: Vec::new(),
            programs: 0,
        };
        let slots = (0..sites).map(|site| (0, ModelSlots(world.clone(), site)));
        table.sites.track(&table.clock, 0, slots, |_| None).unwrap();
        table
    }

    fn execute(&mut self, command: Command) -> Result<(), UpdateError<Fault, Fault>> {
        let new = match command {
            Settle => {
                drop(self.sites.settle(&self.clock));
                for (period, program) in self.replaced.drain(..) {
                    use bpf_tailcall::Fences;
                    self.clock.fences().is_over(&period);
                    drop(program);
                }
                return Ok(());
            }
            Clear => None,
            Set => {
                self.programs += 1;
                Some(Handle::new(&self.world, self.programs - 1))
            }
        };
        let change = Change { index: 0, old: self.program.clone(), new };
        self.sites.update(&self.clock, std::slice::from_ref(&change))?;
        if let Some(old) = std::mem::replace(&mut self.program, change.new) {
            use bpf_tailcall::Fences;
            self.replaced.push((self.clock.fences().start(), old));
        }
        Ok(())
    }

    /// Checks that text and state agree, and that the sites follow the slot, unless undoing a failure failed too.
    fn check(&self, undoable: bool) {
        let world = self.world.borrow();
        for ((_, site), memory) in self.sites.iter().zip(&world.memory) {
            assert_eq!(site.instructions(), *memory);
            assert_ne!(*memory, (Insn::Nop, Insn::Nop));
            match &self.program {
                _ if !undoable => {}
                None => assert_eq!(memory.0, Insn::Out),
                Some(program) => assert_eq!(*memory, (Insn::Nop, Insn::Jump(program.address()))),
            }
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.world.borrow_mut().over = true;
    }
}

/// The events of a sequence of commands, and the number of steps that could have failed.
fn record(sites: usize, commands: &[Command], failing: Vec<usize>) -> (Vec<Event>, usize) {
    let once = failing.len() <= 1;
    let mut table = Table::new(sites, failing);
    for command in commands {
        // A failed update changes nothing.
        let _ = table.execute(*command);
        table.check(once);
    }
    let world = table.world.borrow();
    (world.events.clone(), world.fallible)
}

fn sequences(length: usize) -> Vec<Vec<Command>> {
    let mut all = vec![vec![]];
    for _ in 0..length {
        all = all.iter().flat_map(|s| [Set, Clear, Settle].map(|c| [s.as_slice(), &[c]].concat())).collect();
    }
    all
}

#[test]
fn no_interleaving_goes_wrong() {
    let (mut explored, mut states) = (0, 0);
    let mut check = |sites, commands: &[Command], failing: Vec<usize>| {
        let (events, fallible) = record(sites, commands, failing.clone());
        let (violation, seen) = explore(sites, &events);
        assert_eq!(violation, None, "{commands:?} failing {failing:?}: {events:?}");
        explored += 1;
        states += seen;
        fallible
    };
    for commands in sequences(5) {
        for sites in [1, 2] {
            let fallible = check(sites, &commands, vec![]);
            for step in 0..fallible {
                check(sites, &commands, vec![step]);
                check(sites, &commands, (step..fallible + 20).collect());
            }
        }
    }
    println!("{explored} recordings, {states} states");
    assert!(explored > 5_000 && states > 100_000);
}

/// Events of commands that all succeed.
fn events(commands: &[Command]) -> Vec<Event> {
    let (events, _) = record(1, commands, vec![]);
    assert_eq!(explore(1, &events).0, None);
    events
}

fn without(events: &[Event], at: usize) -> Vec<Event> {
    [&events[..at], &events[at + 1..]].concat()
}

#[test]
fn dropping_any_barrier_or_wait_goes_wrong() {
    // Install, remove, install again; and install, update, and the old program freed.
    for commands in [&[Set, Clear, Settle, Set, Settle][..], &[Set, Set, Settle]] {
        let events = events(commands);
        let mut dropped = 0;
        for (at, event) in events.iter().enumerate() {
            if let Event::Barrier | Event::Wait(_) | Event::Begin(_) = event {
                let found = explore(1, &without(&events, at)).0;
                // The slot keeps a replaced program for a grace period too, so one of two waits for it may be
                // dropped.
                let doubled = matches!(event, Event::Begin(_) | Event::Wait(_)) && found.is_none();
                if doubled {
                    assert!(is_doubled(&events, at), "{commands:?} without {event:?} at {at}");
                } else {
                    assert!(found.is_some(), "{commands:?} without {event:?} at {at}: {events:?}");
                    dropped += 1;
                }
            }
        }
        assert!(dropped >= 2, "{dropped} of {events:?}");
    }
}

/// Whether another period, which began after the last barrier before this one, is waited for before any removal or
/// freeing.
fn is_doubled(events: &[Event], at: usize) -> bool {
    let (Event::Begin(this) | Event::Wait(this)) = events[at] else { return false };
    let waits = events.iter().filter(|e| matches!(e, Event::Wait(_))).count();
    waits > 1 && events.contains(&Event::Wait(this))
}

#[test]
fn swapping_any_two_steps_goes_wrong() {
    // The protocol itself, without the slot's own reference to the program.
    let mut table = Table::new(1, vec![]);
    table.execute(Set).unwrap();
    table.execute(Clear).unwrap();
    table.replaced.clear();
    table.world.borrow_mut().events.retain(|e| !matches!(e, Event::Begin(1)));
    drop(table.sites.settle(&table.clock));
    let events = table.world.borrow().events.clone();
    use Event::{Barrier, Begin, Free, Poke, Wait};
    let (bypass, target) = (Slot::Bypass, Slot::Target);
    let protocol = [
        Poke(0, target, Insn::Jump(0)),
        Barrier,
        Poke(0, bypass, Insn::Nop),
        Poke(0, bypass, Insn::Out),
        Barrier,
        Begin(0),
        Wait(0),
        Poke(0, target, Insn::Nop),
        Free(0),
    ];
    assert_eq!(events, protocol);
    assert_eq!(explore(1, &protocol).0, None);
    // Two steps whose order a CPU cannot observe: removing the jump after a bypass that every CPU sees closed, and
    // freeing the program it led to.
    let last = protocol.len() - 2;
    for i in 0..protocol.len() {
        for j in i + 1..protocol.len() {
            let mut swapped = protocol;
            swapped.swap(i, j);
            let same = protocol[i] == protocol[j];
            let unseen = (i, j) == (last, last + 1);
            assert_eq!(explore(1, &swapped).0.is_none(), same || unseen, "{i} and {j}: {swapped:?}");
        }
    }
}

#[test]
fn the_model_finds_each_kind_of_violation() {
    use Event::{Barrier, Free, Poke};
    let (bypass, target) = (Slot::Bypass, Slot::Target);
    let install = [Poke(0, target, Insn::Jump(0)), Barrier, Poke(0, bypass, Insn::Nop)];
    assert_eq!(explore(1, &install).0, None);
    assert_eq!(explore(1, &[&install[..], &[Free(0)]].concat()).0, Some(Violation::Freed));
    assert_eq!(explore(1, &without(&install, 1)).0, Some(Violation::FellThrough));
    assert_eq!(explore(1, &[Poke(0, bypass, Insn::Nop)]).0, Some(Violation::TwoNops));
}
