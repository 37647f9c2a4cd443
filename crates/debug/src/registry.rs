//! The loaded units, and the tools that are told of them.

use crate::Error;
#[cfg(not(feature = "tools"))]
use crate::absent::{Announced, JitDump, PerfMap, RegisteredFrames};
use crate::unit::Unit;
use crate::walk::walk;
#[cfg(feature = "tools")]
use crate::{frames::RegisteredFrames, gdb::Announced, jitdump::JitDump, perf_map::PerfMap};
use bpf_jit_code::Arch;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockWriteGuard, TryLockError};

/// The tools that are told of loaded code. By default none; then nothing is recorded or kept.
///
/// Each tool costs memory and time at each load and unload. The speed of runs does not change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Whether to keep names and source lines for [`Registry::symbolize`]. Implied by each of the other options.
    pub symbols: bool,
    /// Whether to register frames with the process's own unwinder: backtraces (`std::backtrace`, a crash handler,
    /// [`Registry::backtrace`]) then pass through emitted frames.
    pub unwind: bool,
    /// The directory of perf's symbol map `perf-PID.map`, which perf expects in `/tmp`.
    pub perf_map: Option<PathBuf>,
    /// The directory of perf's jitdump `jit-PID.dump`, with code, source lines and frames.
    pub jitdump: Option<PathBuf>,
    /// Whether to register code with GDB and LLDB.
    pub gdb: bool,
}

impl Options {
    /// Returns options that request no tool.
    #[must_use]
    pub const fn new() -> Self {
        Options { symbols: false, unwind: false, perf_map: None, jitdump: None, gdb: false }
    }

    /// Sets [`Options::symbols`].
    #[must_use]
    pub const fn symbols(mut self, symbols: bool) -> Self {
        self.symbols = symbols;
        self
    }

    /// Sets [`Options::unwind`].
    #[must_use]
    pub const fn unwind(mut self, unwind: bool) -> Self {
        self.unwind = unwind;
        self
    }

    /// Sets the directory of [`Options::perf_map`].
    #[must_use]
    pub fn perf_map(mut self, directory: impl Into<Option<PathBuf>>) -> Self {
        self.perf_map = directory.into();
        self
    }

    /// Sets the directory of [`Options::jitdump`].
    #[must_use]
    pub fn jitdump(mut self, directory: impl Into<Option<PathBuf>>) -> Self {
        self.jitdump = directory.into();
        self
    }

    /// Sets [`Options::gdb`].
    #[must_use]
    pub const fn gdb(mut self, gdb: bool) -> Self {
        self.gdb = gdb;
        self
    }

    /// Whether any tool is requested.
    pub fn any(&self) -> bool {
        self.symbols || self.unwind || self.gdb || self.perf_map.is_some() || self.jitdump.is_some()
    }
}

/// A place in emitted code, in terms of its source.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Location {
    /// Name of the program.
    pub program: String,
    /// Name of the function: the program itself, or a subprogram.
    pub function: String,
    /// Index of the source instruction; `None` in code that belongs to no instruction.
    pub insn: Option<u32>,
    /// Source file, if known.
    pub file: Option<String>,
    /// Line from 1, if known.
    pub line: Option<u32>,
    /// Bytes from the program's first byte.
    pub offset: usize,
}

impl fmt::Display for Location {
    /// `program/function+insn at file:line`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        if self.function != self.program {
            write!(f, "/{}", self.function)?;
        }
        if let Some(insn) = self.insn {
            write!(f, "+{insn}")?;
        }
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " at {file}:{line}"),
            (Some(file), None) => write!(f, " at {file}"),
            (None, _) => Ok(()),
        }
    }
}

/// The loaded units of one embedder, and the tools that are told of them. Clones share one registry.
#[derive(Clone, Debug)]
pub struct Registry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    unwind: bool,
    gdb: bool,
    perf_map: Option<PerfMap>,
    jitdump: Option<JitDump>,
    /// The first failed write.
    failure: OnceLock<io::Error>,
    /// Units by the address of their first byte.
    units: RwLock<BTreeMap<usize, Known>>,
    /// The number of the next unit.
    next: AtomicU64,
    /// The process that made the registry.
    pid: u32,
}

impl Registry {
    /// Creates a registry without units, and its files.
    ///
    /// # Errors
    /// [`Error`]: a file cannot be created, or a requested tool is not part of this build.
    pub fn new(options: &Options) -> Result<Registry, Error> {
        if cfg!(not(feature = "tools")) && (options.unwind || options.gdb) {
            return Err(Error::NotBuilt);
        }
        let arch = Arch::HOST.ok_or(Error::UnsupportedHost)?;
        Ok(Registry(Arc::new(Inner {
            unwind: options.unwind,
            gdb: options.gdb,
            perf_map: options.perf_map.as_deref().map(PerfMap::create).transpose()?,
            jitdump: options.jitdump.as_deref().map(|dir| JitDump::create(dir, arch)).transpose()?,
            failure: OnceLock::new(),
            units: RwLock::default(),
            next: AtomicU64::new(0),
            pid: std::process::id(),
        })))
    }

