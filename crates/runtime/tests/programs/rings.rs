//! Ring buffers, user ring buffers and perf event arrays end to end: C source, verified load, run, and the host's typed
//! consumer, on both engines. The source is `objects/rings.c`.

use crate::support::ways::{self, WAYS, Way, run};
use bpf_runtime::maps::{RingBuf, UserRingBuf, open_perf_entry};
use bpf_runtime::{
    Engine, Instance, Linker, LoadError, MapSet, Object, Raw, RunError,
    isa::assemble,
    net::{Xdp, XdpBuff},
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn object() -> Object {
    Object::parse(include_bytes!("../objects/rings.o")).unwrap()
}

fn load(way: Way) -> (Engine, Instance<()>) {
    ways::loaded(way, &object())
}

/// Returns all records that the consumer gets until the ring is empty.
fn drain(ring: &mut RingBuf) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    ring.consume(|bytes| {
        records.push(bytes.to_vec());
        true
    });
    records
}

fn event(id: u64, len: u32, first: [u8; 4]) -> Vec<u8> {
    [&id.to_ne_bytes()[..], &len.to_ne_bytes(), &first].concat()
}

#[test]
fn records_reach_the_consumer_in_order() {
    for way in WAYS {
        let (_engine, instance) = load(way);
        let mut ring = RingBuf::new(&instance.map("events").unwrap()).unwrap();
        assert_eq!(run(&instance, "emit", &[1, 2, 3]), 1, "{way:?}: too short");
        assert_eq!(run(&instance, "emit", &[1, 2, 3, 4]), 0, "{way:?}");
        assert_eq!(run(&instance, "emit", &[0, 2, 3, 4]), 0, "{way:?}: discarded");
        assert_eq!(run(&instance, "emit", &[9; 100]), 0, "{way:?}");
        // Two records of 24 bytes and the discarded one lie in the ring of 4096.
        assert_eq!(run(&instance, "query", &[]), 4096 << 32 | 72 << 8, "{way:?}");
        assert_eq!(drain(&mut ring), [event(0, 4, [1, 2, 3, 4]), event(2, 100, [9; 4])], "{way:?}");
        assert_eq!(run(&instance, "query", &[]), 4096 << 32, "{way:?}");
        assert_eq!(run(&instance, "output", &[0; 5]), 0, "{way:?}");
        assert_eq!(run(&instance, "output", &[]), 0, "{way:?}: an empty record");
        assert_eq!(drain(&mut ring), [&b"01234"[..], b""], "{way:?}");
        assert_eq!(run(&instance, "bad_flags", &[]), -i64::from(libc::EINVAL) as u64, "{way:?}");
    }
}

#[test]
fn a_full_ring_refuses_and_counts() {
    for way in WAYS {
        let (_engine, instance) = load(way);
        let mut ring = RingBuf::new(&instance.map("events").unwrap()).unwrap();
        let mut sent = 0u64;
        while run(&instance, "emit", &[1; 4]) == 0 {
            sent += 1;
        }
        // The kernel's rule: 170 records of 24 bytes leave no room for one more, as positions may not meet.
        assert_eq!(sent, 4095 / 24, "{way:?}");
        assert_eq!(run(&instance, "emit", &[1; 4]), 2, "{way:?}");
        assert_eq!(ring.lost(), 2, "{way:?}");
        assert_eq!(drain(&mut ring).len() as u64, sent, "{way:?}");
        assert_eq!(run(&instance, "emit", &[1; 4]), 0, "{way:?}: there is room again");
    }
}

