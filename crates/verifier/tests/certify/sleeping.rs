//! Sleeping before the trusted core: programs that sleep, or yield, are proven; their unsafe twins are not.

use bpf_verifier::certify::certify_within;

use super::{FUEL, accepts, common, facts, watched};

/// Looks up element 0 of a map with keys of 8 bytes, and holds it in r6.
const ELEMENT: &str =
    "*(u64 *)(r10 - 8) = 0\nr1 = map[fd:1]\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto out\nr6 = r0\n";
/// Looks up element 0 of a per-CPU array, and holds it in r6.
const SLOT: &str = "*(u32 *)(r10 - 4) = 0\nr1 = map[fd:19]\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\nr6 = r0\n";
/// Looks up an inner map, and holds it in r6.
const INNER: &str = "*(u32 *)(r10 - 4) = 0\nr1 = map[fd:7]\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\nr6 = r0\n";
/// Memory of a function, in r6.
const MEMORY: &str = "call 1004\nif r0 == 0 goto out\nr6 = r0\n";
/// A record, in r6.
const RECORD: &str = "r1 = map[fd:3]\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr6 = r0\n";
const SUBMIT: &str = "r1 = r6\nr2 = 0\ncall 132\n";
const SLEEP: &str = "r1 = 1\ncall 1600\n";
const READ: &str = "r7 = *(u64 *)(r6 + 0)\n";
const OUT: &str = "out:\nr0 = 0\nexit";

/// Two buffers of 8 bytes, one after the other.
const BUFFERS: &str = "*(u64 *)(r10 - 8) = 0\n*(u64 *)(r10 - 16) = 0\n";

/// A rule: a safe program, which is proven, and its unsafe twin, which is not.
struct Rule {
    name: &'static str,
    safe: String,
    twin: String,
    /// The fault that lets a certificate prove the twin.
    #[cfg(feature = "faults")]
    fault: Option<bpf_verifier_core::faults::Fault>,
}

macro_rules! rules {
    ($($name:literal $(, $fault:ident)?: $safe:expr, $twin:expr;)*) => {
        vec![$(Rule {
            name: $name,
            safe: $safe.concat(),
            twin: $twin.concat(),
            #[cfg(feature = "faults")]
            fault: None$(.or(Some(bpf_verifier_core::faults::Fault::$fault)))?,
        }),*]
    };
}

const SLEEPABLE: &str = ";sleepable\n";
const YIELDS: &str = ";sleepable ;yields\n";
/// Takes three rounds.
const ROUNDS: &str = "r8 = 0\nagain:\nr8 += 1\n";
const AGAIN: &str = "if r8 < 3 goto again\n";