    /// Tells all tools of a unit whose bytes are `text`. Dropping the result removes the unit from them.
    ///
    /// # Safety
    /// The unit must describe the code at its address, which must stay there until the result is dropped: unwinders
    /// rely on its description of frames.
    pub unsafe fn add(&self, mut unit: Unit, text: &[u8]) -> Registered {
        let inner = &self.0;
        if inner.failure.get().is_none() {
            let map = inner.perf_map.as_ref().map_or(Ok(()), |map| map.add(&unit));
            if let Err(error) = map.and_then(|()| inner.jitdump.as_ref().map_or(Ok(()), |dump| dump.add(&unit, text))) {
                // If another thread's failure was recorded first, that one is kept.
                let _ = inner.failure.set(error);
            }
        }
        let frames = if inner.unwind {
            // SAFETY: the caller guarantees that the unit is correct, and the frames are dropped with its
            // `Registered` at the latest.
            unsafe { RegisteredFrames::new(&unit) }
        } else {
            None
        };
        let gdb = inner.gdb.then(|| Announced::new(&unit));
        // Only debuggers read it, and they have their own form.
        unit.dwarf = Vec::new();
        let (base, end) = (unit.base, unit.base + unit.len);
        // Relaxed: only uniqueness matters.
        let id = inner.next.fetch_add(1, Ordering::Relaxed);
        let mut units = inner.write();
        // A previous unit at these addresses is gone, even if its `Registered` is dropped later.
        while let Some((&old, _)) = units.range(..end).next_back().filter(|(_, known)| known.unit.end() > base) {
            units.remove(&old);
        }
        units.insert(base, Known { unit: Arc::new(unit), id, _frames: frames, _gdb: gdb });
        Registered { inner: Arc::clone(inner), base, id }
    }

    /// Whether some tool reads [`Unit::dwarf`].
    pub fn reads_variables(&self) -> bool {
        self.0.gdb
    }

    /// Returns the location of the instruction at `ip`. For the return address of a call, pass the address of the
    /// byte before it, because the call may be the last instruction of its function or line.
    pub fn symbolize(&self, ip: usize) -> Option<Location> {
        let unit = self.0.unit_at(ip)?;
        let offset = u32::try_from(ip - unit.base).ok()?;
        let function = &unit.functions[unit.function_at(offset)?];
        let insn = unit.insn_at(offset);
        let line = insn.and_then(|insn| unit.line_of(function, insn));
        Some(Location {
            program: unit.name.clone(),
            function: function.name.clone(),
            insn,
            file: line.map(|line| unit.file(line).to_owned()),
            line: line.map(|line| line.line).filter(|line| *line != 0),
            offset: ip - unit.base,
        })
    }

    /// The emitted frames of the calling thread, innermost first, without the Rust frames between them. Without
    /// [`Options::unwind`] the walk ends at the first emitted frame.
    pub fn backtrace(&self) -> Vec<Location> {
        let mut found = Vec::new();
        walk(&mut |ip, _| {
            found.extend(self.symbolize(ip));
            true
        });
        found
    }

    /// The first failed write to a file. Nothing was written after it.
    pub fn failure(&self) -> Option<&io::Error> {
        self.0.failure.get()
    }
}

impl Inner {
    fn forked(&self) -> bool {
        std::process::id() != self.pid
    }

    fn unit_at(&self, ip: usize) -> Option<Arc<Unit>> {
        let units = match self.units.try_read() {
            Ok(units) => units,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // A thread that held the lock when this process was forked does not exist here and cannot release it.
            Err(TryLockError::WouldBlock) if self.forked() => return None,
            Err(TryLockError::WouldBlock) => self.units.read().unwrap_or_else(PoisonError::into_inner),
        };
        let (_, known) = units.range(..=ip).next_back()?;
        (ip < known.unit.end()).then(|| Arc::clone(&known.unit))
    }

    /// Locks the units. Code under this lock does not panic.
    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<usize, Known>> {
        self.units.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.forked() {
            // The unwinder's lock may be held by a thread that does not exist here, and the code stays in the child
            // for ever.
            core::mem::forget(core::mem::take(self.units.get_mut().unwrap_or_else(PoisonError::into_inner)));
        }
    }
}

/// A unit and the tools that know of it; dropping it removes the unit from them.
#[derive(Debug)]
struct Known {
    unit: Arc<Unit>,
    id: u64,
    _frames: Option<RegisteredFrames>,
    _gdb: Option<Announced>,
}

/// A unit that is known to the tools until this is dropped, or until another unit is added in its place.
#[derive(Debug)]
pub struct Registered {
    inner: Arc<Inner>,
    base: usize,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.inner.forked() {
            return;
        }
        let mut units = self.inner.write();
        if units.get(&self.base).is_some_and(|known| known.id == self.id) {
            units.remove(&self.base);
        }
    }
}
