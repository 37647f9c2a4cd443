//! Compares our arm64 code with that of the kernel's arm64 JIT: numbers of instructions, and results.
//!
//! `cargo xtask kernel-arm64` boots an arm64 kernel under qemu-system with this program as its init; on an arm64
//! machine it can also be run as root. It loads the speed programs, the cases of our own suite and, where they are
//! available, the external cases into the kernel and into our engine, runs both on the same memory, and compares both
//! with the expected result.
//!
//! A comparison of sizes is fair only where both compile the same instructions, but the kernel's verifier removes
//! unreachable code and adds checks of divisors before its JIT sees the program. The table therefore has the
//! program's length before and after the verifier. Programs whose length changed are summed apart, and only the
//! others fail the comparison if our code is larger. Programs that the kernel's verifier refuses are counted. Kernels
//! are commonly built with branch-target identification and pointer authentication: a column has the length of our
//! code with both.
//!
//! The last line of the output is a verdict that `cargo xtask kernel-arm64` waits for, because an emulated machine
//! has no exit status.

use bpf_benches::{
    measure,
    programs::{ALL, MEMORY},
    table::Table,
};
use bpf_runtime::{
    Config, Engine, Linker, Raw,
    code::{Arch, Hardening, ListingOptions, compile_listing},
    isa::{Callee, Insn, decode},
};
use bpf_testkit::{
    cases::{self, Case, Expected},
    kernel::{self, RawProgram, prologue_bytes},
};
use std::fmt;

/// The prefix of the last line; `cargo xtask kernel-arm64` searches for it.
const VERDICT: &str = "verdict:";

fn main() {
    let result = run();
    match &result {
        Ok(()) => println!("{VERDICT} passed"),
        Err(why) => println!("{VERDICT} {why}"),
    }
    if std::process::id() == 1 {
        // SAFETY: no pointer is passed. Waits until the console has sent everything.
        unsafe { libc::tcdrain(libc::STDOUT_FILENO) };
        // SAFETY: no pointer is passed; nothing else runs on this machine.
        unsafe { libc::reboot(libc::RB_POWER_OFF) };
    }
    std::process::exit(i32::from(result.is_err()));
}

/// A program, the memory of its run, and the expected result.
struct Item {
    name: String,
    code: Vec<u8>,
    memory: Vec<u8>,
    /// The low half of r0, which is all that the kernel reports.
    result: u32,
    /// The memory after the run, where it is known.
    memory_after: Option<Vec<u8>>,
}

/// Lengths of a program that both have compiled, in instructions.
struct Row {
    name: String,
    bpf: usize,
    /// Length after the kernel's verifier.
    rewritten: usize,
    kernel: usize,
    ours: usize,
    save_all: usize,
    hardened: usize,
    agree: bool,
}

impl Row {
    /// Says whether both have compiled the same instructions.
    fn comparable(&self) -> bool {
        self.bpf == self.rewritten
    }

    fn ratio(&self) -> f64 {
        self.ours as f64 / self.kernel as f64
    }
}

fn run() -> Result<(), String> {
    if Arch::HOST != Some(Arch::Arm64) {
        return Err("this compares arm64 JITs: `cargo xtask kernel-arm64` runs it on another machine".into());
    }
    kernel::available().map_err(|e| e.to_string())?;
    let mut groups = vec![
        ("speed programs", speed_programs()),
        ("our cases", self_contained(cases::suite().map_err(|e| e.to_string())?)),
    ];
    for file in ["conformance", "alu_and_memory"] {
        match cases::shared(&format!("cases/{file}.jsonl")) {
            Ok(path) => {
                groups.push((file, self_contained(cases::read(&path).map_err(|e| e.to_string())?)));
            }
            // The note goes to the standard output, as the tables do.
            Err(why) => println!("SKIPPED {file}: {why}\n"),
        }
    }
    let (mut all, mut failures) = (Vec::new(), Vec::new());
    for (group, items) in groups {
        let rows = compare(group, items)?;
        failures.extend(failures_of(group, &rows));
        all.extend(rows);
    }
    summarise("all", &all);
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

fn speed_programs() -> Vec<Item> {
    let items = ALL.iter().map(|program| {
        let (before, mut after) = (program.memory().bytes().to_vec(), program.memory());
        let result = program.run_native(after.bytes());
        let memory_after = Some(after.bytes().to_vec());
        Item { name: program.name.to_owned(), code: program.code(), memory: before, result, memory_after }
    });
    items.collect()
}

/// Returns the cases that have the same meaning in a kernel: they run, and call nothing outside of the program.
fn self_contained(cases: Vec<Case>) -> Vec<Item> {
    let calls_outside = |insn: &Insn| matches!(insn, Insn::Call(Callee::Helper(_)));
    let keep = |case: Case| {
        let result = match case.expected {
            Expected::R0(r0) => r0 as u32,
            Expected::Low32(low) => low,
            Expected::Reject => return None,
        };
        let insns = decode(&case.program).ok()?;
        let alike = kernel::self_contained(&insns) && !insns.iter().any(calls_outside);
        alike.then(|| Item {
            // A name must be one word, as a column of the table.
            name: case.name.replace(char::is_whitespace, "_"),
            code: case.program,
            memory: case.memory.unwrap_or_default(),
            result,
            memory_after: None,
        })
    };
    cases.into_iter().filter_map(keep).collect()
}

/// Compiles and runs the programs of a group, and prints its table.
fn compare(group: &str, items: Vec<Item>) -> Result<Vec<Row>, String> {
    // The kernel's prologue is not the program's: four instructions load an address, at most one the length.
    let prologue = prologue_bytes(MEMORY as u32).map_err(|e| e.to_string())?;
    let linker = Linker::<()>::new(&Engine::new(Config::new()).map_err(|e| e.to_string())?);
    let mut table =
        Table::new([group, "BPF", "in kernel", "kernel", "ours", "ratio", "save all", "PAC+BTI", "results"]);
    let (mut rows, mut refused) = (Vec::new(), 0);
    for item in items {
        let Some(row) = compile_and_run(&item, prologue, &linker)? else {
            refused += 1;
            continue;
        };
        let [bpf, rewritten, kernel, ours] = [row.bpf, row.rewritten, row.kernel, row.ours].map(|n| n.to_string());
        let agree = if row.agree { "agree" } else { "DIFFER" }.to_owned();
        let [save_all, hardened] = [row.save_all, row.hardened].map(|n| n.to_string());
        let ratio = format!("{:.2}", row.ratio());
        table.row([row.name.clone(), bpf, rewritten, kernel, ours, ratio, save_all, hardened, agree]);
        rows.push(row);
    }
    println!("{table}");
    println!("{group}: {refused} refused by the kernel's verifier");
    summarise(group, &rows);
    println!();
    Ok(rows)
}

fn summarise(group: &str, rows: &[Row]) {
    let (same, changed): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.comparable());
    println!("{group}: {} of the same length in the kernel: {}", same.len(), Total(&same));
    println!("{group}: {} changed by the kernel's verifier: {}", changed.len(), Total(&changed));
}

