//! `cargo xtask capture`: the capture the README's command filters, made by us, the same on every run.
//!
//! The mix is small and fixed: per round of the loop, one packet of each kind below, with varying addresses, ports and
//! payload lengths. Addresses come from the documentation ranges (RFC 5737, RFC 3849). Checksums are right, so
//! that other tools read the file without complaint; the malformed packets are malformed on purpose.

use crate::shell;
use pcap_file::{
    DataLink, Endianness, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use std::{fs, io::Cursor, time::Duration};

const ROUNDS: u32 = 40;
const MAC: [u8; 12] = [0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;

pub(crate) fn run() -> anyhow::Result<()> {
    let path = shell::root().join("examples/packets.pcap");
    let packets = packets();
    fs::write(&path, file(&packets)?)?;
    println!("{}: {} packets", path.display(), packets.len());
    Ok(())
}

fn file(packets: &[Vec<u8>]) -> anyhow::Result<Vec<u8>> {
    let header = PcapHeader {
        datalink: DataLink::ETHERNET,
        endianness: Endianness::Little,
        ts_resolution: TsResolution::MicroSecond,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(Cursor::new(Vec::new()), header)?;
    for (i, packet) in packets.iter().enumerate() {
        let time = Duration::from_micros(i as u64 * 1250);
        writer.write_packet(&PcapPacket::new(time, packet.len() as u32, packet))?;
    }
    Ok(writer.into_writer().into_inner())
}

fn packets() -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for i in 0..ROUNDS {
        let payload: Vec<u8> = (0..(i * 37) % 400).map(|b| (b ^ i) as u8).collect();
        let client = 40000 + i as u16;
        let web = if i % 3 == 0 { 443 } else { 80 };
        packets.push(frame(&[], 0x0800, &ipv4(i, TCP, 0, &tcp(Family::V4(i), client, web, &payload))));
        packets.push(frame(
            &[],
            0x0800,
            &ipv4(i, UDP, 0, &udp(Family::V4(i), client, 53, &payload[..payload.len() / 4])),
        ));
        packets.push(frame(&[], 0x86dd, &ipv6(i, TCP, &tcp(Family::V6(i), client, 22, &payload))));
        packets.push(frame(&[], 0x86dd, &ipv6(i, UDP, &udp(Family::V6(i), client, 443, &payload))));
        packets.push(frame(&[(0x8100, 100)], 0x0800, &ipv4(i, TCP, 0, &tcp(Family::V4(i), client, 8080, &payload))));
        packets.push(frame(
            &[(0x88a8, 7), (0x8100, 300)],
            0x86dd,
            &ipv6(i, UDP, &udp(Family::V6(i), 5353, 5353, &payload)),
        ));
        packets.push(frame(&[], 0x0806, &arp(i)));
        packets.push(frame(&[], 0x0800, &ipv4(i, ICMP, 0, &icmp(i))));
        // To be dropped: telnet, SMB, a later fragment, and one malformed packet.
        packets.push(frame(&[], 0x0800, &ipv4(i, TCP, 0, &tcp(Family::V4(i), client, 23, &[]))));
        if i % 2 == 0 {
            packets.push(frame(&[(0x8100, 100)], 0x86dd, &ipv6(i, TCP, &tcp(Family::V6(i), client, 445, &[]))));
            packets.push(frame(&[], 0x0800, &ipv4(i, UDP, 185, &payload)));
        }
        if i % 5 == 0 {
            let whole = frame(&[], 0x0800, &ipv4(i, TCP, 0, &tcp(Family::V4(i), client, web, &[])));
            packets.push(whole[..14 + (i as usize % 24)].to_vec());
        }
    }
    packets
}

fn frame(tags: &[(u16, u16)], ethertype: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = MAC.to_vec();
    for (protocol, vlan) in tags {
        frame.extend(protocol.to_be_bytes());
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(body);
    frame
}

fn ipv4(i: u32, protocol: u8, fragment_offset: u16, body: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend((20 + body.len() as u16).to_be_bytes());
    header.extend((i as u16).to_be_bytes());
    header.extend(fragment_offset.to_be_bytes());
    header.extend([64, protocol, 0, 0]);
    let Addresses { source, dest } = Family::V4(i).addresses();
    header.extend(source);
    header.extend(dest);
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header.extend(body);
    header
}

fn ipv6(i: u32, next_header: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((body.len() as u16).to_be_bytes());
    packet.extend([next_header, 64]);
    let Addresses { source, dest } = Family::V6(i).addresses();
    packet.extend(source);
    packet.extend(dest);
    packet.extend(body);
    packet
}

fn tcp(family: Family, source: u16, dest: u16, payload: &[u8]) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(source.to_be_bytes());
    segment.extend(dest.to_be_bytes());
    segment.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(payload);
    let sum = checksum(&family.pseudo_header(TCP, &segment));
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}

fn udp(family: Family, source: u16, dest: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    datagram.extend(source.to_be_bytes());
    datagram.extend(dest.to_be_bytes());
    datagram.extend((8 + payload.len() as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    // A sum of zero would mean "no checksum" (RFC 768).
    let sum = match checksum(&family.pseudo_header(UDP, &datagram)) {
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

fn icmp(i: u32) -> Vec<u8> {
    let mut echo = vec![8, 0, 0, 0, 0x12, 0x34];
    echo.extend((i as u16).to_be_bytes());
    let sum = checksum(&echo);
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    echo
}

fn arp(i: u32) -> Vec<u8> {
    let Addresses { source, dest } = Family::V4(i).addresses();
    let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
    request.extend(&MAC[6..]);
    request.extend(source);
    request.extend([0; 6]);
    request.extend(dest);
    request
}

/// The address family of round `i`, for addresses and the pseudo-header.
#[derive(Clone, Copy)]
enum Family {
    V4(u32),
    V6(u32),
}

struct Addresses {
    source: Vec<u8>,
    dest: Vec<u8>,
}

impl Family {
    fn addresses(self) -> Addresses {
        match self {
            Family::V4(i) => Addresses { source: vec![192, 0, 2, i as u8], dest: vec![198, 51, 100, (i % 7) as u8] },
            Family::V6(i) => {
                let prefix = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                Addresses {
                    source: [&prefix[..], &[1, i as u8]].concat(),
                    dest: [&prefix[..], &[2, (i % 7) as u8]].concat(),
                }
            }
        }
    }

    fn pseudo_header(self, protocol: u8, body: &[u8]) -> Vec<u8> {
        let Addresses { source, dest } = self.addresses();
        let mut bytes = [source, dest].concat();
        bytes.extend((body.len() as u32).to_be_bytes());
        bytes.extend([0, 0, 0, protocol]);
        bytes.extend(body);
        bytes
    }
}

/// The internet checksum (RFC 1071): the complement of the ones' complement sum of 16-bit words.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&b| u32::from(b));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_capture_is_what_this_code_makes() {
        let committed = fs::read(shell::root().join("examples/packets.pcap")).unwrap();
        assert!(committed == file(&packets()).unwrap(), "stale: run `cargo xtask capture`");
    }

    #[test]
    fn a_summed_header_sums_to_zero() {
        assert_eq!(checksum(&ipv4(3, TCP, 0, &[1, 2, 3])[..20]), 0);
    }
}
