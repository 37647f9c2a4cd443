//! Operates the service for a time, and says what came of it: `bpf-example-service --seconds 120`.

use anyhow::ensure;
use bpf_example_service::Status;
use bpf_example_service::operate::{Options, operate};
use clap::Parser;
use std::time::Duration;

/// A service whose plug-ins are reloaded while it answers.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Duration of the measurement, in seconds.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Threads that answer.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Clients.
    #[arg(long, default_value_t = 4)]
    clients: u32,
    /// Reloads a second.
    #[arg(long, default_value_t = 100)]
    rate: u32,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let report = operate(&Options {
        time: Duration::from_secs(args.seconds),
        workers: args.workers,
        clients: args.clients,
        rate: args.rate,
        consumer: Duration::from_millis(1),
    })?;
    let by = |status: Status| report.by_status[status as usize];
    println!("requests              {}, wrong or lost {}", report.requests, report.wrong);
    println!(
        "ended by              budget {}, deadline {}, failed host function {}",
        by(Status::Budget),
        by(Status::Deadline),
        by(Status::Host)
    );
    println!(
        "reloads               {} in {:.1} s ({:.1} a second), of these {} rolled back; refused: {}",
        report.reloads,
        report.seconds,
        report.reloads as f64 / report.seconds,
        report.rolled_back,
        3 * report.refusals
    );
    println!("a reload, ms          median {:.2}, 99 % {:.2}", report.reload_ms[0], report.reload_ms[1]);
    for (name, at) in [("median", 0), ("99 %", 1), ("99.9 %", 2)] {
        let (quiet, reloading) = (report.quiet_us[at], report.reloading_us[at]);
        println!(
            "a request, us, {name:<7} {quiet:.0} without reloads, {reloading:.0} with: {:.2} times",
            reloading / quiet
        );
    }
    let [taken, dropped, all] = report.records;
    println!("events                {all}: taken {taken}, dropped {dropped}");
    for (name, [before, after]) in [("account", report.account), ("code", report.code), ("resident", report.resident)] {
        println!("{name:<21} {} KiB after warm-up, {} KiB at the end", before >> 10, after >> 10);
    }
    println!("the guests' account   {} of {} KiB", report.guests[0] >> 10, report.guests[1] >> 10);
    println!(
        "engine                {} loads, {} refusals, {} changes of hooks, {} grace periods, {} deferred",
        report.snapshot.loads,
        report.snapshot.refusals,
        report.snapshot.changes,
        report.snapshot.grace_periods,
        report.snapshot.deferred
    );
    ensure!(report.wrong == 0, "{}", report.first_wrong.unwrap_or_default());
    Ok(())
}
