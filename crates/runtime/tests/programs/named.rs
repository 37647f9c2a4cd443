//! Functions that programs call by name, iterators among them, and the helpers on text: on every engine, with the
//! kernel's results.

use crate::support::ways::{self, E2BIG, EINVAL, WAYS, notes};
use bpf_runtime::{LoadError, MapSet, Object, Raw};
use std::sync::{Arc, Mutex};

const OBJECT: &[u8] = include_bytes!("../objects/named.o");

#[test]
fn iterators_give_the_kernels_numbers() {
    let object = Object::parse(OBJECT).unwrap();
    for way in WAYS {
        let (_engine, instance) = ways::loaded(way, &object);
        let run = |name| ways::run(&instance, name, &[]);
        assert_eq!(run("sum"), (-3..100).sum::<i32>() as u64, "{way:?}");
        let inner: u64 = (0..=7).map(|i| 15 - i).sum();
        assert_eq!(run("nested"), inner + 8 * 3000, "{way:?}");
        assert_eq!(run("indexed"), (0..16).map(|i| i * i).sum::<u64>(), "{way:?}");
        // Weak references: a known name exists, and an unknown name does not.
        assert_eq!(run("edges"), notes(&[0, 0, 0, EINVAL, 0, E2BIG, 1, 0]), "{way:?}");
    }
}

#[test]
fn text_is_formatted_and_compared() {
    let object = Object::parse(OBJECT).unwrap();
    for way in WAYS {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let engine =
            ways::engine(way, move |config| config.print(move |line| sink.lock().unwrap().push(line.text.to_owned())));
        let instance = ways::instance(&engine, way, &object);
        // "-7|ab  |00042" and its zero byte are 14 bytes, of which eleven and a zero fit.
        // A number is no address to read a string from: "-7-%".
        let expected = notes(&[14, b'-'.into(), b'0'.into(), 0, 5, 0, 1, 14]);
        assert_eq!(ways::run(&instance, "text", &[]), expected, "{way:?}");
        assert_eq!(*lines.lock().unwrap(), ["1 2 3 4", "plain"], "{way:?}");
    }
}

/// The message contains an unknown name.
#[test]
fn unknown_functions_are_refused_by_name() {
    let engine = ways::engine(ways::Way::Verified, |config| config);
    let mut bytes = OBJECT.to_vec();
    // In the symbol table and in BTF.
    while let Some(at) = bytes.windows(18).position(|w| w == b"bpf_rcu_read_lock\0") {
        bytes[at + 4..at + 7].copy_from_slice(b"abc");
    }
    let object = Object::parse(&bytes).unwrap();
    let linker = bpf_runtime::Linker::<()>::new(&engine);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let error = linker.loader::<Raw>().only(&["nested"]).object(&object, maps).unwrap_err();
    assert!(matches!(error, LoadError::Object(_)) && error.to_string().contains("bpf_abc_read_lock"), "{error}");
}
