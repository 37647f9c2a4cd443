//! Host functions over memory: what their types demand of programs, on the verifier and on each engine.

use crate::common::engines::engines;
use bpf_runtime::{
    Caller, Config, Engine, HelperError, Linker, LoadError, Mode, Object, OptLevel, Program, Raw, RunError,
    SharedBytes, SharedBytesMut,
    host::{Pinned, PinnedMap},
    maps::{Map, MapDef, MapType},
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes};

type Log = Vec<Vec<u8>>;

/// Instructions from text, several a line.
fn assemble(text: &str) -> Result<Vec<bpf_runtime::isa::Insn>, impl std::error::Error> {
    bpf_runtime::isa::assemble(&text.replace(";", "\n"))
}

#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Pair {
    a: u64,
    b: u64,
}

/// The functions of these tests; programs call them by id.
fn linker(engine: &Engine) -> Linker<Log> {
    let mut linker = Linker::<Log>::new(engine);
    linker
        .func(1001, "note", |c: &mut Caller<'_, Log>, bytes: &[u8]| {
            c.host().push(bytes.to_vec());
            bytes.len() as u64
        })
        .unwrap()
        .func(1002, "copy", |_: &mut Caller<'_, Log>, to: &mut [u8], from: &[u8]| {
            let len = to.len().min(from.len());
            to[..len].copy_from_slice(&from[..len]);
            len as u64
        })
        .unwrap()
        .func(1003, "swap", |_: &mut Caller<'_, Log>, pair: &mut Pair| {
            *pair = Pair { a: pair.b, b: pair.a };
        })
        .unwrap()
        .func(1004, "address", |_: &mut Caller<'_, Log>, address: &U32| address.get())
        .unwrap()
        .func(1005, "shared", |c: &mut Caller<'_, Log>, bytes: SharedBytes<'_>| {
            c.host().push(bytes.to_vec());
            bytes.get::<u32>(4).unwrap_or(u32::MAX)
        })
        .unwrap()
        .func(1006, "fill", |_: &mut Caller<'_, Log>, bytes: SharedBytesMut<'_>, with: u8| {
            (0..bytes.len()).all(|i| bytes.set(i, &with)) && !bytes.set(bytes.len(), &with)
        })
        .unwrap()
        .func(1007, "maybe", |_: &mut Caller<'_, Log>, pair: Option<&Pair>, bytes: Option<&[u8]>| {
            pair.map_or(1, |p| p.a) * 100 + bytes.map_or(7, |b| b.len() as u64)
        })
        .unwrap()
        .func(1008, "low", |_: &mut Caller<'_, Log>, value: u64| value as u8)
        .unwrap();
    linker
}

/// Loads the text verified; and again unverified, for the interpreter that checks each call.
fn load(linker: &Linker<Log>, maps: &[&Map], text: &str) -> [Program<Raw, Log>; 2] {
    let insns = || assemble(text).unwrap_or_else(|e| panic!("{e} in {text}"));
    let verified = linker.loader::<Raw>().maps(maps).insns("test", insns());
    let verified = verified.unwrap_or_else(|e| panic!("{e}"));
    [verified, linker.loader::<Raw>().maps(maps).interpreted(true).insns("test", insns()).unwrap()]
}

/// The verifier refuses the text with this message, and a checked run ends at run time.
fn refused(engine: &Engine, maps: &[&Map], text: &str, message: &str) {
    let linker = linker(engine);
    let insns = || assemble(text).unwrap_or_else(|e| panic!("{e} in {text}"));
    match linker.loader::<Raw>().maps(maps).insns("test", insns()) {
        Err(LoadError::Verifier { source, .. }) => assert!(source.to_string().contains(message), "{source}"),
        other => panic!("{text}: {other:?}"),
    }
    let program = linker.loader::<Raw>().maps(maps).interpreted(true).insns("test", insns()).unwrap();
    let mut log = Log::new();
    let result = program.run(&mut log, &mut [0; 64]);
    let failed = matches!(result, Err(RunError::Access { .. } | RunError::Host { .. }));
    assert!(failed, "{text}: {result:?}");
    assert_eq!(log, Log::new(), "the function was called");
}

