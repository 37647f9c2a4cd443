//! Tests that compiled code in which pointers and lengths are related is accepted without changes to its source.
//!
//! The programs are `precision/*.c`, built for two versions of the instruction set (`cargo xtask objects`).

use crate::common;

use std::path::Path;

use bpf_isa::Program;
use bpf_object::{DataKind, Object};
use bpf_verifier::{Access, Env, KnownMap, MapType, Verifier};

/// Each program of an object: its name, and whether it verifies.
fn verdicts(file: &str) -> Vec<(String, Result<(), String>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/precision").join(file);
    let object = Object::parse(&std::fs::read(path).expect("the object is committed")).expect("an object");
    let (context, helpers) = (common::xdp(), common::helpers());
    let maps: Vec<KnownMap> = object
        .maps()
        .iter()
        .map(|def| {
            let constant = def.data.as_ref().is_some_and(|d| d.kind == DataKind::Rodata);
            let access = if constant { Access::Read } else { Access::ReadWrite };
            KnownMap { access, ..KnownMap::new(&def.name, MapType::Array, 4, def.value_size, 1) }
        })
        .collect();
    let verify = |p: &bpf_object::Program| {
        let code = object.link(p, |_| false).expect("it links").into_code();
        let program = Program::new(code.insns().to_vec()).expect("valid");
        let env = Env { maps: &maps, ..Env::new(&context, &helpers) };
        Verifier::new().verify(program, &env).map(|_| ()).map_err(|e| e.to_string())
    };
    object.programs().iter().map(|p| (format!("{file} {}", p.name()), verify(p))).collect()
}

#[test]
fn ordinary_pointers_and_lengths_verify() {
    let verdicts: Vec<_> = ["pointers.o", "pointers.v4.o"].into_iter().flat_map(verdicts).collect();
    assert_eq!(verdicts.len(), 26);
    let refused: Vec<_> =
        verdicts.iter().filter_map(|(name, v)| Some(format!("{name}: {}", v.as_ref().err()?))).collect();
    assert!(refused.is_empty(), "{} are refused:\n{}", refused.len(), refused.join("\n"));
}
