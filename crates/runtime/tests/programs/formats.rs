//! Formats that follow pointers: the output equals the kernel's, and only proven memory is read.

use crate::support;
use crate::support::ways::{self, Way};
use bpf_runtime::{
    Linker,
    maps::{Map, MapDef, MapType},
    net::{Xdp, XdpBuff},
};
use bpf_testkit::kernel;
use bpf_testkit::skipped;
use std::sync::{Arc, Mutex};

const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];
const EINVAL: i32 = -22;
/// Bytes of the format's map, and of the output's map.
const FORMAT: u32 = 64;
const TEXT: u32 = 200;
/// `BPF_F_RDONLY_PROG`, a flag of the format's map.
const RDONLY_PROG: u32 = 1 << 7;

const FRAME: [u8; 60] =
    *b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\0\x45\0\0\x2e\x12\x34\0\0\x40\x11\x54\x89\x0a\0\0\x01\x0a\0\0\x02\
    \x30\x39\x01\xbb\0\x1a\xbe\xef0123456789abcdefgh";

/// Values for a format: a name, and the instructions that load the value into r1 (r7 points to the packet; the text
/// "stack" is on the stack).
const VALUES: [(&str, &str); 7] = [
    ("text", "r1 = r10; r1 += -64"),
    ("shorter", "r1 = r10; r1 += -62"),
    ("packet", "r1 = r7; r1 += 26"),
    ("map", "r1 = map[fd:OUT][0]+64"),
    ("constant", "r1 = map[fd:FORMAT][0]+0"),
    ("number", "r1 = 7"),
    ("negative", "r1 = -7"),
];

/// A program that calls `bpf_snprintf` with a buffer of `size` bytes; each of `values` is the code that loads a value
/// into r1.
fn program(values: &[&str], size: u32, format_map: i32, text_map: i32) -> String {
    let mut text = format!(
        "r7 = *(u32 *)(r1 + 0); r8 = *(u32 *)(r1 + 4); r9 = r7; r9 += 60; if r9 > r8 goto short; \
         r1 = {:#x} ll; *(u64 *)(r10 - 64) = r1; *(u64 *)(r10 - 56) = 0; \
         *(u64 *)(r10 - 48) = 0; ",
        u64::from_le_bytes(*b"stack\0\xff\xff")
    );
    let top = 8 * values.len();
    for (i, value) in values.iter().enumerate() {
        text += &format!("{value}; *(u64 *)(r10 - {}) = r1; ", top - 8 * i);
    }
    text += &format!(
        "r1 = map[fd:OUT][0]+0; r2 = {size}; r3 = map[fd:FORMAT][0]+0; r4 = r10; r4 += -{top}; r5 = {top}; \
         call 165; exit; short:; r0 = 99; exit"
    );
    text.replace("OUT", &text_map.to_string()).replace("FORMAT", &format_map.to_string())
}

fn padded(text: &[u8], len: u32) -> Vec<u8> {
    let mut bytes = text.to_vec();
    bytes.resize(len as usize, 0);
    bytes
}

/// Returns the initial contents of the output's map: a run must not change bytes that it does not write.
fn before() -> Vec<u8> {
    let mut bytes = padded(b"", TEXT);
    bytes[64..70].copy_from_slice(b"mapped");
    bytes
}

/// The result and the text of this runtime; `Err` if the load is refused.
fn ours(way: Way, format: &str, values: &[&str], size: u32) -> Result<(i32, Vec<u8>), String> {
    let engine = ways::engine(way, |config| config);
    let def = MapDef::new("format", MapType::Array, 4, FORMAT, 1).flags(RDONLY_PROG);
    let format_map = Map::create(def, engine.domain()).unwrap();
    format_map.update(&[0; 4], &padded(format.as_bytes(), FORMAT), 0).unwrap();
    format_map.freeze().unwrap();
    let text_map = Map::create(MapDef::new("text", MapType::Array, 4, TEXT, 1), engine.domain()).unwrap();
    text_map.update(&[0; 4], &before(), 0).unwrap();
    let linker = Linker::<()>::new(&engine);
    let insns = support::program(&program(values, size, 0, 1));
    let loader = linker.loader::<Xdp>().maps(&[&format_map, &text_map]);
    let program = loader.insns("test", insns).map_err(|e| e.to_string())?;
    let mut frame = FRAME;
    let r0 = program.run(&mut (), &mut XdpBuff::new(&mut frame)).unwrap();
    assert_eq!(frame, FRAME);
    Ok((r0 as i32, text_map.get(&[0; 4]).unwrap().unwrap()))
}

