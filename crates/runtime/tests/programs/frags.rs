//! Packets in pieces (`xdp.frags`): a packet behaves the same wherever it is cut; and the kernel's own pieces.

use crate::support::ways::{self, Way};
use bpf_runtime::maps::open_perf_entry;
use bpf_runtime::{
    Instance, Linker, LoadError, MapSet, Object, Program,
    maps::{Map, MapDef, MapType},
    net::{Xdp, XdpBuff, XdpFrag, XdpFrags, XdpFragsBuff},
};
use bpf_testkit::kernel::{self, pinned};
use bpf_testkit::skipped;
use std::path::Path;

const OBJECT: &[u8] = include_bytes!("../objects/frags.o");
/// Only the verifier can tell a dynptr from bytes.
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];

fn load(way: Way) -> Instance<()> {
    let object = Object::parse(OBJECT).unwrap();
    let engine = ways::engine(way, |config| config);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    linker.loader::<XdpFrags>().only(&["ask"]).object(&object, maps).unwrap_or_else(|e| panic!("{way:?}: {e}"))
}

fn programs() -> Vec<(Instance<()>, Program<XdpFrags, ()>)> {
    let loaded = VERIFIED.map(load);
    loaded.into_iter().map(|instance| (instance.program("ask").unwrap(), instance)).map(|(p, i)| (i, p)).collect()
}

/// The request of a run.
#[derive(Clone, Copy, Debug)]
struct Ask {
    what: u32,
    offset: u32,
    len: u32,
    delta: i32,
}

const WHATS: u32 = 16;

impl Ask {
    /// The request, and bytes that tell their places.
    fn packet(self, len: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
        let words = [self.what, self.offset, self.len, self.delta.cast_unsigned()];
        packet[..16].copy_from_slice(&words.map(u32::to_le_bytes).concat());
        packet
    }
}

/// Room before and behind the first piece, and behind the last.
#[derive(Clone, Copy)]
struct Room {
    head: usize,
    tail: usize,
    last: usize,
}

/// Returns r0, the bytes of the packet from all pieces, and the length of the first piece.
fn run(program: &Program<XdpFrags, ()>, packet: &[u8], cuts: &[usize], room: Room) -> (u32, Vec<u8>, usize) {
    let (first, mut rest) = packet.split_at(cuts.first().copied().unwrap_or(packet.len()));
    let mut buffer = [&vec![0; room.head], first, &vec![0; room.tail]].concat();
    let mut buffers: Vec<Vec<u8>> = Vec::new();
    let mut at = first.len();
    for cut in cuts.iter().skip(1).copied().chain((!cuts.is_empty()).then_some(packet.len())) {
        let (piece, left) = rest.split_at(cut - at);
        (rest, at) = (left, cut);
        buffers.push([piece, &vec![0xee; room.last]].concat());
    }
    let mut frags: Vec<XdpFrag<'_>> = Vec::new();
    for buffer in &mut buffers {
        let len = buffer.len() - room.last;
        frags.push(XdpFrag::with_room(buffer, len));
    }
    let buff = XdpBuff::with_room(&mut buffer, room.head, first.len());
    let mut buff = XdpFragsBuff::new(buff, &mut frags);
    let r0 = program.run(&mut (), &mut buff).unwrap() as u32;
    let packet: Vec<u8> = buff.pieces().flatten().copied().collect();
    assert_eq!(packet.len(), buff.packet_len());
    (r0, [buff.first.metadata().to_vec(), packet].concat(), buff.first.packet().len())
}

/// A packet is cut at each place, also into pieces of no and of one byte: helpers that do not depend on the first piece
/// behave as on a packet in one piece.
#[test]
fn a_packet_is_the_same_wherever_it_is_cut() {
    const LEN: usize = 80;
    let room = Room { head: 0, tail: 0, last: 8 };
    let (numbers, programs) =
        ([0, 1, 15, 16, 17, 31, 40, 63, 64, 65, 79, 80, 81, 0xffff, 0x1_0000, u32::MAX], programs());
    let cuts: Vec<Vec<usize>> = [vec![20, 20, 20, 21, 22], vec![16, 80, 80], vec![17, 33, 34, 64], vec![79]]
        .into_iter()
        .chain((16..=LEN).map(|at| vec![at]))
        .chain([(16..LEN).collect()])
        .collect();
    let mut asked = 0;
    for what in [1, 2, 7, 9, 11, 12, 13, 14, 15] {
        for offset in numbers {
            // Source and target of the copy must not overlap: pieces are copied one after the other.
            let (len, delta) = if what == 14 { (1 + offset % 8, 48) } else { (16 + offset % 16, 24) };
            let ask = Ask { what, offset, len, delta };
            let packet = ask.packet(LEN);
            for (_, program) in &programs {
                let whole = run(program, &packet, &[], room);
                for cuts in &cuts {
                    let cut = run(program, &packet, cuts, room);
                    assert_eq!((cut.0, &cut.1), (whole.0, &whole.1), "{ask:?}, cut at {cuts:?}");
                    asked += 1;
                }
            }
        }
    }
    assert_eq!(asked, 9 * 16 * VERIFIED.len() * 70);
}

