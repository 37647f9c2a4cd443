//! Recorded runs as bytes that another process reads.
//!
//! A recording has all that a replay needs: the program with its source lines, and for each run the memory that it was
//! given, at which addresses, and its log. It names no file. A recording may come from anyone: [`Recording::parse`]
//! names the place of each thing that is wrong, and [`Recording::replay`] checks what only a run can show.

use crate::error::record::{RecordingError, RecordingMismatch};
use crate::exec::image::{Image, Part};
use crate::exec::listing::{ListedField, ListedFunction, ListedLine, Listing};
use crate::exec::log::{MAX_ENTERED, digest, edges_fit};
use crate::program::interpreted::Interpreted;
use crate::record::bytes::{Listed, Reader, Write};
use bpf_interp::MAX_TAIL_CALLS;
use bpf_isa::{InsnIdx, MAX_CALL_DEPTH, MAX_INSNS, Program};

/// The first bytes of a recording: its kind, and the version of its form.
const MAGIC: &[u8; 8] = b"bpfrec\x00\x02";

/// Upper bound on the bytes of a frame's stack in a recording.
const MAX_FRAME: u32 = 1 << 16;
/// Upper bound on the runs of a recording.
pub(crate) const MAX_RUNS: usize = 1 << 16;
/// Upper bound on the parts of a context of which each has rights of its own.
pub(crate) const MAX_RIGHTS: usize = 256;
/// Upper bound on the fields of a context that a recording names.
pub(crate) const MAX_FIELDS: usize = 4096;

// The lists of a recording. An element takes a few times as much memory as its bytes in the file, so what is in memory
// is bounded by the length of the file, besides the runs and the programs, which their numbers bound.
const PROGRAMS: Listed = Listed::new("programs", 1 + MAX_ENTERED, 29);
const RIGHTS: Listed = Listed::new("parts of the context with rights of their own", MAX_RIGHTS, 9);
const RUNS: Listed = Listed::new("runs", MAX_RUNS, 19);
const TARGETS: Listed = Listed::new("targets of indirect jumps", MAX_INSNS, 4);
const LINES: Listed = Listed::new("source lines", usize::MAX, 16);
const FUNCTIONS: Listed = Listed::new("functions", MAX_INSNS, 8);
const FIELDS: Listed = Listed::new("fields", MAX_FIELDS, 12);
/// A context has fewer regions.
const PARTS: Listed = Listed::new("parts of memory", 64, 13);
/// Each program of a run has a main program, and functions up to the depth of calls.
const FRAMES: Listed = Listed::new("frames", (MAX_TAIL_CALLS as usize + 1) * MAX_CALL_DEPTH as usize, 8);
const ENTERED: Listed = Listed::new("programs that tail calls enter", MAX_TAIL_CALLS as usize, 4);

/// Recorded runs of one program: [`Recorder::save`](crate::observe::Recorder::save).
#[derive(Clone, Debug)]
pub struct Recording {
    /// The recorded program, and the programs that tail calls of it have entered.
    pub(crate) codes: Vec<Code>,
    /// The parts of the context that have rights of their own; none if the context is one part.
    pub(crate) rights: Vec<Rights>,
    /// Bytes of a frame's stack.
    pub(crate) frame_bytes: u32,
    /// Whether the result of a run may be anything.
    pub(crate) void: bool,
    pub(crate) runs: Vec<Recorded>,
}

/// A program of a recording.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    pub(crate) listing: Listing,
    pub(crate) program: Program,
    /// The function that handles exceptions.
    pub(crate) exception: Option<InsnIdx>,
}

impl Code {
    pub(crate) fn of(listing: Listing, what: &Interpreted) -> Code {
        Code { listing, program: what.program.clone(), exception: what.left.exception }
    }
}

/// A part of the context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rights {
    pub(crate) offset: u32,
    pub(crate) len: u32,
    /// Whether programs may write it.
    pub(crate) writable: bool,
}

