//! Effects of the helpers of `struct __sk_buff` on packets, compared with the kernel byte by byte.
//!
//! Programs are sequences of calls with arguments from and beyond what the helpers take; each notes every result, the
//! fields afterwards and what stands at the link and network headers. The kernel runs the same programs over the same
//! packets (BPF_PROG_TEST_RUN), where the process may.

use bpf_runtime::net::{Device, FibLookup, FibVerdict, Network, Nexthop, Sent, Tunnel};
use bpf_runtime::{
    Config, Context, Engine, Linker, Mode, Program, RunError,
    code::Arch,
    error::Errno,
    isa::Insn,
    net::{Redirect, SkBuff, Skb, Xdp, XdpBuff},
};
use bpf_testkit::kernel::{self, ProgramType};
use bpf_testkit::skipped;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Room before and behind a packet in the host's buffer, in bytes.
const HEADROOM: usize = 20_000;
const TAILROOM: usize = 20_000;

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

fn insns(text: &str) -> Vec<Insn> {
    bpf_runtime::isa::assemble(&text.replace(';', "\n")).unwrap_or_else(|e| panic!("{e} in\n{text}"))
}

fn load(text: &str) -> Vec<Program<Skb, ()>> {
    load_in(None, text)
}

fn load_in<C: Context>(network: Option<Arc<dyn Network>>, text: &str) -> Vec<Program<C, ()>> {
    let modes = [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit));
    let program = |mode| {
        let mut config = Config::new().mode(mode);
        if let Some(network) = &network {
            config = config.network(Arc::clone(network));
        }
        let linker = Linker::<()>::new(&Engine::new(config).unwrap());
        linker.loader::<C>().insns("test", insns(text)).unwrap_or_else(|e| panic!("{e}\n{text}"))
    };
    modes.map(program).collect()
}

/// r0 and the packet afterwards.
fn run(program: &Program<Skb, ()>, packet: &[u8]) -> (u32, Vec<u8>) {
    let mut buffer = vec![0xaa; HEADROOM + packet.len() + TAILROOM];
    buffer[HEADROOM..][..packet.len()].copy_from_slice(packet);
    let mut buff = SkBuff::with_room(&mut buffer, HEADROOM, packet.len());
    // The kernel's test run: the packet comes in by the loopback device, and is for another host unless its first
    // byte says that it is for many.
    buff.fields.pkt_type = if packet[0] & 1 == 0 { 3 } else { 2 };
    let r0 = program.run(&mut (), &mut buff).unwrap();
    assert_eq!(buff.fields.len as usize, buff.packet().len());
    (r0 as u32, buff.packet().to_vec())
}

fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    [&MACS[..], &kind.to_be_bytes(), payload].concat()
}

fn ipv4(tos: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = *b"\x45\x00\x00\x2e\x12\x34\x00\x00\x40\x11\x54\x89\x0a\x00\x00\x01\x0a\x00\x00\x02";
    header[1] = tos;
    [&header[..], payload].concat()
}

fn ipv6(class: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = [0x11; 40];
    (header[0], header[1], header[6]) = (0x60 | class >> 4, class << 4, 6);
    [&header[..], payload].concat()
}

/// Shapes: IPv4 and IPv6, with each ECN, behind one tag, two, and what is no IP; and each cut short.
fn packets() -> Vec<Vec<u8>> {
    let payload: Vec<u8> = (0..100).collect();
    let tag = |kind: u16, inner: &[u8]| [&[0x20, 0x64], &kind.to_be_bytes()[..], inner].concat();
    let mut whole: Vec<Vec<u8>> = (0..4).map(|ecn| ethernet(0x800, &ipv4(0xfc | ecn, &payload))).collect();
    whole.extend((0..4).map(|ecn| ethernet(0x86dd, &ipv6(ecn, &payload))));
    whole.push(ethernet(0x8100, &tag(0x800, &ipv4(1, &payload))));
    whole.push(ethernet(0x88a8, &tag(0x8100, &tag(0x86dd, &ipv6(1, &payload)))));
    whole.push(ethernet(0x8100, &tag(0x30, &[0xff, 0xff, 3, 4])));
    whole.push(ethernet(0x8100, &tag(0x30, &[0xaa, 0xaa, 3, 4])));
    whole.push(ethernet(0x806, &payload));
    let mut multicast = whole[0].clone();
    multicast[0] = 1;
    whole.push(multicast);
    let cuts = [15, 18, 20, 33, 34, 40, 53, 54, 60, 74];
    let cut = whole.iter().flat_map(|packet| cuts.map(|len| packet[..len.min(packet.len())].to_vec())).collect();
    [whole, cut].concat()
}

