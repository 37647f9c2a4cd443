//! Runs what the verifier accepts, and finds where it is not as promised.
//!
//! A program is loaded three times: for the interpreter, and as machine code at both levels of optimisation. Each run
//! on the interpreter is watched: before each instruction the registers must lie in an abstract state recorded for it,
//! each access must be to memory that the run was given, and nothing may end the run but its exit. Then the same on the
//! others, from the same maps and packet at other addresses: result, packet, context and maps must be equal. A machine
//! stack full of [`POISON`] beneath the run, and different bytes around the packet on each engine, reveal reads of
//! memory that was never written; different addresses reveal an address that gets out.
//!
//! Only programs that the interpreter has found harmless run as machine code.
//!
//! A program that ends may still take long: a may_goto allows 8 million rounds, and a loop that is proven from a guess
//! costs the verifier nothing for running 2^31 rounds. A run that spends the interpreter's budget is therefore neither
//! right nor wrong yet: it goes on as machine code that counts, and never ends only if it spends [`PATIENCE`] too. The
//! interpreter's observations before that point are judged as for every run.

use super::world::World;
use super::{Arg, Context, Generated};
use crate::generate::Choices;
use bpf_runtime::oracle;
use bpf_runtime::{
    LoadError, Mode, OptLevel, Program, Raw, RunError,
    maps::MapError,
    net::{SkBuff, SkFields, Skb, Xdp, XdpBuff},
};
use bpf_verifier::{Escape, GlobalArg, GlobalFunc, Reason};
use std::collections::BTreeMap;

/// Contents of the machine stack before a run.
const POISON: u64 = 0xa5a5_5a5a_dead_c0de;
/// Bytes around the packet's buffer that no run may touch.
const MARGIN: usize = 64;
/// Branches back and calls that the interpreter takes: programs are made to take a tenth of it, and some take longer by
/// accident.
const BUDGET: u64 = 100_000;
/// Branches back and calls of machine code after which a run is taken to be endless: eight loops of 2^31 rounds, one
/// after the other, or two thousand may_goto loops. Half a minute.
const PATIENCE: u64 = 1 << 34;
/// Beginning of the message for a run that does not end.
pub const ENDLESS: &str = "it does not end";

/// Steps that programs may take to verify: 95 of 100 take less than the first, and together a third of the time that
/// all take. One of [`LONG_ONE_IN`] may take the second.
const SHORT: u64 = 3_000;
const LONG: u64 = 30_000;
const LONG_ONE_IN: u32 = 16;
/// Every so many accepted programs, each engine verifies for itself.
const VERIFIED_AGAIN: u64 = 16;

/// The kind of code that is made of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Code {
    /// Code of this optimisation level.
    Plain(OptLevel),
    /// Code in which each access is confined.
    Contained,
}

/// How an engine comes to the verifier's facts.
#[derive(Clone, Copy)]
pub(super) enum Verified {
    /// The engine verifies, and records each step.
    Watched,
    /// The engine takes the facts of the last watched verification.
    Before,
    /// The engine verifies again.
    Again,
}

/// Result of the oracle for one program.
#[derive(Debug)]
pub enum Outcome {
    /// Refused; the kind of reason.
    Refused(String),
    /// Accepted, and run as promised.
    Ran {
        /// Instructions that were watched.
        watched: u64,
        /// Runs of which only the beginning was.
        long: u64,
    },
    /// Accepted, but wrong.
    Violation(String),
}

/// The outcomes of many programs.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    /// Programs made.
    pub programs: u64,
    /// Accepted and run.
    pub accepted: u64,
    /// Instructions watched on the interpreter.
    pub steps: u64,
    /// Runs that ended on machine code only, beyond what the interpreter takes.
    pub long: u64,
    /// Refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Refused though nothing in them was made wrong.
    pub refused_without_lure: u64,
}

