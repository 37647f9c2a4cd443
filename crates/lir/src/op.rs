//! The operations, with their operands, results and meaning.
//!
//! `width` fields: operands are read at that width, a 32-bit result is zero-extended. `eval` defines the results.

use bpf_isa::word::{Signed, Wide, Word};
use bpf_isa::{Size, SubprogId, Width};
use bpf_jit_code::{StopCode, Symbol};

pub use bpf_isa::Cond;

/// A virtual register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VReg(pub u32);

impl VReg {
    /// The index as a `usize`, to index slices.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A block of a function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The index as a `usize`, to index slices.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A register or a constant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Val {
    /// A virtual register.
    Reg(VReg),
    /// Any 64-bit constant; the backend materialises one that has no immediate form. A 32-bit op uses the low half.
    Imm(i64),
}

/// Two-operand arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BinOp {
    /// Wrapping addition.
    Add,
    /// Wrapping subtraction.
    Sub,
    /// Wrapping multiplication.
    Mul,
    /// High half of the unsigned product.
    MulHighU,
    /// High half of the signed product.
    MulHighS,
    /// Unsigned division; x / 0 = 0.
    Div,
    /// Signed truncating division; x / 0 = 0, MIN / -1 = MIN.
    SDiv,
    /// Unsigned remainder; x % 0 = x.
    Mod,
    /// Signed remainder; x % 0 = x, MIN % -1 = 0.
    SMod,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Left shift, count modulo the width.
    Shl,
    /// Logical right shift, count modulo the width.
    Shr,
    /// Arithmetic right shift, count modulo the width.
    Sar,
    /// Rotate left, count modulo the width.
    Rotl,
}

impl BinOp {
    /// Computes `a op b` at a width: the definition of the op.
    pub fn apply(self, width: Width, a: u64, b: u64) -> u64 {
        self.apply_to(width, a, b)
    }

    /// [`BinOp::apply`] for any [`Word`], so that a solver can prove it.
    #[doc(hidden)]
    #[inline(always)]
    pub fn apply_to<T: Word>(self, width: Width, a: T, b: T) -> T {
        let bits = match width {
            Width::W32 => 32,
            Width::W64 => 64,
        };
        // Each operand at the width, zero- and sign-extended.
        let (a, b) = (a & T::ONES[bits as usize], b & T::ONES[bits as usize]);
        let (sa, sb) = (a.sext(bits), b.sext(bits));
        let top = T::of(u64::from(bits) - 1);
        let count = b & top;
        let result = match self {
            BinOp::Add => a.wrapping_add(b),
            BinOp::Sub => a.wrapping_sub(b),
            BinOp::Mul => a.wrapping_mul(b),
            BinOp::MulHighU => (a.wide().wrapping_mul(b.wide()) >> bits).low(),
            BinOp::MulHighS => (sa.wide().wrapping_mul(sb.wide()) >> bits).low(),
            BinOp::Div => a.checked_div(b).unwrap_or(T::ZERO),
            BinOp::SDiv if b == T::ZERO => T::ZERO,
            BinOp::SDiv => sa.wrapping_div(sb).unsigned(),
            BinOp::Mod => a.checked_rem(b).unwrap_or(a),
            BinOp::SMod if b == T::ZERO => a,
            BinOp::SMod => sa.wrapping_rem(sb).unsigned(),
            BinOp::And => a & b,
            BinOp::Or => a | b,
            BinOp::Xor => a ^ b,
            BinOp::Shl => a << count,
            BinOp::Shr => a >> count,
            BinOp::Sar => (sa >> count).unsigned(),
            // By one and by the rest, because a shift by the whole width is undefined.
            BinOp::Rotl => a << count | a >> 1 >> (top - count),
        };
        result & T::ONES[bits as usize]
    }
}

/// The value at a width, zero-extended.
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub fn narrow(width: Width, value: u64) -> u64 {
    match width {
        Width::W32 => u64::from(value as u32),
        Width::W64 => value,
    }
}

