//! Programs as people write them for networks: a load balancer, address translation, a firewall and so on
//! (`tests/objects/net`), loaded into the kernel by its own loader and here, do the same over generated traffic.
//!
//! Both are given the same entries of maps, then one packet after the other: verdicts, packets, the context's fields
//! and, at the end, everything in the maps must be equal. Values that cannot be equal (a cookie's secret, a time) are
//! left out, each with its reason. Where the kernel or its loader (`bpftool`) is not to be had, the programs run here
//! alone, on every engine, and the engines are compared.

use crate::network_traffic::traffic;
use crate::support::ways::{self, Way};
use bpf_runtime::maps::{MapDef, MapType};
use bpf_runtime::net::{Network, SockFields, Socket};
use bpf_runtime::{
    Engine, Instance, Linker, MapSet, Object,
    maps::Map,
    net::{SkBuff, SkLookup, SkLookupBuff, SkLookupFields, Skb, Xdp, XdpBuff},
};
use bpf_testkit::kernel::{self, pinned};
use bpf_testkit::skipped;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];
const CPUS: [&str; 3] = ["", ".v2", ".v4"];

/// The room that the kernel's test runs give XDP programs.
const HEADROOM: usize = 256 - 40;
const ROOM: usize = 4096 - 256 - 320;
/// More than any program here asks of a `struct __sk_buff`.
const SKB_ROOM: usize = 512;

/// The outcome of a run: verdict, packet, and the context's fields that programs write.
type Outcome = (u32, Vec<u8>, Vec<u8>);

