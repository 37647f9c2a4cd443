//! Listings of machine code, compiled for either architecture on any host.

use crate::call::helpers::table::shipped;
use crate::error::LoadError;
use bpf_analysis::{CallArity, Cfg, Constants, Facts};
use bpf_isa::{Insn, InsnIdx, Program};
use bpf_jit::{Change, CompileOptions, Compiler, Hidden, Signatures};
use bpf_jit_arm64::Arm64;
use bpf_jit_code::{Arch, Code};
use bpf_jit_x64::X64;
use bpf_uapi::Helper;
use bpf_verifier::Helpers;

/// Options of [`compile_listing`]. With direct tail calls, every table is assumed to be as long as its constant indices
/// need.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListingOptions {
    /// Lowering, allocation and emission.
    pub compile: CompileOptions,
}

/// Compiles a program for a listing, for either architecture on any host. The program is not verified, and the code is
/// neither placed nor relocated. `targets`: the targets of indirect jumps ([`bpf_object::Code::jump_tables`]).
///
/// # Errors
/// [`LoadError::Structure`], [`LoadError::Compile`].
pub fn compile_listing(
    arch: Arch,
    name: &str,
    insns: Vec<Insn>,
    targets: Vec<InsnIdx>,
    options: &ListingOptions,
) -> Result<(Program, Code), LoadError> {
    let program = Program::with_targets(insns, targets).map_err(LoadError::structure(name))?;
    let fail = |source| LoadError::Compile { program: name.to_owned(), source };
    let mut code = Code::new(arch);
    let (mut facts, shipped, options) = (Facts::default(), Shipped(Helpers::shipped()), &options.compile);
    if options.lower.direct_tail_calls {
        facts.tail_calls = Constants::default().tail_calls(&program, &Cfg::new(&program), |_| Some(u32::MAX));
    }
    match arch {
        Arch::X64 => Compiler::<X64>::default().compile(&program, &facts, &shipped, options, &mut code),
        Arch::Arm64 => Compiler::<Arm64>::default().compile(&program, &facts, &shipped, options, &mut code),
    }
    .map_err(fail)?;
    Ok((program, code))
}

/// Returns the changes that each pass of the optimiser makes, by instruction, in the order of the passes. `targets` as
/// in [`compile_listing`].
///
/// # Errors
/// [`LoadError::Structure`].
pub fn optimiser_report(
    arch: Arch,
    name: &str,
    insns: Vec<Insn>,
    targets: Vec<InsnIdx>,
    options: &ListingOptions,
) -> Result<Vec<Change>, LoadError> {
    let program = Program::with_targets(insns, targets).map_err(LoadError::structure(name))?;
    let (facts, shipped, options) = (Facts::default(), Shipped(Helpers::shipped()), &options.compile);
    Ok(match arch {
        Arch::X64 => Compiler::<X64>::default().report(&program, &facts, &shipped, options),
        Arch::Arm64 => Compiler::<Arm64>::default().report(&program, &facts, &shipped, options),
    })
}

/// The shipped helpers' signatures.
struct Shipped(Helpers);

impl CallArity for Shipped {
    fn helper(&self, id: u32) -> u8 {
        self.0.get(id).map_or(5, |proto| proto.arity())
    }
    fn host(&self, _: i32) -> u8 {
        5
    }
}

impl Signatures for Shipped {
    fn helper_hidden(&self, id: u32) -> Hidden {
        match Helper::from_id(id).and_then(shipped) {
            Some(func) if !func.needs_ctx => Hidden::Nothing,
            Some(_) | None => Hidden::Ctx,
        }
    }
    fn host_hidden(&self, _: i32) -> Hidden {
        Hidden::Ctx
    }
}
