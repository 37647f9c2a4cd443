//! Programs on sockets, addresses and connections: what they see and change, and that the kernel lets them see and
//! change the same.

use crate::support;
use crate::support::ways::{self, Way};
use bpf_runtime::net::{SockFields, Socket};
use bpf_runtime::{
    Config, Context, Engine, Linker, Mode, Program,
    net::{Sock, SockAddr, SockAddrBuff, SockAddrFields, SockBuff, SockOps, SockOpsBuff, SockOpsFields},
};
use bpf_testkit::kernel::{self, ProgramType};
use bpf_testkit::skipped;
use std::sync::Arc;

const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];

fn loaded<C: Context>(way: Way, text: &str) -> Program<C, ()> {
    let linker = Linker::<()>::new(&ways::engine(way, |config| config));
    linker.loader::<C>().insns("test", support::program(text)).unwrap_or_else(|e| panic!("{e} in\n{text}"))
}

fn socket() -> Arc<Socket> {
    let fields = SockFields { family: 2, protocol: 6, state: 1, src_port: 80, ..SockFields::default() };
    Arc::new(Socket { fields, cookie: 42, ..Socket::default() })
}

/// A connection to one address is sent to another.
#[test]
fn programs_change_addresses() {
    let text = "r6 = r1; r0 = *(u32 *)(r6 + 4); if w0 != 0x0100007f goto no; r0 = *(u16 *)(r6 + 24); \
                if r0 != 0x5000 goto no; r1 = 0x08080808; *(u32 *)(r6 + 4) = r1; r1 = 0x3500; *(u32 *)(r6 + 24) = r1; \
                r1 = 7 ll; *(u64 *)(r6 + 8) = r1; *(u32 *)(r6 + 56) = r1; r1 = r6; call 46; r7 = r0; \
                r1 = *(u64 *)(r6 + 64); if r1 == 0 goto none; r2 = *(u32 *)(r1 + 44); if r2 != 80 goto no; \
                none:; r0 = 0; if r7 > 42 goto no; r0 = 1; exit; no:; r0 = 0; exit";
    for way in VERIFIED {
        let program = loaded::<SockAddr>(way, text);
        let fields =
            SockAddrFields { user_family: 2, user_ip4: 0x0100_007f, user_port: 0x5000, ..SockAddrFields::default() };
        for socket in [None, Some(socket())] {
            let mut buff = SockAddrBuff::new(fields);
            buff.socket = socket;
            assert_eq!(program.run(&mut (), &mut buff).unwrap(), 1, "{way:?}");
            let (user_ip6, msg_src_ip6) = ([7, 0, 0, 0], [0, 0, 0, 7]);
            let user = SockAddrFields { user_ip4: 0x0808_0808, user_port: 0x3500, user_ip6, ..fields };
            assert_eq!(buff.fields, SockAddrFields { msg_src_ip6, ..user }, "{way:?}");
        }
        let mut other = SockAddrBuff::new(SockAddrFields { user_ip4: 1, ..fields });
        assert_eq!(program.run(&mut (), &mut other).unwrap(), 0, "{way:?}");
    }
}

/// A program on a socket sees its numbers and marks it.
#[test]
fn programs_mark_sockets() {
    let text = "r6 = r1; r0 = *(u32 *)(r6 + 8); if r0 != 3 goto no; r0 = *(u32 *)(r6 + 48); if r0 != 0x1234 goto no; \
                r0 = *(u16 *)(r6 + 48); if r0 != 0x1234 goto no; r0 = *(u32 *)(r6 + 40); if r0 != 4 goto no; \
                r1 = 9; *(u32 *)(r6 + 16) = r1; *(u32 *)(r6 + 0) = r1; r1 = r6; call 46; \
                *(u32 *)(r6 + 20) = r0; r0 = 1; exit; no:; r0 = 0; exit";
    for way in VERIFIED {
        let program = loaded::<Sock>(way, text);
        let fields = SockFields { kind: 3, dst_port: 0x1234, src_ip6: [1, 2, 3, 4], ..SockFields::default() };
        let mut buff = SockBuff::new(fields);
        buff.cookie = 77;
        assert_eq!(program.run(&mut (), &mut buff).unwrap(), 1, "{way:?}");
        assert_eq!(buff.fields, SockFields { mark: 9, bound_dev_if: 9, priority: 77, ..fields }, "{way:?}");
    }
}

