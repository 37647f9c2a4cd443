//! Helper ids that engines know by themselves, and CPU features that the host does not have: refused, not
//! misunderstood.

use bpf_runtime::{
    Caller, Config, Engine, EngineError, Linker, Mode, OptLevel, Raw, code::CpuFeatures, error::LinkError,
    host::helper_name, isa::assemble,
};

/// Whatever id a function is registered under, either the linker refuses it or every engine calls it.
#[test]
fn every_engine_calls_what_the_linker_takes() {
    let ids = (0..400).chain([1 << 20, (1 << 29) - 2]);
    let mut reserved = Vec::new();
    let jit = bpf_runtime::code::Arch::HOST.map(|_| Mode::Jit);
    let engines: Vec<_> = [Some(Mode::Interpreter), jit]
        .into_iter()
        .flatten()
        .map(|mode| {
            let config = Config::new().mode(mode);
            Engine::new(config).unwrap()
        })
        .collect();
    for id in ids {
        for engine in &engines {
            let mut linker = Linker::<u64>::new(engine);
            linker.remove_helper(id);
            let count = |c: &mut Caller<'_, u64>, a: u64, b: u64, d: u64| {
                *c.host() += 1;
                a + 10 * b + 100 * d
            };
            match linker.func(id, "own", count) {
                Ok(_) => {}
                Err(LinkError::Reserved { id: named }) => {
                    assert_eq!(named, id);
                    reserved.push(id);
                    continue;
                }
                Err(error) => panic!("{id}: {error}"),
            }
            for level in [OptLevel::None, OptLevel::default()] {
                for trusted in [false, true] {
                    let insns = assemble(&format!("r1 = 1\nr2 = 2\nr3 = 3\ncall {id}\nr0 += 1\nexit")).unwrap();
                    let loader = linker.loader::<Raw>().opt_level(level);
                    // SAFETY: the function takes any numbers.
                    let loader = if trusted { unsafe { loader.unverified(true) } } else { loader };
                    let mut calls = 0;
                    let r0 = loader.insns("call", insns).unwrap().run(&mut calls, &mut []).unwrap();
                    assert_eq!((calls, r0), (1, 322), "{id} ({:?}), {level:?}", helper_name(id));
                }
            }
        }
    }
    reserved.dedup();
    assert_eq!(reserved, bpf_runtime::host::SPECIAL_HELPERS);
}

#[test]
fn features_that_the_cpu_does_not_have_are_refused() {
    let host = CpuFeatures::host();
    let all = [
        ("BMI2", CpuFeatures { bmi2: true, ..host }),
        ("MOVBE", CpuFeatures { movbe: true, ..host }),
        ("LSE", CpuFeatures { lse: true, ..host }),
    ];
    let mut refused = 0;
    for (name, features) in all {
        let config = Config::new().features(features);
        match Engine::new(config) {
            Ok(_) => assert_eq!(features, host),
            Err(EngineError::Features { missing }) => {
                assert_eq!(missing, [name]);
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    // No CPU has those of two architectures.
    assert!(refused > 0);
    for features in [host, CpuFeatures::BASELINE] {
        let config = Config::new().features(features);
        Engine::new(config).unwrap();
    }
}
