//! Tests of the suite itself: no op is missing.

use crate::host::Host;
use crate::{ALL, Bench, Build, Kind, Rng, Target, Way, random_program};
use bpf_jit::{Alloc, Backend, EmitError, EmitOptions, Lir, MachineDesc, Op, Val};
use bpf_jit_code::{Arch, Code, Hardening, Reloc};
use bpf_jit_x64::X64;
use std::collections::BTreeSet;

/// A backend that records the ops it is asked to emit, without a host.
#[derive(Default)]
struct Recorder {
    x64: X64,
    seen: BTreeSet<Kind>,
}

fn kinds(lir: &Lir) -> impl Iterator<Item = Kind> {
    lir.funcs.iter().flat_map(|func| func.all_ops()).map(Kind::of)
}

impl Target for Recorder {
    fn arch(&self) -> Arch {
        Arch::X64
    }
    fn machine(&self, options: &EmitOptions) -> &'static MachineDesc {
        self.x64.machine(options)
    }
    fn emit(&mut self, lir: &Lir, allocs: &[Alloc], options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        self.seen.extend(kinds(lir));
        self.x64.emit(lir, allocs, options, code)
    }
    fn size_bound(&self, lir: &Lir) -> usize {
        bpf_jit_x64::program_size_bound(lir)
    }
    fn options(&self) -> [EmitOptions; 4] {
        let hardening = Hardening::new().landing_pads(true);
        let plain = EmitOptions::default();
        [plain, plain, EmitOptions { hardening, ..plain }, EmitOptions { hardening, ..plain }]
    }
    fn assert_decodes(&self, _: &Code) {}
    fn stub(&self, _: u32) -> Vec<u8> {
        Vec::new()
    }
    fn relocate(&self, _: &mut [u8], _: u64, _: &Reloc, _: u64) {}
    fn data_address(&self, symbol: u32) -> u64 {
        symbol.into()
    }
    fn branch(&self, distance: i64) -> Vec<u8> {
        [&[0xe9], &(distance as i32 - 5).to_le_bytes()[..]].concat()
    }
    fn nop(&self) -> Vec<u8> {
        vec![0x0f, 0x1f, 0x44, 0, 0]
    }
    fn host(&self) -> Option<Host> {
        None
    }
    fn programs(&self) -> u64 {
        1
    }
}

/// The tests that are not random cover every op together.
#[test]
fn every_op_has_a_test() {
    let mut recorder = Recorder::default();
    for (_, test) in ALL.iter().filter(|(name, _)| !name.contains("random")) {
        test(&mut recorder);
    }
    let missing: Vec<_> = Kind::ALL.iter().filter(|kind| !recorder.seen.contains(kind)).collect();
    assert!(missing.is_empty(), "no test has {missing:?}");
}

/// Random programs are printed and parsed: an op that only the printer or only the parser knows is detected.
#[test]
fn random_programs_are_read_as_they_are_printed() {
    for seed in 0..500 {
        let text = random_program(&mut Rng(seed)).to_string();
        let read = text.parse::<bpf_jit::Lir>().unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read.to_string(), text, "seed {seed}");
    }
}

/// Each op occurs often in random programs.
#[test]
fn every_op_is_in_random_programs() {
    let mut counts = vec![0; Kind::ALL.len()];
    for seed in 0..600 {
        let seen: BTreeSet<Kind> = kinds(&random_program(&mut Rng(seed))).collect();
        for kind in seen {
            counts[kind as usize] += 1;
        }
    }
    for kind in Kind::ALL {
        assert!(counts[*kind as usize] > 20, "{kind:?} is in {} random programs of 600", counts[*kind as usize]);
    }
}

/// Every test of the list has a unique name, and the numbers of ways are as documented.
#[test]
fn the_list_is_one() {
    let names: BTreeSet<_> = ALL.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), ALL.len());
    let mut recorder = Recorder::default();
    let bench = Bench::new(&mut recorder);
    let ways: Vec<Way> = bench.all_ways(2, 1);
    assert_eq!(ways.len(), 4 * (4 + 2));
    let mut b = Build::new();
    let x = b.param(0);
    b.op(Op::Mov { width: bpf_isa::Width::W64, dst: x, src: Val::Imm(1) });
    b.exit(x);
    assert_eq!(kinds(&b.alone()).collect::<Vec<_>>(), [Kind::Mov, Kind::Exit]);
}
