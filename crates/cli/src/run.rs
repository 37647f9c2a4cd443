//! `bpf run`: runs one program of each object over one or many inputs.

use crate::context::{Chosen, ContextArg};
use crate::load::{EngineArgs, NoHost, Trust};
use crate::out::{self, line};
use crate::packets::{self, Slot};
use crate::run_host::{self, HostArgs};
use crate::{fill, input, load, maps};
use anyhow::{Context, Result, anyhow, ensure};
use bpf_runtime::net::{Sock, SockAddr, SockAddrBuff, SockBuff, SockOps, SockOpsBuff, XdpFrags, XdpFragsBuff};
use bpf_runtime::{
    Engine, Linker, Object, Program, Raw, RunError,
    net::{SkBuff, SkLookup, SkLookupBuff, Skb, Xdp, XdpBuff},
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Run a program of each object over a packet capture, a file or bytes, and print what it returns.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The object files. Each program gets the original inputs, and maps of its own; with --json, one document per
    /// object.
    #[arg(required = true, value_name = "OBJECT")]
    objects: Vec<PathBuf>,
    /// The program's function name; needed where the object has several.
    #[arg(long)]
    program: Option<String>,
    /// FILE.pcap or FILE.pcapng (one run a packet), any other file (one run on its bytes), or hex:BYTES. Default: one
    /// empty input.
    #[arg(long, value_name = "FILE|hex:BYTES")]
    data: Option<String>,
    /// The program's context; by default that of its section.
    #[arg(long, value_enum)]
    ctx: Option<ContextArg>,
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    loader: load::ObjectArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Do not verify the program first. With --engine jit it can then do whatever native code can.
    #[arg(long, conflicts_with = "hybrid")]
    no_verify: bool,
    /// Check at run time where only an offset or the end of a loop is not proven, instead of refusing the program.
    #[arg(long)]
    hybrid: bool,
    /// Allow the program to reveal addresses, under the kernel's rules for root: to store, compare and return
    /// pointers.
    #[arg(long, conflicts_with_all = ["hybrid", "no_verify"])]
    privileged: bool,
    /// Verify the program, and bound each of its accesses in the machine code as well, as for untrusted programs.
    #[arg(long, conflicts_with_all = ["hybrid", "no_verify", "privileged"])]
    contained: bool,
    /// Room before and after each packet, for programs that move its ends; drivers leave 256 bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=65536))]
    headroom: u32,
    /// Pass each packet to XDP programs of sections xdp.frags in pieces of this many bytes.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=65536))]
    frag_size: Option<u32>,
    #[command(flatten)]
    out: packets::OutArgs,
    #[command(flatten)]
    fill: fill::FillArgs,
    /// Number of rounds over all inputs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    debug: load::DebugArgs,
}

impl Args {
    fn trust(&self) -> Trust {
        match (self.no_verify, self.hybrid, self.privileged, self.contained) {
            (true, _, _, _) => Trust::Unverified,
            (false, true, _, _) => Trust::Checked,
            (false, false, true, _) => Trust::Privileged,
            (false, false, false, true) => Trust::Contained,
            (false, false, false, false) => Trust::Verified,
        }
    }
}

#[derive(Serialize)]
struct Report {
    object: String,
    program: String,
    inputs: usize,
    runs: u64,
    /// Number of runs that returned each value.
    returned: BTreeMap<u64, u64>,
    /// Wall-clock nanoseconds per run.
    ns_per_run: f64,
    maps: Vec<maps::Dump>,
    /// On the context of a host.
    #[serde(flatten)]
    effects: Option<run_host::Effects>,
}

