//! Objects that programs own: their memory, and what becomes of it.
//!
//! Problem: programs make objects and hand them from run to run, in lists and trees that a lock in a map's value guards
//! and in pointers that lie in values or in other objects. Whoever gives up the last hold on an object, a program, a
//! map that is changed or dropped, or a run that is stopped, must free it and what it holds, while another run may
//! still look at it. Approach: in front of each object is a header that counts its owners and says of what type it
//! is, so that its address is enough for everything. Objects that nobody owns wait for a grace period ([`Objects`]) and
//! are freed by whoever makes or drops others of the pool; the lists and trees are [`graph`].
//!
//! Invariants: the memory of an object stays as long as any guard that was there when it lost its last owner; the
//! special fields ([`OwnedType`]) of objects and values are written here only, so an address in one is that of an
//! object, or of the node of one, which that field owns. What an object holds is given up one after the other, never by
//! a call inside another: chains may be as long as there is memory.
//!
//! Of a type with an instance for each CPU the object is an `Instances` and the instances behind it, one for each
//! execution slot of the domain, which share no cache line. It has no fields, and programs only pass it on.

pub mod graph;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::UnsafeCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use bpf_quiesce::{Domain, GracePeriod, Memory, MemoryFull, Reservation};
use bpf_uapi::{MAX_INSTANCE, MAX_OBJECT, OwnedKind, OwnedType};

/// Objects without an owner that a pool has before it looks whether a grace period is over.
const BATCH: u32 = 64;

/// What is in front of an object.
#[repr(C, align(16))]
struct Header {
    /// How many owners it has.
    owners: AtomicU64,
    /// In a list of objects without owners: the next.
    next: *mut Header,
    ty: Arc<OwnedType>,
    /// As long as it has owners: a pool that its own dead kept would never go.
    pool: ManuallyDrop<Arc<Objects>>,
}

/// What an object of a type with an instance for each CPU begins with; it does not change.
#[repr(C)]
struct Instances {
    /// How many there are.
    count: u32,
    /// From one to the next, in bytes.
    stride: u32,
}

/// Bytes of a cache line, which no two instances share. The first begins one behind the header's start.
const LINE: u32 = 64;
const _: () = assert!(size_of::<Header>() + size_of::<Instances>() <= LINE as usize);

fn stride_of(ty: &OwnedType) -> u32 {
    ty.size.clamp(1, MAX_INSTANCE).next_multiple_of(LINE)
}

/// A pool of objects: what they are counted in, and those that wait for a grace period.
pub struct Objects {
    domain: Arc<Domain>,
    memory: Reservation,
    /// Objects that have owners.
    alive: AtomicU64,
    /// Objects without owners, the newest first.
    dead: AtomicPtr<Header>,
    /// How many of them came since the last look.
    waiting: AtomicU32,
    /// Guards `batch`.
    busy: AtomicBool,
    /// Those that wait for this grace period.
    batch: UnsafeCell<Option<(GracePeriod, Dead)>>,
}

// SAFETY: `batch` is only accessed by the thread that set `busy`; headers without owners are the pool's alone, and may
// be freed by any thread.
unsafe impl Send for Objects {}
// SAFETY: `batch` is only accessed by the thread that set `busy`, whoever shares the pool; the rest is atomic.
unsafe impl Sync for Objects {}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("alive", &self.alive()).finish_non_exhaustive()
    }
}

/// A list of objects without owners, linked by their headers: this one's alone. Empty where it is dropped, or the
/// objects are lost.
struct Dead(*mut Header);

// SAFETY: nobody else has what is on the list.
unsafe impl Send for Dead {}

impl Dead {
    const NONE: Dead = Dead(null_mut());

    fn push(&mut self, header: NonNull<Header>) {
        // SAFETY: an object without owners is whose list it is on.
        unsafe { (*header.as_ptr()).next = self.0 };
        self.0 = header.as_ptr();
    }

    fn pop(&mut self) -> Option<NonNull<Header>> {
        let first = NonNull::new(self.0)?;
        // SAFETY: on the list, so it is there and this one's.
        self.0 = unsafe { (*first.as_ptr()).next };
        Some(first)
    }

