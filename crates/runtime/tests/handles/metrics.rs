//! Metrics of an engine.

use bpf_runtime::{
    Caller, Config, Engine, HelperError, Hook, HookPolicy, Linker, MapSet, Mode, Object, OptLevel, ProgArray, Program,
    Raw, RunError,
    code::Arch,
    isa::assemble,
    maps::{Map, MapDef, MapType},
    metrics::Snapshot,
};

const RUNS: u64 = 1000;

fn engine(metrics: bool, change: impl FnOnce(Config) -> Config) -> Engine {
    let config = change(Config::new().metrics(metrics));
    Engine::new(config).expect("an engine")
}

/// Engines that count: by machine code of each level and by the interpreter.
fn counting() -> Vec<(&'static str, Engine)> {
    let mut engines = vec![("interpreter", engine(true, |config| config.mode(Mode::Interpreter)))];
    if Arch::HOST.is_some() {
        engines.push(("none", engine(true, |config| config.opt_level(OptLevel::None))));
        engines.push(("speed", engine(true, |config| config.opt_level(OptLevel::Speed))));
    }
    engines
}

fn load(engine: &Engine, name: &str, text: &str) -> Program<Raw, ()> {
    Linker::<()>::new(engine).loader::<Raw>().insns(name, assemble(text).expect("it assembles")).expect("it loads")
}

fn runs(snapshot: &Snapshot, name: &str) -> Option<u64> {
    snapshot.programs.iter().find(|program| program.program == name).map(|program| program.runs)
}

#[test]
fn every_run_is_counted() {
    for (way, engine) in counting() {
        let alone = load(&engine, "alone", "r0 = r2\nexit");
        let (first, second) = (load(&engine, "first", "r0 = 2\nexit"), load(&engine, "second", "r0 = 2\nexit"));
        let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::FirstVerdict { pass: 2 }).expect("a hook");
        hook.attach(&first).expect("attached");
        hook.attach(&second).expect("attached");
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..RUNS / 2 {
                        assert_eq!(alone.run(&mut (), &mut [0; 4]).expect("a result"), 4, "{way}");
                        assert_eq!(hook.run(&mut (), &mut [0; 4]).expect("a result"), 2, "{way}");
                    }
                });
            }
        });
        let snapshot = engine.snapshot();
        for name in ["alone", "first", "second"] {
            assert_eq!(runs(&snapshot, name), Some(RUNS), "{way}: {name}");
        }
        assert_eq!(snapshot.loads, 3, "{way}");
    }
}

#[test]
fn a_loop_to_the_entry_is_one_run() {
    for (way, engine) in counting() {
        let text = "r0 += 1\nif r0 < 8 goto -2\nexit";
        let loader = Linker::<()>::new(&engine);
        // SAFETY: it accesses no memory and ends; r0 begins as 0.
        let loader = unsafe { loader.loader::<Raw>().unverified(true) };
        let rounds = loader.insns("rounds", assemble(text).expect("it assembles")).expect("it loads");
        assert_eq!(rounds.run(&mut (), &mut []).expect("a result"), 8, "{way}");
        assert_eq!(runs(&engine.snapshot(), "rounds"), Some(1), "{way}");
    }
}

#[test]
fn a_tail_call_is_a_run_of_its_target() {
    for (way, engine) in counting() {
        let linker = Linker::<()>::new(&engine);
        let array = ProgArray::<Raw, ()>::create(&engine, "array", 1).expect("an array");
        let text = "r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 1\nexit";
        let jumps = linker.loader::<Raw>().prog_arrays(&[&array]).insns("jumps", assemble(text).expect("it assembles"));
        let jumps = jumps.expect("it loads");
        let target = load(&engine, "target", "r0 = 7\nexit");
        assert_eq!(jumps.run(&mut (), &mut []).expect("a result"), 1, "{way}");
        array.set(0, &target).expect("a slot");
        assert_eq!(jumps.run(&mut (), &mut []).expect("a result"), 7, "{way}");
        let snapshot = engine.snapshot();
        assert_eq!((runs(&snapshot, "jumps"), runs(&snapshot, "target")), (Some(2), Some(1)), "{way}");
    }
}

