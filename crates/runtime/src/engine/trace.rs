//! Events for `tracing`, behind the feature of that name: loads, refusals, changes of hooks and of prog arrays,
//! programs that cannot be recompiled (`OptLevel::Tiered`), stops of runs, and lines that programs print.
//!
//! A program of an instance with a name is reported as `INSTANCE/PROGRAM`.
//!
//! Invariant: no event is reported under a lock of a hook or an array, and none by the runtime in a run that succeeds
//! and prints nothing, since a subscriber may change hooks, and may panic. The end of a load's span is reported also
//! while a subscriber's panic unwinds.

use crate::abi::run::Printed;
use crate::error::{LoadError, RunError};

#[cfg(feature = "tracing")]
mod imp {
    use super::{LoadError, Printed, RunError};
    use crate::abi::stop::left;
    use bpf_quiesce::Foreign;

    pub(crate) fn load(program: &str) -> Foreign<tracing::span::EnteredSpan> {
        Foreign::new(tracing::info_span!("bpf_load", program).entered())
    }

    pub(crate) fn loaded(code_bytes: usize) {
        tracing::info!(code_bytes, "program loaded");
    }

    pub(crate) fn refused(error: &LoadError) {
        tracing::warn!(%error, "program refused");
    }

    pub(crate) fn changed(before: &[String], after: &[String]) {
        tracing::info!(?before, ?after, "hook changed");
    }

    pub(crate) fn slot_changed(array: &str, index: u32, before: Option<&str>, after: Option<&str>) {
        tracing::info!(array, index, before, after, "prog array changed");
    }

    pub(crate) fn stays_slow(program: &str, error: &dyn std::fmt::Display) {
        tracing::warn!(program, %error, "program runs often and stays as it is");
    }

    pub(crate) fn stopped(program: &str, error: &RunError, in_section: bool) {
        let tell = || tracing::warn!(program, %error, "run stopped");
        // A subscriber is code of a host.
        if in_section { left(tell) } else { tell() }
    }

    /// Whether lines of programs become events.
    pub(crate) const PRINTS: bool = true;

    pub(crate) fn printed(line: &Printed<'_>) {
        let &Printed { program, instance, account, dropped, .. } = line;
        let (level, text) = line.level();
        // The levels of the system's log: error and worse, warning, notice and information, debug.
        match level {
            Some(0..=3) => tracing::error!(program, instance, account, dropped, text, "program printed"),
            Some(4) => tracing::warn!(program, instance, account, dropped, text, "program printed"),
            Some(5 | 6) | None => tracing::info!(program, instance, account, dropped, text, "program printed"),
            Some(7..) => tracing::debug!(program, instance, account, dropped, text, "program printed"),
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod imp {
    use super::{LoadError, Printed, RunError};

    /// Without the feature, a load's span does nothing.
    pub(crate) struct Span;

    pub(crate) fn load(_: &str) -> Span {
        Span
    }

    pub(crate) fn loaded(_: usize) {}

    pub(crate) fn refused(_: &LoadError) {}

    pub(crate) fn changed(_: &[String], _: &[String]) {}

    pub(crate) fn slot_changed(_: &str, _: u32, _: Option<&str>, _: Option<&str>) {}

    pub(crate) fn stays_slow(_: &str, _: &dyn std::fmt::Display) {}

    pub(crate) fn stopped(_: &str, _: &RunError, _: bool) {}

    pub(crate) const PRINTS: bool = false;

    pub(crate) fn printed(_: &Printed<'_>) {}
}

pub(crate) use imp::*;
