//! Limits of one engine: execution slots, and the memory of its maps and prog arrays, in sum and for each.

use bpf_runtime::maps::{CreateOptions, flags, open_perf_entry};
use bpf_runtime::{
    Config, Dispatcher, Engine, EngineError, Hook, HookPolicy, Linker, LoadError, MapSet, Mode, Object, OptLevel,
    ProgArray, Raw,
    code::PackError,
    error::ProgArrayError,
    hook::{DispatcherError, HookError, ListError},
    maps::{Map, MapDef, MapError, MapType},
};

fn engine(memory: u64, object: u64) -> Engine {
    let config = Config::new().memory_limit(memory).object_memory_limit(object);
    Engine::new(config).unwrap()
}

fn array(engine: &Engine, name: &str, bytes: u32) -> Result<Map, MapError> {
    Map::create(MapDef::new(name, MapType::Array, 4, 4096, bytes / 4096), engine.domain())
}

fn prog_array(engine: &Engine, entries: u32) -> Result<ProgArray<Raw, ()>, LoadError> {
    ProgArray::create(engine, "stages", entries)
}

/// Bytes of executable memory.
fn code_memory(engine: &Engine) -> u64 {
    engine.code_stats().bytes as u64
}

const MIB: u64 = 1 << 20;

#[test]
fn more_slots_than_can_be_are_refused() {
    let mut config = Config::new();
    for asked in [u32::MAX, 65537] {
        config = config.max_slots(asked);
        let error = Engine::new(config.clone()).unwrap_err();
        assert!(matches!(error, EngineError::Slots { max: 65536, .. }), "{error}");
        assert!(error.to_string().contains(&asked.to_string()), "{error}");
    }
    // The most there can be: one map of each type and a run.
    config = config.max_slots(65536);
    let engine = Engine::new(config).unwrap();
    assert_eq!(engine.domain().max_slots(), 65536);
    for &map_type in MapType::ALL {
        let (key, value, entries) = match map_type {
            MapType::LpmTrie | MapType::SkStorage | MapType::TaskStorage => (8, 8, 10),
            MapType::Queue | MapType::Stack | MapType::BloomFilter => (0, 8, 10),
            MapType::RingBuf | MapType::UserRingBuf => (0, 0, 1 << 16),
            MapType::Arena => (0, 0, 10),
            MapType::PerfEventArray | MapType::ArrayOfMaps | MapType::HashOfMaps | MapType::XskMap => (4, 4, 10),
            MapType::InsnArray => (4, 16, 10),
            _ => (4, 8, 10),
        };
        let mut def = MapDef::new("m", map_type, key, value, entries);
        if map_type.is_map_of_maps() {
            def = def.inner(MapDef::new("inner", MapType::Array, 4, 8, 1));
        }
        if map_type == MapType::Arena {
            def = def.flags(flags::MMAPABLE);
        }
        if matches!(map_type, MapType::LpmTrie | MapType::SkStorage | MapType::TaskStorage) {
            def = def.flags(flags::NO_PREALLOC);
        }
        // Per-CPU values of so many slots may exceed the limit, which is an error then.
        let made = Map::create(def, engine.domain());
        assert!(matches!(&made, Ok(_) | Err(MapError::MemoryLimit { .. } | MapError::Unsupported { .. })), "{made:?}");
    }
    let linker = Linker::<()>::new(&engine);
    let program = linker.loader::<Raw>().insns("p", bpf_runtime::isa::assemble("r0 = 7\nexit").unwrap()).unwrap();
    assert_eq!(program.run(&mut (), &mut []).unwrap(), 7);
}

#[test]
fn maps_and_prog_arrays_share_one_limit() {
    let engine = engine(MIB, 16 * MIB);
    let used = || engine.domain().memory().used();
    let first = array(&engine, "first", 512 << 10).unwrap();
    let stages = prog_array(&engine, 32 << 10).unwrap();
    let taken = (512 << 10) + ((32 << 10) + 1) * 8;
    assert_eq!(used(), taken);

    let error = array(&engine, "second", 512 << 10).unwrap_err();
    let MapError::MemoryFull { ref map, full } = error else { panic!("{error:?}") };
    assert_eq!((map.as_str(), full.needed, full.left, full.limit), ("second", 512 << 10, MIB - taken, MIB));
    assert_eq!(error.errno(), libc::ENOMEM);
    for said in ["second", &full.needed.to_string(), &full.left.to_string(), &MIB.to_string()] {
        assert!(error.to_string().contains(said), "{error}");
    }
    let error = prog_array(&engine, 1 << 20).unwrap_err();
    let LoadError::ProgArray { ref array, source: ProgArrayError::MemoryFull(full) } = error else {
        panic!("{error:?}")
    };
    assert_eq!((array.as_str(), full.needed, full.left), ("stages", ((1 << 20) + 1) * 8, MIB - taken));
    assert!(error.to_string().contains("stages"), "{error}");

    // Dropped objects are subtracted; an entry of a perf event array counts as well.
    drop((first, stages));
    engine.reclaim();
    assert_eq!(used(), 0);
    let perf = Map::create(MapDef::new("perf", MapType::PerfEventArray, 4, 4, 8), engine.domain()).unwrap();
    let before = used();
    let consumer = open_perf_entry(&perf, 0, 512 << 10).unwrap();
    assert!(used() >= before + (512 << 10));
    let error = open_perf_entry(&perf, 1, 512 << 10).unwrap_err();
    assert!(matches!(error, MapError::MemoryFull { .. }), "{error:?}");
    drop(consumer);
    engine.reclaim();
    assert_eq!(used(), before);
    open_perf_entry(&perf, 1, 512 << 10).unwrap();
    drop(perf);
}

