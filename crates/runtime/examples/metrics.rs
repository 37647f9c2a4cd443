//! Serves an engine's metrics in Prometheus' text format: `cargo run --example metrics -- 127.0.0.1:9187`.
//!
//! Without an address it answers one request, its own, and prints the answer.

use bpf_runtime::{Config, Engine, Linker, Raw, isa::assemble, metrics::Snapshot};
use std::error::Error;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

/// Escapes a label's value for the format.
fn label(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

/// The snapshot in the text format, version 0.0.4.
fn prometheus(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, samples: &mut dyn Iterator<Item = (String, String)>| {
        let _ = writeln!(out, "# TYPE bpf_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(out, "bpf_{name}{labels} {value}");
        }
    };
    let programs: Vec<_> = snapshot
        .programs
        .iter()
        .map(|p| {
            let [account, instance] = [&p.account, &p.instance].map(|name| label(name.as_deref().unwrap_or("")));
            let program = label(&p.program);
            (format!("account=\"{account}\",instance=\"{instance}\",program=\"{program}\""), p)
        })
        .collect();
    let map = |m: &bpf_runtime::metrics::MapMetrics| {
        let instance = label(m.instance.as_deref().unwrap_or(""));
        format!("{{instance=\"{instance}\",map=\"{}\",id=\"{}\"}}", label(&m.map), m.id)
    };
    let maps: Vec<_> = snapshot.maps.iter().map(|m| (map(m), m)).collect();
    let each = |value: fn(&bpf_runtime::metrics::ProgramMetrics) -> String| {
        programs.iter().map(move |(labels, program)| (format!("{{{labels}}}"), value(program)))
    };
    family("runs_total", "counter", &mut each(|p| p.runs.to_string()));
    family("run_seconds_total", "counter", &mut each(|p| p.time.as_secs_f64().to_string()));
    family("program_versions", "gauge", &mut each(|p| p.versions.to_string()));
    family("program_code_bytes", "gauge", &mut each(|p| p.code_bytes.to_string()));
    let mut stops = programs.iter().flat_map(|(labels, p)| {
        let s = p.stops;
        let by_reason = [
            ("budget", s.budget),
            ("deadline", s.deadline),
            ("interrupted", s.interrupted),
            ("access", s.access),
            ("host", s.host),
        ];
        by_reason.map(|(reason, count)| (format!("{{{labels},reason=\"{reason}\"}}"), count.to_string()))
    });
    family("stops_total", "counter", &mut stops);
    family("map_elements", "gauge", &mut maps.iter().map(|(labels, map)| (labels.clone(), map.len.to_string())));
    family(
        "map_max_elements",
        "gauge",
        &mut maps.iter().map(|(labels, m)| (labels.clone(), m.max_entries.to_string())),
    );
    family("map_bytes", "gauge", &mut maps.iter().map(|(labels, map)| (labels.clone(), map.bytes.to_string())));
    let engine = [
        ("loads_total", "counter", snapshot.loads),
        ("refusals_total", "counter", snapshot.refusals),
        ("hook_changes_total", "counter", snapshot.changes),
        ("grace_periods_total", "counter", snapshot.grace_periods),
        ("deferred", "gauge", snapshot.deferred as u64),
        ("memory_bytes", "gauge", snapshot.memory_bytes),
        ("code_bytes", "gauge", snapshot.code_bytes),
    ];
    for (name, kind, value) in engine {
        family(name, kind, &mut std::iter::once((String::new(), value.to_string())));
    }
    out
}

fn answer(mut client: TcpStream, engine: &Engine) -> std::io::Result<()> {
    // The request's path and headers are ignored.
    let _ = client.read(&mut [0; 1024])?;
    let body = prometheus(&engine.snapshot());
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close";
    write!(client, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[allow(dead_code, reason = "a test calls `serve`")]
fn main() -> Result<(), Box<dyn Error>> {
    serve(std::env::args().nth(1).as_deref())
}

/// All requests, or one.
pub(crate) fn serve(address: Option<&str>) -> Result<(), Box<dyn Error>> {
    let config = Config::new().metrics(true);
    let engine = Engine::new(config)?;
    let length = Linker::<()>::new(&engine).loader::<Raw>().insns("length", assemble("r0 = r2\nexit")?)?;
    let listener = TcpListener::bind(address.unwrap_or("127.0.0.1:0"))?;
    println!("http://{}/metrics", listener.local_addr()?);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The service itself, which has no code for metrics.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                length.run(&mut (), &mut [0; 60]).expect("it cannot fail");
            }
        });
        let served = || -> Result<(), Box<dyn Error>> {
            if address.is_some() {
                for client in listener.incoming() {
                    answer(client?, &engine)?;
                }
                return Ok(());
            }
            let mut client = TcpStream::connect(listener.local_addr()?)?;
            client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
            answer(listener.accept()?.0, &engine)?;
            let mut text = String::new();
            client.read_to_string(&mut text)?;
            println!("{text}");
            Ok(())
        };
        let result = served();
        done.store(true, Ordering::Relaxed);
        result
    })
}
