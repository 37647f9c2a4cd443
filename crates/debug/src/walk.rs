//! Walks the frames of the calling thread, as the process's unwinder finds them.

use core::ffi::{c_int, c_void};

// The unwinder's walk (Itanium C++ ABI: Exception Handling, 1.2, and its extension for backtraces), in libgcc_s and
// LLVM's libunwind alike.
unsafe extern "C" {
    fn _Unwind_Backtrace(step: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int, arg: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut c_void, before: *mut c_int) -> usize;
    fn _Unwind_GetCFA(context: *mut c_void) -> usize;
}

/// Number of frames at which a walk ends: more than any stack of nested runs has.
const MAX_FRAMES: usize = 4096;

struct Walk<'s> {
    step: &'s mut dyn FnMut(usize, usize) -> bool,
    frames: usize,
}

/// Calls `step` for each frame of this thread, innermost first, with an address inside its current instruction, and
/// the value of its stack pointer after the callee returns. Ends when `step` returns `false`, or after the first
/// frame without unwind information (emitted code that is not registered), for which `step` is called too.
///
/// `step` must not unwind: that aborts the process.
pub fn walk(step: &mut dyn FnMut(usize, usize) -> bool) {
    unsafe extern "C" fn each(context: *mut c_void, arg: *mut c_void) -> c_int {
        // SAFETY: `arg` is the walk below, which no other code uses until it is over.
        let walk = unsafe { &mut *arg.cast::<Walk<'_>>() };
        let mut before = 0;
        // SAFETY: the context is the walk's, `before` an integer to be filled in.
        let ip = unsafe { _Unwind_GetIPInfo(context, &mut before) };
        // SAFETY: the context is the walk's.
        let sp = unsafe { _Unwind_GetCFA(context) };
        walk.frames += 1;
        // A return address may lie after its function's end; the address at which a signal interrupted does not.
        let on = (walk.step)(if before == 0 { ip.wrapping_sub(1) } else { ip }, sp);
        // 0 continues, any other value ends the walk.
        (!on || walk.frames >= MAX_FRAMES).into()
    }
    let mut walk = Walk { step, frames: 0 };
    // SAFETY: `each` gets the walk back as its argument, and does not unwind.
    unsafe { _Unwind_Backtrace(each, (&raw mut walk).cast()) };
}
