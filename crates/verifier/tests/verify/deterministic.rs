//! A verdict and the counted work depend on the program, its contract and its limits only.

use std::path::Path;

use bpf_verifier::{Helpers, Reason, Stats, Verifier};

use crate::loop_programs::{Named, load, objects};

/// Objects whose programs take many ways of the portfolio: sums, products, arrays, orders, and refusals.
const OBJECTS: [&str; 6] = ["everyday.o", "products.o", "links.o", "none.o", "joins.o", "balance.o"];
/// Units of fuel that do not suffice for some of the programs.
const LITTLE_FUEL: u64 = 500_000;

type Work = Result<Stats, String>;

fn programs() -> Vec<Named> {
    let paths = objects();
    let chosen = paths.iter().filter(|path| OBJECTS.iter().any(|name| path.ends_with(name)));
    let programs: Vec<Named> = chosen.flat_map(|path| load(path)).collect();
    assert!(programs.len() > 40, "{} programs", programs.len());
    programs
}

fn work(verifier: &mut Verifier, named: &Named, fuel: Option<u64>) -> Work {
    let (context, helpers) = (named.context(), Helpers::none());
    let mut env = named.env(&context, &helpers, false);
    env.limits.fuel = fuel.unwrap_or(env.limits.fuel);
    let verified = verifier.verify(named.program.clone(), &env);
    verified.map(|v| v.stats()).map_err(|error| format!("{:?} {error}", error.reason))
}

/// Steps, states, bytes, fuel and messages are equal for a new verifier and for one that has verified the other
/// programs before, in another order, beside other threads.
#[test]
fn work_is_the_same_whatever_came_before() {
    let programs = programs();
    for fuel in [None, Some(LITTLE_FUEL)] {
        let fresh: Vec<Work> = programs.iter().map(|named| work(&mut Verifier::new(), named, fuel)).collect();
        std::thread::scope(|s| {
            for step in [1, 7] {
                let (programs, fresh) = (&programs, &fresh);
                s.spawn(move || {
                    let mut used = Verifier::new();
                    for i in (0..programs.len()).rev() {
                        let at = i * step % programs.len();
                        let again = work(&mut used, &programs[at], fuel);
                        assert_eq!(again, fresh[at], "{} after others", programs[at].name);
                    }
                });
            }
        });
        let accepted = fresh.iter().filter(|work| work.is_ok()).count();
        let spent = fresh.iter().filter(|work| work.as_ref().is_err_and(|e| e.starts_with("Fuel("))).count();
        match fuel {
            None => assert!(accepted > 40 && spent == 0, "{accepted} accepted, {spent} without fuel"),
            Some(_) => assert!(accepted > 10 && spent > 10, "{accepted} accepted, {spent} without fuel"),
        }
    }
}

/// The least fuel that a program is accepted with is an amount, not a chance: with one unit less it is refused each
/// time, and with more it is accepted.
#[test]
fn fuel_decides_at_one_amount() {
    let programs = programs();
    let named = programs.iter().find(|named| named.name == "json").expect("a program");
    let enough = |fuel: u64| work(&mut Verifier::new(), named, Some(fuel)).is_ok();
    let (mut less, mut more) = (0, 1 << 34);
    assert!(enough(more) && !enough(less));
    while more - less > 1 {
        let middle = less + (more - less) / 2;
        *(if enough(middle) { &mut more } else { &mut less }) = middle;
    }
    for _ in 0..3 {
        assert!(enough(more) && !enough(less));
    }
    let error = work(&mut Verifier::new(), named, Some(less)).expect_err("one unit is missing");
    assert!(error.starts_with(&format!("{:?}", Reason::Fuel(less))), "{error}");
}

/// No clock is read but for [`bpf_verifier::Limits::time`]: where it is set, and where a walk looks whether it is over.
#[test]
fn no_clock_is_read_without_a_limit_on_time() {
    fn sources(folder: &Path, out: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(folder).expect("the sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, out);
            } else {
                out.push((path.display().to_string(), std::fs::read_to_string(&path).expect("text")));
            }
        }
    }
    let mut files = Vec::new();
    for folder in ["src", "../verifier-core/src"] {
        let before = files.len();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files);
        assert!(files.len() > before + 10, "{folder}: {} files", files.len() - before);
    }
    let mut reads = Vec::new();
    for (name, text) in &files {
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            if ["Instant::now", "SystemTime", ".elapsed()", "available_parallelism"]
                .iter()
                .any(|what| line.contains(what))
            {
                reads.push((name.rsplit('/').next().unwrap_or_default(), line));
            }
        }
    }
    let guarded = |line: &str| {
        line.contains("env.limits.time.and_then(|time| Instant::now()")
            || line.starts_with("(Some(deadline), Some(time)) if Instant::now()")
            || line.contains("within.deadline.is_some_and(|deadline| Instant::now()")
    };
    assert!(files.len() > 50 && reads.len() == 3 && reads.iter().all(|(_, line)| guarded(line)), "{reads:?}");
}
