//! Runs on small stacks: one that may not fit is refused before it begins, nested ones, hooks and tail calls included;
//! an interpreted one may also end at a call. A run that fits is not refused, on any stack. Each program runs at every
//! depth of a stack until it is refused: if the computed need were too small, an overflow would end the test's process.

#![cfg(target_os = "linux")]

mod common;

use bpf_runtime::{
    Caller, Config, Dispatcher, Engine, HelperError, Hook, HookPolicy, Linker, Mode, ProgArray, Program, Raw, RunError,
    isa::assemble,
    maps::{Map, MapDef, MapType},
};
use common::engines::{Execution, config, modes};
use std::sync::{Arc, Mutex};

type Outcome = Result<u64, RunError>;

struct Task<F, R> {
    f: Option<F>,
    result: Option<std::thread::Result<R>>,
}

extern "C" fn work<F: FnOnce() -> R, R>(task: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `with_stack` gives its own, and waits.
    let task = unsafe { &mut *task.cast::<Task<F, R>>() };
    let f = task.f.take().expect("once");
    task.result = Some(std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)));
    std::ptr::null_mut()
}

/// Runs `f` on a thread with a stack of so many KiB: exactly, where `std` gets what the C library has kept of an
/// earlier, larger one. A guard is below it. C libraries want at least 128 KiB on arm64.
fn with_stack<F: FnOnce() -> R + Send, R: Send>(kib: usize, f: F) -> R {
    const GUARD: usize = 64 << 10;
    let (bytes, flags) = (kib << 10, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), GUARD + bytes, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: part of a mapping that is not in use yet.
    assert_eq!(unsafe { libc::mprotect(memory, GUARD, libc::PROT_NONE) }, 0);
    let mut task = Task { f: Some(f), result: None };
    let mut attr = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = std::mem::MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: makes the attributes.
    assert_eq!(unsafe { libc::pthread_attr_init(attr.as_mut_ptr()) }, 0);
    let stack = memory.wrapping_byte_add(GUARD);
    // SAFETY: the stack is the thread's alone until it has been joined.
    assert_eq!(unsafe { libc::pthread_attr_setstack(attr.as_mut_ptr(), stack, bytes) }, 0);
    let given = (&raw mut task).cast();
    // SAFETY: the function takes this task, which stays until the thread has been joined.
    let made = unsafe { libc::pthread_create(thread.as_mut_ptr(), attr.as_ptr(), work::<F, R>, given) };
    assert_eq!(made, 0);
    // SAFETY: written by `pthread_create`, which succeeded.
    let thread = unsafe { thread.assume_init() };
    // SAFETY: nobody else joins the thread.
    assert_eq!(unsafe { libc::pthread_join(thread, std::ptr::null_mut()) }, 0);
    // SAFETY: initialised above, and not used any more.
    unsafe { libc::pthread_attr_destroy(attr.as_mut_ptr()) };
    // SAFETY: the mapping made above, which nobody uses any more.
    unsafe { libc::munmap(memory, GUARD + bytes) };
    match task.result.expect("it has run") {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn large_frames(mode: Execution) -> Config {
    config(mode).frame_bytes(30_000)
}

/// `levels` functions that call each other, each with a frame of about `bytes`.
fn deep(levels: usize, bytes: u32) -> String {
    let mut text = String::new();
    for level in 0..levels {
        let call = if level + 1 < levels { format!("call f{}\n", level + 1) } else { "r0 = 7\n".into() };
        text += &format!("f{level}:\nr1 = r10\nr1 += -{bytes}\n*(u64 *)(r1 + 0) = 1\n{call}exit\n");
    }
    text.split_once('\n').unwrap().1.to_owned()
}

fn load<H: 'static>(linker: &Linker<H>, text: &str) -> Program<Raw, H> {
    let insns = assemble(text).unwrap_or_else(|e| panic!("{e} in\n{text}"));
    linker.loader::<Raw>().insns("deep", insns).unwrap_or_else(|e| panic!("{e} in\n{text}"))
}

/// Tail-calls through the array, or returns 1.
fn jumps<H: 'static>(linker: &Linker<H>, array: &ProgArray<Raw, H>, before: &str) -> Program<Raw, H> {
    let text = format!("r6 = r1\n{before}r1 = r6\nr2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 1\nexit");
    linker.loader::<Raw>().prog_arrays(&[array]).insns("jumps", assemble(&text).unwrap()).unwrap()
}

