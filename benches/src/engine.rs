//! The common interface of everything that runs a program.

use crate::{
    measure,
    programs::{Memory, Program},
};

/// An engine: loads programs, also from several threads at once.
pub trait Engine: Sync {
    /// Returns its name in the tables.
    fn name(&self) -> &str;
    /// Loads (verifies and compiles, as the engine does) a program over (memory, length).
    fn load(&self, code: &[u8], length: usize) -> Result<Box<dyn Loaded>, String>;
    /// Loads and unloads a program that uses its stack only.
    fn load_and_unload(&self, code: &[u8]) -> Result<(), String> {
        self.load(code, 0).map(drop)
    }
    /// Returns the bytes of executable memory that its loaded programs take, where the engine tells.
    fn executable_bytes(&self) -> Option<usize> {
        None
    }
}

/// A loaded program.
pub trait Loaded {
    /// Runs it `repeat` times on the memory and returns the last result; the caller may then compare the memory.
    fn run(&mut self, memory: &mut [u8], repeat: u32) -> Result<u32, String>;
    /// Returns nanoseconds of one of `repeat` runs: thread CPU time, unless the engine has a better clock.
    fn time(&mut self, memory: &mut [u8], repeat: u32) -> Result<f64, String> {
        let mut result = Ok(0);
        let time = measure::nanoseconds(repeat, |repeat| result = self.run(memory, repeat));
        result.map(|_| time)
    }
    /// Returns the bytes of machine code, where the engine tells.
    fn code_bytes(&self) -> Option<usize> {
        None
    }
}

/// A loaded program whose result has been compared with the native one, and its memory.
pub struct Checked {
    loaded: Box<dyn Loaded>,
    memory: Memory,
}

impl std::fmt::Debug for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checked").finish_non_exhaustive()
    }
}

impl Checked {
    /// Loads the program and compares the result and the memory of one run with the native ones.
    pub fn new(engine: &dyn Engine, program: &Program) -> Result<Checked, String> {
        let mut native = program.memory();
        let expected = program.run_native(native.bytes());
        let mut memory = program.memory();
        let length = memory.bytes().len();
        let mut loaded = engine.load(&program.code(), length)?;
        let result = loaded.run(memory.bytes(), 1)?;
        if result != expected {
            return Err(format!("wrong result: {result:#x}, native {expected:#x}"));
        }
        if memory != native {
            return Err("wrong memory".into());
        }
        Ok(Checked { loaded, memory })
    }

    /// Returns the bytes of machine code, where the engine tells.
    pub fn code_bytes(&self) -> Option<usize> {
        self.loaded.code_bytes()
    }

    /// Returns nanoseconds of one of `repeat` runs.
    ///
    /// # Panics
    /// If a run fails that has succeeded before.
    pub fn time(&mut self, repeat: u32) -> f64 {
        self.loaded.time(self.memory.bytes(), repeat).expect("it ran before")
    }
}
