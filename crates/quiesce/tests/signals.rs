//! A signal handler enters the domain at every single instruction of its thread's own entering and leaving: the trap
//! flag raises a signal after each instruction. The handler must never get a slot that another thread is in, and the
//! interrupted operation must complete as usual.
//!
//! Alone in its process, because a signal handler is process-wide.
#![cfg(all(target_os = "linux", target_arch = "x86_64", not(miri), not(loom)))]

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use bpf_quiesce::{Barriers, Domain, EnterError, Guard, Options, WhenFull};

/// The handler's domain.
static DOMAIN: AtomicPtr<Domain> = AtomicPtr::new(std::ptr::null_mut());
/// The slot that another thread is in, which the handler must not get.
static FOREIGN: AtomicU32 = AtomicU32::new(u32::MAX);

thread_local! {
    static STEPS: Cell<u32> = const { Cell::new(0) };
    static ENTERED: Cell<u32> = const { Cell::new(0) };
    static REFUSED: Cell<u32> = const { Cell::new(0) };
    static WRONG: Cell<u32> = const { Cell::new(0) };
}

extern "C" fn handler(_: i32) {
    STEPS.set(STEPS.get() + 1);
    // SAFETY: null, or the domain of the test that is stepping, which it keeps.
    let Some(domain) = (unsafe { DOMAIN.load(Ordering::Relaxed).as_ref() }) else { return };
    match domain.enter() {
        Ok(guard) if guard.slot() != FOREIGN.load(Ordering::Relaxed) => ENTERED.set(ENTERED.get() + 1),
        Err(EnterError::Signal | EnterError::Full { .. }) => REFUSED.set(REFUSED.get() + 1),
        Ok(_) | Err(_) => WRONG.set(WRONG.get() + 1),
    }
}

/// Sets or clears the trap flag.
#[inline(always)]
fn trap(on: bool) {
    const TRAP_FLAG: u64 = 1 << 8;
    // SAFETY: changes the trap flag only; the signal it raises has a handler. `push` writes below the red zone.
    unsafe {
        std::arch::asm!(
            "lea rsp, [rsp - 128]",
            "pushfq",
            "and qword ptr [rsp], {clear}",
            "or qword ptr [rsp], {set}",
            "popfq",
            "lea rsp, [rsp + 128]",
            clear = in(reg) !TRAP_FLAG,
            set = in(reg) if on { TRAP_FLAG } else { 0 },
        );
    }
}

/// Runs `f` with the handler at each of its instructions. Returns how often the handler entered and how often it was
/// refused.
fn stepping(domain: &Arc<Domain>, f: impl FnOnce()) -> (u32, u32) {
    for count in [&STEPS, &ENTERED, &REFUSED, &WRONG] {
        count.set(0);
    }
    DOMAIN.store(Arc::as_ptr(domain).cast_mut(), Ordering::Relaxed);
    trap(true);
    f();
    trap(false);
    DOMAIN.store(std::ptr::null_mut(), Ordering::Relaxed);
    assert_eq!(WRONG.get(), 0, "the handler got another thread's slot, or another error");
    assert_eq!(STEPS.get(), ENTERED.get() + REFUSED.get());
    (ENTERED.get(), REFUSED.get())
}

fn domain(barriers: Barriers, max_slots: u32) -> Arc<Domain> {
    Domain::new(Options::new().max_slots(max_slots).when_full(WhenFull::Error).barriers(barriers))
}

#[test]
fn handlers_enter_at_every_instruction_or_are_refused() {
    // SAFETY: all zero is a value of this type.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as extern "C" fn(i32) as usize;
    // SAFETY: the handler has the type that these flags ask for.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) }, 0);

    for barriers in [Barriers::Auto, Barriers::Fenced] {
        // A thread that has a slot already: handlers are never refused.
        let own = domain(barriers, 1);
        drop(own.enter().unwrap());
        let (entered, refused) = stepping(&own, || {
            let outer = own.enter().unwrap();
            assert_eq!(outer.slot(), 0);
            let inner = own.enter().unwrap();
            assert_eq!(inner.slot(), 0);
            drop(outer);
            assert_eq!(inner.slot(), 0);
        });
        assert!(entered > 30 && refused == 0, "{barriers:?}: {entered} entered, {refused} refused");
        assert!(!own.in_guard());

        // A thread that enters another domain for the first time meanwhile: it registers and takes a slot.
        let other = domain(barriers, 1);
        let (entered, refused) = stepping(&own, || drop(other.enter().unwrap()));
        assert!(entered > 30 && refused > 30, "{barriers:?}: {entered} entered, {refused} refused");

        // A thread whose only slot another thread has taken and is in: neither the handler nor the interrupted entry
        // gets that slot, at any instruction.
        let (slot, entered_there) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let there = Arc::clone(&own);
        let thread = std::thread::spawn(move || {
            let guard: Guard<'_> = there.enter().unwrap();
            slot.send(guard.slot()).unwrap();
            let _ = released.recv();
        });
        FOREIGN.store(entered_there.recv().unwrap(), Ordering::Relaxed);
        let (entered, refused) = stepping(&own, || {
            assert_eq!(own.enter().map(|guard| guard.slot()), Err(EnterError::Full { max_slots: 1 }));
        });
        assert!(entered == 0 && refused > 30, "{barriers:?}: {entered} entered, {refused} refused");
        drop(release);
        thread.join().unwrap();
        FOREIGN.store(u32::MAX, Ordering::Relaxed);

        // The slot is taken back. Then a grace period is waited for, with handlers refused only while the registry is
        // locked.
        let (entered, refused) = stepping(&own, || {
            assert_eq!(own.enter().unwrap().slot(), 0);
            own.synchronize().unwrap();
            assert_eq!(own.enter().unwrap().slot(), 0);
        });
        assert!(entered > 30 && refused > 0, "{barriers:?}: {entered} entered, {refused} refused");
        assert!(!own.in_guard());
        assert_eq!(own.synchronize(), Ok(()));
    }
}
