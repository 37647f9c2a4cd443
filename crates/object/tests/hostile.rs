//! Tests of hostile objects: any changed or truncated byte gives an error or a valid result, never a panic, a hang or
//! 1 GiB of memory.
//!
//! `cargo test` takes every 7th position of our own objects; `BPF_SOAK=1 cargo test --release -p bpf-object --test
//! hostile` takes every position of those and of the sample objects (`$BPF_SHARED/objects` or `../shared/objects`
//! beside the repository), about 75 seconds. A second kind of test builds objects for which a naive loader would do
//! quadratic work.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bpf_isa::{Insn, InsnIdx};
use bpf_object::{HostTypes, Object, OwnedTypes, ReferenceKind};
use common::*;

/// Counts the bytes in use, and their peak. All tests of this binary together must stay below the limit, which is
/// stricter than necessary.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
const LIMIT: usize = 1 << 30;

impl Counting {
    fn add(size: usize) {
        // Relaxed: statistics, which order nothing.
        let now = IN_USE.fetch_add(size, Ordering::Relaxed) + size;
        PEAK.fetch_max(now, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::add(layout.size());
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counting::add(layout.size());
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn check_peak() {
    let peak = PEAK.load(Ordering::Relaxed);
    assert!(peak < LIMIT, "{peak} bytes in use");
}

/// Calls every query of an object. Returns whether it parsed.
fn exercise(bytes: &[u8]) -> bool {
    let Ok(mut object) = Object::parse(bytes) else { return false };
    for program in object.programs() {
        if let Ok(code) = object.code(program) {
            for insn in (0..=code.insns().len() as u32).map(InsnIdx) {
                let _ = (code.line(insn), code.function_at(insn));
            }
            let _ = bpf_isa::Program::new(code.insns().to_vec());
            for reference in code.references() {
                assert!(reference.insn.index() < code.insns().len());
                if let ReferenceKind::Table { table, off } = reference.kind {
                    let table = &code.jump_tables()[table];
                    assert!(off.is_multiple_of(8) && off as usize / 8 < table.targets.len());
                    let by = code.function_at(reference.insn).map(|function| function.start);
                    for target in &table.targets {
                        assert_ne!(code.insns()[target.index()], Insn::SecondSlot);
                        assert_eq!(code.function_at(*target).map(|function| function.start), by);
                    }
                }
            }
        }
        for present in [false, true] {
            if let Ok(linked) = object.link(program, |_| present) {
                assert!(linked.maps().iter().all(|&map| map < object.maps().len()));
            }
        }
    }
    // Its own types also serve as those of the host.
    let mut other = object.clone();
    if other.target_btf(bytes).is_ok() {
        for program in other.programs() {
            drop(other.link_for(program, &HostTypes::new(&[]), |_| true));
        }
    }
    if let Some(btf) = object.btf() {
        for (id, _) in btf.types() {
            let _ = (btf.size_of(id), btf.resolve(id), btf.display(id), btf.type_name(id), btf.prototype(id));
        }
    }
    let data = object.maps().iter().filter_map(|m| m.data.as_ref());
    let variables: Vec<_> = data.flat_map(|d| &d.variables).map(|v| (v.name.clone(), v.size)).collect();
    for (name, size) in variables {
        let _ = object.set_global(&name, &vec![1; size as usize]);
    }
    let names: Vec<_> = object.maps().iter().map(|m| m.name.clone()).collect();
    for name in names {
        let _ = object.set_max_entries(&name, 3);
    }
    true
}

/// Every mutation of one object at every `step`th position. Returns `(tried, accepted)`.
fn mutate(original: &[u8], first: usize, step: usize) -> (usize, usize) {
    let (mut tried, mut accepted) = (0, 0);
    let mut run = |bytes: &[u8]| {
        tried += 1;
        accepted += usize::from(exercise(bytes));
    };
    let mut bytes = original.to_vec();
    for position in (first..original.len()).step_by(step) {
        run(&original[..position]);
        for change in [0x01, 0x80, 0xff, original[position]] {
            if change != 0 {
                bytes[position] ^= change;
                run(&bytes);
                bytes[position] = original[position];
            }
        }
        // Sizes, offsets and indices at their limits.
        if let Some(word) = bytes.get(position..position + 4) {
            let word = <[u8; 4]>::try_from(word).unwrap();
            for value in [u32::MAX, i32::MAX as u32, original.len() as u32] {
                bytes[position..position + 4].copy_from_slice(&value.to_le_bytes());
                run(&bytes);
            }
            bytes[position..position + 4].copy_from_slice(&word);
        }
    }
    assert_eq!(bytes, original);
    (tried, accepted)
}

fn objects(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut objects: Vec<_> =
        entries.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "o")).collect();
    objects.sort();
    objects
}

/// Each byte of an object with jump tables, because entries, symbols and relocations are a small part of other
/// objects.
#[test]
fn jump_tables() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let object = std::fs::read(here.join("../runtime/tests/objects/jumptables.o")).unwrap();
    assert!(exercise(&object));
    let (tried, accepted) = mutate(&object, 0, 1);
    assert!(accepted > 100 && accepted < tried, "{accepted} of {tried}");
    check_peak();
}

