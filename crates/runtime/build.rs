//! Tells the crate whether it is built with AddressSanitizer, which stable Rust has no `cfg` for: `-Zsanitizer=address`
//! of nightly sets `sanitize = "address"`, and Cargo tells build scripts.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(address_sanitizer)");
    let sanitizers = std::env::var("CARGO_CFG_SANITIZE").unwrap_or_default();
    if sanitizers.split(',').any(|name| name == "address") {
        println!("cargo::rustc-cfg=address_sanitizer");
    }
}
