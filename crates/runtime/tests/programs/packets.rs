//! Packet contexts and their helpers: both engines give the kernel's results.
//!
//! The kernel is asked by BPF_PROG_TEST_RUN where the process may; the expectations that are written out hold
//! everywhere.

use bpf_runtime::{
    Config, Context, Engine, Linker, Mode, Program, Raw,
    code::Arch,
    isa::Insn,
    net::{Redirect, SkBuff, Skb, Xdp, XdpBuff},
};
use bpf_testkit::kernel::{self, ProgramType};
use bpf_testkit::skipped;

/// Headroom and room for packet and tail that the kernel's test run gives XDP programs: a page, less the 40 bytes of a
/// `struct xdp_frame` at its start and a `struct skb_shared_info` at its end.
const HEADROOM: usize = 256 - 40;
const ROOM: usize = 4096 - 256 - 320;

/// An IPv4 UDP frame with a correct header checksum.
const FRAME: [u8; 60] =
    *b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\0\x45\0\0\x2e\x12\x34\0\0\x40\x11\x54\x89\x0a\0\0\x01\x0a\0\0\x02\
    \x30\x39\x01\xbb\0\x1a\xbe\xef0123456789abcdefgh";

fn insns(text: &str) -> Vec<Insn> {
    bpf_runtime::isa::assemble(&text.replace(';', "\n")).unwrap_or_else(|e| panic!("{e} in\n{text}"))
}

fn load<C: Context>(text: &str) -> Vec<Program<C, ()>> {
    let modes = [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit));
    let program = |mode| {
        let config = Config::new().mode(mode);
        let linker = Linker::<()>::new(&Engine::new(config).unwrap());
        linker.loader::<C>().insns("test", insns(text)).unwrap_or_else(|e| panic!("{e}"))
    };
    modes.map(program).collect()
}

/// Returns r0 and the packet after a run of the program, on each engine.
fn xdp(text: &str, packet: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let run = |program: Program<Xdp, ()>| {
        let mut buffer = vec![0; HEADROOM + ROOM];
        buffer[HEADROOM..][..packet.len()].copy_from_slice(packet);
        let mut buff = XdpBuff::with_room(&mut buffer, HEADROOM, packet.len());
        let r0 = program.run(&mut (), &mut buff).unwrap();
        (r0 as u32, buff.packet().to_vec())
    };
    load(text).into_iter().map(run).collect()
}

fn skb(text: &str, packet: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let run = |program: Program<Skb, ()>| {
        let mut packet = packet.to_vec();
        let r0 = program.run(&mut (), &mut SkBuff::new(&mut packet)).unwrap();
        (r0 as u32, packet)
    };
    load(text).into_iter().map(run).collect()
}

/// The kernel, and how many programs it was asked about.
struct Oracle {
    kind: ProgramType,
    asked: usize,
}

impl Oracle {
    fn new(kind: ProgramType) -> Option<Oracle> {
        match kernel::available() {
            Ok(()) => Some(Oracle { kind, asked: 0 }),
            Err(reason) => {
                skipped("packet helpers against the kernel", &reason);
                None
            }
        }
    }

    fn agrees(&mut self, text: &str, packet: &[u8]) {
        let bytes = bpf_isa::encode(&insns(text)).unwrap();
        let program = kernel::Program::load(self.kind, &bytes).unwrap_or_else(|e| panic!("{e} in\n{text}"));
        let theirs = program.test_run_output(packet).unwrap_or_else(|e| panic!("{e} in\n{text}"));
        let ours = if self.kind == ProgramType::Xdp { xdp(text, packet) } else { skb(text, packet) };
        for ours in ours {
            assert_eq!(ours, theirs, "{text}");
        }
        self.asked += 1;
    }
}

/// Calls the helper with the context and a constant, marks the first and last two bytes of the packet, and returns the
/// helper's result.
fn adjust(helper: u32, delta: i32) -> String {
    format!(
        "r6 = r1; r2 = {delta}; call {helper}; r7 = r0; r1 = *(u32 *)(r6 + 0); r2 = *(u32 *)(r6 + 4); r3 = r1; r3 += 14; \
         if r3 > r2 goto out; *(u16 *)(r1 + 0) = 0x1122; *(u16 *)(r1 + 12) = 0x3344; out:; r0 = r7; exit"
    )
}