fn rules() -> Vec<Rule> {
    rules! {
        "an element", SleepKeepsElements:
            [SLEEPABLE, ELEMENT, READ, SLEEP, OUT], [SLEEPABLE, ELEMENT, SLEEP, READ, OUT];
        "a per-CPU value", SleepKeepsElements: [SLEEPABLE, SLEEP, SLOT, READ, OUT], [SLEEPABLE, SLOT, SLEEP, READ, OUT];
        "a spilled element", SleepKeepsElements:
            [SLEEPABLE, ELEMENT, "*(u64 *)(r10 - 16) = r6\nr6 = *(u64 *)(r10 - 16)\n", READ, SLEEP, OUT],
            [SLEEPABLE, ELEMENT, "*(u64 *)(r10 - 16) = r6\n", SLEEP, "r6 = *(u64 *)(r10 - 16)\n", READ, OUT];
        "an element of a caller", SleepKeepsElements:
            [SLEEPABLE, ELEMENT, READ, "call fetch\n", OUT, "\nfetch:\n", SLEEP, "r0 = 0\nexit"],
            [SLEEPABLE, ELEMENT, "call fetch\n", READ, OUT, "\nfetch:\n", SLEEP, "r0 = 0\nexit"];
        "an element of a caller's caller", SleepKeepsElements:
            [SLEEPABLE, ELEMENT, READ, "call fetch\n", OUT, "\nfetch:\ncall deep\nr0 = 0\nexit\ndeep:\n", SLEEP,
             "r0 = 0\nexit"],
            [SLEEPABLE, ELEMENT, "call fetch\n", READ, OUT, "\nfetch:\ncall deep\nr0 = 0\nexit\ndeep:\n", SLEEP,
             "r0 = 0\nexit"];
        "an element in the rounds of a loop", SleepKeepsElements:
            [SLEEPABLE, ROUNDS, ELEMENT, READ, SLEEP, AGAIN, OUT], [SLEEPABLE, ELEMENT, ROUNDS, READ, SLEEP, AGAIN, OUT];
        "an inner map", SleepKeepsInner:
            [SLEEPABLE, SLEEP, INNER, "r1 = r6\nr2 = r10\nr2 += -4\ncall 1\n", OUT],
            [SLEEPABLE, INNER, SLEEP, "r1 = r6\nr2 = r10\nr2 += -4\ncall 1\n", OUT];
        "a value of an inner map", SleepKeepsInner:
            [SLEEPABLE, INNER, "r1 = r6\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\nr6 = r0\n", READ, SLEEP, OUT],
            [SLEEPABLE, INNER, "r1 = r6\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\nr6 = r0\n", SLEEP, READ, OUT];
        "memory of a function", SleepKeepsMemory:
            [SLEEPABLE, MEMORY, READ, SLEEP, OUT], [SLEEPABLE, MEMORY, SLEEP, READ, OUT];
        "a record", SleepsHolding:
            [SLEEPABLE, RECORD, SUBMIT, SLEEP, OUT], [SLEEPABLE, RECORD, SLEEP, SUBMIT, OUT];
        "a record in a loop", SleepsHolding:
            [SLEEPABLE, ROUNDS, RECORD, SUBMIT, SLEEP, AGAIN, OUT],
            [SLEEPABLE, RECORD, ROUNDS, SLEEP, AGAIN, SUBMIT, OUT];
        "a section", SleepsInside:
            [SLEEPABLE, "call bpf_rcu_read_lock\ncall bpf_rcu_read_unlock\n", SLEEP, OUT],
            [SLEEPABLE, "call bpf_rcu_read_lock\n", SLEEP, "call bpf_rcu_read_unlock\n", OUT];
        "two sections", SleepsInside:
            [SLEEPABLE, "call bpf_rcu_read_lock\ncall bpf_preempt_disable\ncall bpf_preempt_enable\n\
              call bpf_rcu_read_unlock\n", SLEEP, OUT],
            [SLEEPABLE, "call bpf_rcu_read_lock\ncall bpf_preempt_disable\ncall bpf_preempt_enable\n", SLEEP,
             "call bpf_rcu_read_unlock\n", OUT];
        "a section of two levels", SleepsInside:
            [SLEEPABLE, "call bpf_rcu_read_lock\ncall bpf_rcu_read_lock\ncall bpf_rcu_read_unlock\n\
              call bpf_rcu_read_unlock\n", SLEEP, OUT],
            [SLEEPABLE, "call bpf_rcu_read_lock\ncall bpf_rcu_read_lock\ncall bpf_rcu_read_unlock\n", SLEEP, OUT];
        // The loop's head is reached outside of a section first, and in one from its end.
        "a section of a round":
            [SLEEPABLE, ROUNDS, SLEEP, "call bpf_rcu_read_lock\ncall bpf_rcu_read_unlock\n", AGAIN, OUT],
            [SLEEPABLE, ROUNDS, SLEEP, "call bpf_rcu_read_lock\n", AGAIN, OUT];
        "a program that is not sleepable": [SLEEPABLE, SLEEP, OUT], [SLEEP, OUT];
        "a tail call": ["r2 = map[fd:4]\nr3 = 0\ncall 12\n", OUT], [SLEEPABLE, "r2 = map[fd:4]\nr3 = 0\ncall 12\n", OUT];
        "memory that a function writes", ArgumentsOverlap:
            [BUFFERS, "r1 = r10\nr1 += -16\nr2 = 8\nr3 = r10\nr3 += -8\nr4 = 8\ncall 1001\n", OUT],
            [BUFFERS, "r1 = r10\nr1 += -16\nr2 = 9\nr3 = r10\nr3 += -8\nr4 = 8\ncall 1001\n", OUT];
        "memory of a variable length", ArgumentsOverlap:
            [BUFFERS, "call 7\nr2 = r0\nr2 &= 7\nr1 = r10\nr1 += -16\nr3 = r10\nr3 += -8\nr4 = 8\ncall 1001\n", OUT],
            [BUFFERS, "call 7\nr2 = r0\nr2 &= 15\nr1 = r10\nr1 += -16\nr3 = r10\nr3 += -8\nr4 = 8\ncall 1001\n", OUT];
        "an element where a run yields", YieldForgetsNothing:
            [YIELDS, ROUNDS, ELEMENT, READ, AGAIN, OUT], [YIELDS, ELEMENT, ROUNDS, READ, AGAIN, OUT];
        "an element of the caller of a loop", YieldForgetsNothing:
            [YIELDS, ELEMENT, READ, "call rounds\n", OUT, "\nrounds:\n", ROUNDS, AGAIN, "r0 = 0\nexit"],
            [YIELDS, ELEMENT, "call rounds\n", READ, OUT, "\nrounds:\n", ROUNDS, AGAIN, "r0 = 0\nexit"];
    }
}

