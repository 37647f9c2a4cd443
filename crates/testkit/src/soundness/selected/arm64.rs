//! The instructions of arm64 that contained code consists of, and the effect of each on the abstract state.
//!
//! Instructions are decoded here, by the encodings of the Arm Architecture Reference Manual (C4.1), so that a
//! mistake of the assembler does not read as the right text. As for x86-64, the match is an allow-list. A selection
//! counts only if `csdb` follows it, behind which the processor uses no predicted result of it.
//!
//! The frame has saved registers and slots of the allocator at the bottom, and the BPF stack at the top. The
//! intermediate form says how many bytes the BPF stack has, since the code does not show it.

use super::state::{Flags, State};
use super::value::{Class, Name, Place, Value};
use super::{Fields, Machine, Spot, Why};
use bpf_jit::Extern;
use bpf_jit_code::{Code, RelocKind, RunCtx, TailTarget};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const SP: usize = 31;
const LINK: usize = 30;
/// The hidden argument.
const RUN: usize = 5;
/// Bytes of machine stack that a function may use.
const STACK: i64 = 1 << 20;
const NOP: u32 = 0xd503_201f;
const CSDB: u32 = 0xd503_229f;
/// csdb, `bti c`, paciasp, autiasp; dmb ish, dsb sy, isb.
const NEUTRAL: [u32; 8] = [NOP, CSDB, 0xd503_245f, 0xd503_233f, 0xd503_23bf, 0xd503_3bbf, 0xd503_3f9f, 0xd503_3fdf];

/// The code of a program as instructions.
pub(super) struct Arm64<'a> {
    words: Vec<u32>,
    /// Calls of linked functions, and moves of linked addresses.
    externs: BTreeMap<u64, Extern>,
    entries: BTreeSet<u64>,
    first: u64,
    /// Bytes of BPF stack, by entry.
    stacks: BTreeMap<u64, i64>,
    bypasses: BTreeSet<u64>,
    targets: BTreeSet<u64>,
    fields: Fields<'a>,
}

/// The sign-extended field of so many bits.
fn signed(word: u32, from: u32, bits: u32) -> i64 {
    i64::from((word << (32 - from - bits)).cast_signed() >> (32 - bits))
}

fn field(word: u32, from: u32, bits: u32) -> u32 {
    word >> from & ((1 << bits) - 1)
}

fn reg(word: u32, from: u32) -> usize {
    field(word, from, 5) as usize
}

/// The number that a logical instruction's immediate stands for (`DecodeBitMasks`).
fn bit_mask(word: u32, whole: bool) -> Option<u64> {
    let (n, immr, imms) = (field(word, 22, 1), field(word, 16, 6), field(word, 10, 6));
    let len = 31 - (n << 6 | !imms & 0x3f).leading_zeros().min(31);
    let size = 1u32.checked_shl(len).filter(|size| (2..=64).contains(size) && (whole || n == 0))?;
    let (s, r) = (imms & (size - 1), immr & (size - 1));
    if s == size - 1 {
        return None;
    }
    let element = (1u64 << (s + 1)) - 1;
    let ones = u64::MAX >> (64 - size);
    let rotated = if r == 0 { element } else { (element >> r | element << (size - r)) & ones };
    let mask = (0..64 / size).fold(0, |mask, i| mask | rotated << (i * size));
    Some(if whole { mask } else { mask & 0xffff_ffff })
}