/// The last piece grows into its room; shrinking removes pieces from the end, and then bytes of the first.
#[test]
fn pieces_grow_shrink_and_go() {
    let room = Room { head: 0, tail: 0, last: 8 };
    for (_, program) in &programs() {
        let tail = |delta: i32, cuts: &[usize]| {
            let packet = Ask { what: 3, offset: 0, len: 0, delta }.packet(60);
            let (r0, after, first) = run(program, &packet, cuts, room);
            let kept = after.len().min(60);
            assert_eq!(after[..kept], packet[..kept], "{delta}");
            assert!(after[kept..].iter().all(|byte| *byte == 0), "grown bytes are zero: {delta}");
            (r0.cast_signed(), after.len(), first)
        };
        let cuts = [30, 30, 45];
        assert_eq!(tail(8, &cuts), (0, 68, 30));
        assert_eq!(tail(9, &cuts), (-22, 60, 30));
        assert_eq!(tail(0, &cuts), (0, 60, 30));
        assert_eq!(tail(-15, &cuts), (0, 45, 30));
        assert_eq!(tail(-16, &cuts), (0, 44, 30));
        assert_eq!(tail(-40, &cuts), (0, 20, 20));
        assert_eq!(tail(-46, &cuts), (0, 14, 14));
        assert_eq!(tail(-47, &cuts), (-22, 60, 30));
        assert_eq!(tail(i32::MIN, &cuts), (-22, 60, 30));
        assert_eq!(tail(i32::MAX, &cuts), (-22, 60, 30));
    }
}

/// Bytes are pulled into the room behind the first piece, and then into the room before it; without room the call
/// fails.
#[test]
fn pieces_are_pulled_into_the_first() {
    for (_, program) in &programs() {
        let pull = |len: u32, room: Room| {
            let packet = Ask { what: 6, offset: 0, len, delta: 0 }.packet(60);
            let (r0, after, first) = run(program, &packet, &[20, 20, 21, 40], room);
            assert_eq!(after, packet, "{len}");
            (r0.cast_signed(), first)
        };
        let none = Room { head: 0, tail: 0, last: 0 };
        assert_eq!(pull(20, none), (20, 20));
        assert_eq!(pull(21, none), (-22, 20));
        let some = Room { head: 10, tail: 10, last: 0 };
        assert_eq!(pull(30, some), (30, 30));
        assert_eq!(pull(40, some), (40, 40));
        assert_eq!(pull(41, some), (-22, 20));
        let all = Room { head: 10, tail: 100, last: 0 };
        assert_eq!(pull(60, all), (60, 60));
        assert_eq!(pull(61, all), (-22, 20));
        assert_eq!(pull(u32::MAX, all), (-22, 20));
    }
}

/// An event has the packet's bytes from all pieces.
#[test]
fn events_have_all_pieces() {
    for way in VERIFIED {
        let engine = ways::engine(way, |config| config);
        let linker = Linker::<()>::new(&engine);
        let slots = engine.domain().max_slots().min(64);
        let map = Map::create(MapDef::new("events", MapType::PerfEventArray, 4, 4, slots), engine.domain()).unwrap();
        let text =
            "*(u64 *)(r10 - 8) = 7\nr2 = map[fd:0]\nr3 = 0x28ffffffff ll\nr4 = r10\nr4 += -8\nr5 = 8\ncall 25\nexit";
        let insns = bpf_runtime::isa::assemble(text).unwrap();
        let program = linker.loader::<XdpFrags>().maps(&[&map]).insns("event", insns).unwrap();
        let mut rings: Vec<_> = (0..slots).map(|slot| open_perf_entry(&map, slot, 1 << 12).unwrap()).collect();
        let packet: Vec<u8> = (0..60).collect();
        for (cuts, left, expected) in [(&[10, 10, 11, 39][..], 60, 0i64), (&[20, 39], 39, -14), (&[20, 40], 40, 0)] {
            let (r0, ..) = run(&program, &packet[..left], cuts, Room { head: 0, tail: 0, last: 0 });
            assert_eq!(i64::from(r0.cast_signed()), expected, "{way:?}, {cuts:?}");
            let mut seen = Vec::new();
            for ring in &mut rings {
                ring.consume(|record| {
                    seen.push(record.to_vec());
                    true
                });
            }
            let event = [&7u64.to_ne_bytes()[..], &packet[..40]].concat();
            assert_eq!(seen, if expected == 0 { vec![event] } else { vec![] }, "{way:?}, {cuts:?}");
        }
    }
}

