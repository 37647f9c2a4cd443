//! `cargo bench -p bpf-benches --bench checks`: the cost of a check of an access at run time.
//!
//! A program makes 64 accesses at an offset from its data. It has three forms: *proven*, in which one mask and one
//! comparison at the start make every access safe; *by hand*, with a comparison before each access; and *hybrid*,
//! with neither, loaded by `Loader::hybrid`, which inserts checks. The rest of the code is equal, so the difference
//! of a form to *proven*, divided by 64, is the cost of a checked access.

use bpf_benches::measure::{self, Contender};
use bpf_benches::table::{Table, figure};
use bpf_runtime::{
    Config, Context, Engine, Linker, Program, Raw,
    isa::assemble,
    net::{Xdp, XdpBuff},
};
use std::fmt::Write;

const ACCESSES: usize = 64;

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Proven,
    ByHand,
    Hybrid,
}

/// Returns the program's text. r6 is the start of the data, r7 its end, r3 the offset; `enter` loads r6 and r7.
fn text(enter: &str, size: usize, form: Form) -> String {
    let mut t = format!("r0 = 0\n{enter}\nr4 = r6\nr4 += 8\nif r4 > r7 goto out\nr3 = *(u64 *)(r6 + 0)\n");
    if form == Form::Proven {
        writeln!(t, "r3 &= 63\nr4 = r6\nr4 += 200\nif r4 > r7 goto out").expect("a string");
    }
    if form == Form::ByHand {
        // A comparison with the end proves an access only if the offset is known to be small.
        writeln!(t, "if r3 > 0xffff goto out").expect("a string");
    }
    for _ in 0..ACCESSES {
        writeln!(t, "r4 = r6\nr4 += r3").expect("a string");
        if form == Form::ByHand {
            writeln!(t, "r5 = r4\nr5 += {size}\nif r5 > r7 goto out").expect("a string");
        }
        writeln!(t, "r5 = *(u{} *)(r4 + 0)\nr0 += r5\nr3 += 1", 8 * size).expect("a string");
    }
    t + "out: exit"
}

fn load<C: Context>(linker: &Linker<()>, text: &str, form: Form) -> Program<C, ()> {
    let insns = assemble(text).expect("the text is one of ours");
    let loader = linker.loader::<C>();
    let loader = if form == Form::Hybrid { loader.hybrid(true) } else { loader };
    loader.insns("accesses", insns).unwrap_or_else(|e| panic!("{e}"))
}

fn main() {
    let engine = Engine::new(Config::new()).expect("an engine");
    let linker = Linker::<()>::new(&engine);
    let mut table =
        Table::new(["accesses", "proven ns", "by hand ns", "hybrid ns", "by hand / access", "hybrid / access"]);
    let forms = [Form::Proven, Form::ByHand, Form::Hybrid];
    let mut data = vec![1u8; 256];
    data[..8].copy_from_slice(&5u64.to_le_bytes());
    for size in [1, 8] {
        let enter = "r6 = r1\nr7 = r1\nr7 += r2";
        let programs = forms.map(|form| load::<Raw>(&linker, &text(enter, size, form), form));
        let results = programs.each_ref().map(|p| p.run(&mut (), &mut data).expect("it runs"));
        assert!(results[0] != 0 && results.iter().all(|r| *r == results[0]), "{results:?}");
        let mut contenders: Vec<Contender<'_>> = programs
            .iter()
            .map(|program| {
                let mut data = data.clone();
                let run = move |repeat: u32| {
                    measure::nanoseconds(1, |_| {
                        program.test_run(&mut (), &mut data, repeat).expect("it runs");
                    }) / f64::from(repeat)
                };
                Box::new(run) as Contender<'_>
            })
            .collect();
        row(&mut table, format!("raw, {size} bytes"), &measure::interleaved(&mut contenders));
    }
    for size in [1, 8] {
        let enter = "r6 = *(u32 *)(r1 + 0)\nr7 = *(u32 *)(r1 + 4)";
        let programs = forms.map(|form| load::<Xdp>(&linker, &text(enter, size, form), form));
        let mut contenders: Vec<Contender<'_>> = programs
            .iter()
            .map(|program| {
                let mut data = data.clone();
                let run = move |repeat: u32| {
                    measure::nanoseconds(1, |_| {
                        program.test_run(&mut (), &mut XdpBuff::new(&mut data), repeat).expect("it runs");
                    }) / f64::from(repeat)
                };
                Box::new(run) as Contender<'_>
            })
            .collect();
        row(&mut table, format!("xdp_md, {size} bytes"), &measure::interleaved(&mut contenders));
    }
    println!("{table}");
}

fn row(table: &mut Table, name: String, ns: &[f64]) {
    let per_access = |i: usize| format!("{:.2}", (ns[i] - ns[0]) / ACCESSES as f64);
    table.row([name, figure(ns[0]), figure(ns[1]), figure(ns[2]), per_access(1), per_access(2)]);
}
