//! Objects that no compiler makes. Each has about a megabyte, and is loaded or refused in time and memory linear in its
//! size: quadratic work would take minutes, which is seen when the tests run, and quadratic memory gigabytes, which the
//! count of bytes here shows. Alone in its process, since allocations of other tests would count as well.

#[path = "../../object/tests/common/mod.rs"]
mod common;

use bpf_runtime::{Config, Engine, Instance, Linker, LoadError, MapSet, Object, Plan, ProgArray, Raw, isa::assemble};
use common::{Btf, DATA, Elf, FUNC, LOAD, OBJECT, PROGBITS, RETURN_0, call};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the bytes in use, and their peak.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Upper bound in bytes for all tests of this file together, more than twice their measured use.
const LIMIT: usize = 512 << 20;

// SAFETY: each method calls the system allocator's, and counts, which touches no memory of it. (`realloc` and
// `alloc_zeroed` come here as well, by their defaults.)
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed: statistics, which order nothing.
        let now = IN_USE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Loads an object of a few hundred kilobytes, all of it.
fn load(bytes: &[u8]) -> Result<Instance<()>, LoadError> {
    assert!((200_000..2_000_000).contains(&bytes.len()), "{} bytes", bytes.len());
    let engine = Engine::new(Config::new()).unwrap();
    let object = Object::parse(bytes).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let loaded = Linker::new(&engine).load::<Raw>(&object, maps);
    let peak = PEAK.load(Ordering::Relaxed);
    assert!(peak < LIMIT, "{peak} bytes in use");
    loaded
}

/// Appends functions of these lengths, in slots, one behind the other. Returns their symbols.
fn functions(elf: &mut Elf, section: u16, lengths: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut at = 0;
    let symbol = |(i, slots)| {
        let symbol = elf.symbol(&format!("p{i}"), section, FUNC, at, slots as u64 * 8);
        at += slots as u64 * 8;
        symbol
    };
    lengths.enumerate().map(symbol).collect()
}

/// Each program's memory grows with the host functions that it calls itself, not with those of the object.
#[test]
fn many_programs_beside_many_host_functions() {
    const MANY: usize = 6000;
    let weak = 0x20;
    let mut elf = Elf::new();
    let code = [RETURN_0.repeat(MANY), call(-1).repeat(MANY), RETURN_0.to_vec()].concat();
    let section = elf.code("xdp", &code);
    functions(&mut elf, section, std::iter::repeat_n(2, MANY).chain([MANY + 2]));
    let calls = (0..MANY).map(|i| (MANY as u64 * 16 + i as u64 * 8, elf.symbol(&format!("h{i}"), 0, weak, 0, 0), 10));
    let calls: Vec<_> = calls.collect();
    elf.rel(section, &calls);
    assert_eq!(load(&elf.build()).unwrap().programs().count(), MANY + 1);
}

/// Each of these programs jumps through an array that begins with all of them.
#[test]
fn many_programs_in_an_array_of_them_all() {
    const MANY: usize = 8000;
    let mut btf = Btf::new();
    let int = btf.int();
    let [ty, entries, size] = [3, MANY as u32, 4].map(|n| btf.number(int, n));
    let function = btf.ty("", 13, 0, 0, &[]);
    let function = btf.ptr(function);
    let values = btf.array(function, MANY as u32);
    let fields = [("type", ty), ("max_entries", entries), ("key_size", size), ("values", values)];
    let structure = btf.structure(&fields);
    btf.datasec(".maps", &[("jumps", structure)]);
    let mut elf = Elf::new();
    let maps = elf.section(".maps", PROGBITS, DATA, &vec![0; 24 + 8 * MANY]);
    let map = elf.symbol("jumps", maps, OBJECT, 0, 24 + 8 * MANY as u64);
    let section = elf.code("xdp", &[LOAD, RETURN_0].concat().repeat(MANY));
    let programs = functions(&mut elf, section, std::iter::repeat_n(4, MANY));
    elf.rel(section, &(0..MANY).map(|i| (i as u64 * 32, map, 1)).collect::<Vec<_>>());
    elf.rel(maps, &(0..MANY).map(|i| (24 + i as u64 * 8, programs[i], 2)).collect::<Vec<_>>());
    elf.section(".BTF", PROGBITS, 0, &btf.build());
    let instance = load(&elf.build()).unwrap();
    let array = instance.prog_array::<Raw>("jumps").unwrap();
    assert_eq!(array.get(7999).unwrap().name(), "p7999");
}

/// Each program contains a copy of the function: 4,000 of them are refused before they take memory.
#[test]
fn many_programs_that_call_one_large_function() {
    for (programs, accepted) in [(20, true), (4000, false)] {
        let mut elf = Elf::new();
        let large = [RETURN_0[..8].repeat(30_000), RETURN_0.to_vec()].concat();
        let text = elf.code(".text", &large);
        let large = elf.symbol("large", text, FUNC, 0, large.len() as u64);
        let section = elf.code("xdp", &[&call(-1)[..], &RETURN_0[8..]].concat().repeat(programs));
        functions(&mut elf, section, std::iter::repeat_n(2, programs));
        elf.rel(section, &(0..programs).map(|i| (i as u64 * 16, large, 10)).collect::<Vec<_>>());
        match load(&elf.build()) {
            Ok(instance) => assert!(accepted && instance.programs().count() == programs),
            Err(error) => assert!(!accepted && matches!(error, LoadError::TooMuchCode { .. }), "{error}"),
        }
    }
}

/// A load whose second program is refused has settled nothing about an array that it takes over for the first.
#[test]
fn an_array_that_a_refused_load_took_over_is_as_open_as_before() {
    let mut btf = Btf::new();
    let int = btf.int();
    let [ty, entries, size] = [3, 1, 4].map(|n| btf.number(int, n));
    let fields = [("type", ty), ("max_entries", entries), ("key_size", size), ("value_size", size)];
    let structure = btf.structure(&fields);
    btf.datasec(".maps", &[("jumps", structure)]);
    let mut elf = Elf::new();
    let maps = elf.section(".maps", PROGBITS, DATA, &[0; 32]);
    let map = elf.symbol("jumps", maps, OBJECT, 0, 32);
    // r0 = r5, which was never written.
    let refused = [[0xbf, 0x50, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]].concat();
    let section = elf.code("xdp", &[&LOAD[..], &RETURN_0, &refused].concat());
    functions(&mut elf, section, [4, 2].into_iter());
    elf.rel(section, &[(0, map, 1)]);
    elf.section(".BTF", PROGBITS, 0, &btf.build());
    let object = Object::parse(&elf.build()).unwrap();

    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let array = ProgArray::<Raw, ()>::create(&engine, "jumps", 1).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap().reuse_array("jumps", &array).unwrap();
    let error = linker.load::<Raw>(&object, maps).unwrap_err();
    assert!(matches!(error, LoadError::Verifier { .. }), "{error}");
    let insns = assemble("r0 = 3\nexit").unwrap();
    let interpreted = linker.loader::<Raw>().interpreted(true).insns("interpreted", insns).unwrap();
    let _done = Plan::new().set(&array, 0, &interpreted).commit().unwrap();
}
