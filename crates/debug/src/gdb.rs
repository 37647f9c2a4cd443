//! GDB's and LLDB's JIT interface (GDB manual, "JIT Compilation Interface"): a linked list of ELF images in memory,
//! and an empty function on which the debugger sets a breakpoint.
//!
//! The image contains no code, only its address: a `.text` that occupies no bytes, symbols, frames (`.debug_frame`)
//! and source lines. The two symbols of the list are weak, so that another JIT in the process may define them; the
//! protocol has no lock between the two.
//!
//! Invariant: the list is changed under [`LIST`] only, and an image does not move while it is in the list.

use crate::dwarf;
use crate::frames::debug_frame;
use crate::unit::{Unit, small};
use bpf_jit_code::Arch;
use bpf_quiesce::fork::Generation;
use bpf_quiesce::{Begin, PerProcess};
use std::mem::ManuallyDrop;
use std::ptr;

#[repr(C)]
struct Entry {
    next: *mut Entry,
    prev: *mut Entry,
    symfile_addr: *const u8,
    symfile_size: u64,
}

#[repr(C)]
struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut Entry,
    first: *mut Entry,
}

const REGISTER: u32 = 1;
const UNREGISTER: u32 = 2;

core::arch::global_asm!(
    ".pushsection .text.__jit_debug_register_code, \"ax\", %progbits",
    ".p2align 4",
    ".weak __jit_debug_register_code",
    ".type __jit_debug_register_code, %function",
    "__jit_debug_register_code:",
    "ret",
    ".size __jit_debug_register_code, . - __jit_debug_register_code",
    ".popsection",
    ".pushsection .data.__jit_debug_descriptor, \"aw\", %progbits",
    ".p2align 3",
    ".weak __jit_debug_descriptor",
    ".type __jit_debug_descriptor, %object",
    ".size __jit_debug_descriptor, {size}",
    "__jit_debug_descriptor:",
    ".4byte 1", // version
    ".4byte 0",
    ".8byte 0",
    ".8byte 0",
    ".popsection",
    size = const size_of::<Descriptor>(),
);

unsafe extern "C" {
    fn __jit_debug_register_code();
    static mut __jit_debug_descriptor: Descriptor;
}

/// Holds while the list is changed. A forked child whose parent's thread was changing the list begins an empty one.
static LIST: PerProcess<Locked> = PerProcess::new(|begin| {
    match begin {
        Begin::First | Begin::Forked(Locked) => {}
        Begin::ForkedInside => {
            let descriptor = &raw mut __jit_debug_descriptor;
            // SAFETY: a static that only this module changes, under the lock whose value is being made.
            unsafe { (*descriptor).first = ptr::null_mut() };
        }
    }
    Locked
});

/// Shows that the list is locked.
struct Locked;

/// Changes the list and tells the debugger.
fn change(_lock: &mut Locked, action: u32, entry: *mut Entry, edit: impl FnOnce(&mut Descriptor)) {
    let descriptor = &raw mut __jit_debug_descriptor;
    // SAFETY: a static that only this module changes, under the lock that the caller holds; a debugger reads it while
    // the process is stopped.
    let descriptor = unsafe { &mut *descriptor };
    edit(descriptor);
    descriptor.action = action;
    descriptor.relevant = entry;
    // SAFETY: a function without arguments that does nothing. Because it is foreign, the compiler completes the
    // stores before the call.
    unsafe { __jit_debug_register_code() };
}

/// An image that is registered with debuggers.
#[derive(Debug)]
pub(crate) struct Announced {
    entry: *mut Entry,
    /// The process whose list has the entry.
    process: Generation,
    image: ManuallyDrop<Box<[u8]>>,
}

// SAFETY: the entry is only accessed under the lock of the list.
unsafe impl Send for Announced {}
// SAFETY: a shared reference gives access to nothing; the entry is only accessed under the lock of the list.
unsafe impl Sync for Announced {}

impl Announced {
    pub(crate) fn new(unit: &Unit) -> Announced {
        let image = image(unit).into_boxed_slice();
        let entry = Entry {
            next: ptr::null_mut(),
            prev: ptr::null_mut(),
            symfile_addr: image.as_ptr(),
            symfile_size: image.len() as u64,
        };
        let entry = Box::into_raw(Box::new(entry));
        let add = |list: &mut Descriptor| {
            // SAFETY: made above, and no other code has it yet.
            unsafe { (*entry).next = list.first };
            if !list.first.is_null() {
                // SAFETY: entries in the list are alive, and the lock is held.
                unsafe { (*list.first).prev = entry };
            }
            list.first = entry;
        };
        LIST.with(|locked| change(locked, REGISTER, entry, add));
        Announced { entry, process: Generation::current(), image: ManuallyDrop::new(image) }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // A forked child leaves the entries of its parent alone: its list may have them, or may have begun empty.
        if !self.process.is_current() {
            return;
        }
        let entry = self.entry;
        let remove = |list: &mut Descriptor| {
            // SAFETY: in the list since `new`, so alive; the lock is held.
            let Entry { next, prev, .. } = unsafe { ptr::read(entry) };
            if prev.is_null() {
                list.first = next;
            } else {
                // SAFETY: a neighbour in the list, alive.
                unsafe { (*prev).next = next };
            }
            if !next.is_null() {
                // SAFETY: a neighbour in the list, alive.
                unsafe { (*next).prev = prev };
            }
        };
        LIST.with(|locked| change(locked, UNREGISTER, entry, remove));
        // SAFETY: made by `Box::into_raw` in `new`, and removed from the list.
        drop(unsafe { Box::from_raw(entry) });
        // SAFETY: dropped here only, and no entry names the image any more.
        unsafe { ManuallyDrop::drop(&mut self.image) };
    }
}

