//! Messages between a run on a stack of its own and its poller ([`crate::abi::fiber`]).

use crate::abi::critical::{self, Critical};
use bpf_quiesce::Memory;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::task::{Context, Poll};

/// The command by which a run that waits is resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resume {
    /// The awaited result is there.
    Go,
    /// The run is given up.
    Cancel,
}

/// A call that waits, as a run's poller knows it.
pub(crate) trait Sleeping {
    /// Polls what it waits for. Ready: the run can go on.
    ///
    /// # Safety
    /// The call must stay where it is until it is dropped, and not be ready already.
    unsafe fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Drops what it waits for, or has got. The run must not go on.
    fn lose(&mut self);
}

/// A call on the stack of a run that waits.
pub(crate) type Waiting = *mut dyn Sleeping;

/// The call that a run which has left its thread waits for; `None`: it yields, and goes on when it is polled next.
pub(super) type Awaited = Option<Waiting>;

/// Shared by a fiber's run and its poller. The run refers to it ([`Run::link`]).
pub(crate) struct Link {
    back: imp::Back,
    /// The poller's, while it is there.
    context: Cell<*mut Context<'static>>,
    /// The memory from which the run's is reserved, while there is a run.
    memory: Cell<*const Arc<Memory>>,
    /// The payload of a panic of a host's future, for the poller.
    panic: Cell<Option<Box<dyn Any + Send>>>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("back", &self.back).field("context", &self.context).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new() -> Link {
        let (context, memory) = (Cell::new(null_mut()), Cell::new(null()));
        Link { back: imp::Back::new(), context, memory, panic: Cell::new(None) }
    }

    /// Sets or clears the context of the poller.
    pub(super) fn attend(&self, poller: Option<&mut Context<'_>>) {
        self.context.set(poller.map_or(null_mut(), |cx| core::ptr::from_mut(cx).cast()));
    }

    /// Sets the memory from which the run's is reserved. It must be there until the run is over.
    pub(super) fn set_memory(&self, memory: &Arc<Memory>) {
        self.memory.set(memory);
    }

    /// Returns the memory from which the run's is reserved.
    ///
    /// # Safety
    /// The run must have begun, and not be over while the result is used.
    pub(crate) unsafe fn memory(&self) -> &Arc<Memory> {
        // SAFETY: set when the run began, and there until it is over (`Fiber::start`).
        unsafe { &*self.memory.get() }
    }

    /// The way back, from the stack that is being begun.
    #[cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub(super) fn set_back(&self, back: &corosensei::Yielder<Resume, Awaited>) {
        self.back.set(back);
    }

    /// Takes the payload of a panic that the poller is to resume.
    pub(super) fn thrown(&self) -> Option<Box<dyn Any + Send>> {
        self.panic.take()
    }

    /// Polls a call, as long as the run's poller is there.
    ///
    /// # Safety
    /// As for [`Sleeping::poll`]; this thread must be on the run's stack.
    pub(crate) unsafe fn poll(&self, call: &mut dyn Sleeping) -> Poll<()> {
        // SAFETY: the poller's context, which is valid while the run is on this thread (`attend`), and nobody
        // else uses it meanwhile.
        let cx = unsafe { &mut *self.context.get() };
        // SAFETY: the caller's contract.
        unsafe { call.poll(cx) }
    }

    /// Leaves the thread until the call is ready. The thread must be in a section, as the next one is.
    ///
    /// # Safety
    /// This thread must be on the run's stack, at a call of emitted code or of the interpreter; the call must stay
    /// where it is and be polled by nobody else meanwhile.
    #[inline(never)]
    pub(crate) unsafe fn wait(&self, call: Waiting) -> Resume {
        // SAFETY: the caller's contract.
        unsafe { self.back.wait(Some(call)) }
    }

    /// Leaves the thread until the run is polled next.
    ///
    /// # Safety
    /// This thread must be on the run's stack, at a call of emitted code or of the interpreter.
    #[inline(never)]
    pub(crate) unsafe fn give_way(&self) -> Resume {
        critical::inside();
        // SAFETY: the caller's contract.
        let with = unsafe { self.back.wait(None) };
        if with == Resume::Go {
            critical::outside();
        }
        with
    }

    /// Keeps the payload of a panic for the poller. The first payload stays.
    pub(crate) fn throw(&self, panic: Box<dyn Any + Send>) {
        match self.panic.take() {
            Some(first) => {
                let _left = Critical::leave();
                bpf_quiesce::drop_payload(panic);
                self.panic.set(Some(first));
            }
            None => self.panic.set(Some(panic)),
        }
    }
}

/// Switching back, by corosensei.
#[cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod imp {
    use super::{Awaited, Resume};
    use corosensei::Yielder;
    use std::cell::Cell;
    use std::ptr::null;

    /// The switch back to the poller that resumed a run.
    #[derive(Debug)]
    pub(super) struct Back(Cell<*const Yielder<Resume, Awaited>>);

    impl Back {
        pub(super) fn new() -> Back {
            Back(Cell::new(null()))
        }

        pub(super) fn set(&self, back: &Yielder<Resume, Awaited>) {
            self.0.set(back);
        }

        /// # Safety
        /// As for [`super::Link::wait`] and [`super::Link::give_way`].
        pub(super) unsafe fn wait(&self, call: Awaited) -> Resume {
            // SAFETY: of the routine that this thread is on (contract), on whose stack it lies.
            unsafe { &*self.0.get() }.suspend(call)
        }
    }
}

/// No run has a stack of its own.
#[cfg(not(all(unix, any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod imp {
    use super::{Awaited, Resume};

    #[derive(Debug)]
    pub(super) struct Back(());

    impl Back {
        pub(super) fn new() -> Back {
            Back(())
        }

        pub(super) unsafe fn wait(&self, _: Awaited) -> Resume {
            Resume::Cancel
        }
    }
}
