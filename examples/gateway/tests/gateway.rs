//! The gateway over HTTP: what its README shows; and under load, with reloads, timeouts and clients that go away.

use bpf_example_gateway::server::{Greeter, metrics, serve_clients, serve_operator};
use bpf_example_gateway::store::{self, Client};
use bpf_example_gateway::{Gateway, GatewayLayer, Request, TENANT, Tenant, Terms};
use bpf_runtime::BpfContext as _;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tower_layer::Layer as _;
use tower_service::Service;

const QUOTA: &[u8] = include_bytes!("../objects/quota.o");
const READONLY: &[u8] = include_bytes!("../objects/readonly.o");
const REFUSED: &[u8] = include_bytes!("../objects/refused.o");
const RUNAWAY: &[u8] = include_bytes!("../objects/runaway.o");

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

fn two_threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A key-value server. The gate goes up by two in each round: `held…` is answered after the first step, `slow…` after
/// the second, other keys at once. A key's value is the number behind its last `-`; a key without one is not there.
async fn store(gate: &watch::Receiver<u32>) -> SocketAddr {
    let (listener, address) = listen().await;
    let gate = gate.clone();
    tokio::spawn(store::serve(listener, move |key| {
        let mut gate = gate.clone();
        async move {
            let round = *gate.borrow() & !1;
            let steps = if key.starts_with("slow") { 2 } else { u32::from(key.starts_with("held")) };
            let _ = gate.wait_for(|at| *at >= round + steps).await;
            key.rsplit_once('-').and_then(|(_, value)| value.parse().ok())
        }
    }));
    address
}