/// The fields of a section header, with their names in the gABI.
#[derive(Default)]
struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    addr: u64,
    /// Bytes in the file.
    data: Vec<u8>,
    /// Size of a section without bytes in the file.
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    entry_size: u64,
}

const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_NOBITS: u32 = 8;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;
const ET_EXEC: u16 = 2;
const STB_GLOBAL: u8 = 1;
const STT_FUNC: u8 = 2;

/// Indices of the sections that other sections refer to.
const TEXT: u16 = 1;
const STRTAB: u32 = 3;

/// An ELF file (gABI, chapter 4) that describes a unit at its address.
pub(crate) fn image(unit: &Unit) -> Vec<u8> {
    let (symbols, names) = symbols(unit);
    let mut sections = vec![
        Section::default(),
        Section {
            name: ".text",
            kind: SHT_NOBITS,
            flags: SHF_ALLOC | SHF_EXECINSTR,
            addr: unit.base as u64,
            size: unit.len as u64,
            align: 16,
            ..Section::default()
        },
        // `info`: the first symbol that is not local.
        Section {
            name: ".symtab",
            kind: SHT_SYMTAB,
            data: symbols,
            link: STRTAB,
            info: 1,
            align: 8,
            entry_size: 24,
            ..Section::default()
        },
        Section { name: ".strtab", kind: SHT_STRTAB, data: names, align: 1, ..Section::default() },
    ];
    let frames = debug_frame(unit).map(|frames| (".debug_frame", frames));
    let debug = dwarf::sections(unit).unwrap_or_default();
    for (name, data) in debug.into_iter().chain(frames) {
        sections.push(Section { name, kind: SHT_PROGBITS, data, align: 8, ..Section::default() });
    }
    let names: Vec<u8> =
        sections.iter().map(|s| s.name).chain([".shstrtab"]).flat_map(|n| [n.as_bytes(), &[0]].concat()).collect();
    sections.push(Section { name: ".shstrtab", kind: SHT_STRTAB, data: names, align: 1, ..Section::default() });
    write(unit.arch, &sections)
}

/// Symbol table and string table.
fn symbols(unit: &Unit) -> (Vec<u8>, Vec<u8>) {
    let mut symbols = vec![0; 24];
    let mut names = vec![0];
    for function in 0..unit.functions.len() {
        let (start, end) = unit.range(function);
        symbols.extend_from_slice(&small(names.len()).to_le_bytes());
        symbols.extend_from_slice(&[STB_GLOBAL << 4 | STT_FUNC, 0]);
        symbols.extend_from_slice(&TEXT.to_le_bytes());
        symbols.extend_from_slice(&(unit.base as u64 + u64::from(start)).to_le_bytes());
        symbols.extend_from_slice(&u64::from(end - start).to_le_bytes());
        names.extend_from_slice(unit.symbol(function).as_bytes());
        names.push(0);
    }
    (symbols, names)
}

fn write(arch: Arch, sections: &[Section]) -> Vec<u8> {
    const HEADER: u16 = 64;
    const SECTION_HEADER: u16 = 64;
    // EM_X86_64, EM_AARCH64.
    let machine: u16 = match arch {
        Arch::X64 => 62,
        Arch::Arm64 => 183,
    };
    let mut out = vec![0; HEADER.into()];
    let mut headers = Vec::new();
    let (mut name, mut count) = (0u32, 0u16);
    for s in sections {
        count += 1;
        out.resize(out.len().next_multiple_of(8), 0);
        for word in [name, s.kind] {
            headers.extend_from_slice(&word.to_le_bytes());
        }
        let size = if s.kind == SHT_NOBITS { s.size } else { s.data.len() as u64 };
        let offset = if s.kind == 0 { 0 } else { out.len() as u64 };
        for word in [s.flags, s.addr, offset, size] {
            headers.extend_from_slice(&word.to_le_bytes());
        }
        for word in [s.link, s.info] {
            headers.extend_from_slice(&word.to_le_bytes());
        }
        for word in [s.align, s.entry_size] {
            headers.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&s.data);
        name += small(s.name.len()) + 1;
    }
    out.resize(out.len().next_multiple_of(8), 0);

    let mut header = Vec::with_capacity(HEADER.into());
    header.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"); // 64 bits, little-endian, version 1
    for half in [ET_EXEC, machine] {
        header.extend_from_slice(&half.to_le_bytes());
    }
    header.extend_from_slice(&1u32.to_le_bytes());
    for word in [0, 0, out.len() as u64] {
        header.extend_from_slice(&word.to_le_bytes()); // entry, program headers, section headers
    }
    header.extend_from_slice(&0u32.to_le_bytes());
    for half in [HEADER, 0, 0, SECTION_HEADER, count, count - 1] {
        header.extend_from_slice(&half.to_le_bytes());
    }
    out[..usize::from(HEADER)].copy_from_slice(&header);
    out.extend_from_slice(&headers);
    out
}
