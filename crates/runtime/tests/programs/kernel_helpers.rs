//! Single helpers compared with the running kernel, by a table.
//!
//! A row of [`ROWS`] is a helper and the values for each of its arguments, at the bounds and beyond. Every combination
//! is a program, which runs on packets of every length and shape for each program type whose test runs the kernel
//! offers. The result, the program's memory, the packet and the context's fields afterwards must be equal. A helper
//! that is shipped and has no row is in [`ELSEWHERE`] with the reason.
//!
//! Fields of contexts are compared, too: every offset, size and direction that the kernel accepts.
//!
//! Every program that the kernel accepts at load must be accepted here; the converse is not tested.

use bpf_runtime::{
    Config, Context, Engine, Linker, Mode, Program,
    code::Arch,
    isa::Insn,
    net::{SkBuff, SkFields, Skb, Xdp, XdpBuff},
};
use bpf_testkit::kernel::{self, ProgramType};
use bpf_testkit::skipped;
use bpf_uapi::Helper;
use std::collections::{BTreeMap, BTreeSet};

/// Kinds of programs, by the kernel's type and how its test run shows the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
enum Hook {
    Xdp,
    Classifier,
    Cgroup,
    Filter,
    Dissector,
}

const HOOKS: [Hook; 5] = [Hook::Xdp, Hook::Classifier, Hook::Cgroup, Hook::Filter, Hook::Dissector];

impl Hook {
    fn load(self, text: &str) -> Result<kernel::Program, kernel::LoadError> {
        let bytes = bpf_isa::encode(&insns(text)).unwrap();
        let kind = match self {
            Hook::Xdp => ProgramType::Xdp,
            Hook::Classifier => ProgramType::TcClassifier,
            Hook::Cgroup => ProgramType::CgroupSkb,
            Hook::Filter => ProgramType::SocketFilter,
            Hook::Dissector => ProgramType::FlowDissector,
        };
        kernel::Program::load(kind, &bytes)
    }

    /// Whether programs see the packet from its network header on.
    fn layer3(self) -> bool {
        matches!(self, Hook::Cgroup | Hook::Filter)
    }
}

