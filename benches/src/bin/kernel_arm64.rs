//! Our arm64 code beside that of the kernel's arm64 JIT: instruction counts, and whether the results agree.
//!
//! `cargo xtask kernel-arm64` boots an arm64 kernel under qemu-system with this program as its init; on an arm64 machine it can
//! be run as it is, as root. Each speed program is loaded into the kernel and into our engine, run in both, and compared
//! with the native result, memory included. As init it switches the machine off at the end.

use bpf_benches::{
    measure,
    programs::{ALL, MEMORY},
    table::Table,
};
use bpf_runtime::{Arch, Config, Engine, Linker, ListingOptions, Raw, compile_listing, decode};
use bpf_testkit::kernel::{self, RawProgram, prologue_bytes};

fn main() {
    let result = compare();
    if let Err(why) = &result {
        eprintln!("{why}");
    }
    if std::process::id() == 1 {
        // SAFETY: no pointer is passed; nothing else runs on this machine.
        unsafe { libc::reboot(libc::RB_POWER_OFF) };
    }
    std::process::exit(i32::from(result.is_err()));
}

fn compare() -> Result<(), String> {
    if Arch::HOST != Some(Arch::Arm64) {
        return Err("this compares arm64 JITs: `cargo xtask kernel-arm64` runs it on another machine".into());
    }
    kernel::available().map_err(|e| e.to_string())?;
    // Four instructions for an address, at most one for the length: not the program's.
    let prologue = prologue_bytes(MEMORY as u32).map_err(|e| e.to_string())?;
    let linker = Linker::<()>::new(&Engine::new(Config::default()).map_err(|e| e.to_string())?);
    let mut table = Table::new(["arm64 instructions", "kernel", "ours", "ratio", "save all", "results"]);
    let (mut ratios, mut larger, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for program in ALL {
        let code = program.code();
        let (mut native, mut in_kernel, mut ours) = (program.memory(), program.memory(), program.memory());
        let expected = program.run_native(native.bytes());

        let peer = RawProgram::load(&code, MEMORY as u32).map_err(|e| format!("{}: {e}", program.name))?;
        let peer_result = peer.run(in_kernel.bytes(), 1).map_err(|e| e.to_string())?.result;
        let functions = peer.machine_code().map_err(|e| e.to_string())?;
        let peer_count = (functions.iter().map(Vec::len).sum::<usize>() - prologue) / 4;

        let insns = decode(&code).map_err(|e| e.to_string())?;
        // SAFETY: the kernel's verifier has accepted the program with memory of this length.
        let loader = unsafe { linker.loader::<Raw>().unverified() };
        let loaded = loader.insns(program.name, insns.clone()).map_err(|e| e.to_string())?;
        let result = loaded.run(&mut (), ours.bytes()).map_err(|e| e.to_string())?;
        let count = |save_all| {
            let mut options = ListingOptions::default();
            options.compile.emit.save_all = save_all;
            compile_listing(Arch::Arm64, program.name, insns.clone(), &options)
                .map(|(_, code)| code.bytes.len() / 4)
                .map_err(|e| e.to_string())
        };
        let (by_need, save_all) = (count(false)?, count(true)?);

        let agree = peer_result == expected && result as u32 == expected && in_kernel == native && ours == native;
        let ratio = by_need as f64 / peer_count as f64;
        ratios.push(ratio);
        if by_need > peer_count {
            larger.push(program.name);
        }
        if !agree {
            wrong.push(program.name);
        }
        table.row([
            program.name.to_owned(),
            peer_count.to_string(),
            by_need.to_string(),
            format!("{ratio:.2}"),
            save_all.to_string(),
            if agree { "agree" } else { "DIFFER" }.to_owned(),
        ]);
    }
    println!("{table}");
    println!("geometric mean of the ratios: {:.2}", measure::geometric_mean(ratios));
    if !larger.is_empty() {
        println!("larger than the kernel's: {}", larger.join(", "));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("results differ: {}", wrong.join(", "))) }
}
