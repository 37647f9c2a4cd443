//! The library for plug-ins in Rust, which are compiled to BPF and loaded by `bpf-runtime`.
//!
//! Problem: BPF code is not linked by Rust's linker, maps are described by BTF, helpers are called by number, and a
//! program may read only data that it has compared with an end; written directly, all of it is `unsafe`. Approach:
//! thin types that compile to nothing: [`map`]s as typed statics in libbpf's layout, [`program`]s as functions of a
//! context that is the host's own struct ([`BpfContext`], with one definition for both sides), [`ContextBytes`] whose
//! methods compare before they read, [`host_functions!`]. The host trusts nothing here: it verifies the compiled
//! program when it loads it.
//!
//! A panic ends the run with an error on the host's side. `bpf build` compiles a crate that depends on this one. It
//! needs the nightly toolchain with the components `rust-src` and `llvm-tools`, and no other linker or LLVM. On other
//! targets a plug-in is ordinary code, which `cargo test` runs with mocks of maps, helpers and host functions
//! (`bpf_guest::mock`).
//!
//! ```
//! // #![no_std]
//! use bpf_guest::maps::LruHashMap;
//! use bpf_guest::{BpfContext, ContextBytes, map, program};
//!
//! // In a crate of its own, with `bpf_runtime::{BpfContext, ContextBytes}` on the host.
//! #[derive(BpfContext)]
//! #[repr(C)]
//! pub struct Request<'r> {
//!     pub client: u32,
//!     #[bpf(writable)]
//!     pub cost: u32,
//!     pub path: ContextBytes<'r>,
//! }
//!
//! #[map]
//! static SEEN: LruHashMap<u32, u64, 4096> = LruHashMap::new();
//!
//! #[program("request/limit")]
//! fn limit(request: &mut Request<'_>) -> u32 {
//!     if request.path.starts_with(b"/health") {
//!         return 0;
//!     }
//!     request.cost = 1;
//!     match SEEN.get_or_insert(&request.client, &0) {
//!         Some(count) => (count.fetch_add(1) >= 3).into(),
//!         None => 1,
//!     }
//! }
//! ```
#![no_std]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

#[cfg(not(target_arch = "bpf"))]
extern crate std;

mod context;
mod definition;
pub mod helpers;
mod host;
pub mod maps;
#[cfg(not(target_arch = "bpf"))]
pub mod mock;
#[cfg(not(target_arch = "bpf"))]
mod native;
mod plain;
mod printed;
mod ring;
pub mod xdp;

#[cfg(target_arch = "bpf")]
mod bpf;
/// The helpers, of a host or of a test.
#[cfg(target_arch = "bpf")]
use bpf as sys;
#[cfg(not(target_arch = "bpf"))]
use native as sys;

/// Makes a struct of the host the context of programs: `#[repr(C)]`, with integers, arrays of integers and
/// [`ContextBytes`]. An identical definition derives `bpf_runtime::BpfContext` on the host; the verifier enforces its
/// attributes (`#[bpf(writable)]`).
///
/// ```compile_fail
/// #[derive(bpf_guest::BpfContext)]
/// struct Request { // add `#[repr(C)]`
///     client: u32,
/// }
/// ```
pub use bpf_guest_macros::BpfContext;

/// Declares a map: a static of one of the types in [`maps`]. Its name is the static's, or the given one.
///
/// ```
/// use bpf_guest::{map, maps::Array};
///
/// #[map]
/// static LIMITS: Array<u32, 8> = Array::new();
///
/// #[map(name = "seen")] // as the service asks for it
/// static SEEN: Array<u64, 8> = Array::new();
/// ```
///
/// ```compile_fail
/// #[bpf_guest::map]
/// static LIMITS: u32 = 8; // not a map
/// ```
///
/// ```compile_fail
/// #[bpf_guest::map(name = "")] // no name
/// static LIMITS: bpf_guest::maps::Array<u32, 8> = bpf_guest::maps::Array::new();
/// ```
pub use bpf_guest_macros::map;

/// Declares a program in the section of this name: a function of one argument, `&mut` of a context, with a result
/// that is a [`ProgramResult`]. Its name is the function's.
///
/// ```
/// use bpf_guest::{program, xdp::{Xdp, XdpAction}};
///
/// #[program("xdp")]
/// fn only_ipv4(xdp: &mut Xdp) -> XdpAction {
///     match xdp.packet().array(12) {
///         Some([0x08, 0x00]) => XdpAction::Pass,
///         _ => XdpAction::Drop,
///     }
/// }
/// ```
///
/// ```compile_fail
/// #[bpf_guest::program("xdp")]
/// fn no_context(xdp: &mut u32) -> u32 { // `u32` is no context
///     0
/// }
/// ```
pub use bpf_guest_macros::program;

/// Prints a line for people (`bpf_trace_printk`), which the host's `Config::print` receives. The format is the kernel's
/// (`%u`, `%d`, `%x`, with `ll` before the letter for 64 bits; `%s` for a [`CStr`](core::ffi::CStr)), with three values
/// at most: integers, `bool`s and texts ([`Printed`]). `<3>` at its start is the line's level.
///
/// ```
/// use bpf_guest::{mock, printk};
///
/// printk!("client %u: %lld of %s", 7u32, -3i64, c"all");
/// assert_eq!(mock::printed(), ["client 7: -3 of all"]);
/// ```
///
/// ```compile_fail
/// bpf_guest::printk!("%u %u %u %u", 1, 2, 3, 4); // four values
/// ```
#[macro_export]
macro_rules! printk {
    ($format:literal $(,)?) => { $crate::printk!(@of $format, 0u64, 0u64, 0u64) };
    ($format:literal, $a:expr $(,)?) => { $crate::printk!(@of $format, $a, 0u64, 0u64) };
    ($format:literal, $a:expr, $b:expr $(,)?) => { $crate::printk!(@of $format, $a, $b, 0u64) };
    ($format:literal, $a:expr, $b:expr, $c:expr $(,)?) => { $crate::printk!(@of $format, $a, $b, $c) };
    (@of $format:literal, $a:expr, $b:expr, $c:expr) => {{
        const FORMAT: &::core::ffi::CStr =
            match ::core::ffi::CStr::from_bytes_with_nul(::core::concat!($format, "\0").as_bytes()) {
                ::core::result::Result::Ok(format) => format,
                ::core::result::Result::Err(_) => ::core::panic!("a format has no zero byte"),
            };
        use $crate::Printed as _;
        $crate::helpers::print(FORMAT, [($a).value(), ($b).value(), ($c).value()]);
    }};
}

pub use context::{Context, ContextBytes, ContextBytesMut, ProgramResult};
pub use printed::Printed;
pub use ring::Reserved;
#[doc(hidden)]
pub use zerocopy;

/// Never called: panics abort in place (`-Cpanic=immediate-abort`).
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