/// The set of values for an argument.
#[derive(Clone, Copy)]
enum Arg {
    /// The context.
    Ctx,
    /// A number; the tests try each of these.
    Of(&'static [i64]),
    /// 64 bytes of the stack, filled with a pattern, and compared afterwards.
    Stack,
    /// The upper half of the bytes of [`Arg::Stack`].
    Upper,
    /// The upper half, or one of these numbers.
    UpperOr(&'static [i64]),
}

struct Row {
    helper: Helper,
    args: &'static [Arg],
}

const LAYER3: &str = "a packet of layer 3 has no link header here (docs/book/reference/helpers.md)";

/// Intended differences: the helper, the program type (`None`: all), the reason.
const MEANT: &[(Helper, Option<Hook>, &str)] = &[
    (Helper::SkbLoadBytes, Some(Hook::Dissector), "the kernel's test run has no packet that this helper could read"),
    (Helper::SkbLoadBytesRelative, Some(Hook::Filter), LAYER3),
    (Helper::SkbLoadBytesRelative, Some(Hook::Cgroup), LAYER3),
    (
        Helper::XdpLoadBytes,
        None,
        "an error zeroes the target (docs/book/reference/helpers.md): its errors are compared in packets.rs",
    ),
];

use Arg::{Ctx, Of, Stack, Upper, UpperOr};

const OFFSETS: Arg = Of(&[0, 1, 13, 14, 24, 33, 40, 60, 0xffff, 0x1_0000, 0xffff_ffff, -1]);
const LENGTHS: Arg = Of(&[0, 1, 2, 6, 16, 32]);
const SMALL: Arg = Of(&[0, 1, 2, 4, -1]);
const FLAGS: Arg = Of(&[0, 1, 2, 4, 8, 0x10, 1 << 32]);
const CHANGES: Arg = Of(&[0, 0x1234, 0xffff, 0x0a00_0001, 0xffff_ffff]);
const DELTAS: Arg = Of(&[
    0,
    1,
    -1,
    4,
    -4,
    14,
    -14,
    20,
    -20,
    40,
    -40,
    216,
    -216,
    -217,
    255,
    -256,
    1000,
    i32::MAX as i64,
    i32::MIN as i64,
]);

/// Sources of a copy: of the program's own, and addresses where nothing is, in each half of the address space.
const SOURCES: Arg = UpperOr(&[0, 1, 8, 0xfff, 1 << 47, i64::MAX, i64::MIN, -1 << 47, -4096, -64]);

/// Helpers and their arguments. Adding one is adding a row.
const ROWS: &[Row] = &[
    Row { helper: Helper::ProbeReadUser, args: &[Stack, LENGTHS, SOURCES] },
    Row { helper: Helper::ProbeReadKernel, args: &[Stack, LENGTHS, SOURCES] },
    Row { helper: Helper::ProbeReadUserStr, args: &[Stack, LENGTHS, SOURCES] },
    Row { helper: Helper::ProbeReadKernelStr, args: &[Stack, LENGTHS, SOURCES] },
    Row { helper: Helper::SkbStoreBytes, args: &[Ctx, OFFSETS, Stack, LENGTHS, Of(&[0, 1, 2, 3, 4])] },
    Row { helper: Helper::L3CsumReplace, args: &[Ctx, OFFSETS, CHANGES, CHANGES, Of(&[0, 2, 4, 3, 0x12])] },
    Row {
        helper: Helper::L4CsumReplace,
        args: &[
            Ctx,
            Of(&[24, 40, 50, 59, 0xffff]),
            Of(&[0, 0x1234, 0xffff_ffff]),
            CHANGES,
            Of(&[0, 2, 4, 0x12, 0x14, 0x24, 0x34, 0x62, 0x84, 0x94, 0x104, 5]),
        ],
    },
    Row { helper: Helper::GetCurrentPidTgid, args: &[] },
    Row { helper: Helper::GetCurrentUidGid, args: &[] },
    Row { helper: Helper::GetCurrentComm, args: &[Stack, Of(&[1, 2, 16, 20])] },
    Row { helper: Helper::GetCgroupClassid, args: &[Ctx] },
    Row { helper: Helper::GetRouteRealm, args: &[Ctx] },
    Row {
        helper: Helper::SkbVlanPush,
        args: &[Ctx, Of(&[0x0081, 0xa888, 0, 0x0008]), Of(&[0, 5, 0x0fff, 0x1000, 0xffff, 0x1_0005])],
    },
    Row { helper: Helper::SkbVlanPop, args: &[Ctx] },
    Row { helper: Helper::Redirect, args: &[Of(&[0, 1, 7, -1]), FLAGS] },
    Row { helper: Helper::SkbLoadBytes, args: &[Ctx, OFFSETS, Stack, LENGTHS] },
    Row { helper: Helper::CsumDiff, args: &[Stack, Of(&[0, 4, 8, 12, 3, 16]), Upper, Of(&[0, 4, 8, 5, 16]), CHANGES] },
    Row { helper: Helper::SkbChangeProto, args: &[Ctx, Of(&[0x0008, 0xdd86, 0, 0x0608, 0x1_0008]), FLAGS] },
    Row { helper: Helper::SkbChangeType, args: &[Ctx, Of(&[0, 1, 2, 3, 4, 7, 8, -1])] },
    Row {
        helper: Helper::SkbChangeTail,
        args: &[Ctx, Of(&[0, 1, 13, 14, 15, 20, 33, 34, 60, 61, 100, 1500, 4000, 16_064, 65_536, -1]), FLAGS],
    },
    Row { helper: Helper::SkbPullData, args: &[Ctx, Of(&[0, 1, 14, 34, 60, 200, 2000, 65_536, -1])] },
    Row { helper: Helper::CsumUpdate, args: &[Ctx, CHANGES] },
    Row { helper: Helper::SetHashInvalid, args: &[Ctx] },
    Row { helper: Helper::GetNumaNodeId, args: &[] },
    Row { helper: Helper::SkbChangeHead, args: &[Ctx, Of(&[0, 1, 4, 14, 16, 40, 100, 4096, 65_536, -1]), FLAGS] },
    Row { helper: Helper::XdpAdjustHead, args: &[Ctx, DELTAS] },
    Row { helper: Helper::SetHash, args: &[Ctx, CHANGES] },
    Row {
        helper: Helper::SkbAdjustRoom,
        args: &[
            Ctx,
            Of(&[0, 1, 4, 20, 28, 40, 256, 4096, -1, -4, -20, -40, -60]),
            Of(&[0, 1, 2, -1]),
            Of(&[0, 1, 2, 4, 6, 8, 0x0a, 0x14, 0x20, 0x40, 0x80, 0x100, 0x180, 0x200, 1 << 32]),
        ],
    },
    Row {
        helper: Helper::XdpAdjustMeta,
        args: &[Ctx, Of(&[0, 4, -4, -8, -3, -32, -36, -200, -216, -217, -252, -256, 1, i32::MIN as i64])],
    },
    Row {
        helper: Helper::XdpAdjustTail,
        args: &[
            Ctx,
            Of(&[0, 1, -1, 8, -8, -20, -46, -60, 100, 1000, 3000, 3506, 3507, 4000, i32::MAX as i64, i32::MIN as i64]),
        ],
    },
    Row { helper: Helper::SkbLoadBytesRelative, args: &[Ctx, OFFSETS, Stack, LENGTHS, Of(&[0, 1, 2])] },
    Row { helper: Helper::SkbEcnSetCe, args: &[Ctx] },
    Row { helper: Helper::Strtol, args: &[Stack, Of(&[0, 1, 8, 24]), Of(&[0, 8, 10, 16, 3, 1 << 32]), Upper] },
    Row { helper: Helper::Strtoul, args: &[Stack, Of(&[0, 1, 8, 24]), Of(&[0, 8, 10, 16, 3, 1 << 32]), Upper] },
    Row { helper: Helper::CsumLevel, args: &[Ctx, Of(&[0, 1, 2, 3, 4, -1, 1 << 32])] },
    Row { helper: Helper::SkbCgroupClassid, args: &[Ctx] },
    Row { helper: Helper::RedirectNeigh, args: &[Of(&[0, 1, 7]), Stack, Of(&[0, 19, 20, 24]), SMALL] },
    Row { helper: Helper::RedirectPeer, args: &[Of(&[0, 1, 7]), FLAGS] },
    Row { helper: Helper::XdpGetBuffLen, args: &[Ctx] },
    Row { helper: Helper::XdpLoadBytes, args: &[Ctx, OFFSETS, Stack, Of(&[1, 2, 6, 16, 32])] },
    Row { helper: Helper::XdpStoreBytes, args: &[Ctx, OFFSETS, Stack, Of(&[1, 2, 6, 16, 32])] },
    Row { helper: Helper::SkbSetTstamp, args: &[Ctx, Of(&[0, 1, 1 << 40]), Of(&[0, 1, 2, 3, 4])] },
    Row {
        helper: Helper::SkbSetTunnelKey,
        args: &[Ctx, Stack, Of(&[0, 4, 8, 22, 24, 28, 44]), Of(&[0, 1, 2, 4, 8, 32])],
    },
    Row {
        helper: Helper::SkbGetTunnelKey,
        args: &[Ctx, Stack, Of(&[0, 4, 8, 22, 24, 28, 44]), Of(&[0, 1, 16, 17, 2])],
    },
    Row { helper: Helper::SkbGetTunnelOpt, args: &[Ctx, Stack, Of(&[4, 0, 5, 32])] },
    Row { helper: Helper::SkbSetTunnelOpt, args: &[Ctx, Stack, Of(&[4, 0, 5, 32])] },
    Row { helper: Helper::TcpRawCheckSyncookieIpv4, args: &[Stack, Upper] },
    Row { helper: Helper::TcpRawCheckSyncookieIpv6, args: &[Stack, Upper] },
];

/// Shipped helpers that have no row, and where or why.
const ELSEWHERE: &[(&[u32], &str)] = &[
    (&[1, 2, 3, 87, 88, 89, 130, 131, 132, 133, 134], "maps: kernel_maps.rs, and maps/tests/types/kernel.rs"),
    (
        &[164, 181, 195, 209],
        "callbacks, other CPUs' values and rings of the user's: no test run compares them but those of programs",
    ),
    (&[5, 7, 8, 118, 125, 160, 208], "times, numbers by chance, CPUs"),
    (&[6, 165, 177, 182], "formats and constant strings: formats.rs"),
    (&[4, 45], "of tracing programs in the kernel: probe_read.rs"),
    (&[12], "tail calls: differential.rs"),
    (&[23, 51], "to maps: redirect.rs"),
    (&[25], "records for the host: rings.rs"),
    (&[13, 69, 163], "what a network answers: skb.rs, in an empty namespace"),
    (
        &[34, 46, 47, 122],
        "keyed by chance, or a number that the kernel makes: hashes, cookies; a test run's socket has no owner",
    ),
    (&[53, 59, 70, 84, 85, 86, 95, 96, 98, 99, 124], "sockets: network_programs.rs, sockets.rs, sock_hooks.rs"),
    (&[79, 83, 128, 129], "the kernel's control groups have ids"),
    (&[93, 94], "locks: network_programs.rs"),
    (&[169, 170, 171, 172], "timers: timers.rs"),
    (&[153, 154, 194], "objects: owned.rs, owned_percpu.rs"),
    (&[197, 198, 199, 200, 201, 202, 203], "dynptrs: dynptrs.rs"),
    (&[204, 205], "cookies of another secret: network_programs.rs"),
    (&[156, 157, 158], "what programs keep of threads: threads.rs, the same program in the kernel"),
    (&[107, 108], "what programs keep of sockets: storage.rs, the same program in the kernel"),
];

fn insns(text: &str) -> Vec<Insn> {
    bpf_runtime::isa::assemble(&text.replace("; ", "\n")).unwrap_or_else(|e| panic!("{e} in\n{text}"))
}

/// How a program tells r7, with the context in r6: returned, or where the kernel allows but 0 and 1, as the mark.
fn end(hook: Hook) -> &'static str {
    match hook {
        Hook::Cgroup => "r0 = r7; r7 >>= 32; r0 ^= r7; *(u32 *)(r6 + 8) = r0; r0 = 1; exit",
        Hook::Xdp | Hook::Classifier | Hook::Filter | Hook::Dissector => "r0 = r7; r7 >>= 32; r0 ^= r7; exit",
    }
}

/// Every combination of arguments: programs that make one call, and mix its result and the stack into their own result.
fn programs(row: &Row, hook: Hook) -> Vec<String> {
    let end = end(hook);
    let mut calls = vec![String::new()];
    for (i, arg) in row.args.iter().enumerate() {
        let r = i + 1;
        let choices: Vec<String> = match arg {
            Ctx => vec![format!("r{r} = r6; ")],
            Of(numbers) => numbers.iter().map(|n| format!("r{r} = {n} ll; ")).collect(),
            Stack => vec![format!("r{r} = r10; r{r} += -64; ")],
            Upper => vec![format!("r{r} = r10; r{r} += -32; ")],
            UpperOr(numbers) => [format!("r{r} = r10; r{r} += -32; ")]
                .into_iter()
                .chain(numbers.iter().map(|n| format!("r{r} = {n} ll; ")))
                .collect(),
        };
        calls = calls.iter().flat_map(|call| choices.iter().map(move |choice| format!("{call}{choice}"))).collect();
    }
    let fill: String = (1..=8)
        .map(|i| format!("r1 = {} ll; *(u64 *)(r10 - {}) = r1; ", 0x3132_3334_2035_3637u64.wrapping_mul(i * i), 8 * i))
        .collect();
    let mix: String = (1..=8).map(|i| format!("r1 = *(u64 *)(r10 - {}); r7 *= 31; r7 += r1; ", 8 * i)).collect();
    calls.iter().map(|call| format!("r6 = r1; {fill}{call}call {}; r7 = r0; {mix}{end}", row.helper.id())).collect()
}

/// Room around a packet, as the kernel's test runs have it.
const XDP_HEADROOM: usize = 256 - 40;
const XDP_ROOM: usize = 4096 - 256 - 320;
const SKB_HEADROOM: usize = 20_000;
const SKB_TAILROOM: usize = 80_000;

/// r0, the packet, and of `struct __sk_buff` the fields that programs may write and the kernel tells afterwards.
type Outcome = (u32, Vec<u8>, Vec<u32>);

/// Fields that both sides begin with, at their offsets in `struct __sk_buff`.
const GIVEN: [(usize, u32); 7] = [(8, 0x1234_5678), (32, 7), (48, 1), (52, 2), (56, 3), (60, 4), (64, 5)];

enum Engines {
    Xdp(Vec<Program<Xdp, ()>>),
    Skb(Vec<Program<Skb, ()>>),
}

fn load<C: Context>(text: &str) -> Result<Vec<Program<C, ()>>, String> {
    let modes = [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit));
    modes
        .map(|mode| {
            let config = Config::new().mode(mode);
            let linker = Linker::<()>::new(&Engine::new(config).unwrap());
            linker.loader::<C>().insns("test", insns(text)).map_err(|e| e.to_string())
        })
        .collect()
}