/// How a recorded run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The run did not end.
    Unfinished,
    Returned(u64),
    /// The run ended with this error.
    Failed(String),
}

/// One recorded run.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) image: Image,
    /// `None`: the run was one of machine code, and got nothing from outside.
    pub(crate) log: Option<Logged>,
    pub(crate) end: End,
}

/// The log of a recorded run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Logged {
    pub(crate) events: Vec<u8>,
    pub(crate) is_cut: bool,
    /// An effect of the run that is not recorded.
    pub(crate) lost: Option<String>,
    /// Whether the run ended by a return of the program.
    pub(crate) returned: bool,
    pub(crate) steps: u64,
    pub(crate) frames: Vec<u64>,
    pub(crate) after: u64,
    /// For each program that the events number, from 1: its place in [`Recording::codes`].
    pub(crate) entered: Vec<u32>,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// [`RecordingError`]: the place and the problem of the first thing that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Recording, RecordingError> {
        let mut from = Reader::new(bytes);
        let magic = from.bytes(MAGIC.len())?;
        if magic[..7] != MAGIC[..7] {
            return from.error(0, "this is no recording");
        }
        if magic[7] != MAGIC[7] {
            return from.error(7, format!("version {} is not known here, {} is", magic[7], MAGIC[7]));
        }
        let at = from.at();
        let sum = from.u64()?;
        let found = digest([&bytes[from.at()..]].into_iter());
        if sum != found {
            return from.error(at, "the bytes were changed, or some are missing: the checksum is another one");
        }
        let at = from.at();
        let codes = from.list(&PROGRAMS, code)?;
        if codes.is_empty() {
            return from.error(at, "a recording without a program");
        }
        let at = from.at();
        let rights = from.list(&RIGHTS, |from| {
            let (offset, len, writable) = (from.u32()?, from.u32()?, from.bool()?);
            Ok(Rights { offset, len, writable })
        })?;
        let apart = |pair: &[Rights]| u64::from(pair[0].offset) + u64::from(pair[0].len) <= u64::from(pair[1].offset);
        if !rights.windows(2).all(apart) {
            return from.error(at, "parts of the context that overlap");
        }
        let at = from.at();
        let frame_bytes = from.u32()?;
        if frame_bytes > MAX_FRAME {
            return from.error(at, format!("a stack of {frame_bytes} bytes; at most {MAX_FRAME} are possible"));
        }
        let void = from.bool()?;
        let programs = codes.len();
        let runs = from.list(&RUNS, |from| recorded(from, programs))?;
        if !from.is_at_end() {
            return from.error(from.at(), "there are bytes behind the last run");
        }
        Ok(Recording { codes, rights, frame_bytes, void, runs })
    }

    /// The bytes of the recording.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.count(self.codes.len());
        self.codes.iter().for_each(|code| code.put(&mut out));
        out.count(self.rights.len());
        for Rights { offset, len, writable } in &self.rights {
            out.u32(*offset);
            out.u32(*len);
            out.push((*writable).into());
        }
        out.u32(self.frame_bytes);
        out.push(self.void.into());
        out.count(self.runs.len());
        self.runs.iter().for_each(|run| run.put(&mut out));
        let mut bytes = MAGIC.to_vec();
        bytes.u64(digest([out.as_slice()].into_iter()));
        bytes.append(&mut out);
        bytes
    }

    /// The recorded program.
    pub fn listing(&self) -> &Listing {
        &self.codes[0].listing
    }

    /// Number of recorded runs. They are numbered from 0, the oldest.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Compares the recorded program with another one: that of the object from which a tool takes what the recording
    /// does not have.
    ///
    /// # Errors
    /// [`RecordingMismatch`]: the first difference in names, instructions and fields of the context.
    pub fn check(&self, given: &Listing) -> Result<(), RecordingMismatch> {
        let recorded = self.listing();
        if recorded.name != given.name {
            let (recorded, given) = (recorded.name.clone(), given.name.clone());
            return Err(RecordingMismatch::Name { recorded, given });
        }
        for insn in 0..recorded.insns.len().max(given.insns.len()) {
            let of = |listing: &Listing| {
                let of = listing.insns.get(insn)?;
                Some(bpf_isa::disassemble(std::slice::from_ref(of)).trim().to_owned())
            };
            if recorded.insns.get(insn) != given.insns.get(insn) {
                let missing = || "missing".to_owned();
                return Err(RecordingMismatch::Instructions {
                    program: recorded.name.clone(),
                    // Programs have fewer instructions than 2^32.
                    insn: InsnIdx(crate::num::small(insn)),
                    recorded: of(recorded).unwrap_or_else(missing),
                    given: of(given).unwrap_or_else(missing),
                });
            }
        }
        for field in 0..recorded.fields.len().max(given.fields.len()) {
            let of = |listing: &Listing| match listing.fields.get(field) {
                Some(ListedField { name, offset, size }) => format!("`{name}`, {size} bytes at {offset},"),
                None => "no further field".to_owned(),
            };
            if recorded.fields.get(field) != given.fields.get(field) {
                let given = of(given).trim_end_matches(',').to_owned();
                return Err(RecordingMismatch::Context { recorded: of(recorded), given });
            }
        }
        Ok(())
    }
}

