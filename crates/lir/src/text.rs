//! The printer of the text form. `parse` reads it back to an equal program.
//!
//! ```text
//! func 0 (v0, -, v3, -, -) ctx v5 stack 16 {
//! b0:
//!     v6 = load.w [v0 + 4] @0
//!     v7 = shl.64 v6, 3 @1-2
//!     branch.64 v7 gt 100, b2 @3
//! b1:
//!     v7 = call helper:5(v3, -, -, -, -) ctx v5 @4
//! b2:
//!     exit v7 @5
//! }
//! ```
//! An address may end with its known region: `[v0 + 4: packet]`.
//! `@` is followed by the BPF slots that the op came from (`@0+0`: none). Numbers are decimal, or hexadecimal after
//! `0x`, and may be negative. Blocks are listed in code order with their own numbers; ops of blocks outside the order
//! are not part of the text.

use crate::externs::Extern;
use crate::func::{Func, Lir, Span};
use crate::op::{AtomicOp, Base, BinOp, CallTarget, Check, Cond, Mem, Op, Region, TailKey, VReg, Val};
use bpf_isa::{Size, Width};
use bpf_jit_code::Symbol;
use core::fmt::{self, Display, Formatter};

/// All binary operations.
pub(super) const BIN_OPS: [BinOp; 16] = [
    BinOp::Add,
    BinOp::Sub,
    BinOp::Mul,
    BinOp::MulHighU,
    BinOp::MulHighS,
    BinOp::Div,
    BinOp::SDiv,
    BinOp::Mod,
    BinOp::SMod,
    BinOp::And,
    BinOp::Or,
    BinOp::Xor,
    BinOp::Shl,
    BinOp::Shr,
    BinOp::Sar,
    BinOp::Rotl,
];
pub(super) const ATOMIC_OPS: [AtomicOp; 5] =
    [AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Xchg];
pub(super) const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::DW];
pub(super) const CHECKS: [Check; 2] = [Check::Budget(1), Check::Interrupt];

pub(super) fn bin_name(op: BinOp) -> &'static str {
    match op {
        BinOp::Add => "add",
        BinOp::Sub => "sub",
        BinOp::Mul => "mul",
        BinOp::MulHighU => "umulh",
        BinOp::MulHighS => "smulh",
        BinOp::Div => "div",
        BinOp::SDiv => "sdiv",
        BinOp::Mod => "mod",
        BinOp::SMod => "smod",
        BinOp::And => "and",
        BinOp::Or => "or",
        BinOp::Xor => "xor",
        BinOp::Shl => "shl",
        BinOp::Shr => "shr",
        BinOp::Sar => "sar",
        BinOp::Rotl => "rotl",
    }
}

pub(super) fn atomic_name(op: AtomicOp) -> &'static str {
    match op {
        AtomicOp::Add => "atomic_add",
        AtomicOp::Or => "atomic_or",
        AtomicOp::And => "atomic_and",
        AtomicOp::Xor => "atomic_xor",
        AtomicOp::Xchg => "xchg",
    }
}

pub(super) fn cond_name(cond: Cond) -> &'static str {
    match cond {
        Cond::Eq => "eq",
        Cond::Ne => "ne",
        Cond::Gt => "gt",
        Cond::Ge => "ge",
        Cond::Lt => "lt",
        Cond::Le => "le",
        Cond::Set => "set",
        Cond::SGt => "sgt",
        Cond::SGe => "sge",
        Cond::SLt => "slt",
        Cond::SLe => "sle",
    }
}

pub(super) fn size_name(size: Size) -> &'static str {
    match size {
        Size::B => "b",
        Size::H => "h",
        Size::W => "w",
        Size::DW => "dw",
    }
}

pub(super) fn check_name(check: Check) -> &'static str {
    match check {
        Check::Budget(_) => "budget",
        Check::Interrupt => "interrupt",
    }
}

pub(super) fn region_name(region: Region) -> &'static str {
    match region {
        Region::Unknown => "unknown",
        Region::Stack => "stack",
        Region::Context => "context",
        Region::Packet => "packet",
        Region::MapValue => "map",
        Region::Arena => "arena",
        Region::Mem => "mem",
        Region::Run => "run",
    }
}

fn bits(width: Width) -> u32 {
    match width {
        Width::W32 => 32,
        Width::W64 => 64,
    }
}

impl Display for VReg {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl Display for crate::op::BlockId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

impl Display for Val {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Val::Reg(v) => v.fmt(f),
            Val::Imm(imm) if imm.unsigned_abs() < 1 << 16 => imm.fmt(f),
            Val::Imm(imm) => write!(f, "{imm:#x}"),
        }
    }
}

impl Display for Mem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.base {
            Base::Reg(v) => write!(f, "[{v}")?,
            Base::Frame => f.write_str("[frame")?,
            Base::Indexed { base, index, shift } => write!(f, "[{base} + {index} << {shift}")?,
        }
        match self.off {
            0 => {}
            off if off < 0 => write!(f, " - {}", off.unsigned_abs())?,
            off => write!(f, " + {off}")?,
        }
        if self.region != Mem::new(self.base, 0).region {
            write!(f, ": {}", region_name(self.region))?;
        }
        f.write_str("]")
    }
}

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.len {
            0 => write!(f, "@{}+0", self.first),
            1 => write!(f, "@{}", self.first),
            len => write!(f, "@{}-{}", self.first, i64::from(self.first) + i64::from(len) - 1),
        }
    }
}

