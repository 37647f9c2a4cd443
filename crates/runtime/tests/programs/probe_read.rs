//! `bpf_probe_read` and its relatives: they copy from the program's own memory, within its bounds, and from nothing
//! else.
//!
//! Copies from the stack and from numbers are compared with the kernel in kernel_helpers.rs.

use crate::support;
use crate::support::ways::{self, Way};
use bpf_runtime::{
    Linker,
    maps::{Map, MapDef, MapType},
    net::{Xdp, XdpBuff},
};

const VERIFIED: [Way; 3] = [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted];
const EFAULT: i64 = -14;
const ERANGE: i64 = -34;
const READ: u32 = 113;
const READ_STR: u32 = 115;

/// Bytes of the packet: 1, 2, 3, ...
const PACKET: usize = 40;

/// A program that fills 16 bytes of its stack with 0xee, calls the helper with them, the length and what `source` has
/// put into r3, and returns the result; the bytes are in the map's value afterwards. r6 is the context, r7 and r8 the
/// packet's ends.
fn program(source: &str, helper: u32, size: &str) -> String {
    format!(
        "r6 = r1; r7 = *(u32 *)(r1 + 0); r8 = *(u32 *)(r1 + 4); r1 = -0x1111111111111112 ll; \
         *(u64 *)(r10 - 16) = r1; *(u64 *)(r10 - 8) = r1; {source}; {size}; r1 = r10; r1 += -16; call {helper}; r9 = r0; \
         r1 = map[fd:0][0]+16; r2 = *(u64 *)(r10 - 16); *(u64 *)(r1 + 0) = r2; r2 = *(u64 *)(r10 - 8); \
         *(u64 *)(r1 + 8) = r2; r0 = r9; exit"
    )
}

/// Loads it; `Err` if it is refused.
fn run(way: Way, text: &str) -> Result<(i64, Vec<u8>), String> {
    let engine = ways::engine(way, |config| config);
    let map = Map::create(MapDef::new("m", MapType::Array, 4, 32, 1), engine.domain()).unwrap();
    let mut value = [0; 32];
    value[..16].copy_from_slice(b"mapped\0 and more");
    map.update(&[0; 4], &value, 0).unwrap();
    let linker = Linker::<()>::new(&engine);
    let loader = linker.loader::<Xdp>().maps(&[&map]);
    let loader = match way {
        Way::Interpreted => loader.interpreted(true),
        // SAFETY: the verifier accepts the programs that are loaded like this.
        Way::Unverified => unsafe { loader.unverified(true) },
        Way::Verified | Way::Unoptimised | Way::VerifiedInterpreted | Way::Instance | Way::InterpretedInstance => {
            loader
        }
    };
    let program = loader.insns("test", support::program(text)).map_err(|e| e.to_string())?;
    let mut packet: Vec<u8> = (1..=PACKET as u8).collect();
    let r0 = program.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap();
    Ok((r0 as i64, map.get(&[0; 4]).unwrap().unwrap()[16..].to_vec()))
}

/// The sixteen bytes afterwards: the copied ones or, after an error, zeros in the first `written`, then the former
/// contents.
fn after(copied: &[u8], written: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; 16];
    bytes[..written].fill(0);
    bytes[..copied.len()].copy_from_slice(copied);
    bytes
}

/// The program compares nothing with the packet's end; the function does so when it is called.
#[test]
fn packets_are_read_up_to_their_end() {
    for way in VERIFIED {
        for (at, size, readable) in [(0, 16, true), (24, 16, true), (25, 16, false), (39, 1, true), (40, 1, false)] {
            let text = program(&format!("r3 = r7; r3 += {at}"), READ, &format!("r2 = {size}"));
            let packet: Vec<u8> = (1..=PACKET as u8).collect();
            let expected = match readable {
                true => (0, after(&packet[at..][..size], size)),
                false => (EFAULT, after(&[], size)),
            };
            assert_eq!(run(way, &text), Ok(expected), "{way:?}: {size} at {at}");
        }
        // A length known at run time only: that of the packet, masked, which exceeds the eight bytes that were
        // compared.
        let text = program(
            "r3 = r7; r1 = r7; r1 += 8; if r1 > r8 goto out",
            READ,
            "r2 = r8; r2 -= r7; r2 &= 15; goto go; out:; r0 = 1; exit; go:",
        );
        assert_eq!(run(way, &text), Ok((0, after(&[1, 2, 3, 4, 5, 6, 7, 8], 8))), "{way:?}");
        // Sources before the packet: at a constant, and at an offset known at run time only.
        let text = program("r3 = r7; r3 += -1", READ, "r2 = 2");
        assert!(run(way, &text).is_err() || run(way, &text) == Ok((EFAULT, after(&[], 2))), "{way:?}");
    }
}

