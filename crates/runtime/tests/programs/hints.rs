//! Hints beside the verdict, on code that its author may not have intended. The source is `objects/hints.c`.

use bpf_runtime::{
    Config, Engine, Linker, LoadError, MapSet, Object, Raw,
    isa::InsnIdx,
    net::Xdp,
    object::{LeftOutReason, ObjectError},
    verify::VerifyHint,
};

#[path = "../../../object/tests/common/mod.rs"]
mod elf;

fn object() -> Object {
    Object::parse(include_bytes!("../objects/hints.o")).unwrap()
}

#[test]
fn divisions_by_what_may_be_zero_are_told() {
    let (object, engine) = (object(), Engine::new(Config::new()).unwrap());
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let reports = Linker::<()>::new(&engine).loader::<Xdp>().verify(&object, maps, false).unwrap();
    let hints = |name: &str| &reports.iter().find(|report| report.program == name).unwrap().hints;
    assert_eq!(*hints("guarded"), []);
    let [VerifyHint::DivisionByZero { line: Some((file, line, text)), remainder: false, .. }] = &hints("unguarded")[..]
    else {
        panic!("{:?}", hints("unguarded"))
    };
    assert!(file.ends_with("hints.c") && *line == 14 && text.contains("1000 / ctx->rx_queue_index"), "{file}:{line}");
    let [hint @ VerifyHint::DivisionByZero { remainder: true, .. }] = &hints("modulo")[..] else {
        panic!("{:?}", hints("modulo"))
    };
    let text = hint.to_string();
    assert!(text.starts_with("remainder of a division by a number that may be 0, whose result is the dividend then"));
    assert!(text.contains("hints.c:30: return 1000 % (queue & 6)"), "{text}");
}

/// A static function that is no program is listed with the reason, and the error of a load that names it has that
/// reason.
#[test]
fn static_functions_that_are_no_programs_are_named() {
    let (object, engine) = (object(), Engine::new(Config::new()).unwrap());
    let left_out: Vec<_> = object.left_out().iter().map(|f| (&*f.name, &*f.section, f.reason)).collect();
    assert_eq!(left_out, [("left_out", "own/section", LeftOutReason::UnknownSection)]);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let error = Linker::<()>::new(&engine).loader::<Xdp>().only(&["left_out"]).object(&object, maps).unwrap_err();
    assert!(matches!(error, LoadError::Object(ObjectError::LeftOut { .. })), "{error}");
    assert!(error.to_string().contains("make the function global"), "{error}");
}

/// The refusal of a program from an object without source lines advises `-g`; that of a program without an object does
/// not.
#[test]
fn a_refusal_without_source_lines_names_the_option() {
    const HINT: &str = "hint: compile with -g";
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let mut elf = elf::Elf::new();
    // r0 is not set.
    let section = elf.code("prog", &bpf_isa::encode(&bpf_runtime::isa::assemble("exit").unwrap()).unwrap());
    elf.symbol("f", section, elf::FUNC, 0, 8);
    let object = Object::parse(&elf.build()).unwrap();
    let load = || linker.loader::<Raw>().object(&object, MapSet::for_object(&engine, &object).unwrap());
    let error = load().unwrap_err();
    let LoadError::Verifier { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.insn, InsnIdx(0));
    assert!(error.to_string().contains(HINT), "{error}");
    let error = linker.loader::<Raw>().insns("f", bpf_runtime::isa::assemble("exit").unwrap()).unwrap_err();
    assert!(!error.to_string().contains(HINT), "{error}");
}

/// A verdict does not depend on memory: a map that could not be made is declared, and its program verified.
#[test]
fn verifying_makes_no_map() {
    let object = Object::parse(include_bytes!("../objects/maps.o")).unwrap();
    let config = Config::new().object_memory_limit(1);
    let engine = Engine::new(config).unwrap();
    let linker = Linker::<()>::new(&engine);
    let before = engine.usage().used;
    let verified = linker.loader::<Raw>().verify(&object, MapSet::for_object(&engine, &object).unwrap(), false);
    assert_eq!(verified.unwrap().len(), object.programs().len());
    assert_eq!(engine.usage().used, before);
    let error = linker.load::<Raw>(&object, MapSet::for_object(&engine, &object).unwrap()).unwrap_err();
    assert!(matches!(error, LoadError::Map { .. } | LoadError::MemoryFull { .. }), "{error}");
}
