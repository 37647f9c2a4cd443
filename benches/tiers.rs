//! `cargo bench -p bpf-benches --bench tiers`: programs that are recompiled while they run (`OptLevel::Tiered`).
//!
//! The first table is the cost of a run: in the first tier, whose code notes which program runs; after the
//! recompilation, when every entry of the program goes through a jump; and beside them the program loaded with `None`
//! and `Speed`. A program stays in its first tier here because its account has no room for more code. The second
//! table is the time from the load until the program has been recompiled.

use bpf_benches::measure::{Contender, interleaved, nanoseconds};
use bpf_benches::table::{Table, figure};
use bpf_runtime::{Config, Engine, Linker, OptLevel, Program, Raw, isa::assemble};
use std::hint::black_box;
use std::time::Instant;

type Prog = Program<Raw, ()>;

/// Number of loads of each length.
const LOADS: usize = 31;

const EMPTY: &str = "r0 = 0\nexit";
/// Returns 0 as [`EMPTY`] does, but contains a call of a helper, so that its run needs a `RunCtx` at every level.
const COULD_ASK: &str = "r0 = 0\nif r2 != 0 goto +1\ncall 8\nexit";

/// Makes a program of `length` instructions that depend on the length of the context.
fn straight(length: usize) -> String {
    let op = |i| ["r0 += r2", "r0 ^= 1234", "r3 = r0", "r3 <<= 3", "r0 += r3", "*(u64 *)(r10 - 8) = r0"][i % 6];
    let ops: Vec<&str> = (0..length - 2).map(op).collect();
    format!("r0 = r2\n{}\nexit", ops.join("\n"))
}

fn load(engine: &Engine, level: OptLevel, text: &str) -> Prog {
    Linker::new(engine).loader().opt_level(level).insns("program", assemble(text).expect("BPF")).expect("a program")
}

/// Loads the program twice: one stays in its first tier, the other has left it.
fn tiers(engine: &Engine, text: &str) -> [Prog; 2] {
    let account = engine.account("full", 1 << 20);
    let linker = Linker::new(engine);
    let loader = linker.loader().opt_level(OptLevel::Tiered).account(&account);
    let slow: Prog = loader.insns("program", assemble(text).expect("BPF")).expect("a program");
    account.set_limit(account.used()).expect("no less than is used");
    let refused = engine.tier_stats().refused;
    while slow.is_slow() && engine.tier_stats().refused == refused {
        slow.run(&mut (), &mut [1; 64]).expect("a result");
    }
    let fast = load(engine, OptLevel::Tiered, text);
    while fast.is_slow() {
        fast.run(&mut (), &mut [1; 64]).expect("a result");
    }
    [slow, fast]
}

fn runs(engine: &Engine) {
    let mut table = Table::new(["ns a run", "none", "first tier", "- none", "fast tier", "speed", "fast - speed"]);
    for (name, text) in [("empty", EMPTY), ("could ask", COULD_ASK), ("64 instructions", &straight(64))] {
        let [slow, fast] = tiers(engine, text);
        let programs = [load(engine, OptLevel::None, text), slow, fast, load(engine, OptLevel::Speed, text)];
        let run = |program: &Prog, repeat| {
            nanoseconds(repeat, |repeat| {
                for _ in 0..repeat {
                    black_box(program.run(&mut (), &mut [1; 64]).expect("a result"));
                }
            })
        };
        let mut contenders: Vec<Contender<'_>> =
            programs.iter().map(|program| Box::new(move |repeat| run(program, repeat)) as Contender<'_>).collect();
        let ns = interleaved(&mut contenders);
        let cells = [ns[0], ns[1], ns[1] - ns[0], ns[2], ns[3], ns[2] - ns[3]].map(figure);
        table.row(std::iter::once(name.to_owned()).chain(cells));
    }
    println!("{table}");
}

fn until_fast(engine: &Engine) {
    let mut table =
        Table::new(["µs, medians", "load: none", "tiered", "speed", "from a tiered load until fast", "runs till then"]);
    for length in [64, 512, 4000] {
        let text = straight(length);
        let mut times: [Vec<f64>; 5] = Default::default();
        for _ in 0..LOADS {
            for (level, times) in [OptLevel::None, OptLevel::Tiered, OptLevel::Speed].into_iter().zip(&mut times) {
                let start = Instant::now();
                let program = load(engine, level, &text);
                times.push(start.elapsed().as_secs_f64() * 1e6);
                drop(program);
            }
            let (start, mut runs) = (Instant::now(), 0.0);
            let program = load(engine, OptLevel::Tiered, &text);
            while program.is_slow() {
                black_box(program.run(&mut (), &mut [1; 64]).expect("a result"));
                runs += 1.0;
            }
            times[3].push(start.elapsed().as_secs_f64() * 1e6);
            times[4].push(runs);
        }
        let medians = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            figure(times[LOADS / 2])
        });
        table.row(std::iter::once(format!("{length} instructions, verified")).chain(medians));
    }
    println!("{table}");
}

fn main() {
    let engine = Engine::new(Config::new()).expect("a supported host");
    runs(&engine);
    until_fast(&engine);
}
