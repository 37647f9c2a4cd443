//! Backtraces through emitted code, and names for its addresses: from host functions over every shape of frame and
//! register allocation, through subprograms, tail calls, callbacks and nested runs, and (x86-64) from every single
//! instruction.

mod support;

use bpf_runtime::{
    Caller, Config, Engine, Hook, HookPolicy, Instance, Linker, MapSet, Object, Program, Raw,
    code::{Arch, Location},
    isa::assemble,
    net::{Xdp, XdpBuff},
};
use bpf_testkit::skipped;
use shapes::{config, shapes};
use std::sync::{Arc, Mutex};

/// Engines whose code differs in how frames look.
mod shapes {
    use bpf_jit::{AllocOptions, HostRegSet};
    use bpf_runtime::{Config, code::Hardening};

    pub(crate) fn config() -> Config {
        Config::new().debug(|debug| debug.unwind(true))
    }

    /// Configurations by name.
    pub(crate) fn shapes() -> Vec<(String, Config)> {
        let with = |change: &dyn Fn(Config) -> Config| change(config());
        let hardening = Hardening::new()
            .retpolines(true)
            .landing_pads(true)
            .return_signing(true)
            .straight_line(true)
            .blind_constants(false);
        let slots = AllocOptions { only: Some(HostRegSet::EMPTY), seed: None };
        let mut shapes = vec![
            ("plain".to_owned(), config()),
            ("hardened".to_owned(), with(&|c| c.hardening(|_| hardening))),
            ("every register saved".to_owned(), with(&|c| c.save_all(true))),
            ("every value in a slot".to_owned(), with(&|c| c.alloc(slots))),
            ("checks".to_owned(), with(&|c| c.budget(1 << 40).interruptible(true))),
            ("indirect tail calls".to_owned(), with(&|c| c.direct_tail_calls(false))),
        ];
        for seed in 1..=6 {
            shapes.push((format!("seed {seed}"), with(&|c| c.alloc(AllocOptions { only: None, seed: Some(seed) }))));
        }
        shapes
    }
}

const SOURCE: &str = include_str!("objects/debug.c");
const OBJECT: &[u8] = include_bytes!("objects/debug.o");

/// The line of the source with this mark.
fn line(mark: &str) -> u32 {
    let mark = format!("/* line: {mark} */");
    let found: Vec<usize> = (0..).zip(SOURCE.lines()).filter(|(_, l)| l.contains(&mark)).map(|(i, _)| i).collect();
    assert_eq!(found.len(), 1, "{mark}");
    found[0] as u32 + 1
}

/// The backtraces that `probe` recorded, one for each call.
type Seen = Arc<Mutex<Vec<Vec<Location>>>>;

/// `debug.o` on this engine, with a `probe` that calls `look`.
fn load(engine: &Engine, look: impl Fn() + Send + Sync + 'static) -> Instance<()> {
    let mut linker = Linker::<()>::new(engine);
    let probe = move |_: &mut Caller<'_, ()>, value: u64| -> u64 {
        look();
        value + 1
    };
    linker.func(1001, "probe", probe).unwrap();
    let object = Object::parse(OBJECT).unwrap();
    let maps = MapSet::for_object(engine, &object).unwrap();
    linker.loader::<Raw>().only(&["outer", "hops", "landed"]).object(&object, maps).unwrap()
}

/// Loads the program with a host function that records backtraces.
fn traced(config: Config) -> (Engine, Instance<()>, Seen) {
    let engine = Engine::new(config).unwrap();
    let seen = Seen::default();
    let (noted, here) = (Arc::clone(&seen), engine.clone());
    let instance = load(&engine, move || noted.lock().unwrap().push(here.backtrace()));
    (engine, instance, seen)
}

/// For programs from text: a `probe` without arguments that notes backtraces.
fn probing(engine: &Engine) -> (Linker<()>, Seen) {
    let seen = Seen::default();
    let (noted, here) = (Arc::clone(&seen), engine.clone());
    let mut linker = Linker::<()>::new(engine);
    let probe = move |_: &mut Caller<'_, ()>| -> u64 {
        noted.lock().unwrap().push(here.backtrace());
        0
    };
    linker.func(1001, "probe", probe).unwrap();
    (linker, seen)
}

fn run(instance: &Instance<()>, name: &str, data: &mut [u8]) -> u64 {
    instance.program::<Raw>(name).unwrap().run(&mut (), data).unwrap()
}