/// A program that is told of a connection replies, and says what else it wants to be told of.
#[test]
fn programs_are_told_of_connections() {
    let text = "r6 = r1; r0 = *(u32 *)(r6 + 0); if r0 != 5 goto no; r0 = *(u32 *)(r6 + 16); if r0 != 4 goto no; \
                r0 = *(u64 *)(r6 + 168); if r0 != 6 goto no; r1 = 3; *(u32 *)(r6 + 4) = r1; \
                r1 = r6; r2 = 0x1ff; call 59; r7 = r0; r1 = *(u64 *)(r6 + 184); if r1 == 0 goto none; \
                r2 = *(u32 *)(r1 + 44); if r2 != 80 goto no; none:; r0 = *(u32 *)(r6 + 72); if r0 != 0 goto full; \
                if r7 != -22 goto no; r0 = 1; exit; full:; r0 = *(u32 *)(r6 + 84); if r0 != 0x7f goto no; \
                if r7 != 0x180 goto no; r0 = 1; exit; no:; r0 = 0; exit";
    for way in VERIFIED {
        let program = loaded::<SockOps>(way, text);
        for (is_fullsock, socket) in [(0, None), (1, Some(socket()))] {
            let args = [1, 2, 3, 4];
            let fields = SockOpsFields { op: 5, args, is_fullsock, bytes_received: 6, ..SockOpsFields::default() };
            let mut buff = SockOpsBuff::new(fields);
            buff.socket = socket;
            assert_eq!(program.run(&mut (), &mut buff).unwrap(), 1, "{way:?}");
            assert_eq!((buff.reply(), buff.fields.bpf_sock_ops_cb_flags), (3, is_fullsock * 0x7f), "{way:?}");
        }
    }
}

