//! Contained programs do what they do otherwise, and what cannot be contained is refused by type.

use bpf_runtime::{
    Config, Engine, EngineError, Linker, LoadError, OptLevel, Raw, RunError,
    isa::assemble,
    maps::{Map, MapDef, MapType},
    verify::Escape,
};
use std::path::Path;

fn engine() -> Engine {
    Engine::new(Config::new()).unwrap()
}

fn maps(engine: &Engine) -> [Map; 6] {
    let create = |name, kind, key, value, entries| {
        Map::create(MapDef::new(name, kind, key, value, entries), engine.domain()).unwrap()
    };
    let outer = |kind| {
        let inner = MapDef::new("inner", MapType::Array, 4, 16, 3);
        let def = MapDef::new("outer", kind, 4, 4, 2).inner(inner.clone());
        let outer = Map::create(def, engine.domain()).unwrap();
        let inner = Map::create(inner, engine.domain()).unwrap();
        inner.update(&[1, 0, 0, 0], &[5; 16], 0).unwrap();
        outer.set_inner(&[0; 4], &inner, 0).unwrap();
        outer
    };
    [
        create("array", MapType::Array, 4, 24, 3),
        create("hash", MapType::Hash, 8, 16, 4),
        create("global", MapType::Array, 4, 64, 1),
        create("percpu", MapType::PerCpuArray, 4, 16, 2),
        outer(MapType::ArrayOfMaps),
        outer(MapType::HashOfMaps),
    ]
}