/// Many producers and a consumer that sleeps: nothing is lost without being counted, and nothing is torn.
#[test]
fn producers_on_threads_wake_the_consumer() {
    for way in [Way::Verified, Way::VerifiedInterpreted] {
        let (_engine, instance) = load(way);
        let mut ring = RingBuf::new(&instance.map("events").unwrap()).unwrap();
        let (threads, each) = (4u64, 2000u64);
        let refused = std::thread::scope(|scope| {
            let producers: Vec<_> = (0..threads)
                .map(|thread| {
                    let instance = &instance;
                    scope.spawn(move || {
                        let mut refused = 0;
                        for _ in 0..each {
                            let byte = thread as u8 + 1;
                            refused += u64::from(run(instance, "emit", &[byte; 4]) == 2);
                        }
                        refused
                    })
                })
                .collect();
            let mut got = 0;
            let mut idle = 0;
            while idle < 2 {
                idle = if ring.poll(Some(Duration::from_millis(200))).unwrap() { 0 } else { idle + 1 };
                got += ring.consume(|bytes| {
                    let first = &bytes[12..];
                    assert!(first.iter().all(|b| *b == first[0]) && (1..=threads as u8).contains(&first[0]));
                    true
                }) as u64;
                if producers.iter().any(|p| !p.is_finished()) {
                    idle = 0;
                }
            }
            let refused: u64 = producers.into_iter().map(|p| p.join().unwrap()).sum();
            assert_eq!(got + refused, threads * each, "{way:?}");
            refused
        });
        assert_eq!(ring.lost(), refused, "{way:?}");
    }
}

#[test]
fn perf_events_carry_what_the_flags_ask_for() {
    for way in WAYS {
        let (engine, instance) = load(way);
        let map = instance.map("perf").unwrap();
        let errno = |n: i32| -i64::from(n) as u64;
        assert_eq!(run(&instance, "perf_event", &[0]), errno(libc::ENOENT), "{way:?}: no entry is open");
        // The slot of this thread.
        let slots = engine.domain().max_slots();
        let mut entries: Vec<RingBuf> = (0..slots.min(64)).map(|i| open_perf_entry(&map, i, 4096).unwrap()).collect();
        assert_eq!(run(&instance, "perf_event", &[0, 7]), 0, "{way:?}");
        assert_eq!(run(&instance, "perf_event", &[2, 7, 8]), 0, "{way:?}");
        assert_eq!(run(&instance, "perf_event", &[4, 7, 8]), errno(libc::EFAULT), "{way:?}: more than the context has");
        let value = 0x1122_3344_5566_7788u64.to_ne_bytes();
        let all: Vec<Vec<u8>> = entries.iter_mut().flat_map(drain).collect();
        assert_eq!(all, [value.to_vec(), [&value[..], &[2, 7]].concat()], "{way:?}");
    }
}

/// The packet, as it is after its head was moved, is appended to XDP events.
#[test]
fn perf_events_of_xdp_carry_the_packet() {
    let source = "r6 = r1
        r1 = r6
        r2 = -2
        call 44
        *(u64 *)(r10 - 8) = 258
        r1 = r6
        r2 = map[fd:0]
        r3 = 0x3ffffffff ll
        r4 = r10
        r4 += -8
        r5 = 2
        call 25
        r0 = 2
        exit";
    for way in [Way::Verified, Way::VerifiedInterpreted] {
        let engine = ways::engine(way, |config| config);
        let linker = Linker::<()>::new(&engine);
        let def = bpf_runtime::maps::MapDef::new("perf", bpf_runtime::maps::MapType::PerfEventArray, 4, 4, 64);
        let map = bpf_runtime::maps::Map::create(def, engine.domain()).unwrap();
        let program = linker.loader::<Xdp>().maps(&[&map]).insns("test", assemble(source).unwrap()).unwrap();
        let slots = engine.domain().max_slots();
        let mut entries: Vec<RingBuf> = (0..slots.min(64)).map(|i| open_perf_entry(&map, i, 4096).unwrap()).collect();
        let mut buffer: Vec<u8> = (0..40).collect();
        let mut buff = XdpBuff::with_room(&mut buffer, 10, 20);
        assert_eq!(program.run(&mut (), &mut buff).unwrap(), 2);
        let all: Vec<Vec<u8>> = entries.iter_mut().flat_map(drain).collect();
        assert_eq!(all, [[2, 1, 8, 9, 10]], "{way:?}");
    }
}

