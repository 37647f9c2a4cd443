//! When resources are freed after programs, maps and engines are dropped.

use crate::common::engines;
use bpf_runtime::{
    Caller, Config, Engine, Hook, HookPolicy, Linker, Module, Object, ProgArray, Program, Raw, Tenants,
    host::Pinned,
    instances::Tenant,
    isa::assemble,
    maps::{Map, MapDef, MapType},
};
use std::any::Any;
use std::sync::{Arc, Barrier};

fn load(engine: &Engine, maps: &[&Map]) -> Program<Raw, ()> {
    let source = if maps.is_empty() { "r0 = 1\nexit" } else { "r1 = map[fd:0][0]+0\nr0 = *(u64 *)(r1 + 0)\nexit" };
    Linker::<()>::new(engine).loader::<Raw>().maps(maps).insns("one", assemble(source).unwrap()).unwrap()
}

#[test]
fn reclaiming_frees_the_code_of_programs_that_any_thread_dropped() {
    let engine = Engine::new(Config::new()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| drop([load(&engine, &[]), load(&engine, &[])]));
        }
    });
    let stats = engine.code_stats();
    assert!(stats.programs == 0 && stats.bytes_retired > 0, "{stats:?}");
    engine.reclaim();
    let stats = engine.code_stats();
    assert_eq!((stats.bytes_retired, stats.bytes_used, stats.holes), (0, 0, stats.packs), "{stats:?}");
}

#[test]
fn nothing_is_left_of_an_engine_that_is_gone() {
    let engine = Engine::new(Config::new()).unwrap();
    let map = Map::create(MapDef::new("counter", MapType::Array, 4, 8, 1), engine.domain()).unwrap();
    let program = load(&engine, &[&map]);
    assert_eq!(program.run(&mut (), &mut []).unwrap(), 0);
    let domain = Arc::downgrade(engine.domain());
    drop((program, map, engine));
    assert!(domain.upgrade().is_none());
}

/// A program with a map, a prog array and a captured value; other versions of it were in a hook and in the array.
fn used(engine: &Engine, token: &Arc<()>) -> (Program<Raw, ()>, Hook<Raw, ()>, ProgArray<Raw, ()>) {
    let map = Map::create(MapDef::new("counter", MapType::Array, 4, 8, 1), engine.domain()).unwrap();
    let hook = Hook::new(engine, HookPolicy::RunAll { result: 0 }).unwrap();
    let array = ProgArray::create(engine, "array", 4).unwrap();
    let load = |own: Option<Program<Raw, ()>>| {
        let token = Arc::clone(token);
        let mut linker = Linker::<()>::new(engine);
        let touch = move |_: &mut Caller<'_, ()>| Arc::strong_count(&token) as u64 + u64::from(own.is_some());
        linker.func(1002, "touch", touch).unwrap();
        let source = "r1 = map[fd:0][0]+0\nr0 = *(u64 *)(r1 + 0)\ncall 1002\nexit";
        linker.loader::<Raw>().maps(&[&map]).insns("one", assemble(source).unwrap()).unwrap()
    };
    let first = load(None);
    hook.attach(&first).unwrap();
    array.set(0, &first).unwrap();
    // The second program owns the first.
    let second = load(Some(first.clone()));
    hook.replace(&first, &second).unwrap();
    array.set(0, &second).unwrap();
    (second, hook, array)
}

/// A handle that keeps the domain while an engine's last handles are dropped inside a guard.
type Holder = (&'static str, fn(&Engine) -> Box<dyn Any + Send>);

/// A module of the engine, of an object with two maps.
fn module(engine: &Engine) -> Module<Raw, ()> {
    let object = Object::parse(include_bytes!("../objects/pair.o")).unwrap();
    Linker::<()>::new(engine).compile::<Raw>(&object).unwrap()
}

const HOLDERS: [Holder; 9] = [
    ("domain", |engine| Box::new(Arc::clone(engine.domain()))),
    ("map", |engine| Box::new(Map::create(MapDef::new("last", MapType::Array, 4, 8, 1), engine.domain()).unwrap())),
    ("account", |engine| Box::new(engine.account("last", 1 << 20))),
    ("pinned", |engine| Box::new(Pinned::new(engine, &7u64))),
    ("grace period", |engine| Box::new(engine.domain().start_grace_period())),
    ("module", |engine| Box::new(module(engine))),
    ("instance", |engine| Box::new(module(engine).instance().make().unwrap())),
    ("pool", |engine| Box::new(module(engine).pool(1).unwrap())),
    ("tenants", |engine| {
        let tenants = Tenants::new(&module(engine));
        tenants.admit(Tenant::new("one")).unwrap();
        Box::new(tenants)
    }),
];

/// Guards of other threads keep dropped objects, and free them when they end, since no other call may do so later.
#[test]
fn no_engine_outlives_the_guards_that_were_in_its_way() {
    let rounds = if cfg!(target_arch = "aarch64") { 20 } else { 200 };
    for mode in engines::modes() {
        let tokens = Arc::new(());
        for round in 0..rounds {
            let (name, holder) = HOLDERS[round % HOLDERS.len()];
            let engine = engines::engine(mode, |config| config);
            let domain = Arc::downgrade(engine.domain());
            let last = holder(&engine);
            let start = Arc::new(Barrier::new(3));
            let readers = [(); 2].map(|()| {
                let (start, domain) = (Arc::clone(&start), Arc::clone(engine.domain()));
                std::thread::spawn(move || {
                    start.wait();
                    for _ in 0..round % 40 {
                        drop(domain.enter().unwrap());
                    }
                })
            });
            let used = used(&engine, &tokens);
            start.wait();
            match round % 2 {
                0 => drop((used, engine)),
                _ => drop((engine, used)),
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            drop(last);
            let left = (Arc::strong_count(&tokens), domain.strong_count());
            assert_eq!(left, (1, 0), "{name}, {mode:?}, round {round}: captured values and domains");
        }
    }
}

/// A guard of the dropping thread itself, with each of the handles as the last.
#[test]
fn no_engine_outlives_its_own_threads_guard() {
    for (name, holder) in HOLDERS {
        let tokens = Arc::new(());
        let engine = engines::engine(engines::modes()[0], |config| config);
        let (last, domain) = (holder(&engine), Arc::clone(engine.domain()));
        let guard = domain.enter().unwrap();
        drop((used(&engine, &tokens), engine));
        assert!(Arc::strong_count(&tokens) > 1, "{name}: the guard is in the way");
        drop(guard);
        assert_eq!(Arc::strong_count(&tokens), 1, "{name}");
        let weak = Arc::downgrade(&domain);
        drop((domain, last));
        assert_eq!(weak.strong_count(), 0, "{name}");
    }
}
