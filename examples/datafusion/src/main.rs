//! A query with both functions; `--measure` compares them with the same in Rust, and in SQL.

use bpf_example_datafusion::{DISTINCT, Distinct, SCORE, Score};
use bpf_runtime::{Config, Engine};
use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::datasource::MemTable;
use datafusion::logical_expr::{AggregateUDF, ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::{SessionConfig, SessionContext};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::sync::Arc;

const ROWS: u64 = 1 << 20;
const ROUNDS: usize = 31;

/// Computes the score of score.c in Rust.
fn in_rust(columns: &[ColumnarValue]) -> datafusion::common::Result<ColumnarValue> {
    let columns = ColumnarValue::values_to_arrays(columns)?;
    let (amount, hour) = (columns[0].as_primitive::<Int64Type>(), columns[1].as_primitive::<Int64Type>());
    let points = |amount: i64, hour: i64| {
        let round = (amount as u64).is_multiple_of(10000);
        i64::from(amount > 100000) * 500 + i64::from(round) * 100 + i64::from(hour < 6) * 300
    };
    let score: Int64Array = datafusion::arrow::compute::binary(amount, hour, points)?;
    Ok(ColumnarValue::Array(Arc::new(score)))
}

fn session() -> Result<SessionContext, Box<dyn Error + Send + Sync>> {
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        i64::try_from((state >> 33) % below).unwrap_or_default()
    };
    let mut batches = Vec::new();
    for _ in 0..ROWS / 8192 {
        let amount: Int64Array = (0..8192).map(|_| Some(random(200_000))).collect();
        let hour: Int64Array = (0..8192).map(|_| Some(random(24))).collect();
        batches.push(RecordBatch::try_from_iter([
            ("amount", Arc::new(amount) as ArrayRef),
            ("hour", Arc::new(hour) as ArrayRef),
        ])?);
    }
    let table = MemTable::try_new(batches[0].schema(), vec![batches])?;
    // One thread, whose time is taken.
    let session = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    session.register_table("payments", Arc::new(table))?;
    let engine = Engine::new(Config::new())?;
    session.register_udf(ScalarUDF::new_from_impl(Score::load(&engine, SCORE, 100_000)?));
    session.register_udaf(AggregateUDF::new_from_impl(Distinct::load(&engine, DISTINCT)?));
    let arguments = vec![DataType::Int64, DataType::Int64];
    session.register_udf(create_udf(
        "score_in_rust",
        arguments,
        DataType::Int64,
        Volatility::Immutable,
        Arc::new(in_rust),
    ));
    Ok(session)
}

/// CPU time of this thread, in milliseconds.
fn thread_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

async fn measure(session: &SessionContext) -> Result<(), Box<dyn Error + Send + Sync>> {
    const SCORED: &str = "(CASE WHEN amount > 100000 THEN 500 ELSE 0 END + CASE WHEN amount % 10000 = 0 THEN 100 ELSE 0 END \
                          + CASE WHEN hour < 6 THEN 300 ELSE 0 END)";
    let queries = [
        ("no function: max(hour)", "SELECT max(hour), max(amount) FROM payments".to_owned()),
        ("score: BPF", "SELECT max(score(amount, hour)), max(amount) FROM payments".to_owned()),
        ("score: Rust", "SELECT max(score_in_rust(amount, hour)), max(amount) FROM payments".to_owned()),
        ("score: SQL", format!("SELECT max({SCORED}), max(amount) FROM payments")),
        ("distinct: BPF", "SELECT about_distinct(amount) FROM payments".to_owned()),
        ("distinct: DataFusion's approx_distinct", "SELECT approx_distinct(amount) FROM payments".to_owned()),
    ];
    let mut times = vec![Vec::new(); queries.len()];
    for round in 0..ROUNDS {
        for turn in 0..queries.len() {
            // Another order each round.
            let which = (turn * 5 + round) % queries.len();
            let start = thread_time();
            session.sql(&queries[which].1).await?.collect().await?;
            times[which].push(thread_time() - start);
        }
    }
    println!("{:<40} {:>12}", format!("{ROWS} rows, medians of {ROUNDS}"), "ns a row");
    for ((name, _), times) in queries.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{name:<40} {:>12.2}", times[ROUNDS / 2] * 1e6 / ROWS as f64);
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let session = session()?;
    if std::env::args().any(|arg| arg == "--measure") {
        return measure(&session).await;
    }
    let sql = "SELECT score(amount, hour) AS score, count(*) AS payments, about_distinct(amount) AS amounts \
               FROM payments WHERE score(amount, hour) > 300 GROUP BY 1 ORDER BY 1";
    println!("{sql}\n{}", pretty_format_batches(&session.sql(sql).await?.collect().await?)?);
    Ok(())
}
