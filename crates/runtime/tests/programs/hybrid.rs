//! Programs that are accepted with checks at run time: in bounds they compute what they should, out of bounds and
//! without an end they stop with an error that names the instruction, and no byte outside their region changes.

#[path = "../../../verifier/tests/verify/border/mod.rs"]
mod border;

use crate::common::engines::{engine, modes};
use crate::support::soak;
use bpf_runtime::maps::Map;
use bpf_runtime::maps::{MapDef, MapType, flags};
use bpf_runtime::{
    BpfContext, Config, Engine, Hook, HookPolicy, Linker, MapSet, Object, ProgArray, Program, Raw, code::Arch,
};
use bpf_runtime::{
    LoadError, RunError,
    isa::{Insn, assemble},
    net::{SkBuff, Skb, Xdp, XdpBuff},
};
use bpf_testkit::generate::Choices;

const CANARY: u8 = 0xc5;

/// A linker whose function 1001 returns the host's number, an arbitrary one.
fn linker(engine: &Engine) -> Linker<u64> {
    let mut linker = Linker::<u64>::new(engine);
    linker.func(1001, "number", |c: &mut bpf_runtime::Caller<'_, u64>| *c.host()).unwrap();
    linker
}

fn program(linker: &Linker<u64>, text: &str) -> Program<Raw, u64> {
    let insns = assemble(text).unwrap();
    assert!(linker.loader::<Raw>().insns("proven", insns.clone()).is_err(), "needs no check:\n{text}");
    linker.loader::<Raw>().hybrid(true).insns("checked", insns).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Offsets around each end of a short buffer, around the limits within which pointers may be compared, and around the
/// points at which 64-bit sums wrap.
fn numbers() -> impl Iterator<Item = u64> {
    let near = |at: i64| (0..24).map(move |i| at.wrapping_add(i).wrapping_sub(12).cast_unsigned());
    [0, LOWEST, 1 << 31, -(1 << 31), 1 << 32, 1 << 47, i64::MIN].into_iter().flat_map(near)
}

/// Lower bound of the offsets at which a pointer may be compared: no region begins below 64 KiB.
const LOWEST: i64 = -(1 << 16);

#[test]
fn loads_and_stores_stop_exactly_at_the_borders() {
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let linker = linker(&engine);
        for (bits, size) in [(8, 1usize), (16, 2), (32, 4), (64, 8)] {
            for off in [0i16, 3, -5] {
                let at = if off < 0 { format!("r6 - {}", -off) } else { format!("r6 + {off}") };
                let find = "r6 = r1\ncall 1001\nr6 += r0";
                let load = program(&linker, &format!("{find}\nr0 = *(u{bits} *)({at})\nexit"));
                let store = program(
                    &linker,
                    &format!("{find}\nr7 = 0x0102030405060708 ll\n*(u{bits} *)({at}) = r7\nr0 = 1\nexit"),
                );
                for len in 0..=10usize {
                    for number in numbers() {
                        let mut room = [CANARY; 64];
                        let plain: Vec<u8> = (0..len as u8).collect();
                        room[24..24 + len].copy_from_slice(&plain);
                        // The sum has 64 bits, as in the program.
                        let at = number.wrapping_add(off as u64);
                        let inside = at <= len as u64 && size as u64 <= len as u64 - at;
                        let context = || format!("{mode:?}: {size} bytes at {number:#x} + {off} of {len}");

                        let mut host = number;
                        match load.run(&mut host, &mut room[24..24 + len]) {
                            Ok(r0) => {
                                let mut want = [0; 8];
                                assert!(inside, "{}", context());
                                want[..size].copy_from_slice(&plain[at as usize..at as usize + size]);
                                assert_eq!(r0, u64::from_le_bytes(want), "{}", context());
                            }
                            Err(RunError::Access { insn, origin, .. }) => {
                                assert!(!inside, "{}", context());
                                assert_eq!(insn.map(|i| i.0), Some(3), "{}", context());
                                assert_eq!(origin.unwrap().program, "checked");
                            }
                            Err(other) => panic!("{}: {other}", context()),
                        }

                        let result = store.run(&mut host, &mut room[24..24 + len]);
                        let mut want = [CANARY; 64];
                        want[24..24 + len].copy_from_slice(&plain);
                        if inside {
                            let to = 24 + at as usize;
                            want[to..to + size].copy_from_slice(&0x0102030405060708u64.to_le_bytes()[..size]);
                        }
                        assert_eq!(result.is_ok(), inside, "{}: {result:?}", context());
                        assert_eq!(room, want, "{}", context());
                    }
                }
            }
        }
    }
}

/// The packet is where `data` and `data_end` say, not all of the buffer; the metadata is before it; both may move in a
/// run.
#[test]
fn packets_end_where_the_context_says() {
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let linker = linker(&engine);
        // The byte `number` from data, after moving the start by the first byte there, if that is below 16.
        let text = "r7 = r1
            call 1001
            r8 = r0
            r2 = *(u32 *)(r7 + 0)
            r3 = *(u32 *)(r7 + 4)
            r4 = r2
            r4 += 1
            if r4 > r3 goto skip
            r2 = *(u8 *)(r2 + 0)
            if r2 > 15 goto skip
            r1 = r7
            call 44
            skip: r2 = *(u32 *)(r7 + 0)
            r2 += r8
            r0 = *(u8 *)(r2 + 0)
            exit";
        let insns = assemble(text).unwrap();
        let packet = linker.loader::<Xdp>().hybrid(true).insns("packet", insns).unwrap();
        let text = "r7 = r1\ncall 1001\nr2 = *(u32 *)(r7 + 8)\nr2 += r0\nr0 = *(u16 *)(r2 + 0)\nexit";
        let meta = linker.loader::<Xdp>().hybrid(true).insns("meta", assemble(text).unwrap()).unwrap();
        let text = "r7 = r1\ncall 1001\nr2 = *(u32 *)(r7 + 76)\nr2 += r0\nr0 = *(u32 *)(r2 + 0)\nexit";
        let skb = linker.loader::<Skb>().hybrid(true).insns("skb", assemble(text).unwrap()).unwrap();
        for first in [3u8, 200] {
            let (start, len) = (32usize, 40usize);
            let moved = if first < 16 { usize::from(first) } else { 0 };
            for number in numbers() {
                let mut buffer: Vec<u8> = (0..128).collect();
                buffer[start] = first;
                let want = buffer.clone();
                let at = |size: u64| {
                    let end = (len - moved) as u64;
                    (number <= end && size <= end - number).then(|| start + moved + number as usize)
                };
                let mut host = number;
                let result = packet.run(&mut host, &mut XdpBuff::with_room(&mut buffer, start, len));
                match (result, at(1)) {
                    (Ok(r0), Some(at)) => assert_eq!(r0, u64::from(want[at]), "{mode:?}: {number:#x}"),
                    (Err(RunError::Access { .. }), None) => {}
                    (other, at) => panic!("{mode:?}: {number:#x}: {other:?}, {at:?}"),
                }
                // No metadata: nothing to read, wherever the number leads.
                let result = meta.run(&mut host, &mut XdpBuff::with_room(&mut buffer, start, len));
                assert!(matches!(result, Err(RunError::Access { .. })), "{mode:?}: {number:#x}: {result:?}");
                let result = skb.run(&mut host, &mut SkBuff::new(&mut buffer[start..start + len]));
                let inside = number <= len as u64 && 4 <= len as u64 - number;
                assert_eq!(result.is_ok(), inside, "{mode:?}: {number:#x}: {result:?}");
                assert_eq!(buffer, want);
            }
        }
    }
}

