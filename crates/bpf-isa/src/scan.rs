//! One walk over a program's instructions, which checks each of them by itself.
//!
//! The scan checks the rules about a single instruction, collects jumps and calls for [`crate::Program`] to check, and
//! records the kinds of instructions that occur ([`Contents`]), so that later passes skip searches for absent kinds.
//!
//! Invariant: every method is inlined where the kind of the instruction is known, so that most of it folds away.

use crate::codec::Visit;
use crate::structure::{CallSite, Flow, SubprogId, ValidateError, ValidateErrorKind};
use crate::{AluOp, AtomicOp, Callee, Imm64, Insn, InsnIdx, Reg, Src};

/// The kinds of instructions that a program contains, so that passes can skip absent ones.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Contents {
    /// Calls of any sort.
    pub calls: bool,
    /// Calls through registers ([`Callee::Reg`]).
    pub indirect_calls: bool,
    /// Two-slot instructions ([`Insn::LoadImm64`]).
    pub wide_loads: bool,
    /// Packet loads ([`Insn::LoadAbs`], [`Insn::LoadInd`]).
    pub packet_loads: bool,
    /// [`Insn::MayGoto`].
    pub may_gotos: bool,
    /// [`Insn::JumpReg`].
    pub indirect_jumps: bool,
    /// Divisions and remainders.
    pub divisions: bool,
    /// Shifts by a register.
    pub register_shifts: bool,
    /// [`Insn::Atomic`].
    pub atomics: bool,
    /// [`Insn::Cast`].
    pub casts: bool,
    /// The registers that the program names or that its calls use: bit `n` is rn.
    pub registers: u16,
    /// The registers that may be read before they are written: some instruction reads the register, and no earlier
    /// instruction writes it before the first jump. Valid for the main program only: a call enters each of the other
    /// functions with other registers written.
    pub read_early: u16,
    /// The use of r10.
    pub stack: StackUse,
}

/// The use of r10 in a program.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StackUse {
    /// Number of accesses at a constant offset from r10.
    pub accesses: u32,
    /// How far below r10 these accesses reach, in bytes.
    pub below: u32,
    /// Whether r10 is used otherwise: copied, compared, stored. Then accesses may be anywhere.
    pub escapes: bool,
}

impl StackUse {
    /// Bytes of stack that each function of the program may access, at most `max`.
    pub fn bytes(&self, max: u32) -> u32 {
        if self.escapes { max } else { self.below.min(max) }
    }

    fn access(&mut self, base: Reg, off: i16) {
        let on_stack = base == Reg::R10;
        self.accesses += u32::from(on_stack);
        let below = (-i32::from(off)).max(0) as u32;
        self.below = self.below.max(if on_stack { below } else { 0 });
    }
}

/// The result of one walk over the instructions.
pub(crate) struct Scan {
    /// For these, `callee` is the called slot and is not checked yet, because the subprograms are not known yet.
    pub(crate) calls: Vec<CallSite>,
    /// Their targets are not checked yet.
    pub(crate) flow: Vec<Flow>,
    pub(crate) contents: Contents,
    /// The calls through registers.
    pub(crate) indirect_calls: Vec<InsnIdx>,
    /// The registers written before the first jump.
    written: u16,
    /// All ones before the first jump, zero after it.
    straight: u16,
}

/// Decoded instructions are well-formed.
impl Visit for Scan {
    type Error = ValidateError;
    #[inline(always)]
    fn visit(&mut self, at: InsnIdx, insn: &Insn) -> Result<(), ValidateError> {
        self.insn(at, insn, || Ok(()))
    }
}

impl Scan {
    pub(crate) fn new(slots: usize) -> Scan {
        // One branch per four instructions is common.
        let flow = Vec::with_capacity(slots / 4 + 1);
        Scan {
            calls: Vec::new(),
            flow,
            contents: Contents::default(),
            indirect_calls: Vec::new(),
            written: 0,
            straight: u16::MAX,
        }
    }

    #[inline(always)]
    fn read(&mut self, reg: Reg) {
        let bit = 1 << reg as u16;
        self.contents.registers |= bit;
        self.contents.read_early |= bit & !self.written;
    }

    /// Reads an operand, which may be a copy of r10.
    #[inline(always)]
    fn operand(&mut self, src: Src) {
        if let Src::Reg(reg) = src {
            self.read(reg);
            self.contents.stack.escapes |= reg == Reg::R10;
        }
    }

    #[inline(always)]
    fn access(&mut self, base: Reg, off: i16) {
        self.read(base);
        self.contents.stack.access(base, off);
    }

    #[inline(always)]
    fn write(&mut self, reg: Reg) {
        let bit = 1 << reg as u16;
        self.contents.registers |= bit;
        self.written |= bit & self.straight;
    }

