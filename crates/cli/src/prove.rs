//! `bpf prove`: writes proofs of an object's programs into the object, which a load can check instead of searching.

use crate::context::{Chosen, ContextArg};
use crate::host;
use crate::load::{self, EngineArgs};
use crate::out::{self, Look, text};
use anyhow::{Context as _, Result, bail};
use bpf_runtime::{
    Context, Linker, LoadError, MapSet, Object, Raw,
    describe::HostContext,
    net::{SkLookup, Skb, Sock, SockAddr, SockOps, Xdp, XdpFrags},
    verify::{PROVING_FUEL, ProofReport, ProofSection},
};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// The exit status if no proof was found of some program.
const UNPROVEN: u8 = 3;

/// Put proofs of an object's programs into the object. A load can check them instead of searching (`Loader::proofs`).
///
/// The proofs hold for the contexts, functions and maps of this command, and in every host that has equal ones. The
/// kernel and libbpf ignore them. Exit status 3 if no proof was found of some program: `bpf verify` may still accept
/// that program, since it knows more rules than the checker of proofs. The proofs of other programs are written.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The object file.
    #[arg(value_name = "OBJECT")]
    object: PathBuf,
    /// Where to write the object with its proofs. By default the object is overwritten.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    loader: load::ObjectArgs,
    /// The context of the programs; by default that of their sections.
    #[arg(long, value_enum)]
    ctx: Option<ContextArg>,
    /// The host that loads the programs, as its service described it (`Linker::describe`): the proofs hold for its
    /// context, functions and maps.
    #[arg(long, value_name = "FILE.json", conflicts_with = "ctx")]
    host: Option<PathBuf>,
    /// Limit on the work of each pass of the search for a program: about one unit for each instruction walked.
    #[arg(long, value_name = "UNITS", default_value_t = PROVING_FUEL)]
    fuel: u64,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct Outcome {
    program: String,
    /// Instructions, with all functions that it calls.
    instructions: usize,
    /// Bytes of the proof.
    bytes: Option<usize>,
    /// The first step that could not be proven.
    error: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let described = args.host.as_deref().map(host::read).transpose()?;
    let engine = load::verifying_engine(&EngineArgs::INTERPRETER, described.as_ref(), |limits| limits)?;
    let object = load::object_for(&args.object, &args.loader)?;
    let linker = match &described {
        Some(described) => host::linker(&engine, described, |_| host::silent)?,
        None => Linker::<load::NoHost>::new(&engine),
    };
    let (mut outcomes, mut proofs) = (Vec::new(), Vec::new());
    for program in object.programs() {
        let name = program.name();
        let maps = MapSet::for_object(&engine, &object)?;
        if let Some(host) = &described {
            let loader = host.features.apply(linker.loader::<HostContext>()).only(&[name]);
            let reports = maps.check_offered(host).and_then(|maps| loader.prove(&object, maps, args.fuel));
            keep(name, reports, &mut outcomes, &mut proofs)?;
            continue;
        }
        let reports = match Chosen::of(&engine, &linker, &object, program, args.ctx).context {
            ContextArg::Raw => prove::<Raw>(&linker, &object, maps, name, args),
            ContextArg::Xdp => prove::<Xdp>(&linker, &object, maps, name, args),
            ContextArg::XdpFrags => prove::<XdpFrags>(&linker, &object, maps, name, args),
            ContextArg::Skb => prove::<Skb>(&linker, &object, maps, name, args),
            ContextArg::SkLookup => prove::<SkLookup>(&linker, &object, maps, name, args),
            ContextArg::Sock => prove::<Sock>(&linker, &object, maps, name, args),
            ContextArg::SockAddr => prove::<SockAddr>(&linker, &object, maps, name, args),
            ContextArg::SockOps => prove::<SockOps>(&linker, &object, maps, name, args),
        };
        keep(name, reports, &mut outcomes, &mut proofs)?;
    }
    if outcomes.is_empty() {
        bail!("{}: the object has no program", args.object.display());
    }
    let file = crate::input::read_file(&args.object)?;
    let proven = Object::with_proofs(&file, &ProofSection::to_bytes(&proofs))?;
    let output = args.output.as_ref().unwrap_or(&args.object);
    std::fs::write(output, proven).with_context(|| output.display().to_string())?;
    if args.json {
        out::json(&outcomes)?;
    } else {
        outcomes.iter().try_for_each(print)?;
    }
    let all = outcomes.iter().all(|outcome| outcome.error.is_none());
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(UNPROVEN) })
}

/// Keeps the outcome of a program, and its proofs.
fn keep<'o>(
    name: &'o str,
    reports: Result<Vec<ProofReport>, LoadError>,
    outcomes: &mut Vec<Outcome>,
    proofs: &mut Vec<(&'o str, Vec<u8>)>,
) -> Result<()> {
    for ProofReport { program, instructions, proof, .. } in reports.with_context(|| name.to_owned())? {
        let bytes = proof.as_ref().ok().map(Vec::len);
        let error = proof.as_ref().err().map(ToString::to_string);
        outcomes.push(Outcome { program, instructions, bytes, error });
        proofs.extend(proof.ok().map(|proof| (name, proof)));
    }
    Ok(())
}

fn prove<C: Context>(
    linker: &Linker<load::NoHost>,
    object: &Object,
    maps: MapSet,
    name: &str,
    args: &Args,
) -> Result<Vec<ProofReport>, LoadError> {
    linker.loader::<C>().only(&[name]).prove(object, maps, args.fuel)
}

fn print(outcome: &Outcome) -> Result<()> {
    let name = format_args!("{}: ", outcome.program).to_string();
    match (&outcome.error, outcome.bytes) {
        (Some(error), _) => {
            out::parts(&[(Look::Plain, format_args!("{name}")), (Look::Bad, format_args!("no proof found"))])?;
            text!("  {error}")?;
        }
        (None, bytes) => {
            let (bytes, instructions) = (bytes.unwrap_or(0), outcome.instructions);
            out::parts(&[
                (Look::Plain, format_args!("{name}")),
                (Look::Good, format_args!("proven")),
                (Look::Plain, format_args!(", {bytes} bytes of proof for {instructions} instructions")),
            ])?;
        }
    }
    Ok(())
}
