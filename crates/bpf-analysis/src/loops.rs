//! The loops of a program: which jumps lead back, to which head, and what lies in between.
//!
//! Approach: Havlak's. One depth-first numbering a subprogram says which edges lead back to an ancestor; heads are then
//! taken from the last to the first, so that inner loops are found before the outer ones and each is collapsed
//! (union-find) into its head. Time is nearly linear in the blocks and edges, whatever their shape.
//!
//! A loop is what is strongly connected with its head among all that is below the head in the depth-first tree, however
//! it is entered: so each cycle has the first of its blocks as the head of a loop that contains it.
//!
//! Invariant: a loop is called *natural* only if it and all others of its subprogram are entered at their heads alone.
//! One loop that is entered elsewhere makes every loop of its subprogram not natural: which of its entries is the head
//! is then chance, and passing the head is not the only way in.

use crate::cfg::{BlockId, Cfg};
use bpf_isa::{InsnIdx, Program, SubprogId};

const NONE: u32 = u32::MAX;

/// A loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loop {
    /// The first instruction of its head.
    pub head: InsnIdx,
    /// The number of the innermost loop around it.
    pub parent: Option<u32>,
    /// How many loops are around it.
    pub depth: u32,
    /// How many instruction slots are in it, inner loops included.
    pub slots: u32,
    /// Whether every loop of its subprogram is entered at its head only.
    pub natural: bool,
}

/// The loops of a program, outer ones before the inner ones of the same subprogram.
#[derive(Debug, Default)]
pub struct Loops {
    loops: Vec<Loop>,
    /// By block: its innermost loop.
    inner: Vec<u32>,
    cfg: Cfg,
    /// By slot: its block.
    block_of: Vec<u32>,
    work: Work,
}

/// Scratch memory, by block.
#[derive(Debug, Default)]
struct Work {
    /// Depth-first number.
    number: Vec<u32>,
    /// By number: the block, the last number below it in the tree, the head of the loop it is in, the union-find
    /// parent.
    block: Vec<u32>,
    last: Vec<u32>,
    head: Vec<u32>,
    set: Vec<u32>,
    /// By number: it is a head.
    is_head: Vec<bool>,
    preds: Vec<Vec<u32>>,
    stack: Vec<(u32, u32)>,
}

impl Work {
    fn find(&mut self, mut x: u32) -> u32 {
        while self.set[x as usize] != x {
            let up = self.set[self.set[x as usize] as usize];
            self.set[x as usize] = up;
            x = up;
        }
        x
    }
    /// Whether `a` is `b`, or above it in the tree.
    fn above(&self, a: u32, b: u32) -> bool {
        a <= b && b <= self.last[a as usize]
    }
}

impl Loops {
    /// The loops of one program.
    pub fn new(program: &Program) -> Loops {
        let mut loops = Loops::default();
        loops.build(program);
        loops
    }

    /// Replaces them by those of `program` and keeps the memory.
    pub fn build(&mut self, program: &Program) {
        self.cfg.build(program);
        self.loops.clear();
        self.inner.clear();
        let blocks = self.cfg.blocks().len();
        self.inner.resize(blocks, NONE);
        self.block_of.clear();
        self.block_of.resize(program.insns().len(), NONE);
        for (i, b) in self.cfg.blocks().iter().enumerate() {
            self.block_of[b.start as usize..b.end as usize].fill(crate::small(i));
        }
        self.work.number.clear();
        self.work.number.resize(blocks, NONE);
        for sub in 0..program.subprogs().len() {
            let range = self.cfg.subprog_blocks(SubprogId(crate::small(sub)));
            self.subprog(range.start);
        }
    }

    /// All loops.
    pub fn loops(&self) -> &[Loop] {
        &self.loops
    }

    /// The blocks they are made of.
    pub fn cfg(&self) -> &Cfg {
        &self.cfg
    }

    /// The innermost loop that the instruction is in.
    pub fn innermost(&self, at: InsnIdx) -> Option<u32> {
        let block = *self.block_of.get(at.index())?;
        let l = *self.inner.get(block as usize)?;
        (l != NONE).then_some(l)
    }

    /// Whether the instruction is in the loop.
    pub fn contains(&self, id: u32, at: InsnIdx) -> bool {
        let Some(want) = self.loops.get(id as usize) else { return false };
        let mut l = self.innermost(at);
        while let Some(i) = l {
            if i == id {
                return true;
            }
            let found = &self.loops[i as usize];
            if found.depth <= want.depth {
                return false;
            }
            l = found.parent;
        }
        false
    }

    /// The loop with this head.
    pub fn headed(&self, at: InsnIdx) -> Option<u32> {
        let l = self.innermost(at)?;
        (self.loops[l as usize].head == at).then_some(l)
    }

