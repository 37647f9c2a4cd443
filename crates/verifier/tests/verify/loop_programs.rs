//! The programs of the objects in `tests/loops`, and the environments they are verified in.
#![allow(dead_code, reason = "the tests and the examples use different parts")]

use std::path::{Path, PathBuf};

use bpf_isa::Program;
use bpf_object::{DataKind, Object, ProgramType};
use bpf_verifier::{Access, ContextLayout, Env, Helpers, KnownMap, MapType};

/// A program of an object.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) program: Program,
    /// Its arguments are a buffer and a length; if not, it is an xdp program.
    pub(crate) raw: bool,
    pub(crate) maps: Vec<KnownMap>,
}

/// The objects of this folder.
pub(crate) fn objects() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/loops");
    let entries = std::fs::read_dir(folder).expect("the folder").map(|e| e.expect("an entry").path());
    let mut out: Vec<PathBuf> = entries.filter(|p| p.extension().is_some_and(|e| e == "o")).collect();
    out.sort();
    assert!(out.len() >= 16, "{out:?}");
    out
}

/// Every program of an object.
pub(crate) fn load(path: &Path) -> Vec<Named> {
    let object = Object::parse(&std::fs::read(path).expect("a file")).expect("an object");
    let mut out = Vec::new();
    for p in object.programs() {
        let code = object.link(p, |_| false).expect("it links").into_code();
        // Maps that the loader freezes are constant; others may change at any time.
        let map = |d: &bpf_object::MapDecl| {
            let frozen = d.data.as_ref().filter(|d| d.kind == DataKind::Rodata).map(|d| d.bytes.clone());
            let access = if frozen.is_some() { Access::Read } else { Access::ReadWrite };
            KnownMap { access, frozen, ..KnownMap::new(&d.name, MapType::Array, 4, d.value_size, 1) }
        };
        out.push(Named {
            name: p.name().to_owned(),
            program: Program::new(code.insns().to_vec()).expect("valid"),
            raw: p.kind() != ProgramType::Xdp,
            maps: object.maps().iter().map(map).collect(),
        });
    }
    out
}

impl Named {
    pub(crate) fn context(&self) -> ContextLayout {
        if self.raw { ContextLayout::raw(true) } else { crate::common::xdp() }
    }

    pub(crate) fn env<'e>(&'e self, context: &'e ContextLayout, helpers: &'e Helpers, log: bool) -> Env<'e> {
        let mut env = Env::new(context, helpers);
        env.maps = &self.maps;
        env.log = log;
        env
    }
}
