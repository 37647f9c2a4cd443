//! Stack that verified programs read without having written it is zero, whatever ran there before: on every engine, in
//! each entry of a function, however it is entered.

use crate::common::engines::{config, engine, modes};
use bpf_runtime::{
    Engine, Linker, OptLevel, ProgArray, Raw,
    isa::assemble,
    maps::{Map, MapDef, MapType},
};

/// Leaves ones in as much stack as a frame has, at r10 - 512 and up.
const DIRTY: &str = "dirty:
r2 = r10
r2 += -512
r3 = 64
fill:
*(u64 *)(r2 + 0) = -1
r2 += 8
r3 += -1
if r3 != 0 goto fill
r0 = *(u8 *)(r10 - 1)
exit";

/// Adds up the bytes from r10 - 72, of which one was written; r1 says up to which, and r6 is a place of the others.
const SUM: &str = "sum:
*(u8 *)(r10 - 72) = 5
r1 &= 63
r2 = r10
r2 += -72
r0 = 0
next:
r3 = *(u8 *)(r2 + 0)
r0 += r3
r2 += 1
r1 += -1
if r1 s>= 0 goto next
exit";

fn run(engine: &Engine, text: &str) -> u64 {
    let linker = Linker::<()>::new(engine);
    let program = linker.loader::<Raw>().insns("p", assemble(text).unwrap());
    let program = program.unwrap_or_else(|e| panic!("{e}\n{text}"));
    (0..3).map(|_| program.run(&mut (), &mut [0; 8]).unwrap()).fold(0, |all, r0| all | r0)
}

#[test]
fn bytes_never_written_are_zero() {
    for mode in modes() {
        let engine = engine(mode, |config| config);
        // A function that is called where another has been.
        let called = "call dirty\nr1 = 60\ncall sum\nr6 = r0\ncall dirty\nr1 = 61\ncall sum\nr0 |= r6\nexit";
        assert_eq!(run(&engine, &format!("{called}\n{DIRTY}\n{SUM}")), 5, "{mode:?}: called");
        // The program itself.
        let main = format!("r7 = 0\n{}\nr7 = r0\ncall dirty\nr0 = r7\nexit", SUM.replace("sum:\n", "r1 = 63\n"));
        let main = main.replace("s>= 0 goto next\nexit", "s>= 0 goto next");
        assert_eq!(run(&engine, &format!("{main}\n{DIRTY}")), 5, "{mode:?}: main");
        // A callback: each round enters it anew, after it has written what it reads.
        let callback = "r1 = 5\nr2 = subprog[round]\nr3 = r10\nr3 += -8\n*(u64 *)(r10 - 8) = 0\nr4 = 0\ncall 181
            r0 = *(u64 *)(r10 - 8)\nexit
            round:\nr6 = r2\ncall 7\nr0 &= 7\nr3 = r10\nr3 += -16\nr3 += r0\n*(u8 *)(r3 + 0) = 0
            r4 = *(u64 *)(r10 - 16)\nr5 = *(u64 *)(r6 + 0)\nr5 |= r4\n*(u64 *)(r6 + 0) = r5
            *(u64 *)(r10 - 16) = -1\nr0 = *(u8 *)(r10 - 16)\nr0 = 0\nexit";
        assert_eq!(run(&engine, callback), 0, "{mode:?}: callback");
        // Zeroed once an entry, not once a round of a loop that begins with the function.
        let first = "count:\n*(u8 *)(r10 - 16) = 0\nr2 = *(u64 *)(r10 - 16)\nr2 += 256\n*(u64 *)(r10 - 16) = r2
            r1 += 1\nif r1 < 7 goto count\nr0 = r2\nexit";
        assert_eq!(
            run(&engine, &format!("call dirty\nr1 = 0\ncall count\nexit\n{DIRTY}\n{first}")),
            7 << 8,
            "{mode:?}: loop"
        );
    }
}

