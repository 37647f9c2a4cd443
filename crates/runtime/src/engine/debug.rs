//! Debug information of a program for `bpf-debug`: names from its object's functions, lines from its BTF.
//!
//! The registry is made only if [`crate::Config::debug`] asks for it.

use crate::engine::Engine;
use bpf_debug::{Function, Line, Registered, Registry, Unit};
use bpf_dispatcher::Observer;
use bpf_isa::{AluOp, Insn, InsnIdx, Program, Reg, Src};
use bpf_jit_code::{Code, UnwindOp};
use bpf_prog_pack::Text;
use std::sync::Arc;

/// Makes newly placed code known.
///
/// # Safety
/// The result must be dropped before the text can be.
pub(crate) unsafe fn register(
    registry: &Registry,
    name: &str,
    program: &Program,
    source: Option<&bpf_object::Code>,
    code: &Code,
    text: &Text,
) -> Box<Registered> {
    let (lines, files) = source.map(|source| lines(program, source)).unwrap_or_default();
    let dwarf = source.filter(|_| registry.reads_variables()).and_then(bpf_object::Code::dwarf);
    let dwarf = dwarf.map(|dwarf| dwarf.sections().to_vec()).unwrap_or_default();
    let unit = Unit {
        arch: code.arch,
        name: name.to_owned(),
        base: text.base() as usize,
        len: text.len(),
        functions: functions(name, program, source, code),
        pc_map: code.pc_map.clone(),
        lines,
        files,
        unwind: code.unwind.clone(),
        calls: slots(program, |insn| matches!(insn, Insn::Call(_) | Insn::LoadAbs { .. } | Insn::LoadInd { .. })),
        exits: slots(program, |insn| matches!(insn, Insn::Exit)),
        dwarf,
    };
    // SAFETY: the notes are those of the compiler for this code, which is at that address for as long as the caller
    // promises.
    Box::new(unsafe { registry.add(unit, &text.to_vec()) })
}

/// Makes the images of a hook or a dispatcher known, if anything is to be.
pub(crate) fn observer(engine: &Engine, name: &'static str) -> Option<Observer> {
    engine.0.debug.as_ref()?;
    let engine = engine.clone();
    Some(Arc::new(move |code: &Code, text: &Text| {
        let unit = Unit {
            arch: code.arch,
            name: name.to_owned(),
            base: text.base() as usize,
            len: text.len(),
            functions: vec![outside_of_insns(name, 0), outside_of_insns("<jump>", outside(code))],
            pc_map: Vec::new(),
            lines: Vec::new(),
            files: Vec::new(),
            unwind: code.unwind.clone(),
            calls: Vec::new(),
            exits: Vec::new(),
            dwarf: Vec::new(),
        };
        // SAFETY: the notes are the generator's for this code; an image keeps its text until what the observer returned
        // is dropped.
        Box::new(engine.0.debug.as_ref().map(|registry| unsafe { registry.add(unit, &text.to_vec()) }))
    }))
}

/// Code that belongs to no instruction.
fn outside_of_insns(name: &str, start: u32) -> Function {
    Function { name: name.to_owned(), start, insn: None, homes: None, source: None, stack: 0 }
}

/// Bytes below r10 that a function reaches, a multiple of eight: by accesses through r10, and by addresses made of a
/// copy of r10 and a constant added to it. It is the size of clang's stack frame unless the frame's lowest variable is
/// never used at its beginning.
fn stack(insns: &[Insn]) -> u32 {
    let mut copies = [false; 11];
    let mut lowest = 0i64;
    for insn in insns {
        if let Some(access) = insn.memory_access().filter(|access| access.base == Reg::R10) {
            lowest = lowest.min(access.off.into());
        }
        match *insn {
            Insn::Mov { dst, src, .. } => copies[dst.index()] = src == Src::Reg(Reg::R10),
            Insn::Alu { op: AluOp::Add, dst, src: Src::Imm(imm), .. } if copies[dst.index()] => {
                lowest = lowest.min(imm.into());
                copies[dst.index()] = false;
            }
            _ => {}
        }
    }
    // Any constant may be added to r10, but no program has a stack of 2 GiB.
    u32::try_from(-lowest).ok().and_then(|bytes| bytes.checked_next_multiple_of(8)).unwrap_or(0)
}

/// The instructions of a kind.
fn slots(program: &Program, is: impl Fn(&Insn) -> bool) -> Vec<u32> {
    // Fits: programs have at most MAX_INSNS.
    let insns = (0..crate::num::small(program.insns().len())).zip(program.insns());
    insns.filter(|(_, insn)| is(insn)).map(|(slot, _)| slot).collect()
}

/// Where the code ends that belongs to functions: stop sequences and thunks are behind, and veneers after them.
fn outside(code: &Code) -> u32 {
    // Fits: entries and relocations are 32-bit offsets into the code.
    code.unwind
        .iter()
        .find(|note| note.op == UnwindOp::Outside)
        .map_or(crate::num::small(code.bytes.len()), |note| note.at)
}

fn functions(name: &str, program: &Program, source: Option<&bpf_object::Code>, code: &Code) -> Vec<Function> {
    let starts = code.entries.iter().zip(program.subprogs()).enumerate();
    let mut functions: Vec<Function> = starts
        .map(|(i, (&start, range))| {
            let known = source.and_then(|source| source.function_at(InsnIdx(range.start)));
            let name = match known {
                _ if i == 0 => name.to_owned(),
                Some(function) => function.name.clone(),
                None => format!("subprog_{i}"),
            };
            let address = known.and_then(|function| source?.dwarf()?.address(&function.section, function.section_slot));
            Function {
                name,
                start,
                insn: Some(range.start),
                homes: code.homes.get(i).copied(),
                source: address,
                stack: stack(program.insns().get(range.start as usize..range.end as usize).unwrap_or_default()),
            }
        })
        .collect();
    functions.sort_by_key(|f| f.start);
    functions.push(outside_of_insns("<stop>", outside(code)));
    functions
}

/// Source lines by instruction, and the files they are in.
fn lines(program: &Program, source: &bpf_object::Code) -> (Vec<Line>, Vec<String>) {
    let mut lines: Vec<Line> = Vec::new();
    let mut files: Vec<String> = Vec::new();
    // Fit: programs have at most MAX_INSNS, and no more files.
    for insn in 0..crate::num::small(program.insns().len()) {
        let Some(place) = source.line(InsnIdx(insn)) else { continue };
        // Few files, and mostly the last one again.
        let file = files.iter().rposition(|file| *file == *place.file).unwrap_or_else(|| {
            files.push(place.file.clone().into_owned());
            files.len() - 1
        });
        let line = Line { insn, file: crate::num::small(file), line: place.line, column: place.column };
        if lines.last().is_none_or(|l| (l.file, l.line, l.column) != (line.file, line.line, line.column)) {
            lines.push(line);
        }
    }
    (lines, files)
}
