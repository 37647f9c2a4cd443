//! Modules: compiled once, many instances. The source of the object is `objects/instances.c`; the tests over all
//! objects (`support/ways.rs`) show that instances behave as loads.

use bpf_runtime::{
    Config, Engine, Instance, Linker, LoadError, MapSet, Mode, Module, Object, OptLevel, Raw, RunError,
    code::Arch,
    memory::{Held, Holder},
    run::Printed,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

fn object() -> Object {
    Object::parse(include_bytes!("../objects/instances.o")).unwrap()
}

/// Engines of each mode that this host has.
fn engines() -> Vec<Engine> {
    let jit = |level| {
        let config = Config::new().opt_level(level).budget(1 << 20);
        Engine::new(config).unwrap()
    };
    let config = Config::new().mode(Mode::Interpreter).budget(1 << 20);
    let mut engines = vec![Engine::new(config).unwrap()];
    if Arch::HOST.is_some() {
        engines.extend([OptLevel::None, OptLevel::Speed, OptLevel::Tiered].map(jit));
    }
    engines
}

fn module(engine: &Engine) -> Module<Raw, ()> {
    Linker::<()>::new(engine).compile::<Raw>(&object()).unwrap()
}

fn run(instance: &Instance<()>, name: &str, len: usize) -> u64 {
    instance.program::<Raw>(name).unwrap().run(&mut (), &mut vec![7; len]).unwrap()
}

fn count(instance: &Instance<()>, slot: u32) -> u64 {
    let value = instance.map("counts").unwrap().get(&slot.to_ne_bytes()).unwrap().unwrap();
    u64::from_ne_bytes(value.try_into().unwrap())
}

#[test]
fn instances_have_maps_of_their_own() {
    for engine in engines() {
        let module = module(&engine);
        let [one, two] = [(); 2].map(|()| module.instance().make().unwrap());
        // `after` returns the sum plus seven.
        assert_eq!((run(&one, "entry", 5), run(&one, "entry", 6), run(&two, "entry", 1)), (12, 18, 8));
        assert_eq!((count(&one, 1), count(&one, 2), count(&two, 1)), (2, 2, 2));
        assert_eq!((one.map("seen").unwrap().len(), two.map("seen").unwrap().len()), (2, 1));
        // Dropping an instance frees its code; the others still run.
        drop(one);
        engine.domain().drain().unwrap();
        assert_eq!(run(&two, "entry", 2), 10);
        let third = module.instance().make().unwrap();
        drop(module);
        assert_eq!(run(&third, "entry", 3), 10);
    }
}

#[test]
fn constants_may_differ_where_the_proof_is_for_any() {
    for engine in engines() {
        let module = module(&engine);
        let with =
            |limit: u64| module.instantiate(module.maps().global("limit", &limit.to_ne_bytes()).unwrap()).unwrap();
        let (small, large) = (with(3), with(1000));
        assert_eq!((run(&small, "entry", 5), run(&large, "entry", 5)), (0, 12));
        assert_eq!((run(&small, "at", 4), run(&small, "at", 3), run(&large, "at", 4)), (7, 1000, 1000));
        // Constants that the verification relied on: other values are refused, equal ones accepted.
        let other = module.instantiate(module.maps().global("step", &3u64.to_ne_bytes()).unwrap());
        assert!(matches!(&other, Err(LoadError::Constants { map }) if map.ends_with(".rodata")), "{other:?}");
        // A program that relies on a constant that may differ is refused.
        let trusts = Object::parse(include_bytes!("../objects/open.o")).unwrap();
        let trusts = Linker::<()>::new(&engine).loader::<Raw>().only(&["trusts"]).compile(&trusts);
        assert!(matches!(trusts, Err(LoadError::Verifier { .. })), "{trusts:?}");
        module.instantiate(module.maps().global("step", &2u64.to_ne_bytes()).unwrap()).unwrap();
        // A module that is compiled with the other values accepts them.
        let mut object = object();
        object.set_global("step", &3u64.to_ne_bytes()).unwrap();
        let linker = Linker::<()>::new(&engine);
        let three = linker.compile::<Raw>(&object).unwrap().instance().make().unwrap();
        run(&three, "entry", 1);
        assert_eq!(count(&three, 1), 3);
        // A module with open constants accepts any values.
        let any = linker.loader::<Raw>().open_constants(&[".rodata"]).compile(&object).unwrap();
        let nine = any.instantiate(any.maps().global("step", &9u64.to_ne_bytes()).unwrap()).unwrap();
        run(&nine, "entry", 1);
        assert_eq!(count(&nine, 1), 9);
        // Global data may differ between instances in any case.
        let eight = module.instantiate(module.maps().global("seven", &8u64.to_ne_bytes()).unwrap()).unwrap();
        assert_eq!(run(&eight, "entry", 1), 9);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing_behind() {
    let engines = [Engine::new(Config::new()).unwrap(), Engine::new(Config::new()).unwrap()];
    let module = module(&engines[0]);
    let of_other = MapSet::for_object(&engines[1], &object()).unwrap();
    assert!(matches!(module.instantiate(of_other), Err(LoadError::OtherDomain(_))));
    let account = engines[1].account("other", 1 << 20);
    let made = module.instance().account(&account).make();
    assert!(matches!(made, Err(LoadError::OtherAccount { .. })), "{made:?}");
    let other = Object::parse(include_bytes!("../objects/config.o")).unwrap();
    let of_object = MapSet::for_object(&engines[0], &other).unwrap();
    assert!(matches!(module.instantiate(of_object), Err(LoadError::MapSet { .. })));
    let mut larger = object();
    larger.set_max_entries("counts", 5).unwrap();
    let of_size = MapSet::for_object(&engines[0], &larger).unwrap();
    assert!(matches!(module.instantiate(of_size), Err(LoadError::MapSet { .. })));
    assert!(matches!(module.maps().global("limit", &[1]), Err(LoadError::Contents { .. })));
    assert!(matches!(module.maps().global("nothing", &[1]), Err(LoadError::NotFound { .. })));
    assert!(matches!(
        module.maps().contents(".bss", &[1]),
        Err(LoadError::Contents { .. } | LoadError::NotFound { .. })
    ));
    let linker = Linker::<()>::new(&engines[0]);
    let open = linker.loader::<Raw>().open_constants(&["nothing"]).compile(&object());
    assert!(matches!(open, Err(LoadError::NotFound { .. })), "{open:?}");
    // A budget is refused for programs that do not count, and a budget of 0 for all.
    assert!(matches!(module.instance().budget(0).make(), Err(LoadError::NoBudget)));
    assert!(matches!(module.instance().budget(9).make(), Err(LoadError::Uncounted { .. })));
    assert_eq!((engines[0].code_stats().programs, engines[0].domain().memory().held().len()), (0, 0));
}

#[test]
fn a_limit_in_the_middle_of_many_loses_nothing() {
    for engine in engines() {
        let module = module(&engine);
        let account = engine.account("tenants", 1 << 20);
        let mut instances = Vec::new();
        let refused = loop {
            match module.instance().account(&account).make() {
                Ok(instance) => instances.push(instance),
                Err(error) => break error,
            }
            assert!(instances.len() < 10_000);
        };
        assert!(matches!(refused, LoadError::Map { .. } | LoadError::MemoryFull { .. } | LoadError::ProgArray { .. }));
        let used = account.used();
        assert!(module.instance().account(&account).make().is_err());
        assert_eq!(account.used(), used, "what was refused has taken nothing");
        for (i, instance) in instances.iter().enumerate() {
            assert_eq!(run(instance, "entry", 1), 8, "instance {i}");
        }
        instances.pop();
        engine.domain().drain().unwrap();
        instances.push(module.instance().account(&account).make().unwrap());
        drop(instances);
        // The tiers' thread holds a program, and through it the instance's maps, until it has compiled it.
        for _ in 0..12_000 {
            engine.domain().drain().unwrap();
            engine.reclaim();
            if account.used() == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(account.used(), 0);
    }
}

/// The engine's own limit, reached by thousands of instances one by one and by a pool of them.
#[test]
fn a_limit_of_the_engine_in_the_middle_of_many_loses_nothing() {
    let object = Object::parse(include_bytes!("../objects/pair.o")).unwrap();
    for mode in [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit)) {
        let config = Config::new().mode(mode);
        let engine = Engine::new(config).unwrap();
        let memory = engine.domain().memory();
        let module = Linker::<()>::new(&engine).compile::<Raw>(&object).unwrap();
        let make = || module.instance().make().unwrap();
        let _first = make();
        // Executable memory stays mapped when its programs are gone.
        let used = || engine.usage().used - engine.usage().code_mapped;
        let settle = || {
            engine.domain().drain().unwrap();
            engine.reclaim();
        };
        let (fresh, held) = (used(), engine.usage().held.len());
        let hundred: Vec<_> = (0..100).map(|_| make()).collect();
        let each = (used() - fresh) / 100;
        drop(hundred);
        settle();
        memory.set_limit(memory.used() + 6000 * each).unwrap();
        let pool = module.pool(10_000);
        assert!(matches!(pool, Err(LoadError::Map { .. } | LoadError::MemoryFull { .. } | LoadError::Place { .. })));
        settle();
        assert_eq!((used(), engine.usage().held.len()), (fresh, held), "nothing of the pool is left");
        let mut instances = Vec::new();
        while let Ok(instance) = module.instance().make() {
            instances.push(instance);
            assert!(instances.len() < 10_000);
        }
        // Executable memory is mapped in packs of 2 MiB, of which the second is beyond the limit.
        let least = if mode == Mode::Jit { 1000 } else { 5000 };
        assert!(instances.len() > least, "{mode:?}: {}", instances.len());
        let full = used();
        assert!(module.instance().make().is_err());
        assert_eq!(used(), full, "what was refused has taken nothing");
        for (i, instance) in instances.iter().enumerate() {
            let program = instance.program::<Raw>("entry").unwrap();
            assert_eq!(program.run(&mut (), &mut [0; 8]).unwrap(), 1, "instance {i}");
        }
        // A reset takes no memory.
        instances[0].reset().unwrap();
        assert_eq!(instances[0].program::<Raw>("entry").unwrap().run(&mut (), &mut [0; 8]).unwrap(), 1);
        drop(instances);
        settle();
        assert_eq!(used(), fresh);
        drop(module.pool(3).unwrap().take().unwrap());
    }
}

/// The budget is an instance's: of a module read back, and after a move between tiers, too.
#[test]
fn each_instance_has_its_budget() {
    let mut object = Object::parse(include_bytes!("../objects/config.o")).unwrap();
    // A round for each of at most 64 bytes.
    object.set_global("mode", &1u32.to_ne_bytes()).unwrap();
    for engine in engines() {
        let linker = Linker::<()>::new(&engine);
        let module = linker.loader::<Raw>().budget(1000).compile(&object).unwrap();
        let read = module.serialize().ok().map(|bytes| again(&linker, &bytes).unwrap());
        for module in [module].into_iter().chain(read) {
            let made = [Some(3), Some(300), None].map(|budget| {
                let instance = budget.into_iter().fold(module.instance(), |instance, budget| instance.budget(budget));
                instance.make().unwrap().program::<Raw>("entry").unwrap()
            });
            let check = || {
                let stopped = made.each_ref().map(|program| match program.run(&mut (), &mut [1; 60]) {
                    Ok(_) => false,
                    Err(RunError::Budget { .. }) => true,
                    Err(other) => panic!("{other}"),
                });
                assert_eq!(stopped, [true, false, false]);
                made[0].run(&mut (), &mut [1]).unwrap();
            };
            check();
            let begin = std::time::Instant::now();
            while made.iter().any(|program| program.is_slow()) {
                made[1].run(&mut (), &mut [1; 60]).unwrap();
                assert!(begin.elapsed().as_secs() < 60, "{:?}", engine.tier_stats());
            }
            check();
        }
    }
}

/// Runs of one instance are interrupted; a run of the same program in another instance goes on.
#[test]
fn an_interruption_is_of_one_instance() {
    use bpf_runtime::{
        error::ResetError,
        net::{Xdp, XdpBuff},
    };
    let object = Object::parse(include_bytes!("../objects/stopped.o")).unwrap();
    for engine in engines() {
        let linker = Linker::<()>::new(&engine);
        let loader = || linker.loader::<Xdp>().only(&["spins"]).hybrid(true).interruptible(true).budget(u64::MAX);
        let module = loader().compile(&object).unwrap();
        let [meant, other] = [(); 2].map(|()| module.instance().make().unwrap());
        std::thread::scope(|scope| {
            let spin = |instance: &Instance<()>| {
                let program = instance.program::<Xdp>("spins").unwrap();
                scope.spawn(move || program.run(&mut (), &mut XdpBuff::new(&mut [0; 64])))
            };
            let is_running = |instance: &Instance<()>| matches!(instance.reset(), Err(ResetError::Running { .. }));
            let runs = [&meant, &other].map(spin);
            // A reset tells whether a run is in the instance.
            while ![&meant, &other].into_iter().all(is_running) {
                std::thread::yield_now();
            }
            let [of_meant, of_other] = runs;
            for (instance, run) in [(&meant, of_meant), (&other, of_other)] {
                assert!(is_running(instance), "another instance's run was interrupted");
                instance.program::<Xdp>("spins").unwrap().interrupt();
                let ended = run.join().unwrap();
                assert!(matches!(ended, Err(RunError::Interrupted { .. })), "{ended:?}");
            }
        });
        [meant, other].iter().for_each(|instance| instance.reset().unwrap());
    }
}

#[test]
fn names_of_instances_are_in_metrics() {
    let config = Config::new().metrics(true).budget(1 << 20);
    let engine = Engine::new(config).unwrap();
    let module = module(&engine);
    let acme = module.instance().name("acme").make().unwrap();
    let twice = module.instance().name("acme").make().unwrap();
    let other = module.instance().name("initech").make().unwrap();
    assert_eq!((acme.name(), other.name()), (Some("acme"), Some("initech")));
    for instance in [&acme, &twice, &other] {
        run(instance, "entry", 1);
    }
    let programs = engine.snapshot().programs;
    let of = |instance: &str| {
        let is = |metrics: &&bpf_runtime::metrics::ProgramMetrics| {
            metrics.program == "entry" && metrics.instance.as_deref() == Some(instance)
        };
        let found: Vec<_> = programs.iter().filter(is).collect();
        assert_eq!(found.len(), 1);
        (found[0].runs, found[0].versions)
    };
    assert_eq!((of("acme"), of("initech")), ((2, 2), (1, 1)));
    assert_eq!(engine.snapshot().loads, 9, "three programs of three instances");
    let maps = engine.snapshot().maps;
    let of = |name: &str| maps.iter().filter(|map| map.instance.as_deref() == Some(name)).count();
    let data = acme.maps().count();
    assert_eq!((of("acme"), of("initech"), maps.len()), (2 * data, data, 3 * data));
    assert_eq!(acme.map("counts").unwrap().instance(), Some("acme"));
}

/// Lists of the users of memory name the instance of each map, prog array and program.
#[test]
fn accounts_name_the_instance() {
    for engine in engines() {
        let module = module(&engine);
        let account = engine.account("both", 1 << 20);
        let make = |name: &str| module.instance().name(name).account(&account).make().unwrap();
        let both = [make("acme"), make("initech")];
        // Interpreted instances share their instructions, and hold no bytes of their own.
        let held = account.usage().held;
        for instance in &both {
            let names = |holder: Holder| {
                let of = |held: &&Held| held.holder == holder && held.instance.as_deref() == instance.name();
                let mut names: Vec<&str> = held.iter().filter(of).map(|held| &*held.name).collect();
                names.sort_unstable();
                names
            };
            let mut maps: Vec<&str> = instance.maps().map(|map| map.name()).collect();
            let mut programs: Vec<&str> = instance.programs().collect();
            maps.sort_unstable();
            programs.sort_unstable();
            assert_eq!((names(Holder::Map), names(Holder::ProgArray)), (maps, vec!["next"]));
            assert_eq!(names(Holder::Program), programs);
        }
        assert!(held.iter().all(|held| held.instance.is_some()), "{held:?}");
        // Without an account, what has no name is listed without one.
        let (alone, named) = (module.instance().make().unwrap(), module.instance().name("named").make().unwrap());
        let held = engine.usage().held;
        let of = |name: Option<&str>| held.iter().filter(|held| held.instance.as_deref() == name).count();
        assert_eq!((of(None), of(Some("named"))), (held.len() / 2, held.len() / 2));
        drop((both, alone, named));
    }
}

/// Printed text says which instance printed it, in every mode and behind a serialised module.
#[test]
fn printed_text_names_the_instance() {
    type Told = (Option<String>, Option<String>, String, String);
    let object = Object::parse(include_bytes!("../objects/helpers.o")).unwrap();
    for mode in [Mode::Interpreter, Mode::Jit] {
        if mode == Mode::Jit && Arch::HOST.is_none() {
            continue;
        }
        let told = Arc::new(Mutex::new(Vec::<Told>::new()));
        let config = Config::new().mode(mode).print({
            let told = Arc::clone(&told);
            move |printed: &Printed<'_>| {
                let [instance, account] = [printed.instance, printed.account].map(|name| name.map(str::to_owned));
                told.lock().unwrap().push((instance, account, printed.program.to_owned(), printed.text.to_owned()));
            }
        });
        let engine = Engine::new(config).unwrap();
        let linker = Linker::<()>::new(&engine);
        let module = linker.compile::<Raw>(&object).unwrap();
        let account = engine.account("group", 1 << 20);
        let mut instances = vec![
            module.instance().make().unwrap(),
            module.instance().name("acme").make().unwrap(),
            module.instance().name("initech").account(&account).make().unwrap(),
        ];
        let text = "2 bytes, ff, 100";
        let mut expected = vec![(None, None), (Some("acme"), None), (Some("initech"), Some("group"))];
        if mode == Mode::Jit {
            let again = again(&linker, &module.serialize().unwrap()).unwrap();
            instances.push(again.instance().name("read").make().unwrap());
            expected.push((Some("read"), None));
        }
        for instance in &instances {
            assert_eq!(run(instance, "print", 2), text.len() as u64);
        }
        let expected = expected.into_iter().map(|(instance, account): (Option<&str>, Option<&str>)| {
            let [instance, account] = [instance, account].map(|name| name.map(str::to_owned));
            (instance, account, "print".to_owned(), text.to_owned())
        });
        assert_eq!(*told.lock().unwrap(), expected.collect::<Vec<_>>());
    }
}

/// Errors of hooks, dispatchers and plans, and their statistics, say of which instance a program is.
#[test]
fn places_of_programs_name_the_instance() {
    use bpf_runtime::{Dispatcher, Hook, HookPolicy, Plan};
    for engine in engines() {
        let module = module(&engine);
        let [acme, other] = ["acme", "other"].map(|name| module.instance().name(name).make().unwrap());
        let [acme, other] = [acme, other].map(|instance| instance.program::<Raw>("at").unwrap());
        assert_eq!((acme.instance(), acme.name()), (Some("acme"), "at"));
        let hook = Hook::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        hook.attach(&acme).unwrap();
        let twice = "program `at` in instance `acme` is attached already";
        assert_eq!(hook.attach(&acme).unwrap_err().to_string(), twice);
        let not = "program `at` in instance `other` is not attached";
        assert_eq!(hook.detach(&other).unwrap_err().to_string(), not);
        let plan = Plan::new().attach(&hook, &other).detach(&hook, &acme).attach(&hook, &other).commit();
        let plan = plan.unwrap_err().to_string();
        assert_eq!(plan, "hook 0 of the plan: program `at` in instance `other` is attached already");
        let names = |stats: &[bpf_runtime::metrics::ProgramStats]| {
            stats.iter().map(|one| (one.instance.clone().unwrap(), one.program.clone())).collect::<Vec<_>>()
        };
        assert_eq!(names(&hook.statistics()), [("acme".to_owned(), "at".to_owned())]);
        let dispatcher = Dispatcher::new(&engine).unwrap();
        dispatcher.attach(&other).unwrap();
        assert_eq!(dispatcher.call(&other, &mut (), &mut [7; 4]).unwrap(), 1000);
        assert_eq!(dispatcher.call(&acme, &mut (), &mut [7; 4]).unwrap(), 1000);
        assert_eq!(names(&dispatcher.stats().programs), [("other".to_owned(), "at".to_owned())]);
        let not = "program `at` in instance `acme` is not attached";
        assert_eq!(dispatcher.detach(&acme).unwrap_err().to_string(), not);
        dispatcher.detach(&other).unwrap();
    }
}

/// Instances of a contained module stay in their own objects, also after a round trip.
#[test]
fn instances_of_a_contained_module_are_contained() {
    for engine in engines() {
        let linker = Linker::<()>::new(&engine);
        let module = linker.loader::<Raw>().only(&["at"]).contained(true).compile(&object()).unwrap();
        let read = module.serialize().ok().map(|bytes| again(&linker, &bytes).unwrap());
        for module in [module].into_iter().chain(read) {
            let with = |limit: u64| {
                let maps = module.maps().global("limit", &limit.to_ne_bytes()).unwrap();
                module.instance().maps(maps).name("acme").make().unwrap()
            };
            for (instance, expected) in [(with(2), [1000, 1000, 7]), (with(0), [1000, 7, 7])] {
                assert_eq!([0, 1, 3].map(|len| run(&instance, "at", len)), expected);
            }
        }
    }
}

/// If one instance runs often, all instances become fast, and later ones begin fast. The module is compiled once more.
#[test]
fn tiers_are_moved_together() {
    let config = Config::new().opt_level(OptLevel::Tiered).tick(std::time::Duration::from_micros(100));
    let engine = Engine::new(config).unwrap();
    let module = module(&engine);
    let instances: Vec<_> = (0..20).map(|_| module.instance().make().unwrap()).collect();
    let program = |i: usize| instances[i].program::<Raw>("at").unwrap();
    if !program(0).is_slow() {
        return println!("SKIPPED: no tiers on this host");
    }
    let begin = std::time::Instant::now();
    let hot = program(3);
    while (0..20).any(|i| program(i).is_slow()) {
        assert_eq!(hot.run(&mut (), &mut [0; 3]).unwrap(), 1000);
        assert!(begin.elapsed().as_secs() < 60, "{:?}", engine.tier_stats());
    }
    let late = module.instance().make().unwrap();
    assert!(!late.program::<Raw>("at").unwrap().is_slow());
    assert_eq!((engine.tier_stats().compiled, engine.tier_stats().fast), (1, 20));
    for instance in instances.iter().chain([&late]) {
        assert_eq!(run(instance, "at", 101), 7);
    }
}

/// Four threads make instances of one module, run, reload and drop them.
#[test]
fn threads_make_run_and_drop_instances() {
    for engine in engines() {
        let module = module(&engine);
        let rounds: u64 = if engine.config().get_mode() == Mode::Interpreter { 50 } else { 300 };
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (module, engine) = (&module, &engine);
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for round in 0..rounds {
                        let limit = 10 + thread;
                        let maps = module.maps().global("limit", &limit.to_ne_bytes()).unwrap();
                        let instance = module.instantiate(maps).unwrap();
                        for i in 1..=4u64 {
                            assert_eq!(run(&instance, "entry", 2), 7 + 2 * i);
                        }
                        assert_eq!(run(&instance, "at", 64), 7);
                        kept.push(instance);
                        if round % 7 == thread {
                            kept.clear();
                        }
                        if round % 50 == 0 {
                            engine.reclaim();
                        }
                    }
                });
            }
        });
        engine.domain().drain().unwrap();
        engine.reclaim();
        assert_eq!(engine.code_stats().programs, 0);
    }
}