#[test]
fn xdp_packets_grow_and_shrink_as_in_the_kernel() {
    let len = FRAME.len() as i32;
    // At the head: the limits of the room and of an Ethernet header, from both sides.
    for (delta, new) in [(-14, 74), (10, 50), (len - 14, 14), (-(HEADROOM as i32), 60 + HEADROOM)] {
        for (r0, packet) in xdp(&adjust(44, delta), &FRAME) {
            assert_eq!((r0, packet.len()), (0, new), "head {delta}");
        }
    }
    for (delta, new) in [(20, 80), (-10, 50), (14 - len, 14), (ROOM as i32 - len, ROOM)] {
        for (r0, packet) in xdp(&adjust(65, delta), &FRAME) {
            assert_eq!((r0, packet.len()), (0, new), "tail {delta}");
            assert!(packet.iter().skip(60).all(|byte| *byte == 0), "grown bytes are zero");
        }
    }
    const EINVAL: i32 = -22;
    for (helper, delta) in [(44, len - 13), (44, -(HEADROOM as i32) - 1), (65, 13 - len), (65, ROOM as i32 - len + 1)] {
        for (r0, packet) in xdp(&adjust(helper, delta), &FRAME) {
            assert_eq!((r0 as i32, packet.len()), (EINVAL, 60), "{helper} {delta}");
        }
    }
    let Some(mut kernel) = Oracle::new(ProgramType::Xdp) else { return };
    let room = HEADROOM as i32;
    for delta in [0, 1, -1, -14, 10, 45, 46, 47, 60, 100, -room, -room - 1, -1000, i32::MAX, i32::MIN] {
        kernel.agrees(&adjust(44, delta), &FRAME);
    }
    let most = ROOM as i32 - len;
    for delta in [0, 1, 7, 100, -1, -45, -46, -47, -60, -100, most, most + 1, i32::MAX, i32::MIN] {
        kernel.agrees(&adjust(65, delta), &FRAME);
    }
    assert_eq!(kernel.asked, 29);
}

/// Asks for metadata, writes it, moves the head, and returns what the metadata holds then, or the errors.
/// However large the buffer, a packet never becomes longer than programs are verified for: they take its length to be
/// below this.
#[test]
fn a_packet_grows_to_the_promised_length_and_no_further() {
    const LONGEST: usize = 0x1_0000 + 256;
    let region = &Xdp::layout().regions[0];
    assert_eq!(region.max_len as usize, LONGEST);
    // Either end, out by as much as is asked in `rx_queue_index`; returns the helper's result.
    for helper in [44, 65] {
        let grow = format!("r2 = *(u32 *)(r1 + 16); call {helper}; exit");
        let length = "r2 = *(u32 *)(r1 + 0); r0 = *(u32 *)(r1 + 4); r0 -= r2; exit";
        for (program, length) in load::<Xdp>(&grow).into_iter().zip(load::<Xdp>(length)) {
            for (by, fits) in [(0, true), (1, true), (LONGEST - 100, true), (LONGEST - 99, false), (1 << 20, false)] {
                let mut buffer = vec![0; 3 << 20];
                let mut buff = XdpBuff::with_room(&mut buffer, 1 << 20, 100);
                let by = if helper == 44 { -(by as i32) } else { by as i32 };
                buff.rx_queue_index = by as u32;
                let r0 = program.run(&mut (), &mut buff).unwrap();
                let after = 100 + by.unsigned_abs() as usize;
                let (want, len) = if fits { (0, after) } else { (-22i64 as u64, 100) };
                assert_eq!((r0, buff.packet().len()), (want, len), "{helper} by {by}");
                assert_eq!(length.run(&mut (), &mut buff).unwrap(), len as u64);
            }
        }
    }
}

