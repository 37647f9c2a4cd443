//! C programs of ordinary authors (`../shared/cases/c`, which is not in the repository), compiled by clang 19 for three
//! versions of the instruction set at three levels of optimisation: all but those in [`REFUSED`] are accepted.
//!
//! `--example sources` prints the verdict and the time of each.

use std::path::PathBuf;

use bpf_testkit::{cases::shared, skipped};

use crate::objects::{Verdict, compile, parse, verdict};

/// Sources, or one program of a source, that are refused with some compiler setting. They are not verified here,
/// because a refusal takes seconds.
const REFUSED: [&str; 7] = [
    "11_longest_word",
    "23_lz_copy",
    "min4",
    // The program divides numbers with a sign, which v2 and v3 have no instruction for.
    "token_t1",
    "query_t4 query",
    "query_t4 globs",
    "rate_t2",
];

#[test]
fn programs_of_ordinary_authors_are_accepted_as_clang_compiles_them() {
    let what = "the C programs of cases/c";
    if std::process::Command::new("clang-19").arg("--version").output().is_err() {
        return skipped(what, &"there is no clang-19");
    }
    let folders = ["cases/c", "cases/c/service", "cases/reports"].map(shared);
    let mut sources: Vec<PathBuf> = Vec::new();
    for folder in folders {
        let folder = match folder {
            Ok(folder) => folder,
            Err(why) => return skipped(what, &why),
        };
        // These reports are about the precision of the verifier.
        let reports = ["20_", "21_", "22_"];
        let all = !folder.ends_with("reports");
        let files = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        sources.extend(files.filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.ends_with(".c") && (all || reports.iter().any(|report| name.starts_with(report)))
        }));
    }
    sources.sort();
    let (mut accepted, mut wrong) = (0, Vec::new());
    for source in &sources {
        let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if REFUSED.contains(&stem.as_str()) {
            continue;
        }
        for (cpu, level) in
            ["v2", "v3", "v4"].into_iter().flat_map(|cpu| ["-O1", "-O2", "-Os"].map(|level| (cpu, level)))
        {
            let Some(path) = compile(source, "clang-19", cpu, level) else {
                wrong.push(format!("{stem} {cpu}{level}: not compiled"));
                continue;
            };
            let object = parse(&path).unwrap_or_else(|why| panic!("{stem}: {why}"));
            let _ = std::fs::remove_file(&path);
            for program in object.programs() {
                if REFUSED.contains(&format!("{stem} {}", program.name()).as_str()) {
                    continue;
                }
                match verdict(&object, program) {
                    Verdict::Accepted(..) => accepted += 1,
                    Verdict::Refused(why) => wrong.push(format!("{stem} {cpu}{level}: {why}")),
                    Verdict::Unlinked(why) => wrong.push(format!("{stem} {cpu}{level}: unlinked: {why}")),
                }
            }
        }
    }
    println!("{accepted} programs accepted");
    assert!(wrong.is_empty() && accepted > 200, "{accepted} accepted; {} not:\n{}", wrong.len(), wrong.join("\n"));
}
