//! A child that is forked while other threads of its parent load is refused what it would load into an engine of its
//! parent's: no lock that one of those threads held at the fork is waited for. An engine of its own loads.
//!
//! Alone in its file (its own process), and one test.
#![cfg(all(target_os = "linux", not(miri)))]

mod common;

use bpf_runtime::{
    BpfContext, Engine, InterfaceError, Linker, LoadError, Map, MapDef, MapSet, MapType, Object, ProgArray, Program,
    Raw, RunError, Xdp, assemble, interface,
};
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
    let unverified = || unsafe { linker.loader::<Raw>().unverified() };
    let object = Object::parse(include_bytes!("objects/policy.o")).unwrap();
    let timers = Object::parse(include_bytes!("objects/timers.o")).unwrap();
    let maps = |object: &Object| MapSet::for_object(engine, object).unwrap();
    let table = PicksOps::load(linker.loader(), &object, "full", maps(&object));
    let refused = |result: Result<(), LoadError>| matches!(result, Err(LoadError::Forked));
    let loads = [
        ("insns", refused(linker.loader::<Raw>().insns("one", answer.clone()).map(drop))),
        ("bytes", refused(linker.loader::<Raw>().bytes("one", &[0x95, 0, 0, 0, 0, 0, 0, 0]).map(drop))),
        ("interpreted", refused(linker.loader::<Raw>().interpreted().insns("one", answer.clone()).map(drop))),
        ("unverified", refused(unverified().insns("one", answer).map(drop))),
        ("jumps", refused(linker.loader::<Raw>().prog_arrays(&[array]).insns("jumps", jumps).map(drop))),
        ("counts", refused(linker.loader::<Raw>().maps(&[map]).insns("counts", counts).map(drop))),
        ("object", refused(linker.load::<Xdp>(&timers, maps(&timers)).map(drop))),
        ("verify", refused(linker.loader::<Xdp>().verify(&timers, maps(&timers), false).map(drop))),
        ("table", matches!(table, Err(InterfaceError::Load(LoadError::Forked)))),
    ];
    loads.iter().find(|(_, refused)| !refused).map(|(what, _)| (*what).to_owned())
}

#[test]
fn a_child_loads_nothing_into_its_parents_engines() {
    for mode in modes() {
        let mut config = config(mode);
        config.metrics = true;
        let engine = Engine::new(config.clone()).unwrap();
        let linker = Linker::<()>::new(&engine);
        let array = ProgArray::<Raw, ()>::create(&engine, "array", 2).unwrap();
        let map = Map::create(MapDef::new("counter", MapType::Array, 4, 8, 1), engine.domain()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
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
            let mut statuses = Vec::new();
            for _ in 0..60 {
                // SAFETY: the child leaves through `_exit`, and `alarm` ends it if it waits for ever.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: changes nothing but the time at which the child ends.
                    unsafe { libc::alarm(60) };
                    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        assert_eq!(not_refused(&linker, &engine, &array, &map), None);
                        let own = Engine::new(config.clone()).unwrap();
                        let one =
                            Linker::<()>::new(&own).loader::<Raw>().insns("own", assemble("r0 = 9\nexit").unwrap());
                        assert_eq!(one.unwrap().run(&mut (), &mut []).unwrap(), 9);
                    }));
                    // SAFETY: ends the child without running the parent's destructors twice.
                    unsafe { libc::_exit(i32::from(checked.is_err())) };
                }
                let mut status = 0;
                // SAFETY: waits for our child and writes its status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                statuses.push(status);
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(statuses, [0; 60], "{mode:?}");
        });
    }
}
