//! The host's log as a function of programs (`Linker::log`), and the limit of lines a second, by `objects/logs.c`.

use crate::common::engines::engines;
use bpf_runtime::{Config, Engine, Instance, Linker, MapSet, Object, Raw, SharedBytes, error::LinkError, run::Printed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const OBJECT: &[u8] = include_bytes!("../objects/logs.o");

/// A line as the sink received it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    from: (String, Option<String>, Option<String>),
    level: Option<u8>,
    text: String,
    dropped: u64,
}

/// A sink, and the lines that it received.
fn sink(config: Config) -> (Config, Arc<Mutex<Vec<Line>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let config = config.print(move |printed: &Printed<'_>| {
        let [account, instance] = [printed.account, printed.instance].map(|name| name.map(str::to_owned));
        let (level, text) = printed.level();
        let from = (printed.program.to_owned(), account, instance);
        sink.lock().unwrap().push(Line { from, level, text: text.to_owned(), dropped: printed.dropped });
    });
    (config, lines)
}

fn run(instance: &Instance, name: &str, data: &mut [u8]) -> u64 {
    instance.program::<Raw>(name).unwrap().run_on(data).unwrap()
}

#[test]
fn a_plug_in_logs_with_a_level() {
    let object = Object::parse(OBJECT).unwrap();
    for own in engines(|config| config) {
        let (config, lines) = sink(own.config().clone());
        let engine = Engine::new(config).unwrap();
        let mut linker: Linker = Linker::new(&engine);
        linker.log("write_log").unwrap();
        assert!(matches!(linker.log("write_log"), Err(LinkError::DuplicateName { .. })));
        let account = engine.account("group", 1 << 20);
        let module = linker.compile::<Raw>(&object).unwrap();
        let instances = [
            linker.load::<Raw>(&object, MapSet::for_object(&engine, &object).unwrap()).unwrap(),
            module.instance().name("acme").account(&account).make().unwrap(),
            module.instance().name("initech").make().unwrap(),
        ];
        let long = [&[200][..], &[b'x'; 2000]].concat();
        let texts: [(&[u8], u8, &str); 4] = [
            (b"\x03no route", 3, "no route"),
            (b"\x07ends\0here", 7, "ends"),
            (b"\x00<1>said twice", 0, "<1>said twice"),
            (&long, 7, &"x".repeat(1024)),
        ];
        for (bytes, level, text) in texts {
            for (instance, account, name) in
                [(0, None, None), (1, Some("group"), Some("acme")), (2, None, Some("initech"))]
            {
                assert_eq!(run(&instances[instance], "logs", &mut bytes.to_vec()), 1);
                let [account, name] = [account, name].map(|name: Option<&str>| name.map(str::to_owned));
                let from = ("logs".to_owned(), account, name);
                let line = Line { from, level: Some(level), text: text.to_owned(), dropped: 0 };
                assert_eq!(std::mem::take(&mut *lines.lock().unwrap()), [line]);
            }
        }
    }
}

/// The function is declared to authors as any other, does nothing where nobody listens, and another one may take its
/// place in tests of a plug-in.
#[test]
fn the_log_is_a_function_as_any_other() {
    let object = Object::parse(OBJECT).unwrap();
    let engine = Engine::new(Config::new()).unwrap();
    let maps = || MapSet::for_object(&engine, &object).unwrap();
    let mut linker: Linker = Linker::new(&engine);
    let missing = linker.loader::<Raw>().only(&["logs"]).object(&object, maps()).unwrap_err();
    assert!(missing.to_string().contains("host function `write_log` is not registered"), "{missing}");
    linker.log("write_log").unwrap();
    let instance = linker.loader::<Raw>().only(&["logs"]).object(&object, maps()).unwrap();
    assert_eq!(run(&instance, "logs", &mut b"\x03text".to_vec()), 1);
    // The verifier holds its arguments to the closure's that it stands for.
    let mut other: Linker = Linker::new(&engine);
    other.func_named("write_log", |_: &mut bpf_runtime::Caller<'_, ()>, _: u32, _: SharedBytes<'_>| ()).unwrap();
    other.loader::<Raw>().only(&["logs"]).object(&object, maps()).unwrap();
}

#[test]
fn lines_beyond_the_limit_are_dropped_and_counted() {
    const LINES: u64 = 1000;
    let object = Object::parse(OBJECT).unwrap();
    for own in engines(|config| config.metrics(true)) {
        for limit in [0, 3] {
            let (config, lines) = sink(own.config().clone().print_limit(limit));
            let engine = Engine::new(config).unwrap();
            let mut linker: Linker = Linker::new(&engine);
            linker.log("write_log").unwrap();
            let module = linker.compile::<Raw>(&object).unwrap();
            let instances = ["one", "two"].map(|name| module.instance().name(name).make().unwrap());
            let begin = Instant::now();
            for instance in &instances {
                // Dropping a line is no error.
                assert_eq!(run(instance, "prints", &mut [0; LINES as usize]), LINES);
            }
            let seconds = begin.elapsed().as_secs() + 2;
            let lines = std::mem::take(&mut *lines.lock().unwrap());
            for name in ["one", "two"] {
                let own: Vec<&Line> = lines.iter().filter(|line| line.from.2.as_deref() == Some(name)).collect();
                let printed = own.len() as u64;
                assert!(printed <= u64::from(limit) * seconds && (printed > 0) == (limit > 0), "{own:?}");
                assert!(own.first().is_none_or(|line| line.text == "line 0" && line.dropped == 0), "{own:?}");
                let snapshot = engine.snapshot();
                let of = |p: &&bpf_runtime::metrics::ProgramMetrics| {
                    p.program == "prints" && p.instance.as_deref() == Some(name)
                };
                let dropped = snapshot.programs.iter().find(of).unwrap().dropped_lines;
                assert_eq!(printed + dropped, LINES);
                assert!(own.iter().map(|line| line.dropped).sum::<u64>() <= dropped);
            }
        }
    }
}