/// Sends a request on a connection of its own. Returns status and body.
async fn ask(server: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn the_header_is_the_context() {
    let header = include_str!("../request.h")
        .replace("\t/* The status of the answer, where the plug-in answers in place of the service. */\n", "");
    let header = header.replace("\t/* The value of the header `X-Key`. */\n", "");
    let printed = Request::c_struct();
    let fields = printed.lines().filter(|line| line.starts_with('\t'));
    for field in fields {
        assert!(header.contains(field), "{field} in\n{header}");
    }
}

/// The description that projects of `bpf new` are made for is the gateway's.
#[test]
fn the_description_is_up_to_date() {
    two_threads().block_on(async {
        let gateway = Gateway::new(Client::new(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
        let described = serde_json::to_value(gateway.describe().unwrap()).unwrap();
        let kept: serde_json::Value = serde_json::from_str(include_str!("../host.json")).unwrap();
        assert_eq!(kept, described, "cargo run -p bpf-example-gateway -- describe > examples/gateway/host.json");
    });
}

#[test]
fn the_layer_guards_a_router_of_axum() {
    two_threads().block_on(async {
        let (_open, gate) = watch::channel(0);
        let gateway = Arc::new(Gateway::new(Client::new(store(&gate).await)).unwrap());
        gateway.reload(&gateway.admit("acme", Terms::default()).unwrap(), QUOTA).unwrap();
        let greet = axum::routing::get(|| async { "hello from axum" });
        let mut router = axum::Router::new().route("/greeting", greet).layer(GatewayLayer::new(&gateway));
        let mut get = async |key| {
            let request = hyper::Request::get("/greeting").header(TENANT, "acme").header("x-key", key);
            let answer = router.call(request.body(axum::body::Body::empty()).unwrap()).await.unwrap();
            let (status, body) = (answer.status(), answer.into_body().collect().await.unwrap().to_bytes());
            (status.as_u16(), String::from_utf8(body.to_vec()).unwrap())
        };
        assert_eq!(get("a-1").await, (200, "hello from axum".into()));
        assert_eq!(get("a-1").await, (429, "429 Too Many Requests, says the plug-in of `acme`\n".into()));
    });
}

#[test]
fn a_verdict_is_changed_refused_stopped_and_rolled_back_over_http() {
    two_threads().block_on(async {
        let (open, gate) = watch::channel(0);
        let gateway = Arc::new(Gateway::new(Client::new(store(&gate).await)).unwrap());
        let ((clients, service), (operators, operator)) = (listen().await, listen().await);
        let (served, operated) = (Arc::clone(&gateway), Arc::clone(&gateway));
        tokio::spawn(async move { serve_clients(clients, &served, Greeter).await });
        tokio::spawn(async move { serve_operator(operators, &operated).await });
        let get = |key: &'static str| async move {
            ask(service, "GET", "/greeting", &format!("X-Tenant: acme\r\nX-Key: {key}\r\n"), b"").await
        };
        let put = |object: &'static [u8]| ask(operator, "PUT", "/tenants/acme", "", object);
        let roll_back = || ask(operator, "POST", "/tenants/acme/rollback", "", b"");

        // No tenant yet; then one whose first version awaits its quota.
        assert_eq!(get("a-2").await.0, 404);
        assert_eq!(roll_back().await.0, 404);
        assert_eq!(put(QUOTA).await, (200, "version 1\n".into()));
        assert_eq!(get("a-2").await, (200, "hello from /greeting\n".into()));
        assert_eq!(get("a-2").await.0, 200);
        assert_eq!(get("a-2").await, (429, "429 Too Many Requests, says the plug-in of `acme`\n".into()));
        assert_eq!((get("unknown").await.0, get("").await.0), (403, 401));
        // The next version keeps the counts.
        assert_eq!(put(QUOTA).await, (200, "version 2\n".into()));
        assert_eq!(get("a-2").await.0, 429);
        // A mistake: the answer says where and why, and the present version goes on.
        let (status, refusal) = put(REFUSED).await;
        assert_eq!(status, 422);
        for part in ["*count += extra", "may sleep", "look it up again"] {
            assert!(refusal.contains(part), "{part} in\n{refusal}");
        }
        assert_eq!(refusal.matches("error:").count(), 1, "{refusal}");
        assert_eq!(put(b"no object").await.0, 422);
        assert_eq!(get("a-2").await.0, 429);
        // A runaway: each of its requests is answered, and one command takes it back.
        assert_eq!(put(RUNAWAY).await, (200, "version 3\n".into()));
        let (status, text) = get("a-2").await;
        assert!(status == 503 && text.contains("budget"), "{status} {text}");
        assert_eq!(roll_back().await, (200, "version 2\n".into()));
        assert_eq!(get("b-1").await.0, 200);
        // A lookup that takes too long is the plug-in's to judge.
        assert_eq!(get("slow-1").await, (503, "503 Service Unavailable, says the plug-in of `acme`\n".into()));
        // Another verdict.
        assert_eq!(put(READONLY).await, (200, "version 4\n".into()));
        assert_eq!(get("").await.0, 200);
        let headers = "X-Tenant: acme\r\n";
        assert_eq!(ask(service, "POST", "/greeting", headers, b"").await.0, 405);
        assert_eq!(roll_back().await.1, "version 2\n");
        assert_eq!(roll_back().await.1, "version 1\n");
        assert_eq!(roll_back().await, (422, "there is no version before\n".into()));
        assert_eq!(get("a-2").await.0, 429);

        let (status, text) = ask(operator, "GET", "/metrics", "", b"").await;
        assert_eq!((status, text.as_str()), (200, metrics(&gateway).as_str()));
        for line in [
            "gateway_requests_total{tenant=\"acme\",decision=\"pass\"} 4",
            "gateway_requests_total{tenant=\"acme\",decision=\"failed\"} 1",
            "gateway_stops_total{tenant=\"acme\",reason=\"budget\"} 1",
            "gateway_refusals_total 1",
            "gateway_waiting_runs 0",
            "gateway_waiting_lookups 0",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} in\n{text}");
        }
        drop(open);
    });
}

#[test]
fn a_lost_connection_to_the_store_is_an_error_and_is_made_again() {
    two_threads().block_on(async {
        let (listener, address) = listen().await;
        let client = Client::new(address);
        let lookup = {
            let client = client.clone();
            tokio::spawn(async move { client.get("a", LONG).await })
        };
        // The server takes the request, and goes away without a reply.
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 16]).await.unwrap();
        drop(stream);
        assert_eq!(lookup.await.unwrap(), Err(store::LookupError::NoConnection));
        tokio::spawn(store::serve(listener, |key| async move { (key == "a").then_some(7) }));
        let again = async {
            loop {
                match client.get("a", LONG).await {
                    Ok(value) => return value,
                    Err(error) => assert_eq!(error, store::LookupError::NoConnection),
                }
            }
        };
        assert_eq!(again.await, 7);
        assert_eq!(client.get("b", LONG).await, Err(store::LookupError::NoKey));
        assert_eq!(client.waiting(), 0);
    });
}