#[test]
fn a_run_that_may_not_fit_is_refused() {
    for mode in modes() {
        let engine = Engine::new(large_frames(mode)).unwrap();
        if engine.config().get_mode() == Mode::Interpreter {
            continue;
        }
        let linker = Linker::<()>::new(&engine);
        let (small, large) = (load(&linker, "r0 = 7\nexit"), load(&linker, &deep(8, 29_000)));
        assert!(large.machine_stack_bytes() > 8 * 29_000);
        let array = ProgArray::<Raw, ()>::create(&engine, "next", 1).unwrap();
        array.set(0, &large).unwrap();
        let jumps = jumps(&linker, &array, "");
        let hook = Hook::new(&engine, HookPolicy::RunAll { result: 7 }).unwrap();
        let walked = Hook::new(&engine, HookPolicy::RunAll { result: 7 }).unwrap();
        walked.set_statistics(true).unwrap();
        let dispatcher = Dispatcher::new(&engine).unwrap();
        for program in [&small, &large] {
            hook.attach(program).unwrap();
            walked.attach(program).unwrap();
            dispatcher.attach(program).unwrap();
        }
        type Way<'a> = &'a (dyn Fn() -> Outcome + Sync);
        let all: [(&str, Way<'_>); 6] = [
            ("run", &|| large.run(&mut (), &mut [])),
            ("runner", &|| large.runner(&mut ())?.run(&mut [])),
            ("tail call", &|| jumps.run(&mut (), &mut [])),
            ("hook", &|| hook.run(&mut (), &mut [])),
            ("walked hook", &|| walked.run(&mut (), &mut [])),
            ("dispatcher", &|| dispatcher.call(&large, &mut (), &mut [])),
        ];
        for (name, way) in all {
            for kib in [128, 160, 192, 240] {
                let result = with_stack(kib, way);
                assert!(matches!(result, Err(RunError::Stack { .. })), "{mode:?}, {name}, {kib} KiB: {result:?}");
            }
            // Beside it, the small one runs.
            assert_eq!(with_stack(128, || small.run(&mut (), &mut [])).unwrap(), 7, "{mode:?}");
            assert_eq!(with_stack(1024, way).unwrap(), 7, "{mode:?}, {name}");
        }
        // Whatever is in the array: a larger one may be when the run gets there.
        array.set(0, &small).unwrap();
        let result = with_stack(240, || jumps.run(&mut (), &mut []));
        assert!(matches!(result, Err(RunError::Stack { .. })), "{mode:?}: {result:?}");
    }
}

/// A host function puts a program with the largest frames there are where its own run jumps to next.
#[test]
fn a_tail_call_into_a_program_that_came_later_fits() {
    for mode in modes() {
        let mut config = large_frames(mode);
        config = config.stack_reserve(64 << 10);
        let engine = Engine::new(config).unwrap();
        let mut linker = Linker::<()>::new(&engine);
        let array = Arc::new(ProgArray::<Raw, ()>::create(&engine, "next", 1).unwrap());
        let large = load(&linker, &deep(8, 29_000));
        let at = Arc::new(Mutex::new(Some(Arc::clone(&array))));
        let slot = Arc::clone(&at);
        let grow = move || slot.lock().unwrap().as_ref().unwrap().set(0, &large).unwrap();
        linker.func(1001, "grow", move |_: &mut Caller<'_, ()>| grow()).unwrap();
        let program = jumps(&linker, &array, "call 1001\n");
        let accepted: Vec<bool> = [128, 256, 512, 640, 800, 1024]
            .map(|kib| {
                let _ = array.clear(0);
                match with_stack(kib, || program.run(&mut (), &mut [])) {
                    Ok(r0) => r0 == 7,
                    Err(RunError::Stack { .. }) => false,
                    Err(error) => panic!("{mode:?}, {kib} KiB: {error}"),
                }
            })
            .into();
        assert!(accepted[5] && (mode.mode == Mode::Interpreter || !accepted[1]), "{mode:?}: {accepted:?}");
        *at.lock().unwrap() = None;
    }
}

/// A program that runs itself through a host function gets as deep as the stack allows and is told so.
#[test]
fn nested_runs_end_before_the_stack_does() {
    for mode in modes() {
        let mut config = large_frames(mode);
        config = config.max_nested_runs(1 << 20);
        let engine = Engine::new(config).unwrap();
        let own: Arc<Mutex<Option<Program<Raw, u64>>>> = Arc::default();
        let mut linker = Linker::<u64>::new(&engine);
        let again = Arc::clone(&own);
        let nest = move |c: &mut Caller<'_, u64>| -> Result<u64, HelperError> {
            let program = again.lock().unwrap().clone().unwrap();
            *c.host() += 1;
            let mut depth = *c.host();
            let result = program.run(&mut depth, &mut []);
            *c.host() = depth;
            result.map_err(HelperError::new)
        };
        linker.func(1001, "nest", nest).unwrap();
        let program = load(&linker, "r1 = r10\nr1 += -5000\n*(u64 *)(r1 + 0) = 1\ncall 1001\nexit");
        *own.lock().unwrap() = Some(program.clone());
        for kib in [128, 512] {
            let (depth, error) = with_stack(kib, || {
                let mut depth = 0;
                let error = program.run(&mut depth, &mut []).unwrap_err();
                (depth, format!("{error:?}"))
            });
            assert!(error.contains("Stack {"), "{mode:?}: {error}");
            assert!(depth >= 2, "{mode:?}, {kib} KiB: {depth} levels");
        }
        *own.lock().unwrap() = None;
    }
}

/// Calls `run` at this depth and all below, until the run is refused. Returns how many ran.
fn at_each_depth(run: &dyn Fn() -> Outcome) -> u32 {
    let filler = std::hint::black_box([0u8; 500]);
    let ran = match run() {
        Ok(r0) => {
            assert_eq!(r0, 7);
            1 + at_each_depth(run)
        }
        Err(RunError::Stack { needed, left }) => {
            assert!(left < needed);
            0
        }
        Err(error) => panic!("{error}"),
    };
    std::hint::black_box(&filler);
    ran
}

/// With hardly anything in reserve, so that what the worst case of callbacks is taken for is what counts.
#[test]
fn what_is_let_in_fits() {
    for mode in modes() {
        let mut config = large_frames(mode);
        config = config.stack_reserve(4096);
        let engine = Engine::new(config).unwrap();
        let linker = Linker::<()>::new(&engine);
        let array = Map::create(MapDef::new("array", MapType::Array, 4, 8, 2), engine.domain()).unwrap();
        let filled = |bytes: u32, rest: &str| format!("r1 = r10\nr1 += -{bytes}\n*(u64 *)(r1 + 0) = 1\n{rest}");
        let call = |f: &str| format!("r1 = 2\nr2 = subprog[{f}]\nr3 = 0\nr4 = 0\ncall 181\n");
        let each = |f: &str| format!("r1 = map[fd:0]\nr2 = subprog[{f}]\nr3 = 0\nr4 = 0\ncall 164\n");
        for bytes in [8, 3000] {
            // A callback in a callback in a callback, by both helpers.
            let text = format!(
                "{}r0 = 7\nexit\nf:\n{}r0 = 0\nexit\ng:\n{}r0 = 0\nexit\nh:\n{}r0 = 0\nexit",
                filled(bytes, &call("f")),
                filled(bytes, &each("g")),
                filled(bytes, &call("h")),
                filled(bytes, ""),
            );
            let program = linker.loader::<Raw>().maps(&[&array]).insns("callbacks", assemble(&text).unwrap());
            let program = program.unwrap_or_else(|e| panic!("{e}\n{text}"));
            let ran = with_stack(256, || at_each_depth(&|| program.run(&mut (), &mut [])));
            assert!(ran > 10, "{mode:?}: {ran}");
            let deep = load(&linker, &deep(8, bytes));
            let ran = with_stack(256, || at_each_depth(&|| deep.run(&mut (), &mut [])));
            assert!(ran > 10, "{mode:?}: {ran}");
        }
    }
}

/// Functions that call each other, by bpf_loop, by bpf_for_each_map_elem or directly; the last one runs `last`.
fn nested(call: fn(usize) -> String, last: &str) -> String {
    let mut text = format!("{}r0 = 0\nexit\n", call(1));
    for level in 1..7 {
        text += &format!("f{level}: {}r0 = 0\nexit\n", call(level + 1));
    }
    text + "f7: " + last
}

fn calls_directly(level: usize) -> String {
    format!("call f{level}\n")
}

fn calls_by_loop(level: usize) -> String {
    format!("r1 = 1\nr2 = subprog[f{level}]\nr3 = 0\nr4 = 0\ncall 181\n")
}

fn calls_for_each(level: usize) -> String {
    format!("r1 = map[fd:0]\nr2 = subprog[f{level}]\nr3 = 0\nr4 = 0\ncall 164\n")
}

type Nests = (Program<Raw, ()>, Program<Raw, ()>, ProgArray<Raw, ()>);

/// Makes a tail call to the program itself from the last of the nested functions, so that up to 272 functions have
/// begun and not returned. The verifier does not admit that in callbacks. Returns it, a sleepable program whose host
/// function runs it, and the array that keeps it.
fn nests_across_tail_calls(engine: &Engine, call: fn(usize) -> String, interpreted: bool) -> Nests {
    let linker = Linker::<()>::new(engine);
    let array = ProgArray::<Raw, ()>::create(engine, "next", 1).unwrap();
    let insns = assemble(&nested(call, "r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit")).unwrap();
    let loader = linker.loader().interpreted(interpreted).recordable(true).prog_arrays(&[&array]);
    let program: Program<Raw, ()> = loader.insns("nests", insns).unwrap();
    array.set(0, &program).unwrap();
    let mut linker = Linker::<()>::new(engine);
    let inner = program.clone();
    linker
        .func_async(1001, "runs", move |_: bpf_runtime::AsyncCaller<'_, ()>| {
            let inner = inner.clone();
            async move { inner.run(&mut (), &mut []).map_err(HelperError::new) }
        })
        .unwrap();
    let outer = linker.loader().sleepable(true).insns("outer", assemble("call 1001\nexit").unwrap()).unwrap();
    (program, outer, array)
}

