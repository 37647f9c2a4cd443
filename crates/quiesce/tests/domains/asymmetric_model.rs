//! The asymmetric protocol, which loom cannot model: a reader without a fence against a writer with `membarrier`.
//!
//! The model is a small machine, explored exhaustively. Each CPU may execute its operations in any order that
//! respects the dependencies and orderings stated with them. Its stores wait in a buffer that drains in any order
//! (release stores: after all earlier ones). The model is weaker than x86-64 and about as weak as arm64. `membarrier`
//! happens at a moment when the other CPU has executed exactly its first n operations, for some n, and drained its
//! buffer: a full barrier between two instructions.
//!
//! Each property has its controls: without the barrier on either side the machine must find a violation, or the test
//! shows nothing.
#![cfg(not(miri))] // No unsafe code to check, and minutes of exploring.

use std::collections::HashSet;

type Value = u8;
type Memory = [Value; 4];
/// The value that each operation loaded, by index.
type Loaded = [Value; 8];

#[derive(Clone, Copy)]
enum Action {
    Load(usize),
    /// Waits until the location holds such a value.
    Await(usize, fn(Value) -> bool),
    Store(usize, Value),
    /// Stores the value that an earlier operation loaded.
    StoreLoaded(usize, usize),
    StoreRelease(usize, Value),
    /// Adds 1 at once, after all earlier stores (an acquire-release read-modify-write).
    Increment(usize),
    /// `membarrier`.
    Membarrier,
    /// A full fence of this CPU.
    Fence,
    /// A violation, if the function says so at this moment.
    Violation(fn(&Loaded, &Memory) -> bool),
}

