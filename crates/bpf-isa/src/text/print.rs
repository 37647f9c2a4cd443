//! The printer: [`Display`](fmt::Display) for instructions, and listings of many.
//!
//! Invariant: `assemble(disassemble(x)) == x` for every sequence of encodable instructions.

use core::fmt;

use crate::{AluOp, AtomicOp, ByteOrder, Callee, Cond, EndWidth, Imm64, Insn, Program, Reg, Size, Src, SxWidth, Width};

/// The text of instructions, one a line; [`crate::assemble`] reads it back.
pub fn disassemble(insns: &[Insn]) -> String {
    insns.iter().filter(|insn| **insn != Insn::SecondSlot).map(|insn| format!("{insn}\n")).collect()
}

/// Displays instructions one a line, each after its slot number, as the kernel's logs do. [`crate::assemble`] reads
/// it back.
///
/// ```
/// use bpf_isa::{Listing, assemble};
/// let insns = assemble("r0 = 1\nif r1 == 0 goto +1\nr0 = 2\nexit")?;
/// assert_eq!(Listing(&insns).to_string(), "0: r0 = 1\n1: if r1 == 0 goto +1\n2: r0 = 2\n3: exit\n");
/// # Ok::<(), bpf_isa::AsmError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a>(pub &'a [Insn]);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.len().saturating_sub(1).to_string().len();
        for (slot, insn) in self.0.iter().enumerate().filter(|(_, insn)| **insn != Insn::SecondSlot) {
            writeln!(f, "{slot:width$}: {insn}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Listing(self.insns()).fmt(f)
    }
}

/// A register with its name at a width: `r1` or `w1`.
struct Named(Width, Reg);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.0 {
            Width::W32 => 'w',
            Width::W64 => 'r',
        };
        write!(f, "{letter}{}", self.1 as u8)
    }
}

/// A second operand at a width.
struct Operand(Width, Src);

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Src::Reg(reg) => Named(self.0, reg).fmt(f),
            Src::Imm(imm) => imm.fmt(f),
        }
    }
}

/// `r1 + 4`, `r10 - 8`.
struct Address(Reg, i16);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.1 < 0 { '-' } else { '+' };
        write!(f, "{} {sign} {}", self.0, self.1.unsigned_abs())
    }
}

fn unsigned_type(size: Size) -> &'static str {
    match size {
        Size::B => "u8",
        Size::H => "u16",
        Size::W => "u32",
        Size::DW => "u64",
    }
}

fn signed_type(size: Size) -> &'static str {
    match size {
        Size::B => "s8",
        Size::H => "s16",
        Size::W => "s32",
        Size::DW => "s64",
    }
}

/// The assignment operators of ALU operations, the longest spelling first where one ends with another.
pub(super) const ALU_TOKENS: [(&str, AluOp); 13] = [
    ("s>>=", AluOp::Arsh),
    ("<<=", AluOp::Lsh),
    (">>=", AluOp::Rsh),
    ("s/=", AluOp::SDiv),
    ("s%=", AluOp::SMod),
    ("+=", AluOp::Add),
    ("-=", AluOp::Sub),
    ("*=", AluOp::Mul),
    ("/=", AluOp::Div),
    ("%=", AluOp::Mod),
    ("|=", AluOp::Or),
    ("&=", AluOp::And),
    ("^=", AluOp::Xor),
];

/// The operator of a condition, longer spellings before their prefixes.
pub(super) const COND_TOKENS: [(&str, Cond); 11] = [
    ("s>=", Cond::SGe),
    ("s<=", Cond::SLe),
    ("s>", Cond::SGt),
    ("s<", Cond::SLt),
    ("==", Cond::Eq),
    ("!=", Cond::Ne),
    (">=", Cond::Ge),
    ("<=", Cond::Le),
    (">", Cond::Gt),
    ("<", Cond::Lt),
    ("&", Cond::Set),
];

/// The name of a byte order conversion, without its width.
pub(super) const ORDER_NAMES: [(&str, ByteOrder); 3] =
    [("le", ByteOrder::ToLe), ("be", ByteOrder::ToBe), ("bswap", ByteOrder::Swap)];

fn spelling<T: PartialEq + Copy>(table: &[(&'static str, T)], value: T) -> &'static str {
    table.iter().find(|(_, v)| *v == value).map_or("?", |(text, _)| text)
}

impl fmt::Display for AluOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(spelling(&ALU_TOKENS, *self))
    }
}

impl fmt::Display for Cond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(spelling(&COND_TOKENS, *self))
    }
}

impl fmt::Display for Imm64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Imm64::Const(value) => write!(f, "{value:#x} ll"),
            Imm64::Map(map) => write!(f, "map[fd:{map}]"),
            Imm64::MapValue { map, off } => write!(f, "map[fd:{map}][0]+{off}"),
            Imm64::Var(id) => write!(f, "var[id:{id}]"),
            Imm64::Func(off) => write!(f, "subprog[{off:+}]"),
            Imm64::MapIdx(map) => write!(f, "map[idx:{map}]"),
            Imm64::MapIdxValue { map, off } => write!(f, "map[idx:{map}][0]+{off}"),
        }
    }
}

