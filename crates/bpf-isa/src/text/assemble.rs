//! The assembler: one instruction a line, labels, comments.
//!
//! Approach: recursive descent over each line, with one function per grammar rule; jumps to labels are patched at the
//! end.

use std::collections::HashMap;

use super::error::{AsmError, AsmErrorKind};
use super::lex::{Column, Cursor, Failure};
use super::print::{ALU_TOKENS, COND_TOKENS, ORDER_NAMES};
use crate::{AddrSpace, AtomicOp, Callee, EndWidth, Imm64, Insn, Reg, Size, Src, SxWidth, Width};

/// A reference to a label, patched when all labels are known.
struct Fixup<'a> {
    slot: usize,
    label: &'a str,
    line: usize,
    column: Column,
}

/// Assembles a program: one instruction a line, in the syntax that [`Insn`] displays.
///
/// `name:` before an instruction (or on a line of its own) defines a label for `goto name`, `call name` and
/// `r1 = subprog[name]`. Comments start with `;`, `//` or `#`. The result has one [`Insn`] a slot.
///
/// # Errors
/// The first line that is not an instruction, or a label that is missing or defined twice.
///
/// ```
/// let insns = bpf_isa::assemble("
///         r0 = 0
/// again:  r0 += 1
///         if r0 < 10 goto again
///         exit
/// ")?;
/// assert_eq!(insns[2].to_string(), "if r0 < 10 goto -2");
/// # Ok::<(), bpf_isa::AsmError>(())
/// ```
pub fn assemble(text: &str) -> Result<Vec<Insn>, AsmError> {
    let mut insns: Vec<Insn> = Vec::new();
    let mut labels: HashMap<&str, usize> = HashMap::new();
    let mut fixups: Vec<Fixup<'_>> = Vec::new();
    let error = |line: usize, (column, kind): Failure| AsmError { line: line + 1, column: column + 1, kind };
    for (line, text) in text.lines().enumerate() {
        let mut parser = Parser { cursor: Cursor::new(text), label: None };
        while let Some((column, label)) = parser.label_definition() {
            if labels.insert(label, insns.len()).is_some() {
                return Err(error(line, (column, AsmErrorKind::DuplicateLabel(label.to_owned()))));
            }
        }
        if parser.cursor.at_end() {
            continue;
        }
        let insn = parser.line().map_err(|failure| error(line, failure))?;
        if let Some((column, label)) = parser.label {
            fixups.push(Fixup { slot: insns.len(), label, line, column });
        }
        insns.push(insn);
        if insn.slots() == 2 {
            insns.push(Insn::SecondSlot);
        }
    }
    for Fixup { slot, label, line, column } in fixups {
        let Some(&target) = labels.get(label) else {
            return Err(error(line, (column, AsmErrorKind::UnknownLabel(label.to_owned()))));
        };
        let off = target as i128 - slot as i128 - 1;
        insns[slot] = with_offset(insns[slot], off)
            .ok_or_else(|| error(line, (column, AsmErrorKind::OutOfRange { value: off, field: "the jump offset" })))?;
    }
    Ok(insns)
}

/// The instruction with another offset of its jump, call or callback reference; `None` if the offset does not fit.
fn with_offset(insn: Insn, new: i128) -> Option<Insn> {
    let short = i16::try_from(new);
    let long = i32::try_from(new).ok()?;
    Some(match insn {
        Insn::Jump { wide: true, .. } => Insn::Jump { off: long, wide: true },
        Insn::Jump { wide: false, .. } => Insn::Jump { off: short.ok()?.into(), wide: false },
        Insn::JumpIf { width, cond, dst, src, .. } => Insn::JumpIf { width, cond, dst, src, off: short.ok()? },
        Insn::MayGoto { .. } => Insn::MayGoto { off: short.ok()? },
        Insn::Call(Callee::Subprog(_)) => Insn::Call(Callee::Subprog(long)),
        Insn::LoadImm64 { dst, imm: Imm64::Func(_) } => Insn::LoadImm64 { dst, imm: Imm64::Func(long) },
        other => other,
    })
}

/// A register, with the width that its name implies.
type NamedReg = (Width, Reg);

