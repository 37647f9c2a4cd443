//! `bpf verify`: checks whether each program of an object is safe, and says why not.

use crate::context::{Chosen, ContextArg};
use crate::host;
use crate::load::{self, EngineArgs};
use crate::out::{self, Look, line, text};
use anyhow::{Context as _, Result, bail};
use bpf_runtime::{
    Context, Engine, Linker, LoadError, Loader, MapSet, Object, Raw,
    describe::{HostContext, HostInterface},
    net::{SkLookup, Skb, Sock, SockAddr, SockOps, Xdp, XdpFrags},
    verify::{Proofs, VerifyReport},
};
use serde::Serialize;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The exit status if no program was refused, and the verdict on one is unknown.
const UNKNOWN: u8 = 3;

/// Verify the programs of objects. Exit status 1 if one is refused, 3 if none is and the verdict on one is unknown.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The object files. With --json one document is printed per object.
    #[arg(required = true, value_name = "OBJECT")]
    objects: Vec<PathBuf>,
    /// Only this program.
    #[arg(long)]
    program: Option<String>,
    #[command(flatten)]
    loader: load::ObjectArgs,
    /// The programs' context; by default that of their sections.
    #[arg(long, value_enum)]
    ctx: Option<ContextArg>,
    /// The host that loads the programs, as its service described it (`Linker::describe`): its context, functions and
    /// limits. The verdict is that of the service.
    #[arg(long, value_name = "FILE.json", conflicts_with = "ctx")]
    host: Option<PathBuf>,
    /// Accept, with checks at run time, where only an offset or the end of a loop is not proven.
    #[arg(long)]
    hybrid: bool,
    /// Limit on the verifier's work for a program, which is refused beyond it; a verdict shows the work spent.
    #[arg(long, value_name = "UNITS")]
    fuel: Option<u64>,
    /// Give up after this many seconds for a program, without a verdict on it. Default: no limit.
    #[arg(long, value_name = "SECONDS")]
    time_limit: Option<f64>,
    /// Allow the programs to reveal addresses, under the kernel's rules for root: to store, compare and return
    /// pointers.
    #[arg(long)]
    privileged: bool,
    /// Accept programs only by the proofs in the object (`bpf prove`).
    #[arg(long)]
    proof: bool,
    /// Show the walk.
    #[arg(long)]
    log: bool,
    /// Lines of the walk that are kept: half of them from its beginning, half from its end.
    #[arg(long, default_value_t = 20_000)]
    log_lines: usize,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct Verdict {
    object: String,
    program: String,
    accepted: bool,
    /// The program's context, if its section does not determine it.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<&'static str>,
    /// Whether the program was accepted by the proof in the object.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    by_proof: bool,
    /// Instructions walked, over all paths.
    steps: Option<u64>,
    /// Fuel spent.
    fuel: Option<u64>,
    /// States kept at joins.
    states: Option<usize>,
    /// Most bytes of states held at once.
    peak_bytes: Option<usize>,
    /// Instructions that are checked at run time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    checks: Vec<u32>,
    /// Whether the program is not proven to end, so that it runs with a budget.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    needs_budget: bool,
    /// Whether the verifier gave up at the limit on time, so that the program's safety is unknown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unknown: bool,
    error: Option<String>,
    /// Notes on accepted code that its author may not have intended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hints: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    log: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let host = args.host.as_deref().map(host::read).transpose()?;
    let time = args.time_limit.map(Duration::try_from_secs_f64).transpose().context("--time-limit")?;
    let engine = load::verifying_engine(&EngineArgs::INTERPRETER, host.as_ref(), |limits| {
        let fuel = args.fuel.unwrap_or(limits.fuel);
        limits.log_lines(args.log_lines).fuel(fuel).time(time)
    })?;
    let unknown = Cell::new(false);
    let code =
        load::each(&args.objects, args.json, |path| verify_object(&engine, host.as_ref(), path, args, &unknown))?;
    Ok(if code == ExitCode::SUCCESS && unknown.get() { ExitCode::from(UNKNOWN) } else { code })
}

