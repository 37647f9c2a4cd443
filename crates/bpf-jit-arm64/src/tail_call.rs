//! Tail calls.
//!
//! A site unwinds its own function completely and jumps to the target's entry, so each function chooses the registers
//! that it saves. Every condition under which the call falls through is checked before anything is changed;
//! `tail_calls` counts the jumps taken.
//!
//! ```text
//! dynamic                                  constant: a direct, patchable site
//!   entries = [table]                        count = [ctx.tail_calls]
//!   cmp  index, entries; b.hs out            cmp  count, 33; b.hs out
//!   count = [ctx.tail_calls]                 BYPASS: b out               (nop: open)
//!   cmp  count, 33; b.hs out                 [ctx.tail_calls] = count + 1
//!   target = [table + 8 * index + 8]         arguments, unwind
//!   cbz  target, out                         TARGET: nop                 (b program)
//!   [ctx.tail_calls] = count + 1           out:
//!   arguments, unwind
//!   br   target
//! out:
//! ```
//! Invariant: no value's register or slot is written before `tail_calls` is.
//!
//! The index is 32 bits wide: it is compared as such, and extended as it is added. The target is in x16, so `bti c` is
//! the landing pad of an entry, whether called or tail-called.

use crate::Emitter;
use crate::asm::asm;
use crate::jump::{Cc, Jump};
use crate::regs::{ARGS, AUX, CTX, Gpr, TMP0, TMP1, TMP2};
use bpf_isa::Width;
use bpf_jit::{DirectSite, EmitOptions, Skeleton, TailKey, VReg};
use bpf_jit_code::layout::Label;
use bpf_jit_code::{RunCtx, TAIL_CALL_LIMIT, UnwindOp};

/// Offset of the entries in a table: behind their number and its padding.
const TABLE_ENTRIES_OFFSET: u32 = 8;

/// Behind a return or an indirect jump: a barrier, if it is hardened.
pub(crate) fn no_straight_line(s: &mut Skeleton<Jump>, options: &EmitOptions) {
    if options.hardening.straight_line {
        asm!(&mut s.buf; dsb sy; isb);
    }
}

impl Emitter<'_> {
    pub(crate) fn tail_call(&mut self, key: TailKey, arg: VReg, ctx: VReg, reload_len: bool) {
        let out = self.s.layout.label();
        let direct = match key {
            TailKey::Dynamic { table, index } => {
                let table = self.get(table, TMP1);
                let index = self.get(index, TMP2);
                asm!(&mut self.s.buf; ldr W(AUX), [XSP(table)]; cmp W(index), W(AUX));
                self.go(Jump::If(Cc::Hs), out);
                let counter = self.check_count(ctx, out);
                asm!(&mut self.s.buf;
                    add XSP(TMP2), XSP(table), W(index), uxtw 3;
                    ldr X(TMP2), [XSP(TMP2), TABLE_ENTRIES_OFFSET]);
                self.go(Jump::Zero { nonzero: false, width: Width::W64, reg: TMP2 }, out);
                self.replace(counter, arg, ctx, reload_len);
                asm!(&mut self.s.buf; br X(TMP2));
                no_straight_line(self.s, self.options);
                None
            }
            TailKey::Const { table, index } => {
                let counter = self.check_count(ctx, out);
                let bypass = self.s.patch_slot();
                self.go(Jump::Always, out);
                self.replace(counter, arg, ctx, reload_len);
                let target = self.s.patch_slot();
                asm!(&mut self.s.buf; nop);
                Some(DirectSite { table, index, bypass, target, out })
            }
        };
        self.unwind_note(UnwindOp::Recall);
        self.s.bind(out);
        self.s.tail_call(direct);
    }

    /// Leaves the count in `AUX` and returns the register that addresses it, or goes to `out`.
    fn check_count(&mut self, ctx: VReg, out: Label) -> Gpr {
        let counter = self.get(ctx, TMP0);
        asm!(&mut self.s.buf; ldr W(AUX), [XSP(counter), RunCtx::TAIL_CALLS_OFFSET as u32]; cmp WSP(AUX), TAIL_CALL_LIMIT);
        self.go(Jump::If(Cc::Hs), out);
        counter
    }

    /// The point of no return: counts, passes the arguments, and unwinds. Leaves `TMP2` alone.
    fn replace(&mut self, counter: Gpr, arg: VReg, ctx: VReg, reload_len: bool) {
        asm!(&mut self.s.buf;
            add WSP(AUX), WSP(AUX), 1;
            str W(AUX), [XSP(counter), RunCtx::TAIL_CALLS_OFFSET as u32]);
        self.queue_move(ARGS[0], arg);
        self.queue_move(CTX, ctx);
        self.queued_moves();
        if reload_len {
            asm!(&mut self.s.buf; ldr X(ARGS[1]), [XSP(CTX), RunCtx::PACKET_LEN_OFFSET as u32]);
        }
        self.unwind();
    }
}
