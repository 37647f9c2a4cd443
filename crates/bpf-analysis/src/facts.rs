//! What a verifier, or a cheaper analysis, has found out: all that passes from it to the JIT.

use bpf_isa::InsnIdx;

/// A tail call whose table and index are the same constants on every path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConstTailCall {
    /// The call.
    pub insn: InsnIdx,
    /// The table's index in the program's map list.
    pub map: u32,
    /// The index into the table.
    pub index: u32,
}

/// Facts about one program. The default knows nothing, and everything is correct with it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Bytes of stack each subprogram uses at most, by subprogram; empty when not known.
    pub stack_bytes: Vec<u32>,
    /// Tail calls with constant table and index, ascending by instruction.
    pub tail_calls: Vec<ConstTailCall>,
}

impl Facts {
    /// The constant table and index of the tail call at `insn`, if known.
    pub fn tail_call(&self, insn: InsnIdx) -> Option<&ConstTailCall> {
        self.tail_calls.binary_search_by_key(&insn, |t| t.insn).ok().map(|i| &self.tail_calls[i])
    }
}
