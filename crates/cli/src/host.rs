//! Hosts as files: what a service wrote of its context, functions and limits (`Linker::describe`).

use crate::input;
use crate::load::NoHost;
use anyhow::{Context, Result};
use bpf_runtime::{Caller, Engine, FunctionInterface, HelperError, HostContext, HostInterface, HostValue, Linker};
use std::path::Path;

/// Reads a description, and checks it.
pub(crate) fn describe(path: &Path) -> Result<HostInterface> {
    let text = input::read_text(path)?;
    let place = || path.display().to_string();
    let host: HostInterface = serde_json::from_str(&text).with_context(place)?;
    host.check().with_context(place)?;
    Ok(host)
}

/// Reads the host of this process, whose context is [`HostContext`].
pub(crate) fn read(path: &Path) -> Result<HostInterface> {
    let host = describe(path)?;
    HostContext::define(&host).with_context(|| path.display().to_string())?;
    Ok(host)
}

/// The linker of a host, with these bodies for its functions.
pub(crate) fn linker<F>(
    engine: &Engine,
    host: &HostInterface,
    body: impl Fn(&FunctionInterface) -> F,
) -> Result<Linker<NoHost>>
where
    F: Fn(&mut Caller<'_, NoHost>, &[HostValue<'_>]) -> Result<u64, HelperError> + Send + Sync + 'static,
{
    let mut linker = Linker::new(engine);
    for id in &host.removed_helpers {
        linker.remove_helper(*id);
    }
    for function in &host.functions {
        linker.func_described(function, body(function))?;
    }
    Ok(linker)
}

/// The body of a function that is never called.
pub(crate) fn silent(_: &mut Caller<'_, NoHost>, _: &[HostValue<'_>]) -> Result<u64, HelperError> {
    Ok(0)
}
