//! `bpf inspect`: shows the contents of an object. Nothing is loaded or created.

use crate::load;
use crate::out::{self, Look, line};
use anyhow::Result;
use bpf_runtime::{
    Object,
    host::helper_name,
    isa::{Callee, Insn},
    object::{LeftOut, MapDecl as ObjectMap, Program as ObjectProgram, ReferenceKind},
    verify::ProofSection,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Show the programs, maps and relocations of objects, and the helpers they use.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The object files. With --json one document is printed per object.
    #[arg(required = true, value_name = "OBJECT")]
    objects: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct Report {
    object: String,
    license: Option<String>,
    programs: Vec<ProgramReport>,
    /// Functions that are not programs although nothing calls them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOutReport>,
    maps: Vec<MapReport>,
    /// The reason why the section of proofs cannot be read; `None` if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    proofs_error: Option<String>,
}

#[derive(Serialize)]
struct LeftOutReport {
    name: String,
    section: String,
    reason: String,
}

#[derive(Serialize)]
struct ProgramReport {
    name: String,
    section: String,
    #[serde(rename = "type")]
    kind: String,
    /// Slots of the program's own function.
    instructions: u32,
    /// Slots including all subprograms that it reaches.
    instructions_linked: Option<usize>,
    subprograms: Vec<String>,
    helpers: Vec<u32>,
    relocations: Vec<Relocation>,
    /// Bytes of the program's proof in the object. `bpf verify --proof` checks the proof.
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<usize>,
    /// The reason why the program's code cannot be assembled, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Relocation {
    instruction: u32,
    kind: &'static str,
    symbol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u32>,
}

#[derive(Serialize)]
struct MapReport {
    name: String,
    #[serde(rename = "type")]
    map_type: String,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    load::each(&args.objects, args.json, |path| inspect(path, args.json).map(|()| true))
}

fn inspect(path: &Path, json: bool) -> Result<()> {
    let object = load::object(path)?;
    let proofs = object.proofs().map(ProofSection::parse).transpose();
    let report = Report {
        proofs_error: proofs.as_ref().err().map(ToString::to_string),
        object: path.display().to_string(),
        license: object.license().map(str::to_owned),
        programs: object
            .programs()
            .iter()
            .map(|p| {
                let proof = proofs.as_ref().ok().and_then(|proofs| proofs.as_ref()?.of(p.name()));
                ProgramReport { proof: proof.map(<[u8]>::len), ..program(&object, p) }
            })
            .collect(),
        left_out: object.left_out().iter().map(left_out).collect(),
        maps: object.maps().iter().map(map).collect(),
    };
    if json { out::json(&report) } else { print(&report) }
}

fn program(object: &Object, program: &ObjectProgram) -> ProgramReport {
    let mut report = ProgramReport {
        name: program.name().to_owned(),
        section: program.section().to_owned(),
        kind: program.kind().to_string(),
        instructions: program.insn_count(),
        instructions_linked: None,
        subprograms: Vec::new(),
        helpers: Vec::new(),
        relocations: Vec::new(),
        proof: None,
        error: None,
    };
    let code = match object.code(program) {
        Ok(code) => code,
        Err(error) => {
            report.error = Some(error.to_string());
            return report;
        }
    };
    report.instructions_linked = Some(code.insns().len());
    report.subprograms = code.functions().iter().skip(1).map(|f| f.name.clone()).collect();
    let helpers: BTreeSet<u32> = code
        .insns()
        .iter()
        .filter_map(|insn| match insn {
            Insn::Call(Callee::Helper(id)) => Some(*id),
            _ => None,
        })
        .collect();
    report.helpers = helpers.into_iter().collect();
    for reference in code.references() {
        let (kind, symbol, offset) = match reference.kind {
            ReferenceKind::Map(map) => ("map", object.maps()[map].name.clone(), None),
            ReferenceKind::MapValue { map, off } => ("map value", object.maps()[map].name.clone(), Some(off)),
            ReferenceKind::Table { table, off } => ("jump table", code.jump_tables()[table].name.clone(), Some(off)),
            ReferenceKind::HostCall(f) => ("host function", object.host_functions()[f].name.clone(), None),
            ReferenceKind::HostAddress(f) => ("host function address", object.host_functions()[f].name.clone(), None),
            ReferenceKind::Extern(v) => ("variable", object.extern_variables()[v].name.clone(), None),
        };
        report.relocations.push(Relocation { instruction: reference.insn.0, kind, symbol, offset });
    }
    for core in code.core_relocations() {
        let (type_name, access) = code.core_names(core);
        report.relocations.push(Relocation {
            instruction: core.insn.0,
            kind: "CO-RE",
            symbol: format!("{type_name} {access} ({})", core.kind.name()),
            offset: None,
        });
    }
    report
}

fn left_out(function: &LeftOut) -> LeftOutReport {
    let LeftOut { name, section, reason, .. } = function;
    LeftOutReport { name: name.clone(), section: section.clone(), reason: reason.to_string() }
}

fn map(map: &ObjectMap) -> MapReport {
    MapReport {
        name: map.name.clone(),
        map_type: map.map_type.to_string(),
        key_size: map.key_size,
        value_size: map.value_size,
        max_entries: map.max_entries,
        flags: map.flags,
    }
}

fn print(report: &Report) -> Result<()> {
    if let Some(license) = &report.license {
        line!("license {license}")?;
    }
    if let Some(error) = &report.proofs_error {
        out::parts(&[(Look::Bad, format_args!("proofs: ")), (Look::Plain, format_args!("{error}"))])?;
    }
    for p in &report.programs {
        out::parts(&[
            (Look::Title, format_args!("program {}", p.name)),
            (Look::Plain, format_args!(" (section {}, {}): {} instructions", p.section, p.kind, p.instructions)),
        ])?;
        if let Some(error) = &p.error {
            out::parts(&[(Look::Bad, format_args!("  cannot be linked: ")), (Look::Plain, format_args!("{error}"))])?;
        }
        if !p.subprograms.is_empty() {
            let linked = p.instructions_linked.unwrap_or(0);
            line!("  subprograms: {} ({linked} instructions in all)", p.subprograms.join(", "))?;
        }
        if let Some(bytes) = p.proof {
            line!("  proof: {bytes} bytes")?;
        }
        if !p.helpers.is_empty() {
            let names: Vec<String> = p.helpers.iter().map(|id| helper(*id)).collect();
            line!("  helpers: {}", names.join(", "))?;
        }
        for r in &p.relocations {
            let offset = r.offset.map_or_else(String::new, |off| format!(" + {off}"));
            line!("  {:>5}: {} {}{offset}", r.instruction, r.kind, r.symbol)?;
        }
    }
    for f in &report.left_out {
        out::parts(&[
            (Look::Bad, format_args!("left out {}", f.name)),
            (Look::Plain, format_args!(" (section {}): {}", f.section, f.reason)),
        ])?;
    }
    for m in &report.maps {
        let sizes = format!("key {} bytes, value {} bytes, {} entries", m.key_size, m.value_size, m.max_entries);
        out::parts(&[
            (Look::Title, format_args!("map {}", m.name)),
            (Look::Plain, format_args!(" ({}): {sizes}, flags {:#x}", m.map_type, m.flags)),
        ])?;
    }
    Ok(())
}

fn helper(id: u32) -> String {
    helper_name(id).map_or_else(|| id.to_string(), |name| format!("{id} {name}"))
}
