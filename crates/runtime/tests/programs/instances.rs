//! Instances behave as loads over every object of the repository: the errors of loading, results, errors of runs,
//! bytes, maps and counts are equal. (`samples` compares the shared sample objects.)
//!
//! An object is loaded, compiled for an instance, and that module is read back from its bytes. Programs that ask for
//! the time or for random numbers do not run. A few depend on hash seeds or timers: where outcomes differ, both are
//! made again, and must meet at some time. Objects of which no two loads agree are counted.

use crate::samples::repeatable;
use crate::support::ways::read_back;
use bpf_runtime::{
    Account, Config, Context, Engine, Instance, Linker, LoadError, MapSet, Mode, Object, Program, Raw, RunError,
    code::Arch,
    maps::{Map, MapType},
    metrics::ProgramMetrics,
    net::{SkBuff, Skb, Xdp, XdpBuff},
};
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// Folders of objects, from the package's.
const FOLDERS: [&str; 10] = [
    "tests/objects",
    "tests/objects/net",
    "../cli/tests/objects",
    "../object/tests/objects",
    "../verifier/tests/precision",
    "../../examples",
    "../../examples/datafusion",
    "../../examples/policy",
    "../../examples/service",
    "../../examples/tenants",
];
/// Taken back-edges and calls of one run.
const BUDGET: u64 = 2000;
/// How often two different outcomes are made again.
const ATTEMPTS: usize = 6;

/// Everything that a host sees of an object's programs.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    /// By program and input: r0, or how the run ended, and the bytes afterwards.
    runs: Vec<OneRun>,
    /// The elements of each map, ascending.
    maps: Vec<(String, Elements)>,
    /// By program: versions, bytes of code, runs, and runs that were stopped.
    counts: Vec<Counts>,
}

/// Program, length of the input, result, bytes.
type OneRun = (String, usize, Result<u64, String>, Vec<u8>);
/// Keys and values.
type Elements = Vec<(Vec<u8>, Vec<u8>)>;
type Counts = (String, u64, u64, u64, bpf_runtime::metrics::Stops);

type Run<C> = fn(&Program<C, ()>, &mut Vec<u8>) -> Result<u64, RunError>;

/// Returns the elements of a map, but for numbers of inner maps, each of which exists once.
fn elements(map: &Map) -> (String, Elements) {
    let mut elements: Elements = map.iter().filter_map(Result::ok).collect();
    if matches!(map.map_type(), MapType::ArrayOfMaps | MapType::HashOfMaps) {
        elements.iter_mut().for_each(|(_, value)| value.fill(0));
    }
    elements.sort();
    (map.name().to_owned(), elements)
}

/// Runs each program of an instance on a few inputs. The instance is counted in this account, and nothing else is.
fn outcome<C: Context>(object: &Object, instance: &Instance<()>, account: &Account, run: Run<C>) -> Outcome {
    let mut names: Vec<String> =
        instance.programs().filter(|name| repeatable(object, name)).map(str::to_owned).collect();
    names.sort_unstable();
    let mut runs = Vec::new();
    for name in names {
        let Ok(program) = instance.program::<C>(&name) else { continue };
        for len in [0, 1, 14, 64, 300] {
            let mut bytes: Vec<u8> = (0..len).map(|i| (i * 37 % 251) as u8).collect();
            let result = run(&program, &mut bytes).map_err(|error| error.to_string());
            runs.push((name.clone(), len, result, bytes));
        }
    }
    let mut maps: Vec<_> = instance.maps().map(elements).collect();
    maps.sort();
    let mut programs = instance.engine().snapshot().programs;
    programs.retain(|program| program.account.as_deref() == Some(account.name()));
    let count = |of: ProgramMetrics| (of.program, of.versions, of.code_bytes, of.runs, of.stops);
    Outcome { runs, maps, counts: programs.into_iter().map(count).collect() }
}

/// One engine. Each instance is counted in an account of its own name, as dropped ones may be counted for a while.
struct Host {
    linker: Linker<()>,
    engine: Engine,
    accounts: Cell<u32>,
}

impl Host {
    fn new(mode: Mode) -> Host {
        let config = Config::new().mode(mode).metrics(true).budget(BUDGET).max_slots(4);
        let engine = Engine::new(config).unwrap();
        Host { linker: Linker::new(&engine), engine, accounts: Cell::new(0) }
    }

    fn account(&self) -> Account {
        self.accounts.set(self.accounts.get() + 1);
        self.engine.account(&format!("account {}", self.accounts.get()), 1 << 28)
    }

