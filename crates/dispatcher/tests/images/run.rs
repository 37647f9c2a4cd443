//! Tests that execute images: every attached program is reached, and every other one too, also during updates.

use bpf_dispatcher::{DetachError, Dispatcher, HookPolicy, Image, Link, LiveImage, Options, Verdicts};
use bpf_jit_code::{Arch, Code, Hardening, Needs};
use bpf_prog_pack::{Packs, Text};
use bpf_quiesce::Domain;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Calls a tree for the program at `callee`.
///
/// # Safety
/// `tree` is the entry of a tree, `callee` of a function without arguments; a guard keeps both.
unsafe fn through(tree: *const u8, callee: *const u8) -> u64 {
    let result;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's contract; the compiler aligns the stack for asm.
    unsafe {
        std::arch::asm!("call r8", in("r8") tree, inout("rax") callee => result, clobber_abi("sysv64"));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller's contract.
    unsafe {
        std::arch::asm!("blr x6", in("x6") tree, in("x16") callee, lateout("x0") result, clobber_abi("C"));
    }
    result
}

/// A function that returns `value`, followed by `pad` bytes that are never executed.
fn stub(packs: &Packs, value: u16, pad: usize) -> Text {
    let mut code = Code::new(Arch::HOST.unwrap());
    match code.arch {
        // mov eax, value; ret
        Arch::X64 => code.bytes.extend([0xb8, value as u8, (value >> 8) as u8, 0, 0, 0xc3]),
        // movz x0, value; ret
        Arch::Arm64 => {
            code.bytes.extend((0xd280_0000_u32 | u32::from(value) << 5).to_le_bytes());
            code.bytes.extend(0xd65f_03c0_u32.to_le_bytes());
        }
    }
    code.bytes.resize(code.bytes.len() + pad, 0);
    code.entries.push(0);
    packs.stage(&code, |_| None).unwrap().finalize().unwrap()
}

fn packs() -> Packs {
    Packs::new(Domain::new(bpf_quiesce::Options::new()), bpf_prog_pack::Options::default()).unwrap()
}

fn random(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) as usize
}

fn entry(text: &Text) -> *const u8 {
    text.entry(0).unwrap()
}

#[test]
fn sets_of_1_to_64_reach_every_program() {
    let packs = packs();
    let seed = &mut 3;
    let stubs: Vec<Text> = (0..128).map(|i| stub(&packs, i, random(seed) % 9000)).collect();
    for retpolines in [false, true] {
        let hardening = Hardening::new().retpolines(retpolines).landing_pads(retpolines).straight_line(retpolines);
        for size in 0..=64 {
            let options = Options { limit: 60, align: size % 2 == 0, hardening };
            let dispatcher = Dispatcher::new(&packs, options).unwrap();
            let mut attached = Vec::new();
            while attached.len() < size {
                let i = random(seed) % stubs.len();
                if !attached.contains(&i) {
                    attached.push(i);
                    dispatcher.attach(entry(&stubs[i]) as usize).unwrap();
                }
            }
            if size % 3 == 0 {
                let hits: Vec<_> =
                    attached.iter().map(|i| (entry(&stubs[*i]) as usize, random(seed) as u64 % 100)).collect();
                dispatcher.set_hits(&hits).unwrap();
            }
            let stats = dispatcher.stats();
            assert_eq!((stats.entries, stats.direct, stats.fallback), (size, size.min(60), size.saturating_sub(60)));
            let _guard = packs.domain().enter().unwrap();
            for (i, stub) in stubs.iter().enumerate() {
                // SAFETY: the guard keeps the tree alive, `stubs` the function.
                assert_eq!(unsafe { through(dispatcher.entry(), entry(stub)) }, i as u64, "{size} entries");
            }
        }
    }
}

#[test]
fn entries_are_counted() {
    let packs = packs();
    let dispatcher = Dispatcher::new(&packs, Options::default()).unwrap();
    let (one, two) = (stub(&packs, 1, 0), stub(&packs, 2, 0));
    for program in [&one, &two, &one] {
        dispatcher.attach(entry(program) as usize).unwrap();
    }
    let updates = dispatcher.stats().updates;
    dispatcher.detach(entry(&one) as usize).unwrap();
    assert_eq!((dispatcher.stats().entries, dispatcher.stats().updates), (2, updates), "a reference is left");
    dispatcher.detach(entry(&one) as usize).unwrap();
    assert_eq!((dispatcher.stats().entries, dispatcher.stats().updates), (1, updates + 1));
    assert_eq!(dispatcher.detach(entry(&one) as usize), Err(DetachError::NotAttached));
}

#[test]
fn a_tree_can_be_switched_off() {
    let packs = packs();
    let dispatcher = Dispatcher::new(&packs, Options::default()).unwrap();
    let stub = stub(&packs, 1, 0);
    dispatcher.set_enabled(false).unwrap();
    dispatcher.attach(entry(&stub) as usize).unwrap();
    assert!(dispatcher.entry().is_null());
    assert_eq!((dispatcher.stats().entries, dispatcher.stats().direct), (1, 0));
    dispatcher.set_enabled(true).unwrap();
    assert_eq!((dispatcher.stats().entries, dispatcher.stats().direct), (1, 1));
    let _guard = packs.domain().enter().unwrap();
    // SAFETY: the guard keeps the tree alive, `stub` the function.
    assert_eq!(unsafe { through(dispatcher.entry(), entry(&stub)) }, 1);
}

