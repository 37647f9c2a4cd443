//! `cargo bench -p bpf-benches --bench entry`: the cost of entering a program and returning from it.
//!
//! The program does nothing, so the figures are the cost of the entry and the return alone. The first rows are the
//! parts: a call through a function pointer, and a run guard. The next rows are the ways to run a program. rbpf, the
//! last row, has neither a guard nor a run that can be stopped.
//!
//! A run consists of these steps on x86-64 (counts of instructions in the loops of this benchmark). A guard takes 26
//! instructions, 3 of them stores: it finds the thread's record by the domain's number, and checks the record's
//! state, the epoch and the slot. The rest of a run that cannot be stopped takes about 27, including the two of the
//! program and those of the loop: the checks whether the program is machine code and whether it needs a `RunCtx`,
//! loading r1 to r5, the call, and the result (an error is boxed, so that the result fits registers). A run that can
//! be stopped takes about 35 more: 8 find its `RunCtx`, 9 stores fill it (data, host, engine, budget, and fields that
//! the last run may have left), 4 store the target of a stop, one ends the run, and the others save around the call
//! the registers that a stop may overwrite. A hook adds the load of its image and, for one program under
//! `FirstVerdict`, a jump; an observer (`RunAll`) is called from the image instead, because its result is not the
//! hook's result.

use bpf_benches::measure::{Contender, interleaved, nanoseconds};
use bpf_benches::table::{Table, figure};
use bpf_runtime::{Config, Engine, Hook, HookPolicy, Linker, Program, Raw, isa::assemble};
use std::hint::black_box;

const EMPTY: &str = "r0 = 0\nexit";

/// Returns 0 as [`EMPTY`] does, but contains a call of `bpf_get_smp_processor_id`, so that its run needs a `RunCtx`.
/// The call is executed only if the memory is empty.
const COULD_ASK: &str = "r0 = 0\nif r2 != 0 goto +1\ncall 8\nexit";

const FIRST: HookPolicy = HookPolicy::FirstVerdict { pass: 2 };

/// Makes a contender that calls `once` repeatedly.
fn each<'a>(mut once: impl FnMut() + 'a) -> Contender<'a> {
    Box::new(move |repeat| {
        nanoseconds(repeat, |repeat| {
            for _ in 0..repeat {
                once();
            }
        })
    })
}

fn load(config: Config, text: &str) -> (Engine, Program<Raw, ()>) {
    let engine = Engine::new(config).expect("a supported host");
    let program = Linker::new(&engine).loader().insns("empty", assemble(text).expect("BPF")).expect("a program");
    (engine, program)
}

extern "C" fn nothing(_: *mut u8, _: usize) -> u64 {
    0
}

fn hook(engine: &Engine, program: &Program<Raw, ()>, policy: HookPolicy) -> Hook<Raw, ()> {
    let hook = Hook::new(engine, policy).expect("memory");
    hook.attach(program).expect("a program of this engine");
    hook
}

fn main() {
    let (engine, program) = load(Config::new(), EMPTY);
    let hook = hook(&engine, &program, FIRST);
    let observers = self::hook(&engine, &program, HookPolicy::RunAll { result: 0 });
    let (with_run, with_run_program) = load(Config::new(), COULD_ASK);
    let with_run_hook = self::hook(&with_run, &with_run_program, FIRST);
    // Runners have engines of their own: a runner holds a guard, and any other run on that engine would be inside it.
    let (under_guard, under_guard_program) = load(Config::new(), EMPTY);
    let under_guard_hook = self::hook(&under_guard, &under_guard_program, FIRST);
    let (_under_guard, under_guard_with_run) = load(Config::new(), COULD_ASK);
    let (mut first, mut second, mut third) = ((), (), ());
    let mut runner = under_guard_program.runner(&mut first).expect("a slot");
    let mut hook_runner = under_guard_hook.runner(&mut second).expect("a slot");
    let mut runner_with_run = under_guard_with_run.runner(&mut third).expect("a slot");
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h, mut i] = [[0u8; 64]; 9];
    // These outlive the contenders, which borrow them.
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
            "Hook::run, one program",
            each(|| {
                black_box(hook.run(&mut (), &mut d).expect("a result"));
            }),
        ),
        (
            "Hook::run, an observer",
            each(|| {
                black_box(observers.run(&mut (), &mut i).expect("a result"));
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
        (
            "Program::run, could stop",
            each(|| {
                black_box(with_run_program.run(&mut (), &mut c).expect("a result"));
            }),
        ),
        (
            "Hook::run, could stop",
            each(|| {
                black_box(with_run_hook.run(&mut (), &mut g).expect("a result"));
            }),
        ),
        (
            "Runner::run, could stop",
            each(|| {
                black_box(runner_with_run.run(&mut h).expect("a result"));
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
    println!("{}", counted());
}

/// Measures the cost of counting runs (`Config::metrics`).
fn counted() -> Table {
    let loads = [("no", false), ("yes", true)].map(|(counted, metrics)| {
        let config = || Config::new().metrics(metrics);
        (counted, load(config(), EMPTY), load(config(), COULD_ASK))
    });
    let mut names = Vec::new();
    let mut ways: Vec<Contender<'_>> = Vec::new();
    for (counted, (empty_engine, empty), (_, could_stop)) in &loads {
        let two = Hook::<Raw, ()>::new(empty_engine, HookPolicy::RunAll { result: 0 }).expect("memory");
        let second = Linker::new(empty_engine).loader().insns("second", assemble(EMPTY).expect("BPF")).expect("BPF");
        [empty, &second].into_iter().for_each(|program| two.attach(program).expect("room"));
        let [mut a, mut b, mut c] = [[0u8; 64]; 3];
        names.extend(["Program::run", "Program::run, could stop", "Hook::run, two programs"].map(|way| [way, counted]));
        ways.push(each(move || {
            black_box(empty.run(&mut (), &mut a).expect("a result"));
        }));
        ways.push(each(move || {
            black_box(could_stop.run(&mut (), &mut b).expect("a result"));
        }));
        ways.push(each(move || {
            black_box(two.run(&mut (), &mut c).expect("a result"));
        }));
    }
    let times = interleaved(&mut ways);
    let mut table = Table::new(["ns a run", "counted", "", "over one that is not"]);
    for (i, [way, counted]) in names.into_iter().enumerate() {
        table.row([way.to_owned(), counted.to_owned(), figure(times[i]), figure(times[i] - times[i % 3])]);
    }
    table
}
