//! A child that is forked while other threads of its parent load is refused what it would load into an engine of its
//! parent's: no lock that one of those threads held at the fork is waited for. An engine of its own loads.
//!
//! Alone in its file (its own process), and one test.
#![cfg(all(target_os = "linux", not(miri)))]

mod common;

use bpf_runtime::{
    BpfContext, Engine, Instance, InstancePool, Linker, LoadError, MapSet, Module, Object, ProgArray, Program, Raw,
    RunError, Tenants,
    error::{PoolError, ResetError},
    host::InterfaceError,
    instances::{Tenant, TenantError},
    interface,
    isa::assemble,
    maps::{Map, MapDef, MapType},
    net::Xdp,
};
use bpf_testkit::forked::{Ended, assert_ended_well, forked};
use common::engines::{config, modes};
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(BpfContext)]
#[repr(C)]
struct Conn {
    port: u32,
    #[bpf(writable)]
    seen: u32,
}

#[interface]
#[expect(dead_code, reason = "loaded, not called")]
trait Picks {
    fn pick(&mut self, conn: &mut Conn) -> Result<u32, RunError>;
    fn done(&mut self, conn: &mut Conn) -> Result<(), RunError>;
    fn weigh(&mut self, conn: &mut Conn) -> Result<i64, RunError>;
}

/// All ways to load into this engine; the first that is not refused by type.
fn not_refused(linker: &Linker<()>, engine: &Engine, array: &ProgArray<Raw, ()>, map: &Map) -> Option<String> {
    let answer = assemble("r0 = 1\nexit").unwrap();
    let jumps = assemble("r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit").unwrap();
    let counts = assemble("r1 = map[fd:0][0]+0\nr0 = *(u64 *)(r1 + 0)\nexit").unwrap();
    // SAFETY: these programs stay inside their memory, and none is run.
    let unverified = || unsafe { linker.loader::<Raw>().unverified(true) };
    let object = Object::parse(include_bytes!("objects/policy.o")).unwrap();
    let timers = Object::parse(include_bytes!("objects/timers.o")).unwrap();
    let maps = |object: &Object| MapSet::for_object(engine, object).unwrap();
    let table = PicksOps::load(linker.loader(), &object, "full", maps(&object));
    let refused = |result: Result<(), LoadError>| matches!(result, Err(LoadError::Forked));
    let loads = [
        ("insns", refused(linker.loader::<Raw>().insns("one", answer.clone()).map(drop))),
        ("bytes", refused(linker.loader::<Raw>().bytes("one", &[0x95, 0, 0, 0, 0, 0, 0, 0]).map(drop))),
        ("interpreted", refused(linker.loader::<Raw>().interpreted(true).insns("one", answer.clone()).map(drop))),
        ("unverified", refused(unverified().insns("one", answer).map(drop))),
        ("jumps", refused(linker.loader::<Raw>().prog_arrays(&[array]).insns("jumps", jumps).map(drop))),
        ("counts", refused(linker.loader::<Raw>().maps(&[map]).insns("counts", counts).map(drop))),
        ("object", refused(linker.load::<Xdp>(&timers, maps(&timers)).map(drop))),
        ("verify", refused(linker.loader::<Xdp>().verify(&timers, maps(&timers), false).map(drop))),
        ("table", matches!(table, Err(InterfaceError::Load(LoadError::Forked)))),
    ];
    loads.iter().find(|(_, refused)| !refused).map(|(what, _)| (*what).to_owned())
}

/// A module, and what its parent made of it: an instance, a pool with a clean instance, and tenants.
struct Made {
    module: Module<Raw, ()>,
    instance: Instance<()>,
    pool: InstancePool<()>,
    tenants: Tenants<Raw, ()>,
}

impl Made {
    fn new(linker: &Linker<()>) -> Made {
        let object = Object::parse(include_bytes!("objects/pair.o")).unwrap();
        let module = linker.compile::<Raw>(&object).unwrap();
        let instance = module.instance().make().unwrap();
        let (pool, tenants) = (module.pool(2).unwrap(), Tenants::new(&module));
        tenants.admit(Tenant::new("kept")).unwrap();
        Made { module, instance, pool, tenants }
    }

    /// Takes each lock that a child could wait for.
    fn use_all(&self) {
        drop(self.pool.take().unwrap());
        self.tenants.admit(Tenant::new("other")).unwrap();
        self.tenants.remove("other").unwrap();
        drop(self.module.instance().make().unwrap());
    }

    /// The first operation that is not refused by type in a forked child.
    fn not_refused(&self) -> Option<&'static str> {
        let forked = |error: &LoadError| matches!(error, LoadError::Forked);
        let pooled = |result: Result<_, PoolError>| match result.map(drop) {
            Err(PoolError::Load(error)) => forked(&error),
            _other => false,
        };
        let tenant = |result: Result<(), TenantError>| matches!(result, Err(TenantError::Forked));
        let operations = [
            ("instance", self.module.instance().make().is_err_and(|error| forked(&error))),
            ("pool", self.module.pool(1).is_err_and(|error| forked(&error))),
            ("take", pooled(self.pool.take())),
            ("admit", tenant(self.tenants.admit(Tenant::new("new")).map(drop))),
            ("remove", tenant(self.tenants.remove("kept"))),
            ("upgrade", tenant(self.tenants.upgrade(&self.module))),
            ("reset", matches!(self.instance.reset(), Err(ResetError::Forked))),
        ];
        operations.iter().find(|(_, refused)| !refused).map(|(what, _)| *what)
    }
}

#[test]
fn a_child_loads_nothing_into_its_parents_engines() {
    for mode in modes() {
        let config = config(mode).metrics(true);
        let engine = Engine::new(config.clone()).unwrap();
        let linker = Linker::<()>::new(&engine);
        let array = ProgArray::<Raw, ()>::create(&engine, "array", 2).unwrap();
        let map = Map::create(MapDef::new("counter", MapType::Array, 4, 8, 1), engine.domain()).unwrap();
        let made = Made::new(&linker);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    made.use_all();
                }
            });
            for name in ["one", "two"] {
                let (linker, engine, array, stop) = (&linker, &engine, &array, &stop);
                scope.spawn(move || {
                    let object = Object::parse(include_bytes!("objects/policy.o")).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        let jumps = assemble("r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit").unwrap();
                        let load = linker.loader::<Raw>().prog_arrays(&[array]).insns(name, jumps);
                        let load: Program<Raw, ()> = load.unwrap();
                        array.set(0, &load).unwrap();
                        let maps = MapSet::for_object(engine, &object).unwrap();
                        drop(PicksOps::load(linker.loader(), &object, "full", maps).unwrap());
                    }
                });
            }
            let mut children = Vec::new();
            // An emulator's own locks may be held at a fork, so there are few under one.
            let rounds = if bpf_testkit::emulated() { 6 } else { 60 };
            for _ in 0..rounds {
                let child = || {
                    assert_eq!(not_refused(&linker, &engine, &array, &map), None);
                    assert_eq!(made.not_refused(), None);
                    let own = Engine::new(config.clone()).unwrap();
                    let one = Linker::<()>::new(&own).loader::<Raw>().insns("own", assemble("r0 = 9\nexit").unwrap());
                    assert_eq!(one.unwrap().run(&mut (), &mut []).unwrap(), 9);
                };
                // SAFETY: the child allocates, which the C library allows, and drops nothing of its parent's.
                children.push(unsafe { forked(60, child) });
                if children.ends_with(&[Ended::Waited]) {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert_ended_well(&format!("loads in a forked child ({mode:?})"), &children);
        });
    }
}
