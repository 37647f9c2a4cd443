//! The functions in queries: results, nulls, partitions, what is refused, and an exchange under queries.

use bpf_example_datafusion::{DISTINCT, Distinct, REGISTERS, Rows, SCORE, Score, Sketch, estimate};
use bpf_runtime::{BpfContext, Config, Engine};
use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{Int64Type, UInt64Type};
use datafusion::datasource::MemTable;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};
use datafusion::prelude::{SessionConfig, SessionContext};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Row = (Option<i64>, Option<i64>, i64);

fn engine() -> Engine {
    Engine::new(Config::new()).unwrap()
}

/// Amounts, hours, and shops: with nulls, negative amounts, both sides of every limit.
fn rows(count: u64) -> Vec<Row> {
    let mut state = 7u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let row = |_| {
        let amount = match random(8) {
            0 => None,
            1 => Some(random(30) as i64 * 10000),
            2 => Some(-(random(1000) as i64)),
            3 => Some(100000 + random(3) as i64 - 1),
            _ => Some(random(200000) as i64),
        };
        (amount, (random(10) != 0).then(|| random(24) as i64), random(5) as i64)
    };
    (0..count).map(row).collect()
}

/// A table of some partitions, whose batches have all kinds of lengths.
fn session(rows: &[Row], score: &Score, distinct: &Distinct) -> SessionContext {
    let batch = |rows: &[Row]| {
        let column = |of: fn(&Row) -> Option<i64>| Arc::new(rows.iter().map(of).collect::<Int64Array>()) as ArrayRef;
        RecordBatch::try_from_iter_with_nullable([
            ("amount", column(|row| row.0), true),
            ("hour", column(|row| row.1), true),
            ("shop", column(|row| Some(row.2)), true),
        ])
        .unwrap()
    };
    let third = rows.len() / 3;
    let partitions = [&rows[..third], &rows[third..2 * third], &rows[2 * third..]];
    let partitions: Vec<Vec<RecordBatch>> =
        partitions.iter().map(|rows| rows.chunks(997).map(batch).collect()).collect();
    let table = MemTable::try_new(batch(&[]).schema(), partitions).unwrap();
    let session = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(4));
    session.register_table("payments", Arc::new(table)).unwrap();
    session.register_udf(ScalarUDF::new_from_impl(score.clone()));
    session.register_udaf(AggregateUDF::new_from_impl(distinct.clone()));
    session
}

async fn numbers(session: &SessionContext, sql: &str) -> Vec<i64> {
    let batches = session.sql(sql).await.unwrap().collect().await.unwrap();
    batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

/// Computes the expected score in Rust.
fn expected(amount: i64, hour: i64, large: i64) -> i64 {
    i64::from(amount > large) * 500 + i64::from((amount as u64).is_multiple_of(10000)) * 100 + i64::from(hour < 6) * 300
}

#[test]
fn the_header_is_what_the_host_has() {
    let header = include_str!("../batch.h");
    for context in [Rows::c_struct(), Sketch::c_struct()] {
        assert!(header.contains(context.trim()), "{context}");
    }
}

#[tokio::test]
async fn a_filter_is_what_it_is_in_rust() {
    let engine = engine();
    let (score, distinct) = (Score::load(&engine, SCORE, 100000).unwrap(), Distinct::load(&engine, DISTINCT).unwrap());
    let rows = rows(20_000);
    let session = session(&rows, &score, &distinct);
    let scored = || rows.iter().filter_map(|(amount, hour, _)| Some(expected((*amount)?, (*hour)?, 100000)));
    let mut all: Vec<i64> = scored().collect();
    let mut found =
        numbers(&session, "SELECT score(amount, hour) FROM payments WHERE score(amount, hour) IS NOT NULL").await;
    all.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, all);
    assert!([0, 100, 300, 400, 500, 600, 800, 900].iter().all(|points| all.contains(points)));
    let high = scored().filter(|points| *points > 500).count() as i64;
    let counted = numbers(&session, "SELECT count(*) FROM payments WHERE score(amount, hour) > 500").await;
    assert_eq!(counted, [high]);
    let nulls = rows.iter().filter(|row| row.0.is_none() || row.1.is_none()).count() as i64;
    assert!(nulls > 0);
    assert_eq!(numbers(&session, "SELECT count(*) FROM payments WHERE score(amount, hour) IS NULL").await, [nulls]);
    // The arguments are constants, or a constant and a column.
    assert_eq!(numbers(&session, "SELECT score(200000, 3)").await, [900]);
    let night = rows.iter().filter(|row| row.0.is_some_and(|amount| expected(amount, 2, 100000) == 800)).count() as i64;
    assert_eq!(numbers(&session, "SELECT count(*) FROM payments WHERE score(amount, 2) = 800").await, [night]);
    assert_eq!(numbers(&session, "SELECT count(score(amount, hour)) FROM payments WHERE shop > 9").await, [0]);
}