/// Program, function and line of each frame.
fn names(frames: &[Location]) -> Vec<(&str, &str, u32)> {
    frames.iter().map(|f| (f.program.as_str(), f.function.as_str(), f.line.unwrap_or(0))).collect()
}

fn no_jit(what: &str) -> bool {
    if Arch::HOST.is_none() {
        skipped(what, &"no JIT on this host");
    }
    Arch::HOST.is_none()
}

#[test]
fn a_host_function_sees_every_emitted_frame_in_order() {
    if no_jit("backtraces") {
        return;
    }
    for (name, config) in shapes() {
        let (_engine, instance, seen) = traced(config);
        run(&instance, "outer", &mut [0; 24]);
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 2, "{name}");
        let inner = ("outer", "leaf", line("leaf"));
        let outer = ("outer", "outer", line("outer"));
        assert_eq!(names(&seen[0]), [inner, ("outer", "middle", line("middle")), outer], "{name}");
        assert_eq!(names(&seen[1]), [inner, ("outer", "middle", line("middle") + 1), outer], "{name}");
        for frame in seen.iter().flatten() {
            assert!(frame.file.as_deref().is_some_and(|f| f.ends_with("objects/debug.c")), "{frame}");
        }
    }
}

#[test]
fn a_tail_called_program_stands_in_for_the_function_it_replaced() {
    if no_jit("backtraces through tail calls") {
        return;
    }
    for (name, config) in shapes() {
        let (_engine, instance, seen) = traced(config);
        let array = instance.prog_array::<Raw>("stages").unwrap();
        let (hop, hops) = (("hops", "hop", line("hop")), ("hops", "hops", line("hops")));
        assert_eq!(run(&instance, "hops", &mut []), 103, "{name}");
        assert_eq!(names(&seen.lock().unwrap().pop().unwrap()), [hop, hops], "{name}");
        // Linked: `hop` is gone, and its caller is found through the frame that the program made in its place.
        array.set(0, &instance.program::<Raw>("landed").unwrap()).unwrap();
        assert_eq!(run(&instance, "hops", &mut []), 182, "{name}");
        let seen = seen.lock().unwrap();
        assert_eq!(names(&seen[0]), [hop, hops], "{name}");
        let landed = [("landed", "leaf", line("leaf")), ("landed", "landed", line("landed")), hops];
        assert_eq!(names(&seen[1]), landed, "{name}");
    }
}

/// The frame that a backtrace from below is to reach.
#[inline(never)]
fn the_rust_function_that_ran_the_program(instance: &Instance<()>) -> u64 {
    std::hint::black_box(run(instance, "outer", &mut [0; 3]))
}

#[test]
fn the_standard_librarys_backtrace_goes_from_rust_through_emitted_code_to_rust() {
    if no_jit("std::backtrace") {
        return;
    }
    let engine = Engine::new(config()).unwrap();
    let seen: Arc<Mutex<String>> = Arc::default();
    let noted = Arc::clone(&seen);
    let instance = load(&engine, move || {
        *noted.lock().unwrap() = std::backtrace::Backtrace::force_capture().to_string();
    });
    the_rust_function_that_ran_the_program(&instance);
    let text = seen.lock().unwrap().clone();
    // Rust, the three emitted functions, which the standard library has no names for, and Rust again.
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in\n{text}"));
    let (shim, caller) = (at("call::shim"), at("the_rust_function_that_ran_the_program"));
    assert_eq!(text.get(shim..caller).map(|between| between.matches("<unknown>").count()), Some(3), "{text}");
}

