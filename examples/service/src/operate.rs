//! The service under load, with the reloads, refusals and rollbacks of production; the outcomes are counted.
//!
//! Clients send a request and wait for its answer, so that none is lost by the socket: each answer is compared with the
//! one that its path must get. Reloads come at a rate, some of them refused, some rolled back.

use crate::{Answer, Service, Status, server};
use anyhow::{Context as _, ensure};
use bpf_runtime::{maps::RingBuf, metrics::Snapshot};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Options of an operated run of the service.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long, all phases together.
    pub time: Duration,
    /// Threads that answer.
    pub workers: usize,
    /// Clients, each a thread.
    pub clients: u32,
    /// Reloads a second that are tried.
    pub rate: u32,
    /// How long the consumer of events takes for each.
    pub consumer: Duration,
}

/// Report of an operated run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Requests sent.
    pub requests: u64,
    /// Number of requests with a wrong answer.
    pub wrong: u64,
    /// The first wrong answer.
    pub first_wrong: Option<String>,
    /// Answers by [`Status`].
    pub by_status: [u64; 6],
    /// Reloads done, in the measured phase, and of those rolled back.
    pub reloads: u64,
    /// Reloads that were rolled back.
    pub rolled_back: u64,
    /// Rounds of refusals, three each.
    pub refusals: u64,
    /// Seconds of the measured phase.
    pub seconds: f64,
    /// Milliseconds that a reload took: median and 99th percentile.
    pub reload_ms: [f64; 2],
    /// Microseconds of a request without reloads: median, 99th and 99.9th percentile.
    pub quiet_us: [f64; 3],
    /// Percentiles of the latency during reloads, in microseconds.
    pub reloading_us: [f64; 3],
    /// Records: taken, dropped by the program, and how many there should be.
    pub records: [u64; 3],
    /// Requests that the plug-in has admitted, by its own count, over all versions.
    pub admitted: u64,
    /// Bytes of the plug-in's account after warm-up and at the end.
    pub account: [u64; 2],
    /// Bytes of memory for code that is used, the same.
    pub code: [u64; 2],
    /// Resident bytes of the process, the same.
    pub resident: [u64; 2],
    /// The guests' account: taken, and its limit.
    pub guests: [u64; 2],
    /// The engine's counters at the end.
    pub snapshot: Snapshot,
}

/// Times in nanoseconds, by power of two and sixteenths of it: no memory grows with their number.
#[derive(Clone)]
struct Histogram([u64; 64 * 16]);

impl Histogram {
    fn new() -> Histogram {
        Histogram([0; 64 * 16])
    }

    fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(16);
        let power = nanos.ilog2();
        let sixteenth = (nanos >> (power - 4)) & 15;
        self.0[power as usize * 16 + sixteenth as usize] += 1;
    }

    fn merge(&mut self, other: &Histogram) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, n)| *sum += n);
    }

    /// The time in microseconds below which this part lies.
    fn percentile(&self, part: f64) -> f64 {
        let total: u64 = self.0.iter().sum();
        let mut left = (total as f64 * part).ceil();
        for (at, &n) in self.0.iter().enumerate() {
            left -= n as f64;
            if left <= 0.0 && total > 0 {
                return (at % 16 + 16) as f64 / 16.0 * (1u64 << (at / 16)) as f64 / 1000.0;
            }
        }
        0.0
    }
}

/// Counts of one client.
struct Seen {
    requests: u64,
    wrong: u64,
    first_wrong: Option<String>,
    by_status: [u64; 6],
    times: Histogram,
}

impl Seen {
    fn new() -> Seen {
        Seen { requests: 0, wrong: 0, first_wrong: None, by_status: [0; 6], times: Histogram::new() }
    }

    fn merge(&mut self, other: Seen) {
        self.requests += other.requests;
        self.wrong += other.wrong;
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
        self.by_status.iter_mut().zip(other.by_status).for_each(|(sum, n)| *sum += n);
        self.times.merge(&other.times);
    }
}