/// The next of a sequence of numbers (xorshift).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn pick(state: &mut u64, of: &[i64]) -> i64 {
    of[next(state) as usize % of.len()]
}

/// One call: r2 and so on by numbers, the helper.
fn call(helper: u32, args: &[i64]) -> String {
    let args: String = (2..).zip(args).map(|(r, arg)| format!("r{r} = {arg} ll; ")).collect();
    format!("r1 = r6; {args}call {helper}; r7 *= 31; r7 += r0; ")
}

/// Mixes into r7 what stands at a header.
fn header(offset: i64, len: i64, header: i64) -> String {
    format!(
        "r1 = -1; *(u64 *)(r10 - 8) = r1; r1 = r6; r2 = {offset} ll; r3 = r10; r3 += -8; r4 = {len}; r5 = {header}; \
         call 68; r7 *= 31; r7 += r0; r1 = *(u64 *)(r10 - 8); r7 *= 31; r7 += r1; "
    )
}

/// Mixes into r7 the fields that helpers change: len, pkt_type, protocol, vlan_present, vlan_tci, vlan_proto, hash.
fn fields() -> String {
    [0, 4, 16, 20, 24, 28, 68].map(|at| format!("r1 = *(u32 *)(r6 + {at}); r7 *= 31; r7 += r1; ")).concat()
}

fn operation(state: &mut u64) -> String {
    let flags = &[0, 0, 0, 0, 0, 0, 1, 1 << 33];
    let mut pick = |of: &[i64]| pick(state, of);
    match pick(&[9, 18, 18, 18, 19, 19, 31, 31, 32, 38, 39, 40, 41, 43, 48, 50, 50, 50, 50, 50, 68, 97, 135]) {
        9 => format!(
            "r1 = 0x0807060504030201 ll; *(u64 *)(r10 - 8) = r1; r1 = r6; r2 = {}; r3 = r10; r3 += -8; r4 = {}; \
             r5 = {}; call 9; r7 *= 31; r7 += r0; ",
            pick(&[0, 12, 14, 16, 30, 200]),
            pick(&[1, 2, 8]),
            pick(&[0, 1, 2, 3, 4]),
        ),
        18 => call(18, &[pick(&[0x0081, 0xa888, 0, 0x1234]), pick(&[0, 5, 0x2fff, 0xffff, 0x1_2345])]),
        19 => call(19, &[]),
        31 => call(31, &[pick(&[0x0008, 0xdd86, 0x0081, 0]), pick(flags)]),
        32 => call(32, &[pick(&[0, 1, 2, 3, 4, -1])]),
        38 => call(38, &[pick(&[0, 13, 14, 15, 33, 34, 60, 100, 1000, 16064, 16065, -1]), pick(flags)]),
        39 => call(39, &[pick(&[0, 1, 14, 60, 2000, -1])]),
        40 => call(40, &[5]),
        41 => call(41, &[]),
        43 => call(43, &[pick(&[0, 1, 4, 14, 40, 15990, 16064, i64::from(i32::MIN), -1]), pick(flags)]),
        48 => call(48, &[pick(&[0, 7, -1])]),
        50 => call(
            50,
            &[
                pick(&[0, 1, 4, 8, 20, 28, 40, 100, 4095, 4096, -1, -4, -8, -20, -28, -40, -60, -4096]),
                pick(&[0, 0, 1, 1, 2]),
                pick(&[
                    0,
                    0,
                    0,
                    1,
                    2,
                    4,
                    6,
                    2 | 8,
                    2 | 16,
                    4 | 16,
                    2 | 8 | 16,
                    4 | 64 | 14 << 56,
                    2 | 16 | 64 | 18 << 56,
                    2 | 64 | 13 << 56,
                    2 | 60 << 56,
                    32,
                    128,
                    256,
                    128 | 256,
                    512,
                ]),
            ],
        ),
        68 => header(pick(&[0, 1, 20, 60, 0xffff, 0x1_0000, -1]), pick(&[1, 2, 8]), pick(&[0, 1, 2])),
        97 => call(97, &[]),
        _ => call(135, &[pick(&[0, 0, 1, 1, 1, 2, 3, 4, 1 << 32])]),
    }
}

