//! Helpers where plug-ins are ordinary code: maps in memory, clocks and functions as a test sets them.
//!
//! `bpf.rs` has the same functions as calls of helpers; `mock` is what tests use.
//!
//! All state belongs to a thread, so tests that run at once do not meet. A map is found by the address of its static
//! and by its definition. Memory of values is never freed, because a [`Value`](crate::maps::Value) may outlive the
//! element, and even `mock::reset`; a removed element's memory is that of the map's next one, as in a host.
//!
//! Invariant: no code of a test runs while the state is borrowed, nor are its values dropped then.

use crate::context::Context;
use crate::definition::{Definition, Insert, Map};
use crate::plain::Plain;
use crate::printed::Value;
use core::any::Any;
use core::cell::RefCell;
use core::ffi::{CStr, c_void};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::boxed::Box;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::string::{String, ToString};
use std::vec::Vec;

const ENOENT: i64 = -2;
const E2BIG: i64 = -7;
const EAGAIN: i64 = -11;
const EEXIST: i64 = -17;

/// Bytes of a ring buffer in front of each record.
const RECORD_HEADER: usize = 8;

/// The mock of a tail call to one slot.
type Tail = Rc<RefCell<dyn FnMut() -> u64>>;

#[derive(Default)]
pub(crate) struct State {
    maps: HashMap<(usize, Definition), Store>,
    /// Reserved records by their address, with the ring and its definition.
    reserved: HashMap<usize, (usize, Definition)>,
    pub(crate) functions: HashMap<&'static str, Box<dyn Any>>,
    pub(crate) tails: HashMap<(usize, u32), Tail>,
    pub(crate) time: u64,
    pub(crate) random: VecDeque<u32>,
    pub(crate) slot: u32,
    pub(crate) printed: Vec<String>,
    /// Programs that run, one inside the other.
    depth: usize,
}

std::thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Calls with the thread's state.
pub(crate) fn with<R>(call: impl FnOnce(&mut State) -> R) -> R {
    STATE.with_borrow_mut(call)
}

/// The contents of a map.
#[derive(Default)]
struct Store {
    entries: HashMap<Vec<u8>, Entry>,
    /// Values of removed elements.
    free: Vec<*mut u8>,
    /// Uses of elements so far.
    uses: u64,
    /// Submitted records, and bytes of the ring that these and reserved ones take.
    records: VecDeque<Vec<u8>>,
    taken: usize,
}

/// An element: its value, or one for each slot, and when it was used.
#[derive(Default)]
struct Entry {
    values: BTreeMap<u32, *mut u8>,
    used: u64,
}

fn address<T>(of: &T) -> usize {
    (&raw const *of).addr()
}

fn layout(size: usize, align: usize) -> Layout {
    // A host's values and records are aligned to eight bytes.
    let layout = Layout::from_size_align(size.max(1), align.max(8));
    layout.expect("the layout of a type, rounded up")
}

fn allocate(layout: Layout) -> *mut u8 {
    // SAFETY: the layout has at least one byte.
    let at = unsafe { alloc_zeroed(layout) };
    if at.is_null() {
        handle_alloc_error(layout);
    }
    at
}

impl State {
    fn store<M: Map>(&mut self, map: &M) -> &mut Store {
        self.maps.entry((address(map), M::DEFINITION)).or_default()
    }
}

impl Store {
    /// The value of an element, which is made if it is not there.
    fn value(&mut self, definition: Definition, key: &[u8], slot: u32) -> *mut u8 {
        self.uses += 1;
        let slot = if definition.is_per_cpu() { slot } else { 0 };
        let entry = self.entries.entry(key.to_vec()).or_default();
        entry.used = self.uses;
        let free = &mut self.free;
        *entry.values.entry(slot).or_insert_with(|| match free.pop() {
            Some(at) => {
                // SAFETY: the value of another element of this map, of this many bytes.
                unsafe { at.write_bytes(0, definition.value_size) };
                at
            }
            None => allocate(layout(definition.value_size, definition.value_align)),
        })
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let removed = self.entries.remove(key);
        self.free.extend(removed.iter().flat_map(|entry| entry.values.values()));
        removed.is_some()
    }

