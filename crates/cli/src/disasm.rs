//! `bpf disasm`: BPF and machine code, interleaved.

use crate::load::{self, OptArg};
use crate::out::{self, Look, line, text};
use anyhow::{Context, Result};
use bpf_runtime::{
    code::{Arch, Change, Extern, ListingOptions, Symbol, compile_listing, optimiser_report},
    host::helper_name,
    isa::{InsnIdx, Program as BpfProgram},
    object::{Code as ObjectCode, ReferenceKind, text::Shown},
};
use clap::ValueEnum;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show a program's instructions and the machine code made of each, with source lines where the object has them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The object file.
    object: PathBuf,
    /// The program's function name; needed where the object has several.
    #[arg(long)]
    program: Option<String>,
    /// The machine; the host's by default. Any host can show any of them.
    #[arg(long, value_enum)]
    arch: Option<ArchArg>,
    /// The optimisation level of the machine code.
    #[arg(long, value_enum, default_value = "speed")]
    opt_level: OptArg,
    /// Instead of machine code, show the changes of each pass of the optimiser, by instruction.
    #[arg(long)]
    opt_report: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "opt_report")]
    pub(crate) json: bool,
}

/// A program's code as JSON.
#[derive(Serialize)]
struct Report {
    program: String,
    insns: Vec<InsnReport>,
    machine: Vec<MachineReport>,
    /// Bytes of machine code.
    bytes: usize,
}

/// A BPF instruction.
#[derive(Serialize)]
struct InsnReport {
    /// Its number, which `machine` refers to.
    at: u32,
    text: String,
    /// Its source line, if the object has line information.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<SourceReport>,
}

#[derive(Serialize)]
struct SourceReport {
    file: String,
    line: u32,
    text: String,
}