#[test]
fn slices_are_the_programs_stack_and_packet() {
    for engine in engines(|config| config) {
        let linker = linker(&engine);
        let text = "r6 = r1; if r2 < 16 goto out; r1 = 0x0807060504030201 ll; *(u64 *)(r10 - 8) = r1; \
                    r1 = r10; r1 += -6; r2 = 3; call 1001; r7 = r0; \
                    r1 = r6; r1 += 2; r2 = 5; call 1001; r7 += r0; \
                    r1 = r6; r1 += 8; r2 = 4; r3 = r10; r3 += -8; r4 = 8; call 1002; r7 += r0; \
                    r1 = r6; r2 = 0; call 1001; r0 = r7; exit; out: r0 = 0; exit";
        for program in load(&linker, &[], text) {
            let mut packet: Vec<u8> = (100..116).collect();
            let mut log = Log::new();
            assert_eq!(program.run(&mut log, &mut packet).unwrap(), 3 + 5 + 4);
            assert_eq!(log, [vec![3, 4, 5], vec![102, 103, 104, 105, 106], vec![]]);
            assert_eq!(packet, [100, 101, 102, 103, 104, 105, 106, 107, 1, 2, 3, 4, 112, 113, 114, 115]);
        }
    }
}

#[test]
fn a_written_slice_overlaps_nothing() {
    for engine in engines(|config| config) {
        let init = "r1 = 0; *(u64 *)(r10 - 8) = r1; *(u64 *)(r10 - 16) = r1;";
        let call = |to: i32, n: u32, from: i32, m: u32| {
            format!("{init} r1 = r10; r1 += {to}; r2 = {n}; r3 = r10; r3 += {from}; r4 = {m}; call 1002; exit")
        };
        for (to, n, from, m) in [(-16, 9, -8, 8), (-8, 8, -16, 9), (-16, 16, -12, 1), (-8, 8, -8, 8)] {
            refused(&engine, &[], &call(to, n, from, m), "may overlap");
        }
        // Side by side is fine.
        for program in load(&linker(&engine), &[], &call(-16, 8, -8, 8)) {
            assert_eq!(program.run(&mut Log::new(), &mut []).unwrap(), 8);
        }
        let packet = "r6 = r1; if r2 < 16 goto out; r2 = 8; r3 = r1; r3 += 7; r4 = 8; call 1002; out: r0 = 0; exit";
        refused(&engine, &[], packet, "may overlap");
    }
}

#[test]
fn memory_must_be_the_runs_own_initialised_and_aligned() {
    for engine in engines(|config| config) {
        let map = Map::create(MapDef::new("m", MapType::Array, 4, 16, 1), engine.domain()).unwrap();
        // A map value is shared with other threads: no slice, no reference.
        let value = "r1 = map[fd:0][0]+0; r2 = 16; call 1001; exit";
        refused(&engine, &[&map], value, "have the host's function take `SharedBytes`");
        refused(&engine, &[&map], "r1 = map[fd:0][0]+0; call 1003; r0 = 0; exit", "in place of a reference");
        refused(&engine, &[], "r1 = 0; r2 = 0; *(u64 *)(r10 - 8) = r2; call 1003; r0 = 0; exit", "r1");
        refused(&engine, &[], "r1 = 5; r2 = 8; call 1001; exit", "r1");
        // Longer than the stack has, and a length that may be anything.
        let long = "r1 = 0; *(u64 *)(r10 - 8) = r1; r1 = r10; r1 += -8; r2 = 9; call 1001; exit";
        refused(&engine, &[], long, "outside the frame");
        // A pair of words wants eight bytes' alignment.
        let words = "r1 = 0; *(u64 *)(r10 - 8) = r1; *(u64 *)(r10 - 16) = r1; *(u64 *)(r10 - 24) = r1; r1 = r10;";
        refused(&engine, &[], &format!("{words} r1 += -20; call 1003; r0 = 0; exit"), "not proven to be aligned");
    }
    // Only the verifier knows what was written.
    let engine = &engines(|config| config)[0];
    let insns = assemble("r1 = r10; r1 += -8; r2 = 8; call 1001; exit").unwrap();
    let error = linker(engine).loader::<Raw>().insns("test", insns).unwrap_err();
    assert!(error.to_string().contains("was never written"), "{error}");
}