fn seven(instance: &Instance<()>) -> Vec<u8> {
    instance.map(".data").unwrap().get(&[0; 4]).unwrap().unwrap()
}

#[test]
fn a_reset_makes_maps_as_they_were() {
    for engine in engines() {
        let module = module(&engine);
        let maps = module.maps().global("seven", &9u64.to_ne_bytes()).unwrap();
        let maps = maps.global("limit", &50u64.to_ne_bytes()).unwrap();
        let loaded = Linker::<()>::new(&engine).load::<Raw>(&object(), maps).unwrap();
        let shared = module.instance().make().unwrap();
        let maps = module.maps().global("seven", &9u64.to_ne_bytes()).unwrap();
        let maps = maps.reuse("counts", &shared.map("counts").unwrap()).unwrap();
        for (instance, seven, counts_stay) in
            [(&shared, 7, false), (&loaded, 9, false), (&module.instantiate(maps).unwrap(), 9, true)]
        {
            let first = self::seven(instance);
            for round in 0..3 {
                assert_eq!((run(instance, "entry", 5), run(instance, "entry", 6)), (5 + seven, 11 + seven), "{round}");
                let data = instance.map(".data").unwrap();
                data.update(&[0; 4], &vec![1; data.host_value_size()], 0).unwrap();
                let next = instance.prog_array::<Raw>("next").unwrap();
                next.clear(1).unwrap();
                next.set(0, &instance.program::<Raw>("at").unwrap()).unwrap();
                assert_eq!(run(instance, "entry", 1), 1, "no tail call");
                assert_eq!(instance.map("seen").unwrap().len(), 3);
                drop((data, next));
                instance.reset().unwrap();
                assert_eq!(instance.map("seen").unwrap().len(), 0);
                assert_eq!(count(instance, 1) != 0, counts_stay, "what is another's stays");
                assert_eq!(self::seven(instance), first);
                let next = instance.prog_array::<Raw>("next").unwrap();
                assert_eq!(next.iter().map(|(index, _)| index).collect::<Vec<_>>(), [1]);
                let mut ring = bpf_runtime::maps::RingBuf::new(&instance.map("ring").unwrap()).unwrap();
                assert!(ring.next_record().is_none());
            }
        }
        // A ring with a consumer is not reset: the reset fails until the consumer is dropped.
        let consumer = bpf_runtime::maps::RingBuf::new(&shared.map("ring").unwrap()).unwrap();
        assert!(matches!(shared.reset(), Err(bpf_runtime::error::ResetError::Map(_))));
        drop(consumer);
        shared.reset().unwrap();
    }
}

