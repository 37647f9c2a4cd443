//! Types of objects, from an object file to the verifier and to `bpf_obj_new`.
//!
//! Problem: maps and programs of several object files meet in one program, each with types of its own numbering.
//! Approach: a type comes with all that it leads to ([`OwnedType::closure`]); those that are equal are one to the
//! verifier.

use crate::call::helpers::owned::LocalTypes;
use crate::engine::Engine;
use crate::engine::usage::Account;
use crate::error::LoadError;
use crate::program::bindings::Bindings;
use crate::program::map_ref::MapRef;
use bpf_isa::{Imm64, Insn, Src};
use bpf_maps::owned::Objects;
use bpf_object::{Object, OwnedTypes};
use bpf_uapi::{OwnedField, OwnedType};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The types that one program meets.
#[derive(Debug, Default)]
pub(crate) struct Types {
    /// As the verifier has them.
    pub(crate) types: Vec<OwnedType>,
    /// Each with what it leads to.
    closures: Vec<Vec<OwnedType>>,
    /// Their places.
    known: HashMap<Vec<OwnedType>, usize>,
}

impl Types {
    /// The index of the type that a closure begins with.
    fn index(&mut self, closure: Vec<OwnedType>) -> u32 {
        let (index, mut open) = self.add(closure);
        // What is new leads to others.
        while let Some(new) = open.take() {
            let closure = self.closures[new].clone();
            for at in 0..closure[0].fields.len() {
                let kind = closure[0].fields[at].kind;
                if let Some(to) = kind.leads_to() {
                    let (to, _) = self.add(OwnedType::closure(&closure, to));
                    self.types[new].fields[at].kind = kind.led_to(to);
                }
            }
            open = Some(new + 1).filter(|next| *next < self.types.len());
        }
        index
    }

    /// The index, and the place in the lists if it is new.
    fn add(&mut self, closure: Vec<OwnedType>) -> (u32, Option<usize>) {
        let known = self.known.get(&closure).copied();
        let at = known.unwrap_or(self.closures.len());
        if known.is_none() {
            self.types.push(closure[0].clone());
            self.known.insert(closure.clone(), at);
            self.closures.push(closure);
        }
        (crate::num::small(at), known.is_none().then_some(at))
    }

    /// The fields of a map's values, as the verifier has them.
    pub(crate) fn fields(&mut self, def: &bpf_maps::MapDef) -> Vec<OwnedField> {
        let types = def.owned.as_deref().unwrap_or(&[]);
        let led = |field: &OwnedField| match field.kind.leads_to() {
            Some(to) => OwnedField { kind: field.kind.led_to(self.index(OwnedType::closure(types, to))), ..*field },
            None => *field,
        };
        def.owned_fields().iter().map(led).collect()
    }

    /// What the program may make objects of: its numbers, and the indices.
    pub(crate) fn local(&mut self, bindings: &Bindings) -> Vec<(u32, u32)> {
        let types = bindings.local_types.iter().flat_map(|local| &local.types);
        types.map(|(id, _, closure)| (*id, self.index(closure.clone()))).collect()
    }
}

/// What the programs of one load may make objects of: found when the first of them asks.
pub(crate) struct Local<'o> {
    types: Option<OwnedTypes<'o>>,
    pool: Arc<Objects>,
}

impl<'o> Local<'o> {
    /// Of this object, counted in this account or the engine; for a program of this name.
    pub(crate) fn new(
        engine: &Engine,
        object: &'o Object,
        account: Option<&Account>,
        program: &str,
    ) -> Result<Local<'o>, LoadError> {
        let memory = account.map_or(engine.domain().memory(), Account::memory);
        let pool = Objects::new(engine.domain(), memory);
        let pool = pool.map_err(|full| LoadError::MemoryFull { program: program.to_owned(), full })?;
        Ok(Local { types: object.btf().map(|btf| OwnedTypes::new(btf)), pool })
    }

    /// What a program of these instructions may make objects of: a type whose number is nowhere in them is none.
    pub(crate) fn types(&self, insns: &[Insn]) -> Arc<LocalTypes> {
        let number = |insn: &Insn| match *insn {
            Insn::LoadImm64 { imm: Imm64::Const(number), .. } => u32::try_from(number).ok(),
            Insn::Mov { src: Src::Imm(number), .. } => u32::try_from(number).ok(),
            _ => None,
        };
        let numbers: BTreeSet<u32> = insns.iter().filter_map(number).collect();
        let types = numbers.into_iter().flat_map(|number| {
            let types = self.types.as_ref();
            let closures = types.map(|types| [types.object(number), types.instances(number)]).into_iter().flatten();
            closures.flatten().filter_map(move |closure| LocalTypes::ty(number, closure))
        });
        Arc::new(LocalTypes { pool: Arc::clone(&self.pool), types: types.collect() })
    }
}

/// What a program without an object may make objects of, as a test has declared it.
#[cfg(feature = "oracle")]
pub(crate) fn declared(engine: &Engine, account: Option<&Account>) -> Option<Arc<LocalTypes>> {
    let all = crate::oracle::types();
    let pool = (!all.is_empty()).then(|| {
        let memory = account.map_or(engine.domain().memory(), Account::memory);
        Objects::new(engine.domain(), memory)
    });
    let closure = |number: u32| OwnedType::closure(&all, number);
    let ty = |number: u32| LocalTypes::ty(number, closure(number));
    let types = (1..crate::num::small(all.len())).filter_map(ty).collect();
    Some(Arc::new(LocalTypes { pool: pool?.ok()?, types }))
}

/// Whether values of some map hold objects: only the verifier can tell what programs do with those.
pub(crate) fn holds_objects(bindings: &Bindings) -> Option<&str> {
    let holds = |def: &bpf_maps::MapDef| def.owned.is_some();
    let data = bindings.maps.iter().flatten().filter_map(|map| match map {
        MapRef::Data(map) => Some(map.def()),
        MapRef::Declared(map) => Some(&map.def),
        MapRef::Progs(_) => None,
    });
    let mut holding = data.filter(|def| holds(def) || def.inner.as_deref().is_some_and(holds));
    holding.next().map(|def| def.name.as_str())
}
