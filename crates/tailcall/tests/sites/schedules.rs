//! Tests the real code on threads, under a scheduler that tries many orders.
//!
//! `exhaustive.rs` has one updater and all interleavings with a CPU. Here two updaters compete for the table as in
//! the runtime, owners of sites are added and removed, steps fail, and programs are dropped outside the lock. Two
//! CPUs run meanwhile, each with fetches as stale as an architecture may allow. A barrier reaches the CPUs one after
//! the other. Both controls, a barrier and a grace period that do nothing, must be detected.

use bpf_tailcall::{Change, Clock, Fences, Insn, Sites, Slot, Slots, Target};
use shuttle::rand::Rng;
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const CPUS: usize = 2;
/// Number of slots of the table.
const SLOTS: u32 = 2;
/// Number of sites for which there is memory.
const SITES: usize = 6;

/// An error that the test detects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Violation {
    FellThrough,
    Freed,
    TwoNops,
}

/// The part that is broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Broken {
    Nothing,
    Barriers,
    GracePeriods,
}

/// A patchable instruction: the content of memory, and the contents that each CPU may execute.
#[derive(Clone)]
struct Word {
    memory: Insn,
    fetched: [Vec<Insn>; CPUS],
}

impl Word {
    fn new(insn: Insn) -> Word {
        Word { memory: insn, fetched: std::array::from_fn(|_| vec![insn]) }
    }
}

#[derive(Clone, Copy, Default)]
struct Cpu {
    /// Odd while in a run.
    run: u64,
    /// The program that the CPU executes.
    within: Option<usize>,
}

struct State {
    words: Vec<[Word; 2]>,
    cpus: [Cpu; CPUS],
    freed: Vec<bool>,
    violation: Option<Violation>,
}

/// Memory and CPUs. Each lock is one step, and a point where the scheduler may switch.
struct Machine {
    state: Mutex<State>,
    broken: Broken,
    /// One step in this many fails.
    failing: u32,
}

type Shared = Arc<Machine>;

#[derive(Debug)]
struct Fault;

impl Machine {
    fn fails(&self) -> bool {
        self.failing != 0 && shuttle::rand::thread_rng().gen_ratio(1, self.failing)
    }

    fn violation(&self, violation: Violation) {
        self.state.lock().unwrap().violation.get_or_insert(violation);
    }

    /// The instruction that `cpu` executes at a word.
    fn execute(&self, cpu: usize, site: usize, slot: usize) -> Insn {
        let state = self.state.lock().unwrap();
        let fetched = &state.words[site][slot].fetched[cpu];
        fetched[shuttle::rand::thread_rng().gen_range(0..fetched.len())]
    }

    fn run(&self, cpu: usize, site: usize) {
        self.state.lock().unwrap().cpus[cpu].run += 1;
        if self.execute(cpu, site, 0) == Insn::Nop {
            match self.execute(cpu, site, 1) {
                Insn::Nop => self.violation(Violation::FellThrough),
                Insn::Jump(program) => {
                    let mut state = self.state.lock().unwrap();
                    if state.freed[program] {
                        state.violation.get_or_insert(Violation::Freed);
                    }
                    state.cpus[cpu].within = Some(program);
                    drop(state);
                    // Long enough for an updater to free the program.
                    (0..20).for_each(|_| shuttle::thread::yield_now());
                }
                Insn::Out => unreachable!("never written to a target"),
            }
        }
        let mut state = self.state.lock().unwrap();
        state.cpus[cpu] = Cpu { run: state.cpus[cpu].run + 1, within: None };
    }
}

/// The instructions of one site.
struct SiteText(Shared, usize);

impl Slots for SiteText {
    type Error = Fault;

    fn poke(&self, slot: Slot, old: Insn, new: Insn) -> Result<(), Fault> {
        if self.0.fails() {
            return Err(Fault);
        }
        let mut state = self.0.state.lock().unwrap();
        let words = &mut state.words[self.1];
        let word = &mut words[if slot == Slot::Bypass { 0 } else { 1 }];
        assert_eq!(word.memory, old, "the state does not agree with the text");
        word.memory = new;
        word.fetched.iter_mut().for_each(|fetched| fetched.push(new));
        if words.iter().all(|word| word.memory == Insn::Nop) {
            state.violation.get_or_insert(Violation::TwoNops);
        }
        Ok(())
    }
}

