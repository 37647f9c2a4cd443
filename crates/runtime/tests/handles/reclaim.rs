//! What is given back when programs, maps and engines go, and when.

use bpf_runtime::{Config, Engine, Linker, Map, MapDef, MapType, Program, Raw, assemble};
use std::sync::Arc;

fn load(engine: &Engine, maps: &[&Map]) -> Program<Raw, ()> {
    let source = if maps.is_empty() { "r0 = 1\nexit" } else { "r1 = map[fd:0][0]+0\nr0 = *(u64 *)(r1 + 0)\nexit" };
    Linker::<()>::new(engine).loader::<Raw>().maps(maps).insns("one", assemble(source).unwrap()).unwrap()
}

#[test]
fn reclaiming_frees_the_code_of_programs_that_any_thread_dropped() {
    let engine = Engine::new(Config::default()).unwrap();
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
    let engine = Engine::new(Config::default()).unwrap();
    let map = Map::create(MapDef::new("counter", MapType::Array, 4, 8, 1), engine.domain()).unwrap();
    let program = load(&engine, &[&map]);
    assert_eq!(program.run(&mut (), &mut []).unwrap(), 0);
    let domain = Arc::downgrade(engine.domain());
    drop((program, map, engine));
    assert!(domain.upgrade().is_none());
}
