//! Objects that programs own: their memory and their release.
//!
//! Problem: programs allocate objects and pass them from run to run, in lists and trees guarded by a lock in a map's
//! value, and in pointers in values or other objects. When the last owner of an object gives it up (a program, a
//! changed or dropped map, a stopped run), the object and all it owns must be freed, while another run may still read
//! it. Approach: in front of each object is a header with its type and a count of its owners, so that an object's
//! address suffices for every operation. Objects without owners wait for a grace period ([`Objects`]); later
//! allocations and releases of the pool free them. Lists and trees are in [`graph`].
//!
//! Invariants: the memory of an object stays until every guard is left that existed when it lost its last owner. Only
//! this module writes the special fields ([`OwnedType`]) of objects and values, so a non-zero address in one is that
//! of an object, or of a node in one, which the field owns. The objects that an object owns are released in a loop,
//! never recursively: chains may be as long as memory allows.
//!
//! An object of a per-CPU type is an `Instances` followed by one instance for each execution slot of the domain, no
//! two of which share a cache line. It has no special fields, and programs only pass it on.

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

/// Number of objects without owners that a pool collects before it checks whether a grace period is over.
const BATCH: u32 = 64;

/// The header in front of an object.
#[repr(C, align(16))]
struct Header {
    /// Number of owners.
    owners: AtomicU64,
    /// The next object in a list of objects without owners.
    next: *mut Header,
    ty: Arc<OwnedType>,
    /// Kept only while the object has owners: otherwise objects waiting in the pool would keep the pool alive.
    pool: ManuallyDrop<Arc<Objects>>,
}

/// The start of an object of a per-CPU type; it never changes.
#[repr(C)]
struct Instances {
    /// Number of instances.
    count: u32,
    /// Bytes from one instance to the next.
    stride: u32,
}

/// Bytes of a cache line. The first instance begins one line after the start of the header.
const LINE: u32 = 64;
const _: () = assert!(size_of::<Header>() + size_of::<Instances>() <= LINE as usize);

fn stride_of(ty: &OwnedType) -> u32 {
    ty.size.clamp(1, MAX_INSTANCE).next_multiple_of(LINE)
}

/// A pool of objects: the memory they are counted in, and the objects that wait for a grace period.
pub struct Objects {
    domain: Arc<Domain>,
    memory: Reservation,
    /// Number of objects with owners.
    alive: AtomicU64,
    /// Objects without owners, the newest first.
    dead: AtomicPtr<Header>,
    /// Number of objects added to `dead` since the last look.
    waiting: AtomicU32,
    /// Guards `batch`.
    busy: AtomicBool,
    /// The objects that wait for this grace period.
    batch: UnsafeCell<Option<(GracePeriod, Dead)>>,
}

// SAFETY: `batch` is only accessed by the thread that set `busy`; headers of objects without owners belong to the
// pool alone and may be freed by any thread.
unsafe impl Send for Objects {}
// SAFETY: `batch` is only accessed by the thread that set `busy`, however many threads share the pool; the rest is
// atomic.
unsafe impl Sync for Objects {}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("alive", &self.alive()).finish_non_exhaustive()
    }
}

/// A list of objects without owners, linked by their headers, which this list alone has. Must be empty when it is
/// dropped, or the objects leak.
struct Dead(*mut Header);

// SAFETY: no other code has the objects on the list.
unsafe impl Send for Dead {}

impl Dead {
    const NONE: Dead = Dead(null_mut());

    fn push(&mut self, header: NonNull<Header>) {
        // SAFETY: the list that an object without owners is on owns its header.
        unsafe { (*header.as_ptr()).next = self.0 };
        self.0 = header.as_ptr();
    }

    fn pop(&mut self) -> Option<NonNull<Header>> {
        let first = NonNull::new(self.0)?;
        // SAFETY: an object on the list is live and belongs to the list.
        self.0 = unsafe { (*first.as_ptr()).next };
        Some(first)
    }

    /// Releases everything that the objects own, and everything that loses its last owner by that. All of them then
    /// wait.
    fn give_up(mut self) {
        while let Some(header) = self.pop() {
            // SAFETY: an object without owners, taken off the list, so it belongs to this call.
            let ty = Arc::clone(unsafe { &(*header.as_ptr()).ty });
            let object = object_of(header);
            for field in &ty.fields {
                // SAFETY: a field of an object of this type. No other thread has its lists and trees: only an owner
                // takes their lock, and keeps its ownership while it holds the lock.
                unsafe { self.take(object + u64::from(field.offset), field.kind) };
            }
            retire(header);
        }
    }

