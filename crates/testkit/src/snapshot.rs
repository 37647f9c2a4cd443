//! Snapshots of emitted code: one file a case, both backends in it.
//!
//! A file begins with a program in BPF assembly; after it come `-- x64` and `-- arm64`, each followed by the machine
//! code, every BPF instruction as a comment before its machine code. No addresses and no bytes, so that a snapshot
//! changes only when the shape of the code does. Entry and exit (code before the first instruction of a subprogram, and
//! the code of `exit`) are shown only by files in a folder called `frame`.
//!
//! [`check`] compares; with `BLESS=1` in the environment (`cargo xtask bless`) it rewrites instead. A snapshot shows
//! shape, never correctness: the caller also runs [`programs`] on every engine.

use crate::disasm;
use bpf_isa::{Insn, Program};
use bpf_jit_code::{Arch, Code, Symbol};
use std::{
    collections::BTreeSet,
    env, fmt, fs, io,
    path::{Path, PathBuf},
};

/// A compiled program and what its symbols are called.
pub struct Compiled {
    /// The code.
    pub code: Code,
    /// The name of a symbol.
    pub name: Box<dyn Fn(Symbol) -> String>,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").field("code", &self.code).finish_non_exhaustive()
    }
}

/// A snapshot file's program.
#[derive(Clone, Debug)]
pub struct Input {
    /// The file.
    pub path: PathBuf,
    /// Its text up to the first `--` line.
    pub source: String,
    /// The program the text assembles to.
    pub program: Program,
}

/// Why snapshots cannot be compared, or differ.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A file or folder cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The program does not assemble or is not valid.
    #[error("{path}: {message}")]
    Program {
        /// The file.
        path: PathBuf,
        /// Description of the error.
        message: String,
    },
    /// A backend refused the program, or emitted what does not decode.
    #[error("{path}, {arch:?}: {message}")]
    Compile {
        /// The file.
        path: PathBuf,
        /// The architecture of the code.
        arch: Arch,
        /// Description of the error.
        message: String,
    },
    /// The code has changed. The message shows each file's first differing line.
    #[error("{} snapshots differ (`cargo xtask bless` rewrites them):\n{}", .0.len(), .0.join("\n"))]
    Differ(Vec<String>),
    /// No file was found: a test over nothing must not pass.
    #[error("{0}: no .bpf files")]
    Empty(PathBuf),
}

/// The programs of every `.bpf` file under `folder`, in order of their paths.
pub fn programs(folder: &Path) -> Result<Vec<Input>, SnapshotError> {
    let mut paths = Vec::new();
    find(folder, &mut paths)?;
    if paths.is_empty() {
        return Err(SnapshotError::Empty(folder.into()));
    }
    paths.sort();
    paths.into_iter().map(|path| input(path).map(|(input, _)| input)).collect()
}

/// Compares, or with `BLESS=1` rewrites, every snapshot under `folder`.
pub fn check(
    folder: &Path,
    compile: &mut dyn FnMut(&Input, Arch) -> Result<Compiled, String>,
) -> Result<(), SnapshotError> {
    let bless = env::var_os("BLESS").is_some_and(|value| value == "1");
    let mut differences = Vec::new();
    for input in programs(folder)? {
        let expected = render(&input, compile)?;
        let actual = read(&input.path)?;
        if actual == expected {
            continue;
        }
        if bless {
            fs::write(&input.path, expected).map_err(|error| SnapshotError::Io { path: input.path, error })?;
        } else {
            differences.push(difference(&input.path, &actual, &expected));
        }
    }
    if differences.is_empty() { Ok(()) } else { Err(SnapshotError::Differ(differences)) }
}

