//! What a walk says: the lines of its log, and the one error that is reported, with all that its reader needs.

use bpf_isa::{Callee, Insn, InsnIdx, Reg};
use bpf_uapi::Helper;

use super::Walk;
use crate::error::{Decision, Reason, VerifyError};
use crate::helpers::HelperProto;
use crate::state::Entry;

impl Walk<'_> {
    pub(super) fn log_step(&mut self) {
        let insn = self.insns[self.pc.index()];
        let mut line = format!("{}: {}  ;", self.pc, self.disassemble(self.pc));
        let used = bpf_analysis::uses(&insn).union(bpf_analysis::defs(&insn));
        for r in Reg::ALL {
            let v = self.state.reg(r);
            if used.contains(r) && !v.is_uninit() {
                line.push_str(&format!(" {r}={}", v.describe(self.env)));
            }
        }
        if self.state.frames.len() > 1 {
            line.push_str(&format!(" (frame {})", self.state.frames.len() - 1));
        }
        self.write_log(line);
    }

    pub(super) fn write_log(&mut self, line: String) {
        self.log.push(self.env.limits.log_lines, line);
    }

    /// The instruction as text; functions by their names too.
    pub(super) fn disassemble(&self, at: InsnIdx) -> String {
        let Some(insn) = self.insns.get(at.index()) else { return String::new() };
        let name = if let Insn::Call(Callee::Helper(id)) = *insn {
            self.env.helpers.get(id).map(|p| &*p.name).or_else(|| Helper::name_of(id))
        } else if let Insn::Call(callee @ Callee::Host(_)) = *insn {
            self.proto(callee).ok().map(|p| &*p.name)
        } else {
            None
        };
        name.map_or_else(|| insn.to_string(), |name| format!("{insn} ({name})"))
    }

    /// Everything the author needs, for the one error that is reported.
    pub(super) fn describe(&mut self, reason: Reason) -> Box<VerifyError> {
        let insn = self.insns.get(self.pc.index()).copied().unwrap_or(Insn::Exit);
        let mut registers = Vec::new();
        let mut calls = Vec::new();
        if let Some(top) = self.state.frames.last() {
            let used = self.used_regs(&insn);
            for r in Reg::ALL {
                if used.contains(r) && r != Reg::R10 {
                    registers.push((r, top.regs[r.index()].describe(self.env)));
                }
            }
            for f in &self.state.frames {
                match f.entry {
                    Entry::Root | Entry::Timer | Entry::Compare | Entry::Exception => {}
                    Entry::Call { back } => calls.push(InsnIdx(back.0 - 1)),
                    Entry::Callback { call, .. } => calls.push(call),
                }
            }
        }
        let mut path = Vec::new();
        let mut node = self.path;
        let mut omitted = 0;
        while let Some(n) = self.scratch.paths.get(node as usize) {
            if path.len() < VerifyError::MAX_PATH {
                path.push(Decision { insn: n.insn, taken: n.taken });
            } else {
                omitted += 1;
            }
            node = n.parent;
        }
        path.reverse();
        let loops = self.unproven_loops(reason.is_work());
        let line = self.env.lines.partition_point(|l| l.insn <= self.pc.0).checked_sub(1).map(|i| &self.env.lines[i]);
        Box::new(VerifyError {
            insn: self.pc,
            disassembly: self.disassemble(self.pc),
            source_line: line.map(|l| (l.file.clone(), l.line, l.text.clone())),
            reason,
            registers,
            calls,
            path,
            path_omitted: omitted,
            loops,
            checkable: false,
            log: self.log.take(),
        })
    }

    /// The registers an error at this instruction should show.
    fn used_regs(&self, insn: &Insn) -> bpf_analysis::RegSet {
        match insn {
            Insn::Call(callee @ (Callee::Helper(_) | Callee::Host(_))) => {
                bpf_analysis::RegSet::args(self.proto(*callee).map_or(0, HelperProto::arity))
            }
            Insn::Call(Callee::Reg(reg)) => bpf_analysis::RegSet::of(*reg),
            _ => bpf_analysis::uses(insn),
        }
    }
}