impl Engines {
    fn load(hook: Hook, text: &str) -> Result<Engines, String> {
        if hook == Hook::Xdp { load(text).map(Engines::Xdp) } else { load(text).map(Engines::Skb) }
    }

    fn run(&self, hook: Hook, packet: &[u8]) -> Vec<Outcome> {
        match self {
            Engines::Xdp(programs) => programs.iter().map(|program| run_xdp(program, packet)).collect(),
            Engines::Skb(programs) => programs.iter().map(|program| run_skb(program, hook, packet)).collect(),
        }
    }
}

fn run_xdp(program: &Program<Xdp, ()>, packet: &[u8]) -> Outcome {
    let mut buffer = vec![0; XDP_HEADROOM + XDP_ROOM];
    buffer[XDP_HEADROOM..][..packet.len()].copy_from_slice(packet);
    let mut buff = XdpBuff::with_room(&mut buffer, XDP_HEADROOM, packet.len());
    buff.ingress_ifindex = 1;
    let r0 = program.run(&mut (), &mut buff).unwrap() as u32;
    (r0, [buff.metadata(), buff.packet()].concat(), Vec::new())
}

fn run_skb(program: &Program<Skb, ()>, hook: Hook, packet: &[u8]) -> Outcome {
    let mut buffer = vec![0; SKB_HEADROOM + packet.len() + SKB_TAILROOM];
    buffer[SKB_HEADROOM..][..packet.len()].copy_from_slice(packet);
    let mut buff = if hook.layer3() {
        let protocol = u16::from_be_bytes([packet[12], packet[13]]);
        SkBuff::layer3(&mut buffer, SKB_HEADROOM + 14, packet.len() - 14, protocol)
    } else {
        SkBuff::with_room(&mut buffer, SKB_HEADROOM, packet.len())
    };
    buff.fields.pkt_type = if packet[0] & 1 == 0 { 3 } else { 2 };
    buff.fields.ifindex = 1;
    if hook == Hook::Cgroup {
        own_socket(&mut buff.fields, packet);
    }
    if hook != Hook::Dissector {
        (buff.fields.mark, buff.fields.priority, buff.fields.cb) = (GIVEN[0].1, GIVEN[1].1, [1, 2, 3, 4, 5]);
    }
    let r0 = program.run(&mut (), &mut buff).unwrap() as u32;
    let fields = &buff.fields;
    let after = [fields.mark, fields.priority].into_iter().chain(fields.cb).collect();
    match hook {
        Hook::Dissector => (r0, Vec::new(), Vec::new()),
        _ if hook.layer3() => (r0, [&[0; 14], buff.packet()].concat(), after),
        _other => (r0, buff.packet().to_vec(), after),
    }
}