const UNSIGNED: [(&str, Size); 4] = [("u8", Size::B), ("u16", Size::H), ("u32", Size::W), ("u64", Size::DW)];
const SIGNED: [(&str, SxWidth); 3] = [("s8", SxWidth::S8), ("s16", SxWidth::S16), ("s32", SxWidth::S32)];

/// Read-modify-write operations: the operator after `lock`, the name after `atomic_fetch_`, without and with fetch.
const ATOMICS: [(&str, &str, AtomicOp, AtomicOp); 4] = [
    ("+=", "add", AtomicOp::Add { fetch: false }, AtomicOp::Add { fetch: true }),
    ("|=", "or", AtomicOp::Or { fetch: false }, AtomicOp::Or { fetch: true }),
    ("&=", "and", AtomicOp::And { fetch: false }, AtomicOp::And { fetch: true }),
    ("^=", "xor", AtomicOp::Xor { fetch: false }, AtomicOp::Xor { fetch: true }),
];

struct Parser<'a> {
    cursor: Cursor<'a>,
    /// The label that this line refers to, if any.
    label: Option<(Column, &'a str)>,
}

impl<'a> Parser<'a> {
    /// `name:`; the name may be a number, so that listings can be read back.
    fn label_definition(&mut self) -> Option<(Column, &'a str)> {
        let name = self.cursor.peek_word();
        let mut ahead = self.cursor.clone();
        ahead.word();
        if name.is_empty() || !ahead.eat(":") {
            return None;
        }
        let column = self.cursor.column();
        self.cursor = ahead;
        Some((column, name))
    }

    /// Parses one instruction and the end of the line.
    fn line(&mut self) -> Result<Insn, Failure> {
        let insn = self.insn()?;
        if self.cursor.at_end() { Ok(insn) } else { Err(self.cursor.expected("the end of the line")) }
    }

    fn insn(&mut self) -> Result<Insn, Failure> {
        if self.cursor.eat("*") {
            return self.store();
        }
        if let Some(dst) = self.reg_opt() {
            return self.assignment(dst);
        }
        let c = &mut self.cursor;
        if c.eat_word("exit") {
            Ok(Insn::Exit)
        } else if c.eat_word("goto") {
            let off = self.jump_target()?;
            Ok(Insn::Jump { off: off.into(), wide: false })
        } else if c.eat_word("gotol") {
            let off = self.call_target()?;
            Ok(Insn::Jump { off, wide: true })
        } else if c.eat_word("gotox") {
            let (_, target) = self.reg()?;
            Ok(Insn::JumpReg { target })
        } else if c.eat_word("may_goto") {
            let off = self.jump_target()?;
            Ok(Insn::MayGoto { off })
        } else if c.eat_word("call") {
            self.call()
        } else if c.eat_word("callx") {
            let (_, reg) = self.reg()?;
            Ok(Insn::Call(Callee::Reg(reg)))
        } else if c.eat_word("if") {
            self.jump_if()
        } else if c.eat_word("lock") {
            self.lock()
        } else if c.eat_word("store_release") {
            c.require("(")?;
            let (size, base, off) = self.pointer()?;
            self.cursor.require(",")?;
            let (_, src) = self.reg()?;
            self.cursor.require(")")?;
            Ok(Insn::StoreRelease { size, base, off, src })
        } else {
            Err(c.expected("an instruction"))
        }
    }

    /// After `*`: `(u32 *)(r1 + 4) = r2`.
    fn store(&mut self) -> Result<Insn, Failure> {
        let (size, base, off) = self.pointer()?;
        self.cursor.require("=")?;
        let src = match self.reg_opt() {
            Some((_, reg)) => Src::Reg(reg),
            None => Src::Imm(self.imm32(if size == Size::DW { Width::W64 } else { Width::W32 })?),
        };
        Ok(Insn::Store { size, base, off, src })
    }

