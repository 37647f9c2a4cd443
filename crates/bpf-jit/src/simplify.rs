//! Orders values for colouring where there are too few registers.
//!
//! Problem: if values are coloured in the order of their weights, short-lived values scatter over the registers, and
//! long-lived ones find no register that is free all the time. Approach (Chaitin's simplification with Briggs's
//! optimistic colouring): a value with fewer neighbours than registers that it may be in always gets a register. It is
//! removed from the graph and coloured after all that remain, which lowers the degree of its neighbours. If only values
//! of higher degree remain, the one with the least weight in relation to its degree is removed; it is spilled if it
//! then finds no register.
//!
//! Invariant: the result is an order of all values. Any order gives a correct allocation, and only its quality depends
//! on the order. The cost is linear in conflicts and values but for a logarithmic factor. Above [`MAX_CONFLICTS`],
//! values are ordered by weight and no graph is built.

use bpf_lir::VReg;

/// Scratch memory, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Simplify {
    /// `edges[starts[v] .. starts[v + 1]]` are the neighbours of v.
    starts: Vec<u32>,
    edges: Vec<u32>,
    /// By value: how many neighbours are left in the graph; [`GONE`] once the value itself was removed.
    degrees: Vec<u32>,
    /// By value: how many registers it may be in.
    registers: Vec<u32>,
    /// The values, ordered by their `worth`, least first.
    by_worth: Vec<u32>,
    worth: Vec<u64>,
    easy: Vec<u32>,
}

const GONE: u32 = u32::MAX;

/// The most conflicts of which a graph is built. Each takes two entries of four bytes.
const MAX_CONFLICTS: usize = 1 << 22;

impl Simplify {
    /// Puts all values into `order`, the first to be coloured first.
    ///
    /// `conflicts` calls its argument with each pair of values that live at the same time, possibly several times, and
    /// `count` is the number of calls. `registers` says how many registers each value may be in, `weights` how often it
    /// is read and written.
    pub(crate) fn order(
        &mut self,
        weights: &[u64],
        registers: impl Iterator<Item = u32>,
        (count, conflicts): (usize, impl Fn(&mut dyn FnMut(VReg, VReg))),
        order: &mut Vec<VReg>,
    ) {
        let values = weights.len();
        if count > MAX_CONFLICTS {
            order.clear();
            order.extend((0..crate::num::small(values)).map(VReg));
            return order.sort_by_key(|v| core::cmp::Reverse(weights[v.index()]));
        }
        self.registers.clear();
        self.registers.extend(registers);
        self.find_edges(values, conflicts);
        self.worth.clear();
        // A weight is at most 2^18 for each occurrence of the value in an op, and there are fewer than 2^34
        // occurrences, so the shift by 12 does not overflow.
        self.worth.extend(weights.iter().zip(&self.degrees).map(|(w, d)| (w << 12) / u64::from(d + 1)));
        self.by_worth.clear();
        self.by_worth.extend(0..crate::num::small(values));
        self.by_worth.sort_by_key(|v| self.worth[*v as usize]);
        self.easy.clear();
        order.clear();
        for v in (0..values).rev() {
            if self.degrees[v] < self.registers[v] {
                self.easy.push(crate::num::small(v));
            }
        }
        let by_worth = core::mem::take(&mut self.by_worth);
        let mut difficult = by_worth.iter();
        loop {
            while let Some(v) = self.easy.pop() {
                self.take(v, order);
            }
            let Some(v) = difficult.find(|v| self.degrees[**v as usize] != GONE) else { break };
            self.take(*v, order);
        }
        self.by_worth = by_worth;
        order.reverse();
    }

    /// Removes a value from the graph.
    fn take(&mut self, v: u32, order: &mut Vec<VReg>) {
        if core::mem::replace(&mut self.degrees[v as usize], GONE) == GONE {
            return;
        }
        order.push(VReg(v));
        for i in self.starts[v as usize]..self.starts[v as usize + 1] {
            let o = self.edges[i as usize];
            let degree = &mut self.degrees[o as usize];
            if *degree != GONE {
                *degree -= 1;
                if *degree + 1 == self.registers[o as usize] {
                    self.easy.push(o);
                }
            }
        }
    }

    /// Lists each value's neighbours, each once.
    fn find_edges(&mut self, values: usize, conflicts: impl Fn(&mut dyn FnMut(VReg, VReg))) {
        let Self { starts, edges, degrees, .. } = self;
        starts.clear();
        starts.resize(values + 1, 0);
        conflicts(&mut |a, b| {
            starts[a.index()] += 1;
            starts[b.index()] += 1;
        });
        // The ends of the lists, which are filled from behind.
        let mut sum = 0;
        for start in starts.iter_mut() {
            sum += *start;
            *start = sum;
        }
        edges.clear();
        edges.resize(sum as usize, 0);
        conflicts(&mut |a, b| {
            for (v, o) in [(a, b), (b, a)] {
                starts[v.index()] -= 1;
                edges[starts[v.index()] as usize] = o.0;
            }
        });
        degrees.clear();
        let mut kept = 0;
        for v in 0..values {
            let (start, end) = (starts[v] as usize, starts[v + 1] as usize);
            starts[v] = crate::num::small(kept);
            edges[start..end].sort_unstable();
            let mut last = None;
            for i in start..end {
                if last.replace(edges[i]) != Some(edges[i]) {
                    edges[kept] = edges[i];
                    kept += 1;
                }
            }
            degrees.push(crate::num::small(kept) - starts[v]);
        }
        starts[values] = crate::num::small(kept);
    }
}