/// A reset is refused while a run is in the instance: in another thread, and in this one.
#[test]
fn a_reset_is_refused_while_runs_are_in_the_instance() {
    use bpf_runtime::{Caller, error::ResetError};
    use std::sync::mpsc::{Receiver, Sender, channel};
    type Host = (Option<(Sender<()>, Receiver<()>)>, Option<Instance<u32>>);
    for engine in engines() {
        let mut linker = Linker::<Host>::new(&engine);
        linker
            .func(1001, "wait", |caller: &mut Caller<'_, Host>| {
                if let Some((begun, go_on)) = &caller.host().0 {
                    begun.send(()).unwrap();
                    go_on.recv().unwrap();
                }
                let reset = |other: &Instance<u32>| u64::from(matches!(other.reset(), Err(ResetError::InRun)));
                caller.host().1.as_ref().map_or(0, reset)
            })
            .unwrap();
        let object = Object::parse(include_bytes!("../objects/waits.o")).unwrap();
        let module = linker.compile::<Raw>(&object).unwrap();
        let [busy, idle] = [(); 2].map(|()| module.instance().make().unwrap());
        let program = busy.program::<Raw>("entry").unwrap();
        let (begun, has_begun) = channel();
        let (go_on, may_go_on) = channel();
        std::thread::scope(|scope| {
            let program = &program;
            let runs = scope.spawn(move || program.run(&mut (Some((begun, may_go_on)), None), &mut [0; 8]).unwrap());
            has_begun.recv().unwrap();
            let error = busy.reset().unwrap_err();
            assert!(matches!(&error, ResetError::Running { program } if program == "entry"), "{error}");
            // Nobody else has handles of the other instance, so its reset does not wait. If somebody has, a run may be
            // in it that is not known, by a tail call.
            idle.reset().unwrap();
            let handle = idle.program::<Raw>("entry").unwrap();
            let error = idle.reset().unwrap_err();
            assert!(matches!(error, ResetError::Busy { .. }), "{error}");
            drop(handle);
            idle.reset().unwrap();
            go_on.send(()).unwrap();
            assert_eq!(runs.join().unwrap(), 0);
        });
        busy.reset().unwrap();
        // A host function resets an instance that a run might be in.
        let simple = Linker::<u32>::new(&engine).compile::<Raw>(&self::object()).unwrap().instance().make().unwrap();
        assert_eq!(program.run(&mut (None, Some(simple.clone())), &mut [0; 8]).unwrap(), 1);
        simple.reset().unwrap();
    }
}

