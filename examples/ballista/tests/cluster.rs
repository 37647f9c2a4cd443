//! A scheduler and two executors on loopback: queries give the results of one process, and a refusal names its reason.

use bpf_example_ballista::{Kind, PRICED, Plugin, Plugins, Terms, client, executor, scheduler};
use bpf_example_datafusion::{DISTINCT, Distinct, Rows, SCORE, Score};
use bpf_runtime::{Caller, Config, Engine, HelperError, Linker, verify::Proofs};
use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::datasource::MemTable;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use std::net::SocketAddr;
use std::sync::Arc;
use tempfile::TempDir;

/// Number of files of the table. Each is a partition, so a query has a task for each.
const FILES: usize = 8;

type Row = (Option<i64>, Option<i64>, i64);

/// Rows with an amount, an hour and a shop; some amounts and hours are null.
fn rows(count: u64) -> Vec<Row> {
    let mut state = 7u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) % below) as i64
    };
    let row = |_| {
        let amount = (random(8) != 0).then(|| if random(3) == 0 { random(30) * 10000 } else { random(200_000) });
        (amount, (random(10) != 0).then(|| random(24)), random(5))
    };
    (0..count).map(row).collect()
}

/// The rows as Parquet files.
async fn files(rows: &[Row]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (i, rows) in rows.chunks(rows.len().div_ceil(FILES)).enumerate() {
        let column = |of: fn(&Row) -> Option<i64>| Arc::new(rows.iter().map(of).collect::<Int64Array>()) as ArrayRef;
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("amount", column(|row| row.0), true),
            ("hour", column(|row| row.1), true),
            ("shop", column(|row| Some(row.2)), true),
        ])
        .unwrap();
        let table = Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap());
        let session = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
        let path = folder.path().join(format!("{i}.parquet"));
        let options = DataFrameWriteOptions::new().with_single_file_output(true);
        session.read_table(table).unwrap().write_parquet(path.to_str().unwrap(), options, None).await.unwrap();
    }
    folder
}

async fn register(session: &SessionContext, files: &TempDir) {
    let path = files.path().to_str().unwrap();
    session.register_parquet("payments", path, ParquetReadOptions::default()).await.unwrap();
}

/// Thousandths, by the hour.
fn rate(hour: u64) -> u64 {
    1000 + hour * 7 % 50
}

/// An engine for programs of strangers, whose programs may call `rate`, or find no such function.
fn host(rates: bool) -> (Engine, Linker<()>) {
    let engine = Engine::new(Config::untrusted()).unwrap();
    let mut linker = Linker::new(&engine);
    if rates {
        let rate = |_: &mut Caller<'_, ()>, hour: u64| -> Result<u64, HelperError> { Ok(rate(hour)) };
        linker.func(1001, "rate", rate).unwrap();
    }
    (engine, linker)
}

fn plugins(executor: &str, rates: bool, terms: Terms) -> Arc<Plugins> {
    let (engine, linker) = host(rates);
    Arc::new(Plugins::new(executor, &engine, linker, terms))
}

/// Starts a scheduler, and an executor for each of these sets of plug-ins.
async fn cluster(executors: &[Arc<Plugins>]) -> SocketAddr {
    let scheduler = scheduler().await.unwrap();
    for plugins in executors {
        executor(scheduler, 1, plugins).await.unwrap();
    }
    scheduler
}

/// A scalar function with a proof.
fn priced() -> Plugin {
    let (engine, linker) = host(true);
    Plugin::scalar("priced", PRICED).constant("fee", &3u64.to_ne_bytes()).prove(&linker, &engine).unwrap()
}

/// An aggregate with proofs.
fn distinct() -> Plugin {
    let (engine, linker) = host(true);
    Plugin::aggregate("about_distinct", DISTINCT).prove(&linker, &engine).unwrap()
}

/// A scalar function without a proof.
fn score() -> Plugin {
    Plugin::scalar("score", SCORE).constant("large", &100_000i64.to_ne_bytes())
}

