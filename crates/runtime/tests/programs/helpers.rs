//! Host functions and helpers, on the interpreter, as unverified and as verified machine code: one input, all engines.
//!
//! `objects/helpers.c` uses the shipped helpers; the typed host functions are called from text.

use crate::common::engines::{Execution, config, modes};
use crate::support::program;
use crate::support::ways::{self, E2BIG, EEXIST, EINVAL, ENOENT, WAYS, Way, notes};
use bpf_runtime::{
    Caller, Config, Engine, HelperError, Instance, Linker, LoadError, Object, ProgArray, Program, Raw, RunError,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn load<H: 'static>(linker: &Linker<H>, text: &str) -> Program<Raw, H> {
    // SAFETY: the tests' programs use no memory but their stack and end, or are stopped.
    let loader = unsafe { linker.loader::<Raw>().unverified(true) };
    loader.insns("test", program(text)).unwrap_or_else(|e| panic!("{e} in {text}"))
}

/// The result of `text` with the functions that `register` registers.
fn call<H: 'static>(
    mode: Execution,
    host: &mut H,
    register: impl FnOnce(&mut Linker<H>),
    text: &str,
) -> Result<u64, RunError> {
    let engine = Engine::new(config(mode)).unwrap();
    let mut linker = Linker::new(&engine);
    register(&mut linker);
    load(&linker, text).run(host, &mut [])
}

// ---- Typed host functions ------------------------------------------------------------------------------------------

#[test]
fn a_narrow_argument_is_the_low_bits_and_a_result_is_extended() {
    macro_rules! check {
        ($($int:ty),*) => {$(
            for mode in modes() {
                let seen = Arc::new(Mutex::new(None));
                let noted = Arc::clone(&seen);
                let register = |linker: &mut Linker<()>| {
                    let f = move |_: &mut Caller<'_, ()>, value: $int| -> $int {
                        *noted.lock().unwrap() = Some(value);
                        value
                    };
                    linker.func(1001, "same", f).unwrap();
                };
                let value = 0xfedc_ba98_f6f5_f4f3u64;
                let r0 = call(mode, &mut (), register, "r1 = 0xfedcba98f6f5f4f3 ll; call 1001; exit").unwrap();
                assert_eq!(*seen.lock().unwrap(), Some(value as $int), "{} on {mode:?}", stringify!($int));
                // The cast extends by the type's sign.
                assert_eq!(r0, value as $int as u64, "{} on {mode:?}", stringify!($int));
            }
        )*};
    }
    check!(u8, u16, u32, u64, i8, i16, i32, i64);
}