/// Sets the fields of the socket of a test run: the packet's addresses, where the socket's own address is the packet's
/// source.
fn own_socket(fields: &mut SkFields, packet: &[u8]) {
    let word = |at: usize| packet.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes(bytes.try_into().unwrap()));
    let words = |at: usize| [0, 4, 8, 12].map(|i| word(at + i));
    match (&packet[12..14], packet.len() - 14) {
        ([8, 0], 0..20) => fields.family = 2,
        ([8, 0], _) => (fields.family, fields.local_ip4, fields.remote_ip4) = (2, word(26), word(30)),
        ([0x86, 0xdd], 0..40) => fields.family = 10,
        ([0x86, 0xdd], _) => (fields.family, fields.local_ip6, fields.remote_ip6) = (10, words(22), words(38)),
        _other => {}
    }
}

/// `None`: the kernel's test run takes no such packet.
fn run_kernel(program: &kernel::Program, hook: Hook, packet: &[u8]) -> Option<Outcome> {
    let result = match hook {
        Hook::Xdp => program.test_run_output(packet).map(|(r0, packet)| (r0, packet, Vec::new())),
        Hook::Dissector => program.test_run_output(packet).map(|(r0, _)| (r0, Vec::new(), Vec::new())),
        Hook::Classifier | Hook::Cgroup | Hook::Filter => {
            let mut context = [0u8; 192];
            for (at, value) in GIVEN {
                context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            }
            program.test_run_context(packet, &context).map(|(r0, packet, context)| {
                let word = |at: usize| u32::from_ne_bytes(context[at..at + 4].try_into().unwrap());
                (r0, packet, GIVEN.map(|(at, _)| word(at)).to_vec())
            })
        }
    };
    match result {
        Ok(outcome) => Some(outcome),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => None,
        Err(e) => panic!("{e}"),
    }
}