/// Extends the low `from` bytes of the value to 64 bits.
pub fn extend(signed: bool, from: Size, value: u64) -> u64 {
    let unused = 64 - from.bits();
    if signed { ((value << unused) as i64 >> unused) as u64 } else { value << unused >> unused }
}

/// Reverses the low `size` bytes of the value.
pub fn bswap(size: Size, value: u64) -> u64 {
    value.swap_bytes() >> (64 - size.bits())
}

/// The start of a memory address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Base {
    /// The value of a register.
    Reg(VReg),
    /// One past the highest byte of the function's BPF stack (r10).
    Frame,
    /// `base + (index << shift)`: for plain loads and stores only.
    Indexed {
        /// The start.
        base: VReg,
        /// The index of the element.
        index: VReg,
        /// The size of an element as a power of two: 0 to 3.
        shift: u8,
    },
}

/// The memory region of an access, if known: accesses in two different known regions never overlap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Region {
    /// Any of the other regions, or other memory.
    Unknown,
    /// The BPF stack of this function or of one of its callers.
    Stack,
    /// The context.
    Context,
    /// The packet, or another region that a context field points to.
    Packet,
    /// The values of maps.
    MapValue,
    /// The program's arena.
    Arena,
    /// Memory that a helper returned to this run only.
    Mem,
    /// The fields of the hidden argument, which programs cannot access.
    Run,
}

impl Region {
    /// All regions.
    pub const ALL: [Region; 8] = [
        Region::Unknown,
        Region::Stack,
        Region::Context,
        Region::Packet,
        Region::MapValue,
        Region::Arena,
        Region::Mem,
        Region::Run,
    ];

    /// Whether accesses in the two regions may overlap.
    pub fn may_meet(self, other: Region) -> bool {
        self == other
            || (self == Region::Unknown && other != Region::Run)
            || (other == Region::Unknown && self != Region::Run)
    }
}

/// A memory address: a start and an offset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mem {
    /// The start.
    pub base: Base,
    /// Byte offset.
    pub off: i32,
    /// The region. An attribute: the result of an op does not depend on it.
    pub region: Region,
}

impl Mem {
    /// An address with the region that its base implies.
    pub fn new(base: Base, off: i32) -> Mem {
        let region = match base {
            Base::Reg(_) | Base::Indexed { .. } => Region::Unknown,
            Base::Frame => Region::Stack,
        };
        Mem { base, off, region }
    }
}

/// Atomic read-modify-write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    /// `*p += src`.
    Add,
    /// `*p |= src`.
    Or,
    /// `*p &= src`.
    And,
    /// `*p ^= src`.
    Xor,
    /// `*p = src`; always fetches.
    Xchg,
}

/// The callee of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallTarget {
    /// A function outside the code, with the C calling convention.
    Extern(Symbol),
    /// A subprogram of the same code.
    Subprog(SubprogId),
}

/// The table and index of a tail call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TailKey {
    /// Both are constant: a direct, patched site.
    Const {
        /// The table.
        table: Symbol,
        /// The index.
        index: u32,
    },
    /// `table` holds the table's address; `index` is 32 bits wide.
    Dynamic {
        /// Address of the table: `{ entries: u32, pad: u32, entry: [u64; entries] }`, 0 = empty slot.
        table: VReg,
        /// The index, in the low 32 bits.
        index: VReg,
    },
}

/// A condition under which the run stops.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Check {
    /// Subtracts this number from the run's budget; stops when the budget falls below zero.
    Budget(u8),
    /// Stops when another thread has requested it.
    Interrupt,
}

