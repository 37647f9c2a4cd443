//! Estimates how often values are read and written, for an allocation that has too few registers.
//!
//! Without profiles, each loop counts as a fixed number of rounds. All blocks between the target of a backward jump and
//! the jump count as inside the loop, which is nearly exact in the order that compilers give blocks.

use bpf_lir::Func;

/// The base-2 logarithm of the rounds that each loop counts as ...
const ROUNDS_LOG2: i32 = 3;
/// ... and the greatest loop depth that is counted.
const MAX_DEPTH: i32 = 6;

/// The weights of a function's values, and scratch memory.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    /// By value: the estimated number of reads and writes.
    weights: Vec<u64>,
    /// By position in the order: how many loops begin there, less how many ended before.
    begins: Vec<i32>,
    /// By block: its position in the order, once it was met.
    places: Vec<Option<u32>>,
}

impl Weights {
    /// Returns the weights of the values of `func`.
    pub(crate) fn of(&mut self, func: &Func) -> &[u64] {
        self.begins.clear();
        self.begins.resize(func.order.len() + 1, 0);
        self.places.clear();
        self.places.resize(func.blocks.len(), None);
        for (block, place) in func.order.iter().zip(0..) {
            self.places[block.index()] = Some(place);
            // The target of a backward jump was met before.
            if let Some(head) = func.ends(*block).taken.and_then(|taken| self.places[taken.index()]) {
                self.begins[head as usize] += 1;
                self.begins[place as usize + 1] -= 1;
            }
        }
        self.weights.clear();
        self.weights.resize(func.vregs as usize, 0);
        let mut depth = 0;
        for (begins, (_, ops)) in self.begins.iter().zip(func.in_order()) {
            depth += begins;
            let weight = 1 << (ROUNDS_LOG2 * depth.clamp(0, MAX_DEPTH));
            for op in ops {
                op.for_each_use(|v| self.weights[v.index()] += weight);
                op.def().into_iter().for_each(|v| self.weights[v.index()] += weight);
            }
        }
        &self.weights
    }
}
