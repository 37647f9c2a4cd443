//! This project: the JIT, with the verifier and without (structural validation only, like the peers that have none),
//! and the interpreter.
//!
//! A run is `Program::run`: run guard, execution slot and entry stub are in the figures, as a user pays for them.

use crate::engine::{Engine, Loaded};
use bpf_runtime::{Config, Linker, Mode, OptLevel, Program, Raw};

/// One of our engines.
#[derive(Debug)]
pub(super) struct Ours {
    name: &'static str,
    engine: bpf_runtime::Engine,
    linker: Linker<()>,
    trust: Trust,
}

/// What programs are taken to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trust {
    Verified,
    Unverified,
    Interpreted,
}

struct Run(Program<Raw, ()>);

impl Ours {
    /// The verifier and the JIT.
    pub(super) fn verified() -> Result<Ours, String> {
        Ok(Ours { trust: Trust::Verified, ..Ours::new("verified", |_| {})? })
    }

    /// The verifier and the JIT, each access bounded once more, and a budget.
    pub(super) fn contained() -> Result<Ours, String> {
        let ours = Ours::new("contained", |config| (config.contained, config.budget) = (true, Some(1 << 40)))?;
        Ok(Ours { trust: Trust::Verified, ..ours })
    }

    /// The JIT.
    pub(super) fn jit() -> Result<Ours, String> {
        Ours::new("ours", |_| {})
    }

    /// The JIT without optimisation.
    pub(super) fn unoptimised() -> Result<Ours, String> {
        Ours::new("ours, no opt", |config| config.opt_level = OptLevel::None)
    }

    /// The JIT, saving every callee-saved register in every function.
    pub(super) fn save_all() -> Result<Ours, String> {
        Ours::new("ours, save all", |config| config.save_all = true)
    }

    /// The interpreter.
    pub(super) fn interpreter() -> Result<Ours, String> {
        Ok(Ours { trust: Trust::Interpreted, ..Ours::new("interp", |config| config.mode = Mode::Interpreter)? })
    }

    fn new(name: &'static str, configure: impl FnOnce(&mut Config)) -> Result<Ours, String> {
        let mut config = Config::default();
        configure(&mut config);
        let engine = bpf_runtime::Engine::new(config).map_err(|e| e.to_string())?;
        Ok(Ours { name, linker: Linker::new(&engine), engine, trust: Trust::Unverified })
    }
}

impl Engine for Ours {
    fn name(&self) -> &str {
        self.name
    }

    fn load(&self, code: &[u8], _length: usize) -> Result<Box<dyn Loaded>, String> {
        let loader = self.linker.loader();
        let loader = match self.trust {
            Trust::Verified => loader,
            // SAFETY: the bench programs stay within the memory they are given: the kernel's verifier accepts them with
            // it.
            Trust::Unverified => unsafe { loader.unverified() },
            Trust::Interpreted => loader.interpreted(),
        };
        let program = loader.bytes("bench", code);
        Ok(Box::new(Run(program.map_err(|e| e.to_string())?)))
    }

    fn executable_bytes(&self) -> Option<usize> {
        Some(self.engine.code_stats().bytes_used)
    }
}

impl Loaded for Run {
    fn run(&mut self, memory: &mut [u8], repeat: u32) -> Result<u32, String> {
        let mut result = 0;
        for _ in 0..repeat {
            result = self.0.run(&mut (), &mut *memory).map_err(|e| e.to_string())?;
        }
        Ok(result as u32)
    }

    fn code_bytes(&self) -> Option<usize> {
        self.0.machine_code().map(|(bytes, _)| bytes.len())
    }
}
