//! Plug-ins as ordinary code, for `cargo test`: what the host is for a test.
//!
//! Where the target is not BPF, a program is a function, a map a map in memory, and the helpers are mocks. A test calls
//! the program with a context that it has made, and looks at maps through their own methods.
//!
//! ```
//! use bpf_guest::maps::{HashMap, Insert};
//! use bpf_guest::{BpfContext, ContextBytes, host_functions, map, mock, program};
//!
//! #[derive(BpfContext)]
//! #[repr(C)]
//! struct Request<'r> {
//!     client: u32,
//!     path: ContextBytes<'r>,
//! }
//!
//! host_functions! {
//!     fn price(path: &[u8]) -> u32;
//! }
//!
//! #[map]
//! static SPENT: HashMap<u32, u64, 64> = HashMap::new();
//!
//! #[program("request/charge")]
//! fn charge(request: &mut Request<'_>) -> u32 {
//!     let price = if request.path.is_empty() { 0 } else { price(b"a path") };
//!     SPENT.get_or_insert(&request.client, &0).map(|spent| spent.fetch_add(price.into()));
//!     price
//! }
//!
//! mock::reset();
//! price::mock(|path| u32::try_from(path.len()).unwrap());
//! SPENT.insert(&7, &100, Insert::Any).unwrap();
//! let mut request = Request { client: 7, path: b"/a".into() };
//! assert_eq!(charge(&mut request), 6);
//! assert_eq!(SPENT.get(&7).unwrap().get(), 106);
//! ```
//!
//! All of this belongs to the thread, and tests have a thread each (but for `--test-threads=1`: begin with [`reset`]).
//! Differences from a host: a program is not verified, no budget ends it, a panic is a panic of the test, an LRU map
//! evicts exactly the element that was not used for the longest time, and `usize` is the machine's. `bpf test` has none
//! of them.

use crate::maps::{ProgArray, RingBuf};
use crate::native;
use core::any::Any;
use core::cell::RefCell;
#[doc(hidden)]
pub use std::boxed::Box;
use std::rc::Rc;
use std::string::String;
use std::vec::Vec;

/// Empties all maps, and forgets mocks, times and random numbers.
pub fn reset() {
    native::reset();
}

/// Sets what [`now`](crate::helpers::now) returns: 0 at first.
pub fn set_time(nanoseconds: u64) {
    native::with(|state| state.time = nanoseconds);
}

/// Sets the next results of [`random`](crate::helpers::random): 0 without any left.
pub fn set_random(numbers: impl IntoIterator<Item = u32>) {
    let numbers = numbers.into_iter().collect();
    native::with(|state| state.random = numbers);
}

/// Sets the execution slot, by which per-CPU maps have values: 0 at first.
pub fn set_slot(slot: u32) {
    native::with(|state| state.slot = slot);
}

/// Takes the lines that [`printk!`](crate::printk) has printed.
pub fn printed() -> Vec<String> {
    native::with(|state| core::mem::take(&mut state.printed))
}

/// Takes the records that were submitted to a ring buffer, as its reader would.
pub fn records<const N: usize>(ring: &RingBuf<N>) -> Vec<Vec<u8>> {
    native::records(ring)
}

/// Sets a slot of a table of programs: a tail call to it ends the program, with the closure's result.
///
/// ```
/// # use bpf_guest::{maps::ProgArray, map, mock, program, xdp::Xdp};
/// #[map]
/// static NEXT: ProgArray<2> = ProgArray::new();
///
/// #[program("xdp")]
/// fn first(xdp: &mut Xdp) -> u32 {
///     NEXT.tail_call(xdp, 1);
///     2
/// }
///
/// assert_eq!(first(&mut Xdp::new([0; 14])), 2, "the slot is empty");
/// mock::set_program(&NEXT, 1, || 3);
/// assert_eq!(first(&mut Xdp::new([0; 14])), 3);
/// ```
pub fn set_program<const N: usize>(table: &ProgArray<N>, index: u32, program: impl FnMut() -> u64 + 'static) {
    native::set_tail(table, index, Rc::new(RefCell::new(program)));
}

/// Sets the mock of a host function: `host_functions!` uses it.
#[doc(hidden)]
pub fn register<F: 'static>(name: &'static str, function: F) {
    let function: Box<dyn Any> = Box::new(Rc::new(RefCell::new(function)));
    let replaced = native::with(|state| state.functions.insert(name, function));
    drop(replaced);
}

/// The mock of a host function: `host_functions!` uses it.
#[doc(hidden)]
#[track_caller]
pub fn registered<F: 'static>(name: &'static str) -> Rc<RefCell<F>> {
    let found = native::with(|state| state.functions.get(name)?.downcast_ref::<Rc<RefCell<F>>>().cloned());
    // Not in a closure, whose place the message would have.
    match found {
        Some(found) => found,
        None => panic!("`{name}` is the host's: give it a mock, `{name}::mock(|…| …)`"),
    }
}

/// Runs the body of a program: the attribute `program` uses it.
#[doc(hidden)]
pub fn program(body: impl FnOnce() -> u64) -> u64 {
    native::program(body)
}
