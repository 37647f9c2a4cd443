//! Where a run was stopped: every engine names instruction, program and source line, after tail calls and in hooks too.

use crate::common::engines::{engine, modes};
use crate::support::ways;
use bpf_runtime::{
    Caller, Config, Engine, HelperError, Hook, HookPolicy, Instance, Linker, MapSet, Mode, Object, OptLevel, ProgArray,
    Raw, RunError, RunLimits,
    code::Arch,
    error::Origin,
    isa::assemble,
    net::{Xdp, XdpBuff},
};
use core::convert::Infallible;

fn engines() -> impl Iterator<Item = Engine> {
    [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit)).map(|mode| {
        let config = Config::new().mode(mode).budget(1000);
        Engine::new(config).unwrap()
    })
}

fn instance(engine: &Engine) -> Instance<()> {
    let object = Object::parse(include_bytes!("../objects/stopped.o")).unwrap();
    let maps = MapSet::for_object(engine, &object).unwrap();
    Linker::<()>::new(engine).loader::<Xdp>().hybrid(true).object(&object, maps).unwrap()
}

/// The program and the comment that the source line ends in, and that the instruction is named.
fn place(error: &RunError) -> (String, String) {
    let (RunError::Access { insn, origin, .. } | RunError::Budget { insn, origin }) = error else { panic!("{error}") };
    assert!(insn.is_some(), "{error}");
    let Origin { program, line, .. } = &**origin.as_ref().unwrap_or_else(|| panic!("{error}"));
    let comment = line.as_ref().and_then(|line| line.text.split("// ").nth(1)).unwrap_or_default();
    (program.clone(), comment.to_owned())
}

#[test]
fn the_program_that_stopped_is_named_after_tail_calls() {
    for engine in engines() {
        let instance = instance(&engine);
        for (entry, packet, program, place_in) in [
            ("first", &[][..], "first", "first: reads"),
            ("first", &[0][..], "last", "last: reads"),
            ("first", &[1], "spins", "spins: loops"),
            ("first", &[2], "middle", "middle: reads"),
            ("first", &[2, 0], "last", "last: reads"),
            ("first", &[2, 1], "spins", "spins: loops"),
            ("first", &[3], "last", "last: reads"),
            ("first", &[3, 0, 0], "from_subprogram", "from_subprogram: reads"),
            ("last", &[], "last", "last: reads"),
        ] {
            let entry = instance.program::<Xdp>(entry).unwrap();
            let error = entry.run(&mut (), &mut XdpBuff::new(&mut packet.to_vec())).unwrap_err();
            assert_eq!(place(&error), (program.into(), place_in.into()), "{packet:?}: {error}");
        }
        // Other ends of the same programs are no errors.
        let first = instance.program::<Xdp>("first").unwrap();
        for (packet, r0) in [(&[7][..], 100), (&[2, 9], 200), (&[0, 0, 5], 5), (&[3, 0, 5, 6], 11)] {
            assert_eq!(first.run(&mut (), &mut XdpBuff::new(&mut packet.to_vec())).unwrap(), r0, "{packet:?}");
        }
    }
}

#[test]
fn a_program_set_later_is_found() {
    for engine in engines() {
        let (a, b) = (instance(&engine), instance(&engine));
        let outer: ProgArray<Xdp, ()> = a.prog_array("outer").unwrap();
        outer.set(5, &b.program::<Xdp>("middle").unwrap()).unwrap();
        let first = a.program::<Xdp>("first").unwrap();
        // Out of one instance into the other, and on through an array of that.
        for (packet, program) in [(&[5][..], "middle"), (&[5, 1], "spins"), (&[5, 0], "last")] {
            let error = first.run(&mut (), &mut XdpBuff::new(&mut packet.to_vec())).unwrap_err();
            assert_eq!(place(&error).0, program, "{packet:?}: {error}");
        }
    }
}