    fn load<C: Context>(&self, object: &Object, run: Run<C>) -> Result<Outcome, LoadError> {
        let account = self.account();
        let loader = self.linker.loader::<C>().assume_layout(true).account(&account);
        let instance = loader.object(object, MapSet::for_object(&self.engine, object)?)?;
        Ok(outcome(object, &instance, &account, run))
    }

    fn instance<C: Context>(&self, object: &Object, run: Run<C>) -> Result<[Outcome; 2], LoadError> {
        let module = self.linker.loader::<C>().assume_layout(true).compile(object)?;
        let of = |module: &bpf_runtime::Module<C, ()>| {
            let account = self.account();
            module.instance().account(&account).make().map(|instance| outcome(object, &instance, &account, run))
        };
        let first = of(&module)?;
        Ok([first, of(&read_back(&self.linker, module))?])
    }
}

/// The result of comparing an object on one context.
#[derive(PartialEq, Eq, Debug)]
enum Verdict {
    Refused,
    Equal {
        runs: usize,
        stopped: usize,
    },
    /// No two loads agree either.
    Unrepeatable,
}

fn compare<C: Context>(host: &Host, path: &Path, object: &Object, run: Run<C>) -> Verdict {
    let what = path.display();
    let (mut loads, mut instances) = (Vec::new(), Vec::new());
    for _ in 0..ATTEMPTS {
        match (host.load(object, run), host.instance(object, run)) {
            (Err(load), Err(instance)) => {
                assert_eq!(load.to_string(), instance.to_string(), "{what}: errors of load and module");
                return Verdict::Refused;
            }
            (Err(error), Ok(_)) => panic!("{what}: not loaded, but made an instance of: {error}"),
            (Ok(_), Err(error)) => panic!("{what}: loaded, but not made an instance of: {error}"),
            (Ok(load), Ok(made)) => {
                loads.push(load);
                instances.push(made);
            }
        }
        let met = |which: usize| loads.iter().find(|load| instances.iter().any(|made| made[which] == **load));
        if let (Some(load), Some(_)) = (met(0), met(1)) {
            let stopped = load.runs.iter().filter(|run| run.2.is_err()).count();
            return Verdict::Equal { runs: load.runs.len(), stopped };
        }
    }
    let repeats = loads.iter().enumerate().any(|(i, load)| loads[i + 1..].contains(load));
    assert!(!repeats, "{what}: a load: {:?}\nan instance, and one read back: {:?}", loads[0], instances[0]);
    Verdict::Unrepeatable
}

fn objects() -> Vec<(PathBuf, Object)> {
    let folders = FOLDERS.iter().map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
    let mut paths: Vec<PathBuf> =
        folders.flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "o"));
    paths.sort();
    let parsed = paths.into_iter().map(|path| {
        let object = Object::parse(&std::fs::read(&path).unwrap());
        (path, object)
    });
    // Tests of the parser have objects that are none.
    parsed.filter_map(|(path, object)| Some((path, object.ok()?))).collect()
}

#[test]
fn instances_behave_as_loads_over_all_objects() {
    let raw: Run<Raw> = |program, bytes| program.run(&mut (), bytes);
    let xdp: Run<Xdp> = |program, bytes| program.run(&mut (), &mut XdpBuff::new(bytes));
    let skb: Run<Skb> = |program, bytes| program.run(&mut (), &mut SkBuff::new(bytes));
    // Under an emulator, which takes minutes to verify them all, every fourth one.
    let step = if bpf_testkit::emulated() { 4 } else { 1 };
    let objects: Vec<_> = objects().into_iter().step_by(step).collect();
    for mode in [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit)) {
        let host = Host::new(mode);
        let (mut equal, mut refused, mut runs, mut stopped, mut unrepeatable) = (0, 0, 0, 0, Vec::new());
        for (path, object) in &objects {
            let verdicts = [
                compare(&host, path, object, raw),
                compare(&host, path, object, xdp),
                compare(&host, path, object, skb),
            ];
            for verdict in verdicts {
                match verdict {
                    Verdict::Refused => refused += 1,
                    Verdict::Equal { runs: of, stopped: ended } => {
                        (equal, runs, stopped) = (equal + 1, runs + of, stopped + ended);
                    }
                    Verdict::Unrepeatable => unrepeatable.push(path),
                }
            }
        }
        println!(
            "{mode:?}: {} objects on three contexts: {equal} equal with {runs} runs, {stopped} of them stopped; {refused} \
             refused; not repeatable: {unrepeatable:?}",
            objects.len()
        );
        assert!(objects.len() > 100 / step && equal > 40 / step && refused > 40 / step && runs > 500 / step);
        assert!(unrepeatable.len() <= 3, "{unrepeatable:?}");
    }
}