/// Every place that the helpers could move to, on buffers so small that all of them are tried.
#[test]
fn ends_stay_in_order_and_in_the_buffer() {
    let text = |helper: u32| format!("r2 = *(u32 *)(r1 + 16); call {helper}; exit");
    for (helper, room) in [(44, 40usize), (65, 40), (54, 40)] {
        for program in load::<Xdp>(&text(helper)) {
            for delta in (-70..=70).chain([i32::MIN, i32::MAX]) {
                let mut buffer: Vec<u8> = (0..room as u8).collect();
                let bounds = buffer.as_ptr_range();
                let mut buff = XdpBuff::with_room(&mut buffer, 12, 20);
                buff.rx_queue_index = delta as u32;
                let r0 = program.run(&mut (), &mut buff).unwrap();
                let packet = buff.packet().as_ptr_range();
                assert!(bounds.start <= packet.start && packet.end <= bounds.end, "{helper} {delta}");
                let moved =
                    packet.start != bounds.start.wrapping_add(12) || packet.end != bounds.start.wrapping_add(32);
                assert!(r0 == 0 || !moved, "{helper} {delta}: {r0:#x}");
                let (head, tail) = ((-12..=6).contains(&delta), (-6..=8).contains(&delta));
                let want = match helper {
                    44 => head,
                    65 => tail,
                    _ => (-12..=0).contains(&delta) && delta % 4 == 0,
                };
                assert_eq!(r0 == 0, want, "{helper} {delta}");
            }
        }
    }
}

fn metadata(meta: i32, head: i32) -> String {
    format!(
        "r6 = r1; r2 = {meta}; call 54; r7 = r0; if r0 != 0 goto out; \
         r1 = *(u32 *)(r6 + 8); r2 = *(u32 *)(r6 + 0); r3 = r1; r3 += 4; if r3 > r2 goto out; *(u32 *)(r1 + 0) = 0x12345; \
         r1 = r6; r2 = {head}; call 44; r7 = r0; if r0 != 0 goto out; \
         r1 = *(u32 *)(r6 + 8); r2 = *(u32 *)(r6 + 0); r7 = 77; r3 = r1; r3 += 4; if r3 > r2 goto out; \
         r7 = *(u32 *)(r1 + 0); r1 = r6; r2 = 4; call 54; r7 += r0; out:; r0 = r7; exit"
    )
}

#[test]
fn metadata_travels_with_the_head() {
    for (r0, packet) in xdp(&metadata(-4, -20), &FRAME) {
        assert_eq!((r0, packet.len()), (0x12345, 80));
    }
    let Some(mut kernel) = Oracle::new(ProgramType::Xdp) else { return };
    // The kernel hands back the metadata with the packet, so each program gives it up at the end, or fails before it
    // has any.
    for (meta, head) in [(-4, -20), (-4, 0), (-4, 30), (-3, 0), (-256, 0), (-1000, 0), (4, 0), (i32::MIN, 0)] {
        kernel.agrees(&metadata(meta, head), &FRAME);
    }
    assert_eq!(kernel.asked, 8);
}

#[test]
fn redirects_are_data() {
    for program in load::<Xdp>("r1 = 7; r2 = 0; call 23; exit") {
        let mut frame = FRAME;
        let mut buff = XdpBuff::new(&mut frame);
        assert_eq!(program.run(&mut (), &mut buff).unwrap(), 4, "XDP_REDIRECT");
        assert_eq!(buff.redirect, Some(Redirect::Device { ifindex: 7, flags: 0 }));
    }
    for program in load::<Skb>("r1 = 9; r2 = 1; call 23; exit") {
        let mut frame = FRAME;
        let mut buff = SkBuff::new(&mut frame);
        assert_eq!(program.run(&mut (), &mut buff).unwrap(), 7, "TC_ACT_REDIRECT");
        assert_eq!(buff.redirect, Some(Redirect::Device { ifindex: 9, flags: 1 }));
    }
    for program in load::<Skb>("r1 = 9; r2 = 2; call 23; exit") {
        let mut frame = FRAME;
        let mut buff = SkBuff::new(&mut frame);
        assert_eq!(program.run(&mut (), &mut buff).unwrap(), 2, "TC_ACT_SHOT");
        assert_eq!(buff.redirect, None);
    }
}

