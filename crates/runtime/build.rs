//! Sets one `cfg` for each property of a build that the code asks for.
//!
//! * `native`: machine code. The feature `jit`, on a system that executable memory is known for, on an architecture
//!   with a backend. Everything else is interpreted.
//! * `address_sanitizer`, `thread_sanitizer`: stable Rust has no `cfg` for them. `-Zsanitizer=address` of nightly sets
//!   `sanitize = "address"`, and Cargo tells build scripts.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(native)");
    let target = |what: &str| std::env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    let backend = target("OS") == "linux" && matches!(target("ARCH").as_str(), "x86_64" | "aarch64");
    if backend && std::env::var_os("CARGO_FEATURE_JIT").is_some() {
        println!("cargo::rustc-cfg=native");
    }
    let sanitizers = std::env::var("CARGO_CFG_SANITIZE").unwrap_or_default();
    for sanitizer in ["address", "thread"] {
        println!("cargo::rustc-check-cfg=cfg({sanitizer}_sanitizer)");
        if sanitizers.split(',').any(|name| name == sanitizer) {
            println!("cargo::rustc-cfg={sanitizer}_sanitizer");
        }
    }
}
