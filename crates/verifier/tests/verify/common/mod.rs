//! The one place where tests touch the verifier: an environment with one of everything, and programs as text.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod exhaustive;

use bpf_analysis::HeaderPlaces;
use bpf_isa::{InsnIdx, Program, SubprogId, assemble};
use bpf_uapi::{Builtin, Kfunc, OwnedField, OwnedKind, OwnedType};
use bpf_verifier::{
    Access, ArgKind, ContextLayout, Effect, Env, Field, FieldKind, GlobalArg, GlobalFunc, HelperProto, Helpers,
    KnownArena, KnownMap, MapType, MemArg, MemSet, Region, Ret, Verified, Verifier, VerifyError,
};

/// Indices of the maps in [`maps`], for `map[fd:N]`.
pub(crate) mod map {
    pub(crate) const ARRAY: usize = 0;
    pub(crate) const HASH: usize = 1;
    pub(crate) const LOCKED: usize = 2;
    pub(crate) const RINGBUF: usize = 3;
    pub(crate) const PROGS: usize = 4;
    pub(crate) const READ_ONLY: usize = 5;
    pub(crate) const WRITE_ONLY: usize = 6;
    pub(crate) const OUTER: usize = 7;
    pub(crate) const QUEUE: usize = 8;
    pub(crate) const FROZEN: usize = 9;
    pub(crate) const USER_RINGBUF: usize = 10;
    pub(crate) const STORAGE: usize = 11;
}

/// An arena of so many pages.
fn arena(name: &str, pages: u32) -> KnownMap {
    let (bytes, window) = (u64::from(pages) * 4096, u64::from(pages).next_power_of_two() * 4096);
    let arena = Some(KnownArena { bytes, window, user: (1 << 44) + window });
    KnownMap { arena, ..KnownMap::new(name, MapType::Arena, 0, 0, pages) }
}

/// One map of each interesting kind.
pub(crate) fn maps() -> Vec<KnownMap> {
    vec![
        KnownMap::new("array", MapType::Array, 4, 16, 4),
        KnownMap::new("hash", MapType::Hash, 8, 48, 100),
        KnownMap { spin_lock: Some(4), ..KnownMap::new("locked", MapType::Hash, 4, 16, 10) },
        KnownMap::new("ringbuf", MapType::RingBuf, 0, 0, 4096),
        KnownMap::new("progs", MapType::ProgArray, 4, 4, 8),
        KnownMap { access: Access::Read, ..KnownMap::new("read_only", MapType::Array, 4, 16, 1) },
        KnownMap { access: Access::Write, ..KnownMap::new("write_only", MapType::Hash, 4, 16, 1) },
        KnownMap {
            inner: Some(Box::new(KnownMap::new("inner", MapType::Array, 4, 8, 2))),
            ..KnownMap::new("outer", MapType::ArrayOfMaps, 4, 4, 2)
        },
        KnownMap::new("queue", MapType::Queue, 0, 8, 16),
        KnownMap {
            access: Access::Read,
            frozen: Some(vec![3, 0, 0, 0, 5, 0, 0, 0]),
            ..KnownMap::new("frozen", MapType::Array, 4, 8, 1)
        },
        KnownMap::new("user_ringbuf", MapType::UserRingBuf, 0, 0, 4096),
        KnownMap::new("storage", MapType::SkStorage, 8, 16, 100),
        KnownMap { timer: Some(8), work: Some(32), ..KnownMap::new("timed", MapType::Array, 4, 48, 4) },
        arena("arena", 3),
        arena("arena2", 1),
        holding("holding", 4),
        holding("own", 1),
        KnownMap { spin_lock: Some(4), resilient_lock: true, ..KnownMap::new("resilient", MapType::Hash, 4, 16, 10) },
        KnownMap { resilient_lock: true, ..holding("resilient_own", 1) },
    ]
}

fn owned(offset: u32, kind: OwnedKind) -> OwnedField {
    OwnedField { offset, kind }
}

/// An array whose values hold objects of [`types`]: a lock at 0, a list at 8, a tree at 24, a kptr at 40 and one at 48.
fn holding(name: &str, entries: u32) -> KnownMap {
    let fields = vec![
        owned(8, OwnedKind::ListHead { of: 0, node: 8 }),
        owned(24, OwnedKind::TreeRoot { of: 0, node: 32 }),
        owned(40, OwnedKind::Kptr { to: 1 }),
        owned(48, OwnedKind::Kptr { to: 0 }),
        owned(64, OwnedKind::Kptr { to: 5 }),
    ];
    KnownMap { spin_lock: Some(0), fields, ..KnownMap::new(name, MapType::Array, 4, 72, entries) }
}

