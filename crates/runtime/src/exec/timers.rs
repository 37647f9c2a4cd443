//! Callbacks of timers: runs that begin with a function of a program, and not with the program.
//!
//! Invariant: a callback is called with the map, a copy of the key and the value that its timer is in, as the verifier
//! has taken them to be when it walked the callback: the timer's address lies in a value of the map that the program
//! was proven to pass. Whether that value is the key's at this moment is looked up first; if it is not, the element is
//! gone, and its timer with it.

use crate::abi::begin;
use crate::abi::timers::{Deferred, Due, Function, Timers};
use crate::context::Parts;
use crate::error::RunError;
use crate::exec::interp::{self, Start};
use crate::program::loaded::Loaded;
use bpf_maps::program as map_ops;
use std::time::Duration;

/// The result of [`crate::Program::run_timers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TimerRuns {
    /// Number of callbacks that ran.
    pub ran: u32,
    /// Time until the next timer is due, among the timers that were set when the call began; `None` if no other was
    /// set.
    pub next: Option<Duration>,
}

/// A timer whose callback is running: not when this is dropped, whatever happens.
struct Running<'t> {
    timers: &'t Timers,
    slot: u32,
    due: Due,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.timers.end(self.slot, self.due);
    }
}

impl Loaded {
    /// Runs the callbacks that are due, each at most once.
    ///
    /// # Safety
    /// As for [`Loaded::run`].
    pub(crate) unsafe fn run_timers(&self, host: *mut (), parts: Parts) -> Result<TimerRuns, RunError> {
        let Some(program) = self.timer_program() else { return Ok(TimerRuns::default()) };
        let engine = &self.engine.0;
        let timers = &engine.runs.config.timers;
        let (mut due, next) = timers.due(engine.domain.enter_run()?.slot(), program);
        let mut ran = 0;
        // Sorted by waiting time: the timer that has waited longest is popped first.
        while let Some(due) = due.pop() {
            // Declared before the guard, and so dropped after it: this may be the last handle, and objects of a map
            // must not be dropped inside a guard.
            let map;
            let guard = engine.domain.enter_run()?;
            let slot = guard.slot();
            let Some((of, begun)) = timers.begin(slot, due, program) else { continue };
            map = of;
            // Ends the callback also on unwinding: host functions and subscribers may panic.
            let _running = Running { timers, slot, due };
            let Some((callback, field)) = begun else { continue };
            let def = map.def();
            let at = match field {
                Deferred::Timer => def.timer,
                Deferred::Work => def.work,
            };
            let value = due.address() - u64::from(at.unwrap_or(0));
            // Whole words, as keys of maps lie in.
            let mut words = vec![0u64; (def.key_size as usize).div_ceil(8)];
            let bytes = words.as_mut_ptr().cast::<u8>();
            // SAFETY: so many bytes of those words, which nobody else uses while this does.
            let key = unsafe { core::slice::from_raw_parts_mut(bytes, def.key_size as usize) };
            // SAFETY: a live map, in whose domain's guard with this slot this is.
            if !unsafe { map_ops::key_of_value(&map, value as *const u8, key, slot) } {
                continue;
            }
            let args = [map.as_ptr() as u64, bytes.expose_provenance() as u64, value, 0, 0];
            let run = begin::begin(&engine.runs, &*guard, host, parts, self.terms(), self, |run, parts| {
                match (callback, self.instructions()) {
                    (Function::Code(address), _) => {
                        // SAFETY: the run is this thread's.
                        unsafe { self.count_run(run) };
                        // SAFETY: the address is that of a function of this program, which has the number that the
                        // timer says, and whose code is one for good; the verifier has proven it for these
                        // arguments; the caller vouches for the rest.
                        unsafe { begin::call_back(address as *const u8, args, run, self) }
                    }
                    (Function::Interpreted(callback), Some(what)) => {
                        let start = Start::Timer { callback, args, def };
                        // SAFETY: the caller vouches for the parts; the run is one of this thread; map and key live.
                        unsafe { interp::run(self, what, run, parts, start) }
                    }
                    (Function::Interpreted(_), None) => Err(RunError::Internal("a timer without instructions".into())),
                }
            });
            run?;
            ran += 1;
        }
        Ok(TimerRuns { ran, next })
    }
}
