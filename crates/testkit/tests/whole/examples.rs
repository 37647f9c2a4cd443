//! The README's main job: examples/filter.o, verified, over examples/packets.pcap, on every engine, against a filter
//! written in plain Rust from the description in filter.h.

use bpf_runtime::{Config, Engine, Linker, MapSet, Mode, Object, Raw, code::Arch};
use pcap_file::pcap::PcapReader;
use std::collections::BTreeMap;

const FILTER: &[u8] = include_bytes!("../../../../examples/filter.o");
const CAPTURE: &[u8] = include_bytes!("../../../../examples/packets.pcap");

const DROP: u64 = 1;
const PASS: u64 = 2;
const MALFORMED: u32 = u32::MAX;

/// Per protocol: passed, dropped, bytes.
type Counters = BTreeMap<u32, [u64; 3]>;

fn packets() -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(CAPTURE).expect("a capture");
    let mut next = || reader.next_packet().map(|packet| packet.expect("a packet").data.into_owned());
    std::iter::from_fn(&mut next).collect()
}

/// The verdict and the protocol it is counted under.
fn judge(packet: &[u8], blocked: &[u16]) -> (u64, u32) {
    let be16 = |at: usize| packet.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    let mut at = 14;
    let Some(mut ethertype) = be16(12) else { return (DROP, MALFORMED) };
    for _ in 0..2 {
        if matches!(ethertype, 0x8100 | 0x88a8) {
            let Some(next) = be16(at + 2) else { return (DROP, MALFORMED) };
            (ethertype, at) = (next, at + 4);
        }
    }
    let (header, protocol) = match ethertype {
        0x0800 => match packet.get(at..at + 20) {
            Some(ip) if ip[0] >> 4 == 4 && ip[0] & 15 >= 5 => {
                if u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff != 0 {
                    return (DROP, ip[9].into());
                }
                (usize::from(ip[0] & 15) * 4, ip[9])
            }
            Some(_) | None => return (DROP, MALFORMED),
        },
        0x86dd => match packet.get(at..at + 40) {
            Some(ip) if ip[0] >> 4 == 6 => (40, ip[6]),
            Some(_) | None => return (DROP, MALFORMED),
        },
        other => return (PASS, other.into()),
    };
    let verdict = match (protocol, be16(at + header), be16(at + header + 2)) {
        (6 | 17, Some(_), Some(port)) if !blocked.contains(&port) => PASS,
        (6 | 17, _, _) => DROP,
        (_, _, _) => PASS,
    };
    (verdict, protocol.into())
}

/// Runs the object over the capture, with the ports in its read-only data replaced if there are any.
fn filter(mode: Mode, ports: Option<[u16; 4]>) -> (Vec<u64>, Counters) {
    let config = Config::new().mode(mode);
    let engine = Engine::new(config).expect("an engine");
    let mut object = Object::parse(FILTER).expect("an object");
    if let Some(ports) = ports {
        let bytes: Vec<u8> = ports.iter().flat_map(|port| port.to_ne_bytes()).collect();
        object.set_global("blocked_ports", &bytes).expect("a global of eight bytes");
    }
    let maps = MapSet::for_object(&engine, &object).expect("its maps");
    let instance = Linker::<()>::new(&engine).load::<Raw>(&object, maps).expect("a verified program");
    let program = instance.program::<Raw>("filter").expect("its program");
    let run = |mut packet: Vec<u8>| program.run(&mut (), &mut packet).expect("a verdict");
    let verdicts = packets().into_iter().map(run).collect();

    let map = instance.map("verdicts").expect("its map");
    let mut counters = Counters::new();
    let mut key = [0; 4];
    let mut previous: Option<[u8; 4]> = None;
    while map.next_key(previous.as_ref().map(|key| &key[..]), &mut key).is_ok() {
        let value = map.get(&key).expect("a lookup").expect("a key that was just there");
        let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|byte| value[8 * i + byte]));
        counters.insert(u32::from_ne_bytes(key), [word(0), word(1), word(2)]);
        previous = Some(key);
    }
    (verdicts, counters)
}

fn check(ports: Option<[u16; 4]>, blocked: &[u16]) {
    let expected: Vec<(u64, u32)> = packets().iter().map(|packet| judge(packet, blocked)).collect();
    let mut counted = Counters::new();
    for ((verdict, protocol), packet) in expected.iter().zip(packets()) {
        let [passed, dropped, bytes] = counted.entry(*protocol).or_default();
        *(if *verdict == PASS { passed } else { dropped }) += 1;
        *bytes += packet.len() as u64;
    }
    let verdicts: Vec<u64> = expected.iter().map(|(verdict, _)| *verdict).collect();
    assert!(verdicts.contains(&PASS) && verdicts.contains(&DROP) && counted.len() >= 5, "{counted:?}");
    for mode in Arch::HOST.map(|_| Mode::Jit).into_iter().chain([Mode::Interpreter]) {
        assert_eq!(filter(mode, ports), (verdicts.clone(), counted.clone()), "{mode:?}");
    }
}

#[test]
fn the_filter_judges_and_counts_as_described() {
    check(None, &[23, 445]);
}

#[test]
fn its_read_only_data_can_be_set_before_loading() {
    check(Some([53, 0, 443, 0]), &[53, 443]);
}
