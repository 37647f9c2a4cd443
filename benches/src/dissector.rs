//! A flow dissector of small programs: one parser for each protocol, which tail-calls the next by a prog array
//! indexed by protocol.
//!
//! The context is a buffer: the offset parsed so far, and the packet from byte 8 on. Every parser checks the length,
//! reads the next protocol, and tail-calls its parser, from the main program or from a subprogram; the last parser
//! returns the offset.

use std::fmt::Write;

/// Offset of the packet in the buffer.
pub const START: usize = 8;
/// Slots of the prog array.
pub const SLOTS: u32 = 8;

/// Protocols and the slots of their parsers; slot 0 is Ethernet, where every packet starts.
const IPV4: u32 = 1;
const IPV6: u32 = 2;
const VLAN: u32 = 3;
const MPLS: u32 = 4;
const GRE: u32 = 5;
const TCP: u32 = 6;
const UDP: u32 = 7;

/// EtherTypes (IEEE 802 numbers) and the slots of their parsers.
const ETHERTYPES: &[(u32, u32)] = &[(0x0800, IPV4), (0x86dd, IPV6), (0x8100, VLAN), (0x8847, MPLS)];
/// IP protocol numbers (IANA): TCP, UDP, IP in IP, IPv6 in IP, GRE.
const PROTOCOLS: &[(u32, u32)] = &[(6, TCP), (17, UDP), (4, IPV4), (41, IPV6), (47, GRE)];
/// The bottom-of-stack bit of an MPLS label: 0 means that another label follows, 1 that IPv4 does.
const BOTTOM: &[(u32, u32)] = &[(0, MPLS), (1, IPV4)];

/// Returns the parsers' texts, by slot.
pub fn parsers(in_subprograms: bool) -> Vec<String> {
    let ethertype = |at: i32| format!("r9 = *(u16 *)(r8 + {at})\nr9 = be16 r9\n");
    [
        (14, ethertype(12), ETHERTYPES),
        // The header's length is in its first byte.
        (20, "r7 -= 20\nr1 = *(u8 *)(r8 + 0)\nr1 &= 15\nr1 <<= 2\nr7 += r1\nr9 = *(u8 *)(r8 + 9)\n".into(), PROTOCOLS),
        (40, "r9 = *(u8 *)(r8 + 6)\n".into(), PROTOCOLS),
        (4, ethertype(2), ETHERTYPES),
        (4, "r9 = *(u8 *)(r8 + 2)\nr9 &= 1\n".into(), BOTTOM),
        (4, ethertype(2), ETHERTYPES),
        (20, String::new(), &[]),
        (8, String::new(), &[]),
    ]
    .iter()
    .map(|(header, next, choices)| parser(*header, next, choices, in_subprograms))
    .collect()
}

/// Returns the text of a parser of a header of at least `header` bytes at r8; `next` loads into r9 the value that
/// selects among `choices`, and r7 becomes the offset behind the header.
fn parser(header: u32, next: &str, choices: &[(u32, u32)], in_subprogram: bool) -> String {
    let mut dispatch = String::new();
    for (i, (value, slot)) in choices.iter().enumerate() {
        write!(dispatch, "if r9 != {value} goto other{i}\nr1 = r6\nr2 = map[fd:0]\nr3 = {slot}\ncall 12\nother{i}:\n")
            .expect("a string takes everything");
    }
    let text = format!(
        "r6 = r1\nr7 = *(u32 *)(r6 + 0)\nr8 = r6\nr8 += r7\nr7 += {header}\nif r7 > r2 goto end\n{next}*(u32 *)(r6 + 0) = r7\n"
    );
    let end = "end:\nr0 = *(u32 *)(r6 + 0)\nexit\n";
    if choices.is_empty() || !in_subprogram {
        return format!("{text}{dispatch}{end}");
    }
    format!(
        "{text}r1 = r6\nr2 = r9\ncall next\nexit\n{end}next:\nr6 = r1\nr9 = r2\n{dispatch}r0 = *(u32 *)(r6 + 0)\nexit\n"
    )
}

/// Returns buffers with packets of different kinds, and for each the offset behind the headers that the dissector
/// knows.
pub fn packets() -> Vec<(Vec<u8>, u64)> {
    [
        &[IPV4, TCP][..],
        &[IPV6, TCP],
        &[IPV4, UDP],
        &[VLAN, IPV4, UDP],
        &[VLAN, VLAN, IPV6, UDP],
        &[MPLS, MPLS, IPV4, TCP],
        &[IPV4, GRE, IPV4, UDP],
        &[IPV4, IPV4, TCP],
    ]
    .iter()
    .map(|layers| packet(layers))
    .collect()
}

fn packet(layers: &[u32]) -> (Vec<u8>, u64) {
    let number = |table: &[(u32, u32)], slot: u32| table.iter().find(|(_, s)| *s == slot).map_or(0, |(n, _)| *n);
    let mut bytes = vec![0; START];
    bytes[0] = START as u8;
    let mut header = vec![0u8; 14];
    let mut this = 0;
    for next in layers.iter().map(Some).chain([None]) {
        let next = next.copied();
        let ethertype = next.map_or(0, |slot| number(ETHERTYPES, slot) as u16).to_be_bytes();
        let protocol = next.map_or(0, |slot| number(PROTOCOLS, slot) as u8);
        match this {
            0 => header[12..].copy_from_slice(&ethertype),
            IPV4 => (header[0], header[9]) = (0x45, protocol),
            IPV6 => (header[0], header[6]) = (0x60, protocol),
            VLAN | GRE => header[2..].copy_from_slice(&ethertype),
            MPLS => header[2] = u8::from(next != Some(MPLS)),
            _ => {}
        }
        bytes.extend_from_slice(&header);
        if let Some(next) = next {
            header = vec![0; [14, 20, 40, 4, 4, 4, 20, 8][next as usize]];
            this = next;
        }
    }
    // The parsers of TCP and UDP do not add to the offset: the dissection ends at their header.
    let parsed = bytes.len() as u64;
    (bytes, parsed)
}
