//! A structurally valid program (safety layer L0).
//!
//! Problem: every crate above follows jumps and calls, and none should check their targets. Approach: check once,
//! here, in time linear in the program. [`Program::new`] is the only constructor, so all other code may rely on these
//! properties: every instruction has an encoding; every jump and call leads to the first slot of an instruction of
//! the program; jumps stay inside their subprogram; control cannot fall off the end of a subprogram; the call graph
//! (calls, and references to callbacks) has no cycle and is at most [`MAX_CALL_DEPTH`] frames deep; no instruction
//! writes r10. Properties that need values or types (stack use, helpers, loops) are checked elsewhere.
//!
//! Unreachable code is allowed, and only reachable code is checked for falling off: a subprogram may *end* in
//! unreachable instructions that are neither `exit` nor `goto`. Code that follows edges without regard to
//! reachability must bound them by [`Subprog::end`].
//!
//! Subprograms are not declared: one starts at each target of a call or callback reference, and ends at the next
//! start.
//!
//! The callee of a call through a register ([`Callee::Reg`]) is not known here, but the call graph must have an edge
//! to it. The graph has an edge wherever a function takes another's address. In addition it has edges from each
//! function that calls through a register to the *leaves* whose address is taken anywhere: functions that call no
//! subprogram, which cannot create a cycle. A function that calls others can be called through a register only by
//! functions that take its address: the engine ensures that no other function is called
//! ([`Program::indirect_callees`]).
//!
//! The targets of an indirect jump ([`Insn::JumpReg`]) are not known from the instructions either. A program is made
//! with the instructions that its tables name ([`Program::with_targets`]). Each such jump may lead to those of them
//! that lie in its subprogram, and nowhere else, which the engine ensures too.

use crate::codec::{decode_with, encode_valid, malformed_at};
use crate::scan::{Contents, Scan};
use crate::structure::{
    CallSite, Flow, IndirectCallee, MAX_CALL_DEPTH, MAX_INDIRECT_CALLEES, MAX_INDIRECT_EDGES, MAX_INSNS, Subprog,
    SubprogId, ValidateError, ValidateErrorKind,
};
use crate::{Callee, Imm64, Insn, InsnIdx};

/// A structurally valid program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    insns: Vec<Insn>,
    contents: Contents,
    /// Sorted by `at`.
    flow: Vec<Flow>,
    /// Targets of indirect jumps: ascending, without duplicates.
    targets: Vec<InsnIdx>,
    /// Sorted by `start`; together they cover the program.
    subprogs: Vec<Subprog>,
    /// Sorted by `at`.
    calls: Vec<CallSite>,
    /// Sorted, without duplicates.
    indirect: Vec<IndirectCallee>,
    max_call_depth: u32,
}