#[test]
fn every_byte_changed_or_cut() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let soak = std::env::var_os("BPF_SOAK").is_some();
    let mut files = objects(&here.join("tests/objects"));
    assert_eq!(files.len(), 11);
    if soak {
        let shared = std::env::var_os("BPF_SHARED").map_or(here.join("../../../shared"), PathBuf::from);
        for folder in ["samples/build", "samples/cilium-examples", "samples/new_linux", "tailcalls/v4"] {
            files.extend(objects(&shared.join("objects").join(folder)));
        }
        if files.len() == 9 {
            println!("SKIPPED sample objects: {} does not exist; set BPF_SHARED", shared.join("objects").display());
        }
    }
    let step = if soak { 1 } else { 7 };
    let (mut tried, mut accepted) = (0, 0);
    for (index, file) in files.iter().enumerate() {
        let bytes = std::fs::read(file).unwrap();
        assert!(exercise(&bytes), "{}", file.display());
        // The loader ignores debug information, so a part of the one large sample is enough.
        let step = if bytes.len() > 100_000 { step * 16 } else { step };
        let (t, a) = mutate(&bytes, index % step, step);
        (tried, accepted) = (tried + t, accepted + a);
    }
    println!("{tried} objects, {accepted} accepted, peak {} KiB", PEAK.load(Ordering::Relaxed) >> 10);
    assert!(accepted > 0 && accepted < tried, "both outcomes must occur");
    check_peak();
}

/// Parses an object of some megabytes that is built to be slow. Quadratic work would take minutes to hours, which a
/// person notices; an assertion on time would fail on a busy machine.
fn quickly(what: &str, accepted: bool, bytes: &[u8]) {
    assert!(bytes.len() > 500_000, "{what}: only {} bytes", bytes.len());
    let start = Instant::now();
    assert_eq!(exercise(bytes), accepted, "{what}: {:?}", Object::parse(bytes).err());
    let time = start.elapsed();
    println!("{what}: {} KiB, {time:?}", bytes.len() >> 10);
    check_peak();
}

#[test]
fn many_symbols_share_one_long_name() {
    for (names, accepted) in
        [([b"x".repeat(1_000), vec![0]].concat().repeat(1_000), true), (b"x".repeat(1_000_000), false)]
    {
        let mut elf = Elf::new();
        let code = elf.code("xdp", &RETURN_0.repeat(10_001));
        elf.symbol("main", code, FUNC, 0, 16);
        let name = elf.strings(&names);
        for i in 0..10_000 {
            elf.symbol_at(name + i, code, STATIC_FUNC, 16 + u64::from(i) * 16, 16);
        }
        quickly("long names", accepted, &elf.build());
    }
}

#[test]
fn many_names_of_one_function() {
    let mut elf = Elf::new();
    let code = elf.code("xdp", &RETURN_0);
    for i in 0..5_000 {
        elf.symbol(&format!("{i:0200}"), code, FUNC, 0, 16);
    }
    quickly("aliases", true, &elf.build());
    let mut elf = Elf::new();
    let code = elf.code("xdp", &RETURN_0);
    for i in 0..50_000 {
        elf.symbol(&format!("{i}"), code, NOTYPE, 0, 0);
    }
    quickly("labels at one place", true, &elf.build());
}

#[test]
fn a_long_chain_of_calls() {
    let functions = 30_000u64;
    let mut code = [call(-1), call(-1), [0x95, 0, 0, 0, 0, 0, 0, 0]].concat().repeat(functions as usize);
    // The last function calls no other.
    code.truncate(code.len() - 24);
    code.extend([RETURN_0.as_slice(), &RETURN_0[8..]].concat());
    let mut elf = Elf::new();
    let section = elf.code("xdp", &code);
    for i in 0..functions {
        let info = if i == 0 { FUNC } else { STATIC_FUNC };
        elf.symbol(&format!("f{i}"), section, info, i * 24, 24);
    }
    let symbols: Vec<_> = (0..functions - 1).map(|i| (i * 24, i as u32 + 2, 10)).collect();
    let leaf = (0..functions - 1).map(|i| (i * 24 + 8, functions as u32, 10));
    elf.rel(section, &[symbols, leaf.collect()].concat());
    quickly("a chain of calls", true, &elf.build());
}

