//! A scheduler, two executors and a query on loopback; and what a client hears of an executor that refuses.

use bpf_example_ballista::{PRICED, Plugin, Plugins, Terms, client, executor, scheduler};
use bpf_example_datafusion::{DISTINCT, SCORE};
use bpf_runtime::{Caller, Config, Engine, HelperError, Linker};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use std::error::Error;
use std::sync::Arc;

/// An engine and the functions that programs may call. Authors need the same functions to prove their programs.
fn host() -> Result<(Engine, Linker<()>), Box<dyn Error + Send + Sync>> {
    let engine = Engine::new(Config::untrusted())?;
    let mut linker = Linker::new(&engine);
    let rate = |_: &mut Caller<'_, ()>, hour: u64| -> Result<u64, HelperError> { Ok(1000 + hour * 7 % 50) };
    linker.func(1001, "rate", rate)?;
    Ok((engine, linker))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // Four files of a hundred thousand payments.
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_str().ok_or("the temporary folder's name is no text")?;
    let writer = SessionContext::new();
    for file in 0..4 {
        let sql = format!(
            "SELECT value * 7919 % 200000 AS amount, value * 31 % 24 AS hour, value * 17 % 5 AS shop \
             FROM generate_series({}, {}) AS t(value)",
            file * 25_000,
            file * 25_000 + 24_999
        );
        let options = DataFrameWriteOptions::new().with_single_file_output(true);
        writer.sql(&sql).await?.write_parquet(&format!("{path}/{file}.parquet"), options, None).await?;
    }

    let address = scheduler().await?;
    for name in ["a", "b"] {
        let (engine, linker) = host()?;
        executor(address, 1, &Arc::new(Plugins::new(name, &engine, linker, Terms::default()))).await?;
    }

    let (engine, linker) = host()?;
    let functions = [
        Plugin::scalar("priced", PRICED).constant("fee", &3u64.to_ne_bytes()).prove(&linker, &engine)?,
        Plugin::aggregate("about_distinct", DISTINCT).prove(&linker, &engine)?,
        // This plug-in carries no proof.
        Plugin::scalar("score", SCORE),
    ];
    let session = client(address, 4, &functions).await?;
    session.register_parquet("payments", path, ParquetReadOptions::default()).await?;
    let sql = "SELECT shop, sum(priced(amount, hour)) AS sum, about_distinct(amount) AS amounts \
               FROM payments GROUP BY 1 ORDER BY 1";
    println!("{sql}\n{}", pretty_format_batches(&session.sql(sql).await?.collect().await?)?);
    let sql = "SELECT max(score(amount, hour)) FROM payments";
    match session.sql(sql).await?.collect().await {
        Ok(batches) => println!("{sql}\n{}", pretty_format_batches(&batches)?),
        Err(error) => println!("{sql}\n{error}"),
    }
    Ok(())
}
