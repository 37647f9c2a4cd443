//! Hints: code of an accepted program that its author may not have intended. They do not affect the verdict.

use crate::load::verify::Checked;
use bpf_isa::{AluOp, Insn, InsnIdx, Program, Src, Width};
use std::fmt;

/// A property of an accepted program that its author may not have intended. Its `Display` gives the place and a remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VerifyHint {
    /// A division by a number that may be 0. In BPF its result is then 0, and the run continues.
    DivisionByZero {
        /// The instruction.
        insn: InsnIdx,
        /// The source's file, line number and text.
        line: Option<(String, u32, String)>,
        /// Whether the remainder is computed. The remainder of a division by 0 is the dividend.
        remainder: bool,
    },
}

impl fmt::Display for VerifyHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VerifyHint::DivisionByZero { insn, line, remainder } = self;
        let (what, result) = if *remainder { ("remainder of a division", "the dividend") } else { ("division", "0") };
        write!(
            f,
            "{what} by a number that may be 0, whose result is {result} then: test the number before, at {insn}"
        )?;
        match line {
            Some((file, line, text)) => write!(f, " in {file}:{line}: {}", text.trim()),
            None => Ok(()),
        }
    }
}

/// Whether the program has instructions whose hints depend on ranges of numbers.
pub(super) fn wants_values(program: &Program) -> bool {
    program.insns().iter().any(|insn| division(insn).is_some())
}

/// The hints about a verified program, by instruction.
pub(super) fn of(checked: &Checked) -> Vec<VerifyHint> {
    let insns = (0u32..).zip(checked.program.insns());
    let divisions = insns.filter_map(|(at, insn)| Some((InsnIdx(at), division(insn)?)));
    let hints = divisions.filter_map(|(insn, (width, remainder))| {
        if checked.facts.insns.get(insn.index()).is_some_and(|fact| fact.dead) {
            return None;
        }
        let by = checked.facts.values(insn).src;
        let may_be_zero = match width {
            Width::W64 => by.contains(0),
            // Only the low 32 bits divide. If the upper half is zero, the range of the whole number is exact.
            Width::W32 => {
                if by.upper_zero() {
                    by.contains(0)
                } else {
                    by.value & u64::from(u32::MAX) == 0
                }
            }
        };
        let line = checked.lines.iter().rev().find(|line| line.insn <= insn.0);
        let line = line.map(|line| (line.file.clone(), line.line, line.text.clone()));
        may_be_zero.then_some(VerifyHint::DivisionByZero { insn, line, remainder })
    });
    hints.collect()
}

/// For a division by a register: its width, and whether the remainder is computed.
fn division(insn: &Insn) -> Option<(Width, bool)> {
    match *insn {
        Insn::Alu { width, op: AluOp::Div | AluOp::SDiv, src: Src::Reg(_), .. } => Some((width, false)),
        Insn::Alu { width, op: AluOp::Mod | AluOp::SMod, src: Src::Reg(_), .. } => Some((width, true)),
        _other => None,
    }
}