/// Two threads do not reset one instance at the same time: the second is refused while the first is in the middle.
#[test]
fn a_reset_in_the_middle_of_another_is_refused() {
    use bpf_runtime::error::ResetError;
    use std::sync::mpsc::channel;
    for engine in engines() {
        let instance = module(&engine).instance().make().unwrap();
        run(&instance, "entry", 5);
        let (begun, has_begun) = channel();
        let (go_on, may_go_on) = channel::<()>();
        engine.domain().enqueue(move || {
            begun.send(()).unwrap();
            may_go_on.recv().unwrap();
        });
        // As many as are looked after at once.
        (0..200).for_each(|_| engine.domain().enqueue(|| ()));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| instance.reset());
            has_begun.recv().unwrap();
            let second = instance.reset();
            go_on.send(()).unwrap();
            assert!(matches!(second, Err(ResetError::Resetting)), "{second:?}");
            first.join().unwrap().unwrap();
        });
        assert_eq!((count(&instance, 1), instance.map("seen").unwrap().len()), (0, 0));
        instance.reset().unwrap();
    }
}

#[test]
fn a_pool_lends_what_is_as_it_was_made() {
    use bpf_runtime::error::PoolError;
    for engine in engines() {
        let module = module(&engine);
        let pool = module.pool(3).unwrap();
        for _ in 0..10 {
            let taken: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
            assert!(matches!(pool.take(), Err(PoolError::Empty { size: 3 })));
            for instance in &taken {
                assert_eq!(run(instance, "entry", 5), 12);
                assert_eq!(instance.map("seen").unwrap().len(), 1);
            }
        }
        // Threads share it.
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        assert_eq!(run(&pool.take().unwrap(), "entry", 5), 12);
                    }
                });
            }
        });
        assert_eq!(pool.size(), 3);
        assert_eq!(run(&pool.take().unwrap(), "entry", 5), 12);
    }
}

