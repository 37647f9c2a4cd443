//! The speed programs: their BPF bytes, their native functions, and the memory they work on.
//!
//! Each has one C source in `benches/programs`; `cargo xtask objects` makes the BPF objects, and build.rs the native
//! code, in several copies. The programs are pure: they read and write their memory, leave it the same when run
//! again, and return 32 bits.

use bpf_testkit::elf;

/// Length of every program's memory: one page.
pub const MEMORY: usize = 4096;

/// Number of copies of each native function, at different offsets in a cache line: the address of code changes its
/// speed by up to half.
pub const PLACES: usize = 4;

/// A native function: (memory, length) -> result.
///
/// # Safety
/// The pointer names `length` bytes, 8-byte aligned, that nobody else uses during the call.
pub type Native = unsafe extern "C" fn(*mut u8, u64) -> u32;

/// A speed program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    object: &'static [u8],
    native: &'static [Native; PLACES],
    scalar: &'static [Native; PLACES],
    fill: fn(&mut [u64]),
}

/// The memory of a run: 8-byte aligned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory(Vec<u64>);

impl Memory {
    /// Returns its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let length = self.0.len() * 8;
        // SAFETY: `length` bytes behind an exclusive borrow of as many, and any bytes are a valid u64.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), length) }
    }
}

impl Program {
    /// Returns the instructions (BPF v3), eight bytes a slot.
    ///
    /// # Panics
    /// If the committed object is damaged.
    pub fn code(&self) -> Vec<u8> {
        elf::section(self.object, "bench").unwrap_or_else(|error| panic!("{}.o: {error}", self.name))
    }

    /// Returns the memory before the first run.
    pub fn memory(&self) -> Memory {
        let mut words = vec![0; MEMORY / 8];
        (self.fill)(&mut words);
        Memory(words)
    }

    /// Runs the native form.
    pub fn run_native(&self, memory: &mut [u8]) -> u32 {
        run(self.native[0], memory)
    }

    /// Returns the native form's copies; with `vectors` those compiled with vector instructions.
    pub fn natives(&self, vectors: bool) -> [Native; PLACES] {
        if vectors { *self.native } else { *self.scalar }
    }

    /// Returns the program of this name.
    pub fn named(name: &str) -> Option<Program> {
        ALL.iter().copied().find(|program| program.name == name)
    }
}

/// Runs a copy of a native form.
#[inline]
pub(crate) fn run(native: Native, memory: &mut [u8]) -> u32 {
    assert!(memory.as_ptr().addr().is_multiple_of(8), "the programs read words");
    // SAFETY: the slice is exclusive, as long as said, and aligned.
    unsafe { native(memory.as_mut_ptr(), memory.len() as u64) }
}

macro_rules! programs {
    ($($name:ident $native:ident $scalar:ident $fill:expr;)*) => {
        // SAFETY: build.rs makes these tables, of as many functions of this signature (bench.h), which need what
        // `Native` requires of the caller.
        unsafe extern "C" {
            $(
                safe static $native: [Native; PLACES];
                safe static $scalar: [Native; PLACES];
            )*
        }

        /// All speed programs.
        pub const ALL: &[Program] = &[
            $(Program {
                name: stringify!($name),
                object: include_bytes!(concat!("../programs/", stringify!($name), ".o")),
                native: &$native,
                scalar: &$scalar,
                fill: $fill,
            },)*
        ];
    };
}

programs! {
    empty native_empty scalar_empty noise;
    log2 native_log2 scalar_log2 uneven;
    sieve native_sieve scalar_sieve noise;
    memcmp native_memcmp scalar_memcmp halves;
    siphash native_siphash scalar_siphash noise;
    jhash native_jhash scalar_jhash noise;
    parse native_parse scalar_parse frames;
    classify native_classify scalar_classify noise;
    walk native_walk scalar_walk noise;
    calls native_calls scalar_calls noise;
    matmul native_matmul scalar_matmul noise;
    divmod native_divmod scalar_divmod noise;
    crc native_crc scalar_crc noise;
    sha256 native_sha256 scalar_sha256 noise;
    automaton native_automaton scalar_automaton noise;
    rules native_rules scalar_rules noise;
    base64 native_base64 scalar_base64 noise;
    toeplitz native_toeplitz scalar_toeplitz noise;
    lz native_lz scalar_lz noise;
    sort native_sort scalar_sort noise;
    bignum native_bignum scalar_bignum noise;
    hashmap native_hashmap scalar_hashmap noise;
    checksum native_checksum scalar_checksum noise;
    varint native_varint scalar_varint noise;
    utf8 native_utf8 scalar_utf8 letters;
    heap native_heap scalar_heap noise;
    xxh native_xxh scalar_xxh noise;
    murmur native_murmur scalar_murmur noise;
    masks native_masks scalar_masks noise;
    mul256 native_mul256 scalar_mul256 noise;
    bsearch native_bsearch scalar_bsearch noise;
    strsearch native_strsearch scalar_strsearch noise;
    dfa native_dfa scalar_dfa text;
    vwrite native_vwrite scalar_vwrite noise;
    crct native_crct scalar_crct noise;
    json native_json scalar_json text;
    opcodes native_opcodes scalar_opcodes noise;
}

