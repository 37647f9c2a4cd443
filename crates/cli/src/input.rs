//! The inputs of the subcommands: whole files, packets by format, bytes in hex.
//!
//! Files are read and not mapped, because truncating a mapped file ends the process by SIGBUS. Memory grows as bytes
//! arrive, up to [`MAX_INPUT`] (a device never ends).

use anyhow::{Context, Result, bail};
use pcap_file::pcap::{PcapParser, RawPcapPacket};
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgParser};
use pcap_file::{DataLink, TsResolution};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// The largest input in bytes.
const MAX_INPUT: u64 = 1 << 30;

/// The contents of a reader, up to the limit.
pub(crate) fn read_all(from: impl Read) -> Result<Vec<u8>> {
    read_up_to(MAX_INPUT, from)
}

fn read_up_to(limit: u64, from: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        bail!("longer than {limit} bytes");
    }
    Ok(bytes)
}

/// The contents of a file.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    read_all(file).with_context(|| format!("cannot read {}", path.display()))
}

/// The contents of a text file.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_file(path)?).with_context(|| format!("cannot read {}", path.display()))
}

/// Converts hex digits, with optional spaces, to bytes.
pub(crate) fn parse_hex(text: &str) -> Result<Vec<u8>> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    hex::decode(digits.strip_prefix("0x").unwrap_or(&digits)).context("not hex")
}

/// The inputs of a program's runs, in order.
pub(crate) struct Inputs {
    pub(crate) packets: Vec<Packet>,
    /// The protocol of a packet's first header.
    pub(crate) link: DataLink,
}

/// One input.
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    /// The time of capture.
    pub(crate) time: Duration,
}

impl Inputs {
    /// A single input that is not from a capture.
    fn one(bytes: Vec<u8>) -> Inputs {
        Inputs { packets: vec![Packet { bytes, time: Duration::ZERO }], link: DataLink::ETHERNET }
    }
}

/// The inputs of a run: the packets of a capture (`.pcap`, `.pcapng`, by content), one input of a file's bytes,
/// `hex:…`, or one empty input for `None`.
pub(crate) fn packets(data: Option<&str>) -> Result<Inputs> {
    let Some(data) = data else { return Ok(Inputs::one(Vec::new())) };
    if let Some(hex) = data.strip_prefix("hex:") {
        return Ok(Inputs::one(parse_hex(hex).context("--data")?));
    }
    let path = Path::new(data);
    let bytes = read_file(path)?;
    // Magic numbers: draft-ietf-opsawg-pcap (either byte order, micro- and nanoseconds) and the pcapng section header.
    match bytes.first_chunk::<4>() {
        Some(
            [0xa1, 0xb2, 0xc3, 0xd4] | [0xd4, 0xc3, 0xb2, 0xa1] | [0xa1, 0xb2, 0x3c, 0x4d] | [0x4d, 0x3c, 0xb2, 0xa1],
        ) => pcap(&bytes).with_context(|| format!("{data} is not a valid capture")),
        Some([0x0a, 0x0d, 0x0d, 0x0a]) => pcapng(&bytes).with_context(|| format!("{data} is not a valid capture")),
        // Including an empty or truncated file, which must not be treated as one packet.
        _ if path.extension().is_some_and(|e| e == "pcap" || e == "pcapng") => {
            bail!("{data} does not begin like a capture")
        }
        _ => Ok(Inputs::one(bytes)),
    }
}

fn pcap(bytes: &[u8]) -> Result<Inputs> {
    // The parser, not the reader, because that allocates a buffer of 8 MB.
    let (mut rest, parser) = PcapParser::new(bytes)?;
    let header = parser.header();
    let per_second = if header.ts_resolution == TsResolution::NanoSecond { 1_000_000_000 } else { 1_000_000 };
    let mut packets = Vec::new();
    // Unchecked, because pcap-file's own checks refuse packets that were longer on the wire than the capture's snap
    // length, which is the very purpose of a snap length (`tcpdump -s 96`).
    while !rest.is_empty() {
        let (behind, packet) = parser.next_raw_packet(rest)?;
        rest = behind;
        let RawPcapPacket { ts_sec, ts_frac, incl_len, orig_len, data } = packet;
        if ts_frac >= per_second {
            bail!("packet {}: {ts_frac} is no fraction of a second of {per_second} parts", packets.len());
        }
        if incl_len > orig_len {
            bail!("packet {}: {incl_len} bytes captured of {orig_len}", packets.len());
        }
        let time = Duration::new(ts_sec.into(), ts_frac * (1_000_000_000 / per_second));
        packets.push(Packet { bytes: data.into_owned(), time });
    }
    Ok(Inputs { packets, link: header.datalink })
}