/// A type with a lock at 8, a list at 16, a tree at 32 and owners that are counted at 48.
fn holder(resilient: bool) -> OwnedType {
    let fields = vec![
        owned(8, OwnedKind::Lock { resilient }),
        owned(16, OwnedKind::ListHead { of: 0, node: 8 }),
        owned(32, OwnedKind::TreeRoot { of: 0, node: 32 }),
        owned(48, OwnedKind::Refcount),
    ];
    OwnedType { name: "holder".into(), size: 56, fields, per_cpu: false }
}

/// Types of objects: one with every field of objects in lists and trees, at 8, 32, 64 and 72; one of 16 plain bytes;
/// one with a kptr to itself at 8; two that hold objects, with locks of both kinds; and the plain one with an instance
/// for each CPU. Programs make them by the numbers 7 to 11, the last by that of the plain one.
pub(crate) fn types() -> Vec<OwnedType> {
    let node = vec![
        owned(8, OwnedKind::ListNode),
        owned(32, OwnedKind::TreeNode),
        owned(64, OwnedKind::Refcount),
        owned(72, OwnedKind::Kptr { to: 1 }),
    ];
    vec![
        OwnedType { name: "node".into(), size: 80, fields: node, per_cpu: false },
        OwnedType { name: "plain".into(), size: 16, fields: Vec::new(), per_cpu: false },
        OwnedType { name: "chain".into(), size: 16, fields: vec![owned(8, OwnedKind::Kptr { to: 2 })], per_cpu: false },
        holder(false),
        holder(true),
        OwnedType { name: "plain".into(), size: 16, fields: Vec::new(), per_cpu: true },
    ]
}

fn field(name: &'static str, offset: u32, access: Access, kind: FieldKind, host: (u32, u32)) -> Field {
    Field { name: name.into(), offset, size: 4, access, kind, host_offset: host.0, host_size: host.1 }
}

/// A context with the kernel's `xdp_md` layout; r0 free.
pub(crate) fn xdp() -> ContextLayout {
    use Access::Read;
    let region = |name: &'static str, ends: Option<u8>| Region {
        name: name.into(),
        writable: true,
        max_len: 0xffff,
        min_len: 0,
        align: 1,
        ends_at_start_of: ends,
    };
    ContextLayout {
        name: "xdp".into(),
        raw: false,
        fields: vec![
            field("data", 0, Read, FieldKind::Data(0), (0, 8)),
            field("data_end", 4, Read, FieldKind::DataEnd(0), (8, 8)),
            field("data_meta", 8, Read, FieldKind::Data(1), (16, 8)),
            field("ingress_ifindex", 12, Read, FieldKind::Scalar, (24, 4)),
            field("rx_queue_index", 16, Access::ReadWrite, FieldKind::Scalar, (28, 4)),
        ],
        regions: vec![region("packet", None), region("metadata", Some(0))],
        legacy_loads: None,
        returns: None,
    }
}