impl<'a> Arm64<'a> {
    pub(super) fn new(code: &'a Code, fields: Fields<'a>, stacks: &[u32]) -> Result<Arm64<'a>, (u64, Why)> {
        if let Some(table) = code.tables.first() {
            return Err((table.start.into(), Why::Table));
        }
        if !code.bytes.len().is_multiple_of(4) {
            return Err((0, Why::Instruction));
        }
        let words: Vec<u32> =
            code.bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
        let word = |at: u64| usize::try_from(at / 4).ok().and_then(|i| words.get(i)).copied().unwrap_or(0);
        let mut externs = BTreeMap::new();
        for reloc in &code.relocs {
            let at = u64::from(reloc.at);
            let target = Extern::from_symbol(reloc.symbol).ok_or((at, Why::Relocation))?;
            let is_function =
                matches!(target, Extern::Helper(_) | Extern::Host(_) | Extern::MapLookup(_) | Extern::Spent(_));
            let of_form = match reloc.kind {
                RelocKind::Arm64Branch26 => is_function && word(at) & 0xfc00_0000 == 0x9400_0000,
                RelocKind::Arm64Mov48 => {
                    let d = word(at) & 31;
                    let moves = [0xd280_0000 | d, 0xf2a0_0000 | d, 0xf2c0_0000 | d];
                    !is_function && (0u64..).step_by(4).zip(moves).all(|(off, wanted)| word(at + off) == wanted)
                }
                RelocKind::X64Rel32 | RelocKind::X64Abs64 => false,
            };
            if !of_form || at % 4 != 0 {
                return Err((at, Why::Relocation));
            }
            externs.insert(at, target);
        }
        let (mut bypasses, mut targets) = (BTreeSet::new(), BTreeSet::new());
        for site in &code.tail_calls {
            let TailTarget::Direct { bypass, target, .. } = site.target else { return Err((0, Why::IndirectBranch)) };
            let (bypass, target) = (u64::from(bypass.at()), u64::from(target.at()));
            if word(bypass) & 0xfc00_0000 != 0x1400_0000 || word(target) != NOP {
                return Err((bypass, Why::Relocation));
            }
            bypasses.insert(bypass);
            targets.insert(target);
        }
        let entries: BTreeSet<u64> = code.entries.iter().copied().map(u64::from).collect();
        let stacks = code.entries.iter().zip(stacks).map(|(entry, bytes)| ((*entry).into(), (*bytes).into())).collect();
        let first = code.entries.first().copied().unwrap_or(0).into();
        Ok(Arm64 { words, externs, entries, first, stacks, bypasses, targets, fields })
    }

    fn word(&self, at: u64) -> Option<u32> {
        usize::try_from(at / 4).ok().filter(|_| at.is_multiple_of(4)).and_then(|i| self.words.get(i)).copied()
    }

    fn function(&self, at: u64) -> Range<u64> {
        let start = self.entries.range(..=at).next_back().copied().unwrap_or(0);
        let end = self.entries.range(at + 1..).next().copied().unwrap_or(4 * self.words.len() as u64);
        start..end
    }

    /// The target of a direct branch.
    fn branch(at: u64, word: u32) -> Option<u64> {
        let by = if word & 0x7c00_0000 == 0x1400_0000 {
            signed(word, 0, 26)
        } else if word & 0xff00_0010 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
            signed(word, 5, 19)
        } else if word & 0x7e00_0000 == 0x3600_0000 {
            signed(word, 5, 14)
        } else {
            return None;
        };
        at.checked_add_signed(4 * by)
    }

    /// Whether no later instruction uses a predicted result of the selection at `at`. `csdb` is the next instruction,
    /// or the one behind the store of the result to a slot.
    fn is_settled(&self, at: u64) -> bool {
        let next = |n: u64| self.word(at + 4 * n);
        let to_slot = |word: u32| word & 0xffc0_03e0 == 0xf900_03e0;
        next(1) == Some(CSDB) || next(1).is_some_and(to_slot) && next(2) == Some(CSDB)
    }
}

