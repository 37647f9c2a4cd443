//! Dispatchers on every engine: each program is reached, attached or not, and under changes; limits, hits, statistics,
//! errors.

use crate::common::{Fixture, Prog, Words, fixture, fixtures};
use bpf_runtime::{
    Dispatcher, RunError,
    hook::{DispatcherError, DispatcherOptions},
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

type TestDispatcher = Dispatcher<Words, u64>;

fn dispatcher(f: &Fixture) -> TestDispatcher {
    Dispatcher::new(&f.engine).unwrap()
}

/// Reads its context, calls out, and returns `number` plus the first word; stores the number in the second.
fn number(f: &Fixture, number: u64) -> Prog {
    let text = format!(
        "r6 = r1\nr7 = *(u64 *)(r6 + 0)\nr1 = {number}\ncall 1001\n*(u64 *)(r6 + 8) = r0\nr0 = {number}\nr0 += r7\nexit"
    );
    f.load(&format!("number{number}"), &text, &[])
}

fn call(dispatcher: &TestDispatcher, program: &Prog) -> u64 {
    let (mut words, mut calls) = (Words { words: [1000, 0, 3, 4] }, 0);
    let result = dispatcher.call(program, &mut calls, &mut words).unwrap();
    assert_eq!((words.words, calls), ([1000, result - 1000, 3, 4], 1));
    result - 1000
}

fn random(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) as usize
}

#[test]
fn every_program_is_reached_whether_attached_or_not() {
    for f in &fixtures() {
        let programs: Vec<Prog> = (0..70).map(|i| number(f, i)).collect();
        for (attached, limit) in [(0, 48), (1, 48), (2, 48), (16, 48), (48, 48), (60, 48), (64, 64), (5, 2), (3, 0)] {
            let options = DispatcherOptions::new().limit(limit).align(attached % 2 == 0);
            let dispatcher = TestDispatcher::with_options(&f.engine, options).unwrap();
            let seed = &mut 9;
            for program in programs.iter().skip(3).take(attached) {
                dispatcher.attach(program).unwrap();
            }
            let stats = dispatcher.stats();
            let direct = if f.is_jit() { attached.min(limit) } else { 0 };
            assert_eq!(
                (stats.entries, stats.direct, stats.fallback),
                (attached, direct, attached - direct),
                "{}",
                f.name
            );
            for _ in 0..200 {
                let i = random(seed) % programs.len();
                assert_eq!(call(&dispatcher, &programs[i]), i as u64, "{}", f.name);
            }
        }
    }
}

#[test]
fn a_program_of_another_engine_runs_and_is_not_attached() {
    for f in &fixtures() {
        let other = fixture(f.name);
        let (dispatcher, foreign) = (dispatcher(f), number(&other, 5));
        assert!(matches!(dispatcher.attach(&foreign), Err(DispatcherError::OtherDomain(_))));
        assert_eq!(call(&dispatcher, &foreign), 5, "{}", f.name);
        assert_eq!(dispatcher.stats().entries, 0);
    }
}

#[test]
fn attaching_twice_shares_an_entry() {
    for f in &fixtures() {
        let (dispatcher, one, two) = (dispatcher(f), number(f, 1), number(f, 2));
        for program in [&one, &two, &one] {
            dispatcher.attach(program).unwrap();
        }
        assert_eq!(dispatcher.stats().entries, 2, "{}", f.name);
        let updates = dispatcher.stats().updates;
        dispatcher.detach(&one).unwrap();
        assert_eq!((dispatcher.stats().entries, dispatcher.stats().updates), (2, updates), "{}", f.name);
        dispatcher.detach(&one).unwrap();
        assert_eq!(dispatcher.stats().entries, 1, "{}", f.name);
        assert!(matches!(dispatcher.detach(&one), Err(DispatcherError::NotAttached { .. })));
        assert_eq!((call(&dispatcher, &one), call(&dispatcher, &two)), (1, 2), "{}", f.name);
    }
}

#[test]
fn hits_decide_who_is_direct() {
    for f in fixtures().iter().filter(|f| f.is_jit()) {
        let programs: Vec<Prog> = (0..10).map(|i| number(f, i)).collect();
        let dispatcher = TestDispatcher::with_options(&f.engine, DispatcherOptions::new().limit(1)).unwrap();
        for program in &programs {
            dispatcher.attach(program).unwrap();
        }
        dispatcher.set_hits(&[(&programs[7], 90), (&programs[2], 10)]).unwrap();
        dispatcher.set_statistics(true).unwrap();
        for i in [4, 4, 4, 1] {
            assert_eq!(call(&dispatcher, &programs[i]), i as u64);
        }
        dispatcher.optimize().unwrap();
        dispatcher.set_statistics(false).unwrap();
        assert_eq!((dispatcher.stats().direct, dispatcher.stats().fallback), (1, 9));
        for (i, program) in (0..).zip(&programs) {
            assert_eq!(call(&dispatcher, program), i, "{}", f.name);
        }
    }
}

