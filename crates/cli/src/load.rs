//! Loads programs from files and flags.

use crate::input::read_file;
use crate::out::{self, Look};
use anyhow::{Context, Result, bail};
use bpf_runtime::{
    Config, Engine, Instance, Linker, Loader, MapSet, Mode, Object, OptLevel, Program, Raw, code::DebugOptions,
    describe::HostInterface, isa::Insn, verify::Limits,
};
use clap::ValueEnum;
use std::num::ParseIntError;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

/// The options that select the engine.
#[derive(clap::Args)]
pub(crate) struct EngineArgs {
    /// The engine that executes programs.
    #[arg(long, value_enum, default_value = "jit")]
    engine: EngineArg,
    /// The optimisation level of the machine code.
    #[arg(long, value_enum, default_value = "speed")]
    opt_level: OptArg,
}

impl EngineArgs {
    /// For commands that compile no machine code.
    pub(crate) const INTERPRETER: EngineArgs = EngineArgs { engine: EngineArg::Interp, opt_level: OptArg::Speed };
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineArg {
    /// Compiled to machine code.
    Jit,
    /// By the interpreter, which checks every memory access.
    Interp,
}

/// The optimisation level of the machine code.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptArg {
    /// One pass: several times faster to compile.
    None,
    /// Optimised: faster and smaller code.
    Speed,
    /// In one pass at first; optimised in the background if it runs often.
    Tiered,
}

impl From<OptArg> for OptLevel {
    fn from(level: OptArg) -> OptLevel {
        match level {
            OptArg::None => OptLevel::None,
            OptArg::Speed => OptLevel::Speed,
            OptArg::Tiered => OptLevel::Tiered,
        }
    }
}

/// The host state of the command's programs: none.
pub(crate) type NoHost = ();

/// The tools that are told of the programs' machine code.
#[derive(clap::Args)]
pub(crate) struct DebugArgs {
    /// Write /tmp/perf-PID.map, so that `perf report` names the programs.
    #[arg(long)]
    perf_map: bool,
    /// Write DIR/jit-PID.dump with code and source lines, for `perf record -k mono` and `perf inject --jit`.
    #[arg(long, value_name = "DIR")]
    jitdump: Option<PathBuf>,
    /// Register the code with GDB or LLDB, so that backtraces show the programs and their source lines.
    #[arg(long)]
    gdb: bool,
}

impl DebugArgs {
    fn options(&self) -> DebugOptions {
        DebugOptions::new()
            .perf_map(self.perf_map.then(|| PathBuf::from("/tmp")))
            .jitdump(self.jitdump.clone())
            .gdb(self.gdb)
    }
}

/// The settings of an object that its loader must supply.
#[derive(clap::Args)]
pub(crate) struct ObjectArgs {
    /// Types of a host for CO-RE relocations: a BTF file, or an ELF file with BTF.
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
    /// The number of entries of a map; without a name, of each map that the object leaves at 0.
    #[arg(long, value_name = "[MAP=]N")]
    max_entries: Vec<Size>,
}

/// The number of entries of one map, or of each map without one.
#[derive(Clone)]
struct Size {
    map: Option<String>,
    entries: u32,
}

impl FromStr for Size {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Size, ParseIntError> {
        Ok(match text.rsplit_once('=') {
            Some((map, entries)) => Size { map: Some(map.to_owned()), entries: entries.parse()? },
            None => Size { map: None, entries: text.parse()? },
        })
    }
}

/// Creates an engine that prints `bpf_trace_printk` to standard error.
pub(crate) fn engine(args: &EngineArgs) -> Result<Engine> {
    engine_for(args, None)
}

/// Creates an engine whose code is registered with the tools in `debug`.
pub(crate) fn engine_for(args: &EngineArgs, debug: Option<&DebugArgs>) -> Result<Engine> {
    Engine::new(config(args, debug)).context("cannot set up the engine")
}

/// Creates an engine with other limits for the verifier.
pub(crate) fn verifying_engine(
    args: &EngineArgs,
    host: Option<&HostInterface>,
    limit: impl FnOnce(Limits) -> Limits,
) -> Result<Engine> {
    let mut config = config(args, None);
    if let Some(host) = host {
        config = host.configure(config);
    }
    Engine::new(config.limits(limit)).context("cannot set up the engine")
}

/// Creates an engine with the limits of a described host. If `counted`, programs are interpreted and executions of
/// their instructions are counted.
pub(crate) fn host_engine(args: &EngineArgs, host: &HostInterface, counted: bool) -> Result<Engine> {
    let config = config(if counted { &EngineArgs::INTERPRETER } else { args }, None).coverage(counted);
    Engine::new(host.configure(config)).context("cannot set up the engine")
}

