//! Lists what the passes changed, for people: by pass, function and BPF instruction, the ops made from the instruction,
//! before and after the pass.
//!
//! Problem: a pass counts its changes, and a count says neither where they are nor what they did. Approach: passes do
//! nothing for it. Each op keeps the BPF instructions that it came from, so this module compares the ops of each
//! instruction before and after a pass. Values are printed without names, because passes renumber values that they do
//! not change.
//!
//! Invariant: the function ends up as [`crate::passes::optimise`] leaves it.

use crate::passes::{Pass, PassOptions, PassScratch, each_pass};
use bpf_lir::{Func, Lir};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The change that one pass made to the ops of one instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The pass; [`Pass::Ssa`] stands for the construction and destruction of SSA form.
    pub pass: Pass,
    /// Index of the function in the program.
    pub func: usize,
    /// Instruction slot of the instruction.
    pub insn: u32,
    /// The instruction's ops before the pass, in code order; empty if an op of another instruction came to stand for
    /// this one.
    pub before: Vec<String>,
    /// The instruction's ops after the pass; empty if none is left.
    pub after: Vec<String>,
}

/// Runs the passes as [`crate::passes::optimise`] does; returns the changes in the order in which the passes ran.
pub fn report(lir: &mut Lir, options: PassOptions, scratch: &mut PassScratch) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut last: Vec<_> = lir.funcs.iter().map(ops_by_insn).collect();
    each_pass(lir, options, scratch, &mut |pass, func, now| {
        let now = ops_by_insn(now);
        let before = core::mem::replace(&mut last[func], now.clone());
        let mut insns: Vec<u32> = before.keys().chain(now.keys()).copied().collect();
        insns.sort_unstable();
        insns.dedup();
        for insn in insns {
            let of = |ops: &BTreeMap<u32, Vec<String>>| ops.get(&insn).cloned().unwrap_or_default();
            let (before, after) = (of(&before), of(&now));
            if before != after {
                changes.push(Change { pass, func, insn, before, after });
            }
        }
    });
    changes
}

/// Returns the ops of each instruction, without the names of values.
fn ops_by_insn(func: &Func) -> BTreeMap<u32, Vec<String>> {
    let mut all = BTreeMap::<u32, Vec<String>>::new();
    for block in &func.order {
        for i in func.range(*block) {
            all.entry(func.spans[i].first).or_default().push(nameless(&func.ops[i].to_string()));
        }
    }
    all
}

/// Replaces each name of a value or block in an op's text by `_`: `_ = add.64 _, 16`.
fn nameless(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.trim().chars().peekable();
    let mut inside = false;
    while let Some(c) = chars.next() {
        let names = matches!(c, 'v' | 'b') && !inside && chars.peek().is_some_and(char::is_ascii_digit);
        if names {
            while chars.next_if(char::is_ascii_digit).is_some() {}
            out.push('_');
        } else {
            // Writing to a string does not fail.
            let _ = out.write_char(c);
        }
        inside = c.is_alphanumeric() || c == '.';
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_has_its_instruction() {
        let text = "func 0 (v0, v1, -, -, -) {\nb0:\n v2 = load.b [v0 + 1] @3\n v3 = load.b [v0] @4\n \
                    v4 = shl.64 v2, 8 @5\n v5 = or.64 v3, v4 @6\n v6 = add.64 v1, v1 @7\n v7 = or.64 v6, 0 @8\n \
                    v8 = add.64 v5, v7 @9\n exit v8 @10\n}";
        let mut lir: Lir = text.parse().unwrap();
        let mut same = lir.clone();
        let changes = report(&mut lir, PassOptions::default(), &mut PassScratch::default());
        crate::passes::optimise(&mut same, PassOptions::default(), &mut PassScratch::default());
        assert_eq!(lir, same);
        let of = |insn| changes.iter().find(|change| (change.pass, change.insn) == (Pass::Values, insn));
        assert_eq!(of(6).unwrap().before, ["_ = or.64 _, _"]);
        assert_eq!(of(6).unwrap().after, ["_ = load.h [_]"]);
        assert!(of(3).unwrap().after.is_empty() && of(5).unwrap().after.is_empty());
        assert_eq!(of(9).unwrap().after, ["_ = addshift.64 _, _, 1"]);
        assert_eq!(of(10), None);
    }

    #[test]
    fn only_values_and_blocks_are_names() {
        assert_eq!(nameless(" v12 = select.64 v0 lt 100, v1, v2"), "_ = select.64 _ lt 100, _, _");
        assert_eq!(nameless("branch.32 v3 eq 0, b7"), "branch.32 _ eq 0, _");
        assert_eq!(nameless("v1 = load.b [v0 + 8]"), "_ = load.b [_ + 8]");
    }
}