/// A program of some operations, which notes after each where things are.
fn program(state: &mut u64) -> String {
    let mut text = String::from("r6 = r1; r7 = 0; ");
    for _ in 0..1 + next(state) % 4 {
        text += &operation(state);
        text += &fields();
        text += &header(0, 8, 0);
        text += &header(0, 8, 1);
    }
    text + "r0 = r7; r7 >>= 32; r0 ^= r7; exit"
}

#[test]
fn packets_are_edited_as_by_the_kernel() {
    let (mut state, mut packets) = (0x9e37_79b9_7f4a_7c15, packets());
    let kernel = kernel::available();
    if kernel.is_ok() {
        // The kernel refuses test runs on packets without the network header that their type promises.
        let bytes = bpf_isa::encode(&insns("r0 = 0; exit")).unwrap();
        let nothing = kernel::Program::load(ProgramType::TcClassifier, &bytes).unwrap();
        packets.retain(|packet| nothing.test_run_output(packet).is_ok());
        assert!(packets.len() > 100, "{} packets", packets.len());
    }
    if let Err(reason) = &kernel {
        skipped("editing of packets against the kernel", reason);
    }
    let (mut compared, mut differ) = (0, Vec::new());
    for _ in 0..if kernel.is_ok() { 500 } else { 50 } {
        let text = program(&mut state);
        let ours = load(&text);
        let theirs = kernel.is_ok().then(|| {
            let bytes = bpf_isa::encode(&insns(&text)).unwrap();
            kernel::Program::load(ProgramType::TcClassifier, &bytes).unwrap_or_else(|e| panic!("{e} in\n{text}"))
        });
        for packet in &packets {
            let [first, rest @ ..] = &ours[..] else { panic!("no engine") };
            let first = run(first, packet);
            for other in rest {
                assert!(run(other, packet) == first, "the engines differ on {packet:x?}\n{}", text.replace("; ", "\n"));
            }
            if let Some(program) = &theirs {
                let theirs = program.test_run_output(packet).unwrap_or_else(|e| panic!("{e} in\n{text}"));
                if first != theirs {
                    differ.push((text.clone(), format!("{packet:x?}\nours {first:x?}\nthe kernel's {theirs:x?}")));
                    break;
                }
                compared += 1;
            }
        }
    }
    // The shortest says the most.
    differ.sort_by_key(|(text, _)| text.len());
    if let Some((text, how)) = differ.first() {
        let calls: Vec<_> = text.split("r1 = r6; ").filter(|call| !call.contains("r3 = r10")).collect();
        panic!("{} programs differ:\n{how}\n{}\n{}", differ.len(), calls.join("\n"), text.replace("; ", "\n"));
    }
    assert!(kernel.is_err() || compared > 50_000, "{compared} compared");
    println!("{compared} runs compared");
}

/// Runs a program over a packet here and in the kernel.
struct Oracle(Option<usize>);

impl Oracle {
    fn new(what: &str) -> Oracle {
        let kernel = kernel::available().inspect_err(|reason| skipped(what, reason));
        Oracle(kernel.ok().map(|()| 0))
    }

    /// The engines agree, and with the kernel; the low half of r0.
    fn result(&mut self, text: &str, packet: &[u8]) -> u32 {
        let ours: Vec<_> = load(text).iter().map(|program| run(program, packet)).collect();
        assert!(ours.iter().all(|other| *other == ours[0]), "the engines differ: {ours:x?}\n{text}");
        if let Some(asked) = &mut self.0 {
            let bytes = bpf_isa::encode(&insns(text)).unwrap();
            let program = kernel::Program::load(ProgramType::TcClassifier, &bytes);
            let program = program.unwrap_or_else(|e| panic!("{e} in\n{text}"));
            let theirs = program.test_run_output(packet).unwrap_or_else(|e| panic!("{e} in\n{text}"));
            assert_eq!(ours[0], theirs, "{packet:x?}\n{text}");
            *asked += 1;
        }
        ours[0].0
    }
}

