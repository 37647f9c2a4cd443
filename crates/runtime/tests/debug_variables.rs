//! Variables and BPF registers as debuggers show them: sessions of GDB and LLDB on a child process (this test binary
//! again), which steps through a program by source lines.

use bpf_runtime::{Caller, Config, Engine, Instance, Linker, MapSet, Object, OptLevel, Raw, code::Arch};
use bpf_testkit::{emulated, itself, skipped};
use std::process::Command;
use zerocopy::IntoBytes;

const SOURCE: &str = include_str!("objects/variables.c");
const OBJECT: &[u8] = include_bytes!("objects/variables.o");

/// Says to [`a_process_to_look_at`] how to compile: `none` or `speed`.
const LEVEL: &str = "BPF_VARIABLES_LEVEL";

/// The line of the source with this mark.
fn line(mark: &str) -> u32 {
    let mark = format!("/* line: {mark} */");
    (1..).zip(SOURCE.lines()).find(|(_, l)| l.contains(&mark)).map(|(i, _)| i).expect("a marked line")
}

fn load(engine: &Engine, bytes: &[u8]) -> Instance<()> {
    let mut linker = Linker::<()>::new(engine);
    linker.func(1001, "probe", |_: &mut Caller<'_, ()>, value: u64| -> u64 { value + 1 }).unwrap();
    let object = Object::parse(bytes).unwrap();
    let maps = MapSet::for_object(engine, &object).unwrap();
    // SAFETY: the program reads eight bytes of its context, which it is given, and its stack.
    unsafe { linker.loader::<Raw>().unverified(true) }.object(&object, maps).unwrap()
}

fn engine(level: OptLevel) -> Engine {
    Engine::new(Config::new().opt_level(level).debug(|debug| debug.gdb(true))).unwrap()
}

fn bill(instance: &Instance<()>) -> u64 {
    let mut data = [2u64, 0];
    instance.program::<Raw>("bill").unwrap().run(&mut (), data.as_mut_bytes()).unwrap()
}

/// The result of [`bill`]: 6 pieces at 7 less 2, plus that and 1, plus 7; doubled, and the rest.
const BILL: u64 = 88 + 353 + 17;

#[test]
fn a_process_to_look_at() {
    if Arch::HOST.is_none() {
        skipped("a process to look at", &"no JIT on this host");
        return;
    }
    let level = match std::env::var(LEVEL).as_deref() {
        Ok("speed") => OptLevel::Speed,
        _ => OptLevel::None,
    };
    assert_eq!(bill(&load(&engine(level), OBJECT)), BILL);
}

/// Runs a debugger on this binary; `None` and a message where that is not possible.
fn session(level: &str, debugger: &[&str], before: &[String], between: &str) -> Option<String> {
    let name = debugger.first().copied().unwrap_or_default();
    let there = Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    if Arch::HOST.is_none() || !there || emulated() {
        skipped(name, &"there is no such debugger, no JIT, or this is an emulator");
        return None;
    }
    let itself = itself();
    let mut command = Command::new(name);
    command.args(&debugger[1..]).args(before).arg(between).arg(itself.get_program()).args(itself.get_args());
    command.args(["--exact", "a_process_to_look_at", "--nocapture", "--test-threads=1"]);
    let output = command.env(LEVEL, level).env_remove("RUST_BACKTRACE").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !text.contains("stopped here") {
        skipped(name, &format!("it cannot run a program here: {text}{}", String::from_utf8_lossy(&output.stderr)));
        return None;
    }
    Some(text)
}

fn gdb(level: &str, commands: &[&str]) -> Option<String> {
    let setup = ["set debuginfod enabled off", "set breakpoint pending on", "set style enabled off"];
    let commands: Vec<String> = setup.iter().chain(commands).flat_map(|c| ["-ex".into(), (*c).into()]).collect();
    session(level, &["gdb", "-nx", "-batch"], &commands, "--args")
}

/// Fails unless the text has these parts, in this order.
fn has(text: &str, parts: &[&str]) {
    let mut from = 0;
    for part in parts {
        from += text[from..].find(part).unwrap_or_else(|| panic!("no {part:?} behind {from} in\n{text}")) + part.len();
    }
}

#[test]
fn gdb_steps_by_lines_and_prints_variables_and_registers() {
    let commands = [
        "break bpf:bill/total",
        "run",
        "echo stopped here\\n",
        "print discount",
        "print *order",
        "print order->next->colour",
        "print r2",
        "next",
        "echo stepped\\n",
        "info symbol $pc",
        "info args",
        "up",
        "echo above\\n",
        "print kept",
        "print order",
        "print r1",
        "delete",
        "continue",
    ];
    let Some(text) = gdb("none", &commands) else { return };
    has(
        &text,
        &[
            "bpf:bill/total (order=0x",
            "stopped here",
            "$1 = 2",
            "{price = 7, count = 6, flags = 5, rest = 9, colour = GREEN, next = 0x",
            "$3 = GREEN",
            "$4 = 2",
            &format!("{}\t", line("sum")),
            "stepped",
            "order = 0x",
            "discount = 2",
            "above",
            // The context's length and one.
            "$5 = 17",
            "{price = 7, count = 6, flags = 5, rest = 9, colour = GREEN, next = 0x",
            // The call has lost it.
            "<optimized out>",
            "exited normally",
        ],
    );
}

#[test]
fn gdb_says_that_variables_of_optimised_code_are_optimised_out() {
    let commands = ["break bpf:bill", "run", "echo stopped here\\n", "print len", "print kept", "delete", "continue"];
    let Some(text) = gdb("speed", &commands) else { return };
    has(&text, &["stopped here", "$1 = <optimized out>", "$2 = <optimized out>", "exited normally"]);
}

#[test]
fn lldb_steps_by_lines_and_prints_variables_and_registers() {
    let commands = [
        "settings set plugin.jit-loader.gdb.enable on",
        "breakpoint set --name bpf:bill/total",
        "run",
        "script print('stopped here')",
        "frame variable discount order->price r2",
        "next",
        "frame variable order->count",
        "breakpoint delete --force",
        "continue",
    ];
    let commands: Vec<String> = commands.iter().flat_map(|c| ["-o".into(), (*c).into()]).collect();
    let Some(text) = session("none", &["lldb-19", "-b"], &commands, "--") else { return };
    has(
        &text,
        &[
            "`bpf:bill/total",
            "discount = 2",
            "order->price = 7",
            "r2 = 2",
            &format!("variables.c:{}", line("sum")),
            "order->count = 6",
            "exited with status = 0",
        ],
    );
}

/// Bytes of an object that are not what its compiler wrote, among them its DWARF's: the object is loaded or refused,
/// and a debugger is told something.
#[test]
fn mutated_dwarf_does_no_harm() {
    if Arch::HOST.is_none() {
        skipped("mutated DWARF", &"no JIT on this host");
        return;
    }
    let engine = engine(OptLevel::None);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap() % below
    };
    let mut loaded = 0;
    let rounds = if emulated() { 400 } else { 4000 };
    for _ in 0..rounds {
        let mut bytes = OBJECT.to_vec();
        for _ in 0..=next(4) {
            let (at, value) = (next(bytes.len()), next(256));
            bytes[at] = u8::try_from(value).unwrap();
        }
        let Ok(object) = Object::parse(&bytes) else { continue };
        let mut linker = Linker::<()>::new(&engine);
        linker.func(1001, "probe", |_: &mut Caller<'_, ()>, value: u64| value + 1).unwrap();
        let Ok(maps) = MapSet::for_object(&engine, &object) else { continue };
        // SAFETY: nothing runs.
        let loader = unsafe { linker.loader::<Raw>().unverified(true) };
        loaded += usize::from(loader.object(&object, maps).is_ok());
    }
    assert!(loaded > rounds / 4, "{loaded} of {rounds}");
}
