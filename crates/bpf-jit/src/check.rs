//! Checks that an intermediate form and its allocations refer only to registers, slots and functions that exist, so
//! that no backend need check it.
//!
//! The output of lowering and of the allocator always passes. Debug builds check it all the same, and tests of backends
//! check allocations that they write by hand.

use crate::alloc::{Alloc, Loc};
use crate::machine::{HostRegSet, MachineDesc};
use bpf_lir::{Func, Lir};

/// Checks `lir` together with one allocation per function, for `machine`.
///
/// # Errors
/// Returns a text that says which reference is invalid.
pub fn check(lir: &Lir, allocs: &[Alloc], machine: &MachineDesc) -> Result<(), &'static str> {
    lir.verify().map_err(|_| "an intermediate form that is not well formed")?;
    ensure(allocs.len() >= lir.funcs.len(), "a function without an allocation")?;
    lir.funcs.iter().zip(allocs).try_for_each(|(func, alloc)| check_func(func, alloc, machine))
}

fn check_func(func: &Func, alloc: &Alloc, machine: &MachineDesc) -> Result<(), &'static str> {
    ensure(alloc.locs.len() >= func.vregs as usize, "a value without a location")?;
    ensure(alloc.saves.len() <= machine.callee_saved.len(), "more saves than callee-saved registers")?;
    let saved = HostRegSet::of(&alloc.saves);
    let allowed = machine.pool_set.without(machine.saved_set.without(saved));
    for loc in &alloc.locs {
        let exists = match loc {
            Loc::Reg(reg) => reg.0 < 32 && allowed.contains(*reg),
            Loc::Slot(index) => *index < alloc.slots,
        };
        ensure(exists, "a value in a register that is not in the pool or not saved, or in a slot that does not exist")?;
    }
    Ok(())
}

fn ensure(holds: bool, what: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(what) }
}
