//! Callbacks of `bpf_loop`, `bpf_for_each_map_elem` and `bpf_user_ringbuf_drain` count against budgets and are stopped
//! exactly like the rest of their program, on every engine.

use crate::common::engines::{config, modes};
use bpf_runtime::{
    Caller, Engine, Linker, Loader, Program, Raw, RunError,
    isa::assemble,
    maps::{Map, MapDef, MapType, UserRingBuf},
};

/// Counts its calls; the first one interrupts the engine's runs.
fn linker(engine: &Engine, interrupt: bool) -> Linker<u64> {
    let (mut linker, runs) = (Linker::<u64>::new(engine), engine.clone());
    let count = move |c: &mut Caller<'_, u64>| {
        if interrupt && *c.host() == 0 {
            runs.interrupt();
        }
        *c.host() += 1;
    };
    linker.func(1001, "count", count).unwrap();
    linker
}

/// Programs whose callback calls 1001 so often, by the helper that calls it; `after` comes behind the helper's call.
fn programs<'l>(
    linker: &'l Linker<u64>,
    engine: &Engine,
    rounds: u32,
    after: &str,
    load: impl Fn(Loader<'l, Raw, u64>) -> Loader<'l, Raw, u64>,
) -> Vec<(&'static str, Program<Raw, u64>)> {
    let callback = "f:\ncall 1001\nr0 = 0\nexit";
    let array = Map::create(MapDef::new("array", MapType::Array, 4, 8, rounds.min(5000)), engine.domain()).unwrap();
    let ring = Map::create(MapDef::new("ring", MapType::UserRingBuf, 0, 0, 65536), engine.domain()).unwrap();
    let mut producer = UserRingBuf::new(&ring).unwrap();
    for _ in 0..rounds.min(4000) {
        producer.reserve(8).unwrap().submit();
    }
    let program = |name, maps: &[&Map], call: &str| {
        let text = format!("{call}\n{after}\nexit\n{callback}");
        let loader = load(linker.loader::<Raw>().maps(maps));
        (name, loader.insns(name, assemble(&text).unwrap()).unwrap_or_else(|e| panic!("{e}\n{text}")))
    };
    let rest = "r2 = subprog[f]\nr3 = 0\nr4 = 0\ncall";
    vec![
        program("loop", &[], &format!("r1 = {rounds}\n{rest} 181")),
        program("for_each", &[&array], &format!("r1 = map[fd:0]\n{rest} 164")),
        program("drain", &[&ring], &format!("r1 = map[fd:0]\n{rest} 209")),
    ]
}

/// A program that is not proven to end counts under the hybrid budget in its callbacks as well.
#[test]
fn a_hybrid_budget_ends_callbacks() {
    let mut counts = Vec::new();
    for mode in modes() {
        let config = config(mode).hybrid_budget(1000);
        let engine = Engine::new(config).unwrap();
        let linker = linker(&engine, false);
        for (name, program) in programs(&linker, &engine, 8_000_000, "a: goto a", |loader| loader.hybrid(true)) {
            let mut calls = 0;
            let result = program.run(&mut calls, &mut []);
            assert!(matches!(result, Err(RunError::Budget { .. })), "{mode:?}, {name}: {result:?}");
            assert!(calls < 1000, "{mode:?}, {name}: {calls} rounds under a budget of 1000");
            counts.push((name, calls));
        }
    }
    // All engines give the same count.
    for (name, calls) in &counts {
        assert!(counts.iter().all(|(other, theirs)| other != name || calls == theirs), "{counts:?}");
    }
}

/// A program that is proven to end does not count: its callbacks run to their end with any hybrid budget.
#[test]
fn proven_programs_do_not_count() {
    for mode in modes() {
        let config = config(mode).hybrid_budget(10);
        let engine = Engine::new(config).unwrap();
        let linker = linker(&engine, false);
        for (name, program) in programs(&linker, &engine, 3000, "r0 = 1", |loader| loader.hybrid(true)) {
            let mut calls = 0;
            assert_eq!(program.run(&mut calls, &mut []).unwrap(), 1, "{mode:?}, {name}");
            assert_eq!(calls, 3000, "{mode:?}, {name}");
        }
    }
}

/// Whether an interruption ends callbacks is the engine's choice, as for all else of a program.
#[test]
fn only_interruptible_programs_are_interrupted() {
    for mode in modes() {
        for interruptible in [false, true] {
            let config = config(mode).interruptible(interruptible);
            let engine = Engine::new(config).unwrap();
            let linker = linker(&engine, true);
            for (name, program) in programs(&linker, &engine, 3000, "r0 = 1", |loader| loader) {
                let mut calls = 0;
                let result = program.run(&mut calls, &mut []);
                if interruptible {
                    assert!(matches!(result, Err(RunError::Interrupted { .. })), "{mode:?}, {name}: {result:?}");
                    assert_eq!(calls, 1, "{mode:?}, {name}");
                } else {
                    assert_eq!((result.unwrap(), calls), (1, 3000), "{mode:?}, {name}");
                }
            }
        }
    }
}

/// A budget that is spent where the run is interrupted too: of the two reasons, every engine names the budget.
#[test]
fn of_two_reasons_to_stop_every_engine_names_the_same() {
    let text = "again: call 1001\nif r0 == r0 goto again\nexit";
    let insns = assemble(text).unwrap();
    let mut all = Vec::new();
    for mode in modes() {
        let mut ends = Vec::new();
        for budget in 1..=8 {
            let config = config(mode).interruptible(true).budget(budget);
            let engine = Engine::new(config).unwrap();
            let linker = linker(&engine, true);
            let two = assemble("call 1001\ncall 1001\nr0 = 0\nexit").unwrap();
            let two = linker.loader::<Raw>().insns("two", two).unwrap().run(&mut 0, &mut []);
            let named = if budget == 1 {
                matches!(two, Err(RunError::Budget { .. }))
            } else {
                matches!(two, Err(RunError::Interrupted { .. }))
            };
            assert!(named, "{mode:?}, {budget}: {two:?}");
            let spins = linker.loader::<Raw>().hybrid(true).insns("spins", insns.clone()).unwrap();
            ends.push(spins.run(&mut 0, &mut []).unwrap_err().to_string());
            for (name, program) in programs(&linker, &engine, 3000, "r0 = 1", |loader| loader) {
                let mut calls = 0;
                let error = program.run(&mut calls, &mut []).unwrap_err();
                ends.push(format!("{name}: {error}, after {calls} calls"));
            }
        }
        all.push((mode, ends));
    }
    for (mode, ends) in &all {
        assert_eq!(*ends, all[0].1, "{mode:?}");
    }
}
