//! A case of a test file, and how it is run: mocked functions of the host, maps, contexts, expected results.
//!
//! Invariant: a case sees nothing of another case, nor of the machine: maps are made for each, and clocks and random
//! numbers are those of the case.

use crate::coverage::Covered;
use crate::load::NoHost;
use crate::{fill, host, input, maps};
use anyhow::{Context, Result, anyhow, bail, ensure};
use bpf_runtime::{
    Caller, Engine, HelperError, Instance, Linker, MapSet, Object, Program, RunError,
    describe::{FieldKind, FunctionInterface, HostContext, HostContextBuff, HostInterface, ParamKind, ResultKind},
    host::{HostValue, IntType},
};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use toml::{Spanned, Value};

/// The settings of a test file for `--fuzz`.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The verdicts that programs may return; all, if it is missing.
    pub(crate) verdicts: Option<Vec<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) program: Option<String>,
    /// Entries of maps before the first run.
    #[serde(default)]
    pub(crate) maps: Entries,
    /// Results of functions of the host, in the order of the calls; the last one is repeated. Or a script: tables with
    /// the expected arguments (`args`) and the result (`result`, `error`) of one call each.
    #[serde(default)]
    pub(crate) functions: BTreeMap<String, Vec<Value>>,
    /// The time that clocks return, in nanoseconds.
    #[serde(default)]
    time: u64,
    /// The numbers that `bpf_get_prandom_u32` returns, in turn and from the start again; 0 if empty.
    #[serde(default)]
    random: Vec<u32>,
    #[serde(default)]
    pub(crate) run: Vec<Spanned<Run>>,
    #[serde(default)]
    expect: Expect,
}

pub(crate) type Entries = BTreeMap<String, BTreeMap<String, Value>>;

/// One run, and the expectations of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// Fields of the context; all others are zero or empty.
    #[serde(default)]
    pub(crate) context: BTreeMap<String, Value>,
    /// The time that clocks return from this run on.
    pub(crate) time: Option<u64>,
    /// The result.
    verdict: Option<i64>,
    /// A part of the error that ends the run.
    pub(crate) error: Option<String>,
    /// Fields of the context after the run.
    #[serde(default)]
    after: BTreeMap<String, Value>,
    /// Calls of functions of the host in this run: the function's name, then its arguments.
    calls: Option<Vec<Vec<Value>>>,
}

/// The expected contents of maps after the last run.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    /// Entries of maps; `false` for an entry that must not be there.
    #[serde(default)]
    maps: Entries,
    /// The records of ring buffers, in hex digits.
    #[serde(default)]
    records: BTreeMap<String, Vec<String>>,
}

/// An argument of a call.
#[derive(Clone, PartialEq, Debug)]
enum Argument {
    Int(u64),
    Bytes(Vec<u8>),
    Null,
}

/// State that the functions of the host share with the case.
#[derive(Default)]
pub(crate) struct Mocks {
    /// Results of the functions, by name; the last one of each is repeated if it expects no arguments.
    results: BTreeMap<String, Vec<Scripted>>,
    /// The calls of the run, in order, and the bytes of their arguments together.
    calls: Vec<(String, Vec<Argument>)>,
    bytes: usize,
    /// The number of calls of each function in the case.
    called: BTreeMap<String, usize>,
    time: u64,
    random: Vec<u32>,
    drawn: usize,
}

impl Mocks {
    /// Begins a case. Each function in `numbers` returns its number there, in place of the case's results.
    pub(crate) fn begin(&mut self, test: &Test<'_>, numbers: &BTreeMap<String, u64>) -> Result<()> {
        let case = test.case;
        let mut results = BTreeMap::new();
        for function in &test.host.functions {
            let given = case.functions.get(&function.name).map_or(&[][..], Vec::as_slice);
            let given = given.iter().map(|value| scripted(function, value));
            let given = given.collect::<Result<Vec<_>>>().with_context(|| format!("results of `{}`", function.name))?;
            results.insert(function.name.clone(), given);
        }
        for (name, number) in numbers {
            results.insert(name.clone(), vec![Scripted::any(Mocked::Returns(*number))]);
        }
        *self = Mocks { results, time: case.time, random: case.random.clone(), ..Mocks::default() };
        Ok(())
    }

