//! Clocks.

/// Clocks in use. All of them exist on every Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Monotonic, without the time during which the machine was suspended.
    Monotonic,
    /// [`Clock::Monotonic`] as of the last timer tick.
    MonotonicCoarse,
    /// Monotonic, with the time during which the machine was suspended.
    Boot,
    /// International atomic time.
    Atomic,
    /// Wall-clock time, which can be set.
    Real,
}

/// The clock's time in nanoseconds.
#[inline]
pub fn now_ns(clock: Clock) -> u64 {
    let clock = match clock {
        Clock::Monotonic => libc::CLOCK_MONOTONIC,
        Clock::MonotonicCoarse => libc::CLOCK_MONOTONIC_COARSE,
        Clock::Boot => libc::CLOCK_BOOTTIME,
        Clock::Atomic => libc::CLOCK_TAI,
        Clock::Real => libc::CLOCK_REALTIME,
    };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable. A failure would leave 0.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
