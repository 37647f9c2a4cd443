//! Arenas: programs that keep tables and lists there, on every engine, and in the kernel where that is to be had.

use crate::support::soak;
use crate::support::ways::{self, Way};
use bpf_isa::Imm64;
use bpf_object::ReferenceKind;
use bpf_object::btf::{Btf, Type};
use bpf_runtime::maps::{Arena, MapDef, MapType, flags};
use bpf_runtime::{
    Engine, Instance, Linker, LoadError, Object, Program, Raw, RunError,
    isa::{Callee, Insn, assemble},
    maps::Map,
};
use bpf_testkit::generate::{self, ARENA_WORDS, Choices};
use bpf_testkit::{kernel, skipped};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];

const NAMES: [&str; 3] = ["table", "pages", "sizes"];

fn object() -> Object {
    Object::parse(include_bytes!("../objects/arena.o")).unwrap()
}

/// Returns the value that a program of the object has stored in `result`.
fn result(instance: &Instance<()>) -> u64 {
    let bss = instance.map(".bss").unwrap().get(&0u32.to_ne_bytes()).unwrap().unwrap();
    u64::from_ne_bytes(bss[..8].try_into().unwrap())
}

fn run_all(instance: &Instance<()>) -> Vec<(u64, u64)> {
    // All programs run twice; the second round finds the arena as the first has left it.
    NAMES.iter().chain(&NAMES).map(|name| (ways::run(instance, name, &[0; 8]), result(instance))).collect()
}

#[test]
fn all_engines_keep_the_same_tables() {
    let expected = {
        let (_engine, instance) = ways::loaded(Way::VerifiedInterpreted, &object());
        run_all(&instance)
    };
    assert!(expected.iter().all(|(r0, sum)| *r0 == 0 && *sum != 0), "{expected:?}");
    for way in VERIFIED {
        let (_engine, instance) = ways::loaded(way, &object());
        assert_eq!(run_all(&instance), expected, "{way:?}");
    }
}

/// The kernel, which has its own addresses, comes to the same results.
#[test]
fn the_kernel_keeps_the_same_tables() {
    const NAME: &str = "the_kernel_keeps_the_same_tables";
    if let Err(why) = kernel::available() {
        skipped(NAME, &why.to_string());
        return;
    }
    let Some(functions) = kernel_functions() else {
        skipped(NAME, &"the kernel does not say what its functions are (no /sys/kernel/btf/vmlinux)");
        return;
    };
    let object = object();
    let begins = object.map("arena").unwrap().data.as_ref().unwrap().bytes.clone();
    let arena = match kernel::arena::Arena::create(100, &begins) {
        Ok(arena) => arena,
        Err(error) => {
            skipped(NAME, &format!("the kernel makes no arena: {error}"));
            return;
        }
    };
    let bss = kernel::Map::create(MapType::Array, 4, object.map(".bss").unwrap().value_size, 1).unwrap();
    let fd = |map: usize| match object.maps()[map].name.as_str() {
        "arena" => arena.fd(),
        ".bss" => bss.fd(),
        other => panic!("{other}"),
    };
    let load = |name: &str| {
        let code = object.code(object.program(name).unwrap()).unwrap();
        let mut insns = code.insns().to_vec();
        for reference in code.references() {
            let insn = &mut insns[reference.insn.index()];
            match (reference.kind, insn) {
                (ReferenceKind::Map(map), Insn::LoadImm64 { imm, .. }) => *imm = Imm64::Map(fd(map)),
                (ReferenceKind::MapValue { map, off }, Insn::LoadImm64 { imm, .. }) => {
                    *imm = Imm64::MapValue { map: fd(map), off }
                }
                (ReferenceKind::HostCall(host), Insn::Call(Callee::Host(id))) => {
                    *id = functions[&object.host_functions()[host].name]
                }
                (kind, insn) => panic!("{kind:?} in {insn}"),
            }
        }
        let bytes = bpf_isa::encode(&insns).unwrap();
        kernel::Program::load_syscall(&bytes).unwrap_or_else(|error| panic!("{name}: {error}\n{}", error.log))
    };
    let programs: Vec<_> = NAMES.iter().map(|name| load(name)).collect();
    let theirs = (0..2).flat_map(|_| &programs).map(|program| {
        let r0 = program.run_syscall().unwrap();
        let result = bss.lookup(&0u32.to_ne_bytes()).unwrap();
        (u64::from(r0), u64::from_ne_bytes(result[..8].try_into().unwrap()))
    });
    let theirs: Vec<_> = theirs.collect();
    let (_engine, instance) = ways::loaded(Way::Verified, &object);
    assert_eq!(run_all(&instance), theirs);
}

