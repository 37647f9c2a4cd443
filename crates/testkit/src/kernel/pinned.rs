//! Objects as the kernel's own loader loads them.
//!
//! `bpftool` (libbpf) loads an object unchanged: maps made, CO-RE relocated against the running kernel, functions
//! called by name resolved. It pins what it has loaded in a file system of its own; the descriptors are taken from
//! there and the file system goes, so that nothing outlives them.

use super::{Map, OBJ_GET, OBJ_GET_INFO_BY_FD, Program, address, bpf, copied, owned};
use std::{
    collections::BTreeMap,
    ffi::CString,
    fs, io,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

const MAP_GET_NEXT_KEY: libc::c_long = 4;
const MAP_LOOKUP_AND_DELETE_ELEM: libc::c_long = 21;

/// An object that was loaded into the kernel.
#[derive(Debug)]
pub struct Loaded {
    /// The programs by name.
    pub programs: BTreeMap<String, Program>,
    /// The maps by the names of their pins: `.` is `_` there, and sections are behind the object's name.
    pub maps: BTreeMap<String, Map>,
}

/// The reason for which the kernel has not loaded an object.
#[derive(Debug, thiserror::Error)]
pub enum NotLoaded {
    /// There is no loader here, or no file system for it.
    #[error("the kernel's loader is not to be had: {0}")]
    NoLoader(io::Error),
    /// The loader refused the object, with these words.
    #[error("refused: {0}")]
    Refused(String),
}

/// A file system for pins, as long as this lives.
struct Pins(PathBuf);

impl Pins {
    fn new() -> io::Result<Pins> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bpf-pins-{}-{number}", std::process::id()));
        fs::create_dir_all(&path)?;
        let target = name(&path)?;
        // SAFETY: the strings end in zero bytes and are only read; no data is passed.
        let mounted =
            unsafe { libc::mount(c"bpf".as_ptr(), target.as_ptr(), c"bpf".as_ptr(), 0, std::ptr::null()) } == 0;
        // The error is read before another system call replaces it.
        let error = io::Error::last_os_error();
        if !mounted {
            let _ = fs::remove_dir(&path);
            return Err(error);
        }
        Ok(Pins(path))
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if let Ok(target) = name(&self.0) {
            // SAFETY: the string ends in a zero byte and is only read.
            unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        }
        let _ = fs::remove_dir(&self.0);
    }
}

fn name(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

/// Loads all programs of the object in this file.
pub fn load(object: &Path) -> Result<Loaded, NotLoaded> {
    let pins = Pins::new().map_err(NotLoaded::NoLoader)?;
    let folder = |what: &str| pins.0.join(what);
    let (programs, maps) = (folder("programs"), folder("maps"));
    let mut command = Command::new("bpftool");
    command.args(["prog", "loadall"]).arg(object).arg(&programs).arg("pinmaps").arg(&maps);
    let output = command.output().map_err(NotLoaded::NoLoader)?;
    if !output.status.success() {
        return Err(NotLoaded::Refused(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let all = |folder: &Path| -> io::Result<Vec<(String, PathBuf)>> {
        if !folder.exists() {
            return Ok(Vec::new());
        }
        fs::read_dir(folder)?
            .map(|entry| entry.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())))
            .collect()
    };
    let get = || -> io::Result<Loaded> {
        Ok(Loaded {
            programs: all(&programs)?
                .into_iter()
                .map(|(name, path)| Ok((name, Program { fd: owned(pinned(&path)?) })))
                .collect::<io::Result<_>>()?,
            maps: all(&maps)?
                .into_iter()
                .map(|(name, path)| Ok((name, Map::pinned(&path)?)))
                .collect::<io::Result<_>>()?,
        })
    };
    get().map_err(NotLoaded::NoLoader)
}

#[repr(C)]
#[derive(Default)]
struct ObjAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

fn pinned(path: &Path) -> io::Result<i32> {
    let path = name(path)?;
    let mut attr = ObjAttr { pathname: address(path.as_bytes_with_nul()), ..ObjAttr::default() };
    // SAFETY: the path ends in a zero byte and is only read.
    unsafe { bpf(OBJ_GET, &mut attr) }
}

#[repr(C)]
#[derive(Default)]
struct MapInfo {
    map_type: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct InfoAttr {
    fd: u32,
    info_len: u32,
    info: u64,
}

#[repr(C)]
#[derive(Default)]
struct ElemAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Map {
    fn pinned(path: &Path) -> io::Result<Map> {
        let fd = owned(pinned(path)?);
        let mut info = MapInfo::default();
        let mut attr = InfoAttr {
            fd: fd.as_raw_fd() as u32,
            info_len: size_of::<MapInfo>() as u32,
            info: std::ptr::from_mut(&mut info).expose_provenance() as u64,
        };
        // SAFETY: the structure is `info_len` bytes, exclusively ours.
        unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr) }?;
        let value_size = copied(info.map_type, info.value_size)?;
        Ok(Map { fd, key_size: info.key_size as usize, value_size })
    }

    /// All elements by key.
    pub fn elements(&self) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut found = BTreeMap::new();
        let mut key: Option<Vec<u8>> = None;
        loop {
            let mut next = vec![0u8; self.key_size];
            let mut attr = ElemAttr {
                map_fd: self.fd() as u32,
                key: key.as_deref().map_or(0, address),
                value: next.as_mut_ptr().expose_provenance() as u64,
                ..ElemAttr::default()
            };
            // SAFETY: the key, if one is given, and the place for the next have the map's key size.
            match unsafe { bpf(MAP_GET_NEXT_KEY, &mut attr) } {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(found),
                Err(e) => return Err(e),
            }
            found.insert(next.clone(), self.lookup(&next)?);
            key = Some(next);
        }
    }

    /// Takes the next out of a queue.
    pub fn pop(&self) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0u8; self.value_size];
        let mut attr = ElemAttr {
            map_fd: self.fd() as u32,
            value: value.as_mut_ptr().expose_provenance() as u64,
            ..ElemAttr::default()
        };
        // SAFETY: the value has the map's value size; a queue has no keys.
        match unsafe { bpf(MAP_LOOKUP_AND_DELETE_ELEM, &mut attr) } {
            Ok(_) => Ok(Some(value)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}
