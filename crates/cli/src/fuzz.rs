//! `bpf test --fuzz`: looks for inputs on which a program does what none of its cases allows.
//!
//! Problem: cases hold the inputs that their author thought of. Approach: coverage-guided fuzzing, as AFL and
//! libFuzzer do it. The runs of the cases are the first inputs. An input is mutated (numbers, bytes, results of the
//! host's functions, the number of runs). It is kept if it executed an instruction that no input had executed, or
//! executed one by another power of two. Every input begins with the maps of its case.
//!
//! A finding is a run that ends with an error which no case expects, or a verdict that the file's `[fuzz]` does not
//! list. It is made smaller while the program still fails at the same place, and printed as a case for the test file.
//!
//! Invariant: a search with equal seed, cases and program tries equal inputs in equal order. The time decides only how
//! many.

use crate::fill;
use crate::load::NoHost;
use crate::test_case::{
    Case, Mocks, Run, Settings, Test, case_text, entries, field_bytes, field_value, lock, poll, same_verdict,
    shown_verdict,
};
use anyhow::{Context, Result};
use bpf_runtime::{
    MapSet, Module, RunError,
    describe::{FieldKind, HostContext, HostContextBuff, ResultKind},
    host::IntType,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use toml::Value;

/// The conditions that end the search.
pub(crate) struct Limit {
    pub(crate) time: Duration,
    /// The number of inputs to try, whatever the time.
    pub(crate) runs: Option<u64>,
    pub(crate) seed: u64,
}

/// The longest byte slice of an input.
const MAX_SLICE: usize = 4096;
/// The largest number of runs of an input, unless a case has more.
const MAX_RUNS: usize = 8;
/// Inputs that are tried to make a finding smaller, at most.
const MAX_SHRINKS: u32 = 4096;

/// Several runs on the maps of a case.
#[derive(Clone)]
struct Input {
    /// Index of the case whose maps, clocks and random numbers these are.
    case: usize,
    /// Results of the host's functions, by name.
    results: BTreeMap<String, u64>,
    runs: Vec<Vec<Vec<u8>>>,
}

/// The result of the search for one program.
pub(crate) struct Found {
    /// The number of inputs that were executed.
    pub(crate) inputs: u64,
    /// The message, and a case for the test file.
    pub(crate) finding: Option<(String, String)>,
}

/// A failed run: its place, by which a smaller input is recognised as the same failure, and its message.
struct Failure {
    place: String,
    text: String,
}

struct Fuzzer<'t> {
    /// The cases of one program.
    tests: &'t [Test<'t>],
    settings: &'t Settings,
    module: Module<HostContext, NoHost>,
    mocks: Arc<Mutex<Mocks>>,
    fields: Vec<(String, FieldKind)>,
    /// The host's functions that return numbers.
    functions: Vec<(String, IntType)>,
    random: fastrand::Rng,
    /// For each instruction, the powers of two by which inputs have executed it.
    seen: Vec<u64>,
    before: Vec<u64>,
    inputs: u64,
}

