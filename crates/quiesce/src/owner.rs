//! Records which domain an object belongs to, and compares.
//!
//! Problem: a program, a map or an image is freed after a grace period of its own domain, and it has one part per
//! slot of that domain. If a run of another domain used it, it would be freed under that run, or indexed past its
//! end. Approach: each such object names its domain ([`Owned`]), and wherever two of them meet [`Domain::owns`]
//! compares, with one error.

use std::sync::Arc;

use crate::Domain;

/// An object of a domain: its memory is freed after a grace period of that domain, and it has as many parts as the
/// domain has slots. Only runs inside guards of that domain may use it.
pub trait Owned {
    /// The object's domain.
    fn domain(&self) -> &Arc<Domain>;
    /// The kind of object ("map", "program") and its name, for the error.
    fn named(&self) -> (&'static str, &str);
}

/// An object of one domain was given to another: see [`Domain::owns`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{name}` belongs to another engine; make it with the engine that uses it")]
pub struct OtherDomain {
    /// The kind of object: "map", "program" and so on.
    pub what: &'static str,
    /// The object's name.
    pub name: String,
}

impl Domain {
    /// Returns an error if `thing` belongs to another domain.
    ///
    /// # Errors
    /// [`OtherDomain`].
    #[inline]
    pub fn owns(&self, thing: &(impl Owned + ?Sized)) -> Result<(), OtherDomain> {
        // A domain's address is its identity while it lives, and both objects keep theirs alive.
        if std::ptr::eq(self, &**thing.domain()) { Ok(()) } else { Err(other_domain(thing)) }
    }
}

#[cold]
fn other_domain(thing: &(impl Owned + ?Sized)) -> OtherDomain {
    let (what, name) = thing.named();
    OtherDomain { what, name: name.to_owned() }
}