/// Programs, each named by its kind of access.
const PROGRAMS: &[(&str, &str)] = &[
    ("a constant offset in the context", "r0 = 0\nif r2 < 16 goto out\nr0 = *(u64 *)(r1 + 8)\nout: exit"),
    (
        "a variable offset in the context",
        "r0 = 0\nif r2 < 1 goto out\nr3 = *(u8 *)(r1 + 0)\nif r3 >= r2 goto out\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\n\
         *(u8 *)(r1 + 0) = 7\nout: exit",
    ),
    (
        "a variable offset in the stack",
        "*(u64 *)(r10 - 16) = 257\n*(u64 *)(r10 - 8) = 3\nr0 = 9\nif r2 < 1 goto out\nr3 = *(u8 *)(r1 + 0)\nr3 &= 15\n\
         r4 = r10\nr4 += -16\nr4 += r3\nr0 = *(u8 *)(r4 + 0)\nout: exit",
    ),
    (
        "a pointer that was spilled, and an atomic",
        "r6 = r10\nr6 += -8\n*(u64 *)(r10 - 8) = 5\n*(u64 *)(r10 - 16) = r6\nr7 = *(u64 *)(r10 - 16)\nr8 = 37\n\
         lock *(u64 *)(r7 + 0) += r8\nr0 = *(u64 *)(r10 - 8)\nexit",
    ),
    (
        "an element of an array",
        "r0 = 0\nif r2 < 4 goto out\nr6 = *(u8 *)(r1 + 1)\nr6 &= 7\nr3 = *(u8 *)(r1 + 0)\n*(u32 *)(r10 - 4) = r3\n\
         r2 = r10\nr2 += -4\nr1 = map[fd:0]\ncall 1\nif r0 == 0 goto out\nr0 += r6\nr1 = *(u8 *)(r0 + 8)\nr1 += 3\n\
         *(u8 *)(r0 + 8) = r1\nr0 = r1\nout: exit",
    ),
    (
        "a value of a hash, spilled across a call",
        "*(u64 *)(r10 - 8) = 1\n*(u64 *)(r10 - 24) = 40\n*(u64 *)(r10 - 16) = 2\nr1 = map[fd:1]\nr2 = r10\nr2 += -8\n\
         r3 = r10\nr3 += -24\nr4 = 0\ncall 2\nr1 = map[fd:1]\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto none\n\
         *(u64 *)(r10 - 32) = r0\ncall 5\nr1 = *(u64 *)(r10 - 32)\nr0 = *(u64 *)(r1 + 0)\nr2 = *(u64 *)(r1 + 8)\nr0 += r2\n\
         exit\nnone: r0 = 1\nexit",
    ),
    (
        "a variable offset in a large frame, by a mask",
        "r0 = 0\nif r2 < 1 goto out\nr3 = *(u8 *)(r1 + 0)\nr3 *= 3\nr3 &= 255\nr4 = r10\nr4 += -256\nr4 += r3\n\
         *(u8 *)(r4 + 0) = 7\nr0 = r3\nout: exit",
    ),
    (
        "a variable offset in a large frame, by a branch",
        "r0 = 0\nif r2 < 1 goto out\nr3 = *(u8 *)(r1 + 0)\nif r3 > 230 goto out\nr4 = r10\nr4 += -256\nr4 += r3\n\
         *(u8 *)(r4 + 0) = 7\nr0 = r3\nout: exit",
    ),
    (
        "a value of an inner map, whose map was spilled",
        "r0 = 0\nif r2 < 4 goto out\nr7 = *(u8 *)(r1 + 1)\nr7 &= 15\nr8 = *(u8 *)(r1 + 0)\n\
         *(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\nr1 = map[fd:4]\ncall 1\nif r0 == 0 goto out\nr6 = r0\n\
         *(u64 *)(r10 - 16) = r6\ncall 5\n*(u32 *)(r10 - 4) = r8\nr1 = *(u64 *)(r10 - 16)\nr2 = r10\nr2 += -4\ncall 1\n\
         if r0 == 0 goto out\nr0 += r7\nr1 = *(u8 *)(r0 + 0)\nr1 += 1\n*(u8 *)(r0 + 0) = r1\nr0 = r1\nout: exit",
    ),
    (
        "a value of an inner map of a hash",
        "r0 = 0\nif r2 < 4 goto out\nr7 = *(u8 *)(r1 + 1)\nr7 &= 15\nr8 = *(u8 *)(r1 + 0)\n\
         *(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\nr1 = map[fd:5]\ncall 1\nif r0 == 0 goto out\nr6 = r0\n\
         *(u64 *)(r10 - 16) = r6\ncall 5\n*(u32 *)(r10 - 4) = r8\nr1 = *(u64 *)(r10 - 16)\nr2 = r10\nr2 += -4\ncall 1\n\
         if r0 == 0 goto out\nr0 += r7\nr1 = *(u8 *)(r0 + 0)\nr1 += 1\n*(u8 *)(r0 + 0) = r1\nr0 = r1\nout: exit",
    ),
    (
        "a dynptr to a global, which is made, narrowed by a clone, read, written and accessed",
        "r0 = 0\nif r2 < 4 goto out\nr8 = *(u8 *)(r1 + 0)\nr7 = *(u8 *)(r1 + 1)\nr7 &= 7\nr1 = map[fd:2][0]+8\nr2 = 40\nr3 = 0\n\
         r4 = r10\nr4 += -32\ncall 197\nr1 = r10\nr1 += -8\nr2 = 8\nr3 = r10\nr3 += -32\nr4 = r8\nr5 = 0\ncall 201\n\
         r1 = r10\nr1 += -32\nr2 = r8\nr3 = 8\ncall 203\nr1 = r0\nr0 = 9\nif r1 == 0 goto out\nr1 += r7\n\
         r0 = *(u8 *)(r1 + 0)\n*(u8 *)(r1 + 0) = 77\nr1 = *(u64 *)(r10 - 8)\nr0 += r1\nout: exit",
    ),
    ("a global", "r1 = map[fd:2][0]+8\nr0 = *(u32 *)(r1 + 4)\nr0 += 1\n*(u32 *)(r1 + 4) = r0\nexit"),
    (
        "a table in a global",
        "r0 = 0\nif r2 < 1 goto out\nr3 = *(u8 *)(r1 + 0)\nr3 &= 63\nr4 = map[fd:2][0]+0\nr4 += r3\n\
         r0 = *(u8 *)(r4 + 0)\nout: exit",
    ),
    (
        "an element of this slot's",
        "*(u32 *)(r10 - 4) = 1\nr2 = r10\nr2 += -4\nr1 = map[fd:3]\ncall 1\nif r0 == 0 goto none\nr1 = *(u64 *)(r0 + 8)\n\
         r1 += 2\n*(u64 *)(r0 + 8) = r1\nr0 = r1\nexit\nnone: r0 = 0\nexit",
    ),
    (
        "a frame that a function is lent",
        "*(u64 *)(r10 - 8) = 3\nr1 = r10\nr1 += -16\n*(u64 *)(r10 - 16) = 1\nr2 = 5\ncall function\n\
         r1 = *(u64 *)(r10 - 16)\nr0 += r1\nexit\n\
         function: r2 &= 8\nr3 = r1\nr3 += r2\n*(u64 *)(r1 + 0) = 20\nr0 = *(u64 *)(r1 + 8)\nexit",
    ),
];

