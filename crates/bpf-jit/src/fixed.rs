//! Gives each BPF register a fixed location: an allocation that does not depend on the function's ops.
//!
//! Problem: liveness, webs and colouring take most of the time of a compilation, which does not pay for a program that
//! runs once or a few times. Approach: r0 to r9, the hidden argument and the may_goto counter each live in one location
//! throughout the function, where possible the one that calls want. Which registers are free depends only on the kinds
//! of instructions in the program ([`bpf_isa::Contents`]).
//!
//! Invariant: the allocation is correct for *any* order of the instructions: no value that lives across an op is in a
//! register that an op of this kind may overwrite. BPF registers that BPF calls clobber may be in registers that
//! machine calls clobber.

use crate::alloc::{Alloc, AllocOptions, Loc};
use crate::machine::{HostReg, HostRegSet, MachineDesc, OpClass};
use bpf_isa::{Contents, Reg};
use bpf_lir::VReg;

/// Virtual register of the hidden argument.
pub(crate) const CTX: VReg = VReg(10);
/// Virtual register of the may_goto counter.
pub(crate) const COUNTER: VReg = VReg(11);
const FIRST_TEMPORARY: u32 = 12;
/// Number of temporaries. The longest lowering of one instruction, a checked access, needs ten.
pub(crate) const TEMPORARIES: u32 = 16;

/// Returns the virtual register of a BPF register other than r10.
#[inline(always)]
pub(crate) fn home(reg: Reg) -> VReg {
    VReg(reg as u32)
}

/// Returns the virtual register of an instruction's `n`th temporary, `n` below [`TEMPORARIES`].
#[inline(always)]
pub(crate) fn temporary(n: u32) -> VReg {
    VReg(FIRST_TEMPORARY + n)
}

/// The properties of a function that its allocation depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Needs {
    /// Contents of the program. `read_early` and `stack` do not matter and are left empty, so that more programs share
    /// an allocation.
    pub(crate) contents: Contents,
    /// Whether the function has a BPF stack.
    pub(crate) stack: bool,
    /// Whether it reads the hidden argument.
    pub(crate) ctx: bool,
    /// Whether some instruction may need temporaries. Otherwise they get no locations.
    pub(crate) temporaries: bool,
}

/// The last allocation made. Functions of one program often have the same needs, and programs of one host do, too.
#[derive(Debug, Default)]
pub(crate) struct Last {
    alloc: Alloc,
    made_for: Option<(Needs, &'static MachineDesc, AllocOptions)>,
}

impl Last {
    /// Returns the allocation of a function with these needs.
    pub(crate) fn allocate(&mut self, needs: &Needs, machine: &'static MachineDesc, options: &AllocOptions) -> &Alloc {
        let alike = match &self.made_for {
            Some((last, on, with)) => last == needs && core::ptr::eq(*on, machine) && with == options,
            None => false,
        };
        if !alike {
            allocate(needs, machine, options, &mut self.alloc);
            self.made_for = Some((*needs, machine, *options));
        }
        &self.alloc
    }
}

fn allocate(needs: &Needs, machine: &MachineDesc, options: &AllocOptions, out: &mut Alloc) {
    let contents = needs.contents;
    let mut free = machine.pool_set.without(clobbers(&contents, machine));
    if needs.stack
        && let Some(frame) = machine.frame
    {
        free = free.without(HostRegSet::of(&[frame]));
    }
    if let Some(only) = options.only {
        free = free.intersection(only);
    }
    out.locs.clear();
    out.locs.resize((FIRST_TEMPORARY + TEMPORARIES) as usize, Loc::Slot(0));
    out.slots = 0;
    out.saves.clear();
    let (kept, scratch) = (machine.callee_saved.iter(), machine.pool.iter());
    let mut homes = Homes { kept, scratch, saved_set: machine.saved_set, free, saved: HostRegSet::EMPTY, out };
    let used = |reg: &Reg| contents.registers & 1 << *reg as u16 != 0;

    // Without calls the hidden argument stays in the register in which it arrives.
    if needs.ctx && (contents.calls || !homes.place(CTX, machine.ctx)) {
        homes.keep(CTX);
    }
    // Each register goes where calls and the function's own entry and exits want it. Only r0 may want a register that
    // an argument already has.
    let mut displaced = [None; 6];
    let wishes = Reg::ARGS.into_iter().zip(machine.args).chain([(Reg::R0, machine.ret)]);
    for (reg, wish) in wishes.filter(|(reg, _)| used(reg)) {
        if !homes.place(home(reg), wish) {
            displaced[reg.index()] = Some(reg);
        }
    }
    for reg in displaced.into_iter().flatten() {
        homes.scratch_or_keep(home(reg));
    }
    for v in Reg::SAVED.into_iter().filter(used).map(home).chain(contents.may_gotos.then_some(COUNTER)) {
        if contents.calls {
            homes.keep(v);
        } else {
            homes.scratch_or_keep(v);
        }
    }
    if needs.temporaries {
        for n in 0..TEMPORARIES {
            homes.scratch_or_slot(temporary(n));
        }
    }
    let saved = homes.saved;
    out.saves.extend(machine.callee_saved.iter().filter(|reg| saved.contains(**reg)));
}

/// The state while locations are assigned.
struct Homes<'a> {
    /// The callee-saved registers and the whole pool, from the first that may still be free: a register that an
    /// iterator has passed is taken, or is not free in this function.
    kept: core::slice::Iter<'a, HostReg>,
    scratch: core::slice::Iter<'a, HostReg>,
    /// The callee-saved registers, which cost a save.
    saved_set: HostRegSet,
    free: HostRegSet,
    saved: HostRegSet,
    out: &'a mut Alloc,
}

