//! solana-sbpf's JIT, in two configurations: its default (every address translated, instructions metered, constants
//! sanitised, random no-ops inserted), and bare (all of these off), which is closest to the other engines. SBPF v3
//! has the 32-bit jumps and relative calls of BPF v3.

use crate::engine::{Engine, Loaded};
use solana_sbpf::{
    aligned_memory::AlignedMemory,
    ebpf,
    elf::Executable,
    memory_region::{MemoryMapping, MemoryRegion},
    program::{BuiltinProgram, FunctionRegistry, SBPFVersion},
    verifier::RequisiteVerifier,
    vm::{CallFrame, Config, ContextObject, EbpfVm, ExecutionMode},
};
use std::{ptr::NonNull, sync::Arc};

const VERSION: SBPFVersion = SBPFVersion::V3;

/// solana-sbpf's JIT.
#[derive(Debug, Default)]
pub(super) struct Sbpf {
    bare: bool,
}

struct Vm {
    loader: Arc<BuiltinProgram<Context>>,
    executable: Executable<Context>,
    stack: AlignedMemory<{ ebpf::HOST_ALIGN }>,
    frames: Vec<CallFrame>,
    bare: bool,
}

/// A meter that never runs out, and the memory of a run.
struct Context {
    mapping: MemoryMapping,
}

impl ContextObject for Context {
    fn consume(&mut self, _amount: u64) {}
    fn get_remaining(&self) -> u64 {
        i64::MAX as u64
    }
    fn active_mapping_ptr(&mut self) -> NonNull<MemoryMapping> {
        NonNull::from(&mut self.mapping)
    }
}

impl Sbpf {
    /// Makes the configuration without translation, metering and sanitising.
    pub(super) fn bare() -> Sbpf {
        Sbpf { bare: true }
    }
}

impl Engine for Sbpf {
    fn name(&self) -> &str {
        if self.bare { "sbpf bare" } else { "sbpf" }
    }

    fn load(&self, code: &[u8], _length: usize) -> Result<Box<dyn Loaded>, String> {
        let mut config = Config { enabled_sbpf_versions: VERSION..=VERSION, ..Config::default() };
        if self.bare {
            config.enable_address_translation = false;
            config.enable_instruction_meter = false;
            config.noop_instruction_rate = 0;
            config.sanitize_user_provided_values = false;
        }
        let stack = AlignedMemory::zero_filled(config.stack_size());
        let frames = vec![CallFrame::default(); config.max_call_depth];
        let loader = Arc::new(BuiltinProgram::new_loader(config));
        let executable = Executable::from_text_bytes(code, loader.clone(), VERSION, FunctionRegistry::default())
            .map_err(|e| e.to_string())?;
        executable.verify::<RequisiteVerifier>().map_err(|e| e.to_string())?;
        executable.jit_compile().map_err(|e| e.to_string())?;
        Ok(Box::new(Vm { loader, executable, stack, frames, bare: self.bare }))
    }
}

impl Loaded for Vm {
    fn run(&mut self, memory: &mut [u8], repeat: u32) -> Result<u32, String> {
        let (address, length) = (memory.as_mut_ptr().expose_provenance() as u64, memory.len() as u64);
        let stack_top = self.stack.as_slice_mut().as_mut_ptr_range().end.expose_provenance() as u64;
        let regions = vec![
            self.executable.get_ro_region(),
            MemoryRegion::new(&mut self.stack, ebpf::MM_STACK_START),
            MemoryRegion::new(std::ptr::from_mut(memory), ebpf::MM_INPUT_START),
        ];
        // SAFETY: stack and memory are exclusively borrowed for this call, which the mapping does not outlive.
        let mapping = unsafe { MemoryMapping::new(regions, self.executable.get_config(), VERSION) };
        let mut context = Context { mapping: mapping.map_err(|e| e.to_string())? };
        let mut vm = EbpfVm::new(self.loader.clone(), VERSION, &mut context, self.stack.len());
        let mut registers = vm.registers;
        registers[2] = length;
        if self.bare {
            registers[1] = address;
            registers[ebpf::FRAME_PTR_REG] = stack_top;
        } else {
            registers[1] = ebpf::MM_INPUT_START;
        }
        let mut result = 0;
        for _ in 0..repeat {
            vm.registers = registers;
            let (_, outcome) = vm.execute_program(&self.executable, &mut ExecutionMode::Jit, &mut self.frames);
            result = Result::from(outcome).map_err(|e| e.to_string())?;
        }
        Ok(result as u32)
    }

    fn code_bytes(&self) -> Option<usize> {
        self.executable.get_compiled_program().map(|program| program.machine_code_length())
    }
}