#[test]
fn contained_programs_do_the_same() {
    let inputs = [vec![], vec![1], vec![2, 9, 3, 4], (0..16).collect(), vec![200; 40], vec![3; 16]];
    for (what, text) in PROGRAMS {
        let mut results = Vec::new();
        for (contained, config) in [(false, Config::new()), (true, Config::new()), (true, Config::untrusted())] {
            let engine = Engine::new(config).unwrap();
            let maps = maps(&engine);
            maps[2].update(&[0; 4], &(0..64).collect::<Vec<u8>>(), 0).unwrap();
            let linker = Linker::<()>::new(&engine);
            let loader = linker.loader::<Raw>().maps(&maps.each_ref());
            let loader = loader.contained(contained);
            let program = loader.insns("program", assemble(text).unwrap()).unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut all = Vec::new();
            for input in &inputs {
                let mut memory = input.clone();
                all.push((program.run(&mut (), &mut memory).unwrap(), memory));
            }
            let contents: Vec<_> = (0..3u32).map(|i| maps[0].get(&i.to_ne_bytes()).unwrap()).collect();
            results.push((all, contents, maps[2].get(&[0; 4]).unwrap()));
        }
        assert_eq!(results[0], results[1], "{what}");
        assert_eq!(results[0], results[2], "{what}, blinded");
    }
}

/// The speed programs. Under an emulator, which takes minutes to verify them all, every fourth one.
#[test]
fn the_speed_programs_do_the_same() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/programs");
    let engine = engine();
    let linker = Linker::<()>::new(&engine);
    let (mut contained, mut refused) = (0, Vec::new());
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "o"));
    paths.sort();
    let step = if bpf_testkit::emulated() { 4 } else { 1 };
    for path in paths.iter().step_by(step) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(path).unwrap();
        let Ok(code) = bpf_testkit_elf::section(&bytes, "bench") else { continue };
        // Programs that the verifier refuses are run with checks.
        let plain = match linker.loader::<Raw>().hybrid(true).bytes(&name, &code) {
            Ok(plain) => plain,
            Err(_) => continue,
        };
        let program = match linker.loader::<Raw>().hybrid(true).contained(true).budget(1 << 40).bytes(&name, &code) {
            Ok(program) => program,
            Err(error) => {
                refused.push(format!("{name}: {error}"));
                continue;
            }
        };
        let mut memory: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
        let mut other = memory.clone();
        let ran = |result: Result<u64, RunError>| result.map_err(|error| error.to_string());
        let (a, b) = (ran(plain.run(&mut (), &mut memory)), ran(program.run(&mut (), &mut other)));
        assert_eq!(a, b, "{name}");
        assert!(memory == other, "{name}: memory differs");
        contained += 1;
    }
    assert!(contained > 20 / step && refused.is_empty(), "{contained} contained; {refused:#?}");
}

/// A section of an object, as the benches read it.
mod bpf_testkit_elf {
    pub(crate) fn section(object: &[u8], name: &str) -> Result<Vec<u8>, ()> {
        let word = |at: usize, n: usize| -> Result<usize, ()> {
            let bytes = object.get(at..at + n).ok_or(())?;
            Ok(bytes.iter().rev().fold(0, |all, byte| all << 8 | usize::from(*byte)))
        };
        let (table, size, count, names) = (word(0x28, 8)?, word(0x3a, 2)?, word(0x3c, 2)?, word(0x3e, 2)?);
        let names_at = word(table + names * size + 0x18, 8)?;
        for i in 0..count {
            let header = table + i * size;
            let at = names_at + word(header, 4)?;
            if object.get(at..at + name.len() + 1) == Some(&[name.as_bytes(), b"\0"].concat()) {
                let (from, len) = (word(header + 0x18, 8)?, word(header + 0x20, 8)?);
                return object.get(from..from + len).map(<[u8]>::to_vec).ok_or(());
            }
        }
        Err(())
    }
}

