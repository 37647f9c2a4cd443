//! Contexts of the host's own: the rights of programs on them, in the verifier and on each engine, and the C
//! declarations for authors.

use crate::common::engines::engines;
use bpf_runtime::{
    BpfContext, Config, Context, ContextBytes, ContextBytesMut, Engine, Linker, LoadError, MapSet, Object, Program,
    RunError, error::LookupError, isa::assemble,
};

#[derive(BpfContext, Debug)]
#[repr(C)]
struct Request<'p> {
    method: u32,
    #[bpf(writable)]
    verdict: u32,
    ports: [u16; 2],
    #[bpf(writable)]
    tag: [u8; 4],
    head: ContextBytes<'p>,
    body: ContextBytesMut<'p>,
    #[bpf(writable)]
    score: i64,
}

/// The head and body of these tests' requests.
fn request<'p>(head: &'p [u8], body: &'p mut [u8]) -> Request<'p> {
    let (head, body) = (ContextBytes::new(head).unwrap(), ContextBytesMut::new(body).unwrap());
    Request { method: 6, verdict: 0, ports: [80, 443], tag: [1, 2, 3, 4], head, body, score: -1 }
}

/// No byte slice, and fields that may not be written: can be run unverified by the interpreter.
#[derive(BpfContext, Clone, Copy, Debug, PartialEq)]
#[repr(C)]
#[bpf(name = "counters")]
struct Flat {
    #[bpf(writable)]
    hits: u64,
    limit: u64,
    #[bpf(writable)]
    pair: [u32; 2],
}

fn insns(text: &str) -> Vec<bpf_runtime::isa::Insn> {
    assemble(&text.replace(';', "\n")).unwrap_or_else(|e| panic!("{e} in {text}"))
}

fn refused<C: BpfContext>(text: &str, message: &str) {
    let engine = Engine::new(Config::new()).unwrap();
    match Linker::<()>::new(&engine).loader::<C>().insns("test", insns(text)) {
        Err(LoadError::Verifier { source, .. }) => assert!(source.to_string().contains(message), "{source}"),
        other => panic!("{text}: {other:?}"),
    }
}

/// `tests/objects/request.h`, which the object was compiled with, is what the macro says.
#[test]
fn the_c_struct_is_the_layout() {
    assert_eq!(Request::c_struct(), include_str!("../objects/request.h"));
    assert_eq!(<Request as BpfContext>::NAME, "request");
    assert_eq!(Flat::NAME, "counters");
    assert_eq!(
        Flat::c_struct(),
        "struct counters {\n\t__u64 hits;\n\tconst __u64 limit;\n\t__u32 pair[2];\n} __attribute__((preserve_access_index));\n"
    );
}

#[test]
fn a_c_program_reads_and_writes_the_struct() {
    let object = Object::parse(include_bytes!("../objects/request.o")).unwrap();
    for engine in engines(|config| config) {
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let instance = Linker::<()>::new(&engine).load::<Request>(&object, maps).unwrap();
        let filter: Program<Request, ()> = instance.program("filter").unwrap();
        for len in [0, 3, 4, 8, 9] {
            let head: Vec<u8> = (10..10 + len).collect();
            let mut body = *b"Hello, world 12345 and more";
            let mut request = request(&head, &mut body);
            let expected = head.get(3).map_or(-1, |byte| i32::from(*byte));
            assert_eq!(filter.run(&mut (), &mut request).unwrap() as i32, expected);
            assert_eq!(request.score, head.iter().take(8).map(|byte| i64::from(*byte)).sum::<i64>());
            assert_eq!((request.method, request.verdict, request.ports), (6, 7, [80, 443]));
            assert_eq!(request.tag, [1, 2, 443u16 as u8, 4]);
            assert_eq!(request.head.as_slice(), head);
            assert_eq!(request.body.as_slice(), b"HELLO, WORLD 12345 and more");
            request.body.as_mut_slice()[0] = b'J';
            assert_eq!(body[..2], *b"JE");
        }
    }
}

