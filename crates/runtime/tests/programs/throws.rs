//! Exceptions (`bpf_throw`): a throw ends the program, through all of its functions, with the thrown number, and the
//! program's caller goes on. Results are the kernel's, which is asked where the process may.

use crate::support::ways::{self, Way};
use bpf_runtime::{
    Hook, HookPolicy, Instance, Linker, LoadError, MapSet, Object, Raw,
    net::{Xdp, XdpBuff},
};
use bpf_testkit::kernel::{self, pinned};
use bpf_testkit::skipped;
use std::path::Path;

const OBJECT: &[u8] = include_bytes!("../objects/throws.o");
const ALONE: &[u8] = include_bytes!("../objects/throws_alone.o");
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];
const PROGRAMS: [&str; 4] = ["thrown", "caught", "looped", "jumped"];

fn load(way: Way, object: &[u8], names: &[&str]) -> Result<Instance<()>, LoadError> {
    let object = Object::parse(object).unwrap();
    let engine = ways::engine(way, |config| config);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    Linker::<()>::new(&engine).loader::<Xdp>().only(names).object(&object, maps)
}

fn run(instance: &Instance<()>, name: &str, packet: &[u8]) -> u32 {
    let mut packet = packet.to_vec();
    let program = instance.program::<Xdp>(name).unwrap();
    program.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap() as u32
}

fn packet(at: u64, what: u64) -> Vec<u8> {
    [at.to_ne_bytes().to_vec(), what.to_ne_bytes().to_vec(), vec![0; 40]].concat()
}

/// The place of the throw, and the thrown number.
fn asks() -> Vec<(u64, u64)> {
    (0..21).flat_map(|at| [1, 7, 0x1_2345_6789].map(|what| (at, what + 3 * at))).collect()
}

#[test]
fn results_are_the_kernels() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/throws.o");
    let theirs = match kernel::available().map(|()| pinned::load(&path)) {
        Ok(Ok(theirs)) => Some(theirs),
        Ok(Err(reason @ pinned::NotLoaded::NoLoader(_))) => {
            skipped("exceptions against the kernel", &reason.to_string());
            None
        }
        Ok(Err(refused)) => panic!("{refused}"),
        Err(reason) => {
            skipped("exceptions against the kernel", &reason);
            None
        }
    };
    let programs = VERIFIED.map(|way| load(way, OBJECT, &PROGRAMS).unwrap_or_else(|e| panic!("{way:?}: {e}")));
    for name in PROGRAMS {
        for (at, what) in asks() {
            let packet = packet(at, what);
            let [first, rest @ ..] = programs.each_ref().map(|instance| run(instance, name, &packet));
            assert_eq!(rest, [first; 4], "{name}: {what} at {at}");
            if let Some(theirs) = &theirs {
                let (answer, _) = theirs.programs[name].test_run_output(&packet).unwrap();
                assert_eq!(first, answer, "{name}: {what} at {at}");
            }
        }
    }
    let first = &programs[0];
    assert_eq!(run(first, "thrown", &packet(9, 123)), 123);
    assert_eq!(run(first, "thrown", &packet(3, 123)), 124);
    // An exception of the target of a tail call becomes the result of the function that made the tail call.
    assert_eq!(run(first, "jumped", &packet(3, 1)), 2 + 100_000 + 4 + 2);
    assert_eq!(run(first, "jumped", &packet(11, 1)) % 100_000, 110);
}

/// A hook's next program runs as if the one before had returned what it has thrown.
#[test]
fn what_is_thrown_ends_one_program_of_a_hook() {
    for way in VERIFIED {
        let instance = load(way, OBJECT, &PROGRAMS).unwrap();
        let hook = Hook::<Xdp, ()>::new(instance.engine(), HookPolicy::LastWins { empty: 0 }).unwrap();
        for name in PROGRAMS {
            hook.attach(&instance.program(name).unwrap()).unwrap();
        }
        let mut packet = packet(3, 1);
        let last = hook.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap();
        assert_eq!(last as u32, run(&instance, "jumped", &packet), "{way:?}");
    }
}

/// A callback that nothing calls is part of its program.
#[test]
fn exception_callbacks_are_found_by_their_tags() {
    for way in VERIFIED {
        let instance = load(way, ALONE, &["caught"]).unwrap();
        assert_eq!(run(&instance, "caught", &[7; 20]), 7, "{way:?}");
        assert_eq!(run(&instance, "caught", &[7; 7]), 501, "{way:?}");
        assert_eq!(run(&instance, "caught", &[7; 20]), 7, "{way:?}");
    }
    for (name, callback, why) in [("missing", "nobody", "no function of this name"), ("is_static", "checks", "static")]
    {
        let error = load(Way::Verified, ALONE, &[name]).err().unwrap().to_string();
        let said = format!("program `{name}`, exception callback `{callback}`: ");
        assert!(error.contains(&said) && error.contains(why), "{error}");
    }
}

/// Which calls may throw, only the verifier finds out.
#[test]
fn programs_that_throw_are_verified() {
    let object = Object::parse(OBJECT).unwrap();
    let engine = ways::engine(Way::Interpreted, |config| config);
    let linker = Linker::<()>::new(&engine);
    let maps = || MapSet::for_object(&engine, &object).unwrap();
    let error = linker.loader::<Raw>().interpreted(true).only(&["thrown"]).object(&object, maps()).err().unwrap();
    assert!(matches!(error, LoadError::ThrowNeedsVerifier { .. }), "{error}");
    // SAFETY: it is not loaded.
    let error =
        unsafe { linker.loader::<Raw>().unverified(true) }.only(&["thrown"]).object(&object, maps()).err().unwrap();
    assert!(matches!(error, LoadError::ThrowNeedsVerifier { .. }), "{error}");
}
