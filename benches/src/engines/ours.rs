//! This project's engine: the JIT, with the verifier and without (structural validation only, as with the peers that
//! have no verifier), and the interpreter.
//!
//! A run is `Program::run`: the figures include the run guard, the execution slot and the entry stub, as they do for
//! users.

use crate::engine::{Engine, Loaded};
use bpf_runtime::{Config, Linker, Mode, OptLevel, Program, Raw, code::Hardening};

/// One configuration of our engine.
#[derive(Debug)]
pub(super) struct Ours {
    name: &'static str,
    engine: bpf_runtime::Engine,
    linker: Linker<()>,
    trust: Trust,
}

/// How a program is loaded: with the verifier, without it, or for the interpreter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trust {
    Verified,
    Unverified,
    Interpreted,
}

struct Run(Program<Raw, ()>);

impl Ours {
    /// Makes the verifier and the JIT.
    pub(super) fn verified() -> Result<Ours, String> {
        Ok(Ours { trust: Trust::Verified, ..Ours::new("verified", |config| config)? })
    }

    /// Makes the verifier and the JIT, with a bounds check of each access in addition, and a budget.
    pub(super) fn contained() -> Result<Ours, String> {
        let ours = Ours::new("contained", |config| config.contained(true).budget(1 << 40))?;
        Ok(Ours { trust: Trust::Verified, ..ours })
    }

    /// Makes the verifier and the JIT, with a budget.
    pub(super) fn counted() -> Result<Ours, String> {
        Ok(Ours { trust: Trust::Verified, ..Ours::new("budget", |config| config.budget(1 << 40))? })
    }

    /// Makes the JIT alone.
    pub(super) fn jit() -> Result<Ours, String> {
        Ours::new("ours", |config| config)
    }

    /// Makes the JIT alone, without hardening and with each switch of it.
    pub(super) fn hardened() -> Result<Vec<Ours>, String> {
        type Switch = (&'static str, fn(Hardening) -> Hardening);
        let switches: [Switch; 6] = [
            ("none", |hardening| hardening),
            ("landing_pads", |hardening| hardening.landing_pads(true)),
            ("retpolines", |hardening| hardening.retpolines(true)),
            ("return_signing", |hardening| hardening.return_signing(true)),
            ("straight_line", |hardening| hardening.straight_line(true)),
            ("blind_constants", |hardening| hardening.blind_constants(true)),
        ];
        switches.into_iter().map(|(name, switch)| Ours::new(name, |config| config.hardening(switch))).collect()
    }

    /// Makes the JIT without optimisation.
    pub(super) fn unoptimised() -> Result<Ours, String> {
        Ours::new("ours, no opt", |config| config.opt_level(OptLevel::None))
    }

    /// Makes the JIT that saves every callee-saved register in every function.
    pub(super) fn save_all() -> Result<Ours, String> {
        Ours::new("ours, save all", |config| config.save_all(true))
    }

    /// Makes the interpreter.
    pub(super) fn interpreter() -> Result<Ours, String> {
        Ok(Ours { trust: Trust::Interpreted, ..Ours::new("interp", |config| config.mode(Mode::Interpreter))? })
    }

    fn new(name: &'static str, configure: impl FnOnce(Config) -> Config) -> Result<Ours, String> {
        let config = configure(Config::new());
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
            Trust::Unverified => unsafe { loader.unverified(true) },
            Trust::Interpreted => loader.interpreted(true),
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