fn find(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<(), SnapshotError> {
    let io = |error| SnapshotError::Io { path: folder.into(), error };
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.is_dir() {
            find(&path, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "bpf") {
            paths.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, SnapshotError> {
    fs::read_to_string(path).map_err(|error| SnapshotError::Io { path: path.into(), error })
}

fn input(path: PathBuf) -> Result<(Input, String), SnapshotError> {
    let text = read(&path)?;
    let end = text.find("\n--").map_or(text.len(), |at| at + 1);
    let mut source = text[..end].to_owned();
    if !source.ends_with('\n') {
        source.push('\n');
    }
    let program = bpf_isa::assemble(&source)
        .map_err(|e| e.to_string())
        .and_then(|insns| Program::new(insns).map_err(|e| e.to_string()))
        .map_err(|message| SnapshotError::Program { path: path.clone(), message })?;
    Ok((Input { path, source, program }, text))
}

fn render(
    input: &Input,
    compile: &mut dyn FnMut(&Input, Arch) -> Result<Compiled, String>,
) -> Result<String, SnapshotError> {
    let frame = input.path.parent().is_some_and(|folder| folder.ends_with("frame"));
    let mut text = input.source.clone();
    for (arch, name) in [(Arch::X64, "x64"), (Arch::Arm64, "arm64")] {
        let failed = |message| SnapshotError::Compile { path: input.path.clone(), arch, message };
        let compiled = compile(input, arch).map_err(failed)?;
        text.push_str(&format!("-- {name}\n"));
        text.push_str(&listing(&input.program, &compiled, frame).map_err(|e| failed(e.to_string()))?);
    }
    Ok(text)
}

/// The code of one backend, each BPF instruction as a comment before its machine code.
pub fn listing(program: &Program, compiled: &Compiled, frame: bool) -> Result<String, disasm::DisasmError> {
    let Compiled { code, name } = compiled;
    let starts: BTreeSet<u32> = code.pc_map.iter().map(|entry| entry.insn).collect();
    let mut sources = code.pc_map.iter().peekable();
    let mut text = String::new();
    // Code before the first instruction of a subprogram is its prologue.
    let mut shown = frame;
    for line in disasm::lines(code, name)? {
        if code.entries.contains(&line.offset) {
            shown = frame;
        }
        while let Some(entry) = sources.next_if(|entry| entry.code <= line.offset) {
            let insn = program.insns().get(entry.insn as usize);
            shown = frame || insn != Some(&Insn::Exit);
            if shown {
                text.push_str(&comment(program, entry.insn, &starts));
            }
        }
        if shown {
            if let Some(label) = &line.label {
                text.push_str(&format!("{label}:\n"));
            }
            text.push_str(&format!("    {}\n", line.text));
        }
    }
    Ok(text)
}

/// `; 3: r0 += r1`, or `; 3-5: …` for instructions that were compiled as one.
fn comment(program: &Program, first: u32, starts: &BTreeSet<u32>) -> String {
    let insns = program.insns();
    let end_of_subprog = program
        .subprogs()
        .iter()
        .find(|subprog| (subprog.start..subprog.end).contains(&first))
        .map_or(insns.len() as u32, |subprog| subprog.end);
    let end = starts.range(first + 1..).next().copied().unwrap_or(end_of_subprog).min(end_of_subprog);
    let fused: Vec<_> = (first..end)
        .filter_map(|at| insns.get(at as usize))
        .filter(|insn| **insn != Insn::SecondSlot)
        .map(Insn::to_string)
        .collect();
    if fused.len() > 1 {
        format!("; {first}-{}: {}\n", end - 1, fused.join("; "))
    } else {
        format!("; {first}: {}\n", fused.concat())
    }
}

fn difference(path: &Path, actual: &str, expected: &str) -> String {
    let mut pairs = actual.lines().zip(expected.lines()).enumerate();
    match pairs.find(|(_, (old, new))| old != new) {
        Some((i, (old, new))) => format!("{}:{}:\n  - {old}\n  + {new}", path.display(), i + 1),
        None => format!("{}: {} lines, now {}", path.display(), actual.lines().count(), expected.lines().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_jit_code::PcEntry;

    fn program() -> Program {
        Program::new(bpf_isa::assemble("r0 = 1\nr0 += 2\nexit").unwrap()).unwrap()
    }

    /// push rbp (prologue); mov eax, 3 (fused 0-1); pop rbp; ret
    fn compiled() -> Compiled {
        let mut code = Code::new(Arch::X64);
        code.bytes = vec![0x55, 0xb8, 3, 0, 0, 0, 0x5d, 0xc3];
        code.entries = vec![0];
        code.pc_map = vec![PcEntry { code: 1, insn: 0 }, PcEntry { code: 6, insn: 2 }];
        Compiled { code, name: Box::new(|_| String::new()) }
    }

    #[test]
    fn prologue_and_epilogue_are_elided_outside_frame() {
        let text = listing(&program(), &compiled(), false).unwrap();
        assert_eq!(text, "; 0-1: r0 = 1; r0 += 2\n    mov eax, 3\n");
        let text = listing(&program(), &compiled(), true).unwrap();
        let expected = "    push rbp\n; 0-1: r0 = 1; r0 += 2\n    mov eax, 3\n; 2: exit\n    pop rbp\n    ret\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_changed_line_is_shown() {
        let text = difference(Path::new("a.bpf"), "x\ny\n", "x\nz\n");
        assert_eq!(text, "a.bpf:2:\n  - y\n  + z");
        assert_eq!(difference(Path::new("a.bpf"), "x\n", "x\ny\n"), "a.bpf: 1 lines, now 2");
    }
}
