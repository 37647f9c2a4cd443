//! Tests of objects with a single error each, which must give a typed error that names the place.

use crate::common::*;
use bpf_isa::{InsnIdx, MAX_INSNS};
use bpf_object::*;

fn refused(bytes: &[u8]) -> ObjectError {
    match Object::parse(bytes) {
        Ok(object) => panic!("accepted: {object:?}"),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            error
        }
    }
}

/// An object with one program `main` in section `xdp`.
fn minimal(code: &[u8]) -> (Elf, u16, u32) {
    let mut elf = Elf::new();
    let section = elf.code("xdp", code);
    let symbol = elf.symbol("main", section, FUNC, 0, code.len() as u64);
    (elf, section, symbol)
}

fn relocation(error: ObjectError) -> (String, u64, String, RelocationProblem) {
    match error {
        ObjectError::Relocation { section, offset, symbol, problem } => (section, offset, symbol, problem),
        other => panic!("{other:?}"),
    }
}

fn symbol_problem(error: ObjectError) -> (String, SymbolProblem) {
    match error {
        ObjectError::Symbol { symbol, problem, .. } => (symbol, problem),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_minimal_object_is_accepted() {
    let object = Object::parse(&minimal(&RETURN_0).0.build()).unwrap();
    let [program] = object.programs() else { panic!("{:?}", object.programs()) };
    assert_eq!((program.name(), program.section(), program.kind()), ("main", "xdp", ProgramType::Xdp));
    assert_eq!(object.link(program, |_| false).unwrap().code().insns().len(), 2);
}

#[test]
fn containers() {
    let good = minimal(&RETURN_0).0.build();
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        match refused(&bytes) {
            ObjectError::Elf(error) => error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(b""), ElfError::NoMagic.into());
    assert_eq!(refused(b"\x7fELF"), ElfError::Class(0).into());
    assert!(matches!(refused(&good[..63]), ObjectError::Elf(ElfError::Malformed(_))));
    assert_eq!(with(0, 0), ElfError::NoMagic);
    assert_eq!(with(4, 1), ElfError::Class(1));
    assert_eq!(with(5, 2), ElfError::Endian(2));
    assert_eq!(with(18, 62), ElfError::Machine(62));
    assert_eq!(with(16, 2), ElfError::Type(2));
    assert!(matches!(with(41, 0xff), ElfError::Malformed(_)), "section headers outside of the file");
}

#[test]
fn overlapping_sections() {
    let (mut elf, ..) = minimal(&RETURN_0);
    elf.section("other", PROGBITS, DATA, &[0; 64]);
    let mut bytes = elf.build();
    // The second section's header: its size.
    let table = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    let file = bytes.len() as u64;
    bytes[table + 2 * 64 + 32..][..8].copy_from_slice(&file.to_le_bytes());
    assert!(matches!(refused(&bytes), ObjectError::Elf(ElfError::SectionsOverlap { .. })));
}

#[test]
fn sections() {
    let section = |error| match error {
        ObjectError::Section { section, problem } => (section, problem),
        other => panic!("{other:?}"),
    };
    let (mut elf, ..) = minimal(&RETURN_0);
    elf.code(".text", &RETURN_0[..12]);
    assert_eq!(section(refused(&elf.build())), (".text".into(), SectionProblem::CodeSize(12)));

    let (mut elf, ..) = minimal(&RETURN_0);
    elf.code("tc", &RETURN_0);
    assert_eq!(section(refused(&elf.build())), ("tc".into(), SectionProblem::NoFunction));

    let (mut elf, ..) = minimal(&RETURN_0);
    elf.section("version", PROGBITS, DATA, &[0; 5]);
    assert_eq!(section(refused(&elf.build())), ("version".into(), SectionProblem::Size { got: 5, want: 4 }));

    for bad in [&b"GPL"[..], &[0xff, 0]] {
        let (mut elf, ..) = minimal(&RETURN_0);
        elf.section("license", PROGBITS, DATA, bad);
        assert_eq!(section(refused(&elf.build())), ("license".into(), SectionProblem::NotText));
    }

    let (mut elf, ..) = minimal(&RETURN_0);
    for _ in 0..2 {
        elf.section(".BTF", PROGBITS, 0, &Btf::new().build());
    }
    assert_eq!(section(refused(&elf.build())), (".BTF".into(), SectionProblem::Duplicate));

    let (mut elf, ..) = minimal(&RETURN_0);
    elf.section(".maps", PROGBITS, DATA, &[0; 32]);
    assert_eq!(section(refused(&elf.build())), (".maps".into(), SectionProblem::NeedsBtf));

    let (mut elf, code, main) = minimal(&LOAD);
    elf.rel(code, &[(0, main, 1)]);
    elf.set_type(2, 4); // SHT_RELA
    assert_eq!(section(refused(&elf.build())), (".relxdp".into(), SectionProblem::Rela));

    let (mut elf, ..) = minimal(&RETURN_0);
    elf.bss(MAX_GLOBAL_DATA + 1);
    let too_much = ElfError::TooMuchData { sum: MAX_GLOBAL_DATA + 1, max: MAX_GLOBAL_DATA };
    assert_eq!(refused(&elf.build()), too_much.into());
}

#[test]
fn function_symbols() {
    let with = |symbols: &[(&str, u64, u64)]| {
        let mut elf = Elf::new();
        let code = elf.code("xdp", &[RETURN_0, RETURN_0].concat());
        for &(name, value, size) in symbols {
            elf.symbol(name, code, FUNC, value, size);
        }
        elf.build()
    };
    let problem = |symbols: &[(&str, u64, u64)]| symbol_problem(refused(&with(symbols)));
    assert_eq!(problem(&[("a", 0, 24), ("b", 16, 16)]), ("b".into(), SymbolProblem::Overlap("a".into())));
    assert_eq!(problem(&[("b", 0, 16), ("a", 0, 24)]), ("a".into(), SymbolProblem::Overlap("b".into())));
    assert_eq!(problem(&[("a", 4, 16)]), ("a".into(), SymbolProblem::Misaligned { value: 4, size: 16 }));
    assert_eq!(problem(&[("a", 0, 12)]), ("a".into(), SymbolProblem::Misaligned { value: 0, size: 12 }));
    let outside = SymbolProblem::OutOfSection { value: 16, end: 40, section_size: 32 };
    assert_eq!(problem(&[("a", 16, 24)]), ("a".into(), outside));
    let outside = SymbolProblem::OutOfSection { value: u64::MAX, end: u64::MAX, section_size: 32 };
    assert_eq!(problem(&[("a", u64::MAX, 24)]), ("a".into(), outside));
    // An empty program: there are no bytes between its symbol and the section's end.
    let empty = SymbolProblem::OutOfSection { value: 32, end: 32, section_size: 32 };
    assert_eq!(problem(&[("a", 0, 32), ("b", 32, 0)]), ("b".into(), empty));

    // Two names of one function, and labels without a size, are fine.
    let aliases = Object::parse(&with(&[("a", 0, 16), ("b", 0, 16), ("c", 16, 0)])).unwrap();
    let names: Vec<_> = aliases.programs().iter().map(|p| (p.name(), p.insn_count())).collect();
    assert_eq!(names, [("a", 2), ("b", 2), ("c", 2)]);
    let named = aliases.code(aliases.program("b").unwrap()).unwrap();
    assert_eq!((named.program(), &*named.functions()[0].name), ("b", "b"));
}

#[test]
fn programs_of_one_name() {
    let (mut elf, ..) = minimal(&RETURN_0);
    let other = elf.code("tc", &RETURN_0);
    elf.symbol("main", other, FUNC, 0, 16);
    assert_eq!(symbol_problem(refused(&elf.build())), ("main".into(), SymbolProblem::Duplicate));
}

#[test]
fn an_object_of_text_only_offers_its_global_functions() {
    let mut elf = Elf::new();
    let text = elf.code(".text", &[RETURN_0, RETURN_0, RETURN_0].concat());
    elf.symbol("a", text, FUNC, 0, 16);
    elf.symbol("hidden", text, STATIC_FUNC, 16, 16);
    elf.symbol("label", text, NOTYPE, 32, 0);
    let object = Object::parse(&elf.build()).unwrap();
    let programs: Vec<_> = object.programs().iter().map(|p| (p.name(), p.kind())).collect();
    assert_eq!(programs, [("a", ProgramType::Unknown), ("label", ProgramType::Unknown)]);
}

/// The reason why a relocation of `insns` at `offset` is refused.
fn code_relocation(insns: &[u8], offset: u64, ty: u32, target: impl FnOnce(&mut Elf) -> u32) -> RelocationProblem {
    let (mut elf, code, _) = minimal(insns);
    let symbol = target(&mut elf);
    elf.rel(code, &[(offset, symbol, ty)]);
    let (section, at, _, problem) = relocation(refused(&elf.build()));
    assert_eq!((section.as_str(), at), ("xdp", offset));
    problem
}

#[test]
fn relocations_of_code() {
    let data = |elf: &mut Elf| {
        let data = elf.section(".data", PROGBITS, DATA, &[0; 8]);
        elf.symbol("variable", data, OBJECT, 0, 8)
    };
    let at = |value: u64| {
        move |elf: &mut Elf| {
            let data = elf.section(".data", PROGBITS, DATA, &[0; 8]);
            elf.symbol("variable", data, NOTYPE, value, 0)
        }
    };
    let text = |value: u64| {
        move |elf: &mut Elf| {
            let text = elf.code(".text", &RETURN_0);
            elf.symbol("function", text, STATIC_FUNC, 0, 16);
            elf.symbol("inside", text, 0, value, 0)
        }
    };
    let placed = |section: u16| move |elf: &mut Elf| elf.symbol("special", section, OBJECT, 0, 0);
    use RelocationProblem as P;
    for ty in [0, 2, 3, 4, 5, 11, u32::MAX] {
        assert_eq!(code_relocation(&LOAD, 0, ty, data), P::UnknownType(ty));
    }
    assert_eq!(code_relocation(&LOAD, 4, 1, data), P::Offset);
    assert_eq!(code_relocation(&LOAD, 16, 1, data), P::Offset);
    assert_eq!(code_relocation(&LOAD, u64::MAX - 7, 1, data), P::Offset);
    assert_eq!(code_relocation(&LOAD, 8, 1, data), P::Instruction, "the second slot");
    assert_eq!(code_relocation(&RETURN_0, 0, 1, data), P::Instruction);
    assert_eq!(code_relocation(&LOAD, 0, 10, data), P::Instruction);
    assert_eq!(code_relocation(&call(-1), 0, 1, data), P::Instruction);
    assert_eq!(code_relocation(&call(-1), 0, 10, data), P::CallTarget);
    assert_eq!(code_relocation(&LOAD, 0, 1, |_| 99), P::NoSymbol(99));
    assert_eq!(code_relocation(&LOAD, 0, 1, at(8)), P::OutOfData(8, ".data".into()));
    assert_eq!(code_relocation(&LOAD, 0, 1, at(u64::MAX)), P::OutOfData(-1, ".data".into()));
    assert_eq!(code_relocation(&LOAD, 0, 1, text(8)), P::NotAFunction(1, ".text".into()));
    assert_eq!(code_relocation(&LOAD, 0, 1, text(4)), P::NotAFunction(0, ".text".into()));
    assert_eq!(code_relocation(&call(-1), 0, 10, text(4)), P::NotAFunction(0, ".text".into()));
    assert_eq!(code_relocation(&call(0), 0, 10, text(0)), P::NotAFunction(1, ".text".into()));
    assert_eq!(code_relocation(&call(i32::MIN), 0, 10, text(0)), P::NotAFunction(-0x7fff_ffff, ".text".into()));
    assert_eq!(code_relocation(&LOAD, 0, 1, placed(0xfff1)), P::NoSection(0xfff1));
    assert_eq!(code_relocation(&call(-1), 0, 10, placed(0xfff2)), P::CallTarget);
    let license = |elf: &mut Elf| {
        let license = elf.section("license", PROGBITS, DATA, b"GPL\0");
        elf.symbol("LICENSE", license, OBJECT, 0, 4)
    };
    assert_eq!(code_relocation(&LOAD, 0, 1, license), P::TargetSection("license".into()));

    let mut past = LOAD;
    past[4] = 3;
    assert_eq!(code_relocation(&past, 0, 1, placed(0)), P::ExternAddend(3));

    let (mut elf, code, _) = minimal(&LOAD);
    let symbol = data(&mut elf);
    elf.rel(code, &[(0, symbol, 1), (0, symbol, 1)]);
    assert_eq!(relocation(refused(&elf.build())).3, P::Duplicate);
}

#[test]
fn one_bad_function_leaves_the_others_usable() {
    let bad = [0xff, 0, 0, 0, 0, 0, 0, 0];
    let mut elf = Elf::new();
    let code = elf.code("xdp", &[&RETURN_0[..], &bad, &call(-1)[..], &RETURN_0[8..]].concat());
    elf.symbol("good", code, FUNC, 0, 16);
    let broken = elf.symbol("broken", code, FUNC, 16, 8);
    elf.symbol("caller", code, FUNC, 24, 16);
    elf.rel(code, &[(24, broken, 10)]);
    let object = Object::parse(&elf.build()).unwrap();
    assert!(object.code(object.program("good").unwrap()).is_ok());
    for program in ["broken", "caller"] {
        match object.code(object.program(program).unwrap()) {
            Err(ObjectError::Decode { section, function, start, source }) => {
                assert_eq!((&*section, &*function, start, source.slot), ("xdp", "broken", 2, InsnIdx(0)));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn calls_that_lead_nowhere() {
    let problem = |insns: &[u8]| {
        let mut elf = Elf::new();
        let code = elf.code("xdp", &[insns, &RETURN_0].concat());
        elf.symbol("main", code, FUNC, 0, insns.len() as u64);
        elf.symbol("other", code, FUNC, insns.len() as u64, 16);
        let object = Object::parse(&elf.build()).unwrap();
        match object.code(object.program("main").unwrap()) {
            Err(ObjectError::Call { section, function, insn, problem }) => {
                assert_eq!((&*section, &*function, insn), ("xdp", "main", InsnIdx(0)));
                problem
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(problem(&call(1)), CallProblem::NotAFunction(2));
    assert_eq!(problem(&call(2)), CallProblem::OutOfSection(3));
    assert_eq!(problem(&call(-2)), CallProblem::OutOfSection(-1));
    assert_eq!(problem(&call(i32::MAX)), CallProblem::OutOfSection(0x8000_0000));
    assert_eq!(problem(&call(i32::MIN)), CallProblem::OutOfSection(-0x7fff_ffff));
}

#[test]
fn a_call_inside_a_function_is_left_alone() {
    // Assembly with a local label: one symbol, two subprograms.
    let code = [&call(1)[..], &RETURN_0[8..], &RETURN_0].concat();
    let object = Object::parse(&minimal(&code).0.build()).unwrap();
    let linked = object.code(object.program("main").unwrap()).unwrap();
    let program = bpf_isa::Program::new(linked.insns().to_vec()).unwrap();
    assert_eq!(program.subprogs().len(), 2);
}

#[test]
fn the_longest_program() {
    let exits = |slots: usize| RETURN_0[8..].repeat(slots);
    let object = Object::parse(&minimal(&exits(MAX_INSNS)).0.build()).unwrap();
    assert_eq!(object.code(object.program("main").unwrap()).unwrap().insns().len(), MAX_INSNS);

    let object = Object::parse(&minimal(&exits(MAX_INSNS + 1)).0.build()).unwrap();
    let too_many = ObjectError::TooManyInsns { program: "main".into(), max: MAX_INSNS };
    assert_eq!(object.code(object.program("main").unwrap()).unwrap_err(), too_many);

    // A subprogram that is one slot too long.
    let (mut elf, code, _) = minimal(&[&call(-1)[..], &RETURN_0].concat());
    let text = elf.code(".text", &exits(MAX_INSNS - 2));
    let symbol = elf.symbol("long", text, STATIC_FUNC, 0, 8 * (MAX_INSNS as u64 - 2));
    elf.rel(code, &[(0, symbol, 10)]);
    let object = Object::parse(&elf.build()).unwrap();
    assert_eq!(object.code(object.program("main").unwrap()).unwrap_err(), too_many);
}

#[test]
fn legacy_maps() {
    let with = |section: &str, words: &[u32], symbols: &[(&str, u64)]| {
        let (mut elf, ..) = minimal(&RETURN_0);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let maps = elf.section(section, PROGBITS, DATA, &bytes);
        for &(name, value) in symbols {
            elf.symbol(name, maps, OBJECT, value, 0);
        }
        elf.build()
    };
    let map = |words: &[u32]| match refused(&with("maps", words, &[("m", 0)])) {
        ObjectError::Map { map, problem } => {
            assert_eq!(map, "m");
            problem
        }
        other => panic!("{other:?}"),
    };
    let accepted = |words: &[u32]| Object::parse(&with("maps/m", words, &[("m", 0)])).unwrap().maps()[0].clone();
    assert_eq!(accepted(&[1, 2, 3, 4, 5]).max_entries, 4);
    assert_eq!(accepted(&[1, 2, 3, 4, 5]).numa_node, Some(0));
    assert_eq!(accepted(&[2, 4, 8, 4, 0, 0, 0, 0, 0, 0, 0]).value_size, 8);
    assert_eq!(accepted(&[2, 4, 8, 4, 0, 7, 2, 0, 0]).pinning, Pinning::ByName);
    assert_eq!(map(&[0, 4, 4, 1, 0]), MapProblem::NoType);
    assert_eq!(map(&[2, 4, 8, 4, 0, 0, 0, 1]), MapProblem::LegacySize(32));
    assert_eq!(accepted(&[2, 4, 8, 4, 0, 7, 3, 0, 0]).pinning, Pinning::Other(3));
    assert_eq!(map(&[12, 4, 4, 4, 0, 1, 0]), MapProblem::Inner(1));
    assert_eq!(map(&[12, 4, 4, 4, 0, 0, 0]), MapProblem::Inner(0), "a map of maps of itself");
    let iproute2 = [[12, 4, 4, 4, 0, 1, 0, 9, 0], [2, 4, 6, 4, 0, 9, 0, 0, 0]].concat();
    let object = Object::parse(&with("maps", &iproute2, &[("outer", 0), ("inner", 36)])).unwrap();
    assert_eq!(object.map("outer").unwrap().inner.as_ref().unwrap().value_size, 6);

    for (words, symbols) in [(&[2, 4, 4, 1][..], &[("m", 0)][..]), (&[2; 11], &[("m", 0), ("n", 20)]), (&[2; 5], &[])] {
        match refused(&with("maps", words, symbols)) {
            ObjectError::Section { section, problem: SectionProblem::LegacyMaps { .. } } => assert_eq!(section, "maps"),
            other => panic!("{other:?}"),
        }
    }
}

/// An object with `.BTF` and a `.maps` of 64 bytes with the variable `m`.
fn with_map(fields: impl FnOnce(&mut Btf, u32) -> u32) -> Result<Object, ObjectError> {
    let (mut elf, ..) = minimal(&RETURN_0);
    let mut btf = Btf::new();
    let int = btf.int();
    let structure = fields(&mut btf, int);
    btf.datasec(".maps", &[("m", structure)]);
    elf.section(".BTF", PROGBITS, 0, &btf.build());
    let maps = elf.section(".maps", PROGBITS, DATA, &[0; 64]);
    elf.symbol("m", maps, OBJECT, 0, 64);
    Object::parse(&elf.build())
}

fn map_problem(fields: impl FnOnce(&mut Btf, u32) -> u32) -> MapProblem {
    match with_map(fields) {
        Err(ObjectError::Map { map, problem }) => {
            assert_eq!(map, "m");
            problem
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn btf_maps() {
    let good = with_map(|b, int| {
        let (ty, key, four) = (b.number(int, 2), b.ptr(int), b.number(int, 4));
        b.structure(&[("type", ty), ("key", key), ("key_size", four), ("value_size", four), ("max_entries", four)])
    });
    let map = good.unwrap().maps()[0].clone();
    assert_eq!((map.map_type, map.key_size, map.value_size, map.max_entries), (MapType::Array.into(), 4, 4, 4));

    assert_eq!(map_problem(|_, int| int), MapProblem::NotAStruct);
    assert_eq!(map_problem(|b, _| b.structure(&[])), MapProblem::NoType);
    assert_eq!(map_problem(|b, int| b.structure(&[("type", int)])), MapProblem::BadField("type"));
    assert_eq!(map_problem(|b, int| b.structure(&[("key", int)])), MapProblem::BadField("key"));
    let unknown = map_problem(|b, int| {
        let n = b.number(int, 1);
        b.structure(&[("type", n), ("colour", n)])
    });
    assert_eq!(unknown, MapProblem::UnknownField("colour".into()));
    let conflict = map_problem(|b, int| {
        let (key, size) = (b.ptr(int), b.number(int, 8));
        b.structure(&[("key", key), ("key_size", size)])
    });
    assert_eq!(conflict, MapProblem::Conflict { field: "key_size", first: 4, second: 8 });
    let unsized_ = map_problem(|b, _| {
        let void = b.ptr(0);
        b.structure(&[("value", void)])
    });
    assert_eq!(unsized_, MapProblem::Unsized("value"));
    assert_eq!(map_problem(|b, int| b.structure(&[("type", int); 33])), MapProblem::TooManyFields(33));
    // A typedef of itself.
    let circular = map_problem(|b, _| b.ty("t", 8, 0, 2, &[]));
    assert_eq!(circular, MapProblem::NotAStruct);
}

#[test]
fn values_of_btf_maps() {
    /// An array of pointers to `to`.
    fn pointers(b: &mut Btf, to: u32) -> u32 {
        let ptr = b.ptr(to);
        b.array(ptr, 0)
    }
    let not_last = map_problem(|b, int| {
        let n = b.number(int, 12);
        let values = pointers(b, int);
        b.structure(&[("type", n), ("values", values), ("max_entries", n)])
    });
    assert_eq!(not_last, MapProblem::Values);
    let not_outer = map_problem(|b, int| {
        let n = b.number(int, 2);
        let values = pointers(b, int);
        b.structure(&[("type", n), ("values", values)])
    });
    assert_eq!(not_outer, MapProblem::Values);
    let not_functions = map_problem(|b, int| {
        let n = b.number(int, 3);
        let values = pointers(b, int);
        b.structure(&[("type", n), ("values", values)])
    });
    assert_eq!(not_functions, MapProblem::BadField("values"));
    let twice = map_problem(|b, int| {
        let n = b.number(int, 12);
        let innermost = pointers(b, int);
        let inner = b.structure(&[("type", n), ("values", innermost)]);
        let values = pointers(b, inner);
        b.structure(&[("type", n), ("values", values)])
    });
    assert_eq!(twice, MapProblem::Values);
}

#[test]
fn relocations_of_maps() {
    /// `outer`: an array of maps with one `values` slot at byte 8; `inner`; a function; a variable.
    fn object(offsets: &[u64], ty: u32, target: &str) -> Result<Object, ObjectError> {
        let (mut elf, ..) = minimal(&RETURN_0);
        let mut btf = Btf::new();
        let int = btf.int();
        let (two, twelve) = (btf.number(int, 2), btf.number(int, 12));
        let shape = btf.structure(&[("type", two)]);
        let ptr = btf.ptr(shape);
        let values = btf.array(ptr, 0);
        let outer = btf.structure(&[("type", twelve), ("values", values)]);
        btf.datasec(".maps", &[("outer", outer), ("inner", shape)]);
        elf.section(".BTF", PROGBITS, 0, &btf.build());
        let maps = elf.section(".maps", PROGBITS, DATA, &[0; 32]);
        let data = elf.section(".data", PROGBITS, DATA, &[0; 8]);
        let symbols = [
            ("outer", elf.symbol("outer", maps, OBJECT, 0, 24)),
            ("inner", elf.symbol("inner", maps, OBJECT, 24, 8)),
            ("variable", elf.symbol("variable", data, OBJECT, 0, 8)),
            ("main", 1),
            ("nowhere", elf.symbol("nowhere", 0, OBJECT, 0, 0)),
        ];
        let symbol = symbols.iter().find(|(name, _)| *name == target).unwrap().1;
        let rels: Vec<_> = offsets.iter().map(|&offset| (offset, symbol, ty)).collect();
        elf.rel(maps, &rels);
        Object::parse(&elf.build())
    }
    for (ty, offset, slot) in [(1, 8, 0), (2, 16, 1)] {
        let object = object(&[offset], ty, "inner").unwrap();
        assert_eq!(object.map("outer").unwrap().initial, [(slot, InitialValue::Map(1))]);
    }
    let problem = |offset, ty, target| {
        let (section, at, symbol, problem) = relocation(object(&[offset], ty, target).unwrap_err());
        assert_eq!((&*section, at, &*symbol), (".maps", offset, target));
        problem
    };
    use RelocationProblem as P;
    assert_eq!(problem(8, 10, "inner"), P::UnknownType(10));
    assert_eq!(relocation(object(&[8, 8], 2, "inner").unwrap_err()).3, P::Duplicate);
    for (offset, target) in
        [(0, "inner"), (12, "inner"), (24, "inner"), (8, "main"), (8, "variable"), (8, "nowhere"), (u64::MAX, "inner")]
    {
        let expected = if offset == u64::MAX { P::Offset } else { P::NotAnInitialValue };
        assert_eq!(problem(offset, 2, target), expected, "{offset} {target}");
    }
}

#[test]
fn malformed_btf() {
    fn btf(bytes: &[u8]) -> (usize, BtfProblem) {
        let (mut elf, ..) = minimal(&RETURN_0);
        elf.section(".BTF", PROGBITS, 0, bytes);
        match refused(&elf.build()) {
            ObjectError::Btf { section: ".BTF", offset, problem } => (offset, problem),
            other => panic!("{other:?}"),
        }
    }
    let with = |at: usize, value: u8| {
        let mut b = Btf::new();
        b.int();
        let mut bytes = b.build();
        bytes[at] = value;
        btf(&bytes).1
    };
    assert_eq!(btf(&[0x9f]).1, BtfProblem::Truncated);
    assert!(matches!(with(0, 0), BtfProblem::Header(_)));
    assert!(matches!(with(2, 2), BtfProblem::Header(_)));
    assert!(matches!(with(4, 23), BtfProblem::Header(_)));
    assert_eq!(with(12, 17), BtfProblem::Truncated, "types: one byte too many");
    assert_eq!(with(15, 0xff), BtfProblem::Truncated);
    assert!(matches!(with(20, 3), BtfProblem::Header(_)), "strings that do not end");

    let mut b = Btf::new();
    b.int();
    b.ty("", 20, 0, 0, &[]);
    assert_eq!(btf(&b.build()), (24 + 16 + 12, BtfProblem::Kind(20)));
    let mut b = Btf::new();
    b.int();
    b.ptr(3);
    assert_eq!(btf(&b.build()), (24 + 16, BtfProblem::TypeId(3)));
    let mut b = Btf::new();
    b.ty("", 4, 1, 8, &[0x1000, 0, 0]);
    assert_eq!(btf(&b.build()), (24, BtfProblem::StringOffset(0x1000)));
}

/// An empty section is ignored: a tool that strips types may leave one.
#[test]
fn empty_btf_is_none() {
    let (mut elf, ..) = minimal(&RETURN_0);
    elf.section(".BTF", PROGBITS, 0, &[]);
    elf.section(".BTF.ext", PROGBITS, 0, &[]);
    let mut object = Object::parse(&elf.build()).unwrap();
    assert!(object.btf().is_none());
    // An object without types is refused as the BTF of a host.
    let (mut elf, ..) = minimal(&RETURN_0);
    elf.section(".BTF", PROGBITS, 0, &[]);
    let problem = SectionProblem::NeedsBtf;
    assert_eq!(object.target_btf(&elf.build()), Err(ObjectError::Section { section: ".BTF".into(), problem }));
}

/// The number of items has 24 bits; the remaining bits for the kind are all known.
#[test]
fn types_may_have_more_than_65535_items() {
    let mut btf = Btf::new();
    let name = btf.string("x");
    let values: Vec<u32> = (0..70_000).flat_map(|value| [name, value]).collect();
    btf.ty("large", 6, 70_000, 4, &values);
    let (mut elf, ..) = minimal(&RETURN_0);
    elf.section(".BTF", PROGBITS, 0, &btf.build());
    let object = Object::parse(&elf.build()).unwrap();
    let types = object.btf().unwrap();
    let sizes = types.types().filter_map(|(_, ty)| match ty {
        bpf_object::btf::Type::Enum { values, .. } => Some(values.len()),
        _ => None,
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [70_000]);
}

/// With very many sections the index of a symbol's section is in SHT_SYMTAB_SHNDX.
#[test]
fn indices_of_sections_may_be_in_a_table_of_their_own() {
    let mut elf = Elf::new();
    let xdp = elf.code("xdp", &RETURN_0);
    elf.far_symbol("main", xdp, FUNC, 0, 16);
    let object = Object::parse(&elf.build()).unwrap();
    assert_eq!(object.programs().iter().map(|program| program.name()).collect::<Vec<_>>(), ["main"]);
    let mut elf = Elf::new();
    elf.code("xdp", &RETURN_0);
    elf.far_symbol("main", 1000, FUNC, 0, 16);
    assert!(matches!(Object::parse(&elf.build()), Err(ObjectError::Elf(ElfError::Malformed(_)))));
}

/// A static function in a section of programs is a program, unless another function calls it or has its name.
#[test]
fn static_functions_of_program_sections_are_programs() {
    let mut elf = Elf::new();
    let xdp = elf.code("xdp", &[&RETURN_0[..], &call(1), &RETURN_0[8..], &RETURN_0].concat());
    elf.symbol("quiet", xdp, STATIC_FUNC, 0, 16);
    elf.symbol("main", xdp, FUNC, 16, 16);
    elf.symbol("helper", xdp, STATIC_FUNC, 32, 16);
    let tc = elf.code("tc/tail", &RETURN_0.repeat(4));
    elf.symbol("tail", tc, STATIC_FUNC, 0, 16);
    elf.symbol("main", tc, STATIC_FUNC, 16, 16);
    let unknown = elf.code("mine", &RETURN_0);
    elf.symbol("unused", unknown, STATIC_FUNC, 0, 16);
    let text = elf.code(".text", &RETURN_0);
    elf.symbol("in_text", text, STATIC_FUNC, 0, 16);
    elf.symbol("twice", tc, STATIC_FUNC, 32, 16);
    elf.symbol("twice", tc, STATIC_FUNC, 48, 16);
    let object = Object::parse(&elf.build()).unwrap();
    assert_eq!(object.programs().iter().map(|p| p.name()).collect::<Vec<_>>(), ["quiet", "main", "tail"]);
    let left_out: Vec<_> = object.left_out().iter().map(|f| (&*f.name, &*f.section, f.reason)).collect();
    let (shared, unknown) = (LeftOutReason::SharedName, LeftOutReason::UnknownSection);
    let expected = [
        ("main", "tc/tail", shared),
        ("twice", "tc/tail", shared),
        ("twice", "tc/tail", shared),
        ("unused", "mine", unknown),
    ];
    assert_eq!(left_out, expected);
    // A name that leads to a program is still found.
    assert_eq!(object.program("main").unwrap().section(), "xdp");
    let error = object.program("unused").unwrap_err();
    assert!(matches!(&error, ObjectError::LeftOut { function } if function.reason == unknown), "{error}");
    assert!(error.to_string().contains("`unused` in section `mine` is no program: it is static"), "{error}");
    assert!(matches!(object.program("twice"), Err(ObjectError::LeftOut { function }) if function.reason == shared));
    assert!(matches!(object.program("helper"), Err(ObjectError::NoSuchProgram { .. })), "another function calls it");
}

#[test]
fn malformed_btf_ext() {
    fn ext(words: &[u32]) -> BtfProblem {
        let (mut elf, ..) = minimal(&RETURN_0);
        let mut btf = Btf::new();
        btf.int();
        let (xdp, none) = (btf.string("xdp"), btf.string("none"));
        elf.section(".BTF", PROGBITS, 0, &btf.build());
        let word = |w: &u32| match *w {
            0xaaaa => xdp,
            0xbbbb => none,
            w => w,
        };
        let bytes: Vec<u8> = words.iter().map(word).flat_map(u32::to_le_bytes).collect();
        elf.section(".BTF.ext", PROGBITS, 0, &bytes);
        match Object::parse(&elf.build()) {
            Err(ObjectError::Btf { section: ".BTF.ext", offset, problem }) => {
                // After the header, or after the header, the record size and the block's header.
                let record = matches!(problem, BtfProblem::TypeId(_) | BtfProblem::CoreKind(_));
                assert!(offset >= if record { 44 } else { 32 }, "{offset}");
                problem
            }
            other => panic!("{other:?}"),
        }
    }
    /// A header, then a function part, a line part and a CO-RE part with these numbers of bytes.
    fn header(func: u32, line: u32, core: u32) -> [u32; 8] {
        [0x1_eb9f, 32, 0, func, func, line, func + line, core]
    }
    let ext = |parts: [u32; 3], words: &[u32]| ext(&[&header(parts[0], parts[1], parts[2])[..], words].concat());
    assert_eq!(ext([4, 0, 0], &[]), BtfProblem::Truncated);
    assert_eq!(ext([4, 0, 0], &[7]), BtfProblem::RecordSize(7));
    assert_eq!(ext([4, 0, 0], &[9]), BtfProblem::RecordSize(9));
    assert_eq!(ext([20, 0, 0], &[8, 0xaaaa, 1, 0, 1]), BtfProblem::TypeId(1), "an integer is no function");
    assert_eq!(ext([20, 0, 0], &[8, 0xbbbb, 1, 0, 1]), BtfProblem::NoSection("none".into()));
    assert_eq!(ext([20, 0, 0], &[8, 0xffff, 1, 0, 1]), BtfProblem::StringOffset(0xffff));
    assert_eq!(ext([20, 0, 0], &[8, 0xaaaa, 1, 4, 1]), BtfProblem::InsnOffset(4));
    assert_eq!(ext([20, 0, 0], &[8, 0xaaaa, u32::MAX, 0, 1]), BtfProblem::Truncated);
    assert_eq!(ext([0, 28, 0], &[16, 0xaaaa, 1, 0, 0x7777, 0, 0]), BtfProblem::StringOffset(0x7777));
    assert_eq!(ext([0, 0, 28], &[16, 0xaaaa, 1, 0, 1, 0, 13]), BtfProblem::CoreKind(13));
    assert_eq!(ext([0, 0, 28], &[16, 0xaaaa, 1, 0, 9, 0, 0]), BtfProblem::TypeId(9));
    assert_eq!(ext([0, 0, 28], &[16, 0xaaaa, 1, 0, 1, 0x7777, 0]), BtfProblem::StringOffset(0x7777));
}

#[test]
fn relocations_of_btf() {
    let (mut elf, _, main) = minimal(&RETURN_0);
    let mut btf = Btf::new();
    btf.int();
    let btf = btf.build();
    let section = elf.section(".BTF", PROGBITS, 0, &btf);
    elf.rel(section, &[(24, main, 10)]);
    assert_eq!(
        relocation(refused(&elf.build())),
        (".BTF".into(), 24, "main".into(), RelocationProblem::UnknownType(10))
    );

    // The word at 0 is not zero, so that the sum of the third value and the word does not fit although the value
    // does.
    for value in [1 << 32, u64::MAX, u64::from(u32::MAX)] {
        let mut elf = minimal(&RETURN_0).0;
        let section = elf.section(".BTF", PROGBITS, 0, &btf);
        let far = elf.symbol("far", 0xfff1, 0, value, 0);
        elf.rel(section, &[(0, far, 4)]);
        let refused = relocation(refused(&elf.build()));
        assert_eq!(refused, (".BTF".into(), 0, "far".into(), RelocationProblem::Word(value)));
    }
}

#[test]
fn programs_of_other_objects() {
    let object = Object::parse(&minimal(&RETURN_0).0.build()).unwrap();
    let other = Object::parse(&minimal(&RETURN_0.repeat(2)).0.build()).unwrap();
    let foreign = other.program("main").unwrap();
    assert!(matches!(object.code(foreign), Err(ObjectError::NoSuchProgram { .. })));
    assert!(matches!(object.link(foreign, |_| true), Err(ObjectError::NoSuchProgram { .. })));
}

/// A weak variable in `.kconfig` with no bytes, or with too many, has no place in the map of that name.
#[test]
fn kconfig_variables_without_a_place() {
    for len in [0, 1 << 20] {
        let (mut elf, code, _) = minimal(&LOAD);
        let mut btf = Btf::new();
        let int = btf.int();
        let array = btf.array(int, len);
        let var = btf.ty("CONFIG_X", 14, 0, array, &[2]);
        btf.ty(".kconfig", 15, 1, 0, &[var, 0, 4 * len]);
        elf.section(".BTF", PROGBITS, 0, &btf.build());
        let symbol = elf.symbol("CONFIG_X", 0, 0x20, 0, 0);
        elf.rel(code, &[(0, symbol, 1)]);
        let object = Object::parse(&elf.build()).unwrap();
        assert_eq!((object.maps().len(), object.extern_variables().len()), (0, 1));
        assert!(object.link(object.program("main").unwrap(), |_| false).is_ok());
    }
}

#[test]
fn maps_of_one_name() {
    let (mut elf, ..) = minimal(&RETURN_0);
    elf.section(".data", PROGBITS, DATA, &[0; 8]);
    elf.section(".data", PROGBITS, DATA, &[0; 8]);
    assert_eq!(refused(&elf.build()), ObjectError::Map { map: ".data".into(), problem: MapProblem::Duplicate });
}

#[test]
fn static_variables_of_one_name_cannot_be_set() {
    let (mut elf, ..) = minimal(&RETURN_0);
    let data = elf.section(".data", PROGBITS, DATA, &[0; 8]);
    elf.symbol("twin", data, 1, 0, 4);
    elf.symbol("twin", data, 1, 4, 4);
    let mut object = Object::parse(&elf.build()).unwrap();
    let ambiguous = ObjectError::Global { variable: "twin".into(), problem: GlobalProblem::Ambiguous };
    assert_eq!(object.set_global("twin", &[0; 4]), Err(ambiguous));
}

/// Control characters in names, sections, licences and types, which would control a terminal or forge lines of a log,
/// are replaced by question marks.
#[test]
fn no_string_has_control_characters() {
    let evil = "x\u{1b}[2J\n\u{7}\u{9b}\u{202e}y";
    let harmless = "x?[2J???????y";
    let mut elf = Elf::new();
    let section = elf.code(&format!("xdp/{evil}"), &RETURN_0);
    elf.symbol(evil, section, FUNC, 0, 16);
    elf.section("license", PROGBITS, DATA, format!("GPL{evil}\0").as_bytes());
    let data = elf.section(".bss\u{8}", NOBITS, DATA, &[]);
    elf.symbol("v", data, OBJECT, 0, 0);
    let object = Object::parse(&elf.build()).unwrap();
    let [program] = object.programs() else { panic!("{:?}", object.programs()) };
    assert_eq!((program.name(), program.section()), (harmless, &*format!("xdp/{harmless}")));
    assert_eq!(object.license(), Some(&*format!("GPL{harmless}")));

    let mut strings = b"\0".to_vec();
    strings.extend(evil.as_bytes());
    strings.push(0);
    // One forward declaration with the malicious name.
    let types: Vec<u8> = [1u32, 7 << 24, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    let lens = [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
    let header = [0x9f, 0xeb, 1, 0].into_iter().chain(lens.into_iter().flat_map(u32::to_le_bytes));
    let bytes: Vec<u8> = header.chain(types).chain(strings).collect();
    let btf = btf::Btf::parse(&bytes).unwrap();
    let (id, _) = btf.types().nth(1).unwrap();
    assert_eq!(btf.type_name(id), harmless);
}

/// `r1 = table ll; gotox r1; r0 = 0; exit`, in a section after another function, with a table of these words.
fn jumping(words: &[u64], value: u64, size: u64, addend: u64) -> (Elf, u16, u16) {
    let mut load = LOAD;
    load[4..8].copy_from_slice(&(addend as u32).to_le_bytes());
    load[12..].copy_from_slice(&((addend >> 32) as u32).to_le_bytes());
    let gotox = [0x0d, 1, 0, 0, 0, 0, 0, 0];
    let code = [&RETURN_0[..], &load, &gotox, &RETURN_0].concat();
    let mut elf = Elf::new();
    let section = elf.code("xdp", &code);
    elf.symbol("first", section, FUNC, 0, 16);
    elf.symbol("main", section, FUNC, 16, 40);
    let data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let tables = elf.section(".jumptables", PROGBITS, 0, &data);
    let table = elf.symbol("BPF.JT.0.0", tables, OBJECT, value, size);
    elf.rel(section, &[(16, table, 1)]);
    (elf, section, tables)
}

#[test]
fn jump_tables() {
    let object = Object::parse(&jumping(&[40, 48, 16, 32], 0, 32, 8).0.build()).unwrap();
    let code = object.code(object.program("main").unwrap()).unwrap();
    let targets = [3, 4, 0, 2].map(InsnIdx).to_vec();
    assert_eq!(code.jump_tables(), [CodeTable { name: "BPF.JT.0.0".into(), targets }]);
    assert_eq!(code.references(), [Reference { insn: InsnIdx(0), kind: ReferenceKind::Table { table: 0, off: 8 } }]);
    assert!(object.code(object.program("first").unwrap()).unwrap().jump_tables().is_empty());
    // Five slots, a table of four entries, and a jump with four targets.
    assert_eq!(code.size(), 5 + (512 + 4) + 4);

    let place = |offset, problem| (".jumptables".to_owned(), offset, "BPF.JT.0.0".to_owned(), problem);
    let lead = |byte, why| RelocationProblem::JumpTarget { byte, section: "xdp".into(), why };
    // Targets of the second of three entries: in another function, before it, after it, beyond the section;
    // unaligned; in the second half of the load.
    let outside = "outside of the function that jumps by the table";
    let entries = [
        (0, outside),
        (8, outside),
        (56, outside),
        (1 << 40, outside),
        (u64::MAX, outside),
        (17, "not where an instruction begins"),
        (47, "not where an instruction begins"),
        (24, "in the second half of a two-slot load"),
    ];
    for (byte, why) in entries {
        let error = refused(&jumping(&[40, byte, 48], 0, 24, 0).0.build());
        assert_eq!(relocation(error), place(8, lead(byte, why)));
    }
    // A symbol that is empty, not a multiple of entries, not at an entry, or beyond the section.
    for (value, size) in [(0, 0), (0, 12), (4, 8), (8, 24), (24, 8), (u64::MAX - 7, 8), (8, u64::MAX - 7)] {
        let error = refused(&jumping(&[40, 40, 40], value, size, 0).0.build());
        assert_eq!(relocation(error), place(value, RelocationProblem::TableExtent { size }));
    }
    // The address of a byte that does not begin an entry.
    for addend in [4, 24, u64::MAX - 7] {
        let error = refused(&jumping(&[40, 40, 40], 0, 24, addend).0.build());
        let problem = RelocationProblem::InsideTable(addend as i64);
        assert_eq!(relocation(error), place(addend, problem));
    }
}

#[test]
fn jump_tables_with_relocations() {
    // The entries name the section, with the byte as addend; or the function.
    let with = |rels: &[(u64, u32, u32)]| {
        let (mut elf, section, tables) = jumping(&[40, 24, 48], 0, 24, 0);
        let ours = elf.symbol("", section, 3, 0, 0);
        let main = elf.symbol("main_again", section, STATIC_FUNC, 16, 40);
        let other = elf.code(".text", &RETURN_0);
        let theirs = elf.symbol("other", other, FUNC, 0, 16);
        let symbols = [ours, main, theirs];
        let rels: Vec<_> = rels.iter().map(|&(at, symbol, ty)| (at, symbols[symbol as usize], ty)).collect();
        elf.rel(tables, &rels);
        elf.build()
    };
    let object = Object::parse(&with(&[(0, 0, 2), (8, 1, 2)])).unwrap();
    let code = object.code(object.program("main").unwrap()).unwrap();
    assert_eq!(code.jump_tables()[0].targets, [3, 3, 4].map(InsnIdx));
    let (section, offset, symbol, problem) = relocation(refused(&with(&[(8, 2, 2)])));
    assert_eq!((&*section, offset, &*symbol), (".jumptables", 8, "other"));
    assert_eq!(problem, RelocationProblem::OtherSection("xdp".into()));
    let (_, _, symbol, problem) = relocation(refused(&with(&[(8, 1, 1)])));
    assert_eq!((&*symbol, problem), ("main_again", RelocationProblem::UnknownType(1)));
    // Not at an entry, beyond the section, two for one entry.
    for (at, rels) in [(4, vec![4]), (24, vec![0, 24]), (u64::MAX, vec![u64::MAX]), (8, vec![8, 0, 8])] {
        let problem = if at == 8 { RelocationProblem::Duplicate } else { RelocationProblem::Offset };
        let rels: Vec<_> = rels.into_iter().map(|at| (at, 1, 2)).collect();
        let place = (".jumptables".to_owned(), at, "main_again".to_owned(), problem);
        assert_eq!(relocation(refused(&with(&rels))), place);
    }
}

#[test]
fn jump_tables_share_nothing() {
    let with = |value, size| {
        let (mut elf, _, tables) = jumping(&[40, 40, 40], 0, 16, 0);
        let second = elf.symbol("BPF.JT.0.1", tables, OBJECT, value, size);
        let other = elf.code("tc", &[&LOAD[..], &RETURN_0, &RETURN_0].concat());
        elf.symbol("another", other, FUNC, 0, 48);
        elf.rel(other, &[(0, second, 1)]);
        elf.build()
    };
    assert!(Object::parse(&with(16, 8)).is_ok());
    for (value, size) in [(8, 8), (0, 8), (0, 24), (0, 16)] {
        let expected = RelocationProblem::TableShared("BPF.JT.0.0".into());
        let place = (".jumptables".to_owned(), value, "BPF.JT.0.1".to_owned());
        let (section, offset, symbol, problem) = relocation(refused(&with(value, size)));
        assert_eq!(((section, offset, symbol), problem), (place, expected));
    }
}