fn frame() -> Vec<u8> {
    ethernet(0x800, &ipv4(0, &[7; 40]))
}

/// Fills the stack below `r10 - at` with numbers.
fn fill(words: &[u64]) -> String {
    (1..).zip(words).map(|(i, word)| format!("r1 = {word} ll; *(u64 *)(r10 - {}) = r1; ", 8 * i)).collect()
}

/// Mixes the stack from `r10 - 8 * words` on into r7.
fn mix(words: usize) -> String {
    (1..=words).map(|i| format!("r1 = *(u64 *)(r10 - {}); r7 *= 31; r7 += r1; ", 8 * i)).collect()
}

const END: &str = "r0 = r7; r7 >>= 32; r0 ^= r7; exit";

/// Keys of every length that the structure ever had, and others; with every flag; and read back.
#[test]
fn tunnel_keys_are_the_kernels() {
    let mut oracle = Oracle::new("tunnel keys against the kernel");
    let mut accepted = 0;
    // id, remote; tos, ttl, ext; label; local.
    let v4 = [0, 0, 0x0a00_0003_0000_0000, 0x0000_4022, 0, 0x0a00_0002, 0x0102_0304_0000_0042];
    let v6 = [5, 6, 7 << 32 | 0xf_fffd, 0x0000_4022 << 32 | 8, 9 << 32 | 1, 2, 3 << 32 | 4];
    let ext = [0, 0, 0, 0x0001_4022, 0, 0x0a00_0002, 0x0102_0304_0000_0042];
    for key in [&v4, &v6, &ext] {
        for len in [44u32, 28, 24, 22, 8, 4, 43, 48] {
            for set in [0u32, 1, 2, 4, 8, 16, 31, 32] {
                for get in [0u32, 1, 16, 17, 2] {
                    let text = format!(
                        "r6 = r1; r7 = 0; {}r1 = r6; r2 = r10; r2 += -56; r3 = {len}; r4 = {set}; call 21; r8 = r0; \
                         {}r1 = r6; r2 = r10; r2 += -56; r3 = {len}; r4 = {get}; call 20; r7 = r0; r7 <<= 32; r7 ^= r8; {}{END}",
                        fill(key),
                        fill(&[u64::MAX; 7]),
                        mix(7),
                    );
                    if set == 0 || get == 0 || len == 44 {
                        oracle.result(&text, &frame());
                        accepted += 1;
                    }
                }
            }
        }
    }
    assert_eq!(accepted, 3 * (8 * 8 + 8 * 4 + 7 * 4));
}

#[test]
fn tunnel_options_are_the_kernels() {
    let mut oracle = Oracle::new("tunnel options against the kernel");
    for key in [true, false] {
        for len in [4u32, 8, 6, 32] {
            for get in [4u32, 8, 5, 32] {
                let key = if key { "r1 = r6; r2 = r10; r2 += -56; r3 = 44; r4 = 0; call 21; r7 += r0; " } else { "" };
                let text = format!(
                    "r6 = r1; r7 = 0; {}{key}r1 = r6; r2 = r10; r2 += -32; r3 = {len}; call 30; r7 *= 31; r7 += r0; {}r1 = r6; \
                     r2 = r10; r2 += -32; r3 = {get}; call 29; r7 *= 31; r7 += r0; {}\
                     r1 = r6; r2 = r10; r2 += -56; r3 = 44; r4 = 16; call 20; r7 *= 31; r7 += r0; r1 = *(u32 *)(r10 - 36); \
                     r7 += r1; {END}",
                    fill(&[0x1112_1314_1516_1718, 0x2122_2324_2526_2728, 3, 4, 0, 0, 0]),
                    fill(&[u64::MAX; 4]),
                    mix(4),
                );
                oracle.result(&text, &frame());
            }
        }
    }
    // Longer than any.
    let text = format!(
        "r6 = r1; r7 = 0; {}r1 = r6; r2 = r10; r2 += -56; r3 = 44; r4 = 0; call 21; r1 = r6; r2 = r10; r2 += -256; r3 = 256; call 30; \
         r7 = r0; r1 = r6; r2 = r10; r2 += -256; r3 = 252; call 30; r7 *= 31; r7 += r0; {END}",
        fill(&[0; 32])
    );
    oracle.result(&text, &frame());
}

