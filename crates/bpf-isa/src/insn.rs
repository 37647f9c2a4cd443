//! The decoded instruction.
//!
//! The enum has one variant per *kind* of instruction and one field per degree of freedom, so that an impossible
//! instruction cannot be expressed and a `match` without `_` covers the instruction set. It holds exactly the
//! information of the encoding: jump offsets stay relative. Source: RFC 9669; Linux 6.18 for may_goto, address space
//! casts, load-acquire and store-release, 6.19 for gotox.

use core::fmt;

/// Index of an eight-byte slot in a program. A two-slot instruction is named by its first slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct InsnIdx(pub u32);

impl InsnIdx {
    /// The index as a `usize`, to index slices.
    pub fn index(self) -> usize {
        self.0 as usize
    }
    /// The number by which programs name the instruction as a target of [`Insn::JumpReg`]: its index plus one, so
    /// that it is never 0.
    pub fn target_number(self) -> u64 {
        u64::from(self.0) + 1
    }
    /// The instruction with this number as a target; `None` if no instruction has it.
    pub fn of_target_number(number: u64) -> Option<InsnIdx> {
        u32::try_from(number.checked_sub(1)?).ok().map(InsnIdx)
    }
    /// The slot `off` slots after the *next* one: the target of a jump at `self` with offset `off`. `None` if that
    /// lies before slot 0 or beyond `u32`.
    pub fn jump(self, off: i32) -> Option<InsnIdx> {
        u32::try_from(i64::from(self.0) + 1 + i64::from(off)).ok().map(InsnIdx)
    }
}

impl fmt::Debug for InsnIdx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl fmt::Display for InsnIdx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A BPF register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Reg {
    /// Result of calls and of the program.
    R0,
    /// First argument; scratch.
    R1,
    /// Second argument; scratch.
    R2,
    /// Third argument; scratch.
    R3,
    /// Fourth argument; scratch.
    R4,
    /// Fifth argument; scratch.
    R5,
    /// Preserved across calls.
    R6,
    /// Preserved across calls.
    R7,
    /// Preserved across calls.
    R8,
    /// Preserved across calls.
    R9,
    /// Frame pointer; read-only: one past the highest byte of the frame's stack.
    R10,
}

impl Reg {
    /// All registers in order.
    pub const ALL: [Reg; 11] =
        [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5, Reg::R6, Reg::R7, Reg::R8, Reg::R9, Reg::R10];
    /// The argument registers r1 to r5.
    pub const ARGS: [Reg; 5] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];
    /// The registers preserved by a call, r6 to r9.
    pub const SAVED: [Reg; 4] = [Reg::R6, Reg::R7, Reg::R8, Reg::R9];

    /// The register with number `n`, if there is one.
    pub fn new(n: u8) -> Option<Reg> {
        Reg::ALL.get(usize::from(n)).copied()
    }
    /// The register's number, 0 to 10.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", *self as u8)
    }
}

/// Operand width of an ALU or jump instruction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Width {
    /// The low 32 bits; an ALU result is zero-extended.
    W32,
    /// All 64 bits.
    W64,
}

/// Size of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Size {
    /// One byte.
    B,
    /// Two bytes.
    H,
    /// Four bytes.
    W,
    /// Eight bytes.
    DW,
}

impl Size {
    /// The size in bytes: 1, 2, 4 or 8.
    pub const fn bytes(self) -> u32 {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
            Size::DW => 8,
        }
    }
    /// The size in bits: 8, 16, 32 or 64.
    pub const fn bits(self) -> u32 {
        self.bytes() * 8
    }
}

/// The second operand of an ALU or jump instruction. A 64-bit operation sign-extends an immediate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Src {
    /// A register.
    Reg(Reg),
    /// An immediate.
    Imm(i32),
}

/// Two-operand arithmetic, `dst = dst op src`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AluOp {
    /// Addition, wrapping.
    Add,
    /// Subtraction, wrapping.
    Sub,
    /// Multiplication, wrapping.
    Mul,
    /// Unsigned division; x / 0 = 0.
    Div,
    /// Signed, truncating division; x / 0 = 0, MIN / -1 = MIN.
    SDiv,
    /// Unsigned remainder; x % 0 = x.
    Mod,
    /// Signed remainder with the sign of the dividend; x % 0 = x, MIN % -1 = 0.
    SMod,
    /// Bitwise or.
    Or,
    /// Bitwise and.
    And,
    /// Bitwise exclusive or.
    Xor,
    /// Left shift; the count is taken modulo the width.
    Lsh,
    /// Logical right shift; the count is taken modulo the width.
    Rsh,
    /// Arithmetic right shift; the count is taken modulo the width.
    Arsh,
}

