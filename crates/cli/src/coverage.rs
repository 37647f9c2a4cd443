//! The source lines that the cases of `bpf test` executed, as text and for other tools (lcov).
//!
//! The interpreter counts. A line is known by its file and number in the object's line information; lines without
//! instructions are not shown. Cases of several files, programs and objects add up.

use crate::out::{self, Look};
use anyhow::{Context, Result};
use bpf_runtime::metrics::Coverage;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The executions of source lines, by file.
#[derive(Default)]
pub(crate) struct Covered(BTreeMap<String, Covering>);

#[derive(Default)]
struct Covering {
    lines: BTreeMap<u32, Line>,
    /// By name: the line of the first instruction, and how often the function was entered.
    functions: BTreeMap<String, (u32, u64)>,
}

#[derive(Clone, Serialize)]
struct Line {
    line: u32,
    runs: u64,
    text: String,
}

/// A file's coverage as JSON.
#[derive(Serialize)]
pub(crate) struct FileReport<'a> {
    file: &'a str,
    executed: usize,
    lines: Vec<Line>,
}

impl Covering {
    fn executed(&self) -> usize {
        self.lines.values().filter(|line| line.runs > 0).count()
    }
}

impl Covered {
    /// Adds what the runs of a program executed.
    pub(crate) fn add(&mut self, coverage: &Coverage) {
        for covered in &coverage.lines {
            let file = self.0.entry(covered.file.clone()).or_default();
            let text = || Line { line: covered.line, runs: 0, text: covered.text.clone() };
            let line = file.lines.entry(covered.line).or_insert_with(text);
            line.runs = line.runs.saturating_add(covered.runs);
        }
        for function in &coverage.functions {
            let Some((file, line)) = &function.place else { continue };
            let known = self.0.entry(file.clone()).or_default().functions.entry(function.name.clone());
            let (_, runs) = known.or_insert((*line, 0));
            *runs = runs.saturating_add(function.runs);
        }
    }

    /// Whether no program had line information.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lines of each file, for the report as JSON.
    pub(crate) fn report(&self) -> Vec<FileReport<'_>> {
        let mut files = Vec::new();
        for (file, of) in &self.0 {
            files.push(FileReport { file, executed: of.executed(), lines: of.lines.values().cloned().collect() });
        }
        files
    }

    /// Prints each file's lines with their executions; `#####` marks a line that was never executed, as in gcov's
    /// listings.
    pub(crate) fn print(&self) -> Result<()> {
        for (file, of) in &self.0 {
            let (executed, all) = (of.executed(), of.lines.len());
            let percent = 100.0 * executed as f64 / all.max(1) as f64;
            out::parts(&[
                (Look::Title, format_args!("{file}")),
                (Look::Aside, format_args!("  {executed} of {all} lines executed ({percent:.1} %)")),
            ])?;
            for Line { line, runs, text } in of.lines.values() {
                let text = text.trim_end().replace('\t', "    ");
                match runs {
                    0 => out::parts(&[
                        (Look::Bad, format_args!("    #####")),
                        (Look::Plain, format_args!(" {line:>5}  {text}")),
                    ])?,
                    _ => out::parts(&[(Look::Plain, format_args!("{runs:>9} {line:>5}  {text}"))])?,
                }
            }
        }
        Ok(())
    }

    /// Writes the executions as lcov's trace file (geninfo(1), "FILES").
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.lcov()).with_context(|| format!("cannot write {}", path.display()))
    }

    fn lcov(&self) -> String {
        let mut trace = String::new();
        // Writing to a string cannot fail.
        for (file, of) in &self.0 {
            let _ = writeln!(trace, "TN:\nSF:{}", one_line(file));
            for (name, (line, _)) in &of.functions {
                let _ = writeln!(trace, "FN:{line},{}", one_line(name));
            }
            for (name, (_, runs)) in &of.functions {
                let _ = writeln!(trace, "FNDA:{runs},{}", one_line(name));
            }
            let entered = of.functions.values().filter(|(_, runs)| *runs > 0).count();
            let _ = writeln!(trace, "FNF:{}\nFNH:{entered}", of.functions.len());
            for Line { line, runs, .. } in of.lines.values() {
                let _ = writeln!(trace, "DA:{line},{runs}");
            }
            let _ = writeln!(trace, "LF:{}\nLH:{}\nend_of_record", of.lines.len(), of.executed());
        }
        trace
    }
}

/// A name of an object without characters that would end its line in the trace.
fn one_line(name: &str) -> String {
    name.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_runtime::{Config, Engine, Linker, MapSet, Mode, Object, Raw};

    /// Two instances of a program with line information; the names of a hostile object cannot forge records.
    #[test]
    fn executions_add_up() {
        let config = Config::new().mode(Mode::Interpreter).coverage(true);
        let engine = Engine::new(config).unwrap();
        let object = Object::parse(include_bytes!("../../runtime/tests/objects/pair.o")).unwrap();
        let mut covered = Covered::default();
        for _ in 0..2 {
            let maps = MapSet::for_object(&engine, &object).unwrap();
            let instance = Linker::<()>::new(&engine).load::<Raw>(&object, maps).unwrap();
            let program = instance.program::<Raw>("entry").unwrap();
            program.run(&mut (), &mut [0; 8]).unwrap();
            covered.add(&program.coverage().unwrap());
        }
        let [file] = &covered.report()[..] else { panic!("one file") };
        assert!(file.executed > 0 && file.lines.iter().all(|line| line.runs % 2 == 0));
        assert!(covered.lcov().contains(",entry\n") && covered.lcov().contains(&format!("LH:{}\n", file.executed)));
        assert_eq!(one_line("a\nSF:b"), "a?SF:b");
    }
}
