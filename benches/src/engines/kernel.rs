//! The kernel's JIT: the program over an array map's value, run by BPF_PROG_TEST_RUN with a repeat count.
//!
//! The time is the kernel's own figure, because the system call around the loop costs microseconds. The kernel
//! reports wall time in whole nanoseconds. Two more differences to the other engines remain in the figures: each run
//! goes through the loop of the test run (visible in the row "empty"), and three instructions before the program set
//! r1 and r2. Their bytes are subtracted from the code size.

use crate::engine::{Engine, Loaded};
use bpf_testkit::kernel::{Program, ProgramType, RawProgram, prologue_bytes};

/// The kernel's JIT.
#[derive(Debug)]
pub(super) struct Kernel;

struct InKernel {
    program: RawProgram,
    length: u32,
}

impl Engine for Kernel {
    fn name(&self) -> &str {
        "kernel"
    }

    fn load(&self, code: &[u8], length: usize) -> Result<Box<dyn Loaded>, String> {
        let length = u32::try_from(length).map_err(|e| e.to_string())?;
        let program = RawProgram::load(code, length).map_err(|e| e.to_string())?;
        Ok(Box::new(InKernel { program, length }))
    }

    fn load_and_unload(&self, code: &[u8]) -> Result<(), String> {
        Program::load(ProgramType::Xdp, code).map(drop).map_err(|e| e.to_string())
    }
}

impl Loaded for InKernel {
    fn run(&mut self, memory: &mut [u8], repeat: u32) -> Result<u32, String> {
        self.program.run(memory, repeat).map(|run| run.result).map_err(|e| e.to_string())
    }

    fn time(&mut self, _memory: &mut [u8], repeat: u32) -> Result<f64, String> {
        self.program.repeat(repeat).map(|run| run.nanoseconds.into()).map_err(|e| e.to_string())
    }

    fn code_bytes(&self) -> Option<usize> {
        let total: usize = self.program.machine_code().ok()?.iter().map(Vec::len).sum();
        Some(total - prologue_bytes(self.length).ok()?)
    }
}
