//! The process: its owner, its mappings, its end.

/// One mapping of `/proc/self/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The first address.
    pub start: usize,
    /// The address after the last.
    pub end: usize,
    /// In the kernel's notation: `r-xp`.
    pub permissions: String,
    /// Name of the file, if the mapping has one.
    pub name: String,
}

/// Returns the process's mappings in address order; empty where `/proc` is not available.
pub fn mappings() -> Vec<Mapping> {
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().filter_map(parse_mapping).collect()
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    let permissions = fields.next()?.to_owned();
    let name = fields.nth(3).unwrap_or_default().to_owned();
    Some(Mapping { start, end, permissions, name })
}

/// How many bytes of `at..at + len` are mapped through huge-page entries, by `/proc/self/smaps`.
pub fn huge_bytes(at: usize, len: usize) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut inside, mut huge) = (false, 0);
    for line in smaps.lines() {
        if let Some(mapping) = parse_mapping(line) {
            inside = mapping.start >= at && mapping.end <= at + len;
        } else if let Some((key, value)) = line.split_once(':')
            && inside
            && matches!(key, "ShmemPmdMapped" | "FilePmdMapped" | "Shared_Hugetlb" | "Private_Hugetlb")
        {
            let kib = value.split_ascii_whitespace().next().and_then(|n| n.parse::<usize>().ok());
            huge += kib.unwrap_or(0) * 1024;
        }
    }
    huge
}

/// The user that the process belongs to.
pub fn user() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getuid() }
}

/// The group that the process belongs to.
pub fn group() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getgid() }
}

/// Makes the process end when it writes to a pipe without readers, as programs not written in Rust do, and makes a
/// write beyond `RLIMIT_FSIZE` an error. For the beginning of `main`, because it replaces signal handlers of
/// libraries.
pub fn end_with_the_pipe() {
    // SAFETY: the default action is a valid one, and no handler of this process's own takes part in its safety.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    // SAFETY: to ignore a signal is a valid action, and no handler of this process's own takes part in its safety.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
