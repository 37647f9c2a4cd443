//! Spectre v1 without a clock: gadgets leak in the model of speculative execution, and contained programs do not.

use bpf_analysis::BoundsPlace;
use bpf_isa::{Program, assemble};
use bpf_runtime::maps::{Map, MapDef, MapType};
use bpf_runtime::{Config, Engine, Linker, OptLevel, Raw, code::Arch, oracle};
use bpf_testkit::generate::Choices;
use bpf_testkit::soundness::speculated::{Setting, Speculated, speculate};
use bpf_testkit::soundness::{self, Context, Sabotage};
use std::path::Path;

/// r7 is a number that the attacker chose.
const START: &str = "r6 = r1\nr0 = 0\nif r2 < 8 goto out\nr7 = *(u32 *)(r1 + 0)\n";
/// The byte in r0 decides which line of a table is read.
const SEND: &str = "r0 <<= 6\nr4 = map[fd:5][0]+0\nr4 += r0\nr0 = *(u8 *)(r4 + 0)\nexit\nout: r0 = 0\nexit";

/// Looks up the key in four bytes of the stack.
fn look_up(map: u32, key: &str) -> String {
    format!(
        "*(u64 *)(r10 - 8) = 0\n*(u32 *)(r10 - 8) = {key}\nr2 = r10\nr2 += -8\nr1 = map[fd:{map}]\ncall 1\n\
         if r0 == 0 goto out\n"
    )
}

/// The model's finding in a gadget that is not contained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finds {
    /// An address that depends on a byte outside.
    Leak,
    /// An access outside of every object.
    Stray,
}

/// Each: its name, the attacker's number, what is found, and the instructions.
fn gadgets() -> Vec<(&'static str, u32, Finds, String)> {
    use Finds::{Leak, Stray};
    const FAR: u32 = 0x30_0000;
    let indexed = |bound: u32| format!("if r7 > {bound} goto out\nr0 += r7\nr0 = *(u8 *)(r0 + 0)\n");
    let stack = "*(u64 *)(r10 - 16) = 1\n*(u64 *)(r10 - 8) = 2\n";
    let at = "r4 = r10\nr4 += -16\nr4 += r7\n";
    let plain = |name, finds, body: String| (name, FAR, finds, format!("{START}{body}{SEND}"));
    let inner = format!("{}r1 = r0\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto out\n", look_up(4, "0"));
    vec![
        plain("the stack", Leak, format!("{stack}if r7 > 15 goto out\n{at}r0 = *(u8 *)(r4 + 0)\n")),
        plain("a store to the stack", Stray, format!("{stack}if r7 > 15 goto out\n{at}*(u8 *)(r4 + 0) = 3\nr0 = 0\n")),
        plain("the packet", Leak, "if r7 >= r2 goto out\nr1 += r7\nr0 = *(u8 *)(r1 + 0)\n".into()),
        plain("a global", Leak, "if r7 > 63 goto out\nr4 = map[fd:2][0]+0\nr4 += r7\nr0 = *(u8 *)(r4 + 0)\n".into()),
        plain("the value of an array", Leak, look_up(0, "1") + &indexed(23)),
        plain("the index of an array", Leak, look_up(0, "r7") + "r0 = *(u8 *)(r0 + 0)\n"),
        plain("the value of a hash", Leak, look_up(1, "1") + &indexed(15)),
        plain("a value that is null", Stray, look_up(1, "100") + "r0 = *(u8 *)(r0 + 0)\n"),
        plain("the value of a per-CPU array", Leak, look_up(3, "1") + &indexed(15)),
        plain("the value of an inner map", Leak, inner + &indexed(15)),
        plain(
            "a function that is given a bounded number",
            Leak,
            "if r7 > 63 goto out\nr1 = map[fd:2][0]+0\nr2 = r7\ncall function\nr0 &= 255\n".into(),
        ),
        (
            "the end of a loop",
            16,
            Leak,
            format!(
                "{START}{stack}if r7 > 16 goto out\nr8 = 0\nagain: if r8 >= r7 goto send\nr4 = r10\nr4 += -16\nr4 += r8\n\
                 r5 = *(u8 *)(r4 + 0)\nr0 ^= r5\nr8 += 1\ngoto again\nsend: r0 &= 255\n{SEND}"
            ),
        ),
    ]
    .into_iter()
    .map(|(name, number, finds, text)| {
        let function = "\nfunction: r1 += r2\nr0 = *(u8 *)(r1 + 0)\nexit";
        let text = if text.contains("call function") { text + function } else { text };
        (name, number, finds, text)
    })
    .collect()
}