#[test]
fn programs_drain_what_the_host_produces() {
    for way in WAYS {
        let (_engine, instance) = load(way);
        let mut orders = UserRingBuf::new(&instance.map("orders").unwrap()).unwrap();
        assert_eq!(run(&instance, "drain", &[]), 0, "{way:?}");
        let mut send = |bytes: &[u8], submit: bool| {
            let mut sample = orders.reserve(bytes.len() as u32).unwrap();
            sample.copy_from_slice(bytes);
            if submit {
                sample.submit();
            }
        };
        send(&5u32.to_ne_bytes(), true);
        send(&1000u32.to_ne_bytes(), false);
        send(&[1, 2], true);
        send(&37u64.to_ne_bytes(), true);
        send(&99u32.to_ne_bytes(), true);
        send(&7u32.to_ne_bytes(), true);
        // Five, the one that is too short, 37 and 99, which stops; the discarded one does not count.
        assert_eq!(run(&instance, "drain", &[]), 4 << 48 | 1 << 32 | (5 + 37 + 99), "{way:?}");
        assert_eq!(run(&instance, "drain", &[]), 1 << 48 | 7, "{way:?}");
    }
}

/// A run that is stopped between reserve and submit leaves nothing that the consumer would wait for.
#[test]
fn a_stopped_run_gives_its_record_up() {
    for way in WAYS {
        let engine = ways::engine(way, |config| config.budget(10_000));
        let instance = ways::instance(&engine, way, &object());
        let mut ring = RingBuf::new(&instance.map("events").unwrap()).unwrap();
        let stuck = instance.program::<Raw>("stuck").unwrap();
        for _ in 0..3 {
            assert!(matches!(stuck.run(&mut (), &mut []), Err(RunError::Budget { .. })), "{way:?}");
        }
        assert_eq!(run(&instance, "emit", &[3; 4]), 0, "{way:?}");
        assert_eq!(drain(&mut ring), [event(0, 4, [3; 4])], "{way:?}");
    }
}

/// A run has room for so many records; one more is refused like one that finds the ring full.
#[test]
fn a_run_holds_fifteen_records() {
    let mut text = String::new();
    for i in 0..16 {
        let at = 8 * (i + 1);
        text += &format!(
            "r6 = {i}; r1 = map[fd:0]; r2 = 8; r3 = 0; call 131; if r0 == 0 goto f{i}; *(u64 *)(r10 - {at}) = r0;"
        );
    }
    text += "r6 = 16;";
    for i in (0..16).rev() {
        let (at, next) = (8 * (i + 1), if i == 15 { String::new() } else { format!("f{}:", i + 1) });
        text += &format!("{next} r1 = *(u64 *)(r10 - {at}); r2 = 0; call 132;");
    }
    text += "f0: r0 = r6; exit";
    for way in [Way::Verified, Way::VerifiedInterpreted, Way::Interpreted] {
        let engine = ways::engine(way, |config| config);
        let linker = Linker::<()>::new(&engine);
        let def = bpf_runtime::maps::MapDef::new("ring", bpf_runtime::maps::MapType::RingBuf, 0, 0, 4096);
        let map = bpf_runtime::maps::Map::create(def, engine.domain()).unwrap();
        let mut ring = RingBuf::new(&map).unwrap();
        let loader = linker.loader::<Raw>().maps(&[&map]);
        let loader = if way == Way::Interpreted { loader.interpreted(true) } else { loader };
        let program = loader.insns("test", crate::support::program(&text)).unwrap();
        for _ in 0..2 {
            assert_eq!(program.run(&mut (), &mut []).unwrap(), 15, "{way:?}");
            assert_eq!(drain(&mut ring).len(), 15, "{way:?}");
        }
    }
}