/// A case from parsers: on one path the verifier assumes that the cursor is at the end, and at run time it is not.
#[test]
fn an_end_is_an_address_like_others() {
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let linker = linker(&engine);
        for (bits, size) in [(8, 1u64), (16, 2), (32, 4), (64, 8)] {
            for off in [0i64, 1, -1, -3, -8, -9] {
                let at = if off < 0 { format!("r3 - {}", -off) } else { format!("r3 + {off}") };
                let begin = "r3 = r1\nr3 += r2";
                let load = program(&linker, &format!("{begin}\nr0 = *(u{bits} *)({at})\nr0 = 1\nexit"));
                let store = program(&linker, &format!("{begin}\n*(u{bits} *)({at}) = r2\nr0 = 1\nexit"));
                for len in 0..=12usize {
                    let inside = off < 0 && size <= off.unsigned_abs() && off.unsigned_abs() <= len as u64;
                    for (program, writes) in [(&load, false), (&store, true)] {
                        let mut room = [CANARY; 48];
                        let result = program.run(&mut 0, &mut room[16..16 + len]);
                        assert_eq!(result.is_ok(), inside, "{mode:?}: {size} bytes at {len} + {off}: {result:?}");
                        assert!(inside || matches!(result, Err(RunError::Access { .. })), "{result:?}");
                        let written = (len as i64 + 16 + off) as usize;
                        let may_differ =
                            |at: usize| writes && inside && (written..written + size as usize).contains(&at);
                        let kept = room.iter().enumerate().all(|(at, byte)| *byte == CANARY || may_differ(at));
                        assert!(kept, "{mode:?}: {size} bytes at {len} + {off}");
                    }
                }
            }
        }
    }
}