    /// The result of the next call of a function, with these arguments, and what it writes to each.
    fn call(&mut self, name: &str, args: &[Argument]) -> Result<(u64, Writes), HelperError> {
        let called = self.called.entry(name.to_owned()).or_insert(0);
        let at = *called;
        *called += 1;
        let results = self.results.get(name).map_or(&[][..], Vec::as_slice);
        let Some(Scripted { args: expected, effect, writes }) = results.get(at).or(results.last()) else {
            return Ok((0, Writes::new()));
        };
        if let Some(expected) = expected {
            let shown = |args: &[Argument]| shown_call(&(name.to_owned(), args.to_vec()));
            let number = at + 1;
            if at >= results.len() {
                let text = format!("call {number}, {}, where the script has {} calls", shown(args), results.len());
                return Err(HelperError::new(text));
            }
            if expected != args {
                return Err(HelperError::new(format!("call {number} is {}, not {}", shown(args), shown(expected))));
            }
        }
        match effect {
            Mocked::Returns(value) => Ok((*value, writes.clone())),
            Mocked::Fails(error) => Err(HelperError::new(error.clone())),
        }
    }

    /// The calls that a script expects, and that no run has made.
    fn missing(&self) -> Vec<String> {
        let missing = |(name, results): (&String, &Vec<Scripted>)| {
            let called = self.called.get(name).copied().unwrap_or(0);
            let next = results.get(called)?.args.as_ref()?;
            let number = called + 1;
            Some(format!(
                "call {number} of the script of `{name}` is missing: {}",
                shown_call(&(name.clone(), next.clone()))
            ))
        };
        self.results.iter().filter_map(missing).collect()
    }

    /// The calls of the run as text.
    pub(crate) fn shown(&self) -> Vec<String> {
        self.calls.iter().map(shown_call).collect()
    }

    /// Begins a run, which may set the time.
    pub(crate) fn begin_run(&mut self, time: Option<u64>) {
        self.calls.clear();
        self.bytes = 0;
        self.time = time.unwrap_or(self.time);
    }
}

/// Upper bound on the host calls of one run, which are recorded.
const MAX_CALLS: usize = 1 << 16;
/// Bytes in the arguments of the calls of one run, at most.
const MAX_BYTES: usize = 64 << 20;

/// The clocks among the helpers, by id and name, with the nanoseconds of their ticks.
const CLOCKS: [(u32, &str, u64); 5] = [
    (5, "bpf_ktime_get_ns", 1),
    (118, "bpf_jiffies64", 1_000_000),
    (125, "bpf_ktime_get_boot_ns", 1),
    (160, "bpf_ktime_get_coarse_ns", 1),
    (208, "bpf_ktime_get_tai_ns", 1),
];
/// The helper that returns a random number.
const RANDOM: (u32, &str) = (7, "bpf_get_prandom_u32");

/// A case of a program, with its object and host.
pub(crate) struct Test<'t> {
    pub(crate) engine: &'t Engine,
    pub(crate) host: &'t HostInterface,
    pub(crate) object: &'t Object,
    pub(crate) program: &'t str,
    pub(crate) case: &'t Case,
    /// The line of a place in the file.
    pub(crate) line: &'t dyn Fn(usize) -> usize,
}

