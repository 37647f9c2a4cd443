//! Objects that were compiled against other versions of the host's context.

use crate::common::engines::engines;
use bpf_runtime::{BpfContext, Config, ContextBytes, Engine, Linker, LoadError, MapSet, Object, Program, RunError};
use bpf_testkit::generate::Choices;

#[derive(BpfContext)]
#[repr(C)]
struct Question<'p> {
    id: u64,
    method: u32,
    #[bpf(writable)]
    verdict: u32,
    body: ContextBytes<'p>,
    tag: [u8; 8],
}

const LAYOUTS: &[u8] = include_bytes!("../objects/layouts.o");

/// A context without a byte slice, so that programs run on it unverified, too.
#[derive(BpfContext)]
#[repr(C)]
#[bpf(name = "question")]
struct Flat {
    id: u64,
    method: u32,
    #[bpf(writable)]
    verdict: u32,
}

fn question(body: &[u8]) -> Question<'_> {
    Question {
        id: 1 << 40,
        method: 6,
        verdict: 0,
        body: ContextBytes::new(body).unwrap(),
        tag: [1, 2, 3, 4, 5, 6, 7, 8],
    }
}

fn load(engine: &Engine, object: &Object, name: &str) -> Result<Program<Question<'static>, ()>, LoadError> {
    let linker = Linker::<()>::new(engine);
    let maps = MapSet::for_object(engine, object)?;
    Ok(linker.loader::<Question<'static>>().only(&[name]).object(object, maps)?.program(name)?)
}

/// The object without its type information.
fn untyped() -> Object {
    let mut bytes = LAYOUTS.to_vec();
    // `.BTF` and `.BTF.ext`, and the sections of their relocations.
    let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b".BTF")).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| bytes[at + 1] = b'_');
    Object::parse(&bytes).unwrap()
}

#[test]
fn an_access_to_another_field_than_the_hosts_is_refused() {
    let engine = Engine::new(Config::new()).unwrap();
    let object = Object::parse(LAYOUTS).unwrap();
    for (name, there, here, text) in [
        (
            "stale",
            "`method` (unsigned, 4 bytes) at offset 0",
            "`id` (unsigned, 8 bytes) at offset 0",
            "return ctx->method;",
        ),
        (
            "other_sign",
            "`method` (signed, 4 bytes) at offset 8",
            "`method` (unsigned, 4 bytes) at offset 8",
            "return ctx->method < 0;",
        ),
        (
            "other_name",
            "`number` (unsigned, 8 bytes) at offset 0",
            "`id` (unsigned, 8 bytes) at offset 0",
            "return ctx->number;",
        ),
    ] {
        let error = load(&engine, &object, name).unwrap_err();
        let LoadError::ContextLayout { source, .. } = &error else { panic!("{error}") };
        assert_eq!((&*source.context, &*source.compiled, &*source.host), ("question", there, here), "{name}");
        assert!(source.insn.is_some() && source.line.as_ref().is_some_and(|line| line.contains(text)), "{error}");
        assert!(error.to_string().contains("preserve_access_index"), "{error}");
    }
}

#[test]
fn what_is_relocated_or_the_same_runs() {
    let object = Object::parse(LAYOUTS).unwrap();
    for engine in engines(|config| config) {
        for (name, returned, verdict) in
            [("untouched", 3, 0), ("relocated", 40, 6 + 3), ("guarded", 5, 0), ("unmoved", 40 + 2, 9)]
        {
            let program = load(&engine, &object, name).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut question = question(&[40, 41]);
            assert_eq!(program.run(&mut (), &mut question).unwrap() as i32, returned, "{name}");
            assert_eq!(question.verdict, verdict, "{name}");
        }
    }
}

#[test]
fn a_field_that_is_gone_is_refused_where_it_is_used() {
    let engine = Engine::new(Config::new()).unwrap();
    let error = load(&engine, &Object::parse(LAYOUTS).unwrap(), "gone").unwrap_err();
    assert!(matches!(error, LoadError::Object(_)) && error.to_string().contains("priority"), "{error}");
}

