//! Compares objects with the results of other tools.
//!
//! `golden/*.tsv` holds the results of libbpf (and, where libbpf refuses an object, of llvm-readelf): programs, maps,
//! inner maps, initial values, the contents of global data, and a hash of each program's complete code after
//! relocation, as libbpf passes it to the kernel. `golden/libbpf_dump.c` generated them. Our own objects are in the
//! repository; the sample objects are not, and are searched for in `$BPF_SHARED/objects` or `../shared/objects`
//! beside the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bpf_object::{DataKind, InitialValue, MapDecl, Object};

/// The rows of a golden table about one object.
#[derive(Default)]
struct Golden<'a> {
    rows: BTreeMap<&'a str, Vec<Vec<&'a str>>>,
}

impl<'a> Golden<'a> {
    /// The rows of a kind, without the kind and the file.
    fn rows(&self, kind: &str) -> impl Iterator<Item = &[&'a str]> {
        self.rows.get(kind).into_iter().flatten().map(Vec::as_slice)
    }
}

fn golden(table: &str) -> BTreeMap<&str, Golden<'_>> {
    let mut objects: BTreeMap<&str, Golden<'_>> = BTreeMap::new();
    for line in table.lines().filter(|l| !l.starts_with('#')) {
        let mut fields = line.split('\t');
        let (kind, file) = (fields.next().unwrap(), fields.next().unwrap());
        objects.entry(file).or_default().rows.entry(kind).or_default().push(fields.collect());
    }
    objects
}

fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

/// FNV-1a, 64 bits, as in libbpf_dump.c.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// libbpf names `.bss` `object.bss`, with at most eight characters of the object's name.
fn same_map(ours: &str, theirs: &str) -> bool {
    ours == theirs || (ours.starts_with('.') && theirs.strip_suffix(ours).is_some_and(|o| (1..=8).contains(&o.len())))
}

fn find_map<'a>(object: &'a Object, theirs: &str) -> &'a MapDecl {
    object.maps().iter().find(|m| same_map(&m.name, theirs)).unwrap_or_else(|| panic!("no map {theirs}"))
}

/// libbpf makes global data accessible to mmap(2), which has no use inside one process.
const MMAPABLE: u64 = 1 << 10;

fn check_maps(object: &Object, golden: &Golden<'_>, file: &str) {
    // libbpf gives every declared configuration variable a place in .kconfig; this loader only the used ones.
    let maps: Vec<_> = golden.rows("map").filter(|row| !row[0].ends_with(".kconfig")).collect();
    let ours = object.maps().iter().filter(|m| m.name != ".kconfig").count();
    assert_eq!(ours, maps.len(), "{file}: number of maps");
    for (row, index) in maps.iter().zip(0..) {
        let map = find_map(object, row[0]);
        let what = format!("{file}: map {}", map.name);
        let expected: Vec<u64> = row[1..].iter().map(|n| number(n)).collect();
        let pinned = u64::from(map.pinning == bpf_object::Pinning::ByName);
        let mut fields = vec![
            u64::from(map.map_type.0),
            u64::from(map.key_size),
            u64::from(map.value_size),
            u64::from(map.max_entries),
            u64::from(map.flags),
            map.map_extra,
            u64::from(map.numa_node.unwrap_or(0)),
            pinned,
        ];
        if map.data.is_some() {
            fields[4] |= expected[4] & MMAPABLE;
        }
        assert_eq!(fields, expected, "{what}");
        if golden.rows("code").next().is_some() {
            let place = object.maps().iter().position(|m| m.name == map.name);
            assert_eq!(place, Some(index), "{what}: position");
        }
    }
    for row in golden.rows("inner") {
        let map = find_map(object, row[0]);
        let inner = map.inner.as_ref().unwrap_or_else(|| panic!("{file}: {} has no inner map", map.name));
        let fields = [inner.map_type.0, inner.key_size, inner.value_size, inner.max_entries, inner.flags];
        let expected: Vec<u64> = row[1..].iter().map(|n| number(n)).collect();
        assert_eq!(fields.map(u64::from).as_slice(), expected, "{file}: inner map of {}", map.name);
    }
    assert_eq!(object.maps().iter().filter(|m| m.inner.is_some()).count(), golden.rows("inner").count(), "{file}");
    let expected: BTreeSet<_> = golden.rows("init").map(|r| (r[0].to_owned(), number(r[1]), r[2].to_owned())).collect();
    let initial = object.maps().iter().flat_map(|map| {
        map.initial.iter().map(|(slot, value)| {
            let target = match value {
                InitialValue::Map(index) => object.maps()[*index].name.clone(),
                InitialValue::Program(name) => name.clone(),
            };
            (map.name.clone(), u64::from(*slot), target)
        })
    });
    assert_eq!(initial.collect::<BTreeSet<_>>(), expected, "{file}: initial values");
    for row in golden.rows("data") {
        let data = find_map(object, row[0]).data.as_ref().expect("global data");
        assert_eq!(data.bytes.len() as u64, number(row[1]), "{file}: {}", row[0]);
        assert_eq!(format!("{:016x}", fnv1a(&data.bytes)), row[2], "{file}: contents of {}", row[0]);
    }
}