#[test]
fn an_object_with_unbounded_offsets_and_loops() {
    let object = Object::parse(include_bytes!("../objects/checked.o")).unwrap();
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let linker = linker(&engine);
        let maps = || MapSet::for_object(&engine, &object).unwrap();
        assert!(matches!(linker.load::<Xdp>(&object, maps()), Err(LoadError::Verifier { .. })));
        let instance = linker.loader::<Xdp>().hybrid(true).object(&object, maps()).unwrap();
        let word = instance.program::<Xdp>("word").unwrap();
        let mut table = [10u64, 20, 30, 40, 50];
        // The offset is the index times four: with the upper bits lost, it may come back in range.
        for (index, inside) in
            [(0u64, true), (4, true), (5, false), (u64::MAX, false), (1 << 62 | 2, true), (1 << 61, false)]
        {
            let mut packet = [index, 7].map(u64::to_le_bytes).concat();
            let result = word.run(&mut 0, &mut XdpBuff::new(&mut packet));
            match result {
                Ok(r0) => {
                    assert!(inside, "{mode:?}: {index:#x}");
                    assert_eq!(std::mem::replace(&mut table[(index & 0xff) as usize], 7), r0, "{mode:?}: {index:#x}");
                }
                Err(error @ RunError::Access { .. }) => {
                    assert!(!inside, "{mode:?}: {index:#x}");
                    let text = error.to_string();
                    assert!(text.contains("of `word`") && text.contains("checked.c:"), "{text}");
                }
                Err(other) => panic!("{mode:?}: {index:#x}: {other}"),
            }
        }
        // The packet is too short to contain the index.
        assert!(matches!(word.run(&mut 0, &mut XdpBuff::new(&mut [1, 2, 3])), Err(RunError::Access { .. })));

        let sum = instance.program::<Xdp>("sum").unwrap();
        for len in [0usize, 1, 7, 9, 100, 1500] {
            let mut packet: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let want: u64 = packet.iter().map(|b| u64::from(*b)).sum();
            assert_eq!(sum.run(&mut 0, &mut XdpBuff::new(&mut packet)).unwrap(), want, "{mode:?}: {len}");
        }
        // A run that is stopped while it holds a lock releases it: otherwise later runs would wait without end.
        let locked = instance.program::<Xdp>("locked").unwrap();
        for (first, want) in [(1u8, Some(5)), (2, None), (1, Some(10)), (255, None), (1, Some(15))] {
            let result = locked.run(&mut 0, &mut XdpBuff::new(&mut [first, 5]));
            match (result, want) {
                (Ok(count), Some(want)) => assert_eq!(count, want, "{mode:?}"),
                (Err(RunError::Access { .. }), None) => {}
                (other, want) => panic!("{mode:?}: {first}: {other:?}, not {want:?}"),
            }
        }
        let meta = instance.program::<Xdp>("meta").unwrap();
        assert!(matches!(meta.run(&mut 0, &mut XdpBuff::new(&mut [0; 20])), Err(RunError::Access { .. })));
    }
}

#[test]
fn what_does_not_end_is_stopped_by_the_budget() {
    for mode in modes() {
        for budget in [None, Some(100)] {
            let engine = engine(mode, |mut config| {
                config = config.budget(budget).hybrid_budget(1000);
                // The verifier walks an endless loop up to this limit before it gives up.
                config = config.limits(|limits| limits.steps(5_000));
                config
            });
            let linker = linker(&engine);
            let limit = budget.unwrap_or(1000);
            let endless = program(&linker, "a: goto a");
            let result = endless.run(&mut 0, &mut []);
            assert!(matches!(&result, Err(RunError::Budget { insn: Some(at), .. }) if at.0 == 0), "{result:?}");
            // A loop with as many rounds as the host's number says.
            let counted = program(&linker, "call 1001\nr6 = 0\na: r6 += 1\nif r6 != r0 goto a\nr0 = r6\nexit");
            for (rounds, ends) in [(1, true), (limit - 5, true), (limit + 5, false), (0, false)] {
                let result = counted.run(&mut rounds.clone(), &mut []);
                match result {
                    Ok(r0) => assert!(ends && r0 == rounds, "{mode:?}: {rounds}: {r0}"),
                    Err(RunError::Budget { origin, .. }) => {
                        assert!(!ends, "{mode:?}: {rounds}");
                        assert_eq!(origin.unwrap().program, "checked");
                    }
                    Err(other) => panic!("{mode:?}: {rounds}: {other}"),
                }
            }
        }
    }
}