impl Program {
    /// Validates instructions, one a slot, as [`crate::decode`] and [`crate::assemble`] return them.
    ///
    /// # Errors
    /// The first violation found of the rules at the head of this module.
    ///
    /// ```
    /// let program = bpf_isa::Program::new(bpf_isa::assemble("r0 = 7\nexit")?)?;
    /// assert_eq!(program.subprogs().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(insns: Vec<Insn>) -> Result<Program, ValidateError> {
        Program::with_targets(insns, Vec::new())
    }

    /// Validates a program whose indirect jumps may lead to these instructions, each to those in its subprogram.
    ///
    /// # Errors
    /// The first violation found; [`ValidateErrorKind::BadIndirectTarget`] for a target that is not an instruction.
    pub fn with_targets(insns: Vec<Insn>, targets: Vec<InsnIdx>) -> Result<Program, ValidateError> {
        check_length(insns.len())?;
        let mut scan = Scan::new(insns.len());
        for (i, insn) in insns.iter().enumerate() {
            let slot = InsnIdx(crate::small(i));
            scan.insn(slot, insn, || match malformed_at(&insns, i) {
                None => Ok(()),
                Some(malformed) => Err(ValidateError { slot, kind: ValidateErrorKind::Malformed(malformed) }),
            })?;
        }
        Program::scanned(insns, scan, targets)
    }

    /// Decodes and validates, faster than in two steps.
    ///
    /// # Errors
    /// [`ValidateErrorKind::Decode`], and those of [`Program::new`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Program, ValidateError> {
        // Checked first, so that an absurd length costs no memory.
        check_length(bytes.len().div_ceil(8))?;
        let mut scan = Scan::new(bytes.len() / 8);
        let insns = decode_with(bytes, &mut scan)?;
        Program::scanned(insns, scan, Vec::new())
    }

    /// The rest of validation: rules about more than one instruction.
    fn scanned(insns: Vec<Insn>, scan: Scan, mut targets: Vec<InsnIdx>) -> Result<Program, ValidateError> {
        targets.sort_unstable();
        targets.dedup();
        for &target in &targets {
            if matches!(insns.get(target.index()), None | Some(Insn::SecondSlot)) {
                let kind = ValidateErrorKind::BadIndirectTarget { target };
                return Err(ValidateError { slot: target, kind });
            }
        }
        let Scan { mut calls, flow, contents, indirect_calls, .. } = scan;
        for call in &calls {
            if let Insn::Call(Callee::Subprog(off)) | Insn::LoadImm64 { imm: Imm64::Func(off), .. } =
                insns[call.at.index()]
            {
                check_target(&insns, call.at, off)?;
            }
        }
        let subprogs = find_subprogs(insns.len(), &mut calls);
        let indirect = match indirect_calls.is_empty() {
            true => Vec::new(),
            false => {
                imply_calls(&subprogs, &indirect_calls, &mut calls);
                find_indirect(&subprogs, &indirect_calls, &calls)?
            }
        };
        let mut rest = &flow[..];
        for &subprog in &subprogs {
            let (inside, after) = rest.split_at(rest.partition_point(|flow| flow.at.0 < subprog.end));
            check_subprog(&insns, subprog, inside, within(&targets, subprog))?;
            rest = after;
        }
        if contents.indirect_jumps && !targets.is_empty() {
            check_indirect(&insns, &subprogs, &targets)?;
        }
        let max_call_depth = check_call_graph(&subprogs, &calls)?;
        Ok(Program { insns, contents, flow, targets, subprogs, calls, indirect, max_call_depth })
    }

    /// The program in the wire format.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode_valid(&self.insns)
    }

    /// The instructions, by slot.
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// Returns the instructions, by slot, so that they can be changed and validated again.
    pub fn into_insns(self) -> Vec<Insn> {
        self.insns
    }

    /// Returns the instructions, by slot, and the targets of indirect jumps: the arguments of
    /// [`Program::with_targets`].
    pub fn into_parts(self) -> (Vec<Insn>, Vec<InsnIdx>) {
        (self.insns, self.targets)
    }

    /// Targets of the indirect jumps in a subprogram, ascending.
    pub fn indirect_targets(&self, id: SubprogId) -> &[InsnIdx] {
        self.subprogs.get(id.index()).map_or(&[], |subprog| within(&self.targets, *subprog))
    }

    /// The kinds of instructions that the program contains.
    pub fn contents(&self) -> Contents {
        self.contents
    }

    /// The program's jumps, branches and exits, in slot order.
    pub fn flow(&self) -> &[Flow] {
        &self.flow
    }

    /// The subprograms, sorted by start. The first is the main program; together they cover the program.
    pub fn subprogs(&self) -> &[Subprog] {
        &self.subprogs
    }

    /// The subprogram that starts at this slot.
    pub fn subprog_starting_at(&self, at: InsnIdx) -> Option<SubprogId> {
        self.subprogs.binary_search_by_key(&at.0, |s| s.start).ok().map(|i| SubprogId(crate::small(i)))
    }

    /// The subprogram that contains this slot; the last one for slots beyond the program.
    pub fn subprog_of(&self, at: InsnIdx) -> SubprogId {
        SubprogId(crate::small(self.subprogs.partition_point(|s| s.start <= at.0).saturating_sub(1)))
    }

    /// All calls and callback references between subprograms, in slot order.
    pub fn calls(&self) -> &[CallSite] {
        &self.calls
    }

    /// The possible callees of the calls through registers in a subprogram, ascending: never the main program, and
    /// only functions that the call graph has an edge to. Empty for a subprogram without such calls.
    pub fn indirect_callees(&self, caller: SubprogId) -> &[IndirectCallee] {
        let from = self.indirect.partition_point(|pair| pair.caller < caller);
        let to = self.indirect.partition_point(|pair| pair.caller <= caller);
        &self.indirect[from..to]
    }

    /// The calls and callback references in a subprogram, in slot order: one entry per site, and the edges that its
    /// calls through registers add.
    pub fn calls_of(&self, id: SubprogId) -> &[CallSite] {
        let Some(subprog) = self.subprogs.get(id.index()) else { return &[] };
        calls_within(&self.calls, *subprog)
    }

    /// Number of frames of the longest chain of calls, the main program's included: 1 to [`MAX_CALL_DEPTH`]. A
    /// callback counts as called by the subprogram that takes its address.
    pub fn max_call_depth(&self) -> u32 {
        self.max_call_depth
    }
}

