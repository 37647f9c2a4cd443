//! Objects beside the kernel: each object that the kernel loads is accepted here, and runs over a capture give the same
//! results, packets and maps.
//!
//! The objects are other projects', and not in the repository: samples from `$BPF_SHARED` or `../shared`, and the C of
//! `cases/projects`, compiled by clang 19 where there is one. A program is not compared where the kernel cannot be
//! asked about it: where it needs BTF there, a map of a kind that the test cannot fill, the clock, chance or a device.
//! The interpreter and machine code are each compared with the kernel, from fresh maps on both sides.

use crate::samples::{capture, parse, repeatable};
use bpf_runtime::{
    Config, Context, Engine, Linker, LoadError, MapSet, Mode, Object, RunError,
    code::Arch,
    isa::{Callee, Insn},
    maps::{Map, MapType},
    net::{SkBuff, Skb, Xdp, XdpBuff},
    object::ProgramType,
};
use bpf_testkit::kernel::{self, ProgramType as Kind};
use bpf_testkit::kernel_object::KernelObject;
use bpf_testkit::{cases::shared, skipped};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Programs that the kernel accepts and that may be refused here: object, program, why.
const REFUSED: &[(&str, &str, &str)] = &[];

type Run<C> = fn(&bpf_runtime::Program<C, ()>, &mut Vec<u8>) -> Result<u64, RunError>;

/// How many programs were compared in which way.
#[derive(Default, Debug)]
struct Tally {
    /// Runs over the capture, one for each program and mode.
    ran: usize,
    packets: usize,
    /// Packets on which the kernel runs no program: those shorter than the header of their protocol.
    not_run: usize,
    /// Elements of maps that both have, with equal values.
    elements: usize,
    both_refuse: usize,
    refused_by_the_kernel: usize,
    /// Programs that both load and that depend on more than packet and maps.
    not_repeatable: usize,
    not_comparable: usize,
    known: usize,
}

/// Prefix of failures in which a program is refused that the kernel accepts.
const ACCEPTED_THERE: &str = "the kernel accepts it";

/// Lower bounds on the programs, packets and elements of maps that each mode compares, where all objects are there.
const LEAST_RAN: usize = 50;
const LEAST_PACKETS: usize = 21_000;
const LEAST_ELEMENTS: usize = 350;
/// Programs that Linux 6.18 refuses and that are accepted here, at most, in each mode.
const MOST_REFUSED: usize = 3;

/// Number of entries of a hash table or trie at most.
const ENTRIES: u32 = 4096;

/// Headroom and room for packet and tail of the kernel's test runs.
const HEADROOM: usize = 256 - 40;
const ROOM: usize = 4096 - 256 - 320;

fn in_room(packet: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; HEADROOM + ROOM];
    buffer[HEADROOM..][..packet.len()].copy_from_slice(packet);
    buffer
}

fn xdp(program: &bpf_runtime::Program<Xdp, ()>, packet: &mut Vec<u8>) -> Result<u64, RunError> {
    let mut buffer = in_room(packet);
    let mut buff = XdpBuff::with_room(&mut buffer, HEADROOM, packet.len());
    let r0 = program.run(&mut (), &mut buff);
    // The kernel gives back the metadata before the packet, too.
    *packet = [buff.metadata(), buff.packet()].concat();
    r0
}

fn skb(program: &bpf_runtime::Program<Skb, ()>, packet: &mut Vec<u8>) -> Result<u64, RunError> {
    let mut buffer = in_room(packet);
    let mut buff = SkBuff::with_room(&mut buffer, HEADROOM, packet.len());
    // The packet is for another host unless its first byte says that it is for many.
    buff.fields.pkt_type = if packet[0] & 1 == 0 { 3 } else { 2 };
    let r0 = program.run(&mut (), &mut buff);
    *packet = buff.packet().to_vec();
    r0
}

/// Whether the program's result depends on the CPU that it runs on.
fn asks_for_its_cpu(object: &Object, name: &str) -> bool {
    let code = object.code(object.program(name).unwrap()).unwrap();
    code.insns().contains(&Insn::Call(Callee::Helper(8)))
}