pub(crate) fn lock(mocks: &Mutex<Mocks>) -> MutexGuard<'_, Mocks> {
    // Poison comes from a mocked function that panicked; the panic has ended its run.
    mocks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Test<'_> {
    /// Runs the case, and returns what was not as expected.
    pub(crate) fn run(&self, covered: &mut Covered) -> Result<Vec<String>> {
        let case = self.case;
        ensure!(!case.run.is_empty(), "the case has no runs: add `run = [{{ … }}]`");
        let mocks = Arc::new(Mutex::new(Mocks::default()));
        let linker = self.linker(&mocks)?;
        lock(&mocks).begin(self, &BTreeMap::new())?;
        let loader = self.host.features.apply(linker.loader::<HostContext>()).only(&[self.program]);
        let maps = MapSet::for_object(self.engine, self.object)?.check_offered(self.host);
        let instance = match maps.and_then(|maps| loader.object(self.object, maps)) {
            Ok(instance) => instance,
            // A refused plug-in is a result of the test.
            Err(error) => return Ok(vec![error.to_string()]),
        };
        let program = instance.program::<HostContext>(self.program)?;
        fill::put(&entries(&case.maps)?, &instance)?;
        let mut rings = maps::Rings::open(self.engine, instance.maps())?;
        let mut failures = Vec::new();
        for (i, run) in case.run.iter().enumerate() {
            let at = (self.line)(run.span().start);
            let mut fail = |what: String| failures.push(format!("line {at}: run {}: {what}", i + 1));
            self.one_run(run.get_ref(), &program, &mocks, &mut fail).with_context(|| format!("line {at}"))?;
            rings.drain();
        }
        if let Some(coverage) = program.coverage() {
            covered.add(&coverage);
        }
        failures.extend(lock(&mocks).missing());
        self.check_maps(&instance, &rings, &mut failures)?;
        Ok(failures)
    }

    /// The host's linker, with mocks.
    pub(crate) fn linker(&self, mocks: &Arc<Mutex<Mocks>>) -> Result<Linker<NoHost>> {
        let known: BTreeSet<&str> = self.host.functions.iter().map(|function| function.name.as_str()).collect();
        for name in self.case.functions.keys() {
            let names = || known.iter().copied().collect::<Vec<_>>().join(", ");
            ensure!(known.contains(name.as_str()), "the host has no function `{name}`; it has: {}", names());
        }
        let mut linker = host::linker(self.engine, self.host, |function| {
            let (mocks, name) = (Arc::clone(mocks), function.name.clone());
            move |_: &mut Caller<'_, NoHost>, values: &[HostValue<'_>]| -> Result<u64, HelperError> {
                let mut mocks = lock(&mocks);
                mocks.bytes = mocks.bytes.saturating_add(values.iter().map(argument_bytes).sum());
                if mocks.calls.len() == MAX_CALLS || mocks.bytes > MAX_BYTES {
                    let more =
                        format!("more than {MAX_CALLS} calls of the host's functions, or {MAX_BYTES} bytes in them");
                    return Err(HelperError::new(format!("a run of a test makes {more}")));
                }
                let args: Vec<Argument> = values.iter().map(argument).collect();
                mocks.calls.push((name.clone(), args.clone()));
                let (result, writes) = mocks.call(&name, &args)?;
                for (value, bytes) in values.iter().zip(&writes) {
                    if let (HostValue::BytesMut(memory), Some(bytes)) = (value, bytes)
                        && !memory.write_at(0, bytes)
                    {
                        let room = format!("`{name}` writes {} bytes to {}", bytes.len(), memory.len());
                        return Err(HelperError::new(room));
                    }
                }
                Ok(result)
            }
        })?;
        let own: BTreeSet<u32> = self.host.functions.iter().filter_map(|function| function.id).collect();
        // Only shipped helpers are mocked: not ids and names that the host registered, nor ids that it removed.
        let shipped = |(id, name): (u32, &str)| {
            !own.contains(&id) && !known.contains(name) && !self.host.removed_helpers.contains(&id)
        };
        for (id, name, tick) in CLOCKS.into_iter().filter(|(id, name, _)| shipped((*id, *name))) {
            let mocks = Arc::clone(mocks);
            let time = move |_: &mut Caller<'_, NoHost>| -> u64 { lock(&mocks).time / tick };
            linker.remove_helper(id).func(id, name, time)?;
        }
        if shipped(RANDOM) {
            let mocks = Arc::clone(mocks);
            let draw = move |_: &mut Caller<'_, NoHost>| -> u64 {
                let mut mocks = lock(&mocks);
                let (drawn, of) = (mocks.drawn, mocks.random.len().max(1));
                mocks.drawn += 1;
                mocks.random.get(drawn % of).copied().unwrap_or(0).into()
            };
            linker.remove_helper(RANDOM.0).func(RANDOM.0, RANDOM.1, draw)?;
        }
        Ok(linker)
    }

    fn one_run(
        &self,
        run: &Run,
        program: &Program<HostContext, NoHost>,
        mocks: &Mutex<Mocks>,
        fail: &mut dyn FnMut(String),
    ) -> Result<()> {
        let mut context = context(&run.context)?;
        // Checked before the run, so that a mistake in the test file is reported whatever the plug-in does.
        let mut after = Vec::new();
        for (name, value) in &run.after {
            after.push((name, field_bytes(&context, name, value)?));
        }
        let calls = run.calls.iter().flatten().map(|call| self.expected_call(call)).collect::<Result<Vec<_>>>()?;
        lock(mocks).begin_run(run.time);
        match (poll(program, &mut context)?, &run.error) {
            (Ok(result), None) => {
                if let Some(expected) = run.verdict.filter(|expected| !same_verdict(*expected, result)) {
                    fail(format!("the verdict is {}, not {expected}", shown_verdict(result)));
                }
            }
            (Ok(result), Some(expected)) => {
                fail(format!("the verdict is {}, where an error was expected: {expected}", shown_verdict(result)));
            }
            (Err(error), Some(expected)) if error.to_string().contains(expected.as_str()) => {}
            (Err(error), Some(expected)) => fail(format!("the error is `{error}`, not: {expected}")),
            (Err(error), None) => fail(error.to_string()),
        }
        for (name, expected) in after {
            let held = context.get(name).unwrap_or_default();
            if held != expected {
                let kind = kind_of(&context, name);
                let at = held.iter().zip(&expected).take_while(|(held, expected)| held == expected).count();
                let place = if at < SHOWN_BYTES { String::new() } else { format!(" (they differ from byte {at} on)") };
                let (held, expected) = (shown_field(kind, &held), shown_field(kind, &expected));
                fail(format!("`{name}` is {held}, not {expected}{place}"));
            }
        }
        if run.calls.is_some() {
            let made = lock(mocks).calls.clone();
            if made != calls {
                let at = made.iter().zip(&calls).take_while(|(made, call)| made == call).count();
                let place =
                    if at < SHOWN_CALLS { String::new() } else { format!(" (they differ from call {} on)", at + 1) };
                fail(format!("the calls are {}, not {}{place}", shown_calls(&made), shown_calls(&calls)));
            }
        }
        Ok(())
    }

    /// An expected call, by the types of the function.
    fn expected_call(&self, call: &[Value]) -> Result<(String, Vec<Argument>)> {
        let Some((Value::String(name), args)) = call.split_first() else {
            bail!("an expected call is [\"function\", argument, …]");
        };
        let function = self.host.functions.iter().find(|function| function.name == *name);
        let function = function.with_context(|| format!("the host has no function `{name}`"))?;
        Ok((name.clone(), expected_args(function, args)?))
    }

    fn check_maps(&self, instance: &Instance<NoHost>, rings: &maps::Rings, failures: &mut Vec<String>) -> Result<()> {
        for (name, entries) in &self.case.expect.maps {
            let map = instance.map(name)?;
            for (key, expected) in entries {
                let entry = || format!("expected entry {key} of map `{name}`");
                let key_bytes = fill::key_bytes(key, &map).with_context(entry)?;
                let held = map.get(&key_bytes).with_context(entry)?;
                let is = || held.as_deref().map_or("missing".to_owned(), maps::bytes);
                match (expected, &held) {
                    (Value::Boolean(false), None) => {}
                    (Value::Boolean(false), Some(_)) => failures.push(format!("`{name}` has an entry {key}: {}", is())),
                    (expected, _) => {
                        let text = entry_text(expected).with_context(entry)?;
                        let expected = fill::value_bytes(&text, &map).with_context(entry)?;
                        if held.as_deref() != Some(&expected) {
                            failures.push(format!("`{name}`, entry {key} is {}, not {}", is(), maps::bytes(&expected)));
                        }
                    }
                }
            }
        }
        for (name, expected) in &self.case.expect.records {
            let Some((records, total)) = rings.first(name) else {
                bail!("there is no ring `{name}` to take records from")
            };
            if records != expected.as_slice() || total != expected.len() as u64 {
                failures.push(format!("the records of `{name}` are {records:?} ({total}), not {expected:?}"));
            }
        }
        Ok(())
    }
}