#[test]
fn the_program_of_a_hook_that_stopped_is_named() {
    for engine in engines() {
        let instance = instance(&engine);
        let hook = Hook::<Xdp, ()>::new(&engine, HookPolicy::RunAll { result: 2 }).unwrap();
        for name in ["first", "last"] {
            hook.attach(&instance.program::<Xdp>(name).unwrap()).unwrap();
        }
        for (packet, program, place_in) in [
            (&[][..], "first", "first: reads"),
            (&[7], "last", "last: reads"),
            (&[2], "middle", "middle: reads"),
            (&[1, 0, 0], "spins", "spins: loops"),
        ] {
            let error = hook.run(&mut (), &mut XdpBuff::new(&mut packet.to_vec())).unwrap_err();
            assert_eq!(place(&error), (program.into(), place_in.into()), "{packet:?}: {error}");
        }
        assert_eq!(hook.run(&mut (), &mut XdpBuff::new(&mut [7, 0, 0])).unwrap(), 2);
    }
}

/// Errors of runs name the instance in which the run ended: on each engine and level, before and after a move between
/// tiers, of a module read back, after a tail call into another instance, and in a hook. The module is a hybrid one.
#[test]
fn the_instance_that_stopped_is_named() {
    let object = Object::parse(include_bytes!("../objects/stopped.o")).unwrap();
    let stop = |error: &RunError| {
        let (RunError::Access { origin, .. } | RunError::Budget { origin, .. }) = error else { panic!("{error}") };
        let Origin { instance, callers, .. } = &**origin.as_ref().unwrap();
        assert!(callers.iter().all(|caller| caller.instance == *instance), "{error}");
        instance
            .as_ref()
            .inspect(|name| assert!(error.to_string().contains(&format!("in instance `{name}`")), "{error}"));
        (place(error), instance.clone())
    };
    let levels = Arch::HOST.map(|_| [OptLevel::None, OptLevel::Speed, OptLevel::Tiered].map(Some));
    for level in levels.into_iter().flatten().chain([None]) {
        let config = Config::new()
            .mode(level.map_or(Mode::Interpreter, |_| Mode::Jit))
            .budget(1000)
            .opt_level(level.unwrap_or_default());
        let engine = Engine::new(config).unwrap();
        let linker = Linker::<()>::new(&engine);
        assert!(linker.compile::<Xdp>(&object).is_err(), "it needs no checks");
        let module = linker.loader::<Xdp>().hybrid(true).compile(&object).unwrap();
        let read = ways::read_back(&linker, module.clone());
        let of_load = stop(&run(&instance(&engine), "first", &[]).unwrap_err());
        assert_eq!(of_load, (("first".into(), "first: reads".into()), None));
        for module in [module, read] {
            let [acme, other] = ["acme", "other"].map(|name| module.instance().name(name).make().unwrap());
            acme.prog_array::<Xdp>("outer").unwrap().set(5, &other.program::<Xdp>("middle").unwrap()).unwrap();
            let hook = Hook::<Xdp, ()>::new(&engine, HookPolicy::RunAll { result: 2 }).unwrap();
            hook.attach(&acme.program::<Xdp>("first").unwrap()).unwrap();
            hook.attach(&other.program::<Xdp>("last").unwrap()).unwrap();
            let check = || {
                for (packet, place_in, name) in [
                    (&[][..], "first: reads", "acme"),
                    (&[1], "spins: loops", "acme"),
                    (&[2, 0], "last: reads", "acme"),
                    (&[3, 0, 0], "from_subprogram: reads", "acme"),
                    (&[5], "middle: reads", "other"),
                    (&[5, 1], "spins: loops", "other"),
                ] {
                    let ((_, at), instance) = stop(&run(&acme, "first", packet).unwrap_err());
                    assert_eq!((&*at, instance.as_deref()), (place_in, Some(name)), "{level:?}, {packet:?}");
                }
                for (packet, name) in [(&[][..], "acme"), (&[7], "other"), (&[5], "other"), (&[2, 0], "acme")] {
                    let error = hook.run(&mut (), &mut XdpBuff::new(&mut packet.to_vec())).unwrap_err();
                    assert_eq!(stop(&error).1.as_deref(), Some(name), "{level:?}, {packet:?}");
                }
                // Runs that are not stopped have their results.
                for (packet, r0) in [(&[7][..], 100), (&[2, 9], 200), (&[0, 0, 5], 5), (&[5, 9], 200)] {
                    assert_eq!(run(&acme, "first", packet).unwrap(), r0, "{level:?}, {packet:?}");
                }
            };
            check();
            let (first, begin) = (acme.program::<Xdp>("first").unwrap(), std::time::Instant::now());
            while first.is_slow() {
                run(&acme, "first", &[7]).unwrap();
                assert!(begin.elapsed().as_secs() < 60, "{:?}", engine.tier_stats());
            }
            check();
            acme.prog_array::<Xdp>("outer").unwrap().clear(5).unwrap();
        }
    }
}