/// Verifies the programs of one object, and returns whether all are accepted.
fn verify_object(
    engine: &Engine,
    host: Option<&HostInterface>,
    path: &Path,
    args: &Args,
    unknown: &Cell<bool>,
) -> Result<bool> {
    let object = load::object_for(path, &args.loader)?;
    let linker = match host {
        Some(host) => host::linker(engine, host, |_| host::silent)?,
        None => Linker::<load::NoHost>::new(engine),
    };
    if let Some(name) = &args.program {
        object.program(name).with_context(|| path.display().to_string())?;
    }
    let mut verdicts = Vec::new();
    for program in object.programs().iter().filter(|p| args.program.as_deref().is_none_or(|name| name == p.name())) {
        let maps = MapSet::for_object(engine, &object)?;
        let name = program.name();
        if let Some(host) = host {
            let own = || host.features.apply(loader::<HostContext>(&linker, name, args));
            let offered = MapSet::for_object(engine, &object)?.check_offered(host);
            // The service creates the maps, too, and may refuse the plug-in for them.
            let result = offered.and_then(|loaded| {
                let reports = own().verify(&object, maps, args.log)?;
                own().object(&object, loaded)?;
                Ok(reports)
            });
            let place = format!("{}, section `{}`", path.display(), program.section());
            verdicts.push(Verdict { object: path.display().to_string(), ..verdict(name, &place, result) });
            continue;
        }
        let chosen = Chosen::of(engine, &linker, &object, program, args.ctx);
        let result = match chosen.context {
            ContextArg::Raw => verify::<Raw>(&linker, &object, maps, name, args),
            ContextArg::Xdp => verify::<Xdp>(&linker, &object, maps, name, args),
            ContextArg::XdpFrags => verify::<XdpFrags>(&linker, &object, maps, name, args),
            ContextArg::Skb => verify::<Skb>(&linker, &object, maps, name, args),
            ContextArg::SkLookup => verify::<SkLookup>(&linker, &object, maps, name, args),
            ContextArg::Sock => verify::<Sock>(&linker, &object, maps, name, args),
            ContextArg::SockAddr => verify::<SockAddr>(&linker, &object, maps, name, args),
            ContextArg::SockOps => verify::<SockOps>(&linker, &object, maps, name, args),
        };
        let place = chosen.place(path, program);
        verdicts.push(Verdict {
            object: path.display().to_string(),
            context: chosen.deduced(),
            ..verdict(name, &place, result)
        });
    }
    if verdicts.is_empty() {
        bail!("{}: the object has no program", path.display());
    }
    if args.json {
        out::json(&verdicts)?;
    } else {
        verdicts.iter().try_for_each(print)?;
    }
    unknown.set(unknown.get() || verdicts.iter().any(|v| v.unknown));
    Ok(verdicts.iter().all(|v| v.accepted || v.unknown))
}

fn verify<C: Context>(
    linker: &Linker<load::NoHost>,
    object: &Object,
    maps: MapSet,
    name: &str,
    args: &Args,
) -> Result<Vec<VerifyReport>, LoadError> {
    loader::<C>(linker, name, args).verify(object, maps, args.log)
}

fn loader<'l, C: Context>(linker: &'l Linker<load::NoHost>, name: &str, args: &Args) -> Loader<'l, C, load::NoHost> {
    let loader = linker.loader::<C>().only(&[name]);
    let loader = loader.hybrid(args.hybrid);
    let loader = loader.privileged(args.privileged);
    loader.proofs(if args.proof { Proofs::Require } else { Proofs::Ignore })
}

fn verdict(name: &str, place: &str, result: Result<Vec<VerifyReport>, LoadError>) -> Verdict {
    let program = name.to_owned();
    let none = Verdict {
        object: String::new(),
        program,
        accepted: false,
        context: None,
        by_proof: false,
        steps: None,
        fuel: None,
        states: None,
        peak_bytes: None,
        checks: Vec::new(),
        needs_budget: false,
        unknown: false,
        error: None,
        hints: Vec::new(),
        log: Vec::new(),
    };
    match result {
        Ok(reports) => match reports.into_iter().next() {
            Some(VerifyReport { proof: Some(Ok(())), .. }) => Verdict { accepted: true, by_proof: true, ..none },
            Some(VerifyReport { steps, fuel, states, peak_bytes, checks, needs_budget, hints, log, .. }) => {
                let hints = hints.iter().map(ToString::to_string).collect();
                let checks = checks.into_iter().map(|at| at.0).collect();
                let (steps, fuel) = (Some(steps), Some(fuel));
                let (states, peak_bytes) = (Some(states), Some(peak_bytes));
                Verdict { accepted: true, steps, fuel, states, peak_bytes, checks, needs_budget, hints, log, ..none }
            }
            None => Verdict { accepted: true, ..none },
        },
        Err(error) => {
            let text = format!("{place}: {error}");
            let unknown = matches!(error, LoadError::VerdictUnknown { .. });
            // The walk up to the failure.
            let log = match error {
                LoadError::Verifier { mut source, .. } | LoadError::VerdictUnknown { mut source, .. } => {
                    std::mem::take(&mut source.log)
                }
                _ => Vec::new(),
            };
            Verdict { unknown, error: Some(text), log, ..none }
        }
    }
}

fn print(verdict: &Verdict) -> Result<()> {
    for step in &verdict.log {
        text!("{step}")?;
    }
    let Some(error) = &verdict.error else {
        let [steps, states] = [verdict.steps, verdict.states.map(|n| n as u64)].map(Option::unwrap_or_default);
        let checks = match &verdict.checks[..] {
            [] => String::new(),
            checks => format!(", checked at run time: {checks:?}"),
        };
        let budget = if verdict.needs_budget { ", runs with a budget" } else { "" };
        let program = &verdict.program;
        let on = verdict.context.map_or_else(String::new, |context| format!(" on {context}"));
        if verdict.by_proof {
            return Ok(out::parts(&[
                (Look::Plain, format_args!("{program}: ")),
                (Look::Good, format_args!("accepted")),
                (Look::Plain, format_args!("{on}, by the proof that the object carries")),
            ])?);
        }
        out::parts(&[
            (Look::Plain, format_args!("{program}: ")),
            (Look::Good, format_args!("accepted")),
            (Look::Plain, format_args!("{on}, {steps} instructions walked, {states} states kept{checks}{budget}")),
        ])?;
        for hint in &verdict.hints {
            line!("  hint: {hint}")?;
        }
        return Ok(());
    };
    out::parts(&[
        (Look::Plain, format_args!("{}: ", verdict.program)),
        (Look::Bad, format_args!("{}", if verdict.unknown { "unknown" } else { "refused" })),
    ])?;
    text!("{error}")?;
    Ok(())
}