/// The result of `bpf_redirect`, which is the verdict. The target is compared only with the expectation written out
/// above: a test run takes the verdict and stops before the kernel acts on it, and the target lies in a variable of the
/// kernel's that no program reads. (Frames sent for real, `BPF_F_TEST_XDP_LIVE_FRAMES`, would need network devices of
/// the machine's.)
#[test]
fn redirect_verdicts_are_the_kernels() {
    for (kind, flags) in [
        (ProgramType::Xdp, &[0u64, 1, 1 << 32, u64::MAX][..]),
        (ProgramType::TcClassifier, &[0, 1, 2, 3, 1 << 32, u64::MAX]),
    ] {
        let Some(mut kernel) = Oracle::new(kind) else { return };
        for ifindex in [0u64, 1, 7, u32::MAX.into(), 1 << 32 | 7] {
            for flag in flags {
                let call = format!("r1 = {ifindex} ll; r2 = {flag} ll; call 23");
                kernel.agrees(&format!("{call}; exit"), &FRAME);
                // A call that fails after one that did not, and the other way round: the verdict is the program's to
                // choose.
                kernel.agrees(&format!("{call}; r6 = r0; r1 = 3; r2 = 0; call 23; r0 <<= 8; r0 |= r6; exit"), &FRAME);
                kernel.agrees(&format!("r1 = 3; r2 = 0; call 23; r6 = r0; {call}; r6 <<= 8; r0 |= r6; exit"), &FRAME);
            }
        }
        assert_eq!(kernel.asked, 15 * flags.len());
    }
}

/// A call that fails leaves the target of the one before, as the kernel's does.
#[test]
fn the_last_redirect_that_succeeds_counts() {
    let call = |ifindex: u32, flags: u32| format!("r1 = {ifindex}; r2 = {flags}; call 23; ");
    for (calls, target) in [
        (call(3, 0) + &call(5, 0), Some(5)),
        (call(3, 0) + &call(5, 4), Some(3)),
        (call(5, 4) + &call(3, 0), Some(3)),
        (call(5, 4) + &call(6, 8), None),
    ] {
        let text = calls + "exit";
        for program in load::<Xdp>(&text) {
            let mut frame = FRAME;
            let mut buff = XdpBuff::new(&mut frame);
            program.run(&mut (), &mut buff).unwrap();
            assert_eq!(buff.redirect, target.map(|ifindex| Redirect::Device { ifindex, flags: 0 }), "{text}");
        }
        for program in load::<Skb>(&text) {
            let mut frame = FRAME;
            let mut buff = SkBuff::new(&mut frame);
            program.run(&mut (), &mut buff).unwrap();
            assert_eq!(buff.redirect, target.map(|ifindex| Redirect::Device { ifindex, flags: 0 }), "{text}");
        }
    }
}

/// Loads `len` bytes at `offset` to the stack and returns the first and last four, mixed with the helper's result.
fn load_bytes(offset: u32, len: u32) -> String {
    format!(
        "r6 = r1; r1 = -1; *(u64 *)(r10 - 16) = r1; *(u64 *)(r10 - 8) = r1; r1 = r6; r2 = {offset} ll; r3 = r10; r3 += -16; \
         r4 = {len}; call 26; r1 = *(u32 *)(r10 - 16); r0 ^= r1; r1 = *(u32 *)(r10 - 4); r0 <<= 1; r0 ^= r1; exit"
    )
}

fn store_bytes(offset: u32, len: u32, flags: u32) -> String {
    format!(
        "r6 = r1; r1 = 0x0807060504030201 ll; *(u64 *)(r10 - 16) = r1; r1 *= 7; *(u64 *)(r10 - 8) = r1; r1 = r6; r2 = {offset} ll; \
         r3 = r10; r3 += -16; r4 = {len}; r5 = {flags}; call 9; exit"
    )
}

