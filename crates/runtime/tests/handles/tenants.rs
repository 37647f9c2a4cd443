//! Tenants of one object: admitted, upgraded and removed, all or nothing. The source of the object is
//! `objects/instances.c`.

use bpf_runtime::{
    Config, Engine, Hook, HookPolicy, Linker, LoadError, Module, Object, ProgArray, Raw, RunError, Tenants,
    instances::{Tenant, TenantError},
};
use std::sync::Arc;

fn object() -> Object {
    Object::parse(include_bytes!("../objects/instances.o")).unwrap()
}

struct Service {
    engine: Engine,
    module: Module<Raw, ()>,
    hook: Arc<Hook<Raw, ()>>,
    array: Arc<ProgArray<Raw, ()>>,
    tenants: Tenants<Raw, ()>,
}

fn service() -> Service {
    let config = Config::new().budget(1 << 20);
    let engine = Engine::new(config).unwrap();
    let module = Linker::<()>::new(&engine).compile::<Raw>(&object()).unwrap();
    let hook = Arc::new(Hook::new(&engine, HookPolicy::RunAll { result: 0 }).unwrap());
    let array = Arc::new(ProgArray::create(&engine, "tenants", 4).unwrap());
    let tenants = Tenants::new(&module).in_hook(&hook, "entry").in_array(&array, "at");
    Service { engine, module, hook, array, tenants }
}

fn limit(of: u64) -> Tenant {
    Tenant::new(&format!("tenant {of}")).memory(1 << 20).slot(of as u32).global("limit", &of.to_ne_bytes())
}

impl Service {
    /// Results of the tenants' programs in their slots for a buffer of four bytes: the tenant's limit, if it is below
    /// four.
    fn in_array(&self) -> Vec<(u32, u64)> {
        let run = |program: bpf_runtime::Program<Raw, ()>| program.run(&mut (), &mut [10, 11, 12, 13]).unwrap();
        self.array.iter().map(|(slot, program)| (slot, run(program))).collect()
    }
}

#[test]
fn tenants_are_in_all_their_places_or_in_none() {
    let service = service();
    let Service { engine, hook, array, tenants, .. } = &service;
    assert!(tenants.names().is_empty());
    for of in [2, 0] {
        let instance = tenants.admit(limit(of)).unwrap();
        assert_eq!(instance.name(), Some(&*format!("tenant {of}")));
    }
    assert_eq!((service.in_array(), hook.programs().len()), (vec![(0, 10), (2, 12)], 2));
    // A refused change leaves everything as it was.
    let refused = |tenant: Tenant| tenants.admit(tenant).unwrap_err();
    assert!(matches!(refused(limit(9)), TenantError::Plan(_)), "no such slot");
    assert!(matches!(refused(Tenant::new("nowhere")), TenantError::NoSlot { .. }));
    assert!(matches!(refused(limit(1).memory(100)), TenantError::Load { .. }), "too little memory");
    assert!(matches!(refused(limit(1).global("none", &[1])), TenantError::Load { .. }));
    let constant = refused(limit(1).global("step", &5u64.to_ne_bytes()));
    let TenantError::Load { source, .. } = constant else { panic!("{constant}") };
    assert!(matches!(*source, LoadError::Constants { .. }), "{source}");
    assert!(matches!(refused(limit(2).memory(100)), TenantError::Load { .. }), "the one before stays");
    assert_eq!((service.in_array(), hook.programs().len()), (vec![(0, 10), (2, 12)], 2));
    assert_eq!(tenants.names(), ["tenant 0", "tenant 2"]);
    // The tenant is replaced, and gets another slot.
    tenants.admit(Tenant::new("tenant 2").slot(3).global("limit", &1u64.to_ne_bytes())).unwrap();
    assert_eq!((service.in_array(), hook.programs().len()), (vec![(0, 10), (3, 11)], 2));
    assert!(tenants.account("tenant 2").is_none());
    assert!(tenants.account("tenant 0").unwrap().used() > 0);
    tenants.remove("tenant 2").unwrap();
    assert!(matches!(tenants.remove("tenant 2"), Err(TenantError::Unknown { .. })));
    assert_eq!((service.in_array(), hook.programs().len()), (vec![(0, 10)], 1));
    tenants.remove("tenant 0").unwrap();
    assert!(array.iter().next().is_none() && hook.programs().is_empty());
    engine.domain().drain().unwrap();
    engine.reclaim();
    assert!(engine.usage().accounts.iter().all(|account| account.used == 0));
}