/// Numbers at the start of texts, with signs, spaces, prefixes, and too large.
#[test]
fn numbers_are_parsed_as_by_the_kernel() {
    let mut oracle = Oracle::new("parsing of numbers against the kernel");
    let texts: [&[u8; 24]; 14] = [
        b"0                       ",
        b"  \t-17 rest             ",
        b"0x1fg                   ",
        b"0X                      ",
        b"0779                    ",
        b"-                       ",
        b"                        ",
        b"9223372036854775807     ",
        b"9223372036854775808     ",
        b"-9223372036854775808    ",
        b"18446744073709551615    ",
        b"18446744073709551616    ",
        b"\xa0\x0b12\0                   ",
        b"fFz                     ",
    ];
    for text in texts {
        let words: Vec<u64> = text.rchunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        for len in [24, 1, 2, 5] {
            for flags in [0u64, 8, 10, 16, 7, 32, 1 << 40] {
                for helper in [105, 106] {
                    let program = format!(
                        "r7 = 0; {}r1 = -1; *(u64 *)(r10 - 32) = r1; r1 = r10; r1 += -24; r2 = {len}; r3 = {flags} ll; r4 = r10; \
                         r4 += -32; call {helper}; r7 = r0; r1 = *(u64 *)(r10 - 32); r7 *= 31; r7 += r1; {END}",
                        fill(&words),
                    );
                    oracle.result(&program, &frame());
                }
            }
        }
    }
}

fn fib(family: u64, ifindex: u64, destination: u64, len: u32, flags: u32) -> String {
    // The structure begins at r10 - 64: family; device and tos; source; destination.
    let words = [0, 0, destination, destination, 9, 9, ifindex, family];
    format!(
        "r6 = r1; r7 = 0; {}r1 = r6; r2 = r10; r2 += -64; r3 = {len}; r4 = {flags}; call 69; r7 = r0; {}{END}",
        fill(&words),
        mix(8)
    )
}

fn mtu(ifindex: u32, given: u32, diff: i32, flags: u32) -> String {
    format!(
        "r6 = r1; r1 = {given} ll; *(u32 *)(r10 - 4) = r1; r1 = r6; r2 = {ifindex}; r3 = r10; r3 += -4; r4 = {diff}; r5 = {flags}; \
         call 163; r7 = r0; r1 = *(u32 *)(r10 - 4); r7 *= 31; r7 += r1; {END}"
    )
}

/// A new network namespace is not configured: the kernel's answers there equal the answers here without a network.
#[test]
fn a_network_that_is_not_configured_answers_as_the_kernels() {
    // SAFETY: no memory is concerned; this test's thread alone changes its namespace.
    let unshared = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    let mut oracle = Oracle::new("an empty network namespace against the kernel");
    if !unshared {
        skipped("an empty network namespace against the kernel", &std::io::Error::last_os_error());
        oracle.0 = None;
    }
    let (v4, v6) = (libc::AF_INET as u64, libc::AF_INET6 as u64);
    for family in [v4, v6, 0, 77] {
        for ifindex in [1, 2, 0] {
            for destination in [0x0100_000a, 0xfe80_0000_u64.swap_bytes() >> 32, 0xff, 0x20] {
                for (len, flags) in [(64, 0), (64, 1), (64, 4), (64, 64), (63, 0)] {
                    oracle.result(&fib(family, ifindex, destination, len, flags), &frame());
                }
            }
        }
    }
    for ifindex in [1, 7] {
        for given in [0, 1500, 65536, 65537] {
            for diff in [0, 1, -1, 70_000, i32::MIN, i32::MAX] {
                for flags in [0, 1, 2] {
                    oracle.result(&mtu(ifindex, given, diff, flags), &frame());
                }
            }
        }
    }
    for flags in [0u64, 2, 1 << 40] {
        for ifindex in [1, 7] {
            oracle.result(&format!("r2 = {ifindex}; r3 = {flags} ll; call 13; exit"), &frame());
        }
    }
    for (plen, flags) in [(0, 0), (20, 0), (19, 0), (24, 0), (20, 1)] {
        let call = format!("r1 = 7; r2 = r10; r2 += -24; r3 = {plen}; r4 = {flags}; call 152; exit");
        oracle.result(&(fill(&[1, 2, 3]) + &call), &frame());
        oracle.result(&format!("r1 = 7; r2 = {flags}; call 155; exit"), &frame());
    }
}

