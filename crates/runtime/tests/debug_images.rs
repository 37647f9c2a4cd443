//! Backtraces through the images of hooks and dispatchers, and names for their addresses.

use bpf_runtime::{
    Caller, Config, Dispatcher, Engine, Hook, HookPolicy, Linker, Program, Raw,
    code::{Arch, Hardening},
    isa::assemble,
};
use std::sync::{Arc, Mutex};

/// Records of the host function: the names of the emitted frames, and whether a Rust frame of this file is behind them.
type Seen = Arc<Mutex<Vec<(Vec<String>, bool)>>>;

fn engines() -> impl Iterator<Item = (Engine, Linker<()>, Seen)> {
    let hard = Hardening::new()
        .retpolines(true)
        .landing_pads(true)
        .return_signing(true)
        .straight_line(true)
        .blind_constants(false);
    let with_jit = |_: &Hardening| Arch::HOST.is_some();
    [Hardening::default(), hard].into_iter().filter(with_jit).map(|hardening| {
        let config = Config::new().hardening(|_| hardening).debug(|debug| debug.unwind(true));
        let engine = Engine::new(config).unwrap();
        let (seen, here) = (Seen::default(), engine.clone());
        let noted = Arc::clone(&seen);
        let mut linker = Linker::new(&engine);
        let probe = move |_: &mut Caller<'_, ()>| {
            let names = here.backtrace().into_iter().map(|frame| frame.function).collect();
            let whole = std::backtrace::Backtrace::force_capture().to_string();
            // Whether a name is printed with its path depends on the debug information.
            let behind = ["through_hook", "through_dispatcher"].iter().any(|name| whole.contains(name));
            noted.lock().unwrap().push((names, behind));
            0u64
        };
        linker.func(1001, "probe", probe).unwrap();
        (engine, linker, seen)
    })
}

fn load(linker: &Linker<()>, name: &str) -> Program<Raw, ()> {
    linker.loader().insns(name, assemble("call 1001\nr0 = 2\nexit").unwrap()).unwrap()
}

fn expect(seen: &Seen, frames: &[&[&str]]) {
    let found = std::mem::take(&mut *seen.lock().unwrap());
    let names: Vec<Vec<&str>> = found.iter().map(|(names, _)| names.iter().map(String::as_str).collect()).collect();
    assert_eq!(names, frames);
    assert!(found.iter().all(|(_, behind)| *behind), "the backtrace does not reach the caller");
}

#[inline(never)]
fn through_hook(hook: &Hook<Raw, ()>) {
    hook.run(&mut (), &mut [0; 8]).unwrap();
}

#[inline(never)]
fn through_dispatcher(dispatcher: &Dispatcher<Raw, ()>, program: &Program<Raw, ()>) {
    dispatcher.call(program, &mut (), &mut [0; 8]).unwrap();
}

#[test]
fn a_backtrace_goes_through_a_hook() {
    for (engine, linker, seen) in engines() {
        let [one, two, three] = ["one", "two", "three"].map(|name| load(&linker, name));
        for (policy, last) in [
            (HookPolicy::FirstVerdict { pass: 2 }, &["three"][..]),
            (HookPolicy::LastWins { empty: 0 }, &["three"]),
            (HookPolicy::RunAll { result: 0 }, &["three", "<hook>"]),
        ] {
            let hook = Hook::new(&engine, policy).unwrap();
            for program in [&one, &two, &three] {
                hook.attach(program).unwrap();
            }
            through_hook(&hook);
            // The last one was jumped to, if its verdict is the result.
            expect(&seen, &[&["one", "<hook>"], &["two", "<hook>"], last]);
            hook.detach(&one).unwrap();
            hook.detach(&two).unwrap();
            through_hook(&hook);
            expect(&seen, &[last]);
        }
    }
}

#[test]
fn a_backtrace_does_not_see_a_dispatcher() {
    for (engine, linker, seen) in engines() {
        let dispatcher = Dispatcher::new(&engine).unwrap();
        let (known, unknown) = (load(&linker, "known"), load(&linker, "unknown"));
        dispatcher.attach(&known).unwrap();
        through_dispatcher(&dispatcher, &known);
        through_dispatcher(&dispatcher, &unknown);
        expect(&seen, &[&["known"], &["unknown"]]);
    }
}

/// The image is taken out of the hook, or the tree out of the dispatcher, by the very run that is in it: its frames can
/// still be walked.
#[test]
fn a_backtrace_goes_through_an_image_that_was_replaced() {
    for hook_count in [1usize, 100] {
        let mut config = Config::new();
        if Arch::HOST.is_none() {
            return bpf_testkit::skipped("backtraces through images", &"no JIT on this host");
        }
        config = config.debug(|debug| debug.unwind(true));
        let engine = Engine::new(config).unwrap();
        let hook = Arc::new(Hook::<Raw, ()>::new(&engine, HookPolicy::RunAll { result: 0 }).unwrap());
        let (seen, here, changed) = (Seen::default(), engine.clone(), Arc::clone(&hook));
        let noted = Arc::clone(&seen);
        let mut linker = Linker::<()>::new(&engine);
        let other: Arc<Mutex<Option<Program<Raw, ()>>>> = Arc::default();
        let attached = Arc::clone(&other);
        let probe = move |_: &mut Caller<'_, ()>| {
            // Often enough to fill a batch of deferred drops.
            for _ in 0..hook_count {
                let other = attached.lock().unwrap().clone().unwrap();
                changed.attach(&other).unwrap();
                changed.detach(&other).unwrap();
            }
            let names = here.backtrace().into_iter().map(|frame| frame.function).collect();
            let whole = std::backtrace::Backtrace::force_capture().to_string();
            noted.lock().unwrap().push((names, whole.contains("through_hook")));
            0u64
        };
        linker.func(1001, "probe", probe).unwrap();
        *other.lock().unwrap() = Some(linker.loader().insns("other", assemble("r0 = 1\nexit").unwrap()).unwrap());
        let program = load(&linker, "one");
        hook.attach(&program).unwrap();
        through_hook(&hook);
        expect(&seen, &[&["one", "<hook>"]]);
        // And nothing is kept for good.
        engine.reclaim();
        through_hook(&hook);
        expect(&seen, &[&["one", "<hook>"]]);
        // The closure above owns the hook, which owns it through its program.
        hook.detach(&program).unwrap();
        *other.lock().unwrap() = None;
    }
}