impl Machine for Arm64<'_> {
    /// Bytes of the function's BPF stack.
    type Frame = i64;

    fn text(&self, at: u64) -> String {
        self.word(at).map(|word| format!("{word:08x}")).unwrap_or_default()
    }

    fn joins(&self) -> BTreeSet<u64> {
        let words = (0u64..).step_by(4).zip(&self.words);
        words.filter_map(|(at, word)| Arm64::branch(at, *word)).chain(self.entries.iter().copied()).collect()
    }

    /// The back end emits a comparison of constants as a branch that is always taken, or as none, and leaves the code
    /// that nothing leads to. Such code is not checked.
    fn unreached(&self, _reached: &BTreeSet<u64>) -> Option<u64> {
        None
    }

    fn entry_state(&self, first: bool) -> State {
        let class = |reg| match usize::from(reg) {
            SP => Class::Sp,
            RUN => Class::Run,
            0 if first && self.fields.is_raw() => Class::Address,
            0 if first => Class::Context,
            _ => Class::Untrusted,
        };
        let regs = (0..32u8).map(|reg| Value::named(Name::Entry(Place::Reg(reg)), class(reg))).collect();
        State { regs, slots: BTreeMap::new(), flags: None }
    }

    fn frame(&self, entry: u64) -> i64 {
        self.stacks.get(&entry).copied().unwrap_or(0)
    }

    fn step(&self, at: u64, stack: i64, state: &mut State) -> Result<(Vec<u64>, Option<Spot>), Why> {
        let word = self.word(at).ok_or(Why::End)?;
        state.forget(&|name| matches!(name, Name::Made(of, _) if of == at));
        let mut one = One { arm: self, word, at, stack, state, spot: None, next: vec![at + 4] };
        one.step()?;
        let (next, spot) = (one.next, one.spot);
        let (from, to) = state.regs[SP].frame.ok_or(Why::StackPointer)?;
        if from != to || !(-STACK..=0).contains(&from) || from % 16 != 0 {
            return Err(Why::StackPointer);
        }
        state.slots.retain(|slot, _| *slot >= from);
        let inside = self.function(at);
        // The sequences that end a run stand behind the last function, and all functions share them.
        let last = self.entries.iter().next_back().copied().unwrap_or(0);
        for to in &next {
            if self.word(*to).is_none() || !inside.contains(to) && *to < last {
                return Err(Why::Target);
            }
        }
        Ok((next, spot))
    }
}

impl Arm64<'_> {
    /// Whether three moves of a linked address begin here.
    fn is_moved(&self, at: u64) -> bool {
        self.externs.contains_key(&at) && self.word(at).is_some_and(|word| word & 0xfc00_0000 != 0x9400_0000)
    }
}

/// One instruction being carried out.
struct One<'s, 'a> {
    arm: &'s Arm64<'a>,
    word: u32,
    at: u64,
    stack: i64,
    state: &'s mut State,
    spot: Option<Spot>,
    next: Vec<u64>,
}

impl One<'_, '_> {
    fn here(&self, n: u8) -> Name {
        Name::Made(self.at, Place::Operand(n))
    }

    /// Whether the instruction has operands of 64 bits.
    fn whole(&self) -> bool {
        self.word >> 31 != 0
    }

    fn width(&self) -> usize {
        if self.whole() { 8 } else { 4 }
    }

    /// The value of a register; 31 is zero.
    fn get(&self, reg: usize) -> Value {
        if reg == SP { Value::constant(0) } else { self.state.regs[reg] }
    }

    /// The operand at the instruction's width.
    fn operand(&self, reg: usize, n: u8) -> Value {
        self.get(reg).narrow(self.width(), self.here(n))
    }

    /// Sets a register; 31 is none.
    fn set(&mut self, reg: usize, value: Value) {
        if reg != SP {
            self.state.regs[reg] = value;
        }
    }

    /// Sets a register at the instruction's width; 31 is the stack pointer if `sp`.
    fn write(&mut self, reg: usize, value: Value, sp: bool) {
        let value = value.narrow(self.width(), self.here(9));
        if sp && reg == SP {
            self.state.regs[SP] = value;
        } else {
            self.set(reg, value);
        }
    }

    fn untrusted(&mut self, reg: usize) {
        let name = Name::Made(self.at, Place::Reg(reg as u8));
        self.set(reg, Value::untrusted(name));
    }

    fn sp(&self) -> Result<i64, Why> {
        self.state.regs[SP].frame.filter(|(from, to)| from == to).map(|(sp, _)| sp).ok_or(Why::StackPointer)
    }

