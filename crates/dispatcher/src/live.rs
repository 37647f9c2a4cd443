//! Images under traffic.
//!
//! Problem: the set of programs changes while other threads are in the image. Approach: the new image is built and
//! published beside the old one, and one store of a pointer makes it current. The old image's [`Text`] is dropped,
//! which frees it after a grace period. The observer's data of it are dropped at that time too, because runs inside
//! the old image may still be unwound. Callers never wait, and see the old image or the new one.
//!
//! Invariant: the pointer is null or the entry of `text`. A thread that loads it inside a guard of the packs' domain
//! may run the code until the guard ends.

use crate::image::Image;
use crate::options::{Entry, Options};
use bpf_jit_code::{Arch, Code, Needs};
use bpf_prog_pack::{Error, Packs, Text};
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An observer, called for each placed image before any thread runs it: for unwinders and profilers. The value it
/// returns is dropped after the last run of the image, or before its memory is used for other code. Its drop must not
/// take a lock that is held while images change.
pub type Observer = Arc<dyn Fn(&Code, &Text) -> Box<dyn Any + Send + Sync> + Send + Sync>;

/// An image that can be replaced while it runs.
pub struct LiveImage {
    packs: Packs,
    observer: Option<Observer>,
    /// The entry, with the image's needs in the bits of [`Current::NEEDS`].
    word: AtomicPtr<u8>,
    placed: Mutex<Option<Placed>>,
}

/// A placed image that is not reachable yet ([`LiveImage::stage`]).
#[derive(Debug)]
pub struct StagedImage(Placed);

struct Placed {
    observed: Option<Box<dyn Any + Send + Sync>>,
    text: Text,
    needs: Needs,
}

/// The current image of a [`LiveImage`] as one word, so that its entry and the needs of its code belong together.
#[derive(Clone, Copy, Debug)]
pub struct Current(*const u8);

impl Current {
    /// The bits of the word that hold the image's needs. Entries are multiples of [`Code::ALIGN`].
    const NEEDS: usize = 3;

    /// The address of the entry; null if there is no image.
    #[inline]
    pub fn entry(self) -> *const u8 {
        self.0.map_addr(|word| word & !Self::NEEDS)
    }

    /// The needs of the image's code.
    #[inline]
    pub fn needs(self) -> Needs {
        match self.0.addr() & Self::NEEDS {
            0 => Needs::Nothing,
            1 => Needs::Slot,
            _ => Needs::Run,
        }
    }
}

impl StagedImage {
    /// The address of the entry.
    pub fn entry(&self) -> *const u8 {
        self.0.entry()
    }
}

impl Placed {
    fn entry(&self) -> *const u8 {
        self.text.entry(0).unwrap_or(std::ptr::null())
    }
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placed").field("needs", &self.needs).finish_non_exhaustive()
    }
}

impl fmt::Debug for LiveImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveImage").field("entry", &self.entry()).finish_non_exhaustive()
    }
}

impl LiveImage {
    /// Creates a live image without a current image.
    pub fn new(packs: &Packs) -> LiveImage {
        LiveImage::observed(packs, None)
    }

    /// Creates a live image whose observer is called for each image.
    pub fn observed(packs: &Packs, observer: Option<Observer>) -> LiveImage {
        LiveImage { packs: packs.clone(), observer, word: AtomicPtr::default(), placed: Mutex::new(None) }
    }

    /// Returns the current image. It must be loaded and used inside one guard of the packs' domain.
    #[inline]
    pub fn current(&self) -> Current {
        // Acquire pairs with the release in `exchange`: the code was finalized before.
        Current(self.word.load(Ordering::Acquire))
    }

    /// The entry of the current image; null if there is none.
    #[inline]
    pub fn entry(&self) -> *const u8 {
        self.current().entry()
    }

    /// Makes `image` the current one. The old one is freed after a grace period.
    ///
    /// # Errors
    /// See [`Error`]. The old image stays current.
    pub fn publish(&self, image: &Image) -> Result<(), Error> {
        self.publish_staged(self.stage(image)?);
        Ok(())
    }