    /// After `if`: `r1 s> 5 goto +3`.
    fn jump_if(&mut self) -> Result<Insn, Failure> {
        let (width, dst) = self.reg()?;
        let cond = self.cursor.eat_any(&COND_TOKENS).ok_or_else(|| self.cursor.expected("a condition"))?;
        let src = self.operand(width)?;
        if !self.cursor.eat_word("goto") {
            return Err(self.cursor.expected("goto"));
        }
        let off = self.jump_target()?;
        Ok(Insn::JumpIf { width, cond, dst, src, off })
    }

    /// After `lock`: `*(u64 *)(r10 - 8) += r1`.
    fn lock(&mut self) -> Result<Insn, Failure> {
        self.cursor.require("*")?;
        let (width, base, off) = self.atomic_pointer()?;
        let op = ATOMICS
            .iter()
            .find(|(token, ..)| self.cursor.eat(token))
            .map(|&(_, _, op, _)| op)
            .ok_or_else(|| self.cursor.expected("+=, |=, &= or ^="))?;
        let (_, src) = self.reg()?;
        Ok(Insn::Atomic { width, op, base, off, src })
    }

    /// Parses the rest of a call, behind `call`.
    fn call(&mut self) -> Result<Insn, Failure> {
        let column = self.cursor.column();
        if let Some(id) = self.cursor.number() {
            return Ok(Insn::Call(Callee::Helper(fit(column, id.into(), "a helper id")?)));
        }
        if self.cursor.eat("kfunc#") {
            return Ok(Insn::Call(Callee::Host(self.number_i32("a host function id")?)));
        }
        Ok(Insn::Call(Callee::Subprog(self.call_target()?)))
    }

    /// Parses the rest of an assignment, behind the destination.
    fn assignment(&mut self, dst: NamedReg) -> Result<Insn, Failure> {
        let (width, reg) = dst;
        if let Some(op) = self.cursor.eat_any(&ALU_TOKENS) {
            return Ok(Insn::Alu { width, op, dst: reg, src: self.operand(width)? });
        }
        self.cursor.require("=")?;
        if self.cursor.eat("*") {
            return self.load(reg);
        }
        if self.cursor.eat("(") {
            return self.mov_sx(dst);
        }
        let mut ahead = self.cursor.clone();
        if ahead.eat("-") && self.is_reg(ahead.peek_word()) {
            self.cursor = ahead;
            self.same_reg(dst)?;
            return Ok(Insn::Neg { width, dst: reg });
        }
        if self.is_reg(self.cursor.peek_word()) {
            return Ok(Insn::Mov { width, dst: reg, src: self.operand(width)? });
        }
        if let Some(insn) = self.named_operation(dst)? {
            return Ok(insn);
        }
        let column = self.cursor.column();
        let Some(value) = self.cursor.signed() else { return Err(self.cursor.expected("an operand")) };
        if self.cursor.eat_word("ll") {
            let value = match i64::try_from(value) {
                Ok(value) => value as u64,
                Err(_) => fit(column, value, "64 bits")?,
            };
            return Ok(Insn::LoadImm64 { dst: reg, imm: Imm64::Const(value) });
        }
        Ok(Insn::Mov { width, dst: reg, src: Src::Imm(fit_imm(column, value, width)?) })
    }

    /// Parses the rest of a load, behind `r0 = *`.
    fn load(&mut self, dst: Reg) -> Result<Insn, Failure> {
        self.cursor.require("(")?;
        let name = self.cursor.peek_word();
        let column = self.cursor.column();
        let (size, sign) = if let Some(&(_, size)) = UNSIGNED.iter().find(|(n, _)| *n == name) {
            (size, false)
        } else {
            match name {
                "s8" => (Size::B, true),
                "s16" => (Size::H, true),
                "s32" => (Size::W, true),
                _ => return Err(self.cursor.expected("a type: u8 to u64, s8 to s32")),
            }
        };
        self.cursor.word();
        self.cursor.require("*")?;
        self.cursor.require(")")?;
        if !self.cursor.eat_word("skb") {
            let (base, off) = self.address_in_parens()?;
            return Ok(Insn::Load { size, sign, dst, base, off });
        }
        if sign || size == Size::DW {
            return Err((column, AsmErrorKind::Expected { what: "u8, u16 or u32", found: name.to_owned() }));
        }
        if dst != Reg::R0 {
            return Err((column, AsmErrorKind::RegisterMismatch));
        }
        self.cursor.require("[")?;
        let insn = match self.reg_opt() {
            None => Insn::LoadAbs { size, imm: self.number_i32("a packet offset")? },
            Some((_, src)) if self.cursor.peek("]") => Insn::LoadInd { size, src, imm: 0 },
            Some((_, src)) => Insn::LoadInd { size, src, imm: self.displacement("a packet offset")? },
        };
        self.cursor.require("]")?;
        Ok(insn)
    }

