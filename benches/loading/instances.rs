//! Time and heap that one more instance of a module takes.
//!
//! The module has two small maps (`crates/runtime/tests/objects/pair.c`). The other rows are alternatives to a new
//! instance: reading the module from its bytes, a reset, an instance of a pool, compiling or loading the object.

use bpf_benches::measure::{self, nanoseconds, thread_time};
use bpf_benches::table::{Table, figure};
use bpf_runtime::{Config, Engine, Linker, MapSet, Module, Object, Raw};
use std::hint::black_box;
use std::time::Duration;

const OBJECT: &[u8] = include_bytes!("../../crates/runtime/tests/objects/pair.o");

/// A row of the table: the name of a measurement, and one repetition of it.
type Row<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// Number of instances that live at once.
const TENANTS: usize = 10_000;

/// Milliseconds of this thread's CPU time since `begin`.
fn milliseconds(begin: Duration) -> f64 {
    (thread_time() - begin).as_secs_f64() * 1e3
}

/// Instances one by one: each is made and dropped.
pub(crate) fn table() -> Table {
    let engine = Engine::new(Config::new()).expect("an engine");
    let linker = Linker::<()>::new(&engine);
    let object = Object::parse(OBJECT).expect("an object");
    let module = linker.compile::<Raw>(&object).expect("a module");
    let bytes = module.serialize().expect("its bytes");
    let pool = module.pool(1).expect("a pool");
    let shared = module.instance().make().expect("an instance");
    let account = engine.account("tenant", 1 << 30);
    let maps = || {
        let mut maps = module.maps();
        for map in shared.maps() {
            maps = maps.reuse(map.name(), map).expect("its own map");
        }
        maps
    };
    let one = |repeat: u32, work: &mut dyn FnMut()| nanoseconds(repeat, |repeat| (0..repeat).for_each(|_| work()));
    let mut works: Vec<Row<'_>> = vec![
        ("an instance", Box::new(|| drop(black_box(module.instance().make().expect("an instance"))))),
        (
            "with an account and a name",
            Box::new(|| {
                let instance = module.instance().account(&account).name("tenant");
                drop(black_box(instance.make().expect("an instance")));
            }),
        ),
        (
            "with the maps of another instance",
            Box::new(|| drop(black_box(module.instantiate(maps()).expect("an instance")))),
        ),
        (
            "a serialised module, read",
            Box::new(|| {
                // SAFETY: made by `Module::serialize` above, of a module on the same context.
                let read = unsafe { Module::<Raw, ()>::deserialize(&linker, &bytes) };
                drop(black_box(read.expect("a module")));
            }),
        ),
        ("`Instance::reset`", Box::new(|| shared.reset().expect("no run is in it"))),
        (
            "an instance of a pool: taken, run once, given back, reset",
            Box::new(|| {
                let instance = pool.take().expect("one");
                let program = instance.program::<Raw>("entry").expect("its program");
                black_box(program.run(&mut (), &mut [0; 8]).expect("a run"));
            }),
        ),
        ("the object compiled", Box::new(|| drop(black_box(linker.compile::<Raw>(&object).expect("a module"))))),
        (
            "the object compiled, and an instance",
            Box::new(|| {
                let module = linker.compile::<Raw>(&object).expect("a module");
                drop(black_box(module.instance().make().expect("an instance")));
            }),
        ),
        (
            "the object loaded",
            Box::new(|| {
                let maps = MapSet::for_object(&engine, &object).expect("maps");
                drop(black_box(linker.load::<Raw>(&object, maps).expect("a load")));
            }),
        ),
    ];
    let names: Vec<&str> = works.iter().map(|(name, _)| *name).collect();
    let contenders =
        works.iter_mut().map(|(_, work)| -> measure::Contender<'_> { Box::new(move |repeat| one(repeat, work)) });
    let mut contenders: Vec<_> = contenders.collect();
    let times = measure::interleaved(&mut contenders);
    let mut table = Table::new([format!("µs (a module of {} bytes)", bytes.len()), "median".to_owned()]);
    for (name, time) in names.iter().zip(times) {
        table.row([(*name).to_owned(), figure(time / 1000.0)]);
    }
    table
}

/// Many instances that live at once.
pub(crate) fn many() {
    let engine = Engine::new(Config::new()).expect("an engine");
    let object = Object::parse(OBJECT).expect("an object");
    let module: Module<Raw, ()> = Linker::<()>::new(&engine).compile::<Raw>(&object).expect("a module");
    for round in 0..3 {
        let (heap, code) = (super::memory::heap().unwrap_or(0), engine.code_stats().bytes_used);
        let begin = thread_time();
        let tenants: Vec<_> = (0..TENANTS).map(|_| module.instance().make().expect("an instance")).collect();
        let made = milliseconds(begin);
        let heap =
            super::memory::heap().unwrap_or(0).saturating_sub(heap + tenants.capacity() * size_of_val(&tenants[0]));
        let code = engine.code_stats().bytes_used - code;
        let programs: Vec<_> = tenants.iter().map(|tenant| tenant.program::<Raw>("entry").expect("it")).collect();
        let mut best = f64::INFINITY;
        for _ in 0..20 {
            let begin = thread_time();
            for program in &programs {
                black_box(program.run(&mut (), &mut [0; 8]).expect("a run"));
            }
            best = best.min(milliseconds(begin) * 1e6 / TENANTS as f64);
        }
        let begin = thread_time();
        drop(programs);
        drop(tenants);
        println!(
            "round {round}: {TENANTS} tenants made in {made:.1} ms, {} bytes of heap and {} of code each; a run of each in \
             turn {best:.1} ns; dropped in {:.1} ms",
            heap / TENANTS,
            code / TENANTS,
            milliseconds(begin)
        );
    }
}
