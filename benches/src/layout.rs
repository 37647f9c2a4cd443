//! Small functions, laid out one page each or packed, and called directly or indirectly: what the packing bench compares.
//!
//! The functions are generated for the host (this is the only place in the benches that knows instructions), about as large as a
//! small program's code, and return their own number, so that a layout that calls the wrong one is noticed.

use bpf_jit_code::{Arch, Code, Reloc, RelocKind, Symbol};
use bpf_prog_pack::{Options, Packs, Stats, Text};
use bpf_quiesce::Domain;

/// What a function is called as.
type Function = extern "C" fn() -> u32;

const HOST: Arch = if cfg!(target_arch = "aarch64") { Arch::Arm64 } else { Arch::X64 };
const PAGE: usize = 4096;

/// About 100 bytes of code that returns `value`.
pub fn function(value: u32) -> Code {
    let mut code = Code::new(HOST);
    code.entries = vec![0];
    match HOST {
        Arch::X64 => {
            for i in (0..19).rev() {
                code.bytes.push(0xb8); // mov eax, imm32: independent of each other
                code.bytes.extend_from_slice(&(value + i).to_le_bytes());
            }
            code.bytes.push(0xc3); // ret
        }
        Arch::Arm64 => {
            for i in (0..12).rev() {
                let value = value + i;
                let words = [0x5280_0000 | (value & 0xffff) << 5, 0x72a0_0000 | (value >> 16) << 5]; // movz, movk w0
                code.bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            }
            code.bytes.extend_from_slice(&0xd65f_03c0_u32.to_le_bytes()); // ret
        }
    }
    code
}

/// The least code that returns `value`.
pub fn stub(value: u16) -> Code {
    let mut code = Code::new(HOST);
    code.entries = vec![0];
    match HOST {
        // mov eax, imm32; ret
        Arch::X64 => {
            code.bytes.push(0xb8);
            code.bytes.extend_from_slice(&u32::from(value).to_le_bytes());
            code.bytes.push(0xc3);
        }
        // movz w0, imm16; ret
        Arch::Arm64 => {
            for word in [0x5280_0000 | u32::from(value) << 5, 0xd65f_03c0] {
                code.bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
    }
    code
}

/// A function that calls symbols in this order and returns what the last one returned.
fn caller(order: &[u32]) -> Code {
    let mut code = Code::new(HOST);
    code.entries = vec![0];
    let (before, call, after, operand, kind): (&[u8], &[u8], &[u8], u32, _) = match HOST {
        // push rbp; call rel32 ...; pop rbp; ret
        Arch::X64 => (&[0x55], &[0xe8, 0, 0, 0, 0], &[0x5d, 0xc3], 1, RelocKind::X64Rel32),
        // stp x29, x30, [sp, -16]!; bl ...; ldp x29, x30, [sp], 16; ret
        Arch::Arm64 => (
            &[0xfd, 0x7b, 0xbf, 0xa9],
            &[0, 0, 0, 0x94],
            &[0xfd, 0x7b, 0xc1, 0xa8, 0xc0, 0x03, 0x5f, 0xd6],
            0,
            RelocKind::Arm64Branch26,
        ),
    };
    code.bytes.extend_from_slice(before);
    for &function in order {
        code.relocs.push(Reloc { at: code.bytes.len() as u32 + operand, kind, symbol: Symbol(function) });
        code.bytes.extend_from_slice(call);
    }
    code.bytes.extend_from_slice(after);
    code
}

/// Where functions are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Each at the start of a 4 KiB page of its own.
    PageEach,
    /// Packed, in 4 KiB pages.
    Packed4K,
    /// Packed, in huge pages where the host gives them.
    Packed2M,
}

impl Layout {
    /// All of them, in the order of the tables.
    pub const ALL: [Layout; 3] = [Layout::PageEach, Layout::Packed4K, Layout::Packed2M];
}

/// Loaded functions and a direct caller of them.
pub struct Loaded {
    functions: Vec<Function>,
    order: Vec<Function>,
    caller: Function,
    last: u32,
    stats: Option<Stats>,
    /// What keeps the code: handles of programs and their packs, or an anonymous mapping.
    _texts: Vec<Text>,
    _pages: Option<Pages>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("functions", &self.functions.len()).finish_non_exhaustive()
    }
}

