//! `cargo bench -p bpf-benches --bench entry`: what it costs to get into a program and out again.
//!
//! The program does nothing, so all that is measured is the way there and back: first a call through a function pointer and a run guard
//! by themselves, of which the rest is made, then the ways to run a program, and rbpf, which has neither guard nor a run that can be stopped.

use bpf_benches::measure::{Contender, interleaved, nanoseconds};
use bpf_benches::table::{Table, figure};
use bpf_runtime::{Config, Engine, Hook, Linker, Policy, Program, Raw, assemble};
use std::hint::black_box;

const EMPTY: &str = "r0 = 0\nexit";

/// A contender that runs `once` over and over.
fn each<'a>(mut once: impl FnMut() + 'a) -> Contender<'a> {
    Box::new(move |repeat| {
        nanoseconds(repeat, |repeat| {
            for _ in 0..repeat {
                once();
            }
        })
    })
}

fn load(config: Config) -> (Engine, Program<Raw, ()>) {
    let engine = Engine::new(config).expect("a supported host");
    let program = Linker::new(&engine).loader().insns("empty", assemble(EMPTY).expect("BPF")).expect("a program");
    (engine, program)
}

extern "C" fn nothing(_: *mut u8, _: usize) -> u64 {
    0
}

fn hook(engine: &Engine, program: &Program<Raw, ()>) -> Hook<Raw, ()> {
    let hook = Hook::new(engine, Policy::RunAll { result: 0 }).expect("memory");
    hook.attach(program).expect("a program of this engine");
    hook
}

fn main() {
    let (engine, program) = load(Config::default());
    let hook = hook(&engine, &program);
    let mut config = Config::default();
    (config.budget, config.interruptible) = (Some(1 << 40), true);
    let (_, bounded) = load(config);
    // An engine of their own: all else would be inside their guards.
    let (under_guard, under_guard_program) = load(Config::default());
    let under_guard_hook = self::hook(&under_guard, &under_guard_program);
    let (mut first, mut second) = ((), ());
    let mut runner = under_guard_program.runner(&mut first).expect("a slot");
    let mut hook_runner = under_guard_hook.runner(&mut second).expect("a slot");
    let [mut a, mut b, mut c, mut d, mut e, mut f] = [[0u8; 64]; 6];
    // Outlives the contenders.
    #[cfg(target_arch = "x86_64")]
    let (code, mut memory) = (bpf_isa::encode(&assemble(EMPTY).expect("BPF")).expect("BPF"), [0; 64]);
    let call: extern "C" fn(*mut u8, usize) -> u64 = black_box(nothing);
    let mut ways: Vec<(&str, Contender<'_>)> = vec![
        (
            "a call through a pointer",
            each(move || {
                black_box(black_box(call)(a.as_mut_ptr(), a.len()));
            }),
        ),
        ("a run guard", each(|| drop(black_box(engine.domain().enter().expect("a slot"))))),
        (
            "Program::run",
            each(|| {
                black_box(program.run(&mut (), &mut b).expect("a result"));
            }),
        ),
        (
            "Program::run, budget and interrupts",
            each(|| {
                black_box(bounded.run(&mut (), &mut c).expect("a result"));
            }),
        ),
        (
            "Hook::run, one program",
            each(|| {
                black_box(hook.run(&mut (), &mut d).expect("a result"));
            }),
        ),
        (
            "Runner::run",
            each(|| {
                black_box(runner.run(&mut e).expect("a result"));
            }),
        ),
        (
            "Runner::run of a hook",
            each(|| {
                black_box(hook_runner.run(&mut f).expect("a result"));
            }),
        ),
    ];
    #[cfg(target_arch = "x86_64")]
    {
        let mut vm = rbpf::EbpfVmRaw::new(Some(&code)).expect("a program");
        vm.jit_compile().expect("memory");
        ways.push((
            "rbpf",
            each(move || {
                // SAFETY: the program accesses no memory.
                black_box(unsafe { vm.execute_program_jit(&mut memory) }.expect("a result"));
            }),
        ));
    }
    let (names, mut contenders): (Vec<&str>, Vec<Contender<'_>>) = ways.into_iter().unzip();
    let times = interleaved(&mut contenders);
    let mut table = Table::new(["ns a run of an empty program", "", "over a call"]);
    for (name, ns) in names.into_iter().zip(&times) {
        table.row([name.to_owned(), figure(*ns), figure(ns - times[0])]);
    }
    println!("{table}");
}