/// An operation.
///
/// `width` fields: operands are read at that width; a 32-bit result is zero-extended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// `dst = src`. A 32-bit move zero-extends.
    Mov {
        /// Width.
        width: Width,
        /// Destination.
        dst: VReg,
        /// Source.
        src: Val,
    },
    /// `dst` = the low `from` of `src`, extended to `width` (then zero-extended).
    Ext {
        /// Width of the result.
        width: Width,
        /// Sign- or zero-extend.
        signed: bool,
        /// Source size: B, H or W.
        from: Size,
        /// Destination.
        dst: VReg,
        /// Source.
        src: VReg,
    },
    /// `dst = a op b`.
    Bin {
        /// Operation.
        op: BinOp,
        /// Width.
        width: Width,
        /// Destination.
        dst: VReg,
        /// First operand.
        a: VReg,
        /// Second operand.
        b: Val,
    },
    /// `dst = -src`.
    Neg {
        /// Width.
        width: Width,
        /// Destination.
        dst: VReg,
        /// Operand.
        src: VReg,
    },
    /// `dst` = the low `size` bytes of `src` in reverse order, zero-extended.
    Bswap {
        /// Number of bytes: H, W or DW.
        size: Size,
        /// Destination.
        dst: VReg,
        /// Operand.
        src: VReg,
    },
    /// `dst = a + (b << shift)`, shift 0 to 3.
    AddShift {
        /// Width.
        width: Width,
        /// Destination.
        dst: VReg,
        /// The addend.
        a: VReg,
        /// The shifted operand.
        b: VReg,
        /// The shift count: 0 to 3.
        shift: u8,
    },
    /// `dst = if a cond b { yes } else { no }`, all 64 bits of `yes` and `no`.
    Select {
        /// Width of the comparison.
        width: Width,
        /// Condition.
        cond: Cond,
        /// First operand of the comparison.
        a: VReg,
        /// Second operand of the comparison.
        b: Val,
        /// Destination.
        dst: VReg,
        /// Value if the condition holds.
        yes: VReg,
        /// Value if not.
        no: VReg,
    },
    /// `dst = if a < limit { yes } else { no }`, unsigned, all 64 bits.
    ///
    /// Unlike a [`Op::Select`] it is opaque: no pass decides it, uses its range, or turns it into a branch. A
    /// contained program's accesses depend on this selection, even where a branch before it was mispredicted.
    /// Backends emit it without a branch, and with a barrier after it where the machine may predict the result of a
    /// selection (arm64: `csdb`).
    Confine {
        /// The compared number.
        a: VReg,
        /// The exclusive upper bound.
        limit: Val,
        /// Destination.
        dst: VReg,
        /// Value if `a < limit`.
        yes: VReg,
        /// Value otherwise.
        no: VReg,
    },
    /// `dst` = the address `off` bytes from r10.
    FrameAddr {
        /// Destination.
        dst: VReg,
        /// Byte offset from r10.
        off: i32,
    },
    /// `dst` = the address of a symbol.
    SymAddr {
        /// Destination.
        dst: VReg,
        /// The symbol.
        symbol: Symbol,
    },
    /// `dst` = the address of a subprogram of this code.
    SubprogAddr {
        /// Destination.
        dst: VReg,
        /// The subprogram.
        subprog: SubprogId,
    },
    /// `dst = *mem`, swapped if `swap`, then zero- or sign-extended to 64 bits.
    Load {
        /// Size of the access.
        size: Size,
        /// Sign-extend.
        signed: bool,
        /// Reverse the bytes (never with `signed`).
        swap: bool,
        /// Destination.
        dst: VReg,
        /// Address.
        mem: Mem,
    },
    /// `*mem = src`. The low bytes of a constant are stored.
    Store {
        /// Size of the access.
        size: Size,
        /// Address.
        mem: Mem,
        /// Value.
        src: Val,
    },
    /// `dst = *mem` with acquire ordering, zero-extended.
    LoadAcquire {
        /// Size of the access.
        size: Size,
        /// Destination.
        dst: VReg,
        /// Address.
        mem: Mem,
    },
    /// `*mem = src` with release ordering.
    StoreRelease {
        /// Size of the access.
        size: Size,
        /// Address.
        mem: Mem,
        /// Value.
        src: VReg,
    },
    /// Sequentially consistent read-modify-write when it fetches, relaxed when it does not, as the kernel's.
    Atomic {
        /// Operation.
        op: AtomicOp,
        /// Width of the access.
        width: Width,
        /// Address.
        mem: Mem,
        /// Operand.
        src: VReg,
        /// Destination of the old value, zero-extended; `None` if it is not needed.
        fetch: Option<VReg>,
    },
    /// `old = *mem; if old == expected { *mem = new }; dst = old`, zero-extended in both outcomes, sequentially
    /// consistent.
    CmpXchg {
        /// Width of the access.
        width: Width,
        /// Address.
        mem: Mem,
        /// Compared at `width`.
        expected: VReg,
        /// Stored on success.
        new: VReg,
        /// Receives the old value.
        dst: VReg,
    },
    /// Calls `target` with up to five arguments.
    Call {
        /// The callee.
        target: CallTarget,
        /// Arguments; `None` for arguments that the callee does not read.
        args: [Option<VReg>; 5],
        /// The hidden argument, where the callee needs it.
        ctx: Option<VReg>,
        /// Destination of the result; `None` if it is not needed.
        ret: Option<VReg>,
    },
    /// Replaces this function by the target's code. Falls through if the slot is empty, the index out of range, or
    /// the limit reached.
    TailCall {
        /// Table and index.
        key: TailKey,
        /// The target's r1.
        arg: VReg,
        /// The hidden argument.
        ctx: VReg,
        /// Whether to reload the target's r2 with the length of the raw context.
        reload_len: bool,
    },
    /// Stops the run at this place unless `check` passes. Does not end a block.
    Check {
        /// The condition.
        check: Check,
        /// The hidden argument.
        ctx: VReg,
    },
    /// Stops the run with [`StopCode::Access`] at this place unless `a < limit`, unsigned, 64 bits. Does not end a
    /// block.
    Bound {
        /// The compared number.
        a: VReg,
        /// The exclusive upper bound.
        limit: Val,
        /// The hidden argument.
        ctx: VReg,
    },
    /// Stops the run. Last of its block.
    Stop {
        /// The reason.
        code: StopCode,
        /// The hidden argument.
        ctx: VReg,
    },
    /// Goes to `target`. Last of its block.
    Jump {
        /// The target.
        target: BlockId,
    },
    /// Goes to `target` if `a cond b`, else falls through. Last of its block.
    Branch {
        /// Width of the comparison.
        width: Width,
        /// Condition.
        cond: Cond,
        /// First operand.
        a: VReg,
        /// Second operand.
        b: Val,
        /// The target.
        target: BlockId,
    },
    /// Returns `value` from the function. Last of its block.
    Exit {
        /// The result.
        value: VReg,
    },
}

