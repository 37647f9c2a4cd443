//! `cargo bench -p bpf-benches --bench load`: the time of loading a program (and unloading it).
//!
//! Without arguments it prints four tables: microseconds of a load and an unload of one program of 64, 512 and 4000
//! instructions; thousands of loads a second of CPU time, of 256 different programs of 32 instructions in turn; loads
//! of these programs by one and by several threads at once; and the memory that a loaded program takes. Arguments
//! select other tables:
//!
//! - `-- phases`: the time of each step of a load;
//! - `-- instances`: one more instance of a module, and ten thousand of them;
//! - `-- verified`: the cost of verifying, beside the kernel's;
//! - `-- cold`: a load after other work;
//! - `-- tag`: 40,945 loads of programs of every length, as in the kernel's self-test;
//! - `-- spin INSTRUCTIONS SECONDS [none]` loads for a sampling profiler, and `-- count INSTRUCTIONS LOADS [none]`
//!   for a counting one (`none`: without optimisation).
//!
//! rbpf does not verify types, and solana-sbpf checks the structure only. The kernel's time includes its verifier and
//! a system call, and excludes the work that it does after a grace period.

mod loading;

use bpf_benches::{
    engine::Engine,
    engines,
    measure::{self, Contender},
    straight,
    table::{Table, figure},
};
use bpf_runtime::OptLevel;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => tables(),
        ["tag"] => println!("{}", loading::tag::table()),
        ["verified"] => println!("{}", loading::verified::tables()),
        ["instances"] => {
            println!("{}", loading::instances::table());
            loading::instances::many();
        }
        ["cold"] => println!("{}", loading::cold::table(&engines::loaders())),
        ["phases"] => println!("{}", loading::phases::table(&[32, 512, 4000])),
        ["spin", length, seconds, ref level @ ..] => {
            let [length, seconds] = [length, seconds].map(|n| n.parse().expect("a number"));
            let level = if level.is_empty() { OptLevel::Speed } else { OptLevel::None };
            loading::phases::spin(length, seconds as u64, level);
        }
        ["count", length, loads, ref level @ ..] => {
            let [length, loads] = [length, loads].map(|n| n.parse().expect("a number"));
            let level = if level.is_empty() { OptLevel::Speed } else { OptLevel::None };
            loading::phases::count(length, loads, level);
        }
        _ => {
            eprintln!(
                "load [tag | cold | instances | phases | verified | spin INSTRUCTIONS SECONDS [none] | count INSTRUCTIONS LOADS [none]]"
            );
            std::process::exit(2);
        }
    }
}

fn tables() {
    let engines = engines::loaders();
    let heading = |unit: &str| {
        let names = engines.iter().map(|engine| engine.name().to_owned());
        Table::new(std::iter::once(unit.to_owned()).chain(names))
    };
    let mut notes = Vec::new();
    let mut times = heading("µs a load + unload");
    for length in [64, 512, 4000] {
        let programs = [straight::program(1, length)];
        let measured = measure_all(&engines, &programs, &format!("{length} instructions"), &mut notes);
        times.row(row(format!("{length} instructions"), &measured, |ns| figure(ns / 1e3)));
    }
    let mut rate = heading("thousands a second");
    let programs: Vec<_> = (0..256).map(|seed| straight::program(seed, 32)).collect();
    let measured = measure_all(&engines, &programs, "32 instructions", &mut notes);
    rate.row(row("32 instructions".into(), &measured, |ns| figure(1e6 / ns)));
    println!("{times}\n{rate}\n{}", loading::threads::table(&engines));
    println!("{}", loading::memory::table(&engines));
    for note in notes {
        println!("{note}");
    }
}

fn row(name: String, measured: &[Option<f64>], show: impl Fn(f64) -> String) -> Vec<String> {
    let cells = measured.iter().map(|ns| ns.map_or("-".into(), &show));
    std::iter::once(name).chain(cells).collect()
}

/// Measures a load and an unload of the programs in turn, on each engine; returns nanoseconds, `None` for an engine
/// that refuses a program.
fn measure_all(
    engines: &[Box<dyn Engine>],
    programs: &[Vec<u8>],
    what: &str,
    notes: &mut Vec<String>,
) -> Vec<Option<f64>> {
    let usable: Vec<bool> = engines
        .iter()
        .map(|engine| match programs.iter().try_for_each(|program| engine.load_and_unload(program)) {
            Ok(()) => true,
            Err(why) => {
                notes.push(format!("{what} on {}: {why}", engine.name()));
                false
            }
        })
        .collect();
    let mut contenders: Vec<Contender<'_>> = engines
        .iter()
        .zip(&usable)
        .filter(|(_, usable)| **usable)
        .map(|(engine, _)| {
            let mut next = programs.iter().cycle();
            Box::new(move |repeat| {
                measure::nanoseconds(repeat, |repeat| {
                    for program in next.by_ref().take(repeat as usize) {
                        engine.load_and_unload(program).expect("it loaded before");
                    }
                })
            }) as Contender<'_>
        })
        .collect();
    let mut measured = measure::interleaved(&mut contenders).into_iter();
    usable.into_iter().map(|usable| if usable { measured.next() } else { None }).collect()
}