#[test]
fn references_are_made_of_plain_memory() {
    for engine in engines(|config| config) {
        let linker = linker(&engine);
        let text = "r6 = r1; r1 = 5; *(u64 *)(r10 - 16) = r1; r1 = 9; *(u64 *)(r10 - 8) = r1; r1 = r10; r1 += -16; \
                    call 1003; r0 = *(u64 *)(r10 - 16); r0 <<= 8; r1 = *(u64 *)(r10 - 8); r0 |= r1; exit";
        for program in load(&linker, &[], text) {
            assert_eq!(program.run(&mut Log::new(), &mut []).unwrap(), 9 << 8 | 5);
        }
        // A packet has no alignment, and `U32` needs none.
        let text = "if r2 < 5 goto out; r1 += 1; call 1004; exit; out: r0 = 0; exit";
        for program in load(&linker, &[], text) {
            assert_eq!(program.run(&mut Log::new(), &mut [9, 1, 2, 3, 4]).unwrap(), 0x0102_0304);
            assert_eq!(program.run(&mut Log::new(), &mut [9, 1, 2, 3]).unwrap(), 0);
        }
    }
}

#[test]
fn null_is_none() {
    for engine in engines(|config| config) {
        let linker = linker(&engine);
        for program in load(&linker, &[], "r1 = 0; r2 = 0; r3 = 0; call 1007; exit") {
            assert_eq!(program.run(&mut Log::new(), &mut []).unwrap(), 107);
        }
        let text = "r1 = 3; *(u64 *)(r10 - 16) = r1; *(u64 *)(r10 - 8) = r1; r1 = r10; r1 += -16; r2 = r1; r3 = 2; \
                    call 1007; exit";
        for program in load(&linker, &[], text) {
            assert_eq!(program.run(&mut Log::new(), &mut []).unwrap(), 302);
        }
        // Null has no bytes.
        let insns = assemble("r1 = 0; r2 = 0; r3 = 1; call 1007; exit").unwrap();
        assert!(matches!(linker.loader::<Raw>().insns("test", insns), Err(LoadError::Verifier { .. })));
    }
}

#[test]
fn map_values_come_as_shared_bytes() {
    for engine in engines(|config| config) {
        let linker = linker(&engine);
        let map = Map::create(MapDef::new("m", MapType::Array, 4, 16, 1), engine.domain()).unwrap();
        let text = "r1 = map[fd:0][0]+0; r2 = 12; call 1005; r6 = r0; \
                    r1 = map[fd:0][0]+0; r1 += 3; r2 = 6; r3 = 0xab; call 1006; r6 <<= 1; r0 |= r6; exit";
        for program in load(&linker, &[&map], text) {
            map.update(&0u32.to_ne_bytes(), &(1..=16).collect::<Vec<u8>>(), 0).unwrap();
            let mut log = Log::new();
            assert_eq!(program.run(&mut log, &mut []).unwrap(), u64::from(u32::from_le_bytes([5, 6, 7, 8])) << 1 | 1);
            assert_eq!(log, [(1..=12).collect::<Vec<u8>>()]);
            let value = map.get(&0u32.to_ne_bytes()).unwrap().unwrap();
            assert_eq!(value, [1, 2, 3, 0xab, 0xab, 0xab, 0xab, 0xab, 0xab, 10, 11, 12, 13, 14, 15, 16]);
        }
        let text = "r1 = map[fd:0][0]+0; r2 = 17; call 1005; exit";
        refused(&engine, &[&map], text, "outside value of map");
    }
}

#[test]
fn results_are_bounded_by_their_type() {
    for engine in engines(|config| config) {
        let linker = linker(&engine);
        // A `u8` indexes 256 bytes without a comparison.
        let text = "r6 = r1; if r2 < 256 goto out; r1 = 0x1ff; call 1008; r6 += r0; r0 = *(u8 *)(r6 + 0); exit; \
                    out: r0 = 0; exit";
        for program in load(&linker, &[], text) {
            let mut packet: Vec<u8> = (0..=255).map(|i| 255 - i).collect();
            assert_eq!(program.run(&mut Log::new(), &mut packet).unwrap(), 0);
        }
    }
}

/// A host whose functions return memory, and let go of it while the program holds its address.
struct Lender {
    region: Mutex<Option<Pinned<Pair>>>,
    map: Mutex<Option<PinnedMap<u32, u64>>>,
}

