//! A program's machine code: compiled, placed, and registered with debuggers and with the tables that patch it.
//!
//! Invariant: registrations of code are dropped before the code: debuggers and tables first, then the text, which waits
//! by itself for the runs in it.

use crate::engine::Engine;
use crate::engine::usage::{Account, Payer};
use crate::error::LoadError;
use crate::program::table::ProgTable;
use bpf_isa::InsnIdx;
use bpf_jit_code::{Arch, FrameShape, PcEntry};
use bpf_prog_pack::Text;
use bpf_quiesce::{Holder, Reservation};
use std::ops::Deref;
use std::sync::Arc;
#[cfg(native)]
use {
    crate::abi::begin::Entry,
    crate::abi::limits::Checks,
    crate::engine::debug,
    crate::program::bindings::Bindings,
    crate::program::references::References,
    crate::program::sites::{Tracked, constant_tail_calls},
    crate::program::stack::worst_stack,
    bpf_analysis::Facts,
    bpf_debug::Registered,
    bpf_isa::{Insn, Program},
    bpf_jit::{Extern, LowerOptions},
    bpf_jit_code::{Code, OptLevel},
    bpf_verifier::ContextLayout,
};

/// Without machine code there is no registration.
#[cfg(not(native))]
pub(super) type Registered = ();

/// Reserves `bytes` of the payer's account, if it has one, for a program of this name.
pub(super) fn take(
    engine: &Engine,
    name: &str,
    payer: Payer<'_>,
    bytes: usize,
) -> Result<Option<Reservation>, LoadError> {
    let bytes = bytes as u64;
    let take = |account: &Account| match engine.domain().is_forked() {
        // In a forked child, the list may be locked for ever by a thread that only the parent has.
        true => account.memory().reserve(bytes),
        false => account.memory().note(Holder::Program, payer.label(name), bytes),
    };
    let full = |full| LoadError::MemoryFull { program: name.to_owned(), full };
    payer.account.map(take).transpose().map_err(full)
}

/// A program's code.
pub(super) struct Compiled {
    /// The registration with unwinders and debuggers, which must be dropped before the text.
    pub(super) registered: Option<Box<Registered>>,
    pub(super) text: Placed,
    /// `None` for a single function without calls and without a frame.
    map: Option<Arc<Map>>,
}

/// The layout of the code, for unwinders and error messages.
#[derive(Debug)]
pub(crate) struct Map {
    /// Where the code of each call begins, ascending; of a program that yields, that of each jump, too.
    pub(crate) calls: Box<[PcEntry]>,
    /// Where the code of each function begins, ascending, and its frame.
    pub(crate) functions: Box<[(u32, FrameShape)]>,
}

#[cfg(native)]
impl Map {
    fn new(program: &Program, code: &Code, yields: bool) -> Option<Arc<Map>> {
        // At a jump back, the code of a program that yields calls the runtime.
        let is_call = |entry: &&PcEntry| match program.insns().get(entry.insn as usize) {
            Some(Insn::Call(_)) => true,
            Some(insn) => yields && (insn.jump_offset().is_some() || matches!(insn, Insn::JumpReg { .. })),
            None => false,
        };
        let calls: Box<[_]> = match program.contents().calls || yields {
            true => code.pc_map.iter().filter(is_call).copied().collect(),
            false => Box::default(),
        };
        if calls.is_empty() && code.frames == [FrameShape::empty(code.arch)] {
            return None;
        }
        let mut functions: Box<[_]> = code.entries.iter().copied().zip(code.frames.iter().copied()).collect();
        functions.sort_unstable_by_key(|(entry, _)| *entry);
        Some(Arc::new(Map { calls, functions }))
    }
}

impl Compiled {
    /// Returns whether sites in it jump through this table.
    #[cfg_attr(not(native), expect(unused_variables, reason = "only machine code has sites"))]
    pub(super) fn jumps_through(&self, table: &Arc<ProgTable>) -> bool {
        match &self.text {
            Placed::Fixed(_) => false,
            #[cfg(native)]
            Placed::Patched { sites, .. } => sites.has(table),
        }
    }

    /// Whether the address lies in it.
    pub(super) fn has(&self, pc: u64) -> bool {
        pc.checked_sub(self.text.base() as u64).is_some_and(|at| at < self.text.len() as u64)
    }

    /// The call whose code has this address.
    pub(super) fn call_at(&self, pc: u64) -> Option<InsnIdx> {
        let calls = &self.map.as_ref()?.calls;
        let at = u32::try_from(pc.checked_sub(self.text.base() as u64)?).ok()?;
        let before = calls.partition_point(|call| call.code <= at).checked_sub(1)?;
        Some(InsnIdx(calls[before].insn))
    }

    /// The frame of the function whose code has this address.
    pub(super) fn frame_at(&self, pc: u64) -> Option<FrameShape> {
        let at = u32::try_from(pc.checked_sub(self.text.base() as u64)?).ok()?;
        let Some(map) = &self.map else { return Arch::HOST.map(FrameShape::empty) };
        let before = map.functions.partition_point(|(entry, _)| *entry <= at).checked_sub(1)?;
        Some(map.functions[before].1)
    }
}