#[test]
fn statistics_count_while_they_are_on() {
    for f in &fixtures() {
        let (dispatcher, one, two, unlisted) = (dispatcher(f), number(f, 1), number(f, 2), number(f, 3));
        dispatcher.attach(&one).unwrap();
        dispatcher.attach(&two).unwrap();
        let counts = || {
            let stats = dispatcher.stats();
            (stats.programs.iter().map(|p| (p.program.clone(), p.runs)).collect::<Vec<_>>(), stats.unlisted)
        };
        let expected = |one, two, unlisted| (vec![("number1".to_owned(), one), ("number2".to_owned(), two)], unlisted);
        if f.is_jit() {
            call(&dispatcher, &one);
            assert_eq!(counts(), expected(0, 0, 0), "{}: off", f.name);
        }
        let before = counts().0[0].1;
        dispatcher.set_statistics(true).unwrap();
        for program in [&one, &two, &one, &unlisted] {
            call(&dispatcher, program);
        }
        assert_eq!(counts(), expected(before + 2, 1, 1), "{}", f.name);
        dispatcher.set_statistics(false).unwrap();
        assert_eq!((call(&dispatcher, &one), call(&dispatcher, &two)), (1, 2), "{}", f.name);
    }
}

#[test]
fn a_test_run_goes_through_the_dispatcher() {
    for f in &fixtures() {
        let (dispatcher, program) = (dispatcher(f), number(f, 1));
        let updates = dispatcher.stats().updates;
        let (mut words, mut calls) = (Words { words: [0; 4] }, 0);
        let run = dispatcher.test_run(&program, &mut calls, &mut words, 10).unwrap();
        assert_eq!((run.result, words.words, calls), (1, [0, 1, 0, 0], 10), "{}", f.name);
        assert_eq!(dispatcher.stats().entries, 0, "{}", f.name);
        if f.is_jit() {
            assert_eq!(dispatcher.stats().updates, updates + 2, "{}: attached and detached", f.name);
        } else {
            assert_eq!(dispatcher.stats().unlisted, 0, "{}: it was listed", f.name);
        }
    }
}

#[test]
fn an_error_ends_the_run() {
    for f in &mut fixtures() {
        let fail = |_: &mut bpf_runtime::Caller<'_, u64>| -> Result<u64, bpf_runtime::HelperError> {
            Err(bpf_runtime::HelperError::new("refused"))
        };
        f.linker.func(1002, "fail", fail).unwrap();
        let (dispatcher, program) = (dispatcher(f), f.load("fails", "call sub\nexit\nsub:\ncall 1002\nexit", &[]));
        dispatcher.attach(&program).unwrap();
        let mut words = Words { words: [0; 4] };
        let result = dispatcher.call(&program, &mut 0, &mut words);
        assert!(matches!(result, Err(RunError::Host { .. })), "{}: {result:?}", f.name);
        let result = dispatcher.test_run(&program, &mut 0, &mut words, 3);
        assert!(matches!(result, Err(DispatcherError::Run(RunError::Host { .. }))), "{}: {result:?}", f.name);
        assert_eq!(call(&dispatcher, &number(f, 3)), 3, "{}", f.name);
    }
}

#[test]
fn tail_calls_leave_from_a_dispatched_program() {
    for f in &fixtures() {
        let (dispatcher, array) = (dispatcher(f), f.array(1));
        let text = "r6 = r1\nr2 = *(u64 *)(r6 + 0)\nr2 += 1\n*(u64 *)(r6 + 0) = r2\nr1 = r6\nr2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit";
        let again = f.load("again", text, &[&array]);
        array.set(0, &again).unwrap();
        dispatcher.attach(&again).unwrap();
        let mut words = Words { words: [0; 4] };
        dispatcher.call(&again, &mut 0, &mut words).unwrap();
        assert_eq!(words.words[0], 34, "{}", f.name);
        array.clear(0).unwrap();
    }
}

/// Two threads call programs that are attached, detached and loaded anew 10^4 times; BPF_SOAK=1: 10^6 times. A program
/// is itself in every state of the dispatcher.
#[test]
fn changes_under_running_threads() {
    let changes = if std::env::var_os("BPF_SOAK").is_some() { 1_000_000 } else { 10_000 };
    for f in &fixtures() {
        let dispatcher = TestDispatcher::with_options(&f.engine, DispatcherOptions::new().limit(5)).unwrap();
        let stable: Vec<Prog> = (0..8).map(|i| number(f, i)).collect();
        let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let readers = [(); 2].map(|()| {
                scope.spawn(|| {
                    // Relaxed: only ends the loop.
                    while !done.load(Ordering::Relaxed) {
                        for (i, program) in (0..).zip(&stable) {
                            assert_eq!(call(&dispatcher, program), i, "{}", f.name);
                            // Relaxed: a count.
                            calls.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            });
            let failed = || readers.iter().any(|reader| reader.is_finished());
            let (mut seed, mut attached, mut change) = (5, [false; 8], 0);
            let mut guest = number(f, 100);
            // On a loaded machine the readers may need longer.
            while !failed() && (change < changes || calls.load(Ordering::Relaxed) < 1000) {
                let i = random(&mut seed) % 8;
                if attached[i] { dispatcher.detach(&stable[i]) } else { dispatcher.attach(&stable[i]) }.unwrap();
                attached[i] = !attached[i];
                // Another comes and goes, so that code is freed and its place taken again while trees know it.
                if change % 50 == 0 {
                    dispatcher.attach(&guest).unwrap();
                    assert_eq!(call(&dispatcher, &guest), 100);
                    dispatcher.detach(&guest).unwrap();
                    guest = number(f, 100);
                }
                if change % 1000 == 0 {
                    dispatcher.set_statistics(change % 2000 == 0).unwrap();
                    dispatcher.optimize().unwrap();
                }
                change += 1;
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