/// Reads a program.
fn code(from: &mut Reader<'_>) -> Result<Code, RecordingError> {
    let name = from.text()?;
    let at = from.at();
    let bytes = from.counted()?;
    // Before memory is taken for them.
    if bytes.len() / 8 > MAX_INSNS {
        return from.error(at, format!("{} instructions; at most {MAX_INSNS} are possible", bytes.len() / 8));
    }
    let insns = match bpf_isa::decode(bytes) {
        Ok(insns) => insns,
        Err(error) => return from.error(at, format!("instructions: {error}")),
    };
    let targets = from.list(&TARGETS, |from| from.u32().map(InsnIdx))?;
    let program = match Program::with_targets(insns.clone(), targets) {
        Ok(program) => program,
        Err(error) => return from.error(at, format!("instructions: {error}")),
    };
    if !edges_fit(&program) {
        return from.error(at, "instructions: calls through registers may call many functions from many others");
    }
    let lines = from.list(&LINES, |from| {
        let (insn, line) = (InsnIdx(from.u32()?), from.u32()?);
        Ok(ListedLine { insn, line, file: from.text()?, text: from.text()? })
    })?;
    let functions =
        from.list(&FUNCTIONS, |from| Ok(ListedFunction { insn: InsnIdx(from.u32()?), name: from.text()? }))?;
    let fields = from.list(&FIELDS, |from| {
        let (offset, size) = (from.u32()?, from.u32()?);
        Ok(ListedField { name: from.text()?, offset, size })
    })?;
    if !lines.is_sorted_by_key(|line| line.insn) || !functions.is_sorted_by_key(|function| function.insn) {
        return from.error(at, "source lines or functions are not in the order of the instructions");
    }
    let at = from.at();
    let exception = if from.bool()? { Some(InsnIdx(from.u32()?)) } else { None };
    if exception.is_some_and(|start| program.subprog_starting_at(start).is_none()) {
        return from.error(at, "no function begins where the one for exceptions should");
    }
    Ok(Code { listing: Listing { name, insns, lines, functions, fields }, program, exception })
}

