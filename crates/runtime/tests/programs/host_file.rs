//! The host as data: a description gives the verdicts of the linker that it describes, and the header of plug-ins.

use crate::common::engines::engines;
use bpf_runtime::{
    BpfContext, Caller, Config, ContextBytes, ContextBytesMut, Engine, HelperError, Linker, SharedBytes,
    describe::{HostContext, HostContextBuff, HostInterface},
    error::LinkError,
    host::{HostValue, Pinned},
    isa::assemble,
};
use core::convert::Infallible;
use std::sync::{Arc, Mutex};

#[derive(BpfContext)]
#[repr(C)]
struct Inner {
    x: i16,
    #[bpf(writable)]
    y: u16,
    z: [u8; 4],
}

#[derive(BpfContext)]
#[repr(C)]
struct Message<'p> {
    id: u64,
    #[bpf(writable)]
    inner: Inner,
    text: ContextBytes<'p>,
    #[bpf(writable)]
    score: i64,
    body: ContextBytesMut<'p>,
}

fn linker(engine: &Engine) -> Linker<()> {
    type Host<'a> = Caller<'a, ()>;
    let mut linker = Linker::new(engine);
    linker.remove_helper(5);
    linker
        .func_named("emit", |_: &mut Host<'_>, value: u64, small: i8| -> u16 {
            u16::from_le_bytes([value.to_le_bytes()[0], small.to_le_bytes()[0]])
        })
        .unwrap();
    linker.func(1001, "say", |_: &mut Host<'_>, _: SharedBytes<'_>, _: Option<&mut [u8]>| ()).unwrap();
    linker.func(1002, "pair", |_: &mut Host<'_>, _: &mut [u32; 2], _: Option<&u64>| -> bool { true }).unwrap();
    linker
        .func_named("fail", |_: &mut Host<'_>| -> Result<Infallible, HelperError> { Err(HelperError::new("no")) })
        .unwrap();
    linker.func(1003, "memory", |_: &mut Host<'_>| -> Option<Pinned<u64>> { None }).unwrap();
    linker
}

/// An engine with limits that are not the default.
fn engine() -> Engine {
    let config = Config::new().limits(|limits| limits.steps(1000)).frame_bytes(256);
    Engine::new(config).unwrap()
}

/// The described engine and linker: of the description as a file.
fn described(host: &HostInterface) -> Linker<()> {
    let host: HostInterface = serde_json::from_str(&serde_json::to_string(host).unwrap()).unwrap();
    HostContext::define(&host).unwrap();
    let mut linker = Linker::new(&Engine::new(host.configure(Config::new())).unwrap());
    for id in &host.removed_helpers {
        linker.remove_helper(*id);
    }
    for function in &host.functions {
        linker.func_described(function, |_: &mut Caller<'_, ()>, _: &[HostValue<'_>]| Ok(0)).unwrap();
    }
    linker
}

#[test]
fn a_description_gives_the_verdicts_of_its_host() {
    let here = linker(&engine());
    let host = here.describe::<Message<'_>>().unwrap();
    let there = described(&host);
    assert_eq!(there.describe::<Message<'_>>().unwrap(), host);
    let (mut accepted, mut refused) = (0, 0);
    for text in [
        "r0 = *(u64 *)(r1 + 0)\nexit",
        // Fields that may be written, and that may not.
        "r0 = 1\n*(u16 *)(r1 + 10) = r0\nexit",
        "r0 = 1\n*(u16 *)(r1 + 8) = r0\nexit",
        "r0 = 1\n*(u64 *)(r1 + 32) = r0\nexit",
        "r0 = 1\n*(u64 *)(r1 + 0) = r0\nexit",
        // Bytes, in and beyond their bounds; of `body` they may be written.
        "r2 = *(u64 *)(r1 + 16)\nr0 = *(u8 *)(r2 + 0)\nexit",
        "r2 = *(u64 *)(r1 + 16)\nr3 = *(u64 *)(r1 + 24)\nr4 = r2\nr4 += 1\nr0 = 0\nif r4 > r3 goto +1\nr0 = *(u8 *)(r2 + 0)\nexit",
        "r2 = *(u64 *)(r1 + 16)\nr3 = *(u64 *)(r1 + 24)\nr4 = r2\nr4 += 1\nr0 = 0\nif r4 > r3 goto +1\n*(u8 *)(r2 + 0) = r0\nexit",
        "r2 = *(u64 *)(r1 + 40)\nr3 = *(u64 *)(r1 + 48)\nr4 = r2\nr4 += 1\nr0 = 0\nif r4 > r3 goto +1\n*(u8 *)(r2 + 0) = r0\nexit",
        // The end of the struct.
        "r0 = *(u64 *)(r1 + 48)\nr0 = 0\nexit",
        "r0 = *(u64 *)(r1 + 56)\nexit",
        // Functions: missing and wrong arguments, ranges of results, removed helpers.
        "*(u64 *)(r10 - 8) = 0\nr1 = r10\nr1 += -8\nr2 = 0\ncall 1002\nr1 = r10\nr0 += -9\nr1 += r0\nr0 = *(u8 *)(r1 + 0)\nexit",
        "*(u32 *)(r10 - 8) = 0\nr1 = r10\nr1 += -8\nr2 = 0\ncall 1002\nexit",
        "*(u64 *)(r10 - 8) = 0\nr1 = r10\nr1 += -4\nr2 = 0\ncall 1002\nexit",
        "r1 = r10\nr2 = 8\nr3 = 0\nr4 = 0\ncall 1001\nexit",
        "*(u64 *)(r10 - 8) = 0\nr1 = r10\nr1 += -8\nr2 = 8\nr3 = 0\nr4 = 0\ncall 1001\nexit",
        "call 1003\nif r0 == 0 goto +1\nr0 = *(u64 *)(r0 + 0)\nexit",
        "call 1003\nif r0 == 0 goto +1\nr0 = *(u64 *)(r0 + 8)\nexit",
        "call 5\nexit",
        "call 7\nexit",
        // Limits: stack and steps.
        "*(u64 *)(r10 - 256) = 1\nr0 = 0\nexit",
        "*(u64 *)(r10 - 264) = 1\nr0 = 0\nexit",
    ] {
        let verdict = here.loader::<Message<'_>>().insns("p", assemble(text).unwrap()).map(drop);
        let described = there.loader::<HostContext>().insns("p", assemble(text).unwrap()).map(drop);
        let shown = |verdict: Result<(), bpf_runtime::LoadError>| verdict.map_err(|error| error.to_string());
        *if verdict.is_ok() { &mut accepted } else { &mut refused } += 1;
        assert_eq!(shown(verdict), shown(described), "{text}");
    }
    assert!(accepted >= 8 && refused >= 9, "{accepted} {refused}");
}

#[test]
fn the_header_is_the_context_and_the_functions() {
    let header = linker(&engine()).describe::<Message<'_>>().unwrap().header().unwrap();
    assert!(header.replace("\n\n", "\n").contains(&Message::c_struct()), "{header}");
    for declaration in [
        "extern __u16 emit(__u64, __s8) __ksym;",
        "extern void say(const void *, __u64, void *, __u64) __ksym;",
        "extern _Bool pair(void *, const void *) __ksym;",
        "extern void fail(void) __ksym;",
        "extern void *memory(void) __ksym;",
    ] {
        assert!(header.contains(declaration), "{declaration} in\n{header}");
    }
}

/// Bodies get the arguments by value, and their results are cut to the type.
#[test]
fn described_functions_run() {
    let host = linker(&engine()).describe::<Message<'_>>().unwrap();
    HostContext::define(&host).unwrap();
    let program = assemble(
        "r6 = *(u64 *)(r1 + 16)\nr7 = *(u64 *)(r1 + 24)\n*(u64 *)(r10 - 8) = 7\nr1 = r10\nr1 += -8\nr2 = 0\ncall 1002\n\
         r8 = r0\nr1 = r6\nr2 = 0\nr3 = r6\nr3 += 2\nif r3 > r7 goto +1\nr2 = 2\nr3 = r10\nr3 += -8\nr4 = 8\ncall 1001\n\
         r0 = r8\nexit",
    )
    .unwrap();
    for engine in engines(|config| config) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut linker = Linker::<()>::new(&engine);
        for function in &host.functions {
            let (name, seen) = (function.name.clone(), Arc::clone(&seen));
            let body = move |_: &mut Caller<'_, ()>, args: &[HostValue<'_>]| {
                let shown = args.iter().map(|arg| match arg {
                    HostValue::Int(number) => number.to_string(),
                    HostValue::Bytes(bytes) => format!("{:?}", bytes.to_vec()),
                    HostValue::BytesMut(bytes) => format!("mut {:?}", bytes.bytes().to_vec()),
                    other => format!("{other:?}"),
                });
                seen.lock().unwrap().push(format!("{name}({})", shown.collect::<Vec<_>>().join(", ")));
                // Any number: a bool is 0 or 1.
                Ok(0x1234)
            };
            linker.func_described(function, body).unwrap();
        }
        let program = linker.loader::<HostContext>().insns("p", program.clone()).unwrap();
        let mut context = HostContextBuff::new();
        assert!(context.set("text", b"hi!"));
        assert_eq!(program.run(&mut (), &mut context).unwrap(), 1);
        let calls = seen.lock().unwrap().clone();
        assert_eq!(
            calls,
            ["pair(mut [7, 0, 0, 0, 0, 0, 0, 0], Null)", "say([104, 105], mut [7, 0, 0, 0, 0, 0, 0, 0])"]
        );
        // A function that never returns ends the run, whatever its body returns.
        linker_ends(&engine, &host);
    }
}