/// Searches with the cases of one program, of which there is at least one.
pub(crate) fn search(tests: &[Test<'_>], settings: &Settings, limit: &Limit) -> Result<Found> {
    let Some(first) = tests.first() else { return Ok(Found { inputs: 0, finding: None }) };
    let mocks = Arc::new(Mutex::new(Mocks::default()));
    let linker = first.linker(&mocks)?;
    let loader = first.host.features.apply(linker.loader::<HostContext>()).only(&[first.program]);
    let offered = MapSet::for_object(first.engine, first.object)?.check_offered(first.host);
    let module = match offered.and_then(|_| loader.compile(first.object)) {
        Ok(module) => module,
        Err(error) => return Ok(Found { inputs: 0, finding: Some((error.to_string(), String::new())) }),
    };
    let context = HostContextBuff::new();
    let fields = context.fields().iter().map(|field| (field.name.clone(), field.ty.clone())).collect();
    let functions = first.host.functions.iter().filter_map(|function| match function.result {
        ResultKind::Int(int) => Some((function.name.clone(), int)),
        ResultKind::Nothing | ResultKind::Never | ResultKind::Memory { .. } => None,
    });
    let mut fuzzer = Fuzzer {
        tests,
        settings,
        module,
        mocks,
        fields,
        functions: functions.collect(),
        random: fastrand::Rng::with_seed(limit.seed),
        seen: Vec::new(),
        before: Vec::new(),
        inputs: 0,
    };
    fuzzer.search(limit)
}

impl Fuzzer<'_> {
    fn search(&mut self, limit: &Limit) -> Result<Found> {
        let begin = Instant::now();
        let mut corpus = Vec::new();
        for case in 0..self.tests.len() {
            corpus.push(self.seed(case)?);
        }
        let mut seeds = corpus.clone().into_iter();
        loop {
            let over = match limit.runs {
                Some(runs) => self.inputs >= runs,
                None => begin.elapsed() >= limit.time,
            };
            if over {
                return Ok(Found { inputs: self.inputs, finding: None });
            }
            let input = match seeds.next() {
                Some(seed) => seed,
                None => {
                    let mut input = corpus[self.random.usize(..corpus.len())].clone();
                    for _ in 0..self.random.u32(1..=4) {
                        self.mutate(&mut input);
                    }
                    input
                }
            };
            let (failure, new) = self.execute(&input)?;
            if let Some(failure) = failure {
                let (input, failure) = self.smaller(input, failure)?;
                let case = self.shown(&input, &failure.text)?;
                return Ok(Found { inputs: self.inputs, finding: Some((failure.text, case)) });
            }
            if new {
                corpus.push(input);
            }
        }
    }

    /// The runs of a case.
    fn seed(&self, case: usize) -> Result<Input> {
        let test = &self.tests[case];
        let mut runs = Vec::new();
        for run in &test.case.run {
            let given: &Run = run.get_ref();
            let mut context = HostContextBuff::new();
            for (name, value) in &given.context {
                let bytes = field_bytes(&context, name, value)?;
                context.set(name, &bytes);
            }
            runs.push(self.fields.iter().map(|(name, _)| context.get(name).unwrap_or_default()).collect());
        }
        Ok(Input { case, results: BTreeMap::new(), runs })
    }

    /// Executes an input on new maps. Returns how it failed, and whether it executed anything new.
    fn execute(&mut self, input: &Input) -> Result<(Option<Failure>, bool)> {
        self.inputs += 1;
        let test = &self.tests[input.case];
        let instance = self.module.instance().make()?;
        let program = instance.program::<HostContext>(test.program)?;
        fill::put(&entries(&test.case.maps)?, &instance)?;
        lock(&self.mocks).begin(test, &input.results)?;
        let mut failure = None;
        for (i, fields) in input.runs.iter().enumerate() {
            let mut context = HostContextBuff::new();
            for ((name, _), bytes) in self.fields.iter().zip(fields) {
                context.set(name, bytes);
            }
            lock(&self.mocks).begin_run(test.case.run.get(i).and_then(|run| run.get_ref().time));
            failure = match poll(&program, &mut context)? {
                Ok(verdict) => self.forbidden(verdict),
                Err(error) => self.unexpected(test.case, &error),
            };
            if failure.is_some() {
                break;
            }
        }
        let mut new = false;
        if let Some(coverage) = program.coverage() {
            self.seen.resize(coverage.insns.len(), 0);
            self.before.resize(coverage.insns.len(), 0);
            for ((now, before), seen) in coverage.insns.iter().zip(&mut self.before).zip(&mut self.seen) {
                if let Some(power) = (now - *before).checked_ilog2() {
                    new |= *seen & 1 << power == 0;
                    *seen |= 1 << power;
                }
                *before = *now;
            }
        }
        Ok((failure, new))
    }

    fn forbidden(&self, verdict: u64) -> Option<Failure> {
        let allowed = self.settings.verdicts.as_ref()?;
        let same = |allowed: &i64| same_verdict(*allowed, verdict);
        (!allowed.iter().any(same)).then(|| Failure {
            place: "verdict".to_owned(),
            text: format!("the verdict {} is none of {allowed:?}", shown_verdict(verdict)),
        })
    }

    fn unexpected(&self, case: &Case, error: &RunError) -> Option<Failure> {
        let text = error.to_string();
        let expected = |test: &Test<'_>| {
            test.case
                .run
                .iter()
                .any(|run| run.get_ref().error.as_ref().is_some_and(|part| text.contains(part.as_str())))
        };
        // An error that the case itself lets a host function return is expected.
        let given =
            case.functions.values().flatten().any(|value| value.as_str().is_some_and(|error| text.contains(error)));
        (!given && !self.tests.iter().any(expected)).then(|| Failure { place: text.clone(), text })
    }

    /// Changes a part of an input.
    fn mutate(&mut self, input: &mut Input) {
        let kinds = self.fields.len() + self.functions.len() + 1;
        let what = self.random.usize(..kinds);
        if let Some((_, kind)) = self.fields.get(what) {
            let at = self.random.usize(..input.runs.len());
            let bytes = &mut input.runs[at][what];
            match kind {
                FieldKind::Bytes { .. } => mutate_slice(&mut self.random, bytes),
                FieldKind::Int(int) => mutate_numbers(&mut self.random, bytes, *int),
                FieldKind::Array { of, .. } => mutate_numbers(&mut self.random, bytes, *of),
                // The fields of structs are fields of their own.
                FieldKind::Struct(_) => {}
            }
        } else if let Some((name, int)) = self.functions.get(what - self.fields.len()) {
            let number = interesting(&mut self.random);
            input.results.insert(name.clone(), int.extend(number));
        } else {
            let at = self.random.usize(..input.runs.len());
            if self.random.bool() && input.runs.len() < MAX_RUNS {
                let again = input.runs[at].clone();
                input.runs.insert(at, again);
            } else if input.runs.len() > 1 {
                input.runs.remove(at);
            }
        }
    }

    /// Makes an input smaller while it fails at the same place.
    fn smaller(&mut self, mut input: Input, mut failure: Failure) -> Result<(Input, Failure)> {
        let mut left = MAX_SHRINKS;
        loop {
            let mut progress = false;
            for candidate in self.candidates(&input) {
                let Some(less) = left.checked_sub(1) else { return Ok((input, failure)) };
                left = less;
                let (found, _) = self.execute(&candidate)?;
                if let Some(found) = found.filter(|found| found.place == failure.place) {
                    (input, failure, progress) = (candidate, found, true);
                    break;
                }
            }
            if !progress {
                return Ok((input, failure));
            }
        }
    }

    /// Returns inputs with one change each: a run, a result of a function or bytes of a field removed (large pieces
    /// first), or a number cleared or halved.
    fn candidates(&self, input: &Input) -> Vec<Input> {
        let mut smaller = Vec::new();
        let mut add = |change: &dyn Fn(&mut Input)| {
            let mut other = input.clone();
            change(&mut other);
            smaller.push(other);
        };
        for at in 0..input.runs.len() {
            if input.runs.len() > 1 {
                add(&|input| drop(input.runs.remove(at)));
            }
        }
        for name in input.results.keys() {
            add(&|input| {
                input.results.remove(name);
            });
        }
        for (at, run) in input.runs.iter().enumerate() {
            for (field, (_, kind)) in self.fields.iter().enumerate() {
                let bytes = &run[field];
                if bytes.is_empty() || (bytes.iter().all(|byte| *byte == 0) && !matches!(kind, FieldKind::Bytes { .. }))
                {
                    continue;
                }
                match kind {
                    FieldKind::Bytes { .. } => {
                        add(&|input| input.runs[at][field].clear());
                        for part in [2, 4, 16, bytes.len()].into_iter().filter(|part| *part <= bytes.len()) {
                            let size = bytes.len() / part;
                            for begin in (0..bytes.len()).step_by(size).rev() {
                                let end = (begin + size).min(bytes.len());
                                add(&|input| drop(input.runs[at][field].drain(begin..end)));
                            }
                        }
                    }
                    FieldKind::Int(_) | FieldKind::Array { .. } | FieldKind::Struct(_) => {
                        add(&|input| input.runs[at][field].fill(0));
                        for (byte, held) in bytes.iter().enumerate() {
                            if *held != 0 {
                                add(&|input| input.runs[at][field][byte] = 0);
                                add(&|input| input.runs[at][field][byte] /= 2);
                            }
                        }
                    }
                }
            }
        }
        smaller
    }

    /// The input as a case of a test file.
    fn shown(&self, input: &Input, text: &str) -> Result<String> {
        let test = &self.tests[input.case];
        let mut runs = Vec::new();
        for (i, fields) in input.runs.iter().enumerate() {
            let mut context = toml::Table::new();
            for ((name, kind), bytes) in self.fields.iter().zip(fields) {
                if bytes.iter().any(|byte| *byte != 0) || (matches!(kind, FieldKind::Bytes { .. }) && !bytes.is_empty())
                {
                    context.insert(name.clone(), field_value(kind, bytes));
                }
            }
            let mut run = toml::Table::from_iter([("context".to_owned(), Value::Table(context))]);
            if let Some(time) = test.case.run.get(i).and_then(|run| run.get_ref().time) {
                run.insert("time".to_owned(), Value::Integer(i64::try_from(time).context("a time")?));
            }
            runs.push(Value::Table(run));
        }
        case_text(test, &input.results, runs, text)
    }
}