/// A handle of a pooled instance that outlives the guard keeps the instance, which is not lent again.
#[test]
fn an_instance_with_handles_left_is_not_lent_again() {
    use bpf_runtime::{Hook, error::PoolError};
    for engine in engines() {
        let module = module(&engine);
        let pool = module.pool(1).unwrap();
        let hook = Hook::new(&engine, bpf_runtime::HookPolicy::LastWins { empty: 0 }).unwrap();
        let id = |instance: &Instance<()>| instance.map("counts").unwrap().id();
        let lend = || {
            let instance = pool.take().unwrap();
            assert_eq!((run(&instance, "entry", 5), count(&instance, 1)), (12, 2));
            instance
        };
        // The instance itself comes back, although its prog array holds one of its programs.
        let first = id(&lend());
        assert_eq!(id(&lend()), first);
        // A clone.
        let clone = lend().clone();
        assert_eq!(count(&clone, 1), 2, "not reset");
        let second = id(&lend());
        assert_ne!((second, id(&clone)), (first, second));
        assert_eq!(run(&clone, "entry", 6), 18);
        // A program, a map, a prog array; a place in a hook.
        let program = lend().program::<Raw>("entry").unwrap();
        lend();
        assert_eq!(program.run(&mut (), &mut [7; 6]).unwrap(), 18);
        let map = lend().map("seen").unwrap();
        assert_ne!(lend().map("seen").unwrap().id(), map.id());
        assert_eq!(map.len(), 1);
        let array = lend().prog_array::<Raw>("next").unwrap();
        assert_eq!(array.get(1).unwrap().run(&mut (), &mut []).unwrap(), 12);
        lend();
        hook.attach(&lend().program::<Raw>("entry").unwrap()).unwrap();
        lend();
        assert_eq!(hook.run(&mut (), &mut [7; 6]).unwrap(), 18);
        // An instance that cannot be replaced leaves its place to be filled later.
        let kept = lend().clone();
        let limit = engine.domain().memory().used();
        engine.domain().memory().set_limit(limit).unwrap();
        assert!(matches!(pool.take(), Err(PoolError::Load(_))));
        engine.domain().memory().set_limit(Config::new().get_memory_limit()).unwrap();
        lend();
        drop((clone, kept));
        lend();
    }
}

