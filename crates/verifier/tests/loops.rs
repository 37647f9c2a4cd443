//! Ordinary loops, written as one writes C: each verifies, in a time that does not depend on how often they turn.
//!
//! The programs are `loops/*.c`, built for two versions of the instruction set (`cargo xtask objects`).

mod common;

use std::path::Path;

use bpf_isa::Program;
use bpf_object::{Object, ProgramType};
use bpf_verifier::{ContextLayout, Env, Helpers, MapDef, MapType, Verified, Verifier, VerifyError};

/// Every program of the objects: its name, its code, whether it has a raw context, and its maps.
pub fn programs() -> Vec<(String, Program, bool, Vec<MapDef>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/loops");
    let mut out = Vec::new();
    for file in ["raw.o", "raw.v4.o", "more.o", "more.v2.o", "more.v4.o", "xdp.o", "xdp.v4.o"] {
        let object = Object::parse(&std::fs::read(folder.join(file)).expect("a file")).expect("an object");
        for p in object.programs() {
            let code = object.link(p, |_| false).expect("it links").into_code();
            let maps = object
                .maps()
                .iter()
                .map(|d| MapDef {
                    access: bpf_verifier::Access::Read,
                    frozen: d.data.as_ref().map(|d| d.bytes.clone()),
                    ..MapDef::new(&d.name, MapType::Array, 4, d.value_size, 1)
                })
                .collect();
            let name = format!("{file} {}", p.name());
            out.push((name, Program::new(code.insns().to_vec()).expect("valid"), p.kind() != ProgramType::Xdp, maps));
        }
    }
    out
}

fn verify(program: &Program, raw: bool, maps: &[MapDef], log: bool) -> Result<Verified, Box<VerifyError>> {
    let context = if raw { ContextLayout::raw(true) } else { common::xdp() };
    let helpers = Helpers::none();
    let mut env = Env::new(&context, &helpers);
    env.maps = maps;
    env.log = log;
    Verifier::new().verify(program.clone(), &env)
}

/// The steps of a walk that does not depend on how often a loop turns: the most that any of them takes is of a sort,
/// whose inner loop is walked round by round.
const MOST_STEPS: u64 = 100_000;

#[test]
fn ordinary_loops_verify() {
    let only = std::env::var("LOOP").ok();
    let mut wrong = Vec::new();
    for (name, program, raw, maps) in programs() {
        if only.as_ref().is_some_and(|o| !name.contains(o.as_str())) {
            continue;
        }
        let result = verify(&program, raw, &maps, only.is_some());
        if let (Some(_), Ok(v)) = (&only, &result) {
            println!("{}", v.log().join("\n"));
        }
        match result {
            Ok(v) => {
                println!("{name}: {} instructions, {:?}", program.insns().len(), v.stats());
                if v.stats().steps > MOST_STEPS {
                    wrong.push(format!("{name}: {:?}", v.stats()));
                }
            }
            Err(e) => {
                if only.is_some() {
                    println!("{}", e.log.join("\n"));
                }
                wrong.push(format!("{name}: {e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The number of rounds makes no difference.
#[test]
fn rounds_cost_nothing() {
    let steps = |n: u32| {
        let text = format!("r0 = 0\nr3 = 0\na: r0 += r3\nw3 += 1\nif w3 != {} goto a\nr0 = 0\nexit", n as i32);
        common::verify(&text).unwrap_or_else(|e| panic!("{n}: {e}")).stats().steps
    };
    assert_eq!(steps(10), steps(1 << 31));
}

/// What never ends is refused, whatever seems to bound it.
#[test]
fn endless_loops_are_refused() {
    for text in [
        // By wrapping round.
        "r3 = 1\na: r3 += 2\nif r3 != 0 goto a\nr0 = 0\nexit",
        "w3 = 1\na: w3 += 2\nif w3 != 0 goto a\nr0 = 0\nexit",
        // A step past the bound.
        "r3 = 0\na: r3 += 3\nif r3 != 64 goto a\nr0 = 0\nexit",
        // One path does not move.
        ";raw\nr0 = 0\nif r2 < 8 goto out\nr3 = 0\na: r4 = *(u8 *)(r1 + 0)\nif r4 == 7 goto b\nr3 += 1\nb: if r3 < 8 goto a\nout: exit",
        // Up and down.
        ";raw\nr0 = 0\nif r2 < 8 goto out\nr3 = 3\na: r4 = *(u8 *)(r1 + 0)\nif r4 == 7 goto b\nr3 += 1\ngoto c\nb: r3 -= 1\nc: if r3 != 0 goto a\nout: exit",
        // 0 stays 0.
        ";raw\nr0 = 0\nif r2 < 8 goto out\nr3 = *(u64 *)(r1 + 0)\na: r3 >>= 1\nif r3 < 8 goto a\nout: exit",
    ] {
        let error = common::verify(text).expect_err(text);
        println!("{text}\n{error}");
    }
}
