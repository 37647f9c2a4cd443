//! The plug-in of docs/book/tutorials/c-plugin.md in Rust: limits the requests of each client, on a context of the
//! service's own.
//!
//! `bpf build examples/limit-rust -o examples/limit_rust.o`
#![no_std]

use bpf_guest::maps::{LruHashMap, ProgArray, RingBuf};
use bpf_guest::{BpfContext, ContextBytes, host_functions, map, program};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The service's struct: there it derives the `BpfContext` of bpf-runtime.
#[derive(BpfContext)]
#[bpf(name = "request")]
#[repr(C)]
pub struct Request<'r> {
    pub client: u32,
    #[bpf(writable)]
    pub cost: u32,
    pub path: ContextBytes<'r>,
}

const ALLOW: u32 = 0;
const REFUSE: u32 = 1;
const LIMIT_PER_CLIENT: u64 = 3;

// Requests of each client. The least recently seen make room for new ones. The names are given by the service.
#[map(name = "seen")]
static SEEN: LruHashMap<u32, u64, 4096> = LruHashMap::new();

/// Record that the service reads from a ring buffer; the program does not wait for the reader.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Event {
    client: u32,
    verdict: u32,
}

#[map(name = "events")]
static EVENTS: RingBuf<65536> = RingBuf::new();

/// Programs for parts of the site; empty slots are passed over.
#[map(name = "routes")]
static ROUTES: ProgArray<1> = ProgArray::new();

host_functions! {
    /// Says something through the service.
    fn say(text: &[u8]);
}

fn tell(request: &Request<'_>, verdict: u32) {
    if let Some(event) = EVENTS.reserve() {
        event.submit(Event { client: request.client, verdict });
    }
}

#[program("request/limit")]
fn limit(request: &mut Request<'_>) -> u32 {
    if request.path.starts_with(b"/~") {
        ROUTES.tail_call(request, 0);
    }
    let Some(count) = SEEN.get_or_insert(&request.client, &0) else { return REFUSE };
    if count.fetch_add(1) < LIMIT_PER_CLIENT {
        return ALLOW;
    }
    tell(request, REFUSE);
    REFUSE
}

#[program("request/home")]
fn home(request: &mut Request<'_>) -> u32 {
    say(b"a home page");
    request.cost = 10;
    ALLOW
}

/// The eighth byte of the path, which is not always there: a panic then, and the run ends.
#[program("request/eighth")]
fn eighth(request: &mut Request<'_>) -> u32 {
    u32::from(request.path.array::<1>(7).unwrap()[0])
}

/// How many bytes of the path have the same lower half as the client's number.
#[program("request/histogram")]
fn histogram(request: &mut Request<'_>) -> u32 {
    let mut counts = [0u8; 16];
    for byte in request.path.iter() {
        let count = &mut counts[usize::from(byte & 15)];
        *count = count.wrapping_add(1);
    }
    u32::from(counts[usize::from(request.client as u8 & 15)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_guest::mock;

    #[test]
    fn a_home_page_is_told() {
        mock::reset();
        say::mock(|text| assert_eq!(text, b"a home page"));
        let mut request = Request { client: 7, cost: 0, path: b"/~me".into() };
        assert_eq!((home(&mut request), request.cost), (u64::from(ALLOW), 10));
    }
}