impl fmt::Display for Insn {
    /// One instruction in the kernel's and LLVM's syntax.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Insn::Alu { width, op, dst, src } => write!(f, "{} {op} {}", Named(width, dst), Operand(width, src)),
            Insn::Mov { width, dst, src } => write!(f, "{} = {}", Named(width, dst), Operand(width, src)),
            Insn::MovSx { width, dst, src, from } => {
                let from = match from {
                    SxWidth::S8 => "s8",
                    SxWidth::S16 => "s16",
                    SxWidth::S32 => "s32",
                };
                write!(f, "{} = ({from}){}", Named(width, dst), Named(width, src))
            }
            Insn::Cast { dst, src, to } => {
                let (to, from) = to.numbers();
                write!(f, "{dst} = addr_space_cast({src}, {to}, {from})")
            }
            Insn::Neg { width, dst } => write!(f, "{} = -{}", Named(width, dst), Named(width, dst)),
            Insn::End { order, width, dst } => {
                let width = match width {
                    EndWidth::B16 => 16,
                    EndWidth::B32 => 32,
                    EndWidth::B64 => 64,
                };
                write!(f, "{dst} = {}{width} {dst}", spelling(&ORDER_NAMES, order))
            }
            Insn::LoadImm64 { dst, imm } => write!(f, "{dst} = {imm}"),
            Insn::SecondSlot => f.write_str("(second slot)"),
            Insn::Load { size, sign, dst, base, off } => {
                let name = if sign { signed_type(size) } else { unsigned_type(size) };
                write!(f, "{dst} = *({name} *)({})", Address(base, off))
            }
            Insn::Store { size, base, off, src } => {
                write!(f, "*({} *)({}) = {}", unsigned_type(size), Address(base, off), Operand(Width::W64, src))
            }
            Insn::Atomic { width, op, base, off, src } => fmt_atomic(f, width, op, Address(base, off), src),
            Insn::LoadAcquire { size, dst, base, off } => {
                write!(f, "{dst} = load_acquire(({} *)({}))", unsigned_type(size), Address(base, off))
            }
            Insn::StoreRelease { size, base, off, src } => {
                write!(f, "store_release(({} *)({}), {src})", unsigned_type(size), Address(base, off))
            }
            Insn::LoadAbs { size, imm } => write!(f, "r0 = *({} *)skb[{imm}]", unsigned_type(size)),
            Insn::LoadInd { size, src, imm } => match imm {
                0 => write!(f, "r0 = *({} *)skb[{src}]", unsigned_type(size)),
                _ => {
                    let sign = if imm < 0 { '-' } else { '+' };
                    write!(f, "r0 = *({} *)skb[{src} {sign} {}]", unsigned_type(size), imm.unsigned_abs())
                }
            },
            Insn::Jump { off, wide } => write!(f, "{} {off:+}", if wide { "gotol" } else { "goto" }),
            Insn::JumpReg { target } => write!(f, "gotox {target}"),
            Insn::JumpIf { width, cond, dst, src, off } => {
                write!(f, "if {} {cond} {} goto {off:+}", Named(width, dst), Operand(width, src))
            }
            Insn::MayGoto { off } => write!(f, "may_goto {off:+}"),
            Insn::Call(Callee::Helper(id)) => write!(f, "call {id}"),
            Insn::Call(Callee::Subprog(off)) => write!(f, "call pc{off:+}"),
            Insn::Call(Callee::Host(id)) => write!(f, "call kfunc#{id}"),
            Insn::Call(Callee::Reg(reg)) => write!(f, "callx {reg}"),
            Insn::Exit => f.write_str("exit"),
        }
    }
}

fn fmt_atomic(f: &mut fmt::Formatter<'_>, width: Width, op: AtomicOp, addr: Address, src: Reg) -> fmt::Result {
    let src = Named(width, src);
    let (size, suffix) = match width {
        Width::W32 => ("u32", "32_32"),
        Width::W64 => ("u64", "_64"),
    };
    let (fetch, token, name) = match op {
        AtomicOp::Xchg => return write!(f, "{src} = xchg{suffix}({addr}, {src})"),
        AtomicOp::CmpXchg => {
            let r0 = Named(width, Reg::R0);
            return write!(f, "{r0} = cmpxchg{suffix}({addr}, {r0}, {src})");
        }
        AtomicOp::Add { fetch } => (fetch, "+=", "add"),
        AtomicOp::Or { fetch } => (fetch, "|=", "or"),
        AtomicOp::And { fetch } => (fetch, "&=", "and"),
        AtomicOp::Xor { fetch } => (fetch, "^=", "xor"),
    };
    if fetch {
        write!(f, "{src} = atomic_fetch_{name}(({size} *)({addr}), {src})")
    } else {
        write!(f, "lock *({size} *)({addr}) {token} {src}")
    }
}