#[derive(BpfContext)]
#[repr(C)]
struct Words {
    words: [u64; 2],
}

/// A program that is proven to end may tail-call one that is not: from there on the run has a budget.
#[test]
fn a_tail_call_into_an_endless_program_has_a_budget() {
    for mode in modes() {
        let engine = engine(mode, |config| config.hybrid_budget(1000));
        let linker = linker(&engine);
        let array = ProgArray::<Words, u64>::create(&engine, "array", 1).unwrap();
        let load = |name: &str, text: &str| {
            linker.loader().hybrid(true).prog_arrays(&[&array]).insns(name, assemble(text).unwrap()).unwrap()
        };
        let endless = load("endless", "a: goto a");
        let first = load("first", "r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 5\nexit");
        array.set(0, &endless).unwrap();
        let stopped = |result: Result<u64, RunError>| {
            let at_the_loop = matches!(&result, Err(RunError::Budget { insn: Some(at), .. }) if at.0 == 0);
            assert!(at_the_loop, "{mode:?}: {result:?}");
        };
        stopped(first.run(&mut 0, &mut Words { words: [0; 2] }));
        // In a hook, too, where programs follow each other without a new run.
        let hook = Hook::<Words, u64>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        hook.attach(&first).unwrap();
        stopped(hook.run(&mut 0, &mut Words { words: [0; 2] }));
    }
}

/// In a hook each program has its budget to itself, also one that does not count and jumps to one that does.
#[test]
fn what_a_program_has_spent_is_not_missed_by_the_next() {
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let linker = linker(&engine);
        let array = ProgArray::<Words, u64>::create(&engine, "array", 1).unwrap();
        let load = |name: &str, budget: Option<u64>, text: &str| {
            let loader = linker.loader::<Words>().prog_arrays(&[&array]);
            let loader = match budget {
                Some(budget) => loader.budget(budget),
                None => loader,
            };
            loader.insns(name, assemble(text).unwrap()).unwrap()
        };
        let rounds = |n: u64| format!("r0 = 0\nagain: r0 += 1\nif r0 < {n} goto again\nexit");
        let jump = "r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 5\nexit";
        let (spends, jumps) = (load("spends", Some(100), &rounds(90)), load("jumps", None, jump));
        let (counts, does_not) = (load("counts", Some(100), &rounds(50)), load("does not", None, &rounds(5000)));
        let limited = load("limited", Some(100), jump);
        let hook = Hook::<Words, u64>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        [&spends, &jumps].into_iter().for_each(|program| hook.attach(program).unwrap());
        array.set(0, &counts).unwrap();
        assert_eq!(hook.run(&mut 0, &mut Words { words: [0; 2] }).unwrap(), 50, "{mode:?}");
        // A program loaded without a budget does not count, also if a program with a budget jumps to it.
        array.set(0, &does_not).unwrap();
        for program in [&jumps, &limited] {
            assert_eq!(program.run(&mut 0, &mut Words { words: [0; 2] }).unwrap(), 5000, "{mode:?}");
        }
    }
}

/// A comparison of a pointer far outside of its region would reveal the region's address, so it stops the run.
#[test]
fn comparisons_of_far_addresses_stop() {
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let linker = linker(&engine);
        let text = "r6 = r1\nr7 = r1\nr7 += r2\ncall 1001\nr6 += r0\nr0 = 0\nif r6 > r7 goto +1\nr0 = 1\nexit";
        let program = program(&linker, text);
        for number in numbers() {
            let result = program.run(&mut number.clone(), &mut [0; 8]);
            let near = (LOWEST..1 << 31).contains(&(number as i64));
            match result {
                Ok(r0) => {
                    assert!(near, "{mode:?}: {number:#x}");
                    assert_eq!(r0, u64::from(number as i64 <= 8), "{mode:?}: {number:#x}");
                }
                Err(RunError::Access { insn, .. }) => {
                    assert!(!near, "{mode:?}: {number:#x}");
                    assert_eq!(insn.map(|i| i.0), Some(6));
                }
                Err(other) => panic!("{mode:?}: {number:#x}: {other}"),
            }
        }
    }
}