/// Every length from the shortest; IPv4 with options and fragments, IPv6 with extension headers; tags; neither.
fn packets() -> Vec<Vec<u8>> {
    let link = |kind: [u8; 2], payload: &[u8]| [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind, payload].concat();
    let body: Vec<u8> = (0..200).collect();
    let v4 = |ihl: u8, fragment: [u8; 2], proto: u8| {
        let mut header = vec![0x40 | ihl, 1, 0, 120, 0x12, 0x34];
        header.extend(fragment);
        header.extend([64, proto, 0x54, 0x89, 10, 0, 0, 1, 10, 0, 0, 2]);
        header.resize(usize::from(ihl) * 4, 1);
        [header, body[..100].to_vec()].concat()
    };
    let v6 = |next: u8| {
        [&[0x60, 0x10, 0, 0, 0, 100, next, 64][..], &[0x20; 32], &[6, 0, 0, 0, 1, 2, 3, 4], &body[..92]].concat()
    };
    let tagged = |kind: [u8; 2], inner: &[u8]| [&[0x20, 0x64], &kind[..], inner].concat();
    let whole = [
        link([8, 0], &v4(5, [0, 0], 6)),
        link([8, 0], &v4(5, [0, 0], 17)),
        link([8, 0], &v4(7, [0x40, 0], 6)),
        link([8, 0], &v4(5, [0x20, 0], 17)),
        link([8, 0], &v4(5, [0x20, 0x10], 17)),
        link([0x86, 0xdd], &v6(6)),
        link([0x86, 0xdd], &v6(0)),
        link([0x86, 0xdd], &v6(44)),
        link([0x81, 0], &tagged([8, 0], &v4(5, [0, 0], 6))),
        link([0x88, 0xa8], &tagged([0x81, 0], &tagged([0x86, 0xdd], &v6(17)))),
        link([8, 6], &body[..28]),
        link([0x12, 0x34], &body),
        link([8, 0], &[v4(5, [0, 0], 6), vec![7; 1400]].concat()),
    ];
    let cut = (14..=62).map(|len| whole[0][..len].to_vec());
    let cut6 = [14, 18, 33, 53, 54, 55, 60, 62].map(|len| whole[5][..len].to_vec());
    whole.iter().cloned().chain(cut).chain(cut6).collect()
}