/// A symbol by its kind and number.
struct Name(Symbol);

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match Extern::from_symbol(self.0) {
            Some(known) => write!(f, "{}:{}", known.kind(), known.index()),
            None => write!(f, "symbol{}:{}", self.0.kind, self.0.index),
        }
    }
}

/// A register, or `-`.
struct Optional(Option<VReg>);

impl Display for Optional {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(v) => v.fmt(f),
            None => f.write_str("-"),
        }
    }
}

fn five(f: &mut Formatter<'_>, regs: &[Option<VReg>; 5]) -> fmt::Result {
    let [a, b, c, d, e] = regs.map(Optional);
    write!(f, "({a}, {b}, {c}, {d}, {e})")
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(v) = self.def() {
            write!(f, "{v} = ")?;
        }
        match *self {
            Op::Mov { width, src, .. } => write!(f, "mov.{} {src}", bits(width)),
            Op::Ext { width, signed, from, src, .. } => {
                let sign = if signed { "sext" } else { "zext" };
                write!(f, "{sign}.{}.{} {src}", size_name(from), bits(width))
            }
            Op::Bin { op, width, a, b, .. } => write!(f, "{}.{} {a}, {b}", bin_name(op), bits(width)),
            Op::Neg { width, src, .. } => write!(f, "neg.{} {src}", bits(width)),
            Op::Bswap { size, src, .. } => write!(f, "bswap.{} {src}", size_name(size)),
            Op::AddShift { width, a, b, shift, .. } => write!(f, "addshift.{} {a}, {b}, {shift}", bits(width)),
            Op::Select { width, cond, a, b, yes, no, .. } => {
                write!(f, "select.{} {a} {} {b}, {yes}, {no}", bits(width), cond_name(cond))
            }
            Op::Confine { a, limit, yes, no, .. } => write!(f, "confine {a}, {limit}, {yes}, {no}"),
            Op::FrameAddr { off, .. } => write!(f, "frame {off}"),
            Op::SymAddr { symbol, .. } => write!(f, "addr {}", Name(symbol)),
            Op::SubprogAddr { subprog, .. } => write!(f, "addr func:{}", subprog.0),
            Op::Load { size, signed, swap, mem, .. } => {
                let sign = if signed { ".signed" } else { "" };
                let swap = if swap { ".swap" } else { "" };
                write!(f, "load.{}{sign}{swap} {mem}", size_name(size))
            }
            Op::Store { size, mem, src } => write!(f, "store.{} {mem}, {src}", size_name(size)),
            Op::LoadAcquire { size, mem, .. } => write!(f, "acquire.{} {mem}", size_name(size)),
            Op::StoreRelease { size, mem, src } => write!(f, "release.{} {mem}, {src}", size_name(size)),
            Op::Atomic { op, width, mem, src, .. } => {
                write!(f, "{}.{} {mem}, {src}", atomic_name(op), bits(width))
            }
            Op::CmpXchg { width, mem, expected, new, .. } => {
                write!(f, "cmpxchg.{} {mem}, {expected}, {new}", bits(width))
            }
            Op::Call { target, args, ctx, .. } => {
                match target {
                    CallTarget::Extern(symbol) => write!(f, "call {}", Name(symbol))?,
                    CallTarget::Subprog(subprog) => write!(f, "call func:{}", subprog.0)?,
                }
                five(f, &args)?;
                ctx.map_or(Ok(()), |ctx| write!(f, " ctx {ctx}"))
            }
            Op::TailCall { key, arg, ctx, reload_len } => {
                match key {
                    TailKey::Const { table, index } => write!(f, "tailcall {}[{index}]", Name(table))?,
                    TailKey::Dynamic { table, index } => write!(f, "tailcall {table}[{index}]")?,
                }
                write!(f, "({arg}) ctx {ctx}{}", if reload_len { " len" } else { "" })
            }
            Op::Check { check, ctx } => match check {
                Check::Budget(times @ (0 | 2..)) => write!(f, "check {} {times} ctx {ctx}", check_name(check)),
                Check::Budget(1) | Check::Interrupt => write!(f, "check {} ctx {ctx}", check_name(check)),
            },
            Op::Bound { a, limit, ctx } => write!(f, "bound {a}, {limit} ctx {ctx}"),
            Op::Stop { code, ctx } => write!(f, "stop {} ctx {ctx}", code.name()),
            Op::Jump { target } => write!(f, "jump {target}"),
            Op::Branch { width, cond, a, b, target } => {
                write!(f, "branch.{} {a} {} {b}, {target}", bits(width), cond_name(cond))
            }
            Op::Exit { value } => write!(f, "exit {value}"),
        }
    }
}

impl Func {
    fn print(&self, index: usize, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "func {index} ")?;
        five(f, &self.params)?;
        if let Some(ctx) = self.ctx {
            write!(f, " ctx {ctx}")?;
        }
        if self.stack_bytes != 0 {
            write!(f, " stack {}", self.stack_bytes)?;
        }
        for range in &self.private {
            write!(f, " private {}:{}", range.start, range.end)?;
        }
        writeln!(f, " {{")?;
        for block in &self.order {
            writeln!(f, "{block}:")?;
            for (op, span) in self.block_ops(*block).iter().zip(&self.spans[self.range(*block)]) {
                writeln!(f, "    {op} {span}")?;
            }
        }
        writeln!(f, "}}")
    }
}

impl Display for Func {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.print(0, f)
    }
}

impl Display for Lir {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.funcs.iter().enumerate().try_for_each(|(i, func)| func.print(i, f))
    }
}