impl Report {
    /// The report of `runs` runs of a program over `inputs` inputs.
    fn new(
        (path, program, inputs, runs): (&Path, &str, usize, u64),
        returned: BTreeMap<u64, u64>,
        spent: Duration,
        maps: Vec<maps::Dump>,
        effects: Option<run_host::Effects>,
    ) -> Report {
        let ns_per_run = spent.as_nanos() as f64 / runs.max(1) as f64;
        let (object, program) = (path.display().to_string(), program.to_owned());
        Report { object, program, inputs, runs, returned, ns_per_run, maps, effects }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    ensure!(args.objects.len() == 1 || !args.out.is_given(), "--out takes the packets of one object");
    let engine = load::engine_for(&args.engine, Some(&args.debug))?;
    load::each(&args.objects, args.json, |path| run_object(&engine, path, args).map(|()| true))
}

/// Runs the program of one object.
fn run_object(engine: &Engine, path: &Path, args: &Args) -> Result<()> {
    if let Some(host) = args.host.file() {
        let job = run_host::Job {
            engine: &args.engine,
            loader: &args.loader,
            program: args.program.as_deref(),
            trust: args.trust(),
            fill: &args.fill,
            repeat: args.repeat,
        };
        let run_host::Outcome { program, returned, spent, maps, effects } = job.run(path, host, &args.host)?;
        let inputs = (path, program.as_str(), 1, args.repeat.into());
        let report = Report::new(inputs, returned, spent, maps, Some(effects));
        return if args.json { out::json(&report) } else { print(&report) };
    }
    let object = load::object_for(path, &args.loader)?;
    let name = load::choose(&object, args.program.as_deref())?;
    let linker = Linker::new(engine);
    let trust = args.trust();
    let inputs = input::packets(args.data.as_deref())?;
    let link = inputs.link;
    let mut packets = packets::slots(inputs, args.headroom as usize)?;
    let values = args.fill.read()?;
    let capture = args.out.create()?;
    let chosen = object.program(name)?;
    let load = Load { engine, linker: &linker, object: &object, name, trust, repeat: args.repeat, values: &values };
    let context = Chosen::of(engine, &linker, &object, chosen, args.ctx);
    let place = || context.place(path, chosen);
    let runs_on = match (context.to_run().with_context(place)?, args.frag_size) {
        (ContextArg::Xdp, Some(_)) => ContextArg::XdpFrags,
        (context, None) => context,
        (ContextArg::XdpFrags, Some(_)) => ContextArg::XdpFrags,
        (_, Some(_)) => return Err(anyhow!("--frag-size is for XDP programs")).with_context(place),
    };
    let outcome = match runs_on {
        ContextArg::Raw => load.go::<Raw>(&mut packets, |program, slot| {
            // Programs do not move the ends of plain memory.
            let (start, end) = (slot.room, slot.room + slot.len);
            program.run(&mut (), &mut slot.buffer[start..end])
        }),
        ContextArg::Xdp => load.go::<Xdp>(&mut packets, |program, slot| {
            let mut buff = XdpBuff::with_room(&mut slot.buffer, slot.room, slot.len);
            let result = program.run(&mut (), &mut buff);
            let left = packets::place(buff.packet());
            slot.leave([left]);
            result
        }),
        ContextArg::XdpFrags => load.go::<XdpFrags>(&mut packets, |program, slot| {
            let size = args.frag_size.map_or(usize::MAX, |size| size as usize);
            let (first, mut frags) = slot.pieces(size);
            let mut buff = XdpFragsBuff::new(first, &mut frags);
            let result = program.run(&mut (), &mut buff);
            let left: Vec<_> = buff.pieces().map(packets::place).collect();
            slot.leave(left);
            result
        }),
        ContextArg::Skb => load.go::<Skb>(&mut packets, |program, slot| {
            let mut buff = SkBuff::with_room(&mut slot.buffer, slot.room, slot.len);
            let result = program.run(&mut (), &mut buff);
            let left = packets::place(buff.packet());
            slot.leave([left]);
            result
        }),
        ContextArg::SkLookup => {
            load.go::<SkLookup>(&mut packets, |program, _| program.run(&mut (), &mut SkLookupBuff::default()))
        }
        ContextArg::Sock => load.go::<Sock>(&mut packets, |program, _| program.run(&mut (), &mut SockBuff::default())),
        ContextArg::SockAddr => {
            load.go::<SockAddr>(&mut packets, |program, _| program.run(&mut (), &mut SockAddrBuff::default()))
        }
        ContextArg::SockOps => {
            load.go::<SockOps>(&mut packets, |program, _| program.run(&mut (), &mut SockOpsBuff::default()))
        }
    }
    .with_context(place)?;
    if let Some(capture) = capture {
        capture.write(link, &packets, &outcome.last)?;
    }

    let runs = u64::from(args.repeat) * packets.len() as u64;
    let inputs = (path, name, packets.len(), runs);
    let report = Report::new(inputs, outcome.returned, outcome.spent, outcome.maps, None);
    if args.json { out::json(&report) } else { print(&report) }
}

/// The program to load, and the number of rounds.
struct Load<'a> {
    engine: &'a Engine,
    linker: &'a Linker<NoHost>,
    object: &'a Object,
    name: &'a str,
    trust: Trust,
    repeat: u32,
    /// The map entries to set before the first run.
    values: &'a [fill::Value],
}

struct Outcome {
    /// The results of the last round, by packet.
    last: Vec<u64>,
    returned: BTreeMap<u64, u64>,
    spent: Duration,
    maps: Vec<maps::Dump>,
}

impl Load<'_> {
    /// Loads the program on context `C` and runs it over all packets.
    fn go<C: bpf_runtime::Context>(
        &self,
        packets: &mut [Slot],
        run: impl Fn(&Program<C, NoHost>, &mut Slot) -> Result<u64, RunError>,
    ) -> Result<Outcome> {
        let instance = load::instance::<C>(self.engine, self.linker, self.object, &[self.name], self.trust)?;
        let program = instance.program::<C>(self.name)?;
        fill::put(self.values, &instance)?;
        let mut rings = maps::Rings::open(self.engine, instance.maps())?;
        let mut returned = BTreeMap::new();
        let progress = progress(self.repeat);
        let mut spent = Duration::ZERO;
        // Results are counted after each round, so that only the runs are timed.
        let mut results = vec![0; packets.len()];
        for _ in 0..self.repeat {
            let start = Instant::now();
            for (number, (packet, result)) in packets.iter_mut().zip(&mut results).enumerate() {
                *result = run(&program, packet).with_context(|| format!("input {number}"))?;
            }
            spent += start.elapsed();
            rings.drain();
            for result in &results {
                *returned.entry(*result).or_insert(0) += 1;
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        let maps = instance.maps().map(|map| maps::dump(map, &rings, self.object)).collect();
        Ok(Outcome { last: results, returned, spent, maps })
    }
}

/// A progress bar on standard error, shown on terminals only.
fn progress(rounds: u32) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} rounds, {eta} left");
    let bar = if rounds > 1 { ProgressBar::new(rounds.into()) } else { ProgressBar::hidden() };
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

fn print(report: &Report) -> Result<()> {
    if report.runs == 0 {
        // An empty capture: there is no time per run.
        line!("{}: no inputs, no runs", report.program)?;
    } else {
        line!("{}: {} inputs, {} runs, {:.1} ns a run", report.program, report.inputs, report.runs, report.ns_per_run)?;
    }
    line!("returned:")?;
    let most = report.returned.values().copied().max().unwrap_or(1);
    for (value, count) in &report.returned {
        let bar = "#".repeat(usize::try_from((count * 40).div_ceil(most)).unwrap_or(40));
        line!("  {value:>10} {count:>10}  {bar}")?;
    }
    report.effects.iter().try_for_each(run_host::print)?;
    report.maps.iter().try_for_each(maps::print)
}
