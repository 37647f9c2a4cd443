//! Timers in map values: `struct bpf_timer`, and `struct bpf_wq`, a timer that is due as soon as it is started.
//!
//! Problem: a program sets a timer in one run, and its callback is to run later, outside of that run. The timer must
//! not keep the map, the element, the program or the engine alive. Approach: no thread calls callbacks by itself. The
//! host runs the callbacks that are due (`Program::run_timers`), on its own thread and with its own state; this module
//! only records the timers. The value holds a number that no other timer of the engine has or had. A timer is
//! identified by its address and that number together, so a timer whose value was overwritten, or whose number was
//! forged, does not exist.
//!
//! Invariants: notes keep neither map nor program alive. A callback's function says whether it is one of machine code,
//! and is used only in a run of the program that it belongs to, which is identified by a unique number. The number of
//! notes is at most [`FEW`], or twice the number of timers in live maps at the last cleaning; each is counted in the
//! domain's memory. A thread that holds the notes neither waits nor calls foreign code.

use bpf_maps::{Errno, Map, WeakMap};
use bpf_os::time::{Clock, now_ns};
use bpf_quiesce::{Domain, Reservation};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The timers of an engine's maps.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// The holder of the notes: its slot plus 1, or 0. A signal handler's run has the slot of the run that it
    /// interrupted, and must not wait for that run.
    owner: AtomicU32,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    /// By the address of the `struct bpf_timer`.
    timers: BTreeMap<u64, Timer>,
    /// The number of the timer that was made last; 0 is none.
    last: u64,
    /// The number of notes at which notes of dropped maps are removed, if it is above [`FEW`].
    most: usize,
    /// The timers whose callbacks are running, by slot.
    running: Vec<(u32, u64)>,
}

#[derive(Debug)]
struct Timer {
    number: u64,
    map: WeakMap,
    field: Deferred,
    clock: Clock,
    callback: Option<Callback>,
    /// The time in nanoseconds at which the timer is due, by its clock.
    due: Option<u64>,
    _memory: Reservation,
}

/// The kind of field in a map value that has a callback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deferred {
    /// `struct bpf_timer`.
    Timer,
    /// `struct bpf_wq`.
    Work,
}

/// A function of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callback {
    /// [`program_number`] of the program.
    pub(crate) program: u64,
    pub(crate) function: Function,
}

/// The function that a timer calls, as the run that has set it saw it. A recorded or observed run of machine code is
/// interpreted, so the timers of one program may have functions of both forms.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Function {
    /// An address in machine code.
    Code(u64),
    /// The number by which the interpreter knows a function of the program.
    Interpreted(u64),
}

/// A timer that is due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Due {
    /// For how many nanoseconds the timer has been due. Sorted ascending: the longest wait is last, and is popped
    /// first.
    late: u64,
    address: u64,
    number: u64,
}

/// Bytes that a timer takes beside its value, as counted in the domain's memory.
const NOTE: u64 = (size_of::<(u64, Timer)>() * 2) as u64;
/// The number of notes up to which notes of dropped maps are not searched for.
const FEW: usize = 256;

/// Returns a number for a program, which no other program has or had.
pub(crate) fn program_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only uniqueness matters.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the number in the `struct bpf_timer` at this address.
///
/// # Safety
/// `address` must be that of the `struct bpf_timer` in a value of a map that is alive for `'a`.
unsafe fn number<'a>(address: u64) -> &'a AtomicU64 {
    let word = core::ptr::with_exposed_provenance_mut::<u64>(crate::num::index(address));
    // SAFETY: inside a value, at a multiple of 8 as validation of the map's definition demands, for as long as the map;
    // values are accessed by atomics, or as machine code does.
    unsafe { AtomicU64::from_ptr(word) }
}