/// The result and the text of the kernel; `None` if it refuses the format at load.
fn theirs(format: &str, values: &[&str], size: u32) -> Option<(i32, Vec<u8>)> {
    let format_map = kernel::Map::create_raw(MapType::Array.number(), [4, FORMAT, 1], RDONLY_PROG, None).unwrap();
    format_map.update(&[0; 4], &padded(format.as_bytes(), FORMAT)).unwrap();
    format_map.freeze().unwrap();
    let text_map = kernel::Map::create(MapType::Array, 4, TEXT, 1).unwrap();
    text_map.update(&[0; 4], &before()).unwrap();
    let text = program(values, size, format_map.fd(), text_map.fd());
    let bytes = bpf_isa::encode(&support::program(&text)).unwrap();
    let program = match kernel::Program::load(kernel::ProgramType::Xdp, &bytes) {
        Ok(program) => program,
        Err(error) if error.to_string().contains("nvalid") || error.to_string().contains("format") => return None,
        Err(error) => panic!("{format}: {error}\n{}", error.log),
    };
    let (r0, _) = program.test_run_output(&FRAME).unwrap();
    Some((r0 as i32, text_map.lookup(&[0; 4]).unwrap()))
}

const FORMATS: [&str; 40] = [
    "%s",
    "[%9s]",
    "[%-9s]",
    "%s.",
    "%s%%",
    "%sx",
    "%pks",
    "%pus|",
    "%pI4",
    "%pi4",
    "[%20pI4]",
    "[%-20pI4]",
    "%pI6",
    "%pi6",
    "%pI5",
    "%pM",
    "%pa",
    "%d",
    "%5d|",
    "%-5d|",
    "%05d|",
    "%+d",
    "% d",
    "%i",
    "%u",
    "%x",
    "%X",
    "%08x",
    "%ld",
    "%llu",
    "%lllu",
    "%hd",
    "%o",
    "%c",
    "%5c",
    "%",
    "%%",
    "no value",
    "%.3d",
    "%#x",
];

/// Every format with every value that it reads, or shows as a number, in buffers that are long enough and in shorter
/// ones.
#[test]
fn texts_are_the_kernels() {
    if let Err(reason) = kernel::available() {
        return skipped("formats against the kernel", &reason);
    }
    let (mut compared, mut differ) = (0, Vec::new());
    for format in FORMATS {
        let reads = format.contains('s') || format.contains("%p") || format.contains("pI") || format.contains("pi");
        for (name, value) in VALUES {
            let is_number = ["number", "negative"].contains(&name);
            // The kernel would show a different number for each address, and this runtime refuses to show one.
            if reads == is_number {
                continue;
            }
            for size in [TEXT.min(64), 6, 1] {
                // With a buffer of one byte, the kernel omits the padding of an address.
                if size == 1 && format.contains("20pI4") {
                    continue;
                }
                let expected = theirs(format, &[value], size);
                for way in VERIFIED {
                    let got = ours(way, format, &[value], size);
                    let what = format!("{format:?} of {name}, {size} bytes, {way:?}");
                    match &expected {
                        Some((r0, text)) => {
                            let (got, ours) = got.unwrap_or_else(|e| panic!("{what}: {e}"));
                            let shown = |t: &[u8]| String::from_utf8_lossy(&t[..64]).trim_end_matches('\0').to_owned();
                            let pair = [(got, shown(ours.as_slice())), (*r0, shown(text.as_slice()))];
                            if pair[0] != pair[1] {
                                differ.push(format!("{what}: {pair:?}"));
                            }
                        }
                        None => assert!(got.is_err() || got.is_ok_and(|(r0, _)| r0 == EINVAL), "{what}"),
                    }
                }
                compared += 1;
            }
        }
    }
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
    assert!(compared > 250, "{compared}");
}

/// Formats with several values: pointers and numbers, mixed.
#[test]
fn values_of_all_kinds_stand_beside_each_other() {
    let values: Vec<&str> = VALUES.iter().map(|(_, value)| *value).collect();
    let expected = "stack|ack|10.0.0.1|mapped|%s|%s|%pI4|%s|%s|%d|%d|7|-7";
    for way in VERIFIED {
        let (r0, text) = ours(way, "%s|%s|%pI4|%s|%s|%d|%d", &values, 64).unwrap();
        let end = text.iter().position(|b| *b == 0).unwrap();
        assert_eq!(String::from_utf8_lossy(&text[..end]), "stack|ack|10.0.0.1|mapped|%s|%s|%pI4|%s|%s|%d|%d|7|-7");
        assert_eq!(r0 as usize, expected.len() + 1, "{way:?}");
    }
}

