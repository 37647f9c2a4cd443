//! A hook that is changed while another thread runs it: `cargo run -p bpf-runtime --example live_hook`.

use bpf_runtime::{Config, Engine, Hook, HookPolicy, Linker, Raw, isa::assemble};
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new(Config::new())?;
    let linker = Linker::<()>::new(&engine);
    let load = |name, text| linker.loader::<Raw>().insns(name, assemble(text).expect("valid text"));
    let short = load("short", "r0 = 1\nif r2 < 14 goto +1\nr0 = 2\nexit")?; // drops what is shorter than 14 bytes
    let (pass, drop) = (load("pass", "r0 = 2\nexit")?, load("drop", "r0 = 1\nexit")?);

    let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::FirstVerdict { pass: 2 })?; // the first verdict that is not 2
    hook.attach(&short)?;
    hook.attach(&pass)?;
    let dropped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            while hook.run(&mut (), &mut [0; 64])? == 2 {}
            dropped.store(true, Ordering::Relaxed);
            Ok::<(), bpf_runtime::RunError>(())
        });
        hook.replace(&pass, &drop)?; // under traffic: every run sees the list before the change or after it
        traffic.join().expect("the thread does not panic").map_err(Box::<dyn std::error::Error>::from)
    })?;
    assert!(dropped.into_inner());
    Ok(())
}
