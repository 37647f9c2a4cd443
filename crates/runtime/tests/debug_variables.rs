//! Variables and BPF registers as debuggers show them: sessions of GDB and LLDB on a child process (this test binary
//! again), which steps through a program by source lines.

use bpf_runtime::{
    Caller, Config, Engine, Instance, Linker, MapSet, Object, Raw,
    code::{Arch, OptLevel},
};
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

/// What [`bill`] returns: 6 pieces at 7 less 2, plus that and 1, plus 7; doubled, and the rest.
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
        "info locals",
        "print discount",
        "print *order",
        "print order->next->colour",
        "print r2",
        "next",
        "info args",
        "next",
        "print sum",
        "next",
        "print sum",
        "up",
        "print kept",
        "print order",
        "print r1",
        "info symbol $pc",
        "delete",
        "continue",
    ];
    let Some(text) = gdb("none", &commands) else { return };
    println!("{text}");
}
