//! From program to code: the pipeline, and what a backend is.

use crate::alloc::{Alloc, AllocOptions, Allocator};
use crate::externs::Signatures;
use crate::lir::Lir;
use crate::lower::{LowerOptions, Lowerer};
use crate::machine::MachineDesc;
use bpf_analysis::Facts;
use bpf_isa::Program;
use bpf_jit_code::layout::OutOfReach;
use bpf_jit_code::{Code, CpuFeatures, Hardening};

/// What an emitter may assume and must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmitOptions {
    /// Instructions it may use.
    pub features: CpuFeatures,
    /// Hardening.
    pub hardening: Hardening,
    /// Save every callee-saved register in every function: what saving by need is measured against.
    pub save_all: bool,
    /// Describe frames in [`Code::unwind`].
    pub unwind: bool,
    /// Leave room for the encoded description behind each function (perf's libunwind looks for it there).
    pub unwind_room: bool,
}

impl Default for EmitOptions {
    /// The host's CPU, no hardening.
    fn default() -> Self {
        EmitOptions {
            features: CpuFeatures::host(),
            hardening: Hardening::default(),
            save_all: false,
            unwind: false,
            unwind_room: false,
        }
    }
}

/// Why code could not be emitted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EmitError {
    /// A function is too long for the architecture's longest branch.
    OutOfReach(OutOfReach),
    /// More code than a 32-bit offset can address.
    TooLarge,
    /// A bug in this library: the text says which expectation failed.
    Internal(&'static str),
}

impl core::fmt::Display for EmitError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            EmitError::OutOfReach(e) => e.fmt(f),
            EmitError::TooLarge => f.write_str("the machine code exceeds 2 GiB"),
            EmitError::Internal(what) => write!(f, "bug in the JIT: {what}"),
        }
    }
}

impl core::error::Error for EmitError {}

impl From<OutOfReach> for EmitError {
    fn from(e: OutOfReach) -> Self {
        EmitError::OutOfReach(e)
    }
}

/// Why a program could not be compiled.
pub type CompileError = EmitError;

/// Options of all steps.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CompileOptions {
    /// Lowering.
    pub lower: LowerOptions,
    /// Register allocation.
    pub alloc: AllocOptions,
    /// Emission.
    pub emit: EmitOptions,
}

/// An emitter for one architecture. It owns scratch memory that is reused from program to program.
pub trait Backend {
    /// The machine the allocator is to allocate for, given the options.
    fn machine(&self, options: &EmitOptions) -> &'static MachineDesc;

    /// Emits `lir` with one allocation a function into `code`, which is empty.
    fn emit(&mut self, lir: &Lir, allocs: &[Alloc], options: &EmitOptions, code: &mut Code) -> Result<(), EmitError>;
}

/// The pipeline of one architecture, with the scratch memory of every step.
#[derive(Debug, Default)]
pub struct Compiler<B> {
    backend: B,
    lowerer: Lowerer,
    allocator: Allocator,
    lir: Lir,
    allocs: Vec<Alloc>,
}

impl<B: Backend> Compiler<B> {
    /// A compiler that emits through `backend`.
    pub fn new(backend: B) -> Self {
        Compiler {
            backend,
            lowerer: Lowerer::default(),
            allocator: Allocator::default(),
            lir: Lir::default(),
            allocs: Vec::new(),
        }
    }

    /// Compiles `program` into `code`, which is emptied first.
    pub fn compile(
        &mut self,
        program: &Program,
        facts: &Facts,
        signatures: &dyn Signatures,
        options: &CompileOptions,
        code: &mut Code,
    ) -> Result<(), CompileError> {
        code.clear();
        self.lowerer.lower(program, facts, signatures, &options.lower, &mut self.lir);
        let machine = self.backend.machine(&options.emit);
        self.allocs.resize_with(self.lir.funcs.len(), Alloc::default);
        for (func, out) in self.lir.funcs.iter().zip(&mut self.allocs) {
            self.allocator.allocate(func, machine, &options.alloc, out);
        }
        self.backend.emit(&self.lir, &self.allocs, &options.emit, code)?;
        // Only an op of the main program that reads it, a call of a subprogram that does among them, gives it a virtual register.
        code.reads_hidden = self.lir.funcs.first().is_none_or(|main| main.ctx.is_some());
        Ok(())
    }

    /// The intermediate form of the last program compiled.
    pub fn lir(&self) -> &Lir {
        &self.lir
    }
}
