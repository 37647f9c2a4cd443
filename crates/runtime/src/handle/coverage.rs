//! How often a program's instructions and source lines were executed.
//!
//! The interpreter counts (`Config::coverage`). Machine code counts nothing, so coverage costs runs in machine code
//! nothing, and is for tests.

use crate::program::loaded::Loaded;

/// How often the parts of a program were executed: [`Program::coverage`](crate::Program::coverage).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Coverage {
    /// The executions of each instruction slot; the second slot of a wide instruction has 0.
    pub insns: Vec<u64>,
    /// The source lines with instructions, ascending by file and line, each once. Empty without line information
    /// (`clang -g`).
    pub lines: Vec<LineCoverage>,
    /// The functions, in the order of their instructions.
    pub functions: Vec<FunctionCoverage>,
}

/// How often a source line was executed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LineCoverage {
    /// The file, as the compiler named it.
    pub file: String,
    /// The line's number, from 1.
    pub line: u32,
    /// The line's text; may be empty.
    pub text: String,
    /// The executions. A line may have instructions at several places, such as the two ends of a loop's head: the
    /// count is that of the place executed most often.
    pub runs: u64,
}

/// How often a function was entered.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FunctionCoverage {
    /// Its name.
    pub name: String,
    /// File and line of its first instruction, if known.
    pub place: Option<(String, u32)>,
    /// How often it was entered.
    pub runs: u64,
}

impl Coverage {
    /// The coverage of a program that counts; `None` for another one.
    pub(crate) fn of(loaded: &Loaded) -> Option<Coverage> {
        let insns = loaded.interpreted()?.executed()?;
        let runs = |insn: u32| insns.get(insn as usize).copied().unwrap_or(0);
        let source = loaded.source();
        let of = source.map_or(&[][..], |source| source.lines());
        let mut lines: Vec<LineCoverage> = of
            .iter()
            .map(|line| LineCoverage {
                file: line.file.clone(),
                line: line.line,
                text: line.text.clone(),
                runs: runs(line.insn),
            })
            .collect();
        // The most executed place of a line first: it stays.
        lines.sort_by(|a, b| (&a.file, a.line, b.runs).cmp(&(&b.file, b.line, a.runs)));
        lines.dedup_by(|again, kept| (again.line, &again.file) == (kept.line, &kept.file));
        let place = |insn: u32| {
            let before = of.partition_point(|line| line.insn <= insn).checked_sub(1)?;
            of.get(before).map(|line| (line.file.clone(), line.line))
        };
        let named = source.map_or(&[][..], |source| source.functions());
        let main = (0, loaded.name.to_string());
        let starts = if named.is_empty() { std::slice::from_ref(&main) } else { named };
        let functions = starts.iter().map(|(start, name)| FunctionCoverage {
            name: name.clone(),
            place: place(*start),
            runs: runs(*start),
        });
        Some(Coverage { functions: functions.collect(), lines, insns })
    }
}
