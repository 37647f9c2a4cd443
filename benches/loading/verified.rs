//! The cost of verifying: verified loads beside unverified loads and the kernel's, of the same programs, and each
//! step alone.
//!
//! There are three kinds of programs: those of the other tables, in which every number is known, so that a verifier
//! decides every branch and walks one side of it; straight-line code over unknown numbers; and code with branches
//! over unknown numbers, both sides of which are walked. The column "verify" is the verifier alone (including the
//! facts that it produces); the other columns are a load and an unload through the runtime.

use crate::loading::{each, phases::load};
use bpf_benches::measure::{Contender, interleaved, nanoseconds};
use bpf_benches::straight;
use bpf_benches::table::{Table, figure};
use bpf_isa::Program;
use bpf_runtime::{Config, Engine, Linker, OptLevel, Raw};
use bpf_verifier::{ContextLayout, Env, Helpers, Verifier};
use std::hint::black_box;

/// A kind of programs: its name, and a function that makes one from a seed and a length.
type Kind = (&'static str, fn(u64, usize) -> Vec<u8>);

const KINDS: [Kind; 3] = [
    ("known numbers", straight::program),
    ("straight line", |seed, length| straight::unknown(seed, length, false)),
    ("branches", |seed, length| straight::unknown(seed, length, true)),
];

/// Returns the tables: microseconds of a program of each length, and of many short ones.
pub(crate) fn tables() -> String {
    let heading = [
        "µs",
        "unverified",
        "verified",
        "no opt, unverified",
        "verified",
        "validate",
        "verify",
        "verify, ns/step",
        "kernel",
        "kernel / verified",
    ];
    let mut times = Table::new(heading.map(str::to_owned));
    let rates =
        ["thousands a second, 32 instructions", "unverified", "verified", "no opt, unverified", "verified", "kernel"];
    let mut rate = Table::new(rates);
    for (name, program) in KINDS {
        for (length, programs) in [(64, 64), (512, 16), (4000, 4)] {
            // The number of paths is exponential in the number of branches: longer programs exceed the limits of
            // every verifier.
            if name == "branches" && length > 64 {
                continue;
            }
            let programs: Vec<_> = (0..programs).map(|seed| program(seed, length)).collect();
            let costs = measure(&programs);
            let Costs { optimised: [unverified, verified], unoptimised: [quick, verified_quick], .. } = costs;
            let Costs { validate, verify, steps, kernel, .. } = costs;
            let us = |ns: f64| figure(ns / 1e3);
            let loads = [unverified, verified, quick, verified_quick, validate, verify].map(us);
            let cells = loads.into_iter().chain([figure(verify / steps)]);
            let kernel = kernel.map_or(["-".into(), "-".into()], |k| [us(k), figure(k / verified)]);
            times.row(std::iter::once(format!("{name}, {length}")).chain(cells).chain(kernel));
        }
        let programs: Vec<_> = (0..256).map(|seed| program(seed, 32)).collect();
        let Costs { optimised, unoptimised, kernel, .. } = measure(&programs);
        let a_second = |ns: f64| figure(1e6 / ns);
        let kernel = kernel.map_or("-".into(), a_second);
        let loads = optimised.into_iter().chain(unoptimised).map(a_second);
        rate.row(std::iter::once(name.to_owned()).chain(loads).chain([kernel]));
    }
    format!("{times}\n{rate}")
}

/// Nanoseconds a program of each way to load it and of each step, and the number of steps that the verifier takes.
struct Costs {
    /// An unverified load and a verified load.
    optimised: [f64; 2],
    unoptimised: [f64; 2],
    validate: f64,
    verify: f64,
    steps: f64,
    kernel: Option<f64>,
}

fn measure(programs: &[Vec<u8>]) -> Costs {
    let engine = Engine::new(Config::new()).expect("a backend");
    let linker = Linker::<()>::new(&engine);
    let (context, helpers) = (ContextLayout::raw(true), Helpers::shipped());
    let env = Env::new(&context, &helpers);
    let mut verifier = Verifier::new();
    // `verify` consumes a program and gives it back.
    let mut valid: Vec<_> = programs.iter().map(|code| Some(Program::from_bytes(code).expect("it is valid"))).collect();
    let mut steps = 0;
    for program in &mut valid {
        let verified = verifier.verify(program.take().expect("it is back"), &env).expect("it is safe");
        steps += verified.stats().steps;
        *program = Some(verified.into_parts().0);
    }
    let kernel = bpf_benches::engines::loaders().into_iter().find(|engine| engine.name() == "kernel");
    let kernel = kernel.filter(|kernel| programs.iter().all(|code| kernel.load_and_unload(code).is_ok()));
    let mut next = 0;
    let linker = &linker;
    let verified = |level| {
        let loader = move || linker.loader::<Raw>().opt_level(level);
        each(programs, move |code| drop(loader().bytes("bench", code).expect("it is safe")))
    };
    let mut contenders: Vec<Contender<'_>> = vec![
        each(programs, |code| load(linker, code, OptLevel::Speed)),
        verified(OptLevel::Speed),
        each(programs, |code| load(linker, code, OptLevel::None)),
        verified(OptLevel::None),
        each(programs, |code| drop(black_box(Program::from_bytes(code)))),
        Box::new(|repeat| {
            nanoseconds(repeat, |repeat| {
                for _ in 0..repeat {
                    let program = valid[next].take().expect("it is back");
                    valid[next] = Some(verifier.verify(program, &env).expect("it is safe").into_parts().0);
                    next = (next + 1) % valid.len();
                }
            })
        }),
    ];
    if let Some(kernel) = &kernel {
        contenders.push(each(programs, |code| kernel.load_and_unload(code).expect("it loaded before")));
    }
    let times = interleaved(&mut contenders);
    let &[unverified, verified, quick, verified_quick, validate, verify, ..] = &times[..] else {
        unreachable!("six and the kernel")
    };
    let steps = steps as f64 / programs.len() as f64;
    let (optimised, unoptimised) = ([unverified, verified], [quick, verified_quick]);
    Costs { optimised, unoptimised, validate, verify, steps, kernel: times.get(6).copied() }
}
