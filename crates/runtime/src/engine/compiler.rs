//! The compiler for this host, with the memory that it keeps.

use bpf_jit::Compiler;
#[cfg(target_arch = "aarch64")]
use bpf_jit_arm64::Arm64;
use bpf_jit_code::{Arch, Code};
#[cfg(target_arch = "x86_64")]
use bpf_jit_x64::X64;

/// The compiler for this host.
#[cfg(target_arch = "aarch64")]
pub(crate) type HostBackend = Arm64;
/// The compiler for this host.
#[cfg(target_arch = "x86_64")]
pub(crate) type HostBackend = X64;

/// A compiler with its scratch memory and the code it makes.
#[derive(Debug)]
pub(crate) struct HostCompiler {
    pub(crate) compiler: Compiler<HostBackend>,
    pub(crate) code: Code,
}

impl Default for HostCompiler {
    fn default() -> Self {
        let arch = if cfg!(target_arch = "aarch64") { Arch::Arm64 } else { Arch::X64 };
        HostCompiler { compiler: Compiler::default(), code: Code::new(arch) }
    }
}
