//! Plans: changes of several hooks and prog arrays, all or none, under load too; and what a new version takes over.

use crate::common::engines::engines;
use bpf_runtime::{
    BpfContext, Caller, Config, ContextBytes, Engine, HelperError, Hook, HookPolicy, Instance, Linker, LoadError,
    MapSet, Object, Plan, ProgArray, Program, Raw, SharedBytes,
    error::ProgArrayError,
    hook::{HookError, PlanError},
    isa::assemble,
    maps::{Map, MapDef, MapType},
    net::{Xdp, XdpBuff},
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const LAST: HookPolicy = HookPolicy::LastWins { empty: 0 };

fn load(linker: &Linker<()>, text: &str) -> Program<Raw, ()> {
    linker.loader().insns("test", assemble(text).unwrap()).unwrap()
}

fn returns(linker: &Linker<()>, value: u64) -> Program<Raw, ()> {
    load(linker, &format!("r0 = {value}\nexit"))
}

fn hook(engine: &Engine) -> Hook<Raw, ()> {
    Hook::new(engine, LAST).unwrap()
}

#[test]
fn all_of_a_plan_is_done_and_can_be_put_back() {
    for engine in engines(|config| config) {
        let linker = Linker::new(&engine);
        let (one, two, three) = (returns(&linker, 1), returns(&linker, 2), returns(&linker, 3));
        let (a, b) = (hook(&engine), hook(&engine));
        let array = ProgArray::<Raw, ()>::create(&engine, "array", 4).unwrap();
        a.attach(&one).unwrap();
        array.set(1, &one).unwrap();
        let results = || (a.run(&mut (), &mut []).unwrap(), b.run(&mut (), &mut []).unwrap());
        let slots = || array.iter().map(|(index, program)| (index, program.run(&mut (), &mut []).unwrap())).collect();
        let plan = || Plan::new().replace(&a, &one, &two).attach(&b, &three).attach(&a, &three).detach(&a, &two);
        let plan = || plan().set(&array, 0, &three).clear(&array, 1).clear(&array, 2);
        for _ in 0..3 {
            let before: Vec<(u32, u64)> = slots();
            assert_eq!((results(), before), ((1, 0), vec![(1, 1)]));
            let done = plan().commit().unwrap();
            let after: Vec<(u32, u64)> = slots();
            assert_eq!((results(), after), ((3, 3), vec![(0, 3)]));
            done.roll_back().unwrap();
        }
        // A rollback is refused if another thread has changed the hook since.
        let done = plan().commit().unwrap();
        a.attach(&one).unwrap();
        let refused = done.roll_back().expect_err("a change");
        assert_eq!(refused.to_string(), "somebody else has changed hook 0 of the plan");
        assert_eq!(results(), (1, 3));
        a.detach(&one).unwrap();
        let done = Plan::new().set(&array, 3, &one).commit().unwrap();
        array.set(3, &two).unwrap();
        let refused = done.roll_back().expect_err("a change");
        assert_eq!(refused.to_string(), "somebody else has changed slot 3 of prog array `array`");
        assert!(Plan::new().commit().is_ok());
    }
}

/// Whatever was changed after a plan and put back since is no change; nor is whether programs are counted.
#[test]
fn plans_are_put_back_one_after_the_other() {
    for engine in engines(|config| config) {
        let linker = Linker::new(&engine);
        let (one, two, three) = (returns(&linker, 1), returns(&linker, 2), returns(&linker, 3));
        let hook = hook(&engine);
        hook.attach(&one).unwrap();
        let first = Plan::new().replace(&hook, &one, &two).commit().unwrap();
        let second = Plan::new().replace(&hook, &two, &three).commit().unwrap();
        // Out of turn it is a change.
        let refused = Plan::new().attach(&hook, &two).commit().unwrap();
        assert!(matches!(second.roll_back(), Err(PlanError::Changed { .. })));
        refused.roll_back().unwrap();
        let again = Plan::new().replace(&hook, &three, &two).commit().unwrap();
        again.roll_back().unwrap();
        assert_eq!(hook.run(&mut (), &mut []).unwrap(), 3);
        hook.replace(&three, &two).unwrap();
        // The hook has the same programs, but by another change.
        assert!(matches!(first.roll_back(), Err(PlanError::Changed { .. })));

        let first = Plan::new().replace(&hook, &two, &three).commit().unwrap();
        let second = Plan::new().detach(&hook, &three).commit().unwrap();
        hook.set_statistics(true).unwrap();
        second.roll_back().unwrap();
        first.roll_back().unwrap();
        assert_eq!(hook.run(&mut (), &mut []).unwrap(), 2);
        assert_eq!(hook.statistics()[0].runs, 1, "still counted");
    }
}

/// A task may wait between a plan and going back, and go on in another thread.
#[test]
fn plans_may_go_to_other_threads() {
    let engine = Engine::new(Config::new()).unwrap();
    let one = returns(&Linker::new(&engine), 1);
    let hook = hook(&engine);
    let plan = Plan::new().attach(&hook, &one);
    let result = std::thread::scope(|scope| {
        let done = scope.spawn(|| plan.commit().unwrap()).join().unwrap();
        assert_eq!(hook.run(&mut (), &mut []).unwrap(), 1);
        scope.spawn(|| done.roll_back()).join().unwrap()
    });
    result.unwrap();
    assert!(hook.programs().is_empty());
}

#[test]
fn a_plan_that_is_refused_changes_nothing() {
    let other = Engine::new(Config::new()).unwrap();
    let foreign = returns(&Linker::new(&other), 9);
    for engine in engines(|config| config) {
        let linker = Linker::new(&engine);
        let (one, two) = (returns(&linker, 1), returns(&linker, 2));
        let (a, b, of_other) = (hook(&engine), hook(&engine), hook(&other));
        let array = ProgArray::<Raw, ()>::create(&engine, "array", 2).unwrap();
        a.attach(&one).unwrap();
        array.set(0, &one).unwrap();
        let plan = || Plan::new().replace(&a, &one, &two).attach(&b, &two).set(&array, 0, &two).set(&array, 1, &two);
        let refused = |plan: Plan<'_>, expected: &dyn Fn(&PlanError) -> bool| {
            let error = plan.commit().expect_err("refused");
            assert!(expected(&error), "{error}");
            assert_eq!(a.run(&mut (), &mut []).unwrap(), 1, "{error}");
            assert_eq!(b.run(&mut (), &mut []).unwrap(), 0, "{error}");
            assert_eq!(array.get(0).unwrap().run(&mut (), &mut []).unwrap(), 1, "{error}");
            assert!(array.get(1).is_none(), "{error}");
        };
        refused(plan().attach(&b, &two), &|e| {
            matches!(e, PlanError::Hook { hook: 1, source: HookError::Attached { .. } })
        });
        refused(plan().replace(&a, &one, &two), &|e| {
            matches!(e, PlanError::Hook { hook: 0, source: HookError::NotAttached { .. } })
        });
        refused(plan().attach(&b, &foreign), &|e| {
            matches!(e, PlanError::Hook { hook: 1, source: HookError::OtherDomain(_) })
        });
        refused(plan().attach(&of_other, &foreign), &|e| matches!(e, PlanError::OtherEngine));
        refused(plan().set(&array, 1, &one), &|e| matches!(e, PlanError::Twice { index: 1, .. }));
        refused(plan().set(&array, 2, &one), &|e| {
            matches!(e, PlanError::ProgArray { source: ProgArrayError::OutOfRange { .. }, .. })
        });
        // The first array's slots could be set, the second's not.
        let second = ProgArray::<Raw, ()>::create(&engine, "second", 1).unwrap();
        refused(plan().set(&second, 7, &one), &|e| matches!(e, PlanError::ProgArray { .. }));
    }
}

