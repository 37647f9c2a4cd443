//! The gateway's two HTTP servers: the service behind the gateway, and the operator's.
//!
//! | operator's request | what it does |
//! |---|---|
//! | `PUT /tenants/NAME` with an object | loads the next version of the tenant's plug-in; a refusal is the text |
//! | `POST /tenants/NAME/rollback` | puts the version before the present one back |
//! | `GET /metrics` | counts in Prometheus' text format |

use crate::{Gateway, GatewayLayer, Terms};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tower_layer::Layer as _;
use tower_service::Service;

/// The largest object that is read.
const MAX_OBJECT: usize = 4 << 20;
/// The pause after a connection that was not accepted.
const PAUSE: Duration = Duration::from_millis(50);

type Answer = Response<Full<Bytes>>;

/// Serves HTTP/1 on this listener until the future is dropped.
async fn serve<S>(listener: TcpListener, service: S) -> Infallible
where
    S: Service<Request<Incoming>, Response = Answer, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    loop {
        // Out of descriptors, say: connections that end give some back.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// Serves this service behind the gateway, until the future is dropped.
pub async fn serve_clients<S>(listener: TcpListener, gateway: &Arc<Gateway>, service: S) -> Infallible
where
    S: Service<Request<Incoming>, Response = Answer, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    serve(listener, GatewayLayer::new(gateway).layer(service)).await
}

/// Serves the operator, until the future is dropped.
pub async fn serve_operator(listener: TcpListener, gateway: &Arc<Gateway>) -> Infallible {
    serve(listener, Operator(Arc::clone(gateway))).await
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    answer
}

/// The service of the demonstration: greets.
#[derive(Clone, Copy, Debug)]
pub struct Greeter;

impl<B> Service<Request<B>> for Greeter {
    type Response = Answer;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Answer, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        std::future::ready(Ok(text(StatusCode::OK, format!("hello from {}\n", request.uri().path()))))
    }
}

/// The operator's service.
#[derive(Clone, Debug)]
struct Operator(Arc<Gateway>);

impl Service<Request<Incoming>> for Operator {
    type Response = Answer;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let gateway = Arc::clone(&self.0);
        Box::pin(async move { Ok(operate(&gateway, request).await) })
    }
}

async fn operate(gateway: &Arc<Gateway>, request: Request<Incoming>) -> Answer {
    let path: Vec<String> = request.uri().path().split('/').skip(1).map(str::to_owned).collect();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let answer = match (request.method(), path.as_slice()) {
        (&Method::GET, ["metrics"]) => return text(StatusCode::OK, metrics(gateway)),
        (&Method::PUT, ["tenants", name]) if !name.is_empty() => {
            let object = match Limited::new(request.into_body(), MAX_OBJECT).collect().await {
                Ok(object) => object.to_bytes(),
                Err(error) => return text(StatusCode::BAD_REQUEST, format!("the object was not read: {error}\n")),
            };
            let (gateway, name) = (Arc::clone(gateway), (*name).to_owned());
            // Verified and compiled where no request waits for the thread.
            tokio::task::spawn_blocking(move || put(&gateway, &name, &object)).await
        }
        (&Method::POST, ["tenants", name, "rollback"]) => match gateway.tenant(name) {
            Some(tenant) => {
                let gateway = Arc::clone(gateway);
                tokio::task::spawn_blocking(move || gateway.roll_back(&tenant)).await
            }
            None => return text(StatusCode::NOT_FOUND, format!("no tenant `{name}`\n")),
        },
        _ => return text(StatusCode::NOT_FOUND, "PUT /tenants/NAME, POST /tenants/NAME/rollback, GET /metrics\n"),
    };
    match answer {
        Ok(Ok(version)) => text(StatusCode::OK, format!("version {version}\n")),
        Ok(Err(refusal)) => text(StatusCode::UNPROCESSABLE_ENTITY, format!("{refusal}\n")),
        Err(panic) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{panic}\n")),
    }
}

fn put(gateway: &Gateway, name: &str, object: &[u8]) -> anyhow::Result<u64> {
    let tenant = match gateway.tenant(name) {
        Some(tenant) => tenant,
        // Two requests may come at once: the second finds the tenant of the first.
        None => match gateway.admit(name, Terms::default()) {
            Ok(tenant) => tenant,
            Err(error) => gateway.tenant(name).ok_or(error)?,
        },
    };
    gateway.reload(&tenant, object)
}

/// Returns the counts of the gateway and of its engine in Prometheus' text format.
pub fn metrics(gateway: &Gateway) -> String {
    let label = |value: &str| value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let mut out = String::new();
    let mut line = |name: &str, labels: &[(&str, &str)], value: u64| {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", label(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // Writing to a string does not fail.
        let _ = writeln!(out, "gateway_{name}{labels} {value}");
    };
    for tenant in gateway.tenants() {
        let name = tenant.name();
        for (decision, count) in ["pass", "answer", "failed"].into_iter().zip(tenant.decisions()) {
            line("requests_total", &[("tenant", name), ("decision", decision)], count);
        }
        line("version", &[("tenant", name)], tenant.version().unwrap_or(0));
        line("memory_bytes", &[("tenant", name)], tenant.account().used());
    }
    let snapshot = gateway.engine().snapshot();
    for program in &snapshot.programs {
        let tenant = program.account.as_deref().unwrap_or("");
        let labels = [("tenant", tenant), ("program", program.program.as_str())];
        line("runs_total", &labels, program.runs);
        let stops = program.stops;
        let reasons = [
            ("budget", stops.budget),
            ("deadline", stops.deadline),
            ("interrupted", stops.interrupted),
            ("access", stops.access),
            ("host", stops.host),
        ];
        for (reason, count) in reasons {
            line("stops_total", &[("tenant", tenant), ("reason", reason)], count);
        }
    }
    line("waiting_runs", &[], gateway.engine().async_runs() as u64);
    line("waiting_lookups", &[], gateway.store().waiting() as u64);
    line("loads_total", &[], snapshot.loads);
    line("refusals_total", &[], snapshot.refusals);
    out
}
