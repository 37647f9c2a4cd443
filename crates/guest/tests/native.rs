//! Plug-ins as ordinary code: the tests that `bpf new --lang rust` gives a project, on the project's plug-in, and mocks
//! of each kind of map and helper.

use bpf_guest::maps::{Array, HashMap, Insert, LruHashMap, PerCpuHashMap, ProgArray, Refused, RingBuf};
use bpf_guest::xdp::{Xdp, XdpAction};
use bpf_guest::{helpers, host_functions, map, mock, program};
use std::panic::catch_unwind;

// The project's tests name its crate.
extern crate self as guard;
#[path = "../../cli/tests/objects/guard_rust/lib.rs"]
#[allow(missing_docs, missing_debug_implementations, unused_attributes, reason = "it is the plug-in's crate")]
pub mod plug_in;
pub use plug_in::{SEEN, guard, host};
#[path = "../../cli/tests/objects/guard_rust/native.rs"]
mod project;

/// The tutorial's plug-in, with its tests.
#[path = "../../../examples/limit-rust/src/lib.rs"]
#[allow(unused_attributes, dead_code, unreachable_pub, reason = "it is the plug-in's crate")]
mod limit;

#[map]
static SMALL: HashMap<u32, u64, 2> = HashMap::new();

#[map]
static RECENT: LruHashMap<[u8; 3], [u8; 5], 2> = LruHashMap::new();

#[map]
static EACH: PerCpuHashMap<u64, u32, 2> = PerCpuHashMap::new();

#[map]
static COUNTS: Array<u64, 3> = Array::new();

#[map]
static EVENTS: RingBuf<64> = RingBuf::new();

#[map]
static NEXT: ProgArray<2> = ProgArray::new();

host_functions! {
    /// Fills the bytes, and returns how many.
    fn fill(bytes: &mut [u8], with: u8) -> u64;
    fn r#type() -> bool;
}

#[test]
fn lines_are_printed() {
    mock::reset();
    bpf_guest::printk!("plain");
    bpf_guest::printk!("<3>%d %x, 100%%", -1, u64::MAX);
    bpf_guest::printk!("%llx %lld %s", u64::MAX, i64::MIN, c"a text",);
    bpf_guest::printk!("%c%u %5d", b'a', true);
    let expected = ["plain", "<3>-1 ffffffff, 100%", "ffffffffffffffff -9223372036854775808 a text", "a1 %5d"];
    assert_eq!(mock::printed(), expected);
    assert!(mock::printed().is_empty());
}

#[test]
fn maps_are_maps() {
    mock::reset();
    assert!(SMALL.get(&1).is_none());
    assert_eq!(SMALL.insert(&1, &10, Insert::Replace), Err(Refused(-2)));
    SMALL.insert(&1, &10, Insert::New).unwrap();
    assert_eq!(SMALL.insert(&1, &11, Insert::New), Err(Refused(-17)));
    SMALL.insert(&1, &12, Insert::Any).unwrap();
    SMALL.insert(&2, &20, Insert::Any).unwrap();
    assert_eq!(SMALL.insert(&3, &30, Insert::Any), Err(Refused(-7)), "full");
    let one = SMALL.get(&1).unwrap();
    assert_eq!((one.fetch_add(u64::MAX), one.get()), (12, 11));
    SMALL.remove(&1).unwrap();
    assert_eq!(SMALL.remove(&1), Err(Refused(-2)));
    // A value outlives its element, and the map's contents.
    one.set(5);
    SMALL.insert(&3, &30, Insert::Any).unwrap();
    mock::reset();
    assert!(SMALL.get(&3).is_none());
    one.set(6);
    assert_eq!(one.get(), 6);

    RECENT.insert(b"one", b"first", Insert::Any).unwrap();
    RECENT.insert(b"two", b"secnd", Insert::Any).unwrap();
    assert_eq!(RECENT.get(b"one").unwrap().get(), *b"first");
    RECENT.insert(b"tre", b"third", Insert::Any).unwrap();
    assert!(RECENT.get(b"two").is_none() && RECENT.get(b"one").is_some() && RECENT.get(b"tre").is_some());

    EACH.insert(&7, &1, Insert::Any).unwrap();
    mock::set_slot(3);
    assert_eq!((helpers::slot(), EACH.get(&7).unwrap().get()), (3, 0));
    EACH.get(&7).unwrap().set(2);
    mock::set_slot(0);
    assert_eq!(EACH.get(&7).unwrap().get(), 1);

    COUNTS.get(2).unwrap().fetch_add(4);
    assert_eq!((COUNTS.get(2).unwrap().get(), COUNTS.get(1).unwrap().get()), (4, 0));
    assert!(COUNTS.get(3).is_none());
    std::thread::spawn(|| assert_eq!(COUNTS.get(2).unwrap().get(), 0, "each thread has its own")).join().unwrap();
}

#[test]
fn rings_have_room_until_they_are_read() {
    mock::reset();
    let first = EVENTS.reserve::<[u32; 4]>().unwrap();
    drop(EVENTS.reserve::<u64>().unwrap());
    EVENTS.output(&[1u8; 20]).unwrap();
    first.submit([7; 4]);
    assert_eq!(EVENTS.output(&2u64), Err(Refused(-11)), "8 bytes are left, and the record takes 16");
    assert!(EVENTS.reserve::<u64>().is_none());
    assert_eq!(mock::records(&EVENTS), [vec![1; 20], [[7, 0, 0, 0]; 4].concat()]);
    EVENTS.output(&2u64).unwrap();
    // A record that a test reserves belongs to no ring after `reset`.
    let late = EVENTS.reserve::<u64>().unwrap();
    mock::reset();
    late.submit(1);
    assert!(mock::records(&EVENTS).is_empty());
}

#[program("xdp")]
fn first(xdp: &mut Xdp) -> XdpAction {
    NEXT.tail_call(xdp, helpers::random());
    assert!(!xdp.packet().starts_with(b"no"), "the program's");
    xdp.packet_mut().write(0, &helpers::now());
    XdpAction::Drop
}

#[test]
fn helpers_and_tail_calls_are_the_tests() {
    mock::reset();
    mock::set_time(0x0102_0304_0506_0708);
    mock::set_random([9, 1]);
    mock::set_program(&NEXT, 1, || 2);
    let mut xdp = Xdp::new([0; 10]);
    assert_eq!((first(&mut xdp), xdp.packet().read(0)), (1, Some(0x0102_0304_0506_0708u64)));
    assert_eq!(first(&mut xdp), 2, "the program behind");
    assert_eq!(helpers::random(), 0, "none is left");
    // A panic is the test's own.
    let panic = catch_unwind(|| first(&mut Xdp::new(*b"no"))).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the program's"));
    let outside = catch_unwind(|| {
        mock::set_program(&NEXT, 0, || 2);
        NEXT.tail_call(&mut Xdp::new([]), 0);
    });
    assert_eq!(outside.unwrap_err().downcast_ref::<&str>(), Some(&"a tail call outside of a program"));
}

#[test]
fn host_functions_are_closures() {
    mock::reset();
    let unset = catch_unwind(r#type).unwrap_err();
    let message = unset.downcast_ref::<String>().unwrap();
    assert!(message.contains("is the host's: give it a mock"), "{message}");
    fill::mock(|bytes, with| {
        bytes.fill(with);
        bytes.len() as u64
    });
    r#type::mock(|| true);
    let mut bytes = [0; 3];
    assert_eq!((fill(&mut bytes, 5), bytes, r#type()), (3, [5; 3], true));
    fill::mock(|_, _| 0);
    assert_eq!(fill(&mut bytes, 5), 0);
}
