//! Indirect jumps by instruction arrays, and indirect calls: verified and not, interpreted and compiled at each level.

use bpf_runtime::maps::{Map, MapDef, MapType};
use bpf_runtime::{
    Config, Engine, Linker, LoadError, Loader, MapSet, Mode, Object, OptLevel, Raw, RunError, code::Hardening,
};
use bpf_runtime::{
    isa::assemble,
    net::{Xdp, XdpBuff},
};

const HARDENED: Hardening = Hardening::new()
    .retpolines(true)
    .landing_pads(true)
    .return_signing(true)
    .straight_line(true)
    .blind_constants(false);

/// The instructions that labels stand for.
fn slots(text: &str, labels: &[&str]) -> Vec<u32> {
    let jumps: String = labels.iter().map(|label| format!("\ngoto {label}")).collect();
    let insns = assemble(&format!("{text}{jumps}")).expect("a program with these labels");
    let first = insns.len() - labels.len();
    let target = |i: usize| bpf_runtime::isa::InsnIdx(i as u32).jump(insns[i].jump_offset()?);
    (first..insns.len()).map(|i| target(i).expect("a jump").0).collect()
}

/// A table of these instructions, frozen.
fn table(engine: &Engine, slots: &[u32]) -> Map {
    let map = unfrozen(engine, slots);
    map.freeze().unwrap();
    map
}

fn unfrozen(engine: &Engine, slots: &[u32]) -> Map {
    let def = MapDef::new("table", MapType::InsnArray, 4, 16, slots.len() as u32);
    let map = Map::create(def, engine.domain()).unwrap();
    for (i, slot) in (0u32..).zip(slots) {
        let mut value = [0; 16];
        value[..4].copy_from_slice(&slot.to_ne_bytes());
        map.set(&i.to_ne_bytes(), &value).unwrap();
    }
    map
}

/// Each way to run a program: the interpreter, each level, and what options add to the code.
fn engines() -> Vec<(&'static str, Config)> {
    let with = |name, change: fn(Config) -> Config| {
        let config = change(Config::new());
        (name, config)
    };
    vec![
        with("interpreted", |config| config.mode(Mode::Interpreter)),
        with("not optimised", |config| config.opt_level(OptLevel::None)),
        with("fast", |config| config.opt_level(OptLevel::Speed)),
        with("with a budget", |config| config.budget(1000)),
        with("with a budget, not optimised", |config| config.opt_level(OptLevel::None).budget(1000)),
        with("interruptible", |config| config.interruptible(true)),
        with("hardened", |config| config.hardening(|_| HARDENED)),
        with("hardened, not optimised", |config| config.opt_level(OptLevel::None).hardening(|_| HARDENED)),
    ]
}

/// A byte chooses among the ways; `goto` back and forth, and a loop.
const SWITCH: &str = "
    r0 = 0
    if r2 == 0 goto out
    r3 = *(u8 *)(r1 + 0)
    r6 = 0
again:
    if r3 > 5 goto other
    r4 = r3
    r4 <<= 3
    r5 = map[fd:0][0]+0
    r5 += r4
    r5 = *(u64 *)(r5 + 0)
    gotox r5
one:
    r0 += 1
    goto out
two:
    r0 += 2
    goto out
three:
    r0 += 3
    goto out
less:
    r0 += 10
    r3 -= 1
    r6 += 1
    if r6 > 9 goto out
    goto again
four:
    r0 += 4
    goto out
other:
    r0 = 99
out:
    exit
";
const WAYS: [&str; 6] = ["one", "two", "three", "less", "less", "four"];