#[test]
fn an_upgrade_is_one_step_for_all() {
    let service = service();
    let Service { engine, module, hook, tenants, .. } = &service;
    (0..4).for_each(|of| drop(tenants.admit(limit(of)).unwrap()));
    let mut object = object();
    object.set_global("step", &3u64.to_ne_bytes()).unwrap();
    let newer = Linker::<()>::new(engine).compile::<Raw>(&object).unwrap();
    tenants.upgrade(&newer).unwrap();
    assert_eq!(hook.programs().len(), 4);
    assert_eq!(service.in_array(), [(0, 10), (1, 11), (2, 12), (3, 13)]);
    hook.run(&mut (), &mut [0; 1]).unwrap();
    for name in tenants.names() {
        let counts = tenants.get(&name).unwrap().map("counts").unwrap();
        assert_eq!(counts.get(&1u32.to_ne_bytes()).unwrap().unwrap(), 3u64.to_ne_bytes(), "{name}");
    }
    // One tenant's upgrade fails, so no tenant is upgraded.
    tenants.admit(limit(1).global("step", &3u64.to_ne_bytes())).unwrap();
    let refused = tenants.upgrade(module).unwrap_err();
    assert!(matches!(&refused, TenantError::Load { name, .. } if name == "tenant 1"), "{refused}");
    assert_eq!((hook.programs().len(), service.in_array().len()), (4, 4));
}

#[test]
fn a_tenant_has_its_budget_and_the_maps_it_is_given() {
    let service = service();
    let shared = service.module.instance().make().unwrap().map("counts").unwrap();
    let count = || u64::from_ne_bytes(shared.get(&1u32.to_ne_bytes()).unwrap().unwrap().try_into().unwrap());
    service.tenants.admit(limit(0).map("counts", &shared)).unwrap();
    service.tenants.admit(limit(1)).unwrap();
    service.hook.run(&mut (), &mut [0; 1]).unwrap();
    assert_eq!(count(), 2, "one of the two counts there");
    service.tenants.upgrade(&service.module).unwrap();
    service.hook.run(&mut (), &mut [0; 1]).unwrap();
    assert_eq!(count(), 4, "a new version counts there, too");

    let mut object = Object::parse(include_bytes!("../objects/config.o")).unwrap();
    // A round for each of at most 64 bytes.
    object.set_global("mode", &1u32.to_ne_bytes()).unwrap();
    let module = Linker::<()>::new(&service.engine).compile::<Raw>(&object).unwrap();
    let hook = Arc::new(Hook::new(&service.engine, HookPolicy::RunAll { result: 0 }).unwrap());
    let tenants = Tenants::new(&module).in_hook(&hook, "entry");
    tenants.admit(Tenant::new("small").budget(3)).unwrap();
    tenants.admit(Tenant::new("large").budget(300)).unwrap();
    for _ in 0..2 {
        let run = |name: &str| {
            let program = tenants.get(name).unwrap().program::<Raw>("entry").unwrap();
            program.run(&mut (), &mut [1; 60])
        };
        assert!(matches!(run("small"), Err(RunError::Budget { .. })));
        run("large").unwrap();
        let RunError::Budget { origin: Some(origin), .. } = hook.run(&mut (), &mut [1; 60]).unwrap_err() else {
            panic!("no budget")
        };
        assert_eq!(origin.instance.as_deref(), Some("small"));
        tenants.upgrade(&module).unwrap();
    }
    assert!(matches!(tenants.admit(Tenant::new("none").budget(0)), Err(TenantError::Load { .. })));
}

