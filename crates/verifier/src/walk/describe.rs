//! Descriptions of a walk: the lines of its log, and the one error that is reported, with everything that its reader
//! needs.

use bpf_isa::{Callee, Insn, InsnIdx, Reg};
use bpf_uapi::Helper;

use super::Walk;
use crate::error::{Decision, Effort, Reason, VerifyError};
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
    pub(crate) fn describe(&mut self, reason: Reason) -> Box<VerifyError> {
        let effort = self.effort(&reason);
        if let Some(effort) = &effort {
            return self.describe_effort(reason, effort.clone());
        }
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
        Box::new(VerifyError {
            insn: self.pc,
            disassembly: self.disassemble(self.pc),
            source_line: self.source_line(self.pc),
            reason,
            registers,
            calls,
            path,
            path_omitted: omitted,
            effort,
            loops,
            checkable: false,
            without_lines: false,
            log: self.log.take(),
        })
    }

    /// The error for a limit on the work. The instruction at which the limit was reached says nothing, so the error
    /// names the place that took most of the work.
    fn describe_effort(&mut self, reason: Reason, effort: Effort) -> Box<VerifyError> {
        let loops = self.unproven_loops(reason.is_work());
        Box::new(VerifyError {
            insn: effort.at,
            disassembly: self.disassemble(effort.at),
            source_line: self.source_line(effort.at),
            reason,
            registers: Vec::new(),
            calls: Vec::new(),
            path: Vec::new(),
            path_omitted: 0,
            effort: Some(effort),
            loops,
            checkable: false,
            without_lines: false,
            log: self.log.take(),
        })
    }

    fn source_line(&self, at: InsnIdx) -> Option<(String, u32, String)> {
        let line = self.env.lines.partition_point(|l| l.insn <= at.0).checked_sub(1).map(|i| &self.env.lines[i]);
        line.map(|l| (l.file.clone(), l.line, l.text.clone()))
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