#[test]
fn nested_runs_and_callbacks_are_on_one_backtrace() {
    if no_jit("nested backtraces") {
        return;
    }
    let engine = Engine::new(config()).unwrap();
    let (mut linker, seen) = probing(&engine);
    let inner = linker.loader::<Raw>().insns("inner", assemble("call 1001\nr0 = 5\nexit").unwrap()).unwrap();
    linker.func(1002, "nest", move |_: &mut Caller<'_, ()>| -> u64 { inner.run(&mut (), &mut []).unwrap() }).unwrap();
    // bpf_loop (181) calls subprogram 1 twice, which runs the other program.
    let text = "r1 = 2\nr2 = subprog[body]\nr3 = 0\nr4 = 0\ncall 181\nexit\nbody:\ncall 1002\nr0 = 0\nexit";
    let insns = assemble(text).unwrap();
    // SAFETY: the program ends and touches no memory.
    let outer = unsafe { linker.loader::<Raw>().unverified(true) }.insns("outer", insns).unwrap();
    outer.run(&mut (), &mut []).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    for frames in seen.iter() {
        assert_eq!(names(frames), [("inner", "inner", 0), ("outer", "subprog_1", 0), ("outer", "outer", 0)]);
    }
}

#[test]
fn a_host_function_called_through_a_hook_sees_its_program() {
    if no_jit("backtraces through hooks") {
        return;
    }
    let engine = Engine::new(config()).unwrap();
    let (linker, seen) = probing(&engine);
    let load = |name| linker.loader::<Xdp>().insns(name, assemble("call 1001\nr0 = 2\nexit").unwrap()).unwrap();
    let hook = Hook::<Xdp, ()>::new(&engine, HookPolicy::FirstVerdict { pass: 2 }).unwrap();
    for name in ["first", "second"] {
        hook.attach(&load(name)).unwrap();
    }
    hook.run(&mut (), &mut XdpBuff::new(&mut [0; 64])).unwrap();
    let seen = seen.lock().unwrap();
    let programs: Vec<Vec<&str>> =
        seen.iter().map(|frames| frames.iter().map(|frame| frame.program.as_str()).collect()).collect();
    // The last one is jumped to: its verdict is the hook's.
    assert_eq!(programs, [vec!["first", "<hook>"], vec!["second"]]);
}

#[test]
fn addresses_have_names_while_their_program_is_loaded() {
    if no_jit("names of addresses") {
        return;
    }
    let config = Config::new().debug(|debug| debug.symbols(true));
    let engine = Engine::new(config).unwrap();
    let linker = Linker::<()>::new(&engine);
    let load = |name: &str, text: &str| -> Program<Raw, ()> {
        linker.loader::<Raw>().insns(name, assemble(text).unwrap()).unwrap()
    };
    let program = load("first", "r0 = 1\nr0 += 2\ncall +1\nexit\nr0 = 7\nexit");
    let (code, base) = program.machine_code().unwrap();
    let base = base as usize;
    let mut insns = Vec::new();
    for offset in 0..code.len() {
        let place = engine.symbolize(base + offset).unwrap();
        assert_eq!((place.program.as_str(), place.offset), ("first", offset));
        let of = place.insn.map_or("<stop>", |insn| if insn < 4 { "first" } else { "subprog_1" });
        assert_eq!(place.function, of);
        insns.extend(place.insn);
    }
    assert!(insns.is_sorted() && insns.first() == Some(&0) && insns.last() == Some(&5), "{insns:?}");
    assert_eq!(engine.symbolize(base - 1).map(|place| place.program), None);
    assert_eq!(engine.symbolize(base + code.len()).map(|place| place.program), None);
    // Not asked for, so not walked.
    assert_eq!(engine.backtrace(), []);

    drop(program);
    engine.reclaim();
    assert_eq!(engine.symbolize(base), None);
}

#[test]
fn programs_that_come_and_go_keep_their_names_apart() {
    if no_jit("names of addresses under churn") {
        return;
    }
    let (engine, _instance, _) = traced(config());
    let (linker, seen) = probing(&engine);
    let (linker, engine) = (&linker, &engine);
    // More than the batches in which dropped code waits, so that addresses are used again.
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                for i in 0..600 {
                    let name = format!("p{thread}_{i}");
                    let text = format!("r6 = {i}\ncall 1001\nr0 = r6\nexit");
                    let program = linker.loader::<Raw>().insns(&name, assemble(&text).unwrap()).unwrap();
                    let (_, base) = program.machine_code().unwrap();
                    assert_eq!(engine.symbolize(base as usize).unwrap().program, name);
                    assert_eq!(program.run(&mut (), &mut []).unwrap(), i);
                }
            });
        }
    });
    for frames in seen.lock().unwrap().iter() {
        assert_eq!(frames.len(), 1, "{frames:?}");
        assert_eq!(frames[0].insn, Some(1));
    }
    assert_eq!(seen.lock().unwrap().len(), 1200);
}

