//! The pipeline from a program to code.

use crate::alloc::{Alloc, AllocOptions, Allocator};
use crate::backend::{Backend, EmitError, EmitOptions};
use crate::confined::unconfined;
use crate::externs::Signatures;
use crate::lower::{DirectOptions, LowerOptions, Lowerer, Scratch};
use bpf_analysis::Facts;
use bpf_isa::Program;
use bpf_jit_code::{Code, Needs, OptLevel};
use bpf_lir::Lir;
use bpf_opt::{Change, Pass, PassOptions, PassScratch, PassSet, optimise};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// The reason why a program could not be compiled.
pub type CompileError = EmitError;

/// Options of all steps of a compilation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CompileOptions {
    /// How much work to put into the code.
    pub opt_level: OptLevel,
    /// With [`OptLevel::Speed`]: run only the passes that fuse adjacent ops, so that each instruction's own code can be
    /// seen.
    pub plain: bool,
    /// With [`OptLevel::Speed`]: passes that are left out. For tests: the results do not depend on the set.
    pub skip: PassSet,
    /// Options of lowering.
    pub lower: LowerOptions,
    /// Options of register allocation.
    pub alloc: AllocOptions,
    /// Options of emission.
    pub emit: EmitOptions,
}

/// The pipeline of one architecture, with the scratch memory of every step.
#[derive(Debug, Default)]
pub struct Compiler<B> {
    backend: B,
    lowerer: Lowerer,
    allocator: Allocator,
    lir: Lir,
    allocs: Vec<Alloc>,
    passes: PassScratch,
    direct: Scratch,
}

impl<B: Backend> Compiler<B> {
    /// Returns a compiler that emits through `backend`.
    pub fn new(backend: B) -> Self {
        Compiler {
            backend,
            lowerer: Lowerer::default(),
            allocator: Allocator::default(),
            lir: Lir::default(),
            allocs: Vec::new(),
            passes: PassScratch::default(),
            direct: Scratch::default(),
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
        let CompileOptions { opt_level, plain, skip, lower, alloc, emit } = options;
        // Confinement and blinding work on virtual registers, so such programs are always compiled by the optimiser.
        let blind = emit.hardening.blind_constants.then(random);
        if *opt_level == OptLevel::None && facts.contained.is_none() && blind.is_none() {
            let options = DirectOptions { lower, alloc, emit, scratch: &mut self.direct };
            return self.lowerer.emit(program, facts, signatures, options, &mut self.backend, code);
        }
        let machine = self.backend.machine(emit);
        let mut skip = *skip;
        loop {
            self.lowerer.lower(program, facts, signatures, lower, &mut self.lir);
            debug_assert_eq!(self.lir.verify(), Ok(()), "after lowering:\n{}", self.lir);
            let passes = PassOptions {
                addresses: machine.addresses,
                plain: *plain,
                contained: facts.contained.is_some(),
                blind,
                skip,
            };
            optimise(&mut self.lir, passes, &mut self.passes);
            // In every build, since results do not show a missing confinement.
            let contained = facts.contained.as_ref();
            let Some((func, op)) = contained.and_then(|facts| unconfined(&self.lir, &facts.regions)) else { break };
            // `gather` removes confinements where masks bound the index. Where paths meet in registers, the check may
            // not find that bound again; then the program is compiled without the pass.
            if skip.contains(Pass::Gather) {
                debug_assert!(false, "function {func}: {op:?} is not confined:\n{}", self.lir);
                return Err(EmitError::Internal("an access of a contained program has no bound"));
            }
            skip = skip.with(Pass::Gather);
        }
        self.allocs.resize_with(self.lir.funcs.len(), Alloc::default);
        for (func, out) in self.lir.funcs.iter().zip(&mut self.allocs) {
            self.allocator.allocate(func, machine, alloc, out);
        }
        // The entries of a table would be constants of the program in its code, and a contained program must have no
        // jump that could leave its confinement on a mispredicted path. Plain code shows each instruction's own.
        let jump_tables = emit.jump_tables && !plain && facts.contained.is_none() && blind.is_none();
        let emit = EmitOptions { jump_tables, ..*emit };
        self.backend.emit(&self.lir, &self.allocs, &emit, code)?;
        // The main program has a virtual register for the hidden argument only if one of its ops reads it, or if it
        // calls a subprogram that reads it.
        let reads = self.lir.funcs.first().is_none_or(|main| main.ctx.is_some());
        code.needs = if reads { self.lowerer.needs() } else { Needs::Nothing };
        Ok(())
    }

    /// Returns the changes that each pass would make to `program`, instruction by instruction, in the order of the
    /// passes.
    pub fn report(
        &mut self,
        program: &Program,
        facts: &Facts,
        signatures: &dyn Signatures,
        options: &CompileOptions,
    ) -> Vec<Change> {
        self.lowerer.lower(program, facts, signatures, &options.lower, &mut self.lir);
        let addresses = self.backend.machine(&options.emit).addresses;
        let passes = PassOptions {
            addresses,
            plain: options.plain,
            contained: facts.contained.is_some(),
            blind: None,
            skip: options.skip,
        };
        bpf_opt::report(&mut self.lir, passes, &mut self.passes)
    }

    /// Returns the intermediate form of the last program that was compiled with optimisation.
    pub fn lir(&self) -> &Lir {
        &self.lir
    }
}

/// Returns a random number, as unpredictable as the keys of the standard library's hash maps.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
