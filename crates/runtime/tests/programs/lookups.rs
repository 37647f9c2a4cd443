//! Look-ups in known maps, which the JIT compiles to a comparison and an address or to a direct call, give what a model
//! gives on both engines: every kind of map, keys in range, at the border, and far out.

use crate::common::engines::engines;
use bpf_runtime::{Config, Engine, Linker, MapSet, Object, Raw};
use std::collections::HashMap;

/// Elements of the maps, in the order of the program's first argument; `u64::MAX`: grows by itself.
const ENTRIES: [u64; 4] = [5, 7, 4, u64::MAX];

#[test]
fn look_ups_agree_with_a_model() {
    let object = Object::parse(include_bytes!("../objects/lookups.o")).unwrap();
    for engine in engines(|config| config) {
        let way = format!("{:?}, {:?}", engine.config().get_mode(), engine.config().get_opt_level());
        let linker = Linker::<()>::new(&engine);
        let instance = linker.load::<Raw>(&object, MapSet::for_object(&engine, &object).unwrap()).unwrap();
        let program = instance.program::<Raw>("add").unwrap();
        let mut model: HashMap<(u64, u64), u64> = HashMap::new();
        for round in 0..3u64 {
            for which in 0..5u64 {
                for key in [0u64, 1, 3, 4, 5, 6, 7, 0xffff_ffff, 1 << 32, (1 << 32) + 4] {
                    let value = round * 1000 + key % 17 + 1;
                    let mut data = [which, key, value].map(u64::to_ne_bytes).concat();
                    let got = program.run(&mut (), &mut data).unwrap();
                    // Arrays look at 32 bits of the key; the last case looks up a constant.
                    let (map, index) = match which {
                        3 => (3, key),
                        4 => (0, 4),
                        _ => (which, key & 0xffff_ffff),
                    };
                    let want = if index < ENTRIES[map as usize] || map == 3 {
                        let sum = model.entry((map, index)).or_insert(0);
                        *sum += value;
                        *sum
                    } else {
                        0
                    };
                    assert_eq!(got, want, "{way}: map {which}, key {key:#x}");
                }
            }
        }
        for (&(map, key), &sum) in model.iter().filter(|((map, _), _)| *map == 3) {
            let value = instance.map("hash").unwrap().get(&key.to_ne_bytes()).unwrap();
            assert_eq!(value, Some(sum.to_ne_bytes().to_vec()), "{way}: map {map}, key {key:#x} from the host");
        }
    }
}

#[test]
fn typed_handles_know_what_the_object_declares() {
    use bpf_runtime::maps::MapError;
    use bpf_runtime::maps::typed::{TypedArray, TypedHash};
    let object = Object::parse(include_bytes!("../objects/lookups.o")).unwrap();
    let engine = Engine::new(Config::new()).unwrap();
    let instance =
        Linker::<()>::new(&engine).load::<Raw>(&object, MapSet::for_object(&engine, &object).unwrap()).unwrap();
    let hash = instance.map("hash").unwrap();
    hash.typed::<TypedHash<u64, u64>>().unwrap().insert(&1, &2).unwrap();
    hash.typed::<TypedHash<[u32; 2], u64>>().unwrap();
    let error = hash.typed::<TypedHash<u64, i64>>().unwrap_err();
    assert_eq!(error.to_string(), r#"map "hash": the value is an unsigned integer, got a signed integer"#);
    let error = hash.typed::<TypedHash<u64, f64>>().unwrap_err();
    assert!(matches!(error, MapError::Kind { what: "value", .. }), "{error}");
    instance.map("wide").unwrap().typed::<TypedArray<[u64; 3]>>().unwrap();
    let error = instance.map("narrow").unwrap().typed::<TypedArray<[u64; 3]>>().unwrap_err();
    assert!(matches!(error, MapError::Size { .. }), "{error}");
}
