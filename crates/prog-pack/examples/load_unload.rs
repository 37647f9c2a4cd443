//! Where the time of loading and unloading goes: ns for a guard, a poke, a grace period, and stage + finalize + drop.
//!
//! `cargo run --release -p bpf-prog-pack --example load_unload`. Thread CPU time, medians of interleaved rounds.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bpf_jit_code::{Arch, Code, PatchSlot};
use bpf_prog_pack::{Options, Packs, Patch};
use bpf_quiesce::{Barriers, Domain};

fn thread_cpu() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn measure(count: u32, mut f: impl FnMut()) -> f64 {
    let start = thread_cpu();
    for _ in 0..count {
        f();
    }
    (thread_cpu() - start).as_nanos() as f64 / f64::from(count)
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() {
    let arch = Arch::HOST.expect("a supported host");
    let domain = Domain::new(bpf_quiesce::Options::default());
    let fenced = Domain::new(bpf_quiesce::Options { barriers: Barriers::Fenced, ..Default::default() });
    let packs = Packs::new(Arc::clone(&domain), Options::default()).expect("packs");
    let mut code = Code::new(arch);
    code.bytes = vec![0x90; 100];
    code.entries = vec![0];
    let mut slot_code = code.clone();
    let nop: &[u8] = match arch {
        Arch::X64 => &[0x0f, 0x1f, 0x44, 0, 0],
        Arch::Arm64 => &[0x1f, 0x20, 0x03, 0xd5],
    };
    slot_code.bytes[..nop.len()].copy_from_slice(nop);
    let slot = PatchSlot::new(arch, 0).expect("aligned");
    let text = packs.stage(&slot_code, |_| None).and_then(|s| s.finalize()).expect("loads");
    let target = text.base() as usize + 64;

    let names =
        ["guard", "guard, fenced", "nested guard", "poke", "grace period", "core barrier", "stage+finalize+drop"];
    let mut samples = vec![Vec::new(); names.len()];
    for _ in 0..31 {
        let outer = domain.enter().expect("a slot");
        let nested = measure(100_000, || drop(black_box(domain.enter())));
        drop(outer);
        let row = [
            measure(100_000, || drop(black_box(domain.enter()))),
            measure(100_000, || drop(black_box(fenced.enter()))),
            nested,
            measure(5_000, || {
                text.poke(slot, Patch::Nop, Patch::Jump(target)).expect("holds a nop");
                text.poke(slot, Patch::Jump(target), Patch::Nop).expect("holds a jump");
            }) / 2.0,
            measure(1_000, || domain.synchronize().expect("outside guards")),
            measure(1_000, || drop(domain.core_barrier())),
            measure(20_000, || {
                drop(black_box(packs.stage(&code, |_| None).and_then(|s| s.finalize()).expect("loads")));
            }),
        ];
        for (samples, value) in samples.iter_mut().zip(row) {
            samples.push(value);
        }
    }
    for (name, samples) in names.iter().zip(samples) {
        println!("{name:>20}: {:8.2} ns", median(samples));
    }
    println!("{:?}", packs.stats());
}
