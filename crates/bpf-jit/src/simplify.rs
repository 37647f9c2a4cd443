//! In which order values get registers where there are too few.
//!
//! Problem: in whatever order values are coloured by how much they are worth, those that live for a moment scatter over
//! the registers, and those that live long find none that is free all the time. Approach (Chaitin, and Briggs for what
//! is spilled last): a value with fewer neighbours than it may be in registers always finds one, so it is taken out of
//! the graph and coloured after all that are left, which makes its neighbours easier in turn. Where only difficult
//! values are left, the one that is read and written least for as many as it is in the way of is taken out; it goes
//! without if it then finds none.
//!
//! Invariant: an order of all values; what it is decides nothing but how good the outcome is. Linear in conflicts and
//! values, but for their logarithm. Above [`MAX_CONFLICTS`], for which no memory is taken, values come by their weight.

use bpf_lir::VReg;

/// The memory that it works in.
#[derive(Debug, Default)]
pub(crate) struct Simplify {
    /// `edges[starts[v] .. starts[v + 1]]` are the neighbours of v.
    starts: Vec<u32>,
    edges: Vec<u32>,
    /// By value: how many neighbours are left; [`GONE`] once it was taken out.
    degrees: Vec<u32>,
    /// By value: how many registers it may be in.
    registers: Vec<u32>,
    /// The values by what they are worth, least first.
    by_worth: Vec<u32>,
    worth: Vec<u64>,
    easy: Vec<u32>,
}

const GONE: u32 = u32::MAX;

/// Of how many conflicts a graph is made: so many neighbours, twice, of four bytes each.
const MAX_CONFLICTS: usize = 1 << 22;

impl Simplify {
    /// Puts the values into `order`, the first to be coloured first.
    ///
    /// `conflicts` calls its argument with each pair of values that live at once, perhaps several times; `registers`
    /// is how many registers a value may be in, `weights` how much it is read and written. There are `count` conflicts.
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
        // A weight is at most 2^18 for each time an op names a value, which are fewer than 2^34.
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

    /// Takes a value out of the graph.
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

    /// Writes down each value's neighbours, each once.
    fn find_edges(&mut self, values: usize, conflicts: impl Fn(&mut dyn FnMut(VReg, VReg))) {
        let Self { starts, edges, degrees, .. } = self;
        starts.clear();
        starts.resize(values + 1, 0);
        conflicts(&mut |a, b| {
            starts[a.index()] += 1;
            starts[b.index()] += 1;
        });
        // Where the lists end; they are filled from behind.
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
