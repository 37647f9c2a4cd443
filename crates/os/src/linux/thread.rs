//! The calling thread: its name and number, its stack, its end.

use std::ffi::c_void;

use crate::{Call, SysError, inject};

/// The thread's number, unique in the system.
pub fn id() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// The thread's name: bytes up to the first zero. 16: TASK_COMM_LEN.
pub fn name() -> [u8; 16] {
    let mut name = [0u8; 16];
    // SAFETY: writes at most 16 bytes, which `name` has.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// The lowest address of the thread's stack above the guard, and the length from there. The main thread's stack
/// grows; its length is the current limit (`RLIMIT_STACK`). Not for signal handlers, because C libraries allocate in
/// it.
pub fn stack() -> Option<(u64, u64)> {
    if cfg!(miri) || inject::check(Call::ThreadStack).is_err() {
        return None;
    }
    let mut attr = core::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: no arguments, cannot fail.
    let thread = unsafe { libc::pthread_self() };
    // SAFETY: fills in the attributes of the calling thread, which exists.
    if unsafe { libc::pthread_getattr_np(thread, attr.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut start, mut len, mut guard) = (core::ptr::null_mut(), 0, 0);
    // SAFETY: `attr` was initialised above.
    let stack = unsafe { libc::pthread_attr_getstack(attr.as_ptr(), &raw mut start, &raw mut len) };
    // SAFETY: `attr` was initialised above, and is destroyed below.
    let guarded = unsafe { libc::pthread_attr_getguardsize(attr.as_ptr(), &raw mut guard) };
    // SAFETY: initialised above, and not used afterwards.
    unsafe { libc::pthread_attr_destroy(attr.as_mut_ptr()) };
    if stack != 0 || guarded != 0 {
        return None;
    }
    let start = start.addr();
    if cfg!(target_env = "musl") && is_first(start.checked_add(len)?) {
        // musl returns the size that the main thread's stack has grown to.
        return grown_stack(start.checked_add(len)?);
    }
    // Old C libraries count the guard as a part of the stack, new ones do not: at worst, one guard is subtracted too
    // much.
    let guard = guard.min(len);
    Some((start as u64 + guard as u64, (len - guard) as u64))
}

/// Whether the stack that ends at `top` is that on which the program began: at most 6 MiB of arguments and environment
/// lie between `top` and the program's name. The thread's number does not tell: in a child process, the thread that
/// forked has the number of the process, whatever its stack is.
fn is_first(top: usize) -> bool {
    // SAFETY: takes no pointer.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) };
    usize::try_from(name).is_ok_and(|name| name.checked_sub(top).is_some_and(|above| above <= 6 << 20))
}

/// The bounds of the main thread's stack under musl, of which `top` is a high address.
fn grown_stack(top: usize) -> Option<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to `limit`.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    // Arguments and environment, above `top`, count too: at most a quarter of the limit.
    let len = limit.rlim_cur / 4 * 3;
    let low = (top as u64).checked_sub(len)?;
    (asked == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some((low, len))
}

/// The lowest address of the signal stack, and its length, if the caller runs on it.
pub fn signal_stack() -> Option<(u64, u64)> {
    if cfg!(miri) {
        return None;
    }
    let mut stack = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: changes nothing, and writes to `stack`.
    let asked = unsafe { libc::sigaltstack(core::ptr::null(), &raw mut stack) };
    let on_it = asked == 0 && stack.ss_flags & libc::SS_ONSTACK != 0;
    on_it.then_some((stack.ss_sp.addr() as u64, stack.ss_size as u64))
}

/// A thread-specific pointer, with a function that is called with it when the thread ends: after the thread-local
/// destructors where the C library has an order (glibc's `start_thread`: `__call_tls_dtors`, then
/// `__nptl_deallocate_tsd`).
#[derive(Debug, Clone, Copy)]
pub struct ExitKey(libc::pthread_key_t);

impl ExitKey {
    /// Creates a key whose function is `end`. The function may set the pointer again, and is then called again, at
    /// most [`ExitKey::ROUNDS`] times.
    ///
    /// # Errors
    /// The process has no more keys.
    pub fn new(end: unsafe extern "C" fn(*mut c_void)) -> Result<Self, SysError> {
        inject::check(Call::ThreadKey)?;
        let mut key = 0;
        // SAFETY: `key` is writable; the function accepts every pointer that is set (contract of `set`).
        match unsafe { libc::pthread_key_create(&mut key, Some(end)) } {
            0 => Ok(Self(key)),
            errno => Err(SysError { call: Call::ThreadKey, errno }),
        }
    }

    /// How many times the function is called for a thread at least (POSIX guarantees four,
    /// `PTHREAD_DESTRUCTOR_ITERATIONS`).
    pub const ROUNDS: u32 = 4;

    /// Sets the calling thread's pointer. False if the system has no memory for it.
    ///
    /// # Safety
    /// The key's function may be called with this pointer when the thread ends, unless another pointer is set before.
    #[must_use]
    pub unsafe fn set(self, pointer: *mut c_void) -> bool {
        // SAFETY: a key is never deleted; the function accepts the pointer (contract).
        unsafe { libc::pthread_setspecific(self.0, pointer) == 0 }
    }
}