#[derive(Clone)]
struct ModelFences(Shared);

impl Fences for ModelFences {
    type Error = Fault;
    /// The runs in progress.
    type Period = [u64; CPUS];

    fn core_barrier(&self) -> Result<(), Fault> {
        if self.0.fails() {
            return Err(Fault);
        }
        for cpu in 0..CPUS {
            let mut state = self.0.state.lock().unwrap();
            if self.0.broken != Broken::Barriers {
                state.words.iter_mut().flatten().for_each(|word| word.fetched[cpu] = vec![word.memory]);
            }
        }
        Ok(())
    }

    fn start(&self) -> [u64; CPUS] {
        self.0.state.lock().unwrap().cpus.map(|cpu| cpu.run)
    }

    fn is_over(&self, period: &[u64; CPUS]) -> bool {
        let now = self.0.state.lock().unwrap().cpus.map(|cpu| cpu.run);
        let over = |(then, now): (&u64, &u64)| then % 2 == 0 || now > then;
        self.0.broken == Broken::GracePeriods || period.iter().zip(&now).all(over)
    }
}

/// A program, freed with its last handle.
#[derive(Clone)]
struct Handle(Arc<Program>);

struct Program(Shared, usize);

impl Handle {
    fn new(machine: &Shared) -> Handle {
        let mut state = machine.state.lock().unwrap();
        state.freed.push(false);
        Handle(Arc::new(Program(machine.clone(), state.freed.len() - 1)))
    }
}

impl Target for Handle {
    fn address(&self) -> usize {
        self.0.1
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().unwrap();
        state.freed[self.1] = true;
        if state.cpus.iter().any(|cpu| cpu.within == Some(self.1)) {
            state.violation.get_or_insert(Violation::Freed);
        }
    }
}

type Period = [u64; CPUS];

/// A table as in the runtime, under a lock.
struct Table {
    sites: Sites<SiteText, Handle, Period>,
    programs: [Option<Handle>; SLOTS as usize],
    /// Replaced programs that runs may still read from a slot's word.
    replaced: Vec<(Period, Handle)>,
}

impl Table {
    /// Returns the programs that are not needed any more, to be dropped without the lock.
    fn settle(&mut self, clock: &Clock<ModelFences>) -> Vec<Handle> {
        let mut free = self.sites.settle(clock);
        let (over, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.replaced).into_iter().partition(|(period, _)| clock.fences().is_over(period));
        self.replaced = waiting;
        free.extend(over.into_iter().map(|(_, program)| program));
        free
    }

    fn set(&mut self, clock: &Clock<ModelFences>, index: u32, new: Option<Handle>) {
        let place = index as usize;
        let change = Change { index, old: self.programs[place].clone(), new };
        if self.sites.update(clock, std::slice::from_ref(&change)).is_ok()
            && let Some(old) = std::mem::replace(&mut self.programs[place], change.new)
        {
            self.replaced.push((clock.fences().start(), old));
        }
    }
}