fn config(args: &EngineArgs, debug: Option<&DebugArgs>) -> Config {
    Config::new()
        .opt_level(args.opt_level.into())
        .mode(match args.engine {
            EngineArg::Jit => Mode::Jit,
            EngineArg::Interp => Mode::Interpreter,
        })
        .debug(|_| debug.map(DebugArgs::options).unwrap_or_default())
        // One line per call, as in the kernel's trace.
        .print(|printed| out::message(format_args!("{}\n", printed.text.trim_end_matches('\n'))))
}

/// Parses an object file.
pub(crate) fn object(path: &Path) -> Result<Object> {
    let bytes = read_file(path)?;
    Object::parse(&bytes).with_context(|| path.display().to_string())
}

/// Parses an object file and applies the settings of its loader.
pub(crate) fn object_for(path: &Path, loader: &ObjectArgs) -> Result<Object> {
    let mut object = object(path)?;
    if let Some(btf) = &loader.btf {
        object.target_btf(&read_file(btf)?).with_context(|| btf.display().to_string())?;
    }
    for Size { map, entries } in &loader.max_entries {
        match map {
            Some(map) => object.set_max_entries(map, *entries).with_context(|| path.display().to_string())?,
            None => {
                let unset = object.maps().iter().filter(|map| map.max_entries == 0);
                let unset: Vec<String> = unset.map(|map| map.name.clone()).collect();
                unset.iter().try_for_each(|map| object.set_max_entries(map, *entries))?;
            }
        }
    }
    Ok(object)
}

/// Runs `job` on each object in turn. If several are given, an error of one is printed, and the next one follows.
/// `job` returns whether its object passed.
pub(crate) fn each(objects: &[PathBuf], json: bool, job: impl Fn(&Path) -> Result<bool>) -> Result<ExitCode> {
    let mut well = true;
    for path in objects {
        if objects.len() > 1 && !json {
            out::parts(&[(Look::Title, format_args!("{}:", path.display()))])?;
        }
        match job(path) {
            Ok(good) => well &= good,
            Err(error) if objects.len() == 1 || error.is::<out::WriteError>() => return Err(error),
            Err(error) => {
                out::failure(&error, json);
                well = false;
            }
        }
    }
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The name of the requested program, or of the only one.
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

/// The basis for trusting a program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The verifier's proof.
    Verified,
    /// The verifier's proof, with checks at run time where it is incomplete.
    Checked,
    /// The verifier's proof, under the kernel's rules for root.
    Privileged,
    /// The verifier's proof, and machine code that bounds each access in addition.
    Contained,
    /// The user who runs the command; the interpreter checks accesses nevertheless.
    Unverified,
}

/// The loader for the engine's mode and this trust.
pub(crate) fn loader<C: bpf_runtime::Context>(
    linker: &Linker<NoHost>,
    mode: Mode,
    trust: Trust,
) -> Loader<'_, C, NoHost> {
    match (trust, mode) {
        (Trust::Verified, _) => linker.loader(),
        (Trust::Checked, _) => linker.loader().hybrid(true),
        (Trust::Privileged, _) => linker.loader().privileged(true),
        (Trust::Contained, _) => linker.loader().contained(true),
        // SAFETY: the user who runs the command vouches for the program, as for any native code that is passed to a
        // tool.
        (Trust::Unverified, Mode::Jit) => unsafe { linker.loader().unverified(true) },
        (Trust::Unverified, _) => linker.loader().interpreted(true),
    }
}

/// Loads the named programs of an object.
pub(crate) fn instance<C: bpf_runtime::Context>(
    engine: &Engine,
    linker: &Linker<NoHost>,
    object: &Object,
    programs: &[&str],
    trust: Trust,
) -> Result<Instance<NoHost>> {
    let maps = MapSet::for_object(engine, object)?;
    Ok(loader::<C>(linker, engine.config().get_mode(), trust).only(programs).object(object, maps)?)
}

/// Loads a program given as instructions, after structural validation only.
pub(crate) fn insns(engine: &Engine, linker: &Linker<NoHost>, insns: Vec<Insn>) -> Result<Program<Raw, NoHost>> {
    Ok(loader(linker, engine.config().get_mode(), Trust::Unverified).insns("program", insns)?)
}

/// The linker for the test protocols: helper 5 (`call_unwind_fail` of bpf_conformance) returns its argument.
pub(crate) fn conformance_linker(engine: &Engine) -> Result<Linker<NoHost>> {
    let mut linker = Linker::new(engine);
    linker.remove_helper(5);
    linker.func(5, "unwind", |_: &mut bpf_runtime::Caller<'_, NoHost>, value: u64| value)?;
    Ok(linker)
}
