//! `cargo bench -p bpf-benches --bench speed`: compiled code beside native code and the peers, and its size.
//!
//! `-- siphash parse` runs only these programs. Ratios are to native; "-" is an engine that refuses a program or gets
//! it wrong, with the reason below the table.

use bpf_benches::{
    engine::Checked,
    engines,
    measure::{self, Contender},
    programs,
    table::{Table, figure},
};

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
    for program in &selected {
        let mut loaded: Vec<Option<Checked>> = engines
            .iter()
            .map(|engine| match Checked::new(engine.as_ref(), program) {
                Ok(checked) => Some(checked),
                Err(why) => {
                    notes.push(format!("{} on {}: {why}", program.name, engine.name()));
                    None
                }
            })
            .collect();
        let bytes: Vec<_> = loaded.iter().map(|loaded| loaded.as_ref().and_then(Checked::code_bytes)).collect();
        let mut contenders: Vec<Contender<'_>> = loaded
            .iter_mut()
            .flatten()
            .map(|checked| Box::new(|repeat| checked.time(repeat)) as Contender<'_>)
            .collect();
        let mut measured = measure::interleaved(&mut contenders).into_iter();
        drop(contenders);
        let ns: Vec<Option<f64>> = loaded.iter().map(|loaded| loaded.as_ref().and_then(|_| measured.next())).collect();
        let cells = |values: &dyn Fn(usize) -> Option<String>| {
            let cells = (0..engines.len()).map(|i| values(i).unwrap_or_else(|| "-".into()));
            std::iter::once(program.name.to_owned()).chain(cells).collect::<Vec<_>>()
        };
        let ratio = |i: usize| Some(ns[i]? / ns[0]?);
        times.row(cells(&|i| ns[i].map(figure)));
        ratios.row(cells(&|i| ratio(i).map(|ratio| format!("{ratio:.2}"))));
        sizes.row(cells(&|i| bytes[i].map(|bytes| bytes.to_string())));
        for (i, all) in by_engine.iter_mut().enumerate() {
            all.extend(ratio(i));
        }
    }
    // A mean over fewer programs is no mean of the set.
    let means = by_engine.iter().map(|ratios| match ratios.len() == selected.len() {
        true => format!("{:.2}", measure::geometric_mean(ratios.iter().copied())),
        false => "-".into(),
    });
    ratios.row(std::iter::once("geometric mean".to_owned()).chain(means));
    println!("native: {} -O2\n\n{times}\n{ratios}\n{sizes}", env!("NATIVE_COMPILER"));
    for note in notes {
        println!("{note}");
    }
}
