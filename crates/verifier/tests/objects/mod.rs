//! Sample objects: found, linked and given to the verifier with the contexts and helpers they need.
#![allow(dead_code, reason = "the test and the example use different parts")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bpf_isa::Program;
use bpf_object::{DataKind, Object, ProgramType};
use bpf_testkit::{cases::shared, skipped};
use bpf_verifier::{
    Access, ArgKind, ContextLayout, Effect, Env, Field, FieldKind, HelperProto, Helpers, MapDef, MapType, Region, Ret,
    SourceLine, Verified, Verifier, VerifyError,
};

/// Map flags BPF_F_RDONLY_PROG and BPF_F_WRONLY_PROG (include/uapi/linux/bpf.h).
const RDONLY_PROG: u32 = 1 << 7;
const WRONLY_PROG: u32 = 1 << 8;

fn map(def: &bpf_object::MapDef) -> Result<MapDef, String> {
    let kind = MapType::from_number(def.map_type.0).ok_or(format!("map type {}", def.map_type.0))?;
    let read_only = def.data.as_ref().is_some_and(|d| d.kind == DataKind::Rodata);
    let access = match (read_only || def.flags & RDONLY_PROG != 0, def.flags & WRONLY_PROG != 0) {
        (true, _) => Access::Read,
        (_, true) => Access::Write,
        _ => Access::ReadWrite,
    };
    Ok(MapDef {
        access,
        inner: def.inner.as_deref().map(map).transpose()?.map(Box::new),
        frozen: def.data.as_ref().filter(|_| read_only).map(|d| d.bytes.clone()),
        ..MapDef::new(&def.name, kind, def.key_size, def.value_size, def.max_entries)
    })
}

fn packet() -> Region {
    Region { name: "packet".into(), writable: true, max_len: 0xffff, min_len: 0, align: 1, ends_at_start_of: None }
}

fn layout(name: &'static str, fields: &[(&'static str, u32, u32, FieldKind)]) -> ContextLayout {
    let field = |&(name, offset, size, kind): &(&'static str, u32, u32, FieldKind)| {
        let host_size = if kind == FieldKind::Scalar { size } else { 8 };
        let access = if name == "cb" { Access::ReadWrite } else { Access::Read };
        Field { name: name.into(), offset, size, access, kind, host_offset: offset * 2, host_size }
    };
    ContextLayout {
        name: name.into(),
        raw: false,
        fields: fields.iter().map(field).collect(),
        regions: vec![packet()],
        legacy_loads: name == "skb",
        returns: None,
    }
}

/// The parts of the kernel's contexts that the samples use.
fn context(program: &bpf_object::Program) -> Option<ContextLayout> {
    let xdp = [("data", 0, 4, FieldKind::Data(0)), ("data_end", 4, 4, FieldKind::DataEnd(0))];
    let skb = [
        ("len", 0, 4, FieldKind::Scalar),
        ("pkt_type", 4, 4, FieldKind::Scalar),
        ("mark", 8, 4, FieldKind::Scalar),
        ("protocol", 16, 4, FieldKind::Scalar),
        ("cb", 48, 20, FieldKind::Scalar),
        ("data", 76, 4, FieldKind::Data(0)),
        ("data_end", 80, 4, FieldKind::DataEnd(0)),
    ];
    // The samples' own test context, with 64-bit pointers.
    let test = [("data", 0, 8, FieldKind::Data(0)), ("data_end", 8, 8, FieldKind::DataEnd(0))];
    match program.kind() {
        ProgramType::Xdp => Some(layout("xdp", &xdp)),
        ProgramType::SocketFilter | ProgramType::TcClassifier | ProgramType::CgroupSkb | ProgramType::SkSkb => {
            Some(layout("skb", &skb))
        }
        ProgramType::Unknown if program.section() == "test_md" => Some(layout("test", &test)),
        ProgramType::Unknown if program.section().starts_with("sk") => Some(layout("skb", &skb)),
        ProgramType::Unknown if program.section().starts_with("socket") => Some(layout("skb", &skb)),
        ProgramType::Unknown if program.section().contains('/') => None,
        ProgramType::Unknown => Some(layout("xdp", &xdp)),
        ProgramType::SockOps if program.section() == "sockops" => Some(layout("sockops", &[])),
        _ => None,
    }
}

pub(crate) enum Verdict {
    /// With the time it took, without linking.
    Accepted(Box<Verified>, Duration),
    Refused(Box<VerifyError>),
    /// Before the verifier: it does not link, or not with what is shipped.
    Unlinked(String),
}

/// What the verifier says of a program of an object.
pub(crate) fn verdict(object: &Object, program: &bpf_object::Program) -> Verdict {
    let unlinked = |e: &dyn std::fmt::Display| Verdict::Unlinked(e.to_string());
    let Some(context) = context(program) else { return unlinked(&"the context is not shipped") };
    let linked = match object.link(program, |_| false) {
        Ok(linked) => linked.into_code(),
        Err(e) => return unlinked(&e),
    };
    let lines: Vec<SourceLine> = (0..linked.insns().len())
        .filter_map(|i| {
            let l = linked.line(bpf_isa::InsnIdx(i as u32))?;
            Some(SourceLine { insn: i as u32, file: l.file.into_owned(), line: l.line, text: l.text.into_owned() })
        })
        .collect();
    let code = match Program::new(linked.insns().to_vec()) {
        Ok(code) => code,
        Err(e) => return unlinked(&e),
    };
    let maps: Vec<MapDef> = match object.maps().iter().map(map).collect() {
        Ok(maps) => maps,
        Err(e) => return unlinked(&e),
    };
    let mut helpers = Helpers::shipped();
    // skb_change_head, as a host would add it.
    let change_head =
        HelperProto::new(43, "bpf_skb_change_head", &[ArgKind::Ctx, ArgKind::Scalar, ArgKind::Scalar], Ret::Scalar);
    helpers.add(HelperProto { effect: Effect::MovesPacket, ..change_head }).expect("43 is not shipped");
    let mut env = Env::new(&context, &helpers);
    (env.maps, env.lines) = (&maps, &lines);
    let mut verifier = Verifier::new();
    let start = Instant::now();
    match verifier.verify(code, &env) {
        Ok(v) => Verdict::Accepted(Box::new(v), start.elapsed()),
        Err(e) => Verdict::Refused(e),
    }
}

/// A folder of sample objects, if it is there.
pub(crate) fn objects(folder: &str) -> Option<PathBuf> {
    match shared(&format!("objects/samples/{folder}")) {
        Ok(path) => Some(path),
        Err(e) => {
            skipped(&format!("sample objects in {folder}"), &e);
            None
        }
    }
}

pub(crate) fn parse(path: &Path) -> Result<Object, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    Object::parse(&bytes).map_err(|e| e.to_string())
}