/// No run sees the slots of a refused plan, and the plan does not fix the kind of programs that the array accepts.
#[test]
fn slots_of_a_plan_that_is_refused_are_never_seen() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let array = |name| ProgArray::<Raw, ()>::create(&engine, name, 1).unwrap();
        let (first, second, unbound) = (array("first"), array("second"), array("unbound"));
        let one = returns(&linker, 1);
        let insns = assemble("r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit").unwrap();
        let jumps = linker.loader::<Raw>().prog_arrays(&[&first]).insns("jumps", insns).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(jumps.run(&mut (), &mut []).unwrap(), 0, "a slot of a plan that was refused");
                }
            });
            for _ in 0..2000 {
                let refused = Plan::new().set(&first, 0, &one).set(&unbound, 0, &one).set(&second, 7, &one).commit();
                assert!(matches!(refused, Err(PlanError::ProgArray { .. })), "{refused:?}");
            }
            over.store(true, Ordering::Relaxed);
        });
        let interpreted =
            linker.loader().interpreted(true).insns("interpreted", assemble("r0 = 3\nexit").unwrap()).unwrap();
        unbound.set(0, &interpreted).unwrap();
    }
}

/// The three programs of one version: the first notes it in the packet, the second jumps through an array, to the
/// third, which looks at the note.
fn version(linker: &Linker<()>, engine: &Engine, number: u64) -> ([Program<Raw, ()>; 3], ProgArray<Raw, ()>) {
    let notes = load(linker, &format!("r0 = 0\nif r2 < 1 goto +1\n*(u8 *)(r1 + 0) = {number}\nexit"));
    let looks = load(
        linker,
        &format!(
            "r0 = 0\nif r2 < 1 goto +4\nr3 = *(u8 *)(r1 + 0)\nif r3 == {number} goto +1\ngoto +1\nr0 = {number}\nexit"
        ),
    );
    let array = ProgArray::create(engine, "next", 1).unwrap();
    let insns = assemble("r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit").unwrap();
    let jumps = linker.loader().prog_arrays(&[&array]).insns("jumps", insns).unwrap();
    ([notes, jumps, looks], array)
}

