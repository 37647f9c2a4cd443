//! Random sequences of an operator's actions on an engine, beside a model: programs of every tier are loaded and
//! dropped, put into hooks and prog arrays one by one and by plans, plans are put back, and runs go on meanwhile.

use crate::generate::Choices;
use bpf_isa::assemble;
use bpf_jit_code::{Arch, OptLevel};
use bpf_runtime::{
    Account, Config, Dispatcher, Engine, Hook, HookPolicy, Linker, Mode, Plan, ProgArray, Program, Raw, RunError,
    hook::Applied,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type Prog = Program<Raw, ()>;

const PROGRAMS: usize = 8;
const SLOTS: usize = 3;
const HOOKS: usize = 2;
const STEPS: u32 = 120;
/// Rounds of a loop, and a budget that is too small for them and large enough for all jumps.
const ROUNDS: u64 = 1000;
const SMALL: u64 = 200;
/// Result of a hook without programs.
const EMPTY: u64 = 77;

/// Behaviour of a program.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// Returns this, and needs no run.
    Returns(u64),
    /// Returns its rounds.
    Loops,
    /// Jumps to a slot that is known at compile time; returns this number if the slot is empty.
    Jumps(u32, u64),
    /// Jumps to the slot that the context names; returns this number if the slot is empty.
    Looks(u64),
}

#[derive(Clone)]
struct Known {
    program: Prog,
    serial: u64,
    does: Does,
    budget: Option<u64>,
}

/// End of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Returned(u64),
    Budget,
}

/// Model of the programs in hooks and slots.
#[derive(Clone, Default)]
struct Model {
    hooks: [Vec<Known>; HOOKS],
    slots: [Option<Known>; SLOTS],
}

/// A change of a plan.
#[derive(Clone, Copy, Debug)]
enum Change {
    Attach(usize, usize),
    Detach(usize, usize),
    Replace(usize, usize, usize),
    Set(usize, usize),
    Clear(usize),
}

impl Model {
    /// Returns the expected end of a run of this program with a context that names `slot`.
    fn run(&self, known: &Known, slot: usize) -> End {
        let (mut at, mut left) = (known, 33);
        loop {
            let (slot, otherwise) = match at.does {
                Does::Returns(value) => return End::Returned(value),
                // Rounds count where the code counts, against what the run began with.
                Does::Loops if at.budget.is_some() && known.budget == Some(SMALL) => return End::Budget,
                Does::Loops => return End::Returned(ROUNDS),
                Does::Jumps(slot, otherwise) => (slot as usize, otherwise),
                Does::Looks(otherwise) => (slot, otherwise),
            };
            match self.slots.get(slot) {
                Some(Some(next)) if left > 0 => (at, left) = (next, left - 1),
                _ => return End::Returned(otherwise),
            }
        }
    }

    fn run_hook(&self, hook: usize, slot: usize) -> End {
        let mut last = End::Returned(EMPTY);
        for known in &self.hooks[hook] {
            last = self.run(known, slot);
            if last == End::Budget {
                break;
            }
        }
        last
    }

    /// Whether the change is possible, which it then is.
    fn change(&mut self, change: Change, programs: &[Known]) -> bool {
        let place = |hook: &[Known], at: usize| hook.iter().position(|k| k.serial == programs[at].serial);
        match change {
            Change::Attach(hook, at) => {
                let hook = &mut self.hooks[hook];
                let possible = place(hook, at).is_none();
                if possible {
                    hook.push(programs[at].clone());
                }
                possible
            }
            Change::Detach(hook, at) => {
                let hook = &mut self.hooks[hook];
                let found = place(hook, at);
                found.map(|found| hook.remove(found)).is_some()
            }
            Change::Replace(hook, old, new) => {
                let hook = &mut self.hooks[hook];
                match (place(hook, old), place(hook, new)) {
                    (Some(found), None) => hook[found] = programs[new].clone(),
                    _ => return false,
                }
                true
            }
            Change::Set(slot, at) => {
                self.slots[slot] = Some(programs[at].clone());
                true
            }
            Change::Clear(slot) => {
                self.slots[slot] = None;
                true
            }
        }
    }
}

