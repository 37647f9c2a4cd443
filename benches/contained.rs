//! `cargo bench -p bpf-benches --bench contained`: what a contained program costs beside the same program verified, and
//! with a budget alone.
//!
//! `-- siphash parse` runs only these programs. Each ratio is to verified code without a budget. A time is the
//! least of interleaved rounds, less what an empty program takes (the entry into a run). `no vectors` is the same C as
//! native code without vectors. Programs that the verifier refuses without a promised length are left out, by name.
//!
//! `-- --hardening` measures the switches of `Hardening` instead: times and bytes of unverified code with each switch,
//! relative to code with none.

use bpf_benches::{
    engine::{Checked, Engine},
    engines,
    measure::{self, Contender},
    programs,
    table::{Table, figure},
};

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let hardening = std::env::args().any(|arg| arg == "--hardening");
    let engines = if hardening { engines::hardening() } else { engines::containment() };
    let Some(empty) = programs::Program::named("empty") else { return };
    let entry = times(&engines, &empty);
    let names = engines.iter().map(|engine| engine.name().to_owned());
    let heading: Vec<String> = ["program".to_owned(), "ns".to_owned()].into_iter().chain(names).collect();
    let mut table = Table::new(heading);
    let mut by_engine = vec![Vec::new(); engines.len()];
    for program in programs::ALL.iter().filter(|p| p.name != "empty") {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == program.name) {
            continue;
        }
        let ns: Vec<Option<f64>> =
            times(&engines, program).into_iter().zip(&entry).map(|(all, entry)| Some(all? - (*entry)?)).collect();
        let Some(verified) = ns[0] else { continue };
        let ratios: Vec<Option<f64>> = ns.iter().map(|ns| Some((*ns)? / verified)).collect();
        for (all, ratio) in by_engine.iter_mut().zip(&ratios) {
            all.extend(*ratio);
        }
        let cells = ratios.iter().map(|ratio| ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")));
        table.row([program.name.to_owned(), figure(verified)].into_iter().chain(cells));
    }
    let means =
        by_engine.iter().map(|all| format!("{:.2} ({})", measure::geometric_mean(all.iter().copied()), all.len()));
    table.row(["geometric mean (programs)".to_owned(), String::new()].into_iter().chain(means));
    println!("{table}");
    if hardening {
        bytes(&engines);
    }
}

/// Prints the bytes of machine code by engine, relative to the first one: geometric means over the programs.
fn bytes(engines: &[Box<dyn Engine>]) {
    let mut table = Table::new(["bytes of machine code", "geometric mean"]);
    let all: Vec<Vec<f64>> = engines.iter().map(|engine| lengths(engine.as_ref())).collect();
    for (engine, bytes) in engines.iter().zip(&all) {
        let ratios = bytes.iter().zip(&all[0]).map(|(bytes, first)| bytes / first);
        table.row([engine.name().to_owned(), format!("{:.3}", measure::geometric_mean(ratios))]);
    }
    println!("{table}");
}

/// Bytes of each program's machine code.
fn lengths(engine: &dyn Engine) -> Vec<f64> {
    let loaded = programs::ALL.iter().map(|program| engine.load(&program.code(), 0));
    loaded.filter_map(|loaded| Some(loaded.ok()?.code_bytes()? as f64)).collect()
}

/// Nanoseconds of a run, by engine.
fn times(engines: &[Box<dyn Engine>], program: &programs::Program) -> Vec<Option<f64>> {
    let mut loaded: Vec<Option<Checked>> = engines
        .iter()
        .map(|engine| {
            Checked::new(engine.as_ref(), program)
                .inspect_err(|why| {
                    let first = why.lines().nth(1).or(why.lines().next()).unwrap_or_default();
                    eprintln!("{} on {}: {first}", program.name, engine.name());
                })
                .ok()
        })
        .collect();
    let mut contenders: Vec<Contender<'_>> =
        loaded.iter_mut().flatten().map(|checked| Box::new(|repeat| checked.time(repeat)) as Contender<'_>).collect();
    let mut measured = measure::interleaved_least(&mut contenders).into_iter();
    drop(contenders);
    loaded.iter().map(|loaded| loaded.as_ref().and_then(|_| measured.next())).collect()
}