fn check_programs(object: &Object, golden: &Golden<'_>, file: &str) {
    let expected: BTreeSet<_> = golden.rows("prog").map(|r| (r[0], r[1], number(r[2]))).collect();
    let programs = object.programs().iter().map(|p| (p.name(), p.section(), u64::from(p.insn_count())));
    assert_eq!(programs.collect::<BTreeSet<_>>(), expected, "{file}: programs");
    for row in golden.rows("prog") {
        let kind = object.program(row[0]).unwrap().kind();
        // 0: libbpf 1.x does not know the section's name. This loader accepts a suffix on every name, and names that
        // older versions accepted as prefixes.
        let older = ["socket", "xdp", "cgroup/sock"].iter().any(|name| row[1].starts_with(name));
        if row[3] != "0" {
            assert_eq!(u64::from(kind.number()), number(row[3]), "{file}: type of {}", row[0]);
        } else if !row[1].contains('/') && !older {
            assert_eq!(kind, bpf_object::ProgramType::Unknown, "{file}: type of {}", row[0]);
        }
    }
}

/// Returns the number of programs whose code was compared.
fn check_code(object: &Object, golden: &Golden<'_>, file: &str) -> usize {
    let mut compared = 0;
    for row in golden.rows("code") {
        let code = object.code(object.program(row[0]).unwrap()).unwrap();
        assert_eq!(code.insns().len() as u64, number(row[1]), "{file}: length of {}", row[0]);
        if !code.core_relocations().is_empty() {
            continue; // libbpf applied them for the kernel of the machine it ran on.
        }
        let bytes = bpf_isa::encode(code.insns()).unwrap();
        assert_eq!(format!("{:016x}", fnv1a(&bytes)), row[2], "{file}: code of {}", row[0]);
        compared += 1;
    }
    compared
}

fn check(root: &Path, table: &str) -> (usize, usize) {
    let (mut objects, mut programs) = (0, 0);
    for (file, golden) in golden(table) {
        let bytes = std::fs::read(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let object = Object::parse(&bytes).unwrap_or_else(|e| panic!("{file}: {e}"));
        check_programs(&object, &golden, file);
        check_maps(&object, &golden, file);
        programs += check_code(&object, &golden, file);
        objects += 1;
    }
    (objects, programs)
}

#[test]
fn own_objects() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects");
    assert_eq!(check(&root, include_str!("../golden/objects.tsv")), (9, 12));
}

#[test]
fn sample_objects() {
    let root = std::env::var_os("BPF_SHARED").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared")).join("objects");
    if !root.is_dir() {
        println!("SKIPPED sample_objects: {} does not exist; set BPF_SHARED", root.display());
        return;
    }
    let table = include_str!("../golden/samples.tsv");
    let listed: BTreeSet<PathBuf> = golden(table).keys().map(|file| root.join(file)).collect();
    for folder in ["samples/build", "samples/cilium-examples", "samples/new_linux", "tailcalls/v3", "tailcalls/v4"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            assert!(listed.contains(&path), "{} is in no golden table", path.display());
        }
    }
    assert_eq!(check(&root, table), (listed.len(), 106));
}

/// Results that no other tool prints: the variables of our own object, by the offsets of `llvm-readelf -s`.
#[test]
fn variables() {
    let object = Object::parse(include_bytes!("../objects/globals.o")).unwrap();
    let variables = |map: &str| -> Vec<(String, u32, u32)> {
        let data = object.map(map).unwrap().data.clone().unwrap();
        assert!(data.variables.iter().all(|v| v.ty.is_some()), "every variable of {map} has a type");
        data.variables.into_iter().map(|v| (v.name, v.offset, v.size)).collect()
    };
    let expect = |list: &[(&str, u32, u32)]| list.iter().map(|&(n, o, s)| (n.to_owned(), o, s)).collect::<Vec<_>>();
    assert_eq!(variables(".rodata"), expect(&[("threshold", 0, 4), ("config", 8, 16)]));
    assert_eq!(variables(".data"), expect(&[("hits", 0, 8), ("table", 8, 64), ("calls", 72, 4)]));
    assert_eq!(variables(".bss"), expect(&[("sum.runs", 0, 4), ("last", 4, 4), ("misses", 8, 8)]));
    assert_eq!(variables(".data.custom"), expect(&[("in_custom", 0, 8)]));
    let kind = |map: &str| object.map(map).unwrap().data.as_ref().unwrap().kind;
    assert_eq!(kind(".rodata.custom"), DataKind::Rodata);
    assert_eq!(kind(".bss.custom"), DataKind::Bss);
}
