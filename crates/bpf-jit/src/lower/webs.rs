//! Webs: the definitions and uses of a BPF register that must share a home.
//!
//! Each becomes one virtual register. They are found while lowering, by union-find: a definition begins a web, and where two paths
//! meet with different webs of a register, the two are united.

use crate::lir::VReg;
use bpf_analysis::BlockId as BpfBlock;
use bpf_isa::Reg;

pub(super) const NONE: u32 = u32::MAX;
pub(super) const NO_WEB: VReg = VReg(NONE);
pub(super) const REGS: usize = 11;

/// Where the web of `reg` at the start of `block` is kept.
pub(super) fn web_index(block: BpfBlock, reg: Reg) -> usize {
    block.index() * REGS + reg.index()
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
        self.parent.push(self.parent.len() as u32);
        VReg(self.parent.len() as u32 - 1)
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

    /// Replaces every entry by the number of its class, counting classes in order of their first web; returns how many there are.
    pub(super) fn number(&mut self) -> u32 {
        let mut next = 0;
        // A class is named after its smallest web, so a root is met before the rest of its class.
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
