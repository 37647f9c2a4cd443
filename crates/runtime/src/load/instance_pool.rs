//! Instances that are ready, for a fresh state in each request.
//!
//! Problem: a request that needs fresh maps of its own would have to make an instance, which takes microseconds of
//! system calls. Approach: a number of instances is made in advance. A returned instance is reset at once if nobody
//! else has handles of it, and otherwise when it is needed next.
//!
//! Invariant: an instance is lent out, clean or used. A clean one was reset after its last use.

use crate::context::Context;
use crate::error::{LoadError, PoolError};
use crate::handle::instance::Instance;
use crate::load::module::Module;
use bpf_quiesce::Finish;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A pool of instances of one module, each lent to one user at a time: made by [`Module::pool`]. Cheap to clone; clones
/// are the same pool.
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
    /// Present until the drop.
    instance: ManuallyDrop<Instance<H>>,
    pool: InstancePool<H>,
}

impl<H: 'static> fmt::Debug for Pooled<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled").field("instance", &*self.instance).finish_non_exhaustive()
    }
}

impl<C: Context, H: 'static> Module<C, H> {
    /// Makes a pool of `size` instances, for a fresh state in each request.
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
    /// [`LoadError`] of the first instance that cannot be made; the others are dropped.
    pub fn pool(&self, size: usize) -> Result<InstancePool<H>, LoadError> {
        let clean = (0..size).map(|_| self.instance().make()).collect::<Result<_, _>>()?;
        // A returned instance needs no memory.
        let used = Vec::with_capacity(size);
        Ok(InstancePool(Arc::new(Shared { size, lists: Mutex::new(Lists { clean, used }) })))
    }
}

impl<H: 'static> InstancePool<H> {
    /// The number of instances, lent ones included.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Lends an instance whose maps have their initial contents.
    ///
    /// # Errors
    /// [`PoolError::Empty`]; [`PoolError::Reset`] if no returned instance can be reset, since others hold handles of
    /// them and may run them.
    pub fn take(&self) -> Result<Pooled<H>, PoolError> {
        let mut refused = None;
        let used = {
            let mut lists = self.lists();
            if let Some(instance) = lists.clean.pop() {
                return Ok(Pooled { instance: ManuallyDrop::new(instance), pool: self.clone() });
            }
            lists.used.len()
        };
        // Each is tried once: an instance that cannot be reset goes to the other end.
        for _ in 0..used {
            let Some(instance) = self.lists().used.pop() else { break };
            // The instance is put back before the panic of a deferred callback is resumed.
            let mut finish = Finish::default();
            match finish.step(|| instance.reset_within(Duration::ZERO)) {
                Some(Ok(())) => return Ok(Pooled { instance: ManuallyDrop::new(instance), pool: self.clone() }),
                Some(Err(error)) => {
                    refused = Some(error);
                    self.lists().used.insert(0, instance);
                }
                None => self.lists().used.insert(0, instance),
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
        // In a forked child the lock may be held for ever, by a thread that exists in the parent only.
        if instance.engine().domain().is_forked() {
            return;
        }
        let mut finish = Finish::default();
        let clean = instance.is_alone()
            && finish.step(|| instance.reset_within(Duration::ZERO)).is_some_and(|reset| reset.is_ok());
        let mut lists = self.pool.lists();
        if clean { lists.clean.push(instance) } else { lists.used.push(instance) }
    }
}