/// A number that programs often compare with: small, near a power of two, or any.
fn interesting(random: &mut fastrand::Rng) -> u64 {
    match random.u8(..4) {
        0 => random.u64(..16),
        1 => (1u64 << random.u32(..64)).wrapping_add(random.u64(..3)).wrapping_sub(1),
        2 => random.u64(..16).wrapping_neg(),
        _ => random.u64(..),
    }
}

fn mutate_numbers(random: &mut fastrand::Rng, bytes: &mut [u8], int: IntType) {
    let size = (int.bytes() as usize).max(1);
    let Some(count) = (bytes.len() / size).checked_sub(1) else { return };
    let at = random.usize(..=count) * size;
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[at..at + size]);
    let old = u64::from_le_bytes(word);
    let new = match random.u8(..4) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old ^ 1 << random.usize(..size * 8),
        _ => interesting(random),
    };
    // As a register holds it, so that a bool is 0 or 1.
    bytes[at..at + size].copy_from_slice(&int.extend(new).to_le_bytes()[..size]);
}

fn mutate_slice(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    let at = random.usize(..=bytes.len());
    match random.u8(..7) {
        0 => bytes.insert(at, random.u8(..)),
        1 => bytes.truncate(at),
        2 => {
            let count = random.usize(..=64);
            bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(count));
        }
        3 => {
            let end = (at + 32).min(bytes.len());
            let again = bytes[at..end].to_vec();
            drop(bytes.splice(at..at, again));
        }
        4 => {
            let end = (at + random.usize(..=8)).min(bytes.len());
            bytes.drain(at..end);
        }
        5 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = byte.wrapping_add(random.u8(..)).wrapping_sub(8);
            }
        }
        _ => {
            let number = interesting(random).to_le_bytes();
            let size = 1 << random.u32(..4);
            for (to, from) in bytes.iter_mut().skip(at).zip(number).take(size) {
                *to = from;
            }
        }
    }
    bytes.truncate(MAX_SLICE);
}
