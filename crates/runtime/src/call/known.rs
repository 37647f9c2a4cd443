//! The program that calls a host function.
//!
//! Problem: all programs of a linker share a closure, and emitted code does not say which program it is of. To write
//! the program into every run would cost each of them. Approach: where the host asks for it
//! ([`crate::Linker::know_callers`]), the environment of a function is one for each program of an instance, made when
//! its instructions are bound: it names the program and leads to the closure. A call finds it as it finds a closure
//! with captures, so other functions, and instances without such functions, cost as much as before.

use crate::call::HostFn;
use crate::engine::usage::{Account, Payer};
use bpf_maps::Map;
use std::any::Any;
use std::sync::Arc;

/// A program of an instance, as functions that it calls know it.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) program: String,
    pub(crate) instance: Option<Arc<str>>,
    pub(crate) account: Option<Account>,
    /// The data maps that the program refers to.
    pub(crate) maps: Vec<Map>,
}

impl Known {
    /// The program of this name, with these maps, for this payer.
    pub(crate) fn new(program: &str, maps: Vec<Map>, payer: Payer<'_>) -> Known {
        let (instance, account) = (payer.instance.cloned(), payer.account.cloned());
        Known { program: program.to_owned(), instance, account, maps }
    }
}

/// The environment of a function that knows its callers.
pub(super) struct KnownEnv {
    /// `None` until the function is bound to a program.
    pub(super) by: Option<Arc<Known>>,
    /// The closure; `None` for one that is made of its type.
    pub(super) of: Option<Arc<dyn Any + Send + Sync>>,
}

/// Returns whether a function knows its callers.
pub(crate) fn knows(func: &HostFn) -> bool {
    func.env.as_deref().is_some_and(|env| env.is::<KnownEnv>())
}

/// The function for calls by this program; `None` if it does not know its callers.
pub(crate) fn called_by(func: &HostFn, by: &Arc<Known>) -> Option<HostFn> {
    let env: &KnownEnv = func.env.as_deref()?.downcast_ref()?;
    let env = KnownEnv { by: Some(Arc::clone(by)), of: env.of.clone() };
    Some(HostFn { env: Some(Arc::new(env)), ..func.clone() })
}
