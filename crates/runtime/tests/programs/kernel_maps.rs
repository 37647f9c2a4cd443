//! The kernel as oracle of the map helpers: the same program, a random sequence of calls on a map, must note the same
//! results in the kernel and on each of our engines.
//!
//! Needs bpf(2), that is, root; otherwise the test says SKIPPED. `BPF_SOAK=N` runs N times as many programs.

use bpf_runtime::{
    Config, Engine, Linker, Mode, Raw,
    code::Arch,
    maps::{Map, MapDef, MapType},
};
use bpf_testkit::{kernel, skipped};
use std::fmt::Write;

/// Calls in a program, each with a word for its result.
const CALLS: u32 = 24;

/// A generator of its own, so that a failure can be repeated from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Flags of updates and pushes: the valid ones, a lock where there is none (4), and invalid ones (3).
const FLAGS: [u64; 8] = [0, 0, 0, 0, 1, 2, 3, 4];

/// Code behind a call that returns a pointer to a value: returns the value's first word and changes the value, or
/// returns a mark for null.
const FOUND: &str = "if r0 == 0 goto L; r1 = *(u64 *)(r0 + 0); r2 = r1; r2 += 1000; *(u64 *)(r0 + 0) = r2; r0 = r1; goto N; L: r0 = 77777; N:";

/// One call on the map, of one of the kinds that its type has. The key is at r10 - 8 and a value at r10 - 16. The
/// result is in r0.
fn call(kind: kernel::MapType, random: &mut Random) -> String {
    let map = "r1 = map[fd:MAP];";
    let (key, value) = (format!("{map} r2 = r10; r2 += -8;"), format!("{map} r2 = r10; r2 += -16;"));
    let flags = random.of(&FLAGS);
    match kind {
        kernel::MapType::Queue | kernel::MapType::Stack => match random.below(4) {
            0 => format!("{value} call 88; r6 = r0; r0 = *(u64 *)(r10 - 16); if r6 == 0 goto N; r0 = r6; N:"),
            1 => format!("{value} call 89; r6 = r0; r0 = *(u64 *)(r10 - 16); if r6 == 0 goto N; r0 = r6; N:"),
            _ => format!("{value} r3 = {flags}; call 87;"),
        },
        kernel::MapType::RingBuf => match random.below(5) {
            0 => format!("{value} r3 = {}; r4 = {}; call 130;", random.of(&[1, 8, 15]), random.of(&[0, 1, 2, 8])),
            1 | 2 => {
                let (size, end) = (random.of(&[1, 8, 100, 1000, 3000]), random.of(&[132, 133]));
                format!(
                    "{map} r2 = {size}; r3 = 0; call 131; r6 = 1; if r0 == 0 goto L; r6 = 2; r1 = r0; r2 = 0; call {end}; L: r0 = r6;"
                )
            }
            _ => format!("{map} r2 = {}; call 134;", random.below(6)),
        },
        _ => match random.below(4) {
            0 => format!("{key} call 3;"),
            1 => format!("{key} call 1; {FOUND}"),
            _ => format!("{key} r3 = r10; r3 += -16; r4 = {flags}; call 2;"),
        },
    }
}

/// A program of [`CALLS`] calls; r1 is where the results go.
fn program(kind: kernel::MapType, random: &mut Random) -> String {
    let mut text = format!("r9 = r1; if r2 < {} goto end;", CALLS * 8);
    for i in 0..CALLS {
        let (key, value) = (random.below(5), random.below(1000));
        let call = call(kind, random).replace("L:", &format!("l{i}:")).replace("goto L", &format!("goto l{i}"));
        let call = call.replace("N:", &format!("n{i}:")).replace("goto N", &format!("goto n{i}"));
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "*(u64 *)(r10 - 8) = {key}; *(u64 *)(r10 - 16) = {value}; {call} *(u64 *)(r9 + {}) = r0;",
            i * 8
        );
    }
    text + "end: r0 = 0; exit"
}

#[test]
fn helpers_do_as_the_kernels() {
    if let Err(why) = kernel::available() {
        return skipped("helpers_do_as_the_kernels", &why);
    }
    let modes: &[Mode] = if Arch::HOST.is_some() { &[Mode::Interpreter, Mode::Jit] } else { &[Mode::Interpreter] };
    let kinds = [
        (kernel::MapType::Hash, MapType::Hash, 8, 8, 3),
        (kernel::MapType::Array, MapType::Array, 4, 8, 3),
        (kernel::MapType::LruHash, MapType::LruHash, 8, 8, 64),
        (kernel::MapType::Queue, MapType::Queue, 0, 8, 2),
        (kernel::MapType::Stack, MapType::Stack, 0, 8, 2),
        (kernel::MapType::RingBuf, MapType::RingBuf, 0, 0, 4096),
    ];
    for (theirs, ours, key, value, entries) in kinds {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..crate::support::soak(20) {
            let text = program(theirs, &mut Random(seed));
            let map = kernel::Map::create(theirs, key, value, entries).unwrap();
            let insns = crate::support::program(&text.replace("MAP", &map.fd().to_string()));
            let bytes = bpf_isa::encode(&insns).unwrap();
            let loaded =
                kernel::RawProgram::load(&bytes, CALLS * 8).unwrap_or_else(|e| panic!("{ours:?}: {e}\n{text}"));
            let mut expected = vec![0; CALLS as usize * 8];
            loaded.run(&mut expected, 1).unwrap();
            let words = |bytes: &[u8]| -> Vec<i64> {
                bytes.chunks(8).map(|w| i64::from_ne_bytes(w.try_into().unwrap())).collect()
            };
            let expected = words(&expected);
            outcomes.extend(expected.iter().copied());
            for &mode in modes {
                let config = Config::new().mode(mode);
                let engine = Engine::new(config).unwrap();
                let map = Map::create(MapDef::new("map", ours, key, value, entries), engine.domain()).unwrap();
                let linker = Linker::<()>::new(&engine);
                let insns = crate::support::program(&text.replace("MAP", "0"));
                let program = linker.loader::<Raw>().maps(&[&map]).insns("test", insns);
                let program = program.unwrap_or_else(|e| panic!("{ours:?}: {e}\n{text}"));
                let mut results = vec![0; CALLS as usize * 8];
                program.run(&mut (), &mut results).unwrap();
                assert_eq!(
                    words(&results),
                    expected,
                    "{ours:?} on {mode:?}, seed {seed}:\n{}",
                    text.replace(';', "\n")
                );
            }
        }
        assert!(outcomes.len() >= 5, "{ours:?}: the calls always end alike: {outcomes:?}");
    }
}
