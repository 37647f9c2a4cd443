//! Where the memory of a run's context lies, by the context's layout: for the interpreter, which gives a program this
//! memory, and for recorders, which copy it.

use bpf_verifier::{ContextLayout, Field, FieldKind};
use core::ops::Range;

/// The places of a layout. Made once for each program that is interpreted or recorded.
#[derive(Debug)]
pub(crate) struct Places {
    regions: Vec<Place>,
    /// The parts of the host's struct that fields lie in, ascending, and whether programs may write them. Other bytes
    /// may be padding, or the host's own values, and are 0 in copies. None for a raw context, which is all bytes.
    pub(crate) fields: Vec<(Range<usize>, bool)>,
    /// Up to here the fields leave no other bytes.
    pub(crate) dense: usize,
    /// The context is all bytes, and one part of the memory.
    pub(crate) raw: bool,
}

/// The place of a region's pointers in the context.
#[derive(Debug)]
struct Place {
    start: usize,
    end: Option<usize>,
    /// The length without an end: every context has so many bytes of it.
    len: usize,
    writable: bool,
}

/// A region of one context.
pub(crate) struct Given {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) writable: bool,
    /// Where it lies in the context itself, if it does.
    pub(crate) inside: Option<Range<usize>>,
}

impl Places {
    pub(crate) fn of(layout: &ContextLayout) -> Places {
        let at = |kind| {
            let field = layout.fields.iter().find(|field| field.kind == kind)?;
            Some(crate::num::index(field.host_offset.into()))
        };
        let region = |(index, region): (u8, &bpf_verifier::Region)| {
            let start = at(FieldKind::Data(index))?;
            let (len, writable) = (crate::num::index(region.min_len.into()), region.writable);
            Some(Place { start, end: at(FieldKind::DataEnd(index)), len, writable })
        };
        let raw = layout.raw;
        let regions = if raw { Vec::new() } else { (0..=u8::MAX).zip(&layout.regions).filter_map(region).collect() };
        let fields = if raw { Vec::new() } else { host_parts(&layout.fields) };
        let further = |end: usize, (part, _): &(Range<usize>, bool)| if part.start <= end { part.end } else { end };
        let dense = if raw { usize::MAX } else { fields.iter().fold(0, further) };
        Places { regions, fields, dense, raw }
    }

    /// The number of regions.
    pub(crate) fn count(&self) -> usize {
        self.regions.len()
    }

    /// A region that a context of `len` bytes at `at` points to, if it lies in the context itself or has an end.
    /// `word`: the pointer at an offset in the context.
    pub(crate) fn region(
        &self,
        number: usize,
        (at, len): (usize, usize),
        word: impl Fn(usize) -> Option<usize>,
    ) -> Option<Given> {
        let place = self.regions.get(number)?;
        let start = word(place.start)?;
        let end = place.end.and_then(&word);
        let bytes = end.map_or(place.len, |end| end.saturating_sub(start));
        let offset = start.wrapping_sub(at);
        let inside = (offset < len && bytes <= len - offset).then(|| offset..offset + bytes);
        let known = inside.is_some() || end.is_some();
        known.then_some(Given { start, len: bytes, writable: place.writable, inside })
    }
}

/// The parts of the host's structure that fields lie in, ascending, and whether programs may write them: the fields may
/// lie there in any order, and over each other.
fn host_parts(fields: &[Field]) -> Vec<(Range<usize>, bool)> {
    let place = |field: &Field| {
        let start = crate::num::index(field.host_offset.into());
        start..start.saturating_add(crate::num::index(field.host_size.into()))
    };
    let mut cuts: Vec<usize> = fields.iter().map(place).flat_map(|place| [place.start, place.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
    for (start, end) in cuts.iter().copied().zip(cuts.iter().copied().skip(1)) {
        let mut covering =
            fields.iter().filter(|field| place(field).start <= start && end <= place(field).end).peekable();
        if covering.peek().is_none() {
            continue;
        }
        let writable = covering.any(|field| field.access.writes());
        match parts.last_mut() {
            Some((last, access)) if last.end == start && *access == writable => last.end = end,
            Some(_) | None => parts.push((start..end, writable)),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_verifier::Access;

    #[test]
    fn fields_lie_in_the_hosts_structure_in_any_order() {
        let field = |host_offset, host_size, access| {
            let (name, kind) = ("f".into(), FieldKind::Scalar);
            Field { name, offset: 0, size: host_size, access, kind, host_offset, host_size }
        };
        let (read, write) = (Access::Read, Access::ReadWrite);
        assert_eq!(host_parts(&[field(8, 4, read), field(0, 4, write)]), [(0..4, true), (8..12, false)]);
        assert_eq!(host_parts(&[field(4, 4, write), field(0, 4, write)]), [(0..8, true)]);
        assert_eq!(
            host_parts(&[field(0, 8, read), field(4, 4, write), field(0, 8, read)]),
            [(0..4, false), (4..8, true)]
        );
        assert_eq!(host_parts(&[]), []);
    }
}