#[test]
fn no_run_sees_half_of_a_plan() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        // `late` is named first, so a thread that has seen a version in `early` sees it in `late`.
        let (early, late) = (hook(&engine), hook(&engine));
        let (mut old, array) = version(&linker, &engine, 1);
        array.set(0, &old[2]).unwrap();
        for hook in [&early, &late] {
            hook.attach(&old[0]).unwrap();
            hook.attach(&old[1]).unwrap();
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut before = 0;
                    while !over.load(Ordering::Relaxed) {
                        let seen = early.run(&mut (), &mut [0]).unwrap();
                        assert!(seen != 0, "half of a version");
                        assert!(seen >= before, "back from {before} to {seen}");
                        before = seen;
                        let last = late.run(&mut (), &mut [0]).unwrap();
                        assert!(last >= seen, "a version in one hook and not in the one before it: {seen}, {last}");
                    }
                });
            }
            for number in 2..200 {
                let (new, array) = version(&linker, &engine, number);
                let mut plan = Plan::new().set(&array, 0, &new[2]);
                for hook in [&late, &early] {
                    plan = plan.replace(hook, &old[0], &new[0]).replace(hook, &old[1], &new[1]);
                }
                // Every other one is refused first, at its last step.
                if number % 2 == 0 {
                    let half = Plan::new().replace(&late, &old[0], &new[0]).replace(&early, &new[1], &new[0]);
                    assert!(half.commit().is_err());
                }
                drop(plan.commit().unwrap());
                old = new;
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

/// A version whose array the plan fills itself: its runs find it filled to their end, though it is rolled back.
#[test]
fn no_run_sees_half_of_a_plan_that_goes_back() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let (early, late) = (hook(&engine), hook(&engine));
        let (old, array) = version(&linker, &engine, 1);
        array.set(0, &old[2]).unwrap();
        for hook in [&early, &late] {
            hook.attach(&old[0]).unwrap();
            hook.attach(&old[1]).unwrap();
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        assert!(early.run(&mut (), &mut [0]).unwrap() != 0, "half of a version");
                        assert!(late.run(&mut (), &mut [0]).unwrap() != 0, "half of a version");
                    }
                });
            }
            for number in 2..200 {
                let (new, array) = version(&linker, &engine, number);
                let mut plan = Plan::new().set(&array, 0, &new[2]);
                for hook in [&late, &early] {
                    plan = plan.replace(hook, &old[0], &new[0]).replace(hook, &old[1], &new[1]);
                }
                let done = plan.commit().unwrap();
                assert!(early.run(&mut (), &mut [0]).unwrap() == number);
                done.roll_back().unwrap();
                assert!(early.run(&mut (), &mut [0]).unwrap() == 1);
                assert!(array.get(0).is_none());
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

/// Going back waits for runs, and so not inside one; nothing changes then.
#[test]
fn going_back_inside_a_run_is_refused() {
    for engine in engines(|config| config) {
        let mut linker = Linker::<Option<Box<dyn FnOnce()>>>::new(&engine);
        linker
            .func(1001, "call", |c: &mut Caller<'_, Option<Box<dyn FnOnce()>>>| c.host().take().map_or((), |f| f()))
            .unwrap();
        let load = |text: &str| linker.loader::<Raw>().insns("p", assemble(text).unwrap()).unwrap();
        let (one, two, calls) = (load("r0 = 1\nexit"), load("r0 = 2\nexit"), load("call 1001\nr0 = 0\nexit"));
        let hook: &'static Hook<Raw, _> =
            Box::leak(Box::new(Hook::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap()));
        hook.attach(&one).unwrap();
        let array = ProgArray::create(&engine, "array", 1).unwrap();
        let done = Plan::new().replace(hook, &one, &two).set(&array, 0, &two).commit().unwrap();
        let result = std::rc::Rc::new(std::cell::Cell::new(None));
        let seen = std::rc::Rc::clone(&result);
        let mut host: Option<Box<dyn FnOnce()>> = Some(Box::new(move || seen.set(Some(done.roll_back()))));
        calls.run(&mut host, &mut []).unwrap();
        let refused = result.take().expect("it was called");
        assert!(matches!(refused, Err(PlanError::Wait(_))), "{refused:?}");
        assert_eq!(hook.run(&mut None, &mut []).unwrap(), 2);
        assert!(array.get(0).is_some());
    }
}

fn stopped(engine: &Engine, maps: impl FnOnce(MapSet) -> MapSet) -> Instance<()> {
    let object = Object::parse(include_bytes!("../objects/stopped.o")).unwrap();
    let maps = maps(MapSet::for_object(engine, &object).unwrap());
    Linker::<()>::new(engine).loader::<Xdp>().hybrid(true).object(&object, maps).unwrap()
}

#[test]
fn prog_arrays_outlast_a_reload() {
    for engine in engines(|config| config.budget(1000)) {
        let linker = Linker::<()>::new(&engine);
        let mine = linker.loader::<Xdp>().insns("mine", assemble("r0 = 77\nexit").unwrap()).unwrap();
        let old = stopped(&engine, |maps| maps);
        let outer = old.prog_array::<Xdp>("outer").unwrap();
        outer.set(6, &mine).unwrap();
        let jump = |instance: &Instance<()>| {
            instance.program::<Xdp>("first").unwrap().run(&mut (), &mut XdpBuff::new(&mut [6])).unwrap()
        };
        assert_eq!(jump(&old), 77);
        assert_eq!(jump(&stopped(&engine, |maps| maps)), 100, "a new array is empty there");
        let copied = stopped(&engine, |maps| maps.copy_array("outer", &outer).unwrap());
        assert_eq!(jump(&copied), 77);
        let new = copied.prog_array::<Xdp>("outer").unwrap();
        new.clear(6).unwrap();
        assert_eq!((jump(&copied), jump(&old)), (100, 77), "a copy is another array");
        // The object's initial programs are set after the copy.
        new.clear(0).unwrap();
        let shared = stopped(&engine, |maps| maps.reuse_array("outer", &new).unwrap());
        new.set(6, &mine).unwrap();
        assert_eq!((jump(&shared), jump(&copied)), (77, 77));
        assert!(shared.prog_array::<Xdp>("outer").unwrap().get(0).is_none(), "its slots are as they were");
        // Prog arrays of another size, under an unknown name, or of another engine are refused.
        let object = Object::parse(include_bytes!("../objects/stopped.o")).unwrap();
        let set = || MapSet::for_object(&engine, &object).unwrap();
        let inner = old.prog_array::<Xdp>("inner").unwrap();
        let error = set().reuse_array("outer", &inner).unwrap_err();
        let source = ProgArrayError::Size { declared: 8, given: 4 };
        assert!(matches!(&error, LoadError::ProgArray { source: s, .. } if *s == source), "{error}");
        assert!(matches!(set().copy_array("none", &inner), Err(LoadError::NotFound { .. })));
        let other = Engine::new(Config::new()).unwrap();
        let foreign = ProgArray::<Xdp, ()>::create(&other, "outer", 8).unwrap();
        assert!(matches!(set().reuse_array("outer", &foreign), Err(LoadError::OtherDomain(_))));
        assert!(matches!(set().copy_array("outer", &foreign), Err(LoadError::OtherDomain(_))));
    }
}

/// A run goes on with the host that it began with, whatever program it jumps to.
#[test]
fn prog_arrays_are_of_one_host_type() {
    for engine in engines(|config| config.budget(1000)) {
        let theirs = Linker::<String>::new(&engine);
        let array = ProgArray::<Xdp, String>::create(&engine, "outer", 8).unwrap();
        array.set(6, &theirs.loader::<Xdp>().insns("theirs", assemble("r0 = 77\nexit").unwrap()).unwrap()).unwrap();
        let object = Object::parse(include_bytes!("../objects/stopped.o")).unwrap();
        let linker = Linker::<()>::new(&engine);
        let set = || MapSet::for_object(&engine, &object).unwrap();
        for maps in [set().reuse_array("outer", &array), set().copy_array("outer", &array)] {
            let error = linker.loader::<Xdp>().hybrid(true).object(&object, maps.unwrap()).unwrap_err();
            let LoadError::ProgArray { source, .. } = &error else { panic!("{error}") };
            assert!(matches!(source, ProgArrayError::Host { .. }), "{error}");
        }
        assert!(array.get(6).is_some());
    }
}

/// A refused plan restores only the slots that it has set itself: programs that another thread has put there meanwhile
/// stay.
#[test]
fn a_refused_plan_takes_nothing_of_others_back() {
    for engine in engines(|config| config) {
        let linker = Linker::new(&engine);
        let (of_plan, of_others) = (returns(&linker, 0), [1, 2].map(|value| returns(&linker, value)));
        let [array, full] = ["array", "full"].map(|name| ProgArray::<Raw, ()>::create(&engine, name, 1).unwrap());
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                for round in 1..=2000 {
                    array.set(0, &of_others[round % 2]).unwrap();
                    let held = array.get(0).unwrap().run(&mut (), &mut []).unwrap();
                    assert!([0, 1 + round as u64 % 2].contains(&held), "{held} in round {round}");
                }
            });
            while !others.is_finished() {
                let plan = Plan::new().set(&array, 0, &of_plan).set(&full, 1, &of_plan);
                let refused = plan.commit().unwrap_err();
                assert!(matches!(refused, PlanError::ProgArray { .. }), "{refused}");
            }
        });
        assert_eq!(array.get(0).unwrap().run(&mut (), &mut []).unwrap(), 1);
    }
}

