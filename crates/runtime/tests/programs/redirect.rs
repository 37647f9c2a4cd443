//! `bpf_redirect_map`: verdicts as the kernel's, and what a host is told of the target. And what else objects written
//! for the kernel's loaders rely on.

use std::sync::{Arc, Mutex};

use crate::support::{
    self,
    ways::{self, Way},
};
use bpf_runtime::maps::{MapDef, MapType, page_size};
use bpf_runtime::{
    Engine, Linker, LoadError, MapSet, Object, Program,
    maps::Map,
    net::{Redirect, Xdp, XdpBuff},
};
use bpf_testkit::{kernel, skipped};

const FRAME: [u8; 64] = [0; 64];
const TYPES: [MapType; 4] = [MapType::DevMap, MapType::DevMapHash, MapType::CpuMap, MapType::XskMap];
/// Programs on `xdp_md` are verified.
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];
const BROADCAST: u64 = 8;
const EXCLUDE_INGRESS: u64 = 16;

fn value_size(map_type: MapType) -> u32 {
    if map_type == MapType::XskMap { 4 } else { 8 }
}

/// A map with an entry at 0: device 1, a queue of one packet, or socket 1; the program's number is `program`.
fn map(engine: &Engine, map_type: MapType, program: u32) -> Map {
    let size = value_size(map_type);
    let map = Map::create(MapDef::new("targets", map_type, 4, size, 2), engine.domain()).unwrap();
    map.set(&[0; 4], &[1u32, program].map(u32::to_ne_bytes).concat()[..size as usize]).unwrap();
    map
}

fn redirect(fd: i32, key: u64, flags: u64) -> String {
    format!("r1 = map[fd:{fd}]; r2 = {key} ll; r3 = {flags} ll; call 51; ")
}

fn load(engine: &Engine, map: &Map, text: &str) -> Program<Xdp, ()> {
    let linker = Linker::<()>::new(engine);
    linker
        .loader::<Xdp>()
        .maps(&[map])
        .insns("test", support::program(text))
        .unwrap_or_else(|e| panic!("{e} in\n{text}"))
}

/// The verdict and the target.
fn run(program: &Program<Xdp, ()>) -> (u64, Option<Redirect>) {
    let mut frame = FRAME;
    let mut buff = XdpBuff::new(&mut frame);
    (program.run(&mut (), &mut buff).unwrap(), buff.redirect)
}

#[test]
fn the_host_is_told_the_entry() {
    for way in VERIFIED {
        let engine = ways::engine(way, |config| config);
        for map_type in TYPES {
            let map = map(&engine, map_type, 9);
            let id = map.id();
            let expected = match map_type {
                MapType::CpuMap => Redirect::Cpu { map: id, cpu: 0, queue_size: 1, program: 9 },
                MapType::XskMap => Redirect::Socket { map: id, key: 0, socket: 1 },
                _devices => Redirect::MapDevice { map: id, key: 0, ifindex: 1, program: 9 },
            };
            let program = load(&engine, &map, &(redirect(0, 0, 0) + "exit"));
            assert_eq!(run(&program), (4, Some(expected)), "{way:?} {map_type}");
            // The entry goes while the program is there, and comes back.
            map.delete(&[0; 4]).unwrap();
            assert_eq!(run(&program), (0, None), "{way:?} {map_type}");
            map.set(&[0; 4], &[3, 0, 0, 0, 0, 0, 0, 0][..value_size(map_type) as usize]).unwrap();
            assert_eq!(run(&program).0, 4, "{way:?} {map_type}");
            // A redirect that finds no entry cancels an earlier one.
            let text = redirect(0, 0, 0) + &redirect(0, 1, 2) + "exit";
            assert_eq!(run(&load(&engine, &map, &text)), (2, None), "{way:?} {map_type}");
        }
        let devices = map(&engine, MapType::DevMap, 0);
        for (flags, exclude_ingress) in [(BROADCAST, false), (BROADCAST | EXCLUDE_INGRESS, true)] {
            let expected = Redirect::AllDevices { map: devices.id(), exclude_ingress };
            let program = load(&engine, &devices, &(redirect(0, 1, flags) + "exit"));
            assert_eq!(run(&program), (4, Some(expected)), "{way:?}");
        }
    }
}

/// Entries are looked up, and not written to; CPU maps are not even looked up.
#[test]
fn programs_read_entries_of_devices_and_sockets() {
    let look_up = |then: &str| {
        format!(
            "*(u32 *)(r10 - 4) = 0; r1 = map[fd:0]; r2 = r10; r2 += -4; call 1; if r0 == 0 goto out; {then}; out: exit"
        )
    };
    for way in VERIFIED {
        let engine = ways::engine(way, |config| config);
        for map_type in [MapType::DevMap, MapType::DevMapHash, MapType::XskMap] {
            let map = map(&engine, map_type, 0);
            let program = load(&engine, &map, &look_up("r0 = *(u32 *)(r0 + 0)"));
            assert_eq!(run(&program).0, 1, "{way:?} {map_type}");
            map.delete(&[0; 4]).unwrap();
            assert_eq!(run(&program).0, 0, "{way:?} {map_type}");
        }
    }
    let engine = ways::engine(Way::Verified, |config| config);
    let linker = Linker::<()>::new(&engine);
    let refused = |map_type, text: &str| {
        let map = map(&engine, map_type, 0);
        let result = linker.loader::<Xdp>().maps(&[&map]).insns("test", support::program(text));
        result.unwrap_err().to_string()
    };
    let written = refused(MapType::DevMap, &look_up("*(u32 *)(r0 + 0) = 7; r0 = 0"));
    assert!(written.contains("may not be written"), "{written}");
    let looked_up = refused(MapType::CpuMap, &look_up("r0 = 0"));
    assert!(looked_up.contains("bpf_map_lookup_elem"), "{looked_up}");
    let hash = Map::create(MapDef::new("hash", MapType::Hash, 4, 4, 2), engine.domain()).unwrap();
    let result = linker.loader::<Xdp>().maps(&[&hash]).insns("test", support::program(&(redirect(0, 0, 0) + "exit")));
    assert!(result.unwrap_err().to_string().contains("bpf_redirect_map"));
}