    fn subprog(&mut self, entry: u32) {
        self.number_from(entry);
        let irreducible = self.collapse();
        // Outer heads have smaller numbers than the heads in their loops.
        let w = &self.work;
        let first = crate::small(self.loops.len());
        let mut of = vec![NONE; w.block.len()];
        for n in 0..w.block.len() {
            let parent = match w.head[n] {
                NONE => NONE,
                h => of[h as usize],
            };
            let block = &self.cfg.blocks()[w.block[n] as usize];
            if w.is_head[n] {
                of[n] = crate::small(self.loops.len());
                let depth = if parent == NONE { 0 } else { self.loops[parent as usize].depth + 1 };
                let parent = (parent != NONE).then_some(parent);
                self.loops.push(Loop { head: InsnIdx(block.start), parent, depth, slots: 0, natural: !irreducible });
            }
            self.inner[w.block[n] as usize] = if w.is_head[n] { of[n] } else { parent };
        }
        for n in 0..w.block.len() {
            let block = &self.cfg.blocks()[w.block[n] as usize];
            let l = self.inner[w.block[n] as usize];
            if l != NONE {
                self.loops[l as usize].slots += block.end - block.start;
            }
        }
        for l in (first..crate::small(self.loops.len())).rev() {
            let Loop { parent, slots, .. } = self.loops[l as usize];
            if let Some(p) = parent {
                self.loops[p as usize].slots += slots;
            }
        }
    }

    /// Numbers the blocks that the entry reaches, depth first.
    fn number_from(&mut self, entry: u32) {
        let w = &mut self.work;
        w.block.clear();
        w.last.clear();
        w.stack.clear();
        w.number[entry as usize] = 0;
        w.block.push(entry);
        w.last.push(0);
        w.stack.push((entry, 0));
        while let Some((b, next)) = w.stack.last_mut() {
            let block = self.cfg.block(BlockId(*b));
            let succ = match *next {
                0 => block.next,
                1 => block.taken,
                n if (n as usize) < self.cfg.indirect(BlockId(*b)).len() + 2 => {
                    Some(self.cfg.indirect(BlockId(*b))[n as usize - 2])
                }
                _ => {
                    let n = w.number[*b as usize] as usize;
                    w.last[n] = crate::small(w.block.len()) - 1;
                    w.stack.pop();
                    continue;
                }
            };
            *next += 1;
            if let Some(s) = succ
                && w.number[s.index()] == NONE
            {
                w.number[s.index()] = crate::small(w.block.len());
                w.block.push(s.0);
                w.last.push(0);
                w.stack.push((s.0, 0));
            }
        }
    }

    /// Finds the loop of each block, innermost first. Whether some loop is entered elsewhere than at its head.
    fn collapse(&mut self) -> bool {
        let w = &mut self.work;
        let count = w.block.len();
        w.head.clear();
        w.head.resize(count, NONE);
        w.is_head.clear();
        w.is_head.resize(count, false);
        w.set.clear();
        w.set.extend(0..crate::small(count));
        w.preds.iter_mut().for_each(Vec::clear);
        if w.preds.len() < count {
            w.preds.resize(count, Vec::new());
        }
        for n in 0..count {
            for s in self.cfg.succs(BlockId(w.block[n])) {
                let to = w.number[s.index()];
                w.preds[to as usize].push(crate::small(n));
            }
        }
        let mut irreducible = false;
        let mut body: Vec<u32> = Vec::new();
        let mut in_body = vec![NONE; count];
        for head in (0..crate::small(count)).rev() {
            body.clear();
            let mut preds = std::mem::take(&mut w.preds[head as usize]);
            // Predecessors that enter the loop elsewhere than at its head. An enclosing loop must contain them as it
            // contains the predecessors of the head.
            let mut entries: Vec<u32> = Vec::new();
            for &p in &preds {
                if !w.above(head, p) {
                    continue;
                }
                w.is_head[head as usize] = true;
                let p = w.find(p);
                if p != head && in_body[p as usize] != head {
                    in_body[p as usize] = head;
                    body.push(p);
                }
            }
            let mut i = 0;
            while i < body.len() {
                let preds = std::mem::take(&mut w.preds[body[i] as usize]);
                for &p in &preds {
                    // A predecessor inside an inner loop is represented by that loop's head.
                    let p = w.find(p);
                    if !w.above(head, p) {
                        irreducible = true;
                        entries.push(p);
                    } else if p != head && in_body[p as usize] != head {
                        in_body[p as usize] = head;
                        body.push(p);
                    }
                }
                w.preds[body[i] as usize] = preds;
                i += 1;
            }
            for b in &body {
                w.head[*b as usize] = head;
                w.set[*b as usize] = head;
            }
            preds.append(&mut entries);
            w.preds[head as usize] = preds;
        }
        irreducible
    }
}