/// Earlier operations that an operation cannot overtake.
#[derive(Clone, Copy)]
enum After {
    All,
    These(&'static [usize]),
}

type Program = Vec<(Action, After)>;

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Cpu {
    /// Bit i: operation i was executed.
    done: u16,
    loaded: Loaded,
    /// Location, value, release.
    buffer: Vec<(usize, Value, bool)>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Machine {
    memory: Memory,
    cpus: [Cpu; 2],
}

impl Cpu {
    fn load(&self, location: usize, memory: &Memory) -> Value {
        let own = self.buffer.iter().rev().find(|(l, ..)| *l == location);
        own.map_or(memory[location], |(_, value, _)| *value)
    }

    fn may_execute(&self, i: usize, program: &Program) -> bool {
        let done = |j: usize| self.done & (1 << j) != 0;
        let after = match program[i].1 {
            After::All => (0..i).all(done),
            After::These(these) => these.iter().all(|j| done(*j)),
        };
        // No operation overtakes a fence.
        let fences = (0..i).filter(|j| matches!(program[*j].0, Action::Fence | Action::Membarrier));
        !done(i) && after && fences.into_iter().all(done)
    }

    /// Whether the CPU is between two instructions, with an empty store buffer.
    fn at_rest(&self) -> bool {
        self.done & (self.done + 1) == 0 && self.buffer.is_empty()
    }
}

impl Machine {
    /// Executes operation `i` of CPU `c`; `None` if it cannot be executed now.
    fn execute(&self, c: usize, i: usize, action: Action) -> Option<Self> {
        let cpu = &self.cpus[c];
        let mut then = self.clone();
        then.cpus[c].done |= 1 << i;
        match action {
            Action::Load(location) => then.cpus[c].loaded[i] = cpu.load(location, &self.memory),
            Action::Await(location, wanted) => {
                if !wanted(cpu.load(location, &self.memory)) {
                    return None;
                }
            }
            Action::Store(location, value) => then.cpus[c].buffer.push((location, value, false)),
            Action::StoreLoaded(location, from) => then.cpus[c].buffer.push((location, cpu.loaded[from], false)),
            Action::StoreRelease(location, value) => then.cpus[c].buffer.push((location, value, true)),
            Action::Increment(location) => {
                if !cpu.buffer.is_empty() {
                    return None;
                }
                then.memory[location] += 1;
            }
            Action::Fence => {
                if !cpu.buffer.is_empty() {
                    return None;
                }
            }
            Action::Membarrier => {
                if !cpu.buffer.is_empty() || !self.cpus[1 - c].at_rest() {
                    return None;
                }
            }
            Action::Violation(_) => {}
        }
        Some(then)
    }
}

/// The result of an exploration.
#[derive(Debug, PartialEq)]
struct Found {
    violation: bool,
    /// Some execution ran both programs to their ends.
    end: bool,
}

/// Runs every execution; `bad_end` judges memory when both programs have ended.
fn explore(memory: Memory, programs: &[Program; 2], bad_end: fn(&Memory) -> bool) -> Found {
    let start = Machine { memory, cpus: Default::default() };
    let (mut seen, mut todo) = (HashSet::from([start.clone()]), vec![start]);
    let mut found = Found { violation: false, end: false };
    while let Some(machine) = todo.pop() {
        let ended =
            |c: usize| machine.cpus[c].at_rest() && machine.cpus[c].done.count_ones() as usize == programs[c].len();
        if ended(0) && ended(1) {
            found.end = true;
            found.violation |= bad_end(&machine.memory);
        }
        let mut next = Vec::new();
        for (c, program) in programs.iter().enumerate() {
            let cpu = &machine.cpus[c];
            for (i, &(location, value, release)) in cpu.buffer.iter().enumerate() {
                if !cpu.buffer[..i].iter().any(|(l, ..)| *l == location || release) {
                    let mut drained = machine.clone();
                    drained.cpus[c].buffer.remove(i);
                    drained.memory[location] = value;
                    next.push(drained);
                }
            }
            for (i, (action, _)) in program.iter().enumerate().filter(|(i, _)| cpu.may_execute(*i, program)) {
                if let Action::Violation(bad) = action {
                    found.violation |= bad(&cpu.loaded, &machine.memory);
                }
                next.extend(machine.execute(c, i, *action));
            }
        }
        todo.extend(next.into_iter().filter(|machine| seen.insert(machine.clone())));
    }
    found
}

/// The barriers on the two sides.
#[derive(Debug, Clone, Copy)]
enum Barriers {
    /// As built: none in the reader, `membarrier` in the writer.
    Asymmetric,
    /// As built where `membarrier` is denied.
    Fenced,
    /// A control: the writer's fence orders its own CPU only.
    WriterFenceOnly,
    /// A control without any barrier.
    None,
}

impl Barriers {
    fn reader(self) -> Option<(Action, After)> {
        matches!(self, Self::Fenced).then_some((Action::Fence, After::All))
    }

    fn writer(self) -> Option<(Action, After)> {
        match self {
            Self::Asymmetric => Some((Action::Membarrier, After::All)),
            Self::Fenced | Self::WriterFenceOnly => Some((Action::Fence, After::All)),
            Self::None => None,
        }
    }
}

fn program(before: Program, barrier: Option<(Action, After)>, after: Program) -> Program {
    before.into_iter().chain(barrier).chain(after).collect()
}

fn check(memory: Memory, programs: impl Fn(Barriers) -> [Program; 2], bad_end: fn(&Memory) -> bool) {
    for barriers in [Barriers::Asymmetric, Barriers::Fenced] {
        let found = explore(memory, &programs(barriers), bad_end);
        assert_eq!(found, Found { violation: false, end: true }, "{barriers:?}");
    }
    for barriers in [Barriers::WriterFenceOnly, Barriers::None] {
        let found = explore(memory, &programs(barriers), bad_end);
        assert_eq!(found, Found { violation: true, end: true }, "{barriers:?}: a control that finds nothing");
    }
}

use Action::{Await, Increment, Load, Store, StoreLoaded, StoreRelease, Violation};
use After::{All, These};

/// A reader (`Core::enter`, use of the linked object, `Core::leave`) against a writer (unlinking, `Core::start`,
/// `Core::poll`, freeing).
#[test]
fn nothing_is_freed_under_a_reader() {
    const STATE: usize = 0;
    const EPOCH: usize = 1;
    const LINKED: usize = 2;
    const FREED: usize = 3;
    let programs = |barriers: Barriers| {
        // The load of the epoch is an acquire; the store of the state depends on it and orders nothing.
        let enter = vec![(Load(EPOCH), These(&[])), (StoreLoaded(STATE, 0), These(&[0]))];
        let uses: fn(&Loaded, &Memory) -> bool = |loaded, memory| loaded[2] + loaded[3] == 1 && memory[FREED] == 1;
        let run = vec![(Load(LINKED), These(&[0])), (Violation(uses), All), (StoreRelease(STATE, 0), All)];
        let unlink = vec![(Store(LINKED, 0), These(&[])), (Increment(EPOCH), All)];
        let wait = vec![
            // Idle, or entered in the new epoch.
            (Await(STATE, |state| state == 0 || state >= 2), All),
            (Increment(FREED), All),
        ];
        [program(enter, barriers.reader(), run), program(unlink, barriers.writer(), wait)]
    };
    check([0, 1, 1, 0], programs, |_| false);
}

/// `Core::enter` of a slot's owner against `Core::take_slot`.
#[test]
fn a_slot_is_not_taken_from_a_running_thread() {
    const STATE: usize = 0;
    const MINE: usize = 1;
    const TAKEN: usize = 2;
    let programs = |barriers: Barriers| {
        let enter = vec![(Store(STATE, 1), These(&[]))];
        let runs: fn(&Loaded, &Memory) -> bool = |loaded, memory| loaded[1] + loaded[2] == 1 && memory[TAKEN] == 1;
        let run = vec![(Load(MINE), These(&[])), (Violation(runs), All), (StoreRelease(STATE, 0), All)];
        let revoke = vec![(Store(MINE, 0), These(&[]))];
        let take = vec![(Await(STATE, |state| state == 0), These(&[])), (Increment(TAKEN), All)];
        [program(enter, barriers.reader(), run), program(revoke, barriers.writer(), take)]
    };
    check([0, 1, 0, 0], programs, |_| false);
}

/// `Core::leave` against going to sleep in `Core::wait`.
#[test]
fn no_wake_is_lost() {
    const STATE: usize = 0;
    const ATTENTION: usize = 1;
    const SEEN_BY_READER: usize = 2;
    const SEEN_BY_WAITER: usize = 3;
    let programs = |barriers: Barriers| {
        let reader = barriers.reader();
        let load = 1 + usize::from(reader.is_some());
        let exit = vec![(StoreRelease(STATE, 0), These(&[]))];
        let look = vec![(Load(ATTENTION), These(&[])), (StoreLoaded(SEEN_BY_READER, load), All)];
        let writer = barriers.writer();
        let load = 1 + usize::from(writer.is_some());
        let ask = vec![(Store(ATTENTION, 1), These(&[]))];
        let sleep = vec![(Load(STATE), These(&[])), (StoreLoaded(SEEN_BY_WAITER, load), All)];
        [program(exit, reader, look), program(ask, writer, sleep)]
    };
    // The reader saw no waiter, and the waiter saw the reader inside: it would sleep for ever.
    check([1, 0, 9, 9], programs, |memory| memory[SEEN_BY_READER] == 0 && memory[SEEN_BY_WAITER] == 1);
}
