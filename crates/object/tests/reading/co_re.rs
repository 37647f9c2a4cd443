//! Tests of CO-RE relocations against host types that no compiler writes: several of one name, and hostile ones.
//! Resolution to compilers' types is tested where programs run (`runtime/tests/programs/core_target.rs`).

use bpf_isa::{Imm64, Insn, Reg, Src};
use bpf_object::{CoreField, CoreType, FieldType, HostTypes, LinkProblem, Object};

use super::common::*;

const OFFSET: u32 = 0;
const SIZE: u32 = 1;
const EXISTS: u32 = 2;
const SIGNED: u32 = 3;
const LSHIFT: u32 = 4;
const RSHIFT: u32 = 5;
const TYPE_EXISTS: u32 = 8;
const TYPE_SIZE: u32 = 9;
const ENUM_VALUE: u32 = 11;
const TYPE_MATCHES: u32 = 12;

/// `r0 = imm`
fn mov(imm: u32) -> [u8; 8] {
    let [a, b, c, d] = imm.to_le_bytes();
    [0xb7, 0, 0, 0, a, b, c, d]
}

/// A program of `r0 = imm` instructions, each with a relocation: type, access string, kind, immediate.
fn program(mut btf: Btf, relocations: &[(u32, &str, u32, u32)]) -> Object {
    let section = btf.string("xdp");
    let mut code = Vec::new();
    let mut records = Vec::new();
    for (slot, &(ty, access, kind, imm)) in (0..).zip(relocations) {
        code.extend(mov(imm));
        records.push([8 * slot, ty, btf.string(access), kind]);
    }
    code.extend(&RETURN_0);
    let mut elf = Elf::new();
    let xdp = elf.code("xdp", &code);
    elf.symbol("main", xdp, FUNC, 0, code.len() as u64);
    elf.section(".BTF", PROGBITS, 0, &btf.build());
    elf.section(".BTF.ext", PROGBITS, 0, &core_relocations(section, &records));
    Object::parse(&elf.build()).unwrap()
}

/// The immediates after relocation, or the reasons why there is none.
fn resolve(object: &Object, types: &[CoreType]) -> Vec<Result<i32, &'static str>> {
    let linked = object.link_for(object.program("main").unwrap(), &HostTypes::new(types), |_| false).unwrap();
    let why = |at: usize| {
        linked.unresolved().iter().find(|unresolved| unresolved.insn.index() == at).map(|unresolved| match &unresolved
            .problem
        {
            LinkProblem::Core { why, .. } => *why,
            other => panic!("{other:?}"),
        })
    };
    let insns = linked.code().insns();
    let value = |(at, insn): (usize, &Insn)| match (insn, why(at)) {
        (Insn::Mov { src: Src::Imm(imm), .. }, None) => Ok(*imm),
        (_, Some(why)) => Err(why),
        other => panic!("{other:?}"),
    };
    insns[..insns.len() - 2].iter().enumerate().map(value).collect()
}

/// A structure of `u32` members: name and bit offset.
fn structure(btf: &mut Btf, name: &str, int: u32, size: u32, members: &[(&str, u32)]) -> u32 {
    let words: Vec<u32> = members.iter().flat_map(|(name, bits)| [btf.string(name), int, *bits]).collect();
    btf.ty(name, 4, members.len() as u32, size, &words)
}

const AMBIGUOUS: &str = "several types here have this name, and they differ in it";

/// All types of a name are considered. They must agree, unless another relocation of the program rules one out.
#[test]
fn candidates_must_agree() {
    let local = || {
        let mut btf = Btf::new();
        let int = btf.int();
        let dup = structure(&mut btf, "dup___mine", int, 12, &[("first", 0), ("second", 32), ("both", 64)]);
        (btf, dup)
    };
    let mut host = Btf::new();
    let int = host.int();
    structure(&mut host, "dup", int, 16, &[("both", 32), ("first", 96)]);
    structure(&mut host, "dup___2", int, 20, &[("both", 64), ("second", 128)]);
    structure(&mut host, "dup____other", int, 20, &[("both", 96)]);
    let host = host.build();
    let ask = |relocations: &[(&str, u32, u32)]| {
        let (btf, dup) = local();
        let relocations: Vec<_> = relocations.iter().map(|&(access, kind, imm)| (dup, access, kind, imm)).collect();
        let mut object = program(btf, &relocations);
        object.target_btf(&host).unwrap();
        resolve(&object, &[])
    };
    assert_eq!(ask(&[("0:0", OFFSET, 0)]), [Ok(12)]);
    assert_eq!(ask(&[("0:1", OFFSET, 4)]), [Ok(16)]);
    assert_eq!(ask(&[("0:1", EXISTS, 1), ("0:2", EXISTS, 1)]), [Ok(1), Ok(1)]);
    assert_eq!(ask(&[("0:2", OFFSET, 8)]), [Err(AMBIGUOUS)]);
    assert_eq!(ask(&[("0:2", SIZE, 4)]), [Ok(4)], "four bytes in either");
    assert_eq!(ask(&[("0", TYPE_SIZE, 12)]), [Err(AMBIGUOUS)]);
    assert_eq!(ask(&[("0", TYPE_EXISTS, 1)]), [Ok(1)]);
    // The field of only one type decides which is meant, whatever the order.
    assert_eq!(ask(&[("0:2", OFFSET, 8), ("0:0", OFFSET, 0)]), [Ok(4), Ok(12)]);
    assert_eq!(ask(&[("0:1", OFFSET, 4), ("0:2", OFFSET, 8), ("0", TYPE_SIZE, 12)]), [Ok(16), Ok(8), Ok(20)]);
    // Two fields that no type has together.
    let both = ask(&[("0:0", OFFSET, 0), ("0:1", OFFSET, 4)]);
    assert_eq!(both[0], Ok(12));
    assert!(both[1].is_err());
}

