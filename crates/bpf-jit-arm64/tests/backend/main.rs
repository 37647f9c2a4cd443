//! The tests of this backend, in one binary: the suite that every backend must pass, and what only this machine has.

mod abi;
mod shape;
mod suite;
mod support;