impl Tally {
    /// Counts an outcome. `Err` for a violation.
    ///
    /// # Errors
    /// Description of the violation.
    pub fn count(&mut self, generated: &Generated, outcome: Outcome) -> Result<(), String> {
        self.programs += 1;
        match outcome {
            Outcome::Refused(reason) => {
                *self.refused.entry(reason).or_default() += 1;
                self.refused_without_lure += u64::from(!generated.lured);
            }
            Outcome::Ran { watched, long } => {
                (self.accepted, self.steps, self.long) = (self.accepted + 1, self.steps + watched, self.long + long);
            }
            Outcome::Violation(what) => return Err(what),
        }
        Ok(())
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tally { programs, accepted, steps, long, refused, refused_without_lure } = self;
        write!(
            f,
            "{programs} programs: {accepted} accepted and run, {steps} instructions watched, {long} long runs; "
        )?;
        write!(f, "refused {} ({refused_without_lure} without a lure): {refused:?}", refused.values().sum::<u64>())
    }
}

/// A program as one engine has it.
pub(super) enum Loaded {
    Raw(Program<Raw, ()>),
    Xdp(Program<Xdp, ()>),
    Skb(Program<Skb, ()>),
}

/// Inputs of a run.
pub(super) struct Input {
    packet: Vec<u8>,
    headroom: usize,
    tailroom: usize,
    fields: SkFields,
    maps_seed: u64,
}

/// Outputs of a run.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Output {
    r0: u64,
    packet: Vec<u8>,
    fields: SkFields,
    maps: Vec<u8>,
}

/// Checks programs, one after the other.
#[derive(Debug)]
pub struct Oracle {
    /// Interpreters for most programs, and for programs that may take longer to verify.
    interpreters: [World; 2],
    machine: Option<World>,
    /// Machine code that counts, for runs that take long.
    patient: Option<World>,
    accepted: u64,
    /// Whether each engine verifies each program, and all may take long.
    pub thorough: bool,
    /// The strategy of the verifier's portfolio that decides alone, if one does. With `certified`, the trusted core
    /// decides.
    pub way: Option<&'static str>,
    /// Number of programs that ran contained as well, and of programs that cannot, by reason.
    pub contained: (u64, BTreeMap<String, u64>),
}

impl Default for Oracle {
    fn default() -> Oracle {
        Oracle::new()
    }
}

impl Oracle {
    /// An oracle with the interpreter and, where the host has one, the JIT.
    pub fn new() -> Oracle {
        Oracle::patient(PATIENCE)
    }

    /// Makes an oracle for which a run is endless after `patience` branches back and calls of machine code.
    pub fn patient(patience: u64) -> Oracle {
        let jit = |budget| bpf_runtime::code::Arch::HOST.map(|_| World::new(Mode::Jit, budget, LONG));
        Oracle { machine: jit(None), patient: jit(Some(patience)), ..Oracle::interpreter_only() }
    }

    /// An oracle with the interpreter only, for verifiers that are wrong on purpose. A run beyond its budget is a
    /// violation, so a finding must be compared with a check without the fault.
    pub fn interpreter_only() -> Oracle {
        let interpreters = [SHORT, LONG].map(|steps| World::new(Mode::Interpreter, Some(BUDGET), steps));
        Oracle {
            interpreters,
            machine: None,
            patient: None,
            accepted: 0,
            thorough: false,
            way: None,
            contained: Default::default(),
        }
    }

    /// Verifies the program and, if it is accepted, runs it on so many inputs.
    pub fn check(&mut self, generated: &Generated, runs: u32, c: &mut Choices<'_>) -> Outcome {
        oracle::way(self.way);
        let outcome = self.try_check(generated, runs, c);
        oracle::way(None);
        match outcome {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Violation(format!("the maps: {error}")),
        }
    }