fn linker_ends(engine: &Engine, host: &HostInterface) {
    let mut linker = Linker::<()>::new(engine);
    let fail = host.functions.iter().find(|function| function.name == "fail").unwrap();
    let mut numbered = fail.clone();
    numbered.id = Some(1005);
    linker.func_described(&numbered, |_: &mut Caller<'_, ()>, _: &[HostValue<'_>]| Ok(3)).unwrap();
    let program = linker.loader::<HostContext>().insns("p", assemble("call 1005\nexit").unwrap()).unwrap();
    let error = program.run(&mut (), &mut HostContextBuff::new()).unwrap_err();
    assert!(error.to_string().contains("always ends the run"), "{error}");
}

#[test]
fn fields_are_read_and_written_by_name() {
    let host = linker(&engine()).describe::<Message<'_>>().unwrap();
    HostContext::define(&host).unwrap();
    let mut context = HostContextBuff::new();
    let names: Vec<&str> = context.fields().iter().map(|field| field.name.as_str()).collect();
    assert_eq!(names, ["id", "inner.x", "inner.y", "inner.z", "text", "score", "body"]);
    assert!(context.set("inner.y", &7u16.to_ne_bytes()) && context.set("score", &(-2i64).to_ne_bytes()));
    assert!(context.set("body", b"abc"));
    assert_eq!(context.get("inner.y").unwrap(), 7u16.to_ne_bytes());
    assert_eq!(context.get("inner.x").unwrap(), [0; 2]);
    assert_eq!((context.get("body").unwrap(), context.get("text").unwrap()), (b"abc".to_vec(), Vec::new()));
    assert!(!context.set("inner.y", &[0; 4]) && !context.set("inner", &[0; 8]) && !context.set("none", &[]));
    assert_eq!(context.get("none"), None);
    // As the program finds them: score + body[2].
    let text = "r0 = *(u64 *)(r1 + 32)\nr2 = *(u64 *)(r1 + 40)\nr3 = *(u64 *)(r1 + 48)\nr4 = r2\nr4 += 3\n\
                if r4 > r3 goto +2\nr2 = *(u8 *)(r2 + 2)\nr0 += r2\nexit";
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let program = linker.loader::<HostContext>().insns("p", assemble(text).unwrap()).unwrap();
        assert_eq!(program.run(&mut (), &mut context).unwrap(), u64::from(b'c') - 2);
    }
}

