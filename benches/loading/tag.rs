//! The loads of the kernel's self-test `test_tag`: programs of constants of every length from 2 to 4096 instructions,
//! and programs of map loads of every length from 3 to 4096, five rounds of both: 40,945 loads.
//!
//! With this test the developers of the arm64 kernel noticed that maintaining the instruction cache once an
//! instruction, instead of once a program, costs minutes. The kernel's row is one of the five rounds in the kernel of
//! this machine, including its verifier and a system call for each load.

use bpf_benches::measure::thread_time;
use bpf_benches::table::{Table, figure};
use bpf_isa::{Imm64, Insn, Reg, Src, Width};
use bpf_runtime::{Config, Engine, Linker, OptLevel, ProgArray, Raw};
use bpf_testkit::generate::Choices;
use bpf_testkit::kernel::{self, Map, MapType, Program, ProgramType};
use std::time::Duration;

const LONGEST: usize = 4096;
const ROUNDS: usize = 5;

/// Returns a program of `length` instructions: constants into r0 to r9 in turn, and an exit.
fn immediates(length: usize, choices: &mut Choices<'_>) -> Vec<Insn> {
    let mut insns: Vec<_> = (0..length - 1).map(|i| constant(i, choices.imm())).collect();
    insns.push(Insn::Exit);
    insns
}

/// Returns a program of `length` slots: loads of the map's address into r0 to r9 in turn, a constant where one slot
/// is left over, and an exit.
fn map_loads(length: usize, map: i32) -> Vec<Insn> {
    let mut insns = Vec::with_capacity(length);
    for i in 0..(length - 1) / 2 {
        insns.extend([Insn::LoadImm64 { dst: Reg::ALL[i % 10], imm: Imm64::Map(map) }, Insn::SecondSlot]);
    }
    if insns.len() < length - 1 {
        insns.push(constant(insns.len() / 2, 42));
    }
    insns.push(Insn::Exit);
    insns
}

fn constant(i: usize, value: i32) -> Insn {
    Insn::Mov { width: Width::W64, dst: Reg::ALL[i % 10], src: Src::Imm(value) }
}

/// Loads and unloads every program of `rounds` rounds; returns the number of loads and their time, without the time
/// of generating the programs.
fn run(
    rounds: usize,
    map: i32,
    mut load_and_unload: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<(usize, Duration), String> {
    let (mut loads, mut time, mut choices) = (0, Duration::ZERO, Choices::from_seed(1));
    for _ in 0..rounds {
        let immediates = (2..=LONGEST).map(|length| immediates(length, &mut choices));
        for insns in immediates.chain((3..=LONGEST).map(|length| map_loads(length, map))) {
            let bytes = bpf_isa::encode(&insns).expect("valid instructions");
            let start = thread_time();
            load_and_unload(&bytes)?;
            time += thread_time() - start;
            loads += 1;
        }
    }
    Ok((loads, time))
}

/// Returns the table.
pub(crate) fn table() -> Table {
    let mut table = Table::new(["test_tag", "loads", "s", "µs a load"]);
    let mut row = |name: &str, result: Result<(usize, Duration), String>| {
        let (loads, time) = match result {
            Ok(result) => result,
            Err(why) => return println!("{name}: {why}"),
        };
        let seconds = time.as_secs_f64();
        table.row([name.to_owned(), loads.to_string(), figure(seconds), figure(seconds * 1e6 / loads as f64)]);
    };
    let engine = Engine::new(Config::new()).expect("a backend");
    let linker = Linker::<()>::new(&engine);
    let array = ProgArray::<Raw, ()>::create(&engine, "array", 1).expect("memory");
    let (linker, array) = (&linker, &array);
    let ours = |level| {
        move |bytes: &[u8]| {
            // SAFETY: it is never run.
            let loader = unsafe { linker.loader::<Raw>().opt_level(level).unverified(true) };
            loader.prog_arrays(&[array]).bytes("tag", bytes).map(drop).map_err(|e| e.to_string())
        }
    };
    row("ours, unverified", run(ROUNDS, 0, ours(OptLevel::Speed)));
    row("ours, unverified, no opt", run(ROUNDS, 0, ours(OptLevel::None)));
    match kernel::available() {
        Ok(()) => {
            let map = Map::create(MapType::Hash, 4, 4, 1).expect("a map");
            let load = |bytes: &[u8]| match Program::load(ProgramType::SocketFilter, bytes) {
                Ok(_loaded) => Ok(()),
                Err(why) => Err(why.to_string()),
            };
            row("kernel, one round", run(1, map.fd(), load));
        }
        Err(why) => bpf_testkit::skipped("the kernel as a peer", &why),
    }
    table
}
