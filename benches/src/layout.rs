//! Small functions, laid out one in each page or packed, and called directly or indirectly: the subject of the
//! packing benchmark.
//!
//! The functions are generated for the host (only this module of the benchmarks encodes instructions), are about as
//! large as a small program's code, and return their own number, so that a call of a wrong one is noticed.

use bpf_jit_code::{Arch, Code, Reloc, RelocKind, Symbol};
use bpf_prog_pack::{Options, Packs, Stats, Text};
use bpf_quiesce::Domain;
use std::sync::atomic::{AtomicU64, Ordering};

/// The type of the generated functions.
pub type Function = extern "C" fn() -> u32;

const HOST: Arch = if cfg!(target_arch = "aarch64") { Arch::Arm64 } else { Arch::X64 };
const PAGE: usize = 4096;

/// Returns about 100 bytes of code that returns `value`: between 41 and 151, as programs differ. Functions of one
/// length would lie at one distance from each other, and branch predictors fold some such addresses together: the
/// benchmark would measure this instead of packing.
pub fn function(value: u32) -> Code {
    let mut code = Code::new(HOST);
    code.entries = vec![0];
    let length = 8 + (value.wrapping_mul(0x9e37_79b9) >> 16) % 23;
    match HOST {
        Arch::X64 => {
            for i in (0..length).rev() {
                code.bytes.push(0xb8); // mov eax, imm32: independent of each other
                code.bytes.extend_from_slice(&(value + i).to_le_bytes());
            }
            code.bytes.push(0xc3); // ret
        }
        Arch::Arm64 => {
            for i in (0..length / 2 + 1).rev() {
                let value = value + i;
                let words = [0x5280_0000 | (value & 0xffff) << 5, 0x72a0_0000 | (value >> 16) << 5]; // movz, movk w0
                code.bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            }
            code.bytes.extend_from_slice(&0xd65f_03c0_u32.to_le_bytes()); // ret
        }
    }
    code
}

/// Returns the shortest code that returns `value`.
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

/// Returns a function that calls the symbols in this order and returns the result of the last call.
fn caller(order: &[u32]) -> Code {
    let mut calls = Calls::new();
    order.iter().for_each(|i| calls.symbol(*i));
    calls.finish()
}

/// A function under construction that only calls others, and returns the result of the last call.
struct Calls(Code);

impl Calls {
    fn new() -> Calls {
        let mut code = Code::new(HOST);
        code.entries = vec![0];
        code.bytes.extend_from_slice(match HOST {
            // push rbp
            Arch::X64 => &[0x55],
            // stp x29, x30, [sp, -16]!
            Arch::Arm64 => &[0xfd, 0x7b, 0xbf, 0xa9],
        });
        Calls(code)
    }

    /// Calls a symbol directly.
    fn symbol(&mut self, symbol: u32) {
        // call rel32; bl
        let (call, operand, kind): (&[u8], u32, _) = match HOST {
            Arch::X64 => (&[0xe8, 0, 0, 0, 0], 1, RelocKind::X64Rel32),
            Arch::Arm64 => (&[0, 0, 0, 0x94], 0, RelocKind::Arm64Branch26),
        };
        let at = self.0.bytes.len() as u32 + operand;
        self.0.relocs.push(Reloc { at, kind, symbol: Symbol::new(symbol) });
        self.0.bytes.extend_from_slice(call);
    }

    /// Calls a function at any distance.
    fn function(&mut self, function: Function) {
        let address = function as usize as u64;
        match HOST {
            // movabs rax, imm64; call rax
            Arch::X64 => {
                self.0.bytes.extend_from_slice(&[0x48, 0xb8]);
                self.0.bytes.extend_from_slice(&address.to_le_bytes());
                self.0.bytes.extend_from_slice(&[0xff, 0xd0]);
            }
            // movz, movk, movk x16; blr x16
            Arch::Arm64 => {
                for (part, opcode) in [0xd280_0010_u32, 0xf2a0_0010, 0xf2c0_0010].into_iter().enumerate() {
                    let word = opcode | ((address >> (16 * part)) as u32 & 0xffff) << 5;
                    self.0.bytes.extend_from_slice(&word.to_le_bytes());
                }
                self.0.bytes.extend_from_slice(&0xd63f_0200_u32.to_le_bytes());
            }
        }
    }