    /// Gives up what the objects hold, and whatever loses its last owner by that; they wait then.
    fn give_up(mut self) {
        while let Some(header) = self.pop() {
            // SAFETY: an object without owners, which is off the list and this call's.
            let ty = Arc::clone(unsafe { &(*header.as_ptr()).ty });
            let object = object_of(header);
            for field in &ty.fields {
                // SAFETY: a field of this type's object, whose lists and trees nobody else has any more: only an owner
                // takes its lock, and an owner has it for as long.
                unsafe { self.take(object + u64::from(field.offset), field.kind) };
            }
            retire(header);
        }
    }

    /// Takes what the field of this kind at `field` owns.
    ///
    /// # Safety
    /// It must be one of a map's value or of an object that is there; of a list or a tree, its lock must be the
    /// caller's, or nobody else use it.
    unsafe fn take(&mut self, field: u64, kind: OwnedKind) {
        match kind {
            OwnedKind::Kptr { .. } => {
                // SAFETY: a kptr in a value or an object (contract).
                let held = unsafe { swap(field, 0) };
                // SAFETY: what the field has owned.
                unsafe { disown(held, self) };
            }
            OwnedKind::ListHead { .. } | OwnedKind::TreeRoot { .. } => {
                let give_up = |object| {
                    // SAFETY: the root has owned what is taken out of it.
                    unsafe { disown(object, self) }
                };
                // SAFETY: a root whose lock the caller has, or nobody else (contract).
                unsafe { graph::drain(field, kind, give_up) };
            }
            OwnedKind::ListNode | OwnedKind::TreeNode | OwnedKind::Refcount | OwnedKind::Lock { .. } => {}
        }
    }

    /// Frees the memory of the objects, of a domain with so many slots.
    fn free(mut self, memory: &Reservation, slots: u32) {
        while let Some(header) = self.pop() {
            // SAFETY: an object without owners, for which nobody waits any more: its header is there until below.
            let field = unsafe { &raw const (*header.as_ptr()).ty };
            // SAFETY: initialised when the object was made; it is read out once.
            let ty = unsafe { std::ptr::read(field) };
            let layout = layout_of(&ty, slots);
            // SAFETY: allocated with this layout, as its type says, and not used from here on.
            unsafe { dealloc(header.as_ptr().cast(), layout) };
            memory.shrink(layout.size() as u64);
        }
    }
}

/// Of an object, in a domain with so many slots.
fn layout_of(ty: &OwnedType, slots: u32) -> Layout {
    let (bytes, align) = match ty.per_cpu {
        true => {
            let instances = slots.min(bpf_quiesce::MAX_SLOTS) as usize * stride_of(ty) as usize;
            (LINE as usize + instances, LINE as usize)
        }
        false => (size_of::<Header>() + ty.size.min(MAX_OBJECT) as usize, align_of::<Header>()),
    };
    // A multiple of 16, of at most 5000 bytes or 512 for each slot.
    Layout::from_size_align(bytes.next_multiple_of(16), align).unwrap_or(Layout::new::<Header>())
}

fn object_of(header: NonNull<Header>) -> u64 {
    header.as_ptr().expose_provenance() as u64 + size_of::<Header>() as u64
}

/// The header of an object.
fn header_of(object: u64) -> *mut Header {
    std::ptr::with_exposed_provenance_mut(crate::num::index(object) - size_of::<Header>())
}