    fn try_check(&mut self, generated: &Generated, runs: u32, c: &mut Choices<'_>) -> Result<Outcome, MapError> {
        let violation =
            |what: String| Ok(Outcome::Violation(format!("{what}\n{:?}\n{}", generated.context, generated.program)));
        let long = c.one_in(LONG_ONE_IN) || self.thorough;
        let interpreter = &mut self.interpreters[usize::from(long)];
        let reference = match load(interpreter, generated, Code::Plain(OptLevel::None), Verified::Watched) {
            Ok(program) => program,
            Err(LoadError::Verifier { source, .. }) => {
                let reason = format!("{:?}", source.reason);
                if reason.starts_with("Internal") || reason.starts_with("Environment") {
                    return violation(source.to_string());
                }
                let kind = reason.split(['(', '{', ' ']).next().unwrap_or_default().to_owned();
                return Ok(Outcome::Refused(kind));
            }
            Err(error) => return violation(format!("it does not load: {error}")),
        };
        let mut compiled = Vec::new();
        self.accepted += 1;
        let again = self.accepted.is_multiple_of(VERIFIED_AGAIN) || self.thorough;
        let verified = if again { Verified::Again } else { Verified::Before };
        if let Some(world) = &self.machine {
            for code in [Code::Plain(OptLevel::Speed), Code::Plain(OptLevel::None), Code::Contained] {
                let loaded = match load(world, generated, code, verified) {
                    // With other limits it may be walked in another way, which may take longer.
                    Err(error) if is_limit(&error) => load(world, generated, code, Verified::Before),
                    loaded => loaded,
                };
                match loaded {
                    Ok(program) => {
                        self.contained.0 += u64::from(code == Code::Contained);
                        compiled.push((code, program));
                    }
                    Err(LoadError::Uncontained { source, .. }) => {
                        let why = match &source.why {
                            Escape::Argument { name, arg } => format!("{name} argument {arg}"),
                            why => format!("{why:?}"),
                        };
                        *self.contained.1.entry(why).or_default() += 1;
                    }
                    Err(error) => return violation(format!("{code:?} does not load: {error}")),
                }
            }
        }
        let (mut total, mut long_runs) = (0, 0);
        for _ in 0..runs {
            let input = Input::choose(generated, c);
            oracle::fill_stacks(0);
            let expected = run(interpreter, &reference, generated, &input, 0x11)?;
            let (steps, outside) = oracle::observed();
            total += steps;
            if let Some(outside) = outside {
                return violation(format!("at {}: {}: {:x?}", outside.at, outside.what, outside.regs));
            }
            let expected = match expected {
                Ok(Ok(output)) => output,
                Ok(Err(error)) => {
                    if let (RunError::Budget { .. }, Some(world)) = (&error, &mut self.patient) {
                        long_runs += 1;
                        match run_long(world, generated, &input)? {
                            None => continue,
                            Some(what) => return violation(what),
                        }
                    }
                    return violation(format!("the interpreter stops: {error}"));
                }
                Err(what) => return violation(what),
            };
            if self.machine.is_none() {
                // There is no second engine: the interpreter runs again, with other bytes in unwritten memory.
                oracle::fill_stacks(POISON as u8);
                let again = run(interpreter, &reference, generated, &input, 0x72)?;
                let differs = || !matches!(&again, Ok(Ok(output)) if *output == expected);
                if oracle::observed().1.is_some() || (generated.ordered && differs()) {
                    return violation(format!("the interpreter differs: {again:x?}\ninstead of {expected:x?}"));
                }
            }
            for (i, (code, program)) in compiled.iter().enumerate() {
                let Some(world) = &mut self.machine else { continue };
                match run(world, program, generated, &input, 0x77 + i as u8)? {
                    Ok(Ok(output)) if output == expected || !generated.ordered => {}
                    Ok(Ok(output)) => {
                        return violation(format!("{code:?} differs: {output:x?}\ninstead of {expected:x?}"));
                    }
                    Ok(Err(error)) => return violation(format!("{code:?} stops: {error}")),
                    Err(what) => return violation(format!("{code:?}: {what}")),
                }
            }
        }
        Ok(Outcome::Ran { watched: total, long: long_runs })
    }
}