impl AluOp {
    /// All operations, in opcode order.
    pub const ALL: [AluOp; 13] = [
        AluOp::Add,
        AluOp::Sub,
        AluOp::Mul,
        AluOp::Div,
        AluOp::SDiv,
        AluOp::Or,
        AluOp::And,
        AluOp::Lsh,
        AluOp::Rsh,
        AluOp::Mod,
        AluOp::SMod,
        AluOp::Xor,
        AluOp::Arsh,
    ];
}

/// The effect of an END instruction on the low bits of its register. The bits above are zeroed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ByteOrder {
    /// `leN`: to little endian (on our little-endian hosts: truncate).
    ToLe,
    /// `beN`: to big endian (on our little-endian hosts: swap).
    ToBe,
    /// `bswapN`: swap always.
    Swap,
}

/// Width of an END instruction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EndWidth {
    /// 16 bits.
    B16,
    /// 32 bits.
    B32,
    /// 64 bits.
    B64,
}

impl EndWidth {
    /// The width in bits: 16, 32 or 64.
    pub const fn bits(self) -> u32 {
        match self {
            EndWidth::B16 => 16,
            EndWidth::B32 => 32,
            EndWidth::B64 => 64,
        }
    }
}

/// Source width of a sign-extending move.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SxWidth {
    /// Sign extension from 8 bits.
    S8,
    /// Sign extension from 16 bits.
    S16,
    /// Sign extension from 32 bits; only in the 64-bit form.
    S32,
}

impl SxWidth {
    /// The width in bits: 8, 16 or 32.
    pub const fn bits(self) -> u32 {
        match self {
            SxWidth::S8 => 8,
            SxWidth::S16 => 16,
            SxWidth::S32 => 32,
        }
    }
}

/// The address space that a pointer is cast to. Programs keep *user* addresses of an arena (address space 1), and
/// cast them to address space 0 for accesses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AddrSpace {
    /// Address space 0: the low 32 bits, by which the arena is accessed.
    Kernel,
    /// Address space 1: the arena's upper 32 bits combined with the low 32 bits; null where the low bits are 0.
    User,
}

impl AddrSpace {
    /// The numbers of this address space and of the one that is cast from.
    pub const fn numbers(self) -> (u8, u8) {
        match self {
            AddrSpace::Kernel => (0, 1),
            AddrSpace::User => (1, 0),
        }
    }
}

/// Condition of a jump, `if dst cond src`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cond {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Unsigned greater.
    Gt,
    /// Unsigned greater or equal.
    Ge,
    /// Unsigned less.
    Lt,
    /// Unsigned less or equal.
    Le,
    /// `dst & src != 0`.
    Set,
    /// Signed greater.
    SGt,
    /// Signed greater or equal.
    SGe,
    /// Signed less.
    SLt,
    /// Signed less or equal.
    SLe,
}

impl Cond {
    /// All conditions, in opcode order.
    pub const ALL: [Cond; 11] = [
        Cond::Eq,
        Cond::Gt,
        Cond::Ge,
        Cond::Set,
        Cond::Ne,
        Cond::SGt,
        Cond::SGe,
        Cond::Lt,
        Cond::Le,
        Cond::SLt,
        Cond::SLe,
    ];
    /// The condition that holds exactly when this one does not; `None` for [`Cond::Set`], whose negation BPF lacks.
    pub fn negate(self) -> Option<Cond> {
        Some(match self {
            Cond::Eq => Cond::Ne,
            Cond::Ne => Cond::Eq,
            Cond::Gt => Cond::Le,
            Cond::Ge => Cond::Lt,
            Cond::Lt => Cond::Ge,
            Cond::Le => Cond::Gt,
            Cond::Set => return None,
            Cond::SGt => Cond::SLe,
            Cond::SGe => Cond::SLt,
            Cond::SLt => Cond::SGe,
            Cond::SLe => Cond::SGt,
        })
    }
}

