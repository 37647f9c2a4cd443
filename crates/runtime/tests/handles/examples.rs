//! The examples run.

#[path = "../../examples/live_hook.rs"]
mod live_hook;

#[test]
fn live_hook() {
    live_hook::main().unwrap();
}

#[path = "../../examples/metrics.rs"]
mod metrics;

#[test]
fn metrics() {
    // As it is without an address: the test's own arguments are none.
    metrics::serve(None).unwrap();
}

#[path = "../../examples/request.rs"]
mod request;

#[test]
fn request() {
    request::main().unwrap();
}
