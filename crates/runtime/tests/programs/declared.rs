//! Functions of the host by name: an object's prototypes are compared with the host's, by `objects/declared.c`.

use crate::common::engines::engines;
use bpf_runtime::{AsyncCaller, Caller, Engine, Linker, LoadError, MapSet, Object, Raw, SharedBytes, error::LinkError};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const OBJECT: &[u8] = include_bytes!("../objects/declared.o");

/// The host's functions: the programs note in `Vec` what they tell it.
fn linker(engine: &Engine) -> Linker<Vec<u64>> {
    type Host<'a> = Caller<'a, Vec<u64>>;
    let mut linker = Linker::new(engine);
    let note = |c: &mut Host<'_>, value: u64| -> u64 {
        c.host().push(value);
        value + 1
    };
    linker.func_named("emit", note).unwrap();
    linker.func_named("say", |c: &mut Host<'_>, text: SharedBytes<'_>| c.host().push(text.len() as u64)).unwrap();
    linker.func_named("wider", |_: &mut Host<'_>| -> u32 { 40 }).unwrap();
    let double = |_: &mut Host<'_>, pair: &mut [u32; 2]| -> u64 {
        pair[0] *= 2;
        7
    };
    linker.func_named("dropped", double).unwrap();
    linker.func_named("fewer", |_: &mut Host<'_>, a: u64, b: u64| -> u64 { a + b }).unwrap();
    linker.func_named("narrow", note).unwrap();
    linker.func_named("swapped", |_: &mut Host<'_>, _: SharedBytes<'_>| -> u64 { 0 }).unwrap();
    linker.func_named("cut", |_: &mut Host<'_>| -> u64 { 0x1122_3344_5566_7788 }).unwrap();
    linker.func_named("whether", |_: &mut Host<'_>| -> bool { true }).unwrap();
    linker.func_named("odd", |_: &mut Host<'_>| -> u64 { 2 }).unwrap();
    linker.func_named("nothing", |_: &mut Host<'_>| ()).unwrap();
    linker.func_named("smaller", |_: &mut Host<'_>, _: &[u32; 2]| -> u64 { 0 }).unwrap();
    linker.func_named("named", |_: &mut Host<'_>, value: u32| -> u64 { value.into() }).unwrap();
    // Functions with numbers are compared, too, when they are called by name.
    linker.func(1001, "by_value", note).unwrap();
    linker
}

#[test]
fn functions_by_name_need_no_number() {
    let object = Object::parse(OBJECT).unwrap();
    for engine in engines(|config| config) {
        let linker = linker(&engine);
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let instance = linker.loader::<Raw>().only(&["agree"]).object(&object, maps).unwrap();
        let mut noted = Vec::new();
        assert_eq!(instance.program::<Raw>("agree").unwrap().run(&mut noted, &mut []).unwrap(), 43);
        assert_eq!(noted, [5, 42]);
    }
}

/// A function that waits is bound by its name, and its declaration compared, as one that does not wait.
#[test]
fn functions_that_wait_need_no_number() {
    let object = Object::parse(OBJECT).unwrap();
    for engine in engines(|config| config) {
        let mut linker = Linker::<Vec<u64>>::new(&engine);
        let emit = async |mut c: AsyncCaller<'_, Vec<u64>>, value: u64| -> u64 {
            c.host().push(value);
            // Not ready at once.
            let mut asked = false;
            std::future::poll_fn(|_| match std::mem::replace(&mut asked, true) {
                true => Poll::Ready(value + 1),
                false => Poll::Pending,
            })
            .await
        };
        linker.func_named_async("emit", emit).unwrap();
        linker.func_named_async("narrow", emit).unwrap();
        assert!(matches!(linker.func_named_async("emit", emit), Err(LinkError::DuplicateName { .. })));
        linker.func_named("say", |_: &mut Caller<'_, Vec<u64>>, _: SharedBytes<'_>| ()).unwrap();
        linker.func_named("wider", |_: &mut Caller<'_, Vec<u64>>| -> u32 { 40 }).unwrap();
        linker.func_named("dropped", |_: &mut Caller<'_, Vec<u64>>, _: &mut [u32; 2]| -> u64 { 7 }).unwrap();
        let load = |name: &str| {
            let maps = MapSet::for_object(&engine, &object).unwrap();
            linker.loader::<Raw>().sleepable(true).only(&[name]).object(&object, maps)
        };
        let program = load("agree").unwrap().program::<Raw>("agree").unwrap();
        let (mut noted, mut bytes) = (Vec::new(), []);
        {
            let mut run = pin!(program.run_async(&mut noted, &mut bytes));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(run.as_mut().poll(&mut cx).is_pending());
            let Poll::Ready(result) = run.poll(&mut cx) else { panic!("it waits on") };
            assert_eq!(result.unwrap(), 42);
        }
        assert_eq!(noted, [41]);
        let error = load("calls_narrow").unwrap_err();
        assert!(matches!(&error, LoadError::HostPrototype { .. }), "{error}");
    }
}

#[test]
fn a_prototype_that_differs_from_the_hosts_is_refused() {
    let object = Object::parse(OBJECT).unwrap();
    let engine = engines(|config| config).remove(0);
    let linker = linker(&engine);
    for (name, declared, host) in [
        ("fewer", "__u64 fewer(__u64)", "__u64 fewer(__u64, __u64)"),
        ("narrow", "__u64 narrow(__u32)", "__u64 narrow(__u64)"),
        ("swapped", "__u64 swapped(__u64, const char *)", "__u64 swapped(const void *, __u64)"),
        ("odd", "_Bool odd(void)", "__u64 odd(void)"),
        ("nothing", "int nothing(void)", "void nothing(void)"),
        ("smaller", "__u64 smaller(struct point *)", "__u64 smaller(const void *)"),
        ("by_value", "__u64 by_value(const __u8 *)", "__u64 by_value(__u64)"),
        (
            "named",
            "__u64 named(seventy_letters_are_more_than_a_message_of_the_host_shows_of_any...)",
            "__u64 named(__u32)",
        ),
    ] {
        let program = format!("calls_{name}");
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let error = linker.loader::<Raw>().only(&[&program]).object(&object, maps).unwrap_err();
        let LoadError::HostPrototype { source, .. } = &error else { panic!("{error}") };
        assert_eq!((&*source.declared, &*source.host), (declared, host), "{name}");
        let text = error.to_string();
        let at = format!("program `{program}`, instruction ");
        assert!(text.starts_with(&at) && text.contains("declared.c:"), "{text}");
        assert!(text.ends_with("compile it with the host's header"), "{text}");
    }
    // Modules are held to the same.
    let module = linker.loader::<Raw>().only(&["calls_fewer"]).compile(&object);
    assert!(matches!(module, Err(LoadError::HostPrototype { .. })));
}

/// A flavour (`name___old`) is the function of the name before it, if it is declared as the host has that one.
#[test]
fn flavours_are_compared_too() {
    let object = Object::parse(OBJECT).unwrap();
    let engine = engines(|config| config).remove(0);
    let linker = linker(&engine);
    let load = |program: &str| {
        let maps = MapSet::for_object(&engine, &object).unwrap();
        linker.loader::<Raw>().only(&[program]).object(&object, maps)
    };
    let mut noted = Vec::new();
    let same = load("calls_emit___same").unwrap().program::<Raw>("calls_emit___same").unwrap();
    assert_eq!((same.run(&mut noted, &mut []).unwrap(), noted), (2, vec![1]));
    let error = load("calls_narrow___old").unwrap_err().to_string();
    assert!(error.contains("host function `narrow___old` is not registered"), "{error}");
}

/// A result that is declared narrower is the low bits of the host's.
#[test]
fn a_result_may_be_declared_narrower() {
    let object = Object::parse(OBJECT).unwrap();
    let engine = engines(|config| config).remove(0);
    let linker = linker(&engine);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let instance = linker.loader::<Raw>().only(&["calls_cut"]).object(&object, maps).unwrap();
    let cut = instance.program::<Raw>("calls_cut").unwrap();
    assert_eq!(cut.run(&mut Vec::new(), &mut []).unwrap(), 0x5566_7788);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let instance = linker.loader::<Raw>().only(&["calls_whether"]).object(&object, maps).unwrap();
    let whether = instance.program::<Raw>("calls_whether").unwrap();
    assert_eq!(whether.run(&mut Vec::new(), &mut []).unwrap(), 5, "a bool is declared as one");
}

#[test]
fn a_name_is_registered_once() {
    let engine = engines(|config| config).remove(0);
    let mut linker = linker(&engine);
    let again = linker.func_named("emit", |_: &mut Caller<'_, Vec<u64>>| ());
    assert!(matches!(again, Err(LinkError::DuplicateName { name }) if name == "emit"));
    let again = linker.func(1002, "emit", |_: &mut Caller<'_, Vec<u64>>| ());
    assert!(matches!(again, Err(LinkError::DuplicateName { name }) if name == "emit"));
    let taken = linker.func(1001, "other", |_: &mut Caller<'_, Vec<u64>>| ());
    assert!(matches!(taken, Err(LinkError::DuplicateId(_))));
    // A refused registration takes neither the name nor the id.
    linker.func(1002, "other", |_: &mut Caller<'_, Vec<u64>>| ()).unwrap();
}