#[test]
fn a_pointer_of_before_a_move_is_a_number() {
    for way in VERIFIED {
        let moved = "r9 = r7; r1 = r6; r2 = 4; call 44; r3 = r9";
        match run(way, &program(moved, READ, "r2 = 4")) {
            Ok(found) => assert!([EFAULT, ERANGE].contains(&found.0) && found.1 == after(&[], 4), "{way:?}: {found:?}"),
            Err(why) => assert!(why.contains("may move the packet"), "{way:?}: {why}"),
        }
        let fresh = "r1 = r6; r2 = 4; call 44; r3 = *(u32 *)(r6 + 0)";
        assert_eq!(run(way, &program(fresh, READ, "r2 = 4")), Ok((0, after(&[5, 6, 7, 8], 4))), "{way:?}");
    }
}

#[test]
fn values_and_the_stack_are_read_as_far_as_proven() {
    for way in VERIFIED {
        let value = "r3 = map[fd:0][0]+0";
        assert_eq!(run(way, &program(value, READ, "r2 = 6")), Ok((0, after(b"mapped", 6))), "{way:?}");
        let late = "r3 = map[fd:0][0]+26";
        assert_eq!(run(way, &program(late, READ, "r2 = 6")), Ok((0, after(&[0; 6], 6))), "{way:?}");
        assert_eq!(run(way, &program(late, READ, "r2 = 7")), Ok((EFAULT, after(&[], 7))), "{way:?}");
        // Stack that was never written is not read.
        let unset = "r3 = r10; r3 += -32";
        assert!(run(way, &program(unset, READ, "r2 = 8")).unwrap_err().contains("never written"), "{way:?}");
        let half = "r1 = 7; *(u64 *)(r10 - 32) = r1; r3 = r10; r3 += -32";
        assert_eq!(run(way, &program(half, READ, "r2 = 8")), Ok((0, after(&[7, 0, 0, 0, 0, 0, 0, 0], 8))), "{way:?}");
        assert_eq!(run(way, &program(half, READ, "r2 = 9")), Ok((EFAULT, after(&[], 9))), "{way:?}");
        // Sources that are no memory of the program are refused.
        assert!(run(way, &program("r3 = r6", READ, "r2 = 8")).is_err(), "{way:?}: the context");
        // A source that is a number on one path.
        let mixed = "r3 = r7; if r8 > r7 goto set; goto done; set:; r3 = 4096; done:";
        assert_eq!(run(way, &program(mixed, READ, "r2 = 1")).map(|found| found.1), Ok(after(&[], 1)), "{way:?}");
        let mixed = "r3 = 4096; if r8 > r7 goto set; goto done; set:; r3 = r7; done:";
        assert_eq!(run(way, &program(mixed, READ, "r2 = 1")), Ok((EFAULT, after(&[], 1))), "{way:?}");
    }
}

#[test]
fn texts_end_at_their_zero_byte() {
    for way in VERIFIED {
        let value = "r3 = map[fd:0][0]+0";
        // Zeros behind the text, where the kernel leaves what was there.
        assert_eq!(run(way, &program(value, READ_STR, "r2 = 16")), Ok((7, after(b"mapped\0", 16))), "{way:?}");
        assert_eq!(run(way, &program(value, READ_STR, "r2 = 4")), Ok((4, after(b"map\0", 4))), "{way:?}");
        assert_eq!(run(way, &program(value, READ_STR, "r2 = 0")), Ok((0, after(&[], 0))), "{way:?}");
        let packet = "r3 = r7; r3 += 36";
        assert_eq!(run(way, &program(packet, READ_STR, "r2 = 4")), Ok((4, after(&[37, 38, 39, 0], 4))), "{way:?}");
        assert_eq!(run(way, &program(packet, READ_STR, "r2 = 5")), Ok((EFAULT, after(&[], 5))), "{way:?}");
    }
}

