//! Forked children of a test, which must end well.
//!
//! A child that waits for a lock whose owner does not exist in it waits for ever, so an alarm ends it, and after that
//! its parent. Under an emulator such a wait proves nothing: the emulator has locks of its own, which another thread
//! may have held at the fork. Only there is a child that waited a skip and not a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// The end of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The body returned.
    Well,
    /// The body panicked.
    Panicked,
    /// The child ran too long, and its alarm or its parent ended it.
    Waited,
    /// The child left with another status of waitpid(2).
    Status(i32),
}

/// Runs `body` in a forked child for at most so many seconds, waits for the child and returns how it ended.
///
/// # Safety
///
/// The child has this thread alone. The body does only what this system's C library allows after a fork of a process
/// with other threads, and what it drops may be dropped twice: in the child, and in the parent.
pub unsafe fn forked(seconds: u32, body: impl FnOnce()) -> Ended {
    // SAFETY: the child leaves through `_exit`; what it does before is the caller's promise.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: takes an integer; changes when the child ends.
        unsafe { libc::alarm(seconds) };
        let result = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: ends the child without running the parent's destructors twice.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    ended(child, Duration::from_secs(u64::from(seconds) + 30))
}

fn ended(child: libc::pid_t, limit: Duration) -> Ended {
    let begun = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: asks for our child and writes its status.
        match unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } {
            0 if begun.elapsed() < limit => std::thread::sleep(Duration::from_micros(500)),
            0 => {
                // SAFETY: kills our child, which has not been waited for.
                unsafe { libc::kill(child, libc::SIGKILL) };
                // SAFETY: waits for the end of our child and writes its status.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                return Ended::Waited;
            }
            ended => {
                assert_eq!(ended, child, "waitpid: {}", std::io::Error::last_os_error());
                return match status {
                    0 => Ended::Well,
                    status if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1 => Ended::Panicked,
                    status if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM => Ended::Waited,
                    status => Ended::Status(status),
                };
            }
        }
    }
}

/// Asserts that all children ended well. Under an emulator, children that waited are said to be skipped.
///
/// # Panics
///
/// If a child did not end well.
pub fn assert_ended_well(what: &str, children: &[Ended]) {
    let only_waited = children.iter().all(|ended| matches!(ended, Ended::Well | Ended::Waited));
    if children.contains(&Ended::Waited) && only_waited && crate::emulated() {
        return crate::skipped(what, &"a child waits, perhaps for a lock of the emulator");
    }
    let wrong: Vec<_> = children.iter().enumerate().filter(|(_, ended)| **ended != Ended::Well).collect();
    assert!(wrong.is_empty(), "{what}: children that did not end well: {wrong:?}");
}

#[cfg(test)]
mod tests {
    use super::{Ended, assert_ended_well, forked};

    #[test]
    fn the_end_of_a_child_is_told() {
        let ended = |body: fn()| {
            // SAFETY: the bodies take no lock and drop nothing of the parent's.
            unsafe { forked(1, body) }
        };
        assert_eq!(ended(|| ()), Ended::Well);
        // Silent, and without the allocator's and the standard streams' locks.
        assert_eq!(ended(|| std::panic::resume_unwind(Box::new(()))), Ended::Panicked);
        assert_eq!(ended(|| std::thread::sleep(std::time::Duration::from_secs(20))), Ended::Waited);
        // SAFETY: ends the child.
        assert!(matches!(ended(|| unsafe { libc::_exit(7) }), Ended::Status(_)));
        assert_ended_well("children", &[Ended::Well; 3]);
        let wrong = std::panic::catch_unwind(|| assert_ended_well("children", &[Ended::Well, Ended::Panicked]));
        assert!(wrong.is_err());
    }
}
