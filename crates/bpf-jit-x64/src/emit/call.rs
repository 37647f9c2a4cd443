//! Calls. Arguments go to their registers all at once; the allocator keeps values that live on in registers a call
//! preserves.

use crate::Emitter;
use crate::asm::reg;
use crate::jump::Jump;
use crate::regs::Gpr;
use bpf_jit::{CallTarget, VReg};
use bpf_jit_code::RelocKind;

impl Emitter<'_> {
    pub(crate) fn call(&mut self, target: CallTarget, args: [Option<VReg>; 5], ctx: Option<VReg>, ret: Option<VReg>) {
        for (v, reg) in args.into_iter().zip(self.machine.args).chain([(ctx, self.machine.ctx)]) {
            if let Some(v) = v {
                self.queue_move(reg, v);
            }
        }
        self.queued_moves();
        match target {
            CallTarget::Extern(symbol) => {
                reg!(self.s.buf; call DWORD 0);
                self.reloc(4, RelocKind::X64Rel32, symbol);
            }
            CallTarget::Subprog(subprog) => {
                self.go(Jump::Call, self.s.entry(subprog));
            }
        }
        if let Some(ret) = ret {
            self.set(ret, Gpr::from(self.machine.ret));
        }
    }
}