#[test]
fn counters_go_on_over_a_reload_and_end_with_the_last_version() {
    for (way, engine) in counting() {
        let old = load(&engine, "version", "r0 = 1\nexit");
        old.run(&mut (), &mut []).expect("a result");
        let new = load(&engine, "version", "r0 = 2\nexit");
        drop(old);
        new.run(&mut (), &mut []).expect("a result");
        engine.reclaim();
        let snapshot = engine.snapshot();
        assert_eq!(runs(&snapshot, "version"), Some(2), "{way}");
        assert_eq!(snapshot.programs[0].versions, 1, "{way}");
        let code = new.machine_code().map_or(0, |(code, _)| code.len());
        assert_eq!(snapshot.programs[0].code_bytes as usize, code, "{way}");
        drop(new);
        engine.reclaim();
        assert_eq!(runs(&engine.snapshot(), "version"), None, "{way}");
    }
}

#[test]
fn accounts_have_counters_of_their_own() {
    for (way, engine) in counting() {
        let linker = Linker::<()>::new(&engine);
        let accounts = ["left", "right"].map(|name| engine.account(name, 1 << 20));
        let programs = accounts.each_ref().map(|account| {
            let loader = linker.loader::<Raw>().account(account);
            loader.insns("same", assemble("r0 = 1\nexit").expect("it assembles")).expect("it loads")
        });
        programs[0].run(&mut (), &mut []).expect("a result");
        let snapshot = engine.snapshot();
        let by_account: Vec<_> = snapshot.programs.iter().map(|p| (p.account.as_deref(), p.runs)).collect();
        assert_eq!(by_account, [(Some("left"), 1), (Some("right"), 0)], "{way}");
    }
}

#[test]
fn stops_are_counted_by_reason() {
    for (way, engine) in counting() {
        let mut linker = Linker::<()>::new(&engine);
        let fail = |_: &mut Caller<'_, ()>| -> Result<u64, HelperError> { Err(HelperError::new("no")) };
        linker.func(1000, "fail", fail).expect("a free id");
        let fails = assemble("call 1000\nexit").expect("it assembles");
        let fails = linker.loader::<Raw>().insns("fails", fails).expect("it loads");
        let spins = assemble("r0 = 0\nr0 += 1\nif r0 < r2 goto -2\nexit").expect("it assembles");
        let spins = linker.loader::<Raw>().hybrid(true).budget(3).insns("spins", spins).expect("it loads");
        for _ in 0..3 {
            assert!(matches!(fails.run(&mut (), &mut []), Err(RunError::Host { .. })), "{way}");
        }
        assert!(matches!(spins.run(&mut (), &mut [0; 64]), Err(RunError::Budget { .. })), "{way}");
        let snapshot = engine.snapshot();
        let stops = |name| snapshot.programs.iter().find(|p| p.program == name).expect("counted").stops;
        assert_eq!((stops("fails").host, stops("fails").budget), (3, 0), "{way}");
        assert_eq!((stops("spins").host, stops("spins").budget), (0, 1), "{way}");
    }
}

#[test]
fn time_is_sampled() {
    for (way, engine) in counting() {
        let linker = Linker::<()>::new(&engine);
        let text = "r0 = 0\nr0 += 1\nif r0 < 100000 goto -2\nexit";
        let busy = linker.loader::<Raw>().hybrid(true).insns("busy", assemble(text).expect("it assembles"));
        let busy = busy.expect("it loads");
        // Until the thread has come by during a run.
        while engine.snapshot().programs[0].time.is_zero() {
            busy.run(&mut (), &mut []).unwrap_or_else(|error| panic!("{way}: {error}"));
        }
    }
}