/// Bytes of a value, number of values, and the map in an entry, of the maps that gadgets refer to. The last is the
/// inner map.
const MAPS: [(u32, u32, Option<usize>); 7] =
    [(24, 3, None), (16, 4, None), (64, 1, None), (16, 2, None), (8, 2, Some(6)), (1 << 14, 1, None), (16, 3, None)];

fn maps(engine: &Engine) -> Vec<Map> {
    let create = |def| Map::create(def, engine.domain()).unwrap();
    let inner = || MapDef::new("inner", MapType::Array, 4, 16, 3);
    let maps = vec![
        create(MapDef::new("array", MapType::Array, 4, 24, 3)),
        create(MapDef::new("hash", MapType::Hash, 8, 16, 4)),
        create(MapDef::new("global", MapType::Array, 4, 64, 1)),
        create(MapDef::new("percpu", MapType::PerCpuArray, 4, 16, 2)),
        create(MapDef::new("outer", MapType::ArrayOfMaps, 4, 4, 2).inner(inner())),
        create(MapDef::new("lines", MapType::Array, 4, 1 << 14, 1)),
    ];
    maps[4].set_inner(&[0; 4], &create(inner()), 0).unwrap();
    maps
}

/// Returns the model's findings in a verified program.
fn found(linker: &Linker<()>, maps: &[Map], text: &str, number: u32, contained: bool) -> Speculated {
    let insns = assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let maps: Vec<&Map> = maps.iter().collect();
    let loader = linker.loader::<Raw>().maps(&maps);
    let loader = loader.contained(contained);
    oracle::ask_for_code();
    let loaded = loader.insns("gadget", insns.clone());
    loaded.unwrap_or_else(|error| panic!("contained {contained}: {error}\n{text}"));
    let emitted = oracle::code().unwrap();
    let mut packet = vec![7; 64];
    packet[..4].copy_from_slice(&number.to_le_bytes());
    speculate(&emitted.lir, &Program::new(insns).unwrap(), &Setting::new(packet, &MAPS))
}

#[test]
fn gadgets_leak_and_do_not_if_they_are_contained() {
    if Arch::HOST.is_none() {
        return bpf_testkit::skipped("gadgets", &"no machine code on this host");
    }
    let engine = Engine::new(Config::new().opt_level(OptLevel::Speed)).unwrap();
    let (linker, maps) = (Linker::<()>::new(&engine), maps(&engine));
    for (name, number, finds, text) in gadgets() {
        let plain = found(&linker, &maps, &text, number, false);
        assert!(plain.strays.is_some() && plain.escapes.is_none(), "{name}: {plain:x?}");
        assert_eq!(
            plain.leaks.is_some(),
            finds == Finds::Leak || plain.leaks.is_some() && name.contains("null"),
            "{name}: {plain:x?}"
        );
        let contained = found(&linker, &maps, &text, number, true);
        let nothing = (contained.strays, contained.leaks, contained.escapes) == (None, None, None);
        assert!(nothing && contained.mispredicted > 0, "{name}: {contained:x?}");
    }
}

