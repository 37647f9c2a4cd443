//! A plug-in: counts the requests of each client, and refuses a client's fourth.
//! `make` compiles, verifies and tests it. `host` is made from host.json, the service's description.
#![no_std]

pub mod host;

use bpf_guest::maps::LruHashMap;
use bpf_guest::{map, program};
use host::{Request, price, say};

const ALLOW: u32 = 0;
const REFUSE: u32 = 1;

/// Requests of each client.
#[map(name = "seen")]
pub static SEEN: LruHashMap<u32, u64, 4096> = LruHashMap::new();

#[program("request/guard")]
pub fn guard(request: &mut Request<'_>) -> u32 {
    // `starts_with` compares with the end of the path before it reads, as the verifier demands.
    if request.path.starts_with(b"/") {
        request.cost = price(request.client);
    }
    let Some(count) = SEEN.get_or_insert(&request.client, &0) else { return REFUSE };
    if count.fetch_add(1) < 3 {
        return ALLOW;
    }
    say(b"one too many");
    REFUSE
}
