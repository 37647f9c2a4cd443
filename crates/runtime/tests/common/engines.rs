//! An engine for each way of running programs there is on this host.

use bpf_runtime::{Config, Engine, Mode, OptLevel, code::Arch};

/// A way of running programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Execution {
    pub(crate) mode: Mode,
    pub(crate) opt_level: OptLevel,
}

/// The interpreter, and the JIT at each level if there is one.
pub(crate) fn modes() -> Vec<Execution> {
    let levels: &[OptLevel] = if Arch::HOST.is_some() { &[OptLevel::Speed, OptLevel::None] } else { &[] };
    let jit = levels.iter().map(|level| Execution { mode: Mode::Jit, opt_level: *level });
    [Execution { mode: Mode::Interpreter, opt_level: OptLevel::default() }].into_iter().chain(jit).collect()
}

/// The configuration of this way.
pub(crate) fn config(way: Execution) -> Config {
    Config::new().mode(way.mode).opt_level(way.opt_level)
}

/// An engine of this way, configured otherwise by `adjust`.
pub(crate) fn engine(way: Execution, adjust: impl FnOnce(Config) -> Config) -> Engine {
    let config = adjust(config(way));
    Engine::new(config).unwrap()
}

/// An engine of each.
pub(crate) fn engines(adjust: impl Fn(Config) -> Config) -> Vec<Engine> {
    modes().into_iter().map(|way| engine(way, &adjust)).collect()
}