/// A router with one route, which keeps what is sent.
#[derive(Default)]
struct Router {
    sent: Mutex<Vec<(Vec<u8>, u32, bool)>>,
}

impl Network for Router {
    fn device(&self, ifindex: u32) -> Option<Device> {
        assert_ne!(ifindex, 99, "the host's own mistake");
        (ifindex < 3).then_some(Device { mtu: 60, link_header: 14 })
    }

    fn fib_lookup(&self, lookup: &mut FibLookup, _: u32) -> Result<FibVerdict, Errno> {
        if lookup.destination[..4] != [10, 0, 0, 1] {
            return Ok(FibVerdict::UNREACHABLE);
        }
        (lookup.ifindex, lookup.destination_mac) = (2, [6; 6]);
        Ok(FibVerdict::SUCCESS)
    }

    fn send(&self, frame: &[u8], ifindex: u32, ingress: bool) -> Result<Sent, Errno> {
        self.sent.lock().unwrap().push((frame.to_vec(), ifindex, ingress));
        Ok(Sent::Queued)
    }
}

#[test]
fn the_hosts_network_answers() {
    let router = Arc::new(Router::default());
    let network = || Some(Arc::clone(&router) as Arc<dyn Network>);
    // r0: the verdict, the device and the last four bytes of the next hop's address.
    let text = |destination: u64| {
        let words = [0, 0, destination, destination, 9, 9, 1, libc::AF_INET as u64];
        format!(
            "r6 = r1; {}r1 = r6; r2 = r10; r2 += -64; r3 = 64; r4 = 0; call 69; r1 = *(u32 *)(r10 - 56); r0 <<= 8; r0 |= r1; \
             r1 = *(u32 *)(r10 - 4); r0 <<= 32; r0 |= r1; exit",
            fill(&words)
        )
    };
    let there = 0x0100_000a << 32 | 0x0100_000a;
    for (destination, len, want) in
        [(there, 60, 0x0002_0606_0606), (there, 79, 0x0802_0606_0606), (5, 60, 0x0201_0000_0000u64)]
    {
        for program in load_in::<Skb>(network(), &text(destination)) {
            let mut packet = vec![0; len];
            assert_eq!(program.run(&mut (), &mut SkBuff::new(&mut packet)).unwrap(), want, "{destination:x} {len}");
        }
    }
    for program in load_in::<Xdp>(network(), &text(there)) {
        // Its length is the program's to say.
        assert_eq!(program.run(&mut (), &mut XdpBuff::new(&mut [0; 79])).unwrap(), 0x0002_0606_0606);
    }
    for program in load_in::<Skb>(network(), "r2 = 2; r3 = 1; call 13; exit") {
        assert_eq!(program.run(&mut (), &mut SkBuff::new(&mut frame())).unwrap(), 0);
        assert_eq!(router.sent.lock().unwrap().pop(), Some((frame(), 2, true)));
    }
    // A panic ends the run, and nothing else.
    for program in load_in::<Skb>(network(), &mtu(99, 0, 0, 0)) {
        let error = program.run(&mut (), &mut SkBuff::new(&mut frame())).unwrap_err();
        assert!(
            matches!(&error, RunError::Host { source, .. } if source.to_string().contains("own mistake")),
            "{error}"
        );
    }
}

