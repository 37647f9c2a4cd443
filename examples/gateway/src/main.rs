//! The gateway with a key-value server, a service that greets, and a tenant: `bpf-example-gateway`, then
//! `bpf-example-gateway watch acme examples/gateway/objects/quota.c`.

use anyhow::{Context as _, ensure};
use bpf_example_gateway::server::{Greeter, serve_clients, serve_operator};
use bpf_example_gateway::store::{self, Client};
use bpf_example_gateway::{Gateway, Terms};
use clap::{Parser, Subcommand};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// An HTTP gateway with a plug-in for each tenant.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Address for clients.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Address for the operator.
    #[arg(long, default_value = "127.0.0.1:8081", global = true)]
    operator: SocketAddr,
    /// Address of the key-value server; without it, one with a few keys runs in this process.
    #[arg(long)]
    store: Option<SocketAddr>,
}

#[derive(Subcommand)]
enum Action {
    /// Prints what plug-ins are written for, as `bpf new`, `bpf verify` and `bpf test` read it (`--host`).
    Describe,
    /// Compiles a plug-in each time its source is saved, and puts it to a running gateway.
    Watch {
        /// The tenant.
        tenant: String,
        /// The source in C.
        source: PathBuf,
    },
}

/// Keys of the server in this process, with the requests that each allows.
const KEYS: [(&str, u64); 2] = [("alice", 3), ("bob", 1000)];
/// A key whose reply takes 10 s, longer than every tenant's `patience`.
const SLOW: &str = "slow";

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match &args.action {
        Some(Action::Describe) => describe(),
        Some(Action::Watch { tenant, source }) => watch(args.operator, tenant, source),
        None => runtime()?.block_on(serve(&args)),
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

fn describe() -> anyhow::Result<()> {
    // The client of the key-value server is a task; nobody asks it.
    let runtime = runtime()?;
    let _inside = runtime.enter();
    let gateway = Gateway::new(Client::new(SocketAddr::from(([127, 0, 0, 1], 0))))?;
    println!("{}", serde_json::to_string_pretty(&gateway.describe()?)?);
    Ok(())
}

async fn serve(args: &Args) -> anyhow::Result<()> {
    let server = match args.store {
        Some(server) => server,
        None => {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let address = listener.local_addr()?;
            tokio::spawn(store::serve(listener, |key| async move {
                if key == SLOW {
                    tokio::time::sleep(Duration::from_secs(10)).await;
                }
                KEYS.iter().find(|(name, _)| *name == key).map(|(_, quota)| *quota)
            }));
            address
        }
    };
    let gateway = Arc::new(Gateway::new(Client::new(server))?);
    let tenant = gateway.admit("acme", Terms::default())?;
    gateway.reload(&tenant, include_bytes!("../objects/quota.o"))?;
    let clients = TcpListener::bind(args.listen).await.with_context(|| args.listen.to_string())?;
    let operator = TcpListener::bind(args.operator).await.with_context(|| args.operator.to_string())?;
    println!("clients at http://{}, the operator at http://{}", clients.local_addr()?, operator.local_addr()?);
    tokio::select! {
        never = serve_clients(clients, &gateway, Greeter) => match never {},
        never = serve_operator(operator, &gateway) => match never {},
    }
}

/// Compiles and puts the source now, and each time it was saved.
fn watch(operator: SocketAddr, tenant: &str, source: &Path) -> anyhow::Result<()> {
    let saved = || std::fs::metadata(source).and_then(|file| file.modified());
    let mut last = saved().with_context(|| source.display().to_string())?;
    let mut seen = None;
    loop {
        // Editors save by renaming: the file may be absent for a moment.
        last = saved().unwrap_or(last);
        if seen != Some(last) {
            seen = Some(last);
            match compile(source).and_then(|object| put(operator, tenant, &object)) {
                Ok(answer) => println!("{}", answer.trim_end()),
                // The author mends the source and saves it again.
                Err(error) => println!("{error:#}"),
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn compile(source: &Path) -> anyhow::Result<Vec<u8>> {
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let mut command = Command::new(&clang);
    command.args(["-O2", "-g", "-Wall", "-mcpu=v3", "-target", "bpf"]);
    command.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    if cfg!(target_arch = "x86_64") {
        command.arg("-D__x86_64__");
    }
    let built = command.args(["-c", "-o", "-"]).arg(source).output();
    let built = built.with_context(|| format!("{} (set CLANG to another name of clang)", clang.display()))?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr).trim_end());
    Ok(built.stdout)
}

/// Puts an object to the gateway. Returns its answer: the version's number, or the refusal.
fn put(operator: SocketAddr, tenant: &str, object: &[u8]) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(operator).with_context(|| format!("no gateway at {operator}"))?;
    let head = format!("PUT /tenants/{tenant} HTTP/1.1\r\nHost: {operator}\r\nConnection: close\r\n");
    write!(stream, "{head}Content-Length: {}\r\n\r\n", object.len())?;
    stream.write_all(object)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    Ok(body.to_owned())
}
