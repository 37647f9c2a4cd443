//! A recorder: the last runs of a program, in memory that is used again and again.
//!
//! A program of which nothing but its context decides what it does runs as before, and the recorder copies the context.
//! Recorded runs of all other programs are interpreted, with a log of their inputs ([`crate::exec::log`]). Runs without
//! a recorder stay machine code.

use crate::abi::limits::RunLimits;
use crate::call::state::{Host, Loan};
use crate::context::Context;
use crate::error::RunError;
use crate::error::record::RecordError;
use crate::exec::image::Image;
use crate::exec::listing::Listing;
use crate::exec::log::{Log, Logger, Logging, unrecorded};
use crate::handle::program::Program;
use crate::program::interpreted::Interpreted;
use crate::program::loaded::Loaded;
use crate::record::recording::{Code, End, Logged, MAX_FIELDS, MAX_RIGHTS, MAX_RUNS, Recorded, Recording, Rights};
use bpf_isa::{Callee, Imm64, Insn};
use bpf_verifier::{Field, FieldKind};
use core::ops::Range;
use std::fmt;
use std::sync::Arc;

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
pub struct Recorder<C, H: ?Sized = ()> {
    program: Program<C, H>,
    mode: RecordMode,
    what: Arc<Interpreted>,
    options: RecorderOptions,
    template: Template,
    logger: Logger,
    /// The kept runs, as many as there were, up to the number of the options; then the oldest is overwritten.
    slots: Vec<Slot>,
    /// The slot of the next run.
    next: usize,
}

/// The parts of a recording that all runs share.
struct Template {
    code: Code,
    rights: Vec<Rights>,
}

/// The memory of one kept run.
#[derive(Default)]
struct Slot {
    image: Image,
    log: Log,
    /// `None` until the run has ended.
    end: Option<Result<u64, String>>,
}

impl<C, H: ?Sized> fmt::Debug for Recorder<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("program", &self.program).field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl<C: Context, H: Host + ?Sized> Program<C, H> {
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
        let counts = [
            (loaded.layout.fields.len(), "fields", MAX_FIELDS),
            (what.places.fields.len(), "parts with rights of their own", MAX_RIGHTS),
        ];
        if let Some(&(found, what, max)) = counts.iter().find(|(found, _, max)| found > max) {
            return Err(RecordError::Context { program: loaded.name.to_string(), found, what, max });
        }
        let right = |(part, writable): &(Range<usize>, bool)| Rights {
            // A field has 32-bit offset and size.
            offset: crate::num::small(part.start),
            len: crate::num::small(part.len()),
            writable: *writable,
        };
        let rights = what.places.fields.iter().map(right).collect();
        let template = Template { code: Code::of(Listing::of(loaded, what), what), rights };
        let (program, what) = (self.clone(), Arc::clone(what));
        let (logger, slots) = (Logger::default(), Vec::new());
        Ok(Recorder { program, what, mode, options, template, logger, slots, next: 0 })
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
    if let Some((insn, what)) = unrecorded(what) {
        return Err(RecordError::Unsupported { program: program(), insn, what });
    }
    let asks = |insn: &Insn| match insn {
        Insn::Call(Callee::Helper(_) | Callee::Host(_)) => true,
        Insn::LoadImm64 { imm, .. } => !matches!(imm, Imm64::Const(_) | Imm64::Func(_)),
        _other => false,
    };
    let socket = |field: &Field| field.kind == FieldKind::Socket;
    let asks = what.sees_addresses || loaded.layout.fields.iter().any(socket) || what.program.insns().iter().any(asks);
    Ok(if asks || !native { RecordMode::Interpreted } else { RecordMode::Context })
}

impl<C: Context, H: Host + ?Sized> Recorder<C, H> {
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
    pub fn run(&mut self, host: &mut H::State<'_>, data: C::Data<'_, '_>) -> Result<u64, RunError> {
        self.run_under(host, data, None)
    }

    /// Runs the program once under limits, as [`Program::run_with`], and keeps the run as [`Recorder::run`] does.
    ///
    /// # Errors
    /// As for [`Program::run_with`].
    #[inline]
    pub fn run_with(
        &mut self,
        host: &mut H::State<'_>,
        data: C::Data<'_, '_>,
        limits: &RunLimits,
    ) -> Result<u64, RunError> {
        self.run_under(host, data, Some(limits))
    }

