//! Real objects: accepted or refused as a table written by hand says, with the reason.
//!
//! The objects are not in the repository: they are looked for in `$BPF_SHARED/objects` or `../shared/objects` beside
//! it.

use std::collections::{BTreeMap, BTreeSet};

use crate::objects::{Verdict, objects, parse, verdict};

#[test]
fn sample_objects_get_the_verdict_of_the_table() {
    let Some(folder) = objects("build") else { return };
    let mut failures = Vec::new();
    let mut seen = 0;
    for row in include_str!("../samples.tsv").lines().filter(|l| !l.starts_with('#')) {
        let mut cells = row.split('\t');
        let mut cell = || cells.next().unwrap_or_default();
        let (file, name, want, reason, why) = (cell(), cell(), cell(), cell(), cell());
        seen += 1;
        let verdict = match parse(&folder.join(file)) {
            Err(e) => Verdict::Unlinked(e),
            Ok(object) => match object.programs().iter().find(|p| p.name() == name) {
                Some(program) => verdict(&object, program),
                None => Verdict::Unlinked(format!("no program {name}")),
            },
        };
        match (want, verdict) {
            ("accept", Verdict::Accepted(..)) | ("link", Verdict::Unlinked(_)) => {}
            ("refuse", Verdict::Refused(e)) if e.to_string().contains(reason) => {}
            (_, Verdict::Accepted(..)) => failures.push(format!("{file}: accepted, but {why}")),
            (_, Verdict::Refused(e)) => failures.push(format!("{file}: wanted {want} ({reason}): {why}\n{e}")),
            (_, Verdict::Unlinked(e)) => {
                failures.push(format!("{file}: wanted {want} ({why}), but it does not link: {e}"))
            }
        }
    }
    assert!(seen >= 43, "the table has {seen} rows");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// The other samples are kernel programs of many kinds. Every program with a supported context gets a verdict, and none
/// an internal error.
#[test]
fn other_objects_get_a_verdict() {
    for (folder, least) in [("cilium-examples", 4), ("new_linux", 7), ("../tailcalls/v3", 17), ("../tailcalls/v4", 17)]
    {
        let Some(folder) = objects(folder) else { continue };
        let mut accepted = 0;
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let Ok(object) = parse(&path) else { continue };
            for program in object.programs() {
                let name = format!("{} {}", path.display(), program.name());
                match verdict(&object, program) {
                    Verdict::Accepted(v, _) => {
                        accepted += 1;
                        println!("accepted {name}: {:?}", v.stats());
                    }
                    Verdict::Refused(e) => {
                        assert!(!matches!(e.reason, bpf_verifier::Reason::Internal(_)), "{name}: {e}");
                        println!("refused {name}: {e}");
                    }
                    Verdict::Unlinked(e) => println!("not linked {name}: {e}"),
                }
            }
        }
        assert!(accepted >= least, "{}: {accepted} accepted", folder.display());
    }
}

/// No program takes more steps than the kernel walks of it.
#[test]
fn no_sample_takes_more_steps_than_the_kernel() {
    let rows = include_str!("../kernel_steps.tsv").lines().filter(|l| !l.starts_with('#'));
    let kernel: BTreeMap<(String, String), u64> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('\t').collect();
            let [object, program, steps] = cells[..] else { panic!("three cells: {row}") };
            ((object.to_owned(), program.to_owned()), steps.parse().expect("a number"))
        })
        .collect();
    let mut compared = BTreeSet::new();
    let folders = ["cilium", "build", "cilium-examples", "new_linux", "../tailcalls/v3", "../tailcalls/v4"];
    let folders: Vec<_> = folders.into_iter().filter_map(objects).collect();
    for folder in &folders {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let Ok(object) = parse(&path) else { continue };
            let file = path.file_name().expect("a file").to_string_lossy().into_owned();
            for program in object.programs() {
                let name = (file.trim_end_matches(".o").to_owned(), program.name().to_owned());
                let Some(most) = kernel.get(&name) else { continue };
                match verdict(&object, program) {
                    Verdict::Accepted(v, _) => {
                        let steps = v.stats().steps;
                        assert!(steps <= *most, "{name:?}: {steps} steps, the kernel walks {most}");
                        compared.insert(name);
                    }
                    Verdict::Refused(e) => panic!("{name:?}: {e}"),
                    Verdict::Unlinked(e) => panic!("{name:?}: {e}"),
                }
            }
        }
    }
    assert!(folders.len() < 6 || compared.len() == kernel.len(), "{} of {}", compared.len(), kernel.len());
}

/// Verification of Cilium's datapath ends within the default limits: no program is refused for the work it takes.
#[test]
fn a_datapath_ends_within_the_default_limits() {
    let Some(folder) = objects("cilium") else { return };
    let mut accepted = 0;
    for entry in std::fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let object = parse(&path).expect("an object");
        for program in object.programs() {
            let name = format!("{} {}", path.display(), program.name());
            match verdict(&object, program) {
                Verdict::Accepted(..) => accepted += 1,
                Verdict::Refused(e) => {
                    use bpf_verifier::Reason::{Memory, States, Steps};
                    let limit = matches!(e.reason, Steps(_) | States(_) | Memory(_));
                    assert!(!limit, "{name}: {e}");
                    println!("refused {name}: {e}");
                }
                Verdict::Unlinked(e) => println!("not linked {name}: {e}"),
            }
        }
    }
    assert!(accepted >= 36, "{accepted} accepted");
}
