//! Calls. Arguments go to x0 to x4 and x5 in one parallel move, of which a good allocation leaves nothing.

use crate::Emitter;
use crate::asm::asm;
use crate::jump::Jump;
use crate::regs::{ARGS, CTX, RET};
use bpf_jit::num::small;
use bpf_jit::{CallTarget, VReg};
use bpf_jit_code::{Reloc, RelocKind};

impl Emitter<'_> {
    pub(crate) fn call(&mut self, target: CallTarget, args: [Option<VReg>; 5], ctx: Option<VReg>, ret: Option<VReg>) {
        for (reg, arg) in ARGS.into_iter().zip(args).chain([(CTX, ctx)]) {
            if let Some(arg) = arg {
                self.queue_move(reg, arg);
            }
        }
        self.queued_moves();
        match target {
            CallTarget::Extern(symbol) => {
                let at = small(self.s.buf.len());
                self.code.relocs.push(Reloc { at, kind: RelocKind::Arm64Branch26, symbol });
                asm!(&mut self.s.buf; bl 0);
            }
            CallTarget::Subprog(subprog) => self.go(Jump::Call, self.s.entry(subprog)),
        }
        if let Some(ret) = ret {
            self.set(ret, RET);
        }
    }
}
