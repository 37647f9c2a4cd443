//! Clocks.

/// Clocks in use. All of them exist on every Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Monotonic, without the time that the machine was suspended.
    Monotonic,
    /// The same as of the last tick.
    MonotonicCoarse,
    /// Monotonic, with that time.
    Boot,
    /// International atomic time.
    Atomic,
    /// Wall-clock time, which may be set.
    Real,
}

/// Nanoseconds that the clock shows.
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
