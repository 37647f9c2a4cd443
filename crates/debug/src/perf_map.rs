//! The perf map: `/tmp/perf-PID.map`, a line for each function (linux/tools/perf/Documentation/jit-interface.txt).
//!
//! The format has no entry for unloading: if code is unloaded, a later line may claim the addresses of an earlier
//! one. A jitdump distinguishes them by time. All registries of a process write to one file; the first one removes
//! what an earlier process with this PID left in it.

use crate::Error;
use crate::unit::Unit;
use bpf_os::file::Bounded;
use bpf_quiesce::PerProcess;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Paths of the files that this process has begun.
static BEGUN: PerProcess<Vec<PathBuf>> = PerProcess::new(|_| Vec::new());

/// Opens a file of this process for appending, and empties it the first time. A symbolic link in its place is
/// refused, because all users can write to `/tmp`.
pub(crate) fn open(path: &Path) -> Result<(File, bool), Error> {
    BEGUN.with(|begun| {
        let first = !begun.iter().any(|p| p == path);
        let fail = |source| Error::File { path: path.to_owned(), source };
        // Opened for reading as well, because perf needs a mapping of the jitdump.
        let file = bpf_os::file::append_in_public_folder(path).map_err(fail)?;
        if first {
            file.set_len(0).map_err(fail)?;
            begun.push(path.to_owned());
        }
        Ok((file, first))
    })
}

#[derive(Debug)]
pub(crate) struct PerfMap(File);

impl PerfMap {
    pub(crate) fn create(dir: &Path) -> Result<PerfMap, Error> {
        Ok(PerfMap(open(&dir.join(format!("perf-{}.map", std::process::id())))?.0))
    }

    /// Appends the lines of a unit in one write, so that lines of several threads do not mix.
    pub(crate) fn add(&self, unit: &Unit) -> io::Result<()> {
        let mut text = String::new();
        for function in 0..unit.functions.len() {
            let (start, end) = unit.range(function);
            if start < end {
                let address = unit.base + start as usize;
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{address:x} {:x} {}", end - start, unit.symbol(function));
            }
        }
        Bounded(&self.0).write_all(text.as_bytes())
    }
}