/// Whether an expected verdict is this result: that of a C function, an int or a wider number.
pub(crate) fn same_verdict(expected: i64, result: u64) -> bool {
    expected.cast_unsigned() == result
        || i32::try_from(expected).is_ok_and(|expected| u64::from(expected.cast_unsigned()) == result)
}

/// Runs a program once. Mocked functions are ready at once, so a sleepable program never waits.
pub(crate) fn poll(
    program: &Program<HostContext, NoHost>,
    context: &mut HostContextBuff,
) -> Result<std::result::Result<u64, RunError>> {
    let mut host = ();
    match program.run(&mut host, context) {
        Err(RunError::Sleepable { .. }) => {}
        result => return Ok(result),
    }
    let run = std::pin::pin!(program.run_async(&mut host, context));
    match run.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(result) => Ok(result),
        Poll::Pending => bail!("the program waits, and nothing here wakes it"),
    }
}

/// Expected arguments, by the types of the function.
fn expected_args(function: &FunctionInterface, args: &[Value]) -> Result<Vec<Argument>> {
    let (name, params) = (&function.name, &function.params);
    ensure!(
        args.len() == params.len(),
        "`{name}` has {} parameters (a byte slice is one); the expected call has {}",
        params.len(),
        args.len()
    );
    let args = args.iter().zip(params).map(|(value, param)| match (value, param) {
        (Value::Integer(value), ParamKind::Int(int)) => Ok(Argument::Int(number(*value, *int)?)),
        (Value::Boolean(false), ParamKind::Bytes { .. } | ParamKind::Struct { .. }) => Ok(Argument::Null),
        (_, ParamKind::Bytes { .. } | ParamKind::Struct { .. }) => Ok(Argument::Bytes(plain_bytes(value)?)),
        (_, ParamKind::Int(_)) => Err(anyhow!("{value} is no number")),
    });
    args.collect::<Result<Vec<_>>>().with_context(|| format!("an argument of `{name}`"))
}