#[test]
fn arguments_keep_their_order() {
    for mode in modes() {
        let register = |linker: &mut Linker<()>| {
            linker
                .func(1000, "none", |_: &mut Caller<'_, ()>| 7u8)
                .unwrap()
                .func(1001, "one", |_: &mut Caller<'_, ()>, a: u64| a)
                .unwrap()
                .func(1002, "two", |_: &mut Caller<'_, ()>, a: u64, b: u32| a * 10 + u64::from(b))
                .unwrap()
                .func(1005, "five", |_: &mut Caller<'_, ()>, a: u64, b: u8, c: i64, d: u16, e: i32| {
                    (((a * 10 + u64::from(b)) * 10 + c as u64) * 10 + u64::from(d)) * 10 + e as u64
                })
                .unwrap();
        };
        let text = "r1 = 1; r2 = 2; r3 = 3; r4 = 4; r5 = 5; call 1005; r6 = r0; r1 = 8; r2 = 9; call 1002; r6 += r0; \
                    r1 = 100000; call 1001; r6 += r0; call 1000; r0 += r6; exit";
        assert_eq!(call(mode, &mut (), register, text).unwrap(), 12345 + 89 + 100_000 + 7, "{mode:?}");
    }
}

/// A closure without captures is found by its type, one with captures through the hidden argument. Both see the host.
#[test]
fn closures_reach_the_host_and_what_they_captured() {
    for mode in modes() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let register = |linker: &mut Linker<Vec<u64>>| {
            linker
                .func(1001, "push", |c: &mut Caller<'_, Vec<u64>>, value: u64| c.host().push(value))
                .unwrap()
                .func(1002, "push_counted", move |c: &mut Caller<'_, Vec<u64>>, value: u64| {
                    c.host().push(value);
                    counted.fetch_add(1, Ordering::Relaxed) as u64
                })
                .unwrap();
        };
        let mut host = vec![9];
        let text = "r1 = 1; call 1001; r7 = r0; r1 = 2; call 1002; r1 = 3; call 1002; r0 += r7; exit";
        // `()` is 0; the second call of the counting one returns 1.
        assert_eq!(call(mode, &mut host, register, text).unwrap(), 1, "{mode:?}");
        assert_eq!(host, [9, 1, 2, 3], "{mode:?}");
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        assert_eq!(Arc::strong_count(&calls), 1, "the closure outlives engine and program");
    }
}

#[test]
fn a_failing_function_ends_the_run_and_harms_nothing() {
    #[derive(Debug, thiserror::Error, PartialEq)]
    #[error("quota of {0} is spent")]
    struct Quota(u32);

    for mode in modes() {
        let engine = Engine::new(config(mode)).unwrap();
        let mut linker = Linker::<u64>::new(&engine);
        linker
            .func(1001, "fail_above", |c: &mut Caller<'_, u64>, value: u64| -> Result<u64, HelperError> {
                *c.host() += 1;
                if value > 5 { Err(HelperError::new(Quota(5))) } else { Ok(value) }
            })
            .unwrap();
        // The failure comes from a subprogram, deep in a loop, with registers saved and stack in use.
        let program = load(
            &linker,
            "r6 = 0; r7 = 77; a: r1 = r6; call f; r6 += 1; if r6 < 10 goto a; r0 = r7; exit;
             f: *(u64 *)(r10 - 8) = r1; r6 = r1; call 1001; r0 += r6; exit",
        );
        for round in 1..=3 {
            let mut calls = 0;
            let error = program.run(&mut calls, &mut []).unwrap_err();
            assert_eq!(calls, 7, "{mode:?}, round {round}");
            let RunError::Host { source: HelperError::Failed(source), .. } = &error else {
                panic!("{mode:?}: {error:?}")
            };
            assert_eq!(source.downcast_ref::<Quota>(), Some(&Quota(5)), "{mode:?}");
            assert!(error.to_string().contains("quota of 5 is spent"), "{error}");
        }
    }
}

#[test]
fn a_panic_in_a_function_ends_the_run_only() {
    // The panics are caught; their messages need not fill the log.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = catch_unwind(AssertUnwindSafe(|| {
        for mode in modes() {
            let register = |linker: &mut Linker<()>| {
                linker
                    .func(1001, "literal", |_: &mut Caller<'_, ()>| -> u64 { panic!("a literal") })
                    .unwrap()
                    .func(1002, "formatted", |_: &mut Caller<'_, ()>, value: u64| -> u64 { panic!("value {value}") })
                    .unwrap()
                    .func(1003, "other", |_: &mut Caller<'_, ()>| -> u64 { std::panic::panic_any(3u8) })
                    .unwrap();
            };
            for (text, message) in [
                ("call 1001; exit", "a literal"),
                ("r1 = 5; call 1002; exit", "value 5"),
                ("call f; exit; f: call 1003; exit", "(no message)"),
            ] {
                match call(mode, &mut (), register, text) {
                    Err(RunError::Host { source: HelperError::Panicked(text), .. }) => assert_eq!(text, message),
                    other => panic!("{mode:?}: {other:?}"),
                }
            }
        }
    }));
    std::panic::set_hook(hook);
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn ids_and_names_are_taken_once() {
    let engine = Engine::new(Config::new()).unwrap();
    let mut linker = Linker::<()>::new(&engine);
    let f = |_: &mut Caller<'_, ()>| 1u64;
    assert!(linker.func(5, "mine", f).is_err(), "5 is bpf_ktime_get_ns");
    assert!(linker.func(1001, "mine", f).is_ok());
    assert!(linker.func(1001, "other", f).is_err());
    assert!(linker.func(1002, "mine", f).is_err());
    assert!(linker.func(u32::MAX, "huge", f).is_err());
    // The failed registration left nothing behind: the id 1002 is still unknown.
    let error = linker.loader::<Raw>().insns("test", program("call 1002; exit")).unwrap_err();
    assert!(matches!(error, LoadError::UnknownHelper { id: 1002, .. }), "{error}");
}

// ---- Runs within runs ----------------------------------------------------------------------------------------------

/// A host that holds the program it runs.
#[derive(Default)]
struct SelfHost {
    program: Option<Program<Raw, SelfHost>>,
    depth: u32,
    deepest: u32,
}

#[test]
fn runs_may_be_nested_up_to_the_limit() {
    for mode in modes() {
        let config = config(mode).max_nested_runs(5);
        let engine = Engine::new(config).unwrap();
        let mut linker = Linker::<SelfHost>::new(&engine);
        let again = |c: &mut Caller<'_, SelfHost>, left: u64| -> Result<u64, HelperError> {
            let host = c.host();
            let program = host.program.clone().expect("the test set it");
            host.depth += 1;
            host.deepest = host.deepest.max(host.depth);
            let result = program.run(host, &mut [left as u8 - 1]);
            host.depth -= 1;
            result.map(|r0| r0 + 1).map_err(HelperError::new)
        };
        linker.func(1001, "again", again).unwrap();
        // r1 = the byte; while it is not 0, run again with one less.
        let program = load(&linker, "r0 = *(u8 *)(r1 + 0); if r0 == 0 goto +2; r1 = r0; call 1001; exit");
        let mut host = SelfHost { program: Some(program.clone()), ..SelfHost::default() };
        assert_eq!(program.run(&mut host, &mut [4]).unwrap(), 4, "{mode:?}");
        let error = program.run(&mut host, &mut [5]).unwrap_err();
        assert_eq!(host.depth, 0);
        // The innermost refusal comes out through every level.
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        let mut refused = false;
        while let Some(error) = source {
            refused |= matches!(error.downcast_ref(), Some(RunError::TooDeep { limit: 5 }));
            source = match error.downcast_ref() {
                Some(RunError::Host { source: HelperError::Failed(cause), .. }) => Some(cause.as_ref()),
                _ => error.source(),
            };
        }
        assert!(refused, "{mode:?}: {error}");
        // And the count is right again.
        assert_eq!(program.run(&mut host, &mut [4]).unwrap(), 4, "{mode:?}");
        host.program = None;
    }
}

