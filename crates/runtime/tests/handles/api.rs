//! Handles without host state, look-ups by name, maps made by hand or taken over together, kinds and places of errors.

use crate::common::engines::engines;
use bpf_runtime::{
    Caller, Config, Engine, HelperError, Hook, HookPolicy, Instance, Linker, LoadError, MapSet, Object, Program, Raw,
    RunLimits,
    error::{LookupError, NotFound, RunErrorKind},
    isa::assemble,
    maps::{Map, MapDef, MapType},
    net::Xdp,
};
use std::time::Duration;

const INSTANCES: &[u8] = include_bytes!("../objects/instances.o");

fn load(engine: &Engine, object: &Object, maps: MapSet) -> Instance {
    Linker::new(engine).load::<Raw>(object, maps).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_host_without_state_names_none() {
    for engine in engines(|config| config) {
        let linker: Linker = Linker::new(&engine);
        let length: Program<Raw> = linker.loader().insns("length", assemble("r0 = r2\nexit").unwrap()).unwrap();
        let hook: Hook<Raw> = Hook::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        hook.attach(&length).unwrap();
        assert_eq!((length.run_on(&mut [0; 3]).unwrap(), hook.run_on(&mut [0; 5]).unwrap()), (3, 5));
    }
}

#[test]
fn a_name_that_is_not_there_is_told_with_those_that_are() {
    let engine = Engine::new(Config::new()).unwrap();
    let object = Object::parse(INSTANCES).unwrap();
    let set = || MapSet::for_object(&engine, &object).unwrap();
    let instance = load(&engine, &object, set());
    let NotFound { what, name, have, .. } = instance.map("sen").unwrap_err();
    assert_eq!((what, name.as_str()), ("map", "sen"));
    assert!(have.contains(&"seen".to_owned()) && !have.contains(&"next".to_owned()), "{have:?}");
    let LookupError::NotFound(error) = instance.program::<Raw>("entri").unwrap_err() else { panic!() };
    assert!(error.what == "program" && error.have.contains(&"entry".to_owned()), "{error}");
    let LookupError::NotFound(error) = instance.prog_array::<Raw>("seen").map(drop).unwrap_err() else { panic!() };
    assert_eq!((error.what, error.have), ("prog array", vec!["next".to_owned()]));
    assert!(matches!(instance.program::<Xdp>("entry"), Err(LookupError::ContextMismatch { .. })));
    let error = instance.prog_array::<Xdp>("next").map(drop).unwrap_err();
    assert!(matches!(&error, LookupError::ProgArray { array, .. } if array == "next"), "{error}");
    // As errors of a load, for a function that loads and looks up.
    let lookup = |name: &str| -> Result<Program<Raw>, LoadError> { Ok(load(&engine, &object, set()).program(name)?) };
    assert!(matches!(lookup("entri"), Err(LoadError::NotFound(NotFound { what: "program", .. }))));
    let other = || -> Result<Program<Xdp>, LoadError> { Ok(instance.program("entry")?) };
    assert!(matches!(other(), Err(LoadError::Lookup(LookupError::ContextMismatch { .. }))));
}

/// The program's counts in a map that a new version takes over, and in global data, which are new.
fn counted(instance: &Instance) -> (u64, u64) {
    let seen = instance.map("seen").unwrap().len();
    let total = instance.map(".bss").unwrap().get(&0u32.to_ne_bytes()).unwrap().unwrap();
    (seen, u64::from_ne_bytes(total[..8].try_into().unwrap()))
}

#[test]
fn a_new_version_takes_over_the_maps_that_both_have() {
    for engine in engines(|config| config) {
        let object = Object::parse(INSTANCES).unwrap();
        let set = || MapSet::for_object(&engine, &object).unwrap();
        let old = load(&engine, &object, set());
        old.program::<Raw>("entry").unwrap().run_on(&mut [0; 7]).unwrap();
        assert_eq!(counted(&old), (1, 7));
        let new = load(&engine, &object, set().reuse_all(&old).unwrap());
        assert_eq!(counted(&new), (1, 0));
        new.program::<Raw>("entry").unwrap().run_on(&mut [0; 9]).unwrap();
        assert_eq!((counted(&old), counted(&new)), ((2, 7), (2, 9)));
        // A setting that was made before stands.
        let migrated = set().migrate("seen", &old.map("seen").unwrap(), |_, _| None).unwrap();
        assert_eq!(counted(&load(&engine, &object, migrated.reuse_all(&old).unwrap())).0, 0);
        // The limiter has a map of the same name, but with another key.
        let limiter = Object::parse(include_bytes!("../../../../examples/limit.o")).unwrap();
        let error = MapSet::for_object(&engine, &limiter).unwrap().reuse_all(&old).unwrap_err();
        assert!(matches!(&error, LoadError::Map { map, .. } if map == "seen"), "{error}");
    }
}

#[test]
fn a_map_of_no_object_is_made_by_the_engine() {
    let config = Config::new().memory_limit(1 << 20);
    let engine = Engine::new(config).unwrap();
    let map: Map = engine.create_map(MapDef::new("quota", MapType::Hash, 4, 8, 16)).unwrap();
    map.update(&[1; 4], &[2; 8], 0).unwrap();
    assert!(map.get(&[1; 4]).unwrap() == Some(vec![2; 8]) && engine.domain().memory().used() > 0);
    assert!(engine.create_map(MapDef::new("large", MapType::Array, 4, 8, 1 << 20)).is_err());
}

#[test]
fn errors_of_runs_have_a_kind_and_a_place() {
    for engine in engines(|config| config.budget(1000).interruptible(true)) {
        let mut linker: Linker = Linker::new(&engine);
        let fails = |_: &mut Caller<'_, ()>| -> Result<u64, HelperError> { Err(HelperError::new("no")) };
        linker.func(1001, "fails", fails).unwrap();
        let load = |name: &str, text: &str| linker.loader::<Raw>().insns(name, assemble(text).unwrap()).unwrap();
        let error = load("ends", "r0 = 0\nr0 += 1\nif r0 < 9999 goto -2\nexit").run_on(&mut []).unwrap_err();
        assert_eq!((error.kind(), error.origin().unwrap().program.as_str()), (RunErrorKind::Limit, "ends"));
        assert!(error.insn().is_some_and(|insn| insn.0 == 2), "{error}");
        let error = load("asks", "call 1001\nexit").run_on(&mut []).unwrap_err();
        assert_eq!((error.kind(), error.origin().unwrap().program.as_str()), (RunErrorKind::Host, "asks"));
        let none = RunLimits::new().budget(0);
        let error = load("none", "r0 = 0\nexit").run_with(&mut (), &mut [], &none).unwrap_err();
        assert_eq!((error.kind(), error.origin(), error.insn()), (RunErrorKind::Misuse, None, None));
        // The deadline has passed before the run begins.
        let late = RunLimits::new().deadline(engine.deadline_in(Duration::ZERO).unwrap());
        let program = load("late", "r0 = 0\nexit");
        let error = loop {
            if let Err(error) = program.run_with(&mut (), &mut [], &late) {
                break error;
            }
        };
        assert_eq!((error.kind(), error.origin()), (RunErrorKind::Limit, None), "{error}");
    }
}
