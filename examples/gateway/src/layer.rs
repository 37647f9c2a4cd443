//! The gateway as a layer of a service whose response body can be made from a `String`, such as axum's `Body` and
//! `http_body_util::Full`.

use crate::{Decision, Gateway};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// The header that names a request's tenant.
pub const TENANT: &str = "x-tenant";
/// The header that a plug-in sees as the request's key.
const KEY: &str = "x-key";

/// Puts a gateway before a service: only requests that their tenant's plug-in passes come to it.
#[derive(Clone, Debug)]
pub struct GatewayLayer(Arc<Gateway>);

impl GatewayLayer {
    /// Makes a layer with this gateway.
    pub fn new(gateway: &Arc<Gateway>) -> GatewayLayer {
        GatewayLayer(Arc::clone(gateway))
    }
}

impl<S> Layer<S> for GatewayLayer {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { gateway: Arc::clone(&self.0), inner }
    }
}

/// A service behind a gateway.
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    gateway: Arc<Gateway>,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone may not be ready; the service that `poll_ready` was called on is.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let gateway = Arc::clone(&self.gateway);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            match refusal(&gateway, &parts).await {
                None => inner.call(Request::from_parts(parts, body)).await,
                Some((status, text)) => {
                    let mut response = Response::new(R::from(text));
                    *response.status_mut() = status;
                    Ok(response)
                }
            }
        })
    }
}

/// Returns the answer to a request that does not pass.
async fn refusal(gateway: &Gateway, request: &Parts) -> Option<(StatusCode, String)> {
    let header = |name| request.headers.get(name).map_or(&[][..], |value| value.as_bytes());
    let tenant = std::str::from_utf8(header(TENANT)).ok().and_then(|name| gateway.tenant(name));
    let Some(tenant) = tenant else {
        return Some((StatusCode::NOT_FOUND, format!("no tenant: the header `{TENANT}` names none\n")));
    };
    let path = request.uri.path_and_query().map_or("", |path| path.as_str());
    match gateway.decide(&tenant, request.method.as_str(), path.as_bytes(), header(KEY)).await {
        Decision::Pass => None,
        Decision::Answer(status) => {
            let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
            // An informational status would not be the answer, but announce one.
            let status = status.filter(|status| !status.is_informational());
            let status = status.unwrap_or(StatusCode::FORBIDDEN);
            Some((status, format!("{status}, says the plug-in of `{}`\n", tenant.name())))
        }
        Decision::Failed(error) => {
            Some((StatusCode::SERVICE_UNAVAILABLE, format!("the plug-in of `{}` failed: {error}\n", tenant.name())))
        }
    }
}