/// A program that knows of one piece only is not given another: neither loaded for such packets, nor jumped to.
#[test]
fn only_programs_for_packets_in_pieces_have_them() {
    let object = Object::parse(OBJECT).unwrap();
    let engine = ways::engine(Way::Verified, |config| config);
    let linker = Linker::<()>::new(&engine);
    let maps = || MapSet::for_object(&engine, &object).unwrap();
    let refused = linker.loader::<XdpFrags>().only(&["whole"]).object(&object, maps()).unwrap_err();
    assert!(matches!(refused, LoadError::OnePiece { .. }), "{refused}");
    assert!(refused.to_string().contains("section `xdp`"), "{refused}");
    // Both programs are for packets in one piece.
    for name in ["whole", "ask"] {
        let instance = linker.loader::<Xdp>().only(&[name]).object(&object, maps()).unwrap();
        let packet = &mut Ask { what: 0, offset: 0, len: 0, delta: 0 }.packet(60);
        let r0 = instance.program::<Xdp>(name).unwrap().run(&mut (), &mut XdpBuff::new(packet)).unwrap();
        assert_eq!(r0 & 0xffff, 60, "{name}");
    }
    let insns = || bpf_runtime::isa::assemble("r0 = 2\nexit").unwrap();
    let pieces = linker.loader::<XdpFrags>().insns("pieces", insns()).unwrap();
    let array = bpf_runtime::ProgArray::<XdpFrags, ()>::create(&engine, "jumps", 1).unwrap();
    array.set(0, &pieces).unwrap();
    let jump = bpf_runtime::isa::assemble("r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit").unwrap();
    let refused = linker.loader::<XdpFrags>().prog_arrays(&[&array]).insns("jump", jump).map(|_| ());
    assert!(refused.is_ok(), "{refused:?}");
}

/// How the kernel's test run lays a packet out: a page with room for headers before it and a `struct skb_shared_info`
/// behind, and then whole pages.
fn as_the_kernel(len: usize) -> (Vec<usize>, Room) {
    const PAGE: usize = 4096;
    const HEAD: usize = 256;
    const FIRST: usize = PAGE - HEAD - 320;
    let cuts = (0..).map(|i| FIRST + i * PAGE).take_while(|at| *at < len).collect::<Vec<_>>();
    let last = cuts.last().map_or(0, |at| PAGE - (len - at));
    (cuts, Room { head: HEAD - 40, tail: FIRST - len.min(FIRST), last })
}

#[test]
fn pieces_are_as_in_the_kernel() {
    const WHAT: &str = "packets in pieces against the kernel";
    if let Err(reason) = kernel::available() {
        return skipped(WHAT, &reason);
    }
    let object = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/frags.o");
    let theirs = match pinned::load(&object) {
        Ok(theirs) => theirs,
        Err(reason @ pinned::NotLoaded::NoLoader(_)) => return skipped(WHAT, &reason.to_string()),
        Err(refused) => panic!("{refused}"),
    };
    let theirs = &theirs.programs["ask"];
    let ours = programs();
    let mut asked = 0;
    for len in [64, 3520, 3521, 3600, 7616, 7617, 9000, 20_000] {
        let (cuts, room) = as_the_kernel(len);
        let edges = cuts.iter().copied().chain([len, 16, 60, 0xffff, 0x1_0000]);
        let offsets: Vec<u32> =
            edges.flat_map(|at| [-32, -17, -16, -15, -1, 0, 1].map(|by| at as i64 + by)).map(|at| at as u32).collect();
        for what in 0..WHATS {
            for (i, offset) in offsets.iter().copied().enumerate() {
                let delta = match what {
                    // The end: grown by the last piece's room and more, cut into each piece and down to the least. Not
                    // by `i32::MIN`, which the kernel negates, and then does nothing.
                    3 => {
                        [i64::from(offset), -i64::from(offset)][i % 2].clamp((-i32::MAX).into(), i32::MAX.into()) as i32
                    }
                    4 => [-216, -217, 14, 100, 3506, 3507, 0][i % 7],
                    5 => [-4, -8, -216, -217, -3, 0, 4][i % 7],
                    14 => [16, 100, 3500, 7600][i % 4],
                    _ => 0x1_02,
                };
                let length = if what == 14 || what == 15 { [0, 1, 16, 300, 5000][i % 5] } else { offset };
                let ask = Ask { what, offset, len: length, delta };
                if what == 14 && i64::from(offset).abs_diff(delta.into()) < length.into() {
                    // The kernel's `memcpy` of overlapping bytes has no defined result.
                    continue;
                }
                let packet = ask.packet(len);
                let (r0, after) = match theirs.test_run_output(&packet) {
                    Ok(answer) => answer,
                    Err(error) => panic!("{ask:?} on {len}: {error}"),
                };
                for (way, (_, program)) in VERIFIED.iter().zip(&ours) {
                    let (ours, bytes, _) = run(program, &packet, &cuts, room);
                    assert_eq!(ours.cast_signed(), r0.cast_signed(), "{way:?}, {ask:?} on {len} bytes");
                    if let Some(at) = bytes.iter().zip(&after).position(|(ours, theirs)| ours != theirs) {
                        panic!("{way:?}, {ask:?} on {len} bytes: byte {at} is {:#x}, not {:#x}", bytes[at], after[at]);
                    }
                    assert_eq!(bytes.len(), after.len(), "{way:?}, {ask:?} on {len} bytes");
                }
                asked += 1;
            }
        }
    }
    assert!(asked > 4000, "{asked}");
}
