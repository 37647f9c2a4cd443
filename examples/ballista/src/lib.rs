//! Functions of SQL that travel: BPF programs in the plans of a distributed query.
//!
//! Problem: a user's function must be on every machine that runs a part of the query, in the right version, and no
//! machine trusts it. Approach: a plan carries what its functions are made of ([`Plugin`]: object, proofs, constants),
//! written and read by codecs. Client and scheduler plan with it and run nothing. Executors check it against their
//! [`Terms`], compile it, and keep it by digest ([`Plugins`]); one that refuses fails the query, and says why.
//!
//! Invariant: nothing that came with a plan runs before the executor's own verifier, or its check of a proof, has
//! accepted it.

mod codec;
mod executor;
mod function;
mod plugin;

pub use executor::{Plugins, Terms};
pub use plugin::{Constant, Digest, Kind, Plugin, Refused};

use ballista::prelude::SessionContextExt;
use ballista_core::extension::SessionConfigExt;
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_core::serde::BallistaCodec;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::utils::{default_config_producer, default_session_builder};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::{SessionConfig, SessionContext};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

pub const PRICED: &[u8] = include_bytes!("../priced.o");

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Starts a scheduler on a port of the loopback interface. It plans, and loads nothing.
///
/// # Errors
/// No port.
pub async fn scheduler() -> Result<SocketAddr> {
    let codec = BallistaCodec::new(Arc::new(codec::Logical::default()), Arc::new(codec::Physical::default()));
    let (session, config) = (Arc::new(default_session_builder), Arc::new(default_config_producer));
    Ok(ballista_scheduler::standalone::new_standalone_scheduler_with_builder(session, config, codec).await?)
}

/// Starts an executor that runs `tasks` at once.
///
/// # Errors
/// No port, or no scheduler.
pub async fn executor(scheduler: SocketAddr, tasks: usize, plugins: &Arc<Plugins>) -> Result<()> {
    let scheduler = SchedulerGrpcClient::connect(url("http", scheduler)).await?;
    let physical = codec::Physical::executing(Arc::clone(plugins));
    let codec = BallistaCodec::new(Arc::new(codec::Logical::default()), Arc::new(physical));
    let runtime = Arc::new(RuntimeEnv::default());
    ballista_executor::new_standalone_executor_from_builder(
        scheduler,
        tasks,
        Arc::new(default_config_producer),
        Arc::new(move |_| Ok(Arc::clone(&runtime))),
        codec,
        BallistaFunctionRegistry::default(),
    )
    .await?;
    Ok(())
}

/// A client's session, with the plug-ins' functions. Queries run in `partitions` parts where they may.
///
/// # Errors
/// The address is none.
pub async fn client(scheduler: SocketAddr, partitions: usize, plugins: &[Plugin]) -> Result<SessionContext> {
    let config = SessionConfig::new_with_ballista()
        .with_target_partitions(partitions)
        .with_ballista_logical_extension_codec(Arc::new(codec::Logical::default()))
        .with_ballista_physical_extension_codec(Arc::new(codec::Physical::default()));
    let state = SessionStateBuilder::new().with_default_features().with_config(config).build();
    let session = SessionContext::remote_with_state(&url("df", scheduler), state).await?;
    for plugin in plugins {
        let plugin = Arc::new(plugin.clone());
        match plugin.kind() {
            Kind::Scalar => session.register_udf(function::scalar(plugin, None)),
            Kind::Aggregate => session.register_udaf(function::aggregate(plugin, None)),
            Kind::Unknown => return Err("neither a scalar function nor an aggregate".into()),
        }
    }
    Ok(session)
}

fn url(scheme: &str, address: SocketAddr) -> String {
    format!("{scheme}://localhost:{}", address.port())
}
