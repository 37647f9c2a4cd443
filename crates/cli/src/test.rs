//! `bpf test`: runs the cases of a test file against a plug-in, outside of its service.
//!
//! Problem: a plug-in runs only in its service, so its author could test it nowhere else. Approach: the service's
//! description (`--host`) gives context, functions and limits; a file in TOML beside the plug-in gives the cases: what
//! maps hold before, what functions of the host return, the contexts of several runs in a row, and what is expected.
//!
//! Invariant: everything that the file says is checked: a name that does not exist is an error with
//! its place, and not a case that passes.

use crate::coverage::{Covered, FileReport};
use crate::load::{self, EngineArgs};
use crate::out::{self, Look, line};
use crate::test_case::{Case, Settings, Test};
use crate::{fuzz, host, input};
use anyhow::{Context, Result, anyhow, bail, ensure};
use bpf_runtime::describe::HostInterface;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use toml::Spanned;

/// Run the cases of test files. Exit status 1 if one fails.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The test files, in TOML; or in JSON, with a case on each line (*.jsonl).
    #[arg(required = true, value_name = "TESTS.toml")]
    files: Vec<PathBuf>,
    /// The host, as its service described it; in place of the one that the test files name.
    #[arg(long, value_name = "FILE.json")]
    host: Option<PathBuf>,
    /// Only cases whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Write the results as JUnit's XML, too.
    #[arg(long, value_name = "FILE.xml")]
    junit: Option<PathBuf>,
    /// Also look for inputs with which a program fails, for this number of seconds: mutations of the cases' runs.
    #[arg(long, value_name = "SECONDS")]
    fuzz: Option<u32>,
    /// Stop looking after this number of inputs of each program, whatever time that takes.
    #[arg(long, value_name = "INPUTS")]
    fuzz_inputs: Option<u64>,
    /// The seed of the mutations: equal seeds give equal inputs.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Interpret the programs, and show how often the cases executed each source line.
    #[arg(long)]
    coverage: bool,
    /// Interpret the programs, and write how often the cases executed each source line, as lcov's trace file.
    #[arg(long, value_name = "FILE.info")]
    lcov: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Args {
    fn covers(&self) -> bool {
        self.coverage || self.lcov.is_some()
    }
}

/// A test file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The object, beside the test file.
    object: PathBuf,
    /// The description of the host, beside the test file.
    host: Option<PathBuf>,
    /// The program of cases that name none.
    program: Option<String>,
    #[serde(default)]
    case: Vec<Spanned<Case>>,
    /// The results that `--fuzz` allows.
    #[serde(default)]
    fuzz: Settings,
}

/// The result of a case.
#[derive(Serialize)]
struct Outcome {
    file: String,
    line: usize,
    case: String,
    program: String,
    runs: usize,
    passed: bool,
    /// The differences from the expected results, each with its line in the test file.
    failures: Vec<String>,
}

