//! Allocations of a load, and memory that a loaded program keeps: counted, not timed.
//!
//! Loading a million programs a second leaves no time for a dozen allocations each, and thousands of loaded programs
//! must not keep memory that only the compiler needed. The test is alone in its process, since allocations of other
//! threads would count as well.

use bpf_runtime::{Config, Engine, Linker, Mode, Object, OptLevel, Raw, isa::assemble};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static MADE: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator, and counts. (`realloc` and `alloc_zeroed` come here as well, by their defaults.)
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed, here and below: counts, read by the only thread that allocates.
        MADE.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        FREED.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Blocks made by `work`, and how many blocks and bytes more there are after it.
fn count<R>(work: impl FnOnce() -> R) -> (R, [isize; 3]) {
    let counts = || [&MADE, &FREED, &BYTES].map(|count| count.load(Ordering::Relaxed) as isize);
    let before = counts();
    let result = work();
    let after = counts();
    let [made, freed, bytes] = [0, 1, 2].map(|i| after[i] - before[i]);
    (result, [made, made - freed, bytes])
}

#[test]
fn a_small_program_is_one_block_and_a_load_makes_few() {
    let text: String = (1..31).map(|i| format!("r{} {}= {i}\n", i % 5, if i < 5 { "" } else { "+" })).collect();
    let code = bpf_isa::encode(&assemble(&format!("r0 = 1\n{text}exit")).unwrap()).unwrap();
    for (mode, level, scratch, blocks, bytes) in [
        (Mode::Jit, OptLevel::Speed, 4, 1, 256),
        (Mode::Jit, OptLevel::None, 4, 1, 256),
        // The program, its form, and the instructions with their facts.
        (Mode::Interpreter, OptLevel::Speed, 4, 5, 2048),
    ] {
        let config = Config::new().mode(mode).opt_level(level);
        let engine = Engine::new(config).unwrap();
        let linker = Linker::<()>::new(&engine);
        // SAFETY: it only computes; and it is never run.
        let trusted = || unsafe { linker.loader::<Raw>().unverified(true) }.bytes("a short name", &code).unwrap();
        let verified = || linker.loader::<Raw>().bytes("a short name", &code).unwrap();
        check(&format!("{mode:?} {level:?}, trusted"), trusted, [scratch, blocks, bytes]);
        // Two blocks are the verifier's; the memory that it keeps between programs is not counted (`walk/memory.rs`).
        check(&format!("{mode:?} {level:?}, verified"), verified, [scratch + 2, blocks, bytes]);
    }
    an_instance_is_less_than_a_kilobyte();
}

/// Heap of an instance of a module with two maps, without the maps and the code. Part of another test, since the
/// counters are of the whole process.
fn an_instance_is_less_than_a_kilobyte() {
    let engine = Engine::new(Config::new()).unwrap();
    let object = Object::parse(include_bytes!("objects/pair.o")).unwrap();
    let module = Linker::<()>::new(&engine).compile::<Raw>(&object).unwrap();
    let shared = module.instance().make().unwrap();
    let make = || {
        let maps = shared.maps().fold(module.maps(), |maps, map| maps.reuse(map.name(), map).unwrap());
        module.instantiate(maps).unwrap()
    };
    (0..600).for_each(|_| drop(make()));
    let (instance, [made, kept, bytes]) = count(make);
    println!("an instance: {made} blocks made, {kept} kept, {bytes} bytes");
    assert!(kept <= 8 && bytes <= 1024, "{kept} blocks, {bytes} bytes");
    drop(instance);
}

/// `most`: blocks that a load makes and frees, blocks that the program keeps, and the bytes of these.
fn check<P>(what: &str, load: impl Fn() -> P, most: [isize; 3]) {
    // The first loads set up shared state, and drop more than two batches of programs.
    (0..600).for_each(|_| drop(load()));
    let (program, [made, kept, size]) = count(load);
    println!("{what}: {made} blocks made, {kept} kept, {size} bytes");
    assert!(made - kept <= most[0] && kept <= most[1] && size <= most[2], "{what}");
    let ((), [_, left, _]) = count(|| drop(program));
    assert_eq!(-left, kept, "{what}: all of it goes with the program");
}