/// Functions that wait for the end of a tail call are on the stack with those of the program that it has entered.
#[test]
fn functions_of_interpreted_runs_end_before_the_stack_does() {
    use bpf_runtime::observe::{Recorder, RecorderOptions, Recording, ReplayError};
    let interpreter = Engine::new(Config::new().mode(Mode::Interpreter)).unwrap();
    let default = Engine::new(Config::new()).unwrap();
    for (engine, call, interpreted) in [
        (&default, calls_by_loop as fn(usize) -> String, true),
        (&default, calls_directly, true),
        (&interpreter, calls_directly, false),
    ] {
        let (program, outer, _array) = nests_across_tail_calls(engine, call, interpreted);
        for kib in [128, 192, 256, 512] {
            let result = with_stack(kib, || program.run(&mut (), &mut []));
            let refused = matches!(result, Err(RunError::Stack { needed, left }) if left < needed);
            assert!(refused || kib > 128 && matches!(result, Ok(0)), "{kib} KiB: {result:?}");
        }
        let run = || with_stack(16 << 10, || program.run(&mut (), &mut []));
        assert_eq!(run().unwrap(), 0);
        // The stack of a sleepable run, on which its host functions are, too, is smaller than that of this thread.
        let slept = with_stack(16 << 10, || {
            let (mut host, mut data) = ((), []);
            let mut run = std::pin::pin!(outer.run_async(&mut host, &mut data));
            run.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
        });
        assert!(slept.is_ready(), "{slept:?}");
        let recording = with_stack(16 << 10, || {
            let mut recorder: Recorder<Raw, ()> = program.recorder(RecorderOptions::new()).unwrap();
            assert_eq!(recorder.run(&mut (), &mut []).unwrap(), 0);
            recorder.recording()
        });
        let replay = |kib| with_stack(kib, || recording.replay(0, &mut ()));
        assert!(matches!(replay(128), Err(ReplayError::TooDeep { limit: 1..128 })), "{:?}", replay(128));
        assert_eq!(replay(16 << 10), Err(ReplayError::TooDeep { limit: 128 }));
        // A run that has ended for want of stack ends at the same instruction in a replay on a large one.
        let short = with_stack(128, || {
            let mut recorder: Recorder<Raw, ()> = program.recorder(RecorderOptions::new()).unwrap();
            assert!(matches!(recorder.run(&mut (), &mut []), Err(RunError::Stack { .. })));
            Recording::parse(&recorder.save()).unwrap()
        });
        let replayed = with_stack(16 << 10, || short.replay(0, &mut ())).unwrap();
        assert!(replayed.result.unwrap_err().contains("machine stack"));
    }
}