/// The shipped helpers and a few of a host's.
pub(crate) fn helpers() -> Helpers {
    let mut h = Helpers::shipped();
    let owned = MemArg { from: MemSet::OWNED, ..MemArg::READ };
    let owned_mut = MemArg { access: Access::ReadWrite, ..owned };
    let bytes = [
        ArgKind::Mem(owned),
        ArgKind::Size { zero: true, half: false },
        ArgKind::Mem(owned_mut),
        ArgKind::Size { zero: true, half: false },
    ];
    let mut host = vec![
        HelperProto { disjoint: true, ..HelperProto::new(1001, "host_copy", &bytes, Ret::Scalar) },
        HelperProto::new(1002, "host_object", &[], Ret::HostOrNull(7)),
        HelperProto::new(1003, "host_use", &[ArgKind::Host { class: 7, null: false }], Ret::Between(0, 9)),
        HelperProto::new(1004, "host_memory", &[], Ret::MemOrNull { bytes: 32, writable: false }),
        HelperProto::new(
            1005,
            "host_struct",
            &[ArgKind::Fixed { bytes: 8, mem: MemArg { align: 8, ..owned_mut } }],
            Ret::Scalar,
        ),
        HelperProto {
            disjoint: true,
            ..HelperProto::new(
                1006,
                "host_fill",
                &[
                    ArgKind::Mem(owned),
                    ArgKind::Size { zero: true, half: false },
                    ArgKind::Mem(MemArg { from: MemSet::ANY, ..owned_mut }),
                    ArgKind::Size { zero: true, half: false },
                ],
                Ret::Scalar,
            )
        },
        HelperProto::new(
            1007,
            "host_take_memory",
            &[ArgKind::Fixed { bytes: 8, mem: MemArg { from: MemSet::MEM, ..MemArg::READ } }],
            Ret::Scalar,
        ),
        HelperProto::new(1008, "host_buffer", &[], Ret::MemOrNull { bytes: 32, writable: true }),
        HelperProto::new(1009, "host_end", &[], Ret::Never),
        HelperProto {
            effect: Effect::Sleeps,
            ..HelperProto::new(SLEEPING, "host_fetch", &[ArgKind::Scalar], Ret::Scalar)
        },
    ];
    // The kernel's functions that are called by name, by numbers.
    host.extend((FIRST_KFUNC..).zip(Kfunc::ALL).map(|(id, known)| HelperProto { id, ..bpf_verifier::kfunc(*known) }));
    let of_compilers = Builtin::ALL.map(bpf_verifier::builtin);
    host.extend((FIRST_BUILTIN..).zip(of_compilers).map(|(id, proto)| HelperProto { id, ..proto }));
    for p in host.drain(..) {
        h.add(p).expect("host ids are free");
    }
    h
}

/// Signatures by subprogram: a program with a line `;global` has the mentioned subprograms global, `static` ones in
/// between not.
pub(crate) fn globals(text: &str) -> Vec<Option<GlobalFunc>> {
    let Some(line) = text.lines().find_map(|l| l.trim().strip_prefix(";global ")) else { return Vec::new() };
    let mut out = vec![None];
    for func in line.split_whitespace() {
        if func == "static" {
            out.push(None);
            continue;
        }
        let args = func
            .split(',')
            .filter_map(|a| match a {
                "scalar" => Some(GlobalArg::Scalar),
                "ctx" => Some(GlobalArg::Ctx),
                "mem" => Some(GlobalArg::Mem(8)),
                "nonnull" => Some(GlobalArg::NonNull(8)),
                _ => None,
            })
            .collect();
        out.push(Some(GlobalFunc { name: "global".into(), args }));
    }
    out
}