    #[inline(always)]
    fn flow(&mut self, at: InsnIdx, target: Option<InsnIdx>) {
        self.flow.push(Flow { at, target });
        self.straight = 0;
    }

    #[inline(always)]
    fn call(&mut self, at: InsnIdx, off: i32, callback: bool) {
        let callee = SubprogId(at.jump(off).unwrap_or(NOWHERE).0);
        self.calls.push(CallSite { at, callee, callback });
    }

    /// Checks one instruction by itself, and collects it if it leads elsewhere. `well_formed`: whether it has an
    /// encoding.
    #[inline(always)]
    pub(crate) fn insn(
        &mut self,
        at: InsnIdx,
        insn: &Insn,
        well_formed: impl Fn() -> Result<(), ValidateError>,
    ) -> Result<(), ValidateError> {
        let target = |off: i32| Some(at.jump(off).unwrap_or(NOWHERE));
        // The register that the instruction names as its result; registers that a call clobbers are not counted.
        let dst = match *insn {
            Insn::Alu { op, dst, src, .. } => {
                let by_register = matches!(src, Src::Reg(_));
                self.read(dst);
                self.operand(src);
                self.contents.divisions |= matches!(op, AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod);
                self.contents.register_shifts |= by_register & matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh);
                dst
            }
            Insn::Mov { dst, src, .. } => {
                self.operand(src);
                dst
            }
            Insn::Neg { dst, .. } | Insn::End { dst, .. } => {
                self.read(dst);
                dst
            }
            Insn::Load { sign, dst, base, off, .. } => {
                if sign {
                    well_formed()?;
                }
                self.access(base, off);
                dst
            }
            Insn::LoadAcquire { dst, base, off, .. } => {
                self.access(base, off);
                dst
            }
            Insn::Cast { dst, src, .. } => {
                self.contents.casts = true;
                self.operand(Src::Reg(src));
                dst
            }
            Insn::MovSx { dst, src, .. } => {
                well_formed()?;
                self.operand(Src::Reg(src));
                dst
            }
            Insn::LoadImm64 { dst, imm } => {
                well_formed()?;
                self.contents.wide_loads = true;
                if let Imm64::Func(off) = imm {
                    self.call(at, off, true);
                }
                dst
            }
            Insn::SecondSlot => return well_formed(),
            Insn::Atomic { op, base, off, src, .. } => {
                self.contents.atomics = true;
                self.access(base, off);
                self.operand(Src::Reg(src));
                if op == AtomicOp::CmpXchg {
                    self.read(Reg::R0);
                }
                match op.result(src) {
                    Some(result) => result,
                    None => return Ok(()),
                }
            }
            Insn::Store { base, off, src, .. } => {
                self.access(base, off);
                self.operand(src);
                return Ok(());
            }
            Insn::StoreRelease { base, off, src, .. } => {
                self.access(base, off);
                self.operand(Src::Reg(src));
                return Ok(());
            }
            Insn::LoadAbs { .. } => {
                well_formed()?;
                self.contents.packet_loads = true;
                Reg::R0
            }
            Insn::LoadInd { src, .. } => {
                well_formed()?;
                self.contents.packet_loads = true;
                self.operand(Src::Reg(src));
                Reg::R0
            }
            Insn::Jump { off, .. } => {
                well_formed()?;
                self.flow(at, target(off));
                return Ok(());
            }
            Insn::JumpReg { target: reg } => {
                self.contents.indirect_jumps = true;
                self.operand(Src::Reg(reg));
                self.flow(at, None);
                return Ok(());
            }
            Insn::JumpIf { dst, src, off, .. } => {
                self.operand(Src::Reg(dst));
                self.operand(src);
                self.flow(at, target(off.into()));
                return Ok(());
            }
            Insn::MayGoto { off } => {
                self.contents.may_gotos = true;
                self.flow(at, target(off.into()));
                return Ok(());
            }
            Insn::Call(callee) => {
                self.contents.calls = true;
                // The arguments.
                self.contents.registers |= 0b11_1110;
                match callee {
                    Callee::Subprog(off) => self.call(at, off, false),
                    Callee::Reg(reg) => {
                        self.operand(Src::Reg(reg));
                        self.contents.indirect_calls = true;
                        self.indirect_calls.push(at);
                    }
                    Callee::Helper(_) | Callee::Host(_) => {}
                }
                Reg::R0
            }
            Insn::Exit => {
                self.read(Reg::R0);
                self.flow(at, None);
                return Ok(());
            }
        };
        self.write(dst);
        if dst == Reg::R10 {
            return Err(ValidateError { slot: at, kind: ValidateErrorKind::WritesFramePointer });
        }
        Ok(())
    }
}

/// A target outside every program.
const NOWHERE: InsnIdx = InsnIdx(u32::MAX);