/// The service behind the gateway in the load test: counts the requests that come to it, by their number.
#[derive(Clone)]
struct Counting(Arc<Vec<AtomicU8>>);

impl<B> Service<hyper::Request<B>> for Counting {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: hyper::Request<B>) -> Self::Future {
        let number = request.uri().path().trim_start_matches('/').to_owned();
        self.0[number.parse::<usize>().unwrap()].fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(Response::new(number.into())))
    }
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Waits until this is so, which it is some day or the test does not end.
async fn until(mut is: impl FnMut() -> bool) {
    while !is() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

const IN_FLIGHT: usize = 10_000;
/// Clients among [`IN_FLIGHT`] that go away: tasks that are aborted, and connections that are closed.
const ABORTED: usize = 1_000;
const CLOSED: usize = 100;
/// Beside these: lookups that time out, and runs that meet their deadline.
const TIMED_OUT: usize = 1_000;
const LATE: usize = 500;
const ALL: usize = IN_FLIGHT + TIMED_OUT + LATE;

struct Load {
    gateway: Arc<Gateway>,
    open: watch::Sender<u32>,
    calls: Arc<Vec<AtomicU8>>,
    service: SocketAddr,
}

impl Load {
    /// Sends all requests at once, and counts the answers. Returns how many have passed.
    async fn round(&self) -> u64 {
        self.calls.iter().for_each(|calls| calls.store(0, Ordering::Relaxed));
        let send = |number: usize| {
            let (tenant, key) = match number {
                0..IN_FLIGHT => ("patient", format!("held{}-1000000", number % 500)),
                _ if number < IN_FLIGHT + TIMED_OUT => ("hasty", "slow-1".into()),
                _ => ("late", "slow-1".into()),
            };
            let request = hyper::Request::get(format!("/{number}")).header(TENANT, tenant).header("x-key", key);
            let request = request.body(Full::<Bytes>::default()).unwrap();
            let mut service = GatewayLayer::new(&self.gateway).layer(Counting(Arc::clone(&self.calls)));
            tokio::spawn(async move {
                let answer = service.call(request).await.unwrap();
                let status = answer.status();
                (status, answer.into_body().collect().await.unwrap().to_bytes())
            })
        };
        let mut closed = Vec::new();
        for number in 0..CLOSED {
            let mut stream = TcpStream::connect(self.service).await.unwrap();
            let headers = format!("Host: test\r\nX-Tenant: patient\r\nX-Key: held{number}-1\r\n");
            stream.write_all(format!("GET /{number} HTTP/1.1\r\n{headers}\r\n").as_bytes()).await.unwrap();
            closed.push(stream);
        }
        let mut tasks: Vec<_> = (CLOSED..ALL).map(send).collect();
        // All wait at once.
        until(|| self.gateway.store().waiting() >= IN_FLIGHT).await;
        for task in tasks.drain(..ABORTED) {
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
        }
        drop(closed);
        let timed_out = tasks.split_off(IN_FLIGHT - ABORTED - CLOSED);
        let held = tasks;
        for (i, task) in timed_out.into_iter().enumerate() {
            let (status, text) = task.await.unwrap();
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            let said = if i < TIMED_OUT { "says the plug-in of `hasty`" } else { "the plug-in of `late` failed" };
            assert!(String::from_utf8_lossy(&text).contains(said), "{text:?}");
        }
        // Neither a lookup nor a run of the others is left. The server notices closed connections some time later.
        until(|| self.gateway.engine().async_runs() == held.len()).await;
        until(|| self.gateway.store().waiting() == held.len()).await;
        self.open.send_modify(|at| *at += 1);
        let passed = held.len() as u64;
        for (i, task) in held.into_iter().enumerate() {
            let number = (ABORTED + CLOSED + i).to_string();
            assert_eq!(task.await.unwrap(), (StatusCode::OK, number.into()));
        }
        // The replies that come too late.
        self.open.send_modify(|at| *at += 1);
        assert_eq!((self.gateway.store().waiting(), self.gateway.engine().async_runs()), (0, 0));
        for (number, calls) in self.calls.iter().enumerate() {
            let expected = u8::from((ABORTED + CLOSED..IN_FLIGHT).contains(&number));
            assert_eq!(calls.load(Ordering::Relaxed), expected, "request {number}");
        }
        passed
    }
}

/// Reloads, is refused and rolls back at ten a second. Returns how often it did when it is told to stop.
async fn operate(gateway: Arc<Gateway>, tenants: Vec<Arc<Tenant>>, mut stop: watch::Receiver<bool>) -> u64 {
    let mut reloads = 0;
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => return reloads,
        }
        reloads += 1;
        let (gateway, tenants) = (Arc::clone(&gateway), tenants.clone());
        let reloaded = tokio::task::spawn_blocking(move || {
            for tenant in &tenants {
                let before = tenant.version();
                gateway.reload(tenant, QUOTA).unwrap();
                if reloads % 3 == 0 {
                    assert_eq!(gateway.roll_back(tenant).ok(), before);
                }
                gateway.reload(tenant, REFUSED).unwrap_err();
            }
        });
        reloaded.await.unwrap();
    }
}