fn check_length(slots: usize) -> Result<(), ValidateError> {
    match slots {
        0 => Err(ValidateError { slot: InsnIdx(0), kind: ValidateErrorKind::Empty }),
        1..=MAX_INSNS => Ok(()),
        _ => Err(ValidateError { slot: InsnIdx(crate::small(MAX_INSNS)), kind: ValidateErrorKind::TooLong { slots } }),
    }
}

/// The slot that `off` leads to from `at`, if it is valid.
fn check_target(insns: &[Insn], at: InsnIdx, off: i32) -> Result<InsnIdx, ValidateError> {
    let fail = |kind| Err(ValidateError { slot: at, kind });
    let outside = ValidateErrorKind::TargetOutOfRange { target: i64::from(at.0) + 1 + i64::from(off) };
    let Some(target) = at.jump(off) else { return fail(outside) };
    match insns.get(target.index()) {
        None => fail(outside),
        Some(Insn::SecondSlot) => fail(ValidateErrorKind::TargetIsSecondSlot { target }),
        Some(_) => Ok(target),
    }
}

/// Cuts the program at all called slots, and replaces these slots by subprogram numbers.
fn find_subprogs(slots: usize, calls: &mut [CallSite]) -> Vec<Subprog> {
    if calls.is_empty() {
        return vec![Subprog { start: 0, end: crate::small(slots) }];
    }
    let mut starts: Vec<u32> = core::iter::once(0).chain(calls.iter().map(|call| call.callee.0)).collect();
    starts.sort_unstable();
    starts.dedup();
    for call in calls {
        // Every callee is in the list, so the partition point past it is its position plus one.
        call.callee = SubprogId(crate::small(starts.partition_point(|&start| start <= call.callee.0)) - 1);
    }
    let ends = starts.iter().skip(1).copied().chain([crate::small(slots)]);
    starts.iter().zip(ends).map(|(&start, end)| Subprog { start, end }).collect()
}

/// Adds the edges from functions that call through registers to the leaves whose address is taken.
fn imply_calls(subprogs: &[Subprog], indirect_calls: &[InsnIdx], calls: &mut Vec<CallSite>) {
    let of = |at: InsnIdx| subprogs.partition_point(|s| s.start <= at.0) - 1;
    let mut callers: Vec<(usize, InsnIdx)> = indirect_calls.iter().map(|&at| (of(at), at)).collect();
    callers.dedup_by_key(|(subprog, _)| *subprog);
    let mut is_leaf = vec![true; subprogs.len()];
    callers.iter().for_each(|&(subprog, _)| is_leaf[subprog] = false);
    calls.iter().for_each(|call| is_leaf[of(call.at)] = false);
    let mut leaves: Vec<SubprogId> = calls.iter().filter(|call| call.callback).map(|call| call.callee).collect();
    leaves.retain(|leaf| is_leaf[leaf.index()]);
    leaves.sort_unstable();
    leaves.dedup();
    if callers.len().saturating_mul(leaves.len()) > MAX_INDIRECT_CALLEES {
        return;
    }
    for (_, at) in callers {
        calls.extend(leaves.iter().map(|&callee| CallSite { at, callee, callback: true }));
    }
    calls.sort_by_key(|call| call.at);
}

