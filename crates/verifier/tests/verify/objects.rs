//! Sample objects: found, linked and given to the verifier with the contexts and helpers they need.
#![allow(dead_code, reason = "the test and the example use different parts")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bpf_isa::Program;
use bpf_object::{DataKind, HostFunction, Object, ProgramType};
use bpf_testkit::{cases::shared, skipped};
use bpf_uapi::Builtin;
use bpf_verifier::{
    Access, ArgKind, ContextLayout, Effect, Env, Field, FieldKind, HelperProto, Helpers, KnownMap, MapType, MemArg,
    Region, Ret, SourceLine, Verified, Verifier, VerifyError, builtin,
};

/// Map flags BPF_F_RDONLY_PROG and BPF_F_WRONLY_PROG (include/uapi/linux/bpf.h).
const RDONLY_PROG: u32 = 1 << 7;
const WRONLY_PROG: u32 = 1 << 8;

fn map(def: &bpf_object::MapDecl) -> Result<KnownMap, String> {
    let kind = MapType::from_number(def.map_type.0).ok_or(format!("map type {}", def.map_type.0))?;
    let read_only = def.data.as_ref().is_some_and(|d| d.kind == DataKind::Rodata);
    let access = match (read_only || def.flags & RDONLY_PROG != 0, def.flags & WRONLY_PROG != 0) {
        (true, _) => Access::Read,
        (_, true) => Access::Write,
        _ => Access::ReadWrite,
    };
    Ok(KnownMap {
        access,
        inner: def.inner.as_deref().map(map).transpose()?.map(Box::new),
        frozen: def.data.as_ref().filter(|_| read_only).map(|d| d.bytes.clone()),
        ..KnownMap::new(&def.name, kind, def.key_size, def.value_size, def.max_entries)
    })
}

fn region(name: &'static str, ends_at_start_of: Option<u8>) -> Region {
    Region { name: name.into(), writable: true, max_len: 0xffff, min_len: 0, align: 1, ends_at_start_of }
}

fn layout(name: &'static str, fields: &[(&'static str, u32, u32, FieldKind)]) -> ContextLayout {
    let field = |&(name, offset, size, kind): &(&'static str, u32, u32, FieldKind)| {
        let host_size = if kind == FieldKind::Scalar { size } else { 8 };
        let written = ["cb", "mark", "priority", "tc_index", "tc_classid", "queue_mapping"].contains(&name);
        let access = if written { Access::ReadWrite } else { Access::Read };
        Field { name: name.into(), offset, size, access, kind, host_offset: offset * 2, host_size }
    };
    ContextLayout {
        name: name.into(),
        raw: false,
        fields: fields.iter().map(field).collect(),
        regions: vec![region("packet", None), region("metadata", Some(0))],
        legacy_loads: (name == "skb").then_some(bpf_analysis::HeaderPlaces::LinkFirst),
        returns: None,
    }
}

/// A service's own context: `http_request` of `cases/c/service/http_request.h`.
fn gateway() -> ContextLayout {
    let scalar = |name, offset, size| (name, offset, size, FieldKind::Scalar);
    let mut fields = vec![scalar("client", 0, 8), scalar("client", 8, 8), scalar("now_ms", 16, 8)];
    fields.extend(
        ["method", "client_port", "route", "status"]
            .into_iter()
            .zip(24..)
            .map(|(name, at)| scalar(name, (at - 18) * 4, 4)),
    );
    for (region, (start, end)) in
        [("path", "path_end"), ("query", "query_end"), ("headers", "headers_end")].into_iter().enumerate()
    {
        let (number, at) = (region as u8, 40 + 16 * region as u32);
        fields.push((start, at, 8, FieldKind::Data(number)));
        fields.push((end, at + 8, 8, FieldKind::DataEnd(number)));
    }
    let mut out = layout("http_request", &fields);
    out.fields
        .iter_mut()
        .filter(|f| ["route", "status"].contains(&&*f.name))
        .for_each(|f| f.access = Access::ReadWrite);
    let slice = |name| Region { writable: false, max_len: Region::MAX_LEN, ..region(name, None) };
    out.regions = ["path", "query", "headers"].map(slice).into();
    out
}

