//! The engines of the tables. Each peer is run as its documentation says, set for speed where it offers a choice; the
//! head of its module describes the settings.

mod kernel;
mod native;
mod ours;
#[cfg(target_arch = "x86_64")]
mod rbpf;
#[cfg(target_arch = "x86_64")]
mod sbpf;

use crate::engine::Engine;

/// Returns the native code, first, and the engines of [`loaders`].
pub fn all() -> Vec<Box<dyn Engine>> {
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(native::Native::new()), Box::new(native::Native::scalar())];
    engines.extend(loaders());
    engines
}

/// Returns every engine that loads programs and can run here. A peer that cannot is announced and left out.
pub fn loaders() -> Vec<Box<dyn Engine>> {
    let mut engines: Vec<Box<dyn Engine>> = Vec::new();
    for ours in [
        ours::Ours::jit(),
        ours::Ours::verified(),
        ours::Ours::contained(),
        ours::Ours::unoptimised(),
        ours::Ours::save_all(),
        ours::Ours::interpreter(),
    ] {
        match ours {
            Ok(ours) => engines.push(Box::new(ours)),
            Err(why) => bpf_testkit::skipped("an engine of ours", &why),
        }
    }
    match bpf_testkit::kernel::available() {
        Ok(()) => engines.push(Box::new(kernel::Kernel)),
        Err(why) => bpf_testkit::skipped("the kernel as a peer", &why),
    }
    engines.extend(peers());
    engines
}

/// Returns the engines for verified code, the same with a budget, contained code, and native code without vectors.
///
/// # Panics
/// If an engine cannot be made.
pub fn containment() -> Vec<Box<dyn Engine>> {
    let ours = [ours::Ours::verified(), ours::Ours::counted(), ours::Ours::contained()];
    let mut engines: Vec<Box<dyn Engine>> =
        ours.into_iter().map(|ours| Box::new(ours.expect("an engine")) as Box<dyn Engine>).collect();
    engines.push(Box::new(native::Native::scalar()));
    engines
}

/// Returns the engines for code without hardening, and with each of the switches that this machine has.
///
/// # Panics
/// If an engine cannot be made.
pub fn hardening() -> Vec<Box<dyn Engine>> {
    let ours = ours::Ours::hardened().expect("engines");
    ours.into_iter().map(|ours| Box::new(ours) as Box<dyn Engine>).collect()
}

/// Returns the peers in user space.
#[cfg(target_arch = "x86_64")]
fn peers() -> Vec<Box<dyn Engine>> {
    vec![Box::new(rbpf::Rbpf), Box::new(sbpf::Sbpf::bare()), Box::new(sbpf::Sbpf::default())]
}

/// Returns the peers in user space: none.
#[cfg(not(target_arch = "x86_64"))]
fn peers() -> Vec<Box<dyn Engine>> {
    bpf_testkit::skipped("rbpf and solana-sbpf as peers", &"their JITs are for x86-64 only");
    Vec::new()
}