    fn finish(mut self) -> Code {
        self.0.bytes.extend_from_slice(match HOST {
            // pop rbp; ret
            Arch::X64 => &[0x5d, 0xc3],
            // ldp x29, x30, [sp], 16; ret
            Arch::Arm64 => &[0xfd, 0x7b, 0xc1, 0xa8, 0xc0, 0x03, 0x5f, 0xd6],
        });
        self.0
    }
}

/// The placement of functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Each at the start of a 4 KiB page of its own.
    PageEach,
    /// Each in a 4 KiB page of its own, at any multiple of 16 in it: how the kernel loaded programs before it packed
    /// them, and how distant functions of a large program lie.
    PageScattered,
    /// Packed, in 4 KiB pages.
    Packed4K,
    /// Packed, in huge pages where the host gives them.
    Packed2M,
}

impl Layout {
    /// All layouts, in the order of the tables.
    pub const ALL: [Layout; 4] = [Layout::PageEach, Layout::PageScattered, Layout::Packed4K, Layout::Packed2M];
}

/// Loaded functions and a direct caller of them.
pub struct Loaded {
    functions: Vec<Function>,
    order: Vec<Function>,
    caller: Function,
    last: u32,
    stats: Option<Stats>,
    /// The owners of the code: handles of programs and their packs, or an anonymous mapping.
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
            Layout::PageEach => Self::one_page_each(count, &caller_code, |_| 0),
            Layout::PageScattered => Self::one_page_each(count, &caller_code, scattered),
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

    /// Returns the functions.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Returns the statistics of the packs, if the layout is packed.
    pub fn stats(&self) -> Option<Stats> {
        self.stats
    }

    fn packed(count: u32, caller: &Code, collapse_percent: u8) -> Loaded {
        let mut options = Options::default();
        (options.collapse_percent, options.first_pack_size) = (collapse_percent, 2 << 20);
        let packs = Packs::new(Domain::new(bpf_quiesce::Options::new()), options).expect("a supported host");
        let stage = |i| packs.stage(&function(i), |_| None).expect("room");
        // Other functions are published first, a random number of them, so that the addresses differ from one layout
        // to the next.
        let others = packs.publish((0..another(64) as u32).map(stage).collect()).expect("publishes");
        let mut texts = packs.publish((0..count).map(stage).collect()).expect("publishes");
        let functions: Vec<_> = texts.iter().map(|text| as_function(text.base() as usize)).collect();
        let resolve = |symbol: Symbol| Some(texts[symbol.index as usize].base() as usize);
        let caller = packs.stage(caller, resolve).and_then(|staged| staged.finalize()).expect("room");
        let entry = as_function(caller.base() as usize);
        texts.push(caller);
        texts.extend(others);
        let stats = Some(packs.stats());
        Loaded { functions, order: Vec::new(), caller: entry, last: 0, stats, _texts: texts, _pages: None }
    }

    fn one_page_each(count: u32, caller: &Code, offset: impl Fn(usize) -> usize) -> Loaded {
        let count = count as usize;
        let pages = Pages::new(count * PAGE + caller.bytes.len());
        let place = pages.at + count * PAGE;
        let at = |i: usize| pages.at + i * PAGE + offset(i);
        for i in 0..count {
            pages.write(at(i), &function(i as u32).bytes);
        }
        pages.write(place, &linked(caller, place, at));
        pages.make_executable();
        let functions = (0..count).map(|i| as_function(at(i))).collect();
        let caller = as_function(place);
        Loaded { functions, order: Vec::new(), caller, last: 0, stats: None, _texts: Vec::new(), _pages: Some(pages) }
    }
}