#[test]
fn programs_that_sleep_are_proven_and_their_unsafe_twins_are_not() {
    for Rule { name, safe, twin, .. } in rules() {
        let program = common::program(&safe);
        common::with_env(&safe, |env| {
            let certificate = certify_within(&program, env, FUEL).unwrap_or_else(|e| panic!("{name}: {e}\n{program}"));
            let facts = facts(&program, env, &certificate).expect("accepted again");
            assert_eq!(facts.yields.is_empty(), !env.yields, "{name}");
            assert_eq!(watched::violation(&program, env, &facts, 20), None, "{name}\n{program}");
        });
        let program = common::program(&twin);
        common::with_env(&twin, |env| {
            assert!(certify_within(&program, env, FUEL).is_err(), "{name}: the unsafe twin is proven\n{program}");
        });
    }
}

/// A run yields at no head at which it may hold a record, or be in a section.
#[test]
fn a_head_at_which_one_path_may_not_sleep_is_none_at_which_a_run_yields() {
    let inside =
        "call bpf_rcu_read_lock\nr6 = 0\nagain:\nr6 += 1\nif r6 < 3 goto again\ncall bpf_rcu_read_unlock\nr0 = 0\nexit";
    let one = "call 7\nif r0 > 5 goto enter\non:\nr6 = 0\nagain:\nr6 += 1\nif r6 < 3 goto again\nr0 = 0\nexit\nenter:\n\
               call bpf_rcu_read_lock\ngoto on";
    let held = [RECORD, ROUNDS, AGAIN, SUBMIT, OUT].concat();
    // The element is used in the rounds, at whose head no run yields.
    let both = ["call bpf_rcu_read_lock\n", ELEMENT, ROUNDS, READ, AGAIN, "call bpf_rcu_read_unlock\n", OUT].concat();
    let after = [ROUNDS, AGAIN, OUT].concat();
    for (text, heads) in [(inside, 0), (one, 0), (&held, 0), (&both, 0), (&after, 1)] {
        let text = format!("{YIELDS}{text}");
        let program = common::program(&text);
        common::with_env(&text, |env| {
            let certificate = certify_within(&program, env, FUEL).unwrap_or_else(|e| panic!("{e}\n{program}"));
            assert!(accepts(&program, env, &certificate));
            let facts = facts(&program, env, &certificate).expect("accepted again");
            // `on:` is the target of a jump back, too.
            let loops = facts.yields.iter().filter(|head| program.insns()[head.index()].jump_offset().is_none());
            assert!(loops.count() >= heads && (heads > 0 || facts.yields.is_empty()), "{:?}\n{program}", facts.yields);
            assert_eq!(watched::violation(&program, env, &facts, 20), None, "{program}");
        });
    }
}