async fn table(session: &SessionContext, sql: &str) -> Result<String, String> {
    let frame = session.sql(sql).await.map_err(|error| error.to_string())?;
    let batches = frame.collect().await.map_err(|error| error.to_string())?;
    Ok(pretty_format_batches(&batches).unwrap().to_string())
}

/// Returns the error that the client of a refused query gets.
async fn refusal(executors: &[Arc<Plugins>], plugin: Plugin) -> String {
    let files = files(&rows(100)).await;
    let sql = match plugin.kind() {
        Kind::Aggregate => format!("SELECT {}(amount) FROM payments", plugin.function),
        Kind::Scalar | Kind::Unknown => format!("SELECT max({}(amount, hour)) FROM payments", plugin.function),
    };
    let session = client(cluster(executors).await, FILES, &[plugin]).await.unwrap();
    register(&session, &files).await;
    table(&session, &sql).await.unwrap_err()
}

const QUERIES: [&str; 6] = [
    "SELECT amount, hour, priced(amount, hour) AS price FROM payments WHERE priced(amount, hour) % 7 = 0 ORDER BY 1, 2",
    "SELECT shop, count(*) AS rows, sum(priced(amount, hour)) AS sum, about_distinct(amount) AS amounts FROM payments \
     GROUP BY shop ORDER BY shop",
    "SELECT priced(amount, hour) / 50000 AS price, about_distinct(hour) AS hours FROM payments GROUP BY 1 ORDER BY 1",
    "SELECT about_distinct(amount) AS amounts FROM payments WHERE shop > 9",
    "SELECT count(*) AS rows FROM payments WHERE priced(amount, 3) > priced(1000, hour)",
    "SELECT a.shop, max(priced(a.amount, b.hour)) AS price FROM payments a JOIN payments b \
     ON priced(a.amount, a.hour) = b.amount GROUP BY 1 ORDER BY 1",
];

