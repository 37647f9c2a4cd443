//! How much machine stack a program takes.

use bpf_isa::{Callee, Insn, Program};
use bpf_jit_code::{Code, TAIL_CALL_LIMIT};
use bpf_uapi::helper_id;

/// Worst machine stack of a run in bytes: the deepest chain of calls; and for tail calls out of subprograms, where the
/// callers' frames stay, that chain once more for every tail call a run may take.
pub(super) fn worst_stack(program: &Program, code: &Code) -> u64 {
    let n = program.subprogs().len();
    if n == 1 {
        return u64::from(code.frames.first().map_or(0, |frame| frame.bytes));
    }
    let mut depth = vec![0u64; n];
    // The call graph has no cycle and at most MAX_CALL_DEPTH levels, so that many rounds reach the fixpoint.
    for _ in 0..bpf_isa::MAX_CALL_DEPTH {
        for sub in (0..crate::num::small(n)).map(bpf_isa::SubprogId) {
            let callees = program.calls_of(sub).iter().map(|call| {
                // A callback comes back through a helper and the entry sequence.
                depth[call.callee.index()] + if call.callback { CALLBACK_BYTES } else { 0 }
            });
            let below = callees.max().unwrap_or(0);
            depth[sub.index()] = u64::from(code.frames.get(sub.index()).map_or(0, |frame| frame.bytes)) + below;
        }
    }
    let tail_calls = |sub: bpf_isa::SubprogId| {
        let range = program.subprogs()[sub.index()];
        program.insns()[range.start as usize..range.end as usize]
            .contains(&Insn::Call(Callee::Helper(helper_id::TAIL_CALL)))
    };
    let nested = (1..crate::num::small(n)).any(|i| tail_calls(bpf_isa::SubprogId(i)));
    depth[0] * if nested { 1 + u64::from(TAIL_CALL_LIMIT) } else { 1 }
}

/// Upper bound on the machine stack of a helper that calls back, in bytes, with a margin.
const CALLBACK_BYTES: u64 = 2048;