    fn step(&mut self) -> Result<(), Why> {
        let (word, at) = (self.word, self.at);
        if self.arm.is_moved(at) {
            let class = match self.arm.externs[&at] {
                Extern::Imm64(_) | Extern::ArrayBase(_) | Extern::Counters(_) | Extern::Sink(_) => Class::Address,
                Extern::Map(_) | Extern::HelperEnv(_) | Extern::HostEnv(_) => Class::Handle,
                Extern::Helper(_) | Extern::Host(_) | Extern::MapLookup(_) | Extern::Spent(_) => {
                    return Err(Why::Relocation);
                }
            };
            let d = reg(word, 0);
            self.set(d, Value::named(Name::Made(at, Place::Reg(d as u8)), class));
            self.next = vec![at + 12];
            return Ok(());
        }
        if word == NOP && self.arm.targets.contains(&at) {
            self.leaves(true)?;
            self.next.clear();
            return Ok(());
        }
        if NEUTRAL.contains(&word) {
            return Ok(());
        }
        match word >> 25 & 0xf {
            8 | 9 => self.immediate(),
            10 | 11 => self.control(),
            4 | 6 | 12 | 14 => self.memory(),
            5 | 13 => self.registers(),
            _ => Err(Why::Instruction),
        }
    }

    /// Data processing with an immediate.
    fn immediate(&mut self) -> Result<(), Why> {
        let word = self.word;
        let (d, n) = (reg(word, 0), reg(word, 5));
        match word >> 23 & 7 {
            // adr
            0 | 1 if word & 0x9f00_0000 == 0x1000_0000 => {
                let by = signed(word, 5, 19) << 2 | i64::from(field(word, 29, 2));
                let to = self.at.checked_add_signed(by).ok_or(Why::Target)?;
                let class = if self.arm.entries.contains(&to) { Class::Handle } else { Class::Untrusted };
                self.set(d, Value::named(Name::Made(self.at, Place::Reg(d as u8)), class));
                Ok(())
            }
            2 => {
                let imm = u64::from(field(word, 10, 12)) << (12 * field(word, 22, 1));
                let (sub, flags) = (field(word, 30, 1) != 0, field(word, 29, 1) != 0);
                // Register 31 is the stack pointer as an operand, and as a result without flags.
                let a = if n == SP { self.state.regs[SP] } else { self.get(n) };
                let a = a.narrow(self.width(), self.here(1));
                let by = if sub { imm.wrapping_neg() } else { imm };
                if flags {
                    let below = if self.whole() { by.wrapping_neg() } else { by.wrapping_neg() & 0xffff_ffff };
                    // Adding 0 sets other flags than subtracting it.
                    self.state.flags = (sub || imm != 0).then(|| Flags { a, b: Value::constant(below) });
                }
                let value = a.plus(Value::constant(by), self.here(2));
                self.write(d, value, !flags);
                Ok(())
            }
            4 => {
                let mask = bit_mask(word, self.whole()).ok_or(Why::Instruction)?;
                let (a, b) = (self.operand(n, 1), Value::constant(mask));
                let opcode = field(word, 29, 2);
                let value = self.logic(opcode, a, b);
                if opcode == 3 {
                    self.state.flags = None;
                } else if d == SP {
                    return Err(Why::StackPointer);
                }
                self.write(d, value, false);
                Ok(())
            }
            5 => {
                let shift = 16 * field(word, 21, 2);
                let half = u64::from(field(word, 5, 16)) << shift;
                let value = match field(word, 29, 2) {
                    0 => Value::constant(!half),
                    2 => Value::constant(half),
                    3 => match self.get(d).exactly() {
                        Some(old) => Value::constant(old.cast_unsigned() & !(0xffff << shift) | half),
                        None => Value::untrusted(self.here(1)),
                    },
                    _ => return Err(Why::Instruction),
                };
                self.write(d, value, false);
                Ok(())
            }
            6 => self.field_of_bits(d, n),
            // extr
            7 => {
                let value = self.operand(n, 1).mixed_with(self.operand(reg(word, 16), 2), self.here(3));
                self.write(d, value, false);
                Ok(())
            }
            _ => Err(Why::Instruction),
        }
    }

