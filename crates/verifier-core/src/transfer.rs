//! Transfer functions: how one instruction changes a state.
//!
//! Approach: an exhaustive match over the instructions, and one file for each kind of value. An instruction without a
//! rule is refused as [`Why::Unsupported`].

mod branch;
mod call;
mod memory;
mod number;
mod pointer;

use bpf_isa::{AluOp, Callee, Imm64, Insn, InsnIdx, Reg, Src, Width};

use crate::check::{Checker, Flow};
use crate::contract::MapType;
use crate::domain::Form;
use crate::refusal::{Res, Why};
use crate::state::{Base, Pointer, State, Value};

impl Checker<'_> {
    /// Runs the instruction at `pc` on the state.
    pub(crate) fn step(&mut self, state: &mut State) -> Res<Flow> {
        let program = self.program;
        let insn = program.insns().get(self.pc.index()).ok_or(Why::Internal("no instruction"))?;
        match *insn {
            Insn::Alu { width, op, dst, src } => {
                let result = self.alu(state, width, op, dst, src)?;
                state.set(dst, result);
            }
            Insn::Mov { width: Width::W64, dst, src } => {
                let value = self.operand(state, src)?;
                state.set(dst, value);
            }
            Insn::Mov { width: Width::W32, dst, src } => {
                let number = self.number_operand(state, src)?;
                let low = self.read_as(state, &number, 32, false)?;
                state.set(dst, Value::Number(low));
            }
            Insn::MovSx { width, dst, src, from } => {
                let number = self.number(state, src)?;
                let result = self.sign_extended(state, &number, from.bits(), width)?;
                state.set(dst, Value::Number(result));
            }
            Insn::Neg { width, dst } => {
                let number = self.number(state, dst)?;
                let result = self.number_op(state, AluOp::Sub, width, &Form::constant(0), &number)?;
                state.set(dst, Value::Number(result));
            }
            Insn::End { order, width, dst } => {
                let number = self.number(state, dst)?;
                let result = self.byte_order(state, order, &number, width.bits())?;
                state.set(dst, Value::Number(result));
            }
            Insn::LoadImm64 { dst, imm } => {
                let value = self.constant(imm)?;
                state.set(dst, value);
                return Ok(Flow::To(InsnIdx(self.pc.0 + 2)));
            }
            Insn::Load { size, sign, dst, base, off } => self.load(state, size, sign, dst, base, off)?,
            Insn::Store { size, base, off, src } => self.store(state, size, base, off, src)?,
            Insn::Atomic { width, op, base, off, src } => self.atomic(state, width, op, base, off, src)?,
            Insn::Jump { off, .. } => return Ok(Flow::To(self.target(off)?)),
            Insn::JumpIf { width, cond, dst, src, off } => return self.branch(state, (width, cond), dst, src, off),
            Insn::Call(Callee::Subprog(off)) => return self.call_subprog(state, off),
            Insn::Call(Callee::Helper(id)) => {
                let proto = self.env.helpers.get(id).ok_or(Why::Unsupported("a helper that the host does not have"))?;
                return self.call_helper(state, proto);
            }
            Insn::Call(Callee::Host(index)) => {
                let proto = usize::try_from(index).ok().and_then(|i| self.env.host_functions.get(i));
                return self
                    .call_helper(state, proto.ok_or(Why::Unsupported("a function that the host does not have"))?);
            }
            Insn::Exit => return self.exit(state),
            Insn::SecondSlot => return Err(Why::Internal("a second slot")),
            Insn::Cast { .. } => return Err(Why::Unsupported("arenas")),
            Insn::LoadAcquire { .. } | Insn::StoreRelease { .. } => return Err(Why::Unsupported("ordered accesses")),
            Insn::LoadAbs { size, .. } => self.legacy_load(state, size, None)?,
            Insn::LoadInd { size, src, .. } => self.legacy_load(state, size, Some(src))?,
            Insn::JumpReg { .. } => return Err(Why::Unsupported("indirect jumps")),
            Insn::MayGoto { .. } => return Err(Why::Unsupported("may_goto")),
            Insn::Call(Callee::Reg(_)) => return Err(Why::Unsupported("indirect calls")),
        }
        Ok(Flow::Next)
    }

    /// The target of a jump over `off` slots.
    pub(crate) fn target(&self, off: i32) -> Res<InsnIdx> {
        self.pc.jump(off).ok_or(Why::Internal("a jump out of the program"))
    }

    /// The value of a register; an error if the register is unset.
    pub(crate) fn value(&self, state: &State, reg: Reg) -> Res<Value> {
        match state.reg(reg) {
            Value::Unset => Err(Why::Unset(reg)),
            value => Ok(value),
        }
    }

    /// The number in a register.
    pub(crate) fn number(&self, state: &State, reg: Reg) -> Res<Form> {
        match self.value(state, reg)? {
            Value::Number(form) => Ok(form),
            Value::Pointer(_) | Value::Unset => Err(Why::NotANumber(reg)),
        }
    }

    pub(crate) fn operand(&self, state: &State, src: Src) -> Res<Value> {
        match src {
            Src::Reg(reg) => self.value(state, reg),
            Src::Imm(imm) => Ok(Value::Number(Form::constant(imm.into()))),
        }
    }

    fn number_operand(&self, state: &State, src: Src) -> Res<Form> {
        match src {
            Src::Reg(reg) => self.number(state, reg),
            Src::Imm(imm) => Ok(Form::constant(imm.into())),
        }
    }

    fn constant(&self, imm: Imm64) -> Res<Value> {
        let map = |index: i32| {
            let index = u32::try_from(index).map_err(|_| Why::Unsupported("a map that there is not"))?;
            match self.env.maps.get(index as usize) {
                Some(def) if def.kind == MapType::Arena => Err(Why::Unsupported("arenas")),
                Some(def) if def.kind == MapType::InsnArray => Err(Why::Unsupported("tables of instructions")),
                Some(def) => Ok((index, def)),
                None => Err(Why::Unsupported("a map that there is not")),
            }
        };
        match imm {
            Imm64::Const(value) => Ok(Value::Number(Form::constant(value.into()).residue(64))),
            Imm64::Map(index) | Imm64::MapIdx(index) => Ok(Value::Pointer(Pointer::start(Base::Map(map(index)?.0)))),
            Imm64::MapValue { map: index, off } | Imm64::MapIdxValue { map: index, off } => {
                let (index, def) = map(index)?;
                // An array's first element always exists.
                if def.kind != MapType::Array {
                    return Err(Why::Unsupported("the value of a map that is no array"));
                }
                let start = Pointer::start(Base::MapValue(index));
                Ok(Value::Pointer(Pointer { offset: Form::constant(off.into()), ..start }))
            }
            Imm64::Var(_) => Err(Why::Unsupported("variables of the kernel")),
            Imm64::Func(_) => Err(Why::Unsupported("addresses of functions")),
        }
    }

    fn alu(&mut self, state: &mut State, width: Width, op: AluOp, dst: Reg, src: Src) -> Res<Value> {
        // Immediates that the kernel refuses: a constant divisor 0, and a constant shift count that is not below the
        // width.
        match (op, src) {
            (AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod, Src::Imm(0)) => return Err(Why::Immediate),
            (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Src::Imm(count))
                if !u32::try_from(count).is_ok_and(|count| count < number::bits(width)) =>
            {
                return Err(Why::Immediate);
            }
            _ordinary => {}
        }
        let (a, b) = (self.value(state, dst)?, self.operand(state, src)?);
        match (a, b) {
            (Value::Number(a), Value::Number(b)) => Ok(Value::Number(self.number_op(state, op, width, &a, &b)?)),
            (Value::Pointer(p), Value::Number(n)) => self.move_pointer(dst, width, op, &p, &n),
            (Value::Number(n), Value::Pointer(p)) if op == AluOp::Add => self.move_pointer(dst, width, op, &p, &n),
            (Value::Pointer(p), Value::Pointer(q)) => self.distance(state, dst, (width, op), &p, &q),
            (Value::Number(_), Value::Pointer(_)) | (Value::Unset, _) | (_, Value::Unset) => {
                Err(Why::PointerArithmetic(dst))
            }
        }
    }
}