/// Programs that print, each with its output or the reason for its refusal.
#[test]
fn printed_values_are_proven() {
    let begin = "r6 = r1; r7 = *(u32 *)(r1 + 0); r8 = *(u32 *)(r1 + 4); r9 = r7; r9 += 34; r2 = r1;";
    let print = |format: &[u8; 8], value: &str| {
        format!(
            "r1 = {:#x} ll; *(u64 *)(r10 - 8) = r1; {value} r4 = 0; r5 = 0; r1 = r10; r1 += -8; r2 = 8; call 6; \
             out:; r0 = 0; exit",
            u64::from_le_bytes(*format)
        )
    };
    let checked = "if r9 > r8 goto out;";
    for way in VERIFIED {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let engine =
            ways::engine(way, |config| config.print(move |line| sink.lock().unwrap().push(line.text.to_owned())));
        let linker = Linker::<()>::new(&engine);
        let map = Map::create(MapDef::new("names", MapType::Hash, 4, 8, 2), engine.domain()).unwrap();
        map.update(&[1, 0, 0, 0], b"eightchr", 0).unwrap();
        let run = |text: &str| {
            let program =
                linker.loader::<Xdp>().maps(&[&map]).insns("test", support::program(&format!("{begin}{text}")));
            let program = program.map_err(|e| e.to_string())?;
            let mut frame = FRAME;
            program.run(&mut (), &mut XdpBuff::new(&mut frame)).unwrap();
            Ok(lines.lock().unwrap().pop())
        };
        let printed = |text: &str| run(text).unwrap_or_else(|e: String| panic!("{way:?}: {e}\n{text}")).unwrap();
        let refused = |text: &str| run(text).expect_err(text);
        assert_eq!(printed(&format!("{checked} {}", print(b"%pI4  \0\0", "r3 = r7; r3 += 30;"))), "10.0.0.2  ");
        // A string without a zero byte ends at the proven end of the packet, or at the end of a map's value.
        assert_eq!(printed(&format!("{checked} {}", print(b"%s    \0\0", "r3 = r7; r3 += 32;"))), "    ");
        let found = |key: u32, then: &str| {
            let look_up = "r1 = map[fd:0]; r2 = r10; r2 += -12; call 1;";
            format!("*(u32 *)(r10 - 12) = {key}; {look_up} r7 = r0; {then}")
        };
        assert_eq!(printed(&found(1, &print(b"<%s>\0\0\0\0", "r3 = r7;"))), "<eightchr>");
        assert_eq!(printed(&found(2, &print(b"<%s>\0\0\0\0", "r3 = r7;"))), "<>", "null");
        assert_eq!(printed(&found(2, &print(b"%pI4\0\0\0\0", "r3 = r7;"))), "0.0.0.0", "null");
        // On one path 6 bytes follow the pointer, on the other 4: only 4 are read.
        let either = "if r0 == 0 goto out; r1 = *(u8 *)(r0 + 0); r7 += 4; if r1 == 1 goto on; r7 += -2; on:;";
        assert_eq!(printed(&found(1, &format!("{either} {}", print(b"<%s>\0\0\0\0", "r3 = r7;")))), "<ghtc>");
        // On the other path r7 is a number.
        let number = "if r0 == 0 goto out; r1 = *(u8 *)(r0 + 0); if r1 != 1 goto on; r7 = 5; on:;";
        assert_eq!(printed(&found(1, &format!("{number} {}", print(b"<%s>\0\0\0\0", "r3 = r7;")))), "<>");
        let hidden = printed(&print(b"%p %px\0\0", "r3 = r10;").replace("r4 = 0", "r4 = r10"));
        let (a, b) = hidden.split_once(' ').unwrap();
        assert!(a == b && a.len() == 16 && a.starts_with("00000000"), "{hidden}");

        for (text, reason) in [
            (print(b"%pI4  \0\0", "r3 = r7; r3 += 30;"), "are proven to exist"),
            (print(b"%pI6  \0\0", &format!("{checked} r3 = r7; r3 += 20;")), "are proven to exist"),
            (print(b"%s    \0\0", "r3 = r10; r3 += -24;"), "never written"),
            (print(b"%s    \0\0", "*(u64 *)(r10 - 24) = r6; r3 = r10; r3 += -24;"), "never written"),
            (print(b"%s    \0\0", "r3 = r6;"), "r3"),
            (print(b"%d    \0\0", "r3 = r10;"), "an address would leak"),
            (print(b"%x    \0\0", &format!("{checked} r3 = r7;")), "an address would leak"),
            (
                print(b"plain \0\0", "r3 = r7;").replace("r2 = 8", "r2 = *(u32 *)(r6 + 12); r2 &= 7; r2 += 1"),
                "an address would leak",
            ),
            (print(b"%d %s \0\0", "r3 = 1;").replace("r4 = 0", "r4 = map[fd:0]"), "r4"),
        ] {
            let error = refused(&text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