/// One call of a mocked function.
#[derive(Clone)]
struct Scripted {
    /// The arguments that it must have; any without.
    args: Option<Vec<Argument>>,
    effect: Mocked,
    writes: Writes,
}

/// The bytes that a call writes to each of its arguments.
type Writes = Vec<Option<Vec<u8>>>;

impl Scripted {
    fn any(effect: Mocked) -> Scripted {
        Scripted { args: None, effect, writes: Writes::new() }
    }
}

/// A call of a script: a result, or a table with the expected arguments and the result.
fn scripted(function: &FunctionInterface, value: &Value) -> Result<Scripted> {
    let Value::Table(table) = value else { return result(function, value).map(Scripted::any) };
    let (mut args, mut effect, mut writes) = (None, None, Writes::new());
    for (key, value) in table {
        match (key.as_str(), value) {
            ("args", Value::Array(values)) => args = Some(expected_args(function, values)?),
            ("writes", Value::Array(values)) => writes = written(function, values)?,
            ("writes", _) => bail!("`writes` is an array with bytes or `false` for each parameter, not {value}"),
            ("args", _) => bail!("`args` is an array of arguments, not {value}"),
            ("result", Value::Integer(_) | Value::Boolean(_)) if effect.is_none() => {
                effect = Some(result(function, value)?);
            }
            ("error", Value::String(error)) if effect.is_none() => effect = Some(Mocked::Fails(error.clone())),
            ("result" | "error", _) => bail!("a call has one `result`, a number, or one `error`, a text; not {value}"),
            _ => bail!("`{key}` is nothing that a call has: args, result, error, writes"),
        }
    }
    Ok(Scripted { args, effect: effect.unwrap_or(Mocked::Returns(0)), writes })
}

