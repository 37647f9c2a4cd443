//! The integer types that host and programs share.

/// An integer type of a host function or of a field of a context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[expect(missing_docs, reason = "their names are Rust's")]
pub enum IntType {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
}

impl IntType {
    /// Its size in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            IntType::Bool | IntType::U8 | IntType::I8 => 1,
            IntType::U16 | IntType::I16 => 2,
            IntType::U32 | IntType::I32 => 4,
            IntType::U64 | IntType::I64 => 8,
        }
    }

    /// Its name in C, by `linux/types.h`.
    pub const fn c_type(self) -> &'static str {
        match self {
            IntType::Bool => "_Bool",
            IntType::U8 => "__u8",
            IntType::U16 => "__u16",
            IntType::U32 => "__u32",
            IntType::U64 => "__u64",
            IntType::I8 => "__s8",
            IntType::I16 => "__s16",
            IntType::I32 => "__s32",
            IntType::I64 => "__s64",
        }
    }

    /// Whether it is signed.
    pub const fn is_signed(self) -> bool {
        match self {
            IntType::I8 | IntType::I16 | IntType::I32 | IntType::I64 => true,
            IntType::Bool | IntType::U8 | IntType::U16 | IntType::U32 | IntType::U64 => false,
        }
    }

    /// The least and the greatest value, both included; `None` for 64 bits.
    pub(crate) const fn range(self) -> Option<(i64, i64)> {
        match self {
            IntType::Bool => Some((0, 1)),
            IntType::U8 => Some((0, u8::MAX as i64)),
            IntType::U16 => Some((0, u16::MAX as i64)),
            IntType::U32 => Some((0, u32::MAX as i64)),
            IntType::I8 => Some((i8::MIN as i64, i8::MAX as i64)),
            IntType::I16 => Some((i16::MIN as i64, i16::MAX as i64)),
            IntType::I32 => Some((i32::MIN as i64, i32::MAX as i64)),
            IntType::U64 | IntType::I64 => None,
        }
    }

    /// Returns the value of a register that holds such a number, extended to 64 bits.
    pub const fn extend(self, register: u64) -> u64 {
        let unused = 64 - 8 * self.bytes();
        match self {
            IntType::Bool => (register != 0) as u64,
            IntType::I8 | IntType::I16 | IntType::I32 | IntType::I64 => {
                ((register << unused).cast_signed() >> unused).cast_unsigned()
            }
            IntType::U8 | IntType::U16 | IntType::U32 | IntType::U64 => register << unused >> unused,
        }
    }
}
