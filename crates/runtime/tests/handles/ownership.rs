//! Ownership: an object of one engine, or of one ELF object, is refused by another at every place where the two meet.

use crate::common::{Fixture, Words, fixture, fixtures};
use bpf_runtime::{
    Caller, Config, Dispatcher, Engine, HelperError, Hook, HookPolicy, Linker, LoadError, MapSet, Mode, Object,
    ProgArray, Program, Raw, RunError,
    error::ProgArrayError,
    hook::{DispatcherError, HookError},
    host::{Pinned, PinnedMap},
    isa::assemble,
    maps::{Map, MapDef, MapError, MapType},
    memory::OtherDomain,
    net::Xdp,
};

fn program(f: &Fixture, name: &str) -> Program<Words, u64> {
    f.load(name, "r0 = 1\nexit", &[])
}

fn foreign(what: &'static str, name: &str) -> OtherDomain {
    OtherDomain { what, name: name.to_owned() }
}

fn is_foreign(error: &LoadError) -> bool {
    matches!(error, LoadError::OtherDomain(_))
}

/// Two engines of a kind.
fn pairs() -> impl Iterator<Item = (Fixture, Fixture)> {
    fixtures().into_iter().map(|f| {
        let other = fixture(f.name);
        (f, other)
    })
}

#[test]
fn prog_arrays_of_another_engine_are_refused() {
    let jumper = "r6 = r1\nr2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit";
    for (f, other) in pairs() {
        let array = other.array(1);
        let load = || f.linker.loader::<Words>().prog_arrays(&[&array]).insns("jumper", assemble(jumper).unwrap());
        assert!(is_foreign(&load().unwrap_err()), "{}", f.name);
        // An array of another engine is refused also if no instruction of the program names it.
        let none = f.linker.loader::<Words>().prog_arrays(&[&array]).insns("none", assemble("r0 = 0\nexit").unwrap());
        assert!(is_foreign(&none.unwrap_err()), "{}", f.name);

        let own = f.array(1);
        let stranger = program(&other, "stranger");
        let refused = Err(ProgArrayError::OtherDomain(foreign("program", "stranger")));
        assert_eq!(own.set(0, &stranger), refused, "{}", f.name);
        assert_eq!(own.update([(0, Some(&program(&f, "own"))), (0, Some(&stranger))]), refused, "{}", f.name);
        assert!(own.get(0).is_none(), "{}", f.name);
    }
}