/// The destructor of a captured value looks at the tenants, and begins a change, in the middle of a change.
#[test]
fn code_of_the_host_may_use_the_tenants_in_the_middle_of_a_change() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, Weak};

    type Shared = Arc<(Mutex<Weak<Tenants<Raw, ()>>>, AtomicUsize)>;

    /// Captured by a host function of each version.
    struct Dropped(Shared, bool);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let tenants = self.0.0.lock().unwrap().upgrade();
            if let Some(tenants) = tenants {
                for name in tenants.names() {
                    assert!(tenants.get(&name).is_some() && tenants.account(&name).is_none());
                }
                let changed = tenants.remove("nobody");
                assert!(matches!(changed, Err(TenantError::Changing | TenantError::Unknown { .. })), "{changed:?}");
                self.0.1.fetch_add(1, Ordering::Relaxed);
                if self.1 {
                    std::panic::resume_unwind(Box::new("in the middle"));
                }
            }
        }
    }
    for panics in [false, true] {
        let engine = Engine::new(Config::new()).unwrap();
        let hook = Arc::new(Hook::new(&engine, HookPolicy::RunAll { result: 0 }).unwrap());
        let shared: Shared = Arc::default();
        let queue = || {
            let dropped = Dropped(Arc::clone(&shared), panics);
            engine.domain().enqueue(move || drop(dropped));
        };
        let module = Linker::<()>::new(&engine).compile::<Raw>(&object()).unwrap();
        let tenants = Arc::new(Tenants::new(&module).in_hook(&hook, "entry"));
        *shared.0.lock().unwrap() = Arc::downgrade(&tenants);
        let change = |change: &dyn Fn() -> Result<(), TenantError>, done: &dyn Fn() -> bool| {
            // Dropped by whatever runs deferred drops first: an instance that is made, the plan, an old instance.
            (0..3).for_each(|_| queue());
            // A change that meets a panic before its plan is carried out changes nothing; then it may be made again.
            for _ in 0..8 {
                match std::panic::catch_unwind(std::panic::AssertUnwindSafe(change)) {
                    Ok(result) => result.unwrap(),
                    Err(_) => assert!(panics),
                }
                assert_eq!(hook.programs().len(), tenants.names().len());
                if done() {
                    return;
                }
            }
            panic!("the change is never made");
        };
        let id = || tenants.get("one").map(|instance| instance.map("counts").unwrap().id());
        change(&|| tenants.admit(Tenant::new("one")).map(drop), &|| id().is_some());
        let first = id();
        change(&|| tenants.admit(Tenant::new("one")).map(drop), &|| id() != first);
        let second = id();
        change(&|| tenants.upgrade(&module), &|| id() != second);
        change(&|| tenants.remove("one"), &|| id().is_none());
        while std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.domain().drain())).is_err() {}
        assert!(shared.1.load(Ordering::Relaxed) > 3 && hook.programs().is_empty());
    }
}

#[test]
fn threads_admit_run_and_remove_tenants() {
    let service = service();
    std::thread::scope(|scope| {
        for of in 0..4 {
            let service = &service;
            scope.spawn(move || {
                for _ in 0..100 {
                    service.tenants.admit(limit(of)).unwrap();
                    service.hook.run(&mut (), &mut [0; 2]).unwrap();
                    if of == 0 {
                        service.tenants.upgrade(&service.module).unwrap();
                    }
                    let instance = service.tenants.get(&format!("tenant {of}")).unwrap();
                    assert_eq!(instance.program::<Raw>("at").unwrap().run(&mut (), &mut [7; 5]).unwrap(), 7);
                    service.tenants.remove(&format!("tenant {of}")).unwrap();
                }
            });
        }
    });
    assert!(service.tenants.names().is_empty() && service.hook.programs().is_empty());
    assert!(service.array.iter().next().is_none());
}