fn pcapng(bytes: &[u8]) -> Result<Inputs> {
    let (mut rest, mut parser) = PcapNgParser::new(bytes)?;
    let mut packets = Vec::new();
    let mut link = None;
    // The unit of time of each interface of the section.
    let mut units = Vec::new();
    // The snap length of the section's first interface, to which packets without an interface belong; 0 if there is
    // none.
    let mut snap_len = 0;
    while !rest.is_empty() {
        let (behind, block) = parser.next_block(rest)?;
        rest = behind;
        match block {
            Block::SectionHeader(_) => (units, snap_len) = (Vec::new(), 0),
            Block::EnhancedPacket(packet) => {
                // pcap-file treats all units as nanoseconds.
                let ticks = packet.timestamp.as_nanos();
                let unit = units.get(packet.interface_id as usize).copied().unwrap_or(MICROSECONDS);
                packets.push(Packet { bytes: packet.data.into_owned(), time: time(ticks, unit) });
            }
            Block::SimplePacket(packet) => {
                // The block contains the captured bytes, and padding.
                let captured = if snap_len == 0 { packet.original_len } else { packet.original_len.min(snap_len) };
                let mut bytes = packet.data.into_owned();
                bytes.truncate(captured as usize);
                packets.push(Packet { bytes, time: Duration::ZERO });
            }
            Block::InterfaceDescription(interface) => {
                link = link.or(Some(interface.linktype));
                if units.is_empty() {
                    snap_len = interface.snaplen;
                }
                let unit = interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfTsResol(unit) => Some(*unit),
                    _ => None,
                });
                units.push(unit.unwrap_or(MICROSECONDS));
            }
            _ => {}
        }
    }
    Ok(Inputs { packets, link: link.unwrap_or(DataLink::ETHERNET) })
}

/// The unit of time of an interface without one (draft-ietf-opsawg-pcapng, `if_tsresol`).
const MICROSECONDS: u8 = 6;