/// The length of a text is at most the size; a program that relies on less is refused.
#[test]
fn the_length_of_a_text_is_bounded() {
    // The text's length is used as an index into the sixteen bytes at r10 - 16, from their first on.
    let used = |offset: i32| {
        let call = "r1 = r10; r1 += -16; r2 = 16; r3 = map[fd:0][0]+0; call 115; if r0 s< 1 goto none";
        format!(
            "*(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 8) = 0; {call}; r1 = r10; r1 += {offset}; r1 += r0; \
             r0 = *(u8 *)(r1 + 0); exit; none:; r0 = 99; exit"
        )
    };
    for way in VERIFIED {
        // The last byte of the text, and the byte behind the longest possible text.
        assert_eq!(run(way, &used(-17)).map(|found| found.0), Ok(0), "{way:?}");
        assert!(run(way, &used(-16)).is_err(), "{way:?}");
    }
}

/// In a hybrid program, a pointer into the packet may be moved by any number, so that it is 0 for one of them. The
/// result for that number is the result for the others: an error of its own would show where the packet is.
#[test]
fn no_result_shows_where_the_packet_is() {
    const READ_USER: u32 = 112;
    for way in [Way::Verified, Way::VerifiedInterpreted] {
        for (helper, size) in [(READ, 8), (READ, 0), (READ_STR, 8), (READ_USER, 8), (READ_USER, 0)] {
            let engine = ways::engine(way, |config| config);
            let map = Map::create(MapDef::new("m", MapType::Array, 4, 32, 1), engine.domain()).unwrap();
            let linker = Linker::<()>::new(&engine);
            let moved = "r1 = r7; r1 += 8; if r1 > r8 goto out; r3 = *(u64 *)(r7 + 0); r3 += r7";
            let text = program(moved, helper, &format!("r2 = {size}; goto go; out:; r0 = 1; exit; go:"));
            let loader = linker.loader::<Xdp>().maps(&[&map]).hybrid(true);
            let program = loader.insns("moved", support::program(&text)).unwrap();
            let mut packet = [0; PACKET];
            let start = packet.as_ptr().addr() as u64;
            let results = [0, 1, 1 << 12].map(|apart| {
                packet[..8].copy_from_slice(&(apart - start.cast_signed()).to_le_bytes());
                program.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap().cast_signed()
            });
            assert_eq!(results[0], results[1], "{way:?}: helper {helper}, {size} bytes at 0 and at 1");
            assert_eq!(results[0], results[2], "{way:?}: helper {helper}, {size} bytes at 0 and at 4096");
        }
    }
}

/// In unverified programs the bounds of sources are unknown.
#[test]
fn programs_that_nobody_verified_read_nothing() {
    for way in [Way::Interpreted, Way::Unverified] {
        let text = "*(u64 *)(r10 - 16) = 5; r3 = r10; r3 += -16; r1 = r10; r1 += -8; r2 = 8; call CALL; r9 = r0; \
                    r1 = *(u64 *)(r10 - 8); r0 = r9; exit";
        // Where the address is that of a process, the kernel's functions answer as the kernel does.
        for (call, expected) in [("113", ERANGE), ("4", EFAULT), ("112", EFAULT)] {
            let engine = ways::engine(way, |config| config);
            let linker = Linker::<()>::new(&engine);
            let insns = support::program(&text.replace("CALL", call));
            let program = match way {
                Way::Interpreted => linker.loader::<bpf_runtime::Raw>().interpreted(true).insns("test", insns),
                // SAFETY: it writes its own stack only, and the helper reads nothing.
                _ => unsafe { linker.loader::<bpf_runtime::Raw>().unverified(true) }.insns("test", insns),
            };
            assert_eq!(program.unwrap().run(&mut (), &mut &mut [][..]).unwrap() as i64, expected, "{way:?} {call}");
        }
    }
}
