//! Socket storage: creation, look-up, deletion, and the lifetime of its memory.

use crate::support;
use crate::support::ways::{self, Way};
use bpf_runtime::maps::{flags, update};
use bpf_runtime::net::{SockFields, Socket};
use bpf_runtime::{
    Context, Instance, Linker, LoadError, MapSet, Object, Program,
    maps::{Map, MapDef, MapType},
    net::{SkBuff, Skb, Sock, SockBuff, SockOps, SockOpsBuff, SockOpsFields, Xdp},
};
use std::sync::Arc;

const OBJECT: &[u8] = include_bytes!("../objects/storage.o");
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];

/// A socket in this state, of this cookie.
fn socket(state: u32, cookie: u64) -> Arc<Socket> {
    let fields = SockFields { family: 2, protocol: 6, state, ..SockFields::default() };
    Arc::new(Socket { fields, cookie, ..Socket::default() })
}

const ESTABLISHED: u32 = 1;
const TIME_WAIT: u32 = 6;

fn load<C: Context>(way: Way, programs: &[&str]) -> Instance<()> {
    let object = Object::parse(OBJECT).unwrap();
    let engine = ways::engine(way, |config| config);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    linker.loader::<C>().only(programs).object(&object, maps).unwrap_or_else(|e| panic!("{way:?}: {e}"))
}

fn run(instance: &Instance<()>, name: &str, of: Option<&Arc<Socket>>) -> u64 {
    let mut packet = [0; 64];
    let mut buff = SkBuff::new(&mut packet);
    buff.socket = of.cloned();
    instance.program::<Skb>(name).unwrap().run(&mut (), &mut buff).unwrap()
}

/// The kernel's answers: it loads the object unchanged, and returns 101 and 77 as well.
#[test]
fn each_socket_has_what_is_kept_of_it() {
    for way in VERIFIED {
        let instance = load::<Skb>(way, &["count", "steps"]);
        let (one, other) = (socket(ESTABLISHED, 1 << 40), socket(ESTABLISHED, 7));
        assert_eq!([1, 2, 3].map(|_| run(&instance, "count", Some(&one))), [101, 102, 103], "{way:?}");
        assert_eq!(run(&instance, "count", Some(&other)), 101, "{way:?}");
        assert_eq!(run(&instance, "count", Some(&one)), 104, "{way:?}");
        for (nothing, why) in [
            (None, "no socket"),
            (Some(&socket(ESTABLISHED, 0)), "a socket without identity"),
            (Some(&socket(TIME_WAIT, 9)), "no full socket"),
        ] {
            assert_eq!(run(&instance, "count", nothing), 0, "{why}, {way:?}");
        }
        assert_eq!(run(&instance, "steps", Some(&socket(ESTABLISHED, 11))), 77, "{way:?}");

        // The host reads and says that a socket is gone, by its cookie.
        let flows = instance.map("flows").unwrap();
        assert_eq!(flows.len(), 2, "{way:?}");
        let value = flows.get(&one.cookie.to_ne_bytes()).unwrap().unwrap();
        assert_eq!(value, [104u64.to_ne_bytes(), (4 * 64u64).to_ne_bytes()].concat(), "{way:?}");
        flows.delete(&one.cookie.to_ne_bytes()).unwrap();
        assert_eq!(run(&instance, "count", Some(&one)), 101, "as one that is new, {way:?}");
        assert_eq!(Arc::strong_count(&one), 1, "storage keeps no socket, {way:?}");
    }
}