/// No reset undoes that a map was frozen, or that others have the file of its memory.
#[test]
fn an_instance_that_cannot_be_as_it_was_made_is_not_lent_again() {
    for engine in engines() {
        let pool = module(&engine).pool(1).unwrap();
        let count_of = |freeze: bool| {
            let instance = pool.take().unwrap();
            assert_eq!((run(&instance, "entry", 5), count(&instance, 1)), (12, 2));
            let map = instance.map("counts").unwrap();
            if freeze {
                map.freeze().unwrap();
            }
            map.id()
        };
        let first = count_of(false);
        assert_eq!(count_of(true), first);
        let second = count_of(false);
        assert_ne!(second, first);
        let object = Object::parse(include_bytes!("../objects/mapped.o")).unwrap();
        let pool = Linker::<()>::new(&engine).compile::<Raw>(&object).unwrap().pool(1).unwrap();
        let file_of = |lend: bool| {
            let instance = pool.take().unwrap();
            assert_eq!(run(&instance, "add", 5), 5);
            let map = instance.map("shown").unwrap();
            (map.id(), lend.then(|| map.mmap_fd().unwrap().try_clone_to_owned().unwrap()))
        };
        let (first, _) = file_of(false);
        let (second, _file) = file_of(true);
        assert_eq!(second, first);
        assert_ne!(file_of(false).0, first);
    }
}

