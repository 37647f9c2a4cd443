//! The kernel's functions that programs call by name: on text, bits, maps, and what a device tells of a packet. Numbers
//! are the kernel's, which is asked where the process may.

use crate::support::ways::{self, Way};
use bpf_runtime::{
    Context, Instance, Linker, MapSet, Object,
    net::{RxMetadata, SkBuff, Skb, Xdp, XdpBuff},
};
use bpf_testkit::kernel::{self, pinned};
use bpf_testkit::skipped;
use std::path::Path;

const OBJECT: &[u8] = include_bytes!("../objects/kfuncs.o");
/// The kernel wants a device for these.
const TOLD: &[u8] = include_bytes!("../objects/told.o");
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];

fn load<C: Context>(way: Way, names: &[&str]) -> Instance<()> {
    let object = Object::parse(if names == ["told"] { TOLD } else { OBJECT }).unwrap();
    let engine = ways::engine(way, |config| config);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    linker.loader::<C>().only(names).object(&object, maps).unwrap_or_else(|e| panic!("{way:?}: {e}"))
}

fn run(instance: &Instance<()>, name: &str, packet: &[u8]) -> i32 {
    let mut packet = packet.to_vec();
    let program = instance.program::<Xdp>(name).unwrap();
    program.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap() as i32
}

/// The object in the kernel, if it is to be had.
fn theirs(what: &str) -> Option<pinned::Loaded> {
    if let Err(reason) = kernel::available() {
        skipped(what, &reason);
        return None;
    }
    let object = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/kfuncs.o");
    match pinned::load(&object) {
        Ok(theirs) => Some(theirs),
        Err(reason @ pinned::NotLoaded::NoLoader(_)) => {
            skipped(what, &reason.to_string());
            None
        }
        Err(refused) => panic!("{refused}"),
    }
}

/// A request: an operation, a number, and two fields of 32 bytes.
fn request(what: u32, number: u32, a: &[u8], b: &[u8]) -> Vec<u8> {
    let field = |text: &[u8]| [text, &vec![0; 32 - text.len()]].concat();
    [what.to_le_bytes().to_vec(), number.to_le_bytes().to_vec(), field(a), field(b)].concat()
}

#[test]
fn functions_on_text_are_the_kernels() {
    let full = [b'x'; 32];
    let texts: [&[u8]; 13] = [
        b"",
        b"a",
        b"A",
        b"ab",
        b"b",
        b"abcabd",
        b"abd",
        b"cabx",
        b"hello, world",
        b"WORLD",
        b"\xe4\xd6z",
        b"\xc4\xf6Z",
        &full,
    ];
    let numbers =
        [0, 1, 3, 5, 6, 31, 32, 33, 0xffff_ffff, u32::from(b'a'), u32::from(b'l'), 0xe4, 0x0461, 0x2061, 0x161];
    let programs = VERIFIED.map(|way| load::<Xdp>(way, &["strings"]));
    let ours = |packet: &[u8]| {
        let [first, rest @ ..] = programs.each_ref().map(|instance| run(instance, "strings", packet));
        assert_eq!(rest, [first; 4], "{packet:?}");
        first
    };
    const ENOENT: i32 = -2;
    for (what, a, b, number, expected) in [
        (0, &b"ab"[..], &b"abd"[..], 0, -1),
        (0, b"b", b"abd", 0, 1),
        (0, b"ab", b"ab", 0, 0),
        (1, b"Hello", b"hELLO", 0, 0),
        (2, b"hello", b"", u32::from(b'l'), 2),
        (2, b"hello", b"", 0, 5),
        (2, b"hello", b"", u32::from(b'z'), ENOENT),
        (3, b"hello", b"", u32::from(b'z'), 5),
        (4, b"hello", b"", 0x026c, ENOENT),
        (4, b"hello", b"", 0x036c, 2),
        (5, b"hello", b"", u32::from(b'l'), 3),
        (6, b"hello", b"", 0, 5),
        (7, b"hello", b"", 3, 3),
        (8, b"hello", b"eh", 0, 2),
        (9, b"hello", b"ol", 0, 2),
        (10, b"abcabd", b"abd", 0, 3),
        (10, b"abcabd", b"", 0, 0),
        (11, b"abcabd", b"abd", 5, ENOENT),
        (11, b"abcabd", b"abd", 6, 3),
        (12, b"", b"", 0, -34),
    ] {
        assert_eq!(ours(&request(what, number, a, b)), expected, "{what} {number} {a:?} {b:?}");
    }
    let Some(theirs) = theirs("functions on text against the kernel") else { return };
    let mut asked = 0;
    for what in 0..13 {
        for a in texts {
            for b in texts {
                for number in numbers {
                    let uses = [(0, 0), (0, 0), (1, 0), (1, 0), (1, 0), (1, 0), (0, 1), (1, 0), (0, 0), (0, 0), (0, 0)];
                    let (by_number, one) = uses.get(what as usize).copied().unwrap_or((1, 0));
                    // Arguments that the function does not have are tried once.
                    if (by_number == 0 && number != 0) || (what == 6 || one == 1) && !b.is_empty() {
                        continue;
                    }
                    let packet = request(what, number, a, b);
                    let (r0, _) = theirs.programs["strings"].test_run_output(&packet).unwrap();
                    assert_eq!(ours(&packet), r0.cast_signed(), "{what} {number:#x} {a:?} {b:?}");
                    asked += 1;
                }
            }
        }
    }
    assert!(asked > 5000, "{asked}");
}

