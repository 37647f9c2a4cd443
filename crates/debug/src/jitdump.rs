//! The jitdump: `jit-PID.dump`, from which `perf inject --jit` makes an ELF file for each function, with its bytes,
//! source lines and frames (linux/tools/perf/Documentation/jitdump-specification.txt, version 1).
//!
//! perf finds the file because the process maps a page of it executable: the recording contains that event. Records
//! are stamped with the monotonic clock, so recordings need `perf record -k mono`. By the time stamps perf
//! distinguishes programs that had one address at different times.
//!
//! Invariant: the header is written once, before all else. A function's records are written at once, lines and frames
//! before the load.

use crate::Error;
use crate::frames::relative_eh_frame;
use crate::perf_map::open;
use crate::unit::{Unit, small};
use bpf_jit_code::Arch;
use bpf_os::file::Bounded;
use bpf_os::thread;
use bpf_os::time::{Clock, now_ns};
use memmap2::{Mmap, MmapOptions};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: u32 = 0x4a69_5444; // "JiTD"
const VERSION: u32 = 1;
const HEADER_LEN: u32 = 40;
const RECORD_HEADER_LEN: usize = 16;

const CODE_LOAD: u32 = 0;
const DEBUG_INFO: u32 = 2;
const UNWINDING_INFO: u32 = 4;

/// Indices of the functions of this process: one jitdump has one sequence.
static NEXT_INDEX: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(crate) struct JitDump {
    file: File,
    /// The executable mapping that perf detects. It is neither read nor executed.
    _mapping: Mmap,
}

impl JitDump {
    pub(crate) fn create(dir: &Path, arch: Arch) -> Result<JitDump, Error> {
        let path = dir.join(format!("jit-{}.dump", std::process::id()));
        let (file, first) = open(&path)?;
        if first {
            // EM_X86_64, EM_AARCH64 (gABI).
            let machine: u32 = match arch {
                Arch::X64 => 62,
                Arch::Arm64 => 183,
            };
            let mut header = Vec::new();
            for word in [MAGIC, VERSION, HEADER_LEN, machine, 0, std::process::id()] {
                header.extend_from_slice(&word.to_le_bytes());
            }
            header.extend_from_slice(&now_ns(Clock::Monotonic).to_le_bytes());
            header.extend_from_slice(&0u64.to_le_bytes()); // flags
            Bounded(&file).write_all(&header).map_err(|source| Error::File { path: path.clone(), source })?;
        }
        // SAFETY: the mapping is never read, so changes of the file do not matter.
        let mapping = unsafe { MmapOptions::new().len(HEADER_LEN as usize).map_exec(&file) };
        let mapping = mapping.map_err(|source| Error::Map { path, source })?;
        Ok(JitDump { file, _mapping: mapping })
    }

    /// Adds all functions of a unit, whose bytes are `text`.
    pub(crate) fn add(&self, unit: &Unit, text: &[u8]) -> io::Result<()> {
        let mut out = Vec::new();
        for function in 0..unit.functions.len() {
            let (start, end) = unit.code_range(function);
            if let Some(bytes) = text.get(start as usize..end as usize).filter(|bytes| !bytes.is_empty()) {
                lines(unit, function, &mut out);
                frame(unit, function, bytes.len(), &mut out);
                load(unit, function, bytes, &mut out);
            }
        }
        Bounded(&self.file).write_all(&out)
    }
}

fn record(id: u32, body: &[u8], out: &mut Vec<u8>) {
    let len = small(RECORD_HEADER_LEN + body.len());
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&now_ns(Clock::Monotonic).to_le_bytes());
    out.extend_from_slice(body);
}

fn load(unit: &Unit, function: usize, bytes: &[u8], out: &mut Vec<u8>) {
    let address = (unit.base as u64 + u64::from(unit.range(function).0)).to_le_bytes();
    let mut body = Vec::new();
    body.extend_from_slice(&std::process::id().to_le_bytes());
    body.extend_from_slice(&thread::id().to_le_bytes());
    body.extend_from_slice(&address); // virtual address
    body.extend_from_slice(&address); // where the code is
    body.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    // Relaxed: only uniqueness matters.
    body.extend_from_slice(&NEXT_INDEX.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    body.extend_from_slice(unit.symbol(function).as_bytes());
    body.push(0);
    body.extend_from_slice(bytes);
    record(CODE_LOAD, &body, out);
}

fn lines(unit: &Unit, function: usize, out: &mut Vec<u8>) {
    let rows = unit.rows(function);
    if rows.is_empty() {
        return;
    }
    let address = |offset: u32| (unit.base as u64 + u64::from(offset)).to_le_bytes();
    let mut body = Vec::new();
    body.extend_from_slice(&address(unit.range(function).0));
    body.extend_from_slice(&(rows.len() as u64).to_le_bytes());
    for row in rows {
        body.extend_from_slice(&address(row.code));
        body.extend_from_slice(&row.line.line.to_le_bytes());
        body.extend_from_slice(&0u32.to_le_bytes()); // discriminator
        // A C string, in which hostile names may contain a zero.
        body.extend(unit.file(row.line).bytes().filter(|b| *b != 0));
        body.push(0);
    }
    record(DEBUG_INFO, &body, out);
}

/// Writes the frame as `.eh_frame` and `.eh_frame_hdr`, which perf puts after the code in this order, the first one
/// eight-byte aligned.
fn frame(unit: &Unit, function: usize, code_len: usize, out: &mut Vec<u8>) {
    let distance = code_len.next_multiple_of(8);
    let Some(mut data) = relative_eh_frame(unit, function, distance) else { return };
    let eh_frame_len = data.len().next_multiple_of(4);
    data.resize(eh_frame_len, 0);
    // The CIE comes first, preceded by its length.
    let Some(cie_len) = data.first_chunk().map(|len| u32::from_le_bytes(*len)) else { return };
    let fde = 4 + cie_len as i32;
    let (Ok(header), Ok(distance)) = (i32::try_from(eh_frame_len), i32::try_from(distance)) else { return };
    // LSB 5.0 Core, 10.6.2.
    data.push(1);
    data.push(gimli::DW_EH_PE_pcrel.0 | gimli::DW_EH_PE_sdata4.0);
    data.push(gimli::DW_EH_PE_udata4.0);
    data.push(gimli::DW_EH_PE_datarel.0 | gimli::DW_EH_PE_sdata4.0);
    let eh_frame_pointer = -(header + 4);
    let function_address = -distance - header;
    for word in [eh_frame_pointer, 1, function_address, fde - header] {
        data.extend_from_slice(&word.to_le_bytes());
    }
    let len = data.len() as u64;
    // perf's libunwind reads the frame at its address in the process, so perf must be told that the function extends
    // that far. It must not extend into the next function. Where there is no room, perf still has the frame in the
    // file.
    let (start, end) = unit.range(function);
    let mapped = if distance as u64 + len.next_multiple_of(8) <= u64::from(end - start) { len } else { 0 };
    let mut body = Vec::new();
    // The total size, the size of the header in it, and the size that has a place in the process.
    for size in [len, len - eh_frame_len as u64, mapped] {
        body.extend_from_slice(&size.to_le_bytes());
    }
    body.extend_from_slice(&data);
    // Records are padded to eight bytes.
    body.resize(body.len().next_multiple_of(8), 0);
    record(UNWINDING_INFO, &body, out);
}
