//! Webs: sets of definitions and uses of a BPF register that must share a location.
//!
//! Each web becomes one virtual register. Webs are found while lowering, by union-find: a definition begins a web, and
//! where two paths meet with different webs of a register, the two are united.

use bpf_analysis::RegSet;
use bpf_isa::Reg;
use bpf_lir::VReg;

pub(super) const NONE: u32 = u32::MAX;
pub(super) const NO_WEB: VReg = VReg(NONE);
pub(super) const REGS: usize = 11;

/// The webs of the registers at the start of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryWebs {
    /// The registers that have a web: those live there, once a predecessor or the block itself was walked.
    pub(super) known: RegSet,
    /// By register: its web; [`NO_WEB`] for registers without one.
    pub(super) of: [VReg; REGS],
}

impl EntryWebs {
    pub(super) const UNKNOWN: EntryWebs = EntryWebs { known: RegSet::EMPTY, of: [NO_WEB; REGS] };

    /// Returns the webs of the registers in `live`.
    pub(super) fn select(live: RegSet, webs: &[VReg; REGS]) -> EntryWebs {
        let mut entry = EntryWebs { known: live, of: *webs };
        for (web, reg) in entry.of.iter_mut().zip(Reg::ALL) {
            *web = if live.contains(reg) { *web } else { NO_WEB };
        }
        entry
    }

    /// Returns the known registers whose web in `webs` differs.
    pub(super) fn differing(&self, webs: &[VReg; REGS]) -> RegSet {
        let pairs = self.of.iter().zip(webs).zip(Reg::ALL);
        let differ =
            pairs.fold(RegSet::EMPTY, |set, ((a, b), reg)| if a == b { set } else { set.union(RegSet::of(reg)) });
        differ.intersection(self.known)
    }
}

/// Union-find over webs.
#[derive(Debug, Default)]
pub(super) struct Webs {
    pub(super) parent: Vec<u32>,
    pub(super) united: bool,
}

impl Webs {
    pub(super) fn clear(&mut self) {
        self.parent.clear();
        self.united = false;
    }
    pub(super) fn fresh(&mut self) -> VReg {
        self.parent.push(crate::num::small(self.parent.len()));
        VReg(crate::num::small(self.parent.len()) - 1)
    }
    pub(super) fn find(&mut self, mut w: u32) -> u32 {
        while self.parent[w as usize] != w {
            self.parent[w as usize] = self.parent[self.parent[w as usize] as usize];
            w = self.parent[w as usize];
        }
        w
    }
    pub(super) fn unite(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        if a != b {
            self.parent[a.max(b) as usize] = a.min(b);
            self.united = true;
        }
    }

    /// Replaces every entry by the number of its class, counting classes in the order of their first web; returns the
    /// number of classes.
    pub(super) fn number(&mut self) -> u32 {
        let mut next = 0;
        // The root of a class is its smallest web, so it is met before the rest of the class.
        for w in 0..self.parent.len() {
            let parent = self.parent[w] as usize;
            self.parent[w] = if parent == w {
                next += 1;
                next - 1
            } else {
                self.parent[parent]
            };
        }
        next
    }
}