/// Runs one schedule; returns the violation in it.
fn scenario(broken: Broken, failing: u32) -> Option<Violation> {
    let words = vec![[Word::new(Insn::Out), Word::new(Insn::Nop)]; SITES];
    let state = State { words, cpus: [Cpu::default(); CPUS], freed: Vec::new(), violation: None };
    let machine: Shared = Arc::new(Machine { state: Mutex::new(state), broken, failing });
    let clock = Arc::new(Clock::new(ModelFences(machine.clone())));
    let table = Table { sites: Sites::default(), programs: [None, None], replaced: Vec::new() };
    let table = Arc::new(Mutex::new(table));
    let sites = |numbers: std::ops::Range<usize>| {
        numbers.map(|number| (number as u32 % SLOTS, SiteText(machine.clone(), number))).collect::<Vec<_>>()
    };
    table.lock().unwrap().sites.track(&clock, 0, sites(0..4), |_| None).expect("nothing to link");

    let runners: Vec<_> = (0..CPUS)
        .map(|cpu| {
            let machine = machine.clone();
            shuttle::thread::spawn(move || {
                for _ in 0..6 {
                    machine.run(cpu, shuttle::rand::thread_rng().gen_range(0..4));
                }
            })
        })
        .collect();
    let updaters: Vec<_> = (0..2)
        .map(|updater| {
            let (machine, clock, table) = (machine.clone(), clock.clone(), table.clone());
            let late = sites(4 + updater..5 + updater);
            shuttle::thread::spawn(move || {
                let mut late = Some(late);
                for _ in 0..6 {
                    let (choice, index) =
                        (shuttle::rand::thread_rng().gen_range(0..6), shuttle::rand::thread_rng().gen_range(0..SLOTS));
                    let new = (choice < 3).then(|| Handle::new(&machine));
                    let mut held = table.lock().unwrap();
                    let free = held.settle(&clock);
                    let Table { sites, programs, .. } = &mut *held;
                    let mut gone = Vec::new();
                    match choice {
                        0..=3 => held.set(&clock, index, new),
                        4 => {
                            if let Some(late) = late.take() {
                                let current = |index: u32| programs[index as usize].clone();
                                // After a failure none of the sites is tracked.
                                let _ = sites.track(&clock, 1 + updater as u64, late, current);
                            }
                        }
                        _ => gone = sites.untrack(updater as u32 % SLOTS, 1 + updater as u64),
                    }
                    drop(held);
                    drop((free, gone));
                }
            })
        })
        .collect();
    for thread in updaters.into_iter().chain(runners) {
        thread.join().unwrap();
    }

    // All runs are over: with a barrier that works, every target can be released. The text of the sites agrees with
    // their states.
    let mut held = table.lock().unwrap();
    let free = held.settle(&clock);
    if broken == Broken::Nothing {
        assert!(held.sites.is_settled() && held.replaced.is_empty());
    }
    for (index, site) in held.sites.iter() {
        let (bypass, target) = site.instructions();
        assert_ne!((bypass, target), (Insn::Nop, Insn::Nop));
        if failing == 0 {
            let program = held.programs[index as usize].as_ref();
            let linked = program.map(|program| (Insn::Nop, Insn::Jump(program.address())));
            assert_eq!((bypass, target), linked.unwrap_or((Insn::Out, Insn::Nop)));
        }
    }
    drop(held);
    drop(free);
    let violation = machine.state.lock().unwrap().violation;
    // The table holds programs, which refer to the machine: it is dropped last, when no CPU runs.
    drop(table);
    violation
}

/// Returns the number of schedules, and how many of them had each violation: fell through, freed, two nops.
fn schedules(broken: Broken, failing: u32) -> (usize, [usize; 3]) {
    let iterations = 3000;
    let counts: Arc<[AtomicUsize; 3]> = Arc::default();
    let counting = Arc::clone(&counts);
    // The scheduler is seeded, so that the controls do not depend on chance.
    let scheduler = RandomScheduler::new_from_seed(1, iterations);
    shuttle::Runner::new(scheduler, shuttle::Config::default()).run(move || {
        if let Some(violation) = scenario(broken, failing) {
            // Relaxed: shuttle runs everything on this thread.
            counting[violation as usize].fetch_add(1, Ordering::Relaxed);
        }
    });
    (iterations, std::array::from_fn(|kind| counts[kind].load(Ordering::Relaxed)))
}

#[test]
fn competing_updaters_never_let_a_cpu_fall_through() {
    for failing in [0, 8] {
        let (_, found) = schedules(Broken::Nothing, failing);
        assert_eq!(found, [0; 3], "one step in {failing} fails");
    }
}

#[test]
fn a_barrier_that_does_nothing_is_caught() {
    let (of, [fell_through, _, two_nops]) = schedules(Broken::Barriers, 0);
    println!("{fell_through} of {of} schedules fell through");
    assert!(fell_through > 0);
    assert_eq!(two_nops, 0, "memory itself never holds two nops");
}

#[test]
fn a_grace_period_that_waits_for_nobody_is_caught() {
    let (of, [_, freed, _]) = schedules(Broken::GracePeriods, 0);
    println!("{freed} of {of} schedules were in a freed program");
    assert!(freed > 0);
}