/// Read-modify-write operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AtomicOp {
    /// `*p += src`; with `fetch`, src = old value.
    Add {
        /// Whether src receives the old value.
        fetch: bool,
    },
    /// `*p |= src`; with `fetch`, src = old value.
    Or {
        /// Whether src receives the old value.
        fetch: bool,
    },
    /// `*p &= src`; with `fetch`, src = old value.
    And {
        /// Whether src receives the old value.
        fetch: bool,
    },
    /// `*p ^= src`; with `fetch`, src = old value.
    Xor {
        /// Whether src receives the old value.
        fetch: bool,
    },
    /// Swap `*p` and src.
    Xchg,
    /// If `*p == r0` then `*p = src`; r0 = old value, zero-extended, in both outcomes.
    CmpXchg,
}

impl AtomicOp {
    /// The register that receives the old value, if there is one. `src` is the instruction's operand.
    #[inline]
    pub const fn result(self, src: Reg) -> Option<Reg> {
        match self {
            AtomicOp::Add { fetch } | AtomicOp::Or { fetch } | AtomicOp::And { fetch } | AtomicOp::Xor { fetch } => {
                if fetch {
                    Some(src)
                } else {
                    None
                }
            }
            AtomicOp::Xchg => Some(src),
            AtomicOp::CmpXchg => Some(Reg::R0),
        }
    }
}

/// Operand width of an atomic read-modify-write.
pub type AtomicWidth = Width;

impl From<AtomicWidth> for Size {
    fn from(width: AtomicWidth) -> Size {
        match width {
            Width::W32 => Size::W,
            Width::W64 => Size::DW,
        }
    }
}

/// The value that a two-slot LD_IMM64 loads (its `src` field).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Imm64 {
    /// src 0: the constant.
    Const(u64),
    /// src 1: the map with this file descriptor (in a linked program: this index into its map table).
    Map(i32),
    /// src 2: the address of `off` bytes into the value of the map with this file descriptor (or table index).
    MapValue {
        /// File descriptor or table index.
        map: i32,
        /// Byte offset.
        off: u32,
    },
    /// src 3: the kernel variable with this BTF id.
    Var(i32),
    /// src 4: the address of the subprogram at this offset from the next instruction *slot* (kernel:
    /// `insn_idx + imm + 1`), for callbacks.
    Func(i32),
    /// src 5: the map with this index into the loader's array.
    MapIdx(i32),
    /// src 6: like [`Imm64::MapValue`], by index.
    MapIdxValue {
        /// Index into the loader's array.
        map: i32,
        /// Byte offset.
        off: u32,
    },
}

/// The callee of a CALL (its `src` field).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Callee {
    /// src 0: the helper with this id.
    Helper(u32),
    /// src 1: the subprogram at this offset from the next instruction.
    Subprog(i32),
    /// src 2: the host function with this BTF id ("kfunc"; in a linked program: index into its host-function table).
    Host(i32),
    /// The register form (callx): the subprogram whose address, as [`Imm64::Func`] loads it, is in this register (the
    /// `dst` field, as LLVM 19 and later and GCC encode it; LLVM 18 used `imm`, which does not decode).
    Reg(Reg),
}

