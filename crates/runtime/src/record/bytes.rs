//! The bytes of a recording: how numbers, texts and lists are written and read.
//!
//! Numbers are little endian; texts and lists have their length (u32) before them. The reader ends for any bytes, and
//! its errors name the place.

use crate::error::record::RecordingError;

/// The bytes that are read, and the place of the next one.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { bytes, at: 0 }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(crate) fn error<T>(&self, at: usize, what: impl Into<String>) -> Result<T, RecordingError> {
        Err(RecordingError { at, what: what.into() })
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'b [u8], RecordingError> {
        let left = &self.bytes[self.at..];
        let Some(bytes) = left.get(..len) else {
            return self.error(self.at, format!("{len} bytes are expected, and {} are left", left.len()));
        };
        self.at += len;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordingError> {
        let bytes = self.bytes(N)?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, RecordingError> {
        self.array::<1>().map(u8::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, RecordingError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, RecordingError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, RecordingError> {
        let at = self.at;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => self.error(at, format!("{other} is neither 0 nor 1")),
        }
    }

    /// Bytes with their number before them.
    pub(crate) fn counted(&mut self) -> Result<&'b [u8], RecordingError> {
        let len = self.u32()?;
        self.bytes(crate::num::index(len.into()))
    }

    pub(crate) fn text(&mut self) -> Result<String, RecordingError> {
        let at = self.at;
        match std::str::from_utf8(self.counted()?) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => self.error(at, "a text is not UTF-8"),
        }
    }

    /// A list. Its number of elements is checked before memory is taken for them.
    pub(crate) fn list<T>(
        &mut self,
        of: &Listed,
        mut one: impl FnMut(&mut Self) -> Result<T, RecordingError>,
    ) -> Result<Vec<T>, RecordingError> {
        let at = self.at;
        let count = crate::num::index(self.u32()?.into());
        let Listed { what, max, least } = *of;
        if count > max {
            return self.error(at, format!("{count} {what}; at most {max} are possible"));
        }
        let left = self.bytes.len() - self.at;
        if count > left / least {
            return self.error(at, format!("{count} {what} take {least} bytes each at least, and {left} are left"));
        }
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(one(self)?);
        }
        Ok(list)
    }
}

/// A kind of list.
pub(crate) struct Listed {
    /// The elements, for errors.
    pub(crate) what: &'static str,
    /// Upper bound on their number.
    pub(crate) max: usize,
    /// Lower bound on the bytes of one.
    pub(crate) least: usize,
}

impl Listed {
    pub(crate) const fn new(what: &'static str, max: usize, least: usize) -> Listed {
        Listed { what, max, least }
    }
}

/// Adds numbers, texts and lists.
pub(crate) trait Write {
    fn u32(&mut self, number: u32);
    fn u64(&mut self, number: u64);
    /// The number of elements or bytes that follow.
    fn count(&mut self, count: usize);
    fn counted(&mut self, bytes: &[u8]);
}

impl Write for Vec<u8> {
    fn u32(&mut self, number: u32) {
        self.extend_from_slice(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.extend_from_slice(&number.to_le_bytes());
    }

    fn count(&mut self, count: usize) {
        // Programs, contexts and logs are below 4 GiB by their limits.
        self.u32(crate::num::small(count));
    }

    fn counted(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.extend_from_slice(bytes);
    }
}