#[test]
fn what_cannot_be_contained_is_refused_by_type() {
    let engine = engine();
    let maps = maps(&engine);
    let linker = Linker::<()>::new(&engine);
    let why = |text: &str| {
        let loader = linker.loader::<Raw>().contained(true).maps(&maps.each_ref());
        match loader.insns("refused", assemble(text).unwrap()) {
            Err(LoadError::Uncontained { source, .. }) => (source.insn.0, source.why.clone()),
            other => panic!("{other:?} for\n{text}"),
        }
    };
    // A pointer to one of two objects of different sizes.
    let either = "r1 = map[fd:2][0]+0\nif r2 == 0 goto +2\nr1 = r10\nr1 += -8\n*(u64 *)(r10 - 8) = 1\nr0 = *(u64 *)(r1 + 0)\nexit";
    assert!(matches!(why(either), (6, Escape::Pointer(_))), "{:?}", why(either));
    let legacy = "r6 = r1\nr0 = *(u16 *)skb[2]\nexit";
    assert!(matches!(why(legacy), (1, Escape::PacketLoad)), "{:?}", why(legacy));
    // A callback.
    let callback = "r1 = 3\nr2 = subprog[callback]\nr3 = 0\nr4 = 0\ncall 181\nr0 = 0\nexit\ncallback: r0 = 0\nexit";
    assert!(matches!(why(callback), (_, Escape::Argument { arg: 2, .. })), "{:?}", why(callback));
    // A wrong access could overwrite the lock.
    let locked = Map::create(MapDef::new("locked", MapType::Array, 4, 24, 2).spin_lock(8), engine.domain()).unwrap();
    let look_up = "*(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\nr1 = map[fd:0]\ncall 1\nr0 = 0\nexit";
    let loader = linker.loader::<Raw>().contained(true).maps(&[&locked]);
    match loader.insns("locked", assemble(look_up).unwrap()) {
        Err(LoadError::Uncontained { source, .. }) => {
            assert!(matches!(&source.why, Escape::Fields(map) if map == "locked"))
        }
        other => panic!("{other:?}"),
    }
    // SAFETY: it is refused.
    let unverified = unsafe { linker.loader::<Raw>().contained(true).unverified(true) };
    let refused = unverified.insns("unverified", assemble("r0 = 0\nexit").unwrap());
    assert!(matches!(refused, Err(LoadError::UnverifiedContained { .. })), "{refused:?}");
    let privileged = linker.loader::<Raw>().contained(true).privileged(true);
    let refused = privileged.insns("privileged", assemble("r0 = 0\nexit").unwrap());
    assert!(matches!(refused, Err(LoadError::PrivilegedContained { .. })), "{refused:?}");
}

#[test]
fn contained_programs_count_a_budget() {
    let config = Config::new().hybrid_budget(50);
    let linker = Linker::<()>::new(&Engine::new(config).unwrap());
    // Proven to end, after a hundred rounds.
    let insns = assemble("r0 = 0\nr0 += 1\nif r0 < 100 goto -2\nexit").unwrap();
    let plain = linker.loader::<Raw>().insns("plain", insns.clone()).unwrap();
    assert_eq!(plain.run(&mut (), &mut []).unwrap(), 100);
    let contained = linker.loader::<Raw>().contained(true).insns("contained", insns).unwrap();
    assert!(matches!(contained.run(&mut (), &mut []), Err(RunError::Budget { .. })));
}

#[test]
fn a_load_turns_off_what_its_engine_turns_on() {
    let linker = Linker::<()>::new(&Engine::new(Config::new().contained(true).hybrid_budget(50)).unwrap());
    let insns = assemble("r0 = 0\nr0 += 1\nif r0 < 100 goto -2\nexit").unwrap();
    let load = |contained| linker.loader::<Raw>().contained(contained).insns("rounds", insns.clone()).unwrap();
    assert!(matches!(load(true).run(&mut (), &mut []), Err(RunError::Budget { .. })));
    assert_eq!(load(false).run(&mut (), &mut []).unwrap(), 100);
}

/// `false` leaves a program to the verifier again, unless another way to load it was turned on.
#[test]
fn switches_of_trust_turn_off_themselves_only() {
    let linker = Linker::<()>::new(&engine());
    let unproven = || assemble("r2 = *(u8 *)(r1 + 0)\nr1 += r2\nr0 = *(u8 *)(r1 + 0)\nexit").unwrap();
    let loader = || linker.loader::<Raw>();
    for refused in [loader().hybrid(false), loader().hybrid(true).hybrid(false), loader().interpreted(false)] {
        assert!(matches!(refused.insns("unproven", unproven()), Err(LoadError::Verifier { .. })));
    }
    for accepted in [loader().hybrid(true).interpreted(false), loader().interpreted(true).hybrid(false)] {
        assert_eq!(accepted.insns("unproven", unproven()).unwrap().run(&mut (), &mut [2, 0, 7]).unwrap(), 7);
    }
}

#[test]
fn contradictory_settings_are_an_error() {
    let config = Config::new().contained(true).opt_level(OptLevel::None);
    assert!(matches!(Engine::new(config), Err(EngineError::Contradiction { .. })));
    #[cfg(native)]
    {
        let config = Config::untrusted().debug(|debug| debug.gdb(true));
        assert!(matches!(Engine::new(config), Err(EngineError::Contradiction { .. })));
    }
    // `Debug` shows these of the settings that docs/book/explanation/tenants.md lists.
    let config = Config::untrusted();
    let text = format!("{config:?}");
    for set in [
        "contained: true",
        "interruptible: true",
        " budget: Some(1048576)",
        "blind_constants: true",
        "straight_line: true",
    ] {
        assert!(text.contains(set), "{set} in {text}");
    }
    let linker = Linker::<()>::new(&Engine::new(config).unwrap());
    let program = linker.loader::<Raw>().insns("stranger", assemble("r0 = 3\nexit").unwrap()).unwrap();
    assert_eq!(program.run(&mut (), &mut []).unwrap(), 3);
}
