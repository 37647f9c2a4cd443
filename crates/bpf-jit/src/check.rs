//! Whether an intermediate form and its allocations refer only to what exists, so that no backend need ask.
//!
//! What lowering and the allocator make does; debug builds look all the same, and tests of backends check what they make by hand.

use crate::alloc::{Alloc, Loc};
use crate::lir::{CallTarget, Func, Lir, Op};
use crate::machine::{HostRegSet, MachineDesc};

impl Lir {
    /// Checks it together with one allocation a function for `machine`.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, allocs: &[Alloc], machine: &MachineDesc) -> Result<(), &'static str> {
        ensure(allocs.len() >= self.funcs.len(), "a function without an allocation")?;
        self.funcs.iter().zip(allocs).try_for_each(|(func, alloc)| self.check_func(func, alloc, machine))
    }

    fn check_func(&self, func: &Func, alloc: &Alloc, machine: &MachineDesc) -> Result<(), &'static str> {
        ensure(alloc.locs.len() >= func.vregs as usize, "a value without a location")?;
        ensure(func.spans.len() >= func.ops.len(), "an op without a source")?;
        let params = func.params.iter().chain([&func.ctx]).flatten();
        ensure(params.into_iter().all(|v| v.0 < func.vregs), "a parameter that does not exist")?;
        ensure(alloc.saves.len() <= machine.callee_saved.len(), "more saves than callee-saved registers")?;
        let saved = HostRegSet::of(&alloc.saves);
        let allowed = machine.pool_set.without(machine.saved_set.without(saved));
        for loc in &alloc.locs {
            let exists = match loc {
                Loc::Reg(reg) => reg.0 < 32 && allowed.contains(*reg),
                Loc::Slot(index) => *index < alloc.slots,
            };
            ensure(
                exists,
                "a value in a register that is not in the pool or not saved, or in a slot that does not exist",
            )?;
        }
        for block in &func.blocks {
            let inside = block.ops.start <= block.ops.end && block.ops.end as usize <= func.ops.len();
            ensure(inside, "a block without ops")?;
        }
        for op in &func.ops {
            let mut known = op.def().is_none_or(|v| v.0 < func.vregs);
            op.for_each_use(|v| known &= v.0 < func.vregs);
            ensure(known, "an op with a value that does not exist")?;
            if let Op::Call { target: CallTarget::Subprog(subprog), .. } | Op::SubprogAddr { subprog, .. } = *op {
                ensure(subprog.index() < self.funcs.len(), "a subprogram that does not exist")?;
            }
            if let Op::Jump { target } | Op::Branch { target, .. } = *op {
                ensure(target.index() < func.blocks.len(), "a branch to a block that does not exist")?;
            }
        }
        Ok(())
    }
}

fn ensure(holds: bool, what: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(what) }
}