#[test]
fn many_sections_and_relocations() {
    let mut elf = Elf::new();
    let code = elf.code("xdp", &LOAD.repeat(20_000));
    elf.symbol("main", code, FUNC, 0, 16 * 20_000);
    let mut symbols = Vec::new();
    for i in 0..10_000 {
        let data = elf.section(&format!(".data.{i}"), PROGBITS, DATA, &[0; 8]);
        symbols.push(elf.symbol(&format!("v{i}"), data, OBJECT, 0, 8));
    }
    let rels: Vec<_> = (0..20_000u64).map(|i| (i * 16, symbols[i as usize % symbols.len()], 1)).collect();
    elf.rel(code, &rels);
    quickly("data sections", true, &elf.build());
}

#[test]
fn many_maps_of_one_large_type() {
    for (fields, accepted) in [(32, true), (20_000, false)] {
        many_maps(fields, accepted);
    }
}

fn many_maps(fields: usize, accepted: bool) {
    let mut btf = Btf::new();
    let int = btf.int();
    let number = btf.number(int, 1);
    let structure = btf.structure(&vec![("type", number); fields]);
    let names: Vec<_> = (0..20_000).map(|i| format!("m{i}")).collect();
    let vars: Vec<_> = names.iter().map(|n| (n.as_str(), structure)).collect();
    btf.datasec(".maps", &vars);
    let mut elf = Elf::new();
    elf.section(".maps", PROGBITS, DATA, &[0; 8]);
    elf.section(".BTF", PROGBITS, 0, &btf.build());
    quickly("maps of a large type", accepted, &elf.build());
}

/// One list of variables without bytes, which many sections of one name would each get.
#[test]
fn many_sections_of_tables_share_their_variables() {
    let mut btf = Btf::new();
    let structure = btf.structure(&[]);
    let words: Vec<u32> = (0..20_000).flat_map(|i| [btf.ty(&format!("m{i}"), 14, 0, structure, &[1]), 0, 0]).collect();
    btf.ty(".struct_ops", 15, 20_000, 0, &words);
    let types = btf.build();
    for (sections, accepted) in [(1, true), (5_000, false)] {
        let mut elf = Elf::new();
        for _ in 0..sections {
            elf.section(".struct_ops", PROGBITS, DATA, &[0]);
        }
        elf.section(".BTF", PROGBITS, 0, &types);
        quickly("sections of tables", accepted, &elf.build());
    }
}

#[test]
fn many_legacy_maps_of_maps() {
    // iproute2's dialect: each definition searches for an inner map's id that only the last one has.
    let mut bytes = Vec::new();
    let maps = 20_000u64;
    for i in 0..maps {
        let words: [u32; 9] = if i + 1 == maps { [2, 4, 4, 1, 0, 7, 0, 0, 0] } else { [12, 4, 4, 1, 0, 1, 0, 7, 0] };
        bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    }
    let mut elf = Elf::new();
    let section = elf.section("maps", PROGBITS, DATA, &bytes);
    for i in 0..maps {
        elf.symbol(&format!("m{i}"), section, OBJECT, i * 36, 36);
    }
    quickly("legacy maps", true, &elf.build());
}

#[test]
fn a_large_bss() {
    let mut elf = Elf::new();
    let bss = elf.bss(bpf_object::MAX_GLOBAL_DATA);
    elf.symbol("all", bss, OBJECT, 0, bpf_object::MAX_GLOBAL_DATA);
    assert!(exercise(&elf.build()));
    check_peak();
}

/// Many relocations of one instruction, with a type of a long name and a long access string: neither is copied per
/// relocation, and the type's many members are not inspected per relocation.
#[test]
fn many_relocations_share_long_names() {
    const EXISTS: u32 = 2;
    const TYPE_MATCHES: u32 = 12;
    for (kind, access) in [(EXISTS, "0:".repeat(2000)), (EXISTS, "0:1".to_owned()), (TYPE_MATCHES, "0".to_owned())] {
        let mut btf = Btf::new();
        let int = btf.int();
        let number = btf.number(int, 1);
        let structure = btf.structure(&vec![("data", number); 20_000]);
        let long = btf.ty(&"x".repeat(4000), 8, 0, structure, &[]);
        let (section, access) = (btf.string("xdp"), btf.string(&access));
        let records = vec![[0, long, access, kind]; 200_000];
        let mut elf = Elf::new();
        let code = elf.code("xdp", &RETURN_0);
        elf.symbol("main", code, FUNC, 0, 16);
        elf.section(".BTF", PROGBITS, 0, &btf.build());
        elf.section(".BTF.ext", PROGBITS, 0, &core_relocations(section, &records));
        quickly("relocations", true, &elf.build());
    }
}

