//! The packets of `bpf run`: each in a buffer with room around it, and what a program left of it.
//!
//! Problem: programs move the ends of a packet (tunnels, VLAN tags), for which a buffer must have room, and what became
//! of a packet is wanted as a capture. Approach: a [`Slot`] is a buffer and the part of it that is the packet; each
//! round begins with the part that was read, and ends with the part that the program left. Bytes that a program wrote
//! stay for the next round.

use crate::input::{Inputs, Packet};
use anyhow::{Context, Result, bail};
use bpf_runtime::{XdpBuff, XdpFrag};
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

/// A capture's packets are this long at least in its header: what tcpdump writes.
const SNAP_LEN: u32 = 262_144;

/// A packet in its buffer.
pub(crate) struct Slot {
    pub(crate) buffer: Vec<u8>,
    /// Bytes of the buffer in front of the packet, and behind it.
    pub(crate) room: usize,
    pub(crate) len: usize,
    /// The parts of the buffer that the last run left as the packet, in order.
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

    /// Notes what a run left: parts of the buffer, found by their addresses.
    pub(crate) fn leave(&mut self, parts: impl IntoIterator<Item = (usize, usize)>) {
        let (start, end) = (self.buffer.as_ptr().addr(), self.buffer.len());
        self.left.clear();
        self.left.extend(parts.into_iter().map(|(address, len)| {
            let at = address.wrapping_sub(start).min(end);
            at..(at + len).min(end)
        }));
    }

    /// Bytes that the last run left.
    fn left_len(&self) -> usize {
        self.left.iter().map(Range::len).sum()
    }

    /// What the last run left.
    fn left(&self) -> Cow<'_, [u8]> {
        match self.left.as_slice() {
            [one] => Cow::Borrowed(&self.buffer[one.clone()]),
            several => several.iter().flat_map(|part| &self.buffer[part.clone()]).copied().collect(),
        }
    }

    /// The packet as pieces of so many bytes, the last of which has the room behind the packet.
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

/// Where a packet is, for [`Slot::leave`].
pub(crate) fn place(packet: &[u8]) -> (usize, usize) {
    (packet.as_ptr().addr(), packet.len())
}

/// What is to be written of the packets, and whereto.
#[derive(clap::Args)]
pub(crate) struct OutArgs {
    /// Write the packets, as the last round left them, to a capture: FILE.pcap or FILE.pcapng.
    #[arg(long, value_name = "FILE")]
    out: Option<std::path::PathBuf>,
    /// Of them only those for which the program returned one of these values, 2,3 for XDP_PASS and XDP_TX say.
    #[arg(long, value_name = "VALUE,…", value_delimiter = ',', requires = "out")]
    out_only: Vec<u64>,
}

impl OutArgs {
    /// Whether packets are to be written.
    pub(crate) fn is_given(&self) -> bool {
        self.out.is_some()
    }

    /// Creates the file, before anything runs.
    pub(crate) fn create(&self) -> Result<Option<Capture<'_>>> {
        let Some(path) = &self.out else { return Ok(None) };
        let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Some(Capture { path, only: &self.out_only, file }))
    }
}

/// A capture to be written.
pub(crate) struct Capture<'a> {
    path: &'a Path,
    only: &'a [u64],
    file: File,
}

impl Capture<'_> {
    /// Writes what the last round left, beside what it returned.
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
    // pcap-file writes times as nanoseconds, whatever the interface says; so it says that.
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

/// Puts inputs into buffers with so much room on both sides.
pub(crate) fn slots(inputs: Inputs, room: usize) -> Result<Vec<Slot>> {
    let total = inputs.packets.len().checked_mul(2 * room);
    if total.is_none_or(|total| total > MAX_ROOM) {
        bail!("--headroom {room} for each of {} packets is more than {MAX_ROOM} bytes", inputs.packets.len());
    }
    Ok(inputs.packets.into_iter().map(|packet| Slot::new(packet, room)).collect())
}

/// Bytes of room at most, of all packets together.
const MAX_ROOM: usize = 1 << 30;