    /// Takes out and releases the objects that the field of this kind at `field` owns.
    ///
    /// # Safety
    /// `field` must be the address of a field of a live map value or object. For a list or a tree, the caller must hold
    /// its lock, or no other thread may use it.
    unsafe fn take(&mut self, field: u64, kind: OwnedKind) {
        match kind {
            OwnedKind::Kptr { .. } => {
                // SAFETY: a kptr in a value or an object (contract).
                let held = unsafe { swap(field, 0) };
                // SAFETY: the field owned this object.
                unsafe { disown(held, self) };
            }
            OwnedKind::ListHead { .. } | OwnedKind::TreeRoot { .. } => {
                let give_up = |object| {
                    // SAFETY: the root owned the object taken out of it.
                    unsafe { disown(object, self) }
                };
                // SAFETY: a root whose lock the caller has, or that no other thread has (contract).
                unsafe { graph::drain(field, kind, give_up) };
            }
            OwnedKind::ListNode | OwnedKind::TreeNode | OwnedKind::Refcount | OwnedKind::Lock { .. } => {}
        }
    }

    /// Frees the memory of the objects, in a domain with `slots` execution slots.
    fn free(mut self, memory: &Reservation, slots: u32) {
        while let Some(header) = self.pop() {
            // SAFETY: an object without owners whose grace period is over: its header is live until it is freed
            // below.
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

/// The layout of an object of this type with its header, in a domain with `slots` execution slots.
fn layout_of(ty: &OwnedType, slots: u32) -> Layout {
    let (bytes, align) = match ty.per_cpu {
        true => {
            let instances = slots.min(bpf_quiesce::MAX_SLOTS) as usize * stride_of(ty) as usize;
            (LINE as usize + instances, LINE as usize)
        }
        false => (size_of::<Header>() + ty.size.min(MAX_OBJECT) as usize, align_of::<Header>()),
    };
    // A multiple of 16, of at most 5000 bytes, or 512 bytes for each slot.
    Layout::from_size_align(bytes.next_multiple_of(16), align).unwrap_or(Layout::new::<Header>())
}

fn object_of(header: NonNull<Header>) -> u64 {
    header.as_ptr().expose_provenance() as u64 + size_of::<Header>() as u64
}

/// The header of an object.
fn header_of(object: u64) -> *mut Header {
    std::ptr::with_exposed_provenance_mut(crate::num::index(object) - size_of::<Header>())
}

/// Adds an object that has lost its last owner and owns nothing to its pool's waiting list.
fn retire(header: NonNull<Header>) {
    // SAFETY: the object has no owner and is on no list, so nobody else uses the field.
    let field = unsafe { &mut (*header.as_ptr()).pool };
    // SAFETY: initialised when the object was made; it is read out once.
    let pool = unsafe { ManuallyDrop::take(field) };
    pool.alive.fetch_sub(1, Ordering::Relaxed);
    let mut top = pool.dead.load(Ordering::Relaxed);
    loop {
        // SAFETY: the object has no owner and is on no list, so no other thread uses the field.
        unsafe { (*header.as_ptr()).next = top };
        // Release pairs with the acquire of the thread that takes the list: it sees the links.
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
    /// Creates a pool whose objects are counted in `memory`.
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

    /// Number of objects that a run, a value of a map or another object owns.
    pub fn alive(&self) -> u64 {
        self.alive.load(Ordering::Relaxed)
    }

    /// Allocates an object of zeros, which the caller owns. Returns 0 if there is no memory, if the type is too
    /// large, if its layout is unsound ([`OwnedType::has_sound_layout`]), or if its lists and trees have no lock.
    pub fn make(self: &Arc<Self>, ty: &Arc<OwnedType>) -> u64 {
        let guarded = ty.lock().is_some() || !ty.fields.iter().any(|field| field.kind.is_root());
        let largest = if ty.per_cpu { MAX_INSTANCE } else { MAX_OBJECT };
        // Fields are accessed as whole atomic words. The caller may have constructed the type by hand, so its layout
        // is checked.
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
        // SAFETY: allocated for a header and the object after it, and aligned.
        unsafe { header.as_ptr().write(first) };
        self.alive.fetch_add(1, Ordering::Relaxed);
        let object = object_of(header);
        if ty.per_cpu {
            let first = Instances { count: slots, stride: stride_of(ty) };
            let at = std::ptr::with_exposed_provenance_mut::<Instances>(crate::num::index(object));
            // SAFETY: after the header and in front of the first instance, aligned to 16.
            unsafe { at.write(first) };
        }
        for field in &ty.fields {
            // SAFETY: a field of a new object, inside it and aligned as checked above.
            unsafe { graph::begin(object, *field) };
        }
        object
    }

    /// Frees the objects whose grace period is over, and starts a grace period for the rest.
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
            // Acquire pairs with the release of the threads that added objects.
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
            // Runs may still read the objects. Only queued, because this may be called in a run or under a lock.
            self.domain.enqueue(move || {
                // Captures the whole list, not only its field.
                let dead = { dead };
                dead.free(&memory, slots);
            });
        }
    }
}

/// Adds an owner to an object that has one.
///
/// # Safety
/// `object` must have been made by [`Objects::make`] and have an owner, or have lost its last one within the caller's
/// guard. In the latter case this returns `false`: the object cannot be owned again.
pub unsafe fn acquire(object: u64) -> bool {
    // SAFETY: the object's memory is live, because its owner or the guard keeps it.
    let owners = unsafe { &(*header_of(object)).owners };
    let more = |count: u64| (count != 0).then_some(count + 1);
    // Relaxed: the thread that passed the address has published the object; only the count changes.
    owners.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// Gives up one owner's share of an object; does nothing if `object` is 0.
///
/// # Safety
/// `object` must be owned by the caller, who must not use it as its own afterwards.
pub unsafe fn release(object: u64) {
    let mut dead = Dead::NONE;
    // SAFETY: the caller's contract.
    unsafe { disown(object, &mut dead) };
    dead.give_up();
}

/// Gives up one owner's share; an object without owners left is put on the list `dead`.
///
/// # Safety
/// As for [`release`].
unsafe fn disown(object: u64, dead: &mut Dead) {
    let Some(header) = (object != 0).then(|| NonNull::new(header_of(object))).flatten() else { return };
    // SAFETY: an object with an owner is live.
    let owners = unsafe { &(*header.as_ptr()).owners };
    // Release, and acquire by the last owner: all accesses by owners come before the release of the object.
    if owners.fetch_sub(1, Ordering::Release) == 1 {
        fence(Ordering::Acquire);
        dead.push(header);
    }
}

/// Bytes of an object.
///
/// # Safety
/// `object` must have been made by [`Objects::make`], and be kept live by an owner or the caller's guard.
pub unsafe fn size(object: u64) -> u32 {
    // SAFETY: the contract: the header is live, and its type does not change.
    unsafe { &(*header_of(object)).ty }.size
}

/// Whether an object has an instance for each CPU. Programs do not access such an object itself.
///
/// # Safety
/// As for [`size`].
pub unsafe fn is_per_cpu(object: u64) -> bool {
    // SAFETY: the contract: the header is live, and its type does not change.
    unsafe { &(*header_of(object)).ty }.per_cpu
}

/// The instance of this execution slot, with as many bytes as [`size`] returns; 0 if there is none.
///
/// # Safety
/// As for [`size`], of an object with an instance for each CPU.
pub unsafe fn instance(object: u64, slot: u32) -> u64 {
    let at = std::ptr::with_exposed_provenance::<Instances>(crate::num::index(object));
    // SAFETY: such an object begins with an `Instances` (contract), which does not change.
    let Instances { count, stride } = unsafe { at.read() };
    let first = object - size_of::<Header>() as u64 + u64::from(LINE);
    if slot < count { first + u64::from(slot) * u64::from(stride) } else { 0 }
}

/// The lock in an object, and whether it is a resilient one.
///
/// # Safety
/// As for [`size`].
pub unsafe fn lock(object: u64) -> Option<(u32, bool)> {
    // SAFETY: the contract: the header is live, and its type does not change.
    unsafe { &(*header_of(object)).ty }.lock()
}

/// `bpf_kptr_xchg`: stores an object, or 0, in the field and returns the previous one. The field takes over the
/// caller's ownership, and the caller that of the field.
///
/// # Safety
/// `field` must be the address of a kptr in a live map value or object; `object` must be owned by the caller, and of
/// the field's type.
pub unsafe fn swap(field: u64, object: u64) -> u64 {
    // SAFETY: an aligned kptr (contract), which is accessed by atomics only.
    let word = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(crate::num::index(field))) };
    // Release: the thread that takes the object out sees the writes to it. Acquire: so does this thread for the old
    // object.
    word.swap(object, Ordering::AcqRel)
}

/// The object in the field at this moment, or 0. The field owns it, or owned it until now.
///
/// # Safety
/// `field` must be the address of a kptr in a live map value.
pub unsafe fn stashed(field: u64) -> u64 {
    // SAFETY: an aligned kptr (contract), which is accessed by atomics only.
    let word = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(crate::num::index(field))) };
    // Acquire pairs with the release in `swap`: earlier writes to the object are seen.
    word.load(Ordering::Acquire)
}

/// The objects that a value owned and that are being released: see [`crate::value::Shape`].
pub(crate) struct Leaving(Dead);

impl Leaving {
    pub(crate) fn nothing() -> Leaving {
        Leaving(Dead::NONE)
    }

    /// Takes out the objects that the field of this kind at `field` owns.
    ///
    /// # Safety
    /// `field` must be the address of a field of a live map value. For a list or a tree, the caller must hold its lock,
    /// or no other thread may have the value.
    pub(crate) unsafe fn take(&mut self, field: u64, kind: OwnedKind) {
        // SAFETY: the caller's contract.
        unsafe { self.0.take(field, kind) }
    }

    /// Releases the objects.
    pub(crate) fn give_up(self) {
        self.0.give_up();
    }
}

#[cfg(test)]
mod tests;
