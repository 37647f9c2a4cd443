//! The state of one run.
//!
//! A [`Run`] lives on the stack of the thread that runs the program. Its first field is the [`RunCtx`] that emitted code sees, so
//! that a host function gets from the hidden argument back to the run.

use crate::error::{HelperError, RunError};
use bpf_isa::InsnIdx;
use bpf_jit_code::{RunCtx, StopCode};
use bpf_maps::program;
use core::mem::MaybeUninit;
use std::cell::Cell;

/// What is wrong when a check fails that the verifier left to run time.
pub(crate) const OUT_OF_BOUNDS: &str = "memory access out of bounds";

/// One run. `repr(C)`: the hidden argument of emitted code is the address of the first field.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Run {
    pub(crate) ctx: RunCtx,
    /// The `&mut H` that the run was given.
    pub(crate) host: *mut (),
    /// The context that the run was given.
    pub(crate) context: *mut u8,
    /// The engine, which outlives the run.
    pub(crate) engine: *const crate::engine::EngineInner,
    /// What a host function failed with.
    pub(crate) error: Option<Box<HelperError>>,
    /// What others would wait for, should the run be stopped.
    pub(crate) held: Held,
}

impl Run {
    /// A run that shares slot, host and engine with this one, for a helper that calls back through the interpreter.
    pub(crate) fn view(&self) -> Run {
        let ctx = RunCtx {
            tail_calls: 0,
            stop_code: 0,
            stop_insn: 0,
            interrupt: 0,
            budget: i64::MAX,
            exit_sp: 0,
            exit_pc: 0,
            exit_saved: [0; 2],
            packet: 0,
            packet_len: 0,
            host_env: 0,
            slot: self.ctx.slot,
            context: self.ctx.context,
        };
        Run { ctx, host: self.host, context: self.context, engine: self.engine, error: None, held: Held::NOTHING }
    }

    /// Ends the run with a host function's error. The first one stays.
    pub(crate) fn fail(&mut self, error: HelperError) {
        if self.ctx.stop_code == 0 {
            self.ctx.stop_code = StopCode::Host as u32;
            self.ctx.stop_insn = u32::MAX;
            self.error = Some(Box::new(error));
        }
    }

    /// Gives up the records and the lock that the program holds. Whether it held any.
    #[cold]
    pub(crate) fn release(&mut self) -> bool {
        // SAFETY: the run's guard keeps the maps, and only the helpers change the list.
        unsafe { self.held.release(self.ctx.slot) }
    }

    /// Why the run was stopped; `None` if it was not.
    #[inline]
    pub(crate) fn stopped(&mut self) -> Option<RunError> {
        if self.ctx.stop_code == 0 { None } else { Some(self.stop_reason()) }
    }

    #[cold]
    fn stop_reason(&mut self) -> RunError {
        self.release();
        let insn = (self.ctx.stop_insn != u32::MAX).then_some(InsnIdx(self.ctx.stop_insn));
        match StopCode::new(self.ctx.stop_code) {
            Some(StopCode::Budget) => RunError::Budget { insn, origin: None },
            Some(StopCode::Interrupted) => RunError::Interrupted { insn, origin: None },
            Some(StopCode::Access) => RunError::Access { what: OUT_OF_BOUNDS.into(), insn, origin: None },
            Some(StopCode::Host) => match self.error.take() {
                Some(source) => RunError::Host { source: *source, insn, origin: None },
                None => RunError::Internal("a host function stopped the run without an error".into()),
            },
            None => RunError::Internal(format!("unknown stop code {}", self.ctx.stop_code)),
        }
    }
}

/// What a program has reserved or locked: ring-buffer records, at which the consumer stops, and a spin lock. A program that ends has given
/// all of it back, as the verifier proves; one that is stopped has not.
#[derive(Debug)]
pub(crate) struct Held {
    count: u32,
    /// Addresses of samples, and of locks with [`Held::LOCK`] added.
    items: [MaybeUninit<u64>; Held::MAX],
}

impl Held {
    /// Samples and locks a run can hold.
    const MAX: usize = 16;
    /// Marks a lock: the addresses are multiples of 4.
    const LOCK: u64 = 1;
    pub(crate) const NOTHING: Held = Held { count: 0, items: [MaybeUninit::uninit(); Held::MAX] };

    /// Whether one more record fits, and the lock besides.
    pub(crate) fn has_room(&self) -> bool {
        (self.count as usize) < Self::MAX - 1
    }

    pub(crate) fn add_record(&mut self, sample: u64) {
        self.add(sample);
    }

    /// `false` if the record is not held.
    pub(crate) fn remove_record(&mut self, sample: u64) -> bool {
        self.remove(sample)
    }

    pub(crate) fn add_lock(&mut self, lock: u64) {
        self.add(lock | Self::LOCK);
    }

    pub(crate) fn remove_lock(&mut self, lock: u64) -> bool {
        self.remove(lock | Self::LOCK)
    }

    fn add(&mut self, item: u64) {
        if let Some(place) = self.items.get_mut(self.count as usize) {
            place.write(item);
            self.count += 1;
        }
    }

    fn item(&self, i: usize) -> u64 {
        debug_assert!(i < self.count as usize);
        // SAFETY: `add` has written all items below the count.
        unsafe { self.items[i].assume_init() }
    }

    fn remove(&mut self, item: u64) -> bool {
        // What was taken last is mostly what is given back first.
        let Some(i) = (0..self.count as usize).rev().find(|&i| self.item(i) == item) else { return false };
        self.count -= 1;
        self.items[i] = self.items[self.count as usize];
        true
    }

    /// Discards the records and releases the lock.
    ///
    /// # Safety
    /// The items must be live samples, and locks that `slot` holds.
    unsafe fn release(&mut self, slot: u32) -> bool {
        let any = self.count != 0;
        while self.count != 0 {
            self.count -= 1;
            // SAFETY: `add` has written all items below the old count.
            let item = unsafe { self.items[self.count as usize].assume_init() };
            if item & Self::LOCK != 0 {
                let lock = core::ptr::with_exposed_provenance_mut((item & !Self::LOCK) as usize);
                // SAFETY: a lock that `slot` holds (contract).
                unsafe { program::spin_unlock(lock, slot) };
            } else {
                let sample = core::ptr::with_exposed_provenance_mut(item as usize);
                // SAFETY: a live sample (contract), given back once: it is off the list.
                unsafe { program::ringbuf_discard(sample, 0) };
            }
        }
        any
    }
}

thread_local! {
    /// Runs of this thread that are on the stack.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Counts one run of this thread while it lives.
pub(crate) struct Nesting(());

impl Nesting {
    #[inline]
    pub(crate) fn enter(limit: u32) -> Result<Nesting, RunError> {
        DEPTH.with(|depth| {
            if depth.get() >= limit {
                return Err(RunError::TooDeep { limit });
            }
            depth.set(depth.get() + 1);
            Ok(Nesting(()))
        })
    }
}

impl Drop for Nesting {
    #[inline]
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}
