//! This backend for the suite of all backends.
#![allow(dead_code, reason = "each test file uses a part of it")]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod native;

use bpf_jit::{Alloc, Backend, EmitError, EmitOptions, Lir, MachineDesc};
use bpf_jit_code::{Arch, Code, CpuFeatures, Hardening, Reloc, RelocKind};
use bpf_jit_suite::{Host, Target};
use bpf_jit_x64::X64;

/// The backend, and its host if this is one.
#[derive(Default)]
pub(crate) struct Native(X64);

impl Target for Native {
    fn arch(&self) -> Arch {
        Arch::X64
    }

    fn machine(&self, options: &EmitOptions) -> &'static MachineDesc {
        self.0.machine(options)
    }

    fn emit(&mut self, lir: &Lir, allocs: &[Alloc], options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        self.0.emit(lir, allocs, options, code)
    }

    fn size_bound(&self, lir: &Lir) -> usize {
        bpf_jit_x64::program_size_bound(lir)
    }

    fn options(&self) -> [EmitOptions; 4] {
        let all = if self.host().is_some() { CpuFeatures::host() } else { CpuFeatures::ALL };
        let plain = EmitOptions { features: CpuFeatures::BASELINE, ..EmitOptions::default() };
        let hardening = Hardening::new().retpolines(true).landing_pads(true).straight_line(true);
        [
            plain,
            EmitOptions { features: all, ..plain },
            EmitOptions { hardening, ..plain },
            EmitOptions { features: all, hardening, save_all: true, ..plain },
        ]
    }

    fn assert_decodes(&self, code: &Code) {
        let mut bytes = code.bytes.clone();
        // Jump tables are data: int3 in their place.
        for table in &code.tables {
            bytes[table.start as usize..table.end as usize].fill(0xcc);
        }
        let mut decoder = iced_x86::Decoder::new(64, &bytes, iced_x86::DecoderOptions::NONE);
        assert!(decoder.iter().all(|i| !i.is_invalid()));
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn stub(&self, symbol: u32) -> Vec<u8> {
        native::stub(symbol)
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    fn stub(&self, _: u32) -> Vec<u8> {
        Vec::new()
    }

    fn relocate(&self, bytes: &mut [u8], address: u64, reloc: &Reloc, to: u64) {
        let at = reloc.at as usize;
        match reloc.kind {
            RelocKind::X64Rel32 => {
                let distance = to.wrapping_sub(address + at as u64 + 4) as i64;
                bytes[at..at + 4].copy_from_slice(&i32::try_from(distance).expect("a near stub").to_le_bytes());
            }
            RelocKind::X64Abs64 => bytes[at..at + 8].copy_from_slice(&to.to_le_bytes()),
            other @ (RelocKind::Arm64Branch26 | RelocKind::Arm64Mov48) => panic!("{other:?} in x86-64 code"),
        }
    }

    fn data_address(&self, symbol: u32) -> u64 {
        0x1234_5600_0000_0000 | u64::from(symbol)
    }

    fn branch(&self, distance: i64) -> Vec<u8> {
        let distance = i32::try_from(distance - 5).expect("a near target");
        [&[0xe9][..], &distance.to_le_bytes()].concat()
    }

    fn nop(&self) -> Vec<u8> {
        vec![0x0f, 0x1f, 0x44, 0, 0]
    }

    fn host(&self) -> Option<Host> {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        return Some(native::HOST);
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        return None;
    }

    fn programs(&self) -> u64 {
        3000
    }
}
