//! scratch
use bpf_jit::*;
use bpf_jit_code::{Arch, Code};
#[test]
fn sizes() {
    let mut tot = [0usize; 4];
    for folder in ["../../benches/programs"] {
        let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "o")).collect();
        paths.sort();
        for path in paths {
            let bytes = std::fs::read(&path).unwrap();
            let Ok(insns) = ["xdp", ".text", "raw", "raw/run", "raw/flow", "bench", "prog"].iter().find_map(|s| bpf_testkit::elf::section(&bytes, s).ok().filter(|b| !b.is_empty())).ok_or(()) else { println!("none {}", path.display()); continue };
            let program = bpf_isa::Program::new(bpf_isa::decode(&insns).unwrap()).unwrap();
            let mut x = Code::new(Arch::X64);
            Compiler::new(bpf_jit_x64::X64::default()).compile(&program, &Default::default(), &(), &CompileOptions::default(), &mut x).unwrap();
            let mut a = Code::new(Arch::Arm64);
            Compiler::new(bpf_jit_arm64::Arm64::default()).compile(&program, &Default::default(), &(), &CompileOptions::default(), &mut a).unwrap();
            println!("{} bpf {} x64 {} arm64 insns {}", path.file_name().unwrap().display(), program.insns().len(), x.bytes.len(), a.bytes.len() / 4);
            tot[0] += program.insns().len(); tot[1] += x.bytes.len(); tot[2] += a.bytes.len() / 4; tot[3] += 1;
        }
    }
    // generated programs
    let (mut xs, mut as_) = (0, 0);
    for seed in 0..300 {
        let g = bpf_testkit::generate::from_seed(seed, &bpf_testkit::generate::Shape { statements: 60, ..Default::default() });
        let mut x = Code::new(Arch::X64);
        Compiler::new(bpf_jit_x64::X64::default()).compile(&g.program, &Default::default(), &(), &CompileOptions::default(), &mut x).unwrap();
        let mut a = Code::new(Arch::Arm64);
        Compiler::new(bpf_jit_arm64::Arm64::default()).compile(&g.program, &Default::default(), &(), &CompileOptions::default(), &mut a).unwrap();
        xs += x.bytes.len(); as_ += a.bytes.len() / 4;
    }
    println!("TOTAL programs {} bpf {} x64 bytes {} arm64 insns {}; generated {xs} {as_}", tot[3], tot[0], tot[1], tot[2]);
}
