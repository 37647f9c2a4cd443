//! The bpf command
fn main() {}
