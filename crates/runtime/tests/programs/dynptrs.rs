//! Dynptrs over packets, map values and records, by programs as compilers make them; the numbers are the kernel's.

use crate::support::ways::{self, Way};
use bpf_runtime::{
    Instance, Linker, LoadError, MapSet, Object,
    maps::RingBuf,
    net::{SkBuff, Skb, Xdp, XdpBuff},
};

const OBJECT: &[u8] = include_bytes!("../objects/dynptr.o");
/// Only the verifier can tell a dynptr from bytes.
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];

fn xdp(way: Way, name: &str) -> Instance<()> {
    let object = Object::parse(OBJECT).unwrap();
    let engine = ways::engine(way, |config| config);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    linker.loader::<Xdp>().only(&[name]).object(&object, maps).unwrap_or_else(|e| panic!("{way:?}: {e}"))
}

fn run(instance: &Instance<()>, name: &str, packet: &mut [u8], queue: u32) -> u64 {
    let mut buff = XdpBuff::new(packet);
    buff.rx_queue_index = queue;
    instance.program::<Xdp>(name).unwrap().run(&mut (), &mut buff).unwrap()
}

#[test]
fn slices_are_the_packet() {
    for way in VERIFIED {
        let instance = xdp(way, "headers");
        let mut packet = [0; 60];
        (packet[12], packet[14 + 8], packet[14 + 9]) = (8, 64, 17);
        assert_eq!(run(&instance, "headers", &mut packet, 0), 117, "{way:?}");
        assert_eq!(packet[14 + 8], 63, "{way:?}");
        for (len, expected) in [(0, 1), (13, 1), (14, 3), (33, 3), (34, 117)] {
            assert_eq!(run(&instance, "headers", &mut packet[..len], 0), expected, "{way:?}, {len} bytes");
        }
        packet[12] = 9;
        assert_eq!(run(&instance, "headers", &mut packet, 0), 2, "{way:?}");
    }
}

#[test]
fn packets_are_read_and_written_to_their_end() {
    let object = Object::parse(OBJECT).unwrap();
    for way in VERIFIED {
        let engine = ways::engine(way, |config| config);
        let linker = Linker::<()>::new(&engine);
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let instance = linker.loader::<Skb>().only(&["writes"]).object(&object, maps).unwrap();
        let mut packet = [5; 40];
        let mut buff = SkBuff::new(&mut packet);
        assert_eq!(instance.program::<Skb>("writes").unwrap().run(&mut (), &mut buff).unwrap(), 40, "{way:?}");
        assert_eq!(packet[35..], [5, 1, 2, 3, 4], "{way:?}");
    }
}

#[test]
fn values_are_adjusted_and_cloned() {
    for way in VERIFIED {
        let instance = xdp(way, "values");
        assert_eq!(run(&instance, "values", &mut [0; 60], 0), 8 + 4, "{way:?}");
        let value = instance.map("memory").unwrap().get(&[0; 4]).unwrap().unwrap();
        assert_eq!(value[58..], [0, 0, 8, 0, 0, 0], "{way:?}");
    }
}

/// A record that there is no room for leads nowhere, and is given back all the same.
#[test]
fn records_are_submitted_or_discarded() {
    for way in VERIFIED {
        let instance = xdp(way, "records");
        let mut ring = RingBuf::new(&instance.map("ring").unwrap()).unwrap();
        let mut seen = Vec::new();
        for (size, expected) in [(16, 0), (15, 0), (8, 0), (7, 7), (1 << 20, 22), (1 << 25, 7), (0, 22)] {
            assert_eq!(run(&instance, "records", &mut [0; 60], size), expected, "{way:?}, {size} bytes");
            ring.consume(|record| {
                seen.push(record.to_vec());
                true
            });
        }
        let expected = [42u64, 43].map(u64::to_ne_bytes).concat();
        assert_eq!(seen, [expected], "{way:?}");
    }
}

/// The stack bytes of an unverified program are no dynptr.
#[test]
fn unverified_programs_have_no_dynptrs() {
    let engine = ways::engine(Way::Interpreted, |config| config);
    let text = "*(u64 *)(r10 - 16) = 4096\n*(u64 *)(r10 - 8) = 8\nr1 = r10\nr1 += -24\nr2 = 8\nr3 = r10\nr3 += -16\n\
                r4 = 0\nr5 = 0\ncall 201\nexit";
    let linker = Linker::<()>::new(&engine);
    let insns = bpf_runtime::isa::assemble(text).unwrap();
    let program = linker.loader::<bpf_runtime::Raw>().interpreted(true).insns("forged", insns).unwrap();
    let error = program.run(&mut (), &mut []).unwrap_err().to_string();
    assert!(error.contains("needs a verified program"), "{error}");
}

/// The packet of one context is not that of another.
#[test]
fn packets_are_of_their_context() {
    let object = Object::parse(OBJECT).unwrap();
    let engine = ways::engine(Way::Verified, |config| config);
    let linker = Linker::<()>::new(&engine);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let error = linker.loader::<Skb>().only(&["headers"]).object(&object, maps).unwrap_err();
    assert!(matches!(error, LoadError::Object(_)) && error.to_string().contains("bpf_dynptr_from_xdp"), "{error}");
}