#[test]
fn hooks_and_dispatchers_take_programs_of_their_engine() {
    for (f, other) in pairs() {
        let (own, stranger) = (program(&f, "own"), program(&other, "stranger"));
        let hook = Hook::<Words, u64>::new(&f.engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        hook.attach(&own).unwrap();
        let refused = || Err(HookError::OtherDomain(foreign("program", "stranger")));
        assert_eq!(hook.attach(&stranger), refused(), "{}", f.name);
        assert_eq!(hook.attach_at(0, &stranger), refused(), "{}", f.name);
        assert_eq!(hook.replace(&own, &stranger), refused(), "{}", f.name);
        assert!(matches!(hook.detach(&stranger), Err(HookError::NotAttached { .. })), "{}", f.name);

        let dispatcher = Dispatcher::<Words, u64>::new(&f.engine).unwrap();
        let error = dispatcher.attach(&stranger).unwrap_err();
        assert!(matches!(&error, DispatcherError::OtherDomain(_)), "{error}");
        let error = dispatcher.test_run(&stranger, &mut 0, &mut Words { words: [0; 4] }, 1).unwrap_err();
        assert!(matches!(&error, DispatcherError::OtherDomain(_)), "{error}");
        // A call names its program, and runs it under its own engine's guard.
        assert_eq!(dispatcher.call(&stranger, &mut 0, &mut Words { words: [0; 4] }).unwrap(), 1, "{}", f.name);
        dispatcher.set_hits(&[(&stranger, 1)]).unwrap();
    }
}

fn engine(mode: Mode, max_slots: u32) -> Engine {
    let config = Config::new().mode(mode).max_slots(max_slots);
    Engine::new(config).unwrap()
}

fn modes() -> impl Iterator<Item = Mode> {
    [Some(Mode::Interpreter), bpf_runtime::code::Arch::HOST.map(|_| Mode::Jit)].into_iter().flatten()
}

#[test]
fn maps_and_map_sets_of_another_engine_are_refused() {
    let objects: [&[u8]; 2] = [include_bytes!("../objects/maps.o"), include_bytes!("../objects/helpers.o")];
    for mode in modes() {
        // With more slots than the other has elements in its per-CPU maps.
        let (mine, theirs) = (engine(mode, 64), engine(mode, 1));
        let linker = Linker::<()>::new(&mine);
        for object in objects {
            let object = Object::parse(object).unwrap();
            // Prog arrays, per-CPU maps, maps of maps and their inner maps: the set makes them all, in its engine.
            let set = || MapSet::for_object(&theirs, &object).unwrap();
            assert!(is_foreign(&linker.load::<Raw>(&object, set()).unwrap_err()));
            assert!(is_foreign(&linker.loader::<Raw>().verify(&object, set(), false).unwrap_err()));
            assert!(is_foreign(&linker.loader::<Raw>().interpreted(true).object(&object, set()).unwrap_err()));

            let name = object.maps()[0].name.as_str();
            let instance = Linker::<()>::new(&theirs).load::<Raw>(&object, set()).unwrap();
            let reused = MapSet::for_object(&mine, &object).unwrap().reuse(name, &instance.map(name).unwrap());
            assert!(is_foreign(&reused.unwrap_err()));
        }
        let map = Map::create(MapDef::new("counts", MapType::PerCpuArray, 4, 8, 1), theirs.domain()).unwrap();
        let insns = assemble("r1 = map[fd:0]\nr0 = 0\nexit").unwrap();
        assert!(is_foreign(&linker.loader::<Raw>().maps(&[&map]).insns("count", insns).unwrap_err()));

        let template = MapDef::new("inner", MapType::Array, 4, 8, 1);
        let outer = MapDef::new("outer", MapType::ArrayOfMaps, 4, 4, 1).inner(template.clone());
        let outer = Map::create(outer, mine.domain()).unwrap();
        let inner = Map::create(template, theirs.domain()).unwrap();
        assert_eq!(outer.set_inner(&[0; 4], &inner, 0), Err(MapError::OtherDomain(foreign("map", "inner"))));
    }
}

#[test]
fn prog_arrays_in_a_map_set_of_another_engine_are_refused() {
    let object = Object::parse(include_bytes!("../objects/stopped.o")).unwrap();
    for mode in modes() {
        let (mine, theirs) = (engine(mode, 64), engine(mode, 64));
        let maps = MapSet::for_object(&theirs, &object).unwrap();
        assert!(is_foreign(&Linker::<()>::new(&mine).load::<Xdp>(&object, maps).unwrap_err()));
    }
}

#[test]
fn memory_of_another_engine_is_not_returned_to_programs() {
    for mode in modes() {
        let (mine, theirs) = (engine(mode, 64), engine(mode, 1));
        let mut linker = Linker::<()>::new(&mine);
        let pinned = Pinned::new(&theirs, &1u64);
        let returns = move |_: &mut Caller<'_, ()>| Some(pinned.clone());
        linker.func(1001, "pinned", returns).unwrap();
        let map = Map::create(MapDef::new("counts", MapType::PerCpuArray, 4, 8, 1), theirs.domain()).unwrap();
        let map: PinnedMap<u32, u64> = PinnedMap::new(&map).unwrap();
        linker.func(1002, "value", move |c: &mut Caller<'_, ()>| map.lookup(c, &0)).unwrap();
        for id in [1001, 1002] {
            let insns = assemble(&format!("call {id}\nr0 = 0\nexit")).unwrap();
            let error = linker.loader::<Raw>().insns("p", insns).unwrap().run(&mut (), &mut []).unwrap_err();
            let RunError::Host { source: HelperError::Failed(cause), .. } = &error else { panic!("{error}") };
            assert!(cause.is::<OtherDomain>(), "{error}");
        }
    }
}

#[test]
fn a_map_set_of_another_object_is_refused() {
    let all: [&[u8]; 3] = [
        include_bytes!("../objects/maps.o"),
        include_bytes!("../objects/helpers.o"),
        include_bytes!("../objects/lookups.o"),
    ];
    let objects = all.map(|bytes| Object::parse(bytes).unwrap());
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    for (i, object) in objects.iter().enumerate() {
        for (j, other) in objects.iter().enumerate() {
            let result = linker.load::<Raw>(object, MapSet::for_object(&engine, other).unwrap());
            match i == j {
                true => drop(result.unwrap()),
                false => assert!(matches!(result.unwrap_err(), LoadError::MapSet { .. }), "{i} {j}"),
            }
        }
        // A second parse of the same bytes counts as the same object.
        let again = Object::parse(all[i]).unwrap();
        linker.load::<Raw>(&again, MapSet::for_object(&engine, object).unwrap()).unwrap();
    }
}

/// Where a map's definition or what it starts with is all that differs.
#[test]
fn a_map_set_of_another_version_of_the_object_is_refused() {
    let bytes = include_bytes!("../objects/config.o");
    let object = Object::parse(bytes).unwrap();
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let data = object.maps().iter().find_map(|map| map.data.as_ref()).expect("global data").bytes.clone();
    let at = bytes.windows(data.len()).position(|window| window == data).expect("its initial bytes");
    let mut other = bytes.to_vec();
    other[at] ^= 1;
    let other = Object::parse(&other).unwrap();
    let error = linker.load::<Raw>(&object, MapSet::for_object(&engine, &other).unwrap()).unwrap_err();
    assert!(matches!(error, LoadError::MapSet { .. }), "{error}");
}

#[test]
fn a_refused_update_leaves_a_prog_array_unbound() {
    for (f, other) in pairs() {
        let array = f.array(2);
        let stranger = program(&other, "stranger");
        // The first change would be fine, the second is not.
        for batch in
            [[(0, Some(&program(&f, "own"))), (1, Some(&stranger))], [(0, Some(&program(&f, "own"))), (2, None)]]
        {
            array.update(batch).unwrap_err();
            assert!(array.iter().next().is_none(), "{}", f.name);
        }
        // So the array is free for the other mode.
        let insns = assemble("r0 = 2\nexit").unwrap();
        array.set(0, &f.linker.loader::<Words>().interpreted(true).insns("interpreted", insns).unwrap()).unwrap();
    }
}

#[test]
fn a_refused_load_leaves_its_prog_arrays_unbound() {
    // With a frame that a helper writes to: without one, the program needs no machine stack on arm64.
    let jumper = "r6 = r1\nr1 = r10\nr1 += -8\nr2 = 8\ncall 16\nr1 = r6\nr2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit";
    for max_machine_stack in [1, 1 << 16] {
        if !modes().any(|mode| mode == Mode::Jit) {
            return;
        }
        let config = Config::new().mode(Mode::Jit).max_machine_stack(max_machine_stack);
        let engine = Engine::new(config).unwrap();
        let linker = Linker::<()>::new(&engine);
        let [first, second] = ["first", "second"].map(|name| ProgArray::<Words, ()>::create(&engine, name, 1).unwrap());
        let load = |arrays: &[&ProgArray<Words, ()>], interpreted: bool| {
            let loader = linker.loader::<Words>().prog_arrays(arrays);
            let loader = loader.interpreted(interpreted);
            loader.insns("jumper", assemble(jumper).unwrap())
        };
        if max_machine_stack == 1 {
            // Refused when its machine stack is known, which is after compilation.
            assert!(matches!(load(&[&first], false), Err(LoadError::Stack { .. })));
        } else {
            // Refused for its second array.
            load(&[&second], true).unwrap();
            let error = load(&[&first, &second], false).unwrap_err();
            assert!(matches!(error, LoadError::ProgArray { source: ProgArrayError::Mode, .. }), "{error}");
        }
        // So the first is free for the other mode.
        load(&[&first], true).unwrap();
    }
}