/// Fills the words with pseudo-random numbers (splitmix64), the same on every run.
fn noise(words: &mut [u64]) {
    let mut state = 0u64;
    for word in words {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        *word = z ^ (z >> 31);
    }
}

/// Fills the words with numbers of all magnitudes.
fn uneven(words: &mut [u64]) {
    noise(words);
    for (i, word) in words.iter_mut().enumerate() {
        *word >>= (i * 7) % 64;
    }
}

/// Fills the words with two equal halves.
fn halves(words: &mut [u64]) {
    noise(words);
    let (first, second) = words.split_at_mut(words.len() / 2);
    second.copy_from_slice(first);
}

/// Writes a frame into each slot of 128 bytes: random addresses and ports, and headers that cover every path of the
/// parser.
fn frames(words: &mut [u64]) {
    noise(words);
    for (i, slot) in words.chunks_mut(16).enumerate() {
        let mut bytes: Vec<u8> = slot.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut at = 14;
        let (ethertype, header): (u16, &[u8]) = match i % 4 {
            0 | 1 => (0x0800, &[0x45]),
            2 => (0x86dd, &[0x60]),
            _ => (0x0800, &[0x46]),
        };
        let types: &[u16] = if i % 5 == 0 { &[0x8100, ethertype] } else { &[ethertype] };
        for (tag, word) in types.iter().enumerate() {
            bytes[12 + 4 * tag..14 + 4 * tag].copy_from_slice(&word.to_be_bytes());
            at = 14 + 4 * tag;
        }
        if i % 11 == 10 {
            bytes[12..14].copy_from_slice(&0x0806u16.to_be_bytes());
        }
        bytes[at] = header[0];
        let protocol = if i % 3 == 0 { 17 } else { 6 };
        bytes[at + if ethertype == 0x86dd { 6 } else { 9 }] = protocol;
        for (word, bytes) in slot.iter_mut().zip(bytes.chunks(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
    }
}

/// Fills words with the UTF-8 bytes of the characters that `letter` returns for random numbers.
fn written(words: &mut [u64], letter: impl Fn(u64) -> char) {
    noise(words);
    let mut bytes = Vec::new();
    let mut buffer = [0; 4];
    // A character has at least one byte; the words, each rotated by every number of bytes, are enough numbers.
    for n in words.iter().flat_map(|word| (0..8).map(move |turn| word.rotate_left(8 * turn))) {
        bytes.extend_from_slice(letter(n).encode_utf8(&mut buffer).as_bytes());
    }
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
}

/// Fills the words with text of few different characters, brackets and quotes among them.
fn text(words: &mut [u64]) {
    const LETTERS: &[u8] = b"abcdefgh ijklmnop {}[]\"\",,:0123456789-\n";
    written(words, |n| char::from(LETTERS[(n >> 32) as usize % LETTERS.len()]));
}

/// Fills the words with characters of one to four bytes, half of them of one.
fn letters(words: &mut [u64]) {
    written(words, |n| {
        let (kind, n) = (n % 6, n >> 32);
        let code = match kind {
            0..3 => 32 + n % 95,
            3 => 0x80 + n % 0x780,
            4 => 0x800 + n % 0xc800,
            _ => 0x1_0000 + n % 0xf_0000,
        };
        u32::try_from(code).ok().and_then(char::from_u32).unwrap_or('?')
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_hold_valid_programs() {
        for program in ALL {
            bpf_isa::Program::from_bytes(&program.code()).unwrap_or_else(|e| panic!("{}: {e}", program.name));
        }
    }

    #[test]
    fn running_twice_gives_the_same() {
        for program in ALL {
            let mut memory = program.memory();
            let first = program.run_native(memory.bytes());
            let after = memory.clone();
            assert_eq!((program.run_native(memory.bytes()), &memory), (first, &after), "{}", program.name);
        }
    }

    #[test]
    fn known_results() {
        let result = |name| {
            let program = Program::named(name).unwrap();
            program.run_native(program.memory().bytes())
        };
        // pi(4096) = 564; equal halves; the sum of the logarithms, computed by the standard library.
        assert_eq!(result("sieve"), 564);
        assert_eq!(result("memcmp"), MEMORY as u32 / 2);
        let mut words = vec![0; MEMORY / 8];
        uneven(&mut words);
        assert_eq!(result("log2"), words.iter().map(|word| word.checked_ilog2().unwrap_or(0)).sum::<u32>());
    }
}