impl Input {
    pub(super) fn choose(generated: &Generated, c: &mut Choices<'_>) -> Input {
        let len = match c.below(4) {
            0 | 1 if !generated.lens.is_empty() => (c.pick(&generated.lens) + c.below(3)).saturating_sub(1),
            // The least length that the helpers which move a packet leave of it, and a little more.
            0 => 14 + c.below(24),
            1 => c.below(6),
            2 => c.below(32),
            _ => c.below(100),
        };
        let packet = (0..len).map(|_| if c.one_in(3) { c.byte() } else { c.byte() & 31 }).collect();
        let (headroom, tailroom) = if c.one_in(2) { (0, 0) } else { (c.below(20) as usize, c.below(24) as usize) };
        let mut fields = SkFields::default();
        (fields.mark, fields.priority, fields.hash) = (c.value() as u32, c.below(40), c.value() as u32);
        fields.cb = std::array::from_fn(|_| c.below(70));
        Input { packet, headroom, tailroom, fields, maps_seed: c.value() }
    }
}

/// Whether a limit of the verifier was reached, which says nothing of the program.
fn is_limit(error: &LoadError) -> bool {
    let LoadError::Verifier { source, .. } = error else { return false };
    matches!(source.reason, Reason::Steps(_) | Reason::Fuel(_) | Reason::States(_) | Reason::Memory(_))
}

pub(super) fn load(world: &World, generated: &Generated, code: Code, verified: Verified) -> Result<Loaded, LoadError> {
    let signature = |args: &Vec<Arg>| {
        let arg = |arg: &Arg| match *arg {
            Arg::Mem(bytes) => GlobalArg::Mem(bytes),
            Arg::Number => GlobalArg::Scalar,
            Arg::Context => GlobalArg::Ctx,
        };
        GlobalFunc { name: "global".into(), args: args.iter().map(arg).collect() }
    };
    oracle::declare_types(super::world::types());
    oracle::declare(generated.globals.iter().map(|args| args.as_ref().map(signature)).collect());
    match verified {
        Verified::Watched => oracle::record(),
        // SAFETY: `World::new` makes all linkers alike, and the types are declared above. The loads below differ from
        // the recorded one in the optimiser's level and in containment, of which the verifier's result is independent.
        Verified::Before => unsafe { oracle::reuse(true) },
        Verified::Again => {}
    }
    let maps: Vec<_> = world.maps.iter().collect();
    let insns = generated.program.insns().to_vec();
    fn with<C: bpf_runtime::Context>(
        loader: bpf_runtime::Loader<'_, C, ()>,
        code: Code,
    ) -> bpf_runtime::Loader<'_, C, ()> {
        match code {
            Code::Plain(level) => loader.opt_level(level),
            Code::Contained => loader.contained(true),
        }
    }
    let loaded = match generated.context {
        Context::Raw => with(world.linker.loader().maps(&maps), code).insns("generated", insns).map(Loaded::Raw),
        Context::Xdp => with(world.linker.loader().maps(&maps), code).insns("generated", insns).map(Loaded::Xdp),
        Context::Skb => with(world.linker.loader().maps(&maps), code).insns("generated", insns).map(Loaded::Skb),
    };
    if let Verified::Before = verified {
        // SAFETY: verifies again.
        unsafe { oracle::reuse(false) };
    }
    loaded
}

/// Fills the machine stack beneath the caller, differently for each `fill`.
#[inline(never)]
fn poison_stack(fill: u8) {
    let mut words = [POISON ^ u64::from(fill); 1024];
    std::hint::black_box(&mut words);
}