/// The interpreter's bound on a nested frame, which is several times what one takes.
#[test]
fn a_nested_frame_is_within_its_bound() {
    use bpf_runtime::observe::{Observed, Observer};
    struct Lowest(Vec<usize>);
    impl Observer for Lowest {
        fn step(&mut self, _: &Observed<'_>) -> bool {
            let here = 0u8;
            self.0.push(std::ptr::from_ref(std::hint::black_box(&here)).addr());
            true
        }
    }
    let bound = if cfg!(debug_assertions) { 24 << 10 } else { 8 << 10 };
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let array = Map::create(MapDef::new("array", MapType::Array, 4, 8, 1), engine.domain()).unwrap();
    for (call, maps) in
        [(calls_directly as fn(usize) -> String, &[][..]), (calls_by_loop, &[]), (calls_for_each, &[&array])]
    {
        let loader = linker.loader::<Raw>().recordable(true).maps(maps);
        let program: Program<Raw, ()> =
            loader.insns("nests", assemble(&nested(call, "r0 = 0\nexit")).unwrap()).unwrap();
        let mut steps = Lowest(Vec::new());
        with_stack(1024, || program.run_observed(&mut (), &mut [], &mut steps)).unwrap();
        let (lowest, highest) = (steps.0.iter().min().unwrap(), steps.0.iter().max().unwrap());
        let frame = (highest - lowest) / 7;
        assert!((100..bound / 2).contains(&frame), "{frame} bytes");
    }
}

