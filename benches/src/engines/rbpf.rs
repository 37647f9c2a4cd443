//! rbpf: its JIT, without a verifier of types, with `EbpfVmRaw` (r1 = memory).
//!
//! rbpf does not pass the length, so one instruction before the program sets r2. The virtual machine borrows the
//! program, so the bytes are leaked: one process loads a handful of programs.

use crate::engine::{Engine, Loaded};
use bpf_isa::{Insn, Reg, Src, Width};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// rbpf's JIT.
#[derive(Debug)]
pub(super) struct Rbpf;

struct Vm(rbpf::EbpfVmRaw<'static>);

impl Engine for Rbpf {
    fn name(&self) -> &str {
        "rbpf"
    }

    fn load(&self, code: &[u8], length: usize) -> Result<Box<dyn Loaded>, String> {
        let length = i32::try_from(length).map_err(|e| e.to_string())?;
        let set_length = Insn::Mov { width: Width::W32, dst: Reg::R2, src: Src::Imm(length) };
        let mut stream = bpf_isa::encode(&[set_length]).map_err(|e| e.to_string())?;
        stream.extend(code);
        let code: &'static [u8] = Vec::leak(stream);
        let mut vm = rbpf::EbpfVmRaw::new(Some(code)).map_err(|e| e.to_string())?;
        vm.jit_compile().map_err(|e| e.to_string())?;
        Ok(Box::new(Vm(vm)))
    }

    fn load_and_unload(&self, code: &[u8]) -> Result<(), String> {
        let mut vm = rbpf::EbpfVmRaw::new(Some(code)).map_err(|e| e.to_string())?;
        // The compiler panics if the code does not fit the memory that it has reserved.
        let compiled = catch_unwind(AssertUnwindSafe(|| vm.jit_compile()));
        compiled.map_err(|_| "panics")?.map_err(|e| e.to_string())
    }
}

impl Loaded for Vm {
    fn run(&mut self, memory: &mut [u8], repeat: u32) -> Result<u32, String> {
        let mut result = 0;
        for _ in 0..repeat {
            // SAFETY: the speed programs stay within the memory they are given (the kernel's verifier accepts them with
            // it), and it outlives the call, which is all that the 'static in the signature is about here.
            let memory: &'static mut [u8] = unsafe { &mut *std::ptr::from_mut(memory) };
            // SAFETY: the program, which the kernel's verifier accepts, accesses `memory` and its own stack only.
            result = unsafe { self.0.execute_program_jit(memory) }.map_err(|e| e.to_string())?;
        }
        Ok(result as u32)
    }
}