/// A host that can empty a prog array.
#[derive(Default)]
struct ArrayHost {
    array: Option<ProgArray<Raw, ArrayHost>>,
    calls: u32,
}

/// The last hold on a program, a slot, goes while the program runs: its code and closures stay to the run's end.
#[test]
fn a_program_may_be_let_go_while_it_runs() {
    for mode in modes() {
        let engine = Engine::new(config(mode)).unwrap();
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        let mut linker = Linker::<ArrayHost>::new(&engine);
        linker
            .func(1001, "let_go", move |c: &mut Caller<'_, ArrayHost>| {
                let host = c.host();
                if host.calls == 0 {
                    host.array.as_ref().expect("the test set it").clear(0).expect("it was set");
                    host.array = None;
                }
                c.host().calls += Arc::strong_count(&held).min(1) as u32;
            })
            .unwrap();
        let array = ProgArray::create(&engine, "array", 1).unwrap();
        // SAFETY: these programs use no memory, and end.
        let loader = || unsafe { linker.loader::<Raw>().unverified(true) };
        let target = "r6 = 5; call 1001; call 1001; r6 += 1; call f; r0 += r6; exit; f: call 1001; r0 = 10; exit";
        array.set(0, &loader().insns("target", program(target)).unwrap()).unwrap();
        let first =
            loader().prog_arrays(&[&array]).insns("first", program("r2 = map[fd:0]; r3 = 0; call 12; r0 = 1; exit"));
        let first = first.unwrap();
        let mut host = ArrayHost { array: Some(array), calls: 0 };
        assert_eq!(first.run(&mut host, &mut [0]).unwrap(), 16, "{mode:?}");
        assert_eq!(host.calls, 3);
        // The slot is empty now.
        assert_eq!(first.run(&mut host, &mut [0]).unwrap(), 1, "{mode:?}");
        drop((first, linker));
        engine.reclaim();
        assert_eq!(Arc::strong_count(&alive), 1, "{mode:?}: the closure was not let go");
    }
}

// ---- The shipped helpers -------------------------------------------------------------------------------------------

const OBJECT: &[u8] = include_bytes!("../objects/helpers.o");

fn instance(engine: &Engine, way: Way, prepare: impl FnOnce(&mut Object)) -> Instance<()> {
    let mut object = Object::parse(OBJECT).unwrap();
    prepare(&mut object);
    ways::instance(engine, way, &object)
}