/// An object has lost its last owner and holds nothing any more: it waits in its pool.
fn retire(header: NonNull<Header>) {
    // SAFETY: the object has no owner and is on no list, so nobody else uses the field.
    let field = unsafe { &mut (*header.as_ptr()).pool };
    // SAFETY: initialised when the object was made; it is read out once.
    let pool = unsafe { ManuallyDrop::take(field) };
    pool.alive.fetch_sub(1, Ordering::Relaxed);
    let mut top = pool.dead.load(Ordering::Relaxed);
    loop {
        // SAFETY: as before.
        unsafe { (*header.as_ptr()).next = top };
        // Release pairs with the acquire of whoever takes the list: it sees the links.
        match pool.dead.compare_exchange_weak(top, header.as_ptr(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => top = now,
        }
    }
    // Relaxed: a hint.
    if pool.waiting.fetch_add(1, Ordering::Relaxed) >= BATCH {
        pool.turn_over();
    }
}

impl Objects {
    /// A pool of objects that are counted in `memory`.
    ///
    /// # Errors
    /// [`MemoryFull`] if that has been taken beyond its limit.
    pub fn new(domain: &Arc<Domain>, memory: &Arc<Memory>) -> Result<Arc<Objects>, MemoryFull> {
        Ok(Arc::new(Objects {
            domain: Arc::clone(domain),
            memory: memory.reserve(0)?,
            alive: AtomicU64::new(0),
            dead: AtomicPtr::new(null_mut()),
            waiting: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            batch: UnsafeCell::new(None),
        }))
    }

    /// How many objects there are that somebody owns: a run, a value of a map, another object.
    pub fn alive(&self) -> u64 {
        self.alive.load(Ordering::Relaxed)
    }

    /// Makes an object of zeros, which the caller owns; 0 if there is no memory, or none so large, and for a type whose
    /// layout is not sound ([`OwnedType::has_sound_layout`]) or whose lists and trees have no lock.
    pub fn make(self: &Arc<Self>, ty: &Arc<OwnedType>) -> u64 {
        let guarded = ty.lock().is_some() || !ty.fields.iter().any(|field| field.kind.is_root());
        let largest = if ty.per_cpu { MAX_INSTANCE } else { MAX_OBJECT };
        // Fields are atomic words of their own. Whoever calls this may have made the type by hand.
        if ty.size > largest || !guarded || !ty.has_sound_layout() {
            return 0;
        }
        let slots = self.domain.max_slots();
        let layout = layout_of(ty, slots);
        let bytes = layout.size() as u64;
        if self.waiting.load(Ordering::Relaxed) >= BATCH {
            self.turn_over();
        }
        if self.memory.grow(bytes).is_err() {
            self.turn_over();
            if self.memory.grow(bytes).is_err() {
                return 0;
            }
        }
        // SAFETY: the layout has a size.
        let Some(header) = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<Header>()) else {
            self.memory.shrink(bytes);
            return 0;
        };
        let first = Header {
            owners: AtomicU64::new(1),
            next: null_mut(),
            ty: Arc::clone(ty),
            pool: ManuallyDrop::new(Arc::clone(self)),
        };
        // SAFETY: allocated for a header and what follows it, and aligned.
        unsafe { header.as_ptr().write(first) };
        self.alive.fetch_add(1, Ordering::Relaxed);
        let object = object_of(header);
        if ty.per_cpu {
            let first = Instances { count: slots, stride: stride_of(ty) };
            let at = std::ptr::with_exposed_provenance_mut::<Instances>(crate::num::index(object));
            // SAFETY: behind the header and in front of the first instance, aligned to 16.
            unsafe { at.write(first) };
        }
        for field in &ty.fields {
            // SAFETY: a field of a new object, inside and aligned as looked at above.
            unsafe { graph::begin(object, *field) };
        }
        object
    }

    /// Frees what has waited for a grace period that is over, and begins one for the rest.
    fn turn_over(&self) {
        // Acquire pairs with the release below.
        if self.busy.swap(true, Ordering::Acquire) {
            return;
        }
        // SAFETY: `busy` was clear, so no other thread, and no caller further up this stack, is in here.
        let batch = unsafe { &mut *self.batch.get() };
        if let Some((_, dead)) = batch.take_if(|(period, _)| period.is_complete()) {
            dead.free(&self.memory, self.domain.max_slots());
        }
        if batch.is_none() {
            self.waiting.store(0, Ordering::Relaxed);
            // Acquire pairs with the release of those who have put something there.
            let dead = Dead(self.dead.swap(null_mut(), Ordering::Acquire));
            if !dead.0.is_null() {
                *batch = Some((self.domain.start_grace_period(), dead));
            }
        }
        // Release pairs with the acquire above: the next one in sees the batch.
        self.busy.store(false, Ordering::Release);
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let batch = self.batch.get_mut().take().map_or(Dead::NONE, |(_, dead)| dead);
        for dead in [batch, Dead(*self.dead.get_mut())] {
            if dead.0.is_null() {
                continue;
            }
            let memory = self.memory.clone();
            let slots = self.domain.max_slots();
            // Runs may still look at them. Queued only: this may be in a run, or under a lock.
            self.domain.enqueue(move || {
                // All of it, not its field.
                let dead = { dead };
                dead.free(&memory, slots);
            });
        }
    }
}