/// A machine instruction.
#[derive(Serialize)]
struct MachineReport {
    offset: u32,
    text: String,
    /// The label that jumps to this instruction use.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// The BPF instruction that it was made from; none for prologues and epilogues.
    insn: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ArchArg {
    /// x86-64.
    X64,
    /// AArch64.
    Arm64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let arch = match args.arch {
        Some(ArchArg::X64) => Arch::X64,
        Some(ArchArg::Arm64) => Arch::Arm64,
        None => Arch::HOST.context("there is no JIT for this host; choose with --arch")?,
    };
    let object = load::object(&args.object)?;
    let program = object.program(load::choose(&object, args.program.as_deref())?)?;
    let linked = object.code(program)?;
    let targets: Vec<InsnIdx> = linked.jump_tables().iter().flat_map(|table| &table.targets).copied().collect();
    let mut options = ListingOptions::default();
    options.compile.opt_level = args.opt_level.into();
    if args.opt_report {
        print_report(optimiser_report(arch, program.name(), linked.insns().to_vec(), targets, &options)?, &linked)?;
        return Ok(ExitCode::SUCCESS);
    }
    let name_of = program.name().to_owned();
    let (program, code) = compile_listing(arch, program.name(), linked.insns().to_vec(), targets, &options)?;
    let name = |symbol: Symbol| match Extern::from_symbol(symbol) {
        None => format!("symbol_{}", symbol.index),
        Some(Extern::Helper(id)) => helper_name(id).unwrap_or_else(|| format!("helper_{id}")),
        Some(Extern::Host(i)) => {
            object.host_functions().get(i as usize).map_or_else(|| format!("host_{i}"), |f| f.name.clone())
        }
        Some(Extern::Map(i)) => object.maps().get(i as usize).map_or_else(|| format!("map_{i}"), |m| m.name.clone()),
        Some(Extern::Imm64(at)) => {
            let reference = linked.references().iter().find(|reference| reference.insn == at);
            let table = reference.and_then(|reference| match reference.kind {
                ReferenceKind::Table { table, .. } => linked.jump_tables().get(table),
                _ => None,
            });
            table.map_or_else(|| format!("value_{at}"), |table| table.name.clone())
        }
        Some(Extern::HelperEnv(id)) => format!("helper_{id}_env"),
        Some(Extern::HostEnv(i)) => format!("host_{i}_env"),
        Some(Extern::ArrayBase(i)) => format!("map_{i}_base"),
        Some(Extern::MapLookup(i)) => format!("map_{i}_lookup"),
        Some(Extern::Counters(_)) => "counters".to_owned(),
        Some(Extern::Sink(_)) => "sink".to_owned(),
        Some(Extern::Spent(_)) => "spent".to_owned(),
    };
    let lines = bpf_disasm::lines(&code, &name)?;
    if args.json {
        let insns = program.insns().iter().enumerate().map(|(at, insn)| {
            let at = u32::try_from(at)?;
            let source = linked.line(InsnIdx(at)).map(|line| SourceReport {
                file: line.file.to_string(),
                line: line.line,
                text: line.text.trim().to_owned(),
            });
            Ok(InsnReport { at, text: insn.to_string(), source })
        });
        let machine = lines.into_iter().map(|line| {
            let insn = code.insn_at(line.offset);
            MachineReport { offset: line.offset, text: line.text, label: line.label, insn }
        });
        out::json(&Report {
            program: name_of,
            insns: insns.collect::<Result<_>>()?,
            machine: machine.collect(),
            bytes: code.bytes.len(),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut source = None;
    let mut shown = None;
    for line in &lines {
        if let Some(at) = code.entries.iter().position(|e| *e == line.offset) {
            let start = program.subprogs().get(at).map_or(0, |s| s.start);
            let name = linked.function_at(InsnIdx(start)).map_or("?", |f| f.name.as_str());
            text!("\n{}:", Shown(name))?;
        }
        let insn = code.insn_at(line.offset);
        if insn != shown {
            shown = insn;
            if let Some(insn) = insn {
                print_insn(&program, insn, &linked, &mut source)?;
            }
        }
        if let Some(label) = &line.label {
            line!("{label}:")?;
        }
        line!("        {:>6x}:  {}", line.offset, line.text)?;
    }
    text!("\n{} BPF instructions, {} bytes of machine code", program.insns().len(), code.bytes.len())?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the changes of passes, by source line and instruction: the instruction, then each pass with the ops before
/// and after.
fn print_report(mut changes: Vec<Change>, linked: &ObjectCode) -> Result<()> {
    let program = BpfProgram::new(linked.insns().to_vec()).context("the program is not valid")?;
    // A stable sort keeps the passes of an instruction in order.
    changes.sort_by_key(|change| change.insn);
    let (mut source, mut shown) = (None, None);
    let mut totals = Vec::<(&str, usize)>::new();
    for change in &changes {
        if shown != Some(change.insn) {
            shown = Some(change.insn);
            print_insn(&program, change.insn, linked, &mut source)?;
        }
        let ops = |ops: &[String]| if ops.is_empty() { "nothing".to_owned() } else { ops.join("; ") };
        line!("        {:8}  {}  ->  {}", change.pass.name(), ops(&change.before), ops(&change.after))?;
        match totals.iter_mut().find(|(name, _)| *name == change.pass.name()) {
            Some((_, count)) => *count += 1,
            None => totals.push((change.pass.name(), 1)),
        }
    }
    let totals: Vec<_> = totals.iter().map(|(name, count)| format!("{name} {count}")).collect();
    line!("\ninstructions changed: {}", totals.join(", "))?;
    Ok(())
}

/// Prints the BPF instruction at `insn`, after its source line if that has changed.
fn print_insn(program: &BpfProgram, insn: u32, linked: &ObjectCode, last: &mut Option<(String, u32)>) -> Result<()> {
    let at = InsnIdx(insn);
    if let Some(line) = linked.line(at) {
        let place = (line.file.to_string(), line.line);
        if last.as_ref() != Some(&place) {
            out::parts(&[(Look::Aside, format_args!("; {}:{}: {}", line.file, line.line, line.text.trim()))])?;
            *last = Some(place);
        }
    }
    if let Some(insn) = program.insns().get(at.index()) {
        line!("{at:>5}: {insn}")?;
    }
    Ok(())
}
