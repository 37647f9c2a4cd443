//! The files of the protocol, and stand-ins for the others.

#[path = "../../../runtime/src/abi/around.rs"]
mod around;
mod clock;
#[path = "../../../runtime/src/abi/critical.rs"]
mod critical;
mod level;
#[cfg(test)]
mod models;
#[path = "../../../runtime/src/abi/parked.rs"]
mod parked;
mod sync;
#[path = "../../../runtime/src/abi/watch.rs"]
mod watch;