    /// Executes the part of [`LiveImage::publish`] that can fail.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn stage(&self, image: &Image) -> Result<StagedImage, Error> {
        let text = self.packs.stage(image.code(), |symbol| image.resolve(symbol))?.finalize()?;
        let observed = self.observer.as_ref().map(|observer| observer(image.code(), &text));
        Ok(StagedImage(Placed { observed, text, needs: image.code().needs }))
    }

    /// Makes a staged image the current one: the rest of [`LiveImage::publish`], which cannot fail.
    pub fn publish_staged(&self, image: StagedImage) {
        self.exchange(Some(image.0));
    }

    /// Removes the current image.
    pub fn withdraw(&self) {
        self.exchange(None);
    }

    /// Bytes of executable memory of the current image. In a forked child, 0 if the image was being replaced at the
    /// fork.
    pub fn footprint(&self) -> usize {
        let placed = self.packs.domain().lock_to_read(&self.placed);
        placed.and_then(|placed| Some(placed.as_ref()?.text.footprint())).unwrap_or(0)
    }

    fn exchange(&self, placed: Option<Placed>) {
        let word = placed.as_ref().map_or(std::ptr::null(), |placed| {
            let needs = match placed.needs {
                Needs::Nothing => 0,
                Needs::Slot => 1,
                Needs::Run => 2,
            };
            placed.entry().map_addr(|entry| entry | needs)
        });
        let mut current = self.lock();
        // Release pairs with the acquire in `current`.
        self.word.store(word.cast_mut(), Ordering::Release);
        let old = std::mem::replace(&mut *current, placed);
        drop(current);
        self.let_go(old);
    }

    /// Frees a replaced image after a grace period.
    fn let_go(&self, old: Option<Placed>) {
        let Some(Placed { observed, text, .. }) = old else { return };
        // The grace periods begin after the store that unpublished the image, so they wait for every thread that may
        // have seen the old pointer.
        drop(text);
        if let Some(observed) = observed {
            // Callers may hold a lock that other callbacks take, so none is run here.
            self.packs.domain().enqueue(move || drop(observed));
        }
    }

    /// Code under this lock does not panic, so a poisoned lock is used as it is.
    fn lock(&self) -> MutexGuard<'_, Option<Placed>> {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LiveImage {
    fn drop(&mut self) {
        // A thread may be running the image, inside a guard.
        let placed = self.placed.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        self.let_go(placed);
    }
}

/// Statistics of a [`Dispatcher`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Number of different programs attached.
    pub entries: usize,
    /// Number of these that are reached by a direct jump.
    pub direct: usize,
    /// Number of these that are not, being beyond the limit or out of reach.
    pub fallback: usize,
    /// Number of images published.
    pub updates: u64,
    /// Bytes of executable memory of the current image.
    pub footprint: usize,
}

/// The reason why a program was not detached. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DetachError {
    /// The program is not attached.
    #[error("the program is not attached")]
    NotAttached,
    /// The image could not be rebuilt.
    #[error("rebuilding the image failed: {0}")]
    Image(Error),
}

impl From<Error> for DetachError {
    fn from(error: Error) -> DetachError {
        DetachError::Image(error)
    }
}

/// A compare tree over reference-counted entries.
///
/// A dispatcher does not keep the programs alive: a tree only jumps to the address that its caller names, so the
/// caller keeps *that* program alive.
#[derive(Debug)]
pub struct Dispatcher {
    image: LiveImage,
    /// The architecture of its images; `None`: there are none.
    arch: Option<Arch>,
    options: Options,
    state: Mutex<State>,
}

#[derive(Clone, Debug)]
struct State {
    entries: Vec<Counted>,
    enabled: bool,
    direct: usize,
    updates: u64,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    entry: Entry,
    references: usize,
}

