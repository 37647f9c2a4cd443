//! `examples/flow_dissector.o` over packets of every kind it knows: our engines against the kernel's own dissector run.
//!
//! The object fills its prog array itself, so this is also the test of prog arrays that are initialised from an object,
//! with direct sites in most of its programs.

use bpf_runtime::{
    Config, Engine, Instance, Linker, MapSet, Mode, Object,
    code::Arch,
    net::{FlowKeys, SkBuff, Skb},
};
use bpf_testkit::kernel::{self, ProgramType};
use bpf_testkit::kernel_object::KernelObject;
use std::path::Path;

fn example(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Loads `dissect` and what its prog array brings along, verified.
fn load(mode: Mode) -> Instance<()> {
    let config = Config::new().mode(mode);
    let engine = Engine::new(config).unwrap();
    let object = Object::parse(&example("flow_dissector.o")).unwrap();
    let linker = Linker::<()>::new(&engine);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    linker.loader::<Skb>().only(&["dissect"]).object(&object, maps).unwrap()
}

fn dissect(instance: &Instance<()>, packet: &[u8]) -> (u64, FlowKeys) {
    let mut packet = packet.to_vec();
    let mut buff = SkBuff::new(&mut packet);
    let verdict = instance.program::<Skb>("dissect").unwrap().run(&mut (), &mut buff).unwrap();
    (verdict, buff.flow_keys)
}

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

fn ethernet(ethertype: [u8; 2], rest: Vec<u8>) -> Vec<u8> {
    [&[2; 12][..], &ethertype, &rest].concat()
}

fn tag(ethertype: [u8; 2], rest: Vec<u8>) -> Vec<u8> {
    [&[0, 7][..], &ethertype, &rest].concat()
}

fn label(bottom: bool, rest: Vec<u8>) -> Vec<u8> {
    [&[0, 0, u8::from(bottom), 64][..], &rest].concat()
}

/// A header with `options` words of options, and these flags and offset.
fn ipv4(protocol: u8, options: u8, fragment: [u8; 2], rest: Vec<u8>) -> Vec<u8> {
    let header =
        [0x45 + options, 0, 0, 0, 0, 0, fragment[0], fragment[1], 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    [&header[..], &vec![1; 4 * usize::from(options)], &rest].concat()
}

fn ipv6(protocol: u8, rest: Vec<u8>) -> Vec<u8> {
    let addresses: Vec<u8> = (0..32).collect();
    [&[0x60, 0, 0, 0, 0, 0, protocol, 64][..], &addresses, &rest].concat()
}

fn gre(flags: u8, ethertype: [u8; 2], rest: Vec<u8>) -> Vec<u8> {
    let options = vec![9; 4 * (flags & 0xb0).count_ones() as usize];
    [&[flags, 0][..], &ethertype, &options, &rest].concat()
}

fn ports() -> Vec<u8> {
    [&[0x12, 0x34, 0x00, 0x35][..], &[0; 16]].concat()
}

/// Packets, each with the property that it tests.
fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let plain = |protocol| ipv4(protocol, 0, [0, 0], ports());
    vec![
        ("TCP", ethernet(IPV4, plain(6))),
        ("UDP, options", ethernet(IPV4, ipv4(17, 3, [0x40, 0], ports()))),
        ("TCP over IPv6", ethernet(IPV6, ipv6(6, ports()))),
        ("a protocol without ports", ethernet(IPV4, plain(1))),
        ("a first fragment", ethernet(IPV4, ipv4(17, 0, [0x20, 0], ports()))),
        ("a later fragment", ethernet(IPV4, ipv4(17, 0, [0, 9], ports()))),
        ("two tags", ethernet([0x88, 0xa8], tag([0x81, 0x00], tag(IPV4, plain(6))))),
        ("labels, IPv4", ethernet([0x88, 0x47], label(false, label(true, plain(17))))),
        ("label, IPv6", ethernet([0x88, 0x47], label(true, ipv6(17, ports())))),
        ("IP in IP", ethernet(IPV4, ipv4(4, 0, [0, 0], plain(6)))),
        ("IPv6 in IP", ethernet(IPV4, ipv4(41, 0, [0, 0], ipv6(17, ports())))),
        ("GRE", ethernet(IPV4, ipv4(47, 0, [0, 0], gre(0, IPV4, plain(6))))),
        ("GRE, all options", ethernet(IPV6, ipv6(47, gre(0xb0, IPV6, ipv6(6, ports()))))),
        ("GRE, Ethernet", ethernet(IPV4, ipv4(47, 0, [0, 0], gre(0x20, [0x65, 0x58], ethernet(IPV4, plain(17)))))),
        ("GRE of another version", ethernet(IPV4, ipv4(47, 0, [0, 0], [vec![0, 1], gre(0, IPV4, plain(6))].concat()))),
        ("ARP", ethernet([0x08, 0x06], vec![0; 28])),
        ("a short header", ethernet(IPV4, vec![0x45; 12])),
        ("a header too short to be one", ethernet(IPV4, vec![0x42; 20])),
        ("ports cut off", ethernet(IPV4, ipv4(6, 0, [0, 0], vec![0; 3]))),
        ("more labels than tail calls", ethernet([0x88, 0x47], (0..40).fold(plain(6), |p, i| label(i == 0, p)))),
    ]
}

#[test]
fn both_engines_find_what_is_in_the_packets() {
    let jit = Arch::HOST.is_some().then_some(Mode::Jit);
    for mode in [Mode::Interpreter].into_iter().chain(jit) {
        let instance = load(mode);
        let of = |name: &str| {
            let packets = packets();
            let (_, packet) = packets.iter().find(|(other, _)| *other == name).unwrap();
            dissect(&instance, packet)
        };
        let (verdict, keys) = of("UDP, options");
        assert_eq!((verdict, keys.nhoff, keys.thoff, keys.ip_proto), (0, 14, 14 + 20 + 12, 17));
        assert_eq!((keys.sport, keys.dport), (0x1234u16.to_be(), 53u16.to_be()));
        assert_eq!(keys.addresses[..2], [0x0a00_0001u32.to_be(), 0x0a00_0002u32.to_be()]);
        let (verdict, keys) = of("GRE, all options");
        assert_eq!((verdict, keys.thoff, keys.addr_proto, keys.is_encap), (0, 14 + 40 + 16 + 40, 0x86dd, 1));
        let (verdict, keys) = of("two tags");
        assert_eq!((verdict, keys.nhoff, keys.thoff, keys.n_proto), (0, 22, 42, 0x0800u16.to_be()));
        assert_eq!(of("more labels than tail calls").0, 2, "the 34th falls through");
        assert_eq!(of("ARP").0, 2);
    }
}

#[test]
fn the_kernel_finds_the_same() {
    if let Err(why) = kernel::available() {
        return bpf_testkit::skipped("the_kernel_finds_the_same", &why);
    }
    let theirs = KernelObject::load(&example("flow_dissector.o"), ProgramType::FlowDissector).unwrap();
    let ours = load(if Arch::HOST.is_some() { Mode::Jit } else { Mode::Interpreter });
    for (name, packet) in packets() {
        let (verdict, output) = theirs.program("dissect").unwrap().test_run_output(&packet).unwrap();
        let (found, keys) = dissect(&ours, &packet);
        assert_eq!(found, u64::from(verdict), "{name}");
        // The kernel gives no keys with BPF_DROP.
        if verdict == 0 {
            let FlowKeys { nhoff, thoff, addr_proto, is_frag, is_first_frag, is_encap, ip_proto, n_proto, .. } = keys;
            let head = [nhoff, thoff, addr_proto].map(u16::to_ne_bytes).concat();
            let tail = [n_proto, keys.sport, keys.dport].map(u16::to_ne_bytes).concat();
            let words: Vec<u32> = keys.addresses.into_iter().chain([keys.flags, keys.flow_label]).collect();
            let words: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
            let ours = [&head[..], &[is_frag, is_first_frag, is_encap, ip_proto], &tail, &words].concat();
            assert_eq!(ours, output, "{name}");
        }
    }
}
