//! An engine for each mode there is on this host.

use bpf_runtime::{Arch, Config, Engine, Mode};

/// The interpreter, and the JIT if there is one.
pub(crate) fn modes() -> Vec<Mode> {
    [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit)).collect()
}

/// An engine in this mode, configured otherwise by `adjust`.
pub(crate) fn engine(mode: Mode, adjust: impl FnOnce(&mut Config)) -> Engine {
    let mut config = Config::default();
    config.mode = mode;
    adjust(&mut config);
    Engine::new(config).unwrap()
}

/// An engine in each mode.
pub(crate) fn engines(adjust: impl Fn(&mut Config)) -> Vec<Engine> {
    modes().into_iter().map(|mode| engine(mode, &adjust)).collect()
}