/// The bytes that a call writes to its arguments, by the types of the function.
fn written(function: &FunctionInterface, values: &[Value]) -> Result<Writes> {
    let params = &function.params;
    ensure!(values.len() == params.len(), "`writes` has {} elements, for {} parameters", values.len(), params.len());
    let one = |(value, param): (&Value, &ParamKind)| match (value, param) {
        (Value::Boolean(false), _) => Ok(None),
        (_, ParamKind::Bytes { writable: true, .. } | ParamKind::Struct { writable: true, .. }) => {
            plain_bytes(value).map(Some)
        }
        (_, ParamKind::Int(_) | ParamKind::Bytes { .. } | ParamKind::Struct { .. }) => {
            Err(anyhow!("the function does not write this parameter: `false`, not {value}"))
        }
    };
    values.iter().zip(params).map(one).collect()
}

/// The effect of one call of a mocked function.
#[derive(Clone)]
enum Mocked {
    Returns(u64),
    /// The function fails, and ends the run.
    Fails(String),
}

/// A result of a mocked function: a number, or a text with which it fails.
fn result(function: &FunctionInterface, value: &Value) -> Result<Mocked> {
    Ok(match (value, function.result) {
        (Value::String(error), _) => Mocked::Fails(error.clone()),
        (Value::Integer(value), ResultKind::Int(int)) => Mocked::Returns(number(*value, int)?),
        (Value::Boolean(value), ResultKind::Int(IntType::Bool)) => Mocked::Returns((*value).into()),
        (_, ResultKind::Int(_)) => bail!("{value} is neither a number nor the text of an error"),
        (_, ResultKind::Nothing | ResultKind::Never | ResultKind::Memory { .. }) => {
            bail!("{value} is no text of an error: the function returns no number")
        }
    })
}

/// A number of a test file as a register holds it.
fn number(value: i64, int: IntType) -> Result<u64> {
    let held = int.extend(value.cast_unsigned());
    // Numbers above 2^63 are written as negative ones.
    ensure!(held.cast_signed() == value, "{value} is no {}", int.c_type());
    Ok(held)
}

fn argument_bytes(value: &HostValue<'_>) -> usize {
    match value {
        HostValue::Bytes(bytes) => bytes.len(),
        HostValue::BytesMut(bytes) => bytes.bytes().len(),
        _ => 0,
    }
}

fn argument(value: &HostValue<'_>) -> Argument {
    match value {
        HostValue::Int(number) => Argument::Int(*number),
        HostValue::Bytes(bytes) => Argument::Bytes(bytes.to_vec()),
        HostValue::BytesMut(bytes) => Argument::Bytes(bytes.bytes().to_vec()),
        _ => Argument::Null,
    }
}

/// Bytes of a test file: text; numbers of one byte each; or `{ hex = "…" }`.
fn plain_bytes(value: &Value) -> Result<Vec<u8>> {
    match value {
        Value::String(text) => Ok(text.clone().into_bytes()),
        Value::Array(bytes) => {
            let byte = |value: &Value| value.as_integer().and_then(|byte| u8::try_from(byte).ok());
            let bytes: Option<Vec<u8>> = bytes.iter().map(byte).collect();
            bytes.with_context(|| format!("{value} is no array of bytes"))
        }
        Value::Table(table) => match (table.get("hex"), table.len()) {
            (Some(Value::String(digits)), 1) => input::parse_hex(digits),
            _ => bail!("{value} is not `{{ hex = \"…\" }}`"),
        },
        _ => bail!("{value} is neither text, nor an array of bytes, nor `{{ hex = \"…\" }}`"),
    }
}

