//! The speed programs: their BPF bytes, their native functions, and the memory they work on.
//!
//! One C source each, in `benches/programs`; `cargo xtask objects` makes the BPF objects and build.rs the native code.
//! They are pure: they read and write their memory, leave the same memory when run again, and return 32 bits.

use bpf_testkit::elf;

/// Length of every program's memory: one page.
pub const MEMORY: usize = 4096;

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
    native: Native,
    fill: fn(&mut [u64]),
}

/// The memory of a run: 8-byte aligned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory(Vec<u64>);

impl Memory {
    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let length = self.0.len() * 8;
        // SAFETY: `length` bytes behind an exclusive borrow of as many, and any bytes are a valid u64.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), length) }
    }
}

impl Program {
    /// The instructions (BPF v3), eight bytes a slot.
    ///
    /// # Panics
    /// If the committed object is damaged.
    pub fn code(&self) -> Vec<u8> {
        elf::section(self.object, "bench").unwrap_or_else(|error| panic!("{}.o: {error}", self.name))
    }

    /// The memory before the first run.
    pub fn memory(&self) -> Memory {
        let mut words = vec![0; MEMORY / 8];
        (self.fill)(&mut words);
        Memory(words)
    }

    /// Runs the native form.
    pub fn run_native(&self, memory: &mut [u8]) -> u32 {
        assert!(memory.as_ptr().addr().is_multiple_of(8), "the programs read words");
        // SAFETY: the slice is exclusive, as long as said, and aligned.
        unsafe { (self.native)(memory.as_mut_ptr(), memory.len() as u64) }
    }

    /// The program of this name.
    pub fn named(name: &str) -> Option<Program> {
        ALL.iter().copied().find(|program| program.name == name)
    }
}

macro_rules! programs {
    ($($name:ident $native:ident $fill:expr;)*) => {
        // SAFETY: the C functions have this signature (bench.h) and need what `Native` requires of the caller.
        unsafe extern "C" {
            $(fn $native(memory: *mut u8, length: u64) -> u32;)*
        }

        /// All speed programs.
        pub const ALL: &[Program] = &[
            $(Program {
                name: stringify!($name),
                object: include_bytes!(concat!("../programs/", stringify!($name), ".o")),
                native: $native,
                fill: $fill,
            },)*
        ];
    };
}

programs! {
    empty bench_empty noise;
    log2 bench_log2 uneven;
    sieve bench_sieve noise;
    memcmp bench_memcmp halves;
    siphash bench_siphash noise;
    jhash bench_jhash noise;
    parse bench_parse frames;
    classify bench_classify noise;
    walk bench_walk noise;
    calls bench_calls noise;
    matmul bench_matmul noise;
    divmod bench_divmod noise;
    crc bench_crc noise;
    sha256 bench_sha256 noise;
    automaton bench_automaton noise;
    rules bench_rules noise;
    base64 bench_base64 noise;
    toeplitz bench_toeplitz noise;
    lz bench_lz noise;
    sort bench_sort noise;
    bignum bench_bignum noise;
    hashmap bench_hashmap noise;
    checksum bench_checksum noise;
    varint bench_varint noise;
    utf8 bench_utf8 letters;
    heap bench_heap noise;
    xxh bench_xxh noise;
    murmur bench_murmur noise;
    masks bench_masks noise;
    mul256 bench_mul256 noise;
    bsearch bench_bsearch noise;
    strsearch bench_strsearch noise;
    dfa bench_dfa text;
    vwrite bench_vwrite noise;
    crct bench_crct noise;
    json bench_json text;
}

/// Pseudo-random words (splitmix64), the same on every run.
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

/// Words of all magnitudes.
fn uneven(words: &mut [u64]) {
    noise(words);
    for (i, word) in words.iter_mut().enumerate() {
        *word >>= (i * 7) % 64;
    }
}

/// Two equal halves.
fn halves(words: &mut [u64]) {
    noise(words);
    let (first, second) = words.split_at_mut(words.len() / 2);
    second.copy_from_slice(first);
}

/// A frame in each slot of 128 bytes: noise for addresses and ports, headers that cover every path of the parser.
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

/// Fills words with the UTF-8 bytes of what `letter` makes of random numbers.
fn written(words: &mut [u64], letter: impl Fn(u64) -> char) {
    noise(words);
    let mut bytes = Vec::new();
    let mut buffer = [0; 4];
    // At least a byte each, and the words are as many numbers over and over.
    for n in words.iter().flat_map(|word| (0..8).map(move |turn| word.rotate_left(8 * turn))) {
        bytes.extend_from_slice(letter(n).encode_utf8(&mut buffer).as_bytes());
    }
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
}

/// Text of few different characters, brackets and quotes among them.
fn text(words: &mut [u64]) {
    const LETTERS: &[u8] = b"abcdefgh ijklmnop {}[]\"\",,:0123456789-\n";
    written(words, |n| char::from(LETTERS[(n >> 32) as usize % LETTERS.len()]));
}

/// Characters of one to four bytes, half of them of one.
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
        // pi(4096) = 564; equal halves; the sum of the logarithms, the slow way.
        assert_eq!(result("sieve"), 564);
        assert_eq!(result("memcmp"), MEMORY as u32 / 2);
        let mut words = vec![0; MEMORY / 8];
        uneven(&mut words);
        assert_eq!(result("log2"), words.iter().map(|word| word.checked_ilog2().unwrap_or(0)).sum::<u32>());
    }
}
