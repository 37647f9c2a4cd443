//! Budgets by program and by run, deadlines, and interruptions that find those whom they are for.

use crate::common::engines::engines;
use bpf_runtime::{
    Caller, Config, Deadline, Dispatcher, Engine, EngineError, Hook, HookPolicy, Interrupter, Linker, LoadError,
    ProgArray, Program, Raw, RunError, RunLimits, error::DeadlineError, isa::assemble,
};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// As many rounds as the context has bytes, then 7.
const ROUNDS: &str = "r0 = 0\nagain: if r0 == r2 goto out\nr0 += 1\ngoto again\nout: r0 = 7\nexit";
const FOREVER: &str = "r0 = 1\nagain: if r0 != 0 goto again\nexit";

/// Whether an error is the one that is expected.
type IsExpected = fn(&RunError) -> bool;

fn load(linker: &Linker<()>, text: &str, budget: Option<u64>) -> Program<Raw, ()> {
    let loader = linker.loader().hybrid(true);
    let loader = budget.into_iter().fold(loader, |loader, budget| loader.budget(budget));
    loader.insns("test", assemble(text).unwrap()).unwrap()
}

fn is_budget(result: &Result<u64, RunError>) -> bool {
    matches!(result, Err(RunError::Budget { insn: Some(_), origin: Some(_) }))
}

#[test]
fn each_program_has_its_own_budget() {
    for engine in engines(|config| config.budget(50)) {
        let linker = Linker::new(&engine);
        let (small, large, default) =
            (load(&linker, ROUNDS, Some(10)), load(&linker, ROUNDS, Some(100)), load(&linker, ROUNDS, None));
        let dispatcher = Dispatcher::new(&engine).unwrap();
        for (program, rounds) in [(&small, 10), (&large, 100), (&default, 50)] {
            dispatcher.attach(program).unwrap();
            assert_eq!(program.run(&mut (), &mut vec![0; rounds]).unwrap(), 7);
            assert!(is_budget(&program.run(&mut (), &mut vec![0; rounds + 1])));
            assert_eq!(dispatcher.call(program, &mut (), &mut vec![0; rounds]).unwrap(), 7);
            assert!(is_budget(&dispatcher.call(program, &mut (), &mut vec![0; rounds + 1])));
        }
        dispatcher.set_statistics(true).unwrap();
        assert!(is_budget(&dispatcher.call(&small, &mut (), &mut [0; 11])));
        assert_eq!(dispatcher.call(&large, &mut (), &mut [0; 100]).unwrap(), 7);
    }
}

/// The steps of one program of a hook do not reduce the budget of another, and the error names the program that
/// exceeded its budget.
#[test]
fn in_a_hook_each_program_has_its_budget_to_itself() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        for programs in 1..=3 {
            for policy in [HookPolicy::LastWins { empty: 0 }, HookPolicy::RunAll { result: 7 }] {
                let hook = Hook::<Raw, ()>::new(&engine, policy).unwrap();
                for at in 0..programs {
                    hook.attach(&load(&linker, ROUNDS, Some(30 + 10 * at))).unwrap();
                }
                for statistics in [false, true] {
                    hook.set_statistics(statistics).unwrap();
                    assert_eq!(hook.run(&mut (), &mut [0; 30]).unwrap(), 7);
                    assert!(is_budget(&hook.run(&mut (), &mut [0; 31])));
                    let limits = RunLimits::new().budget(20);
                    assert_eq!(hook.run_with(&mut (), &mut [0; 20], &limits).unwrap(), 7);
                    assert!(is_budget(&hook.run_with(&mut (), &mut [0; 21], &limits)));
                    assert!(is_budget(&hook.run_with(&mut (), &mut [0; 31], &RunLimits::new().budget(1000))));
                    assert_eq!(hook.run(&mut (), &mut [0; 30]).unwrap(), 7, "the limits were that run's");
                }
            }
        }
        // Budgets that are no 32-bit immediates.
        let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        for budget in [1 << 31, 1 << 40, u64::MAX, 30] {
            hook.attach(&load(&linker, ROUNDS, Some(budget))).unwrap();
        }
        assert_eq!(hook.run(&mut (), &mut [0; 30]).unwrap(), 7);
        assert!(is_budget(&hook.run(&mut (), &mut [0; 31])));
    }
}

