//! A recorder: the last runs of a program, in memory that is used again and again.
//!
//! A program of which nothing but its context decides what it does runs as before, and the recorder copies the context.
//! Recorded runs of all other programs are interpreted, with a log of their inputs ([`crate::exec::log`]). Runs without
//! a recorder stay machine code.

use crate::context::Context;
use crate::error::RunError;
use crate::error::record::RecordError;
use crate::exec::image::{Image, Pointers};
use crate::exec::log::Log;
use crate::exec::observed::refused;
use crate::handle::program::Program;
use crate::program::interpreted::Interpreted;
use crate::program::loaded::Loaded;
use crate::record::listing::Listing;
use crate::record::recording::{End, Logged, Recorded, Recording};
use bpf_isa::{Callee, Imm64, Insn, InsnIdx};
use bpf_uapi::helper_id::TAIL_CALL;
use bpf_verifier::FieldKind;
use std::fmt;

/// Options of [`Program::recorder`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct RecorderOptions {
    runs: usize,
    run_bytes: usize,
}

impl Default for RecorderOptions {
    fn default() -> RecorderOptions {
        RecorderOptions { runs: 16, run_bytes: 1 << 20 }
    }
}

const MAX_RUNS: usize = 1 << 16;
/// A length in a recording has 32 bits.
const MAX_RUN_BYTES: usize = 1 << 30;

impl RecorderOptions {
    /// Returns the default options.
    pub fn new() -> RecorderOptions {
        RecorderOptions::default()
    }

    /// Sets the number of runs that are kept, the last ones; 16 by default, and 65,536 at most.
    pub fn runs(mut self, runs: usize) -> RecorderOptions {
        self.runs = runs.min(MAX_RUNS);
        self
    }

    /// Sets the upper bound on the bytes of one run's log; 1 MiB by default, and 1 GiB at most. A run that gets more
    /// from outside goes on, and cannot be replayed.
    pub fn run_bytes(mut self, bytes: usize) -> RecorderOptions {
        self.run_bytes = bytes.min(MAX_RUN_BYTES);
        self
    }
}

/// How the runs of a program are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RecordMode {
    /// The context alone decides what the program does: it is copied before the run, which is that of the engine.
    Context,
    /// The program gets other things from outside: the run is interpreted, and they are logged.
    Interpreted,
}

/// Records runs of one program: [`Program::recorder`].
pub struct Recorder<C, H = ()> {
    program: Program<C, H>,
    mode: RecordMode,
    pointers: Pointers,
    options: RecorderOptions,
    template: Template,
    /// The kept runs; the oldest is overwritten.
    slots: Vec<Slot>,
    /// The slot of the next run.
    next: usize,
}

/// The parts of a recording that all runs share.
struct Template {
    listing: Listing,
    program: bpf_isa::Program,
    /// The function that handles exceptions.
    exception: Option<InsnIdx>,
}

/// The memory of one kept run.
#[derive(Default)]
struct Slot {
    image: Image,
    log: Log,
    /// `None` until the run has ended.
    end: Option<Result<u64, String>>,
    used: bool,
}

impl<C, H> fmt::Debug for Recorder<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("program", &self.program).field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl<C: Context, H: 'static> Program<C, H> {
    /// Makes a recorder of runs of this program. Programs in machine code must have been loaded with
    /// [`Loader::recordable`](crate::Loader::recordable). Other runs of the program cost as much as without a recorder.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, isa::assemble, observe::{RecorderOptions, Recording}};
    ///
    /// let linker = Linker::<()>::new(&Engine::new(Config::new())?);
    /// let insns = assemble("r0 = 0\nif r2 == 0 goto +1\nr0 = *(u8 *)(r1 + 0)\nexit")?;
    /// let first = linker.loader::<Raw>().recordable(true).insns("first", insns)?;
    /// let mut recorder = first.recorder(RecorderOptions::new())?;
    /// assert_eq!(recorder.run(&mut (), &mut [7, 9])?, 7);
    ///
    /// let recording = Recording::parse(&recorder.save())?;
    /// assert_eq!(recording.replay(0, &mut ())?.result, Ok(7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RecordError`]: the runs cannot be recorded so that a replay is exact.
    pub fn recorder(&self, options: RecorderOptions) -> Result<Recorder<C, H>, RecordError> {
        let loaded = self.loaded();
        let Some(what) = loaded.instructions() else {
            return Err(RecordError::NotKept { program: loaded.name.to_string() });
        };
        let mode = mode_of(loaded, what)?;
        if options.runs == 0 {
            return Err(RecordError::NoRuns);
        }
        let slots = (0..options.runs).map(|_| Slot::default()).collect();
        let pointers = Pointers::of(loaded.layout);
        let (program, exception) = (what.program.clone(), what.left.exception);
        let template = Template { listing: Listing::of(loaded, what), program, exception };
        Ok(Recorder { program: self.clone(), mode, pointers, options, template, slots, next: 0 })
    }

    /// Returns the program as tools that step through it show it; `None` for machine code that does not keep its
    /// instructions.
    pub fn listing(&self) -> Option<Listing> {
        let loaded = self.loaded();
        Some(Listing::of(loaded, loaded.instructions()?))
    }
}

