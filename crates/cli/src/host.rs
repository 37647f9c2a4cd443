//! Hosts as files: what a service wrote of its context, functions and limits (`Linker::describe`).

use crate::input;
use crate::load::NoHost;
use anyhow::{Context, Result, bail};
use bpf_runtime::{
    Caller, Engine, HelperError, Linker,
    describe::{FunctionInterface, HOST_INTERFACE_VERSION, HostContext, HostInterface},
    host::HostValue,
};
use serde::Deserialize;
use std::path::Path;

/// Reads a description, and checks it.
pub(crate) fn describe(path: &Path) -> Result<HostInterface> {
    parse(&input::read_text(path)?).with_context(|| path.display().to_string())
}

/// The host of a file's text.
pub(crate) fn parse(text: &str) -> Result<HostInterface> {
    /// The part of a description that every version has.
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    // First, because another version may have other fields.
    if let Ok(Head { version }) = serde_json::from_str(text)
        && version != HOST_INTERFACE_VERSION
    {
        bail!("version: {version} is not a version that is known here, {HOST_INTERFACE_VERSION}");
    }
    let host: HostInterface = serde_json::from_str(text)?;
    host.check()?;
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
    for (i, function) in host.functions.iter().enumerate() {
        let place = || format!("the host's functions[{i}]");
        linker.func_described(function, body(function)).with_context(place)?;
    }
    Ok(linker)
}

/// The body of a function that is never called.
pub(crate) fn silent(_: &mut Caller<'_, NoHost>, _: &[HostValue<'_>]) -> Result<u64, HelperError> {
    Ok(0)
}
