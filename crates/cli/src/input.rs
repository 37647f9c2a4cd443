//! What the subcommands read: files by mapping, packets by format, bytes by hex.

use anyhow::{Context, Result, bail};
use memmap2::Mmap;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::fs::File;
use std::path::Path;

/// The contents of a file, mapped.
pub(crate) fn map_file(path: &Path) -> Result<Mmap> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    // SAFETY: the file is only read, once; if somebody truncates it meanwhile this process gets SIGBUS and ends, as any tool
    // that maps its input.
    unsafe { Mmap::map(&file) }.with_context(|| format!("cannot map {}", path.display()))
}

/// Bytes from hex digits, blanks between them allowed.
pub(crate) fn parse_hex(text: &str) -> Result<Vec<u8>> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    hex::decode(digits.strip_prefix("0x").unwrap_or(&digits)).context("not hex")
}

/// The inputs of a run: the packets of a capture (`.pcap`, `.pcapng`, by content), one input of a file's bytes, `hex:…`, or one
/// empty input for `None`.
pub(crate) fn packets(data: Option<&str>) -> Result<Vec<Vec<u8>>> {
    let Some(data) = data else { return Ok(vec![Vec::new()]) };
    if let Some(hex) = data.strip_prefix("hex:") {
        return Ok(vec![parse_hex(hex).context("--data")?]);
    }
    let path = Path::new(data);
    if std::fs::metadata(path).with_context(|| format!("cannot open {data}"))?.len() == 0 {
        return Ok(vec![Vec::new()]); // An empty file cannot be mapped.
    }
    let bytes = map_file(path)?;
    // Magic numbers: draft-ietf-opsawg-pcap (either byte order, micro- and nanoseconds) and the pcapng section header.
    match bytes.first_chunk::<4>() {
        Some(
            [0xa1, 0xb2, 0xc3, 0xd4] | [0xd4, 0xc3, 0xb2, 0xa1] | [0xa1, 0xb2, 0x3c, 0x4d] | [0x4d, 0x3c, 0xb2, 0xa1],
        ) => pcap(&bytes).with_context(|| format!("{data} is not a valid capture")),
        Some([0x0a, 0x0d, 0x0d, 0x0a]) => pcapng(&bytes).with_context(|| format!("{data} is not a valid capture")),
        _ if path.extension().is_some_and(|e| e == "pcap" || e == "pcapng") => {
            bail!("{data} does not begin like a capture")
        }
        _ => Ok(vec![bytes.to_vec()]),
    }
}

fn pcap(bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut reader = PcapReader::new(bytes)?;
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        packets.push(packet?.data.into_owned());
    }
    Ok(packets)
}

fn pcapng(bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut reader = PcapNgReader::new(bytes)?;
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        match block? {
            Block::EnhancedPacket(packet) => packets.push(packet.data.into_owned()),
            Block::SimplePacket(packet) => packets.push(packet.data.into_owned()),
            _ => {}
        }
    }
    Ok(packets)
}