/// A pool that is made while snapshots are taken, which have handles of maps for moments, sees handles that are left.
#[test]
fn snapshots_hide_no_handle_from_a_pool() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let config = Config::new().metrics(true);
    let engine = Engine::new(config).unwrap();
    let module = module(&engine);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    engine.snapshot();
                }
            });
        }
        let hidden = (0..200).any(|_| {
            let pool = module.pool(1).unwrap();
            let kept = pool.take().unwrap().map("counts").unwrap();
            pool.take().unwrap().map("counts").unwrap().id() == kept.id()
        });
        done.store(true, Ordering::Relaxed);
        assert!(!hidden, "a map of which there is a handle was lent");
    });
}

fn again(linker: &Linker<()>, bytes: &[u8]) -> Result<Module<Raw, ()>, bpf_runtime::error::DeserializeError> {
    // SAFETY: `serialize` of this build returned the bytes, or they were changed and the checksum has them refused
    // before any code runs.
    unsafe { Module::deserialize(linker, bytes) }
}

#[test]
fn a_serialised_module_is_the_same_module() {
    let mut kept = None;
    for engine in engines() {
        let linker = Linker::<()>::new(&engine);
        let module = module(&engine);
        let bytes = match module.serialize() {
            Ok(bytes) => bytes,
            Err(error) => {
                let other = engine.config().get_mode() == Mode::Interpreter
                    || engine.config().get_opt_level() == OptLevel::Tiered;
                assert!(other && error.program.is_some(), "{error}");
                continue;
            }
        };
        let read = again(&linker, &bytes).unwrap();
        assert_eq!(read.serialize().unwrap(), bytes);
        drop(module);
        let maps = read.maps().global("limit", &6u64.to_ne_bytes()).unwrap();
        let instance = read.instantiate(maps).unwrap();
        assert_eq!((run(&instance, "entry", 5), run(&instance, "entry", 2), run(&instance, "at", 7)), (12, 0, 7));
        assert_eq!(count(&instance, 1), 2);
        instance.reset().unwrap();
        assert_eq!(run(&instance, "entry", 5), 12);
        let other = read.instantiate(read.maps().global("step", &3u64.to_ne_bytes()).unwrap());
        assert!(matches!(other, Err(LoadError::Constants { .. })));
        kept = Some(bytes);
    }
    assert!(kept.is_some() || Arch::HOST.is_none());
}