/// HyperLogLog in Rust.
fn sketch(values: impl Iterator<Item = i64>) -> u64 {
    let mut registers = vec![0u8; REGISTERS];
    for value in values {
        let mut hash = value as u64;
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51afd7ed558ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ceb9fe1a85ec53);
        hash ^= hash >> 33;
        let rank = (hash << 10 | 1 << 9).leading_zeros() as u8 + 1;
        let register = &mut registers[(hash >> 54) as usize];
        *register = (*register).max(rank);
    }
    estimate(&registers)
}

#[tokio::test]
async fn an_aggregate_is_the_same_over_all_partitions() {
    let engine = engine();
    let (score, distinct) = (Score::load(&engine, SCORE, 100000).unwrap(), Distinct::load(&engine, DISTINCT).unwrap());
    let rows = rows(60_000);
    let session = session(&rows, &score, &distinct);
    let sql = "SELECT about_distinct(amount) FROM payments GROUP BY shop ORDER BY shop";
    let batches = session.sql(sql).await.unwrap().collect().await.unwrap();
    let found: Vec<u64> =
        batches.iter().flat_map(|batch| batch.column(0).as_primitive::<UInt64Type>().values().to_vec()).collect();
    for (shop, found) in (0..5).zip(&found) {
        let amounts = || rows.iter().filter(|row| row.2 == shop).filter_map(|row| row.0);
        assert_eq!(*found, sketch(amounts()), "shop {shop}");
        let exact = amounts().collect::<HashSet<i64>>().len() as f64;
        assert!((*found as f64 - exact).abs() < exact * 0.12, "{found} for {exact}");
    }
    assert_eq!(found.len(), 5);
    let none = session.sql("SELECT about_distinct(amount) FROM payments WHERE shop > 9").await.unwrap();
    assert_eq!(none.collect().await.unwrap()[0].column(0).as_primitive::<UInt64Type>().value(0), 0);
}

#[test]
fn what_is_refused_says_where() {
    let engine = engine();
    // Both programs of the other object are on another context.
    let error = Score::load(&engine, DISTINCT, 0).unwrap_err().to_string();
    assert!(error.contains("large"), "{error}");
    let error = Distinct::load(&engine, SCORE).unwrap_err().to_string();
    assert!(error.contains("score"), "{error}");
    let score = Score::load(&engine, SCORE, 0).unwrap();
    assert!(score.replace(&SCORE[..SCORE.len() / 2], 0).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_replaced_while_queries_run() {
    let engine = engine();
    let (score, distinct) = (Score::load(&engine, SCORE, 100).unwrap(), Distinct::load(&engine, DISTINCT).unwrap());
    // One batch: it is scored by one program.
    let rows = vec![(Some(501), Some(12), 0); 2000];
    let session = session(&rows, &score, &distinct);
    let ended = AtomicBool::new(false);
    let (mut seen, mut replaced) = (HashSet::new(), 0);
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| {
            let mut replaced = 0;
            while !ended.load(Ordering::Relaxed) {
                score.replace(SCORE, if replaced % 2 == 0 { 1000 } else { 100 }).unwrap();
                replaced += 1;
            }
            replaced
        });
        let queries = async {
            for _ in 0..300 {
                seen.extend(numbers(&session, "SELECT DISTINCT score(amount, hour) FROM payments").await);
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(queries));
        ended.store(true, Ordering::Relaxed);
        replaced = replacing.join().unwrap();
    });
    assert!(replaced > 10, "{replaced}");
    assert_eq!(seen, HashSet::from([0, 500]), "each of both programs, and nothing else");
}