/// Padding of a map's key: the two entries are one.
#[test]
fn padding_of_keys_is_zero() {
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let map = Map::create(MapDef::new("m", MapType::Hash, 8, 8, 16), engine.domain()).unwrap();
        let linker = Linker::<()>::new(&engine);
        let count = "count:\n*(u8 *)(r10 - 8) = 1\n*(u32 *)(r10 - 4) = 2\n*(u64 *)(r10 - 16) = 3\nr1 = map[fd:0]\nr2 = r10\nr2 += -8\nr3 = r10
            r3 += -16\nr4 = 0\ncall 2\nexit";
        let text = format!("call dirty\ncall count\nexit\n{DIRTY}\n{count}");
        let program = linker.loader::<Raw>().maps(&[&map]).insns("p", assemble(&text).unwrap()).unwrap();
        program.run(&mut (), &mut []).unwrap();
        let keys: Vec<Vec<u8>> = map.iter().map(|element| element.unwrap().0).collect();
        assert_eq!(keys, [[1, 0, 0, 0, 2, 0, 0, 0]], "{mode:?}");
    }
}

/// A program that a tail call enters has the frame of the one that jumped.
#[test]
fn the_target_of_a_tail_call_is_zeroed() {
    for mode in modes() {
        for direct in [true, false] {
            let usual = config(mode);
            let level = if direct { usual.get_opt_level() } else { OptLevel::None };
            let engine = Engine::new(usual.opt_level(level)).unwrap();
            let linker = Linker::<()>::new(&engine);
            let array = ProgArray::<Raw, ()>::create(&engine, "array", 1).unwrap();
            let sum = SUM.replace("sum:\n", "r1 = 63\n");
            let target = linker.loader::<Raw>().insns("target", assemble(&sum).unwrap()).unwrap();
            array.set(0, &target).unwrap();
            let dirty = DIRTY
                .replace("dirty:\n", "r6 = r1\n")
                .replace("exit", "r1 = r6\nr2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 99\nexit");
            let program = linker.loader::<Raw>().prog_arrays(&[&array]).insns("p", assemble(&dirty).unwrap()).unwrap();
            assert_eq!(program.run(&mut (), &mut [0; 8]).unwrap(), 5, "{mode:?}");
        }
    }
}

/// In a privileged program, which may show addresses: a slot that holds a pointer if the program came one way, and to
/// which nothing was written if it came the other way.
#[test]
fn a_slot_that_one_path_leaves_unwritten_is_zero_there() {
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let linker = Linker::<()>::new(&engine);
        for (jump, unwritten, written) in [("==", 8, 5), ("!=", 5, 8)] {
            for (bits, at) in [(64, 512), (32, 512), (32, 508), (16, 506), (8, 505)] {
                let slot = format!(
                    "slot:\nif r2 {jump} 8 goto read\n*(u64 *)(r10 - 512) = r1\nread:\nr0 = *(u{bits} *)(r10 - {at})\nexit"
                );
                let text = format!("r6 = r1\nr7 = r2\ncall dirty\nr1 = r6\nr2 = r7\ncall slot\nexit\n{DIRTY}\n{slot}");
                let insns = assemble(&text).unwrap();
                assert!(linker.loader::<Raw>().insns("p", insns.clone()).is_err(), "{text}");
                let program = linker.loader::<Raw>().privileged(true).insns("p", insns).unwrap();
                let mut bytes = [0; 8];
                for len in [written, unwritten, unwritten] {
                    let address = bytes.as_ptr() as u64;
                    let r0 = program.run(&mut (), &mut bytes[..len]).unwrap();
                    let (low, mask) = (8 * (512 - at), if bits == 64 { u64::MAX } else { (1 << bits) - 1 });
                    let expected = if len == written { address >> low & mask } else { 0 };
                    assert_eq!(r0, expected, "{mode:?}, {len} bytes: {text}");
                }
            }
        }
    }
}