    /// ubfm, sbfm and bfm: shifts, extensions, and fields.
    fn field_of_bits(&mut self, d: usize, n: usize) -> Result<(), Why> {
        let (r, s) = (field(self.word, 16, 6), field(self.word, 10, 6));
        let bits = if self.whole() { 64 } else { 32 };
        if r >= bits || s >= bits {
            return Err(Why::Instruction);
        }
        let (value, here) = (self.operand(n, 1), self.here(2));
        let ones = |count: u32| if count >= 64 { u64::MAX } else { (1 << count) - 1 };
        let value = match field(self.word, 29, 2) {
            0 => value.mixed(here),
            1 => Value::untrusted(here),
            // To the left, by `bits - r`, or the lowest bits to the left.
            2 if s < r => {
                let kept = if s + 1 == r { value } else { value.and(Value::constant(ones(s + 1)), here) };
                match bits - r {
                    shift @ 0..63 => kept.times(1 << shift, self.here(3)),
                    _ => Value::untrusted(here),
                }
            }
            2 if r == 0 && matches!(s, 7 | 15 | 31) => value.narrow((s as usize + 1) / 8, here),
            2 if r == 0 => value.and(Value::constant(ones(s + 1)), here),
            2 => value.mixed(here).up_to((value.most >> r).min(ones(s - r + 1))),
            _ => return Err(Why::Instruction),
        };
        self.write(d, value, false);
        Ok(())
    }

    fn logic(&self, opcode: u32, a: Value, b: Value) -> Value {
        let here = self.here(4);
        let exact = a.exactly().zip(b.exactly());
        match (opcode, exact) {
            (0 | 3, _) => a.and(b, here),
            (1, Some((a, b))) => Value::constant((a | b).cast_unsigned()),
            (2, Some((a, b))) => Value::constant((a ^ b).cast_unsigned()),
            (1, None) if a.exactly() == Some(0) => b,
            (_, _) => a.mixed_with(b, here),
        }
    }

    /// An operand that is shifted (lsl, lsr, asr, ror) by a constant.
    fn shifted(&self, value: Value, kind: u32, by: u32) -> Result<Value, Why> {
        let here = self.here(5);
        if by >= 8 * self.width() as u32 {
            return Err(Why::Instruction);
        }
        Ok(match (kind, by) {
            (_, 0) => value,
            (0, ..63) => value.times(1 << by, here),
            (1, _) => value.mixed(here).up_to(value.most >> by),
            (_, _) => value.mixed(here),
        })
    }

    /// An operand that is extended, and shifted to the left.
    fn extended(&self, value: Value, option: u32, by: u32) -> Value {
        let here = self.here(6);
        let value = match option {
            0 => value.narrow(1, here),
            1 => value.narrow(2, here),
            2 => value.narrow(4, here),
            3 | 7 => value,
            _ => value.mixed(here),
        };
        value.times(1 << by, self.here(7))
    }