/// A program's requests are stored in the context.
#[test]
fn next_hops_and_tunnels_are_data() {
    let neigh = fill(&[0, 0xaa, 0x0a << 32 | libc::AF_INET as u64]);
    for (call, nexthop) in [
        (format!("{neigh}r1 = 7; r2 = r10; r2 += -24; r3 = 20; r4 = 0; call 152; exit"), Some("10.0.0.0")),
        ("r1 = 7; r2 = 0; r3 = 0; r4 = 0; call 152; exit".into(), None),
    ] {
        for program in load(&call) {
            let mut packet = frame();
            let mut buff = SkBuff::new(&mut packet);
            assert_eq!(program.run(&mut (), &mut buff).unwrap(), 7);
            assert_eq!(buff.redirect, Some(Redirect::Neighbour { ifindex: 7 }));
            let address = buff.nexthop.as_ref().and_then(Nexthop::address).map(|address| address.to_string());
            assert_eq!(address.as_deref(), nexthop);
        }
    }
    // In by one tunnel, out into another.
    let text = format!(
        "r6 = r1; r2 = r10; r2 += -48; r3 = 44; r4 = 0; call 20; r7 = r0; r1 = *(u32 *)(r10 - 44); r7 += r1; \
         {}r1 = r6; r2 = r10; r2 += -48; r3 = 44; r4 = 0; call 21; r7 += r0; r0 = r7; exit",
        fill(&[0, 0x0a00_0005 << 32, 0, 0x4000, 0, 0x0a00_0009 << 32 | 77])
    );
    for program in load(&text) {
        let mut packet = frame();
        let mut buff = SkBuff::new(&mut packet);
        let address = |last| IpAddr::from([192, 168, 0, last]);
        buff.tunnel = Some(Tunnel::new(5, address(1), address(2)));
        assert_eq!(program.run(&mut (), &mut buff).unwrap(), 0xc0a8_0001);
        let tunnel = buff.tunnel.unwrap();
        assert_eq!((tunnel.id, tunnel.destination, tunnel.outgoing), (77, IpAddr::from([10, 0, 0, 9]), true));
    }
}

/// The hash is the flow's hash in each program, until a program sets another.
#[test]
fn hashes_are_the_flows() {
    let hash = |packet: &[u8], text: &str| {
        let mut all = load(text).into_iter().map(|program| {
            let mut packet = packet.to_vec();
            program.run(&mut (), &mut SkBuff::new(&mut packet)).unwrap()
        });
        let first = all.next().unwrap();
        assert!(all.all(|other| other == first));
        first
    };
    let ask = "call 34; exit";
    let (packet, mut other) = (frame(), frame());
    other[33] ^= 1;
    assert_ne!(hash(&packet, ask), 0);
    assert_ne!(hash(&packet, ask), hash(&other, ask));
    // Bytes that are not part of the flow.
    other[33] ^= 1;
    (other[16], other[0]) = (9, 9);
    assert_eq!(hash(&packet, ask), hash(&other, ask));
    // The hash is kept; invalidated, and computed again; and set by a program.
    let twice =
        "r6 = r1; call 34; r7 = r0; r1 = r6; call 34; r7 -= r0; r1 = *(u32 *)(r6 + 68); r0 -= r1; r0 |= r7; exit";
    assert_eq!(hash(&packet, twice), 0);
    let again = "r6 = r1; r2 = 5; call 48; r1 = r6; call 41; r1 = r6; call 34; exit";
    assert_eq!(hash(&packet, again), hash(&packet, ask));
    for set in [0, 5] {
        assert_eq!(hash(&packet, &format!("r6 = r1; r2 = {set}; call 48; r1 = r6; call 34; exit")), set);
    }
}

