//! Which tail calls always jump through the same slot of the same table, and which calls through registers always call
//! the same helper.
//!
//! Problem: a tail call whose table (r2) and index (r3) are constants can be patched into a direct jump. Compilers load
//! both right before the call, but keep the table in a saved register when there are several calls, and merge paths
//! that agree.
//!
//! Approach: forward data flow over basic blocks. A register's value is a constant or varies; a block that no path has
//! reached yet knows nothing, which agrees with anything, so constants survive loops. Only copies are followed:
//! compilers have folded the arithmetic already, and unfolded arithmetic makes an indirect site, which is always
//! correct. The naive twin in the tests collects the set of all values that reach each instruction.
//!
//! Invariant: each reported constant holds on every path, whatever branches do. A verifier, which knows dead branches,
//! may report more.

use crate::{BlockId, Cfg, ConstTailCall, RegSet, defs};
use bpf_isa::{Callee, Imm64, Insn, InsnIdx, Program, Reg, Src, SubprogId, Width};
use bpf_uapi::helper_id::TAIL_CALL;

/// A register's value on every path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    /// Values that differ between paths, or are not known.
    Varying,
    /// A number that is equal on all paths.
    Number(u64),
    /// The pointer to the map with this index.
    Map(u32),
}

impl Value {
    fn meet(self, other: Value) -> Value {
        if self == other { self } else { Value::Varying }
    }
}

type Regs = [Value; Reg::ALL.len()];

/// Finds constant tail calls; keeps its memory from program to program.
#[derive(Debug, Default)]
pub struct Constants {
    /// Values of the registers at the start of each block; `None`: no path has reached it.
    at_start: Vec<Option<Regs>>,
    work: Vec<BlockId>,
}

impl Constants {
    /// The tail calls of `program` with constant table and index, ascending by instruction. `entries` says how many
    /// slots the table with a map index has, `None` if that map is no table of programs: a constant index beyond it
    /// is not reported.
    pub fn tail_calls(
        &mut self,
        program: &Program,
        cfg: &Cfg,
        entries: impl Fn(u32) -> Option<u32>,
    ) -> Vec<ConstTailCall> {
        let mut found = Vec::new();
        if !program.insns().iter().any(is_tail_call) {
            return found;
        }
        self.each(program, cfg, |at, insn, regs| {
            if is_tail_call(insn)
                && let Value::Map(map) = regs[Reg::R2.index()]
                && let Value::Number(index) = regs[Reg::R3.index()]
            {
                let index = low(index);
                if entries(map).is_some_and(|entries| index < entries) {
                    found.push(ConstTailCall { insn: at, map, index });
                }
            }
        });
        found
    }

    /// The calls through registers ([`Callee::Reg`]) that hold the same number on every path, ascending, with that
    /// number: unoptimised C calls a helper by a pointer to it, whose address is its id.
    pub fn helper_calls(&mut self, program: &Program, cfg: &Cfg) -> Vec<(InsnIdx, u32)> {
        let mut found = Vec::new();
        if program.contents().indirect_calls {
            self.each(program, cfg, |at, insn, regs| {
                if let Insn::Call(Callee::Reg(reg)) = *insn
                    && let Value::Number(id) = regs[reg.index()]
                    && let Ok(id) = u32::try_from(id)
                {
                    found.push((at, id));
                }
            });
        }
        found
    }

    /// Visits each instruction that some path reaches, ascending, with the values of the registers before it.
    fn each(&mut self, program: &Program, cfg: &Cfg, mut visit: impl FnMut(InsnIdx, &Insn, &Regs)) {
        self.at_start.clear();
        self.at_start.resize(cfg.blocks().len(), None);
        for sub in (0..crate::small(program.subprogs().len())).map(SubprogId) {
            self.solve(program, cfg, BlockId(cfg.subprog_blocks(sub).start));
        }
        for (block, regs) in cfg.blocks().iter().zip(&self.at_start) {
            let Some(mut regs) = *regs else { continue };
            for slot in block.start..block.end {
                let insn = &program.insns()[slot as usize];
                visit(InsnIdx(slot), insn, &regs);
                step(insn, &mut regs);
            }
        }
    }

    /// From a subprogram's entry, where nothing is known, to a fixpoint: each register of each block changes at most
    /// twice.
    fn solve(&mut self, program: &Program, cfg: &Cfg, entry: BlockId) {
        self.at_start[entry.index()] = Some([Value::Varying; Reg::ALL.len()]);
        self.work.push(entry);
        while let Some(id) = self.work.pop() {
            let Some(mut regs) = self.at_start[id.index()] else { continue };
            let block = cfg.block(id);
            for insn in &program.insns()[block.start as usize..block.end as usize] {
                step(insn, &mut regs);
            }
            for next in cfg.succs(id) {
                let before = self.at_start[next.index()];
                let after = match before {
                    None => regs,
                    Some(before) => core::array::from_fn(|i| before[i].meet(regs[i])),
                };
                if before != Some(after) {
                    self.at_start[next.index()] = Some(after);
                    self.work.push(next);
                }
            }
        }
    }
}

fn is_tail_call(insn: &Insn) -> bool {
    *insn == Insn::Call(Callee::Helper(TAIL_CALL))
}

/// The effect of one instruction.
fn step(insn: &Insn, regs: &mut Regs) {
    let copied = copied(insn, regs);
    for reg in defs(insn).iter() {
        regs[reg.index()] = Value::Varying;
    }
    if let Some((dst, value)) = copied {
        debug_assert_eq!(defs(insn), RegSet::of(dst));
        regs[dst.index()] = value;
    }
}

/// Returns the lower half of a register, which 32-bit operations and indices read.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
fn low(number: u64) -> u32 {
    number as u32
}

/// Returns destination and value of a move or constant load; `None` for all other instructions.
fn copied(insn: &Insn, regs: &Regs) -> Option<(Reg, Value)> {
    match *insn {
        Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) } => Some((dst, regs[src.index()])),
        Insn::Mov { width: Width::W64, dst, src: Src::Imm(imm) } => Some((dst, Value::Number(i64::from(imm) as u64))),
        Insn::Mov { width: Width::W32, dst, src } => {
            let value = match src {
                Src::Imm(imm) => Value::Number(u64::from(imm as u32)),
                Src::Reg(src) => match regs[src.index()] {
                    Value::Number(number) => Value::Number(u64::from(low(number))),
                    Value::Varying | Value::Map(_) => Value::Varying,
                },
            };
            Some((dst, value))
        }
        Insn::LoadImm64 { dst, imm } => {
            let value = match imm {
                Imm64::Const(number) => Value::Number(number),
                Imm64::Map(map) | Imm64::MapIdx(map) => u32::try_from(map).map_or(Value::Varying, Value::Map),
                Imm64::MapValue { .. } | Imm64::MapIdxValue { .. } | Imm64::Var(_) | Imm64::Func(_) => Value::Varying,
            };
            Some((dst, value))
        }
        Insn::Alu { .. }
        | Insn::MovSx { .. }
        | Insn::Cast { .. }
        | Insn::Neg { .. }
        | Insn::End { .. }
        | Insn::SecondSlot
        | Insn::Load { .. }
        | Insn::Store { .. }
        | Insn::Atomic { .. }
        | Insn::LoadAcquire { .. }
        | Insn::StoreRelease { .. }
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