/// An offset that is proven to be between -2 GiB and 0 is not proven to be near its region.
#[test]
fn comparisons_far_before_a_region_stop() {
    let packet = "r7 = r1\nr7 += r2";
    let start = "r7 = r1";
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let linker = linker(&engine);
        for (base, compared) in
            [(packet, "if r6 > r7 goto +1"), (start, "if r7 s>= r6 goto +1"), (start, "if r7 < r6 goto +1")]
        {
            // The first load is not proven, since a buffer may be empty.
            let find = format!("r6 = r1\n{base}\nr0 = *(u8 *)(r1 + 0)\ncall 1001\nr0 &= 0x7fffffff\nr6 -= r0");
            let text = format!("{find}\nr0 = 0\n{compared}\nr0 = 1\nexit");
            let program = program(&linker, &text);
            for number in [0, 1, 8, 0xfff0, 0xffff, 0x1_0000, 0x1_0001, 0x1_0010, 1 << 20, 0x7fff_ffff] {
                match program.run(&mut number.clone(), &mut [0; 8]) {
                    Ok(r0) => {
                        assert!(number <= 1 << 16, "{mode:?}: {number:#x}: {text}");
                        assert_eq!(r0, u64::from(!compared.contains("s>=")), "{mode:?}: {number:#x}: {text}");
                    }
                    Err(RunError::Access { .. }) => assert!(number > 1 << 16, "{mode:?}: {number:#x}: {text}"),
                    Err(other) => panic!("{mode:?}: {number:#x}: {other}"),
                }
            }
        }
    }
}

/// A comparison that is checked for the pointers of one path would compare numbers of an arena with the region's start
/// on another, and so show the address of the region.
#[test]
fn comparisons_of_pointers_and_arena_numbers_are_refused() {
    let (cast, far) = ("r6 = 0\nr6 = addr_space_cast(r6, 0, 1)\nr6 += r0\nr7 = r0", "call 1001\nr6 += r0");
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let linker = linker(&engine);
        let map = MapDef::new("arena", MapType::Arena, 0, 0, 2).flags(flags::MMAPABLE);
        let map = Map::create(map, engine.domain()).unwrap();
        for (jump, one, other) in [("==", cast, far), ("!=", far, cast)] {
            let text = format!(
                "r6 = r1\nr7 = r1\nr8 = map[fd:0]\ncall 1001\nif r0 {jump} 5 goto other\n{one}\ngoto compare\n\
                 other: {other}\ncompare: if r6 > r7 goto +0\nr0 = 1\nexit"
            );
            let insns = assemble(&text).unwrap();
            let loaded = linker.loader::<Raw>().maps(&[&map]).hybrid(true).insns("mixed", insns);
            let error = loaded.map(drop).unwrap_err().to_string();
            assert!(error.contains("pointers that need a check"), "{mode:?}: {error}");
        }
    }
}

/// Programs near the border between provable and not: both engines come to the same end, at the same instruction, with
/// the same memory.
#[test]
fn generated_programs_end_alike_on_both_engines() {
    if Arch::HOST.is_none() {
        return println!("SKIPPED generated_programs_end_alike_on_both_engines: no JIT for this host");
    }
    let budget = |config: Config| config.budget(100_000);
    let engines = modes().into_iter().map(|mode| engine(mode, budget)).collect::<Vec<_>>();
    let linkers = engines.iter().map(Linker::<u64>::new).collect::<Vec<_>>();
    let (mut finished, mut stopped) = (0, 0);
    for seed in 0..soak(1500) {
        let mut c = Choices::from_seed(0x4b1d_0000 + seed);
        let insns: Vec<Insn> = border::generate(&mut c).insns().to_vec();
        let load = |l: &Linker<u64>| l.loader::<Raw>().hybrid(true).insns("generated", insns.clone());
        let (Ok(a), Ok(b)) = (load(&linkers[0]), load(&linkers[1])) else { continue };
        for _ in 0..4 {
            let len = c.below(97) as usize;
            let memory: Vec<u8> = (0..len).map(|_| if c.one_in(2) { 0 } else { c.below(256) as u8 }).collect();
            let run = |program: &Program<Raw, u64>| {
                let mut room = vec![CANARY; len + 128];
                room[64..64 + len].copy_from_slice(&memory);
                let end = match program.run(&mut 0, &mut room[64..64 + len]) {
                    Ok(r0) => format!("{r0:#x}"),
                    Err(error @ (RunError::Access { .. } | RunError::Budget { .. })) => error.to_string(),
                    Err(error) => panic!("seed {seed}: {error}"),
                };
                assert!(room[..64].iter().chain(&room[64 + len..]).all(|b| *b == CANARY), "seed {seed}: {end}");
                (end, room)
            };
            let (by_interpreter, by_code) = (run(&a), run(&b));
            assert_eq!(by_interpreter, by_code, "seed {seed}\n{}", bpf_runtime::isa::disassemble(&insns));
            if by_code.0.starts_with("0x") { finished += 1 } else { stopped += 1 }
        }
    }
    assert!(finished > soak(500) && stopped > soak(500), "{finished} finished, {stopped} stopped");
}