/// A decoded instruction. Jump offsets count slots from the next instruction, as encoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Insn {
    /// `dst = dst op src`.
    Alu {
        /// Width.
        width: Width,
        /// Operation.
        op: AluOp,
        /// Destination and first operand.
        dst: Reg,
        /// Second operand.
        src: Src,
    },
    /// `dst = src`.
    Mov {
        /// Width; a 32-bit move zero-extends.
        width: Width,
        /// Destination.
        dst: Reg,
        /// Source.
        src: Src,
    },
    /// `dst = (sN)src`.
    MovSx {
        /// Width of the result; a 32-bit result is zero-extended.
        width: Width,
        /// Destination.
        dst: Reg,
        /// Source.
        src: Reg,
        /// Width of the source.
        from: SxWidth,
    },
    /// `dst = addr_space_cast(src, to, from)`: a pointer into the program's arena, cast from the other address space.
    Cast {
        /// Destination.
        dst: Reg,
        /// Source.
        src: Reg,
        /// The address space to cast to.
        to: AddrSpace,
    },
    /// `dst = -dst`.
    Neg {
        /// Width.
        width: Width,
        /// Destination and operand.
        dst: Reg,
    },
    /// Byte order conversion of `dst`.
    End {
        /// Direction.
        order: ByteOrder,
        /// Width.
        width: EndWidth,
        /// Destination and operand.
        dst: Reg,
    },
    /// `dst = imm64`, in two slots.
    LoadImm64 {
        /// Destination.
        dst: Reg,
        /// The loaded value.
        imm: Imm64,
    },
    /// The second slot of the [`Insn::LoadImm64`] before it. Never executed, never a jump target.
    SecondSlot,
    /// `dst = *(base + off)`.
    Load {
        /// Size of the access.
        size: Size,
        /// Sign-extend (else zero-extend) to 64 bits. Never with [`Size::DW`].
        sign: bool,
        /// Destination.
        dst: Reg,
        /// Address base.
        base: Reg,
        /// Byte offset.
        off: i16,
    },
    /// `*(base + off) = src`. An immediate is sign-extended for [`Size::DW`].
    Store {
        /// Size of the access.
        size: Size,
        /// Address base.
        base: Reg,
        /// Byte offset.
        off: i16,
        /// Value.
        src: Src,
    },
    /// Atomic read-modify-write of `*(base + off)`.
    Atomic {
        /// Operand width.
        width: AtomicWidth,
        /// Operation.
        op: AtomicOp,
        /// Address base.
        base: Reg,
        /// Byte offset.
        off: i16,
        /// Operand, and destination of the old value if it is fetched.
        src: Reg,
    },
    /// `dst = load_acquire(base + off)`, zero-extended.
    LoadAcquire {
        /// Size of the access.
        size: Size,
        /// Destination.
        dst: Reg,
        /// Address base.
        base: Reg,
        /// Byte offset.
        off: i16,
    },
    /// `store_release(base + off, src)`.
    StoreRelease {
        /// Size of the access.
        size: Size,
        /// Address base.
        base: Reg,
        /// Byte offset.
        off: i16,
        /// Value.
        src: Reg,
    },
    /// Legacy packet load, `r0 = ntoh(*(packet + imm))`; out of range ends the current function with 0.
    LoadAbs {
        /// Size of the access: B, H or W.
        size: Size,
        /// Byte offset.
        imm: i32,
    },
    /// Legacy packet load, `r0 = ntoh(*(packet + src + imm))`; out of range ends the current function with 0.
    LoadInd {
        /// Size of the access: B, H or W.
        size: Size,
        /// Register part of the offset.
        src: Reg,
        /// Constant part of the offset.
        imm: i32,
    },
    /// `goto off` (JA); `wide` is the 32-bit form (gotol).
    Jump {
        /// Offset in slots from the next instruction; fits 16 bits unless `wide`.
        off: i32,
        /// The JMP32 encoding.
        wide: bool,
    },
    /// `gotox reg` (Linux 6.19): jumps to the instruction that the register names. The possible targets are the
    /// instructions that the program was made with ([`crate::Program::indirect_targets`]). Each is named by its
    /// [`InsnIdx::target_number`], which a program loads from a map of type `BPF_MAP_TYPE_INSN_ARRAY`.
    JumpReg {
        /// The register (the `dst` field).
        target: Reg,
    },
    /// `if dst cond src goto off`.
    JumpIf {
        /// Width of the comparison.
        width: Width,
        /// Condition.
        cond: Cond,
        /// First operand.
        dst: Reg,
        /// Second operand.
        src: Src,
        /// Offset in slots from the next instruction.
        off: i16,
    },
    /// `may_goto off`: jumps when the frame's budget of passes is spent.
    MayGoto {
        /// Offset in slots from the next instruction.
        off: i16,
    },
    /// `call`.
    Call(Callee),
    /// `exit`.
    Exit,
}

/// The memory access of an instruction: `size` bytes at `base + off`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemoryAccess {
    /// Address base.
    pub base: Reg,
    /// Byte offset.
    pub off: i16,
    /// Size of the access.
    pub size: Size,
    /// The kind of access.
    pub kind: AccessKind,
}