#[test]
fn a_tail_call_goes_on_with_what_is_left() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let array = ProgArray::<Raw, ()>::create(&engine, "next", 1).unwrap();
        array.set(0, &load(&linker, ROUNDS, Some(1000))).unwrap();
        let jumps = |budget: u64| {
            let insns = assemble("r6 = r1\nr2 = map[fd:0]\nr3 = 0\nr1 = r6\ncall 12\nr0 = 1\nexit").unwrap();
            linker.loader::<Raw>().prog_arrays(&[&array]).budget(budget).insns("jumps", insns).unwrap()
        };
        // The call itself is one.
        assert_eq!(jumps(31).run(&mut (), &mut [0; 30]).unwrap(), 7);
        assert!(is_budget(&jumps(30).run(&mut (), &mut [0; 30])));
        let limits = RunLimits::new().budget(30);
        assert!(is_budget(&jumps(31).run_with(&mut (), &mut [0; 30], &limits)));
        array.clear(0).unwrap();
    }
}

/// A tail call in a hook gets the budget of the program that jumps, even if that program itself does not count. It gets
/// neither the rest of the budget of the hook's previous program, nor an unlimited one.
#[test]
fn in_a_hook_a_tail_call_goes_on_with_the_budget_of_its_own_program() {
    for engine in engines(|config| config.hybrid_budget(40)) {
        let linker = Linker::<()>::new(&engine);
        let array = ProgArray::<Raw, ()>::create(&engine, "next", 1).unwrap();
        array.set(0, &load(&linker, ROUNDS, Some(1000))).unwrap();
        let insns = assemble("r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 1\nexit").unwrap();
        let jumps = linker.loader::<Raw>().prog_arrays(&[&array]).insns("jumps", insns).unwrap();
        let spends = load(&linker, ROUNDS, Some(45));
        for before in [&[][..], &[&spends]] {
            for policy in [HookPolicy::LastWins { empty: 0 }, HookPolicy::RunAll { result: 7 }] {
                let hook = Hook::<Raw, ()>::new(&engine, policy).unwrap();
                before.iter().for_each(|program| hook.attach(program).unwrap());
                hook.attach(&jumps).unwrap();
                for run in [&|len| jumps.run(&mut (), &mut vec![0; len]), &|len| hook.run(&mut (), &mut vec![0; len])]
                    as [&dyn Fn(usize) -> Result<u64, RunError>; 2]
                {
                    assert_eq!(run(39).unwrap(), 7);
                    assert!(is_budget(&run(41)));
                }
            }
        }
        array.clear(0).unwrap();
    }
}

#[test]
fn limits_of_one_run_hold_for_that_run() {
    for engine in engines(|config| config.budget(100)) {
        let linker = Linker::<()>::new(&engine);
        let rounds = load(&linker, ROUNDS, None);
        for (budget, most) in [(1, 1), (30, 30), (100, 100), (1000, 100), (u64::MAX, 100)] {
            let limits = RunLimits::new().budget(budget);
            assert_eq!(rounds.run_with(&mut (), &mut vec![0; most], &limits).unwrap(), 7);
            assert!(is_budget(&rounds.run_with(&mut (), &mut vec![0; most + 1], &limits)));
            assert_eq!(rounds.run(&mut (), &mut [0; 100]).unwrap(), 7);
            let mut host = ();
            let mut runner = rounds.runner(&mut host).unwrap();
            runner.set_limits(&limits);
            for _ in 0..3 {
                assert_eq!(runner.run(&mut vec![0; most]).unwrap(), 7);
                assert!(is_budget(&runner.run(&mut vec![0; most + 1])));
            }
        }
    }
}