    /// The key of the element that was not used for the longest time.
    fn oldest(&self) -> Option<Vec<u8>> {
        self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone())
    }

    fn take(&mut self, definition: Definition, size: usize) -> bool {
        let needed = room(size);
        let fits = definition.entries.saturating_sub(self.taken) >= needed;
        if fits {
            self.taken += needed;
        }
        fits
    }
}

/// Bytes of a ring buffer that a record takes.
const fn room(size: usize) -> usize {
    RECORD_HEADER + size.next_multiple_of(8)
}

pub(crate) fn lookup<M: Map, K: Plain>(map: &M, key: &K) -> *mut c_void {
    let (definition, key) = (M::DEFINITION, key.as_bytes());
    with(|state| {
        let slot = state.slot;
        let store = state.store(map);
        let exists = if definition.is_array() {
            // The key of an array is its index, four bytes.
            key.try_into().is_ok_and(|index| (u32::from_ne_bytes(index) as usize) < definition.entries)
        } else {
            store.entries.contains_key(key)
        };
        if exists { store.value(definition, key, slot).cast() } else { core::ptr::null_mut() }
    })
}

pub(crate) fn update<M: Map, K: Plain, V: Plain>(map: &M, key: &K, value: &V, insert: Insert) -> i64 {
    let (definition, key) = (M::DEFINITION, key.as_bytes());
    with(|state| {
        let slot = state.slot;
        let store = state.store(map);
        match (insert, store.entries.contains_key(key)) {
            (Insert::New, true) => return EEXIST,
            (Insert::Replace, false) => return ENOENT,
            (Insert::Any | Insert::Replace, true) => {}
            (Insert::Any | Insert::New, false) if store.entries.len() < definition.entries => {}
            (Insert::Any | Insert::New, false) => match store.oldest() {
                Some(oldest) if definition.is_lru() => {
                    store.remove(&oldest);
                }
                Some(_) | None => return E2BIG,
            },
        }
        let at = store.value(definition, key, slot);
        // SAFETY: the map's values have the size of a `V` and its alignment.
        unsafe { at.cast::<V>().copy_from_nonoverlapping(value, 1) };
        0
    })
}

pub(crate) fn delete<M: Map, K: Plain>(map: &M, key: &K) -> i64 {
    if with(|state| state.store(map).remove(key.as_bytes())) { 0 } else { ENOENT }
}

pub(crate) fn reserve<M: Map, T: Plain>(ring: &M) -> *mut T {
    with(|state| {
        if !state.store(ring).take(M::DEFINITION, size_of::<T>()) {
            return core::ptr::null_mut();
        }
        let at = allocate(layout(size_of::<T>(), align_of::<T>()));
        state.reserved.insert(at.addr(), (address(ring), M::DEFINITION));
        at.cast()
    })
}

/// Frees a reserved record, and gives its bytes to the ring if they are submitted.
///
/// # Safety
/// `record` comes from [`reserve`] with this type, and was neither submitted nor discarded.
unsafe fn finish<T: Plain>(record: *mut T, submit: bool) {
    // SAFETY: the memory of a `T`, which is initialised: by zeros first, by a `T` later.
    let bytes = unsafe { &*record }.as_bytes().to_vec();
    with(|state| {
        // Missing after `mock::reset`.
        let ring = state.reserved.remove(&record.addr());
        if let Some(store) = ring.and_then(|ring| state.maps.get_mut(&ring)) {
            if submit {
                store.records.push_back(bytes);
            } else {
                store.taken -= room(size_of::<T>());
            }
        }
    });
    // SAFETY: allocated with this layout, and given up by the caller.
    unsafe { dealloc(record.cast(), layout(size_of::<T>(), align_of::<T>())) };
}

/// # Safety
/// The record is reserved, and neither submitted nor discarded yet.
pub(crate) unsafe fn submit<T: Plain>(record: *mut T) {
    // SAFETY: the caller's.
    unsafe { finish(record, true) };
}

/// # Safety
/// The record is reserved, and neither submitted nor discarded yet.
pub(crate) unsafe fn discard<T: Plain>(record: *mut T) {
    // SAFETY: the caller's.
    unsafe { finish(record, false) };
}

