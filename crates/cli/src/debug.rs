//! `bpf debug`: steps through a program by its source lines.

use crate::context::{Chosen, ContextArg};
use crate::load::{self, EngineArgs, NoHost, Trust};
use crate::out::line;
use crate::run_host::MockArgs;
use crate::stepper::{Commands, Shows, Stepper};
use crate::test_case::{self, Case, Mocks, Test, lock};
use crate::{fill, host, input, maps, packets, test};
use anyhow::{Context, Result, anyhow, bail, ensure};
use bpf_runtime::describe::{HostContext, HostInterface};
use bpf_runtime::net::{SkBuff, Skb, Xdp, XdpBuff};
use bpf_runtime::observe::Observer;
use bpf_runtime::{Engine, Instance, Linker, MapSet, Object, Program, Raw, RunError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

/// Step through a program by its source lines, in the interpreter. The command `help` lists the commands.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The object file; with --case, that of the test file.
    #[arg(required_unless_present = "cases", conflicts_with = "cases")]
    object: Option<PathBuf>,
    /// The program's function name; needed where the object has several.
    #[arg(long)]
    program: Option<String>,
    /// Read commands from this file instead of standard input.
    #[arg(long, value_name = "FILE")]
    commands: Option<PathBuf>,
    /// FILE.pcap or FILE.pcapng (one run a packet), any other file (one run on its bytes), or hex:BYTES. Default: one
    /// empty input.
    #[arg(long, value_name = "FILE|hex:BYTES")]
    data: Option<String>,
    /// The program's context: raw, xdp or skb; by default that of its section.
    #[arg(long, value_enum)]
    ctx: Option<ContextArg>,
    /// Run the program on the context of this host, as its service described it (`Linker::describe`), with mocks of
    /// its functions.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["data", "ctx"])]
    host: Option<PathBuf>,
    #[command(flatten)]
    mocks: MockArgs,
    /// Step through the runs of a case of this test file, with its host, maps and mocks: the case of --case, or the
    /// only one.
    #[arg(long, value_name = "TESTS.toml", conflicts_with_all = ["host", "data", "ctx", "program"])]
    cases: Option<PathBuf>,
    /// The name of the case, or a part of it that no other name has.
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
    #[command(flatten)]
    fill: fill::FillArgs,
}

/// The maps of a program.
struct Maps<'a> {
    instance: &'a Instance<NoHost>,
    object: &'a Object,
    rings: maps::Rings,
}

impl Shows for Maps<'_> {
    fn map(&self, name: &str) -> Result<()> {
        let Some(map) = self.instance.maps().find(|map| map.name() == name) else {
            let names: Vec<&str> = self.instance.maps().map(|map| map.name()).collect();
            bail!("there is no map `{name}`; the program's maps: {}", names.join(", "));
        };
        maps::print(&maps::dump(map, &self.rings, self.object))
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.instance.maps().find_map(|map| maps::variable(map, self.object, name))
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(path) = &args.cases {
        let given = test::case(path, args.case.as_deref())?;
        return hosted(args, &given.object, &given.host, Some(&given.program), &given.case)
            .with_context(|| given.place);
    }
    let path = args.object.as_deref().context("an object is expected")?;
    if let Some(host) = &args.host {
        let case = args.mocks.case()?;
        return hosted(args, path, &host::read(host)?, args.program.as_deref(), &case);
    }
    let engine = load::engine(&EngineArgs::INTERPRETER)?;
    let object = load::object(path)?;
    let name = load::choose(&object, args.program.as_deref())?;
    let linker = Linker::new(&engine);
    let chosen = object.program(name)?;
    let context = Chosen::of(&engine, &linker, &object, chosen, args.ctx);
    let place = || context.place(path, chosen);
    let to = Packets { args, engine: &engine, linker: &linker, object: &object, name };
    match context.to_run().with_context(place)? {
        ContextArg::Raw => {
            to.go::<Raw>(|program, slot, observer| program.run_observed(&mut (), &mut slot.buffer[..], observer))
        }
        ContextArg::Xdp => to.go::<Xdp>(|program, slot, observer| {
            let mut buff = XdpBuff::with_room(&mut slot.buffer, slot.room, slot.len);
            program.run_observed(&mut (), &mut buff, observer)
        }),
        ContextArg::Skb => to.go::<Skb>(|program, slot, observer| {
            let mut buff = SkBuff::with_room(&mut slot.buffer, slot.room, slot.len);
            program.run_observed(&mut (), &mut buff, observer)
        }),
        ContextArg::XdpFrags | ContextArg::SkLookup | ContextArg::Sock | ContextArg::SockAddr | ContextArg::SockOps => {
            Err(anyhow!("programs are stepped through on raw, xdp, skb, or a context of --host"))
        }
    }
    .with_context(place)
}

