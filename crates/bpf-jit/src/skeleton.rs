//! The part of a backend's state that does not depend on its machine: code buffer, labels, and work that is left for
//! the end of a function or of the program.
//!
//! Problem: half of a backend does not depend on its machine: entries of functions, labels of blocks, unwind
//! information, stubs of failed checks, one stop sequence for each stop code, and tail-call sites whose offsets are
//! known last. Approach: this module keeps all of these, generic over the machine's kind of [`Branch`], and the backend
//! adds the instructions.
//!
//! Invariants: the labels of the functions' entries are made first, so that a function's number is that of its label.
//! The offsets of unwind notes and instruction marks ascend with the buffer.

use crate::backend::{EmitError, EmitOptions, Shape};
use crate::blocks::BlockLabels;
use crate::moves::Move;
use bpf_isa::SubprogId;
use bpf_jit_code::layout::{Branch, Label, Layout};
use bpf_jit_code::unwind::room;
use bpf_jit_code::{Code, PatchSlot, PcEntry, StopCode, Symbol, TailCallSite, TailTarget, Unwind, UnwindOp};
use bpf_lir::{BlockId, VReg};

/// The target of a failed check: code that stops the run.
#[derive(Clone, Copy, Debug)]
pub struct Stub {
    /// Label of the stub.
    pub label: Label,
    /// The stop code.
    pub code: StopCode,
    /// The virtual register of the hidden argument.
    pub ctx: VReg,
    /// The instruction whose check failed.
    pub insn: u32,
}

/// A jump table to be emitted at the end of the function.
#[derive(Clone, Copy, Debug)]
struct Table {
    label: Label,
    /// How many entries it has.
    entries: usize,
}

/// A tail-call site whose offsets are not final yet.
#[derive(Clone, Copy, Debug)]
struct PendingTailCall {
    insn: u32,
    direct: Option<DirectSite>,
}

/// The labels and the table slot of a direct tail-call site.
#[derive(Clone, Copy, Debug)]
pub struct DirectSite {
    /// The prog array.
    pub table: Symbol,
    /// The index into the prog array.
    pub index: u32,
    /// The patch slot that either jumps to `out` or does nothing.
    pub bypass: Label,
    /// The patch slot that jumps to the target program.
    pub target: Label,
    /// The label to which control goes if the call is not made.
    pub out: Label,
}

/// The machine-independent state of an emitter. Its memory is reused from program to program.
#[derive(Debug)]
pub struct Skeleton<B> {
    /// The code, with every branch in its long form.
    pub buf: Vec<u8>,
    /// Branches and labels.
    pub layout: Layout<B>,
    /// Moves of a parallel assignment.
    pub moves: Vec<Move>,
    /// The BPF instruction being emitted.
    pub insn: u32,
    stubs: Vec<Stub>,
    tail_calls: Vec<PendingTailCall>,
    tables: Vec<Table>,
    /// The blocks that the tables' entries name, one table after another.
    entries: Vec<BlockId>,
    /// Number of functions of the program.
    functions: u32,
    /// Labels of the current function's blocks.
    blocks: BlockLabels,
    /// Labels of the stop sequences, by stop code, if one is needed.
    stops: [Option<Label>; StopCode::ALL.len()],
    /// How many unwind notes there were before the current function.
    notes: usize,
    /// The label of the end of the loop being emitted, if the loop's start was aligned.
    end_of_loop: Option<Label>,
}

impl<B: Branch> Default for Skeleton<B> {
    fn default() -> Self {
        Skeleton {
            buf: Vec::new(),
            layout: Layout::default(),
            moves: Vec::new(),
            insn: u32::MAX,
            stubs: Vec::new(),
            tail_calls: Vec::new(),
            tables: Vec::new(),
            entries: Vec::new(),
            functions: 0,
            blocks: BlockLabels::default(),
            stops: [None; StopCode::ALL.len()],
            notes: 0,
            end_of_loop: None,
        }
    }
}