#[test]
fn old_trees_are_freed() {
    let packs = packs();
    let dispatcher = Dispatcher::new(&packs, Options::default()).unwrap();
    let stub = stub(&packs, 1, 0);
    for _ in 0..100 {
        dispatcher.attach(entry(&stub) as usize).unwrap();
        dispatcher.detach(entry(&stub) as usize).unwrap();
    }
    packs.drain().unwrap();
    assert_eq!(packs.stats().programs, 2, "the stub and the current tree");
}

/// 10^4 updates while two threads call attached and detached programs; BPF_SOAK=1: 10^6.
#[test]
fn updates_under_running_threads() {
    let updates = if std::env::var_os("BPF_SOAK").is_some() { 1_000_000 } else { 10_000 };
    let packs = packs();
    let dispatcher = Dispatcher::new(&packs, Options { limit: 6, ..Options::default() }).unwrap();
    let stubs: Vec<Text> = (0..8).map(|i| stub(&packs, i, 100)).collect();
    let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // Relaxed: only ends the loop.
                while !done.load(Ordering::Relaxed) {
                    for (i, stub) in stubs.iter().enumerate() {
                        let _guard = packs.domain().enter().unwrap();
                        // SAFETY: the guard keeps the tree alive, `stubs` the function.
                        assert_eq!(unsafe { through(dispatcher.entry(), entry(stub)) }, i as u64);
                        // Relaxed: a count.
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut seed = 5;
        let mut attached = [false; 8];
        for _ in 0..updates {
            let i = random(&mut seed) % 8;
            let address = entry(&stubs[i]) as usize;
            if attached[i] {
                dispatcher.detach(address).unwrap();
            } else {
                dispatcher.attach(address).unwrap();
            }
            attached[i] = !attached[i];
        }
        while calls.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(dispatcher.stats().updates >= updates);
}

#[test]
fn chains_follow_their_policy() {
    let packs = packs();
    let verdicts: [u64; 10] = [2, 2, 5, 2, 0, 63, 64, 66, 127, 1000];
    let stubs: Vec<Text> = verdicts.iter().map(|verdict| stub(&packs, *verdict as u16, 0)).collect();
    let live = LiveImage::new(&packs);
    assert!(live.entry().is_null());
    // The hidden argument: a chain clears its count of tail calls between programs.
    let mut ctx = [0u64; 16];
    let mut run_with = |programs: &[usize], sets: &[Verdicts], policy| {
        let run_once = |needs, ctx| {
            let link = |(at, i): (usize, &usize)| {
                let address = entry(&stubs[*i]) as usize;
                Link { address, continue_on: sets.get(at).copied(), needs, budget: None }
            };
            let links: Vec<Link> = programs.iter().enumerate().map(link).collect();
            live.publish(&Image::chain(Arch::HOST.unwrap(), &links, policy, &Options::default())).unwrap();
            assert_eq!(live.current().needs(), if programs.is_empty() { Needs::Nothing } else { needs });
            let _guard = packs.domain().enter().unwrap();
            // SAFETY: a chain is a C function of six integers; the guard keeps it alive, `stubs` its programs.
            let chain: extern "C" fn(u64, u64, u64, u64, u64, *mut u64) -> u64 =
                unsafe { std::mem::transmute(live.entry()) };
            chain(0, 0, 0, 0, 0, ctx)
        };
        let result = run_once(Needs::Run, ctx.as_mut_ptr());
        // The code does not read the hidden argument, so it may be null; and the chain writes nothing to it.
        assert_eq!(run_once(Needs::Slot, std::ptr::null_mut()), result);
        assert_eq!(run_once(Needs::Nothing, std::ptr::null_mut()), result);
        result
    };
    // Every verdict against sets that contain it and sets that do not; the program after it returns 5.
    let first = HookPolicy::FirstVerdict { pass: 2 };
    for (i, verdict) in verdicts.into_iter().enumerate() {
        for set in [0, 1 << 2, 1 << 5, 1 << 2 | 1 << 5, 1 << 63, 1 << 63 | 1 << 5, u64::MAX, !(1 << 2), !(1 << 63)] {
            let set = Verdicts::Set(set);
            let goes_on = set.contains(verdict);
            assert_eq!(run_with(&[i, 2], &[set], first), if goes_on { 5 } else { verdict }, "{verdict} {set:?}");
            assert_eq!(run_with(&[i], &[set], first), if goes_on { 2 } else { verdict }, "{verdict} {set:?}");
        }
    }
    let mut run = |programs: &[usize], policy| run_with(programs, &[], policy);
    for (programs, first, last) in [
        (&[][..], 2, 9),
        (&[0], 2, 2),
        (&[2], 5, 5),
        (&[0, 1], 2, 2),
        (&[0, 2], 5, 5),
        (&[2, 0], 5, 2),
        (&[0, 2, 3, 1], 5, 2),
        (&[0, 1, 3, 2], 5, 5),
    ] {
        assert_eq!(run(programs, HookPolicy::FirstVerdict { pass: 2 }), first, "{programs:?}");
        assert_eq!(run(programs, HookPolicy::LastWins { empty: 9 }), last, "{programs:?}");
        for result in [0, 7, u64::MAX] {
            assert_eq!(run(programs, HookPolicy::RunAll { result }), result, "{programs:?}");
        }
    }
    assert_eq!(run(&[0, 1], HookPolicy::FirstVerdict { pass: 1 << 40 }), 2);
    // More programs than a short branch can jump over.
    assert_eq!(run(&[0; 48], HookPolicy::FirstVerdict { pass: 2 }), 2);
    let mut many = [0; 48];
    many[0] = 2;
    assert_eq!(run(&many, HookPolicy::FirstVerdict { pass: 2 }), 5);
}
