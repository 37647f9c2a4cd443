//! For tests of the verifier (feature `oracle`): compares its proofs with the steps of the interpreter.
//!
//! A thread can record the abstract states of its loads, declare functions of a program without an object as global,
//! and compare each interpreted instruction with the states of the program loaded last. Only [`believe`],
//! [`reuse`] and [`way`] change which programs are accepted, on the calling thread. Without the feature, none of this
//! is compiled.
//!
//! A thread can have the machine code of its next program.
//!
//! A thread can also reuse the recorded result of the verifier for its next loads, if program and environment are
//! equal: verification takes most of the time of a test of a generated program.

use crate::context::ContextLayout;
use bpf_analysis::{Facts, Hold, Passed, RegionBounds};
use bpf_isa::{Callee, Insn, InsnIdx, MemoryAccess, Program};
use bpf_jit::{CompileError, CompileOptions, Compiler, Extern, Lir, Signatures};
use bpf_jit_arm64::Arm64;
use bpf_jit_code::{Arch, Code, Symbol};
use bpf_uapi::{Kfunc, OwnedType, helper_id};
use bpf_verifier::{Env, FieldKind, GlobalFunc, KnownMap, States, Stats, Verified};
use std::cell::RefCell;

/// The state of a thread's recording.
#[derive(Debug, Default)]
struct Watch {
    recording: bool,
    globals: Vec<Option<GlobalFunc>>,
    /// Types that programs without an object may make objects of: those of the numbers 1, 2 and so on.
    types: Vec<OwnedType>,
    /// Whether programs without an object have the kernel's functions.
    kfuncs: bool,
    states: Option<States>,
    kept: Option<Kept>,
    reusing: bool,
    believing: bool,
    way: Option<&'static str>,
    asked_for_code: bool,
    steps_of: Option<(Lir, Code)>,
    code: Option<Emitted>,
    steps: u64,
    outside: Option<Outside>,
    /// The packet's buffer in the current run: it is more than the packet.
    buffer: (u64, u64),
    stack_fill: u8,
}

/// The verifier's result for a program, with all inputs in which loads of one linker may differ.
#[derive(Debug)]
struct Kept {
    insns: Vec<Insn>,
    layout: &'static ContextLayout,
    maps: Vec<KnownMap>,
    globals: Vec<Option<GlobalFunc>>,
    frame_bytes: u32,
    hybrid: bool,
    facts: Facts,
    stats: Stats,
}

/// A value of a run outside of the proven range.
#[derive(Clone, Copy, Debug)]
pub struct Outside {
    /// A description of the mismatch.
    pub what: &'static str,
    /// The instruction before which it was found.
    pub at: InsnIdx,
    /// r0 to r10.
    pub regs: [u64; 11],
}

thread_local!(static WATCH: RefCell<Watch> = RefCell::default());

/// From now on, this thread's loads take these for the global functions of a program, are verified and not recorded. In
/// one without an object, the host function with index `i` is the one of `bpf_uapi::Kfunc::ALL[i]`.
pub fn declare(globals: Vec<Option<GlobalFunc>>) {
    WATCH.with_borrow_mut(|w| (w.globals, w.kfuncs, w.recording, w.reusing) = (globals, true, false, false));
}

/// From now on, programs without an object that this thread loads make objects of these types, by their places in the
/// list; of the first none. The list includes each type that a type in it leads to.
pub fn declare_types(types: Vec<OwnedType>) {
    WATCH.with_borrow_mut(|w| w.types = types);
}

/// Returns the types that programs without an object may allocate.
pub(crate) fn types() -> Vec<OwnedType> {
    WATCH.with_borrow(|w| w.types.clone())
}

/// The next loads of this thread are recorded; runs are compared with the last.
pub fn record() {
    WATCH.with_borrow_mut(|w| (w.recording, w.reusing, w.states, w.kept) = (true, false, None, None));
}

/// Sets whether later loads on this thread take the verifier's result for the last recorded program, in place of being
/// verified, if instructions, context, maps, global functions, size of frames and `hybrid` are equal. Ends the
/// recording.
///
/// # Safety
/// Everything else that a verdict depends on must be equal in these loads and the recorded one, since nothing compares
/// it: the prototypes of host functions, the types of objects, and whether the program is privileged, may sleep or
/// throws. A program that is loaded otherwise may do what an unverified one may.
pub unsafe fn reuse(recorded: bool) {
    WATCH.with_borrow_mut(|w| (w.recording, w.reusing) = (false, recorded));
}