#[test]
fn every_helper_does_as_the_kernels() {
    if let Err(reason) = kernel::available() {
        return skipped("helpers, one by one, against the kernel", &reason);
    }
    // Few programs see all packets, all programs see a few: which ones moves on from program to program.
    let packets = packets();
    let (mut programs_run, mut compared, mut refused) = (0, 0, BTreeMap::<&str, usize>::new());
    let mut asked: BTreeMap<(&str, Hook), usize> = BTreeMap::new();
    let mut differ: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for row in ROWS {
        for hook in HOOKS {
            if MEANT.iter().any(|(helper, of, _)| *helper == row.helper && of.is_none_or(|of| of == hook)) {
                continue;
            }
            for (i, text) in programs(row, hook).iter().enumerate() {
                let Ok(theirs) = hook.load(text) else {
                    *refused.entry(row.helper.name()).or_default() += 1;
                    // A helper that the kernel lacks for this program type is not tried with further arguments.
                    if i == 0 && programs(row, hook).iter().step_by(3).all(|text| hook.load(text).is_err()) {
                        break;
                    }
                    continue;
                };
                let name = || format!("{} {hook:?}", row.helper.name());
                let ours = match Engines::load(hook, text) {
                    Ok(ours) => ours,
                    Err(error) => {
                        differ.entry(name()).or_insert((0, format!("refused here: {error}\n{text}"))).0 += 1;
                        continue;
                    }
                };
                programs_run += 1;
                for packet in packets.iter().skip(i % 5).step_by(5) {
                    let Some(expected) = run_kernel(&theirs, hook, packet) else { continue };
                    for outcome in ours.run(hook, packet) {
                        if outcome != expected {
                            let text = text.split("r1 = *(u64 *)(r10 - 8); r7").next().unwrap_or_default();
                            let call = text.rsplit("*(u64 *)(r10 - 64) = r1; ").next().unwrap_or_default();
                            let how = format!("{packet:02x?}\nours {outcome:x?}\ntheirs {expected:x?}\n{call}");
                            differ.entry(name()).or_insert((0, how)).0 += 1;
                        }
                        compared += 1;
                    }
                    *asked.entry((row.helper.name(), hook)).or_default() += 1;
                }
            }
        }
    }
    println!("{} helpers, {programs_run} programs, {compared} runs compared", ROWS.len());
    let hooks: BTreeSet<_> = asked.keys().map(|(_, hook)| *hook).collect();
    assert_eq!(hooks.len(), HOOKS.len(), "compared in {hooks:?} only");
    let helpers: BTreeSet<_> = asked.keys().map(|(name, _)| *name).collect();
    for row in ROWS.iter().filter(|row| !MEANT.iter().any(|(helper, of, _)| *helper == row.helper && of.is_none())) {
        assert!(helpers.contains(row.helper.name()), "{} was never compared", row.helper.name());
    }
    let shown: Vec<_> = differ.iter().map(|(name, (times, how))| format!("{name}: {times}\n{how}")).collect();
    assert!(differ.is_empty(), "{} differ\n{}", differ.len(), shown.join("\n\n"));
}