pub(crate) fn output<M: Map, T: Plain>(ring: &M, record: &T) -> i64 {
    let bytes = record.as_bytes().to_vec();
    with(|state| {
        let store = state.store(ring);
        if !store.take(M::DEFINITION, bytes.len()) {
            return EAGAIN;
        }
        store.records.push_back(bytes);
        0
    })
}

/// Takes the records of a ring.
pub(crate) fn records<M: Map>(ring: &M) -> Vec<Vec<u8>> {
    with(|state| {
        let store = state.store(ring);
        let records: Vec<_> = core::mem::take(&mut store.records).into();
        store.taken -= records.iter().map(|record| room(record.len())).sum::<usize>();
        records
    })
}

/// A tail call unwinds with this payload to the program's start: the result of the program behind it.
struct TailCalled(u64);

pub(crate) fn tail_call<M: Map, C: Context>(_context: &mut C, table: &M, index: u32) {
    let Some(tail) = with(|state| state.tails.get(&(address(table), index)).cloned()) else { return };
    assert!(with(|state| state.depth) != 0, "a tail call outside of a program");
    let result = tail.try_borrow_mut().expect("the mock of a tail call that reaches itself")();
    resume_unwind(Box::new(TailCalled(result)));
}

/// Sets the mock of a tail call.
pub(crate) fn set_tail<M: Map>(table: &M, index: u32, tail: Tail) {
    let replaced = with(|state| state.tails.insert((address(table), index), tail));
    drop(replaced);
}

/// Runs the body of a program.
pub(crate) fn program(body: impl FnOnce() -> u64) -> u64 {
    with(|state| state.depth += 1);
    let result = catch_unwind(AssertUnwindSafe(body));
    with(|state| state.depth = state.depth.saturating_sub(1));
    result.unwrap_or_else(|payload| match payload.downcast::<TailCalled>() {
        Ok(called) => called.0,
        Err(panic) => resume_unwind(panic),
    })
}

pub(crate) fn now() -> u64 {
    with(|state| state.time)
}

pub(crate) fn random() -> u32 {
    with(|state| state.random.pop_front().unwrap_or(0))
}

pub(crate) fn slot() -> u32 {
    with(|state| state.slot)
}

pub(crate) fn print(format: &'static CStr, values: [Value; 3]) {
    let line = formatted(&format.to_string_lossy(), values);
    with(|state| state.printed.push(line));
}

/// The text that a format of the kernel makes of these values: `%d`, `%i`, `%u`, `%x` and `%X`, each also with `l` and
/// `ll`, `%c`, `%s` and `%%`. Others stay as they are, and so do widths.
fn formatted(format: &str, values: [Value; 3]) -> String {
    let (mut line, mut rest, mut values) = (String::new(), format, values.into_iter());
    while let Some((before, after)) = rest.split_once('%') {
        line.push_str(before);
        let kind = after.trim_start_matches('l');
        let long = kind.len() != after.len();
        let Some(letter) = kind.chars().next().filter(|letter| "diuxXcs%".contains(*letter)) else {
            line.push('%');
            rest = after;
            continue;
        };
        rest = &kind[1..];
        let value = if letter == '%' { None } else { values.next() };
        let value = match value {
            Some(Value::Text(text)) if letter == 's' => {
                line += &text.to_string_lossy();
                continue;
            }
            Some(Value::Number(number)) => number,
            Some(Value::Text(_)) | None => 0,
        };
        let half = if long { value } else { value & u64::from(u32::MAX) };
        match letter {
            '%' => line.push('%'),
            'd' | 'i' if long => line += &value.cast_signed().to_string(),
            'd' | 'i' => line += &(value as i32).to_string(),
            'u' => line += &half.to_string(),
            'x' => line += &std::format!("{half:x}"),
            'X' => line += &std::format!("{half:X}"),
            'c' => line.push(char::from(value as u8)),
            // The verifier, which is not here, refuses a number for a text.
            _text => line += "(a number)",
        }
    }
    line + rest
}

/// Forgets all.
pub(crate) fn reset() {
    let forgotten = with(core::mem::take);
    drop(forgotten);
}