/// The parts of the kernel's contexts that the samples use.
fn context(object: &Object, program: &bpf_object::Program) -> Option<ContextLayout> {
    let xdp_object = object.programs().iter().any(|p| p.section() == "from-netdev" && p.name().contains("xdp"));
    let xdp = [
        ("data", 0, 4, FieldKind::Data(0)),
        ("data_end", 4, 4, FieldKind::DataEnd(0)),
        ("data_meta", 8, 4, FieldKind::Data(1)),
        ("ingress_ifindex", 12, 4, FieldKind::Scalar),
        ("rx_queue_index", 16, 4, FieldKind::Scalar),
    ];
    let skb = [
        ("len", 0, 4, FieldKind::Scalar),
        ("pkt_type", 4, 4, FieldKind::Scalar),
        ("mark", 8, 4, FieldKind::Scalar),
        ("queue_mapping", 12, 4, FieldKind::Scalar),
        ("protocol", 16, 4, FieldKind::Scalar),
        ("vlan_present", 20, 4, FieldKind::Scalar),
        ("vlan_tci", 24, 4, FieldKind::Scalar),
        ("vlan_proto", 28, 4, FieldKind::Scalar),
        ("priority", 32, 4, FieldKind::Scalar),
        ("ingress_ifindex", 36, 4, FieldKind::Scalar),
        ("ifindex", 40, 4, FieldKind::Scalar),
        ("tc_index", 44, 4, FieldKind::Scalar),
        // An array of five in the kernel: each may be accessed as if alone.
        ("cb", 48, 4, FieldKind::Scalar),
        ("cb", 52, 4, FieldKind::Scalar),
        ("cb", 56, 4, FieldKind::Scalar),
        ("cb", 60, 4, FieldKind::Scalar),
        ("cb", 64, 4, FieldKind::Scalar),
        ("hash", 68, 4, FieldKind::Scalar),
        ("tc_classid", 72, 4, FieldKind::Scalar),
        ("data", 76, 4, FieldKind::Data(0)),
        ("data_end", 80, 4, FieldKind::DataEnd(0)),
        ("napi_id", 84, 4, FieldKind::Scalar),
        ("data_meta", 140, 4, FieldKind::Data(1)),
    ];
    if program.section().starts_with("gateway/") {
        return Some(gateway());
    }
    let numbered = program.section().starts_with(|c: char| c.is_ascii_digit());
    // The samples' own test context, with 64-bit pointers.
    let test = [("data", 0, 8, FieldKind::Data(0)), ("data_end", 8, 8, FieldKind::DataEnd(0))];
    match program.kind() {
        ProgramType::Raw => Some(ContextLayout::raw(true)),
        ProgramType::Xdp => Some(layout("xdp", &xdp)),
        ProgramType::SocketFilter | ProgramType::TcClassifier | ProgramType::CgroupSkb | ProgramType::SkSkb => {
            Some(layout("skb", &skb))
        }
        // Cilium numbers its tail calls.
        ProgramType::Unknown if numbered && xdp_object => Some(layout("xdp", &xdp)),
        ProgramType::Unknown if numbered => Some(layout("skb", &skb)),
        ProgramType::Unknown if ["from-netdev", "from-container", "to-container"].contains(&program.section()) => {
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

/// The shipped helpers, and those of the kernel that only the samples need, by its prototypes.
fn helpers() -> Helpers {
    use ArgKind::{Ctx, Mem, Scalar, Size};
    const READ: ArgKind = Mem(MemArg::READ);
    const SIZE: ArgKind = Size { zero: false, half: false };
    let h = |id, name: &'static str, args: &[ArgKind]| HelperProto::new(id, name, args, Ret::Scalar);
    let moves = |proto| HelperProto { effect: Effect::MovesPacket, ..proto };
    let more = [
        h(21, "bpf_skb_set_tunnel_key", &[Ctx, READ, SIZE, Scalar]),
        moves(h(31, "bpf_skb_change_proto", &[Ctx, Scalar, Scalar])),
        h(34, "bpf_get_hash_recalc", &[Ctx]),
        moves(h(38, "bpf_skb_change_tail", &[Ctx, Scalar, Scalar])),
        moves(h(43, "bpf_skb_change_head", &[Ctx, Scalar, Scalar])),
        // `bpf_fib_lookup` reads the structure, and writes it.
        h(69, "bpf_fib_lookup", &[Ctx, Mem(MemArg { access: Access::ReadWrite, ..MemArg::READ }), SIZE, Scalar]),
    ];
    let mut helpers = Helpers::shipped();
    for proto in more {
        if helpers.get(proto.id).is_none() {
            helpers.add(proto).expect("it is not there yet");
        }
    }
    helpers
}

pub(crate) enum Verdict {
    /// The proof, and the time of the verification without linking.
    Accepted(Box<Verified>, Duration),
    Refused(Box<VerifyError>),
    /// The program did not reach the verifier: it does not link, or not with the shipped helpers.
    Unlinked(String),
}

/// The verdict on a program of an object.
pub(crate) fn verdict(object: &Object, program: &bpf_object::Program) -> Verdict {
    verdict_with(object, program, false)
}

/// The verdict, with a log of each step if asked for.
pub(crate) fn verdict_with(object: &Object, program: &bpf_object::Program, log: bool) -> Verdict {
    verdict_by(object, program, log, None)
}

/// Returns the verdict by one way of the verifier's portfolio alone, if one is named.
pub(crate) fn verdict_by(object: &Object, program: &bpf_object::Program, log: bool, way: Option<&str>) -> Verdict {
    let verdict = with_env(object, program, |code, env| {
        let env = &Env { log, ..*env };
        let mut verifier = Verifier::new();
        let start = Instant::now();
        let verified = match way {
            None => verifier.verify(code, env),
            Some(way) => match verifier.verify_by(code, env, way) {
                Some(verified) => verified,
                None => return Verdict::Unlinked(format!("there is no way {way}")),
            },
        };
        match verified {
            Ok(v) => Verdict::Accepted(Box::new(v), start.elapsed()),
            Err(e) => Verdict::Refused(e),
        }
    });
    verdict.unwrap_or_else(Verdict::Unlinked)
}

/// Calls a function with a program of an object and its environment.
pub(crate) fn with_env<R>(
    object: &Object,
    program: &bpf_object::Program,
    f: impl FnOnce(Program, &Env<'_>) -> R,
) -> Result<R, String> {
    let context = context(object, program).ok_or("the context is not shipped")?;
    let offered = |name: &str| Builtin::from_name(name).map(builtin);
    let linked = object.link(program, |name| offered(name).is_some()).map_err(|e| e.to_string())?.into_code();
    let lines: Vec<SourceLine> = (0..linked.insns().len())
        .filter_map(|i| {
            let l = linked.line(bpf_isa::InsnIdx(i as u32))?;
            Some(SourceLine { insn: i as u32, file: l.file.into_owned(), line: l.line, text: l.text.into_owned() })
        })
        .collect();
    let code = Program::new(linked.insns().to_vec()).map_err(|e| e.to_string())?;
    let maps = object.maps().iter().map(map).collect::<Result<Vec<KnownMap>, _>>()?;
    let helpers = helpers();
    // A call names its function by its index in the object's list; functions that no host offers are never called.
    let prototype = |f: &HostFunction| offered(&f.name).unwrap_or_else(|| HelperProto::new(0, "", &[], Ret::Scalar));
    let host_functions: Vec<HelperProto> = object.host_functions().iter().map(prototype).collect();
    let mut env = Env::new(&context, &helpers);
    (env.maps, env.lines, env.host_functions) = (&maps, &lines, &host_functions);
    Ok(f(code, &env))
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

/// Compiles a source for one setting; `None` if the compiler refuses it.
pub(crate) fn compile(source: &Path, with: &str, cpu: &str, level: &str) -> Option<PathBuf> {
    let stem = source.file_stem()?.to_str()?;
    let command = Path::new(with).file_name()?.to_str()?;
    let out = std::env::temp_dir().join(format!("sources-{}-{stem}-{command}-{cpu}{level}.o", std::process::id()));
    let mut compile = Command::new(with);
    compile.args([level, "-g", &format!("-mcpu={cpu}"), "-w", "-D__x86_64__"]);
    if !command.contains("gcc") {
        compile.args(["-target", "bpf"]);
    }
    if let Some(folder) = source.parent() {
        compile.arg("-I").arg(folder.join("include"));
    }
    compile.args(["-I/usr/include/x86_64-linux-gnu", "-I/usr/include", "-c"]).arg(source).arg("-o").arg(&out);
    compile.stdout(Stdio::null()).stderr(Stdio::null());
    compile.status().is_ok_and(|status| status.success()).then_some(out)
}