impl Code {
    fn put(&self, out: &mut Vec<u8>) {
        let Listing { name, lines, functions, fields, .. } = &self.listing;
        out.counted(name.as_bytes());
        out.counted(&self.program.to_bytes());
        let (_, targets) = self.program.clone().into_parts();
        out.count(targets.len());
        targets.iter().for_each(|target| out.u32(target.0));
        out.count(lines.len());
        for ListedLine { insn, file, line, text } in lines {
            out.u32(insn.0);
            out.u32(*line);
            out.counted(file.as_bytes());
            out.counted(text.as_bytes());
        }
        out.count(functions.len());
        for ListedFunction { insn, name } in functions {
            out.u32(insn.0);
            out.counted(name.as_bytes());
        }
        out.count(fields.len());
        for ListedField { name, offset, size } in fields {
            out.u32(*offset);
            out.u32(*size);
            out.counted(name.as_bytes());
        }
        out.push(self.exception.is_some().into());
        if let Some(InsnIdx(start)) = self.exception {
            out.u32(start);
        }
    }
}

/// Reads one run.
fn recorded(from: &mut Reader<'_>, programs: usize) -> Result<Recorded, RecordingError> {
    let at = from.at();
    let mut image = Image::default();
    let parts = from.list(&PARTS, |from| {
        let at = from.at();
        let (start, writable) = (from.u64()?, from.bool()?);
        let bytes = from.counted()?;
        if start.checked_add(bytes.len() as u64).is_none() {
            return from.error(at, "memory that ends behind the last address");
        }
        image.bytes.extend_from_slice(bytes);
        Ok(Part { start, len: bytes.len(), writable })
    })?;
    image.parts = parts;
    if image.parts.is_empty() {
        return from.error(at, "a run without a context");
    }
    let log = match from.bool()? {
        false => None,
        true => {
            let is_cut = from.bool()?;
            let lost = if from.bool()? { Some(from.text()?) } else { None };
            let (returned, steps, after) = (from.bool()?, from.u64()?, from.u64()?);
            let at = from.at();
            let frames = from.list(&FRAMES, Reader::u64)?;
            if frames.iter().any(|frame| !frame.is_multiple_of(8)) {
                return from.error(at, "the stack of a frame is not aligned");
            }
            if frames.iter().any(|frame| frame.checked_add(MAX_FRAME.into()).is_none()) {
                return from.error(at, "the stack of a frame ends behind the last address");
            }
            let at = from.at();
            let entered = from.list(&ENTERED, Reader::u32)?;
            if entered.iter().any(|code| crate::num::index((*code).into()) >= programs) {
                return from.error(at, "a tail call to a program that is not in the recording");
            }
            Some(Logged { events: from.counted()?.to_vec(), is_cut, lost, returned, steps, frames, after, entered })
        }
    };
    let at = from.at();
    let end = match from.u8()? {
        0 => End::Unfinished,
        1 => End::Returned(from.u64()?),
        2 => End::Failed(from.text()?),
        other => return from.error(at, format!("{other} is no end of a run")),
    };
    Ok(Recorded { image, log, end })
}

impl Recorded {
    fn put(&self, out: &mut Vec<u8>) {
        out.count(self.image.parts.len());
        let mut at = 0;
        for Part { start, len, writable } in &self.image.parts {
            out.u64(*start);
            out.push((*writable).into());
            out.counted(&self.image.bytes[at..at + len]);
            at += len;
        }
        out.push(self.log.is_some().into());
        if let Some(Logged { events, is_cut, lost, returned, steps, frames, after, entered }) = &self.log {
            out.push((*is_cut).into());
            out.push(lost.is_some().into());
            if let Some(lost) = lost {
                out.counted(lost.as_bytes());
            }
            out.push((*returned).into());
            out.u64(*steps);
            out.u64(*after);
            out.count(frames.len());
            frames.iter().for_each(|frame| out.u64(*frame));
            out.count(entered.len());
            entered.iter().for_each(|code| out.u32(*code));
            out.counted(events);
        }
        match &self.end {
            End::Unfinished => out.push(0),
            End::Returned(r0) => {
                out.push(1);
                out.u64(*r0);
            }
            End::Failed(error) => {
                out.push(2);
                out.counted(error.as_bytes());
            }
        }
    }
}