impl Op {
    /// Whether the op can only be the last of its block, because control leaves the block after it.
    pub fn ends_block(&self) -> bool {
        matches!(self, Op::Jump { .. } | Op::Branch { .. } | Op::Exit { .. } | Op::Stop { .. })
    }

    /// The register that the op writes, if any.
    pub fn def(&self) -> Option<VReg> {
        match *self {
            Op::Mov { dst, .. }
            | Op::Ext { dst, .. }
            | Op::Bin { dst, .. }
            | Op::Neg { dst, .. }
            | Op::Bswap { dst, .. }
            | Op::AddShift { dst, .. }
            | Op::Select { dst, .. }
            | Op::Confine { dst, .. }
            | Op::FrameAddr { dst, .. }
            | Op::SymAddr { dst, .. }
            | Op::SubprogAddr { dst, .. }
            | Op::Load { dst, .. }
            | Op::LoadAcquire { dst, .. }
            | Op::CmpXchg { dst, .. } => Some(dst),
            Op::Atomic { fetch, .. } => fetch,
            Op::Call { ret, .. } => ret,
            Op::Store { .. }
            | Op::StoreRelease { .. }
            | Op::TailCall { .. }
            | Op::Check { .. }
            | Op::Bound { .. }
            | Op::Stop { .. }
            | Op::Jump { .. }
            | Op::Branch { .. }
            | Op::Exit { .. } => None,
        }
    }