#[test]
fn under_load_no_request_is_lost_and_none_is_answered_twice() {
    two_threads().block_on(async {
        let (open, gate) = watch::channel(0);
        let gateway = Arc::new(Gateway::new(Client::new(store(&gate).await)).unwrap());
        let terms = Terms { memory: 4 << 30, budget: 100_000, deadline: LONG, patience: LONG };
        let hasty = Terms { patience: Duration::from_millis(20), ..terms.clone() };
        let late = Terms { deadline: Duration::from_millis(20), ..terms.clone() };
        let tenants: Vec<_> = [("patient", terms), ("hasty", hasty), ("late", late)]
            .into_iter()
            .map(|(name, terms)| gateway.admit(name, terms).unwrap())
            .collect();
        for tenant in &tenants {
            gateway.reload(tenant, QUOTA).unwrap();
        }
        let calls: Arc<Vec<AtomicU8>> = Arc::new((0..ALL).map(|_| AtomicU8::new(0)).collect());
        let (clients, service) = listen().await;
        let (served, counting) = (Arc::clone(&gateway), Counting(Arc::clone(&calls)));
        tokio::spawn(async move { serve_clients(clients, &served, counting).await });
        let (stop, stopped) = watch::channel(false);
        let operator = tokio::spawn(operate(Arc::clone(&gateway), tenants.clone(), stopped));

        let load = Load { gateway: Arc::clone(&gateway), open, calls, service };
        let mut passed = 0;
        let mut memory = Vec::new();
        let enough = |memory: &Vec<(u64, u64)>| memory.len() >= 4 && tenants[0].version() >= Some(8);
        while !enough(&memory) {
            passed += load.round().await;
            gateway.engine().domain().synchronize().unwrap();
            gateway.engine().reclaim();
            memory.push((resident(), tenants[0].account().used()));
        }
        stop.send_replace(true);
        let reloads = operator.await.unwrap();
        let patient = &tenants[0];
        assert_eq!(patient.decisions(), [passed, 0, 0]);
        assert_eq!(tenants[1].decisions(), [0, (TIMED_OUT * memory.len()) as u64, 0]);
        assert_eq!(tenants[2].decisions(), [0, 0, (LATE * memory.len()) as u64]);
        // All versions have counted in one map, and have missed nothing.
        let used = patient.map("used").unwrap();
        let mut counted = 0;
        for number in 0..500 {
            let mut key = [0; 32];
            let name = format!("held{number}-1000000");
            key[..name.len()].copy_from_slice(name.as_bytes());
            let value = used.get(&key).unwrap().unwrap();
            counted += u64::from_ne_bytes(value.as_slice().try_into().unwrap());
        }
        assert_eq!(counted, passed);
        // Steady: 10,000 runs that stayed would be 50 MB a round.
        let ((warm, _), (last, used)) = (memory[1], memory[memory.len() - 1]);
        assert!(last < warm + (24 << 20), "resident {memory:?}");
        assert!(used < 8 << 20, "the account: {memory:?}");
        println!("{} rounds, {reloads} reloads, {passed} passed, resident and account {memory:?}", memory.len());
    });
}