/// Registers the functions in this process without a plan that carries them.
fn in_one_process(session: &SessionContext) {
    let (engine, linker) = host(true);
    let mut object = bpf_runtime::Object::parse(PRICED).unwrap();
    object.set_global("fee", &3u64.to_ne_bytes()).unwrap();
    let maps = bpf_runtime::MapSet::for_object(&engine, &object).unwrap();
    let program = linker.load::<Rows>(&object, maps).unwrap().program("priced").unwrap();
    let priced = ScalarUDF::new_from_impl(Score::of(&engine, program).unwrap());
    session.register_udf(priced.with_aliases(["priced"]));
    session.register_udaf(AggregateUDF::new_from_impl(Distinct::load(&engine, DISTINCT).unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_gives_what_one_process_gives() {
    let rows = rows(10_000);
    let files = files(&rows).await;
    let alone = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(FILES));
    register(&alone, &files).await;
    in_one_process(&alone);

    // Both executors check proofs, and search for none.
    let executors = ["a", "b"].map(|name| plugins(name, true, Terms::default()));
    let session = client(cluster(&executors).await, FILES, &[priced(), distinct()]).await.unwrap();
    register(&session, &files).await;
    for sql in QUERIES {
        let (expected, found) = (table(&alone, sql).await.unwrap(), table(&session, sql).await.unwrap());
        assert!(expected.lines().count() > 4, "{sql}\n{expected}");
        assert_eq!(found, expected, "{sql}");
    }
    // The expected prices are computed in Rust.
    let found = session.sql("SELECT priced(amount, hour) FROM payments").await.unwrap().collect().await.unwrap();
    let mut found: Vec<Option<i64>> =
        found.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().iter()).collect();
    let price = |(amount, hour, _): &Row| Some((amount.as_ref()? * (rate((*hour)? as u64) as i64 + 3)) / 1000);
    let mut expected: Vec<Option<i64>> = rows.iter().map(price).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);

    // A task goes to the executor that asks first. Each executor has had a task by now, or will have one soon.
    for _ in 0..100 {
        if executors.iter().all(|plugins| plugins.compiled() == 2) {
            break;
        }
        table(&session, QUERIES[1]).await.unwrap();
    }
    // Each executor compiled each plug-in once.
    assert_eq!(executors.each_ref().map(|plugins| plugins.compiled()), [2, 2]);
    // A plug-in with other constants has another digest.
    let (engine, linker) = host(true);
    let other = Plugin::scalar("priced", PRICED).prove(&linker, &engine).unwrap();
    assert_ne!(other.digest(), priced().digest());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terms_may_do_without_proofs() {
    let terms = Terms { proofs: Proofs::Ignore, ..Terms::default() };
    let executors = ["a", "b"].map(|name| plugins(name, false, terms.clone()));
    let files = files(&rows(2000)).await;
    let session = client(cluster(&executors).await, FILES, &[score()]).await.unwrap();
    register(&session, &files).await;
    let alone = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(FILES));
    register(&alone, &files).await;
    let (engine, _) = host(false);
    alone.register_udf(ScalarUDF::new_from_impl(Score::load(&engine, SCORE, 100_000).unwrap()));
    let sql = "SELECT score(amount, hour) AS score, count(*) FROM payments GROUP BY 1 ORDER BY 1";
    let (expected, found) = (table(&alone, sql).await.unwrap(), table(&session, sql).await.unwrap());
    assert_eq!(found, expected);
    assert!(expected.lines().count() > 8, "{expected}");
    // Only executors compute the functions, even of constant arguments.
    assert!(table(&session, "SELECT score(200000, 3)").await.unwrap().contains("900"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_says_who_and_why() {
    let strict = || ["a", "b"].map(|name| plugins(name, true, Terms::default()));
    let said = |error: &str, parts: &[&str]| {
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?} of {error}");
        assert!(error.contains("executor `a`") || error.contains("executor `b`"), "{error}");
    };
    // The plug-in has no proof.
    let plugin = score();
    let error = refusal(&strict(), plugin.clone()).await;
    said(&error, &["refuses the function `score`", &plugin.digest().to_string(), "program `score`", "proof"]);
    // The proof is for other constants.
    let mut other = priced();
    other.constants[0].value = 4u64.to_ne_bytes().to_vec();
    said(&refusal(&strict(), other).await, &["program `priced`", "the contents of its constant maps"]);
    // The executors lack a host function that the program calls.
    let without = ["a", "b"].map(|name| plugins(name, false, Terms { proofs: Proofs::Ignore, ..Terms::default() }));
    said(&refusal(&without, priced()).await, &["refuses the function `priced`", "rate"]);
    // The terms limit the size of an object, and the memory of its plug-in.
    let small = ["a", "b"].map(|name| plugins(name, true, Terms { object_bytes: 1000, ..Terms::default() }));
    said(&refusal(&small, priced()).await, &["at most 1000"]);
    let poor = ["a", "b"].map(|name| plugins(name, true, Terms { memory: 64, ..Terms::default() }));
    said(&refusal(&poor, distinct()).await, &["about_distinct", "of the 64 that"]);
    // The object is cut off, or is another function's.
    let mut half = priced();
    half.object.truncate(1000);
    said(&refusal(&strict(), half).await, &["refuses the function `priced`"]);
    let wrong = Plugin { kind: Kind::Scalar.into(), function: "add".into(), ..distinct() };
    said(&refusal(&strict(), wrong).await, &["refuses the function `add`"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verdicts_are_kept_and_make_room() {
    let terms = Terms { kept: 1, ..Terms::default() };
    let executors = [plugins("a", true, terms)];
    let files = files(&rows(100)).await;
    let session = client(cluster(&executors).await, 1, &[priced(), distinct(), score()]).await.unwrap();
    register(&session, &files).await;
    let ask = async |function: &str| table(&session, &format!("SELECT max({function}) FROM payments")).await;
    for expected in [1, 1] {
        ask("priced(amount, hour)").await.unwrap();
        assert_eq!(executors[0].compiled(), expected);
    }
    // The verdict of a refusal replaces the kept one, too, and is not counted as a compilation.
    ask("score(amount, hour)").await.unwrap_err();
    assert_eq!(executors[0].compiled(), 1);
    ask("priced(amount, hour)").await.unwrap();
    assert_eq!(executors[0].compiled(), 2);
}