/// The host's own types take precedence over those of a BTF; without a name there is no candidate.
#[test]
fn types_of_the_host_come_first() {
    let local = |name: &str| {
        let mut btf = Btf::new();
        let int = btf.int();
        let ty = structure(&mut btf, name, int, 4, &[("field", 0)]);
        program(btf, &[(ty, "0:0", OFFSET, 0), (ty, "0", TYPE_EXISTS, 1)])
    };
    let mut host = Btf::new();
    let int = host.int();
    structure(&mut host, "request", int, 16, &[("field", 96)]);
    let own = |ty| {
        let fields = vec![CoreField { name: "field".into(), offset: 8, ty }];
        [CoreType::Struct { name: "request".into(), size: 16, fields }]
    };
    let mut object = local("request___old");
    object.target_btf(&host.build()).unwrap();
    assert_eq!(resolve(&object, &[]), [Ok(12), Ok(1)]);
    assert_eq!(resolve(&object, &own(FieldType::unsigned(4))), [Ok(8), Ok(1)]);
    let other = resolve(&object, &own(FieldType::Pointer(None)));
    assert!(other[0].unwrap_err().contains("another kind"), "a pointer is no number");
    let anonymous = resolve(&local(""), &own(FieldType::unsigned(4)));
    assert!(anonymous.iter().all(|result| result.unwrap_err().contains("anonymous")));
}

/// An instruction that does not hold the value of the object's own types is refused.
#[test]
fn instructions_must_hold_their_values() {
    let mut btf = Btf::new();
    let int = btf.int();
    let ty = structure(&mut btf, "request", int, 8, &[("a", 0), ("b", 32)]);
    let object = program(btf, &[(ty, "0:1", OFFSET, 4), (ty, "0:1", OFFSET, 5), (ty, "0:1:0", OFFSET, 4)]);
    let fields = vec![CoreField { name: "b".into(), offset: 12, ty: FieldType::unsigned(4) }];
    let results = resolve(&object, &[CoreType::Struct { name: "request".into(), size: 16, fields }]);
    assert_eq!(results[0], Ok(12));
    assert!(results[1].unwrap_err().contains("does not hold the value"));
    assert!(results[2].unwrap_err().contains("does not fit the type"), "an element of a number");
}

/// A value of 64 bits is kept where the instruction has room, and refused otherwise.
#[test]
fn values_of_64_bits() {
    let mut btf = Btf::new();
    let (name, enumerator) = (btf.string("LARGE"), btf.string("xdp"));
    let ty = btf.ty("wide", 19, 1, 8, &[name, 7, 0]);
    let access = btf.string("0");
    let mut code = [&LOAD[..], &mov(7), &RETURN_0[8..]].concat();
    code[4] = 7;
    let mut elf = Elf::new();
    let xdp = elf.code("xdp", &code);
    elf.symbol("main", xdp, FUNC, 0, code.len() as u64);
    elf.section(".BTF", PROGBITS, 0, &btf.build());
    let records = [[0, ty, access, ENUM_VALUE], [16, ty, access, ENUM_VALUE]];
    elf.section(".BTF.ext", PROGBITS, 0, &core_relocations(enumerator, &records));
    let object = Object::parse(&elf.build()).unwrap();
    let types = [CoreType::Enum { name: "wide".into(), size: 8, values: vec![("LARGE".into(), 1 << 40)] }];
    let linked = object.link_for(object.program("main").unwrap(), &HostTypes::new(&types), |_| false).unwrap();
    let insns = linked.code().insns();
    assert_eq!(insns[0], Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::Const(1 << 40) });
    assert_eq!(linked.unresolved().len(), 1);
    assert_eq!(linked.unresolved()[0].insn.0, 2);
}