fn kind_of<'c>(context: &'c HostContextBuff, name: &str) -> Option<&'c FieldKind> {
    context.fields().iter().find(|field| field.name == name).map(|field| &field.ty)
}

/// The context with these fields; all others are zero or empty.
pub(crate) fn context(fields: &BTreeMap<String, Value>) -> Result<HostContextBuff> {
    let mut context = HostContextBuff::new();
    for (name, value) in fields {
        let bytes = field_bytes(&context, name, value)?;
        ensure!(context.set(name, &bytes), "the context's field `{name}` cannot hold {value}");
    }
    Ok(context)
}

/// The bytes of a field's value in a test file.
pub(crate) fn field_bytes(context: &HostContextBuff, name: &str, value: &Value) -> Result<Vec<u8>> {
    let names = || context.fields().iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", ");
    let kind = kind_of(context, name)
        .with_context(|| format!("the context has no field `{name}`; its fields: {}", names()))?;
    let integer = |value: &Value, int: IntType| -> Result<Vec<u8>> {
        let value = value.as_integer().with_context(|| format!("{value} is no number"))?;
        Ok(number(value, int)?.to_le_bytes()[..int.bytes() as usize].to_vec())
    };
    let bytes = match (kind, value) {
        (FieldKind::Int(int), _) => integer(value, *int),
        (FieldKind::Array { of, count }, Value::Array(values)) => {
            ensure!(values.len() == *count as usize, "`{name}` has {count} elements, not {}", values.len());
            let each = values.iter().map(|value| integer(value, *of)).collect::<Result<Vec<_>>>();
            each.map(|each| each.concat())
        }
        (FieldKind::Array { of, count }, _) => {
            let size = (of.bytes() * count) as usize;
            plain_bytes(value).and_then(|mut bytes| {
                ensure!(bytes.len() <= size, "{} bytes; it has {size}", bytes.len());
                bytes.resize(size, 0);
                Ok(bytes)
            })
        }
        (FieldKind::Bytes { .. }, _) => plain_bytes(value),
        (FieldKind::Struct(_), _) => Err(anyhow!("name a field of the struct")),
    };
    bytes.with_context(|| format!("the context's field `{name}`"))
}

/// A field's bytes as a value of a test file, of which [`field_bytes`] makes the same bytes.
pub(crate) fn field_value(kind: &FieldKind, bytes: &[u8]) -> Value {
    let number = |int: IntType, bytes: &[u8]| {
        let mut word = [0; 8];
        word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Value::Integer(int.extend(u64::from_le_bytes(word)).cast_signed())
    };
    match kind {
        FieldKind::Int(int) => number(*int, bytes),
        FieldKind::Array { of, .. } => {
            let size = (of.bytes() as usize).max(1);
            Value::Array(bytes.chunks(size).map(|bytes| number(*of, bytes)).collect())
        }
        FieldKind::Bytes { .. } | FieldKind::Struct(_) => match std::str::from_utf8(bytes) {
            Ok(text) if text.chars().all(|c| !c.is_control()) => Value::String(text.to_owned()),
            _ => Value::Table(toml::Table::from_iter([("hex".to_owned(), Value::String(hex::encode(bytes)))])),
        },
    }
}

