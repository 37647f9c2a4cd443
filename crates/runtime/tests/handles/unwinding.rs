//! Panics of destructors of values that host functions captured, in each operation that drops them. The operation is
//! completed, objects that runs may still use wait for these runs, and the panic is resumed at the end.

use crate::common::{Fixture, Prog, Words, fixtures};
use bpf_runtime::{
    Caller, Config, Dispatcher, Engine, Hook, HookPolicy, Linker, Mode, OptLevel, Plan, Program, Raw,
    host::{Pinned, PinnedMap},
    isa::assemble,
    maps::{Map, MapDef, MapType},
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

/// Counts its drops, and panics if it is to.
struct Token {
    drops: Arc<AtomicU64>,
    panics: bool,
}

impl Drop for Token {
    fn drop(&mut self) {
        // Relaxed: a count.
        self.drops.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "a destructor");
    }
}

impl Token {
    /// A method, so that a closure that calls it owns the token and not a field of it.
    fn answer(&self) -> u64 {
        u64::from(self.panics)
    }
}

fn count(drops: &AtomicU64) -> u64 {
    drops.load(Ordering::Relaxed)
}

/// A program with two functions that own a token each. Nobody but the program has them.
fn victim(f: &Fixture, drops: &Arc<AtomicU64>, panics: bool) -> Prog {
    let mut linker = Linker::new(&f.engine);
    for id in [1002, 1003] {
        let token = Token { drops: Arc::clone(drops), panics };
        let touch = move |_: &mut Caller<'_, u64>| token.answer();
        linker.func(id, &format!("touch_{id}"), touch).unwrap();
    }
    linker.loader().insns("victim", assemble("call 1002\ncall 1003\nr0 = 1\nexit").unwrap()).unwrap()
}

/// Queues deferred callbacks that panic, more than one batch, for the next operation that runs deferred work.
fn mine(engine: &Engine) {
    for _ in 0..70 {
        engine.domain().enqueue(|| panic!("a deferred drop"));
    }
}

/// Does this while another thread is in a run that began before.
fn while_another_runs(engine: &Engine, body: impl FnOnce()) {
    let (entered, enter) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let domain = Arc::clone(engine.domain());
    let reader = std::thread::spawn(move || {
        let _guard = domain.enter_run().unwrap();
        entered.send(()).unwrap();
        left.recv().unwrap();
    });
    enter.recv().unwrap();
    body();
    leave.send(()).unwrap();
    reader.join().unwrap();
}

/// Drops two victims by `operate` while a run may be in them. The operation meets panics of callbacks that others
/// deferred; and once more with victims whose own destructors panic.
fn check(f: &Fixture, what: &str, operate: impl Fn([Prog; 2], &mut dyn FnMut(&mut dyn FnMut()))) {
    for panics in [false, true] {
        let drops = Arc::new(AtomicU64::new(0));
        let victims = [victim(f, &drops, panics), victim(f, &drops, panics)];
        let mut panicked = false;
        operate(victims, &mut |last| {
            mine(&f.engine);
            while_another_runs(&f.engine, || {
                panicked = catch_unwind(AssertUnwindSafe(&mut *last)).is_err();
                assert_eq!(count(&drops), 0, "{what}, {}: a run may be in them", f.name);
            });
            let _ = catch_unwind(AssertUnwindSafe(|| f.engine.reclaim()));
            assert_eq!((count(&drops), f.engine.domain().deferred()), (4, 0), "{what}, {}", f.name);
        });
        assert!(panicked, "{what}, {}", f.name);
    }
}