/// Returns how the runs of a program can be recorded.
fn mode_of(loaded: &Loaded, what: &Interpreted) -> Result<RecordMode, RecordError> {
    let program = || loaded.name.to_string();
    if loaded.is_sleepable() {
        return Err(RecordError::Sleepable { program: program() });
    }
    let native = loaded.interpreted().is_none();
    if native && !what.verified {
        return Err(RecordError::Unverified { program: program() });
    }
    if let Some(arena) = &what.left.arena {
        let insn = arena.1.first().copied().unwrap_or(InsnIdx(0));
        return Err(RecordError::Unsupported { program: program(), insn, what: "an access to an arena" });
    }
    if let Some((insn, what)) = refused(loaded, what) {
        return Err(RecordError::Unsupported { program: program(), insn, what });
    }
    let mut asks = what.sees_addresses || loaded.layout.fields.iter().any(|field| field.kind == FieldKind::Socket);
    for (at, insn) in what.program.insns().iter().enumerate() {
        let what = match insn {
            Insn::Call(Callee::Helper(TAIL_CALL)) => "a tail call",
            Insn::LoadAbs { .. } | Insn::LoadInd { .. } => "LD_ABS or LD_IND",
            Insn::Call(Callee::Helper(_) | Callee::Host(_)) => {
                asks = true;
                continue;
            }
            Insn::LoadImm64 { imm: Imm64::Const(_) | Imm64::Func(_), .. } => continue,
            Insn::LoadImm64 { .. } => {
                asks = true;
                continue;
            }
            _any_other => continue,
        };
        // Programs have fewer instructions than 2^32.
        return Err(RecordError::Unsupported { program: program(), insn: InsnIdx(crate::num::small(at)), what });
    }
    Ok(if asks || !native { RecordMode::Interpreted } else { RecordMode::Context })
}

impl<C: Context, H: 'static> Recorder<C, H> {
    /// Returns how the runs are recorded.
    pub fn mode(&self) -> RecordMode {
        self.mode
    }

    /// Runs the program once, as [`Program::run`], and keeps what it got from outside in place of that of the oldest
    /// kept run.
    ///
    /// # Errors
    /// [`RunError`]: the run ended without a result. It is kept, too.
    #[inline]
    pub fn run(&mut self, host: &mut H, mut data: C::Data<'_, '_>) -> Result<u64, RunError> {
        let parts = C::parts(&mut data);
        // A refused run reads nothing.
        parts.check().map_err(|error| *error)?;
        let loaded = self.program.loaded();
        let host = core::ptr::from_mut(host).cast();
        let slot = &mut self.slots[self.next];
        self.next = if self.next + 1 == self.options.runs { 0 } else { self.next + 1 };
        (slot.used, slot.end) = (true, None);
        // SAFETY: `Context` promises parts that are valid while `data` is borrowed, and that agree with its layout.
        unsafe { slot.image.take(&self.pointers, parts) };
        let result = match (self.mode, loaded.instructions()) {
            (RecordMode::Interpreted, Some(what)) => {
                slot.log.begin(self.options.run_bytes);
                // SAFETY: as in `Program::run`.
                let result = unsafe { loaded.run_watched(what, host, parts, &mut slot.log) };
                // SAFETY: `data` is still borrowed, and with it what the parts lead to.
                slot.log.after = unsafe { slot.image.digest_now(&self.pointers) };
                result
            }
            // SAFETY: as in `Program::run`.
            (RecordMode::Context | RecordMode::Interpreted, _) => unsafe { loaded.run(host, parts) },
        };
        slot.end = Some(match &result {
            Ok(r0) => Ok(*r0),
            Err(error) => Err(error.to_string()),
        });
        result
    }

    /// Returns the kept runs as a [`Recording`], the oldest first.
    pub fn recording(&self) -> Recording {
        let loaded = self.program.loaded();
        let (newer, older) = self.slots.split_at(self.next);
        let logged = self.mode == RecordMode::Interpreted;
        let runs = older.iter().chain(newer).filter(|slot| slot.used).map(|slot| Recorded {
            image: slot.image.clone(),
            log: logged.then(|| Logged {
                events: slot.log.events.clone(),
                is_cut: slot.log.is_cut,
                steps: slot.log.steps,
                frames: slot.log.frames.clone(),
                after: slot.log.after,
            }),
            end: match &slot.end {
                None => End::Unfinished,
                Some(Ok(r0)) => End::Returned(*r0),
                Some(Err(error)) => End::Failed(error.clone()),
            },
        });
        let frame_bytes = loaded.engine.config().frame_bytes;
        let Template { listing, program, exception } = &self.template;
        let (listing, program, exception) = (listing.clone(), program.clone(), *exception);
        Recording { runs: runs.collect(), listing, program, frame_bytes, exception }
    }

    /// Returns the kept runs as bytes that another process reads: [`Recording::parse`], `bpf replay`.
    pub fn save(&self) -> Vec<u8> {
        self.recording().to_bytes()
    }

    /// Returns the bytes that the kept runs take: the copies of their contexts, and what they got from outside.
    pub fn bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.image.bytes.len() + slot.log.events.len()).sum()
    }
}
