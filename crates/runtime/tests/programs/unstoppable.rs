//! Programs that cannot be stopped are entered without run state, or with a slot only: tests which programs these are,
//! and that their results and registers do not differ.

use bpf_runtime::{
    Caller, Config, Dispatcher, Engine, HelperError, Hook, HookPolicy, Linker, OptLevel, Program, Raw, RunError,
    code::{Arch, ListingOptions, Needs, compile_listing},
    hook::{Attachment, Verdicts},
    isa::assemble,
};

/// Returns the needs of this program's code, compiled with these checks, and with or without counting of runs.
fn needs(arch: Arch, opt_level: OptLevel, text: &str, checks: bool, count: bool) -> Needs {
    let mut options = ListingOptions::default();
    options.compile.opt_level = opt_level;
    (options.compile.lower.budget, options.compile.lower.interrupt) = (checks, checks);
    options.compile.lower.count = count;
    let insns = assemble(text).unwrap_or_else(|e| panic!("{e} in\n{text}"));
    compile_listing(arch, "test", insns, Vec::new(), &options).unwrap().1.needs
}

#[test]
fn only_what_can_stop_or_jump_away_needs_a_run() {
    let (no, yes) = ((false, false), (true, true));
    // Without and with a budget and interruptions.
    for (text, expected) in [
        ("r0 = 0\nexit", no),
        ("r0 = r2\nr0 /= r0\nr0 s%= 3\nexit", no),
        ("r0 = *(u64 *)(r1 + 0)\n*(u64 *)(r10 - 8) = r0\nexit", no),
        ("r0 = r2\na: r0 -= 1\nif r0 != 0 goto a\nexit", (false, true)),
        // The clock needs no run, the number of the slot does.
        ("call 5\nexit", (false, true)),
        ("call 8\nexit", yes),
        ("if r2 == 0 goto +2\ncall 8\nexit\nr0 = 1\nexit", yes),
        // A caller has its subprograms' needs; a subprogram without callers adds none.
        ("call f\nexit\nf: r0 = 1\nexit", (false, true)),
        ("call f\nexit\nf: call 8\nexit", yes),
        ("r2 = map[fd:0]\nr3 = 1\ncall 12\nr0 = 0\nexit", yes),
        ("r6 = r1\nr0 = *(u8 *)skb[0]\nexit", yes),
    ] {
        for arch in [Arch::X64, Arch::Arm64] {
            for (level, checks) in
                [(OptLevel::None, false), (OptLevel::Speed, false), (OptLevel::None, true), (OptLevel::Speed, true)]
            {
                let run = if checks { expected.1 } else { expected.0 };
                let (plain, counted) = if run { (Needs::Run, Needs::Run) } else { (Needs::Nothing, Needs::Slot) };
                assert_eq!(needs(arch, level, text, checks, false), plain, "{arch:?} {level:?} {checks}\n{text}");
                assert_eq!(needs(arch, level, text, checks, true), counted, "{arch:?} {level:?} {checks}\n{text}");
            }
        }
    }
    let never_reached = "r0 = 1\nexit\nf: call 8\nexit";
    for arch in [Arch::X64, Arch::Arm64] {
        assert_eq!(needs(arch, OptLevel::Speed, never_reached, true, false), Needs::Nothing, "{arch:?}");
    }
}

struct Loads {
    engine: Engine,
    linker: Linker<u64>,
}

/// Loads whose programs need nothing of their run; whose runs are counted by slot; and whose runs record their program
/// in the slot, in an engine with tiers.
fn loads() -> Vec<Loads> {
    if bpf_runtime::code::Arch::HOST.is_none() {
        return Vec::new();
    }
    let counted = Config::new().metrics(true);
    let tiered = Config::new().opt_level(OptLevel::Tiered);
    [Config::new(), counted, tiered].into_iter().map(loads_on).collect()
}

fn loads_on(config: Config) -> Loads {
    let engine = Engine::new(config).unwrap();
    let mut linker = Linker::new(&engine);
    linker
        .func(1001, "refuse", |c: &mut Caller<'_, u64>, value: u64| match value {
            0 => Err(HelperError::new("refused")),
            _ => {
                *c.host() += value;
                Ok(value)
            }
        })
        .unwrap();
    Loads { engine, linker }
}

impl Loads {
    fn load(&self, name: &str, text: &str) -> Program<Raw, u64> {
        self.linker.loader().insns(name, assemble(text).unwrap()).unwrap()
    }

    /// Returns 3, and is entered without a run.
    fn quiet(&self) -> Program<Raw, u64> {
        self.load("quiet", "r0 = 3\nexit")
    }

    /// Asks the host, with the length of its data.
    fn asks(&self) -> Program<Raw, u64> {
        self.load("asks", "r1 = r2\ncall 1001\nr0 = 3\nexit")
    }
}

