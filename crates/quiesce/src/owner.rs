//! Which domain an object belongs to.
//!
//! Problem: a program, a map or an image is freed after a grace period of its own domain, and its per-slot parts are as
//! many as that domain has slots. Used in a run of another domain it is freed under the run, and indexed past its end.
//! Approach: each such object says which domain it belongs to ([`Owned`]), and wherever two of them meet
//! [`Domain::owns`] compares, with one error.

use std::sync::Arc;

use crate::Domain;

/// What belongs to a domain: its memory is freed after grace periods of that domain, and its parts are counted by its
/// slots. So only runs inside guards of that domain may use it.
pub trait Owned {
    /// The domain it belongs to.
    fn domain(&self) -> &Arc<Domain>;
    /// What it is ("map", "program") and its name, for the error.
    fn named(&self) -> (&'static str, &str);
}

/// Something of another domain was given where a domain's own is needed: see [`Domain::owns`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{name}` belongs to another engine; make it with the engine that uses it")]
pub struct OtherDomain {
    /// What it is: "map", "program" and so on.
    pub what: &'static str,
    /// Its name.
    pub name: String,
}

impl Domain {
    /// Refuses what belongs to another domain. Wherever two things with domains meet, this is what compares them.
    ///
    /// # Errors
    /// [`OtherDomain`].
    #[inline]
    pub fn owns(&self, thing: &(impl Owned + ?Sized)) -> Result<(), OtherDomain> {
        // Not by number: a domain's address is its identity as long as it lives, and both objects keep theirs alive.
        if std::ptr::eq(self, &**thing.domain()) { Ok(()) } else { Err(other_domain(thing)) }
    }
}

#[cold]
fn other_domain(thing: &(impl Owned + ?Sized)) -> OtherDomain {
    let (what, name) = thing.named();
    OtherDomain { what, name: name.to_owned() }
}