/// Sets whether later loads of contained programs on this thread skip verification: every fact is assumed, as by a
/// verifier that is always wrong. Their accesses then stay inside their objects by containment alone.
///
/// # Safety
/// Nothing shows that containment alone suffices: a program that is loaded meanwhile may do what an unverified one may,
/// so it must be run only where its damage is looked for, in a test.
pub unsafe fn believe(everything: bool) {
    WATCH.with_borrow_mut(|w| w.believing = everything);
}

/// From now on, this thread's loads verify by this strategy of the verifier's portfolio alone
/// ([`bpf_verifier::Verifier::verify_by`]), or by the portfolio. `certified` accepts only what the trusted core has
/// checked, as [`crate::verify::Proofs::Require`] does.
pub fn way(way: Option<&'static str>) {
    WATCH.with_borrow_mut(|w| w.way = way);
}

/// The strategy that loads verify by.
pub(crate) fn the_way() -> Option<&'static str> {
    WATCH.with_borrow(|w| w.way)
}

/// The machine code of a program, before it is placed, with the bounds by which it was confined.
#[derive(Clone, Debug)]
pub struct Emitted {
    /// The code.
    pub code: Code,
    /// The places in the context that hold the bounds of its regions.
    pub regions: Vec<RegionBounds>,
    /// The functions that return the start of an object, or null.
    pub objects: Vec<Symbol>,
    /// Whether the program has an arena.
    pub arena: bool,
    /// The intermediate form from which the code was emitted.
    pub lir: Lir,
    /// The program as code for arm64.
    pub arm64: Code,
}

/// The next program that this thread compiles is kept for [`code`].
pub fn ask_for_code() {
    WATCH.with_borrow_mut(|w| (w.asked_for_code, w.code) = (true, None));
}

/// Returns the code of the program that this thread compiled first after [`ask_for_code`].
pub fn code() -> Option<Emitted> {
    WATCH.with_borrow_mut(|w| w.code.take())
}

/// Keeps the intermediate form of a program if its code was asked for, and compiles it for arm64, too.
#[cfg(native)]
pub(crate) fn compiled(
    lir: &Lir,
    program: &Program,
    facts: &Facts,
    signatures: &dyn Signatures,
    options: &CompileOptions,
) -> Result<(), CompileError> {
    if !WATCH.with_borrow(|w| w.asked_for_code) {
        return Ok(());
    }
    let mut code = Code::new(Arch::Arm64);
    Compiler::<Arm64>::default().compile(program, facts, signatures, options, &mut code)?;
    WATCH.with_borrow_mut(|w| w.steps_of = Some((lir.clone(), code)));
    Ok(())
}

/// Keeps the code of a program if it was asked for.
#[cfg(native)]
pub(crate) fn emitted(code: &Code, program: &Program, facts: &Facts) {
    WATCH.with_borrow_mut(|w| {
        if std::mem::take(&mut w.asked_for_code) {
            let regions = facts.contained.as_ref().map_or(&facts.regions, |contained| &contained.regions).clone();
            let objects = objects(program, facts);
            let (lir, arm64) = w.steps_of.take().unwrap_or_else(|| (Lir::default(), Code::new(Arch::Arm64)));
            let arena = facts.arena.is_some();
            w.code = Some(Emitted { code: code.clone(), regions, objects, arena, lir, arm64 });
        }
    });
}

/// The functions whose result a contained program takes for the start of an object.
#[cfg(native)]
fn objects(program: &Program, facts: &Facts) -> Vec<Symbol> {
    let Some(contained) = &facts.contained else { return Vec::new() };
    let calls = (0u32..).zip(program.insns()).filter(|(slot, _)| contained.at(*slot).hold == Hold::Result);
    let function = |(slot, insn): (u32, &Insn)| match insn {
        Insn::Call(Callee::Helper(id)) => {
            let map = contained.passed(slot).into_iter().flatten().find_map(|passed| match passed {
                Passed::Map(map) => Some(Extern::MapLookup(map).symbol()),
                Passed::AsIs
                | Passed::Inner
                | Passed::Dynptr { .. }
                | Passed::Context
                | Passed::Null
                | Passed::Pointer { .. }
                | Passed::Held { .. } => None,
            });
            [Some(Extern::Helper(*id).symbol()), map.filter(|_| *id == helper_id::MAP_LOOKUP_ELEM)]
        }
        Insn::Call(Callee::Host(index)) => [u32::try_from(*index).ok().map(|index| Extern::Host(index).symbol()), None],
        _other => [None, None],
    };
    calls.flat_map(function).flatten().collect()
}

pub(crate) fn is_believing() -> bool {
    WATCH.with_borrow(|w| w.believing)
}

/// The instructions interpreted on this thread since the last call, and the first that was outside its states.
pub fn observed() -> (u64, Option<Outside>) {
    WATCH.with_borrow_mut(|w| (std::mem::take(&mut w.steps), w.outside.take()))
}

