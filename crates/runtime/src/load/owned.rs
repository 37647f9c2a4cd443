//! Types of objects, from an object file to the verifier and to `bpf_obj_new`.
//!
//! Problem: maps and programs of several object files meet in one program, each with types of its own numbering.
//! Approach: a type is represented with all types reachable from it ([`OwnedType::closure`]); types with equal closures
//! are one type to the verifier.

use crate::call::helpers::owned::{LocalType, local_type};
use crate::program::references::{Declared, References};
use bpf_isa::{Imm64, Insn, Src};
use bpf_object::{Object, OwnedTypes};
use bpf_uapi::{OwnedField, OwnedType};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The types that one program uses.
#[derive(Debug, Default)]
pub(crate) struct Types {
    /// As the verifier has them.
    pub(crate) types: Vec<OwnedType>,
    /// The closure of each type.
    closures: Vec<Vec<OwnedType>>,
    /// The index of each closure.
    known: HashMap<Vec<OwnedType>, usize>,
}

impl Types {
    /// The index of the type that a closure begins with.
    fn index(&mut self, closure: Vec<OwnedType>) -> u32 {
        let (index, mut open) = self.add(closure);
        // The fields of each new type are added in turn.
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

    /// Returns the types that the program may allocate: their numbers in the program, and their indices.
    pub(crate) fn local(&mut self, references: &References) -> Vec<(u32, u32)> {
        let types = references.local_types.iter().flat_map(|types| types.iter());
        types.map(|(id, _, closure)| (*id, self.index(closure.clone()))).collect()
    }
}

/// The types that programs of one object may allocate, collected at the first request.
pub(crate) struct Local<'o>(Option<OwnedTypes<'o>>);

impl<'o> Local<'o> {
    pub(crate) fn new(object: &'o Object) -> Local<'o> {
        Local(object.btf().map(|btf| OwnedTypes::new(btf)))
    }

    /// Returns the types that a program may allocate: those whose number occurs in its instructions.
    pub(crate) fn types(&self, insns: &[Insn]) -> Arc<[LocalType]> {
        let number = |insn: &Insn| match *insn {
            Insn::LoadImm64 { imm: Imm64::Const(number), .. } => u32::try_from(number).ok(),
            Insn::Mov { src: Src::Imm(number), .. } => u32::try_from(number).ok(),
            _ => None,
        };
        let numbers: BTreeSet<u32> = insns.iter().filter_map(number).collect();
        let types = numbers.into_iter().flat_map(|number| {
            let types = self.0.as_ref();
            let closures = types.map(|types| [types.object(number), types.instances(number)]).into_iter().flatten();
            closures.flatten().filter_map(move |closure| local_type(number, closure))
        });
        types.collect()
    }
}

/// Returns the types that a program without an object may allocate, as a test has declared them.
#[cfg(feature = "oracle")]
pub(crate) fn declared() -> Option<Arc<[LocalType]>> {
    let all = crate::oracle::types();
    let closure = |number: u32| OwnedType::closure(&all, number);
    let ty = |number: u32| local_type(number, closure(number));
    (!all.is_empty()).then(|| (1..crate::num::small(all.len())).filter_map(ty).collect())
}

/// Returns the name of a map whose values hold objects, if there is one. Such programs need the verifier.
pub(crate) fn holds_objects(references: &References) -> Option<&str> {
    let holds = |def: &bpf_maps::MapDef| def.owned.is_some();
    let data = references.maps.iter().filter_map(Declared::def);
    let mut holding = data.filter(|def| holds(def) || def.inner.as_deref().is_some_and(holds));
    holding.next().map(|def| def.name.as_str())
}