/// A request in so many is for a guest.
const GUEST_EVERY: u64 = 8;

/// Returns the client's `n`th request and its expected status.
fn ask(n: u64) -> (&'static [u8], Status) {
    if !n.is_multiple_of(GUEST_EVERY) {
        return if n.is_multiple_of(2) { (b"/api", Status::Allowed) } else { (b"/home", Status::Allowed) };
    }
    match n / GUEST_EVERY % 32 {
        0 => (b"/sd", Status::Deadline),
        1 | 2 => (b"/sb", Status::Budget),
        3 => (b"/none", Status::Refused),
        4..8 => (b"/fail", Status::Host),
        _ => (b"/leak", Status::Allowed),
    }
}

fn client(server: SocketAddr, number: u32, stop: &AtomicBool) -> anyhow::Result<Seen> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(server)?;
    let mut seen = Seen::new();
    let mut buffer = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        let (path, wanted) = ask(seen.requests);
        let datagram = [&number.to_le_bytes(), path].concat();
        let begin = Instant::now();
        socket.send(&datagram)?;
        let len = socket.recv(&mut buffer)?;
        // A request that is stopped at its deadline measures the deadline, not the latency.
        if wanted != Status::Deadline {
            seen.times.add(begin.elapsed());
        }
        seen.requests += 1;
        let answer = Answer::from_bytes(&buffer[..len]);
        if let Some(answer) = answer {
            seen.by_status[answer.status as usize] += 1;
        }
        let right = answer.is_some_and(|a| {
            // A run that begins when its time is over has not even said its version.
            let version = a.version != 0 || wanted == Status::Deadline;
            a.status == wanted && !a.torn && a.backend == number % 4 && version && a.version != u32::MAX
        });
        if !right {
            seen.wrong += 1;
            let path = String::from_utf8_lossy(path);
            seen.first_wrong.get_or_insert_with(|| format!("{path}: {answer:?} instead of {wanted:?}"));
        }
    }
    Ok(seen)
}

/// Results of one phase.
struct Phase {
    seen: Seen,
    reloads: u64,
    rolled_back: u64,
    refusals: u64,
    took: Histogram,
    seconds: f64,
}

/// Clients for a time, and reloads if there is a rate. Ends when no client is at work.
fn phase(service: &Service, server: SocketAddr, options: &Options, part: f64, reload: bool) -> anyhow::Result<Phase> {
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let end = begin + options.time.mul_f64(part);
    let mut phase =
        Phase { seen: Seen::new(), reloads: 0, rolled_back: 0, refusals: 0, took: Histogram::new(), seconds: 0.0 };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..options.clients)
            .map(|n| {
                scope.spawn({
                    let stop = &stop;
                    move || client(server, n, stop)
                })
            })
            .collect();
        let mut reloads = || -> anyhow::Result<()> {
            let period = Duration::from_secs(1) / options.rate.max(1);
            let mut next = begin;
            // At least one of each, however slow the machine.
            while Instant::now() < end || phase.reloads < 10 && reload {
                next = (next + period).max(Instant::now());
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
                if !reload {
                    continue;
                }
                let proves_itself = phase.reloads % 10 != 9;
                let before = service.version();
                let begin = Instant::now();
                let after = service.reload(proves_itself)?;
                phase.took.add(begin.elapsed());
                ensure!(after == before + u32::from(proves_itself), "version {after} after {before}");
                phase.reloads += 1;
                phase.rolled_back += u64::from(!proves_itself);
                if phase.reloads % 10 == 5 {
                    service.refusals()?;
                    ensure!(service.version() == after, "a refused reload has changed the version");
                    phase.refusals += 1;
                }
            }
            Ok(())
        };
        let result = reloads();
        stop.store(true, Ordering::Relaxed);
        phase.seconds = begin.elapsed().as_secs_f64();
        for client in clients {
            phase.seen.merge(client.join().map_err(|_| anyhow::anyhow!("a client has panicked"))??);
        }
        result
    })?;
    Ok(phase)
}

