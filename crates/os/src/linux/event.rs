//! A flag that a thread can wait for, alone or together with other descriptors (`epoll`): an `eventfd(2)`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::failed;
use crate::{Call, SysError, inject};

/// A flag behind a descriptor, which is readable while the flag is set.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// Creates an event that is not set.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn new() -> Result<Self, SysError> {
        inject::check(Call::Eventfd)?;
        // SAFETY: no arguments that could be wrong; the result is checked.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(failed(Call::Eventfd));
        }
        // SAFETY: a new descriptor that no other code owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(event) }))
    }

    /// Sets the flag and wakes all threads that wait for it.
    pub fn set(&self) {
        let one = 1u64;
        // SAFETY: writes eight bytes of a local. A full counter (EAGAIN) is acceptable, because the flag is set then.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Resets the flag.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: reads eight bytes into a local. EAGAIN: it was not set.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }

    /// Waits until the flag is set, at most for the given time. `false` if it was not seen set: a signal, or a time
    /// longer than the call can express, may have ended the wait early.
    ///
    /// # Errors
    /// `poll(2)` failed.
    pub fn wait(&self, at_most: Option<Duration>) -> Result<bool, SysError> {
        inject::check(Call::Poll)?;
        // Rounded up, so that a short remaining time does not become a busy loop.
        let millis = at_most.map_or(-1, |left| i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, a local.
        match unsafe { libc::poll(&raw mut poll, 1, millis) } {
            0 => Ok(false),
            1.. => Ok(true),
            _ => match failed(Call::Poll) {
                SysError { errno: libc::EINTR, .. } => Ok(false),
                error => Err(error),
            },
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
