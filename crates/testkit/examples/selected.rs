//! The check of contained machine code over objects: how many programs, instructions and accesses it takes.
//!
//! `cargo xtask selected [-- OBJECT ...]`; without objects, the speed programs, the loops of
//! `crates/verifier/tests/loops`, and the shared samples if they are there. Programs are contained and not verified, in
//! the first context of XDP, sk_buff and raw memory that takes them, each twice: with code that yields, and without.
//! The code for arm64 is checked on every host, the code for x86-64 on that host only.

use bpf_runtime::{
    Config, Context, Engine, Linker, MapSet, Object, Raw,
    code::Arch,
    net::{Skb, Xdp},
    oracle,
};
use bpf_testkit::cases::shared;
use bpf_testkit::soundness::selected::{Selected, check};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The machine code of this program of the object in one context, if it can be contained.
fn emitted<C: Context>(engine: &Engine, object: &Object, program: &str, yields: bool) -> Option<oracle::Emitted> {
    let maps = MapSet::for_object(engine, object).ok()?;
    oracle::ask_for_code();
    let linker = Linker::<()>::new(engine);
    let loaded = linker.loader::<C>().contained(true).yields(yields).only(&[program]).object(object, maps);
    oracle::code().filter(|_| loaded.is_ok())
}

fn main() -> ExitCode {
    if Arch::HOST.is_none() {
        eprintln!("there is no machine code on this host");
        return ExitCode::FAILURE;
    }
    let mut paths: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    if paths.is_empty() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut folders = vec![here.join("../../benches/programs"), here.join("../verifier/tests/loops")];
        for folder in ["build", "cilium", "cilium-examples", "new_linux"] {
            folders.extend(shared(&format!("objects/samples/{folder}")));
        }
        let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
        paths = files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|ext| ext == "o")).collect();
        paths.sort();
    }
    // SAFETY: nothing that is loaded here is run.
    unsafe { oracle::believe(true) };
    let engine = Engine::new(Config::new()).expect("an engine");
    let (mut uncontained, mut arenas, mut refused) = (0, 0, 0);
    let mut checked: BTreeMap<String, (u32, Selected)> = BTreeMap::new();
    for path in paths {
        let bytes = std::fs::read(&path).unwrap_or_default();
        let Ok(object) = Object::parse(&bytes) else { continue };
        for (program, yields) in object.programs().iter().flat_map(|program| [(program, false), (program, true)]) {
            let name = program.name();
            let found = emitted::<Xdp>(&engine, &object, name, yields)
                .or_else(|| emitted::<Skb>(&engine, &object, name, yields))
                .or_else(|| emitted::<Raw>(&engine, &object, name, yields));
            match found {
                None => uncontained += 1,
                Some(emitted) if emitted.arena => arenas += 1,
                Some(emitted) => {
                    let stacks: Vec<u32> = emitted.lir.funcs.iter().map(|func| func.stack_bytes).collect();
                    let x64 = (emitted.code.arch != Arch::Arm64).then_some(&emitted.code);
                    for code in x64.into_iter().chain([&emitted.arm64]) {
                        match check(code, &emitted.regions, &emitted.objects, &stacks) {
                            Ok(counts) => {
                                let (programs, all) = checked.entry(format!("{:?}", code.arch)).or_default();
                                *programs += 1;
                                all.add(counts);
                            }
                            Err(what) => {
                                refused += 1;
                                println!("{:?} {} {name}, yields {yields}: {what}", code.arch, path.display());
                            }
                        }
                    }
                }
            }
        }
    }
    for (arch, (programs, all)) in checked {
        println!("checked: {programs} programs for {arch}, {all:?}");
    }
    println!("refused by the check: {refused}; not contained: {uncontained}; with an arena, not checked: {arenas}");
    if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