#[test]
fn an_object_is_limited_as_a_whole_and_map_by_map() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/xdp_filter.o");
    let object = Object::parse(&std::fs::read(path).unwrap()).unwrap();
    let load = |engine: &Engine| {
        let maps = MapSet::for_object(engine, &object).unwrap();
        Linker::<()>::new(engine).load::<bpf_runtime::net::Xdp>(&object, maps)
    };
    let roomy = engine(64 * MIB, MIB);
    let instance = load(&roomy).unwrap();
    let needed = roomy.domain().memory().used();
    let of_maps = needed - code_memory(&roomy);
    assert!(of_maps > 0);
    drop(instance);
    roomy.reclaim();
    assert_eq!(roomy.domain().memory().used(), code_memory(&roomy), "empty packs stay");

    let tight = engine(of_maps - 1, MIB);
    let error = load(&tight).map(drop).unwrap_err();
    assert!(matches!(&error, LoadError::Map { source: MapError::MemoryFull { .. }, .. }), "{error:?}");
    tight.reclaim();
    assert_eq!(tight.domain().memory().used(), 0, "nothing of it stays behind");
    load(&engine(needed, MIB)).unwrap();
    let error = load(&engine(64 * MIB, 100)).map(drop).unwrap_err();
    assert!(matches!(&error, LoadError::Map { source: MapError::MemoryLimit { limit: 100, .. }, .. }), "{error:?}");
    let small = engine(64 * MIB, 100);
    let error = prog_array(&small, 100).map(drop).unwrap_err();
    let wanted = ProgArrayError::TooLarge { needed: 808, limit: 100 };
    assert!(matches!(&error, LoadError::ProgArray { source, .. } if *source == wanted), "{error:?}");
    // Maps made by hand have their own limit beneath the engine's.
    let mut options = CreateOptions::default();
    options.memory_limit = 100;
    let def = MapDef::new("by hand", MapType::Array, 4, 8, 100);
    assert!(Map::create_with(def, small.domain(), &options).is_err());
}

#[test]
fn code_takes_memory_like_maps() {
    let program = |engine: &Engine, name: &str| {
        let code = bpf_runtime::isa::assemble("r0 = r2\nexit").unwrap();
        Linker::<()>::new(engine).loader::<Raw>().opt_level(OptLevel::None).insns(name, code)
    };
    let none = engine(1000, MIB);
    if none.config().get_mode() == Mode::Interpreter {
        return; // Nothing is executable memory on this host.
    }
    let error = program(&none, "p").map(drop).unwrap_err();
    let LoadError::Place { source, .. } = &error else { panic!("{error:?}") };
    let PackError::MemoryFull { full, .. } = source else { panic!("{error:?}") };
    assert_eq!((full.limit, full.left), (1000, 1000));
    for said in [full.needed, full.left, full.limit].map(|bytes| bytes.to_string()) {
        assert!(source.to_string().contains(&said) && error.to_string().contains(&said), "{error}");
    }
    assert_eq!(none.domain().memory().used(), 0);

    // A first pack is small, and so is a later one if there is no room for a large one. When all is taken, a program
    // fits in again as soon as another one has gone.
    let limit = 3 * (64 << 10);
    let tight = engine(limit, MIB);
    let mut programs = Vec::new();
    let error = loop {
        match program(&tight, "p") {
            Ok(program) => programs.push(program),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LoadError::Place { source: PackError::MemoryFull { .. }, .. }), "{error:?}");
    assert_eq!((code_memory(&tight), tight.domain().memory().used()), (limit, limit));
    assert!(array(&tight, "none left", 4096).is_err());
    programs.truncate(programs.len() - 64);
    tight.reclaim();
    program(&tight, "p").unwrap();

    // Lists of programs are limited, too.
    let roomy = engine(MIB, MIB);
    let attached = program(&roomy, "attached").unwrap();
    let (hook, dispatcher) = (
        Hook::<Raw, ()>::new(&roomy, HookPolicy::RunAll { result: 0 }).unwrap(),
        Dispatcher::<Raw, ()>::new(&roomy).unwrap(),
    );
    let filler = array(&roomy, "filler", 4096 * ((MIB - roomy.domain().memory().used()) / 4096) as u32).unwrap();
    let rest = MIB - roomy.domain().memory().used();
    let taken = roomy.domain().memory().reserve(rest).unwrap();
    let hook_error = hook.attach(&attached).unwrap_err();
    assert!(matches!(hook_error, HookError::List(ListError::MemoryFull { programs: 1, .. })), "{hook_error:?}");
    let error = dispatcher.attach(&attached).unwrap_err();
    assert!(matches!(error, DispatcherError::List(ListError::MemoryFull { programs: 1, .. })), "{error:?}");
    assert!(error.to_string().contains("a list of 1 programs"), "{error}");
    assert!(hook.programs().is_empty() && dispatcher.stats().entries == 0, "nothing has changed");
    drop((taken, filler));
    roomy.reclaim();
    let before = roomy.domain().memory().used();
    hook.attach(&attached).unwrap();
    dispatcher.attach(&attached).unwrap();
    roomy.reclaim();
    assert!(roomy.domain().memory().used() > before);
    assert_eq!(hook.run(&mut (), &mut [0; 3]).unwrap(), 0);
    assert_eq!(dispatcher.call(&attached, &mut (), &mut [0; 3]).unwrap(), 3);
    drop((hook, dispatcher));
    roomy.reclaim();
    assert_eq!(roomy.domain().memory().used(), code_memory(&roomy));
}