    /// Data processing of registers.
    fn registers(&mut self) -> Result<(), Why> {
        let word = self.word;
        let (d, n, m) = (reg(word, 0), reg(word, 5), reg(word, 16));
        let (a, b) = (self.operand(n, 1), self.operand(m, 2));
        if word & 0x1f00_0000 == 0x0a00_0000 {
            let mut b = self.shifted(b, field(word, 22, 2), field(word, 10, 6))?;
            if field(word, 21, 1) != 0 {
                b = match b.exactly() {
                    Some(number) => Value::constant(!number.cast_unsigned()),
                    None => b.mixed(self.here(8)),
                };
            }
            let opcode = field(word, 29, 2);
            if opcode == 3 {
                self.state.flags = None;
            }
            let value = self.logic(opcode, a, b);
            self.write(d, value, false);
        } else if word & 0x1f00_0000 == 0x0b00_0000 {
            let (sub, flags, extended) = (field(word, 30, 1) != 0, field(word, 29, 1) != 0, field(word, 21, 1) != 0);
            let (a, b) = if extended {
                if field(word, 22, 2) != 0 || field(word, 10, 3) > 4 {
                    return Err(Why::Instruction);
                }
                let a = if n == SP { self.state.regs[SP] } else { a };
                (a, self.extended(self.get(m), field(word, 13, 3), field(word, 10, 3)))
            } else {
                (a, self.shifted(b, field(word, 22, 2), field(word, 10, 6))?)
            };
            if flags {
                self.state.flags = sub.then_some(Flags { a, b });
            }
            let value = if sub { a.minus(b, self.here(3)) } else { a.plus(b, self.here(3)) };
            self.write(d, value, extended && !flags);
        } else if word & 0x3fe0_0000 == 0x1a80_0000 {
            let value = match (field(word, 30, 1), field(word, 10, 2)) {
                (0, 0) => self.selection(a, b, field(word, 12, 4)),
                // The second operand plus 1.
                (0, 1) => a.mixed_with(b, self.here(3)).up_to(a.most.max(b.most.saturating_add(1))),
                (1, 0 | 1) => a.mixed_with(b, self.here(3)),
                _ => return Err(Why::Instruction),
            };
            self.write(d, value, false);
        } else if word & 0x1f00_0000 == 0x1b00_0000 && field(word, 29, 2) == 0 {
            let value = if field(word, 21, 3) == 0 {
                let product = match (a.exactly(), b.exactly()) {
                    (_, Some(times)) => a.times(times, self.here(3)),
                    (Some(times), _) => b.times(times, self.here(3)),
                    (None, None) => a.mixed_with(b, self.here(3)).up_to(a.most.saturating_mul(b.most)),
                };
                let (sum, here) = (self.operand(reg(word, 10), 4), self.here(5));
                if field(word, 15, 1) != 0 { sum.minus(product, here) } else { product.plus(sum, here) }
            } else {
                Value::untrusted(self.here(3))
            };
            self.write(d, value, false);
        } else if word & 0x7fe0_0000 == 0x1ac0_0000 || word & 0x7fff_0000 == 0x5ac0_0000 {
            // Divisions, shifts by a register; bytes and bits in reverse order, and counts of leading bits.
            self.untrusted(d);
        } else {
            return Err(Why::Instruction);
        }
        Ok(())
    }

    /// `csel`: the first value if the condition holds.
    fn selection(&self, moved: Value, kept: Value, condition: u32) -> Value {
        let here = self.here(0);
        let plain = moved.or(kept, here);
        let Some(flags) = self.state.flags.filter(|_| self.whole() && self.arm.is_settled(self.at)) else {
            return plain;
        };
        let is_zero = flags.b.exactly() == Some(0);
        let (below, holds) = match condition {
            2 => (true, false),
            3 => (true, true),
            8 => (false, false),
            9 => (false, true),
            0 if is_zero => (false, true),
            1 if is_zero => (false, false),
            _ => return plain,
        };
        let (yes, no) = if holds { (moved, kept) } else { (kept, moved) };
        super::selected(&flags, below, yes, no, here).unwrap_or(plain)
    }

    fn passes_context(&self) -> bool {
        let class = if self.arm.fields.is_raw() { Class::Address } else { Class::Context };
        self.state.regs[0].offset_in(class) == Some(0)
    }

    fn has_run(&self, reg: usize) -> bool {
        self.state.regs[reg].offset_in(Class::Run) == Some(0)
    }

    /// Whether the function is left as its caller expects.
    fn leaves(&self, tail: bool) -> Result<(), Why> {
        if self.sp()? != 0 {
            return Err(Why::StackPointer);
        }
        let kept = |reg: u8| self.state.regs[usize::from(reg)].is(Name::Entry(Place::Reg(reg)));
        if !(18..=30).all(kept) {
            return Err(Why::Saved);
        }
        if tail && !(self.has_run(RUN) && self.passes_context()) {
            return Err(Why::Argument);
        }
        Ok(())
    }

