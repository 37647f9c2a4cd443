//! `cargo bench -p bpf-benches --bench speed`: the time of compiled code beside native code and the peers, and its
//! size.
//!
//! `-- siphash parse` runs only these programs. Ratios are to native; "-" is an engine that refuses a program or
//! computes a wrong result, with the reason below the table. Each engine has each program at several addresses, and
//! the figure is the mean of their times: the address alone changes the time of native code by up to half. "native"
//! has vector instructions where clang finds a use for them; "ours" is not verified, as with the peers that have no
//! verifier.

use bpf_benches::{
    engine::{Checked, Engine, Loaded},
    engines,
    measure::{self, Contender},
    programs,
    table::{Table, figure},
};
use bpf_isa::{Insn, Reg, Src, Width};

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let selected: Vec<_> =
        programs::ALL.iter().filter(|p| wanted.is_empty() || wanted.iter().any(|name| name == p.name)).collect();
    let engines = engines::all();
    let heading = |unit: &str| {
        let names = engines.iter().map(|engine| engine.name().to_owned());
        Table::new(std::iter::once(unit.to_owned()).chain(names))
    };
    let (mut times, mut ratios, mut sizes) = (heading("ns a run"), heading("x native"), heading("code bytes"));
    let mut by_engine = vec![Vec::new(); engines.len()];
    let mut notes = Vec::new();
    // `empty` is left out of the means: its time is the time of entering a program, not of its code.
    let mut compared = 0;
    for program in &selected {
        let mut loaded: Vec<Vec<Placed>> = engines
            .iter()
            .map(|engine| {
                placed(engine.as_ref(), program).unwrap_or_else(|why| {
                    notes.push(format!("{} on {}: {why}", program.name, engine.name()));
                    Vec::new()
                })
            })
            .collect();
        let bytes: Vec<_> = loaded.iter().map(|loaded| loaded.first()?.checked.code_bytes()).collect();
        let mut contenders: Vec<Contender<'_>> = loaded
            .iter_mut()
            .flatten()
            .map(|placed| Box::new(|repeat| placed.checked.time(repeat)) as Contender<'_>)
            .collect();
        let mut measured = measure::interleaved(&mut contenders).into_iter();
        drop(contenders);
        let of_places = |loaded: &Vec<Placed>| {
            let places: Vec<f64> = measured.by_ref().take(loaded.len()).collect();
            (!places.is_empty()).then(|| measure::geometric_mean(places))
        };
        let ns: Vec<Option<f64>> = loaded.iter().map(of_places).collect();
        let cells = |values: &dyn Fn(usize) -> Option<String>| {
            let cells = (0..engines.len()).map(|i| values(i).unwrap_or_else(|| "-".into()));
            std::iter::once(program.name.to_owned()).chain(cells).collect::<Vec<_>>()
        };
        let ratio = |i: usize| Some(ns[i]? / ns[0]?);
        times.row(cells(&|i| ns[i].map(figure)));
        ratios.row(cells(&|i| ratio(i).map(|ratio| format!("{ratio:.2}"))));
        sizes.row(cells(&|i| bytes[i].map(|bytes| bytes.to_string())));
        if program.name == "empty" {
            continue;
        }
        compared += 1;
        for (i, all) in by_engine.iter_mut().enumerate() {
            all.extend(ratio(i));
        }
    }
    // The mean of an engine that ran fewer programs is not comparable.
    let means = by_engine.iter().map(|ratios| match ratios.len() == compared {
        true => format!("{:.2}", measure::geometric_mean(ratios.iter().copied())),
        false => "-".into(),
    });
    ratios.row(std::iter::once("geometric mean".to_owned()).chain(means));
    println!("native: {} -O2\n\n{times}\n{ratios}\n{sizes}", env!("NATIVE_COMPILER"));
    for note in notes {
        println!("{note}");
    }
}

/// A loaded program, and the filler loaded before it.
struct Placed {
    checked: Checked,
    _filler: Option<Box<dyn Loaded>>,
}

/// Loads the program at [`programs::PLACES`] places. A filler program loaded before each moves it, in an engine that
/// places programs side by side.
fn placed(engine: &dyn Engine, program: &programs::Program) -> Result<Vec<Placed>, String> {
    (0..programs::PLACES)
        .map(|place| {
            let filler = Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(0) };
            let filler = bpf_isa::encode(&[vec![filler; 24 * place + 1], vec![Insn::Exit]].concat());
            // An engine that refuses the filler places nothing between.
            let filler = filler.ok().and_then(|code| engine.load(&code, programs::MEMORY).ok());
            Ok(Placed { checked: Checked::new(engine, program)?, _filler: filler })
        })
        .collect()
}