/// Runs `f` with the environment for a program text: `;raw` selects the raw context, otherwise xdp; `;skb` adds legacy
/// loads to it, `;verdict` lets programs return 0 or 1 only, `;privileged` lets them show addresses, `;sleepable` lets
/// them sleep, and adds a per-CPU array, `map[fd:19]`, `;yields` lets them sleep where loops begin a round.
pub(crate) fn with_env<T>(text: &str, f: impl FnOnce(&Env<'_>) -> T) -> T {
    let returns = text.contains(";verdict").then_some((0, 1));
    let xdp =
        || ContextLayout { legacy_loads: text.contains(";skb").then_some(HeaderPlaces::LinkFirst), returns, ..xdp() };
    let context = if text.contains(";raw") { ContextLayout::raw(true) } else { xdp() };
    let (helpers, mut maps, globals, types) = (helpers(), maps(), globals(text), types());
    let targets = targets(text);
    if !targets.is_empty() {
        let table = KnownMap::new("table", MapType::InsnArray, 4, 16, targets.len() as u32);
        maps.push(KnownMap { access: Access::Read, targets, ..table });
    }
    if text.contains(";sleepable") {
        maps.push(KnownMap::new("slots", MapType::PerCpuArray, 4, 16, 4));
    }
    let mut env = Env::new(&context, &helpers);
    env.privileged = text.contains(";privileged");
    env.sleepable = text.contains(";sleepable");
    env.yields = text.contains(";yields");
    env.maps = &maps;
    env.types = &types;
    env.local_types = &[(7, 0), (8, 1), (8, 5), (9, 2), (10, 3), (11, 4)];
    env.global_functions = &globals;
    let exception = text.lines().find_map(|l| l.trim().strip_prefix(";exception "));
    env.exception = exception.map(|sub| SubprogId(sub.parse().expect("the number of a subprogram")));
    f(&env)
}

/// The program of a text.
pub(crate) fn program(text: &str) -> Program {
    try_program(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The program of a text, in which functions of the kernel and of compilers may be called by name, or what is wrong
/// with the text.
pub(crate) fn try_program(text: &str) -> Result<Program, String> {
    let id = |name: &str| match Kfunc::from_name(name) {
        Some(known) => Some(FIRST_KFUNC + known as u32),
        None => Builtin::from_name(name).map(|builtin| FIRST_BUILTIN + builtin as u32),
    };
    let line = |line: &str| match line.strip_prefix("call ").and_then(id) {
        Some(id) => format!("call {id}"),
        None => line.to_owned(),
    };
    let text = text.lines().map(line).collect::<Vec<_>>().join("\n");
    Program::with_targets(assemble(&text).map_err(|e| e.to_string())?, targets(&text)).map_err(|e| e.to_string())
}

/// The targets of the map `map[fd:19]`: the labels of a line `;targets`.
fn targets(text: &str) -> Vec<InsnIdx> {
    let Some(line) = text.lines().find_map(|l| l.trim().strip_prefix(";targets ")) else { return Vec::new() };
    let labels: Vec<&str> = line.split_whitespace().collect();
    // Jumps to them behind the program say where they are.
    let jumps: String = labels.iter().map(|label| format!("\ngoto {label}")).collect();
    let insns = assemble(&format!("{text}{jumps}")).expect("a program with these labels");
    let first = insns.len() - labels.len();
    let target = |i: usize| InsnIdx(i as u32).jump(insns[i].jump_offset()?);
    (first..insns.len()).map(|i| target(i).expect("a jump")).collect()
}

/// A function that may sleep.
pub(crate) const SLEEPING: u32 = 1600;
/// The number of the first of the kernel's functions that are called by name.
const FIRST_KFUNC: u32 = 1010;
/// The first of the functions that compilers call.
const FIRST_BUILTIN: u32 = 1500;

/// Verifies a text.
pub(crate) fn verify(text: &str) -> Result<Verified, Box<VerifyError>> {
    with_env(text, |env| Verifier::new().verify(program(text), env))
}

/// An unsafe program, why it is refused, and its safe twin.
pub(crate) struct Pair<'a> {
    pub(crate) name: &'a str,
    pub(crate) refused: &'a str,
    pub(crate) reason: &'a str,
    pub(crate) accepted: &'a str,
}

/// Attributes behind a header that contains their total length: the program tests `end - p >= 4` instead of `p + 4 <=
/// end`.
pub(crate) const ATTRIBUTES: &str = ";raw
    if r2 < 20 goto out
    r4 = *(u16 *)(r1 + 2)
    r2 += -20
    if r2 < r4 goto out
    r1 += 20
    r3 = r1
    r3 += r4
    a: r4 = r3
    r4 -= r1
    if r4 s< 4 goto out
    r5 = *(u16 *)(r1 + 2)
    r1 += 4
    r4 = r3
    r4 -= r1
    r1 += r5
    if r4 s>= r5 goto a
    out: r0 = 0
    exit";

/// The pairs of `pairs.txt`.
pub(crate) fn pairs() -> Vec<Pair<'static>> {
    include_str!("../../pairs.txt")
        .split("\n== ")
        .skip(1)
        .map(|chunk| {
            let (name, rest) = chunk.split_once('\n').expect("a name");
            let (refused, rest) = rest.split_once("\n-- ").expect("a reason");
            let (reason, accepted) = rest.split_once('\n').expect("a safe program");
            Pair { name, refused, reason, accepted }
        })
        .collect()
}

/// Whether there is an instruction in the text.
pub(crate) fn has_code(text: &str) -> bool {
    text.lines().any(|l| !l.trim().is_empty() && !l.trim().starts_with(';'))
}

/// Refuses a program that reads out of the buffer on some path.
pub(crate) fn refused(text: &str) {
    if verify(text).is_ok() {
        panic!("accepted:\n{text}");
    }
}

/// Accepts it.
pub(crate) fn accepted(text: &str) {
    if let Err(e) = verify(text) {
        panic!("{e}\n{text}");
    }
}