    /// Parses the rest of a sign extension, behind `r0 = (`.
    fn mov_sx(&mut self, (width, dst): NamedReg) -> Result<Insn, Failure> {
        let name = self.cursor.peek_word();
        let from = match SIGNED.iter().find(|(n, _)| *n == name) {
            Some(&(_, SxWidth::S32)) if width == Width::W32 => return Err(self.cursor.expected("s8 or s16")),
            Some(&(_, from)) => from,
            None => return Err(self.cursor.expected("s8, s16 or s32")),
        };
        self.cursor.word();
        self.cursor.require(")")?;
        let column = self.cursor.column();
        let (src_width, src) = self.reg()?;
        if src_width != width {
            return Err((column, AsmErrorKind::RegisterMismatch));
        }
        Ok(Insn::MovSx { width, dst, src, from })
    }

    /// After `r0 =`, the operations that have a name: byte order, atomics, references.
    fn named_operation(&mut self, dst: NamedReg) -> Result<Option<Insn>, Failure> {
        let (width, reg) = dst;
        let word = self.cursor.peek_word();
        if let Some((order, digits)) =
            ORDER_NAMES.iter().find_map(|&(name, order)| Some((order, word.strip_prefix(name)?)))
        {
            let end = match digits {
                "16" => EndWidth::B16,
                "32" => EndWidth::B32,
                "64" => EndWidth::B64,
                _ => return Err(self.cursor.expected("a width of 16, 32 or 64")),
            };
            self.cursor.word();
            self.same_reg((Width::W64, reg))?;
            return Ok(Some(Insn::End { order, width: end, dst: reg }));
        }
        if let Some(&(.., op)) = ATOMICS.iter().find(|(_, name, ..)| word.strip_prefix("atomic_fetch_") == Some(name)) {
            self.cursor.word();
            self.cursor.require("(")?;
            let (width, base, off) = self.atomic_pointer()?;
            self.cursor.require(",")?;
            self.same_reg(dst)?;
            self.cursor.require(")")?;
            return Ok(Some(Insn::Atomic { width, op, base, off, src: reg }));
        }
        let insn = match word {
            "xchg_64" | "xchg32_32" => {
                self.cursor.word();
                self.cursor.require("(")?;
                let (base, off) = self.address()?;
                self.cursor.require(",")?;
                self.same_reg(dst)?;
                Insn::Atomic { width: suffix_width(word), op: AtomicOp::Xchg, base, off, src: reg }
            }
            "cmpxchg_64" | "cmpxchg32_32" => {
                let column = self.cursor.column();
                self.cursor.word();
                self.cursor.require("(")?;
                let (base, off) = self.address()?;
                self.cursor.require(",")?;
                self.same_reg(dst)?;
                self.cursor.require(",")?;
                let (_, src) = self.reg()?;
                if reg != Reg::R0 {
                    return Err((column, AsmErrorKind::RegisterMismatch));
                }
                Insn::Atomic { width: suffix_width(word), op: AtomicOp::CmpXchg, base, off, src }
            }
            "load_acquire" => {
                self.cursor.word();
                self.cursor.require("(")?;
                let (size, base, off) = self.pointer()?;
                Insn::LoadAcquire { size, dst: reg, base, off }
            }
            "addr_space_cast" => {
                if width == Width::W32 {
                    return Err(self.cursor.expected("a 32-bit operand"));
                }
                self.cursor.word();
                self.cursor.require("(")?;
                let (src_width, src) = self.reg()?;
                if src_width != Width::W64 {
                    return Err(self.cursor.expected("a 64-bit register"));
                }
                self.cursor.require(",")?;
                let to = self.number_i32("an address space")?;
                self.cursor.require(",")?;
                let from = self.number_i32("an address space")?;
                let spaces = [AddrSpace::Kernel, AddrSpace::User];
                let known = |space: &AddrSpace| (to, from) == (space.numbers().0.into(), space.numbers().1.into());
                match spaces.into_iter().find(known) {
                    Some(to) => Insn::Cast { dst: reg, src, to },
                    None => return Err(self.cursor.expected("a cast from address space 1 to 0, or from 0 to 1")),
                }
            }
            "map" | "var" | "subprog" => {
                if width == Width::W32 {
                    return Err(self.cursor.expected("a 32-bit operand"));
                }
                return Ok(Some(Insn::LoadImm64 { dst: reg, imm: self.reference()? }));
            }
            _ => return Ok(None),
        };
        self.cursor.require(")")?;
        Ok(Some(insn))
    }

