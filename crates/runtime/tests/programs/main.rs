//! Results, contexts and refusals of programs, on every engine.
//!
//! One process: nothing here forks, raises signals, changes limits or counts what the process allocates.

#[path = "../common/mod.rs"]
mod common;
#[path = "../support/mod.rs"]
mod support;

mod abi;
mod addresses;
mod arena;
mod beside_kernel;
mod big;
mod builtins;
mod callbacks;
mod cases;
mod constants;
mod contexts;
mod core_relocations;
mod core_target;
mod counted;
mod declared;
mod differential;
mod dynptrs;
mod formats;
mod frags;
mod guest;
mod helpers;
mod hints;
mod host_file;
mod hybrid;
mod instances;
mod jumps;
mod kernel_helpers;
mod kernel_maps;
mod kfuncs;
mod layouts;
mod lock_threads;
mod logged;
mod lookups;
mod maps;
mod named;
mod nested_contexts;
mod network_programs;
mod network_traffic;
mod owned;
mod owned_percpu;
mod owned_threads;
mod packets;
mod printed;
mod privileged;
mod probe_read;
mod proofs;
mod redirect;
mod reports;
mod res_locks;
mod rings;
mod samples;
mod skb;
mod sock_hooks;
mod socket_maps;
mod sockets;
mod stopped;
mod storage;
mod threads;
mod throws;
mod timers;
mod unstoppable;
mod zeroed;