/// The report as JSON.
#[derive(Serialize)]
struct Report<'a> {
    passed: usize,
    failed: usize,
    cases: &'a [Outcome],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    coverage: Vec<FileReport<'a>>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (mut outcomes, mut covered) = (Vec::new(), Covered::default());
    let named = args.host.as_deref().map(host::read).transpose()?;
    for path in &args.files {
        let shown = path.display().to_string();
        outcomes.extend(test_file(path, named.as_ref(), args, &mut covered).with_context(|| shown)?);
    }
    ensure!(
        !outcomes.is_empty(),
        "there is no case{}",
        if args.only.is_some() { " of that name (--only)" } else { "" }
    );
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    let passed = outcomes.len() - failed;
    if let Some(path) = &args.junit {
        std::fs::write(path, junit(&outcomes)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.covers() {
        ensure!(!covered.is_empty(), "no program has line information: compile with `clang -g`");
    }
    if let Some(path) = &args.lcov {
        covered.write(path)?;
    }
    if args.json {
        let coverage = if args.coverage { covered.report() } else { Vec::new() };
        out::json(&Report { passed, failed, cases: &outcomes, coverage })?;
    } else {
        outcomes.iter().try_for_each(print)?;
        if args.coverage {
            covered.print()?;
        }
        out::totals(count(passed), count(failed))?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The test file of this text, and the text in TOML in which its places are.
fn parse(path: &Path, text: String) -> Result<(File, String)> {
    let toml = |text: &str| toml::from_str::<File>(text).map_err(|error| anyhow!("{}", error.to_string().trim_end()));
    if path.extension().is_none_or(|extension| extension != "jsonl") {
        return Ok((toml(&text)?, text));
    }
    // The first line has the file's own keys, and each other line is a case. In TOML a case keeps its line.
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let object = |(at, line): (usize, &str)| -> Result<serde_json::Map<String, serde_json::Value>> {
        serde_json::from_str(line).with_context(|| format!("line {}", at + 1))
    };
    let head = object(lines.next().context("the first line has `object` and `host`")?)?;
    ensure!(!head.contains_key("case"), "line 1: a case has a line of its own");
    let head: Vec<_> = head.iter().map(|(key, value)| format!("{} = {}\n", quoted(key), inline(value))).collect();
    let head = head.concat();
    // For its message, which would have another line in the whole text.
    toml(&head).context("line 1")?;
    let mut cases = vec![String::new(); text.lines().count() + 1];
    for (at, line) in lines {
        cases[at] = format!("{},", inline(&object((at, line))?.into()));
    }
    cases[0].insert_str(0, "case = [");
    let text = format!("{}]\n{head}", cases.join("\n"));
    Ok((toml(&text)?, text))
}

/// A value of JSON in TOML, on one line. There is no null in TOML: the parser says so, with the line.
fn inline(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => "null".to_owned(),
        serde_json::Value::Bool(value) => value.to_string(),
        serde_json::Value::Number(value) => value.to_string(),
        serde_json::Value::String(text) => quoted(text),
        serde_json::Value::Array(values) => format!("[{}]", values.iter().map(inline).collect::<Vec<_>>().join(", ")),
        serde_json::Value::Object(table) => {
            let each = table.iter().map(|(key, value)| format!("{} = {}", quoted(key), inline(value)));
            format!("{{{}}}", each.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A string of JSON is one of TOML, but for one character that only TOML forbids.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Runs the cases of one file.
fn test_file(path: &Path, named: Option<&HostInterface>, args: &Args, covered: &mut Covered) -> Result<Vec<Outcome>> {
    let text = input::read_text(path)?;
    let (file, text) = parse(path, text)?;
    let beside = |name: &Path| path.parent().unwrap_or(Path::new("")).join(name);
    let own = match (named, &file.host) {
        (Some(_), _) => None,
        (None, Some(host)) => Some(host::read(&beside(host))?),
        (None, None) => bail!("it names no host: add `host = \"HOST.json\"`, or give one with --host"),
    };
    let Some(host) = named.or(own.as_ref()) else { bail!("there is no host") };
    let engine = load::host_engine(&args.engine, host, args.covers())?;
    let object_path = beside(&file.object);
    let object = load::object(&object_path)?;
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let line = |at: usize| ends.partition_point(|end| *end < at) + 1;
    let (mut outcomes, mut tests) = (Vec::new(), BTreeMap::<&str, Vec<Test<'_>>>::new());
    for spanned in &file.case {
        let case = spanned.get_ref();
        if args.only.as_ref().is_some_and(|only| !case.name.contains(only.as_str())) {
            continue;
        }
        let at = line(spanned.span().start);
        let place = || format!("line {at}: case `{}`", case.name);
        let program = load::choose(&object, case.program.as_deref().or(file.program.as_deref())).with_context(place)?;
        let test = Test { engine: &engine, host, object: &object, program, case, line: &line };
        let failures = test.run(covered).with_context(place)?;
        outcomes.push(Outcome {
            file: path.display().to_string(),
            line: at,
            case: case.name.clone(),
            program: program.to_owned(),
            runs: case.run.len(),
            passed: failures.is_empty(),
            failures,
        });
        tests.entry(program).or_default().push(test);
    }
    let Some(seconds) = args.fuzz else { return Ok(outcomes) };
    // Programs are interpreted, so that new instructions are seen.
    let engine = load::host_engine(&args.engine, host, true)?;
    let share = u32::try_from(tests.len()).unwrap_or(u32::MAX).max(1);
    let time = Duration::from_secs(seconds.into()) / share;
    for (program, mut tests) in tests {
        tests.iter_mut().for_each(|test| test.engine = &engine);
        let limit = fuzz::Limit { time, runs: args.fuzz_inputs, seed: args.seed };
        let found = fuzz::search(&tests, &file.fuzz, &limit).with_context(|| format!("--fuzz of `{program}`"))?;
        let failures = found.finding.map(|(text, case)| vec![text, case]).unwrap_or_default();
        outcomes.push(Outcome {
            file: path.display().to_string(),
            line: 1,
            case: format!("--fuzz of `{program}`"),
            program: program.to_owned(),
            runs: usize::try_from(found.inputs).unwrap_or(usize::MAX),
            passed: failures.is_empty(),
            failures,
        });
    }
    Ok(outcomes)
}

/// A case of a test file, for a tool that steps through it.
pub(crate) struct Given {
    pub(crate) object: PathBuf,
    pub(crate) host: HostInterface,
    pub(crate) program: String,
    pub(crate) case: Case,
    /// File, line and name of the case.
    pub(crate) place: String,
}

/// The case of this name in a test file, or the one whose name has this part; the only one, if there is no name.
pub(crate) fn case(path: &Path, name: Option<&str>) -> Result<Given> {
    let shown = path.display().to_string();
    let (file, text) = parse(path, input::read_text(path)?).with_context(|| shown.clone())?;
    let beside = |name: &Path| path.parent().unwrap_or(Path::new("")).join(name);
    let host = file.host.as_ref().with_context(|| format!("{shown}: it names no host"))?;
    let host = host::read(&beside(host))?;
    let names: Vec<String> = file.case.iter().map(|case| format!("`{}`", case.get_ref().name)).collect();
    let is_it = |case: &Spanned<Case>| name.is_none_or(|name| case.get_ref().name == name);
    let has_it = |case: &Spanned<Case>| name.is_none_or(|name| case.get_ref().name.contains(name));
    let exact = file.case.iter().position(is_it).filter(|_| name.is_some());
    let found: Vec<usize> = (0..file.case.len()).filter(|at| has_it(&file.case[*at])).collect();
    let at = match (exact, &found[..]) {
        (Some(at), _) => at,
        (None, [at]) => *at,
        (None, []) => bail!("{shown}: there is no such case; the cases: {}", names.join(", ")),
        (None, _) => bail!("{shown}: choose one with --case: {}", names.join(", ")),
    };
    let spanned = file.case.into_iter().nth(at).context("a case")?;
    let line = text[..spanned.span().start.min(text.len())].matches('\n').count() + 1;
    let case = spanned.into_inner();
    let object = beside(&file.object);
    let parsed = load::object(&object)?;
    let program = load::choose(&parsed, case.program.as_deref().or(file.program.as_deref()))?.to_owned();
    Ok(Given { object, host, program, place: format!("{shown}:{line}: case `{}`", case.name), case })
}

fn print(outcome: &Outcome) -> Result<()> {
    let Outcome { file, line, case, runs, passed, failures, .. } = outcome;
    let (look, word) = if *passed { (Look::Good, "pass") } else { (Look::Bad, "FAIL") };
    out::parts(&[
        (look, format_args!("{word}")),
        (Look::Plain, format_args!("  {case}")),
        (Look::Aside, format_args!("  {file}:{line}, {runs} runs")),
    ])?;
    for failure in failures {
        failure.lines().try_for_each(|text| line!("      {text}"))?;
    }
    Ok(())
}

/// The results as JUnit's XML.
fn junit(outcomes: &[Outcome]) -> String {
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string cannot fail.
    let _ = writeln!(xml, "<testsuite name=\"bpf test\" tests=\"{}\" failures=\"{failed}\">", outcomes.len());
    for Outcome { file, line, case, program, passed, failures, .. } in outcomes {
        let (class, name, file) = (escaped(program), escaped(case), escaped(file));
        let _ = write!(xml, "  <testcase classname=\"{class}\" name=\"{name}\" file=\"{file}\" line=\"{line}\"");
        if *passed {
            xml.push_str("/>\n");
        } else {
            let text = escaped(&failures.join("\n"));
            let _ = writeln!(xml, ">\n    <failure>{text}</failure>\n  </testcase>");
        }
    }
    xml.push_str("</testsuite>\n");
    xml
}

/// Text in XML, of which only some control characters may be part.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