fn run(instance: &Instance<()>, name: &str, bytes: usize) -> u64 {
    let program = instance.program::<Raw>(name).unwrap();
    program.run(&mut (), &mut vec![0; bytes]).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn map_helpers() {
    for way in WAYS {
        let engine = Engine::new(Config::new()).unwrap();
        let instance = instance(&engine, way, |_| {});
        let hash = notes(&[ENOENT, ENOENT, 0, 7, 9, EEXIST, 0xff, 0]);
        assert_eq!(run(&instance, "hash", 0), hash, "{way:?}");
        assert_eq!(run(&instance, "hash", 0), hash, "{way:?}, again");
        assert_eq!(run(&instance, "full", 0), notes(&[0, 0, E2BIG]), "{way:?}");
        let table = instance.map("table").unwrap();
        let held = |key: u32| table.get(&key.to_ne_bytes()).unwrap();
        let seven = Some(7u64.to_ne_bytes().to_vec());
        assert_eq!((held(10), held(11), held(12)), (seven.clone(), seven, None), "{way:?}");
        assert_eq!(run(&instance, "array_ops", 0), notes(&[0, 5, EEXIST, EINVAL, 0, E2BIG]), "{way:?}");
        // Keys 0 to 3 hold 0, 0, 0, 5; the callback stops at key 2.
        assert_eq!(run(&instance, "each", 0), 3 << 32 | 12, "{way:?}");
    }
}

#[test]
fn global_data() {
    for way in WAYS {
        let engine = Engine::new(Config::new()).unwrap();
        let first = instance(&engine, way, |_| {});
        assert_eq!((run(&first, "globals", 0), run(&first, "globals", 0)), (103, 106), "{way:?}");
        let other = instance(&engine, way, |object| object.set_global("step", &50u64.to_ne_bytes()).unwrap());
        assert_eq!(run(&other, "globals", 0), 150, "{way:?}");
    }
}

#[test]
fn clock_and_random() {
    for way in WAYS {
        let engine = Engine::new(Config::new()).unwrap();
        let instance = instance(&engine, way, |_| {});
        assert_eq!(run(&instance, "clock", 0), 1, "{way:?}");
        let any = run(&instance, "random", 0);
        // Eight 32-bit numbers together have few zeros left.
        assert!(any >> 32 == 0 && any.count_ones() > 20, "{way:?}: {any:#x}");
    }
}

#[test]
fn printk_goes_to_the_sink() {
    for way in WAYS {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let config = Config::new().print(move |line| sink.lock().unwrap().push(line.text.to_owned()));
        let engine = Engine::new(config).unwrap();
        let instance = instance(&engine, way, |_| {});
        let text = "9 bytes, ff, 100";
        assert_eq!(run(&instance, "print", 9), text.len() as u64, "{way:?}");
        assert_eq!(*lines.lock().unwrap(), [text], "{way:?}");
    }
}

#[test]
fn bpf_loop_runs_its_callback() {
    for way in WAYS {
        let engine = Engine::new(Config::new()).unwrap();
        let instance = instance(&engine, way, |_| {});
        for (n, done, sum) in [(0, 0, 0), (1, 1, 0), (10, 10, 45), (50, 50, 1225), (51, 50, 1225), (100, 50, 1225)] {
            assert_eq!(run(&instance, "loop", n), done << 32 | sum, "{way:?}, {n}");
        }
        // Inner loops of 0, 1, 2, ... until one did more than five: 0+0+1+3+6+10+15.
        assert_eq!(run(&instance, "nested", 3), 3 << 32 | 1, "{way:?}");
        assert_eq!(run(&instance, "nested", 100), 7 << 32 | 35, "{way:?}");
        assert_eq!(run(&instance, "refused", 0), notes(&[EINVAL, E2BIG, 0]), "{way:?}");
    }
}

/// A value of its own for each slot; a slot is one thread's for the whole run.
#[test]
fn per_cpu_values_belong_to_slots() {
    for way in WAYS {
        let engine = Engine::new(Config::new()).unwrap();
        let instance = instance(&engine, way, |_| {});
        let (threads, runs) = (4, 500u64);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut last = Vec::<(u64, u64)>::new();
                    for _ in 0..runs {
                        let result = run(&instance, "count", 0);
                        let (slot, before) = (result & 0xffff_ffff, result >> 32);
                        match last.iter_mut().find(|(s, _)| *s == slot) {
                            Some((_, seen)) => {
                                assert!(before > *seen, "{way:?}: slot {slot} went from {seen} to {before}");
                                *seen = before;
                            }
                            None => last.push((slot, before)),
                        }
                    }
                });
            }
        });
        let map = instance.map("per_cpu").unwrap();
        let bytes = map.get(&0u32.to_ne_bytes()).unwrap().expect("an array has all its keys");
        let sum: u64 = bytes.chunks_exact(8).map(|v| u64::from_ne_bytes(v.try_into().unwrap())).sum();
        assert_eq!(sum, threads * runs, "{way:?}: increments were lost, so two threads shared a slot");
    }
}