impl<B: Branch> Skeleton<B> {
    /// Begins a program with this number of functions.
    pub fn begin(&mut self, functions: usize) {
        self.buf.clear();
        self.layout.clear();
        self.stubs.clear();
        self.tail_calls.clear();
        self.stops = [None; StopCode::ALL.len()];
        self.functions = crate::num::small(functions);
        self.layout.labels(self.functions);
    }

    /// Begins a function, whose entry is at the end of the buffer.
    pub fn begin_function(&mut self, shape: &Shape, options: &EmitOptions, code: &mut Code) {
        self.blocks.begin(shape, &mut self.layout);
        self.insn = u32::MAX;
        self.tables.clear();
        self.entries.clear();
        self.notes = code.unwind.len();
        self.bind(self.entry(shape.id));
        self.note(UnwindOp::Function, options, code);
    }

    /// Ends a function, whose stubs were emitted. If the options ask for room for the encoded unwind information, the
    /// room is filled with the byte `trap`, which must encode an instruction that traps.
    pub fn end_function(&mut self, trap: u8, options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        if options.unwind_room {
            self.note_always(UnwindOp::End, code);
            self.buf.resize(self.buf.len() + room(code.unwind.len() - self.notes), trap);
        }
        if self.buf.len() > i32::MAX as usize { Err(EmitError::TooLarge) } else { Ok(()) }
    }

    /// Notes that the code from here on belongs to no function.
    pub fn end_functions(&mut self, options: &EmitOptions, code: &mut Code) {
        self.note(UnwindOp::Outside, options, code);
    }

    /// Ends the program: chooses the branches' forms, and adjusts all offsets in `code` to the final layout.
    pub fn finish(&mut self, code: &mut Code) -> Result<(), EmitError> {
        self.layout.finish(&self.buf, &mut code.bytes)?;
        self.layout.relocate(code.relocs.iter_mut().map(|r| &mut r.at));
        self.layout.relocate(code.pc_map.iter_mut().map(|e| &mut e.code));
        self.layout.relocate(code.unwind.iter_mut().map(|u| &mut u.at));
        self.layout.relocate(code.tables.iter_mut().flat_map(|t| [&mut t.start, &mut t.end]));
        for i in 0..self.functions {
            let entry = self.layout.offset(self.entry(SubprogId(i)));
            code.entries.push(entry.ok_or(EmitError::Internal("a function without an entry"))?);
        }
        for site in &self.tail_calls {
            code.tail_calls.push(self.resolve(site)?);
        }
        Ok(())
    }

    /// Returns the label of a function's entry.
    pub fn entry(&self, subprog: SubprogId) -> Label {
        Label(subprog.0)
    }

    /// Returns the label of a block.
    #[inline]
    pub fn block(&self, block: BlockId) -> Label {
        self.blocks.label(block)
    }

    /// Returns a new block besides those of the function's shape.
    pub fn new_block(&mut self) -> BlockId {
        self.blocks.add(&mut self.layout)
    }

    /// Places a label at the end of the buffer.
    #[inline]
    pub fn bind(&mut self, label: Label) {
        self.layout.bind(&self.buf, label);
    }

    /// Returns a new label at the end of the buffer.
    pub fn here(&mut self) -> Label {
        let label = self.layout.label();
        self.bind(label);
        label
    }

    /// Begins an innermost loop, in front of which up to `max` bytes of padding may be inserted.
    pub fn begin_loop(&mut self, max: u8) {
        let end = self.layout.label();
        self.end_of_loop = Some(end);
        self.layout.align_loop(&mut self.buf, end, max);
    }

    /// Ends the loop begun last.
    pub fn end_loop(&mut self) {
        if let Some(end) = self.end_of_loop.take() {
            self.bind(end);
        }
    }

    /// Appends a branch to a label.
    #[inline]
    pub fn go(&mut self, branch: B, to: Label) {
        self.layout.branch(&mut self.buf, branch, to);
    }

    /// Begins a patch slot: the next instruction is the one that may be replaced. Returns the slot's label.
    pub fn patch_slot(&mut self) -> Label {
        self.layout.align_patch_slot(&mut self.buf);
        self.here()
    }