/// Compares one program in each mode, each with maps of its own in the kernel, and returns the differences.
fn compare<C: Context>(object: &Object, name: &str, kind: Kind, run: Run<C>, tally: &mut Tally) -> Result<(), String> {
    for mode in [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit)) {
        let theirs = KernelObject::load_programs(object, &[name], kind);
        let config = Config::new().mode(mode);
        let engine = Engine::new(config).unwrap();
        let linker = Linker::<()>::new(&engine);
        let load = |privileged: bool| -> Result<_, LoadError> {
            let loader = linker.loader::<C>().only(&[name]);
            let loader = loader.privileged(privileged);
            loader.object(object, MapSet::for_object(&engine, object)?)
        };
        // The kernel is asked as root.
        let (instance, theirs) = match (load(false).or_else(|_| load(true)), theirs) {
            (Ok(instance), Ok(theirs)) => (instance, theirs),
            (Ok(_), Err(_)) => {
                tally.refused_by_the_kernel += 1;
                return Ok(());
            }
            (Err(_), Err(_)) => {
                tally.both_refuse += 1;
                return Ok(());
            }
            (Err(ours), Ok(_)) => return Err(format!("{ACCEPTED_THERE}:\n{ours}")),
        };
        if !repeatable(object, name) || asks_for_its_cpu(object, name) {
            tally.not_repeatable += 1;
            return Ok(());
        }
        let program = instance.program::<C>(name).map_err(|e| e.to_string())?;
        for (i, packet) in capture().into_iter().enumerate().filter(|(_, packet)| packet.len() >= 14) {
            // The kernel runs no program on an IP packet that is shorter than its header.
            let Ok(expected) = theirs.program(name)?.test_run_output(&packet) else {
                tally.not_run += 1;
                continue;
            };
            let mut after = packet.clone();
            let r0 = run(&program, &mut after).map_err(|e| format!("{mode:?}, packet {i}: {e}"))?;
            tally.packets += 1;
            if (r0 as u32, &after) != (expected.0, &expected.1) {
                return Err(format!(
                    "{mode:?}, packet {i}: r0 {} and {}, {after:x?} and {:x?}",
                    r0 as u32, expected.0, expected.1
                ));
            }
        }
        for map in instance.maps() {
            if let Some(other) = theirs.map(map.name()) {
                tally.elements += equal_elements(map, other).map_err(|e| format!("{mode:?}, {e}"))?;
            }
        }
        tally.ran += 1;
    }
    Ok(())
}

/// Number of elements of a map that is equal here and in the kernel, or what differs. Of per-CPU maps only the keys are
/// compared, because runs here and there need not be on one CPU.
fn equal_elements(map: &Map, other: &kernel::Map) -> Result<usize, String> {
    let values = match map.map_type() {
        MapType::Array | MapType::Hash | MapType::LruHash | MapType::LpmTrie => true,
        MapType::PerCpuArray | MapType::PerCpuHash | MapType::LruPerCpuHash => false,
        _ => return Ok(0),
    };
    let mut ours: BTreeMap<Vec<u8>, Vec<u8>> = map.iter().filter_map(Result::ok).collect();
    let theirs = other.elements().map_err(|e| format!("map {}: {e}", map.name()))?;
    for (key, theirs) in &theirs {
        match ours.remove(key) {
            Some(ours) if !values || ours == *theirs => {}
            ours => return Err(format!("map {}, key {key:x?}: {ours:x?} and {theirs:x?}", map.name())),
        }
    }
    match ours.pop_first() {
        None => Ok(theirs.len()),
        Some((key, value)) => Err(format!("map {}, key {key:x?}: {value:x?}, and not in the kernel", map.name())),
    }
}

