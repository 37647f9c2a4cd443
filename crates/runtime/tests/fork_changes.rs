//! A child that is forked while other threads of its parent change hooks, dispatchers and prog arrays is refused what
//! it would change of them, and may look at them: no lock that one of those threads held at the fork is waited for.
//!
//! Alone in its file (its own process), and one test.
#![cfg(all(target_os = "linux", not(miri)))]

mod common;

use bpf_runtime::{
    BpfContext, Dispatcher, Hook, HookPolicy, Linker, LoadError, MapSet, Object, Plan, ProgArray, Program, Raw,
    RunError, Tenants,
    code::PackError,
    error::{PoolError, ProgArrayError, ResetError},
    hook::{DispatcherError, HookError, PlanError},
    host::InterfaceError,
    instances::{Tenant, TenantError},
    interface,
    isa::assemble,
};
use bpf_testkit::forked::{Ended, assert_ended_well, forked};
use common::engines::engines;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(BpfContext)]
#[repr(C)]
struct Conn {
    port: u32,
    #[bpf(writable)]
    seen: u32,
}

#[interface]
#[expect(dead_code, reason = "replaced, not called")]
trait Picks {
    fn pick(&mut self, conn: &mut Conn) -> Result<u32, RunError>;
    fn done(&mut self, conn: &mut Conn) -> Result<(), RunError>;
    fn weigh(&mut self, conn: &mut Conn) -> Result<i64, RunError>;
}

#[test]
fn a_child_changes_nothing_of_its_parents() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let load = || -> Program<Raw, ()> { linker.loader().insns("one", assemble("r0 = 1\nexit").unwrap()).unwrap() };
        let (here, there) = (load(), load());
        let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::RunAll { result: 0 }).unwrap();
        let dispatcher = Dispatcher::<Raw, ()>::new(&engine).unwrap();
        let array = ProgArray::<Raw, ()>::create(&engine, "array", 2).unwrap();
        let jumps = assemble("r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit").unwrap();
        // Sites to be patched, so that changes take their time.
        let jumps = || linker.loader::<Raw>().prog_arrays(&[&array]).insns("jumps", jumps.clone()).unwrap();
        let _jumps: Vec<_> = (0..4).map(|_| jumps()).collect();
        let object = Object::parse(include_bytes!("objects/policy.o")).unwrap();
        let table = || {
            let maps = MapSet::for_object(&engine, &object).unwrap();
            PicksOps::load(linker.loader(), &object, "full", maps).unwrap()
        };
        let (table, other) = (table(), table());
        let object = Object::parse(include_bytes!("objects/pair.o")).unwrap();
        let module = linker.compile::<Raw>(&object).unwrap();
        let (instance, pool) = (module.instance().make().unwrap(), module.pool(2).unwrap());
        let in_hook = Arc::new(Hook::<Raw, ()>::new(&engine, HookPolicy::RunAll { result: 0 }).unwrap());
        let tenants = Tenants::new(&module).in_hook(&in_hook, "entry");
        tenants.admit(Tenant::new("stays")).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    hook.attach(&there).unwrap();
                    dispatcher.attach(&there).unwrap();
                    array.set(0, &there).unwrap();
                    array.clear(0).unwrap();
                    table.replace(&other).unwrap();
                    dispatcher.detach(&there).unwrap();
                    hook.detach(&there).unwrap();
                    tenants.admit(Tenant::new("comes and goes")).unwrap();
                    tenants.remove("comes and goes").unwrap();
                    drop(pool.take().unwrap());
                }
            });
            let refused = |change: usize| match change {
                0 => matches!(hook.attach(&here), Err(HookError::Image(PackError::Forked))),
                1 => matches!(dispatcher.attach(&here), Err(DispatcherError::Image(PackError::Forked))),
                2 => matches!(array.set(0, &here), Err(ProgArrayError::Text(_))),
                3 => matches!(table.replace(&other), Err(InterfaceError::Forked)),
                4 => matches!(instance.reset(), Err(ResetError::Forked)),
                5 => matches!(module.instance().make(), Err(LoadError::Forked)),
                6 => matches!(pool.take(), Err(PoolError::Load(error)) if matches!(*error, LoadError::Forked)),
                7 => matches!(tenants.admit(Tenant::new("new")), Err(TenantError::Forked)),
                8 => matches!(tenants.remove("stays"), Err(TenantError::Forked)),
                9 => matches!(tenants.upgrade(&module), Err(TenantError::Forked)),
                10 => matches!(Plan::new().set(&array, 0, &here).commit(), Err(PlanError::ProgArray { .. })),
                _ => matches!(Plan::new().attach(&hook, &here).commit(), Err(PlanError::Hook { hook: 0, .. })),
            };
            // Functions that only read return the state at the fork, or nothing.
            let looks = || {
                let hook_programs = hook.programs().len().max(hook.statistics().len());
                let seen = hook_programs.max(dispatcher.stats().entries).max(array.iter().count());
                let weight = table.setting("weight");
                weight.is_some_and(|weight| weight == 5u32.to_ne_bytes())
                    && table.instance().maps().count() == 1
                    && seen <= 2
                    && array.get(0).is_none_or(|program| program.name() == "one")
                    && array.tracked_sites(0) <= 4
                    && matches!(tenants.names().len(), 0..=2)
                    && tenants.get("stays").is_none_or(|instance| instance.name() == Some("stays"))
            };
            let mut children = Vec::new();
            for round in 0..60 {
                let mut lent = Some(pool.take().unwrap());
                let mut plan = Some(Plan::new().set(&array, 1, &here).commit().unwrap());
                let child = || {
                    assert!((0..12).all(|change| refused((round + change) % 12)) && looks());
                    // An instance of the parent's pool does not go back in the child.
                    drop(lent.take());
                    assert!(matches!(plan.take().unwrap().roll_back(), Err(PlanError::ProgArray { .. })));
                };
                // SAFETY: the child allocates, which the C library allows; the parent keeps what the child takes.
                children.push(unsafe { forked(20, child) });
                plan.unwrap().roll_back().unwrap();
                if children.ends_with(&[Ended::Waited]) {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert_ended_well("changes in a forked child", &children);
        });
    }
}