/// Every room before and behind a packet, down to none: a change that does not fit is an error and changes nothing.
#[test]
fn packets_stay_in_their_buffer() {
    let calls = [
        (43, "r2 = 8; r3 = 0", 8, 0),
        (38, "r2 = 48; r3 = 0", 0, 8),
        (50, "r2 = 8; r3 = 1; r4 = 0", 8, 0),
        (31, "r2 = 0xdd86; r3 = 0", 20, 0),
        (18, "r2 = 0x0081; r3 = 5", 4, 0),
    ];
    for (helper, args, head, tail) in calls {
        for program in load(&format!("{args}; call {helper}; exit")) {
            for before in [0, 3, 4, 7, 8, 19, 20, 21] {
                for behind in [0, 7, 8] {
                    let mut buffer = vec![0xee; before + 40 + behind];
                    let packet = &frame()[..40];
                    buffer[before..][..40].copy_from_slice(packet);
                    let mut buff = SkBuff::with_room(&mut buffer, before, 40);
                    // With a tag in the metadata, so that the helper inserts it into the packet.
                    (buff.fields.vlan_present, buff.fields.vlan_proto) = (1, 0x0081);
                    let r0 = program.run(&mut (), &mut buff).unwrap();
                    let fits = head <= before && tail <= behind;
                    assert_eq!(r0 as i32, if fits { 0 } else { -libc::ENOMEM }, "{helper}: {before} {behind}");
                    assert_eq!(buff.packet().len(), if fits { 40 + head + tail } else { 40 });
                    if !fits {
                        assert_eq!(buff.packet(), packet);
                    }
                    let at = buff.packet().as_ptr() as usize;
                    let (from, len) = (buffer.as_ptr() as usize, buffer.len());
                    assert!(from <= at && at <= from + len);
                    let kept = if fits { before - head } else { before };
                    assert!(buffer[..kept].iter().all(|byte| *byte == 0xee), "nothing else is written");
                }
            }
        }
    }
}

/// Legacy loads find the headers where helpers have moved them, also where these lie before the packet.
#[test]
fn legacy_loads_follow_the_headers() {
    let mut oracle = Oracle::new("headers of legacy loads against the kernel");
    let vlan = ethernet(0x8100, &[&[0, 5, 8, 0][..], &ipv4(0, &[7; 40])].concat());
    let packets = [frame(), vlan, ethernet(0x86dd, &ipv6(0, &[8; 24]))];
    let moves = [
        "r0 = 0",
        "r2 = 8; r3 = 0; call 43",
        "r2 = 48; r3 = 0; call 38",
        "r2 = 8; r3 = 1; r4 = 0; call 50",
        "r2 = 8; r3 = 0; r4 = 0; call 50",
        "r2 = -8; r3 = 0; r4 = 0; call 50",
        "r2 = 0xdd86; r3 = 0; call 31",
        "r2 = 8; r3 = 0; call 31",
        "r2 = 0x0081; r3 = 5; call 18",
        "call 19",
    ];
    let loads: String = [(-0x20_0000, 0), (-0x20_0000, 12), (-0x10_0000, 0), (-0x10_0000, 12)]
        .iter()
        .map(|(base, n)| {
            let at = base + n;
            format!("r9 = {at}; r0 = *(u16 *)skb[{at}]; r7 *= 31; r7 += r0; r0 = *(u16 *)skb[r9]; r7 *= 31; r7 += r0; ")
        })
        .collect();
    for packet in &packets {
        for (i, first) in moves.iter().enumerate() {
            for second in &moves[..i] {
                let text = format!("r6 = r1; {first}; r1 = r6; {second}; r7 = r0; {loads}{END}");
                oracle.result(&text, packet);
            }
        }
    }
    assert!(oracle.0.is_none_or(|asked| asked == packets.len() * 45));
}

/// LD_ABS finds the packet where a helper has moved it, and without a link header the network header is first.
#[test]
fn legacy_loads_follow_the_packet() {
    let text =
        "r6 = r1; r2 = 8; r3 = 0; call 43; r0 = *(u16 *)skb[20]; r7 = r0; r0 = *(u8 *)skb[7]; r7 += r0; r0 = r7; exit";
    for program in load(text) {
        assert_eq!(run(&program, &frame()).0, 0x800);
    }
    for program in load(&(String::from("r6 = r1; r7 = 0; ") + &header(0, 1, 1) + &header(0, 1, 0) + "r0 = r7; exit")) {
        let mut packet = frame();
        let mut layer3 = packet.split_off(14);
        let mut buff = SkBuff::layer3(&mut layer3, 0, 60, 0x800);
        let first = u64::from_le_bytes([0x45, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(
            program.run(&mut (), &mut buff).unwrap(),
            first.wrapping_mul(31).wrapping_mul(31).wrapping_add(first)
        );
        assert_eq!(buff.fields.protocol, 8);
    }
}