fn run(instance: &Instance<()>, name: &str, packet: &[u8]) -> Result<u64, RunError> {
    instance.program::<Xdp>(name).unwrap().run(&mut (), &mut XdpBuff::new(&mut packet.to_vec()))
}

/// Also if the hook has changed meanwhile, and the program is not attached any more.
#[test]
fn the_program_of_a_hook_that_changes_meanwhile_is_named() {
    type Change = Option<Box<dyn FnOnce()>>;
    for engine in engines() {
        let mut linker = Linker::<Change>::new(&engine);
        linker
            .func(1001, "change", |c: &mut Caller<'_, Change>| -> Result<(), HelperError> {
                if let Some(change) = c.host().take() {
                    change();
                }
                Err(HelperError::Failed("changed".into()))
            })
            .unwrap();
        let insns = || assemble("r0 = 0\ncall 1001\nr0 = 0\nexit").unwrap();
        let load = |name| linker.loader::<Raw>().insns(name, insns()).unwrap();
        let (first, second, third) = (load("first"), load("second"), load("third"));
        let hook = std::rc::Rc::new(Hook::<Raw, Change>::new(&engine, HookPolicy::RunAll { result: 2 }).unwrap());
        hook.attach(&first).unwrap();
        for limits in [None, Some(RunLimits::new())] {
            let (inner, old, new, next) = (hook.clone(), first.clone(), second.clone(), third.clone());
            let change: Change = Some(Box::new(move || {
                inner.replace(&old, &new).unwrap();
                inner.replace(&new, &next).unwrap();
                inner.detach(&next).unwrap();
            }));
            let error = match limits {
                None => hook.run(&mut { change }, &mut []).unwrap_err(),
                Some(limits) => hook.run_with(&mut { change }, &mut [], &limits).unwrap_err(),
            };
            let RunError::Host { insn: Some(insn), origin: Some(origin), .. } = &error else { panic!("{error:?}") };
            assert_eq!((insn.0, &*origin.program), (1, "first"), "{error}");
            hook.attach(&first).unwrap();
        }
    }
}

/// A function that returns `Infallible` ends the run on each engine and level, wherever it is called: the code behind
/// the call, which is not verified, is not run.
#[test]
fn a_function_that_does_not_return_ends_the_run() {
    let cases = [
        // Behind the call, an access of the context that no verifier would allow.
        (
            "in a block",
            "r6 = *(u32 *)(r1 + 12)\nif w6 == 0 goto +3\ncall 1001\nr0 = *(u64 *)(r1 + 64)\nr0 = *(u64 *)(r0 + 0)\n\
             r0 = 0\nexit",
        ),
        ("last", "r0 = *(u32 *)(r1 + 12)\nif w0 != 0 goto +1\nexit\ncall 1001\nr0 = r1\ncall 1002\nexit"),
        ("in a function", "r1 = *(u32 *)(r1 + 12)\ncall +1\nexit\nr0 = 7\nif w1 == 0 goto +1\ncall 1001\nexit"),
        (
            "in a loop",
            "r6 = *(u32 *)(r1 + 12)\nr0 = 0\nr0 += 1\nif r0 != r6 goto +1\ncall 1001\nif r0 < 9 goto -4\nexit",
        ),
    ];
    for way in modes() {
        let engine = engine(way, |config| config);
        let mut linker = Linker::<u32>::new(&engine);
        linker
            .func(1001, "end", |c: &mut Caller<'_, u32>| -> Result<Infallible, HelperError> {
                *c.host() += 1;
                Err(HelperError::new("ended"))
            })
            .unwrap()
            .func(1002, "take", |c: &mut Caller<'_, u32>, _: u64| *c.host() += 100)
            .unwrap();
        for (name, text) in cases {
            let program = linker.loader::<Xdp>().insns(name, assemble(text).unwrap()).unwrap();
            for (ifindex, times) in [(0, 0), (3, 1)] {
                let (mut ended, mut packet) = (0, [0; 64]);
                let mut xdp = XdpBuff::new(&mut packet);
                xdp.ingress_ifindex = ifindex;
                let result = program.run(&mut ended, &mut xdp);
                assert_eq!(ended, times, "{name} on {way:?}: {result:?}");
                assert_eq!(result.is_err(), times == 1, "{name} on {way:?}: {result:?}");
            }
        }
    }
}