/// The numbers by which the running kernel knows its functions.
fn kernel_functions() -> Option<BTreeMap<String, i32>> {
    let btf = Btf::parse(&std::fs::read("/sys/kernel/btf/vmlinux").ok()?).ok()?;
    let named = btf.types().filter_map(|(id, ty)| match ty {
        Type::Func { name, .. } if btf.name(*name).starts_with("bpf_arena_") => {
            Some((btf.name(*name).to_owned(), id.0 as i32))
        }
        _ => None,
    });
    Some(named.collect())
}

/// An arena of so many pages, on an engine.
fn arena(engine: &Engine, pages: u32) -> (Map, Arena) {
    let def = MapDef::new("arena", MapType::Arena, 0, 0, pages).flags(flags::MMAPABLE);
    let map = Map::create(def, engine.domain()).unwrap();
    let arena = Arena::new(&map).unwrap();
    (map, arena)
}

/// Loads a program of text with these maps.
fn load(engine: &Engine, text: &str, maps: &[&Map]) -> Result<Program<Raw, ()>, LoadError> {
    let linker = Linker::<()>::new(engine);
    linker.loader::<Raw>().maps(maps).insns("p", assemble(text).unwrap())
}

/// Whatever number an address is, whatever is calculated with it before and after the cast, an access is in the window:
/// the checking interpreter, which knows how far the window and its guards reach, makes each, and machine code must
/// leave the same in every byte of the arena. (All of the window is pages here.)
#[test]
fn no_number_leads_out_of_the_window() {
    const OFFS: [i32; 8] = [-32768, -9, -1, 0, 3, 4095, 32760, 32767];
    let ends = [0u64, 1, 4095, 0x7fff, 0x8000, 0x3ffff, 0x40000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    let numbers = ends.into_iter().flat_map(|n| [n, n.wrapping_neg(), n << 32 | 0xfffc, n | 0xffff_ffff_0000_0000]);
    let numbers: Vec<u64> = numbers.collect();
    let adds = [0u64, 1, 1 << 31, 1 << 32, u64::MAX, 0xffff_8000];
    // With numbers that the optimiser does not know, and with constants that it folds.
    let unknown = "if r2 > 15 goto ok\nr0 = 0\nexit\nok:\nr2 = *(u64 *)(r1 + 0)\nr3 = *(u64 *)(r1 + 8)".to_owned();
    let body = |begin: &str, off: i32| {
        let text = format!(
            "{begin}\nr0 = map[fd:0]\nr2 = addr_space_cast(r2, 0, 1)\nr2 += r3\nr4 = 0x1122334455667788 ll\n\
             r0 = *(u64 *)(r2 {off:+})\n*(u64 *)(r2 {off:+}) = r4\nr2 += 2\nr5 = *(s16 *)(r2 {off:+})\nr0 += r5\n\
             r5 = *(u8 *)(r2 {off:+})\nr0 += r5\n*(u16 *)(r2 {off:+}) = r0\nr3 <<= 1\nr2 -= r3\n\
             *(u8 *)(r2 {off:+}) = 9\nr2 = addr_space_cast(r2, 1, 0)\nr0 ^= r2\nexit"
        );
        text.replace("(r2 +", "(r2 + ").replace("(r2 -", "(r2 - ")
    };
    for pages in [1, 64] {
        let mut expected: Option<Vec<u64>> = None;
        for way in [Way::VerifiedInterpreted, Way::Verified, Way::Unoptimised] {
            let engine = ways::engine(way, |config| config);
            let (map, arena) = arena(&engine, pages);
            let mut got = Vec::new();
            let mut image = vec![0; pages as usize * 4096];
            let mut look = |got: &mut Vec<u64>| {
                arena.read(arena.start(), &mut image).unwrap();
                let fnv = |sum: u64, word: &[u8]| {
                    let word = u64::from_ne_bytes(word.try_into().unwrap());
                    (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5)
                };
                got.push(image.chunks_exact(8).fold(7, fnv));
                arena.write(arena.start(), &vec![0; image.len()]).unwrap();
            };
            let run = |text: &str, pairs: &[(u64, u64)], got: &mut Vec<u64>| {
                let program = load(&engine, text, &[&map]).unwrap_or_else(|error| panic!("{way:?}: {error}\n{text}"));
                for (number, add) in pairs {
                    let mut context = [number.to_ne_bytes(), add.to_ne_bytes()].concat();
                    got.push(program.run(&mut (), &mut context).unwrap_or_else(|e| panic!("{way:?}: {e}\n{text}")));
                }
            };
            for off in OFFS {
                let pairs: Vec<_> = numbers.iter().flat_map(|n| adds.map(|add| (*n, add))).collect();
                run(&body(&unknown, off), &pairs, &mut got);
                look(&mut got);
                for &number in numbers.iter().step_by(3) {
                    let begin = format!("r2 = {number:#x} ll\nr3 = {:#x} ll", adds[number as usize % adds.len()]);
                    run(&body(&begin, off), &[(0, 0)], &mut got);
                }
                look(&mut got);
            }
            match &expected {
                None => expected = Some(got),
                Some(expected) => assert_eq!(*expected, got, "{way:?}, {pages} pages"),
            }
        }
    }
}

/// The outcome of a generated program: its result, or where and why it was stopped, and the bytes of the arena.
#[derive(PartialEq, Debug)]
struct Done {
    result: Result<u64, String>,
    image: Vec<u8>,
}

/// Generated programs do the same in every byte of the arena on each engine, and the checking interpreter stops each
/// access beyond the window and its guards. `BPF_SOAK=N` multiplies their number by N.
#[test]
fn generated_programs_stay_inside_and_agree() {
    for pages in [1u32, 3, 64] {
        let engines = [Way::VerifiedInterpreted, Way::Verified, Way::Unoptimised].map(|way| {
            let engine = ways::engine(way, |config| config);
            let (map, memory) = arena(&engine, pages);
            (way, engine, map, memory)
        });
        let (mut stopped, mut changed, mut results) = (0, 0, std::collections::BTreeSet::new());
        let programs = soak(500);
        for seed in 0..programs {
            let mut choices = Choices::from_seed(seed << 8 | u64::from(pages));
            let text = generate::arenas(&mut choices);
            let base = engines[0].3.start();
            let words: [u64; ARENA_WORDS] = std::array::from_fn(|_| match choices.below(3) {
                0 => choices.value(),
                _ => base + u64::from(choices.below(pages * 4096)),
            });
            let begins: Vec<u8> = (0..pages as usize * 4096).map(|i| (i * 7 + seed as usize) as u8).collect();
            let mut first: Option<Done> = None;
            for (way, engine, map, memory) in &engines {
                let program =
                    load(engine, &text, &[map]).unwrap_or_else(|e| panic!("seed {seed}, {way:?}: {e}\n{text}"));
                memory.write(memory.start(), &begins).unwrap();
                let mut context = words.map(u64::to_ne_bytes).concat();
                let result = program.run(&mut (), &mut context).map_err(|error| match error {
                    RunError::Access { insn, .. } => format!("an access at {insn:?}"),
                    other => panic!("seed {seed}, {way:?}: {other}\n{text}"),
                });
                let mut done = Done { result, image: vec![0; begins.len()] };
                memory.read(memory.start(), &mut done.image).unwrap();
                assert_eq!(
                    context,
                    words.map(u64::to_ne_bytes).concat(),
                    "seed {seed}, {way:?}: the context is no arena"
                );
                match &first {
                    None => first = Some(done),
                    Some(first) => {
                        let differ = first.image.iter().zip(&done.image).position(|(a, b)| a != b);
                        assert!(
                            *first == done,
                            "seed {seed}, {way:?}, {pages} pages: {:x?}, {:x?}, at {differ:x?}\n{words:x?}\n{text}",
                            first.result,
                            done.result
                        );
                    }
                }
            }
            let Some(first) = first else { unreachable!("there are engines") };
            stopped += u64::from(first.result.is_err());
            changed += u64::from(first.image != begins);
            results.extend(first.result);
        }
        // The programs change the arena and give different results, and most run to their end.
        assert!(stopped * 3 < programs && stopped > 0, "{stopped} of {programs} are stopped");
        assert!(changed * 2 > programs && results.len() as u64 * 2 > programs, "{changed}, {}", results.len());
    }
}

#[test]
fn atomics_are_aligned_or_stop_the_run() {
    for way in VERIFIED {
        let engine = ways::engine(way, |config| config);
        let (map, arena) = arena(&engine, 2);
        for (op, size) in [
            ("lock *(u64 *)(r2 + 8) += r3", 8),
            ("r3 = atomic_fetch_or((u64 *)(r2 + 8), r3)", 8),
            ("lock *(u32 *)(r2 + 8) ^= w3", 4),
            ("w3 = xchg32_32(r2 + 8, w3)", 4),
            ("r0 = cmpxchg_64(r2 + 8, r0, r3)", 8),
            ("r3 = load_acquire((u64 *)(r2 + 8))", 8),
            ("r3 = load_acquire((u16 *)(r2 + 8))", 2),
            ("r3 = load_acquire((u8 *)(r2 + 8))", 1),
            ("store_release((u32 *)(r2 + 8), r3)", 4),
        ] {
            let text = format!(
                "if r2 > 7 goto ok\nr0 = 0\nexit\nok:\nr2 = *(u64 *)(r1 + 0)\nr0 = map[fd:0]\nr0 = 0\nr3 = 5\nr2 = addr_space_cast(r2, 0, 1)\n{op}\nr0 = 7\nexit"
            );
            let program = load(&engine, &text, &[&map]).unwrap_or_else(|error| panic!("{op}: {error}"));
            for at in 0..16u64 {
                let mut context = (arena.start() + 4096 + at).to_ne_bytes();
                match program.run(&mut (), &mut context) {
                    Ok(r0) => assert!(r0 == 7 && at.is_multiple_of(size), "{way:?} {op} at {at}"),
                    Err(error) => {
                        assert!(matches!(error, RunError::Access { .. }), "{way:?} {op} at {at}: {error}");
                        assert!(!at.is_multiple_of(size), "{way:?} {op} at {at}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn user_addresses_are_the_hosts_too() {
    for way in VERIFIED {
        let engine = ways::engine(way, |config| config);
        let (map, arena) = arena(&engine, 4);
        let page = arena.alloc(1).unwrap().unwrap();
        arena.write(page + 16, &0x55u64.to_ne_bytes()).unwrap();
        // The program reads memory that the host has allocated, and stores a pointer to it, which the host follows.
        let text = "if r2 > 7 goto ok\nr0 = 0\nexit\nok:\nr2 = *(u64 *)(r1 + 0)\nr0 = map[fd:0]\nr2 = addr_space_cast(r2, 0, 1)\nr0 = *(u64 *)(r2 + 16)\n\
                    r3 = r2\nr3 += 16\nr3 = addr_space_cast(r3, 1, 0)\n*(u64 *)(r2 + 8) = r3\nexit";
        let program = load(&engine, text, &[&map]).unwrap();
        assert_eq!(program.run(&mut (), &mut page.to_ne_bytes()).unwrap(), 0x55, "{way:?}");
        let mut pointer = [0; 8];
        arena.read(page + 8, &mut pointer).unwrap();
        assert_eq!(u64::from_ne_bytes(pointer), page + 16, "{way:?}");
        let (word, half) = (arena.atomic_u64(page + 16).unwrap(), arena.atomic_u32(page + 16).unwrap());
        assert_eq!((word.load(Relaxed), half.load(Relaxed)), (0x55, 0x55));
        // Null stays null, cast either way.
        let text = "r0 = map[fd:0]\nr2 = 0x100000000 ll\nr2 = addr_space_cast(r2, 1, 0)\nr0 = r2\nexit";
        assert_eq!(load(&engine, text, &[&map]).unwrap().run(&mut (), &mut []).unwrap(), 0, "{way:?}");
    }
    let engine = ways::engine(Way::Verified, |config| config);
    let (_map, arena) = arena(&engine, 4);
    let end = arena.start() + 4 * 4096;
    for address in [0, arena.start() - 1, end, end - 7, u64::MAX] {
        assert_eq!(arena.read(address, &mut [0; 8]).unwrap_err().errno(), libc::ERANGE, "{address:#x}");
        assert!(arena.write(address, &[0; 8]).is_err() && arena.atomic_u64(address).is_err(), "{address:#x}");
    }
    assert_eq!(arena.atomic_u64(arena.start() + 4).unwrap_err().errno(), libc::EINVAL);
    assert!(arena.free(end - 4096, 2).is_err());
    assert!(arena.alloc(5).unwrap().is_none() && arena.alloc(0).unwrap().is_none());
}

#[test]
fn what_is_no_arenas_business_is_refused() {
    let engine = ways::engine(Way::Verified, |config| config);
    let ((one, _), (two, _)) = (arena(&engine, 1), arena(&engine, 1));
    let refused = |text: &str, maps: &[&Map]| load(&engine, text, maps).unwrap_err().to_string();
    let cast = "r2 = addr_space_cast(r2, 0, 1)\nr0 = *(u64 *)(r2 + 0)\nexit";
    assert!(refused(cast, &[]).contains("arena"));
    let both = "r0 = map[fd:0]\nr0 = map[fd:1]\nr0 = 0\nexit";
    assert!(refused(both, &[&one, &two]).contains("one arena at most"));
    let value = "r0 = map[fd:0][0]+4096\nr0 = 0\nexit";
    assert!(refused(value, &[&one]).contains("4096"));
    let lookup = "*(u64 *)(r10 - 8) = 0\nr2 = r10\nr2 += -8\nr1 = map[fd:0]\ncall 1\nr0 = 0\nexit";
    assert!(refused(lookup, &[&one]).contains("a map of a kind it works on"));
    // Without the verifier, accesses of the arena are not known as such.
    for way in [Way::Interpreted, Way::Unverified] {
        let error = ways::try_instance(&ways::engine(way, |config| config), way, &object()).unwrap_err();
        assert!(matches!(error, LoadError::ArenaNeedsVerifier { .. }), "{error}");
    }
    // The arena of an object must hold its variables and be within the memory limit.
    let mut small = object();
    small.set_max_entries("arena", 1).unwrap();
    ways::loaded(Way::Verified, &small);
    let engine = ways::engine(Way::Verified, |config| config.memory_limit(100 * 4096));
    let error = ways::try_instance(&engine, Way::Verified, &object()).unwrap_err();
    assert!(error.to_string().contains("arena"), "{error}");
    assert_eq!(engine.domain().memory().used(), 0, "the refused load leaves nothing");
}

/// Threads that allocate, fill, check and free pages at once never have one another's; and the map goes while they run.
#[test]
fn pages_are_one_runs_alone() {
    for way in VERIFIED {
        let (_engine, instance) = ways::loaded(way, &object());
        let instance = Arc::new(instance);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let instance = Arc::clone(&instance);
                std::thread::spawn(move || {
                    let program = instance.program::<Raw>("own").unwrap();
                    (0..200).map(|_| program.run(&mut (), &mut [0; 8]).unwrap()).sum::<u64>()
                })
            })
            .collect();
        let arena = Arena::new(&instance.map("arena").unwrap()).unwrap();
        drop(instance);
        let wrong: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!((wrong, arena.in_use()), (0, 1), "{way:?}");
    }
}