#[test]
fn bits_are_those_that_are_set() {
    let words: [[u64; 4]; 6] =
        [[0; 4], [1, 0, 0, 0], [1 << 63, 1, 0, 1 << 63], [u64::MAX; 4], [0, 0, 0, 4], [0x8421, 3, 1 << 40, 0]];
    let theirs = theirs("bits against the kernel");
    for words in words {
        let bytes = words.map(u64::to_le_bytes).concat();
        for count in [0, 1, 2, 3, 4, 5, 511, 512, u32::MAX] {
            let packet = request(0, count, &bytes, &[]);
            let set = (0..64 * count.min(4)).filter(|bit| words[(bit / 64) as usize] >> (bit % 64) & 1 != 0);
            let expected = match count {
                0 => -22,
                1..=4 => set.fold(0i32, |sum, bit| sum.wrapping_mul(31).wrapping_add(bit as i32)),
                // Behind the words are not so many more bytes.
                5..=511 => -14,
                _ => -7,
            };
            for way in VERIFIED {
                assert_eq!(
                    run(&load::<Xdp>(way, &["bits"]), "bits", &packet),
                    expected,
                    "{way:?}, {count} of {words:?}"
                );
            }
            // The kernel reads on.
            if let (Some(theirs), true) = (&theirs, count <= 4 || count > 511) {
                assert_eq!(
                    theirs.programs["bits"].test_run_output(&packet).unwrap().0.cast_signed(),
                    expected,
                    "{count}"
                );
            }
        }
    }
}

/// A run that is stopped, or ended with an iterator that is left to the end of the run, frees its words: counted by the
/// leak checkers that run these tests. Here: iterators in a row do not take each other's place.
#[test]
fn iterators_give_their_words_back() {
    for way in VERIFIED {
        let instance = load::<Xdp>(way, &["bits"]);
        let packet = request(0, 4, &[0xff; 32], &[]);
        let first = run(&instance, "bits", &packet);
        assert!((0..100).all(|_| run(&instance, "bits", &packet) == first), "{way:?}");
    }
}

#[test]
fn elements_are_counted() {
    let theirs = theirs("elements against the kernel");
    for (number, expected) in [(0, 0), (1, 1), (2, 1), (5, 4), (8, 7), (12, 7)] {
        let packet = request(0, number, &[], &[]);
        for way in VERIFIED {
            assert_eq!(run(&load::<Xdp>(way, &["counted"]), "counted", &packet), expected, "{way:?}, {number}");
        }
    }
    let Some(theirs) = theirs else { return };
    // Its map is the same from run to run, as ours here.
    let instance = load::<Xdp>(Way::Verified, &["counted"]);
    for number in [0, 1, 2, 5, 8, 12] {
        let packet = request(0, number, &[], &[]);
        let (r0, _) = theirs.programs["counted"].test_run_output(&packet).unwrap();
        assert_eq!(run(&instance, "counted", &packet), r0.cast_signed(), "{number}");
    }
}

#[test]
fn a_device_tells_what_the_host_says() {
    const EOPNOTSUPP: i32 = -95;
    const ENODATA: i32 = -61;
    for way in VERIFIED {
        let instance = load::<Xdp>(way, &["told"]);
        let told = |what, rx| {
            let mut packet = [0; 60];
            let mut buff = XdpBuff::new(&mut packet);
            (buff.rx_queue_index, buff.rx) = (what, rx);
            instance.program::<Xdp>("told").unwrap().run(&mut (), &mut buff).unwrap() as i32
        };
        let all = RxMetadata { timestamp: Some(77), hash: Some((1000, 3)), vlan_tag: Some((0x8100, 5)) };
        let expected = [77, 1003, 0x0081_0005];
        for (what, expected) in (0..).zip(expected) {
            assert_eq!(told(what, Some(all)), expected, "{way:?}");
            assert_eq!(told(what, Some(RxMetadata::default())), ENODATA, "{way:?}");
            assert_eq!(told(what, None), EOPNOTSUPP, "{way:?}");
        }
        // A packet in one piece has all of it there.
        assert_eq!([3, 4].map(|what| told(what, None)), [0, -22], "{way:?}");
    }
}

#[test]
fn metadata_of_packets_is_a_dynptr() {
    let theirs = theirs("a packet's metadata against the kernel");
    for way in VERIFIED {
        let instance = load::<Skb>(way, &["before"]);
        let mut packet = [0; 60];
        let r0 = instance.program::<Skb>("before").unwrap().run(&mut (), &mut SkBuff::new(&mut packet)).unwrap();
        // None: of no bytes, 4 are -E2BIG.
        assert_eq!(r0, 0xf9, "{way:?}");
        if let Some(theirs) = &theirs {
            assert_eq!(u64::from(theirs.programs["before"].test_run_output(&packet).unwrap().0), r0);
        }
    }
}