/// A loop with the call in each round, which enters a section or leaves none.
fn rounds_with(call: &str) -> bpf_isa::Program {
    common::program(&[ROUNDS, SLEEP, "call ", call, "\n", AGAIN, OUT].concat())
}

#[test]
fn a_kept_point_outside_of_sections_covers_no_state_inside() {
    let (safe, twin) = (rounds_with("bpf_rcu_read_unlock"), rounds_with("bpf_rcu_read_lock"));
    common::with_env(SLEEPABLE, |env| {
        let certificate = certify_within(&safe, env, FUEL).unwrap_or_else(|e| panic!("{e}\n{safe}"));
        assert!(accepts(&safe, env, &certificate) && !accepts(&twin, env, &certificate));
        #[cfg(feature = "faults")]
        {
            bpf_verifier_core::faults::plant(Some(bpf_verifier_core::faults::Fault::SectionsUncompared));
            let proven = facts(&twin, env, &certificate);
            bpf_verifier_core::faults::plant(None);
            let harm = watched::violation(&twin, env, &proven.expect("accepted under the fault"), 20);
            assert!(harm.is_some_and(|what| what.contains("in a section")));
        }
    });
}

/// The faults that the tests of this file find beside those of the rules.
#[cfg(feature = "faults")]
pub(super) const FOUND: &[bpf_verifier_core::faults::Fault] = {
    use bpf_verifier_core::faults::Fault;
    &[
        Fault::SectionsUncompared,
        Fault::YieldsOnOneWay,
        Fault::StartOutlastsSleep,
        Fault::CalleeNeverSleeps,
        Fault::SliceSurvives,
    ]
};

/// The faults that let a certificate prove the twin of a rule.
#[cfg(feature = "faults")]
pub(super) fn of_rules() -> impl Iterator<Item = bpf_verifier_core::faults::Fault> {
    rules().into_iter().filter_map(|rule| rule.fault)
}

#[cfg(feature = "faults")]
#[test]
fn each_fault_in_sleeping_lets_an_unsafe_twin_be_proven_and_its_runs_show_it() {
    use bpf_verifier_core::faults::plant;
    for Rule { name, twin, fault, .. } in rules() {
        let Some(fault) = fault else { continue };
        let program = common::program(&twin);
        common::with_env(&twin, |env| {
            plant(Some(fault));
            let proven = certify_within(&program, env, FUEL).map(|certificate| facts(&program, env, &certificate));
            plant(None);
            let facts = proven.unwrap_or_else(|e| panic!("{name}: {fault:?} changes nothing: {e}\n{program}"));
            let what = watched::violation(&program, env, &facts.expect("accepted again"), 40);
            assert!(what.is_some(), "{name}: {fault:?} does no harm\n{program}");
        });
    }
    // Where one path may not sleep, and the run yields all the same.
    let text = format!(
        "{YIELDS}call 7\nr8 = 0\nif r0 > 5 goto enter\nagain:\nr8 += 1\nif r8 < 9 goto again\nr0 = 0\nexit\nenter:\n\
         call bpf_rcu_read_lock\ngoto again"
    );
    let program = common::program(&text);
    common::with_env(&text, |env| {
        plant(Some(bpf_verifier_core::faults::Fault::YieldsOnOneWay));
        let proven = certify_within(&program, env, FUEL).map(|certificate| facts(&program, env, &certificate));
        plant(None);
        let facts = proven.unwrap_or_else(|e| panic!("{e}\n{program}")).expect("accepted again");
        assert!(watched::violation(&program, env, &facts, 40).is_some(), "{program}");
    });
}

/// Programs whose twins use, after a sleep, memory that others may have freed.
const FREED: [&str; 9] = [
    "an element",
    "a per-CPU value",
    "a spilled element",
    "an element of a caller",
    "an element of a caller's caller",
    "an element in the rounds of a loop",
    "memory of a function",
    "an element where a run yields",
    "an element of the caller of a loop",
];

