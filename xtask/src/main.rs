//! Project commands
fn main() {}