/// The possible callees of calls through registers, per function: the targets of its edges that are not calls.
fn find_indirect(
    subprogs: &[Subprog],
    indirect_calls: &[InsnIdx],
    calls: &[CallSite],
) -> Result<Vec<IndirectCallee>, ValidateError> {
    let of = |at: InsnIdx| SubprogId(crate::small(subprogs.partition_point(|s| s.start <= at.0) - 1));
    let (mut found, mut in_all) = (Vec::new(), 0);
    for sites in indirect_calls.chunk_by(|a, b| of(*a) == of(*b)) {
        let (caller, before) = (of(sites[0]), found.len());
        let taken = calls_within(calls, subprogs[caller.index()]).iter().filter(|call| call.callback);
        found.extend(taken.map(|call| IndirectCallee { caller, callee: call.callee }));
        found[before..].sort_unstable();
        found.dedup();
        // The main program is called by the engine only.
        found.retain(|pair| pair.callee != SubprogId(0));
        in_all += sites.len().saturating_mul(found.len() - before);
        if in_all > MAX_INDIRECT_CALLEES {
            return Err(ValidateError { slot: sites[0], kind: ValidateErrorKind::IndirectCallees });
        }
    }
    Ok(found)
}

/// Checks that control stays inside a subprogram; `flow` is all of its jumps, branches and exits.
fn check_subprog(insns: &[Insn], subprog: Subprog, flow: &[Flow], targets: &[InsnIdx]) -> Result<(), ValidateError> {
    let range = subprog.start..subprog.end;
    for &Flow { at, target } in flow {
        let Some(target) = target else { continue };
        if !matches!(insns.get(target.index()), Some(insn) if *insn != Insn::SecondSlot) {
            // An error: `check_target` formats it.
            check_target(insns, at, insns[at.index()].jump_offset().unwrap_or(0))?;
        }
        if !range.contains(&target.0) {
            return Err(ValidateError { slot: at, kind: ValidateErrorKind::JumpLeavesSubprog { target, subprog } });
        }
    }
    // Subprograms are never empty: each starts at a slot of the program and ends at a later one.
    let last = InsnIdx(subprog.end - 1);
    if insns[last.index()].ends_flow() || !reaches_end(insns, subprog, targets) {
        Ok(())
    } else {
        Err(ValidateError { slot: last, kind: ValidateErrorKind::FallsThrough { subprog } })
    }
}

/// Whether control can get from the start of a subprogram to its end. Called only for the rare subprogram whose last
/// instruction is neither `exit` nor `goto`, which is allowed if that end is unreachable. Its jumps have been
/// checked.
fn reaches_end(insns: &[Insn], Subprog { start, end }: Subprog, mut targets: &[InsnIdx]) -> bool {
    let mut seen = vec![false; (end - start) as usize];
    let mut work = vec![InsnIdx(start)];
    while let Some(mut at) = work.pop() {
        // Follows fall-through until visited code; the other way of each branch is queued.
        loop {
            if at.0 >= end {
                return true;
            }
            if core::mem::replace(&mut seen[(at.0 - start) as usize], true) {
                break;
            }
            let insn = &insns[at.index()];
            work.extend(insn.jump_offset().and_then(|off| at.jump(off)));
            if matches!(insn, Insn::JumpReg { .. }) {
                // Queued once, because all such jumps have the same targets.
                work.extend_from_slice(core::mem::take(&mut targets));
            }
            if insn.ends_flow() {
                break;
            }
            at.0 += insn.slots();
        }
    }
    false
}