impl Dispatcher {
    /// Creates a tree without entries, which jumps indirectly to the address it gets.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new(packs: &Packs, options: Options) -> Result<Dispatcher, Error> {
        Dispatcher::observed(packs, options, None)
    }

    /// Creates a tree without entries, whose observer is called for each image.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn observed(packs: &Packs, options: Options, observer: Option<Observer>) -> Result<Dispatcher, Error> {
        let arch = crate::HOST.filter(|_| packs.places_code());
        let state = State { entries: Vec::new(), enabled: true, direct: 0, updates: 0 };
        let dispatcher =
            Dispatcher { image: LiveImage::observed(packs, observer), arch, options, state: Mutex::new(state) };
        dispatcher.set_enabled(true)?;
        Ok(dispatcher)
    }

    /// The entry of the code: see [`LiveImage::entry`]. Null while the tree is disabled, and where there is no code.
    #[inline]
    pub fn entry(&self) -> *const u8 {
        self.image.entry()
    }

    /// Adds a program, or a reference to one that is attached already.
    ///
    /// # Errors
    /// See [`Error`]. Nothing has changed then, here and in all other changes.
    pub fn attach(&self, address: usize) -> Result<(), Error> {
        self.change(|entries| match entries.iter_mut().find(|known| known.entry.address == address) {
            Some(known) => {
                known.references += 1;
                Ok(Rebuild::No)
            }
            None => {
                entries.push(Counted { entry: Entry { address, hits: 0 }, references: 1 });
                Ok(Rebuild::Yes)
            }
        })
    }

    /// Removes a reference, and with the last one the entry.
    ///
    /// # Errors
    /// [`DetachError`].
    pub fn detach(&self, address: usize) -> Result<(), DetachError> {
        self.change(|entries| {
            let found = entries.iter().position(|known| known.entry.address == address);
            let at = found.ok_or(DetachError::NotAttached)?;
            entries[at].references -= 1;
            if entries[at].references > 0 {
                return Ok(Rebuild::No);
            }
            entries.remove(at);
            Ok(Rebuild::Yes)
        })
    }

    /// Rebuilds the tree for these hit counts. Entries that are not named get none; addresses that are not attached
    /// are ignored.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn set_hits(&self, hits: &[(usize, u64)]) -> Result<(), Error> {
        self.change(|entries| {
            for Counted { entry, .. } in entries {
                entry.hits = hits.iter().find(|(address, _)| *address == entry.address).map_or(0, |(_, hits)| *hits);
            }
            Ok(Rebuild::Yes)
        })
    }

    /// Disables the tree, so that [`Dispatcher::entry`] is null and callers call programs in another way, or enables
    /// it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn set_enabled(&self, enabled: bool) -> Result<(), Error> {
        self.may_change()?;
        let mut state = self.lock();
        let next = State { enabled, ..state.clone() };
        *state = self.rebuilt(next)?;
        Ok(())
    }

    /// Returns a snapshot. In a forked child, an empty one if the tree was being changed at the fork.
    pub fn stats(&self) -> Stats {
        let Some(state) = self.image.packs.domain().lock_to_read(&self.state) else { return Stats::default() };
        let entries = state.entries.len();
        Stats {
            entries,
            direct: state.direct,
            fallback: entries - state.direct,
            updates: state.updates,
            footprint: self.image.footprint(),
        }
    }

    /// Applies `edit` to a copy of the entries, publishes the result, then stores it.
    fn change<E: From<Error>>(&self, edit: impl FnOnce(&mut Vec<Counted>) -> Result<Rebuild, E>) -> Result<(), E> {
        self.may_change()?;
        let mut state = self.lock();
        let mut next = state.clone();
        *state = match edit(&mut next.entries)? {
            Rebuild::No => next,
            Rebuild::Yes => self.rebuilt(next)?,
        };
        Ok(())
    }

    /// Publishes the image of `state` and returns the state with its statistics.
    fn rebuilt(&self, mut state: State) -> Result<State, Error> {
        let image = self.arch.filter(|_| state.enabled).map(|arch| {
            let entries: Vec<Entry> = state.entries.iter().map(|counted| counted.entry).collect();
            Image::tree(arch, &entries, &self.options)
        });
        match image {
            Some(image) => {
                self.image.publish(&image)?;
                state.direct = image.programs();
                state.updates += 1;
            }
            None => {
                self.image.withdraw();
                state.direct = 0;
            }
        }
        Ok(state)
    }

    /// Refuses changes in a forked child, where a thread that does not exist there may hold the lock for ever.
    fn may_change(&self) -> Result<(), Error> {
        if self.image.packs.domain().is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Code under this lock does not panic, so a poisoned lock is used as it is.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a change needs a new image.
enum Rebuild {
    Yes,
    No,
}