/// Contains a program, with the facts of a verifier that believes everything, and with these heads to yield at.
fn contain(text: &str) -> Result<(), bpf_verifier::Escape> {
    let program = common::program(text);
    let heads = program.flow().iter().filter_map(|flow| flow.target.filter(|target| *target <= flow.at)).collect();
    common::with_env(text, |env| {
        let yields = if env.yields { heads } else { Vec::new() };
        let mut facts = bpf_analysis::Facts { yields, ..bpf_analysis::Facts::default() };
        bpf_verifier::contain(&program, env, &mut facts).map_err(|uncontained| uncontained.why)
    })
}

/// The analysis of contained programs relies on no proof that a program is safe to sleep.
#[test]
fn a_contained_program_uses_nothing_that_was_freed_whatever_is_believed() {
    for Rule { name, safe, twin, .. } in rules().into_iter().filter(|rule| FREED.contains(&rule.name)) {
        assert_eq!(contain(&safe), Ok(()), "{name}");
        assert!(matches!(contain(&twin), Err(bpf_verifier::Escape::Pointer(_))), "{name}: {:?}", contain(&twin));
    }
    // Only a sleepable program sleeps, and no sleepable program makes tail calls.
    let tail_call = "r2 = map[fd:4]\nr3 = 0\ncall 12\n";
    for (text, sleepable, allowed) in [(SLEEP, true, true), (SLEEP, false, false), (tail_call, true, false)] {
        let text = [if sleepable { SLEEPABLE } else { "" }, text, OUT].concat();
        let contained = contain(&text);
        let refused = matches!(contained, Err(bpf_verifier::Escape::Function(_)));
        assert_eq!((contained.is_ok(), refused), (allowed, !allowed), "{text}: {contained:?}");
    }
    // Buffers of constant lengths, at constant places, that meet in no byte.
    for (length, allowed) in [(8, true), (9, false)] {
        let text = format!("{BUFFERS}r1 = r10\nr1 += -16\nr2 = {length}\nr3 = r10\nr3 += -8\nr4 = 8\ncall 1001\n{OUT}");
        assert_eq!(contain(&text).is_ok(), allowed, "{length}");
    }
    let variable = "call 7\nr2 = r0\nr2 &= 7\nr1 = r10\nr1 += -16\nr3 = r10\nr3 += -8\nr4 = 8\ncall 1001\n";
    assert!(contain(&[BUFFERS, variable, OUT].concat()).is_err(), "a length that only the proof bounds");
    // Values of arrays stay. A pointer that leads to one of an array or of a per-CPU array does not.
    let array = "*(u32 *)(r10 - 4) = 0\nr1 = map[fd:0]\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\nr6 = r0\n";
    assert_eq!(contain(&[SLEEPABLE, array, SLEEP, READ, OUT].concat()), Ok(()));
    let either = ["call 7\nif r0 > 5 goto other\n", array, "goto on\nother:\n", SLOT, "on:\n"].concat();
    assert_eq!(contain(&[SLEEPABLE, &either, READ, SLEEP, OUT].concat()), Ok(()));
    assert!(contain(&[SLEEPABLE, &either, SLEEP, READ, OUT].concat()).is_err());
}

/// A function that may give a record back, or one that it calls, leaves its caller no record, whatever was proven.
#[test]
fn a_record_is_not_accessed_behind_a_call_that_may_give_it_back() {
    let passed = "r1 = r6\ncall outer\n";
    let functions = |last: &str| format!("\nouter:\ncall inner\nr0 = 0\nexit\ninner:\n{last}\nr0 = 0\nexit");
    let text = |last| [RECORD, passed, READ, SUBMIT, OUT, &functions(last)].concat();
    assert_eq!(contain(&text("r1 = 0")), Ok(()));
    let refused = contain(&text("r2 = 0\ncall 132"));
    assert!(matches!(refused, Err(bpf_verifier::Escape::Pointer(_))), "{refused:?}");
}

/// Reserves a record behind a dynptr, and keeps a slice of it in r6.
const SLICE: &str = "r1 = map[fd:3]\nr2 = 16\nr3 = 0\nr4 = r10\nr4 += -16\ncall 198\nr1 = r10\nr1 += -16\nr2 = 0\nr3 = 8\ncall 203\n\
    r6 = r0\nif r6 == 0 goto end\n";