/// A program on packets.
struct Packets<'a> {
    args: &'a Args,
    engine: &'a Engine,
    linker: &'a Linker<NoHost>,
    object: &'a Object,
    name: &'a str,
}

impl Packets<'_> {
    fn go<C: bpf_runtime::Context>(
        &self,
        run: impl Fn(&Program<C, NoHost>, &mut packets::Slot, &mut dyn Observer) -> Result<u64, RunError>,
    ) -> Result<ExitCode> {
        let mut packets = packets::slots(input::packets(self.args.data.as_deref())?, 0)?;
        let instance = load::instance::<C>(self.engine, self.linker, self.object, &[self.name], Trust::Verified)?;
        let program = instance.program::<C>(self.name)?;
        fill::put(&self.args.fill.read()?, &instance)?;
        let rings = maps::Rings::open(self.engine, instance.maps())?;
        let shows = Maps { instance: &instance, object: self.object, rings };
        let listing = program.listing().context("an interpreted program without instructions")?;
        let mut stepper = Stepper::new(&listing, &shows, Commands::open(self.args.commands.as_deref())?);
        for packet in &mut packets {
            let result = run(&program, packet, &mut stepper);
            if !ended(&mut stepper, result)? {
                break;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints how a run ended. Returns whether the session goes on.
fn ended(stepper: &mut Stepper<'_>, result: Result<u64, RunError>) -> Result<bool> {
    stepper.check()?;
    if stepper.has_quit() {
        return Ok(false);
    }
    match result {
        Ok(r0) => line!("returned {}", test_case::shown_verdict(r0))?,
        Err(error) => line!("failed: {error}")?,
    }
    Ok(stepper.begin())
}

/// Steps through the runs of a case on the context of a host.
fn hosted(args: &Args, path: &Path, host: &HostInterface, program: Option<&str>, case: &Case) -> Result<ExitCode> {
    let engine = load::host_engine(&EngineArgs::INTERPRETER, host, false)?;
    let object = load::object(path)?;
    let name = load::choose(&object, program.or(case.program.as_deref()))?;
    let test = Test { engine: &engine, host, object: &object, program: name, case, line: &|_| 0 };
    let mocks = Arc::new(Mutex::new(Mocks::default()));
    let linker = test.linker(&mocks)?;
    lock(&mocks).begin(&test, &BTreeMap::new())?;
    let loader = host.features.apply(linker.loader::<HostContext>()).only(&[name]);
    let instance = loader.object(&object, MapSet::for_object(&engine, &object)?.check_offered(host)?)?;
    let program = instance.program::<HostContext>(name)?;
    fill::put(&test_case::entries(&case.maps)?, &instance)?;
    fill::put(&args.fill.read()?, &instance)?;
    let shows = Maps { instance: &instance, object: &object, rings: maps::Rings::open(&engine, instance.maps())? };
    let listing = program.listing().context("an interpreted program without instructions")?;
    let mut stepper = Stepper::new(&listing, &shows, Commands::open(args.commands.as_deref())?);
    ensure!(!case.run.is_empty(), "the case has no runs");
    for run in &case.run {
        let run = run.get_ref();
        let mut context = test_case::context(&run.context)?;
        lock(&mocks).begin_run(run.time);
        let result = program.run_observed(&mut (), &mut context, &mut stepper);
        if !ended(&mut stepper, result)? {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}
