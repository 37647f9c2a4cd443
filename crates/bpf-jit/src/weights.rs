//! How much values are read and written, for an allocation that has too few registers.
//!
//! Without profiles each loop counts as so many rounds, and what lies between a jump back and its target as inside the
//! loop, which the order of the code makes nearly exact.

use bpf_lir::Func;

/// Each loop counts as two to the power of this many rounds ...
const ROUNDS_LOG2: i32 = 3;
/// ... and so many loops inside each other; deeper ones no more.
const MAX_DEPTH: i32 = 6;

/// The weights of a function's values, with the memory they are found in.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    /// By value.
    weights: Vec<u64>,
    /// By place in the order: how many loops begin there, less those that ended before.
    begins: Vec<i32>,
    /// By block: its place, once it was met.
    places: Vec<Option<u32>>,
}

impl Weights {
    /// The weights of the values of `func`.
    pub(crate) fn of(&mut self, func: &Func) -> &[u64] {
        self.begins.clear();
        self.begins.resize(func.order.len() + 1, 0);
        self.places.clear();
        self.places.resize(func.blocks.len(), None);
        for (block, place) in func.order.iter().zip(0..) {
            self.places[block.index()] = Some(place);
            // What leads back was met before.
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