    /// Branches.
    fn control(&mut self) -> Result<(), Why> {
        let (word, at) = (self.word, self.at);
        if word & 0xfc00_0000 == 0x9400_0000 {
            return self.call();
        }
        if word & 0xffff_fc1f == 0xd65f_0000 || word & 0xffff_fc1f == 0xd61f_0000 {
            let to = reg(word, 5);
            self.next.clear();
            if self.state.regs[to].offset_in(Class::StopTo) == Some(0) && self.has_run(0) {
                return Ok(());
            }
            let returns = to == LINK && word & 0x00ff_0000 == 0x005f_0000;
            return if returns { self.leaves(false) } else { Err(Why::IndirectBranch) };
        }
        let to = Arm64::branch(at, word).ok_or(Why::Instruction)?;
        match word & 0xfc00_0000 == 0x1400_0000 {
            true if !self.arm.bypasses.contains(&at) => self.next = vec![to],
            true | false => self.next.push(to),
        }
        Ok(())
    }

    fn call(&mut self) -> Result<(), Why> {
        let result = match self.arm.externs.get(&self.at).copied() {
            Some(Extern::Spent(_)) if !self.has_run(RUN) => return Err(Why::Argument),
            Some(target) if self.arm.fields.returns_object(target) => Class::Found,
            Some(_) => Class::Untrusted,
            None => {
                let to = Arm64::branch(self.at, self.word).filter(|to| self.arm.entries.contains(to));
                let to = to.ok_or(Why::Target)?;
                if !self.has_run(RUN) || to == self.arm.first && !self.passes_context() {
                    return Err(Why::Argument);
                }
                Class::Untrusted
            }
        };
        (0..18).chain([LINK]).for_each(|reg| self.untrusted(reg));
        self.set(0, Value::named(Name::Made(self.at, Place::Reg(0)), result));
        self.state.flags = None;
        Ok(())
    }

    /// The place of `bytes` bytes at an address.
    fn access(&mut self, address: Value, bytes: i64) -> Result<Spot, Why> {
        let spot = Spot::of(address, bytes, self.sp()?, (-self.stack, 0), 0)?;
        self.spot = Some(spot);
        Ok(spot)
    }

    fn load(&mut self, address: Value, bytes: i64, n: u8) -> Result<Value, Why> {
        let (spot, here) = (self.access(address, bytes)?, self.here(n));
        if let (Spot::Slot(slot), 8) = (spot, bytes)
            && let Some(value) = self.state.slots.get(&slot)
        {
            return Ok(*value);
        }
        let class = match spot {
            Spot::Run(off) => self.arm.fields.load_run(off, bytes)?,
            Spot::Context(off) => self.arm.fields.load_context(off, bytes),
            Spot::Slot(_) | Spot::Stack { .. } | Spot::Object | Spot::Null => Class::Untrusted,
        };
        let most = if bytes < 8 { (1 << (8 * bytes)) - 1 } else { u64::MAX };
        let carried = matches!(spot, Spot::Run(off) if Fields::lent(off));
        Ok(Value { carried, ..Value::named(here, class).up_to(most) })
    }

    fn store(&mut self, address: Value, bytes: i64, value: Option<Value>) -> Result<(), Why> {
        match self.access(address, bytes)? {
            Spot::Slot(slot) => {
                self.state.overwrite(slot, bytes);
                if let (Some(value), 8) = (value, bytes) {
                    self.state.slots.insert(slot, value);
                }
                Ok(())
            }
            // A count that only limits how many tail calls follow.
            Spot::Run(off) if off == i64::from(RunCtx::TAIL_CALLS_OFFSET) && bytes == 4 => Ok(()),
            Spot::Run(off) => self.arm.fields.store_run(off, bytes, value),
            Spot::Context(off) => self.arm.fields.store_context(off, bytes),
            Spot::Stack { .. } | Spot::Object | Spot::Null => Ok(()),
        }
    }