#[test]
fn programs_keep_to_what_the_struct_allows() {
    for (text, message) in [
        ("*(u32 *)(r1 + 0) = 1; r0 = 0; exit", "may not be written"),
        ("r2 = 0; *(u64 *)(r1 + 16) = r2; r0 = 0; exit", "may not be written"),
        ("r0 = *(u32 *)(r1 + 16); exit", "must be read whole"),
        ("r0 = *(u64 *)(r1 + 0); exit", "no field at offset 0 with 8 bytes"),
        ("r0 = *(u64 *)(r1 + 56); exit", "no field at offset 56"),
        ("r2 = *(u64 *)(r1 + 16); r0 = *(u8 *)(r2 + 0); exit", "only 0 bytes are proven"),
        // The end of the body says nothing about the head.
        (
            "r2 = *(u64 *)(r1 + 16); r3 = *(u64 *)(r1 + 40); r4 = r2; r4 += 1; if r4 > r3 goto out; \
             r0 = *(u8 *)(r2 + 0); out: r0 = 0; exit",
            "leak an address",
        ),
        // The head may only be read.
        (
            "r2 = *(u64 *)(r1 + 16); r3 = *(u64 *)(r1 + 24); r4 = r2; r4 += 1; if r4 > r3 goto out; r0 = 0; \
             *(u8 *)(r2 + 0) = r0; out: r0 = 0; exit",
            "head may not be written",
        ),
    ] {
        refused::<Request>(&text.replace("out: ", "out:;"), message);
    }
    refused::<Flat>("*(u64 *)(r1 + 8) = 1; r0 = 0; exit", "may not be written");
    // Only the verifier tells a pointer from a number, so nothing else loads a context with bytes.
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let error = linker.loader::<Request>().interpreted(true).insns("test", insns("r0 = 0; exit")).unwrap_err();
    assert!(matches!(error, LoadError::NeedsVerifier { .. }), "{error}");
}

#[test]
fn an_unverified_program_in_the_interpreter_writes_writable_fields_only() {
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let run = |text: &str| {
        let program = linker.loader::<Flat>().interpreted(true).insns("test", insns(text)).unwrap();
        let mut flat = Flat { hits: 1, limit: 5, pair: [7, 8] };
        (program.run(&mut (), &mut flat), flat)
    };
    let (result, flat) = run("r0 = *(u64 *)(r1 + 8); *(u64 *)(r1 + 0) = 3; *(u64 *)(r1 + 16) = 9; exit");
    assert_eq!((result.unwrap(), flat), (5, Flat { hits: 3, limit: 5, pair: [9, 0] }));
    for text in
        ["*(u64 *)(r1 + 8) = 3; r0 = 0; exit", "*(u32 *)(r1 + 12) = 3; r0 = 0; exit", "r0 = *(u8 *)(r1 + 24); exit"]
    {
        let (result, flat) = run(text);
        assert!(matches!(result, Err(RunError::Access { .. })), "{text}: {result:?}");
        assert_eq!(flat, Flat { hits: 1, limit: 5, pair: [7, 8] });
    }
}

/// Where only the offset is not proven, the check is against the ends of the right slice.
#[test]
fn hybrid_checks_know_the_slices() {
    // head[r0] and body[r0] with r0 = method.
    let text = |start: u32| {
        format!("r2 = *(u64 *)(r1 + {start}); r3 = *(u32 *)(r1 + 0); r2 += r3; r0 = *(u8 *)(r2 + 0); exit")
    };
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let load = |start| linker.loader::<Request>().hybrid(true).insns("test", insns(&text(start))).unwrap();
        let (head, body) = (load(16), load(32));
        for (method, in_head, in_body) in
            [(0, true, true), (2, true, true), (3, false, true), (4, false, true), (5, false, false)]
        {
            let mut bytes = [11, 12, 13, 14, 15];
            let run = |program: &Program<Request<'static>, ()>, bytes: &mut [u8]| {
                program.run(&mut (), &mut Request { method, ..request(&[1, 2, 3], bytes) })
            };
            for (program, inside, expected) in [(&head, in_head, method + 1), (&body, in_body, method + 11)] {
                match run(program, &mut bytes) {
                    Ok(r0) => assert!(inside && r0 == u64::from(expected), "{method}: {r0}"),
                    Err(RunError::Access { .. }) => assert!(!inside, "{method}"),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

#[test]
fn contexts_are_told_apart() {
    #[derive(BpfContext)]
    #[repr(C)]
    struct Other {
        value: u64,
    }
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let object = Object::parse(include_bytes!("../objects/request.o")).unwrap();
    let instance = linker.load::<Request>(&object, MapSet::for_object(&engine, &object).unwrap()).unwrap();
    let error = instance.program::<Other>("filter").unwrap_err();
    assert!(matches!(error, LookupError::ContextMismatch { .. }), "{error}");
    // One layout a type, whatever its lifetime.
    assert!(core::ptr::eq(Request::layout(), Request::layout()));
    let other = linker.loader::<Other>().insns("test", insns("r0 = *(u64 *)(r1 + 0); exit")).unwrap();
    assert_eq!(other.run(&mut (), &mut Other { value: 77 }).unwrap(), 77);
}

/// Without memory, every engine passes the null pointer: addresses before it wrap round, and results may show them.
#[test]
fn no_memory_begins_at_the_same_address_on_every_engine() {
    for engine in engines(|config| config) {
        let text = "r0 = 1; r3 = r1; r3 -= 1; if r3 > r1 goto +1; r0 = 2; exit";
        let program: Program<bpf_runtime::Raw, ()> =
            Linker::new(&engine).loader().hybrid(true).insns("wraps", insns(text)).unwrap();
        assert_eq!(program.run(&mut (), &mut []).unwrap(), 1);
        assert_eq!(program.run(&mut (), &mut [0]).unwrap(), 2);
    }
}