impl Notes {
    /// Returns the note of the timer at this address.
    ///
    /// # Safety
    /// As for [`number`].
    unsafe fn timer(&mut self, address: u64) -> Result<&mut Timer, Errno> {
        // SAFETY: the caller's contract. Relaxed: all else that is known of the timer is under the lock.
        let number = unsafe { number(address) }.load(Ordering::Relaxed);
        self.timers.get_mut(&address).filter(|timer| timer.number == number).ok_or(Errno::EINVAL)
    }
}

impl Timers {
    /// Calls `change` with the notes; `EBUSY` if a run of this slot, interrupted by this one, holds them.
    fn with<R>(&self, slot: u32, change: impl FnOnce(&mut Notes) -> Result<R, Errno>) -> Result<R, Errno> {
        struct Owned<'a>(&'a AtomicU32);
        impl Drop for Owned<'_> {
            fn drop(&mut self) {
                // Release pairs with the acquire of the next holder.
                self.0.store(0, Ordering::Release);
            }
        }
        while let Err(owner) = self.owner.compare_exchange(0, slot + 1, Ordering::Acquire, Ordering::Relaxed) {
            if owner == slot + 1 {
                return Err(Errno::EBUSY);
            }
            std::thread::yield_now();
        }
        let _owned = Owned(&self.owner);
        // `owner` excludes other holders, so this lock is free. A panic inside leaves the notes consistent.
        change(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// `bpf_timer_init`, and `bpf_wq_init`.
    ///
    /// # Safety
    /// `address` must be that of this field in a value of `map`, which is alive; `slot` the caller's.
    pub(crate) unsafe fn init(
        &self,
        slot: u32,
        (field, address): (Deferred, u64),
        map: impl FnOnce() -> WeakMap,
        flags: u64,
        domain: &Arc<Domain>,
    ) -> Result<(), Errno> {
        let clock = match flags {
            0 => Clock::Real,
            1 => Clock::Monotonic,
            7 => Clock::Boot,
            _other => return Err(Errno::EINVAL),
        };
        self.with(slot, |notes| {
            // SAFETY: the caller's contract.
            if unsafe { notes.timer(address) }.is_ok() {
                return Err(Errno::EBUSY);
            }
            // Removes the note of a former timer at this address.
            notes.timers.remove(&address);
            if notes.timers.len() >= notes.most.max(FEW) {
                notes.timers.retain(|_, timer| timer.map.is_alive());
                notes.most = 2 * notes.timers.len();
            }
            let memory = domain.memory().reserve(NOTE).map_err(|_| Errno::ENOMEM)?;
            notes.last += 1;
            let timer =
                Timer { number: notes.last, map: map(), field, clock, callback: None, due: None, _memory: memory };
            notes.timers.insert(address, timer);
            // SAFETY: the caller's contract. Relaxed: read under the lock, or to be compared.
            unsafe { number(address) }.store(notes.last, Ordering::Relaxed);
            Ok(())
        })
    }

    /// `bpf_timer_set_callback`.
    ///
    /// # Safety
    /// `address` must be that of the timer in a value of a map that is alive; `slot` the caller's.
    pub(crate) unsafe fn set_callback(&self, slot: u32, address: u64, callback: Callback) -> Result<(), Errno> {
        self.with(slot, |notes| {
            // SAFETY: the caller's contract.
            unsafe { notes.timer(address) }?.callback = Some(callback);
            Ok(())
        })
    }

    /// `bpf_timer_start`.
    ///
    /// # Safety
    /// As for [`Timers::set_callback`].
    pub(crate) unsafe fn start(&self, slot: u32, address: u64, time: u64, flags: u64) -> Result<(), Errno> {
        const ABSOLUTE: u64 = 1;
        // Accepted and ignored: the host chooses the thread of callbacks.
        const PINNED: u64 = 2;
        if flags & !(ABSOLUTE | PINNED) != 0 {
            return Err(Errno::EINVAL);
        }
        self.with(slot, |notes| {
            // SAFETY: the caller's contract.
            let timer = unsafe { notes.timer(address) }?;
            if timer.callback.is_none() {
                return Err(Errno::EINVAL);
            }
            // The kernel's times have a sign: an absolute time that is negative has passed, and a relative time that is
            // negative never comes.
            timer.due = Some(match (flags & ABSOLUTE != 0, i64::try_from(time)) {
                (true, Ok(_)) => time,
                (true, Err(_)) => 0,
                (false, Ok(_)) => now_ns(timer.clock).saturating_add(time),
                (false, Err(_)) => u64::MAX,
            });
            Ok(())
        })
    }

    /// Implements `bpf_timer_cancel`: returns whether the timer was active.
    ///
    /// # Safety
    /// As for [`Timers::set_callback`].
    pub(crate) unsafe fn cancel(&self, slot: u32, address: u64) -> Result<bool, Errno> {
        self.with(slot, |notes| {
            let own = notes.running.contains(&(slot, address));
            // SAFETY: the caller's contract.
            let timer = unsafe { notes.timer(address) }?;
            if own {
                return Err(Errno::EDEADLK);
            }
            timer.callback = None;
            Ok(timer.due.take().is_some())
        })
    }

    /// Returns the program's timers that are due, and the time until the next one is; none if a run of this slot holds
    /// the notes.
    pub(crate) fn due(&self, slot: u32, program: u64) -> (Vec<Due>, Option<Duration>) {
        let found = self.with(slot, |notes| {
            let (mut due, mut next) = (Vec::new(), None);
            // Each clock is read once, so that the order of the timers is that of their times.
            let now = [Clock::Monotonic, Clock::Boot, Clock::Real].map(|clock| (clock, now_ns(clock)));
            for (&address, timer) in &notes.timers {
                let (Some(at), Some(callback)) = (timer.due, timer.callback) else { continue };
                if callback.program != program {
                    continue;
                }
                let now = now.iter().find(|(clock, _)| *clock == timer.clock).map_or(0, |(_, now)| *now);
                match now.checked_sub(at) {
                    Some(late) => due.push(Due { late, address, number: timer.number }),
                    None => next = Some(next.map_or(at - now, |next: u64| next.min(at - now))),
                }
            }
            due.sort_unstable();
            Ok((due, next.map(Duration::from_nanos)))
        });
        found.unwrap_or_default()
    }

    /// Begins the callback of a timer that was due: its map, the callback, and the field. `None` if it is not due any
    /// more, or gone. Otherwise [`Timers::end`] must follow. The callback is missing if the timer's element was
    /// overwritten meanwhile.
    pub(crate) fn begin(&self, slot: u32, due: Due, program: u64) -> Option<(Map, Option<(Function, Deferred)>)> {
        let Due { address, number: expected, .. } = due;
        let begun = self.with(slot, |notes| {
            let timer = notes.timers.get_mut(&address).filter(|timer| timer.number == expected).ok_or(Errno::ENOENT)?;
            let callback = timer.callback.filter(|callback| callback.program == program).ok_or(Errno::ENOENT)?;
            let at = timer.due.filter(|at| *at <= now_ns(timer.clock)).ok_or(Errno::ENOENT)?;
            // The handle is returned, since it may become the last one, whose drop must not happen under this lock.
            let Some(map) = timer.map.upgrade() else {
                notes.timers.remove(&address);
                return Err(Errno::ENOENT);
            };
            debug_assert!(timer.due == Some(at));
            timer.due = None;
            notes.running.push((slot, address));
            Ok((map, callback.function, timer.field))
        });
        let (map, callback, field) = begun.ok()?;
        // SAFETY: the map that the timer was made in is alive, by this handle.
        let current = unsafe { number(address) }.load(Ordering::Relaxed) == expected;
        Some((map, current.then_some((callback, field))))
    }

    /// The callback has returned.
    pub(crate) fn end(&self, slot: u32, due: Due) {
        let _ = self.with(slot, |notes| {
            if let Some(i) = notes.running.iter().rposition(|running| *running == (slot, due.address)) {
                notes.running.remove(i);
            }
            Ok(())
        });
    }
}

impl Due {
    /// Returns the timer's address.
    pub(crate) fn address(self) -> u64 {
        self.address
    }
}
