//! Loading: resolves an object's references, verifies and compiles its programs, and makes their handles.

#[cfg(all(test, native))]
mod dead_code_tests;
pub(crate) mod hints;
pub(crate) mod host;
pub(crate) mod host_error;
pub(crate) mod host_maps;
pub(crate) mod instance_pool;
pub mod interface;
mod layout;
pub(crate) mod linker;
#[cfg(feature = "cross")]
pub(crate) mod listing;
pub(crate) mod loader;
pub(crate) mod map_set;
pub(crate) mod module;
mod owned;
mod serialised;
mod steps;
pub(crate) mod tenants;
pub(crate) mod verify;
mod wire;