/// Code passes what a closure has captured, or the caller that it wants to know, or neither.
fn functions_with_other_hidden_arguments_are_found(engine: &Engine) {
    use bpf_runtime::{Caller, error::DeserializeError};
    let linker = |knows: bool, captures: bool| {
        let mut linker = Linker::<()>::new(engine);
        linker.know_callers(knows);
        let more = u64::from(captures);
        match captures {
            true => linker.func_named("emit", move |_: &mut Caller<'_, ()>, value: u64| -> u64 { value + more }),
            false => linker.func_named("emit", |_: &mut Caller<'_, ()>, value: u64| -> u64 { value }),
        }
        .unwrap();
        linker
    };
    let object = Object::parse(include_bytes!("../objects/declared.o")).unwrap();
    let bytes = linker(false, false)
        .loader::<Raw>()
        .only(&["calls_emit___same"])
        .compile(&object)
        .unwrap()
        .serialize()
        .unwrap();
    let read = |knows, captures| again(&linker(knows, captures), &bytes).map(drop);
    assert_eq!(read(false, false), Ok(()));
    for (knows, captures) in [(true, false), (false, true), (true, true)] {
        assert!(matches!(read(knows, captures), Err(DeserializeError::Function { function }) if function == "emit"));
    }
}

#[test]
fn honest_mistakes_with_serialised_modules_are_found() {
    use bpf_runtime::{code::CpuFeatures, error::DeserializeError};
    if Arch::HOST.is_none() {
        return println!("SKIPPED: no JIT for this host");
    }
    let engine = |configure: fn(Config) -> Config| {
        let config = configure(Config::new());
        Engine::new(config).unwrap()
    };
    let first = engine(|config| config);
    let linker = Linker::<()>::new(&first);
    let bytes = module(&first).serialize().unwrap();
    let is = |bytes: &[u8], expected: DeserializeError| assert_eq!(again(&linker, bytes).unwrap_err(), expected);
    is(&[], DeserializeError::NoModule);
    is(&bytes[..20], DeserializeError::NoModule);
    is(include_bytes!("../objects/instances.o"), DeserializeError::NoModule);
    is(&bytes[..bytes.len() - 1], DeserializeError::Changed);
    // A change of any byte is found, and named by the part of the header that it is in.
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let expected = match at / 8 {
            0 => DeserializeError::NoModule,
            1 => DeserializeError::Version,
            2 => DeserializeError::Cpu,
            3 => DeserializeError::Config,
            4 => DeserializeError::Context,
            _ => DeserializeError::Changed,
        };
        assert_eq!(again(&linker, &changed).unwrap_err(), expected, "byte {at}");
    }
    // The build comes first: a module of another build may differ in all that follows.
    let mut old = bytes.clone();
    old[8..].fill(0);
    is(&old, DeserializeError::Version);
    let elsewhere = |configure: fn(Config) -> Config| {
        let engine = engine(configure);
        again(&Linker::<()>::new(&engine), &bytes).map(drop)
    };
    assert_eq!(elsewhere(|config| config), Ok(()));
    assert_eq!(elsewhere(|config| config.features(CpuFeatures::BASELINE)), Err(DeserializeError::Cpu));
    assert_eq!(
        elsewhere(|config| config.hardening(|hardening| hardening.landing_pads(true))),
        Err(DeserializeError::Config)
    );
    assert_eq!(elsewhere(|config| config.max_slots(7)), Err(DeserializeError::Config));
    assert_eq!(elsewhere(|config| config.metrics(true)), Err(DeserializeError::Config));
    // An engine's promise for every program.
    assert_eq!(elsewhere(|config| config.contained(true)), Err(DeserializeError::Config));
    assert_eq!(elsewhere(|config| config.interruptible(true)), Err(DeserializeError::Config));
    assert_eq!(elsewhere(|config| config.budget(9)), Err(DeserializeError::Config));
    // SAFETY: the bytes are refused, because they were made for another context.
    let context = unsafe { Module::<bpf_runtime::net::Xdp, ()>::deserialize(&linker, &bytes) }.map(drop);
    assert_eq!(context, Err(DeserializeError::Context));
    let mut without = Linker::<()>::new(&first);
    without.remove_helper(1);
    assert!(matches!(again(&without, &bytes), Err(DeserializeError::Function { .. })));
    functions_with_other_hidden_arguments_are_found(&first);
    // Jump tables are maps, which need memory.
    let object = Object::parse(include_bytes!("../objects/jumptables.o")).unwrap();
    let tables = linker.compile::<bpf_runtime::net::Xdp>(&object).unwrap().serialize().unwrap();
    // SAFETY: `serialize` returned the bytes.
    let read = || unsafe { Module::<bpf_runtime::net::Xdp, ()>::deserialize(&linker, &tables) }.map(drop);
    let memory = first.domain().memory();
    let limit = memory.limit();
    memory.set_limit(memory.used()).unwrap();
    assert!(matches!(read(), Err(DeserializeError::Map { .. })));
    memory.set_limit(limit).unwrap();
    read().unwrap();
}

/// A deferred callback of the host panics while a map is reset: the instance is reset all the same.
#[test]
fn a_panic_of_what_waited_leaves_nothing_half_reset() {
    let quietly = |what: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(what)).is_err();
    for engine in engines() {
        let module = module(&engine);
        let pool = module.pool(1).unwrap();
        let instance = pool.take().unwrap();
        let first = |instance: &Instance<()>| (count(instance, 1), instance.map("seen").unwrap().len());
        let before = first(&instance);
        // As many as are looked after at once.
        let panics = || {
            engine.domain().enqueue(|| panic!("of the host"));
            (0..200).for_each(|_| engine.domain().enqueue(|| ()));
        };
        run(&instance, "entry", 5);
        assert_ne!(first(&instance), before);
        panics();
        assert!(quietly(&mut || instance.reset().unwrap()));
        assert_eq!(first(&instance), before);
        instance.reset().unwrap();
        // A panic costs the pool no instance, whether the reset happens when the instance is returned or when it is
        // taken.
        run(&instance, "entry", 5);
        panics();
        let mut instance = Some(instance);
        quietly(&mut || drop(instance.take()));
        quietly(&mut || drop(pool.take().unwrap()));
        assert_eq!(first(&pool.take().unwrap()), before);
    }
}