/// Runs a program beyond the interpreter's budget, at both levels as machine code that counts. Returns the violation.
fn run_long(world: &mut World, generated: &Generated, input: &Input) -> Result<Option<String>, MapError> {
    let mut outputs = Vec::new();
    for (level, fill) in [(OptLevel::Speed, 0x77), (OptLevel::None, 0x78)] {
        let program = match load(world, generated, Code::Plain(level), Verified::Before) {
            Ok(program) => program,
            Err(error) => return Ok(Some(format!("{level:?}, counting, does not load: {error}"))),
        };
        match run(world, &program, generated, input, fill)? {
            Ok(Ok(output)) => outputs.push(output),
            Ok(Err(RunError::Budget { .. })) => {
                return Ok(Some(format!("{ENDLESS}: {level:?} takes more branches back and calls than it may")));
            }
            Ok(Err(error)) => return Ok(Some(format!("{level:?}, counting, stops: {error}"))),
            Err(what) => return Ok(Some(format!("{level:?}, counting: {what}"))),
        }
    }
    let differ = generated.ordered && outputs[0] != outputs[1];
    Ok(differ.then(|| format!("a long run differs: {:x?}\ninstead of {:x?}", outputs[0], outputs[1])))
}

/// One run. `Err`: something around the packet was written.
pub(super) fn run(
    world: &mut World,
    program: &Loaded,
    generated: &Generated,
    input: &Input,
    fill: u8,
) -> Result<Result<Result<Output, RunError>, String>, MapError> {
    world.reset(generated.maps, &mut Choices::from_seed(input.maps_seed))?;
    // The bytes that XDP programs may grow into are equal for all engines; bytes that no run may touch are not.
    let room = if matches!(program, Loaded::Xdp(_)) { (input.headroom, input.tailroom) } else { (0, 0) };
    let from = MARGIN + usize::from(fill & 7);
    let len = room.0 + input.packet.len() + room.1;
    let mut memory = std::mem::take(&mut world.memory);
    memory.clear();
    memory.resize(from + len + MARGIN, fill);
    memory[from..from + len].fill(0x33);
    memory[from + room.0..][..input.packet.len()].copy_from_slice(&input.packet);
    let buffer = &mut memory[from..from + len];
    let mut fields = SkFields::default();
    let mut packet = Vec::new();
    let result = match program {
        Loaded::Raw(program) => {
            poison_stack(fill);
            program.run(&mut (), buffer)
        }
        Loaded::Xdp(program) => {
            let mut buff = XdpBuff::with_room(buffer, room.0, input.packet.len());
            poison_stack(fill);
            let result = program.run(&mut (), &mut buff);
            packet.extend_from_slice(buff.packet());
            result
        }
        Loaded::Skb(program) => {
            let mut buff = SkBuff::new(buffer);
            let of_packet = buff.fields;
            // A run gives a packet whose length on the wire is not said its own.
            let (len, protocol, wire_len) = (of_packet.len, of_packet.protocol, of_packet.len);
            buff.fields = SkFields { len, protocol, wire_len, ..input.fields };
            let before = buff.fields;
            poison_stack(fill);
            let result = program.run(&mut (), &mut buff);
            fields = buff.fields;
            let kept = SkFields {
                // `bpf_skb_store_bytes` clears it if the program says so (`BPF_F_INVALIDATE_HASH`).
                hash: if fields.hash == 0 { 0 } else { before.hash },
                mark: fields.mark,
                priority: fields.priority,
                tc_index: fields.tc_index,
                cb: fields.cb,
                tc_classid: fields.tc_classid,
                ..before
            };
            if fields != kept {
                return Ok(Err("a read-only field of the context was written".into()));
            }
            result
        }
    };
    let around = memory[..from].iter().chain(&memory[from + len..]);
    if around.into_iter().any(|b| *b != fill) {
        return Ok(Err("bytes around the packet were written".into()));
    }
    packet.extend_from_slice(&memory[from..from + len]);
    world.memory = memory;
    let maps = world.contents(generated.maps)?;
    if !world.constants_hold(generated.maps)? {
        return Ok(Err("constants were written".into()));
    }
    Ok(Ok(result.map(|r0| Output { r0, packet, fields, maps })))
}