/// A hook changes between programs that can keep a limit and programs that cannot: a run under a limit keeps it, or is
/// refused.
#[test]
fn no_run_under_limits_is_without_them_while_a_hook_changes() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let plain = linker.loader::<Raw>().insns("plain", assemble("call 5\nr0 = 7\nexit").unwrap()).unwrap();
        let counted = load(&linker, ROUNDS, Some(100));
        let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        hook.attach(&counted).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..1000 {
                    hook.replace(&counted, &plain).unwrap();
                    hook.replace(&plain, &counted).unwrap();
                }
                over.store(true, Ordering::Relaxed);
            });
            let limits = RunLimits::new().budget(10);
            while !over.load(Ordering::Relaxed) {
                let result = hook.run_with(&mut (), &mut [0; 20], &limits);
                assert!(is_budget(&result) || matches!(result, Err(RunError::Unlimited { .. })), "{result:?}");
            }
        });
        assert!(is_budget(&hook.run_with(&mut (), &mut [0; 20], &RunLimits::new().budget(10))));
    }
}

#[test]
fn limits_that_cannot_be_are_refused() {
    let other = Engine::new(Config::new()).unwrap();
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let zero = linker.loader::<Raw>().budget(0).insns("zero", assemble("r0 = 0\nexit").unwrap());
        assert!(matches!(zero, Err(LoadError::NoBudget)), "{zero:?}");
        let plain = linker.loader::<Raw>().insns("plain", assemble("call 5\nr0 = 7\nexit").unwrap()).unwrap();
        let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        hook.attach(&plain).unwrap();
        let soon = Duration::from_secs(1000);
        let refused: [(RunLimits, IsExpected); 6] = [
            (RunLimits::new().budget(0), |e| matches!(e, RunError::NoBudget)),
            (RunLimits::new().budget(10), |e| matches!(e, RunError::Unlimited { .. })),
            (RunLimits::new().deadline(engine.deadline_in(soon).unwrap()), |e| matches!(e, RunError::Unlimited { .. })),
            (RunLimits::new().interrupter(&engine.interrupter()), |e| matches!(e, RunError::Unlimited { .. })),
            (RunLimits::new().deadline(other.deadline_in(soon).unwrap()), |e| matches!(e, RunError::OtherEngine)),
            (RunLimits::new().interrupter(&other.interrupter()), |e| matches!(e, RunError::OtherEngine)),
        ];
        for (limits, expected) in refused {
            let error = plain.run_with(&mut (), &mut [], &limits).unwrap_err();
            assert!(expected(&error), "{limits:?}: {error}");
            let error = hook.run_with(&mut (), &mut [], &limits).unwrap_err();
            assert!(expected(&error), "{limits:?}: {error}");
        }
        assert_eq!(plain.run_with(&mut (), &mut [], &RunLimits::new()).unwrap(), 7);
        let past = engine.deadline(Instant::now() - Duration::from_millis(3));
        assert!(matches!(past, Err(DeadlineError::Past { by }) if by >= Duration::from_millis(3)), "{past:?}");
    }
    for tick in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(3600)] {
        let config = Config::new().tick(tick);
        let refused = Engine::new(config);
        assert!(matches!(refused, Err(EngineError::Tick { .. })), "{refused:?}");
    }
    for set in [|config: Config| config.budget(0), |config: Config| config.hybrid_budget(0)] {
        let config = set(Config::new());
        let refused = Engine::new(config);
        assert!(matches!(refused, Err(EngineError::NoBudget)), "{refused:?}");
    }
}