/// A description has no ids that were removed, and a function that no file can name is an error.
#[test]
fn descriptions_are_files_that_can_be_read() {
    type Host<'a> = Caller<'a, ()>;
    let mut linker = Linker::<()>::new(&engine());
    linker.func(1001, "first", |_: &mut Host<'_>| ()).unwrap();
    linker.remove_helper(1001).func(1001, "second", |_: &mut Host<'_>| -> u8 { 1 }).unwrap();
    linker.func(1002, "third", |_: &mut Host<'_>| ()).unwrap();
    linker.remove_helper(1002);
    let host = linker.describe::<Inner>().unwrap();
    let ids: Vec<_> = host.functions.iter().map(|function| (&*function.name, function.id)).collect();
    assert_eq!(ids, [("first", None), ("second", Some(1001)), ("third", None)]);
    host.check().unwrap();
    let mut again = Linker::<()>::new(&engine());
    for function in &host.functions {
        again.func_described(function, |_: &mut Host<'_>, _: &[HostValue<'_>]| Ok(0)).unwrap();
    }
    linker.func_named("no-name", |_: &mut Host<'_>| ()).unwrap();
    let error = linker.describe::<Inner>().unwrap_err();
    assert!(matches!(&error, LinkError::Undescribed { name } if name == "no-name"), "{error}");
}

/// A description of any content is a host or has an error that names the place.
#[test]
fn wrong_descriptions_are_told_where() {
    let host = linker(&engine()).describe::<Message<'_>>().unwrap();
    let good = serde_json::to_value(&host).unwrap();
    let wrong = |pointer: &str, value: serde_json::Value| {
        let mut changed = good.clone();
        *changed.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} in {good:#}")) = value;
        let host: HostInterface = serde_json::from_value(changed).map_err(|error| error.to_string())?;
        let error = host.check().map_err(|error| error.to_string());
        assert_eq!(error.is_ok(), host.header().is_ok());
        error
    };
    assert_eq!(wrong("/version", 2.into()), Ok(()));
    for (pointer, value, place) in [
        ("/version", serde_json::json!(1), "version: "),
        ("/version", serde_json::json!(3), "version: "),
        ("/context/name", serde_json::json!("a b"), "context.name: "),
        ("/context/fields/0/name", serde_json::json!("x; int evil"), "context.fields[0].name: "),
        ("/context/fields/3/name", serde_json::json!("id"), "context.fields[3].name: there are two fields `id`"),
        ("/context/fields/0/name", serde_json::json!("text_end"), "context.fields[2].name: there are two"),
        ("/context/fields/0/type", serde_json::json!({"int": "u32"}), "context.fields[2]: the field would lie behind"),
        ("/context/fields/0/type", serde_json::json!({"int": "bool"}), "context.fields[0].type: "),
        ("/context/fields/2/writable", serde_json::json!(true), "context.fields[2].writable: "),
        (
            "/context/fields/1/type/struct/fields/2/type",
            serde_json::json!({"array": {"of": "u8", "count": 0}}),
            "context.fields[1].type.struct.fields[2]: ",
        ),
        (
            "/context/fields/1/type/struct/fields/2/type",
            serde_json::json!({"array": {"of": "u64", "count": 4_000_000_000u32}}),
            "context.fields[1].type.struct.fields[2]: ",
        ),
        ("/context/fields", serde_json::json!([]), "context.fields: "),
        ("/functions/1/name", serde_json::json!("emit"), "functions[1].name: there are two functions `emit`"),
        ("/functions/1/name", serde_json::json!(""), "functions[1].name: "),
        ("/functions/0/params/0", serde_json::json!({"int": "bool"}), "functions[0].params[0]: "),
        (
            "/functions/2/params/0",
            serde_json::json!({"struct": {"bytes": 0, "align": 1, "writable": false, "null": false}}),
            "functions[2].params[0].struct.bytes: ",
        ),
        (
            "/functions/2/params/0",
            serde_json::json!({"struct": {"bytes": 8, "align": 3, "writable": false, "null": false}}),
            "functions[2].params[0].struct.align: ",
        ),
        (
            "/functions/0/params",
            serde_json::json!(vec![serde_json::json!({"int": "u8"}); 6]),
            "functions[0].params[5]: ",
        ),
        ("/functions/4/result", serde_json::json!({"memory": {"bytes": 0}}), "functions[4].result.memory.bytes: "),
        ("/functions/0/result", serde_json::json!("magic"), "unknown variant `magic`"),
        (
            "/functions/2/params/0",
            serde_json::json!({"struct": {"bytes": 8, "align": 8, "writable": false, "null": false, "aligned": 8}}),
            "unknown field `aligned`",
        ),
        ("/limits/fuel", serde_json::json!(-1), "invalid value"),
        ("/limits/frame_bytes", serde_json::json!(u32::MAX), "limits.frame_bytes: "),
        ("/limits/frame_bytes", serde_json::json!(12), "limits.frame_bytes: 12 is no multiple of 8"),
        ("/limits/budget", serde_json::json!(0), "limits.budget: 0 lets no run begin"),
    ] {
        let error = wrong(pointer, value).unwrap_err();
        assert!(error.starts_with(place), "{pointer}: {error}");
    }
    // Another context in one process.
    let mut other = host;
    other.context.name = "other".to_owned();
    HostContext::define(&linker(&engine()).describe::<Message<'_>>().unwrap()).unwrap();
    assert!(HostContext::define(&other).unwrap_err().to_string().contains("another context"));
}