#[test]
fn verdicts_are_the_kernels() {
    if let Err(reason) = kernel::available() {
        return skipped("redirect maps against the kernel", &reason);
    }
    let mut asked = 0;
    // A socket would have to be bound to a device; an empty map has verdicts too.
    for map_type in TYPES {
        let theirs = kernel::Map::create(map_type, 4, value_size(map_type), 2).unwrap();
        if map_type != MapType::XskMap {
            theirs.update(&[0; 4], &[1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        }
        for flags in [0u64, 1, 2, 3, 4, 8, 16, 24, 2 | 8, 2 | 16, 32, 1 << 32, u64::MAX] {
            for key in [0u64, 1, 2, u32::MAX.into(), 1 << 32] {
                let text = redirect(theirs.fd(), key, flags) + "exit";
                let bytes = bpf_isa::encode(&support::program(&text)).unwrap();
                let program = kernel::Program::load(kernel::ProgramType::Xdp, &bytes).unwrap();
                let (expected, _) = program.test_run_output(&FRAME).unwrap();
                for way in VERIFIED {
                    let engine = ways::engine(way, |config| config);
                    let map = map(&engine, map_type, 0);
                    if map_type == MapType::XskMap {
                        map.delete(&[0; 4]).unwrap();
                    }
                    let program = load(&engine, &map, &(redirect(0, key, flags) + "exit"));
                    assert_eq!(run(&program).0, u64::from(expected), "{way:?} {map_type}: key {key}, flags {flags:#x}");
                }
                asked += 1;
            }
        }
    }
    assert_eq!(asked, 4 * 13 * 5);
}

/// Definitions that sources leave incomplete, and maps that no loaded program refers to.
#[test]
fn definitions_are_normalised_as_loaders_do() {
    let object = Object::parse(include_bytes!("../objects/loose.o")).unwrap();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let engine =
        ways::engine(Way::Verified, |config| config.print(move |line| sink.lock().unwrap().push(line.text.to_owned())));
    let linker = Linker::<()>::new(&engine);
    let maps = || MapSet::for_object(&engine, &object).unwrap();
    let instance = linker.loader::<Xdp>().only(&["forward", "print"]).object(&object, maps()).unwrap();
    assert_eq!(
        instance.map("ring").unwrap().def().max_entries as usize,
        5000usize.next_power_of_two().max(page_size())
    );
    assert_eq!(instance.map("events").unwrap().def().max_entries, engine.domain().max_slots());
    let devices = instance.map("devices").unwrap();
    devices.set(&2u32.to_ne_bytes(), &[7, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let forward = instance.program::<Xdp>("forward").unwrap();
    for (queue, verdict) in [(2, 4), (3, 2)] {
        let mut frame = FRAME;
        let mut buff = XdpBuff::new(&mut frame);
        buff.rx_queue_index = queue;
        assert_eq!(forward.run(&mut (), &mut buff).unwrap(), verdict);
        let target = Redirect::MapDevice { map: devices.id(), key: 2, ifindex: 7, program: 0 };
        assert_eq!(buff.redirect, (queue == 2).then_some(target));
    }
    instance.program::<Xdp>("print").unwrap().run(&mut (), &mut XdpBuff::new(&mut [0; 64])).unwrap();
    assert_eq!(*lines.lock().unwrap(), ["plain", "one 0%", "two 1 ff", "on the stack"]);
    let error = linker.loader::<Xdp>().only(&["pick"]).object(&object, maps()).unwrap_err();
    assert!(matches!(&error, LoadError::Map { map, .. } if map == "sockets"), "{error}");
}

/// A format with more conversions than values, an unknown format, and a value that would leak an address.
#[test]
fn values_that_a_format_asks_for_are_numbers() {
    let engine = ways::engine(Way::Verified, |config| config);
    let linker = Linker::<()>::new(&engine);
    let load = |text: &str| linker.loader::<Xdp>().insns("test", support::program(text)).map(|_| ());
    // "%d %x" and "%d %%".
    let (two, one) = (0x78_2520_6425u64, 0x25_2520_6425u64);
    let print = |format: &str, rest: &str| {
        format!("r6 = r1; {format}; *(u64 *)(r10 - 8) = r1; r1 = r10; r1 += -8; r2 = 8; {rest}; call 6; r0 = 0; exit")
    };
    let known = |format: u64| format!("r1 = {format:#x} ll");
    load(&print(&known(one), "r3 = 1")).unwrap();
    load(&print(&known(two), "r3 = 1; r4 = 2; r5 = r10")).unwrap();
    load(&print("r1 = *(u32 *)(r1 + 16)", "r3 = 1; r4 = 2; r5 = 3")).unwrap();
    for refused in [
        print(&known(one), "r4 = 0"),
        print(&known(two), "r3 = 1"),
        print(&known(two), "r3 = 1; r4 = r10"),
        print("r1 = *(u32 *)(r1 + 16)", "r3 = 1"),
        // One way asks for a value, the other does not.
        print(&format!("r2 = *(u32 *)(r1 + 16); r1 = 0; if r2 == 0 goto known; {}; known:", known(one)), "r9 = 0"),
    ] {
        load(&refused).expect_err(&refused);
    }
}