/// Returns a line for each way in which the group fails the comparison: our code is larger, or results differ.
fn failures_of(group: &str, rows: &[Row]) -> Vec<String> {
    let larger = rows.iter().filter(|row| row.comparable() && row.ours > row.kernel);
    let mut failures: Vec<String> =
        larger.map(|row| format!("{group}: {} is larger than the kernel's", row.name)).collect();
    let differing = rows.iter().filter(|row| !row.agree);
    failures.extend(differing.map(|row| format!("{group}: {}: results differ", row.name)));
    if !rows.iter().any(Row::comparable) {
        failures.push(format!("{group}: nothing compared"));
    }
    failures
}

/// Compiles and runs a program on both; `None` if the kernel refuses it.
fn compile_and_run(item: &Item, prologue: usize, linker: &Linker<()>) -> Result<Option<Row>, String> {
    let fail = |error: &dyn fmt::Display| format!("{}: {error}", item.name);
    let Ok(peer) = RawProgram::load(&item.code, item.memory.len() as u32) else { return Ok(None) };
    let mut in_kernel = item.memory.clone();
    let peer_result = peer.run(&mut in_kernel, 1).map_err(|e| fail(&e))?.result;
    let peer_code = peer.machine_code().map_err(|e| fail(&e))?;
    let peer_bytes: usize = peer_code.iter().map(Vec::len).sum();

    let insns = decode(&item.code).map_err(|e| fail(&e))?;
    // SAFETY: the kernel's verifier has accepted the program with memory of this length.
    let loader = unsafe { linker.loader::<Raw>().unverified(true) };
    let program = loader.insns(&item.name, insns.clone()).map_err(|e| fail(&e))?;
    let mut in_ours = item.memory.clone();
    let result = program.run(&mut (), in_ours.as_mut_slice()).map_err(|e| fail(&e))?;

    let count = |set: fn(&mut ListingOptions)| {
        let mut options = ListingOptions::default();
        set(&mut options);
        let (_, code) =
            compile_listing(Arch::Arm64, &item.name, insns.clone(), Vec::new(), &options).map_err(|e| fail(&e))?;
        Ok::<_, String>(code.bytes.len() / 4)
    };
    let results = peer_result == item.result && result as u32 == item.result;
    let memories = in_kernel == in_ours && item.memory_after.as_ref().is_none_or(|after| *after == in_ours);
    Ok(Some(Row {
        name: item.name.clone(),
        bpf: item.code.len() / 8,
        rewritten: peer.rewritten_len().map_err(|e| fail(&e))?,
        kernel: (peer_bytes - prologue) / 4,
        ours: count(|_| {})?,
        save_all: count(|options| options.compile.emit.save_all = true)?,
        hardened: count(|options| {
            options.compile.emit.hardening = Hardening::new().landing_pads(true).return_signing(true);
        })?,
        agree: results && memories,
    }))
}

/// The sums over these programs.
struct Total<'a>(&'a [&'a Row]);

impl fmt::Display for Total<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&Row) -> usize| self.0.iter().map(|row| of(row)).sum::<usize>();
        let (kernel, ours) = (sum(|row| row.kernel), sum(|row| row.ours));
        if kernel == 0 {
            return f.write_str("-");
        }
        write!(
            f,
            "kernel {kernel}, ours {ours} ({:.3}; geometric mean of the ratios {:.3}), save all {}, PAC+BTI {}; {} larger, \
             {} differ",
            ours as f64 / kernel as f64,
            measure::geometric_mean(self.0.iter().map(|row| row.ratio())),
            sum(|row| row.save_all),
            sum(|row| row.hardened),
            self.0.iter().filter(|row| row.ours > row.kernel).count(),
            self.0.iter().filter(|row| !row.agree).count(),
        )
    }
}