fn replace(helper: u32, offset: u32, from: u32, to: u32, flags: u32) -> String {
    format!("r2 = {offset} ll; r3 = {from} ll; r4 = {to} ll; r5 = {flags}; call {helper}; exit")
}

fn csum_diff(from: u32, to: u32, seed: u32) -> String {
    format!(
        "r1 = 0xfedcba9876543210 ll; *(u64 *)(r10 - 16) = r1; r1 *= 3; *(u64 *)(r10 - 8) = r1; r1 = r10; r1 += -16; \
         r2 = {from}; r3 = r10; r3 += -8; r4 = {to}; r5 = {seed} ll; call 28; exit"
    )
}

/// The frame's fields are what the helpers of classifiers say, and the header's checksum stays right.
#[test]
fn classifiers_read_and_write_the_packet() {
    for (r0, packet) in skb(&store_bytes(20, 4, 0), &FRAME) {
        let mut expected = FRAME;
        expected[20..24].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!((r0, packet), (0, expected.to_vec()));
    }
    // The address 10.0.0.1 becomes 192.168.1.1.
    let (old, new) = (u32::from_ne_bytes([10, 0, 0, 1]), u32::from_ne_bytes([192, 168, 1, 1]));
    for (r0, packet) in skb(&replace(10, 24, old, new, 4), &FRAME) {
        let mut header = packet[14..34].to_vec();
        header[12..16].copy_from_slice(&[192, 168, 1, 1]);
        let sum = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>();
        assert_eq!((r0, (sum & 0xffff) + (sum >> 16)), (0, 0xffff));
    }
    let Some(mut kernel) = Oracle::new(ProgramType::TcClassifier) else { return };
    for offset in [0, 13, 14, 44, 45, 59, 60, 61, 0x7fff_ffff, 0xffff_fff0] {
        for len in [1, 8, 16] {
            kernel.agrees(&load_bytes(offset, len), &FRAME);
        }
        for (len, flags) in [(1, 0), (16, 0), (6, 1), (6, 2), (6, 4)] {
            kernel.agrees(&store_bytes(offset, len, flags), &FRAME);
        }
    }
    let loads = kernel.asked;
    for offset in [24, 26, 25, 40, 58, 59, 60, 0xffff, 0x1_0000] {
        for (from, to) in [(0, 0x1234), (0x1234, 0), (old, new), (0xffff_ffff, 1), (0, 0xffff_ffff)] {
            for flags in [0, 2, 4, 3, 0x10] {
                kernel.agrees(&replace(10, offset, from, to, flags), &FRAME);
            }
            for flags in [0, 2, 4, 0x12, 0x14, 0x22, 0x24, 0x62, 5] {
                kernel.agrees(&replace(11, offset, from, to, flags), &FRAME);
            }
        }
    }
    for (from, to) in [(0, 4), (4, 0), (4, 4), (8, 8), (8, 4), (0, 8), (8, 0), (0, 0)] {
        for seed in [0, 1, 0xffff, 0xffff_ffff, 0x1234_5678] {
            kernel.agrees(&csum_diff(from, to, seed), &FRAME);
        }
    }
    assert_eq!((loads, kernel.asked), (80, 80 + 630 + 40));
}

/// The packet without a checksum: UDP's 0 stays 0 unless the program insists.
#[test]
fn udp_without_a_checksum_is_left_alone() {
    let Some(mut kernel) = Oracle::new(ProgramType::TcClassifier) else { return };
    let mut frame = FRAME;
    frame[40..42].fill(0);
    for flags in [0, 2, 4, 0x20, 0x22, 0x24, 0x60, 0x62, 0x34] {
        for (from, to) in [(0, 0), (0, 0xffff), (0, 0x1234)] {
            kernel.agrees(&replace(11, 40, from, to, flags), &frame);
        }
    }
}

