//! Verdicts beside those of a walk that drops no path ([`bpf_verifier::Env::exhaustive`]).

use bpf_verifier::{Reason, Stats, VerifyError};
use std::collections::BTreeMap;

pub(crate) type Verdict = Result<Stats, Box<VerifyError>>;

/// Whether it is about a path, and not about an instruction or about all that is walked.
pub(crate) fn is_about_a_path(e: &VerifyError) -> bool {
    !matches!(e.reason, Reason::MixedContext { .. } | Reason::Steps(_))
}

/// The value of an environment variable that replaces a default.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

/// Fails for programs that are accepted, and not when no path is dropped. `of` gives a seed's program and both
/// verdicts, that without dropping last; of those of which `knows_less` is true, a few may be, since such a walk knows
/// less of them. 20,000 seeds from 0 on, or what BPF_PROGRAMS and BPF_SEED say.
pub(crate) fn compare(mut of: impl FnMut(u64) -> (String, Verdict, Verdict), knows_less: impl Fn(&str) -> bool) {
    let (programs, first) = (number("BPF_PROGRAMS").unwrap_or(20_000), number("BPF_SEED").unwrap_or(0));
    let (mut accepted, mut refused, mut pruned, mut holes, mut stricter, mut less) = (0u64, 0u64, 0, 0u64, 0, 0);
    let mut reasons = BTreeMap::<String, u32>::new();
    let mut least: Option<String> = None;
    for seed in first..first + programs {
        let (text, some, all) = of(seed);
        match (some, all) {
            (Ok(_), Err(why)) if knows_less(&text) => {
                if programs == 1 {
                    println!("{text}\n{why}");
                }
                less += 1;
            }
            (Err(e), _) | (_, Err(e)) if !is_about_a_path(&e) => {}
            (Ok(_), Err(e)) => {
                holes += 1;
                let what = format!("seed {seed} is accepted, but a path of it is not: {e}\n{text}");
                if least.as_ref().is_none_or(|least| what.len() < least.len()) {
                    least = Some(what);
                }
            }
            (Ok(some), Ok(_)) => {
                accepted += 1;
                pruned += some.pruned as u64;
            }
            (Err(_), Err(e)) => {
                refused += 1;
                let name = format!("{:?}", e.reason);
                let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
                *reasons.entry(name.to_owned()).or_default() += 1;
            }
            (Err(e), Ok(_)) => {
                stricter += 1;
                println!("seed {seed} is refused, but no path of it is: {:?}", e.reason);
            }
        }
    }
    println!(
        "{accepted} accepted, {refused} refused, {pruned} pruned, {holes} holes, {stricter} stricter, {less} of which \
         less is known {reasons:?}"
    );
    assert!(least.is_none(), "{}", least.unwrap_or_default());
    assert!(less * 200 <= programs, "of {less} of {programs} less is known when no path is dropped");
    assert!(accepted > programs / 10 && refused > programs / 10 && pruned > programs / 10);
}
