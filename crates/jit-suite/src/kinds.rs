//! Lists of ops that the compiler keeps complete, values worth testing, and a repeatable source of choices.

use bpf_isa::{Size, Width};
use bpf_jit::{AtomicOp, BinOp, Op};

/// A list of all variants of a type; a missing one is a compile error.
macro_rules! every {
    ($list:ident: $type:ident { $($variant:ident)* }) => {
        pub(crate) const $list: [$type; [$(stringify!($variant)),*].len()] = [$($type::$variant),*];
        const _: fn($type) = |value| match value {
            $($type::$variant => {})*
        };
    };
}

every!(BIN: BinOp { Add Sub Mul MulHighU MulHighS And Or Xor Div SDiv Mod SMod Shl Shr Sar Rotl });
every!(ATOMICS: AtomicOp { Add Or And Xor Xchg });
every!(WIDTHS: Width { W32 W64 });
every!(SIZES: Size { B H W DW });

/// The parts of [`BIN`].
pub(crate) const ARITHMETIC: &[BinOp] = BIN.split_at(8).0;
pub(crate) const DIVISIONS: &[BinOp] = BIN.split_at(8).1.split_at(4).0;
pub(crate) const SHIFTS: &[BinOp] = BIN.split_at(12).1;

macro_rules! kinds {
    ($($kind:ident)*) => {
        /// The variant of [`Op`] that an op is.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[allow(missing_docs, reason = "they are those of `Op`")]
        pub enum Kind {
            $($kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            /// The kind of an op. A new op must be added to the list; then a test of this crate demands tests and
            /// random programs with it.
            pub fn of(op: &Op) -> Kind {
                match op {
                    $(Op::$kind { .. } => Kind::$kind,)*
                }
            }
        }
    };
}

kinds! {
    Mov Ext Bin Neg Bswap AddShift Select Confine FrameAddr SymAddr SubprogAddr Load Store LoadAcquire StoreRelease Atomic CmpXchg
    Call TailCall Check Bound Stop Jump Branch Exit
}

/// Values at which arithmetic is likely to be wrong: the limits of widths, and some in between.
pub const EDGES: [u64; 26] = [
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    33,
    63,
    64,
    0x7f,
    0x80,
    0xff,
    0x1234,
    0x8000,
    0x1234_5678,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x0123_4567_89ab_cdef,
    i64::MAX as u64,
    i64::MIN as u64,
    0xffff_ffff_8000_0000,
    u64::MAX - 1,
    u64::MAX,
];

/// Constants at the limits of some machine's encodings, besides [`EDGES`].
pub const CONSTANTS: [i64; 36] = [
    4,
    5,
    9,
    10,
    17,
    127,
    4095,
    4096,
    4097,
    -128,
    -129,
    -4095,
    -4096,
    -4097,
    0xffff,
    0x1_0000,
    -0x1_0000,
    0x10_0000,
    0x12_3456,
    -0x12_3456,
    0xff_f000,
    0xff_ffff,
    0x100_0000,
    -0xff_f000,
    -0xff_ffff,
    0x1000_0001,
    0x7fff_fffe,
    0xf0f0_f0f0,
    i32::MIN as i64,
    -0x8000_0001,
    1 << 40,
    0x00ff_00ff_00ff_00ff,
    0x5555_5555_5555_5555,
    0x1234_0000_5678,
    0x1234_0000_0000_5678,
    -0x0123_4567_89ab_cdef,
];

/// Both lists, as constants.
pub(crate) fn constants() -> Vec<i64> {
    CONSTANTS.into_iter().chain(EDGES.map(|edge| edge as i64)).collect()
}

/// splitmix64: choices that a failing test can repeat from its seed.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
    /// Returns one of the elements.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    /// True with probability 1 / `one_in`.
    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
    /// An edge value, or a random number of random length.
    pub fn value(&mut self) -> u64 {
        let shift = self.bits() % 64;
        match self.below(3) {
            0 => self.pick(&EDGES),
            1 => self.bits() >> shift,
            _ => (self.bits() as i64 >> shift) as u64,
        }
    }
}
