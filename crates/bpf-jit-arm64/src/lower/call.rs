//! Calls, exits, and the ways out of a run that is stopped.
//!
//! Arguments go to x0 to x4 and x5 in one parallel move, of which a good allocation leaves nothing. A stopped run leaves through the nearest
//! entry sequence, whose stack pointer and continuation are in the `RunCtx`: a check that fails branches to a stub behind the function,
//! which notes where it was and goes on to the stop sequence of its reason, of which a program has at most one each.

use crate::asm::asm;
use crate::jump::{Cc, Jump};
use crate::lower::alu::mov_imm;
use crate::lower::branch::{Comparison, constant_outcome};
use crate::lower::mem::{Address, load};
use crate::regs::{ARGS, AUX, CTX, Gpr, RET, TMP0, TMP1, TMP2};
use crate::{Arm64, Emitter};
use bpf_isa::{Size, SubprogId, Width};
use bpf_jit::{CallTarget, Check, Cond, Loc, Move, MoveSrc, VReg, Val, parallel_moves};
use bpf_jit_code::layout::Label;
use bpf_jit_code::{Reloc, RelocKind, RunCtx, StopCode, UnwindOp};

// The stop sequence stores and loads these fields in pairs.
const _: () = assert!(RunCtx::STOP_INSN_OFFSET == RunCtx::STOP_CODE_OFFSET + 4);
const _: () = assert!(RunCtx::EXIT_PC_OFFSET == RunCtx::EXIT_SP_OFFSET + 8);

/// Where a failed check goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stub {
    label: Label,
    ctx: VReg,
    code: StopCode,
    insn: u32,
}

/// Why a run stops when a check fails.
pub(crate) fn stop_code(check: Check) -> StopCode {
    match check {
        Check::Budget => StopCode::Budget,
        Check::Interrupt => StopCode::Interrupted,
    }
}

