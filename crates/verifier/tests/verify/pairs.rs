//! Programs in pairs: an unsafe one that must be refused, for a given reason, and the nearest safe one that must be
//! accepted. The file `pairs.txt` holds them; each class of unsoundness that was once a CVE has at least one pair.
//!
//! Format: `== name`, the unsafe program, `-- part of the reason`, the safe program. A class without a safe twin (or
//! the other way round) is written as `== name` with an empty side.

use crate::common::{self, has_code};

#[test]
fn unsafe_programs_are_refused_and_their_safe_twins_accepted() {
    let pairs = common::pairs();
    assert!(pairs.len() >= 60, "only {} pairs were read", pairs.len());
    let mut failures = Vec::new();
    for p in &pairs {
        if let Some(e) =
            [p.refused, p.accepted].into_iter().filter(|t| has_code(t)).find_map(|t| common::try_program(t).err())
        {
            failures.push(format!("{}: {e}", p.name));
            continue;
        }
        if has_code(p.refused) {
            match common::verify(p.refused) {
                Ok(_) => failures.push(format!("{}: the unsafe program was accepted", p.name)),
                Err(e) if !e.to_string().contains(p.reason) => {
                    failures.push(format!("{}: refused for another reason than `{}`:\n{e}", p.name, p.reason));
                }
                Err(_) => {}
            }
        }
        if has_code(p.accepted)
            && let Err(e) = common::verify(p.accepted)
        {
            failures.push(format!("{}: the safe program was refused:\n{e}", p.name));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[cfg(feature = "faults")]
#[test]
fn faults_in_objects_and_arrays_let_a_refused_program_through() {
    use bpf_verifier::faults::{Fault, plant};
    let pairs = common::pairs();
    for &fault in Fault::OF_OBJECTS.iter().chain(Fault::OF_CONTENTS).chain(Fault::OF_LENGTHS).chain(Fault::OF_HALVES) {
        plant(Some(fault));
        let found = pairs.iter().filter(|p| has_code(p.refused)).any(|p| common::verify(p.refused).is_ok());
        plant(None);
        assert!(found, "{fault:?} changes nothing");
    }
}