/// Where a host function was called that ended the run: the function, and the comment of the line.
fn call_site(error: &RunError) -> (String, Option<String>, String) {
    let RunError::Host { insn, origin, .. } = error else { panic!("{error}") };
    assert!(insn.is_some(), "{error}");
    let origin = origin.as_ref().unwrap_or_else(|| panic!("{error}"));
    let line = origin.line.as_ref().unwrap_or_else(|| panic!("{error}"));
    assert!(error.to_string().contains(&format!("({line})")), "{error}");
    let comment = line.text.split("// ").nth(1).unwrap_or_default().to_owned();
    (origin.program.clone(), origin.function.clone(), comment)
}

/// The functions that led there, innermost first, of which optimised code may have inlined some.
fn check_callers(error: &RunError, expected: &[&str], level: OptLevel) {
    let RunError::Host { origin: Some(origin), .. } = error else { panic!("{error}") };
    for call in &origin.callers {
        let line = call.line.as_ref().unwrap();
        assert!(call.insn.is_some() && error.to_string().contains(&format!("({line})")), "{error}");
        let called = ["shallow(1)", "deep(which)", "bpf_loop(5"];
        assert!(called.iter().any(|text| line.text.contains(text)), "{error}");
    }
    let mut found = origin.callers.iter().map(|call| call.function.as_deref().unwrap());
    if level == OptLevel::None {
        assert_eq!(found.collect::<Vec<_>>(), expected, "{error}");
    } else {
        let mut expected = expected.iter();
        assert!(found.all(|function| expected.any(|name| *name == function)), "{error}");
    }
}

/// A stop by a check finds its callers in frames of every shape: any number of saved registers and spilled values, any
/// stack, in the function that stops as in its callers.
#[test]
fn the_calls_that_led_to_a_stop_are_named() {
    let ends = [
        ("a loop", "r0 = 0; r0 += 1; if r0 != 0 goto -2; exit"),
        ("a loop beside stack", "*(u64 *)(r10 - 40) = r1; r0 = 0; r0 += 1; if r0 != 0 goto -2; exit"),
        ("a call in a loop", "r6 = r1; call 5; r6 += r0; goto -3; exit"),
    ];
    for way in modes() {
        let engine = engine(way, |config| config.budget(100));
        let linker = Linker::<()>::new(&engine);
        for (name, end) in ends {
            for (saved, stack) in (0..4).flat_map(|saved: u32| [0, 8, 120, 512].map(|stack| (saved, stack))) {
                // Each function keeps some of r6 to r9 over its call, and touches its stack.
                let keeps: String = (0..saved).map(|i| format!("r{} = r1; r{0} *= {};", 6 + i, i + 3)).collect();
                let uses: String = (0..saved).map(|i| format!("r0 += r{};", 6 + i)).collect();
                let touches = if stack > 0 { format!("*(u64 *)(r10 - {stack}) = r1;") } else { String::new() };
                let body = |call: i32| format!("{keeps}{touches}call {call:+}; {uses}exit;");
                let len = i32::try_from(body(1).split(';').filter(|line| !line.trim().is_empty()).count()).unwrap();
                // The number of instructions between a call and the next function.
                let over = i32::try_from(saved).unwrap() + 1;
                let text = format!("r1 = *(u64 *)(r1 + 0); {}{}{end}", body(over), body(over)).replace(';', "\n");
                let program = linker.loader::<Raw>().hybrid(true).insns(name, assemble(&text).unwrap());
                let program = program.unwrap_or_else(|error| panic!("{error}\n{text}"));
                for _ in 0..2 {
                    let error = program.run(&mut (), &mut [7; 8]).unwrap_err();
                    let RunError::Budget { origin: Some(origin), insn: Some(insn) } = &error else { panic!("{error}") };
                    assert!(insn.0 > 2 * len.unsigned_abs(), "{error}");
                    let calls: Vec<u32> = origin.callers.iter().map(|call| call.insn.unwrap().0).collect();
                    let first = 1 + len - over - 1;
                    let expected = [first + len, first].map(|at| u32::try_from(at).unwrap());
                    match way.opt_level {
                        OptLevel::None => assert_eq!(calls, expected, "{way:?}: {error}\n{text}"),
                        _ => assert!(calls.iter().all(|call| expected.contains(call)), "{way:?}: {error}\n{text}"),
                    }
                }
            }
        }
    }
}

