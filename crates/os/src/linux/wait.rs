//! Sleeping on a word in memory: a futex.

use std::sync::atomic::AtomicU32;

/// Sleeps while `*word == expected`. May return spuriously.
pub fn sleep_while(word: &AtomicU32, expected: u32) {
    let timeout = std::ptr::null::<libc::timespec>();
    // SAFETY: the word outlives the call; FUTEX_WAIT only reads it. After any failure (changed, interrupted) the
    // caller checks the word again, as it does anyway.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, timeout)
    };
}

/// Wakes every thread that sleeps on the word at this address. The word need not exist any more.
pub fn wake_all(word: usize) {
    // SAFETY: FUTEX_WAKE uses the address as a name and does not access it.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX) };
}