/// See the module. A finding is a run that ended in another way than the model's, a change that succeeded or failed
/// when the model's did not, or memory that is still taken when all is dropped.
pub fn operations(data: &[u8]) {
    let mut choices = Choices::from_bytes(data);
    let choices = &mut choices;
    let config = Config::new()
        .mode(if Arch::HOST.is_some() && !choices.one_in(8) { Mode::Jit } else { Mode::Interpreter })
        .metrics(choices.one_in(2))
        .direct_tail_calls(!choices.one_in(4))
        .tick(Duration::from_micros(50))
        .max_slots(16);
    let engine = Engine::new(config).expect("an engine");
    let account = engine.account("tenant", 1 << 20);
    let hooks: [Hook<Raw, ()>; HOOKS] =
        [(); HOOKS].map(|()| Hook::new(&engine, HookPolicy::LastWins { empty: EMPTY }).expect("memory"));
    let array = ProgArray::<Raw, ()>::create(&engine, "slots", SLOTS as u32).expect("memory");
    let before = engine.code_stats();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if choices.one_in(2) {
            scope.spawn(|| {
                // Relaxed: a flag, with which no other access is ordered.
                while !done.load(Ordering::Relaxed) {
                    for hook in &hooks {
                        match hook.run(&mut (), &mut [1; 16]) {
                            Ok(_) | Err(RunError::Budget { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        // However the operator's part ends, the thread's does.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _done = Done(&done);
        Operator::new(&engine, &account, &hooks, &array, choices).work(choices);
    });
    for slot in 0..SLOTS {
        // The slot may be empty.
        let _ = array.clear(slot as u32);
    }
    drop((hooks, array));
    for _ in 0..3 {
        engine.domain().drain().expect("outside of runs");
        engine.reclaim();
    }
    // The thread of the tiers may hold a program for a moment.
    let since = std::time::Instant::now();
    while engine.code_stats().programs > 0 && since.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_micros(100));
        engine.reclaim();
    }
    let stats = engine.code_stats();
    assert_eq!((stats.programs, stats.bytes_used), (0, 0), "before: {before:?}");
    assert_eq!(account.used(), 0);
}

struct Operator<'e> {
    engine: &'e Engine,
    account: &'e Account,
    hooks: &'e [Hook<Raw, ()>; HOOKS],
    array: &'e ProgArray<Raw, ()>,
    linker: Linker<()>,
    dispatcher: Dispatcher<Raw, ()>,
    programs: Vec<Known>,
    model: Model,
    serial: u64,
    /// The last plan, and the model before it.
    applied: Option<(Applied<'e>, Model)>,
}

impl<'e> Operator<'e> {
    fn new(
        engine: &'e Engine,
        account: &'e Account,
        hooks: &'e [Hook<Raw, ()>; HOOKS],
        array: &'e ProgArray<Raw, ()>,
        choices: &mut Choices<'_>,
    ) -> Self {
        let (linker, dispatcher) = (Linker::new(engine), Dispatcher::new(engine).expect("memory"));
        let mut operator = Operator {
            engine,
            account,
            hooks,
            array,
            linker,
            dispatcher,
            programs: Vec::new(),
            model: Model::default(),
            serial: 0,
            applied: None,
        };
        operator.programs = (0..PROGRAMS).map(|_| operator.load(choices)).collect();
        operator
    }

    fn load(&mut self, choices: &mut Choices<'_>) -> Known {
        self.serial += 1;
        let value = self.serial + 10_000;
        let slot = choices.below(SLOTS as u32 + 1);
        let does = match choices.below(4) {
            0 => Does::Returns(value),
            1 => Does::Loops,
            2 => Does::Jumps(slot, value),
            _ => Does::Looks(value),
        };
        let text = match does {
            Does::Returns(value) => format!("r0 = {value}\nexit"),
            Does::Loops => format!("r0 = 0\nagain: r0 += 1\nif r0 < {ROUNDS} goto again\nexit"),
            Does::Jumps(slot, value) => format!("r2 = map[fd:0]\nr3 = {slot}\ncall 12\nr0 = {value}\nexit"),
            Does::Looks(value) => {
                format!("r3 = 9\nif r2 < 1 goto +1\nr3 = *(u8 *)(r1 + 0)\nr2 = map[fd:0]\ncall 12\nr0 = {value}\nexit")
            }
        };
        let budget = [None, Some(SMALL), Some(1 << 30)][choices.below(3) as usize];
        let levels = [OptLevel::None, OptLevel::Speed, OptLevel::Tiered];
        let loader = self.linker.loader().opt_level(choices.pick(&levels)).interruptible(choices.one_in(2));
        let loader = if choices.one_in(2) { loader.account(self.account) } else { loader };
        let loader = match budget {
            Some(budget) => loader.budget(budget),
            None => loader,
        };
        let insns = assemble(&text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
        let arrays = [self.array];
        let loader =
            if matches!(does, Does::Jumps(..) | Does::Looks(_)) { loader.prog_arrays(&arrays) } else { loader };
        // Versions share their counters.
        let program = loader.insns(["one", "two"][choices.below(2) as usize], insns).expect("a valid program loads");
        Known { program, serial: self.serial, does, budget }
    }

    fn work(&mut self, choices: &mut Choices<'_>) {
        for _ in 0..choices.below(STEPS) {
            self.step(choices);
            self.look(choices);
        }
        self.applied = None;
        // A hook keeps what is attached; all is dropped with it.
        self.programs.clear();
    }

    fn change(choices: &mut Choices<'_>) -> Change {
        let (at, other) = (choices.below(PROGRAMS as u32) as usize, choices.below(PROGRAMS as u32) as usize);
        let (hook, slot) = (choices.below(HOOKS as u32) as usize, choices.below(SLOTS as u32) as usize);
        match choices.below(6) {
            0 => Change::Attach(hook, at),
            1 => Change::Detach(hook, at),
            2 => Change::Replace(hook, at, other),
            3 | 4 => Change::Set(slot, at),
            _ => Change::Clear(slot),
        }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.below(12) {
            0 | 1 => {
                let at = choices.below(PROGRAMS as u32) as usize;
                self.programs[at] = self.load(choices);
                if choices.one_in(2) {
                    self.engine.reclaim();
                }
            }
            2..=5 => self.alone(Self::change(choices)),
            6..=8 => {
                let changes = (0..1 + choices.below(4)).map(|_| Self::change(choices)).collect();
                self.plan(changes);
            }
            9 => self.put_back(),
            10 => {
                let known = &self.programs[choices.below(PROGRAMS as u32) as usize];
                match choices.one_in(2) {
                    true => self.dispatcher.attach(&known.program).expect("room"),
                    // The program may not be attached.
                    false => drop(self.dispatcher.detach(&known.program)),
                }
            }
            _ => {
                // Long enough for a tick to see it.
                let known = &self.programs[choices.below(PROGRAMS as u32) as usize];
                for _ in 0..2000 {
                    let _ = known.program.run(&mut (), &mut [1; 16]);
                }
                let snapshot = self.engine.snapshot();
                assert!(format!("{snapshot:?}").len() > 2 && self.engine.usage().used >= self.account.used());
            }
        }
    }

    /// Applies a change outside of a plan. Rolling back a plan then leaves the changed places alone.
    fn alone(&mut self, change: Change) {
        let programs = &self.programs;
        let done = match change {
            Change::Attach(hook, at) => self.hooks[hook].attach(&programs[at].program).is_ok(),
            Change::Detach(hook, at) => self.hooks[hook].detach(&programs[at].program).is_ok(),
            Change::Replace(hook, old, new) => {
                self.hooks[hook].replace(&programs[old].program, &programs[new].program).is_ok()
            }
            Change::Set(slot, at) => self.array.set(slot as u32, &programs[at].program).is_ok(),
            Change::Clear(slot) => self.array.clear(slot as u32).is_ok(),
        };
        // By itself, unlike in a plan, an empty slot cannot be cleared.
        let empty = matches!(change, Change::Clear(slot) if self.model.slots[slot].is_none());
        assert_eq!(done, self.model.change(change, programs) && !empty, "{change:?}");
        self.applied = None;
    }

    fn plan(&mut self, changes: Vec<Change>) {
        let programs = &self.programs;
        let (mut plan, mut after, mut possible, mut named) = (Plan::new(), self.model.clone(), true, Vec::new());
        for &change in &changes {
            plan = match change {
                Change::Attach(hook, at) => plan.attach(&self.hooks[hook], &programs[at].program),
                Change::Detach(hook, at) => plan.detach(&self.hooks[hook], &programs[at].program),
                Change::Replace(hook, old, new) => {
                    plan.replace(&self.hooks[hook], &programs[old].program, &programs[new].program)
                }
                Change::Set(slot, at) => plan.set(self.array, slot as u32, &programs[at].program),
                Change::Clear(slot) => plan.clear(self.array, slot as u32),
            };
            if let Change::Set(slot, _) | Change::Clear(slot) = change {
                possible &= !named.contains(&slot);
                named.push(slot);
            }
            possible &= after.change(change, programs);
        }
        let result = plan.commit();
        assert_eq!(result.is_ok(), possible, "{changes:?}: {:?}", result.err());
        if let Ok(applied) = result {
            let before = std::mem::replace(&mut self.model, after);
            self.applied = Some((applied, before));
        }
    }

    fn put_back(&mut self) {
        if let Some((applied, before)) = self.applied.take() {
            applied.roll_back().expect("nobody has changed anything since");
            self.model = before;
        }
    }

    /// All runs end as the model's do.
    fn look(&self, choices: &mut Choices<'_>) {
        let slot = choices.below(SLOTS as u32 + 1) as usize;
        let mut data = [slot as u8; 4];
        let end = |result: Result<u64, RunError>| match result {
            Ok(value) => End::Returned(value),
            Err(RunError::Budget { .. }) => End::Budget,
            Err(error) => panic!("{error}"),
        };
        for known in &self.programs {
            let expected = self.model.run(known, slot);
            let (does, budget, mode) = (known.does, known.budget, self.engine.config().get_mode());
            assert_eq!(end(known.program.run(&mut (), &mut data)), expected, "{mode:?}: {does:?} {budget:?}");
            assert_eq!(
                end(self.dispatcher.call(&known.program, &mut (), &mut data)),
                expected,
                "{mode:?}: {does:?} {budget:?}"
            );
            let mut host = ();
            let mut runner = known.program.runner(&mut host).expect("a slot");
            assert_eq!(end(runner.run(&mut data)), expected, "{mode:?}: {does:?} {budget:?}");
        }
        for (i, hook) in self.hooks.iter().enumerate() {
            let (mode, model) = (self.engine.config().get_mode(), &self.model);
            let listed: Vec<_> = model.hooks[i].iter().map(|known| (known.does, known.budget)).collect();
            let slots = model.slots.each_ref().map(|slot| slot.as_ref().map(|known| (known.does, known.budget)));
            let expected = model.run_hook(i, slot);
            assert_eq!(end(hook.run(&mut (), &mut data)), expected, "{mode:?}: hook {listed:?}, slots {slots:?}");
        }
    }
}
