//! From files and flags to loaded programs.

use crate::input::map_file;
use anyhow::{Context, Result, bail};
use bpf_runtime::{Config, Engine, Insn, Instance, Linker, MapSet, Mode, Object, Program, Raw};
use clap::ValueEnum;
use std::path::Path;
use std::sync::Arc;

/// How programs are executed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineArg {
    /// As machine code.
    Jit,
    /// By the interpreter, which checks every memory access.
    Interp,
}

/// What programs run on.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ContextArg {
    /// r1 = the input's address, r2 = its length.
    Raw,
}

/// The host state of the command's programs: nothing.
pub(crate) type NoHost = ();

/// An engine that prints `bpf_trace_printk` to standard error.
pub(crate) fn engine(engine: EngineArg) -> Result<Engine> {
    let mut config = Config::default();
    config.mode = match engine {
        EngineArg::Jit => Mode::Jit,
        EngineArg::Interp => Mode::Interpreter,
    };
    config.print = Some(Arc::new(|text: &str| eprint!("{text}")));
    Engine::new(config).context("cannot set up the engine")
}

/// Parses an object file.
pub(crate) fn object(path: &Path) -> Result<Object> {
    let bytes = map_file(path)?;
    Object::parse(&bytes).with_context(|| path.display().to_string())
}

/// The name of the program asked for, or of the only one there is.
pub(crate) fn choose<'o>(object: &'o Object, name: Option<&'o str>) -> Result<&'o str> {
    if let Some(name) = name {
        return Ok(object.program(name)?.name());
    }
    match object.programs() {
        [] => bail!("the object has no program"),
        [only] => Ok(only.name()),
        many => {
            let names: Vec<&str> = many.iter().map(|p| p.name()).collect();
            bail!("choose one with --program: {}", names.join(", "))
        }
    }
}

/// Loads the chosen program, and all others that load along with it where it jumps through prog arrays.
pub(crate) fn instance(
    engine: &Engine,
    linker: &Linker<NoHost>,
    object: &Object,
    programs: &[&str],
) -> Result<Instance<NoHost>> {
    let maps = MapSet::for_object(engine, object)?;
    Ok(match engine.config().mode {
        Mode::Interpreter => linker.load_some_interpreted::<Raw>(object, maps, programs)?,
        // SAFETY: whoever runs the command vouches for the program, as with any other native code given to a tool.
        Mode::Jit => unsafe { linker.load_some_unverified::<Raw>(object, maps, programs)? },
    })
}

/// Loads a program given as instructions, after structural validation only.
pub(crate) fn insns(engine: &Engine, linker: &Linker<NoHost>, insns: Vec<Insn>) -> Result<Program<Raw, NoHost>> {
    Ok(match engine.config().mode {
        Mode::Interpreter => linker.load_insns_interpreted("program", insns)?,
        // SAFETY: as in `instance`.
        Mode::Jit => unsafe { linker.load_insns_unverified("program", insns)? },
    })
}

/// The linker of the test protocols: one helper, id 5 (`call_unwind_fail` of bpf_conformance), which returns its argument.
pub(crate) fn conformance_linker(engine: &Engine) -> Result<Linker<NoHost>> {
    let mut linker = Linker::without_helpers(engine);
    linker.func(5, "unwind", |_: &mut bpf_runtime::Caller<'_, NoHost>, value: u64| value)?;
    Ok(linker)
}
