//! The one source of randomness of the generators.
//!
//! Either a seed (splitmix64: fifteen lines, the same on every platform and for ever, which a library's generator does
//! not promise) or the bytes of a fuzzer. When the bytes run out every choice is 0, and the generators are written so
//! that 0 is the simplest choice: so less input means a smaller program.

/// A stream of choices.
#[derive(Debug)]
pub struct Choices<'a>(Source<'a>);

#[derive(Debug)]
enum Source<'a> {
    Seed(u64),
    Bytes(&'a [u8]),
}

/// Values at which arithmetic goes wrong, if it goes wrong.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    3,
    7,
    8,
    31,
    32,
    63,
    64,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 63,
];

impl<'a> Choices<'a> {
    /// Unlimited choices from a seed.
    pub fn from_seed(seed: u64) -> Choices<'static> {
        Choices(Source::Seed(seed))
    }

    /// Choices from these bytes, then zeros.
    pub fn from_bytes(bytes: &'a [u8]) -> Choices<'a> {
        Choices(Source::Bytes(bytes))
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        match &mut self.0 {
            Source::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = *state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((z ^ (z >> 31)) >> 32) as u8
            }
            Source::Bytes(bytes) => match bytes.split_first() {
                Some((&first, rest)) => {
                    *bytes = rest;
                    first
                }
                None => 0,
            },
        }
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u32) -> u32 {
        match n {
            0 | 1 => 0,
            2..=256 => u32::from(self.byte()) % n,
            _ => u32::from_le_bytes(std::array::from_fn(|_| self.byte())) % n,
        }
    }

    /// True in one of `n` cases, never when the choices have run out.
    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == n - 1
    }

    /// Returns one of the options.
    pub fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len() as u32) as usize]
    }

    /// A value, an edge case more often than not.
    pub fn value(&mut self) -> u64 {
        match self.below(4) {
            0 => self.pick(&EDGES),
            1 => self.pick(&EDGES).wrapping_neg(),
            2 => u64::from(self.byte()),
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// An immediate, an edge case more often than not.
    pub fn imm(&mut self) -> i32 {
        self.value() as i32
    }
}