#[test]
fn a_deadline_ends_what_is_going_on_and_begins_nothing() {
    for engine in engines(|config| config.interruptible(true)) {
        let linker = Linker::<()>::new(&engine);
        let forever = load(&linker, FOREVER, Some(u64::MAX));
        let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        hook.attach(&forever).unwrap();
        for _ in 0..3 {
            // On a busy machine that may be over before the run begins: then a later one is taken.
            let mut time = Duration::from_millis(3);
            let limits = loop {
                let at = Instant::now() + time;
                let deadline = match engine.deadline(at) {
                    Err(DeadlineError::Past { .. }) if time < Duration::from_secs(60) => {
                        time *= 2;
                        continue;
                    }
                    made => made.unwrap(),
                };
                let limits = RunLimits::new().deadline(deadline);
                let error = forever.run_with(&mut (), &mut [], &limits).unwrap_err();
                assert!(Instant::now() >= at, "not before its time");
                match error {
                    RunError::Deadline { insn: Some(_), origin: Some(_) } => break limits,
                    RunError::Deadline { insn: None, .. } if time < Duration::from_secs(60) => time *= 2,
                    error => panic!("{error}"),
                }
            };
            let error = forever.run_with(&mut (), &mut [], &limits).unwrap_err();
            assert!(matches!(error, RunError::Deadline { insn: None, .. }), "{error}");
            let error = hook.run_with(&mut (), &mut [], &limits).unwrap_err();
            assert!(matches!(error, RunError::Deadline { insn: None, .. }), "{error}");
            let limits = RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(1)).unwrap());
            let error = hook.run_with(&mut (), &mut [], &limits).unwrap_err();
            assert!(matches!(error, RunError::Deadline { .. }), "{error}");
        }
        // Far ahead is no limit, and a run that ends before its deadline ends well.
        let rounds = load(&linker, ROUNDS, Some(u64::MAX));
        for ahead in [Duration::from_secs(60), Duration::MAX] {
            let limits = RunLimits::new().deadline(engine.deadline_in(ahead).unwrap());
            assert_eq!(rounds.run_with(&mut (), &mut [0; 100], &limits).unwrap(), 7);
        }
    }
}

/// After the thread that looks at the clock has gone to sleep, and with an engine that is gone before its deadline.
#[test]
fn deadlines_come_after_a_pause_too() {
    for engine in engines(|config| config.interruptible(true).tick(Duration::from_millis(20))) {
        let forever = load(&Linker::new(&engine), FOREVER, Some(u64::MAX));
        for pause in [0, 1300, 0] {
            std::thread::sleep(Duration::from_millis(pause));
            let limits = RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(1)).unwrap());
            let error = forever.run_with(&mut (), &mut [], &limits).unwrap_err();
            assert!(matches!(error, RunError::Deadline { .. }), "{error}");
        }
        let _: Deadline = engine.deadline_in(Duration::from_secs(60)).unwrap();
    }
}

thread_local! {
    static CALLED: Cell<Option<Arc<AtomicBool>>> = const { Cell::new(None) };
}

/// Returns the flag that this thread's next call of an [`Outer`] sets.
fn called_host() -> Arc<AtomicBool> {
    let called = Arc::new(AtomicBool::new(false));
    CALLED.set(Some(Arc::clone(&called)));
    called
}

/// A host with a program to run inside.
struct Outer(Option<Program<Raw, Outer>>, Option<RunLimits>);

fn nested(engine: &Engine) -> (Program<Raw, Outer>, Program<Raw, Outer>) {
    let mut linker = Linker::<Outer>::new(engine);
    let inside = |c: &mut Caller<'_, Outer>| -> u64 {
        if let Some(called) = CALLED.take() {
            called.store(true, Ordering::Relaxed);
        }
        let host = c.host();
        let inner = host.0.clone().expect("the test set it");
        let result = match host.1.clone() {
            Some(limits) => inner.run_with(host, &mut [], &limits),
            None => inner.run(host, &mut []),
        };
        match result {
            Err(RunError::Deadline { .. }) => 1,
            Err(RunError::Interrupted { .. }) => 2,
            other => panic!("{other:?}"),
        }
    };
    linker.func(1001, "inside", inside).unwrap();
    let load = |text| linker.loader().hybrid(true).budget(u64::MAX).insns("test", assemble(text).unwrap()).unwrap();
    // The outer program continues if only the inner run was ended, which shows whether the interruption reached the
    // outer run.
    (load("call 1001\nexit"), load(FOREVER))
}