impl Emitter<'_> {
    /// Queues the move of a value to a register.
    pub(crate) fn queue_move(&mut self, dst: Gpr, src: VReg) {
        let src = MoveSrc::Loc(self.loc(src));
        self.s.moves.push(Move { dst: dst.into(), src });
    }

    /// Emits the queued moves as one parallel move. Overwrites `TMP0`.
    pub(crate) fn queued_moves(&mut self) {
        let mut moves = core::mem::take(&mut self.s.moves);
        parallel_moves(&mut moves, TMP0.into(), |Move { dst, src }| {
            let d = Gpr::from(dst);
            match src {
                MoveSrc::Loc(Loc::Reg(s)) => asm!(&mut self.s.buf; mov X(d), X(Gpr::from(s))),
                MoveSrc::Loc(Loc::Slot(index)) => {
                    let at = Address { base: Gpr::SP, off: self.frame.slot(index).into() };
                    load(&mut self.s.buf, Size::DW, false, d, at);
                }
                MoveSrc::Imm(imm) => mov_imm(&mut self.s.buf, d, imm as u64),
            }
        });
        self.s.moves = moves;
    }

    pub(crate) fn call(&mut self, target: CallTarget, args: [Option<VReg>; 5], ctx: Option<VReg>, ret: Option<VReg>) {
        for (reg, arg) in ARGS.into_iter().zip(args).chain([(CTX, ctx)]) {
            if let Some(arg) = arg {
                self.queue_move(reg, arg);
            }
        }
        self.queued_moves();
        match target {
            CallTarget::Extern(symbol) => {
                let at = self.s.buf.len() as u32;
                self.code.relocs.push(Reloc { at, kind: RelocKind::Arm64Branch26, symbol });
                asm!(&mut self.s.buf; bl 0);
            }
            CallTarget::Subprog(subprog) => self.go(Jump::Call, self.s.entry(subprog)),
        }
        if let Some(ret) = ret {
            self.set(ret, RET);
        }
    }

    pub(crate) fn subprog_addr(&mut self, dst: VReg, subprog: SubprogId) {
        let d = self.dst(dst);
        self.go(Jump::Address { dst: d }, self.s.entry(subprog));
        self.put(dst, d);
    }

    pub(crate) fn exit(&mut self, value: VReg) {
        let v = self.reg(value, RET);
        if v != RET {
            asm!(&mut self.s.buf; mov X(RET), X(v));
        }
        if self.frame.is_empty() {
            asm!(&mut self.s.buf; ret);
        } else if let Some(shared) = self.epilogue {
            self.go(Jump::Always, shared);
        } else {
            let label = self.s.layout.label();
            self.s.layout.bind(&self.s.buf, label);
            self.leave();
            asm!(&mut self.s.buf; ret);
            self.unwind_note(UnwindOp::Recall);
            self.epilogue = Some(label);
        }
    }

    pub(crate) fn check(&mut self, check: Check, ctx: VReg) {
        let at = self.reg(ctx, TMP1);
        let jump = match check {
            Check::Budget => {
                let offset = RunCtx::BUDGET_OFFSET as u32;
                asm!(&mut self.s.buf;
                    ldr X(TMP2), [XSP(at), offset];
                    subs X(TMP2), XSP(TMP2), 1;
                    str X(TMP2), [XSP(at), offset]);
                Jump::If(Cc::Lt)
            }
            Check::Interrupt => {
                asm!(&mut self.s.buf; ldr W(TMP2), [XSP(at), RunCtx::INTERRUPT_OFFSET as u32]);
                Jump::Zero { nonzero: true, width: Width::W32, reg: TMP2 }
            }
        };
        let label = self.s.layout.label();
        self.s.stubs.push(Stub { label, ctx, code: stop_code(check), insn: self.insn });
        self.go(jump, label);
    }

    pub(crate) fn bound(&mut self, a: VReg, limit: Val, ctx: VReg) {
        let comparison = Comparison { width: Width::W64, cond: Cond::Ge, a, b: limit };
        let at = self.reg(a, TMP0);
        let jump = match constant_outcome(comparison) {
            Some(false) => return,
            Some(true) => Jump::Always,
            None => Jump::If(self.flags(comparison, at)),
        };
        let label = self.s.layout.label();
        self.s.stubs.push(Stub { label, ctx, code: StopCode::Access, insn: self.insn });
        self.go(jump, label);
    }

    pub(crate) fn stop(&mut self, code: StopCode, ctx: VReg) {
        let at = self.reg(ctx, CTX);
        if at != CTX {
            asm!(&mut self.s.buf; mov X(CTX), X(at));
        }
        mov_imm(&mut self.s.buf, AUX, self.insn.into());
        let stop = self.s.stop_label(code);
        self.go(Jump::Always, stop);
    }

    /// Emits the stubs of the function's checks.
    pub(crate) fn stubs(&mut self) {
        for i in 0..self.s.stubs.len() {
            let Stub { label, ctx, code, insn } = self.s.stubs[i];
            self.mark(insn);
            self.s.layout.bind(&self.s.buf, label);
            self.stop(code, ctx);
        }
        self.s.stubs.clear();
    }
}

impl Arm64 {
    /// The sequences that stop a run: `CTX` is the `RunCtx` and `AUX` the instruction.
    pub(crate) fn stop_sequences(&mut self) {
        for code in [StopCode::Budget, StopCode::Interrupted, StopCode::Access, StopCode::Host] {
            let Some(label) = self.stops[code as usize - 1] else { continue };
            self.layout.bind(&self.buf, label);
            mov_imm(&mut self.buf, TMP2, code as u64);
            asm!(&mut self.buf;
                stp W(TMP2), W(AUX), [XSP(CTX), RunCtx::STOP_CODE_OFFSET];
                // Which program this is: after tail calls, nobody else knows.
                adr X(TMP2), 0;
                str X(TMP2), [XSP(CTX), RunCtx::STOP_PC_OFFSET as u32];
                ldp x19, x29, [XSP(CTX), RunCtx::EXIT_SAVED_OFFSET];
                ldp X(TMP2), X(AUX), [XSP(CTX), RunCtx::EXIT_SP_OFFSET];
                mov sp, XSP(TMP2);
                // Unlike `br`, a `ret` needs no landing pad.
                ret X(AUX));
        }
    }

    /// Where a run stops for this reason.
    fn stop_label(&mut self, code: StopCode) -> Label {
        *self.stops[code as usize - 1].get_or_insert_with(|| self.layout.label())
    }
}
