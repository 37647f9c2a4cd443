//! The process: its owner, its mappings, its end.

use std::hash::{Hash, Hasher};

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

/// Returns a number that tells apart builds of the executable or shared library that has this address in its code: a
/// hash of the build id that its linker has put there, or else of all of its segments that are not written to. `None`
/// for an address in neither.
pub fn build(address: usize) -> Option<u64> {
    struct Asked {
        address: usize,
        build: Option<u64>,
    }

    /// # Safety
    /// `info` must be as `dl_iterate_phdr` gives it, and `asked` an [`Asked`].
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, asked: *mut libc::c_void) -> libc::c_int {
        // SAFETY: `dl_iterate_phdr` passes a valid structure for the time of this call.
        let info = unsafe { &*info };
        // SAFETY: `asked` is the `Asked` that `build` passes to `dl_iterate_phdr`, and no other reference to it is used
        // meanwhile.
        let asked = unsafe { &mut *asked.cast::<Asked>() };
        // SAFETY: `dlpi_phdr` points to `dlpi_phnum` program headers, which stay mapped with the object, and the object
        // stays loaded during the call.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let place = |header: &libc::Elf64_Phdr| {
            let number = |address: u64| usize::try_from(address).unwrap_or(0);
            (number(info.dlpi_addr.wrapping_add(header.p_vaddr)), number(header.p_memsz))
        };
        let loaded = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD;
        let has = |header: &libc::Elf64_Phdr| {
            let (start, len) = place(header);
            asked.address.checked_sub(start).is_some_and(|at| at < len)
        };
        if !headers.iter().filter(loaded).any(has) {
            return 0;
        }
        let bytes = |header: &libc::Elf64_Phdr| {
            let (start, len) = place(header);
            // SAFETY: the segment is mapped as long as the object, which stays during the call, and not written to.
            unsafe { core::slice::from_raw_parts(start as *const u8, len) }
        };
        let constant =
            |header: &&libc::Elf64_Phdr| header.p_flags & libc::PF_W == 0 && header.p_flags & libc::PF_R != 0;
        let notes = headers.iter().filter(|header| header.p_type == libc::PT_NOTE).filter(constant);
        let id = notes.map(bytes).find_map(build_id);
        let mut hasher = std::hash::DefaultHasher::new();
        match id {
            Some(id) => id.hash(&mut hasher),
            None => headers.iter().filter(loaded).filter(constant).for_each(|header| bytes(header).hash(&mut hasher)),
        }
        asked.build = Some(hasher.finish());
        1
    }

    let mut asked = Asked { address, build: None };
    // SAFETY: `each` has the type that the function calls, gets the address of an `Asked` that outlives the call, keeps
    // neither argument, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut asked).cast()) };
    asked.build
}

/// The build id in a segment of notes (`elf(5)`: name and contents are aligned to four bytes).
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const BUILD_ID: u32 = 3;
    loop {
        let (header, rest) = notes.split_first_chunk::<12>()?;
        let word = |at: usize| Some(u32::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let [name, contents, kind] = [word(0)?, word(4)?, word(8)?];
        let aligned = |len: u32| usize::try_from(len).ok()?.checked_next_multiple_of(4);
        let (owner, rest) = rest.split_at_checked(aligned(name)?)?;
        let (id, rest) = rest.split_at_checked(aligned(contents)?)?;
        if kind == BUILD_ID && owner == b"GNU\0" {
            return Some(id);
        }
        notes = rest;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_has_one_number_and_another_object_another() {
        let own = build(build as *const () as usize);
        assert!(own.is_some());
        assert_eq!(own, build(a_build_has_one_number_and_another_object_another as *const () as usize));
        // The C library is a separate shared object, unless it is linked statically.
        let of_c = build(libc::getuid as *const () as usize);
        assert!(of_c.is_some());
        let stack = 0u8;
        assert_eq!(build((&raw const stack).addr()), None);
    }

    #[test]
    fn notes_are_read_to_their_end() {
        let note = |kind: u32, owner: &[u8], id: &[u8]| {
            let words = [u32::try_from(owner.len()).unwrap(), u32::try_from(id.len()).unwrap(), kind];
            let mut note: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            note.extend_from_slice(owner);
            note.resize(note.len().next_multiple_of(4), 0);
            note.extend_from_slice(id);
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let notes = [note(1, b"GNU\0", &[9; 16]), note(3, b"Go\0", &[8; 7]), note(3, b"GNU\0", &[7; 20])].concat();
        assert_eq!(build_id(&notes), Some(&[7; 20][..]));
        for len in 0..notes.len() {
            assert_eq!(build_id(&notes[..len]), None, "{len}");
        }
        assert_eq!(build_id(&[0xff; 64]), None);
    }
}
