//! Tenants of one object: admitted, upgraded and removed, all or nothing. The source of the object is
//! `objects/instances.c`.

use bpf_runtime::{
    Config, Engine, Hook, Linker, LoadError, Module, Object, Policy, ProgArray, Raw, Tenant, TenantError, Tenants,
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
    let mut config = Config::default();
    config.budget = Some(1 << 20);
    let engine = Engine::new(config).unwrap();
    let module = Linker::<()>::new(&engine).compile::<Raw>(&object()).unwrap();
    let hook = Arc::new(Hook::new(&engine, Policy::RunAll { result: 0 }).unwrap());
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
    // One tenant cannot be upgraded, so none is.
    tenants.admit(limit(1).global("step", &3u64.to_ne_bytes())).unwrap();
    let refused = tenants.upgrade(module).unwrap_err();
    assert!(matches!(&refused, TenantError::Load { name, .. } if name == "tenant 1"), "{refused}");
    assert_eq!((hook.programs().len(), service.in_array().len()), (4, 4));
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
