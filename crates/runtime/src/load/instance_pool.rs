//! Instances that are ready, for a fresh state in each request.
//!
//! Problem: a request that needs fresh maps of its own would have to make an instance, which takes microseconds of
//! system calls. Approach: a number of instances is made in advance. A returned instance is reset at once if nobody
//! else has handles of it. Otherwise the pool drops its own handle, and makes another instance at the next request: a
//! user never gets an instance that another may run or read.
//!
//! Invariant: each of the pool's places has a clean instance, is lent out, or is to be filled. A clean instance was
//! reset after its last use, and nobody has handles of it.

use crate::call::state::Host;
use crate::context::Context;
use crate::engine::Engine;
use crate::error::{LoadError, PoolError};
use crate::handle::instance::Instance;
use crate::load::module::{Module, may_load};
use bpf_maps::Map;
use bpf_quiesce::Finish;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A pool of instances of one module, each lent to one user at a time: made by [`Module::pool`]. Cheap to clone; clones
/// are the same pool.
pub struct InstancePool<H: ?Sized = ()>(Arc<Shared<H>>);

struct Shared<H: ?Sized> {
    engine: Engine,
    size: usize,
    places: Mutex<Places<H>>,
    /// For each map of an instance that nobody uses: the number of handles, and whether the map is frozen.
    unused: Vec<(usize, bool)>,
    /// Makes one more instance.
    make: Box<dyn Fn() -> Result<Instance<H>, LoadError> + Send + Sync>,
}

struct Places<H: ?Sized> {
    clean: Vec<Instance<H>>,
    /// Places whose instance was given up.
    unfilled: usize,
}

impl<H: ?Sized> Clone for InstancePool<H> {
    fn clone(&self) -> Self {
        InstancePool(Arc::clone(&self.0))
    }
}

impl<H: ?Sized> fmt::Debug for InstancePool<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InstancePool").field("size", &self.0.size).finish_non_exhaustive()
    }
}

/// An instance that goes back to its pool when this is dropped.
///
/// A handle that outlives this (a clone of the [`Instance`], a [`crate::Program`], a [`crate::maps::Map`], a place in a
/// hook) keeps the instance: the pool then gives it up, as it is, and makes another one in its place. A pool
/// also gives up an instance after [`Map::freeze`] or [`Map::mmap_fd`] of one of its maps, which no reset undoes.
pub struct Pooled<H: Host + ?Sized = ()> {
    /// Present until the drop.
    instance: ManuallyDrop<Instance<H>>,
    pool: InstancePool<H>,
}

impl<H: Host + ?Sized> fmt::Debug for Pooled<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled").field("instance", &*self.instance).finish_non_exhaustive()
    }
}

impl<C: Context, H: Host + ?Sized> Module<C, H> {
    /// Makes a pool of `size` instances, for a fresh state in each request.
    ///
    /// ```no_run
    /// # use bpf_runtime::*;
    /// # fn f(module: &Module<Raw, ()>, request: &mut [u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = module.pool(64)?;
    /// let instance = pool.take()?; // as it was when it was made
    /// instance.program::<Raw>("handle")?.run_on(request)?;
    /// drop(instance); // reset, for the next
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`LoadError`] of the first instance that cannot be made; the others are dropped.
    pub fn pool(&self, size: usize) -> Result<InstancePool<H>, LoadError> {
        let (mut clean, mut unused) = (Vec::new(), Vec::new());
        if size > 0 {
            // Handles are counted before anybody can look at the maps: `Engine::snapshot` has handles for moments.
            let first = self.instance().maps(self.maps().unlisted()).make()?;
            unused.extend(first.maps().map(|map| (map.handles(), map.is_frozen())));
            first.maps().try_for_each(|map| first.engine().0.metrics.map(map))?;
            clean.push(first);
        }
        for _ in 1..size {
            clean.push(self.instance().make()?);
        }
        let module = self.clone();
        let make = Box::new(move || module.instance().make());
        let places = Mutex::new(Places { clean, unfilled: 0 });
        let engine = self.engine().clone();
        Ok(InstancePool(Arc::new(Shared { engine, size, places, unused, make })))
    }
}

impl<H: Host + ?Sized> InstancePool<H> {
    /// The number of instances, lent ones included.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Lends an instance whose maps have their initial contents and of which nobody else has handles.
    ///
    /// # Errors
    /// [`PoolError::Empty`]; [`PoolError::Load`] if an instance that was given up cannot be replaced, which may be
    /// tried again, and in a forked child.
    pub fn take(&self) -> Result<Pooled<H>, PoolError> {
        /// A place that is given back on drop unless it was filled.
        struct Place<'p, H: Host + ?Sized>(&'p InstancePool<H>);
        impl<H: Host + ?Sized> Drop for Place<'_, H> {
            fn drop(&mut self) {
                self.0.places().unfilled += 1;
            }
        }
        may_load(&self.0.engine, None).map_err(|error| PoolError::Load(Box::new(error)))?;
        let lend = |instance| Pooled { instance: ManuallyDrop::new(instance), pool: self.clone() };
        {
            let mut places = self.places();
            if let Some(instance) = places.clean.pop() {
                drop(places);
                return Ok(lend(instance));
            }
            places.unfilled = places.unfilled.checked_sub(1).ok_or(PoolError::Empty { size: self.0.size })?;
        }
        // Without the lock: making an instance may run deferred drops, which may call the host.
        let place = Place(self);
        let instance = (self.0.make)().map_err(|error| PoolError::Load(Box::new(error)))?;
        core::mem::forget(place);
        Ok(lend(instance))
    }

    /// Nothing under the lock panics, so poison means nothing.
    fn places(&self) -> std::sync::MutexGuard<'_, Places<H>> {
        self.0.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Host + ?Sized> Deref for Pooled<H> {
    type Target = Instance<H>;

    fn deref(&self) -> &Instance<H> {
        &self.instance
    }
}

impl<H: Host + ?Sized> Drop for Pooled<H> {
    fn drop(&mut self) {
        // SAFETY: nobody uses the field after this, the only place where it is taken.
        let instance = unsafe { ManuallyDrop::take(&mut self.instance) };
        // In a forked child the lock may be held for ever, by a thread that exists in the parent only.
        if instance.engine().domain().is_forked() {
            return;
        }
        // An instance that is given up is dropped last, and without the lock: that may run deferred drops, which may
        // call the host.
        let mut finish = Finish::default();
        let as_made = |(map, (handles, frozen)): (&Map, &(usize, bool))| {
            map.handles() <= *handles && map.is_frozen() == *frozen && !map.is_mmap_lent()
        };
        let unused = instance.is_alone() && instance.maps().zip(&self.pool.0.unused).all(as_made);
        let clean = unused && finish.step(|| instance.reset_within(Duration::ZERO)).is_some_and(|reset| reset.is_ok());
        let mut places = self.pool.places();
        let given_up = match clean {
            true => {
                places.clean.push(instance);
                None
            }
            false => {
                places.unfilled += 1;
                Some(instance)
            }
        };
        drop(places);
        finish.step(|| drop(given_up));
    }
}
