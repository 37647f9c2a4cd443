//! CO-RE relocations against the BTF of another host, `objects/core_target_host.c`: the programs of
//! `objects/core_target.c` take a packet of the bytes 0, 1, 2, ... for that host's structures.

use crate::common::engines::engines;
use bpf_runtime::{
    Caller, Engine, HelperError, Linker, MapSet, Object,
    net::{Xdp, XdpBuff},
};

fn object() -> Object {
    let mut object = Object::parse(include_bytes!("../objects/core_target.o")).unwrap();
    object.target_btf(include_bytes!("../objects/core_target_host.o")).unwrap();
    object
}

fn run(engine: &Engine, object: &Object, name: &str) -> Result<u32, String> {
    let maps = MapSet::for_object(engine, object).unwrap();
    let linker = Linker::<()>::new(engine);
    let instance = linker.loader::<Xdp>().only(&[name]).object(object, maps).map_err(|e| e.to_string())?;
    let mut packet: Vec<u8> = (0..64).collect();
    let program = instance.program::<Xdp>(name).unwrap();
    // The programs return an `int`.
    Ok(program.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap() as u32)
}

#[test]
fn programs_meet_the_targets_types() {
    let object = object();
    let cases = [
        ("bits_second", (0x0908 >> 2) & 0xfff),
        ("bits_third", (-8i32).cast_unsigned()),
        ("bits_colour", 3),
        ("bits_direct", 7),
        // second and third exist, third is signed.
        ("bits_exist", 0b011),
        ("flexible_item", 0x1312),
        ("flexible_exists", 0b11),
        ("flexible_member", 0x1918),
        ("array_element", 0x1f1e_1d1c),
        ("array_of_arrays", 0x2b2a),
        ("array_first_bytes", 0x0f0e_0d0c),
        ("array_store", 1),
        ("array_bounds", 0b001),
        ("sizes_narrower", 1),
        ("sizes_narrower_store", 1),
        ("sizes_wider", 0x0b0a_0908),
        ("sizes_same", 0x1716_1514),
        ("sizes_colour", 0x2f2e_2d2c),
        // real and list.
        ("kinds_exist", 0b011_0000),
        ("grouped_read", 0b1111),
        ("typedefs", 0b1111),
        ("missing", 0),
        ("enums", 0b11011),
        // same and enum wide.
        ("matches", 0b01001),
    ];
    for engine in engines(|config| config) {
        for (name, expected) in cases {
            assert_eq!(run(&engine, &object, name).as_ref(), Ok(&expected), "{name}");
        }
    }
}

#[test]
fn accesses_that_cannot_be_adapted_are_refused() {
    let object = object();
    let engine = &engines(|config| config)[0];
    for (name, expected) in [
        ("sizes_negative", "`sizes::negative`: the field has another size here"),
        ("kinds_number", "`kinds::number`: the field is of another kind here"),
        ("missing_read", "`absent::value`: this host has no such type"),
        ("bits_askew", "`moved::third`: the field's bits lie at other places"),
    ] {
        let error = run(engine, &object, name).unwrap_err();
        assert!(error.contains(expected), "{name}: {error}");
    }
}

/// If several types have a name, those with the field are the candidates; if they disagree, the relocation fails.
#[test]
fn several_types_of_a_name_are_all_looked_at() {
    let mut object = Object::parse(include_bytes!("../objects/core_candidates.o")).unwrap();
    object.target_btf(include_bytes!("../objects/core_candidates_host.o")).unwrap();
    for engine in engines(|config| config) {
        let expected = [
            ("first", 0x0f0e_0d0c),
            ("second", 0x1312_1110),
            ("exists", 1),
            ("either", 0b01),
            ("agreeing", 0x0b0a_0908),
            ("low", 3),
            ("high", 5),
        ];
        for (name, expected) in expected {
            assert_eq!(run(&engine, &object, name).as_ref(), Ok(&expected), "{name}");
        }
        let error = run(&engine, &object, "ambiguous").unwrap_err();
        assert!(error.contains("`differs::value`"), "{error}");
    }
}

/// Without a target's BTF programs may ask which helpers and map types there are, and get the values of enumerations of
/// the kernel's interface.
#[test]
fn enumerations_of_the_interface_are_there() {
    let object = Object::parse(include_bytes!("../objects/core_enums.o")).unwrap();
    for engine in engines(|config| config) {
        assert_eq!(run(&engine, &object, "features"), Ok(0b01_0101_0101_0111), "as their names say");
        assert_eq!(run(&engine, &object, "values"), Ok(0b11_1111));
    }
}

/// A flavour of a function is the function, where its declared prototype fits.
#[test]
fn functions_may_be_called_by_flavours() {
    let object = Object::parse(include_bytes!("../objects/flavours.o")).unwrap();
    for engine in engines(|config| config) {
        assert_eq!(run(&engine, &object, "exist"), Ok(0b0001));
        assert_eq!(run(&engine, &object, "length"), Ok(64));
        let mut linker = Linker::<()>::new(&engine);
        linker
            .func(1001, "of_the_host", |_: &mut Caller<'_, ()>, n: u32| -> Result<u32, HelperError> { Ok(n * 3) })
            .unwrap();
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let instance = linker.loader::<Xdp>().only(&["exist", "hosts"]).object(&object, maps).unwrap();
        let run = |name| instance.program::<Xdp>(name).unwrap().run(&mut (), &mut XdpBuff::new(&mut [0; 64])).unwrap();
        assert_eq!((run("exist"), run("hosts")), (0b1001, 21));
    }
}