/// A case for the test file: that of `test`, with these results of functions and these runs.
pub(crate) fn case_text(
    test: &Test<'_>,
    results: &BTreeMap<String, u64>,
    runs: Vec<Value>,
    name: &str,
) -> Result<String> {
    let Case { maps, functions, time, random, .. } = test.case;
    let mut case = toml::Table::new();
    case.insert("name".to_owned(), Value::String(name.to_owned()));
    case.insert("program".to_owned(), Value::String(test.program.to_owned()));
    if *time != 0 {
        case.insert("time".to_owned(), Value::Integer(i64::try_from(*time).context("a time")?));
    }
    if !random.is_empty() {
        case.insert("random".to_owned(), random.iter().map(|number| i64::from(*number)).collect::<Vec<_>>().into());
    }
    let mut given = functions.clone();
    for (name, number) in results {
        given.insert(name.clone(), vec![Value::Integer(number.cast_signed())]);
    }
    for (name, table) in [("maps", Value::try_from(maps)?), ("functions", Value::try_from(given)?)] {
        if table.as_table().is_some_and(|table| !table.is_empty()) {
            case.insert(name.to_owned(), table);
        }
    }
    case.insert("run".to_owned(), Value::Array(runs));
    let cases = Value::Array(vec![Value::Table(case)]);
    Ok(toml::to_string(&toml::Table::from_iter([("case".to_owned(), cases)]))?)
}

/// An entry's key or value as `--map` takes it.
fn entry_text(value: &Value) -> Result<String> {
    match value {
        Value::Integer(number) => Ok(number.to_string()),
        Value::String(text) => Ok(text.clone()),
        _ => bail!("{value} is neither a number nor hex digits"),
    }
}

pub(crate) fn entries(maps: &Entries) -> Result<Vec<fill::Value>> {
    let mut values = Vec::new();
    for (map, entries) in maps {
        for (key, value) in entries {
            let value = entry_text(value).with_context(|| format!("map `{map}`, key {key}"))?;
            values.push(fill::Value { map: map.clone(), key: key.clone(), value });
        }
    }
    Ok(values)
}

/// Formats a result as a signed number: of 32 bits if it is a negative `int`, else of 64.
pub(crate) fn shown_verdict(result: u64) -> String {
    match u32::try_from(result) {
        Ok(low) if low.cast_signed() < 0 => low.cast_signed().to_string(),
        _ => result.cast_signed().to_string(),
    }
}

/// Upper bound on the bytes of a field or an argument that a message shows: a program chooses them.
const SHOWN_BYTES: usize = 256;
/// Upper bound on the calls that a message shows.
const SHOWN_CALLS: usize = 16;

/// The bytes of a field, or of an argument: text if they are printable, else hex digits; the first ones of many.
fn shown_bytes(bytes: &[u8]) -> String {
    let (shown, rest) = bytes.split_at(bytes.len().min(SHOWN_BYTES));
    let shown = match std::str::from_utf8(shown) {
        Ok(text) if text.chars().all(|c| !c.is_control()) => format!("{text:?}"),
        _ => format!("0x{}", hex::encode(shown)),
    };
    if rest.is_empty() { shown } else { format!("{shown} and {} bytes more", rest.len()) }
}

fn shown_field(kind: Option<&FieldKind>, bytes: &[u8]) -> String {
    match kind {
        Some(FieldKind::Int(int)) => {
            let mut word = [0; 8];
            word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            let value = int.extend(u64::from_le_bytes(word));
            if int.is_signed() { value.cast_signed().to_string() } else { value.to_string() }
        }
        Some(FieldKind::Array { .. } | FieldKind::Bytes { .. } | FieldKind::Struct(_)) | None => shown_bytes(bytes),
    }
}

fn shown_calls(calls: &[(String, Vec<Argument>)]) -> String {
    if calls.is_empty() {
        return "none".to_owned();
    }
    let (shown, rest) = calls.split_at(calls.len().min(SHOWN_CALLS));
    let more = (!rest.is_empty()).then(|| format!("{} more", rest.len()));
    shown.iter().map(shown_call).chain(more).collect::<Vec<_>>().join(", ")
}

fn shown_call((name, args): &(String, Vec<Argument>)) -> String {
    let args = args.iter().map(|arg| match arg {
        Argument::Int(number) => number.cast_signed().to_string(),
        Argument::Bytes(bytes) => shown_bytes(bytes),
        Argument::Null => "null".to_owned(),
    });
    format!("{name}({})", args.collect::<Vec<_>>().join(", "))
}