#[test]
fn whatever_lets_go_of_programs_is_done_to_its_end() {
    for f in &fixtures() {
        let other = f.load("other", "r0 = 0\nexit", &[]);
        check(f, "arrays in a plan", |[one, two], run| {
            let arrays = [f.array(2), f.array(2)];
            arrays[0].set(0, &one).unwrap();
            arrays[1].update([(0, Some(&two)), (1, Some(&one))]).unwrap();
            drop((one, two));
            run(&mut || {
                let plan = Plan::new().set(&arrays[0], 0, &other).set(&arrays[1], 0, &other).clear(&arrays[1], 1);
                drop(plan.commit().unwrap());
            });
            let held: Vec<usize> = arrays.iter().map(|array| array.iter().count()).collect();
            assert_eq!(held, [1, 1]);
        });
        check(f, "hooks in a plan", |[one, two], run| {
            let hooks = [(); 2].map(|()| Hook::<Words, u64>::new(&f.engine, HookPolicy::RunAll { result: 0 }).unwrap());
            hooks[0].attach(&one).unwrap();
            hooks[1].attach(&two).unwrap();
            let plan = Plan::new().replace(&hooks[0], &one, &other).replace(&hooks[1], &two, &other);
            drop((one, two));
            let mut plan = Some(plan);
            run(&mut || drop(plan.take().map(|plan| plan.commit().unwrap())));
            for hook in &hooks {
                assert!(hook.programs().iter().all(|program| program.name() == "other"));
            }
        });
        check(f, "a hook", |[one, two], run| {
            let hook = Hook::<Words, u64>::new(&f.engine, HookPolicy::RunAll { result: 0 }).unwrap();
            hook.attach(&one).unwrap();
            hook.attach(&two).unwrap();
            let (mut one, mut two) = (Some(one), Some(two));
            run(&mut || {
                let both = [one.take(), two.take()];
                let mut changes = both
                    .iter()
                    .flatten()
                    .map(|program| catch_unwind(AssertUnwindSafe(|| hook.detach(program).unwrap())).is_err());
                let panics = changes.by_ref().fold(false, |any, this| any | this);
                drop(changes);
                drop(both);
                assert!(!panics, "a hook's change");
            });
            assert!(hook.programs().is_empty());
        });
        check(f, "a dispatcher", |[one, two], run| {
            let dispatcher = Dispatcher::<Words, u64>::new(&f.engine).unwrap();
            dispatcher.attach(&one).unwrap();
            dispatcher.attach(&two).unwrap();
            let (mut one, mut two) = (Some(one), Some(two));
            run(&mut || {
                let both = [one.take(), two.take()];
                let mut panics = false;
                for program in both.iter().flatten() {
                    panics |= catch_unwind(AssertUnwindSafe(|| dispatcher.detach(program).unwrap())).is_err();
                }
                drop(both);
                assert!(!panics, "a dispatcher's change");
            });
            assert_eq!(dispatcher.stats().entries, 0);
        });
        check(f, "handles", |victims, run| {
            let mut victims = Some(victims);
            run(&mut || drop(victims.take()));
        });
        check(f, "an instance's array", |[one, two], run| {
            let array = f.array(2);
            array.update([(0, Some(&one)), (1, Some(&two))]).unwrap();
            drop((one, two));
            let mut array = Some(array);
            run(&mut || drop(array.take()));
        });
    }
}

#[test]
fn memory_of_host_functions_and_maps_waits_for_runs() {
    let engine = Engine::new(Config::new()).unwrap();
    let pinned = Pinned::new(&engine, &[1u64; 4]);
    let map = || Map::create(MapDef::new("map", MapType::Hash, 4, 8, 4), engine.domain()).unwrap();
    let held: PinnedMap<u32, u64> = PinnedMap::new(&map()).unwrap();
    let def = MapDef::new("outer", MapType::HashOfMaps, 4, 4, 8).inner(map().def().clone());
    let outer = Map::create(def, engine.domain()).unwrap();
    for key in 0..4u32 {
        outer.set_inner(&key.to_ne_bytes(), &map(), 0).unwrap();
    }
    mine(&engine);
    while_another_runs(&engine, || {
        for result in [
            catch_unwind(AssertUnwindSafe(|| drop(pinned))),
            catch_unwind(AssertUnwindSafe(|| drop(held))),
            catch_unwind(AssertUnwindSafe(|| outer.delete(&0u32.to_ne_bytes()).unwrap())),
            catch_unwind(AssertUnwindSafe(|| drop(outer))),
        ] {
            drop(result);
        }
    });
    let _ = catch_unwind(AssertUnwindSafe(|| engine.reclaim()));
    assert_eq!(engine.domain().deferred(), 0);
    assert_eq!(engine.domain().memory().held().len(), 0, "no map is left");
}

