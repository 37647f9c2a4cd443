//! Hooks on every engine: order, policies, changes under running threads, statistics, errors.

use crate::common::{Fixture, Prog, Words, fixture, fixtures};
use bpf_runtime::{
    Hook, HookPolicy, RunError,
    hook::{Attachment, HookError, Verdicts},
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PASS: u64 = 2;
const FIRST: HookPolicy = HookPolicy::FirstVerdict { pass: PASS };

type TestHook = Hook<Words, u64>;

fn hook(f: &Fixture, policy: HookPolicy) -> TestHook {
    Hook::new(&f.engine, policy).unwrap()
}

/// Appends `digit` to the decimal number in the first word and returns `verdict`; clobbers what a program may.
fn digit(f: &Fixture, digit: u64, verdict: u64) -> Prog {
    let text = format!(
        "r6 = r1\nr7 = *(u64 *)(r6 + 0)\nr7 *= 10\nr7 += {digit}\n*(u64 *)(r6 + 0) = r7\nr1 = 5\ncall 1001\nr0 = {verdict}\nexit"
    );
    f.load(&format!("digit{digit}"), &text, &[])
}

/// Loads a program with `digit` as its verdict, and without a call: it cannot be stopped, so a hook of it alone has
/// another entry path.
fn quiet_digit(f: &Fixture, digit: u64) -> Prog {
    let text = format!("r7 = *(u64 *)(r1 + 0)\nr7 *= 10\nr7 += {digit}\n*(u64 *)(r1 + 0) = r7\nr0 = {digit}\nexit");
    f.load(&format!("digit{digit}"), &text, &[])
}

fn run(hook: &TestHook) -> (u64, u64) {
    let mut words = Words { words: [0; 4] };
    let result = hook.run(&mut 0, &mut words).unwrap();
    (result, words.words[0])
}

#[test]
fn programs_run_in_order_until_the_policy_says_stop() {
    for f in &fixtures() {
        let programs = [digit(f, 1, PASS), digit(f, 2, 7), digit(f, 3, PASS)];
        for (policy, empty, all) in [
            (FIRST, PASS, (7, 12)),
            (HookPolicy::LastWins { empty: 9 }, 9, (PASS, 123)),
            (HookPolicy::RunAll { result: 4 }, 4, (4, 123)),
        ] {
            let hook = hook(f, policy);
            assert_eq!(run(&hook), (empty, 0), "{} {policy:?}", f.name);
            for program in &programs {
                hook.attach(program).unwrap();
            }
            assert_eq!(run(&hook), all, "{} {policy:?}", f.name);
            let names: Vec<String> = hook.programs().iter().map(|p| p.name().to_owned()).collect();
            assert_eq!(names, ["digit1", "digit2", "digit3"]);
        }
    }
}

#[test]
fn the_list_changes_as_told() {
    for f in &fixtures() {
        let hook = hook(f, HookPolicy::RunAll { result: 0 });
        let [one, two, three, four] = [1, 2, 3, 4].map(|i| digit(f, i, 0));
        hook.attach(&two).unwrap();
        hook.attach_at(0, &one).unwrap();
        hook.attach_at(2, &four).unwrap();
        hook.attach_at(2, &three).unwrap();
        assert_eq!(run(&hook).1, 1234, "{}", f.name);
        hook.detach(&two).unwrap();
        assert_eq!(run(&hook).1, 134, "{}", f.name);
        hook.replace(&four, &two).unwrap();
        assert_eq!(run(&hook).1, 132, "{}", f.name);

        assert_eq!(hook.detach(&four).unwrap_err().to_string(), "program `digit4` is not attached");
        assert!(matches!(hook.attach(&one), Err(HookError::Attached { .. })));
        assert!(matches!(hook.replace(&one, &two), Err(HookError::Attached { .. })));
        assert_eq!(hook.attach_at(4, &four), Err(HookError::Position { position: 4, len: 3 }));
        let foreign = hook.attach(&digit(&fixture(f.name), 5, 0));
        assert!(matches!(foreign, Err(HookError::OtherDomain(_))), "{}", f.name);
        assert_eq!(run(&hook).1, 132, "{}: nothing has changed", f.name);
    }
}

#[test]
fn programs_run_by_priority() {
    for f in &fixtures() {
        let hook = hook(f, HookPolicy::RunAll { result: 0 });
        let at = |priority| Attachment::default().priority(priority);
        let [one, two, three, four, five] = [1, 2, 3, 4, 5].map(|i| digit(f, i, 0));
        hook.attach(&one).unwrap();
        hook.attach_with(&two, at(100)).unwrap();
        hook.attach_with(&three, at(-7)).unwrap();
        hook.attach(&four).unwrap();
        hook.attach_with(&five, at(100)).unwrap();
        assert_eq!(run(&hook).1, 31425, "{}", f.name);
        let six = digit(f, 6, 0);
        hook.replace(&three, &six).unwrap();
        hook.attach_with(&three, at(-7)).unwrap();
        assert_eq!(run(&hook).1, 631425, "{}: the place keeps its priority", f.name);
    }
}

/// libxdp's example: a program that drops or passes, another whose verdicts 2 and 3 continue.
#[test]
fn a_program_says_on_which_verdicts_the_chain_continues() {
    for f in &fixtures() {
        let hook = hook(f, FIRST);
        let on = |verdicts| Attachment::default().continue_on(verdicts);
        let [redirects, says_40, last] = [(1, 3), (2, 40), (3, 9)].map(|(i, verdict)| digit(f, i, verdict));
        hook.attach_with(&redirects, on(Verdicts::Set(1 << 2 | 1 << 3))).unwrap();
        assert_eq!(run(&hook), (PASS, 1), "{}: at the end, as libxdp does", f.name);
        hook.attach_with(&says_40, on(Verdicts::One(40))).unwrap();
        hook.attach(&last).unwrap();
        assert_eq!(run(&hook), (9, 123), "{}", f.name);
        hook.replace(&redirects, &digit(f, 4, PASS)).unwrap();
        assert_eq!(run(&hook), (9, 423), "{}: the place keeps its verdicts", f.name);
        hook.detach(&says_40).unwrap();
        hook.attach_with(&says_40, Attachment::default().priority(60)).unwrap();
        assert_eq!(run(&hook), (9, 43), "{}", f.name);

        let observers = Hook::new(&f.engine, HookPolicy::RunAll { result: 0 }).unwrap();
        assert_eq!(observers.attach_with(&last, on(Verdicts::One(1))), Err(HookError::Verdicts));
        assert!(observers.programs().is_empty());
    }
}

#[test]
fn a_hook_keeps_its_programs() {
    for f in &fixtures() {
        let hook = hook(f, FIRST);
        for i in 1..=3 {
            hook.attach(&digit(f, i, PASS)).unwrap();
        }
        f.engine.reclaim();
        assert_eq!(run(&hook), (PASS, 123), "{}", f.name);
    }
}

#[test]
fn each_program_has_its_own_tail_calls() {
    for f in &fixtures() {
        let hook = hook(f, HookPolicy::RunAll { result: 0 });
        let array = f.array(1);
        let text = "r6 = r1\nr2 = *(u64 *)(r6 + 0)\nr2 += 1\n*(u64 *)(r6 + 0) = r2\nr1 = r6\nr2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit";
        let again = f.load("again", text, &[&array]);
        array.set(0, &again).unwrap();
        hook.attach(&again).unwrap();
        hook.attach(&f.load("once_more", text, &[&array])).unwrap();
        assert_eq!(run(&hook).1, 2 * 34, "{}", f.name);
        array.clear(0).unwrap();
    }
}

#[test]
fn an_error_ends_the_run() {
    for f in &mut fixtures() {
        let fail = |_: &mut bpf_runtime::Caller<'_, u64>| -> Result<u64, bpf_runtime::HelperError> {
            Err(bpf_runtime::HelperError::new("refused"))
        };
        f.linker.func(1002, "fail", fail).unwrap();
        let hook = hook(f, HookPolicy::RunAll { result: 0 });
        hook.attach(&digit(f, 1, 0)).unwrap();
        hook.attach(&f.load("fails", "call 1002\nexit", &[])).unwrap();
        hook.attach(&digit(f, 3, 0)).unwrap();
        let mut words = Words { words: [0; 4] };
        let result = hook.run(&mut 0, &mut words);
        assert!(matches!(result, Err(RunError::Host { .. })), "{}: {result:?}", f.name);
        assert_eq!(words.words[0], 1, "{}", f.name);
    }
}