    /// Calls `f` with each register the op reads, in operand order, repeats included.
    #[inline(always)]
    pub fn for_each_use(&self, mut f: impl FnMut(VReg)) {
        #[inline(always)]
        fn val(v: Val, f: &mut impl FnMut(VReg)) {
            if let Val::Reg(r) = v {
                f(r)
            }
        }
        #[inline(always)]
        fn mem(m: Mem, f: &mut impl FnMut(VReg)) {
            match m.base {
                Base::Reg(r) => f(r),
                Base::Frame => {}
                Base::Indexed { base, index, .. } => {
                    f(base);
                    f(index)
                }
            }
        }
        match *self {
            Op::Mov { src, .. } => val(src, &mut f),
            Op::Ext { src, .. } | Op::Neg { src, .. } | Op::Bswap { src, .. } => f(src),
            Op::Bin { a, b, .. } | Op::Branch { a, b, .. } => {
                f(a);
                val(b, &mut f)
            }
            Op::AddShift { a, b, .. } => {
                f(a);
                f(b)
            }
            Op::Select { a, b, yes, no, .. } | Op::Confine { a, limit: b, yes, no, .. } => {
                f(a);
                val(b, &mut f);
                f(yes);
                f(no)
            }
            Op::FrameAddr { .. } | Op::SymAddr { .. } | Op::SubprogAddr { .. } | Op::Jump { .. } => {}
            Op::Load { mem: m, .. } | Op::LoadAcquire { mem: m, .. } => mem(m, &mut f),
            Op::Store { mem: m, src, .. } => {
                mem(m, &mut f);
                val(src, &mut f)
            }
            Op::StoreRelease { mem: m, src, .. } | Op::Atomic { mem: m, src, .. } => {
                mem(m, &mut f);
                f(src)
            }
            Op::CmpXchg { mem: m, expected, new, .. } => {
                mem(m, &mut f);
                f(expected);
                f(new)
            }
            Op::Call { args, ctx, .. } => {
                for arg in args.into_iter().flatten() {
                    f(arg)
                }
                if let Some(ctx) = ctx {
                    f(ctx)
                }
            }
            Op::TailCall { key, arg, ctx, .. } => {
                if let TailKey::Dynamic { table, index } = key {
                    f(table);
                    f(index)
                }
                f(arg);
                f(ctx)
            }
            Op::Bound { a, limit, ctx } => {
                f(a);
                val(limit, &mut f);
                f(ctx)
            }
            Op::Check { ctx, .. } | Op::Stop { ctx, .. } => f(ctx),
            Op::Exit { value } => f(value),
        }
    }

    /// The memory that the op accesses, if it has an address operand.
    pub fn mem(&self) -> Option<Mem> {
        match *self {
            Op::Load { mem, .. }
            | Op::Store { mem, .. }
            | Op::LoadAcquire { mem, .. }
            | Op::StoreRelease { mem, .. }
            | Op::Atomic { mem, .. }
            | Op::CmpXchg { mem, .. } => Some(mem),
            Op::Mov { .. }
            | Op::Ext { .. }
            | Op::Bin { .. }
            | Op::Neg { .. }
            | Op::Bswap { .. }
            | Op::AddShift { .. }
            | Op::Select { .. }
            | Op::Confine { .. }
            | Op::FrameAddr { .. }
            | Op::SymAddr { .. }
            | Op::SubprogAddr { .. }
            | Op::Call { .. }
            | Op::TailCall { .. }
            | Op::Check { .. }
            | Op::Bound { .. }
            | Op::Stop { .. }
            | Op::Jump { .. }
            | Op::Branch { .. }
            | Op::Exit { .. } => None,
        }
    }