/// Code in executable memory.
pub(super) enum Placed {
    /// Code that is never patched.
    Fixed(Text),
    /// Code with sites that tables patch. The tables share the text.
    #[cfg(native)]
    Patched {
        /// Dropped first: removes the sites from their tables.
        sites: Tracked,
        text: Arc<Text>,
    },
}

impl Deref for Placed {
    type Target = Text;

    fn deref(&self) -> &Text {
        match self {
            Placed::Fixed(text) => text,
            #[cfg(native)]
            Placed::Patched { text, .. } => text,
        }
    }
}

/// The input of a compilation besides the program.
#[cfg(native)]
pub(super) struct Subject<'a> {
    pub(super) engine: &'a Engine,
    pub(super) name: &'a str,
    pub(super) layout: &'static ContextLayout,
    pub(super) checks: Checks,
    pub(super) program: &'a Program,
    pub(super) facts: &'a Facts,
    pub(super) references: &'a References,
}

/// Properties of machine code that placing it requires, beside the code.
#[cfg(native)]
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) lower: LowerOptions,
    pub(crate) machine_stack: u64,
    pub(crate) map: Option<Arc<Map>>,
    /// For code of a first tier: the number that its runs note if they are not counted.
    pub(crate) note: Option<u64>,
}

/// The information for debuggers on a program: its instructions and the object's code; `None` without debuggers.
#[cfg(native)]
pub(crate) type Told<'a> = Option<(&'a Program, Option<&'a bpf_object::Code>)>;

/// Machine code that may be placed any number of times.
#[cfg(native)]
#[derive(Clone, Copy)]
pub(crate) struct Emitted<'a> {
    pub(super) code: &'a Code,
    pub(super) shape: &'a Shape,
    pub(super) told: Told<'a>,
}

/// Code that may be entered.
#[cfg(native)]
pub(super) struct Made {
    pub(super) compiled: Compiled,
    pub(super) entry: Entry,
    /// The bytes that the code takes of an account.
    pub(super) memory: Option<Reservation>,
}

#[cfg(native)]
impl Subject<'_> {
    /// Compiles the program in a compiler's own memory; `then` gets the code, to place it or to copy it. With `note`,
    /// compiles code of a first tier, whose runs note that number if they are not counted.
    pub(super) fn compile<R>(
        &self,
        opt_level: OptLevel,
        note: Option<u64>,
        max_machine_stack: u64,
        then: impl FnOnce(&Code, &Shape) -> Result<R, LoadError>,
    ) -> Result<R, LoadError> {
        let Subject { engine, name, layout, checks, program, facts, references } = *self;
        engine.0.compilers.lend(|host| {
            let calls = program.contents().calls;
            let options = engine.compile_options(opt_level, layout.raw, checks, note.is_some(), calls);
            let facts = constant_tail_calls(program, references, facts);
            host.compiler
                .compile(program, &facts, references, &options, &mut host.code)
                .map_err(|source| LoadError::Compile { program: name.to_owned(), source })?;
            #[cfg(feature = "oracle")]
            crate::oracle::compiled(host.compiler.lir(), program, &facts, references, &options)
                .map_err(|source| LoadError::Compile { program: name.to_owned(), source })?;
            let machine_stack = worst_stack(program, &host.code);
            if machine_stack > max_machine_stack {
                let (program, limit) = (name.to_owned(), max_machine_stack);
                return Err(LoadError::Stack { program, needed: machine_stack, limit });
            }
            let map = Map::new(program, &host.code, options.lower.yields);
            then(&host.code, &Shape { lower: options.lower, machine_stack, map, note })
        })
    }
}

#[cfg(native)]
impl Emitted<'_> {
    /// Places a copy of the code with these bindings, after `take` has reserved its length in bytes.
    pub(super) fn place(
        &self,
        engine: &Engine,
        name: &str,
        bindings: &Bindings,
        take: impl FnOnce(usize) -> Result<Option<Reservation>, LoadError>,
    ) -> Result<Made, LoadError> {
        let Emitted { code, shape, told } = *self;
        let memory = take(code.bytes.len())?;
        let place = |source| LoadError::Place { program: name.to_owned(), source };
        let resolve = |symbol| match (Extern::from_symbol(symbol), shape.note, &bindings.counted) {
            (Some(Extern::Counters(_)), Some(note), None) => Some(crate::num::index(note)),
            _ => bindings.resolve(symbol, &shape.lower),
        };
        let text = engine.0.packs.stage(code, resolve).map_err(place)?.finalize().map_err(place)?;
        let entry = text.entry(0).ok_or_else(|| LoadError::Internal("code without an entry".into()))?;
        let entry = Entry { code: entry, callee: entry, needs: code.needs };
        let text = if code.tail_calls.is_empty() {
            Placed::Fixed(text)
        } else {
            let text = Arc::new(text);
            Placed::Patched { sites: Tracked::new(&text, &code.tail_calls, bindings)?, text }
        };
        let registered = engine.0.debug.as_ref().zip(told).map(|(registry, (program, source))| {
            // SAFETY: `Loaded::drop` or `Tiered` drops the registration when no run can be in the code.
            unsafe { debug::register(registry, name, program, source, code, &text) }
        });
        Ok(Made { compiled: Compiled { registered, text, map: shape.map.clone() }, entry, memory })
    }
}