#[test]
fn every_register_of_a_program_without_a_run_is_as_in_one_with() {
    for loads in loads() {
        // Uses all registers, including the callee-saved ones.
        let body = "r0 = *(u8 *)(r1 + 1)\nr3 = r0\nr4 = r3\nr4 += 1\nr5 = r4\nr5 <<= 2\nr6 = r5\nr7 = r6\nr7 ^= r2\nr8 = r7\nr9 = r8\nr9 += r3\n\
                r0 += r4\nr0 += r5\nr0 += r6\nr0 += r7\nr0 += r8\nr0 += r9\n";
        let quiet = loads.load("quiet", &format!("if r2 < 2 goto +19\n{body}exit\nr0 = 0\nexit"));
        let asks = loads.load("asks", &format!("if r2 < 2 goto +19\n{body}exit\nr1 = 1\ncall 1001\nr0 = 0\nexit"));
        for len in 0..64 {
            let mut data: Vec<u8> = (0..len).map(|i: u8| i.wrapping_mul(7)).collect();
            let expected = asks.run(&mut 0, &mut data.clone()).unwrap();
            assert_eq!(quiet.run(&mut 0, &mut data).unwrap(), expected, "{len}");
            let mut host = 0;
            assert_eq!(quiet.runner(&mut host).unwrap().run(&mut data).unwrap(), expected, "{len}");
        }
    }
}

/// A hook and a dispatcher know of every program whether it needs a run, also when others are changed beside it.
#[test]
fn images_begin_a_run_if_one_of_their_programs_needs_it() {
    for loads in loads() {
        let hook = Hook::<Raw, u64>::new(&loads.engine, HookPolicy::FirstVerdict { pass: 3 }).unwrap();
        let dispatcher = Dispatcher::<Raw, u64>::new(&loads.engine).unwrap();
        let (quiet, asks) = (loads.quiet(), loads.asks());
        let calls = |host: &mut u64, data: &mut [u8]| hook.run(host, data);
        let is_refused = |result: Result<u64, RunError>| matches!(result, Err(RunError::Host { .. }));
        let mut host = 0;
        for round in 0..3 {
            assert_eq!(calls(&mut host, &mut []).unwrap(), 3, "none attached");
            hook.attach(&quiet).unwrap();
            assert_eq!(calls(&mut host, &mut []).unwrap(), 3);
            hook.attach_at(round % 2, &asks).unwrap();
            host = 0;
            assert_eq!((calls(&mut host, &mut [0; 5]).unwrap(), host), (3, 5));
            assert!(is_refused(calls(&mut host, &mut [])));
            assert_eq!(calls(&mut host, &mut [0; 5]).unwrap(), 3, "the run that was stopped is over");
            hook.detach(&asks).unwrap();
            assert_eq!(calls(&mut host, &mut []).unwrap(), 3);
            hook.replace(&quiet, &asks).unwrap();
            assert!(is_refused(calls(&mut host, &mut [])));
            hook.detach(&asks).unwrap();

            for program in [&quiet, &asks] {
                dispatcher.attach(program).unwrap();
                assert_eq!(dispatcher.call(&quiet, &mut host, &mut []).unwrap(), 3);
                assert!(is_refused(dispatcher.call(&asks, &mut host, &mut [])));
            }
            dispatcher.detach(&quiet).unwrap();
            dispatcher.detach(&asks).unwrap();
        }
        let second = loads.load("second", "r0 = r2\nexit");
        hook.attach_with(&quiet, Attachment::default().continue_on(Verdicts::Set(1 << 3))).unwrap();
        hook.attach(&second).unwrap();
        assert_eq!(hook.run(&mut host, &mut [0; 9]).unwrap(), 9, "the second has its arguments");
    }
}

#[test]
fn such_programs_may_be_run_at_any_depth_and_from_host_functions() {
    for Loads { engine, .. } in loads() {
        let mut linker = Linker::<Option<Program<Raw, ()>>>::new(&engine);
        linker
            .func(1001, "run", |c: &mut Caller<'_, Option<Program<Raw, ()>>>| {
                let program = c.host().clone().expect("the test set it");
                program.run(&mut (), &mut [7]).map_err(HelperError::new)
            })
            .unwrap();
        let outer: Program<Raw, _> =
            linker.loader().insns("outer", assemble("call 1001\nr0 += 1\nexit").unwrap()).unwrap();
        let inner = Linker::<()>::new(&engine).loader().insns("inner", assemble("r0 = r2\nexit").unwrap()).unwrap();
        assert_eq!(outer.run(&mut Some(inner), &mut []).unwrap(), 2);
    }
}

#[test]
fn too_long_a_packet_is_refused_with_and_without_a_run() {
    for loads in loads() {
        let len = bpf_verifier::Region::MAX_LEN as usize + 1;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: a mapping of its own, anywhere.
        let memory = unsafe { libc::mmap(core::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: mapped above, zeroed, and nobody else's.
        let data = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), len) };
        for program in [loads.quiet(), loads.asks()] {
            assert!(matches!(program.run(&mut 0, data), Err(RunError::TooLong { .. })), "{}", program.name());
            assert_eq!(program.run(&mut 0, &mut data[1..]).unwrap(), 3, "{}", program.name());
        }
        // SAFETY: `data` is not used any more.
        unsafe { libc::munmap(memory, len) };
    }
}