/// Many relocations of a type that is searched for in the types of a host: the search happens once, and inspects each
/// member once.
#[test]
fn many_relocations_match_one_type_of_a_host() {
    const TYPE_MATCHES: u32 = 12;
    let mut btf = Btf::new();
    let int = btf.int();
    let names: Vec<_> = (0..5_000).map(|i| btf.string(&format!("m{i}"))).collect();
    let members: Vec<u32> = names.iter().zip(0..).flat_map(|(name, i)| [*name, int, 32 * i]).collect();
    let large = btf.ty("large", 4, 5_000, 20_000, &members);
    let (section, access) = (btf.string("xdp"), btf.string("0"));
    let types = btf.build();
    let mut elf = Elf::new();
    let code = elf.code("xdp", &RETURN_1);
    elf.symbol("main", code, FUNC, 0, 16);
    elf.section(".BTF", PROGBITS, 0, &types);
    elf.section(".BTF.ext", PROGBITS, 0, &core_relocations(section, &vec![[0, large, access, TYPE_MATCHES]; 60_000]));
    let bytes = elf.build();
    quickly("a type of a host", true, &bytes);
    let mut object = Object::parse(&bytes).unwrap();
    object.target_btf(&types).unwrap();
    let linked = object.link_for(object.program("main").unwrap(), &HostTypes::new(&[]), |_| false).unwrap();
    assert_eq!(linked.unresolved(), []);
    check_peak();
}

/// Many relocations through nested structures, each with a long name: none is copied per relocation.
#[test]
fn many_relocations_lead_through_long_names() {
    let mut btf = Btf::new();
    let int = btf.int();
    let mut inner = btf.number(int, 1);
    let names: Vec<_> = (0..60).map(|i| format!("{i}{}", "x".repeat(4000))).collect();
    for name in &names {
        inner = btf.structure(&[(name, inner)]);
    }
    let (section, access) = (btf.string("xdp"), btf.string(&["0"; 61].join(":")));
    let mut elf = Elf::new();
    let code = elf.code("xdp", &RETURN_0);
    elf.symbol("main", code, FUNC, 0, 16);
    elf.section(".BTF", PROGBITS, 0, &btf.build());
    elf.section(".BTF.ext", PROGBITS, 0, &core_relocations(section, &vec![[0, inner, access, 2]; 200_000]));
    quickly("relocations", true, &elf.build());
}

/// Counts, sizes and offsets of `.BTF.ext` at their limits.
#[test]
fn btf_ext_that_says_too_much() {
    let mut btf = Btf::new();
    let int = btf.int();
    let (section, access) = (btf.string("xdp"), btf.string("0"));
    let btf = btf.build();
    let object = |ext: &[u8]| {
        let mut elf = Elf::new();
        let code = elf.code("xdp", &RETURN_0);
        elf.symbol("main", code, FUNC, 0, 16);
        elf.section(".BTF", PROGBITS, 0, &btf);
        elf.section(".BTF.ext", PROGBITS, 0, ext);
        elf.build()
    };
    let good = core_relocations(section, &[[0, int, access, 2]]);
    assert!(exercise(&object(&good)));
    for at in (4..good.len()).step_by(4) {
        for value in [1, 3, 7, 0x7fff_ffff, 0x8000_0000, u32::MAX - 7, u32::MAX] {
            let mut ext = good.clone();
            ext[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
            exercise(&object(&ext));
        }
    }
    for len in 0..good.len() {
        exercise(&object(&good[..len]));
    }
    check_peak();
}

/// Each of many types leads to the largest possible number of others, and a program may make objects of all of them.
#[test]
fn types_of_objects_that_lead_to_many() {
    let mut btf = Btf::new();
    let int = btf.int();
    let mut to = btf.structure(&[("end", int)]);
    for _ in 0..62 {
        let tagged = btf.ty("kptr", 18, 0, to, &[]);
        let next = btf.ptr(tagged);
        to = btf.structure(&[("next", next)]);
    }
    let tagged = btf.ty("kptr", 18, 0, to, &[]);
    let next = btf.ptr(tagged);
    let first = btf.structure(&[("next", next)]);
    let last = (0..20_000).map(|_| btf.structure(&[("next", next)])).max().unwrap();
    let mut elf = Elf::new();
    let code = elf.code("xdp", &RETURN_0);
    elf.symbol("main", code, FUNC, 0, 16);
    elf.section(".BTF", PROGBITS, 0, &btf.build());
    let object = Object::parse(&elf.build()).unwrap();
    let types = OwnedTypes::new(object.btf().unwrap());
    assert_eq!(types.object(first).map(|all| all.len()), Some(64));
    let described: usize = (first..=last).filter_map(|number| types.object(number)).map(|all| all.len()).sum();
    assert!(described <= 1 << 17, "{described}");
    check_peak();
}