    /// Loads and stores.
    fn memory(&mut self) -> Result<(), Why> {
        let word = self.word;
        let (t, n, size) = (reg(word, 0), reg(word, 5), word >> 30);
        let base = if n == SP { self.state.regs[SP] } else { self.get(n) };
        let bytes = 1i64 << size;
        let moved = |by: i64, here| base.plus(Value::constant(by.cast_unsigned()), here);
        let here = self.here(6);
        if word & 0x3f00_0000 == 0x3900_0000 {
            let off = i64::from(field(word, 10, 12)) << size;
            return self.plain(t, moved(off, here), bytes);
        }
        if word & 0x3f20_0c00 == 0x3800_0000 {
            return self.plain(t, moved(signed(word, 12, 9), here), bytes);
        }
        if word & 0x3f20_0c00 == 0x3820_0800 {
            let by = if field(word, 12, 1) != 0 { size } else { 0 };
            let option = field(word, 13, 3);
            if !matches!(option, 2 | 3 | 6 | 7) {
                return Err(Why::Instruction);
            }
            let index = self.extended(self.get(reg(word, 16)), option, by);
            return self.plain(t, base.plus(index, self.here(8)), bytes);
        }
        if matches!(word & 0xffc0_0000, 0xa900_0000 | 0xa940_0000 | 0xa980_0000 | 0xa8c0_0000) && n == SP {
            return self.pair(t, reg(word, 10), 8 * signed(word, 15, 7));
        }
        self.ordered(t, base, bytes)
    }

    fn plain(&mut self, t: usize, address: Value, bytes: i64) -> Result<(), Why> {
        match (field(self.word, 22, 2), bytes) {
            (0, _) => {
                let value = self.get(t).narrow(bytes as usize, self.here(1));
                self.store(address, bytes, Some(value))
            }
            (1, _) => {
                let value = self.load(address, bytes, 1)?;
                self.set(t, value);
                Ok(())
            }
            // Sign-extended.
            (2, 1 | 2 | 4) | (3, 1 | 2) => {
                self.load(address, bytes, 1)?;
                self.untrusted(t);
                Ok(())
            }
            (_, _) => Err(Why::Instruction),
        }
    }

    /// Saves and restores of the frame: `[sp, by]`, `[sp, by]!`, `[sp], by`.
    fn pair(&mut self, first: usize, second: usize, by: i64) -> Result<(), Why> {
        let sp = self.state.regs[SP];
        let (before, after) = (self.word >> 23 & 3 == 3, self.word >> 23 & 3 == 1);
        let to = sp.plus(Value::constant(by.cast_unsigned()), self.here(5));
        if before {
            self.state.regs[SP] = to;
        }
        let address = if after { sp } else { to };
        let next = address.plus(Value::constant(8), self.here(6));
        if field(self.word, 22, 1) != 0 {
            let (a, b) = (self.load(address, 8, 1)?, self.load(next, 8, 2)?);
            self.set(first, a);
            self.set(second, b);
        } else {
            let (a, b) = (self.get(first), self.get(second));
            self.store(address, 8, Some(a))?;
            self.store(next, 8, Some(b))?;
        }
        if after {
            self.state.regs[SP] = to;
        }
        Ok(())
    }

    /// Acquire, release, exclusive and atomic accesses, never of a spill slot or of the hidden argument.
    fn ordered(&mut self, t: usize, address: Value, bytes: i64) -> Result<(), Why> {
        let (word, other) = (self.word, reg(self.word, 16));
        let loads = matches!(word & 0x3fff_fc00, 0x08df_fc00 | 0x085f_7c00 | 0x085f_fc00);
        let stores = word & 0x3fff_fc00 == 0x089f_fc00;
        let exclusive = matches!(word & 0x3fe0_fc00, 0x0800_7c00 | 0x0800_fc00);
        let atomic = word & 0x3f20_0c00 == 0x3820_0000;
        let compares = word & 0x3fa0_7c00 == 0x08a0_7c00;
        match (loads, stores || exclusive || atomic || compares) {
            (true, false) => {
                self.load(address, bytes, 1)?;
            }
            (false, true) => self.store(address, bytes, None)?,
            (_, _) => return Err(Why::Instruction),
        }
        if !stores && !loads && matches!(self.spot, Some(Spot::Slot(_) | Spot::Run(_)) | None) {
            return Err(Why::Store);
        }
        if loads || atomic {
            self.untrusted(t);
        } else if exclusive || compares {
            // The status, or what was there.
            self.untrusted(other);
        }
        Ok(())
    }
}