#[test]
fn a_switch_goes_where_its_table_says() {
    for (name, config) in engines() {
        let engine = Engine::new(config).unwrap();
        let linker = Linker::<()>::new(&engine);
        let map = table(&engine, &slots(SWITCH, &WAYS));
        let insns = assemble(SWITCH).unwrap();
        let loader = || linker.loader::<Raw>().maps(&[&map]);
        // SAFETY: the verifier accepts the same program.
        let unverified = unsafe { loader().unverified(true) };
        for program in
            [loader(), unverified, loader().interpreted(true)].map(|l| l.insns("switch", insns.clone()).unwrap())
        {
            let mut results = Vec::new();
            for byte in [0, 1, 2, 3, 4, 5, 6, 255] {
                results
                    .push(program.run(&mut (), &mut [byte]).unwrap_or_else(|error| panic!("{name}: {byte}: {error}")));
            }
            assert_eq!(results, [1, 2, 3, 13, 23, 4, 99, 99], "{name}");
            assert_eq!(program.run(&mut (), &mut []).unwrap(), 0, "{name}");
        }
    }
}

/// Returns the message of the refusal, or an empty string if the program loads.
fn refused(loader: Loader<'_, Raw, ()>, text: &str) -> String {
    match loader.insns("p", assemble(text).unwrap()) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn tables_are_frozen_and_of_the_program() {
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let slots = slots(SWITCH, &WAYS);
    let error = refused(linker.loader::<Raw>().maps(&[&unfrozen(&engine, &slots)]), SWITCH);
    assert!(error.contains("the instruction array `table` is not frozen"), "{error}");
    for bad in [1000, 8] {
        // Behind the end; the second slot of the load of the map's address.
        let mut slots = slots.clone();
        slots[2] = bad;
        let error = refused(linker.loader::<Raw>().maps(&[&table(&engine, &slots)]), SWITCH);
        assert!(
            error.contains(&format!("instruction {bad}, a target of indirect jumps, is no instruction")),
            "{error}"
        );
    }
    let short = "r1 = map[fd:0][0]+8\nr1 = *(u64 *)(r1 + 0)\ngotox r1\nr0 = 1\nexit";
    let error = refused(linker.loader::<Raw>().maps(&[&table(&engine, &[4])]), short);
    assert!(error.contains("offset 8 is in no entry of the instruction array `table`"), "{error}");
    let far = "r1 = map[fd:0][0]+0\nr1 = *(u64 *)(r1 + 8)\ngotox r1\nr0 = 1\nexit";
    assert!(refused(linker.loader::<Raw>().maps(&[&table(&engine, &[4])]), far).contains("table"));
    // The table is frozen, so updates fail.
    let map = table(&engine, &[0, 1]);
    assert!(map.set(&0u32.to_ne_bytes(), &[0; 16]).is_err());
    assert_eq!(map.get(&1u32.to_ne_bytes()).unwrap().unwrap()[..4], 1u32.to_ne_bytes());
    let open = unfrozen(&engine, &[3]);
    let mut value = [0; 16];
    value[4] = 1;
    assert!(open.set(&0u32.to_ne_bytes(), &value).is_err(), "xlated_off is the kernel's");
    assert!(open.set(&1u32.to_ne_bytes(), &[0; 16]).is_err());
}

/// Tables as compilers lay them down (`.jumptables`): each program has maps of its own, also of a function that several
/// call; the target of an entry moves with the function.
#[test]
fn the_tables_of_compilers_are_read() {
    let object = Object::parse(include_bytes!("../objects/jumptables.o")).unwrap();
    for (name, config) in engines() {
        let engine = Engine::new(config).unwrap();
        let account = engine.account("tables", 1 << 24);
        let maps = || MapSet::for_object(&engine, &object).unwrap();
        let linker = Linker::<()>::new(&engine);
        let loader = || linker.loader::<Xdp>().account(&account);
        let module = linker.loader::<Xdp>().compile(&object).unwrap_or_else(|error| panic!("{name}: {error}"));
        let module = crate::support::ways::read_back(&linker, module);
        let of_module = module.instance().account(&account).make();
        let loaded = [loader(), loader().hybrid(true)].map(|loader| loader.object(&object, maps()));
        for instance in loaded.into_iter().chain([of_module]) {
            let instance = instance.unwrap_or_else(|error| panic!("{name}: {error}"));
            let results = |program: &str| {
                let program = instance.program::<Xdp>(program).unwrap();
                [0u64, 1, 2, 3, 4, 5, 6, 1 << 32, u64::MAX].map(|value| {
                    let mut packet = value.to_ne_bytes();
                    program.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap()
                })
            };
            assert_eq!(results("chooses"), [1, 3, 2, 3, 99, 99, 99, 99, 99], "{name}");
            assert_eq!(results("calls"), [5, 6, 5, 97, 10, 97, 97, 97, 97], "{name}");
            assert_eq!(results("helped"), [110, 111, 196, 110, 110, 111, 196, 110, 110], "{name}");
            assert_eq!(results("first"), [7; 9], "{name}");
        }
        engine.reclaim();
        engine.domain().drain().unwrap();
        assert_eq!(account.used(), 0, "{name}");
    }
}

/// A `switch` compiled by clang 22: an indirect jump by a table as `v4`, comparisons as `v3`.
#[test]
fn a_switch_is_what_it_says() {
    let expected = |what: u32, x: u32| match what {
        0 => x + 3,
        1 => x * 7,
        2 => (x ^ 0x55) + 2,
        3 => x >> 1,
        4 => x * x + 4,
        5 => 99,
        6 => x.wrapping_sub(6).wrapping_add(6),
        7 => x & 15,
        8 => x & 1,
        9 => x | 128,
        10 => (x << 3) + 10,
        12 => x % 13,
        14 => x + 14,
        15 => x << 1,
        _ => 2,
    };
    let objects: [&[u8]; 2] = [include_bytes!("../objects/switch.o"), include_bytes!("../objects/switch.v3.o")];
    for (bytes, cpu) in objects.into_iter().zip(["v4", "v3"]) {
        let object = Object::parse(bytes).unwrap();
        assert_eq!(bytes.windows(11).any(|name| name == b".jumptables"), cpu == "v4");
        for (name, config) in engines() {
            let engine = Engine::new(config).unwrap();
            let maps = MapSet::for_object(&engine, &object).unwrap();
            let instance = Linker::<()>::new(&engine).loader::<Xdp>().object(&object, maps).unwrap();
            let program = instance.program::<Xdp>("choose").unwrap();
            for (what, x) in (0..=255).flat_map(|what| [0, 1, 5, 6, 0x7f, 0x80, 0xff].map(|x| (what, x))) {
                let result = program.run(&mut (), &mut XdpBuff::new(&mut [what, x])).unwrap();
                assert_eq!(result, u64::from(expected(what.into(), x.into())), "{name}, {cpu}: {what}, {x}");
            }
        }
    }
}

/// Whatever an unverified program puts into the register: it goes to a target, or stops there.
#[test]
fn jumps_and_calls_of_anything_else_stop_the_run() {
    let jump = "r3 = *(u64 *)(r1 + 0)\nr4 = map[fd:0][0]+0\ngotox r3\na:\nr0 = 1\nexit\nb:\nr0 = 2\nexit";
    let call = "r3 = subprog[f]\nr3 = *(u64 *)(r1 + 0)\ncallx r3\nexit\nf:\nr0 = 7\nexit";
    for (name, config) in engines() {
        let engine = Engine::new(config).unwrap();
        let linker = Linker::<()>::new(&engine);
        let targets = slots(jump, &["a", "b"]);
        let map = table(&engine, &targets);
        // SAFETY: it reads the eight bytes that it is given, and stops or ends after that.
        let jumps = unsafe { linker.loader::<Raw>().maps(&[&map]).unverified(true) };
        let jumps = jumps.insns("jumps", assemble(jump).unwrap()).unwrap();
        // SAFETY: it reads the eight bytes that it is given, and calls `f` or stops.
        let calls = unsafe { linker.loader::<Raw>().unverified(true) }.insns("calls", assemble(call).unwrap()).unwrap();
        let known: Vec<u64> = targets.iter().map(|slot| u64::from(*slot) + 1).collect();
        for number in [0, 1, 2, 5, 6, 7, 8, 9, 10, 1 << 32, u64::MAX, 0xbf00_0000_0000_0005] {
            let bytes = &mut number.to_ne_bytes();
            let expected = known.iter().position(|k| *k == number).map(|i| i as u64 + 1);
            match (jumps.run(&mut (), bytes), expected) {
                (Ok(r0), Some(expected)) => assert_eq!(r0, expected, "{name}"),
                (Err(RunError::Access { insn, .. }), None) => assert_eq!(insn.map(|i| i.0), Some(3), "{name}"),
                (got, _) => panic!("{name}: {number:#x}: {got:?}"),
            }
            match calls.run(&mut (), bytes) {
                Err(RunError::Access { insn, .. }) => assert_eq!(insn.map(|i| i.0), Some(3), "{name}"),
                // The interpreter's address of the function.
                Ok(7) if number >> 56 == 0xbf => {}
                got => panic!("{name}: {number:#x}: {got:?}"),
            }
        }
    }
}

/// Verified calls through registers: the register holds either of two functions, or one that was passed as an argument.
#[test]
fn functions_are_called_through_registers() {
    let text = "
        r0 = 0
        if r2 == 0 goto out
        r3 = *(u8 *)(r1 + 0)
        r4 = subprog[double]
        if r3 < 100 goto over
        r4 = subprog[less]
    over:
        r1 = r4
        r2 = r3
        call apply
    out:
        exit
    apply:
        r3 = r1
        r1 = r2
        callx r3
        r0 += 1
        exit
    double:
        r0 = r1
        r0 += r1
        exit
    less:
        r0 = r1
        r0 -= 100
        exit";
    for (name, config) in engines() {
        let engine = Engine::new(config).unwrap();
        let program = Linker::<()>::new(&engine).loader::<Raw>().insns("calls", assemble(text).unwrap()).unwrap();
        let results = [0, 7, 99, 100, 255].map(|byte| program.run(&mut (), &mut [byte]).unwrap());
        assert_eq!(results, [1, 15, 199, 1, 156], "{name}");
    }
}

/// A loop that an indirect jump closes is counted and ends by the budget.
#[test]
fn loops_of_indirect_jumps_spend_the_budget() {
    let text = "r6 = 0\na:\nr1 = map[fd:0][0]+0\nr1 = *(u64 *)(r1 + 0)\ngotox r1";
    for (name, mut config) in engines() {
        config = config.budget(100);
        let engine = Engine::new(config).unwrap();
        let map = table(&engine, &slots(text, &["a"]));
        let linker = Linker::<()>::new(&engine);
        assert!(refused(linker.loader::<Raw>().maps(&[&map]), text).contains("never ends"), "{name}");
        // SAFETY: it does nothing, as often as the budget allows.
        let program = unsafe { linker.loader::<Raw>().maps(&[&map]).unverified(true) };
        let program = program.insns("loop", assemble(text).unwrap()).unwrap();
        let error = program.run(&mut (), &mut []).unwrap_err();
        assert!(matches!(error, RunError::Budget { .. }), "{name}: {error}");
    }
}

/// A helper's id is a pointer to it where nothing is optimised.
#[test]
fn a_helper_is_called_by_its_number() {
    for (name, config) in engines() {
        let engine = Engine::new(config).unwrap();
        let mut linker = Linker::<()>::new(&engine);
        linker.func(1001, "twice", |_: &mut bpf_runtime::Caller<'_, ()>, x: u64| 2 * x).unwrap();
        let text = "r6 = 1001\nr1 = 21\ncallx r6\nexit";
        let program = linker.loader::<Raw>().insns("p", assemble(text).unwrap()).unwrap();
        assert_eq!(program.run(&mut (), &mut []).unwrap(), 42, "{name}");
        let error =
            linker.loader::<Raw>().insns("p", assemble("r1 = 1\nr6 = r2\ncallx r6\nexit").unwrap()).unwrap_err();
        assert!(matches!(error, LoadError::Verifier { .. }), "{name}: {error}");
    }
}
