//! Events for `tracing` (the feature): loads, refusals, changes of hooks and prog arrays, stops of runs.
//!
//! One process, and one test after the other: `tracing` caches for the process which events have listeners, and an
//! event that another thread reports first at the same time may be missed.

mod common;

use bpf_runtime::{
    Caller, Config, Engine, HelperError, Hook, HookPolicy, Linker, MapSet, Object, Plan, ProgArray, Program, Raw,
    RunError,
    isa::assemble,
    net::{Xdp, XdpBuff},
};
use common::engines::engines;
use std::fmt::{Debug, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps each event as a line; panics at an event that begins with `hates`.
#[derive(Clone, Default)]
struct Listener {
    lines: Arc<Mutex<Vec<String>>>,
    hates: Option<&'static str>,
}

/// The fields of an event or a span, the message first.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            write!(self.fields, " {}={value:?}", field.name()).unwrap();
        }
    }
}

impl Listener {
    fn note(&self, line: String) {
        assert!(self.hates.is_none_or(|hated| !line.starts_with(hated)), "{line}");
        self.lines.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("bpf_runtime")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line::default();
        span.record(&mut line);
        self.note(format!("{}{}", span.metadata().name(), line.fields));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = match line.message.as_str() {
            "program printed" => format!("{} ", event.metadata().level()),
            _ => String::new(),
        };
        self.note(format!("{level}{}{}", line.message, line.fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn returns(linker: &Linker<()>, name: &str, value: u64) -> Program<Raw, ()> {
    linker.loader().insns(name, assemble(&format!("r0 = {value}\nexit")).unwrap()).unwrap()
}

#[test]
fn what_happens_is_told() {
    let _alone = alone();
    for engine in engines(|config| config) {
        let listener = Listener::default();
        tracing::subscriber::with_default(listener.clone(), || {
            let linker = Linker::<()>::new(&engine);
            let one = returns(&linker, "one", 1);
            let [span, loaded] = listener.take().try_into().unwrap();
            assert_eq!(span, "bpf_load program=\"one\"");
            assert!(loaded.starts_with("program loaded code_bytes="), "{loaded}");
            let refused = linker.loader::<Raw>().insns("bad", assemble("r0 = r5\nexit").unwrap());
            let error = refused.expect_err("r5 is nothing");
            assert_eq!(listener.take()[1], format!("program refused error={error}"));

            let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
            hook.attach(&one).unwrap();
            assert_eq!(listener.take(), [r#"hook changed before=[] after=["one"]"#]);

            let array = ProgArray::<Raw, ()>::create(&engine, "stages", 8).unwrap();
            let two = returns(&linker, "two", 2);
            listener.take();
            array.set(3, &one).unwrap();
            array.set(3, &two).unwrap();
            array.clear(3).unwrap();
            array.clear(3).expect_err("it is empty");
            array.update([(9, Some(&one))]).expect_err("there is no such slot");
            let told = listener.take();
            assert_eq!(
                told,
                [
                    r#"prog array changed array="stages" index=3 after="one""#,
                    r#"prog array changed array="stages" index=3 before="one" after="two""#,
                    r#"prog array changed array="stages" index=3 before="two""#,
                ]
            );
            // A plan: clearing an empty slot is no change.
            let plan = Plan::new().set(&array, 0, &two).clear(&array, 1).replace(&hook, &one, &two);
            let done = plan.commit().unwrap();
            let slot = r#"prog array changed array="stages" index=0 after="two""#;
            assert_eq!(listener.take(), [slot, r#"hook changed before=["one"] after=["two"]"#]);
            drop(done);

            let endless = assemble("r0 = 0\nr0 += 1\ngoto -2").unwrap();
            let endless = linker.loader::<Raw>().hybrid(true).budget(10).insns("endless", endless).unwrap();
            listener.take();
            let error = endless.run(&mut (), &mut []).expect_err("it is endless");
            assert_eq!(listener.take(), [format!("run stopped program=\"endless\" error={error}")]);
            // The program that is in an array when its last user handle is dropped.
            drop(array);
            assert_eq!(listener.take(), [r#"prog array changed array="stages" index=0 before="two""#]);
        });
    }
}

#[test]
fn lines_of_programs_are_events_of_their_level() {
    let _alone = alone();
    let object = Object::parse(include_bytes!("objects/logs.o")).unwrap();
    for engine in engines(|config| config.print_limit(100)) {
        let listener = Listener::default();
        tracing::subscriber::with_default(listener.clone(), || {
            let mut linker = Linker::<()>::new(&engine);
            linker.log("write_log").unwrap();
            let module = linker.compile::<Raw>(&object).unwrap();
            let acme = module.instance().name("acme").make().unwrap();
            listener.take();
            for (level, name) in ["ERROR", "ERROR", "ERROR", "ERROR", "WARN", "INFO", "INFO", "DEBUG"].iter().zip(0u8..)
            {
                acme.program::<Raw>("logs").unwrap().run_on(&mut [name, b'h', b'i']).unwrap();
                let told = format!("{level} program printed program=\"logs\" instance=\"acme\" dropped=0 text=\"hi\"");
                assert_eq!(listener.take(), [told]);
            }
            acme.program::<Raw>("prints").unwrap().run_on(&mut [0]).unwrap();
            let told = "INFO program printed program=\"prints\" instance=\"acme\" dropped=0 text=\"line 0\"";
            assert_eq!(listener.take(), [told]);
        });
        // A listener that panics ends the run, as a host function that does.
        let listener = Listener { hates: Some("INFO program printed"), ..Listener::default() };
        let mut linker = Linker::<()>::new(&engine);
        linker.log("write_log").unwrap();
        let instance = linker.load::<Raw>(&object, MapSet::for_object(&engine, &object).unwrap()).unwrap();
        let error = tracing::subscriber::with_default(listener, || {
            instance.program::<Raw>("prints").unwrap().run_on(&mut [0]).unwrap_err()
        });
        assert!(matches!(&error, RunError::Host { source: HelperError::Panicked(_), .. }), "{error}");
    }
}

/// A subscriber may panic: the change is made, and the removed program waits for the runs that may be in it.
#[test]
fn a_listener_that_panics_loses_nothing() {
    let _alone = alone();
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let array = ProgArray::<Raw, ()>::create(&engine, "stages", 8).unwrap();
    let (one, two) = (returns(&linker, "one", 1), returns(&linker, "two", 2));
    array.update([(0, Some(&one)), (1, Some(&one))]).unwrap();
    drop(one);
    let listener = Listener { hates: Some("prog array changed"), ..Listener::default() };
    let changed = tracing::subscriber::with_default(listener, || {
        catch_unwind(AssertUnwindSafe(|| array.update([(0, Some(&two)), (1, None)])))
    });
    assert!(changed.is_err(), "the listener panics");
    let held: Vec<_> = array.iter().map(|(index, program)| (index, program.name().to_owned())).collect();
    assert_eq!(held, [(0, "two".to_owned())]);
    array.set(1, &two).unwrap();
}

/// A plan changes and reports all its hooks and arrays, although subscribers panic.
#[test]
fn a_listener_that_panics_sees_the_whole_plan() {
    let _alone = alone();
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let hooks = [(); 2].map(|()| Hook::<Raw, ()>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap());
        let array = ProgArray::<Raw, ()>::create(&engine, "stages", 8).unwrap();
        let (one, two) = (returns(&linker, "one", 1), returns(&linker, "two", 2));
        hooks.iter().for_each(|hook| hook.attach(&one).unwrap());
        let results = || hooks.each_ref().map(|hook| hook.run(&mut (), &mut []).unwrap());
        for hates in ["prog array changed", "hook changed"] {
            let listener = Listener { hates: Some(hates), ..Listener::default() };
            let lines = Arc::clone(&listener.lines);
            let plan = Plan::new().set(&array, 0, &two).replace(&hooks[0], &one, &two).replace(&hooks[1], &one, &two);
            let told = tracing::subscriber::with_default(listener, || {
                catch_unwind(AssertUnwindSafe(|| drop(plan.commit().unwrap())))
            });
            assert!(told.is_err(), "{hates}");
            assert_eq!((results(), array.iter().count()), ([2, 2], 1), "{hates}");
            let others = if hates == "hook changed" { 1 } else { 2 };
            assert_eq!(lines.lock().unwrap().len(), others, "{hates}: those it does not hate");
            let back = Plan::new().replace(&hooks[0], &two, &one).replace(&hooks[1], &two, &one).clear(&array, 0);
            drop(back.commit().unwrap());
        }
    }
}

/// A load's span ends while the listener's other panic unwinds; a second panic would abort the process.
#[test]
fn a_listener_that_panics_over_a_load_loads_nothing() {
    /// Panics over events and over the end of spans.
    struct Hater;

    impl Subscriber for Hater {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("bpf_runtime")
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            panic!("an event");
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {
            panic!("a span's end");
        }
    }

    let _alone = alone();
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let loaded = tracing::subscriber::with_default(Hater, || {
            catch_unwind(AssertUnwindSafe(|| drop(returns(&linker, "one", 1))))
        });
        assert!(loaded.is_err());
        assert_eq!(returns(&linker, "one", 1).run(&mut (), &mut []).unwrap(), 1);
        assert_eq!(engine.snapshot().loads, 2);
    }
}

/// A timer whose callback is stopped, which the listener panics over, is not running any more.
#[test]
fn a_listener_that_panics_leaves_no_timer_running() {
    let _alone = alone();
    for engine in engines(|config| config) {
        let mut linker = Linker::<()>::new(&engine);
        let fails = |_: &mut Caller<'_, ()>| -> Result<(), HelperError> { Err(HelperError::new("no")) };
        linker.func(1001, "fails", fails).unwrap();
        let object = Object::parse(include_bytes!("objects/timer_fails.o")).unwrap();
        let instance = linker.load::<Xdp>(&object, MapSet::for_object(&engine, &object).unwrap()).unwrap();
        let (start, cancel) = (instance.program::<Xdp>("start").unwrap(), instance.program::<Xdp>("cancel").unwrap());
        let run = |program: &Program<Xdp, ()>| program.run(&mut (), &mut XdpBuff::new(&mut [0; 16])).unwrap();
        assert_eq!(run(&start), 0);
        let listener = Listener { hates: Some("run stopped"), ..Listener::default() };
        let called = tracing::subscriber::with_default(listener, || {
            catch_unwind(AssertUnwindSafe(|| start.run_timers(&mut (), &mut XdpBuff::new(&mut [0; 16]))))
        });
        assert!(called.is_err(), "the listener panics");
        assert_eq!(run(&cancel), 0, "not EDEADLK");
    }
}