#[test]
fn a_host_function_that_fails_or_panics_names_its_caller() {
    let object = Object::parse(include_bytes!("../objects/failed.o")).unwrap();
    let ways: [fn(Config) -> Config; 3] = [
        |config| config,
        |config| config.debug(|debug| debug.unwind(true).symbols(true)),
        |config| config.opt_level(OptLevel::None),
    ];
    for (mode, adjust) in [Mode::Interpreter, Mode::Jit].into_iter().flat_map(|mode| ways.map(|way| (mode, way))) {
        if mode == Mode::Jit && Arch::HOST.is_none() {
            continue;
        }
        let config = adjust(Config::new().mode(mode));
        let engine = Engine::new(config).unwrap();
        for (panics, wanted) in [(false, 1), (true, 1), (false, 8)] {
            let mut linker = Linker::<u64>::new(&engine);
            linker
                .func(1001, "check", move |c: &mut Caller<'_, u64>, which: u64| -> Result<u64, HelperError> {
                    match which == *c.host() {
                        true if panics => panic!("{which}"),
                        true => Err(HelperError::new(RunError::NoBudget)),
                        false => Ok(which),
                    }
                })
                .unwrap();
            let maps = MapSet::for_object(&engine, &object).unwrap();
            let instance = linker.loader::<Xdp>().object(&object, maps).unwrap();
            let hook = Hook::<Xdp, u64>::new(&engine, HookPolicy::RunAll { result: 2 }).unwrap();
            hook.attach(&instance.program::<Xdp>("direct").unwrap()).unwrap();
            for (entry, program, function, place) in [
                ("direct", "direct", None, "direct: calls"),
                ("by_subprograms", "by_subprograms", Some("deep"), "deep: calls"),
                ("by_tail_call", "direct", None, "direct: calls"),
                ("by_callback", "by_callback", Some("each"), "each: calls"),
            ] {
                if wanted == 8 && entry != "by_subprograms" {
                    continue;
                }
                let entry = instance.program::<Xdp>(entry).unwrap();
                let error = entry.run(&mut wanted.clone(), &mut XdpBuff::new(&mut [])).unwrap_err();
                let callers: &[&str] = match function {
                    Some("deep") => &["shallow", "by_subprograms"],
                    Some("each") => &["by_callback"],
                    _ => &[],
                };
                check_callers(&error, callers, engine.config().get_opt_level());
                let function = function.map(str::to_owned);
                assert_eq!(call_site(&error), (program.into(), function, place.into()), "{mode:?}: {error}");
            }
            if wanted == 1 {
                let error = hook.run(&mut wanted.clone(), &mut XdpBuff::new(&mut [])).unwrap_err();
                assert_eq!(call_site(&error).0, "direct", "{mode:?}: {error}");
            }
            assert!(instance.program::<Xdp>("by_callback").unwrap().run(&mut 100, &mut XdpBuff::new(&mut [])).is_ok());
        }
    }
}