    /// The register that the op writes, mutably.
    pub fn def_mut(&mut self) -> Option<&mut VReg> {
        match self {
            Op::Mov { dst, .. }
            | Op::Ext { dst, .. }
            | Op::Bin { dst, .. }
            | Op::Neg { dst, .. }
            | Op::Bswap { dst, .. }
            | Op::AddShift { dst, .. }
            | Op::Select { dst, .. }
            | Op::Confine { dst, .. }
            | Op::FrameAddr { dst, .. }
            | Op::SymAddr { dst, .. }
            | Op::SubprogAddr { dst, .. }
            | Op::Load { dst, .. }
            | Op::LoadAcquire { dst, .. }
            | Op::CmpXchg { dst, .. } => Some(dst),
            Op::Atomic { fetch, .. } => fetch.as_mut(),
            Op::Call { ret, .. } => ret.as_mut(),
            Op::Store { .. }
            | Op::StoreRelease { .. }
            | Op::TailCall { .. }
            | Op::Check { .. }
            | Op::Bound { .. }
            | Op::Stop { .. }
            | Op::Jump { .. }
            | Op::Branch { .. }
            | Op::Exit { .. } => None,
        }
    }

    /// Calls `f` with each register the op names, read or written.
    pub fn for_each_reg(&mut self, mut f: impl FnMut(&mut VReg)) {
        self.for_each_use_mut(&mut f);
        if let Some(dst) = self.def_mut() {
            f(dst);
        }
    }

    /// Calls `f` with each register that the op reads, in operand order, mutably.
    #[inline]
    pub fn for_each_use_mut(&mut self, mut f: impl FnMut(&mut VReg)) {
        fn val(v: &mut Val, f: &mut impl FnMut(&mut VReg)) {
            if let Val::Reg(r) = v {
                f(r)
            }
        }
        fn base(m: &mut Mem, f: &mut impl FnMut(&mut VReg)) {
            match &mut m.base {
                Base::Reg(r) => f(r),
                Base::Frame => {}
                Base::Indexed { base, index, .. } => {
                    f(base);
                    f(index)
                }
            }
        }
        match self {
            Op::Mov { src, .. } => val(src, &mut f),
            Op::Ext { src, .. } | Op::Neg { src, .. } | Op::Bswap { src, .. } => f(src),
            Op::Bin { a, b, .. } => {
                f(a);
                val(b, &mut f)
            }
            Op::AddShift { a, b, .. } => {
                f(a);
                f(b)
            }
            Op::Select { a, b, yes, no, .. } | Op::Confine { a, limit: b, yes, no, .. } => {
                f(a);
                val(b, &mut f);
                f(yes);
                f(no)
            }
            Op::FrameAddr { .. } | Op::SymAddr { .. } | Op::SubprogAddr { .. } => {}
            Op::Load { mem, .. } | Op::LoadAcquire { mem, .. } => base(mem, &mut f),
            Op::Store { mem, src, .. } => {
                base(mem, &mut f);
                val(src, &mut f)
            }
            Op::StoreRelease { mem, src, .. } => {
                base(mem, &mut f);
                f(src)
            }
            Op::Atomic { mem, src, .. } => {
                base(mem, &mut f);
                f(src)
            }
            Op::CmpXchg { mem, expected, new, .. } => {
                base(mem, &mut f);
                f(expected);
                f(new)
            }
            Op::Call { args, ctx, .. } => args.iter_mut().flatten().chain(ctx).for_each(f),
            Op::TailCall { key, arg, ctx, .. } => {
                if let TailKey::Dynamic { table, index } = key {
                    f(table);
                    f(index)
                }
                f(arg);
                f(ctx)
            }
            Op::Bound { a, limit, ctx } => {
                f(a);
                val(limit, &mut f);
                f(ctx)
            }
            Op::Check { ctx, .. } | Op::Stop { ctx, .. } => f(ctx),
            Op::Jump { .. } => {}
            Op::Branch { a, b, .. } => {
                f(a);
                val(b, &mut f)
            }
            Op::Exit { value } => f(value),
        }
    }
}