/// The whole packet, its ends, and what is not in it: at offset and length from one byte to beyond what is allowed. A
/// failed load is of a target that the program has zeroed: the kernel leaves it as it was.
#[test]
fn xdp_programs_copy_bytes_as_in_the_kernel() {
    let copy = |helper: u32, offset: u32, len: u32| {
        let value = if helper == 190 { 0x0807_0605_0403_0201u64 } else { 0 };
        format!(
            "r6 = r1; r1 = {value} ll; *(u64 *)(r10 - 16) = r1; *(u64 *)(r10 - 8) = r1; r1 = r6; r2 = {offset} ll; r3 = r10; \
             r3 += -16; r4 = {len}; call {helper}; r7 = r0; r1 = *(u32 *)(r10 - 16); r7 *= 31; r7 += r1; \
             r1 = *(u32 *)(r10 - 4); r7 *= 31; r7 += r1; r1 = r6; call 188; r0 += r7; exit"
        )
    };
    for (r0, packet) in xdp(&copy(190, 20, 4), &FRAME) {
        let mut expected = FRAME;
        expected[20..24].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!((r0, packet), ((0x0403_0201u32.wrapping_mul(31)).wrapping_add(0x0807_0605 + 60), expected.to_vec()));
    }
    let Some(mut kernel) = Oracle::new(ProgramType::Xdp) else { return };
    for helper in [189, 190] {
        for offset in [0, 1, 13, 44, 45, 59, 60, 61, 0xffff, 0x1_0000, u32::MAX, u32::MAX - 7] {
            for len in [1, 4, 16] {
                for cut in [14, 45, 60] {
                    kernel.agrees(&copy(helper, offset, len), &FRAME[..cut]);
                }
            }
        }
    }
    assert_eq!(kernel.asked, 2 * 12 * 3 * 3);
}

/// `cb` is accessed in words, parts of words, and two words at once.
#[test]
fn two_words_of_cb_at_once() {
    let text = "r2 = 0x1122334455667788 ll; *(u64 *)(r1 + 56) = r2; *(u32 *)(r1 + 64) = r2; r0 = *(u64 *)(r1 + 56); \
                r3 = *(u32 *)(r1 + 60); r0 -= r3; r3 = *(u16 *)(r1 + 66); r0 += r3; r3 = *(u64 *)(r1 + 48); r0 += r3; exit";
    for program in load::<Skb>(text) {
        let mut packet = FRAME.to_vec();
        let mut buff = SkBuff::new(&mut packet);
        buff.fields.cb = [5, 0, 9, 9, 9];
        let r0 = program.run(&mut (), &mut buff).unwrap();
        assert_eq!(r0, 0x1122_3344_5566_7788 - 0x1122_3344 + 0x5566 + 5);
        assert_eq!(buff.fields.cb, [5, 0, 0x5566_7788, 0x1122_3344, 0x5566_7788]);
    }
}

#[test]
fn legacy_loads_read_the_packet() {
    let text = |size: &str, at: &str| format!("r6 = r1; r7 = 5; r0 = 1; r0 = *({size} *)skb[{at}]; r0 += r7; exit");
    for (r0, _) in skb(&text("u16", "12"), &FRAME) {
        assert_eq!(r0, 0x0800 + 5);
    }
    for (r0, _) in skb(&text("u32", "57"), &FRAME) {
        assert_eq!(r0, 0, "out of range ends the program with 0");
    }
    let Some(mut kernel) = Oracle::new(ProgramType::TcClassifier) else { return };
    for size in ["u8", "u16", "u32"] {
        for at in [0, 1, 13, 56, 57, 58, 59, 60, 61, 1000, i32::MAX] {
            kernel.agrees(&text(size, &at.to_string()), &FRAME);
            // The sum of register and immediate, wrapped to 32 bits.
            for immediate in [0, 3, 50] {
                let at = at.wrapping_sub(immediate);
                let load = format!("r6 = r1; r7 = {at}; r0 = *({size} *)skb[r7 + {immediate}]; exit");
                kernel.agrees(&load.replace(" + 0]", "]"), &FRAME);
            }
        }
    }
    assert_eq!(kernel.asked, 3 * 11 * 4);
}