#[test]
fn connections_are_counted_under_a_lock() {
    for way in VERIFIED {
        let instance = load::<SockOps>(way, &["told"]);
        let tell = |of: Option<Arc<Socket>>| {
            let mut buff = SockOpsBuff::new(SockOpsFields::default());
            buff.socket = of;
            instance.program::<SockOps>("told").unwrap().run(&mut (), &mut buff).unwrap()
        };
        let connection = socket(ESTABLISHED, 3);
        assert_eq!([None, Some(&connection), Some(&connection)].map(|of| tell(of.cloned())), [0, 1, 1], "{way:?}");
        let value = instance.map("connections").unwrap().get(&3u64.to_ne_bytes()).unwrap().unwrap();
        assert_eq!(value, [0, 0, 0, 0, 2, 0, 0, 0], "the lock is shown as zero, {way:?}");
    }
}

/// A program whose context is the socket gives that.
#[test]
fn sockets_that_are_made_have_storage() {
    for way in VERIFIED {
        let instance = load::<Sock>(way, &["made"]);
        let make = |cookie| {
            let mut buff = SockBuff::new(SockFields::default());
            buff.cookie = cookie;
            instance.program::<Sock>("made").unwrap().run(&mut (), &mut buff).unwrap()
        };
        assert_eq!([9, 9, 0].map(make), [1, 0, 0], "{way:?}");
        let value = instance.map("flows").unwrap().get(&9u64.to_ne_bytes()).unwrap().unwrap();
        assert_eq!(value[..8], 200u64.to_ne_bytes(), "{way:?}");
    }
}

/// A full map answers null; its elements stay, and deleting one makes room.
#[test]
fn a_full_map_has_no_room_for_another_socket() {
    for way in VERIFIED {
        let mut object = Object::parse(OBJECT).unwrap();
        object.set_max_entries("flows", 2).unwrap();
        let engine = ways::engine(way, |config| config);
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let linker = Linker::<()>::new(&engine);
        let instance = linker.loader::<Skb>().only(&["count"]).object(&object, maps).unwrap();
        let counts = |cookies: [u64; 3]| cookies.map(|c| run(&instance, "count", Some(&socket(ESTABLISHED, c))));
        assert_eq!(counts([1, 2, 3]), [101, 101, 0], "{way:?}");
        instance.map("flows").unwrap().delete(&1u64.to_ne_bytes()).unwrap();
        assert_eq!(counts([3, 2, 1]), [101, 102, 0], "{way:?}");
    }
}

/// Storage that a run has looked up is not reused until the run ends, although other threads delete it: many threads
/// create and delete.
#[test]
fn storage_is_nobody_elses_before_a_run_ends() {
    let instance = load::<Skb>(Way::Verified, &["count", "steps"]);
    let flows = instance.map("flows").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (instance, flows) = (&instance, &flows);
            scope.spawn(move || {
                let (own, shared) = (socket(ESTABLISHED, 100 + thread), socket(ESTABLISHED, 1));
                for _ in 0..2000 {
                    assert_eq!(run(instance, "steps", Some(&own)), 77);
                    // Another thread's removal may come between; a program never sees another socket's value.
                    assert!((0..=100 + 6000).contains(&run(instance, "count", Some(&shared))));
                    let _ = flows.delete(&shared.cookie.to_ne_bytes());
                }
            });
        }
    });
    assert_eq!(flows.len(), 0);
}