#[test]
fn objects_without_types_are_refused_by_default() {
    let engine = Engine::new(Config::new()).unwrap();
    let object = untyped();
    let error = load(&engine, &object, "unmoved").unwrap_err();
    assert!(matches!(&error, LoadError::ContextUntyped { context, .. } if context == "question"), "{error}");
    assert!(error.to_string().contains("assume_layout"), "{error}");
    // A program that does not access the context needs no types.
    load(&engine, &object, "untouched").unwrap();

    let linker = Linker::<()>::new(&engine);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let loader = linker.loader::<Question<'static>>().assume_layout(true).only(&["unmoved"]);
    let program: Program<Question<'static>, ()> = loader.object(&object, maps).unwrap().program("unmoved").unwrap();
    assert_eq!(program.run(&mut (), &mut question(&[40])).unwrap(), 42);
}

/// The accesses of an unverified program are unknown, so the whole structure is compared.
#[test]
fn unverified_programs_are_compared_whole() {
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let object = Object::parse(LAYOUTS).unwrap();
    let load = |name: &str| {
        let maps = MapSet::for_object(&engine, &object)?;
        let instance = linker.loader::<Flat>().interpreted(true).only(&[name]).object(&object, maps)?;
        Ok::<_, LoadError>(instance.program::<Flat>(name)?)
    };
    for name in ["stale", "untouched", "other_sign"] {
        let error = load(name).unwrap_err();
        assert!(matches!(&error, LoadError::ContextLayout { source, .. } if source.insn.is_none()), "{name}: {error}");
    }
    let guarded = load("guarded").unwrap();
    assert_eq!(
        guarded.run(&mut (), &mut Flat { id: 1, method: 2, verdict: 3 }).map_err(|e: RunError| e.to_string()),
        Ok(5)
    );
}

/// Where the object's type information lies: the header's magic number, its version and flags.
fn btf(object: &[u8]) -> std::ops::Range<usize> {
    let start = (0..object.len()).step_by(4).find(|at| object[*at..].starts_with(&[0x9f, 0xeb, 1, 0])).unwrap();
    let word = |at: usize| u32::from_le_bytes(object[start + at..][..4].try_into().unwrap()) as usize;
    start..start + word(4) + word(16) + word(20)
}

/// Types with random changes: each object is refused by a message, or its program, which is verified, runs.
/// `BPF_SOAK=N`: N times as many.
#[test]
fn changed_types_are_refused_or_harmless() {
    let engine = Engine::new(Config::new()).unwrap();
    let types = btf(LAYOUTS);
    let soak = std::env::var("BPF_SOAK").ok().and_then(|times| times.parse::<u64>().ok()).unwrap_or(1);
    let (mut read, mut ran, mut refused) = (0, 0, 0);
    for seed in 0..400 * soak {
        let mut choices = Choices::from_seed(seed);
        let mut object = LAYOUTS.to_vec();
        for _ in 0..1 + choices.below(3) {
            let at = types.start + choices.below(types.len() as u32) as usize;
            object[at] = match choices.below(3) {
                0 => choices.below(256) as u8,
                1 => object[at] ^ 1 << choices.below(8),
                _ => object[types.start + choices.below(types.len() as u32) as usize],
            };
        }
        let Ok(object) = Object::parse(&object) else { continue };
        read += 1;
        for name in ["untouched", "relocated", "guarded", "unmoved", "stale", "other_sign"] {
            match load(&engine, &object, name) {
                Ok(program) => {
                    program.run(&mut (), &mut question(&[40, 41])).unwrap();
                    ran += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            }
        }
    }
    assert!(read > 100 && ran > 100 && refused > 100, "{read} read, {ran} ran, {refused} refused");
}
