//! A load that is refused leaves nothing behind, at any step: memory, descriptors, closures, maps and the engine are
//! all given back. Alone in its process, since allocations of other threads would count as well. The source of the
//! object is `objects/refused.c`.

use bpf_runtime::{Caller, Config, Engine, Linker, LoadError, MapSet, Mode, Object, Raw};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

struct Counting;

static BLOCKS: AtomicIsize = AtomicIsize::new(0);
static BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: the system's allocator, and counts. (`realloc` and `alloc_zeroed` come here as well, by their defaults.)
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed, here and below: counts, read by the only thread that allocates.
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BLOCKS.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Everything that a process can run out of: blocks and bytes of memory, descriptors, mappings of files.
fn held() -> [isize; 4] {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count() as isize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let files = maps.lines().filter(|line| line.contains("memfd") || line.contains("(deleted)")).count() as isize;
    drop(maps);
    [BLOCKS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed), descriptors, files]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Verified,
    Hybrid,
    Interpreted,
    Unverified,
}

/// Where a load is made to fail.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// The verifier gives up after so many steps of one program.
    Steps(u64),
    /// No more machine stack than this.
    Stack(u64),
    /// A helper that some of the programs call.
    Helper(u32),
    /// The host function is not registered.
    HostFunction,
    /// The map at this place in the object is larger than any may be.
    Map(usize),
    /// The map set is that of another engine.
    Engine,
}

/// Loads, on an engine of its own; the error's kind.
fn attempt(way: Way, mode: Mode, fault: Fault) -> &'static str {
    let mut config = Config::new().mode(mode);
    match fault {
        Fault::Steps(steps) => config = config.limits(|limits| limits.steps(steps)),
        Fault::Stack(bytes) => config = config.max_machine_stack(bytes),
        Fault::None | Fault::Helper(_) | Fault::HostFunction | Fault::Map(_) | Fault::Engine => {}
    }
    let engine = Engine::new(config).unwrap();
    let domain = Arc::downgrade(engine.domain());
    let captured = Arc::new(());
    let mut object = Object::parse(include_bytes!("objects/refused.o")).unwrap();
    let mut linker = Linker::<()>::new(&engine);
    if !matches!(fault, Fault::HostFunction) {
        // The function owns the engine itself, as a function that runs other programs does.
        let (captured, engine) = (Arc::clone(&captured), engine.clone());
        let note = move |_: &mut Caller<'_, ()>, value: u64| {
            value + Arc::strong_count(&captured) as u64 + engine.config().get_max_slots() as u64
        };
        linker.func(1001, "note", note).unwrap();
    }
    if let Fault::Helper(id) = fault {
        linker.remove_helper(id);
    }
    if let Fault::Map(i) = fault {
        let name = object.maps()[i].name.clone();
        // Globals are sections: they have no number of entries to change.
        if object.set_max_entries(&name, u32::MAX).is_err() {
            return "none";
        }
    }
    let other = matches!(fault, Fault::Engine).then(|| Engine::new(Config::new()).unwrap());
    let before = (engine.code_stats().programs, engine.domain().deferred());
    let result = MapSet::for_object(other.as_ref().unwrap_or(&engine), &object).and_then(|maps| {
        let loader = linker.loader::<Raw>();
        match way {
            Way::Verified => loader,
            Way::Hybrid => loader.hybrid(true),
            Way::Interpreted => loader.interpreted(true),
            // SAFETY: the programs are verified as well.
            Way::Unverified => unsafe { loader.unverified(true) },
        }
        .object(&object, maps)
    });
    let kind = match &result {
        Ok(_) => "loaded",
        Err(LoadError::Verifier { .. }) => "verifier",
        Err(LoadError::Stack { .. }) => "stack",
        Err(LoadError::UnknownHelper { .. }) => "helper",
        Err(LoadError::Map { .. }) => "map",
        Err(LoadError::ProgArray { .. }) => "prog array",
        Err(LoadError::OtherDomain(_)) => "engine",
        Err(error) => panic!("{error}"),
    };
    if result.is_err() {
        // At once, the engine still being there.
        assert_eq!((engine.code_stats().programs, engine.domain().deferred()), before, "{way:?} {mode:?} {fault:?}");
    }
    drop((result, object, linker, other));
    assert_eq!(Arc::strong_count(&captured), 1, "{way:?} {mode:?} {fault:?}: a closure is left");
    drop(engine);
    assert!(domain.upgrade().is_none(), "{way:?} {mode:?} {fault:?}: the engine is left");
    kind
}

#[test]
fn a_refused_load_leaves_nothing_behind() {
    let modes = [Some(Mode::Interpreter), bpf_runtime::code::Arch::HOST.map(|_| Mode::Jit)];
    let helpers = [1, 2, 5, 12, 181, 1001].map(Fault::Helper);
    let mut faults = vec![Fault::None, Fault::HostFunction, Fault::Engine];
    faults.extend(helpers);
    faults.extend((0..48).map(Fault::Steps));
    faults.extend((0..16).map(|i| Fault::Stack(i * 16)));
    let maps = Object::parse(include_bytes!("objects/refused.o")).unwrap().maps().len();
    faults.extend((0..maps).map(Fault::Map));
    let mut kinds = BTreeMap::<_, u32>::new();
    for way in [Way::Verified, Way::Hybrid, Way::Interpreted, Way::Unverified] {
        for mode in modes.into_iter().flatten() {
            for &fault in &faults {
                // The first time makes what a process has once.
                attempt(way, mode, fault);
                let before = held();
                let kind = attempt(way, mode, fault);
                assert_eq!(held(), before, "{way:?} {mode:?} {fault:?}: blocks, bytes, descriptors, mappings");
                *kinds.entry(kind).or_default() += 1;
            }
        }
    }
    let jit = bpf_runtime::code::Arch::HOST.is_some();
    let wanted = ["engine", "helper", "loaded", "map", "prog array", "verifier"];
    assert!(wanted.iter().all(|kind| kinds.contains_key(kind)) && jit == kinds.contains_key("stack"), "{kinds:?}");
}
