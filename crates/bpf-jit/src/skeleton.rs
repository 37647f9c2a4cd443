//! What backends keep while they emit: buffer, labels, and what is owed to the end of a function or of the program.
//!
//! Problem: half of a backend has nothing to do with its machine: entries of functions, labels of blocks, notes for
//! unwinders, stubs of failed checks, one stop sequence a reason, tail-call sites whose offsets are known last.
//! Approach: it is here, over the kind of [`Branch`] that the machine has, and the backend adds the instructions.
//!
//! Invariants: the labels of the functions' entries are made first, so that each is known by its number; notes and
//! marks ascend with the buffer.

use crate::backend::{EmitError, EmitOptions, Shape};
use crate::blocks::BlockLabels;
use crate::moves::Move;
use bpf_isa::SubprogId;
use bpf_jit_code::layout::{Branch, Label, Layout};
use bpf_jit_code::unwind::room;
use bpf_jit_code::{Code, PatchSlot, PcEntry, StopCode, Symbol, TailCallSite, TailTarget, Unwind, UnwindOp};
use bpf_lir::{BlockId, VReg};

/// Where a failed check goes.
#[derive(Clone, Copy, Debug)]
pub struct Stub {
    /// It begins here.
    pub label: Label,
    /// Why the run stops.
    pub code: StopCode,
    /// The hidden argument.
    pub ctx: VReg,
    /// The instruction that is to blame.
    pub insn: u32,
}

/// A tail-call site whose offsets are not final yet.
#[derive(Clone, Copy, Debug)]
struct PendingTailCall {
    insn: u32,
    direct: Option<DirectSite>,
}

/// The places of a direct tail-call site.
#[derive(Clone, Copy, Debug)]
pub struct DirectSite {
    /// The table.
    pub table: Symbol,
    /// The index into it.
    pub index: u32,
    /// The patch slot that jumps to `out`, or does not.
    pub bypass: Label,
    /// The patch slot that jumps to the target.
    pub target: Label,
    /// Where control goes when the call is not made.
    pub out: Label,
}

/// The state of an emitter. Its memory is reused from program to program.
#[derive(Debug)]
pub struct Skeleton<B> {
    /// The code with every branch in its long form.
    pub buf: Vec<u8>,
    /// Branches and labels.
    pub layout: Layout<B>,
    /// Moves that are to happen at once.
    pub moves: Vec<Move>,
    /// The BPF instruction being emitted.
    pub insn: u32,
    stubs: Vec<Stub>,
    tail_calls: Vec<PendingTailCall>,
    /// Functions of the program.
    functions: u32,
    /// Labels of the present function's blocks.
    blocks: BlockLabels,
    /// Where the runs of this code stop, by reason.
    stops: [Option<Label>; StopCode::ALL.len()],
    /// How many notes on frames there were before the present function.
    notes: usize,
    /// Where the loop being emitted ends, if it is to lie in few lines of the cache.
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
            functions: 0,
            blocks: BlockLabels::default(),
            stops: [None; StopCode::ALL.len()],
            notes: 0,
            end_of_loop: None,
        }
    }
}

impl<B: Branch> Skeleton<B> {
    /// Begins a program of so many functions.
    pub fn begin(&mut self, functions: usize) {
        self.buf.clear();
        self.layout.clear();
        self.stubs.clear();
        self.tail_calls.clear();
        self.stops = [None; StopCode::ALL.len()];
        self.functions = crate::num::small(functions);
        self.layout.labels(self.functions);
    }

    /// Begins a function: its entry is here.
    pub fn begin_function(&mut self, shape: &Shape, options: &EmitOptions, code: &mut Code) {
        self.blocks.begin(shape, &mut self.layout);
        self.insn = u32::MAX;
        self.notes = code.unwind.len();
        self.bind(self.entry(shape.id));
        self.note(UnwindOp::Function, options, code);
    }

    /// Ends a function, its stubs emitted. Where room is left for the description of its frames, it is filled with
    /// `trap`, which must not be run.
    pub fn end_function(&mut self, trap: u8, options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        if options.unwind_room {
            self.note_always(UnwindOp::End, code);
            self.buf.resize(self.buf.len() + room(code.unwind.len() - self.notes), trap);
        }
        if self.buf.len() > i32::MAX as usize { Err(EmitError::TooLarge) } else { Ok(()) }
    }

    /// What follows belongs to no function.
    pub fn end_functions(&mut self, options: &EmitOptions, code: &mut Code) {
        self.note(UnwindOp::Outside, options, code);
    }

