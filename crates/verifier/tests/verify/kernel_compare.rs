//! One program before two verifiers: ours and the kernel's.
//!
//! The programs of `border` run on a map value of known length, since both verifiers support map values.
#![allow(dead_code, reason = "the test and the example use different parts")]

use std::collections::BTreeMap;

use bpf_isa::{Imm64, Insn, Program, Reg, Src, Width};
use bpf_testkit::generate::Choices;
use bpf_testkit::kernel::{Map, MapType, Program as KernelProgram, ProgramType};
use bpf_verifier::{ContextLayout, Env, Helpers, KnownMap, Verifier};

use crate::border::{MIN_LEN, generate_with};

/// Counts of both verdicts.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) both_accept: u32,
    pub(crate) both_refuse: u32,
    /// We accept, the kernel refuses: by the kernel's reason, with a seed.
    pub(crate) only_ours: BTreeMap<String, (u32, u64)>,
    /// The kernel accepts, we refuse: by our reason, with a seed.
    pub(crate) only_kernel: BTreeMap<String, (u32, u64)>,
    /// Instructions walked by ours, and by the kernel's, for programs both accept.
    pub(crate) steps: (u64, u64),
    /// Nanoseconds in ours, and in the kernel's load, for programs both accept.
    pub(crate) nanoseconds: (u128, u128),
}

/// The program with `r1 = buffer; r2 = length` in front.
fn stream(program: &Program, map: i32) -> Vec<Insn> {
    let mut insns = vec![
        Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::MapValue { map, off: 0 } },
        Insn::SecondSlot,
        Insn::Mov { width: Width::W32, dst: Reg::R2, src: Src::Imm(MIN_LEN as i32) },
    ];
    insns.extend(program.insns());
    insns
}

/// The sentence of the kernel's log that says why, numbers and registers removed.
fn kernel_reason(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let said = lines.iter().rev().find(|l| {
        !l.starts_with("processed")
            && !l.starts_with("verification time")
            && !l.starts_with("stack depth")
            && !l.is_empty()
    });
    let said = said.copied().unwrap_or("no log");
    // "misaligned stack access off 0+-13+0 size 8": the offset makes no difference.
    let said = said.split(" off").next().unwrap_or(said);
    let mut out = String::new();
    let mut number = false;
    for c in said.chars() {
        number = c.is_ascii_digit() || (number && (c == 'x' || c.is_ascii_hexdigit()));
        if !number {
            out.push(c);
        } else if !out.ends_with('N') {
            out.push('N');
        }
    }
    out
}

/// Lets both judge the programs of these seeds.
pub(crate) fn compare(seeds: std::ops::Range<u64>) -> std::io::Result<Tally> {
    let kernel_map = Map::create(MapType::Array, 4, MIN_LEN, 1)?;
    let maps = [KnownMap::new("buffer", MapType::Array, 4, MIN_LEN, 1)];
    let context = ContextLayout { returns: None, ..ContextLayout::raw(true) };
    let helpers = Helpers::none();
    let mut env = Env::new(&context, &helpers);
    env.maps = &maps;
    let mut verifier = Verifier::new();
    let mut tally = Tally::default();
    for seed in seeds {
        let program = generate_with(&mut Choices::from_seed(seed), false);
        let ours = Program::new(stream(&program, 0)).expect("two more instructions change nothing");
        let bytes = bpf_isa::encode(&stream(&program, kernel_map.fd())).expect("they encode");
        let start = std::time::Instant::now();
        let our_verdict = verifier.verify(ours, &env);
        let our_time = start.elapsed();
        let start = std::time::Instant::now();
        let kernel_verdict = KernelProgram::load(ProgramType::Xdp, &bytes);
        let kernel_time = start.elapsed();
        match (our_verdict, kernel_verdict) {
            (Ok(ours), Ok(kernel)) => {
                tally.both_accept += 1;
                tally.steps.0 += ours.stats().steps;
                tally.steps.1 += u64::from(kernel.verified_insns()?);
                tally.nanoseconds.0 += our_time.as_nanos();
                tally.nanoseconds.1 += kernel_time.as_nanos();
            }
            (Err(_), Err(_)) => tally.both_refuse += 1,
            (Ok(_), Err(e)) => tally.only_ours.entry(kernel_reason(&e.log)).or_insert((0, seed)).0 += 1,
            (Err(e), Ok(_)) => {
                let kind = format!("{:?}", e.reason);
                let kind = kind.split(['(', '{', ' ']).next().unwrap_or_default().to_owned();
                tally.only_kernel.entry(kind).or_insert((0, seed)).0 += 1;
            }
        }
    }
    Ok(tally)
}
