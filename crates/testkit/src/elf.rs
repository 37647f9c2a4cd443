//! The bytes of one section of an object file.
//!
//! Tests and benches that compare engines must not depend on the loader they test. The bench programs are made so that
//! one section is the whole, linked program, and [`section`] reads only that.

use object::{Object, ObjectSection};

/// Why a section's bytes cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SectionError {
    /// The bytes are not an object file.
    #[error("not an object file: {0}")]
    Object(#[from] object::Error),
    /// The object has no section of that name.
    #[error("no section `{0}`")]
    Missing(String),
    /// The section has relocations, so its bytes are not the linked program.
    #[error("section `{0}` has relocations")]
    Relocated(String),
}

/// The bytes of section `name`, which must have no relocations.
pub fn section(object: &[u8], name: &str) -> Result<Vec<u8>, SectionError> {
    let file = object::File::parse(object)?;
    let section = file.section_by_name(name).ok_or_else(|| SectionError::Missing(name.to_owned()))?;
    if section.relocations().next().is_some() {
        return Err(SectionError::Relocated(name.to_owned()));
    }
    Ok(section.data()?.to_vec())
}
