//! Names without flavours.
//!
//! A program may declare a type in several versions, for versions of a host: `xdp_md___old` beside `xdp_md`. The text
//! after the three underscores is a *flavour*; the rest is the essential name, by which the host's types are found.
//!
//! Source: libbpf's documentation of `bpf_core_read.h`.

/// The name without its flavour: `xdp_md` for `xdp_md___old`. A flavour begins at the last three underscores with
/// another character on both sides.
pub(super) fn essential_bytes(name: &[u8]) -> &[u8] {
    let is_separator = |w: &[u8]| w[0] != b'_' && &w[1..4] == b"___" && w[4] != b'_';
    match name.windows(5).rposition(is_separator) {
        Some(at) => &name[..=at],
        None => name,
    }
}

/// [`essential_bytes`] for text.
pub(crate) fn essential(name: &str) -> &str {
    name.get(..essential_bytes(name.as_bytes()).len()).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::essential;

    /// Only exactly three underscores, between other characters, begin a flavour; the last ones count.
    #[test]
    fn flavours_are_no_part_of_a_name() {
        for (name, expected) in [
            ("xdp_md", "xdp_md"),
            ("xdp_md___old", "xdp_md"),
            ("a___b___c", "a___b"),
            ("a____b", "a____b"),
            ("___b", "___b"),
            ("a___", "a___"),
            ("_a__b", "_a__b"),
            ("", ""),
        ] {
            assert_eq!(essential(name), expected);
        }
    }
}
