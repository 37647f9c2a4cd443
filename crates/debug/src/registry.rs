//! The units that are loaded now, and the tools that are told of them.

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

/// Which tools are told of loaded code. By default none, and then nothing is recorded or kept.
///
/// All of it costs memory and time at each load and unload; runs cost the same.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Keep names and source lines for [`Registry::symbolize`]. Implied by each of the others.
    pub symbols: bool,
    /// The process's own unwinder: backtraces (`std::backtrace`, a crash handler, [`Registry::backtrace`]) go through
    /// emitted frames.
    pub unwind: bool,
    /// perf's symbol map: the directory of `perf-PID.map`, which perf expects in `/tmp`.
    pub perf_map: Option<PathBuf>,
    /// perf's jitdump, with code, source lines and frames: the directory of `jit-PID.dump`.
    pub jitdump: Option<PathBuf>,
    /// GDB and LLDB.
    pub gdb: bool,
}

impl Options {
    /// Whether any tool is told.
    pub fn any(&self) -> bool {
        self.symbols || self.unwind || self.gdb || self.perf_map.is_some() || self.jitdump.is_some()
    }
}

/// A place in emitted code, as people name it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Location {
    /// The program.
    pub program: String,
    /// The function in it: the program itself, or a subprogram.
    pub function: String,
    /// Index of the source instruction; `None` in code that no instruction stands for.
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

/// The loaded units of one embedder, and the tools that are told of them. Clones are the same registry.
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
    /// By address of the first byte.
    units: RwLock<BTreeMap<usize, Known>>,
    /// Numbers the units.
    next: AtomicU64,
    /// The process that made it.
    pid: u32,
}

impl Registry {
    /// A registry without units; its files are created.
    ///
    /// # Errors
    /// [`Error`]: a file cannot be created, or a tool is asked for that this build has nothing for.
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

    /// Tells all tools of a unit whose bytes are `text`. It is taken back when the result is dropped.
    ///
    /// # Safety
    /// The unit must describe code that is at its address, and stays there until the result is dropped: unwinders act
    /// on what it says of frames.
    pub unsafe fn add(&self, unit: Unit, text: &[u8]) -> Registered {
        let inner = &self.0;
        if inner.failure.get().is_none() {
            let map = inner.perf_map.as_ref().map_or(Ok(()), |map| map.add(&unit));
            if let Err(error) = map.and_then(|()| inner.jitdump.as_ref().map_or(Ok(()), |dump| dump.add(&unit, text))) {
                // Another thread's failure may have come first; it is as good.
                let _ = inner.failure.set(error);
            }
        }
        let frames = if inner.unwind {
            // SAFETY: the caller vouches for the unit, and the frames are dropped with its `Registered` at the latest.
            unsafe { RegisteredFrames::new(&unit) }
        } else {
            None
        };
        let gdb = inner.gdb.then(|| Announced::new(&unit));
        let (base, end) = (unit.base, unit.base + unit.len);
        // Relaxed: only uniqueness matters.
        let id = inner.next.fetch_add(1, Ordering::Relaxed);
        let mut units = inner.write();
        // A unit that was here before is gone, even if its `Registered` is dropped later.
        while let Some((&old, _)) = units.range(..end).next_back().filter(|(_, known)| known.unit.end() > base) {
            units.remove(&old);
        }
        units.insert(base, Known { unit: Arc::new(unit), id, _frames: frames, _gdb: gdb });
        Registered { inner: Arc::clone(inner), base, id }
    }

    /// What the instruction at `ip` is. For the return address of a call, ask for the byte before it: the call may be
    /// the last instruction of its function or line.
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

    /// The emitted frames of the calling thread, innermost first; Rust's between them are left out. Without
    /// [`Options::unwind`] the walk ends at the first of them.
    pub fn backtrace(&self) -> Vec<Location> {
        let mut found = Vec::new();
        walk(&mut |ip, _| {
            found.extend(self.symbolize(ip));
            true
        });
        found
    }

    /// The first write to a file that failed. Nothing was written after it.
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
            // A thread that held the lock when this process was forked does not exist here to release it.
            Err(TryLockError::WouldBlock) if self.forked() => return None,
            Err(TryLockError::WouldBlock) => self.units.read().unwrap_or_else(PoisonError::into_inner),
        };
        let (_, known) = units.range(..=ip).next_back()?;
        (ip < known.unit.end()).then(|| Arc::clone(&known.unit))
    }

    /// Nothing panics while holding it.
    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<usize, Known>> {
        self.units.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.forked() {
            // The unwinder's lock may be held by a thread that is not here, and the code stays in the child for good.
            core::mem::forget(core::mem::take(self.units.get_mut().unwrap_or_else(PoisonError::into_inner)));
        }
    }
}

/// A unit and the tools that know of it; dropping it takes that back.
#[derive(Debug)]
struct Known {
    unit: Arc<Unit>,
    id: u64,
    _frames: Option<RegisteredFrames>,
    _gdb: Option<Announced>,
}

/// A unit that is known to everybody while this lives, or until another one is added in its place.
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
