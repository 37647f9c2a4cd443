//! This backend for the suite of all backends.
#![allow(dead_code, reason = "each test file uses a part of it")]

#[cfg(all(target_arch = "aarch64", target_os = "linux"))]
pub(crate) mod native;

use bpf_jit::{Alloc, Backend, EmitError, EmitOptions, Lir, MachineDesc};
use bpf_jit_arm64::{Arm64, func_size_bound, program_size_bound};
use bpf_jit_code::{Arch, Code, CpuFeatures, Hardening, Reloc, RelocKind};
use bpf_jit_suite::{Host, Target};

/// The backend, and its host if this is one.
#[derive(Default)]
pub(crate) struct Native(Arm64);

/// Sets the bits of a field that is zero.
fn patch(bytes: &mut [u8], at: usize, bits: u32) {
    let word = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    bytes[at..at + 4].copy_from_slice(&(word | bits).to_le_bytes());
}

/// The distance in words, as a `b` or `bl` holds it.
fn imm26(distance: i64) -> u32 {
    let words = i32::try_from(distance / 4).expect("a near target");
    assert!((-1 << 25..1 << 25).contains(&words), "a near target");
    words as u32 & 0x03ff_ffff
}

impl Target for Native {
    fn arch(&self) -> Arch {
        Arch::Arm64
    }

    fn machine(&self, options: &EmitOptions) -> &'static MachineDesc {
        self.0.machine(options)
    }

    fn emit(&mut self, lir: &Lir, allocs: &[Alloc], options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        self.0.emit(lir, allocs, options, code)
    }

    fn size_bound(&self, lir: &Lir) -> usize {
        assert!(program_size_bound(lir) >= lir.funcs.iter().map(func_size_bound).sum());
        program_size_bound(lir)
    }

    fn options(&self) -> [EmitOptions; 4] {
        let all = if self.host().is_some() { CpuFeatures::host() } else { CpuFeatures::ALL };
        let plain = EmitOptions { features: CpuFeatures::BASELINE, ..EmitOptions::default() };
        let hardening = Hardening::new().landing_pads(true).return_signing(true).straight_line(true);
        [
            plain,
            EmitOptions { features: all, ..plain },
            EmitOptions { hardening, ..plain },
            EmitOptions { features: all, hardening, save_all: true, ..plain },
        ]
    }

    /// Every word decodes and every branch leads to an instruction.
    fn assert_decodes(&self, code: &Code) {
        bpf_disasm::lines(code, &|symbol| format!("symbol{}", symbol.index)).expect("code that decodes");
    }

    #[cfg(all(target_arch = "aarch64", target_os = "linux"))]
    fn stub(&self, symbol: u32) -> Vec<u8> {
        native::stub(symbol)
    }
    #[cfg(not(all(target_arch = "aarch64", target_os = "linux")))]
    fn stub(&self, _: u32) -> Vec<u8> {
        Vec::new()
    }

    fn relocate(&self, bytes: &mut [u8], address: u64, reloc: &Reloc, to: u64) {
        let at = reloc.at as usize;
        match reloc.kind {
            RelocKind::Arm64Branch26 => patch(bytes, at, imm26(to.wrapping_sub(address + at as u64) as i64)),
            RelocKind::Arm64Mov48 => {
                assert_eq!(to >> 48, 0, "an address of user space");
                for part in 0..3 {
                    patch(bytes, at + 4 * part, ((to >> (16 * part)) as u32 & 0xffff) << 5);
                }
            }
            other @ (RelocKind::X64Rel32 | RelocKind::X64Abs64) => panic!("{other:?} in arm64 code"),
        }
    }

    fn data_address(&self, symbol: u32) -> u64 {
        0xabcd_1234_5600 + u64::from(symbol)
    }

    fn branch(&self, distance: i64) -> Vec<u8> {
        (0x1400_0000 | imm26(distance)).to_le_bytes().to_vec()
    }

    fn nop(&self) -> Vec<u8> {
        0xd503_201f_u32.to_le_bytes().to_vec()
    }

    fn host(&self) -> Option<Host> {
        #[cfg(all(target_arch = "aarch64", target_os = "linux"))]
        return Some(native::HOST);
        #[cfg(not(all(target_arch = "aarch64", target_os = "linux")))]
        return None;
    }

    fn programs(&self) -> u64 {
        600
    }
}

/// Says that a test did not run, past the capture of the test harness.
pub(crate) fn skipped(test: &str, why: &str) {
    use std::io::Write;
    std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).expect("standard error");
}