    /// Records a change of the frame, if the options ask for unwind information.
    #[inline]
    pub fn note(&mut self, op: UnwindOp, options: &EmitOptions, code: &mut Code) {
        if options.unwind {
            self.note_always(op, code);
        }
    }

    fn note_always(&mut self, op: UnwindOp, code: &mut Code) {
        code.unwind.push(Unwind { at: crate::num::small(self.buf.len()), op });
    }

    /// Records that the code from here on was made from the instruction `insn`.
    #[inline]
    pub fn mark(&mut self, insn: u32, options: &EmitOptions, code: &mut Code) {
        if options.pc_map && self.insn != insn {
            code.pc_map.push(PcEntry { code: crate::num::small(self.buf.len()), insn });
        }
        self.insn = insn;
    }

    /// Returns a new label for a check of the current instruction to jump to when it fails. A stub for the label is
    /// emitted later.
    pub fn stub(&mut self, code: StopCode, ctx: VReg) -> Label {
        let label = self.layout.label();
        self.stubs.push(Stub { label, code, ctx, insn: self.insn });
        label
    }

    /// Returns the stub to be emitted after `emitted` others, in the order of the checks; `None` after the last.
    pub fn next_stub(&mut self, emitted: usize) -> Option<Stub> {
        let stub = self.stubs.get(emitted).copied();
        if stub.is_none() {
            self.stubs.clear();
        }
        stub
    }

    /// Returns the label of the stop sequence for a stop code.
    pub fn stop(&mut self, code: StopCode) -> Label {
        *self.stops[code.index()].get_or_insert_with(|| self.layout.label())
    }

    /// Returns the stop codes for which a stop sequence is needed, each with its label.
    pub fn stops(&self) -> impl Iterator<Item = (StopCode, Label)> + use<B> {
        let stops = self.stops;
        StopCode::ALL.into_iter().filter_map(move |code| Some((code, stops[code.index()]?)))
    }

    /// Returns a new label for a jump table with these targets, which [`Skeleton::tables`] emits later.
    pub fn table(&mut self, targets: &[BlockId]) -> Label {
        let label = self.layout.label();
        self.tables.push(Table { label, entries: targets.len() });
        self.entries.extend_from_slice(targets);
        label
    }

    /// Emits the function's jump tables. `entry` is a branch of four bytes that encodes its distance.
    pub fn tables(&mut self, entry: B, code: &mut Code) {
        let mut entries = self.entries.as_slice();
        for Table { label, entries: len } in &self.tables {
            let start = crate::num::small(self.buf.len());
            self.layout.bind(&self.buf, *label);
            let (targets, rest) = entries.split_at_checked(*len).unwrap_or_default();
            entries = rest;
            for target in targets {
                self.layout.branch(&mut self.buf, entry, self.blocks.label(*target));
            }
            code.tables.push(start..crate::num::small(self.buf.len()));
        }
    }

    /// Records that the current instruction is a tail-call site. `direct` has the labels of a site that is patched.
    pub fn tail_call(&mut self, direct: Option<DirectSite>) {
        self.tail_calls.push(PendingTailCall { insn: self.insn, direct });
    }

    /// Returns a tail-call site with its offsets in the final layout.
    fn resolve(&self, site: &PendingTailCall) -> Result<TailCallSite, EmitError> {
        let offset = |label| self.layout.offset(label).ok_or(EmitError::Internal("a tail call's label is unbound"));
        let slot = |label| {
            PatchSlot::new(B::ARCH, offset(label)?).map_err(|_| EmitError::Internal("a patch slot crosses a word"))
        };
        let target = match site.direct {
            None => TailTarget::Indirect,
            Some(DirectSite { table, index, bypass, target, out }) => {
                TailTarget::Direct { table, index, bypass: slot(bypass)?, target: slot(target)?, out: offset(out)? }
            }
        };
        Ok(TailCallSite { insn: site.insn, target })
    }
}
