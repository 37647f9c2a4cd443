//! `bpf run --host`: one context of a described host, with mocked functions.

use crate::load::{self, Trust};
use crate::out::line;
use crate::test_case::{self, Case, Mocks, Test, lock};
use crate::{fill, host, maps};
use anyhow::{Context, Result, ensure};
use bpf_runtime::{
    MapSet,
    describe::{HostContext, HostContextBuff},
    observe::RecorderOptions,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use toml::{Table, Value};

#[derive(clap::Args)]
pub(crate) struct HostArgs {
    /// Run the program on the context of this host, as its service described it (`Linker::describe`), with mocks of
    /// its functions.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["data", "ctx", "headroom", "frag_size", "out", "perf_map", "jitdump", "gdb"])]
    host: Option<PathBuf>,
    #[command(flatten)]
    mocks: MockArgs,
    /// Write the last runs to a recording, which `bpf replay` repeats.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// The context of a run, and the results of mocked functions.
#[derive(clap::Args)]
pub(crate) struct MockArgs {
    /// A field of the host's context: a number, an array, `{ hex = "…" }`, or text. All others are zero or empty.
    #[arg(long, value_name = "NAME=VALUE")]
    field: Vec<Given>,
    /// The result of the next call of a function of the host: a number, or the text with which it fails. The last
    /// one of each function is repeated; without any it returns 0.
    #[arg(long, value_name = "NAME=VALUE")]
    result: Vec<Given>,
}

/// A name and its value: one of TOML, or else text.
#[derive(Clone)]
struct Given {
    name: String,
    value: Value,
}

impl FromStr for Given {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Given> {
        let (name, value) = text.split_once('=').context("expected NAME=VALUE")?;
        let parsed = format!("value = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
        Ok(Given { name: name.to_owned(), value: parsed.unwrap_or_else(|| Value::String(value.to_owned())) })
    }
}

/// The effects of a program on its host.
#[derive(Serialize)]
pub(crate) struct Effects {
    /// The fields of the context after the last run.
    context: BTreeMap<String, Value>,
    /// The calls of functions of the host in the last run, in order.
    calls: Vec<String>,
}

impl HostArgs {
    pub(crate) fn file(&self) -> Option<&Path> {
        self.host.as_deref()
    }
}

impl MockArgs {
    /// The case of a test file with this context and these results.
    pub(crate) fn case(&self) -> Result<Case> {
        let (mut context, mut functions) = (Table::new(), Table::new());
        for Given { name, value } in &self.field {
            let before = context.insert(name.clone(), value.clone());
            ensure!(before.is_none(), "--field {name} is given twice");
        }
        for Given { name, value } in &self.result {
            let results = functions.entry(name.clone()).or_insert_with(|| Value::Array(Vec::new()));
            results.as_array_mut().into_iter().for_each(|results| results.push(value.clone()));
        }
        let run = Table::from_iter([("context".to_owned(), Value::Table(context))]);
        let case = Table::from_iter([
            ("name".to_owned(), Value::String("run".to_owned())),
            ("functions".to_owned(), Value::Table(functions)),
            ("run".to_owned(), Value::Array(vec![Value::Table(run)])),
        ]);
        Ok(toml::from_str(&toml::to_string(&case)?)?)
    }
}

/// The program to run, and how often.
pub(crate) struct Job<'a> {
    pub(crate) engine: &'a load::EngineArgs,
    pub(crate) loader: &'a load::ObjectArgs,
    pub(crate) program: Option<&'a str>,
    pub(crate) trust: Trust,
    pub(crate) fill: &'a fill::FillArgs,
    pub(crate) repeat: u32,
}

/// The results of all runs.
pub(crate) struct Outcome {
    pub(crate) program: String,
    /// Number of runs that returned each value.
    pub(crate) returned: BTreeMap<u64, u64>,
    pub(crate) spent: Duration,
    pub(crate) maps: Vec<maps::Dump>,
    pub(crate) effects: Effects,
}

impl Job<'_> {
    /// Runs the program of an object on one context of this host.
    pub(crate) fn run(&self, object: &Path, host: &Path, args: &HostArgs) -> Result<Outcome> {
        let host = host::read(host)?;
        let engine = load::host_engine(self.engine, &host, false)?;
        let object = load::object_for(object, self.loader)?;
        let name = load::choose(&object, self.program)?;
        let case = args.mocks.case()?;
        let test = Test { engine: &engine, host: &host, object: &object, program: name, case: &case, line: &|_| 0 };
        let mocks = Arc::new(Mutex::new(Mocks::default()));
        let linker = test.linker(&mocks)?;
        lock(&mocks).begin(&test, &BTreeMap::new())?;
        let loader = load::loader::<HostContext>(&linker, engine.config().get_mode(), self.trust);
        let loader = match self.trust {
            // The host's settings are those of its verifier.
            Trust::Unverified => loader,
            Trust::Verified | Trust::Checked | Trust::Privileged | Trust::Contained => host.features.apply(loader),
        };
        let maps = MapSet::for_object(&engine, &object)?.check_offered(&host)?;
        let loader = loader.recordable(args.record.is_some());
        let instance = loader.only(&[name]).object(&object, maps)?;
        let program = instance.program::<HostContext>(name)?;
        fill::put(&self.fill.read()?, &instance)?;
        let mut rings = maps::Rings::open(&engine, instance.maps())?;
        let recorder = args.record.as_ref().map(|_| program.recorder(RecorderOptions::default()));
        let mut recorder = recorder.transpose()?;
        let fields = &case.run.first().context("a case without a run")?.get_ref().context;
        let (mut returned, mut spent, mut context) = (BTreeMap::new(), Duration::ZERO, HostContextBuff::new());
        for round in 0..self.repeat {
            context = test_case::context(fields)?;
            lock(&mocks).begin_run(None);
            let start = Instant::now();
            let result = match &mut recorder {
                Some(recorder) => recorder.run(&mut (), &mut context),
                None => test_case::poll(&program, &mut context)?,
            };
            spent += start.elapsed();
            if let (Some(recorder), Some(path)) = (&recorder, &args.record)
                && (result.is_err() || round + 1 == self.repeat)
            {
                std::fs::write(path, recorder.save()).with_context(|| format!("cannot write {}", path.display()))?;
            }
            *returned.entry(result?).or_insert(0) += 1;
            rings.drain();
        }
        let after = context.fields().iter().map(|field| {
            let bytes = context.get(&field.name).unwrap_or_default();
            (field.name.clone(), test_case::field_value(&field.ty, &bytes))
        });
        let effects = Effects { context: after.collect(), calls: lock(&mocks).shown() };
        let maps = instance.maps().map(|map| maps::dump(map, &rings, &object)).collect();
        Ok(Outcome { program: name.to_owned(), returned, spent, maps, effects })
    }
}

pub(crate) fn print(effects: &Effects) -> Result<()> {
    line!("context:")?;
    effects.context.iter().try_for_each(|(name, value)| line!("  {name} = {value}"))?;
    if !effects.calls.is_empty() {
        line!("calls:")?;
        effects.calls.iter().try_for_each(|call| line!("  {call}"))?;
    }
    Ok(())
}
