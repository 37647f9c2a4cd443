//! `bpf replay`: repeats a recorded run.

use crate::load::{self, NoHost, Trust};
use crate::out::{self, Look, line};
use crate::stepper::{self, Commands, Shows, Stepper, Tracer};
use crate::{host, input};
use anyhow::{Context, Result, bail, ensure};
use bpf_runtime::describe::HostContext;
use bpf_runtime::net::{Skb, Xdp};
use bpf_runtime::observe::{Listing, Recording, RecordingMismatch, Replayed};
use bpf_runtime::{Linker, MapSet, Raw};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Repeat a recorded run (`Recorder::save`, `bpf run --record`) in the interpreter, and print its result.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The recording.
    #[arg(value_name = "RECORDING")]
    file: PathBuf,
    /// The number of the run, from 0, the oldest; by default the last one.
    #[arg(long, value_name = "NUMBER")]
    run: Option<usize>,
    /// Instructions of the run, at most. A call counts as one more for each 256 bytes of stack, an access to memory as
    /// one more for each 64 parts of the run's memory.
    #[arg(long, value_name = "NUMBER", default_value_t = 1 << 24)]
    steps: u64,
    /// Print each instruction with its source line and what it changed.
    #[arg(long)]
    trace: bool,
    /// Step through the run by the commands of this file, or of standard input (`-`), as `bpf debug` does.
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    commands: Option<PathBuf>,
    /// The plug-in: fail if the recording is of another version of it.
    #[arg(long, value_name = "OBJECT")]
    object: Option<PathBuf>,
    /// The host of the plug-in, as its service described it: fail if the recording is of another one.
    #[arg(long, value_name = "FILE.json")]
    host: Option<PathBuf>,
}

/// Memory of others is not in a recording.
struct NoMaps;

impl Shows for NoMaps {
    fn map(&self, _: &str) -> Result<()> {
        bail!("a recording has no maps: it has the values that the run loaded from them")
    }

    fn variable(&self, _: &str) -> Option<String> {
        None
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let bytes = input::read_file(&args.file)?;
    let shown = || args.file.display().to_string();
    let recording = Recording::parse(&bytes).with_context(shown)?;
    if let Some(object) = &args.object {
        check(&recording, object, args.host.as_deref()).with_context(shown)?;
    }
    ensure!(recording.runs() > 0, "{}: it has no runs", shown());
    let run = args.run.unwrap_or(recording.runs() - 1);
    let place = || format!("{}: run {run}", shown());
    // The first replay has no observer: it proves that the second one shows the recorded run.
    let Replayed { result, steps, context, .. } =
        recording.replay_within(run, args.steps, &mut ()).with_context(place)?;
    let listing = recording.listing();
    if args.trace {
        let mut tracer = Tracer::new(listing);
        let traced = recording.replay_within(run, args.steps, &mut tracer);
        tracer.check()?;
        traced.with_context(place)?;
    } else if let Some(commands) = &args.commands {
        let mut stepper = Stepper::new(listing, &NoMaps, Commands::open(Some(commands))?);
        let stepped = recording.replay_within(run, args.steps, &mut stepper);
        stepper.check()?;
        if stepper.has_quit() {
            return Ok(ExitCode::SUCCESS);
        }
        stepped.with_context(place)?;
    }
    let of = recording.runs();
    match &result {
        Ok(r0) => out::parts(&[
            (Look::Title, format_args!("{}", listing.name)),
            (Look::Plain, format_args!(", run {run} of {of}: returned {r0} after {steps} instructions")),
        ])?,
        Err(error) => out::parts(&[
            (Look::Title, format_args!("{}", listing.name)),
            (Look::Plain, format_args!(", run {run} of {of}: failed after {steps} instructions: {error}")),
        ])?,
    }
    if !listing.fields.is_empty() {
        line!("context:")?;
    }
    for field in &listing.fields {
        let (from, size) = (field.offset as usize, field.size as usize);
        if let Some(bytes) = context.get(from..).and_then(|bytes| bytes.get(..size)) {
            line!("  {} = {}", field.name, stepper::shown(bytes))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares the recorded program with that of an object.
fn check(recording: &Recording, path: &Path, host: Option<&Path>) -> Result<()> {
    let object = load::object(path)?;
    let name = recording.listing().name.clone();
    let place = || path.display().to_string();
    object.program(&name).with_context(place)?;
    if let Some(host) = host {
        let host = host::read(host)?;
        let engine = load::host_engine(&load::EngineArgs::INTERPRETER, &host, false)?;
        let linker = host::linker(&engine, &host, |_| host::silent)?;
        let loader = host.features.apply(linker.loader::<HostContext>());
        let maps = MapSet::for_object(&engine, &object)?;
        let instance = loader.only(&[&name]).object(&object, maps).with_context(place)?;
        let listing = instance.program::<HostContext>(&name)?.listing();
        return Ok(recording.check(&listing.context("an interpreted program without instructions")?)?);
    }
    let engine = load::engine(&load::EngineArgs::INTERPRETER)?;
    let linker = Linker::new(&engine);
    let mut differs: Option<RecordingMismatch> = None;
    for listing in [
        listing::<Xdp>(&engine, &linker, &object, &name),
        listing::<Skb>(&engine, &linker, &object, &name),
        listing::<Raw>(&engine, &linker, &object, &name),
    ]
    .into_iter()
    .flatten()
    {
        match recording.check(&listing) {
            Ok(()) => return Ok(()),
            Err(error) => {
                // A difference in the instructions says more than one in the context.
                if !matches!(differs, Some(RecordingMismatch::Instructions { .. })) {
                    differs = Some(error);
                }
            }
        }
    }
    match differs {
        Some(differs) => Err(differs.into()),
        None => bail!("{}: `{name}` does not load on raw bytes, xdp or skb: give its host with --host", path.display()),
    }
}

/// The program on a context, if it loads on that.
fn listing<C: bpf_runtime::Context>(
    engine: &bpf_runtime::Engine,
    linker: &Linker<NoHost>,
    object: &bpf_runtime::Object,
    name: &str,
) -> Option<Listing> {
    let instance = load::instance::<C>(engine, linker, object, &[name], Trust::Verified).ok()?;
    instance.program::<C>(name).ok()?.listing()
}