/// One object, the initial contents of its maps, and the packets that it runs on.
struct Case {
    name: &'static str,
    programs: &'static [(&'static str, Hook)],
    /// Programs that `programs` jump to.
    chained: &'static [&'static str],
    entries: Vec<(&'static str, Vec<u8>, Vec<u8>)>,
    /// Maps of maps: the outer one, its key, and the inner array's values.
    inner: Vec<(&'static str, u32, Vec<u32>)>,
    packets: Vec<Vec<u8>>,
    /// Whether the second program gets the answer to the packet that the first one left.
    answers: bool,
    /// Takes out of an outcome what differs from the kernel's for a reason.
    forgive: fn(&mut Outcome),
    /// Clears the bytes of a map's value that cannot be equal.
    forgive_value: fn(&str, &mut Vec<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hook {
    Xdp,
    Classifier,
    Cgroup,
    Dissector,
}

impl Case {
    fn new(name: &'static str, programs: &'static [(&'static str, Hook)]) -> Case {
        Case {
            name,
            programs,
            chained: &[],
            entries: Vec::new(),
            inner: Vec::new(),
            packets: traffic(),
            answers: false,
            forgive: |_| {},
            forgive_value: |_, _| {},
        }
    }

    fn entry(mut self, map: &'static str, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Case {
        self.entries.push((map, key.into(), value.into()));
        self
    }

    fn object(&self, cpu: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/objects/net/{}{cpu}.o", self.name))
    }
}

/// The object on one of our engines.
struct Ours {
    instance: Instance<()>,
    _engine: Engine,
}

impl Ours {
    fn new(case: &Case, object: &Object, way: Way) -> Ours {
        let engine = ways::engine(way, |config| config);
        let linker = Linker::<()>::new(&engine);
        let maps = MapSet::for_object(&engine, object).unwrap();
        let of = |hook: fn(Hook) -> bool| -> Vec<&str> {
            case.programs.iter().filter(|(_, h)| hook(*h)).map(|(name, _)| *name).collect()
        };
        let (xdp, skb) = (of(|hook| hook == Hook::Xdp), of(|hook| hook != Hook::Xdp));
        // A chain's other programs are in no case: all of them are loaded.
        let xdp_all: Vec<&str> = [&xdp[..], case.chained].concat();
        let shown = format!("{} as {way:?}", case.name);
        let load = |maps| -> Instance<()> {
            let loaded = if skb.is_empty() {
                linker.loader::<Xdp>().only(&xdp_all).object(object, maps)
            } else {
                linker.loader::<Skb>().only(&skb).object(object, maps)
            };
            loaded.unwrap_or_else(|e| panic!("{shown}: {e}"))
        };
        assert!(xdp.is_empty() || skb.is_empty(), "{}: one context a case", case.name);
        let instance = load(maps);
        for (name, key, value) in &case.entries {
            instance.map(name).unwrap().set(key, &per_slot(&instance.map(name).unwrap(), value)).unwrap();
        }
        for (name, key, values) in &case.inner {
            let inner = MapDef::new("inner", MapType::Array, 4, 4, values.len() as u32);
            let inner = Map::create(inner, engine.domain()).unwrap();
            for (i, value) in (0u32..).zip(values) {
                inner.set(&i.to_ne_bytes(), &value.to_ne_bytes()).unwrap();
            }
            instance.map(name).unwrap().set_inner(&key.to_ne_bytes(), &inner, 0).unwrap();
        }
        Ours { instance, _engine: engine }
    }

    fn run(&self, program: &str, hook: Hook, packet: &[u8]) -> Outcome {
        match hook {
            Hook::Xdp => {
                let mut buffer = vec![0; HEADROOM + ROOM];
                buffer[HEADROOM..][..packet.len()].copy_from_slice(packet);
                let mut buff = XdpBuff::with_room(&mut buffer, HEADROOM, packet.len());
                (buff.ingress_ifindex, buff.rx_queue_index) = (1, 0);
                let program = self.instance.program::<Xdp>(program).unwrap();
                let r0 = program.run(&mut (), &mut buff).unwrap();
                (r0 as u32, [buff.metadata(), buff.packet()].concat(), Vec::new())
            }
            Hook::Classifier | Hook::Dissector | Hook::Cgroup => {
                let mut buffer = vec![0; SKB_ROOM + packet.len() + SKB_ROOM];
                buffer[SKB_ROOM..][..packet.len()].copy_from_slice(packet);
                let mut buff = if hook == Hook::Cgroup {
                    let protocol = u16::from_be_bytes([packet[12], packet[13]]);
                    SkBuff::layer3(&mut buffer, SKB_ROOM + 14, packet.len() - 14, protocol)
                } else {
                    SkBuff::with_room(&mut buffer, SKB_ROOM, packet.len())
                };
                buff.fields.pkt_type = if packet[0] & 1 == 0 { 3 } else { 2 };
                let program = self.instance.program::<Skb>(program).unwrap();
                let r0 = program.run(&mut (), &mut buff).unwrap() as u32;
                let fields = [buff.fields.mark, buff.fields.priority].into_iter().chain(buff.fields.cb);
                let fields = fields.flat_map(u32::to_ne_bytes).collect();
                match hook {
                    // The kernel's test run puts zeros in front.
                    Hook::Cgroup => (r0, [&[0; 14], buff.packet()].concat(), fields),
                    Hook::Dissector => (r0, flow_keys(&buff, packet.len()), Vec::new()),
                    Hook::Classifier | Hook::Xdp => (r0, buff.packet().to_vec(), fields),
                }
            }
        }
    }

    /// Everything in the maps; per-CPU values are added up, word by word.
    fn maps(&self, case: &Case) -> BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut all = BTreeMap::new();
        for map in self.instance.maps().filter(|map| is_compared(map)) {
            let mut elements = BTreeMap::new();
            if map.map_type() == MapType::Queue {
                let mut value = vec![0; map.def().value_size as usize];
                while map.pop(&mut value).unwrap() {
                    elements.insert((elements.len() as u32).to_be_bytes().to_vec(), value.clone());
                }
            } else {
                elements = map.iter().map(|element| element.unwrap()).collect();
            }
            for value in elements.values_mut() {
                if is_per_cpu(map.map_type()) {
                    *value = added_up(value, map.def().value_size as usize);
                }
                (case.forgive_value)(map.name(), value);
            }
            all.insert(map.name().to_owned(), elements);
        }
        all
    }
}

fn is_per_cpu(map_type: MapType) -> bool {
    matches!(map_type, MapType::PerCpuArray | MapType::PerCpuHash | MapType::LruPerCpuHash)
}

/// Not programs, sockets and maps; nor what cannot be read twice; nor constants.
fn is_compared(map: &Map) -> bool {
    !matches!(map.map_type(), MapType::ProgArray | MapType::ArrayOfMaps | MapType::SockMap | MapType::RingBuf)
        && !map.name().contains("rodata")
}

fn per_slot(map: &Map, value: &[u8]) -> Vec<u8> {
    if is_per_cpu(map.map_type()) { value.repeat(map.host_value_size() / value.len()) } else { value.to_vec() }
}

fn added_up(value: &[u8], size: usize) -> Vec<u8> {
    let size = size.next_multiple_of(8);
    let mut sums = vec![0u64; size / 8];
    for one in value.chunks(size) {
        for (sum, word) in sums.iter_mut().zip(one.chunks(8)) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(word.try_into().unwrap()));
        }
    }
    sums.into_iter().flat_map(u64::to_ne_bytes).collect()
}

/// `struct bpf_flow_keys` as the kernel hands it on: its offsets are cut to the packet's length.
fn flow_keys(buff: &SkBuff<'_>, len: usize) -> Vec<u8> {
    let keys = &buff.flow_keys;
    let end = len as u16;
    let nhoff = keys.nhoff.clamp(14, end.max(14));
    let thoff = keys.thoff.clamp(nhoff, end.max(nhoff));
    let mut bytes = [nhoff, thoff, keys.addr_proto].map(u16::to_ne_bytes).concat();
    bytes.extend([keys.is_frag, keys.is_first_frag, keys.is_encap, keys.ip_proto]);
    bytes.extend([keys.n_proto, keys.sport, keys.dport].map(u16::to_ne_bytes).concat());
    bytes.extend(keys.addresses.iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend([keys.flags, keys.flow_label].map(u32::to_ne_bytes).concat());
    bytes
}

/// The object in the kernel; `None`, said once, where that is not to be had.
fn theirs(case: &Case, path: &Path) -> Option<pinned::Loaded> {
    if let Err(reason) = kernel::available() {
        skipped("network programs against the kernel", &reason);
        return None;
    }
    let loaded = match pinned::load(path) {
        Ok(loaded) => loaded,
        Err(reason @ pinned::NotLoaded::NoLoader(_)) => {
            skipped("network programs against the kernel", &reason);
            return None;
        }
        Err(refused @ pinned::NotLoaded::Refused(_)) => panic!("{}: {refused}", path.display()),
    };
    for (name, key, value) in &case.entries {
        let map = &loaded.maps[*name];
        map.update(key, value).unwrap();
    }
    for (name, key, values) in &case.inner {
        let inner = kernel::Map::create(kernel::MapType::Array, 4, 4, values.len() as u32).unwrap();
        for (i, value) in (0u32..).zip(values) {
            inner.update(&i.to_ne_bytes(), &value.to_ne_bytes()).unwrap();
        }
        loaded.maps[*name].update(&key.to_ne_bytes(), &inner.fd().to_ne_bytes()).unwrap();
    }
    Some(loaded)
}

/// `None`: the kernel makes no such packet.
fn run_theirs(program: &kernel::Program, hook: Hook, packet: &[u8]) -> Option<Outcome> {
    let word = |bytes: &[u8], at: usize| bytes[at..at + 4].to_vec();
    let result = match hook {
        Hook::Xdp => program.test_run_output(packet).map(|(r0, packet)| (r0, packet, Vec::new())),
        Hook::Dissector => program.test_run_output(packet).map(|(r0, keys)| (r0, keys, Vec::new())),
        Hook::Classifier | Hook::Cgroup => {
            // struct __sk_buff: mark, priority, cb.
            program.test_run_context(packet, &[0; 192]).map(|(r0, packet, context)| {
                let fields = [word(&context, 8), word(&context, 32), context[48..68].to_vec()].concat();
                (r0, packet, fields)
            })
        }
    };
    match result {
        Ok(outcome) => Some(outcome),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => None,
        Err(e) => panic!("{e}"),
    }
}

fn maps_of_theirs(
    case: &Case,
    loaded: &pinned::Loaded,
    ours: &Instance<()>,
) -> BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut all = BTreeMap::new();
    for map in ours.maps().filter(|map| is_compared(map)) {
        let section = format!("{}_{}", case.name, map.name().rsplit('.').next().unwrap_or_default());
        let theirs = loaded.maps.get(map.name()).or_else(|| loaded.maps.get(&section));
        let theirs = theirs.unwrap_or_else(|| panic!("{} of {:?}", map.name(), loaded.maps.keys()));
        let mut elements = BTreeMap::new();
        if map.map_type() == MapType::Queue {
            while let Some(value) = theirs.pop().unwrap() {
                elements.insert((elements.len() as u32).to_be_bytes().to_vec(), value);
            }
        } else {
            elements = theirs.elements().unwrap();
        }
        for value in elements.values_mut() {
            if is_per_cpu(map.map_type()) {
                *value = added_up(value, map.def().value_size as usize);
            }
            (case.forgive_value)(map.name(), value);
        }
        all.insert(map.name().to_owned(), elements);
    }
    all
}

/// Runs a case in the kernel and here, for each version of the instruction set that it is compiled for. Verdicts by how
/// often there were.
fn check(case: &Case) {
    stay_on_this_processor();
    for cpu in CPUS {
        let path = case.object(cpu);
        let object = Object::parse(&std::fs::read(&path).unwrap()).unwrap();
        let theirs = theirs(case, &path);
        let ours: Vec<Ours> = VERIFIED.iter().map(|way| Ours::new(case, &object, *way)).collect();
        let mut verdicts = BTreeMap::<(&str, u32), usize>::new();
        for packet in &case.packets {
            let mut packet = packet.clone();
            for (program, hook) in case.programs {
                let packet = &mut packet;
                let expected = match &theirs {
                    Some(loaded) => match run_theirs(&loaded.programs[*program], *hook, packet) {
                        Some(outcome) => Some(outcome),
                        None => continue,
                    },
                    None if *hook != Hook::Xdp && packet.len() < 54 => continue,
                    None => None,
                };
                let mut first = None;
                for (way, ours) in VERIFIED.iter().zip(&ours) {
                    let mut outcome = ours.run(program, *hook, packet);
                    *verdicts.entry((program, outcome.0)).or_default() += usize::from(first.is_none());
                    (case.forgive)(&mut outcome);
                    let expected = expected.clone().map(|mut expected| {
                        (case.forgive)(&mut expected);
                        expected
                    });
                    let expected = expected.or_else(|| first.clone()).unwrap_or_else(|| outcome.clone());
                    assert!(
                        outcome == expected,
                        "{} {program}{cpu}, {way:?}, on {packet:02x?}\nours {outcome:x?}\nwant {expected:x?}",
                        case.name
                    );
                    first = Some(outcome);
                }
                if let (true, Some((_, changed, _))) = (case.answers, first) {
                    *packet = answer(&changed);
                }
            }
        }
        let expected = theirs.as_ref().map(|loaded| maps_of_theirs(case, loaded, &ours[0].instance));
        let mut expected = expected;
        for (way, ours) in VERIFIED.iter().zip(&ours) {
            let maps = ours.maps(case);
            let expected = expected.get_or_insert_with(|| maps.clone());
            for (name, elements) in &maps {
                let want = &expected[name];
                let differ = elements.iter().find(|(key, value)| want.get(*key) != Some(value));
                assert!(
                    differ.is_none() && elements.len() == want.len(),
                    "{}{cpu}, {way:?}, map {name}: {} and {} elements; {differ:x?} is {:x?}",
                    case.name,
                    elements.len(),
                    want.len(),
                    differ.map(|(key, _)| want.get(key))
                );
            }
        }
        println!("{}{cpu}: {} packets, {verdicts:?}", case.name, case.packets.len());
        let distinct = verdicts.len();
        // In the kernel's test run, classifiers get packets with VLAN tags in the packet: the helpers push tags and
        // have none to pop.
        let alike = ["loops", "vlan"].contains(&case.name);
        assert!(distinct > case.programs.len() || alike, "{}: always the same: {verdicts:?}", case.name);
    }
}

/// Returns the packet with source and destination exchanged, if it is IPv4 without options; no checksum changes.
fn answer(packet: &[u8]) -> Vec<u8> {
    let mut answer = packet.to_vec();
    if packet.len() >= 38 && packet[12..15] == [8, 0, 0x45] {
        for (one, other) in (26..30).zip(30..34) {
            answer.swap(one, other);
        }
        if matches!(packet[23], 6 | 17) {
            answer.swap(34, 36);
            answer.swap(35, 37);
        }
    }
    answer
}

/// Pins the thread to one CPU, so that all per-CPU values are on it.
fn stay_on_this_processor() {
    // SAFETY: no memory is concerned.
    let cpu = unsafe { libc::sched_getcpu() };
    // SAFETY: an all-zero set is a valid one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is exclusively ours; a number beyond it changes nothing.
    unsafe { libc::CPU_SET(cpu.max(0) as usize, &mut set) };
    // SAFETY: `set` has the size given and is only read. Where it fails the comparison of sums still holds.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
}

fn vip(address: &[u8], port: u16, proto: u8) -> Vec<u8> {
    let mut key = [0; 20];
    key[..address.len()].copy_from_slice(address);
    key[16..18].copy_from_slice(&port.to_be_bytes());
    key[18] = proto;
    key.to_vec()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn a_maglev_load_balancer() {
    let mut case = Case::new("maglev", &[("balance", Hook::Xdp)]);
    // Flags: 1 no port, 2 GUE, 4 no connections, 8 by destination port.
    let vips: [(&[u8], u16, u8, u32); 9] = [
        (&[10, 0, 0, 2], 443, 6, 0),
        (&[10, 0, 0, 2], 53, 17, 2),
        (&[192, 168, 1, 1], 0, 6, 1),
        (&[192, 168, 1, 1], 0, 17, 3 | 4),
        (&[203, 0, 113, 9], 0, 6, 8),
        (&[203, 0, 113, 9], 0, 17, 0),
        (&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1], 0, 6, 2),
        (&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 0, 17, 0),
        (&[8, 8, 8, 8], 0, 6, 0),
    ];
    for (number, (address, port, proto, flags)) in (0u32..).zip(vips) {
        case = case.entry("vip_map", vip(address, port, proto), words(&[flags, number]));
        if number < 8 {
            case.inner.push((
                "rings",
                number,
                (0..251).map(|slot| if slot == 7 { 0 } else { 1 + (slot * 7 + number) % 6 }).collect(),
            ));
        }
    }
    for real in 1u32..7 {
        let address = if real % 2 == 0 { [0x0000_0120, real, 0, real << 24] } else { [10 | real << 24, 0, 0, 0] };
        case = case.entry("reals", words(&[real]), [words(&address), vec![u8::from(real % 2 == 0), 0, 0, 0]].concat());
    }
    check(&case.entry("gateway", [0; 4], [2, 9, 9, 9, 9, 9, 0, 0]));
}

#[test]
fn a_translator_of_addresses() {
    let mut case = Case::new("nat", &[("egress", Hook::Classifier), ("ingress", Hook::Classifier)]);
    case.answers = true;
    check(&case);
}

#[test]
fn a_firewall_of_prefixes_and_ports() {
    let rule = |id: u32, ranges: &[(u16, u16, u8, u8)]| {
        let mut rule = words(&[id, ranges.len() as u32]);
        for i in 0..8 {
            let (low, high, proto, action) = ranges.get(i).copied().unwrap_or_default();
            rule.extend([low.to_ne_bytes(), high.to_ne_bytes(), [proto, action], [0, 0]].concat());
        }
        rule
    };
    let v4 = |bits: u32, address: [u8; 4]| [words(&[bits]), address.to_vec()].concat();
    let v6 = |bits: u32, last: u8| {
        [words(&[bits]), vec![0x20, 1, 0xd, 0xb8, 0, 0, 0, last, 0, 0, 0, 0, 0, 0, 0, 1]].concat()
    };
    let all = (0, 65535, 0, 2);
    check(
        &Case::new("firewall", &[("filter", Hook::Xdp)])
            .entry("rules_v4", v4(8, [10, 0, 0, 0]), rule(1, &[(80, 80, 6, 2), (1024, 40000, 17, 2)]))
            .entry("rules_v4", v4(32, [10, 0, 0, 1]), rule(2, &[all]))
            .entry("rules_v4", v4(24, [192, 168, 1, 0]), rule(3, &[(443, 443, 0, 1), all]))
            .entry("rules_v4", v4(0, [0; 4]), rule(4, &[(0, 1024, 6, 2)]))
            .entry("rules_v6", v6(64, 0), rule(5, &[(0, 1023, 17, 3), all]))
            .entry("rules_v6", v6(128, 1), rule(6, &[(8080, 8080, 6, 2)])),
    );
}

#[test]
fn a_responder_with_cookies() {
    let mut case = Case::new("syncookie", &[("respond", Hook::Xdp)]);
    for port in [80u16, 443, 53, 65535] {
        case = case.entry("allowed_ports", port.to_be_bytes(), [1]);
    }
    // The secret is another: the cookie, which is the sequence number, and with it the checksum.
    case.forgive = |(verdict, packet, _)| {
        let at = if packet.get(12..14) == Some(&[8, 0]) { 34 } else { 54 };
        if *verdict == 3 {
            packet[at + 4..at + 8].fill(0);
            packet[at + 16..at + 18].fill(0);
        }
    };
    check(&case);
}

#[test]
fn a_rewriter_of_tags() {
    for programs in [&[("xdp_vlan", Hook::Xdp)][..], &[("tc_vlan", Hook::Classifier)]] {
        let mut case = Case::new("vlan", programs);
        let rewrites: [(u32, u16, u8, u8); 8] = [
            (0xffff, 9, 3, 1),
            (5, 77, 2, 0),
            (100, 0, 1, 0),
            (0x100, 8, 3, 7),
            (0x164, 300, 2, 1),
            (5 << 16 | 100, 0, 4, 0),
            (100 << 16 | 5, 6, 3, 2),
            (0x105, 0, 4, 0),
        ];
        for (key, vid, action, pcp) in rewrites {
            case = case.entry("rewrites", words(&[key]), [&vid.to_ne_bytes()[..], &[action, pcp]].concat());
        }
        check(&case);
    }
}

#[test]
fn parsers_of_extension_headers() {
    check(&Case::new("ext6", &[("unrolled", Hook::Xdp), ("called_back", Hook::Xdp), ("copied", Hook::Xdp)]));
}

#[test]
fn a_parser_of_dns() {
    let hash = |name: &str| {
        name.bytes()
            .fold(14_695_981_039_346_656_037u64, |h, byte| (h ^ u64::from(byte)).wrapping_mul(1_099_511_628_211))
    };
    let mut case = Case::new("dns", &[("resolver", Hook::Xdp)]);
    for (name, verdict) in [(".com", 1u32), (".www.example", 2), (".x", 2), (".net", 0), (".com.com", 2)] {
        case = case.entry("listed", hash(name).to_ne_bytes(), words(&[verdict, 0]));
    }
    check(&case);
}

#[test]
fn a_dispatcher_of_programs() {
    let mut case = Case::new("dispatch", &[("entry", Hook::Xdp)]);
    case.chained = &["count_v4", "count_v6", "last"];
    check(&case);
}

#[test]
fn loops_of_every_kind() {
    check(&Case::new(
        "loops",
        &[
            ("byte_histogram", Hook::Classifier),
            ("in_place", Hook::Classifier),
            ("nested", Hook::Classifier),
            ("checksum", Hook::Classifier),
            ("search", Hook::Classifier),
        ],
    ));
}

#[test]
fn buckets_of_tokens() {
    let full = [words(&[0, 0]), [0, 60_000u64, 0, 0].map(u64::to_ne_bytes).concat()].concat();
    check(&Case::new("bucket", &[("limit", Hook::Xdp)]).entry("all", [0; 4], full));
}

#[test]
fn a_policy_of_control_groups() {
    let mut case = Case::new("policy", &[("received", Hook::Cgroup), ("sent", Hook::Cgroup)]);
    let mapped = |address: [u8; 4]| [&[0; 10][..], &[0xff, 0xff], &address].concat();
    case = case.entry("peers", mapped([10, 0, 0, 1]), words(&[100, 1])).entry(
        "peers",
        mapped([8, 8, 8, 8]),
        words(&[200, 0]),
    );
    for (identity, port, proto, egress) in
        [(100u32, 0u16, 6u8, 0u8), (100, 53, 17, 1), (200, 80, 6, 1), (2, 0, 17, 0), (2, 443, 6, 1), (2, 0, 58, 0)]
    {
        let key = [&identity.to_ne_bytes()[..], &port.to_be_bytes(), &[proto, egress]].concat();
        case = case.entry("policy", key, [0; 8]);
    }
    check(&case);
}

#[test]
fn a_dissector_of_flows() {
    check(&Case::new("dissect", &[("dissect", Hook::Dissector)]));
}

/// Sockets by their cookies.
struct Known(Vec<Arc<Socket>>);

impl Network for Known {
    fn socket_by_number(&self, number: u64) -> Option<Arc<Socket>> {
        self.0.iter().find(|socket| socket.cookie == number).map(Arc::clone)
    }
}

/// Returns the kernel's cookie of the socket; an emulator may not support the request.
fn cookie(listener: &TcpListener) -> std::io::Result<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the cookie has the length given and is exclusively ours.
    let result = unsafe {
        libc::getsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn a_steering_of_connections() {
    let listeners: Vec<TcpListener> =
        ["127.0.0.1:0", "127.0.0.1:0", "[::]:0"].iter().filter_map(|at| TcpListener::bind(at).ok()).collect();
    let sockets: Vec<Arc<Socket>> = (1u64..)
        .zip(&listeners)
        .map(|(number, listener)| {
            let family = if listener.local_addr().unwrap().is_ipv4() { 2 } else { 10 };
            let fields = SockFields { family, protocol: 6, state: 10, ..SockFields::default() };
            // Only the kernel that is compared with has to agree.
            let cookie = match (cookie(listener), kernel::available()) {
                (Ok(cookie), _) => cookie,
                (Err(_), Err(_)) => number,
                (Err(error), Ok(())) => panic!("SO_COOKIE: {error}"),
            };
            Arc::new(Socket { fields, cookie, ..Socket::default() })
        })
        .collect();
    let prefix = |bits: u32, proto: u8, port: u16, address: &[u8]| {
        let address =
            if address.len() == 4 { [&[0; 10][..], &[0xff, 0xff], address].concat() } else { address.to_vec() };
        [&bits.to_ne_bytes()[..], &[proto, 0], &port.to_be_bytes(), &address].concat()
    };
    let mut case = Case::new("steer", &[("steer", Hook::Xdp)]);
    case = case
        .entry("services", prefix(32 + 96 + 8, 6, 80, &[10, 0, 0, 0]), words(&[0, 2]))
        .entry("services", prefix(32 + 128, 6, 80, &[10, 0, 0, 9]), words(&[0, 0]))
        .entry("services", prefix(32, 6, 443, &[0; 16]), words(&[0, 4]))
        .entry("services", prefix(32, 17, 53, &[0; 16]), words(&[0, 3]));
    for cpu in CPUS {
        let path = case.object(cpu);
        let theirs = theirs(&case, &path);
        if let Some(loaded) = &theirs {
            for (key, listener) in (0u32..).zip(&listeners) {
                let fd = u64::try_from(listener.as_raw_fd()).unwrap();
                loaded.maps["sockets"].update(&key.to_ne_bytes(), &fd.to_ne_bytes()).unwrap();
            }
        }
        let object = Object::parse(&std::fs::read(&path).unwrap()).unwrap();
        for (i, way) in VERIFIED.into_iter().enumerate() {
            let network: Arc<dyn Network> = Arc::new(Known(sockets.clone()));
            let engine = ways::engine(way, |config| config.network(network));
            let linker = Linker::<()>::new(&engine);
            let maps = MapSet::for_object(&engine, &object).unwrap();
            let instance = linker.loader::<SkLookup>().object(&object, maps).unwrap_or_else(|e| panic!("{way:?}: {e}"));
            for (name, key, value) in &case.entries {
                instance.map(name).unwrap().set(key, value).unwrap();
            }
            for (key, socket) in (0u32..).zip(&sockets) {
                instance.map("sockets").unwrap().set(&key.to_ne_bytes(), &socket.cookie.to_ne_bytes()).unwrap();
            }
            let program = instance.program::<SkLookup>("steer").unwrap();
            let mut outcomes = BTreeMap::<(u32, bool), usize>::new();
            for (family, protocol, port) in [2u32, 10]
                .into_iter()
                .flat_map(|f| [6u32, 17].map(|p| (f, p)))
                .flat_map(|(f, p)| [80u32, 443, 53, 1].map(|port| (f, p, port)))
            {
                for remote in 0..6u16 {
                    let mut fields = SkLookupFields { family, protocol, local_port: port, ..SkLookupFields::default() };
                    fields.remote_port = u32::from((1024 + remote).to_be());
                    if family == 2 {
                        fields.remote_ip4 = u32::from_ne_bytes([10, 0, 0, 5]);
                        fields.local_ip4 = u32::from_ne_bytes([10, 0, 0, 7 + remote as u8]);
                    } else {
                        fields.local_ip6 = [0x20, 0, 0, u32::from(remote)];
                    }
                    let mut buff = SkLookupBuff::new(fields);
                    let r0 = program.run(&mut (), &mut buff).unwrap();
                    let chosen = buff.selected.as_ref().map_or(0, |socket| socket.cookie);
                    *outcomes.entry((r0 as u32, chosen != 0)).or_default() += 1;
                    let Some(loaded) = &theirs else { continue };
                    let mut context = [&[0u8; 8][..], &words(&[family, protocol, fields.remote_ip4])].concat();
                    context.extend(words(&fields.remote_ip6));
                    context.extend(words(&[fields.remote_port, fields.local_ip4]));
                    context.extend(words(&fields.local_ip6));
                    context.extend(words(&[port, 0, 0]));
                    let (expected, _, after) = loaded.programs["steer"].test_run_context(&[], &context).unwrap();
                    let theirs = u64::from_ne_bytes(after[..8].try_into().unwrap());
                    assert_eq!((r0 as u32, chosen), (expected, theirs), "{cpu}, {way:?}: {fields:?}");
                }
            }
            // In the kernel each connection has been tried once for each way so far.
            if let Some(loaded) = &theirs {
                let theirs = loaded.maps["outcomes"].elements().unwrap();
                for element in instance.map("outcomes").unwrap().iter() {
                    let (key, value) = element.unwrap();
                    let number = |value: &[u8]| u64::from_ne_bytes(value.try_into().unwrap());
                    assert_eq!(number(&value) * (i as u64 + 1), number(&theirs[&key]), "{cpu}, {way:?}: {key:?}");
                }
            }
            assert!(outcomes.len() >= 3, "{outcomes:?}");
        }
    }
}
