//! A fixed home for each BPF register: an allocation without a look at the function.
//!
//! Problem: liveness, webs and colouring take most of the time of a compilation, and a program that runs once or a few
//! times never gives it back. Approach: r0 to r9, the hidden argument and the may_goto counter each live in one place
//! throughout, where calls want them as far as that goes; which places are free is decided by what the program contains
//! at all ([`bpf_isa::Contents`]).
//!
//! Invariant: the allocation keeps the machine's promises for *any* order of the instructions: nothing that lives
//! across an op is where such an op may write. Registers that BPF calls clobber may be in registers that machine calls
//! clobber.

use crate::alloc::{Alloc, AllocOptions, Loc};
use crate::machine::{HostReg, HostRegSet, MachineDesc, OpClass};
use bpf_isa::{Contents, Reg};
use bpf_lir::VReg;

/// The hidden argument's virtual register.
pub(crate) const CTX: VReg = VReg(10);
/// The may_goto counter's.
pub(crate) const COUNTER: VReg = VReg(11);
const FIRST_TEMPORARY: u32 = 12;
/// The longest sequence that one instruction becomes, a checked access, needs ten.
pub(crate) const TEMPORARIES: u32 = 16;

/// The virtual register of a BPF register other than r10.
#[inline(always)]
pub(crate) fn home(reg: Reg) -> VReg {
    VReg(reg as u32)
}

/// The virtual register of an instruction's `n`th intermediate result, `n` below [`TEMPORARIES`].
#[inline(always)]
pub(crate) fn temporary(n: u32) -> VReg {
    VReg(FIRST_TEMPORARY + n)
}

/// What homes depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Needs {
    /// Of the program; its `read_early` and `stack` do not matter and are left empty, so that more programs are alike.
    pub(crate) contents: Contents,
    /// The function has a BPF stack.
    pub(crate) stack: bool,
    /// It reads the hidden argument.
    pub(crate) ctx: bool,
    /// Some instruction may have intermediate results. Without, their homes do not exist.
    pub(crate) temporaries: bool,
}

/// The last allocation made. Programs resemble each other more than one would think, and functions of a program even
/// more.
#[derive(Debug, Default)]
pub(crate) struct Last {
    alloc: Alloc,
    made_for: Option<(Needs, &'static MachineDesc, AllocOptions)>,
}

impl Last {
    /// The allocation of a function with these needs.
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

    // Without calls the hidden argument stays where it arrives.
    if needs.ctx && (contents.calls || !homes.place(CTX, machine.ctx)) {
        homes.keep(CTX);
    }
    // Each where calls and the function's own entry and exits want it. Only r0 may want the place of another.
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

/// Homes being given out.
struct Homes<'a> {
    /// Registers that calls leave alone, and all: what these have passed is not free, and never will be again.
    kept: core::slice::Iter<'a, HostReg>,
    scratch: core::slice::Iter<'a, HostReg>,
    /// Those that cost a save.
    saved_set: HostRegSet,
    free: HostRegSet,
    saved: HostRegSet,
    out: &'a mut Alloc,
}

impl Homes<'_> {
    /// Puts `v` into this register if it is free.
    fn place(&mut self, v: VReg, reg: HostReg) -> bool {
        let free = self.free.contains(reg);
        if free {
            self.settle(v, reg);
        }
        free
    }

    /// Where calls leave it alone.
    fn keep(&mut self, v: VReg) {
        let free = self.free;
        match self.kept.find(|reg| free.contains(**reg)) {
            Some(reg) => self.settle(v, *reg),
            None => self.slot(v),
        }
    }

    /// In a register that costs no save, if there is one.
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

/// The registers that some op of a program overwrites besides its result.
fn clobbers(contents: &Contents, machine: &MachineDesc) -> HostRegSet {
    let of = |present: bool, classes: &[OpClass]| {
        let all = classes.iter().map(|class| machine.fixed[*class as usize].clobbers);
        if present { all.fold(HostRegSet::EMPTY, HostRegSet::union) } else { HostRegSet::EMPTY }
    };
    of(contents.divisions, &[OpClass::Div, OpClass::Mod, OpClass::DivImm, OpClass::ModImm])
        .union(of(contents.register_shifts, &[OpClass::ShiftReg]))
        .union(of(contents.atomics, &[OpClass::Atomic, OpClass::AtomicLogicFetch, OpClass::CmpXchg]))
}
