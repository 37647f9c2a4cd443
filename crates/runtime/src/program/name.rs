//! The name of a program, without an allocation where it is short.
//!
//! Names of functions in C mostly are (the kernel keeps 15 bytes), and an allocation costs a load a fiftieth of its
//! time.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Bytes that [`Name::Short`] holds, so that a name is as large as a `String`.
const SHORT: usize = 22;

/// A name that does not change.
#[derive(Clone)]
pub(crate) enum Name {
    /// Its length, and its bytes.
    Short(u8, [u8; SHORT]),
    Long(Arc<str>),
}

impl Name {
    #[expect(clippy::cast_possible_truncation, reason = "a short name's length is at most SHORT")]
    pub(crate) fn new(name: &str) -> Name {
        const { assert!(SHORT <= u8::MAX as usize) };
        let mut bytes = [0; SHORT];
        match bytes.get_mut(..name.len()) {
            Some(start) => {
                start.copy_from_slice(name.as_bytes());
                Name::Short(name.len() as u8, bytes)
            }
            None => Name::Long(name.into()),
        }
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            // The bytes of a `str`, whole: never the default.
            Name::Short(len, bytes) => str::from_utf8(&bytes[..usize::from(*len)]).unwrap_or_default(),
            Name::Long(name) => name,
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_are_kept_whole() {
        assert_eq!(size_of::<Name>(), size_of::<String>());
        for len in 0..60 {
            let name = "näme".chars().cycle().take(len).collect::<String>();
            assert_eq!(*Name::new(&name), name);
            assert_eq!(matches!(Name::new(&name), Name::Short(..)), name.len() <= SHORT);
        }
    }
}
