//! `cargo xtask bench-wasm`: the figures of docs/book/explanation/comparison.md.
//!
//! A workspace of its own (`benches/wasm`): wasmtime is a compiler of 100 packages that nothing else here needs, so it
//! is neither built by the tests nor looked at by `cargo xtask check`.

use crate::shell;

pub(crate) fn run() -> anyhow::Result<()> {
    let folder = shell::root().join("benches/wasm");
    shell::run(shell::cargo().current_dir(folder).args(["run", "--release", "--locked"]))
}