/// Gives the record of the dynptr back.
const SUBMIT_SLICE: &str = "end: r1 = r10\nr1 += -16\nr2 = 0\ncall 199\n";

/// No slice is accessed behind a call that may give its record back.
#[test]
fn a_slice_ends_with_its_record() {
    let plain = "r1 = r6\nr2 = 0\ncall 132\n";
    assert_eq!(contain(&[SLICE, READ, SUBMIT_SLICE, OUT].concat()), Ok(()));
    let twins = [[SLICE, SUBMIT_SLICE, READ, OUT].concat(), [SLICE, plain, READ, SUBMIT_SLICE, OUT].concat()];
    for twin in &twins {
        assert!(matches!(contain(twin), Err(bpf_verifier::Escape::Pointer(_))), "{:?}", contain(twin));
    }
    // A dynptr of a record that was given back leads nowhere.
    let again = "r1 = r10\nr1 += -16\nr2 = 0\nr3 = 8\ncall 203\n";
    let used = contain(&[SLICE, SUBMIT_SLICE, again, OUT].concat());
    assert!(matches!(used, Err(bpf_verifier::Escape::Argument { arg: 1, .. })), "{used:?}");
    #[cfg(feature = "faults")]
    {
        use bpf_verifier_core::faults::{Fault, plant};
        plant(Some(Fault::SliceSurvives));
        let contained = contain(&twins[0]);
        plant(None);
        assert_eq!(contained, Ok(()));
    }
}

/// A call that only dead code makes ends no pointer, and the refusal of a pointer says that a sleep may have ended it.
#[test]
fn calls_in_dead_code_do_not_make_a_function_sleep() {
    let calls = |argument: u32| {
        let fetch = "\nfetch:\nif r1 == 0 goto over\n";
        let call = format!("r1 = {argument}\ncall fetch\n");
        [SLEEPABLE, ELEMENT, &call, READ, OUT, fetch, SLEEP, "over:\nr0 = 0\nexit"].concat()
    };
    let never = calls(0);
    let mut facts = common::verify(&never).unwrap_or_else(|e| panic!("{e}")).facts().clone();
    common::with_env(&never, |env| bpf_verifier::contain(&common::program(&never), env, &mut facts).expect("no sleep"));
    let refused = contain(&calls(1)).unwrap_err().to_string();
    assert!(refused.contains("may have been freed while the run slept"), "{refused}");
}

/// The settings of a proof differ by `sleepable` only where the proof depends on it.
#[test]
fn the_digest_of_settings_names_a_difference_in_sleeping() {
    use bpf_verifier::ProofPart;
    let against = |text: &str, how: &str| {
        let text = format!("{how}{text}");
        common::with_env(&text, |env| bpf_verifier::certify::Against::of(&common::program(&text), env))
    };
    let sections = ["call bpf_rcu_read_lock\n", ROUNDS, AGAIN, "call bpf_rcu_read_unlock\n", OUT].concat();
    let plain = [ROUNDS, AGAIN, OUT].concat();
    for (text, how, differs) in [(&sections, SLEEPABLE, true), (&plain, SLEEPABLE, false), (&plain, YIELDS, true)] {
        let part = against(text, "").difference(&against(text, how));
        assert_eq!(part, differs.then_some(ProofPart::Settings), "{how}{text}");
    }
}

#[cfg(feature = "faults")]
#[test]
fn faults_in_sleeping_let_a_contained_program_use_what_was_freed() {
    use bpf_verifier_core::faults::{Fault, plant};
    let twin = |name: &str| rules().into_iter().find(|rule| rule.name == name).expect("a rule").twin;
    for (fault, name) in [
        (Fault::StartOutlastsSleep, "an element"),
        (Fault::StartOutlastsSleep, "an element where a run yields"),
        (Fault::CalleeNeverSleeps, "an element of a caller"),
        (Fault::CalleeNeverSleeps, "an element of a caller's caller"),
        (Fault::CalleeNeverSleeps, "an element of the caller of a loop"),
    ] {
        plant(Some(fault));
        let contained = contain(&twin(name));
        plant(None);
        assert_eq!(contained, Ok(()), "{fault:?} changes nothing: {name}");
    }
}
