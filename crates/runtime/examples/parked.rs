//! Memory of runs that wait: `cargo run --release -p bpf-runtime --example parked -- [runs]`, 100,000 by default.
//!
//! Prints, after each stage of two rounds, the resident memory of the process, its page tables and its address space.
//! `trimmed` follows a `malloc_trim`: memory that is resident before it and not after it is the allocator's.

use bpf_runtime::{AsyncCaller, Config, Engine, Linker, Raw, isa::assemble};
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

fn show(stage: &str) -> Result<(), Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    print!("{stage:>8}");
    for line in status.lines().filter(|line| ["RssAnon", "VmPTE", "VmSize"].iter().any(|key| line.starts_with(key))) {
        print!("  {}", line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    println!();
    Ok(())
}

fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: gives back memory that nobody uses.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let count = std::env::args().nth(1).map_or(Ok(100_000), |runs| runs.parse::<usize>())?;
    let engine = Engine::new(Config::new())?;
    let mut linker = Linker::<u64>::new(&engine);
    linker.func_async(1001, "wait", async |_: AsyncCaller<'_, u64>| {
        let mut asked = false;
        poll_fn(|_| if std::mem::replace(&mut asked, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    })?;
    let program = linker.loader::<Raw>().sleepable(true).insns("waits", assemble("call 1001\nr0 = 7\nexit")?)?;
    for _ in 0..2 {
        show("before")?;
        let mut hosts = vec![0; count];
        let mut runs: Vec<_> = hosts.iter_mut().map(|host| Box::pin(program.run_async(host, &mut []))).collect();
        show("made")?;
        let waiting = runs.iter_mut().map(|run| poll(run.as_mut())).filter(Poll::is_pending).count();
        show("parked")?;
        let ended =
            runs.iter_mut().map(|run| poll(run.as_mut())).filter(|polled| matches!(polled, Poll::Ready(Ok(7)))).count();
        show("resumed")?;
        drop(runs);
        drop(hosts);
        show("dropped")?;
        trim();
        show("trimmed")?;
        println!("{waiting} waited, {ended} went on");
    }
    drop((program, linker, engine));
    show("no engine")?;
    Ok(())
}