/// A program in the array through which it jumps is a cycle of handles, and nobody has a way left to the array.
#[test]
fn a_plan_leaves_nothing_in_an_array_that_nobody_has() {
    for engine in engines(|config| config) {
        let alive = Arc::new(());
        let mut linker = Linker::<()>::new(&engine);
        let held = Arc::clone(&alive);
        linker.func(1001, "held", move |_: &mut Caller<'_, ()>| Arc::strong_count(&held) as u64).unwrap();
        let array = ProgArray::<Raw, ()>::create(&engine, "array", 1).unwrap();
        let insns = assemble("r2 = map[fd:0]\nr3 = 0\ncall 12\ncall 1001\nexit").unwrap();
        let program = linker.loader().prog_arrays(&[&array]).insns("jumps", insns).unwrap();
        let plan = Plan::new().set(&array, 0, &program);
        drop((array, program, linker));
        drop(plan.commit().unwrap());
        engine.reclaim();
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}

/// The context of `examples/limit.c`.
#[derive(BpfContext)]
#[bpf(name = "request")]
#[repr(C)]
struct Request<'r> {
    client: u32,
    #[bpf(writable)]
    cost: u32,
    path: ContextBytes<'r>,
}

#[test]
fn a_map_whose_schema_has_changed_is_refused_or_migrated() {
    let engine = Engine::new(Config::new()).unwrap();
    let object = Object::parse(include_bytes!("../../../../examples/limit.o")).unwrap();
    let set = || MapSet::for_object(&engine, &object).unwrap();
    // Counts were 32 bits wide once.
    let old = Map::create(MapDef::new("seen", MapType::Hash, 4, 4, 100), engine.domain()).unwrap();
    for client in 0..10u32 {
        old.update(&client.to_ne_bytes(), &(client * 3).to_ne_bytes(), 0).unwrap();
    }
    let error = set().reuse("seen", &old).unwrap_err();
    assert!(matches!(error, LoadError::Map { .. }), "{error}");
    assert!(matches!(set().migrate("none", &old, |_, _| None), Err(LoadError::NotFound { .. })));
    let grow = |key: &[u8], value: &[u8]| (key != [3, 0, 0, 0]).then(|| (key.to_vec(), [value, &[0; 4]].concat()));
    let grown = set().migrate("seen", &old, grow);
    let mut linker = Linker::<()>::new(&engine);
    let say = |_: &mut Caller<'_, ()>, _: SharedBytes<'_>| -> Result<(), HelperError> { Ok(()) };
    linker.func(1001, "say", say).unwrap();
    let instance = linker.load::<Request<'_>>(&object, grown.unwrap()).unwrap();
    let seen = instance.map("seen").unwrap();
    let count = |client: u32| Some(u64::from_ne_bytes(seen.get(&client.to_ne_bytes()).unwrap()?.try_into().unwrap()));
    assert_eq!((count(9), count(3), count(0)), (Some(27), None, Some(0)));
    // An element that the new map refuses is an error of the load.
    let wrong = set().migrate("seen", &old, |key, value| Some((key.to_vec(), value.to_vec()))).unwrap();
    let error = linker.load::<Request<'_>>(&object, wrong).unwrap_err();
    assert!(matches!(error, LoadError::Map { .. }), "{error}");
    // The last setting of a map counts.
    let last = set().reuse("seen", &seen).unwrap().migrate("seen", &old, |_, _| None).unwrap();
    let migrated = linker.load::<Request<'_>>(&object, last).unwrap().map("seen").unwrap();
    assert_eq!((migrated.len(), migrated.id() == seen.id()), (0, false));
    let last = set().migrate("seen", &old, |_, _| panic!("not to be migrated")).unwrap().reuse("seen", &seen).unwrap();
    assert_eq!(linker.load::<Request<'_>>(&object, last).unwrap().map("seen").unwrap().id(), seen.id());
}

/// A rollback puts the hooks back, waits for a run of the new version, and puts the slots back. Until then no plan
/// takes the slots' programs for the state to restore.
#[test]
fn a_plan_that_meets_a_rollback_is_refused() {
    for engine in engines(|config| config) {
        let linker = Linker::new(&engine);
        let (one, two, three) = (returns(&linker, 1), returns(&linker, 2), returns(&linker, 3));
        let hook = hook(&engine);
        let array = ProgArray::<Raw, ()>::create(&engine, "array", 4).unwrap();
        hook.attach(&one).unwrap();
        array.update([(1, Some(&one)), (2, Some(&one))]).unwrap();
        let held = |index: u32| array.get(index).map(|program| program.run(&mut (), &mut []).unwrap());
        let done = Plan::new().replace(&hook, &one, &two).set(&array, 1, &two).set(&array, 2, &two).commit().unwrap();
        let elsewhere = Plan::new().set(&array, 3, &two).commit().unwrap();
        std::thread::scope(|scope| {
            let mut host = ();
            let runner = two.runner(&mut host).unwrap();
            let back = scope.spawn(|| done.roll_back());
            while hook.run(&mut (), &mut []).unwrap() == 2 {
                std::thread::yield_now();
            }
            // This thread is in a run that the rollback waits for, so waiting here would be for ever.
            let refused = Plan::new().set(&array, 1, &three).commit().expect_err("it holds what is not put back yet");
            assert!(matches!(&refused, PlanError::RollingBack { array, index: 1 } if array == "array"), "{refused}");
            assert_eq!(held(1), Some(2));
            // Other slots can be set meanwhile, and a claimed slot that is set directly stays as it was set.
            elsewhere.roll_back().unwrap();
            array.set(2, &three).unwrap();
            assert!(!back.is_finished());
            drop(runner);
            back.join().unwrap().unwrap();
        });
        assert_eq!([1, 2, 3].map(held), [Some(1), Some(3), None]);
        let again = Plan::new().set(&array, 1, &three).commit().unwrap();
        again.roll_back().unwrap();
        assert_eq!((held(1), hook.run(&mut (), &mut []).unwrap()), (Some(1), 1));
    }
}

/// Threads that carry out plans over the same places and put them back: a hook and a slot are always of one version.
#[test]
fn commits_and_rollbacks_are_in_one_order() {
    const VERSIONS: usize = 4;
    let rounds = if cfg!(target_arch = "aarch64") { 20 } else { 150 };
    for engine in engines(|config| config) {
        let linker = Linker::new(&engine);
        let versions: Vec<_> = (0..=VERSIONS as u64).map(|value| returns(&linker, value)).collect();
        let hooks = [hook(&engine), hook(&engine)];
        let array = ProgArray::<Raw, ()>::create(&engine, "array", 2).unwrap();
        hooks.iter().for_each(|hook| hook.attach(&versions[0]).unwrap());
        array.update([(0, Some(&versions[0])), (1, Some(&versions[0]))]).unwrap();
        let committed = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for own in 1..=VERSIONS {
                let (versions, hooks, array, committed) = (&versions, &hooks, &array, &committed);
                scope.spawn(move || {
                    for round in 0..rounds {
                        // Replaces the version that is attached at this moment.
                        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
                        let mut plan = Plan::new();
                        for at in order {
                            let Some(now) = hooks[at].programs().pop() else { return };
                            plan = plan.replace(&hooks[at], &now, &versions[own]).set(array, at as u32, &versions[own]);
                        }
                        let Ok(done) = plan.commit() else { continue };
                        committed.fetch_add(1, Ordering::Relaxed);
                        match done.roll_back() {
                            Ok(()) | Err(PlanError::Changed { .. } | PlanError::RollingBack { .. }) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                });
            }
        });
        assert!(committed.load(Ordering::Relaxed) > 0);
        let of_hooks = hooks.each_ref().map(|hook| hook.run(&mut (), &mut []).unwrap());
        let of_slots = [0, 1].map(|at| array.get(at).unwrap().run(&mut (), &mut []).unwrap());
        assert_eq!((of_hooks[0], of_hooks), (of_hooks[1], of_slots));
    }
}
