//! Programs that do not sleep have the code that they would have without functions that may sleep.

use bpf_runtime::{AsyncCaller, Config, Context, Engine, Linker, Mode, Object, Raw, net::Xdp};
use std::path::Path;

/// A linker whose engine compiles, with or without a function that may sleep.
fn linker(mode: Mode, waits: bool) -> Linker<()> {
    let config = Config::new().mode(mode);
    let mut linker = Linker::new(&Engine::new(config).unwrap());
    if waits {
        linker.func_async(1_000_000, "waits", async |_: AsyncCaller<'_, ()>| {}).unwrap();
    }
    linker
}

/// The object as a module in bytes: code with its relocations, references, definitions of maps.
fn bytes<C: Context>(linker: &Linker<()>, object: &Object) -> Option<Vec<u8>> {
    linker.compile::<C>(object).ok()?.serialize().ok()
}

#[test]
fn a_function_that_waits_changes_no_code_that_does_not_call_it() {
    let engine = Engine::new(Config::new()).unwrap();
    if engine.config().get_mode() != Mode::Jit {
        return bpf_testkit::skipped(
            "code with and without functions that may sleep",
            &"this host has no machine code",
        );
    }
    let (plain, waits) = (linker(Mode::Jit, false), linker(Mode::Jit, true));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut compared = 0;
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "o")) {
        let Ok(object) = Object::parse(&std::fs::read(path).unwrap()) else { continue };
        let raw = [bytes::<Raw>(&plain, &object), bytes::<Raw>(&waits, &object)];
        let xdp = [bytes::<Xdp>(&plain, &object), bytes::<Xdp>(&waits, &object)];
        for [one, other] in [raw, xdp] {
            assert!(one == other, "{}: the code differs", path.display());
            compared += usize::from(one.is_some());
        }
    }
    assert!(compared > 30, "{compared} modules were compared");
}