/// The kind of a [`MemoryAccess`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessKind {
    /// Reads.
    Load,
    /// Writes the operand.
    Store(Src),
    /// Reads, combines the value with the operand and writes the result; atomic. (A compare-and-exchange also reads
    /// r0.)
    Update(Reg),
    /// Reads with acquire ordering; atomic.
    LoadAcquire,
    /// Writes the operand with release ordering; atomic.
    StoreRelease(Reg),
}

impl AccessKind {
    /// Whether the access is atomic, and so must be aligned.
    pub const fn is_atomic(self) -> bool {
        match self {
            AccessKind::Update(_) | AccessKind::LoadAcquire | AccessKind::StoreRelease(_) => true,
            AccessKind::Load | AccessKind::Store(_) => false,
        }
    }

    /// The register whose value is written to memory or combined with it.
    pub const fn operand(self) -> Option<Reg> {
        match self {
            AccessKind::Store(Src::Reg(src)) | AccessKind::Update(src) | AccessKind::StoreRelease(src) => Some(src),
            AccessKind::Store(Src::Imm(_)) | AccessKind::Load | AccessKind::LoadAcquire => None,
        }
    }
}

/// Number of passes that one may_goto budget allows (Linux: BPF_MAX_LOOPS).
pub const MAY_GOTO_BUDGET: u64 = 8 * 1024 * 1024;

impl Insn {
    /// Number of slots of the instruction: 2 for [`Insn::LoadImm64`], else 1.
    pub fn slots(&self) -> u32 {
        if matches!(self, Insn::LoadImm64 { .. }) { 2 } else { 1 }
    }

    /// The offset, in slots from the next instruction, that this instruction may jump to (except calls and indirect
    /// jumps).
    pub fn jump_offset(&self) -> Option<i32> {
        match *self {
            Insn::Jump { off, .. } => Some(off),
            Insn::JumpIf { off, .. } | Insn::MayGoto { off } => Some(off.into()),
            Insn::Alu { .. }
            | Insn::Mov { .. }
            | Insn::MovSx { .. }
            | Insn::Cast { .. }
            | Insn::Neg { .. }
            | Insn::End { .. }
            | Insn::LoadImm64 { .. }
            | Insn::SecondSlot
            | Insn::Load { .. }
            | Insn::Store { .. }
            | Insn::Atomic { .. }
            | Insn::LoadAcquire { .. }
            | Insn::StoreRelease { .. }
            | Insn::LoadAbs { .. }
            | Insn::LoadInd { .. }
            | Insn::JumpReg { .. }
            | Insn::Call(_)
            | Insn::Exit => None,
        }
    }

    /// The memory that the instruction accesses at an address in a register. `None` for instructions without an
    /// access, and for legacy packet loads and calls, whose memory no register names.
    #[inline]
    pub fn memory_access(&self) -> Option<MemoryAccess> {
        let access = |base, off, size, kind| Some(MemoryAccess { base, off, size, kind });
        match *self {
            Insn::Load { size, base, off, .. } => access(base, off, size, AccessKind::Load),
            Insn::Store { size, base, off, src } => access(base, off, size, AccessKind::Store(src)),
            Insn::Atomic { width, base, off, src, .. } => access(base, off, width.into(), AccessKind::Update(src)),
            Insn::LoadAcquire { size, base, off, .. } => access(base, off, size, AccessKind::LoadAcquire),
            Insn::StoreRelease { size, base, off, src } => access(base, off, size, AccessKind::StoreRelease(src)),
            Insn::Alu { .. }
            | Insn::Mov { .. }
            | Insn::MovSx { .. }
            | Insn::Cast { .. }
            | Insn::Neg { .. }
            | Insn::End { .. }
            | Insn::LoadImm64 { .. }
            | Insn::SecondSlot
            | Insn::LoadAbs { .. }
            | Insn::LoadInd { .. }
            | Insn::Jump { .. }
            | Insn::JumpReg { .. }
            | Insn::JumpIf { .. }
            | Insn::MayGoto { .. }
            | Insn::Call(_)
            | Insn::Exit => None,
        }
    }

    /// Whether control never reaches the next instruction by falling through.
    pub fn ends_flow(&self) -> bool {
        matches!(self, Insn::Jump { .. } | Insn::JumpReg { .. } | Insn::Exit)
    }
}