/// Resident bytes of this process.
fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}

/// Bytes of the plug-in's account, of code in use, and resident.
fn memory(service: &Service) -> anyhow::Result<[u64; 3]> {
    service.engine().reclaim();
    Ok([service.account().used(), service.engine().usage().code_used, resident()?])
}

/// Takes events, slowly, until no more are made; how many.
fn consume(events: &mut RingBuf, time: Duration, stop: &AtomicBool) -> std::io::Result<u64> {
    let mut taken = 0;
    loop {
        // The flag is read before the last look, so the last look sees all records submitted before it.
        let last = stop.load(Ordering::Acquire);
        if !last {
            events.poll(Some(Duration::from_millis(50)))?;
        }
        while events.next_record().is_some() {
            taken += 1;
            if !stop.load(Ordering::Relaxed) {
                std::thread::sleep(time);
            }
        }
        if last {
            return Ok(taken);
        }
    }
}

/// Operates the service.
///
/// # Errors
/// If it cannot be begun, a reload fails that should not, or something is not refused that should be. Wrong answers are
/// in the report.
pub fn operate(options: &Options) -> anyhow::Result<Report> {
    let service = Service::new()?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_nonblocking(true)?;
    let server = socket.local_addr()?;
    let mut events = RingBuf::new(&service.instance().map("events")?)?;
    let (stop_workers, stopped) = watch::channel(false);
    let stop_consumer = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..options.workers)
            .map(|_| {
                let (stopped, service, socket, answered) = (stopped.clone(), &service, &socket, &answered);
                scope.spawn(move || -> anyhow::Result<()> {
                    answered.fetch_add(server::serve(service, socket, stopped)?, Ordering::Relaxed);
                    Ok(())
                })
            })
            .collect();
        let consumer = scope.spawn(|| consume(&mut events, options.consumer, &stop_consumer));
        let phases = || -> anyhow::Result<_> {
            let warm = phase(&service, server, options, 0.2, true)?;
            let before = memory(&service)?;
            let quiet = phase(&service, server, options, 0.2, false)?;
            let reloading = phase(&service, server, options, 0.6, true)?;
            let after = memory(&service)?;
            Ok((warm, before, quiet, reloading, after))
        };
        let phases = phases();
        // Whatever came of it, the threads end.
        stop_consumer.store(true, Ordering::Release);
        let _ = stop_workers.send(true);
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a worker has panicked"))??;
        }
        let taken = consumer.join().map_err(|_| anyhow::anyhow!("the consumer has panicked"))??;
        let (warm, before, quiet, reloading, after) = phases?;

        let quantiles = |times: &Histogram| [0.5, 0.99, 0.999].map(|part| times.percentile(part));
        let (quiet_us, reloading_us) = (quantiles(&quiet.seen.times), quantiles(&reloading.seen.times));
        let mut seen = warm.seen;
        seen.merge(quiet.seen);
        let reload_ms = [0.5, 0.99].map(|part| reloading.took.percentile(part) / 1000.0);
        seen.merge(reloading.seen);
        ensure!(answered.load(Ordering::Relaxed) == seen.requests, "requests were answered twice");
        Ok(Report {
            requests: seen.requests,
            wrong: seen.wrong,
            first_wrong: seen.first_wrong,
            by_status: seen.by_status,
            reloads: reloading.reloads,
            rolled_back: reloading.rolled_back,
            refusals: reloading.refusals,
            seconds: reloading.seconds,
            reload_ms,
            quiet_us,
            reloading_us,
            records: [taken, service.count(2)?, service.count(1)?],
            admitted: service.count(0)?,
            account: [before[0], after[0]],
            code: [before[1], after[1]],
            resident: [before[2], after[2]],
            guests: [service.guests().used(), service.guests().limit()],
            snapshot: service.engine().snapshot(),
        })
    })
}