/// From now on, fresh stacks of interpreted runs hold these bytes.
pub fn fill_stacks(fill: u8) {
    WATCH.with_borrow_mut(|w| w.stack_fill = fill);
}

pub(crate) fn stack_fill() -> u8 {
    WATCH.with_borrow(|w| w.stack_fill)
}

/// The names of a program's host functions, by index, if it has no object.
pub(crate) fn host_functions() -> impl Iterator<Item = &'static str> {
    let declared = WATCH.with_borrow(|w| w.kfuncs);
    Kfunc::ALL.iter().filter(move |_| declared).map(|kfunc| kfunc.name())
}

pub(crate) fn globals() -> Option<Vec<Option<GlobalFunc>>> {
    WATCH.with_borrow(|w| (!w.globals.is_empty()).then(|| w.globals.clone()))
}

pub(crate) fn recording() -> bool {
    WATCH.with_borrow(|w| w.recording)
}

/// The steps after which the verifier merges numbers. Half of the watched programs merge from the first step on, since
/// all of them are shorter than the usual limit.
pub(crate) fn merge_after(program: &Program) -> u64 {
    if recording() && program.insns().len().is_multiple_of(2) { 0 } else { bpf_verifier::Env::MERGE_AFTER }
}

/// Stores a program's recorded states and its other facts.
pub(crate) fn keep(verified: &mut Verified, layout: &'static ContextLayout, env: &Env<'_>) {
    WATCH.with_borrow_mut(|w| {
        if w.recording {
            w.states = Some(verified.take_states());
            w.kept = Some(Kept {
                insns: verified.program().insns().to_vec(),
                layout,
                maps: env.maps.to_vec(),
                globals: env.global_functions.to_vec(),
                frame_bytes: env.frame_bytes,
                hybrid: env.hybrid,
                facts: verified.facts().clone(),
                stats: verified.stats(),
            });
        }
    });
}

/// Returns the recorded facts about the program, if they may be reused. Helpers, host functions and limits are not
/// compared: a test whose linkers differ in them must not use [`reuse`].
pub(crate) fn kept(program: &Program, layout: &'static ContextLayout, env: &Env<'_>) -> Option<(Facts, Stats)> {
    WATCH.with_borrow(|w| {
        let kept = w.kept.as_ref().filter(|_| w.reusing)?;
        let same = kept.insns == program.insns()
            && std::ptr::eq(kept.layout, layout)
            && kept.maps == env.maps
            && kept.globals == env.global_functions
            && (kept.frame_bytes, kept.hybrid) == (env.frame_bytes, env.hybrid);
        same.then(|| (kept.facts.clone(), kept.stats))
    })
}

/// A run begins whose packet lies in this buffer.
pub(crate) fn begin(buffer: u64, len: usize) {
    WATCH.with_borrow_mut(|w| w.buffer = (buffer, buffer + len as u64));
}

/// An instruction is about to be interpreted. `packet` is where the packet and its metadata are now.
pub(crate) fn step(at: InsnIdx, regs: &[u64; 11], insn: &Insn, packet: impl FnOnce() -> Option<(u64, u64)>) {
    WATCH.with_borrow_mut(|w| {
        let Some(states) = &w.states else { return };
        w.steps += 1;
        if w.outside.is_some() {
            return;
        }
        if !states.admit(at, regs) {
            w.outside = Some(Outside { what: "registers outside every abstract state", at, regs: *regs });
        }
        // The buffer is the run's, but not all of it the program's.
        let Some(MemoryAccess { base, off, size, .. }) = insn.memory_access() else { return };
        let from = regs[base.index()].wrapping_add(off as u64);
        if from >= w.buffer.0
            && from < w.buffer.1
            && let Some((start, end)) = packet()
            && (from < start || from + u64::from(size.bytes()) > end)
        {
            w.outside = Some(Outside { what: "an access beside the packet", at, regs: *regs });
        }
    });
}

/// Where the packet and the metadata before it lie, from the context.
pub(crate) fn window(layout: &ContextLayout, context: *const u8) -> Option<(u64, u64)> {
    let field = |kind| {
        let field = layout.fields.iter().find(|f| f.kind == kind && f.host_size == 8)?;
        // SAFETY: the context agrees with the layout, which has a pointer there.
        let at = unsafe { context.add(field.host_offset as usize) };
        // SAFETY: the pointer is inside the context; helpers, which may change it, are not running.
        Some(unsafe { at.cast::<u64>().read_unaligned() })
    };
    let (data, end) = (field(FieldKind::Data(0))?, field(FieldKind::DataEnd(0))?);
    Some((field(FieldKind::Data(1)).map_or(data, |meta| meta.min(data)), end))
}
