//! Instances that lie ready, for a fresh state each request.
//!
//! Problem: a request that wants maps of its own, and nothing of the request before, would make an instance:
//! microseconds of system calls. Approach: so many are made at once; one that comes back is reset, there and then if
//! nobody else has handles of it, and otherwise when it is wanted next.
//!
//! Invariant: an instance is in one of three places: lent out, clean, or used. What is clean was reset after its last
//! use.

use crate::context::Context;
use crate::error::{LoadError, PoolError};
use crate::handle::instance::Instance;
use crate::load::module::Module;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Instances of one module, of which each user has one at a time: made by [`Module::pool`]. Cheap to clone; clones are
/// the same pool.
pub struct InstancePool<H>(Arc<Shared<H>>);

struct Shared<H> {
    size: usize,
    lists: Mutex<Lists<H>>,
}

struct Lists<H> {
    clean: Vec<Instance<H>>,
    used: Vec<Instance<H>>,
}

impl<H> Clone for InstancePool<H> {
    fn clone(&self) -> Self {
        InstancePool(Arc::clone(&self.0))
    }
}

impl<H> fmt::Debug for InstancePool<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InstancePool").field("size", &self.0.size).finish_non_exhaustive()
    }
}

/// An instance that goes back to its pool when this is dropped.
pub struct Pooled<H: 'static> {
    /// There until the drop.
    instance: ManuallyDrop<Instance<H>>,
    pool: InstancePool<H>,
}

impl<H: 'static> fmt::Debug for Pooled<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled").field("instance", &*self.instance).finish_non_exhaustive()
    }
}

impl<C: Context, H: 'static> Module<C, H> {
    /// So many instances, for a fresh state each request.
    ///
    /// ```no_run
    /// # use bpf_runtime::*;
    /// # fn f(module: &Module<Raw, ()>, request: &mut [u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = module.pool(64)?;
    /// let instance = pool.take()?; // as it was when it was made
    /// instance.program::<Raw>("handle")?.run(&mut (), request)?;
    /// drop(instance); // reset, for the next
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`LoadError`] of the first that cannot be made; none is left then.
    pub fn pool(&self, size: usize) -> Result<InstancePool<H>, LoadError> {
        let clean = (0..size).map(|_| self.instance().make()).collect::<Result<_, _>>()?;
        // What comes back needs no memory.
        let used = Vec::with_capacity(size);
        Ok(InstancePool(Arc::new(Shared { size, lists: Mutex::new(Lists { clean, used }) })))
    }
}

impl<H: 'static> InstancePool<H> {
    /// How many instances it has, lent ones included.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Takes one, as it was when it was made.
    ///
    /// # Errors
    /// [`PoolError::Empty`]; [`PoolError::Reset`] if somebody else has handles of all that came back, and runs in them.
    pub fn take(&self) -> Result<Pooled<H>, PoolError> {
        let mut refused = None;
        let used = {
            let mut lists = self.lists();
            if let Some(instance) = lists.clean.pop() {
                return Ok(Pooled { instance: ManuallyDrop::new(instance), pool: self.clone() });
            }
            lists.used.len()
        };
        // Each once: those that are refused go to the other end.
        for _ in 0..used {
            let Some(instance) = self.lists().used.pop() else { break };
            match instance.reset_within(Duration::ZERO) {
                Ok(()) => return Ok(Pooled { instance: ManuallyDrop::new(instance), pool: self.clone() }),
                Err(error) => {
                    refused = Some(error);
                    self.lists().used.insert(0, instance);
                }
            }
        }
        Err(refused.map_or(PoolError::Empty { size: self.0.size }, PoolError::Reset))
    }

    /// Nothing under the lock panics, so poison means nothing.
    fn lists(&self) -> std::sync::MutexGuard<'_, Lists<H>> {
        self.0.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: 'static> Deref for Pooled<H> {
    type Target = Instance<H>;

    fn deref(&self) -> &Instance<H> {
        &self.instance
    }
}

impl<H: 'static> Drop for Pooled<H> {
    fn drop(&mut self) {
        // SAFETY: nobody uses the field after this, the only place where it is taken.
        let instance = unsafe { ManuallyDrop::take(&mut self.instance) };
        // In a forked child the lock may be held for ever, by a thread that it does not have.
        if instance.engine().domain().is_forked() {
            return;
        }
        let clean = instance.is_alone() && instance.reset_within(Duration::ZERO).is_ok();
        let mut lists = self.pool.lists();
        if clean { lists.clean.push(instance) } else { lists.used.push(instance) }
    }
}
