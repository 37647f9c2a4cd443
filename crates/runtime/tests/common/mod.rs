//! Engines to run tail-call tests on, and programs from text.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod engines;
pub(crate) mod events;

use bpf_runtime::{BpfContext, Caller, Config, Engine, Linker, Mode, OptLevel, ProgArray, Program, isa::assemble};

/// Four words that programs read and write.
#[derive(BpfContext, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Words {
    #[bpf(writable)]
    pub(crate) words: [u64; 4],
}

pub(crate) type Array = ProgArray<Words, u64>;
pub(crate) type Prog = Program<Words, u64>;

/// An engine, and how to load on it.
pub(crate) struct Fixture {
    pub(crate) name: &'static str,
    pub(crate) engine: Engine,
    pub(crate) linker: Linker<u64>,
}

/// The fixtures there are on this host.
pub(crate) fn fixtures() -> Vec<Fixture> {
    let jit: &[&str] = if bpf_runtime::code::Arch::HOST.is_some() {
        &["jit", "jit, no optimisation", "jit, indirect", "jit, retpolines"]
    } else {
        &[]
    };
    ["interpreter"].iter().chain(jit).map(|name| fixture(name)).collect()
}

/// A fixture of its own, by its name.
pub(crate) fn fixture(name: &'static str) -> Fixture {
    let mut config = Config::new()
        .mode(if name == "interpreter" { Mode::Interpreter } else { Mode::Jit })
        .direct_tail_calls(matches!(name, "jit" | "jit, no optimisation"));
    if name == "jit, no optimisation" {
        config = config.opt_level(OptLevel::None);
    }
    config = config.hardening(|hardening| hardening.retpolines(name == "jit, retpolines"));
    let engine = Engine::new(config).unwrap();
    let mut linker = Linker::new(&engine);
    let echo = |c: &mut Caller<'_, u64>, value: u64| {
        *c.host() += 1;
        value
    };
    linker.func(1001, "echo", echo).unwrap();
    Fixture { name, engine, linker }
}

impl Fixture {
    pub(crate) fn is_jit(&self) -> bool {
        self.name != "interpreter"
    }

    pub(crate) fn array(&self, entries: u32) -> Array {
        ProgArray::create(&self.engine, "array", entries).unwrap()
    }

    /// A program from its text; `map[fd:i]` is `arrays[i]`.
    pub(crate) fn load(&self, name: &str, text: &str, arrays: &[&Array]) -> Prog {
        let insns = assemble(text).unwrap_or_else(|e| panic!("{e} in\n{text}"));
        // SAFETY: the tests' programs stay inside their context and stack, and end.
        unsafe { self.linker.loader().unverified(true) }.prog_arrays(arrays).insns(name, insns).unwrap()
    }

    /// Runs a program on these words; returns r0 and what became of them.
    pub(crate) fn run(&self, program: &Prog, words: [u64; 4]) -> (u64, [u64; 4]) {
        let mut words = Words { words };
        let r0 = program.run(&mut 0, &mut words).unwrap();
        (r0, words.words)
    }
}