#[test]
fn maps_are_listed_while_they_live() {
    let engine = engine(true, |config| config);
    let object = Object::parse(include_bytes!("../objects/helpers.o")).expect("an object");
    let maps = MapSet::for_object(&engine, &object).expect("its maps");
    let instance = Linker::<()>::new(&engine).load::<Raw>(&object, maps).expect("it loads");
    let names = |snapshot: Snapshot| snapshot.maps.into_iter().map(|map| map.map).collect::<Vec<_>>();
    let known: Vec<String> = instance.maps().map(|map| map.name().to_owned()).collect();
    assert_eq!(names(engine.snapshot()), known);
    drop(instance);
    engine.reclaim();
    assert!(names(engine.snapshot()).is_empty());
}

#[test]
fn an_engine_that_does_not_count_has_no_code_for_it() {
    if Arch::HOST.is_none() {
        return;
    }
    let length = |engine: &Engine| load(engine, "seven", "r0 = 7\nexit").machine_code().expect("code").0.len();
    let (off, on) = (engine(false, |config| config), engine(true, |config| config));
    // mov and ret, and the landing pad that a platform may want before them.
    assert!(length(&off) <= 16, "{} bytes", length(&off));
    assert!(length(&on) > length(&off));
    assert!(off.snapshot().programs.is_empty() && off.snapshot().maps.is_empty());
}

#[test]
fn a_snapshot_is_serialised() {
    let engine = engine(true, |config| config);
    let seven = load(&engine, "seven", "r0 = 7\nexit");
    seven.run(&mut (), &mut []).expect("a result");
    let map = Map::create(MapDef::new("by_hand", MapType::Array, 4, 8, 1), engine.domain()).expect("a map");
    let json = serde_json::to_value(engine.snapshot()).expect("it serialises");
    assert_eq!(json["programs"][0]["program"], "seven");
    assert_eq!(json["programs"][0]["runs"], 1);
    assert_eq!(json["programs"][0]["stops"]["budget"], 0);
    drop(map);
}

/// Counters of many instances are told apart and found again, also after most are gone, and are listed in order.
#[test]
fn counters_of_many_instances_are_found_again() {
    let config = Config::new().metrics(true).max_slots(4);
    let engine = Engine::new(config).unwrap();
    let object = bpf_runtime::Object::parse(include_bytes!("../objects/instances.o")).unwrap();
    let module = Linker::<()>::new(&engine).loader::<Raw>().only(&["at"]).compile(&object).unwrap();
    let account = engine.account("some", 1 << 20);
    let make = |i: usize| {
        let name = format!("tenant {i:04}");
        let instance = module.instance().name(&name);
        if i.is_multiple_of(3) { instance.account(&account) } else { instance }.make().unwrap()
    };
    let run =
        |instance: &bpf_runtime::Instance<()>| instance.program::<Raw>("at").unwrap().run(&mut (), &mut []).unwrap();
    for _ in 0..3 {
        let many: Vec<_> = (0..300).map(make).collect();
        many.iter().for_each(|instance| assert_eq!(run(instance), 1000));
        // Another instance of a name counts in the same counters.
        let again = make(7);
        run(&again);
        let programs = engine.snapshot().programs;
        assert_eq!(programs.len(), 300);
        let runs = |programs: &[bpf_runtime::metrics::ProgramMetrics], of: &str| {
            let found = programs.iter().find(|one| one.instance.as_deref() == Some(of)).unwrap();
            (found.runs, found.versions, found.account.as_deref() == Some("some"))
        };
        assert_eq!((runs(&programs, "tenant 0007"), runs(&programs, "tenant 0009")), ((2, 2, false), (1, 1, true)));
        assert!(programs.is_sorted_by_key(|one| (one.account.clone(), one.instance.clone())));
        drop(many);
        engine.domain().drain().unwrap();
        let left = engine.snapshot().programs;
        assert_eq!((left.len(), runs(&left, "tenant 0007")), (1, (2, 1, false)));
        drop(again);
        engine.domain().drain().unwrap();
        assert!(engine.snapshot().programs.is_empty());
    }
}
