//! Verdict and time of each program of C sources, by compiler, instruction set and optimisation level.
//!
//! `cargo run --release -p bpf-verifier --example sources [--with COMPILER]... [--cpu CPU]... [--level LEVEL]...
//! [--log] [--prove] [--way WAY] [PATH]...`. A path is a C file or a folder of C files; the default is `cases/c`, its
//! `service` and reports 20 to 22. `COMPILER` is a command. The defaults are clang-19, v2 to v4, -O1, -O2 and -Os;
//! bpf-gcc takes the level and no `-target`. `--log` prints each walk; `--prove` looks for a certificate instead, and
//! says what each strategy could not prove; `--way` walks by one way of the portfolio alone (`ways.rs`).
//! The output has one line for each program and setting, sorted, with the verdict first and the time last, so that two
//! tables can be compared (`cut -f1-5`). A time is that of the verifier alone: the least of five for an accepted
//! program, a single one for a refused program.

#[path = "../tests/verify/objects.rs"]
mod objects;

use std::path::PathBuf;
use std::time::Duration;

use bpf_verifier::certify::certify_within;
use objects::{Verdict, compile, parse, verdict_by, with_env};

const TIMES: usize = 5;
/// Fuel for each walk of a search for a certificate.
const FUEL: u64 = 1 << 17;

/// The verdict in words, and the time that it took.
fn judge(object: &bpf_object::Object, program: &bpf_object::Program, way: Option<&str>) -> (String, Duration) {
    let mut least = Duration::MAX;
    for _ in 0..TIMES {
        let start = std::time::Instant::now();
        match verdict_by(object, program, false, way) {
            Verdict::Accepted(_, took) => least = least.min(took),
            Verdict::Refused(e) => return (format!("refused at {}: {}", e.insn, e.reason), start.elapsed()),
            Verdict::Unlinked(why) => return (format!("unlinked: {why}"), Duration::ZERO),
        }
        if least > Duration::from_millis(200) {
            break;
        }
    }
    ("accepted".into(), least)
}

/// Whether a certificate is found, and the time of the search.
fn proven(object: &bpf_object::Object, program: &bpf_object::Program) -> (String, Duration) {
    let start = std::time::Instant::now();
    let said = match with_env(object, program, |code, env| certify_within(&code, env, FUEL)) {
        Ok(Ok(_)) => "accepted".to_owned(),
        Ok(Err(why)) => format!("unproven: {why}"),
        Err(why) => format!("unlinked: {why}"),
    };
    (said, start.elapsed())
}

fn main() {
    let (mut withs, mut cpus, mut levels, mut paths) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut log, mut prove, mut way) = (false, false, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let list = match arg.as_str() {
            "--with" => &mut withs,
            "--cpu" => &mut cpus,
            "--level" => &mut levels,
            "--way" => {
                way = args.next();
                continue;
            }
            "--log" => {
                log = true;
                continue;
            }
            "--prove" => {
                prove = true;
                continue;
            }
            _ => {
                paths.push(PathBuf::from(arg));
                continue;
            }
        };
        list.extend(args.next());
    }
    let or = |list: Vec<String>, default: &[&str]| match list.is_empty() {
        true => default.iter().map(|s| (*s).to_owned()).collect(),
        false => list,
    };
    let withs = or(withs, &["clang-19"]);
    let (cpus, levels) = (or(cpus, &["v2", "v3", "v4"]), or(levels, &["-O1", "-O2", "-Os"]));
    if paths.is_empty() {
        let shared = |name: &str| bpf_testkit::cases::shared(&format!("cases/{name}")).ok();
        paths.extend(["c", "c/service"].into_iter().filter_map(shared));
        let reports = ["20_masked_copies.c", "21_rest_of_buffer.c", "22_length_of_32_bits.c"];
        paths.extend(reports.into_iter().filter_map(|name| shared(&format!("reports/{name}"))));
    }
    let mut sources: Vec<PathBuf> = Vec::new();
    for path in paths {
        match std::fs::read_dir(&path) {
            Ok(folder) => sources.extend(folder.flatten().map(|e| e.path())),
            Err(_) => sources.push(path),
        }
    }
    sources.retain(|path| path.extension().is_some_and(|e| e == "c"));
    sources.sort();
    let (mut accepted, mut all, mut times) = (0, 0, Vec::new());
    for source in sources {
        let stem = source.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        for with in &withs {
            for (cpu, level) in cpus.iter().flat_map(|cpu| levels.iter().map(move |level| (cpu, level))) {
                let Some(path) = compile(&source, with, cpu, level) else {
                    println!("{stem}\t\t{with}\t{cpu}{level}\tnot compiled");
                    continue;
                };
                let object = parse(&path);
                let _ = std::fs::remove_file(&path);
                let object = match object {
                    Ok(object) => object,
                    Err(e) => {
                        println!("{stem}\t\t{with}\t{cpu}{level}\tnot parsed: {e}");
                        continue;
                    }
                };
                for program in object.programs() {
                    if log {
                        match verdict_by(&object, program, true, way.as_deref()) {
                            Verdict::Accepted(v, _) => println!("{}", v.log().join("\n")),
                            Verdict::Refused(e) => println!("{}\n{e}", e.log.join("\n")),
                            Verdict::Unlinked(why) => println!("{why}"),
                        }
                    }
                    let (said, took) = match prove {
                        true => proven(&object, program),
                        false => judge(&object, program, way.as_deref()),
                    };
                    all += 1;
                    accepted += usize::from(said == "accepted");
                    times.push(took);
                    let ms = took.as_secs_f64() * 1e3;
                    println!("{stem}\t{}\t{with}\t{cpu}{level}\t{said}\t{ms:.2} ms", program.name());
                }
            }
        }
    }
    times.sort();
    let part = |n: usize, of: usize| times.get((times.len() * n / of).min(times.len().saturating_sub(1))).copied();
    println!(
        "{accepted} of {all} accepted; time in the middle {:.1?}, of nine of ten at most {:.1?}, at most {:.1?}",
        part(1, 2).unwrap_or_default(),
        part(9, 10).unwrap_or_default(),
        times.last().copied().unwrap_or_default()
    );
}