#[test]
fn a_run_inside_another_has_its_deadline() {
    for engine in engines(|config| config.interruptible(true)) {
        let (outer, inner) = nested(&engine);
        let within = |time| RunLimits::new().deadline(engine.deadline_in(time).unwrap());
        let soon = || within(Duration::from_millis(2));
        let late = within(Duration::from_secs(1000));
        for inside in [None, Some(late.clone())] {
            // On a busy machine the deadline may come before the outer run's call: then a later one is taken.
            let mut time = Duration::from_millis(2);
            let result = loop {
                let called = called_host();
                let mut host = Outer(Some(inner.clone()), inside.clone());
                let result = outer.run_with(&mut host, &mut [], &within(time));
                if called.load(Ordering::Relaxed) || time > Duration::from_secs(60) {
                    break result;
                }
                time *= 2;
            };
            assert_eq!(result.unwrap(), 1);
        }
        // The other way round, and the outer run goes on.
        assert_eq!(outer.run_with(&mut Outer(Some(inner.clone()), Some(soon())), &mut [], &late).unwrap(), 1);
        assert_eq!(outer.run(&mut Outer(Some(inner), Some(soon())), &mut []).unwrap(), 1);
    }
}

/// Interrupts, from the time at which the outer run has called its host, until `run` has ended. `ends` may find nothing
/// to end at first. Not before: an outer run stops at its call, too.
fn ended(ends: impl Fn() + Sync, run: impl FnOnce() -> Result<u64, RunError>) -> Result<u64, RunError> {
    let over = AtomicBool::new(false);
    let called = called_host();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !called.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            while !over.load(Ordering::Relaxed) {
                ends();
                std::thread::yield_now();
            }
        });
        let result = run();
        over.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn what_is_inside_an_interrupted_run_is_interrupted() {
    for engine in engines(|config| config.interruptible(true)) {
        let (outer, inner) = nested(&engine);
        let interrupter = engine.interrupter();
        let under = RunLimits::new().interrupter(&interrupter);
        let host = || Outer(Some(inner.clone()), None);
        assert_eq!(ended(|| outer.interrupt(), || outer.run(&mut host(), &mut [])).unwrap(), 2);
        assert_eq!(ended(|| inner.interrupt(), || outer.run(&mut host(), &mut [])).unwrap(), 2);
        assert_eq!(ended(|| interrupter.interrupt(), || outer.run_with(&mut host(), &mut [], &under)).unwrap(), 2);
        let mut inside = Outer(Some(inner.clone()), Some(under.clone()));
        assert_eq!(ended(|| interrupter.interrupt(), || outer.run(&mut inside, &mut [])).unwrap(), 2);
    }
}