/// No address on a mispredicted path of the speed programs lies outside, or depends on a byte outside.
#[test]
fn contained_speed_programs_do_not_leak() {
    if Arch::HOST.is_none() {
        return bpf_testkit::skipped("speed programs", &"no machine code on this host");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/programs");
    let engine = Engine::new(Config::default()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let nothing = Program::new(assemble("r0 = 0\nexit").unwrap()).unwrap();
    // SAFETY: nothing that is loaded here is run.
    unsafe { oracle::believe(true) };
    let (mut checked, mut accesses) = (0, 0);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|ext| ext == "o")) {
        let Ok(object) = bpf_runtime::Object::parse(&std::fs::read(path).unwrap()) else { continue };
        for program in object.programs() {
            let Ok(maps) = bpf_runtime::MapSet::for_object(&engine, &object) else { continue };
            oracle::ask_for_code();
            let loaded = linker.loader::<Raw>().contained(true).only(&[program.name()]).object(&object, maps);
            let Some(emitted) = oracle::code().filter(|_| loaded.is_ok()) else { continue };
            let packet: Vec<u8> = (0..512u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            let found = speculate(&emitted.lir, &nothing, &Setting::new(packet, &[(1 << 16, 1, None); 8]));
            let clean = (found.strays, found.leaks, found.escapes) == (None, None, None);
            assert!(clean, "{} {}: {found:x?}", path.display(), program.name());
            (checked, accesses) = (checked + 1, accesses + found.accesses);
        }
    }
    // SAFETY: verifies again.
    unsafe { oracle::believe(false) };
    eprintln!("{checked} programs, {accesses} accesses on mispredicted paths");
    assert!(checked > 20 && accesses > 10_000, "{checked} programs, {accesses} accesses");
}

/// The maps of generated programs; the last is the inner map.
const WORLD: [(u32, u32, Option<usize>); 13] = [
    (48, 4, None),
    (24, 8, None),
    (8, 2, Some(12)),
    (64, 1, None),
    (24, 2, None),
    (16, 3, None),
    (0, 0, None),
    (16, 2, None),
    (32, 1, None),
    (8, 2, Some(12)),
    (80, 1, None),
    (80, 1, None),
    (16, 3, None),
];

/// Generated programs that nobody has verified, contained, neither leave their objects where branches are
/// mispredicted nor where they are not.
#[test]
fn contained_generated_programs_do_not_leak() {
    if Arch::HOST.is_none() {
        return bpf_testkit::skipped("generated programs", &"no machine code on this host");
    }
    let mut sabotage = Sabotage::default();
    let (mut checked, mut accesses) = (0, 0);
    let seeds = if bpf_testkit::emulated() { 300 } else { 3000 };
    for seed in 0..seeds {
        let mut choices = Choices::from_seed(seed);
        let mut generated = match seed % 3 {
            0 => soundness::neighbours(&mut choices),
            _ => soundness::generate(&mut choices),
        };
        generated.globals.iter_mut().for_each(|signature| *signature = None);
        let Some(emitted) = sabotage.code(&generated).filter(|emitted| !emitted.arena) else { continue };
        let packet: Vec<u8> = (0..40).map(|_| choices.value() as u8).collect();
        let mut setting = Setting::new(packet, &WORLD);
        setting.objects = emitted.objects;
        let bounds = emitted.regions.iter().filter_map(|region| match region.place {
            BoundsPlace::Addresses { start, end } => Some((start, end)),
            BoundsPlace::Nowhere | BoundsPlace::Raw | BoundsPlace::Length { .. } => None,
        });
        setting.context = bounds.collect();
        assert_eq!(setting.context.is_empty(), generated.context == Context::Raw);
        let found = speculate(&emitted.lir, &generated.program, &setting);
        let clean = (found.strays, found.leaks, found.escapes) == (None, None, None);
        assert!(clean, "seed {seed}: {found:x?}\n{}\n{}", generated.program, emitted.lir);
        (checked, accesses) = (checked + 1, accesses + found.accesses);
    }
    eprintln!("{checked} programs, {accesses} accesses on mispredicted paths");
    assert!(checked > seeds / 4 && accesses > 100 * checked, "{checked} programs, {accesses} accesses");
}
