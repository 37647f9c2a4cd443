//! The work of verifying each sample object's programs, here and in the kernel: walked instructions, states, memory and
//! time.
//!
//! `cargo run --release -p bpf-verifier --example steps [least steps shown] [part of a name]`, as root for the kernel's
//! columns. The objects are looked for as in `tests/samples.rs`; C files in `objects/loops` are compiled with clang-19
//! if it is there. The kernel's time is that of the whole load (verifier, fix-ups, machine code); its walked
//! instructions are `verified_insns` of the loaded program. Where the kernel has no figure it refuses the program, or
//! needs what a plain load does not give.

#[path = "../tests/verify/objects.rs"]
mod objects;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bpf_isa::{Imm64, Insn};
use bpf_object::Object;
use bpf_testkit::kernel::{Map, Program, ProgramType};
use objects::{Verdict, objects, parse, verdict};

const ROUNDS: usize = 5;

/// The kernel's walked instructions and the best time of a load.
fn kernel(object: &Object, program: &bpf_object::Program, skb: bool) -> Result<(u32, Duration), String> {
    let kind = match program.kind() {
        ProgramType::SocketFilter => ProgramType::SocketFilter,
        ProgramType::TcClassifier | ProgramType::CgroupSkb | ProgramType::SkSkb => ProgramType::TcClassifier,
        ProgramType::Unknown if program.section().starts_with("socket") => ProgramType::SocketFilter,
        _ if skb => ProgramType::TcClassifier,
        _ => ProgramType::Xdp,
    };
    let create = |def: &bpf_object::MapDecl| {
        // As in libbpf, a perf event array without a size has one element for each processor.
        let entries = if def.max_entries == 0 { 8 } else { def.max_entries };
        let sizes = [def.key_size, def.value_size, entries];
        let inner = match &def.inner {
            Some(inner) => {
                let sizes = [inner.key_size, inner.value_size, inner.max_entries];
                Some(Map::create_raw(inner.map_type.0, sizes, inner.flags, None).map_err(|e| e.to_string())?)
            }
            None => None,
        };
        Map::create_raw(def.map_type.0, sizes, def.flags, inner.as_ref()).map_err(|e| format!("{}: {e}", def.name))
    };
    let maps: Vec<Map> = object.maps().iter().map(create).collect::<Result<_, _>>()?;
    let linked = object.link(program, |_| false).map_err(|e| e.to_string())?.into_code();
    let insns: Vec<Insn> = linked.insns().iter().map(|insn| with_descriptor(*insn, &maps)).collect();
    let bytes = bpf_isa::encode(&insns).map_err(|e| e.to_string())?;
    let mut best = Duration::MAX;
    let mut walked = 0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let loaded = Program::load(kind, &bytes).map_err(|e| e.to_string())?;
        best = best.min(start.elapsed());
        walked = loaded.verified_insns().map_err(|e| e.to_string())?;
    }
    Ok((walked, best))
}

fn with_descriptor(insn: Insn, maps: &[Map]) -> Insn {
    let fd = |index: i32| maps.get(index as usize).map_or(-1, Map::fd);
    match insn {
        Insn::LoadImm64 { dst, imm: Imm64::MapIdx(index) } => Insn::LoadImm64 { dst, imm: Imm64::Map(fd(index)) },
        Insn::LoadImm64 { dst, imm: Imm64::MapIdxValue { map, off } } => {
            Insn::LoadImm64 { dst, imm: Imm64::MapValue { map: fd(map), off } }
        }
        other => other,
    }
}

/// Objects compiled from the C files of a folder, in as many variants as they have.
fn compiled(folder: &Path) -> Vec<PathBuf> {
    let variants: [(&str, &[&str]); 3] =
        [("n6", &["-DN=6"]), ("n6-ah", &["-DN=6", "-DAH"]), ("n6-ah-frag", &["-DN=6", "-DAH", "-DFRAG"])];
    let mut built = Vec::new();
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()) {
        let Some(stem) = path.file_stem().and_then(|s| s.to_str()) else { continue };
        for (name, defines) in variants {
            let out = std::env::temp_dir().join(format!("{stem}-{name}.o"));
            let mut clang = std::process::Command::new("clang-19");
            clang.args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-I/usr/include/x86_64-linux-gnu", "-c"]);
            if clang.args(defines).arg(&path).arg("-o").arg(&out).status().is_ok_and(|s| s.success()) {
                built.push(out);
            }
        }
    }
    built
}

fn main() {
    let mut args = std::env::args().skip(1);
    let least: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(100);
    let part = args.next().unwrap_or_default();
    let root = bpf_testkit::kernel::available();
    if let Err(e) = &root {
        eprintln!("no figures of the kernel: {e}");
    }
    let mut paths = Vec::new();
    for folder in ["cilium", "build", "cilium-examples", "new_linux", "../tailcalls/v3", "../tailcalls/v4"] {
        let Some(folder) = objects(folder) else { continue };
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
        files.sort();
        paths.extend(files);
    }
    if let Some(folder) = objects("../loops") {
        paths.extend(compiled(&folder));
    }
    println!(
        "| program | insns | steps | kernel | states | peak KiB | µs | kernel µs |\n|---|---|---|---|---|---|---|---|"
    );
    let (mut both, mut more) = (0, 0);
    let (mut ours, mut theirs) = (0, 0);
    for path in paths {
        let Ok(object) = parse(&path) else { continue };
        let file = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let skb = path.parent().is_some_and(|p| p.ends_with("cilium")) && !file.contains("xdp");
        for program in object.programs() {
            let name = format!("{} {}", file.trim_end_matches(".o"), program.name());
            if !name.contains(&part) {
                continue;
            }
            let mut best = Duration::MAX;
            let mut last = None;
            for _ in 0..ROUNDS {
                match verdict(&object, program) {
                    Verdict::Accepted(verified, took) => {
                        best = best.min(took);
                        last = Some(verified);
                    }
                    Verdict::Refused(e) => {
                        eprintln!("refused: {name}: {} at {}", e.reason, e.insn);
                        break;
                    }
                    Verdict::Unlinked(_) => break,
                }
            }
            let Some(verified) = last else { continue };
            let stats = verified.stats();
            let kernel = root.as_ref().map_err(|_| String::new()).and_then(|()| kernel(&object, program, skb));
            if let Err(e) = &kernel
                && !e.is_empty()
            {
                eprintln!("kernel: {name}: {e}");
            }
            if let Ok((walked, _)) = kernel {
                both += 1;
                more += usize::from(stats.steps > u64::from(walked));
                ours += stats.steps;
                theirs += u64::from(walked);
            }
            if stats.steps < least {
                continue;
            }
            let us = |d: Duration| format!("{:.0}", d.as_nanos() as f64 / 1000.0);
            let (walked, load) = kernel.map_or((String::new(), String::new()), |(n, d)| (n.to_string(), us(d)));
            println!(
                "| {name} | {} | {} | {walked} | {} | {:.0} | {} | {load} |",
                verified.program().insns().len(),
                stats.steps,
                stats.states,
                stats.peak_bytes as f64 / 1024.0,
                us(best),
            );
        }
    }
    println!(
        "\n{both} programs that both load: {ours} steps here, {theirs} in the kernel; {more} with more steps here"
    );
}