/// Runs of other programs, hooks and interrupters in the same slots are left alone, however close they follow.
#[test]
fn an_interruption_ends_those_whom_it_is_for() {
    for engine in engines(|config| config.interruptible(true)) {
        let linker = Linker::<()>::new(&engine);
        let (meant, other) = (load(&linker, FOREVER, Some(20)), load(&linker, ROUNDS, Some(1000)));
        let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        hook.attach(&other).unwrap();
        let another = Hook::<Raw, ()>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        another.attach(&meant).unwrap();
        let (one, two) = (engine.interrupter(), engine.interrupter());
        let stops = AtomicU64::new(0);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    meant.interrupt();
                    another.interrupt();
                    one.interrupt();
                    // One tick ahead: most runs are over by then, and theirs must end no other.
                    let deadline = engine.deadline_in(Duration::from_micros(10)).unwrap();
                    let _ = other.run_with(&mut (), &mut [0; 9], &RunLimits::new().deadline(deadline));
                }
            });
            let limited = |interrupter: &Interrupter| RunLimits::new().interrupter(interrupter);
            let check = |result: Result<u64, RunError>| match result {
                Err(RunError::Interrupted { .. }) => {
                    stops.fetch_add(1, Ordering::Relaxed);
                }
                Err(RunError::Budget { .. }) | Ok(7) => {}
                other => panic!("{other:?}"),
            };
            for _ in 0..20_000 {
                check(meant.run(&mut (), &mut []));
                assert_eq!(other.run(&mut (), &mut [0; 40]).unwrap(), 7);
                check(another.run(&mut (), &mut []));
                assert_eq!(hook.run(&mut (), &mut [0; 40]).unwrap(), 7);
                check(other.run_with(&mut (), &mut [0; 10], &limited(&one)));
                assert_eq!(other.run_with(&mut (), &mut [0; 40], &limited(&two)).unwrap(), 7);
                let deadline = engine.deadline_in(Duration::from_micros(500)).unwrap();
                match other.run_with(&mut (), &mut [0; 10], &RunLimits::new().deadline(deadline)) {
                    Ok(7) | Err(RunError::Deadline { .. }) => {}
                    result => panic!("{result:?}"),
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

/// A deadline belongs to its engine for good: an engine that is made later, perhaps in the same memory, does not accept
/// it.
#[test]
fn deadlines_of_engines_that_are_gone() {
    let mut gone = Vec::new();
    for _ in 0..24 {
        let engine = Engine::new(Config::new()).unwrap();
        let linker = Linker::<()>::new(&engine);
        let insns = assemble("r0 = 7\nexit").unwrap();
        let program = linker.loader::<Raw>().interruptible(true).insns("seven", insns).unwrap();
        for deadline in &gone {
            let error = program.run_with(&mut (), &mut [], &RunLimits::new().deadline(*deadline));
            assert!(matches!(error, Err(RunError::OtherEngine)), "{error:?}");
        }
        let deadline = engine.deadline_in(Duration::from_secs(60)).unwrap();
        program.run_with(&mut (), &mut [], &RunLimits::new().deadline(deadline)).unwrap();
        gone.push(deadline);
        drop((program, linker, engine));
        // Its thread gives up the clock.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A function of a limited program that makes a tail call returns to that program, which is under its own limits again.
#[test]
fn limits_hold_again_after_a_tail_call_of_a_function() {
    use bpf_runtime::observe::RecorderOptions;
    let held = |rest: &str| format!("call f\n{rest}\nf: r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 1\nexit");
    let counts = held("r6 = 0\nagain: r6 += 1\nif r6 < 100000 goto again\nr0 = 3\nexit");
    let forever = held("again: r6 = 1\ngoto again");
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let array = ProgArray::<Raw, ()>::create(&engine, "next", 1).unwrap();
        let plain = |text: &str| {
            linker.loader::<Raw>().recordable(true).prog_arrays(&[&array]).insns("plain", assemble(text).unwrap())
        };
        array.set(0, &plain("r0 = 7\nexit").unwrap()).unwrap();
        let loader = || linker.loader::<Raw>().hybrid(true).recordable(true).prog_arrays(&[&array]);
        let budget: Program<Raw, ()> = loader().budget(1000).insns("held", assemble(&counts).unwrap()).unwrap();
        assert!(is_budget(&budget.run(&mut (), &mut [])));
        assert!(is_budget(&budget.run_observed(&mut (), &mut [], &mut ())));
        if let Ok(mut recorder) = budget.recorder(RecorderOptions::new()) {
            assert!(is_budget(&recorder.run(&mut (), &mut [])));
        }
        let held = loader().budget(u64::MAX).interruptible(true).insns("held", assemble(&forever).unwrap()).unwrap();
        let limits = RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(20)).unwrap());
        assert!(matches!(held.run_with(&mut (), &mut [], &limits), Err(RunError::Deadline { .. })));
        // The other way round: a program without a budget is under none when the limited one has returned.
        let limited = loader().budget(10).insns("limited", assemble("r0 = 7\nexit").unwrap()).unwrap();
        array.set(0, &limited).unwrap();
        assert_eq!(plain(&counts).unwrap().run(&mut (), &mut []).unwrap(), 3);
        array.clear(0).unwrap();
    }
}