#[test]
fn an_interrupted_run_gives_its_record_up() {
    let engine = ways::engine(Way::Verified, |config| config.interruptible(true));
    let instance = ways::instance(&engine, Way::Verified, &object());
    let mut ring = RingBuf::new(&instance.map("events").unwrap()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let result = instance.program::<Raw>("stuck").unwrap().run(&mut (), &mut []);
            assert!(matches!(result, Err(RunError::Interrupted { .. })), "{result:?}");
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
            engine.interrupt();
        }
    });
    assert_eq!(run(&instance, "emit", &[3; 4]), 0);
    assert_eq!(drain(&mut ring), [event(0, 4, [3; 4])]);
}

// ---- Unverified programs ---------------------------------------------------------------------------------

/// Runs text on the checking interpreter with a ring buffer as its map.
fn interpret(text: &str) -> (Result<u64, RunError>, Vec<Vec<u8>>) {
    let engine = ways::engine(Way::Interpreted, |config| config);
    let linker = Linker::<()>::new(&engine);
    let def = bpf_runtime::maps::MapDef::new("ring", bpf_runtime::maps::MapType::RingBuf, 0, 0, 4096);
    let map = bpf_runtime::maps::Map::create(def, engine.domain()).unwrap();
    let mut ring = RingBuf::new(&map).unwrap();
    let loader = linker.loader::<Raw>().interpreted(true).maps(&[&map]);
    let program = loader.insns("test", crate::support::program(text)).unwrap();
    let result = program.run(&mut (), &mut [0; 16]);
    (result, drain(&mut ring))
}

const RESERVE: &str = "r7 = r1; r1 = map[fd:0]; r2 = 8; r3 = 0; call 131; r6 = r0; *(u64 *)(r6 + 0) = 5;";

#[test]
fn the_interpreter_keeps_books_of_records() {
    let run = |rest: &str| interpret(&format!("{RESERVE} {rest}"));
    let (result, records) = run("r1 = r6; r2 = 0; call 132; r0 = 0; exit");
    assert_eq!((result.unwrap(), records), (0, vec![5u64.to_ne_bytes().to_vec()]));
    for (what, rest) in [
        ("kept", "r0 = 0; exit"),
        ("given back twice", "r1 = r6; r2 = 0; call 133; r1 = r6; r2 = 0; call 133; r0 = 0; exit"),
        ("used after it was submitted", "r1 = r6; r2 = 0; call 133; *(u64 *)(r6 + 0) = 7; r0 = 0; exit"),
        ("used beyond its end", "*(u8 *)(r6 + 8) = 7; r0 = 0; exit"),
        ("used before its start", "r0 = *(u64 *)(r6 - 8); exit"),
        ("given back at another place", "r1 = r6; r1 += 4; r2 = 0; call 133; r0 = 0; exit"),
        ("not a record", "r1 = r7; r2 = 0; call 132; r0 = 0; exit"),
        ("read out of the caller's memory", "r1 = map[fd:0]; r2 = r7; r3 = 17; r4 = 0; call 130; r0 = 0; exit"),
    ] {
        let (result, records) = run(rest);
        assert!(result.is_err(), "{what}: {result:?}");
        assert!(records.is_empty(), "{what}: {records:?}");
    }
}

#[test]
fn unsupported_helpers_are_refused_by_name() {
    let engine = ways::engine(Way::Verified, |config| config);
    let linker = Linker::<()>::new(&engine);
    for (id, name) in
        [(27, "bpf_get_stackid"), (58, "bpf_override_return"), (145, "bpf_inode_storage_get"), (51, "bpf_redirect_map")]
    {
        for loader in [linker.loader::<Raw>(), linker.loader::<Raw>().interpreted(true)] {
            let error = loader.insns("p", crate::support::program(&format!("r0 = 0; call {id}; exit"))).unwrap_err();
            assert!(matches!(error, LoadError::UnknownHelper { id: i, .. } if i == id), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
    // A map set of an object with all of it is possible without its programs.
    assert!(MapSet::for_object(&engine, &object()).is_ok());
}