/// Steps through a run with the trap flag and takes a backtrace at every instruction.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod stepping {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        /// The engine, and for each instruction of emitted code its address and the backtrace from there.
        static STEPS: RefCell<Option<(Engine, Vec<Vec<Location>>)>> = const { RefCell::new(None) };
    }

    const TRAP_FLAG: i64 = 0x100;

    extern "C" fn on_trap(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes the context to a handler installed with SA_SIGINFO.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        // Taken where `step` itself is being stepped through.
        STEPS.with(|steps| match steps.try_borrow_mut().as_deref_mut() {
            Err(_) => {}
            Ok(Some((engine, steps))) => {
                if engine.symbolize(registers[libc::REG_RIP as usize] as usize).is_some() {
                    // The interrupted code is emitted code, which holds no lock and is in no allocator.
                    steps.push(engine.backtrace());
                }
            }
            Ok(None) => registers[libc::REG_EFL as usize] &= !TRAP_FLAG,
        });
    }

    fn step(engine: &Engine, run: impl FnOnce()) -> Vec<Vec<Location>> {
        // SAFETY: all zero is a sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: a valid action for a signal that nothing else in this process uses.
        assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()) }, 0);
        STEPS.set(Some((engine.clone(), Vec::new())));
        // SAFETY: sets the trap flag; the handler is there.
        unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        run();
        // The next trap finds nothing to do and clears the flag.
        STEPS.take().map(|(_, steps)| steps).unwrap_or_default()
    }

    #[test]
    fn every_instruction_of_a_hook_finds_its_callers() {
        for policy in
            [HookPolicy::FirstVerdict { pass: 2 }, HookPolicy::LastWins { empty: 0 }, HookPolicy::RunAll { result: 1 }]
        {
            let engine = Engine::new(config()).unwrap();
            let linker = Linker::<()>::new(&engine);
            let hook = Hook::<Raw, ()>::new(&engine, policy).unwrap();
            for name in ["first", "second"] {
                let text = "*(u64 *)(r10 - 8) = r2\ncall +1\nexit\nr0 = 2\nexit";
                hook.attach(&linker.loader::<Raw>().insns(name, assemble(text).unwrap()).unwrap()).unwrap();
            }
            let steps = step(&engine, || assert!(hook.run(&mut (), &mut []).is_ok()));
            let mut seen = [0; 4];
            for frames in &steps {
                let programs: Vec<&str> = frames.iter().map(|f| f.program.as_str()).collect();
                match programs[..] {
                    ["<hook>"] => seen[0] += 1,
                    ["first", "<hook>"] | ["first", "first", "<hook>"] => seen[1] += 1,
                    ["second", "<hook>"] | ["second", "second", "<hook>"] => seen[2] += 1,
                    // The last one is jumped to where its verdict is the hook's.
                    ["second"] | ["second", "second"] if !matches!(policy, HookPolicy::RunAll { .. }) => seen[3] += 1,
                    _ => panic!("{policy:?}: {programs:?} in {frames:?}"),
                }
            }
            assert!(seen[0] >= 10 && seen[1] >= 6 && seen[2] + seen[3] >= 6, "{policy:?}: {seen:?}");
        }
    }

    #[test]
    fn every_instruction_finds_its_callers() {
        for (name, config) in shapes() {
            let engine = Engine::new(config).unwrap();
            let instance = load(&engine, || {});
            let array = instance.prog_array::<Raw>("stages").unwrap();
            array.set(0, &instance.program::<Raw>("landed").unwrap()).unwrap();
            let retpolines = engine.config().get_hardening().retpolines;

            let outer = instance.program::<Raw>("outer").unwrap();
            let steps = step(&engine, || assert!(outer.run(&mut (), &mut [0; 24]).is_ok()));
            let mut seen = [0; 3];
            for frames in &steps {
                let functions: Vec<&str> = frames.iter().map(|f| f.function.as_str()).collect();
                match functions[..] {
                    ["outer"] => seen[0] += 1,
                    ["middle", "outer"] => seen[1] += 1,
                    ["leaf", "middle", "outer"] => seen[2] += 1,
                    _ => panic!("{name}: {functions:?} in {frames:?}"),
                }
            }
            assert!(seen[0] >= 5 && seen[1] >= 20 && seen[2] >= 10, "{name}: {seen:?}");

            let hops = instance.program::<Raw>("hops").unwrap();
            let steps = step(&engine, || assert_eq!(hops.run(&mut (), &mut []).unwrap(), 182));
            let mut seen = [0; 4];
            for frames in &steps {
                let functions: Vec<&str> = frames.iter().map(|f| f.function.as_str()).collect();
                match functions[..] {
                    ["hops"] => seen[0] += 1,
                    ["hop", "hops"] => seen[1] += 1,
                    ["landed", "hops"] => seen[2] += 1,
                    ["leaf", "landed", "hops"] => seen[3] += 1,
                    // The thunk belongs to no function.
                    ["<stop>"] if retpolines => {}
                    _ => panic!("{name}: {functions:?} in {frames:?}"),
                }
            }
            assert!(seen.iter().all(|count| *count >= 3), "{name}: {seen:?}");
        }
    }
}