/// Another owner of an object, which has one.
///
/// # Safety
/// `object` must have been made by [`Objects::make`] and have an owner, or have lost its last one within the caller's
/// guard. `false` in that case: nobody can own it any more.
pub unsafe fn acquire(object: u64) -> bool {
    // SAFETY: the memory of the object is there, as the guard, or its owner, keeps it.
    let owners = unsafe { &(*header_of(object)).owners };
    let more = |count: u64| (count != 0).then_some(count + 1);
    // Relaxed: whoever has got the address has seen what it leads to; only the count changes.
    owners.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// Gives up one owner's hold on an object; nothing if it is 0.
///
/// # Safety
/// `object` must be owned by the caller, who does not use it as its own afterwards.
pub unsafe fn release(object: u64) {
    let mut dead = Dead::NONE;
    // SAFETY: the caller's contract.
    unsafe { disown(object, &mut dead) };
    dead.give_up();
}

/// The same, but what has no owner any more is put on the list.
///
/// # Safety
/// As for [`release`].
unsafe fn disown(object: u64, dead: &mut Dead) {
    let Some(header) = (object != 0).then(|| NonNull::new(header_of(object))).flatten() else { return };
    // SAFETY: an object with an owner is there.
    let owners = unsafe { &(*header.as_ptr()).owners };
    // Release, and acquire by the last: what all owners have done comes before the end.
    if owners.fetch_sub(1, Ordering::Release) == 1 {
        fence(Ordering::Acquire);
        dead.push(header);
    }
}

/// Bytes of an object.
///
/// # Safety
/// `object` must have been made by [`Objects::make`], and be there by an owner or the caller's guard.
pub unsafe fn size(object: u64) -> u32 {
    // SAFETY: the contract: the header is there, and its type does not change.
    unsafe { &(*header_of(object)).ty }.size
}

/// Whether an object has an instance for each CPU. Programs do not access it itself.
///
/// # Safety
/// As for [`size`].
pub unsafe fn is_per_cpu(object: u64) -> bool {
    // SAFETY: the contract: the header is there, and its type does not change.
    unsafe { &(*header_of(object)).ty }.per_cpu
}

/// The instance of this execution slot, as many bytes as [`size`] says; 0 if there is none.
///
/// # Safety
/// As for [`size`], of an object with an instance for each CPU.
pub unsafe fn instance(object: u64, slot: u32) -> u64 {
    let at = std::ptr::with_exposed_provenance::<Instances>(crate::num::index(object));
    // SAFETY: what such an object begins with (contract), which does not change.
    let Instances { count, stride } = unsafe { at.read() };
    let first = object - size_of::<Header>() as u64 + u64::from(LINE);
    if slot < count { first + u64::from(slot) * u64::from(stride) } else { 0 }
}

/// The lock in an object, and whether it is a resilient one.
///
/// # Safety
/// As for [`size`].
pub unsafe fn lock(object: u64) -> Option<(u32, bool)> {
    // SAFETY: the contract: the header is there, and its type does not change.
    unsafe { &(*header_of(object)).ty }.lock()
}

/// `bpf_kptr_xchg`: puts an object, or 0, into the field and takes out what was there. What was the caller's is the
/// field's, and the other way round.
///
/// # Safety
/// `field` must be the address of a kptr in a value of a map, or in an object, that is there; `object` must be owned by
/// the caller, and of the field's type.
pub unsafe fn swap(field: u64, object: u64) -> u64 {
    // SAFETY: an aligned kptr (contract), which is accessed by atomics only.
    let word = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(crate::num::index(field))) };
    // Release: whoever takes the object out sees what was written to it; acquire: and so does this one.
    word.swap(object, Ordering::AcqRel)
}

/// The object that the field leads to at this moment, or 0: the field owns it, or has until now.
///
/// # Safety
/// `field` must be the address of a kptr in a value of a map that is there.
pub unsafe fn stashed(field: u64) -> u64 {
    // SAFETY: an aligned kptr (contract), which is accessed by atomics only.
    let word = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(crate::num::index(field))) };
    // Acquire pairs with the release in `swap`: what was written to the object before is seen.
    word.load(Ordering::Acquire)
}

/// What the fields of a value own, on its way out: see [`crate::value::Shape`].
pub(crate) struct Leaving(Dead);

impl Leaving {
    pub(crate) fn nothing() -> Leaving {
        Leaving(Dead::NONE)
    }

    /// Takes what the field of this kind at `field` owns.
    ///
    /// # Safety
    /// It must be one of a map's value that is there; of a list or a tree, its lock must be the caller's, or nobody
    /// else have the value.
    pub(crate) unsafe fn take(&mut self, field: u64, kind: OwnedKind) {
        // SAFETY: the caller's contract.
        unsafe { self.0.take(field, kind) }
    }

    /// Gives it up.
    pub(crate) fn give_up(self) {
        self.0.give_up();
    }
}

#[cfg(test)]
mod tests;
