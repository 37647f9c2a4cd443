//! Constants that the host sets before the load: `.rodata` is frozen, the verifier takes its contents for numbers, and
//! what cannot be reached then is neither checked nor compiled. The source is `objects/config.c`.

use crate::support::ways::{self, WAYS, Way};
use bpf_runtime::{LoadError, MapSet, Object, Raw};

fn object(verbose: u8, mode: u32) -> Object {
    let mut object = Object::parse(include_bytes!("../objects/config.o")).unwrap();
    object.set_global("verbose", &[verbose]).unwrap();
    object.set_global("mode", &mode.to_ne_bytes()).unwrap();
    object
}

/// Returns the expected result of the program for these bytes.
fn expected(mode: u32, bytes: &[u8]) -> u64 {
    20 + match mode {
        1 => bytes.iter().take(64).fold(0u64, |sum, b| sum.wrapping_mul(31).wrapping_add((*b).into())),
        2 => bytes.len() as u64,
        _ => 0,
    }
}

#[test]
fn a_configured_program_does_what_it_was_configured_for() {
    let bytes: Vec<u8> = (1..=9).collect();
    for way in [Way::Verified, Way::VerifiedInterpreted] {
        let mut sizes = Vec::new();
        for mode in 0..3 {
            let engine = ways::engine(way, |config| config);
            let instance = ways::instance(&engine, way, &object(0, mode));
            let program = instance.program::<Raw>("entry").unwrap();
            assert_eq!(program.run(&mut (), &mut bytes.clone()).unwrap(), expected(mode, &bytes), "{way:?}, {mode}");
            sizes.extend(program.machine_code().map(|(code, _)| code.len()));
        }
        if way == Way::Verified && bpf_runtime::code::Arch::HOST.is_some() {
            // Only the second has a loop in it.
            assert!(sizes[1] >= sizes[0] + 24 && sizes[1] >= sizes[2] + 24, "bytes of code by mode: {sizes:?}");
        }
    }
}

/// The call of a helper that there is not is fine behind a switch that is off.
#[test]
fn what_is_switched_off_need_not_exist() {
    for way in WAYS {
        let verified = way.is_verified();
        for verbose in [0, 1] {
            let engine = ways::engine(way, |config| config);
            let result = ways::try_instance(&engine, way, &object(verbose, 0));
            match result {
                Ok(_) => assert!(verified && verbose == 0, "{way:?}, {verbose}"),
                Err(error) => {
                    assert!(!verified || verbose == 1, "{way:?}: {error}");
                    assert!(matches!(error, LoadError::UnknownHelper { id: 7777, .. }), "{way:?}: {error}");
                }
            }
        }
    }
}

#[test]
fn constants_stay_what_they_are() {
    let engine = ways::engine(Way::Verified, |config| config);
    let instance = ways::instance(&engine, Way::Verified, &object(0, 2));
    let constants = instance.maps().find(|map| map.name().ends_with(".rodata")).unwrap().clone();
    assert!(constants.is_constant());
    let value = vec![0; constants.host_value_size()];
    assert!(constants.update(&[0; 4], &value, 0).is_err(), "the host writes to constants that programs rely on");
    // Handed on to another load, they are still constant there.
    let object = object(0, 1);
    let maps = MapSet::for_object(&engine, &object).unwrap().reuse(constants.name(), &constants).unwrap();
    let linker = bpf_runtime::Linker::<()>::new(&engine);
    let second = linker.load::<Raw>(&object, maps).unwrap();
    assert_eq!(second.program::<Raw>("entry").unwrap().run(&mut (), &mut [0; 5]).unwrap(), 25, "mode 2, as in the map");
}
