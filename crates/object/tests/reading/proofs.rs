//! Tests of the section of proofs: it is added to a file, read from it, and has no effect on other contents.

use bpf_object::{Object, PROOFS};

use super::common::*;

fn file() -> Vec<u8> {
    let mut elf = Elf::new();
    let xdp = elf.code("xdp", &RETURN_0);
    elf.symbol("main", xdp, FUNC, 0, RETURN_0.len() as u64);
    elf.build()
}

#[test]
fn a_section_of_proofs_is_added_and_replaced() {
    let bare = file();
    let object = Object::parse(&bare).unwrap();
    assert_eq!(object.proofs(), None);
    let mut proven = Object::with_proofs(&bare, b"first").unwrap();
    assert_eq!(Object::parse(&proven).unwrap().proofs(), Some(&b"first"[..]));
    for proofs in [&b"a second one that is longer"[..], b"3", b""] {
        proven = Object::with_proofs(&proven, proofs).unwrap();
        let again = Object::parse(&proven).unwrap();
        assert_eq!(again.proofs().unwrap_or_default(), proofs);
        assert_eq!(again.programs(), object.programs());
        let linked = |object: &Object| object.link(&object.programs()[0], |_| false).unwrap().into_code();
        assert_eq!(linked(&again).insns(), linked(&object).insns());
    }
}

#[test]
fn files_that_are_no_objects_get_no_section() {
    let bare = file();
    assert!(Object::with_proofs(b"", b"proof").is_err());
    for end in 0..bare.len() {
        // The section headers come last, so none of these truncated files has all of them.
        assert!(Object::with_proofs(&bare[..end], b"proof").is_err(), "{end} bytes");
    }
    // Any byte of the file's header may be wrong.
    for at in 0..64 {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = bare.clone();
            damaged[at] = value;
            if let Ok(proven) = Object::with_proofs(&damaged, b"proof") {
                let _ = Object::parse(&proven);
            }
        }
    }
}

#[test]
fn two_sections_of_proofs_are_refused() {
    let mut elf = Elf::new();
    let xdp = elf.code("xdp", &RETURN_0);
    elf.symbol("main", xdp, FUNC, 0, RETURN_0.len() as u64);
    elf.section(PROOFS, PROGBITS, 0, b"one");
    elf.section(PROOFS, PROGBITS, 0, b"two");
    let error = Object::parse(&elf.build()).unwrap_err();
    assert!(error.to_string().contains(PROOFS), "{error}");
}