#[test]
fn statistics_count_while_they_are_on() {
    for f in &fixtures() {
        let hook = hook(f, FIRST);
        hook.attach(&digit(f, 1, PASS)).unwrap();
        hook.attach(&digit(f, 2, 7)).unwrap();
        hook.attach(&digit(f, 3, PASS)).unwrap();
        if f.is_jit() {
            run(&hook);
            assert!(hook.statistics().iter().all(|s| s.runs == 0), "{}: off", f.name);
        }
        hook.set_statistics(true).unwrap();
        for _ in 0..10 {
            assert_eq!(run(&hook), (7, 12), "{}", f.name);
        }
        hook.set_statistics(false).unwrap();
        assert_eq!(run(&hook), (7, 12), "{}", f.name);
        let runs: Vec<u64> = hook.statistics().iter().map(|s| s.runs).collect();
        assert_eq!(runs, if f.is_jit() { [10, 10, 0] } else { [11, 11, 0] }, "{}", f.name);
    }
}

/// Two threads run a hook that is changed 10^4 times; BPF_SOAK=1: 10^6 times. There is always one of two programs with
/// a verdict of its own in it, so a run that sees neither, or an impossible order, saw no consistent state.
#[test]
fn changes_under_running_threads() {
    let changes = if std::env::var_os("BPF_SOAK").is_some() { 1_000_000 } else { 10_000 };
    for name in ["interpreter", "jit"] {
        if name == "jit" && bpf_runtime::code::Arch::HOST.is_none() {
            continue;
        }
        let f = fixture(name);
        let hook = hook(&f, FIRST);
        let passing = digit(&f, 1, PASS);
        let mut verdicts = [digit(&f, 3, 3), quiet_digit(&f, 4)];
        hook.attach(&verdicts[0]).unwrap();
        let done = AtomicBool::new(false);
        // Results by last digit, and how many went through the passing program.
        let seen: [AtomicU64; 3] = Default::default();
        std::thread::scope(|scope| {
            let readers = [(); 2].map(|()| {
                scope.spawn(|| {
                    // Relaxed: only ends the loop.
                    while !done.load(Ordering::Relaxed) {
                        let (result, digits) = run(&hook);
                        let passed = match (result, digits) {
                            (3, 3) | (4, 4) => 0,
                            (3, 13) | (4, 14) => 1,
                            other => panic!("{name}: no state of the hook gives {other:?}"),
                        };
                        // Relaxed: counts.
                        seen[result as usize - 3].fetch_add(1, Ordering::Relaxed);
                        seen[2].fetch_add(passed, Ordering::Relaxed);
                    }
                })
            });
            let failed = || readers.iter().any(|reader| reader.is_finished());
            let mut change = 0;
            // On a loaded machine the readers may need longer to see everything.
            while !failed() && (change < changes || seen.iter().any(|seen| seen.load(Ordering::Relaxed) == 0)) {
                match change % 4 {
                    0 => hook.attach_at(0, &passing).unwrap(),
                    1 | 3 => {
                        hook.replace(&verdicts[0], &verdicts[1]).unwrap();
                        verdicts.swap(0, 1);
                        // The old one is loaded anew now and then, so that code is freed under the runs.
                        if change % 100 == 1 {
                            let third = verdicts[1].name() == "digit3";
                            verdicts[1] = if third { digit(&f, 3, 3) } else { quiet_digit(&f, 4) };
                        }
                    }
                    _ => hook.detach(&passing).unwrap(),
                }
                change += 1;
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
