//! C programs of ordinary authors (`../shared/cases/c`, which is not in the repository), compiled by clang 19 for three
//! versions of the instruction set at three levels of optimisation: all but those in [`REFUSED`] are accepted.
//!
//! `--example sources` prints the verdict and the time of each.

use std::path::PathBuf;

use bpf_testkit::{cases::shared, skipped};

use crate::objects::{Verdict, compile, parse, verdict_by};

/// Refused sources, programs of a source, or compiler settings of these. They are not verified here, because a refusal
/// takes seconds.
const REFUSED: [&str; 7] = [
    "23_lz_copy v3 -O1",
    "23_lz_copy v4 -O1",
    // The program divides numbers with a sign, which v2 and v3 have no instruction for.
    "token_t1 v2",
    "token_t1 v3",
    // A round ends without progress if memory that was read twice has changed in between. With -O2 the program reads it
    // once, and the walks accept it after seconds.
    "token_t1 accept_",
    // A path that ends with a zero byte makes the program read past its pattern.
    "query_t4 globs",
    // The walks take more steps than they may, and the search finds no invariant.
    "rate_t2 -O1",
];

/// Programs that the walks refuse after seconds, and a certificate proves. The search for it is run alone here.
const CERTIFIED: [&str; 8] = [
    "11_longest_word",
    "23_lz_copy v3",
    "23_lz_copy v4",
    "min4",
    "query_t4 query -O2",
    "rate_t2 -O2",
    "token_t1 token -O1",
    "token_t1 token -Os",
];

/// Whether a list has this program.
fn lists(list: &[&str], words: [&str; 4]) -> bool {
    list.iter().any(|entry| entry.split(' ').all(|word| words.contains(&word)))
}

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
        for (cpu, level) in
            ["v2", "v3", "v4"].into_iter().flat_map(|cpu| ["-O1", "-O2", "-Os"].map(|level| (cpu, level)))
        {
            if lists(&REFUSED, [&stem, "", cpu, level]) {
                continue;
            }
            let Some(path) = compile(source, "clang-19", cpu, level) else {
                wrong.push(format!("{stem} {cpu}{level}: not compiled"));
                continue;
            };
            let object = parse(&path).unwrap_or_else(|why| panic!("{stem}: {why}"));
            let _ = std::fs::remove_file(&path);
            for program in object.programs() {
                let words = [&stem, program.name(), cpu, level];
                if lists(&REFUSED, words) {
                    continue;
                }
                let way = lists(&CERTIFIED, words).then_some("certified");
                match verdict_by(&object, program, false, way) {
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
