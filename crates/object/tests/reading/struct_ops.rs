//! Tables of programs: `.struct_ops` and `.struct_ops.link`, as libbpf reads them.

use bpf_object::btf::Type;
use bpf_object::{InitialValue, MapDecl, MapType, Object, ObjectError, ProgramType};

const OBJECT: &[u8] = include_bytes!("../objects/struct_ops.o");
/// BPF_F_LINK.
const LINK: u32 = 1 << 13;

#[test]
fn tables_are_maps_of_one_structure() {
    let object = Object::parse(OBJECT).unwrap();
    let btf = object.btf().unwrap();
    let table = |map: &MapDecl| {
        assert_eq!((map.map_type, map.key_size, map.max_entries), (MapType::StructOps.into(), 4, 1));
        let Type::Composite { name, union: false, .. } = btf.get(map.value_type.unwrap()) else { panic!("a struct") };
        assert_eq!(btf.name(*name), "policy");
        assert_eq!(map.table.as_ref().unwrap().len(), map.value_size as usize);
        (map.name.clone(), map.section.clone(), map.value_size, map.flags)
    };
    let tables: Vec<_> = object.maps().iter().map(table).collect();
    let expected =
        [("first", ".struct_ops", 0), ("second", ".struct_ops.link", LINK), ("empty", ".struct_ops.link", LINK)];
    assert_eq!(tables, expected.map(|(name, section, flags)| (name.to_owned(), section.to_owned(), 48, flags)));

    let program = |name: &str| InitialValue::Program(name.to_owned());
    let initial = |name| object.map(name).unwrap().initial.clone();
    // By word: a setting lies between the first program and the second.
    assert_eq!(initial("first"), [(0, program("pick")), (2, program("done"))]);
    assert_eq!(initial("second"), [(0, program("other"))]);
    assert_eq!(initial("empty"), []);
    let bytes = |name| object.map(name).unwrap().table.clone().unwrap();
    let first = bytes("first");
    assert_eq!(first[8..12], 7u32.to_le_bytes());
    assert_eq!(&first[32..38], b"first\0");
    assert!(first[..8].iter().chain(&first[16..32]).all(|&byte| byte == 0), "programs");
    assert_eq!(bytes("empty")[8], 1);
    assert!(object.programs().iter().all(|program| program.kind() == ProgramType::StructOps));
}

/// No changed byte makes the reader panic, or puts a table outside of its section.
#[test]
fn damaged_tables_are_refused_or_whole() {
    let mut refused = 0;
    for at in 0..OBJECT.len() {
        for change in [1, 0x80, 0xff] {
            let mut bytes = OBJECT.to_vec();
            bytes[at] ^= change;
            match Object::parse(&bytes) {
                Ok(object) => {
                    for map in object.maps().iter().filter(|map| map.map_type == MapType::StructOps) {
                        assert_eq!(map.table.as_ref().unwrap().len(), map.value_size as usize);
                        assert!(map.initial.iter().all(|(word, _)| word * 8 + 8 <= map.value_size.next_multiple_of(8)));
                    }
                }
                Err(ObjectError::Internal(what)) => panic!("{what} at {at:#x}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 0);
}