    /// `map[fd:5]`, `map[fd:5][0]+16`, `map[idx:2]`, `map[idx:2][0]+16`, `var[id:7]`, `subprog[+3]`, `subprog[label]`.
    fn reference(&mut self) -> Result<Imm64, Failure> {
        let kind = self.cursor.word();
        self.cursor.require("[")?;
        let imm = match kind {
            "subprog" => Imm64::Func(self.call_target()?),
            "var" => {
                self.cursor.require("id:")?;
                Imm64::Var(self.number_i32("a BTF id")?)
            }
            _ => {
                let by_index = self.cursor.eat("idx:");
                if !by_index {
                    self.cursor.require("fd:")?;
                }
                let map = self.number_i32("a map number")?;
                self.cursor.require("]")?;
                if !self.cursor.eat("[0]") {
                    return Ok(if by_index { Imm64::MapIdx(map) } else { Imm64::Map(map) });
                }
                self.cursor.require("+")?;
                let column = self.cursor.column();
                let value = self.cursor.number().ok_or_else(|| self.cursor.expected("a number"))?;
                let off = fit(column, value.into(), "an offset into a map value")?;
                return Ok(if by_index { Imm64::MapIdxValue { map, off } } else { Imm64::MapValue { map, off } });
            }
        };
        self.cursor.require("]")?;
        Ok(imm)
    }

    /// `(u32 *)(r1 + 4)`.
    fn pointer(&mut self) -> Result<(Size, Reg, i16), Failure> {
        self.cursor.require("(")?;
        let name = self.cursor.peek_word();
        let Some(&(_, size)) = UNSIGNED.iter().find(|(n, _)| *n == name) else {
            return Err(self.cursor.expected("u8, u16, u32 or u64"));
        };
        self.cursor.word();
        self.cursor.require("*")?;
        self.cursor.require(")")?;
        let (base, off) = self.address_in_parens()?;
        Ok((size, base, off))
    }

    /// [`Parser::pointer`] for a read-modify-write, which has two sizes.
    fn atomic_pointer(&mut self) -> Result<(Width, Reg, i16), Failure> {
        let column = self.cursor.column();
        let (size, base, off) = self.pointer()?;
        let width = match size {
            Size::W => Width::W32,
            Size::DW => Width::W64,
            Size::B | Size::H => {
                let found = format!("u{}", size.bits());
                return Err((column, AsmErrorKind::Expected { what: "u32 or u64", found }));
            }
        };
        Ok((width, base, off))
    }

    fn address_in_parens(&mut self) -> Result<(Reg, i16), Failure> {
        self.cursor.require("(")?;
        let address = self.address()?;
        self.cursor.require(")")?;
        Ok(address)
    }

    /// `r1 + 4`, `r10 - 8`, `r1 +4`.
    fn address(&mut self) -> Result<(Reg, i16), Failure> {
        let (width, base) = self.reg()?;
        if width == Width::W32 {
            return Err((self.cursor.column(), AsmErrorKind::RegisterMismatch));
        }
        Ok((base, self.displacement("an address offset")?))
    }