fn text(way: Way, def: MapDef, text: &str) -> Result<Program<Skb, ()>, LoadError> {
    let engine = ways::engine(way, |config| config);
    let map = Map::create(def, engine.domain()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let loader = linker.loader::<Skb>();
    let loader = if way == Way::Interpreted { loader.interpreted(true) } else { loader };
    loader.maps(&[&map]).insns("test", support::program(text))
}

#[test]
fn storage_is_reached_by_its_socket_only() {
    let storage = || MapDef::new("storage", MapType::SkStorage, 8, 8, 4).flags(flags::NO_PREALLOC);
    let sk = "r6 = *(u64 *)(r1 + 168); if r6 == 0 goto out; r1 = map[fd:0]; r2 = r6; r3 = 0; r4 = 1;";
    let end = "out:; r0 = 0; exit";
    let fine = format!("{sk} call 107; if r0 == 0 goto out; r1 = 1; *(u64 *)(r0 + 0) = r1; {end}");
    for way in VERIFIED {
        text(way, storage(), &fine).unwrap_or_else(|e| panic!("{e}"));
    }
    for (program, reason) in [
        (format!("{sk} call 107; r1 = 1; *(u64 *)(r0 + 0) = r1; {end}"), "null"),
        (format!("{sk} call 107; if r0 == 0 goto out; r1 = *(u64 *)(r0 + 4); {end}"), "r0"),
        (format!("r2 = *(u64 *)(r1 + 168); r1 = map[fd:0]; r3 = 0; r4 = 1; call 107; {end}"), "a socket"),
        (format!("{sk} r2 = 7; call 107; {end}"), "a socket"),
        (format!("{sk} r2 = r10; call 108; {end}"), "a socket"),
        (format!("{sk} r3 = 1; call 107; {end}"), "r3"),
        (format!("*(u32 *)(r10 - 4) = 0; {sk} r3 = r10; r3 += -4; call 107; {end}"), "r3"),
        (format!("{sk} r3 = r10; r3 += -8; call 107; {end}"), "r3"),
        (format!("{sk} *(u64 *)(r10 - 8) = 1; r2 = r10; r2 += -8; call 1; {end}"), "a map of a kind"),
        (format!("{sk} *(u64 *)(r10 - 8) = 1; r2 = r10; r2 += -8; call 3; {end}"), "a map of a kind"),
    ] {
        let error = text(Way::Verified, storage(), &program).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(reason), "{program}: {error}");
    }
    let hash = MapDef::new("hash", MapType::Hash, 8, 8, 4);
    let error = text(Way::Verified, hash, &fine).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("a map of a kind"), "{error}");
    // Programs on packets that belong to no socket have no such function.
    let linker = Linker::<()>::new(&ways::engine(Way::Verified, |config| config));
    let error = linker.loader::<Xdp>().insns("test", support::program("call 107; r0 = 0; exit")).map(|_| ());
    assert!(error.unwrap_err().to_string().contains("bpf_sk_storage_get"));
}

/// Only the verifier can tell a socket from a number.
#[test]
fn unverified_programs_have_no_storage() {
    let storage = MapDef::new("storage", MapType::SkStorage, 8, 8, 4).flags(flags::NO_PREALLOC);
    let program = "r1 = map[fd:0]; r2 = 4096; r3 = 0; r4 = 1; call 107; r0 = 0; exit";
    let error = text(Way::Interpreted, storage, program).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("without verifying"), "{error}");
}

#[test]
fn definitions_of_storage_are_the_kernels_but_for_key_and_entries() {
    let engine = ways::engine(Way::Verified, |config| config);
    let create = |key, value, entries, flags| {
        let def = MapDef::new("storage", MapType::SkStorage, key, value, entries).flags(flags);
        Map::create(def, engine.domain()).map_err(|error| error.errno())
    };
    let on_demand = flags::NO_PREALLOC;
    for (key, value, entries, flags, errno) in [
        (4, 8, 1, on_demand, libc::EINVAL),
        (8, 0, 1, on_demand, libc::EINVAL),
        (8, 8, 0, on_demand, libc::EINVAL),
        (8, 8, 1, 0, libc::EINVAL),
        (8, 8, 1, on_demand | flags::RDONLY_PROG, libc::EINVAL),
        (8, 65535, 1, on_demand, libc::E2BIG),
    ] {
        assert_eq!(create(key, value, entries, flags).map(|_| ()), Err(errno), "{key} {value} {entries} {flags}");
    }
    let map = create(8, 65407, 2, on_demand | flags::CLONE).unwrap();
    map.update(&[1; 8], &[1; 65407], update::NOEXIST).unwrap();
    assert_eq!(map.get(&[1; 8]).unwrap().unwrap(), [1; 65407]);
}