/// A second panic that leaves a destructor while the thread unwinds would abort the process.
#[test]
fn destructors_of_one_program_may_all_panic() {
    for f in &fixtures() {
        let drops = Arc::new(AtomicU64::new(0));
        let programs: Vec<_> = (0..3).map(|_| victim(f, &drops, true)).collect();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(programs))).is_err());
        let _ = catch_unwind(AssertUnwindSafe(|| f.engine.reclaim()));
        assert_eq!(count(&drops), 6, "{}", f.name);
    }
    // A linker, and what an engine was given.
    let drops = Arc::new(AtomicU64::new(0));
    let token = || Token { drops: Arc::clone(&drops), panics: true };
    let mut config = Config::new();
    let print = token();
    config = config.print(move |_| assert!(print.answer() > 0));
    let engine = Engine::new(config).unwrap();
    let mut linker = Linker::<()>::new(&engine);
    for id in [1002, 1003] {
        let token = token();
        linker.func(id, &format!("touch_{id}"), move |_: &mut Caller<'_, ()>| token.answer()).unwrap();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| drop(linker))).is_err());
    assert_eq!(count(&drops), 2);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(engine))).is_err());
    assert_eq!(count(&drops), 3);
}

/// A value without a size has a destructor, too.
#[test]
fn what_a_function_captures_is_dropped_whatever_its_size() {
    static DROPS: AtomicU64 = AtomicU64::new(0);
    struct Empty;
    impl Drop for Empty {
        fn drop(&mut self) {
            DROPS.fetch_add(1, Ordering::Relaxed);
        }
    }
    impl Empty {
        fn seven(&self) -> u64 {
            7
        }
    }
    let mut runs = 0;
    for f in &fixtures() {
        let empty = Empty;
        let mut linker = Linker::<u64>::new(&f.engine);
        linker.func(1002, "seven", move |_: &mut Caller<'_, u64>| empty.seven()).unwrap();
        let program: Program<Raw, u64> = linker.loader().insns("seven", assemble("call 1002\nexit").unwrap()).unwrap();
        drop(linker);
        assert_eq!((program.run(&mut 0, &mut []).unwrap(), count(&DROPS)), (7, runs), "{}", f.name);
        drop(program);
        f.engine.reclaim();
        runs += 1;
        assert_eq!(count(&DROPS), runs, "{}", f.name);
    }
}

/// The code that a tiered program began with goes when it is replaced, whatever its drop meets.
#[test]
fn a_tiered_program_goes_whatever_panics() {
    let config = Config::new().opt_level(OptLevel::Tiered);
    let Ok(engine) = Engine::new(config).and_then(|engine| match engine.config().get_mode() {
        Mode::Jit => Ok(engine),
        _ => Err(bpf_runtime::EngineError::NoBackend),
    }) else {
        return println!("SKIPPED: no backend on this host");
    };
    let drops = Arc::new(AtomicU64::new(0));
    let mut linker = Linker::<()>::new(&engine);
    let token = Token { drops: Arc::clone(&drops), panics: true };
    linker.func(1002, "touch", move |_: &mut Caller<'_, ()>| token.answer()).unwrap();
    let program: Program<Raw, ()> = linker.loader().insns("tiered", assemble("call 1002\nexit").unwrap()).unwrap();
    drop(linker);
    mine(&engine);
    while_another_runs(&engine, || {
        assert!(catch_unwind(AssertUnwindSafe(|| drop(program))).is_err());
        assert_eq!(count(&drops), 0);
    });
    let _ = catch_unwind(AssertUnwindSafe(|| engine.reclaim()));
    assert_eq!((count(&drops), engine.domain().deferred()), (1, 0));
}