/// Converts a number of time units: 10^-unit seconds, or 2^-unit with the top bit set. Unrepresentable units give
/// zero.
fn time(ticks: u128, unit: u8) -> Duration {
    let per_second = match unit {
        0x80.. => 1u128.checked_shl((unit & 0x7f).into()),
        _ => 10u128.checked_pow(unit.into()),
    };
    let Some(per_second) = per_second else { return Duration::ZERO };
    // For units so fine that this overflows, the fraction is lost.
    let nanos = (ticks % per_second).checked_mul(1_000_000_000).map_or(0, |scaled| scaled / per_second);
    let (seconds, nanos) = (u64::try_from(ticks / per_second), u32::try_from(nanos));
    Duration::new(seconds.unwrap_or(u64::MAX), nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_of_their_interface() {
        assert_eq!(time(1_500_000, MICROSECONDS), Duration::from_millis(1500));
        assert_eq!(time(1_500_000_000, 9), Duration::from_millis(1500));
        assert_eq!(time(3, 0), Duration::from_secs(3));
        assert_eq!(time(3, 0x81), Duration::from_millis(1500));
        for unit in 0..=u8::MAX {
            for ticks in [0, 1, u64::MAX.into()] {
                time(ticks, unit);
            }
        }
    }

    /// A capture of three packets in each format.
    fn captures() -> [Vec<u8>; 2] {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let mut pcap = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1]);
        // A section header with an option, and an interface with a name and a resolution.
        let mut pcapng = words(&[0x0a0d_0d0a, 40, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 0x0003_0004, 0x0078_3676, 0, 40]);
        pcapng.extend(words(&[1, 40, 1, 65535, 0x0002_0002, 0x3068, 0x0001_0009, 9, 0, 40]));
        for len in [4u32, 8, 60] {
            pcap.extend(words(&[1, 2, len, len]));
            pcap.extend(vec![0xab; len as usize]);
            pcapng.extend(words(&[6, 32 + len, 0, 0, 1, len, len]));
            pcapng.extend(vec![0xab; len as usize]);
            pcapng.extend(words(&[32 + len]));
        }
        [pcap, pcapng]
    }

    /// As of `tcpdump -s 96`: packets are cut at the snap length, and record their original length.
    #[test]
    fn packets_that_were_cut_are_taken_as_they_are() {
        let [mut pcap_file, mut pcapng_file] = captures();
        let put = |file: &mut [u8], at: usize, word: u32| file[at..at + 4].copy_from_slice(&word.to_le_bytes());
        // The header's snap length, and the original length of each packet.
        put(&mut pcap_file, 16, 60);
        put(&mut pcapng_file, 40 + 12, 60);
        let (mut at, mut at_ng) = (24, 80);
        for len in [4, 8, 60] {
            put(&mut pcap_file, at + 12, 1500);
            put(&mut pcapng_file, at_ng + 24, 1500);
            (at, at_ng) = (at + 16 + len, at_ng + 32 + len);
        }
        for inputs in [pcap(&pcap_file).unwrap(), pcapng(&pcapng_file).unwrap()] {
            assert_eq!(inputs.packets.iter().map(|packet| packet.bytes.len()).collect::<Vec<_>>(), [4, 8, 60]);
        }
        // Packets without an interface: four bytes of 1500, and then three of three with a byte of padding.
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        put(&mut pcapng_file, 40 + 12, 4);
        let mut simple = pcapng_file[..80].to_vec();
        simple.extend(words(&[3, 20, 1500, 0xabab_abab, 20, 3, 20, 3, 0x00ab_abab, 20]));
        let packets = pcapng(&simple).unwrap().packets;
        assert_eq!(packets.iter().map(|packet| packet.bytes.len()).collect::<Vec<_>>(), [4, 3]);
        // A packet with more captured bytes than its original length is invalid.
        put(&mut pcap_file, 24 + 12, 3);
        assert!(pcap(&pcap_file).is_err());
    }

    /// A file that another process truncates meanwhile gives the bytes read before, and no signal.
    #[test]
    fn a_file_may_be_truncated_while_it_is_read() {
        struct Truncated(File, u64);
        impl Read for Truncated {
            fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
                let read = self.0.read(to)?;
                self.1 += read as u64;
                self.0.set_len(self.1 / 2)?;
                Ok(read)
            }
        }
        let path = std::env::temp_dir().join(format!("bpf-truncated-{}", std::process::id()));
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let bytes = read_all(Truncated(file, 0)).unwrap();
        assert!(!bytes.is_empty() && bytes.len() < 1 << 20 && bytes.iter().all(|byte| *byte == 1));
        std::fs::remove_file(path).unwrap();
    }

    /// Any byte changed or cut, and any length in a capture set to extremes: the result is an error, or packets no
    /// longer than the capture.
    #[test]
    fn hostile_captures_are_errors_or_packets() {
        let parse = |format: usize, bytes: &[u8]| if format == 0 { pcap(bytes) } else { pcapng(bytes) };
        for (format, capture) in captures().into_iter().enumerate() {
            let inputs = parse(format, &capture).unwrap();
            assert_eq!(inputs.link, DataLink::ETHERNET);
            assert_eq!(inputs.packets.iter().map(|packet| packet.bytes.len()).collect::<Vec<_>>(), [4, 8, 60]);
            let check = |bytes: &[u8]| {
                if let Ok(inputs) = parse(format, bytes) {
                    assert!(inputs.packets.iter().map(|packet| packet.bytes.len()).sum::<usize>() <= bytes.len());
                }
            };
            for at in 0..capture.len() {
                check(&capture[..at]);
                for value in [0, 1, 0x7f, 0x80, 0xfe, 0xff, capture[at] ^ 1] {
                    let mut bytes = capture.clone();
                    bytes[at] = value;
                    check(&bytes);
                }
            }
            for at in (0..capture.len() - 3).step_by(4) {
                for value in [0, 1, 3, 11, 12, i32::MAX as u32, u32::MAX - 3, u32::MAX] {
                    let mut bytes = capture.clone();
                    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                    check(&bytes);
                }
            }
        }
    }

    #[test]
    fn an_input_that_does_not_end_is_refused() {
        let error = read_up_to(1 << 16, std::io::repeat(0)).unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
    }
}
