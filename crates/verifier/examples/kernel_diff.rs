//! Our verdicts beside the Linux kernel's on random programs near the border, counted by reason. Needs bpf(2).
//!
//! `cargo run --release -p bpf-verifier --example kernel_diff -- [programs] [first seed]`, 5000 by default.

#[path = "../tests/verify/border/mod.rs"]
mod border;
#[path = "../tests/verify/kernel_compare.rs"]
mod kernel;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let count: u64 = args.next().map_or(Ok(5000), |a| a.parse())?;
    let first: u64 = args.next().map_or(Ok(1 << 40), |a| a.parse())?;
    bpf_testkit::kernel::available()?;
    let t = kernel::compare(first..first + count)?;
    println!("{count} programs: both accept {}, both refuse {}", t.both_accept, t.both_refuse);
    let n = u128::from(t.both_accept.max(1));
    let walked = |steps: u64| steps / u64::from(t.both_accept.max(1));
    println!("instructions walked, mean: ours {}, the kernel {}", walked(t.steps.0), walked(t.steps.1));
    println!(
        "mean time on those both accept: ours {} ns, the kernel's load {} ns",
        t.nanoseconds.0 / n,
        t.nanoseconds.1 / n
    );
    for (title, counts) in [("accepted here only", &t.only_ours), ("accepted by the kernel only", &t.only_kernel)] {
        println!("{title}: {}", counts.values().map(|c| c.0).sum::<u32>());
        for (reason, (n, seed)) in counts {
            println!("  {n:6}  {reason}  (seed {seed})");
        }
    }
    Ok(())
}