/// Returns the bytes of a caller that will be at `place`, with its calls resolved by `target`.
fn linked(caller: &Code, place: usize, target: impl Fn(usize) -> usize) -> Vec<u8> {
    let mut bytes = caller.bytes.clone();
    for reloc in &caller.relocs {
        let field = &mut bytes[reloc.at as usize..][..4];
        let distance = target(reloc.symbol.index as usize).wrapping_sub(place + reloc.at as usize) as isize;
        let (word, reach) = match HOST {
            Arch::X64 => ((distance - 4) as u32, 1 << 31),
            Arch::Arm64 => (0x9400_0000 | (distance >> 2) as u32 & 0x03ff_ffff, 1 << 27),
        };
        assert!(distance.abs() < reach - 4, "anonymous mappings lie close together");
        field.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// One path through the functions of a large program, which calls other functions at intervals. Every call has a
/// place of its own and always the same target, as in straight-line code: its cost is fetching instructions and
/// translating their addresses, and not predicting targets.
#[derive(Debug)]
pub struct Tour {
    entry: Function,
    _pages: Pages,
}

impl Tour {
    /// Makes a tour that calls the functions of `host` in `order`, and after each `every` of them the next of
    /// `between`. The host must outlive it.
    ///
    /// # Panics
    /// If memory is not to be had.
    pub fn new(host: &Loaded, order: &[u32], every: usize, between: &[Function]) -> Tour {
        let mut calls = Calls::new();
        let mut between = between.iter();
        for chunk in order.chunks(every) {
            chunk.iter().for_each(|i| calls.symbol(*i));
            between.next().into_iter().for_each(|function| calls.function(*function));
        }
        let code = calls.finish();
        let pages = Pages::new(code.bytes.len());
        pages.write(pages.at, &linked(&code, pages.at, |i| host.functions[i] as usize));
        pages.make_executable();
        Tour { entry: as_function(pages.at), _pages: pages }
    }

    /// Calls all functions of the tour once, and returns the result of the last.
    pub fn take(&self) -> u32 {
        (self.entry)()
    }
}

/// Returns the offset in its page of the function with this number: a multiple of 16, about uniform.
fn scattered(i: usize) -> usize {
    let hash = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    hash as usize % ((PAGE - 256) / 16) * 16
}

fn as_function(address: usize) -> Function {
    let address: *const () = std::ptr::with_exposed_provenance(address);
    // SAFETY: callers pass the address of code made above, which has this type and is kept by the `Loaded`.
    unsafe { std::mem::transmute(address) }
}

/// Anonymous memory in pages of the base size, at a random address. The kernel would map new memory where memory was
/// just unmapped: code at that address would collide in the branch predictors with the same other code as before.
#[derive(Debug)]
struct Pages {
    /// The used part of the mapping.
    at: usize,
    len: usize,
    mapping: usize,
}

/// Returns a pseudo-random number below `n`.
fn another(n: usize) -> usize {
    static STATE: AtomicU64 = AtomicU64::new(1);
    // Relaxed: the number orders no other access.
    let state = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    ((state ^ state >> 31).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33) as usize % n
}

impl Pages {
    fn new(len: usize) -> Pages {
        const SHIFT: usize = 512;
        let before = another(SHIFT) * PAGE;
        let len = len.next_multiple_of(PAGE);
        let whole = before + len;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), whole, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: mapped above. If there are no huge pages to forbid, it fails, and there is nothing to forbid.
        unsafe { libc::madvise(at, whole, libc::MADV_NOHUGEPAGE) };
        let mapping = at.expose_provenance();
        Pages { at: mapping + before, len, mapping }
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
        // SAFETY: the range is this mapping, which stays mapped during the call.
        unsafe { __clear_cache(start.cast(), start.wrapping_byte_add(self.len).cast()) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping; the owner of the value, which is being dropped, is the only caller of
        // functions in it.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.mapping), self.at - self.mapping + self.len) };
    }
}

unsafe extern "C" {
    /// Makes instruction fetch see written code (libgcc or compiler-rt; nothing to do on x86-64).
    fn __clear_cache(start: *mut libc::c_char, end: *mut libc::c_char);
}