// ---- Stops in callbacks --------------------------------------------------------------------------------------------

/// A loop of 2^32 calls in all, which only a stop ends.
const ENDLESS: &str = "r1 = 65536; r2 = subprog[outer]; r3 = 0; r4 = 0; call 181; r0 = 0; exit;
     outer: r1 = 65536; r2 = subprog[inner]; r3 = 0; r4 = 0; call 181; r0 = 0; exit;
     inner: r0 = 0; exit";

#[test]
fn the_budget_counts_callbacks() {
    for mode in modes() {
        for budget in [1, 2, 3, 1000] {
            let config = config(mode).budget(budget);
            let linker = Linker::<()>::new(&Engine::new(config).unwrap());
            let program = load(&linker, ENDLESS);
            for _ in 0..2 {
                let result = program.run(&mut (), &mut []);
                assert!(matches!(result, Err(RunError::Budget { .. })), "{mode:?}, {budget}: {result:?}");
            }
            // main's call of the helper, then one call of the callback an iteration.
            let text = "r1 = 5; r2 = subprog[f]; r3 = 0; r4 = 0; call 181; exit; f: r0 = 0; exit";
            let result = load(&linker, text).run(&mut (), &mut []);
            assert_eq!(result.is_ok(), budget >= 6, "{mode:?}, {budget}: {result:?}");
        }
    }
}

#[test]
fn interruption_reaches_callbacks() {
    for mode in modes() {
        let config = config(mode).interruptible(true);
        let engine = Engine::new(config).unwrap();
        let linker = Linker::<()>::new(&engine);
        for text in [ENDLESS, "r0 = 0; a: r0 += 1; if r0 != -1 goto a; exit"] {
            let program = load(&linker, text);
            let done = AtomicUsize::new(0);
            let result = std::thread::scope(|scope| {
                let run = scope.spawn(|| {
                    let result = program.run(&mut (), &mut []);
                    done.store(1, Ordering::Release);
                    result
                });
                // Until the run has begun there is nothing to interrupt, so ask until it has ended.
                let start = Instant::now();
                while done.load(Ordering::Acquire) == 0 && start.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_millis(1));
                    engine.interrupt();
                }
                run.join().unwrap()
            });
            assert!(matches!(result, Err(RunError::Interrupted { .. })), "{mode:?}: {result:?}");
        }
        // The interruption concerned only runs that were going on.
        assert_eq!(load(&linker, "r0 = 3; a: r0 -= 1; if r0 != 0 goto a; exit").run(&mut (), &mut []).unwrap(), 0);
    }
}

#[test]
fn an_error_in_a_callback_ends_the_whole_run() {
    for mode in modes() {
        let engine = Engine::new(config(mode)).unwrap();
        let mut linker = Linker::<u64>::new(&engine);
        linker
            .func(1001, "fail_at_3", |c: &mut Caller<'_, u64>, i: u64| -> Result<u64, HelperError> {
                *c.host() += 1;
                if i == 3 { Err(HelperError::new("three")) } else { Ok(0) }
            })
            .unwrap();
        let text = "r6 = 1; r1 = 10; r2 = subprog[outer]; r3 = 0; r4 = 0; call 181; exit;
             outer: r1 = 10; r2 = subprog[inner]; r3 = 0; r4 = 0; call 181; r0 = 0; exit;
             inner: call 1001; exit";
        let program = load(&linker, text);
        for _ in 0..2 {
            let mut calls = 0;
            let error = program.run(&mut calls, &mut []).unwrap_err();
            assert_eq!(calls, 4, "{mode:?}");
            assert!(matches!(&error, RunError::Host { source: HelperError::Failed(_), .. }), "{mode:?}: {error:?}");
            assert!(error.to_string().ends_with("three"), "{mode:?}: {error}");
        }
    }
}