impl Homes<'_> {
    /// Puts `v` into this register if it is free; returns whether it was.
    fn place(&mut self, v: VReg, reg: HostReg) -> bool {
        let free = self.free.contains(reg);
        if free {
            self.settle(v, reg);
        }
        free
    }

    /// Puts `v` where calls preserve it: a callee-saved register, or else a slot.
    fn keep(&mut self, v: VReg) {
        let free = self.free;
        match self.kept.find(|reg| free.contains(**reg)) {
            Some(reg) => self.settle(v, *reg),
            None => self.slot(v),
        }
    }

    /// Puts `v` into a register that costs no save; returns false if there is none.
    fn scratch(&mut self, v: VReg) -> bool {
        let free = self.free.without(self.saved_set);
        let reg = self.scratch.find(|reg| free.contains(**reg));
        reg.is_some_and(|reg| self.place(v, *reg))
    }

    fn scratch_or_keep(&mut self, v: VReg) {
        if !self.scratch(v) {
            self.keep(v);
        }
    }

    fn scratch_or_slot(&mut self, v: VReg) {
        if !self.scratch(v) {
            self.slot(v);
        }
    }

    fn settle(&mut self, v: VReg, reg: HostReg) {
        let own = HostRegSet::of(&[reg]);
        self.free = self.free.without(own);
        self.saved = self.saved.union(own.intersection(self.saved_set));
        self.out.locs[v.index()] = Loc::Reg(reg);
    }

    fn slot(&mut self, v: VReg) {
        self.out.locs[v.index()] = Loc::Slot(self.out.slots);
        self.out.slots += 1;
    }
}

/// Returns the registers that some op of a program overwrites besides its result.
fn clobbers(contents: &Contents, machine: &MachineDesc) -> HostRegSet {
    let of = |present: bool, classes: &[OpClass]| {
        let all = classes.iter().map(|class| machine.fixed[*class as usize].clobbers);
        if present { all.fold(HostRegSet::EMPTY, HostRegSet::union) } else { HostRegSet::EMPTY }
    };
    of(contents.divisions, &[OpClass::Div, OpClass::Mod, OpClass::DivImm, OpClass::ModImm])
        .union(of(contents.register_shifts, &[OpClass::ShiftReg]))
        .union(of(contents.atomics, &[OpClass::Atomic, OpClass::AtomicLogicFetch, OpClass::CmpXchg]))
}