impl Loaded {
    /// Loads `count` functions and a caller that calls them in `order`.
    ///
    /// # Panics
    /// If memory is not to be had, or a function returns another's number.
    pub fn new(layout: Layout, count: u32, order: &[u32]) -> Loaded {
        let caller_code = caller(order);
        let mut loaded = match layout {
            Layout::PageEach => Self::one_page_each(count, &caller_code),
            Layout::Packed4K => Self::packed(count, &caller_code, 101),
            Layout::Packed2M => Self::packed(count, &caller_code, 1),
        };
        for (value, function) in loaded.functions.iter().enumerate() {
            assert_eq!(function(), value as u32);
        }
        loaded.order = order.iter().map(|i| loaded.functions[*i as usize]).collect();
        loaded.last = order.last().copied().expect("calls something");
        assert_eq!((loaded.caller)(), loaded.last);
        loaded
    }

    /// Calls every function in order through its address.
    pub fn call_indirect(&self) {
        let mut last = 0;
        for function in &self.order {
            last = function();
        }
        assert_eq!(last, self.last);
    }

    /// Calls every function in order from one generated function.
    pub fn call_direct(&self) {
        assert_eq!((self.caller)(), self.last);
    }

    /// The functions.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Of the packs, if it is packed.
    pub fn stats(&self) -> Option<Stats> {
        self.stats
    }

    fn packed(count: u32, caller: &Code, collapse_percent: u8) -> Loaded {
        let options = Options { collapse_percent, first_pack_size: 2 << 20, ..Options::default() };
        let packs = Packs::new(Domain::new(bpf_quiesce::Options::default()), options).expect("a supported host");
        let stage = |i| packs.stage(&function(i), |_| None).expect("room");
        let mut texts = packs.publish((0..count).map(stage).collect()).expect("publishes");
        let functions: Vec<_> = texts.iter().map(|text| as_function(text.base() as usize)).collect();
        let resolve = |symbol: Symbol| Some(texts[symbol.0 as usize].base() as usize);
        let caller = packs.stage(caller, resolve).and_then(|staged| staged.finalize()).expect("room");
        let entry = as_function(caller.base() as usize);
        texts.push(caller);
        let stats = Some(packs.stats());
        Loaded { functions, order: Vec::new(), caller: entry, last: 0, stats, _texts: texts, _pages: None }
    }

    fn one_page_each(count: u32, caller: &Code) -> Loaded {
        let count = count as usize;
        let pages = Pages::new(count * PAGE + caller.bytes.len());
        let at = |i: usize| pages.at + i * PAGE;
        for i in 0..count {
            pages.write(at(i), &function(i as u32).bytes);
        }
        let mut bytes = caller.bytes.clone();
        for reloc in &caller.relocs {
            let field = &mut bytes[reloc.at as usize..][..4];
            let place = at(count) + reloc.at as usize;
            let distance = at(reloc.symbol.0 as usize).wrapping_sub(place) as isize;
            let word = match HOST {
                Arch::X64 => (distance - 4) as u32,
                Arch::Arm64 => 0x9400_0000 | (distance >> 2) as u32 & 0x03ff_ffff,
            };
            field.copy_from_slice(&word.to_le_bytes());
        }
        pages.write(at(count), &bytes);
        pages.make_executable();
        let functions = (0..count).map(|i| as_function(at(i))).collect();
        let caller = as_function(at(count));
        Loaded { functions, order: Vec::new(), caller, last: 0, stats: None, _texts: Vec::new(), _pages: Some(pages) }
    }
}

fn as_function(address: usize) -> Function {
    let address: *const () = std::ptr::with_exposed_provenance(address);
    // SAFETY: callers pass the address of code made above, which has this type and is kept by the `Loaded`.
    unsafe { std::mem::transmute(address) }
}

/// Anonymous memory in pages of the base size.
struct Pages {
    at: usize,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Pages {
        let len = len.next_multiple_of(PAGE);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: mapped above. If there are no huge pages to forbid, it fails, and there is nothing to forbid.
        unsafe { libc::madvise(at, len, libc::MADV_NOHUGEPAGE) };
        Pages { at: at.expose_provenance(), len }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at >= self.at && at + bytes.len() <= self.at + self.len);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: inside the mapping, which is writable until `make_executable`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn make_executable(&self) {
        let start = std::ptr::with_exposed_provenance_mut(self.at);
        // SAFETY: our own mapping, which nobody writes any more.
        let result = unsafe { libc::mprotect(start, self.len, libc::PROT_READ | libc::PROT_EXEC) };
        assert_eq!(result, 0);
        // SAFETY: as the function asks: the range is ours and mapped.
        unsafe { __clear_cache(start.cast(), start.wrapping_byte_add(self.len).cast()) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever drops it calls nothing in it any more.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.at), self.len) };
    }
}

unsafe extern "C" {
    /// libgcc / compiler-rt: makes instruction fetch see what was written (nothing to do on x86-64).
    fn __clear_cache(start: *mut libc::c_char, end: *mut libc::c_char);
}