/// Verdicts are what the kernel takes, a socket may be missing, and each context has helpers of its own.
#[test]
fn programs_on_sockets_keep_to_their_contexts() {
    fn refused<C: Context>(cases: &[(&str, &str)]) {
        let linker = Linker::<()>::new(&ways::engine(Way::Verified, |config| config));
        for (text, reason) in cases {
            let error = linker.loader::<C>().insns("test", support::program(text)).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
    refused::<Sock>(&[
        ("r0 = 2; exit", "0..=1"),
        ("*(u32 *)(r1 + 8) = 0; r0 = 0; exit", "may not be written"),
        ("r0 = *(u32 *)(r1 + 80); exit", "no field"),
        ("r2 = 1; call 59; r0 = 0; exit", "bpf_sock_ops_cb_flags_set"),
    ]);
    refused::<SockAddr>(&[
        ("r0 = 4; exit", "0..=3"),
        ("*(u32 *)(r1 + 36) = 0; r0 = 0; exit", "may not be written"),
        ("r0 = *(u32 *)(r1 + 64); r0 = 0; exit", "read whole"),
        ("r1 = *(u64 *)(r1 + 64); r0 = *(u32 *)(r1 + 4); exit", "may be null"),
        ("*(u64 *)(r1 + 64) = 0; r0 = 0; exit", "may not be written"),
    ]);
    refused::<SockOps>(&[
        ("r0 = 2; exit", "0..=1"),
        ("*(u32 *)(r1 + 8) = 0; r0 = 0; exit", "may not be written"),
        (
            "r6 = *(u64 *)(r1 + 184); if r6 == 0 goto none; r1 = r6; call 86; none:; r0 = 0; exit",
            "still to be released",
        ),
        ("r2 = r1; call 59; r0 = 0; exit", "a number"),
    ]);
}

/// Whether the kernel, and whether we take each access: offset, size, and whether it writes.
fn accesses<C: Context>(kind: ProgramType, hooks: &[u32], size: i64) -> Vec<((i64, i64, bool), bool, bool)> {
    let config = Config::new().mode(Mode::Interpreter);
    let linker = Linker::<()>::new(&Engine::new(config).unwrap());
    let mut all = Vec::new();
    for bytes in [1, 2, 4, 8] {
        for (off, writes) in (0..size).flat_map(|off| [(off, false), (off, true)]) {
            let at = format!("*(u{} *)(r1 + {off})", bytes * 8);
            let access = if writes { format!("{at} = r2") } else { format!("r2 = {at}") };
            let insns = support::program(&format!("r2 = 0; {access}; r0 = 1; exit"));
            let encoded = bpf_isa::encode(&insns).unwrap();
            let kernel = hooks.iter().any(|hook| kernel::Program::load_for(kind, *hook, &encoded).is_ok());
            all.push(((off, bytes, writes), kernel, linker.loader::<C>().insns("test", insns).is_ok()));
        }
    }
    all
}

/// Each access to each context: every access that the kernel accepts on one of its hooks is accepted here, except for
/// the packet of a connection, which does not exist. Further accesses that are accepted here are parts of fields that
/// the kernel allows as a whole, never writes of fields that are read-only in the kernel.
#[test]
fn contexts_of_sockets_are_the_kernels() {
    if let Err(reason) = kernel::available() {
        return skipped("contexts of sockets against the kernel", &reason);
    }
    const PACKET: core::ops::Range<i64> = 192..224;
    // Two words of an address that begin at the second: as everywhere, a part begins at a multiple of its size.
    const MIDDLE: (i64, i64) = (48, 8);
    // `BPF_CGROUP_INET_SOCK_CREATE`, `INET4_POST_BIND`, `INET6_POST_BIND`, `INET_SOCK_RELEASE`.
    let sock = accesses::<Sock>(ProgramType::CgroupSock, &[2, 12, 13, 34], 80);
    // `BPF_CGROUP_INET4_CONNECT`, `INET6_CONNECT`, `UDP4_SENDMSG`, `UDP6_SENDMSG`.
    let address = accesses::<SockAddr>(ProgramType::CgroupSockAddr, &[10, 11, 14, 15], 72);
    let ops = accesses::<SockOps>(ProgramType::SockOps, &[3], 224);
    for (context, all) in [("bpf_sock", sock), ("bpf_sock_addr", address), ("bpf_sock_ops", ops)] {
        let both = all.iter().filter(|(_, kernel, ours)| *kernel && *ours).count();
        println!("{context}: {both} of {} accesses are taken by both", all.len());
        assert!(both > 20, "{context}: {both}");
        for &((off, bytes, writes), kernel, ours) in &all {
            let apart = context == "bpf_sock_ops" && PACKET.contains(&off);
            let apart = apart || context == "bpf_sock_addr" && (off, bytes) == MIDDLE;
            assert!(!kernel || ours || apart, "{context}: the kernel takes {bytes} bytes at {off}, writes: {writes}");
            // Some part of the same eight bytes is read, or written, in the kernel too.
            let near = |other: &&((i64, i64, bool), bool, bool)| {
                let ((at, len, write), kernel, _) = **other;
                kernel && write == writes && at < off + bytes && off < at + len
            };
            assert!(!ours || all.iter().find(near).is_some(), "{context}: we take {bytes} at {off}, writes: {writes}");
        }
    }
}

/// A helper reads its context: a program that nobody has verified must give the run's.
#[test]
fn an_unverified_program_gives_helpers_the_context_or_its_run_ends() {
    let engine = ways::engine(Way::Interpreted, |config| config);
    let linker = Linker::<()>::new(&engine);
    let run = |text: &str| {
        let program = linker.loader::<Sock>().interpreted(true).insns("test", support::program(text)).unwrap();
        let mut buff = SockBuff::new(SockFields::default());
        buff.cookie = 42;
        program.run(&mut (), &mut buff)
    };
    assert_eq!(run("call 46; exit").unwrap(), 42);
    for text in ["r1 = 0x12345678 ll; call 46; exit", "r1 = r10; r1 += -88; call 46; exit", "r1 += 8; call 46; exit"] {
        let error = run(text).unwrap_err();
        assert!(error.to_string().contains("is not the context"), "{text}: {error}");
    }
}