/// The targets that lie in the subprogram.
fn within(targets: &[InsnIdx], Subprog { start, end }: Subprog) -> &[InsnIdx] {
    let from = targets.partition_point(|target| target.0 < start);
    let to = targets.partition_point(|target| target.0 < end);
    &targets[from..to]
}

/// Limits the number of edges of indirect jumps, each of which has all targets in its subprogram.
fn check_indirect(insns: &[Insn], subprogs: &[Subprog], targets: &[InsnIdx]) -> Result<(), ValidateError> {
    let mut edges = 0usize;
    for &subprog in subprogs {
        let each = within(targets, subprog).len();
        if each == 0 {
            continue;
        }
        let range = subprog.start as usize..subprog.end as usize;
        let jumps = insns[range].iter().filter(|insn| matches!(insn, Insn::JumpReg { .. })).count();
        edges = edges.saturating_add(jumps.saturating_mul(each));
        if edges > MAX_INDIRECT_EDGES {
            return Err(ValidateError { slot: InsnIdx(subprog.start), kind: ValidateErrorKind::IndirectEdges });
        }
    }
    Ok(())
}

#[inline]
fn calls_within(calls: &[CallSite], subprog: Subprog) -> &[CallSite] {
    let from = calls.partition_point(|call| call.at.0 < subprog.start);
    let to = calls.partition_point(|call| call.at.0 < subprog.end);
    &calls[from..to]
}

/// Number of frames of the longest chain of calls from the main program.
///
/// A depth-first walk that records a height per subprogram, so that each edge is followed once. The walk is never
/// deeper than [`MAX_CALL_DEPTH`], so a cycle ends it early.
fn check_call_graph(subprogs: &[Subprog], calls: &[CallSite]) -> Result<u32, ValidateError> {
    if calls.is_empty() {
        return Ok(1);
    }
    /// The state of the walk at a subprogram.
    #[derive(Clone, Copy)]
    enum Mark {
        New,
        Open,
        /// Finished, with the number of frames of the longest chain that starts here.
        Done(u32),
    }
    struct Visit<'a> {
        id: SubprogId,
        rest: core::slice::Iter<'a, CallSite>,
        height: u32,
    }
    let mut marks = vec![Mark::New; subprogs.len()];
    let mut path: Vec<Visit<'_>> = Vec::with_capacity(MAX_CALL_DEPTH as usize);
    let open = |id: SubprogId| Visit { id, rest: calls_within(calls, subprogs[id.index()]).iter(), height: 1 };
    // From all subprograms, because some that only call each other are not reached from main.
    for root in 0..subprogs.len() {
        if !matches!(marks[root], Mark::New) {
            continue;
        }
        marks[root] = Mark::Open;
        path.push(open(SubprogId(crate::small(root))));
        while let Some(top) = path.last_mut() {
            let Some(&CallSite { at, callee, .. }) = top.rest.next() else {
                let (id, height) = (top.id, top.height);
                marks[id.index()] = Mark::Done(height);
                path.pop();
                if let Some(caller) = path.last_mut() {
                    caller.height = caller.height.max(height + 1);
                }
                continue;
            };
            let below = match marks[callee.index()] {
                Mark::Open => {
                    return Err(ValidateError { slot: at, kind: ValidateErrorKind::Recursion { callee } });
                }
                Mark::Done(height) => {
                    top.height = top.height.max(height + 1);
                    height
                }
                Mark::New => 1,
            };
            if crate::small(path.len()) + below > MAX_CALL_DEPTH {
                return Err(ValidateError { slot: at, kind: ValidateErrorKind::CallsTooDeep { callee } });
            }
            if let Mark::New = marks[callee.index()] {
                marks[callee.index()] = Mark::Open;
                path.push(open(callee));
            }
        }
    }
    match marks[0] {
        Mark::Done(height) => Ok(height),
        // Never reached: the walk above finishes every subprogram.
        Mark::New | Mark::Open => Ok(MAX_CALL_DEPTH),
    }
}