/// Stacks that are not the thread's.
mod other_stacks {
    use super::*;
    use std::sync::atomic::{AtomicPtr, Ordering};

    static CALL: AtomicPtr<Box<dyn Fn()>> = AtomicPtr::new(std::ptr::null_mut());
    /// Both tests use it.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    extern "C" fn trampoline() {
        // SAFETY: `call_through` sets it, and its function lives until it has returned.
        unsafe { (*CALL.load(Ordering::SeqCst))() };
    }

    extern "C" fn handler(_: i32) {
        trampoline();
    }

    /// Runs `f` by `way`, which calls [`trampoline`] somewhere else.
    fn call_through(f: impl Fn() -> Outcome + 'static, way: impl FnOnce()) -> Outcome {
        let result = Arc::new(Mutex::new(None));
        let put = Arc::clone(&result);
        let mut call: Box<dyn Fn()> = Box::new(move || *put.lock().unwrap() = Some(f()));
        CALL.store(&raw mut call, Ordering::SeqCst);
        way();
        let outcome = result.lock().unwrap().take();
        outcome.expect("it was called")
    }

    type Programs = (Execution, Program<Raw, ()>, Program<Raw, ()>);

    fn programs() -> Vec<Programs> {
        let modes = modes().into_iter().filter(|mode| mode.mode == Mode::Jit);
        modes
            .map(|mode| {
                let linker = Linker::<()>::new(&Engine::new(large_frames(mode)).unwrap());
                (mode, load(&linker, "r0 = 7\nexit"), load(&linker, &deep(8, 29_000)))
            })
            .collect()
    }

    /// Calls `way` on a signal stack of `bytes` bytes on the heap.
    fn on_signal_stack(bytes: usize, way: impl FnOnce()) {
        let mut memory = vec![0u8; bytes];
        let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: bytes };
        let mut before = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
        // SAFETY: the memory is there until the stack before is in its place again.
        assert_eq!(unsafe { libc::sigaltstack(&raw const stack, &raw mut before) }, 0);
        // SAFETY: all zero is a value of this type.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_flags = libc::SA_ONSTACK;
        action.sa_sigaction = handler as extern "C" fn(i32) as usize;
        // SAFETY: the handler has the type that these flags ask for.
        assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) }, 0);
        way();
        // SAFETY: restores the signal stack that the thread had before.
        assert_eq!(unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) }, 0);
    }

    #[test]
    fn a_run_on_a_signal_stack_is_held_to_its_ends() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        for (mode, small, large) in programs() {
            // The first run of a thread is not a handler's.
            assert_eq!(large.run(&mut (), &mut []).unwrap(), 7);
            let on = |bytes, program: &Program<Raw, ()>| {
                let program = program.clone();
                // SAFETY: the handler does what this thread may do here.
                let raise = || assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
                call_through(move || program.run(&mut (), &mut []), || on_signal_stack(bytes, raise))
            };
            assert_eq!(on(128 << 10, &small).unwrap(), 7, "{mode:?}");
            let result = on(128 << 10, &large);
            assert!(matches!(result, Err(RunError::Stack { left, .. }) if left < 128 << 10), "{mode:?}: {result:?}");
            assert_eq!(on(1 << 20, &large).unwrap(), 7, "{mode:?}");
            // Off it, the thread's own stack counts again.
            assert_eq!(large.run(&mut (), &mut []).unwrap(), 7);
            // An interpreted run begins if its first frame fits.
            let engine = Engine::new(Config::new()).unwrap();
            let (nests, _outer, _array) = nests_across_tail_calls(&engine, calls_directly, true);
            let result = on(96 << 10, &nests);
            assert!(matches!(result, Err(RunError::Stack { left, .. }) if left < 96 << 10), "{result:?}");
        }
    }

    /// The ends of a coroutine's stack are unknown; runs on it are neither refused nor held to the rest of the thread's
    /// stack.
    #[cfg(target_env = "gnu")]
    #[test]
    fn a_run_on_an_unknown_stack_is_not_refused() {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        for (mode, small, large) in programs() {
            for (program, bytes) in [(small, 96 << 10), (large, 512 << 10)] {
                let switch = || {
                    let mut memory = vec![0u8; bytes];
                    let mut here = std::mem::MaybeUninit::<libc::ucontext_t>::zeroed();
                    let mut there = std::mem::MaybeUninit::<libc::ucontext_t>::zeroed();
                    // SAFETY: writes to `there`.
                    assert_eq!(unsafe { libc::getcontext(there.as_mut_ptr()) }, 0);
                    // SAFETY: initialised by the call above.
                    let context = unsafe { there.assume_init_mut() };
                    context.uc_stack.ss_sp = memory.as_mut_ptr().cast();
                    context.uc_stack.ss_size = bytes;
                    context.uc_link = here.as_mut_ptr();
                    // SAFETY: a context with a stack of its own and one to go on with.
                    unsafe { libc::makecontext(context, trampoline, 0) };
                    // SAFETY: both are there until it is back.
                    assert_eq!(unsafe { libc::swapcontext(here.as_mut_ptr(), there.as_ptr()) }, 0);
                };
                let run = move || program.run(&mut (), &mut []);
                assert_eq!(call_through(run, switch).unwrap(), 7, "{mode:?}");
            }
        }
    }
}