/// Objects that are there: samples, and the projects' cases as clang compiles them into this folder; and whether all
/// are there.
fn objects(into: &Path) -> (Vec<PathBuf>, bool) {
    let (mut found, mut all) = (Vec::new(), true);
    for folder in ["build", "cilium", "cilium-examples", "new_linux"] {
        match shared(&format!("objects/samples/{folder}")) {
            Ok(folder) => found.extend(std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())),
            Err(why) => {
                skipped(&format!("objects/samples/{folder} beside the kernel"), &why);
                all = false;
            }
        }
    }
    let projects = match shared("cases/projects") {
        Ok(projects) => projects,
        Err(why) => {
            skipped("cases/projects beside the kernel", &why);
            return (found, false);
        }
    };
    for entry in std::fs::read_dir(projects).unwrap() {
        let source = entry.unwrap().path();
        if source.extension().is_none_or(|extension| extension != "c") {
            continue;
        }
        let object = into.join(source.file_stem().unwrap()).with_extension("o");
        let args = ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-I/usr/include/x86_64-linux-gnu", "-c"];
        let clang = std::process::Command::new("clang-19").args(args).arg(&source).arg("-o").arg(&object).output();
        let why = match clang {
            Ok(output) if output.status.success() => {
                found.push(object);
                continue;
            }
            Ok(output) => String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned(),
            Err(why) => why.to_string(),
        };
        skipped(&format!("{} beside the kernel", source.display()), &why);
        all = false;
    }
    found.sort();
    (found, all)
}

/// Makes large hash tables and tries small: no program fills them, and each load makes them here and in the kernel.
fn shrink(object: &mut Object) {
    let sized = [MapType::Hash, MapType::LruHash, MapType::PerCpuHash, MapType::LruPerCpuHash, MapType::LpmTrie];
    let sized = sized.map(MapType::number);
    let large = object.maps().iter().filter(|map| sized.contains(&map.map_type.0) && map.max_entries > ENTRIES);
    for name in large.map(|map| map.name.clone()).collect::<Vec<_>>() {
        object.set_max_entries(&name, ENTRIES).unwrap();
    }
}

#[test]
fn objects_beside_the_kernel() {
    if let Err(why) = kernel::available() {
        return skipped("objects beside the kernel", &why);
    }
    let folder = std::env::temp_dir().join(format!("bpf-beside-kernel-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (mut tally, mut failures, mut accepted) = (Tally::default(), Vec::new(), Vec::new());
    let (paths, all) = objects(&folder);
    for path in paths {
        let Ok(mut object) = parse(&path) else { continue };
        shrink(&mut object);
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        for program in object.programs() {
            let name = program.name();
            // Sections of Cilium's tail calls do not name a type.
            let kind = match program.kind() {
                ProgramType::Unknown if program.section().starts_with("2/") => match file.contains("xdp") {
                    true => ProgramType::Xdp,
                    false => ProgramType::TcClassifier,
                },
                kind => kind,
            };
            let result = match kind {
                ProgramType::Xdp => compare::<Xdp>(&object, name, Kind::Xdp, xdp, &mut tally),
                ProgramType::SocketFilter | ProgramType::TcClassifier | ProgramType::TcAction => {
                    compare::<Skb>(&object, name, Kind::TcClassifier, skb, &mut tally)
                }
                _other => {
                    tally.not_comparable += 1;
                    Ok(())
                }
            };
            let known = REFUSED.iter().find(|(object, program, _)| *object == file && *program == name);
            match (result, known) {
                (Err(why), Some(_)) if why.starts_with(ACCEPTED_THERE) => tally.known += 1,
                (Err(why), _) => failures.push(format!("{file} {name}: {why}")),
                (Ok(()), Some((object, program, _))) => accepted.push((*object, *program)),
                (Ok(()), None) => {}
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    println!("{tally:?}");
    // An entry whose object was not there has not been tried.
    let mended: Vec<_> = REFUSED.iter().filter(|entry| accepted.contains(&(entry.0, entry.1))).collect();
    assert!(mended.is_empty(), "mended, and still listed as known refusals: {mended:?}");
    assert!(failures.is_empty(), "{} differ, {tally:?}:\n{}", failures.len(), failures.join("\n"));
    // Without machine code each program is run in one mode.
    let modes = 1 + Arch::HOST.iter().count();
    let enough = tally.ran >= LEAST_RAN * modes
        && tally.packets >= LEAST_PACKETS * modes
        && tally.elements >= LEAST_ELEMENTS * modes;
    // An older kernel refuses more of the programs, and they are not compared.
    let older = tally.refused_by_the_kernel > MOST_REFUSED * modes;
    assert!(enough || !all || older, "{tally:?}");
}