/// A pointer of a 32-bit host has four bytes, like its `long`.
#[test]
fn pointers_are_as_large_as_long() {
    let structure = |btf: &mut Btf| {
        let pointer = btf.ptr(0);
        structure(btf, "node", pointer, 8, &[("next", 0)])
    };
    let mut btf = Btf::new();
    let node = structure(&mut btf);
    let mut object = program(btf, &[(node, "0:0", SIZE, 8)]);
    let mut host = Btf::new();
    structure(&mut host);
    object.target_btf(&host.build()).unwrap();
    assert_eq!(resolve(&object, &[]), [Ok(8)]);
    let mut host = Btf::new();
    host.ty("long int", 1, 0, 4, &[1 << 24 | 32]);
    structure(&mut host);
    object.target_btf(&host.build()).unwrap();
    assert_eq!(resolve(&object, &[]), [Ok(4)]);
}

/// Cyclic types and deep nests of anonymous members are refused with a reason.
#[test]
fn hostile_types_end_in_a_reason() {
    let local = || {
        let mut btf = Btf::new();
        let int = btf.int();
        let ty = structure(&mut btf, "trap", int, 4, &[("field", 0)]);
        program(btf, &[(ty, "0:0", OFFSET, 0), (ty, "0", TYPE_MATCHES, 1)])
    };
    // Each has two anonymous members of the next type: 2^40 paths to a field that does not exist.
    let mut nest = Btf::new();
    let int = nest.int();
    let mut inner = structure(&mut nest, "", int, 4, &[("other", 0)]);
    for _ in 0..40 {
        inner = nest.ty("", 4, 2, 8, &[0, inner, 0, 0, inner, 32]);
    }
    nest.ty("trap", 4, 1, 8, &[0, inner, 0]);
    // A structure that is its own anonymous member.
    let mut cycle = Btf::new();
    cycle.ty("trap", 4, 1, 4, &[0, 1, 0]);
    // A field of a typedef of itself.
    let mut typedef = Btf::new();
    let field = typedef.string("field");
    typedef.ty("own", 8, 0, 1, &[]);
    typedef.ty("trap", 4, 1, 4, &[field, 1, 0]);
    // An array of arrays of itself.
    let mut array = Btf::new();
    let field = array.string("field");
    array.array(1, 2);
    array.ty("trap", 4, 1, 4, &[field, 1, 0]);
    for (name, btf) in [("nest", nest), ("cycle", cycle), ("typedef", typedef), ("array", array)] {
        let mut object = local();
        object.target_btf(&btf.build()).unwrap();
        let results = resolve(&object, &[]);
        assert!(results[0].is_err(), "{name}: {results:?}");
    }
}

/// Places whose bit offset is too large are refused as malformed, wherever the sum would wrap.
#[test]
fn places_are_not_too_far_away() {
    const BYTES: u32 = (1 << 30) + 1;
    let resolved = |index: u32, kind: u32, members: &[(&str, u32)]| {
        let types = || {
            let mut btf = Btf::new();
            let int = btf.int();
            let words: Vec<u32> = members.iter().flat_map(|(name, bits)| [btf.string(name), int, *bits]).collect();
            let far = btf.ty("far", kind, members.len() as u32, BYTES, &words);
            (btf, far)
        };
        let (btf, far) = types();
        let accesses: Vec<String> = (0..members.len()).map(|member| format!("{index}:{member}")).collect();
        let ask = |access| {
            [EXISTS, OFFSET, SIZE, SIGNED, LSHIFT, RSHIFT].map(|kind| (far, access, kind, u32::from(kind == EXISTS)))
        };
        let relocations: Vec<_> = accesses.iter().flat_map(|access| ask(access.as_str())).collect();
        let mut object = program(btf, &relocations);
        object.target_btf(&types().0.build()).unwrap();
        resolve(&object, &[])
    };
    let malformed = Err("the access string does not fit the type");
    let bit_field = |bits: u32, len: u32| len << 24 | bits;
    // The last elements within 63 and 64 bits: at 2^63 - 8, and at 2^64 - 16.
    for (index, inside) in [((1 << 30) - 1, true), ((1 << 31) - 2, false)] {
        let members = [("near", 0), ("behind", 8), ("outside", 16), ("furthest", u32::MAX)];
        for (i, results) in resolved(index, 4, &members).chunks(6).enumerate() {
            assert_eq!(results[0], if inside && i == 0 { Ok(1) } else { malformed }, "{index} {i}");
        }
        let members = [("near", bit_field(0, 4)), ("longer", bit_field(7, 9)), ("outside", bit_field(16, 255))];
        for (i, results) in resolved(index, 0x84, &members).chunks(6).enumerate() {
            assert_eq!(results[0], if inside && i < 2 { Ok(1) } else { malformed }, "{index} {i}");
        }
    }
}