    /// `+ 4`, `- 8`: the sign must be there.
    fn displacement<T: TryFrom<i128>>(&mut self, field: &'static str) -> Result<T, Failure> {
        let column = self.cursor.column();
        if !(self.cursor.peek("+") || self.cursor.peek("-")) {
            return Err(self.cursor.expected("+ or -"));
        }
        let value = self.cursor.signed().ok_or_else(|| self.cursor.expected("a number"))?;
        fit(column, value, field)
    }

    fn jump_target(&mut self) -> Result<i16, Failure> {
        self.target("a jump offset")
    }

    fn call_target(&mut self) -> Result<i32, Failure> {
        self.target("a call or jump offset")
    }

    /// An offset with its sign (the kernel prints `pc` before it), or a label, which counts as 0 until it is patched.
    fn target<T: TryFrom<i128> + Default>(&mut self, field: &'static str) -> Result<T, Failure> {
        let column = self.cursor.column();
        let mut ahead = self.cursor.clone();
        if ahead.eat_word("pc") && (ahead.peek("+") || ahead.peek("-")) {
            self.cursor = ahead;
        }
        if self.cursor.peek("+") || self.cursor.peek("-") {
            return self.displacement(field);
        }
        let label = self.cursor.word();
        if label.is_empty() {
            return Err(self.cursor.expected("a label, or an offset with its sign"));
        }
        self.label = Some((column, label));
        Ok(T::default())
    }

    /// A register of this width or an immediate.
    fn operand(&mut self, width: Width) -> Result<Src, Failure> {
        let column = self.cursor.column();
        match self.reg_opt() {
            Some((w, _)) if w != width => Err((column, AsmErrorKind::RegisterMismatch)),
            Some((_, reg)) => Ok(Src::Reg(reg)),
            None => Ok(Src::Imm(self.imm32(width)?)),
        }
    }

    fn imm32(&mut self, width: Width) -> Result<i32, Failure> {
        let column = self.cursor.column();
        let value = self.cursor.signed().ok_or_else(|| self.cursor.expected("a register or a number"))?;
        fit_imm(column, value, width)
    }

    fn number_i32(&mut self, field: &'static str) -> Result<i32, Failure> {
        let column = self.cursor.column();
        let value = self.cursor.signed().ok_or_else(|| self.cursor.expected("a number"))?;
        fit(column, value, field)
    }

    fn is_reg(&self, word: &str) -> bool {
        parse_reg(word).is_some()
    }

    fn reg_opt(&mut self) -> Option<NamedReg> {
        let reg = parse_reg(self.cursor.peek_word())?;
        self.cursor.word();
        Some(reg)
    }

    fn reg(&mut self) -> Result<NamedReg, Failure> {
        self.reg_opt().ok_or_else(|| self.cursor.expected("a register"))
    }

    /// Parses the register that an instruction repeats.
    fn same_reg(&mut self, want: NamedReg) -> Result<(), Failure> {
        let column = self.cursor.column();
        if self.reg()? == want { Ok(()) } else { Err((column, AsmErrorKind::RegisterMismatch)) }
    }
}

fn parse_reg(word: &str) -> Option<NamedReg> {
    let (width, digits) = match word.strip_prefix('r') {
        Some(digits) => (Width::W64, digits),
        None => (Width::W32, word.strip_prefix('w')?),
    };
    Reg::ALL.into_iter().find(|reg| reg.index().to_string() == digits).map(|reg| (width, reg))
}

/// `_64` or `32_32` at the end of an operation's name.
fn suffix_width(word: &str) -> Width {
    if word.ends_with("_64") { Width::W64 } else { Width::W32 }
}

fn fit<T: TryFrom<i128>>(column: Column, value: i128, field: &'static str) -> Result<T, Failure> {
    T::try_from(value).map_err(|_| (column, AsmErrorKind::OutOfRange { value, field }))
}

/// A 32-bit operand may be written unsigned; a 64-bit one may not, because it would be sign-extended.
fn fit_imm(column: Column, value: i128, width: Width) -> Result<i32, Failure> {
    match u32::try_from(value) {
        Ok(value) if width == Width::W32 => Ok(value as i32),
        _ => fit(column, value, "a 32-bit immediate"),
    }
}
