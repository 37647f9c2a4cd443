//! A plug-in in Rust (`examples/limit-rust`, compiled by `bpf build`) on every engine: maps, records, tail calls, host
//! functions by name, panics.

use crate::common::engines::engines;
use bpf_runtime::maps::typed::TypedHash;
use bpf_runtime::{
    BpfContext, Caller, ContextBytes, HelperError, Linker, MapSet, Object, ProgArray, RunError, SharedBytes,
    maps::RingBuf,
};

#[derive(BpfContext)]
#[bpf(name = "request")]
#[repr(C)]
struct Request<'r> {
    client: u32,
    #[bpf(writable)]
    cost: u32,
    path: ContextBytes<'r>,
}

fn request(client: u32, path: &[u8]) -> Request<'_> {
    Request { client, cost: 0, path: ContextBytes::new(path).unwrap() }
}

#[test]
fn a_plug_in_in_rust_does_what_it_says() {
    for engine in engines(|config| config) {
        let mut linker = Linker::<Vec<String>>::new(&engine);
        let say = |c: &mut Caller<'_, Vec<String>>, text: SharedBytes<'_>| -> Result<(), HelperError> {
            let text = String::from_utf8(text.to_vec()).map_err(HelperError::new)?;
            c.host().push(text);
            Ok(())
        };
        linker.func(1001, "say", say).unwrap();
        let object = Object::parse(include_bytes!("../../../../examples/limit_rust.o")).unwrap();
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let instance = linker.load::<Request<'_>>(&object, maps).unwrap_or_else(|e| panic!("{e}"));

        // Three requests of each client.
        let limit = instance.program::<Request<'_>>("limit").unwrap();
        let mut said = Vec::new();
        let mut run = |client, path: &[u8]| limit.run(&mut said, &mut request(client, path)).unwrap();
        assert_eq!([0; 5].map(|_| run(7, b"/")), [0, 0, 0, 1, 1]);
        assert_eq!([0; 2].map(|_| run(8, b"")), [0, 0]);
        let seen: TypedHash<u32, u64> = instance.map("seen").unwrap().typed().unwrap();
        assert_eq!((seen.get(&7).unwrap(), seen.get(&8).unwrap(), seen.get(&9).unwrap()), (Some(5), Some(2), None));

        let mut events = RingBuf::new(&instance.map("events").unwrap()).unwrap();
        let record: [u8; 8] = events.next_record().unwrap().to_vec().try_into().unwrap();
        assert_eq!(record, *bytes_of(&[7, 1]), "the fourth request");
        assert_eq!(events.next_record().unwrap().to_vec(), bytes_of(&[7, 1]), "and the fifth");
        assert!(events.next_record().is_none());

        // Passed over while the slot is empty; a home page then.
        assert_eq!(run(9, b"/~"), 0);
        let routes: ProgArray<Request<'_>, Vec<String>> = instance.prog_array("routes").unwrap();
        routes.set(0, &instance.program("home").unwrap()).unwrap();
        let mut home = request(9, b"/~me");
        assert_eq!(limit.run(&mut said, &mut home).unwrap(), 0);
        assert_eq!(home.cost, 10);
        assert_eq!(said, ["a home page"]);

        // A panic ends the run, and no more than the run.
        let eighth = instance.program::<Request<'_>>("eighth").unwrap();
        assert_eq!(eighth.run(&mut said, &mut request(1, b"/1234567")).unwrap(), u64::from(b'7'));
        let error = eighth.run(&mut said, &mut request(1, b"/123456")).unwrap_err();
        assert!(matches!(error, RunError::Host { .. }), "{error}");
        assert!(error.to_string().contains("panic"), "{error}");

        // A loop over all bytes, as many as there are.
        let histogram = instance.program::<Request<'_>>("histogram").unwrap();
        let count = |bytes: &[u8]| bytes.iter().filter(|b| **b & 15 == 3).count() as u64;
        for len in [0, 1, 2, 3, 17, 64, 255, 1000] {
            let path: Vec<u8> = (0..len).map(|i: u32| i.wrapping_mul(37).to_le_bytes()[0]).collect();
            assert_eq!(histogram.run(&mut said, &mut request(0x13, &path)).unwrap(), count(&path) & 0xff, "{len}");
        }
    }
}

fn bytes_of(words: &[u32; 2]) -> &[u8; 8] {
    zerocopy::transmute_ref!(words)
}

/// The code in docs/book/tutorials/rust-plugin.md is the plug-in's.
#[test]
fn the_documentation_shows_the_plug_in() {
    let plug_in = include_str!("../../../../examples/limit-rust/src/lib.rs");
    let documentation = include_str!("../../../../docs/book/tutorials/rust-plugin.md");
    let blocks: Vec<_> =
        documentation.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 2);
    for block in blocks {
        assert!(plug_in.contains(block), "not of the plug-in:\n{block}");
    }
}