    /// Ends the program: chooses the branches' forms and reports where everything came to lie.
    pub fn finish(&mut self, code: &mut Code) -> Result<(), EmitError> {
        self.layout.finish(&self.buf, &mut code.bytes)?;
        self.layout.relocate(code.relocs.iter_mut().map(|r| &mut r.at));
        self.layout.relocate(code.pc_map.iter_mut().map(|e| &mut e.code));
        self.layout.relocate(code.unwind.iter_mut().map(|u| &mut u.at));
        for i in 0..self.functions {
            let entry = self.layout.offset(self.entry(SubprogId(i)));
            code.entries.push(entry.ok_or(EmitError::Internal("a function without an entry"))?);
        }
        for site in &self.tail_calls {
            code.tail_calls.push(self.resolve(site)?);
        }
        Ok(())
    }

    /// The label of a function's entry.
    pub fn entry(&self, subprog: SubprogId) -> Label {
        Label(subprog.0)
    }

    /// The label of a block.
    #[inline]
    pub fn block(&self, block: BlockId) -> Label {
        self.blocks.label(block)
    }

    /// A block besides those of the function's shape.
    pub fn new_block(&mut self) -> BlockId {
        self.blocks.add(&mut self.layout)
    }

    /// A label is here.
    #[inline]
    pub fn bind(&mut self, label: Label) {
        self.layout.bind(&self.buf, label);
    }

    /// A new label, which is here.
    pub fn here(&mut self) -> Label {
        let label = self.layout.label();
        self.bind(label);
        label
    }

    /// A loop begins here, without another one in it. Up to `max` bytes of padding go before it.
    pub fn begin_loop(&mut self, max: u8) {
        let end = self.layout.label();
        self.end_of_loop = Some(end);
        self.layout.align_loop(&mut self.buf, end, max);
    }

    /// And ends here.
    pub fn end_loop(&mut self) {
        if let Some(end) = self.end_of_loop.take() {
            self.bind(end);
        }
    }

    /// Appends a branch.
    #[inline]
    pub fn go(&mut self, branch: B, to: Label) {
        self.layout.branch(&mut self.buf, branch, to);
    }

    /// A patch slot begins here; the next instruction is it.
    pub fn patch_slot(&mut self) -> Label {
        self.layout.align_patch_slot(&mut self.buf);
        self.here()
    }

    /// Notes a change of the frame, if anybody wants to know.
    #[inline]
    pub fn note(&mut self, op: UnwindOp, options: &EmitOptions, code: &mut Code) {
        if options.unwind {
            self.note_always(op, code);
        }
    }

    fn note_always(&mut self, op: UnwindOp, code: &mut Code) {
        code.unwind.push(Unwind { at: crate::num::small(self.buf.len()), op });
    }

    /// Notes that the code from here on was made from this instruction.
    #[inline]
    pub fn mark(&mut self, insn: u32, options: &EmitOptions, code: &mut Code) {
        if options.pc_map && self.insn != insn {
            code.pc_map.push(PcEntry { code: crate::num::small(self.buf.len()), insn });
        }
        self.insn = insn;
    }

    /// A check of the present instruction that goes to the label where it fails.
    pub fn stub(&mut self, code: StopCode, ctx: VReg) -> Label {
        let label = self.layout.label();
        self.stubs.push(Stub { label, code, ctx, insn: self.insn });
        label
    }

    /// The next stub to be emitted, in the order of the checks; `None` after the last.
    pub fn next_stub(&mut self, emitted: usize) -> Option<Stub> {
        let stub = self.stubs.get(emitted).copied();
        if stub.is_none() {
            self.stubs.clear();
        }
        stub
    }

    /// Where a run stops for this reason.
    pub fn stop(&mut self, code: StopCode) -> Label {
        *self.stops[code.index()].get_or_insert_with(|| self.layout.label())
    }

    /// The reasons for which runs of this code stop, each with its label.
    pub fn stops(&self) -> impl Iterator<Item = (StopCode, Label)> + use<B> {
        let stops = self.stops;
        StopCode::ALL.into_iter().filter_map(move |code| Some((code, stops[code.index()]?)))
    }

    /// The present instruction is a tail-call site; `direct` are its places if it is patched.
    pub fn tail_call(&mut self, direct: Option<DirectSite>) {
        self.tail_calls.push(PendingTailCall { insn: self.insn, direct });
    }

    /// A site, once the layout is final.
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