#[test]
fn returned_memory_stays_for_the_run() {
    for engine in engines(|config| config) {
        let map = || {
            let map = Map::create(MapDef::new("m", MapType::Hash, 4, 8, 4), engine.domain()).unwrap();
            map.update(&3u32.to_ne_bytes(), &40u64.to_ne_bytes(), 0).unwrap();
            PinnedMap::new(&map).unwrap()
        };
        let mut linker = Linker::<Lender>::new(&engine);
        linker
            .func(1001, "region", |c: &mut Caller<'_, Lender>| c.host().region.lock().unwrap().clone())
            .unwrap()
            .func(1002, "value", |c: &mut Caller<'_, Lender>, key: u32| {
                let map = c.host().map.lock().unwrap().clone();
                map.map_or(Ok(None), |map| map.lookup(c, &key))
            })
            .unwrap()
            // Lets go of everything, as any other thread might.
            .func(1003, "drop", |c: &mut Caller<'_, Lender>| {
                *c.host().region.lock().unwrap() = None;
                *c.host().map.lock().unwrap() = None;
            })
            .unwrap();
        let text = "call 1001; if r0 == 0 goto out; r6 = r0; r1 = 3; call 1002; if r0 == 0 goto out; r7 = r0; \
                    call 1003; r1 = *(u64 *)(r6 + 8); r1 += 1; *(u64 *)(r6 + 8) = r1; r0 = *(u64 *)(r6 + 8); \
                    r1 = *(u64 *)(r7 + 0); *(u64 *)(r7 + 0) = r0; r0 += r1; exit; out: r0 = 0; exit";
        let insns = || assemble(text).unwrap();
        for program in
            [linker.loader::<Raw>().insns("t", insns()), linker.loader::<Raw>().interpreted(true).insns("t", insns())]
        {
            let region = Pinned::new(&engine, &Pair { a: 1, b: 2 });
            let mut host = Lender { region: Mutex::new(Some(region.clone())), map: Mutex::new(Some(map())) };
            let program = program.unwrap();
            assert_eq!(program.run(&mut host, &mut []).unwrap(), 43);
            assert_eq!(region.get(), Pair { a: 1, b: 3 });
            drop(region);
            // Nothing is left to lend.
            assert_eq!(program.run(&mut host, &mut []).unwrap(), 0);
        }
        let refused = |text: &str, message: &str| {
            let error = linker.loader::<Raw>().insns("t", assemble(text).unwrap()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        refused("call 1001; r0 = *(u64 *)(r0 + 0); exit", "may be null");
        refused("call 1001; if r0 == 0 goto +1; r0 = *(u64 *)(r0 + 16); exit", "outside memory of 16 bytes");
        refused("call 1001; exit", "leak");
    }
}

#[test]
fn memory_of_another_engine_is_not_returned() {
    let other = Engine::new(Config::new()).unwrap();
    let foreign = Pinned::new(&other, &7u64);
    let map = Map::create(MapDef::new("m", MapType::Array, 4, 8, 4), other.domain()).unwrap();
    let foreign_map = PinnedMap::<u32, u64>::new(&map).unwrap();
    for engine in engines(|config| config) {
        let mut linker = Linker::<()>::new(&engine);
        let (foreign, foreign_map) = (foreign.clone(), foreign_map.clone());
        linker
            .func(1001, "foreign", move |_: &mut Caller<'_, ()>| Some(foreign.clone()))
            .unwrap()
            .func(1002, "foreign_map", move |c: &mut Caller<'_, ()>, key: u32| foreign_map.lookup(c, &key))
            .unwrap();
        for text in ["call 1001; r0 = 0; exit", "r1 = 1; call 1002; r0 = 0; exit"] {
            let program = linker.loader::<Raw>().insns("t", assemble(text).unwrap()).unwrap();
            let error = program.run(&mut (), &mut []).unwrap_err();
            assert!(error.to_string().contains("another"), "{error}");
        }
    }
}

#[test]
fn only_maps_that_fit_are_lent() {
    let engine = Engine::new(Config::new()).unwrap();
    let map = |def| Map::create(def, engine.domain()).unwrap();
    let new = |def| PinnedMap::<u32, u64>::new(&map(def)).map(drop).map_err(|e| e.to_string());
    assert_eq!(new(MapDef::new("m", MapType::PerCpuArray, 4, 8, 4)), Ok(()));
    assert!(new(MapDef::new("m", MapType::Array, 4, 16, 4)).unwrap_err().contains("8"));
    assert!(new(MapDef::new("m", MapType::Hash, 8, 8, 4)).unwrap_err().contains("key"));
    assert!(new(MapDef::new("m", MapType::Queue, 0, 8, 4)).unwrap_err().contains("found by key"));
    let read_only = MapDef::new("m", MapType::Array, 4, 8, 4).flags(bpf_maps::flags::RDONLY_PROG);
    assert!(new(read_only).unwrap_err().contains("read and write"));
}

/// A function that has a slice of its caller's packet runs programs on it, panics, and drops the last handle of the
/// running program.
#[test]
fn a_function_may_run_panic_and_drop_while_it_holds_memory() {
    struct Nest {
        inner: Option<Program<Raw, Nest>>,
        calls: AtomicUsize,
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for engine in engines(|config| config) {
        let mut linker = Linker::<Nest>::new(&engine);
        linker
            .func(1001, "again", |c: &mut Caller<'_, Nest>, bytes: &mut [u8]| -> Result<u64, HelperError> {
                let host = c.host();
                host.calls.fetch_add(1, Ordering::Relaxed);
                let program = host.inner.take().ok_or_else(|| HelperError::new("no program"))?;
                let r0 = program.run(host, bytes).map_err(HelperError::new)?;
                bytes[0] = 77;
                // The last handle.
                drop(program);
                Ok(r0)
            })
            .unwrap()
            .func(1002, "panic", |_: &mut Caller<'_, Nest>, bytes: &mut [u8]| -> u64 {
                bytes[1] = 88;
                panic!("with {} bytes", bytes.len())
            })
            .unwrap();
        let text = |id| format!("if r2 < 4 goto out; r2 = 4; call {id}; exit; out: r0 = 0; exit");
        let insns = |id| assemble(&text(id)).unwrap();
        let inner = linker.loader::<Raw>().insns("inner", insns(1002)).unwrap();
        let outer = linker.loader::<Raw>().insns("outer", insns(1001)).unwrap();
        let mut packet = [1, 2, 3, 4, 5];
        let mut host = Nest { inner: Some(inner), calls: AtomicUsize::new(0) };
        let error = outer.run(&mut host, &mut packet).unwrap_err();
        assert!(error.to_string().contains("panicked: with 4 bytes"), "{error}");
        assert_eq!(packet, [1, 88, 3, 4, 5], "the panic came before the outer one's write");

        let inner = linker.loader::<Raw>().insns("inner", assemble("r0 = *(u8 *)(r10 - 1)\nexit").unwrap());
        assert!(inner.is_err(), "uninitialised");
        let length = linker.loader::<Raw>().insns("inner", assemble("r0 = r2; exit").unwrap()).unwrap();
        host.inner = Some(length);
        assert_eq!(outer.run(&mut host, &mut packet).unwrap(), 4, "the inner packet is the slice");
        assert_eq!(packet, [77, 88, 3, 4, 5]);
        // The program that runs is dropped by its own callee.
        host.inner = Some(outer.clone());
        let program = host.inner.clone().unwrap();
        drop(outer);
        let error = program.run(&mut host, &mut packet).unwrap_err();
        assert!(error.to_string().contains("no program"), "{error}");
        assert_eq!(host.calls.load(Ordering::Relaxed), 4);
    }
    std::panic::set_hook(hook);
}

/// A signed result arrives with its sign in all 64 bits, an unsigned one with zeros above it, whatever compiles the
/// call: each program returns the whole register, and one that compares it as a signed number.
#[test]
fn results_arrive_as_wide_as_a_register() {
    let modes = [(Mode::Interpreter, OptLevel::None)].into_iter().chain(
        bpf_runtime::code::Arch::HOST
            .iter()
            .flat_map(|_| [OptLevel::None, OptLevel::Speed, OptLevel::Tiered].map(|level| (Mode::Jit, level))),
    );
    for (mode, level) in modes {
        let config = Config::new().mode(mode).opt_level(level);
        let engine = Engine::new(config).unwrap();
        let mut linker = Linker::<i32>::new(&engine);
        linker
            .func(1001, "signed", |caller: &mut Caller<'_, i32>| -> Result<i32, HelperError> { Ok(*caller.host()) })
            .unwrap();
        linker
            .func(1002, "short", |caller: &mut Caller<'_, i32>| -> Result<i16, HelperError> {
                Ok(*caller.host() as i16)
            })
            .unwrap();
        linker
            .func(1003, "unsigned", |caller: &mut Caller<'_, i32>| -> Result<u32, HelperError> {
                Ok(*caller.host() as u32)
            })
            .unwrap();
        linker.func(1004, "maybe", |caller: &mut Caller<'_, i32>| -> i64 { i64::from(*caller.host()) }).unwrap();
        for verified in [true, false] {
            let load = |text: &str| {
                let insns = bpf_runtime::isa::assemble(text).unwrap();
                let loader = match verified {
                    true => linker.loader::<Raw>(),
                    // SAFETY: the verifier accepts it.
                    false => unsafe { linker.loader::<Raw>().unverified(true) },
                };
                loader.insns("test", insns).unwrap()
            };
            let expected =
                |host: i32| [i64::from(host), i64::from(host as i16), i64::from(host as u32), i64::from(host)];
            for (id, which) in (1001..).zip(0..4) {
                let whole = load(&format!("call {id}\nexit"));
                let negative = load(&format!("call {id}\nif r0 s< 0 goto neg\nr0 = 0\nexit\nneg:\nr0 = 1\nexit"));
                let half = load(&format!("call {id}\nw0 = w0\nexit"));
                for mut host in [-7, 0, 7, i32::MIN, i32::MAX] {
                    let expected = expected(host)[which];
                    let why = format!("{mode:?} {level:?} {id} {host}, verified: {verified}");
                    // 4294967289 is the lower half of a register that holds -7.
                    assert_eq!(half.run(&mut host, &mut &mut [][..]).unwrap(), u64::from(expected as u32), "{why}");
                    assert_eq!(whole.run(&mut host, &mut &mut [][..]).unwrap() as i64, expected, "{why}");
                    assert_eq!(negative.run(&mut host, &mut &mut [][..]).unwrap(), u64::from(expected < 0), "{why}");
                }
            }
        }
    }
}

/// One call of a function that knows its callers: program, instance, account, and the value of the map.
type Known = (Option<String>, Option<String>, Option<String>, Option<u64>);

#[test]
fn a_function_knows_the_program_that_calls_it() {
    let logs = Object::parse(include_bytes!("../objects/logs.o")).unwrap();
    for engine in engines(|config| config) {
        let kept = Arc::new(());
        let account = engine.account("group", 1 << 20);
        {
            let mut linker = Linker::<Vec<Known>>::new(&engine);
            let known = |c: &Caller<'_, Vec<Known>>| {
                let value = c.map("hits").ok().map(|map| map.get(&[0; 4]).unwrap().unwrap());
                let value = value.map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()));
                let account = c.account().map(|account| account.name().to_owned());
                (c.program().map(str::to_owned), c.instance().map(str::to_owned), account, value)
            };
            // With captures and without, of which the environment differs; and one that does not know.
            let held = Arc::clone(&kept);
            linker.know_callers(true);
            linker
                .func_named("write_log", move |c: &mut Caller<'_, Vec<Known>>, _: u32, _: SharedBytes<'_>| {
                    assert!(Arc::strong_count(&held) > 1);
                    let known = known(c);
                    c.host().push(known);
                })
                .unwrap();
            let plain = move |c: &mut Caller<'_, Vec<Known>>| {
                let known = known(c);
                c.host().push(known);
            };
            linker.func(1001, "plain", plain).unwrap();
            linker.know_callers(false).func(1002, "ignorant", plain).unwrap();
            let module = linker.compile::<Raw>(&logs).unwrap();
            let instances =
                [module.instance().make().unwrap(), module.instance().name("acme").account(&account).make().unwrap()];
            let mut host = Vec::new();
            for instance in instances.iter().chain(&instances) {
                instance.program::<Raw>("logs").unwrap().run(&mut host, &mut [3, 7]).unwrap();
            }
            let logs = |instance: Option<&str>, account: Option<&str>| {
                (Some("logs".to_owned()), instance.map(str::to_owned), account.map(str::to_owned), None)
            };
            let (alone, acme) = (logs(None, None), logs(Some("acme"), Some("group")));
            assert_eq!(host, [alone.clone(), acme.clone(), alone, acme]);
            // A map that the program refers to is found by its name.
            let hits = engine.create_map(MapDef::new("hits", MapType::Array, 4, 8, 1)).unwrap();
            hits.update(&[0; 4], &9u64.to_ne_bytes(), 0).unwrap();
            let insns = assemble("r1 = map[fd:0][0]+0\ncall 1001\ncall 1002\nr0 = 0\nexit").unwrap();
            let program = linker.loader::<Raw>().maps(&[&hits]).insns("counts", insns).unwrap();
            host.clear();
            program.run(&mut host, &mut []).unwrap();
            assert_eq!(host, [(Some("counts".to_owned()), None, None, Some(9)), (None, None, None, None)]);
        }
        engine.reclaim();
        assert_eq!(Arc::strong_count(&kept), 1, "captured values are dropped with the last program");
    }
}