    #[inline]
    fn run_under(
        &mut self,
        host: &mut H::State<'_>,
        mut data: C::Data<'_, '_>,
        limits: Option<&RunLimits>,
    ) -> Result<u64, RunError> {
        let parts = C::parts(&mut data);
        // A refused run reads nothing.
        parts.check().map_err(|error| *error)?;
        let loaded = self.program.loaded();
        let host = Loan::<H>::new(host).pointer();
        if self.slots.len() == self.next {
            self.slots.push(Slot::default());
        }
        if self.mode == RecordMode::Interpreted {
            self.slots[self.next].log.clear();
            self.logger.prune(self.slots.iter_mut().map(|slot| &mut slot.log));
        }
        let slot = &mut self.slots[self.next];
        self.next = if self.next + 1 == self.options.runs { 0 } else { self.next + 1 };
        slot.end = None;
        // SAFETY: `Context` promises parts that are valid while `data` is borrowed, and that agree with its layout.
        unsafe { slot.image.take(&self.what.places, parts) };
        slot.image.shrink();
        let result = match self.mode {
            RecordMode::Interpreted => {
                let own = slot.image.own(&self.what.places);
                let logging = Logging::begin(&mut slot.log, &mut self.logger, self.options.run_bytes, own);
                // SAFETY: as in `Program::run`.
                let result = unsafe { loaded.run_watched(&self.what, host, parts, limits, logging) };
                // SAFETY: `data` is still borrowed, and with it what the parts lead to.
                slot.log.after = unsafe { slot.image.digest_now(&self.what.places) };
                result
            }
            RecordMode::Context => match limits {
                // SAFETY: as in `Program::run`.
                None => unsafe { loaded.run(host, parts) },
                Some(limits) => {
                    let guard = loaded.engine.0.domain.enter_run()?;
                    // SAFETY: as in `Program::run`.
                    unsafe { loaded.run_limited(guard, host, parts, limits) }
                }
            },
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
        let (newer, older) = self.slots.split_at(self.next.min(self.slots.len()));
        let logged = self.mode == RecordMode::Interpreted;
        let Template { code, rights } = &self.template;
        let mut codes = vec![code.clone()];
        codes.extend(self.logger.programs.iter().map(|entered| Code::of(entered.listing.clone(), &entered.what)));
        // At most `MAX_ENTERED`; the recorded program is the first.
        let number = |place: &usize| crate::num::small(place + 1);
        let mut runs = Vec::new();
        for slot in older.iter().chain(newer) {
            let log = logged.then(|| Logged {
                events: slot.log.events.clone(),
                is_cut: slot.log.is_cut,
                lost: slot.log.lost.map(str::to_owned),
                returned: slot.log.returned,
                steps: slot.log.steps,
                frames: slot.log.frames.clone(),
                after: slot.log.after,
                entered: slot.log.entered.iter().map(number).collect(),
            });
            let end = match &slot.end {
                None => End::Unfinished,
                Some(Ok(r0)) => End::Returned(*r0),
                Some(Err(error)) => End::Failed(error.clone()),
            };
            runs.push(Recorded { image: slot.image.clone(), log, end });
        }
        let frame_bytes = loaded.engine.config().frame_bytes;
        Recording { codes, rights: rights.clone(), frame_bytes, void: loaded.void, runs }
    }

    /// Returns the kept runs as bytes that another process reads: [`Recording::parse`], `bpf replay`.
    pub fn save(&self) -> Vec<u8> {
        self.recording().to_bytes()
    }

    /// Returns the bytes that the recorder takes: the copies of the contexts of the kept runs, and what the runs got
    /// from outside; the programs that tail calls have entered; and buffers of about twice the memory of one run, its
    /// stacks included, once a recorded run has called a function that may write there.
    pub fn bytes(&self) -> usize {
        let kept = self.slots.iter().map(|slot| slot.image.memory() + slot.log.memory());
        kept.sum::<usize>() + self.logger.bytes()
    }
}
