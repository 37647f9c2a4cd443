//! The packets of `bpf run`: each in a buffer with room around it, and its content after a run.
//!
//! Problem: programs move the ends of a packet (tunnels, VLAN tags), so its buffer must have room, and the resulting
//! packets can be written to a capture. Approach: a [`Slot`] is a buffer and the part of it that is the packet. Each
//! round begins with the original part, and ends with the part that the program left. Bytes that a program wrote stay
//! for the next round.

use crate::input::{Inputs, Packet};
use anyhow::{Context, Result, bail};
use bpf_runtime::net::{XdpBuff, XdpFrag};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, Endianness};
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// The smallest snap length in the header of a capture: tcpdump's.
const SNAP_LEN: u32 = 262_144;

/// A packet in its buffer.
pub(crate) struct Slot {
    pub(crate) buffer: Vec<u8>,
    /// Bytes of the buffer before the packet, and after it.
    pub(crate) room: usize,
    pub(crate) len: usize,
    /// The parts of the buffer that are the packet after the last run, in order.
    left: Vec<Range<usize>>,
    time: Duration,
}

impl Slot {
    pub(crate) fn new(packet: Packet, room: usize) -> Slot {
        let len = packet.bytes.len();
        let mut buffer = packet.bytes;
        if room > 0 {
            buffer.splice(0..0, std::iter::repeat_n(0, room));
            buffer.resize(room + len + room, 0);
        }
        Slot { buffer, room, len, left: core::iter::once(room..room + len).collect(), time: packet.time }
    }

    /// Records the packet after a run: parts of the buffer, given by their addresses.
    pub(crate) fn leave(&mut self, parts: impl IntoIterator<Item = (usize, usize)>) {
        let (start, end) = (self.buffer.as_ptr().addr(), self.buffer.len());
        self.left.clear();
        self.left.extend(parts.into_iter().map(|(address, len)| {
            let at = address.wrapping_sub(start).min(end);
            at..(at + len).min(end)
        }));
    }

    /// Length of the packet after the last run.
    fn left_len(&self) -> usize {
        self.left.iter().map(Range::len).sum()
    }

    /// The packet after the last run.
    fn left(&self) -> Cow<'_, [u8]> {
        match self.left.as_slice() {
            [one] => Cow::Borrowed(&self.buffer[one.clone()]),
            several => several.iter().flat_map(|part| &self.buffer[part.clone()]).copied().collect(),
        }
    }

    /// The packet as pieces of `size` bytes; the last piece includes the room after the packet.
    pub(crate) fn pieces(&mut self, size: usize) -> (XdpBuff<'_>, Vec<XdpFrag<'_>>) {
        let first = self.len.min(size);
        let (head, mut rest) = match first == self.len {
            true => (&mut self.buffer[..], &mut [][..]),
            false => self.buffer.split_at_mut(self.room + first),
        };
        let mut frags = Vec::with_capacity((self.len - first).div_ceil(size));
        let mut left = self.len - first;
        while left > 0 {
            let len = left.min(size);
            left -= len;
            let (piece, behind) = rest.split_at_mut(if left == 0 { rest.len() } else { len });
            frags.push(XdpFrag::with_room(piece, len));
            rest = behind;
        }
        (XdpBuff::with_room(head, self.room, first), frags)
    }
}

/// The address and length of a packet, for [`Slot::leave`].
pub(crate) fn place(packet: &[u8]) -> (usize, usize) {
    (packet.as_ptr().addr(), packet.len())
}

/// The packets to write, and the file.
#[derive(clap::Args)]
pub(crate) struct OutArgs {
    /// Write the packets, as they are after the last round, to a capture: FILE.pcap or FILE.pcapng.
    #[arg(long, value_name = "FILE")]
    out: Option<std::path::PathBuf>,
    /// Write only the packets for which the program returned one of these values, for example 2,3 for XDP_PASS and
    /// XDP_TX.
    #[arg(long, value_name = "VALUE,…", value_delimiter = ',')]
    out_only: Vec<u64>,
}

impl OutArgs {
    /// Whether packets are written.
    pub(crate) fn is_given(&self) -> bool {
        self.out.is_some()
    }

    /// Creates the file, before any run.
    pub(crate) fn create(&self) -> Result<Option<Capture<'_>>> {
        let Some(path) = &self.out else { return Ok(None) };
        let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Some(Capture { path, only: &self.out_only, file }))
    }
}

/// A capture file to write.
pub(crate) struct Capture<'a> {
    path: &'a Path,
    only: &'a [u64],
    file: File,
}

impl Capture<'_> {
    /// Writes the packets after the last round, selected by the program's results.
    pub(crate) fn write(self, link: DataLink, slots: &[Slot], returned: &[u64]) -> Result<()> {
        let mut snaplen = SNAP_LEN;
        for slot in slots {
            snaplen = snaplen.max(u32::try_from(slot.left_len())?);
        }
        let chosen = |(_, verdict): &(_, &u64)| self.only.is_empty() || self.only.contains(verdict);
        let packets = slots.iter().zip(returned).filter(chosen).map(|(slot, _)| slot);
        let file = BufWriter::new(self.file);
        let written = if self.path.extension().is_some_and(|extension| extension == "pcapng") {
            write_pcapng(file, link, snaplen, packets)
        } else {
            write_pcap(file, link, snaplen, packets)
        };
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn write_pcap<'a>(
    file: impl Write,
    datalink: DataLink,
    snaplen: u32,
    packets: impl Iterator<Item = &'a Slot>,
) -> Result<()> {
    let header = PcapHeader { datalink, snaplen, endianness: Endianness::Little, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(file, header)?;
    for slot in packets {
        let packet = slot.left();
        writer.write_packet(&PcapPacket::new(slot.time, u32::try_from(packet.len())?, &packet))?;
    }
    Ok(writer.into_writer().flush()?)
}

fn write_pcapng<'a>(
    file: impl Write,
    linktype: DataLink,
    snaplen: u32,
    packets: impl Iterator<Item = &'a Slot>,
) -> Result<()> {
    let mut writer = PcapNgWriter::with_endianness(file, Endianness::Little)?;
    // pcap-file writes times as nanoseconds, whatever the interface's resolution is; so the resolution must be
    // nanoseconds.
    let options = vec![InterfaceDescriptionOption::IfTsResol(9)];
    writer.write_pcapng_block(InterfaceDescriptionBlock { linktype, snaplen, options })?;
    for slot in packets {
        let packet = slot.left();
        writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: slot.time,
            original_len: u32::try_from(packet.len())?,
            data: packet,
            options: Vec::new(),
        })?;
    }
    Ok(writer.into_inner().flush()?)
}

/// Copies inputs into buffers with `room` bytes on both sides.
pub(crate) fn slots(inputs: Inputs, room: usize) -> Result<Vec<Slot>> {
    let total = inputs.packets.len().checked_mul(2 * room);
    if total.is_none_or(|total| total > MAX_ROOM) {
        bail!("--headroom {room} for each of {} packets is more than {MAX_ROOM} bytes", inputs.packets.len());
    }
    Ok(inputs.packets.into_iter().map(|packet| Slot::new(packet, room)).collect())
}

/// The largest number of bytes of room, for all packets together.
const MAX_ROOM: usize = 1 << 30;
