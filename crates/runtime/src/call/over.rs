//! The type parameters of handles: a host type and a context.
//!
//! Problem: a program is loaded for one host type `H` and is given a `&mut H::State` in each run, which its host
//! functions store to and read from; so a handle for `H` must not turn into one for a type that only resembles it.
//! `fn(H)` in its place would be contravariant: a program over `fn(&'static str)` would pass for one over
//! `for<'a> fn(&'a str)`, and store a function of the former where the host reads one of the latter. Approach: one
//! marker, invariant, in every handle.

use core::marker::PhantomData;

/// Over a user's `T`, and none of it: invariant, because `T` is written and read through a reference in each run;
/// `Send` and `Sync` whatever `T` is, because a handle has no `T`: the runs that are given one borrow it on their own
/// thread.
pub(crate) type Over<T> = PhantomData<fn(T) -> T>;