/// Offsets from `SKF_LL_OFF` on count from the link header, those from `SKF_NET_OFF` on from the network header.
#[test]
fn legacy_loads_count_from_the_headers() {
    const LINK: i32 = -0x20_0000;
    const NETWORK: i32 = -0x10_0000;
    const ANCILLARY: i32 = -0x1000;
    let abs = |size: &str, at: i32| format!("r6 = r1; r0 = *({size} *)skb[{at}]; exit");
    let ind = |size: &str, at: i32, imm: i32| {
        let load = format!("r6 = r1; r7 = {}; r0 = 7; r0 = *({size} *)skb[r7 + {imm}]; exit", at.wrapping_sub(imm));
        load.replace(" + 0]", "]").replace("+ -", "- ")
    };
    let expected = [("u16", LINK + 12, 0x0800), ("u8", NETWORK, 0x45), ("u32", NETWORK + 12, 0x0a00_0001)];
    for (size, at, value) in expected {
        let texts = [abs(size, at), ind(size, at, 0), ind(size, at, 14), ind(size, at, -1)];
        for (r0, _) in texts.iter().flat_map(|text| skb(text, &FRAME)) {
            assert_eq!(r0, value, "{size} at {at}");
        }
    }
    let Some(mut kernel) = Oracle::new(ProgramType::TcClassifier) else { return };
    let edges = [LINK, NETWORK, ANCILLARY, 0].iter().flat_map(|base| [-5, -4, -2, -1, 0, 1, 13].map(|by| base + by));
    let ends = [(LINK, 60), (NETWORK, 46)].iter().flat_map(|(base, len)| [-4, -3, -1, 0, 1].map(|by| base + len + by));
    let others = [i32::MIN, i32::MIN + 1, i32::MAX, NETWORK + 0x8_0000, ANCILLARY + 4, ANCILLARY + 60];
    for at in edges.chain(ends).chain(others) {
        for size in ["u8", "u16", "u32"] {
            kernel.agrees(&abs(size, at), &FRAME);
            for imm in [0, 3, -14, 0x7fff_ffff] {
                kernel.agrees(&ind(size, at, imm), &FRAME);
            }
        }
    }
    assert_eq!(kernel.asked, (28 + 10 + 6) * 3 * 5);
}

/// A raw buffer begins with its link header, and its network header is unknown.
#[test]
fn legacy_loads_of_raw_buffers_know_the_link_header() {
    let text = |at: &str| format!("r6 = r1; r7 = -0x200000; r8 = -0x100000; r0 = 1; r0 = *(u16 *)skb[{at}]; exit");
    let expected = [("-2097140", 0x0800), ("r7 + 12", 0x0800), ("-1048576", 0), ("r8", 0), ("r7 + 59", 0)];
    for (at, value) in expected {
        for program in load::<Raw>(&text(at)) {
            assert_eq!(program.run(&mut (), &mut FRAME.clone()).unwrap(), value, "{at}");
        }
    }
}

/// Direct access: a verified comparison, a write, and fields beside the packet.
#[test]
fn packets_are_read_and_written_in_place() {
    let text = "r2 = *(u32 *)(r1 + 76); r3 = *(u32 *)(r1 + 80); r4 = r2; r4 += 40; if r4 > r3 goto out; r0 = *(u16 *)(r2 + 16); \
                r0 = be16 r0; *(u32 *)(r1 + 8) = 9; r5 = *(u32 *)(r1 + 8); r0 += r5; *(u8 *)(r2 + 19) = 0x99; \
                r5 = *(u32 *)(r1 + 0); r0 += r5; r5 = *(u32 *)(r1 + 16); r0 += r5; exit; out:; r0 = 0; exit";
    for (r0, packet) in skb(text, &FRAME) {
        assert_eq!((r0, packet[19]), (0x2e + 9 + 60 + 8, 0x99));
        assert_eq!((&packet[..19], &packet[20..]), (&FRAME[..19], &FRAME[20..]));
    }
    let Some(mut kernel) = Oracle::new(ProgramType::TcClassifier) else { return };
    kernel.agrees(text, &FRAME);
    kernel.agrees(text, &FRAME[..39]);
}