/// Each shipped helper has a row, or a reason.
#[test]
fn every_helper_has_a_row_or_a_reason() {
    let shipped = bpf_verifier::Helpers::shipped();
    for helper in Helper::ALL.iter().copied().filter(|helper| shipped.get(helper.id()).is_some()) {
        let rows = ROWS.iter().filter(|row| row.helper == helper).count();
        let reasons = ELSEWHERE.iter().filter(|(ids, _)| ids.contains(&helper.id())).count();
        assert!(rows <= 1 && reasons <= 1 && rows + reasons >= 1, "{}: {rows} rows, {reasons} reasons", helper.name());
    }
}

/// Reads of a part of a field that differ and are meant to: offsets in `struct __sk_buff`, sizes, the reason.
const MEANT_FIELDS: &[(&[usize], &[usize], &str)] = &[
    (&[5, 6, 7], &[1, 2], "the kernel keeps `pkt_type` in a byte, and reads that byte for each of the four"),
    (&[18], &[2], "the kernel keeps `protocol` in two bytes, and reads these for both halves"),
    (&[90], &[2], "`family`, the same"),
];

/// Each field at each offset, size and direction: an access that the kernel accepts is accepted here, and reads the
/// same.
#[test]
fn every_field_is_the_kernels() {
    if let Err(reason) = kernel::available() {
        return skipped("fields, one by one, against the kernel", &reason);
    }
    let packets = packets();
    let (mut accesses, mut compared, mut differ) = (0, 0, BTreeMap::<String, String>::new());
    let mut asked = BTreeSet::new();
    for hook in HOOKS {
        let struct_size = if hook == Hook::Xdp { 24 } else { 192 };
        for (size, bytes) in [("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)] {
            for offset in (0..struct_size).step_by(bytes) {
                let load = format!("r2 = *({size} *)(r1 + {offset})");
                let store = format!("r2 = 1; *({size} *)(r1 + {offset}) = r2");
                for (how, access) in [("load", load), ("store", store)] {
                    let Ok(_) = hook.load(&format!("{access}; r0 = 0; exit")) else { continue };
                    accesses += 1;
                    let meant =
                        |(at, sizes, _): &(&[usize], &[usize], &str)| at.contains(&offset) && sizes.contains(&bytes);
                    if hook != Hook::Xdp && how == "load" && MEANT_FIELDS.iter().any(meant) {
                        continue;
                    }
                    let name = format!("{hook:?}: {how} of {size} at {offset}");
                    if let Err(error) = Engines::load(hook, &format!("{access}; r0 = 0; exit")) {
                        differ.insert(name, error.lines().next().unwrap_or_default().to_owned());
                        continue;
                    }
                    let back = format!("r7 = *({size} *)(r6 + {offset}); {}", end(hook));
                    let before = if how == "load" { String::new() } else { format!("{access}; ") };
                    let text = format!("r6 = r1; {before}{back}");
                    // An address is not returned here.
                    let (Ok(theirs), Ok(ours)) = (hook.load(&text), Engines::load(hook, &text)) else { continue };
                    for packet in packets.iter().step_by(7) {
                        let Some(expected) = run_kernel(&theirs, hook, packet) else { continue };
                        for outcome in ours.run(hook, packet) {
                            compared += 1;
                            asked.insert(hook);
                            if outcome != expected {
                                let how = format!("{outcome:x?}, the kernel's {expected:x?}");
                                differ.entry(name.clone()).or_insert(how);
                            }
                        }
                    }
                }
            }
        }
    }
    // The dissector's fields are addresses.
    assert_eq!(asked.len(), HOOKS.len() - 1, "compared in {asked:?} only");
    println!("{accesses} accesses that the kernel accepts, {compared} runs compared");
    let shown: Vec<_> = differ.iter().map(|(name, how)| format!("{name}: {how}")).collect();
    assert!(differ.is_empty(), "{} differ\n{}", differ.len(), shown.join("\n"));
}
