//! Saving a map to a file and restoring it, so that state survives a restart.
//!
//! A dump is the map's schema and its elements as raw bytes, closed by a checksum. It can be restored only into a map
//! of equal schema: type, sizes, flags, and for per-CPU maps the number of execution slots.
//!
//! Layout, all numbers little-endian: the magic, eight `u32` (type, key size, value size, host value size, entries,
//! flags, spin lock offset or all ones, 0), `map_extra` and the number of elements as `u64`, the name as `u32` length
//! and bytes, the elements (key, value), the FNV-1a hash of everything before as `u64`.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bpf_os::file::Bounded;

use crate::def::{Family, MapDef, MapType, implemented_type, update};
use crate::errno::Errno;
use crate::error::MapError;
use crate::map::Map;
use crate::mem::round_up8;

const MAGIC: &[u8; 8] = b"BPFMAP\0\x01";

/// The longest name of a map in a valid dump, in bytes.
const MAX_NAME: u32 = 4096;

/// The largest number of execution slots in a valid dump.
const MAX_SLOTS: usize = 1 << 16;

/// FNV-1a, 64 bits: against damage, not against malice.
struct Checksum(u64);

impl Checksum {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Creates a file beside `path`, with a name that no other thread uses at this time. It never opens an existing file.
fn temporary_beside(path: &Path) -> Result<(PathBuf, File), MapError> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        // Relaxed: only uniqueness matters.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.{number}.tmp", std::process::id()));
        let name = PathBuf::from(name);
        match File::options().write(true).create_new(true).open(&name) {
            Ok(file) => return Ok((name, file)),
            // Left by a process that had this process id before and was killed.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io(error)),
        }
    }
}

fn io(error: std::io::Error) -> MapError {
    MapError::Io(error.to_string())
}

fn too_short() -> MapError {
    MapError::BadDump("it ends too early".into())
}

/// Whether elements of the type can be read back. All of these types have elements of at least one byte.
fn can_be_dumped(map_type: MapType) -> bool {
    match Family::of(map_type) {
        Ok(
            Family::Array
            | Family::Hash
            | Family::Trie
            | Family::Queue
            | Family::Redirect
            | Family::InsnArray
            | Family::RedirectHash
            | Family::SocketHash,
        ) => true,
        Ok(Family::Perf | Family::ArrayOfMaps | Family::HashOfMaps | Family::Ring | Family::Bloom | Family::Arena)
        | Err(_) => false,
    }
}

struct Writer<W> {
    to: W,
    checksum: Checksum,
}

impl<W: Write> Writer<W> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), MapError> {
        self.checksum.add(bytes);
        self.to.write_all(bytes).map_err(io)
    }

    fn u32(&mut self, n: u32) -> Result<(), MapError> {
        self.bytes(&n.to_le_bytes())
    }

    fn u64(&mut self, n: u64) -> Result<(), MapError> {
        self.bytes(&n.to_le_bytes())
    }
}

struct Reader<R> {
    from: R,
    checksum: Checksum,
}

impl<R: Read> Reader<R> {
    fn bytes(&mut self, bytes: &mut [u8]) -> Result<(), MapError> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => too_short(),
            _ => io(error),
        })?;
        self.checksum.add(bytes);
        Ok(())
    }

    /// Reads `len` bytes; memory grows as they arrive.
    fn vec(&mut self, len: usize) -> Result<Vec<u8>, MapError> {
        let mut bytes = Vec::new();
        self.from.by_ref().take(len as u64).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() < len {
            return Err(too_short());
        }
        self.checksum.add(&bytes);
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, MapError> {
        let mut bytes = [0; 4];
        self.bytes(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, MapError> {
        let mut bytes = [0; 8];
        self.bytes(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// A dump in memory: the definition of the map, and its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dump {
    /// The schema, without the kinds from BTF.
    pub def: MapDef,
    /// Bytes of a value as the host sees it.
    pub host_value_size: usize,
    /// Keys and values. A stack's oldest value comes first, like a queue's.
    pub elements: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Dump {
    /// Reads a dump. Memory use stays a small multiple of the bytes read, whatever sizes the dump claims.
    ///
    /// # Errors
    /// [`MapError::BadDump`] for damaged ones, [`MapError::Unsupported`] for unknown types.
    pub fn read(from: impl Read) -> Result<Self, MapError> {
        let mut reader = Reader { from, checksum: Checksum::new() };
        let mut magic = [0; 8];
        reader.bytes(&mut magic)?;
        if &magic != MAGIC {
            return Err(MapError::BadDump("it does not begin with the magic of a map dump".into()));
        }
        let map_type = implemented_type(reader.u32()?)?;
        let [key_size, value_size, host_value_size] = [reader.u32()?, reader.u32()?, reader.u32()?];
        let mut def = MapDef::new("", map_type, key_size, value_size, reader.u32()?);
        def.flags = reader.u32()?;
        // Locks are aligned to 4 bytes: bit 0 of the stored offset marks a resilient lock.
        let lock = Some(reader.u32()?).filter(|&offset| offset != u32::MAX);
        (def.spin_lock, def.resilient_lock) = (lock.map(|at| at & !1), lock.is_some_and(|at| at & 1 != 0));
        def.timer = reader.u32()?.checked_sub(1);
        def.map_extra = reader.u64()?;
        let count = reader.u64()?;
        let name_len = reader.u32()?;
        if name_len > MAX_NAME {
            return Err(MapError::BadDump(format!("a name of {name_len} bytes")));
        }
        let name = String::from_utf8(reader.vec(name_len as usize)?).ok();
        // Names appear in messages, and a dump is not trusted.
        def.name = name
            .filter(|name| !name.contains(char::is_control))
            .ok_or_else(|| MapError::BadDump("the name is not UTF-8, or has control characters".into()))?;
        def.validate()?;
        if !can_be_dumped(map_type) {
            return Err(MapError::BadDump(format!("a {} has no elements that could be in it", map_type.name())));
        }
        let per_slot = round_up8(value_size as usize);
        let fits = host_value_size == value_size || (host_value_size as usize).is_multiple_of(per_slot);
        if !fits || host_value_size as usize > per_slot * MAX_SLOTS {
            return Err(MapError::BadDump(format!(
                "values of {host_value_size} bytes for a value_size of {value_size}"
            )));
        }
        // Nothing is allocated by a claimed count or size, because these may be damaged. Each element has at least
        // one byte, so the number of bytes read bounds the memory for elements.
        let mut elements = Vec::new();
        for _ in 0..count {
            elements.push((reader.vec(key_size as usize)?, reader.vec(host_value_size as usize)?));
        }
        let sum = reader.checksum.0;
        if reader.u64()? != sum {
            return Err(MapError::BadDump("the checksum does not match".into()));
        }
        Ok(Self { def, host_value_size: host_value_size as usize, elements })
    }

    /// Writes the dump.
    ///
    /// # Errors
    /// [`MapError::Io`].
    pub fn write(&self, to: impl Write) -> Result<(), MapError> {
        let mut writer = Writer { to, checksum: Checksum::new() };
        writer.bytes(MAGIC)?;
        let def = &self.def;
        let host_value_size = u32::try_from(self.host_value_size)
            .map_err(|_| MapError::BadDump(format!("values of {} bytes", self.host_value_size)))?;
        let sizes = [def.map_type as u32, def.key_size, def.value_size, host_value_size];
        let lock = def.spin_lock.map_or(u32::MAX, |at| at | u32::from(def.resilient_lock));
        let (lock, timer) = (lock, def.timer.map_or(0, |offset| offset.saturating_add(1)));
        for n in sizes.into_iter().chain([def.max_entries, def.flags, lock, timer]) {
            writer.u32(n)?;
        }
        writer.u64(def.map_extra)?;
        writer.u64(self.elements.len() as u64)?;
        // A longer name is cut at a character boundary, so that it can be read back. (`str::floor_char_boundary`
        // exists since Rust 1.91 only.)
        let longest = def.name.len().min(MAX_NAME as usize);
        let end = (0..=longest).rev().find(|at| def.name.is_char_boundary(*at)).unwrap_or(0);
        let name = &def.name[..end];
        writer.u32(crate::num::small(name.len()))?;
        writer.bytes(name.as_bytes())?;
        for (key, value) in &self.elements {
            writer.bytes(key)?;
            writer.bytes(value)?;
        }
        let sum = writer.checksum.0;
        writer.u64(sum)?;
        writer.to.flush().map_err(io)
    }
}

impl Map {
    /// Copies the whole map. An element that changes meanwhile is copied as of one moment.
    ///
    /// # Errors
    /// `ENOTSUPP` for types whose elements cannot be read back: bloom filters, rings, maps of maps, perf event arrays,
    /// arenas; and for values that own objects.
    pub fn dump(&self) -> Result<Dump, MapError> {
        if !can_be_dumped(self.map_type()) || self.def().owned.is_some() || self.def().work.is_some() {
            return Err(self.error("dump", Errno::ENOTSUPP));
        }
        let mut elements = Vec::new();
        for element in self.iter() {
            let room = elements.try_reserve(1);
            room.map_err(|_| self.system("allocating a copy of all elements", Errno::ENOMEM))?;
            elements.push(element?);
        }
        if self.map_type() == MapType::Stack {
            elements.reverse();
        }
        let mut def = self.def().clone();
        (def.key_kind, def.value_kind) = (None, None);
        Ok(Dump { def, host_value_size: self.host_value_size(), elements })
    }

    /// Writes the elements of a dump into the map, which must have the dump's schema. Elements of the map that are
    /// not in the dump stay.
    ///
    /// # Errors
    /// [`MapError::Incompatible`] names the field that differs; `E2BIG` if the elements do not fit beside those in
    /// the map.
    pub fn restore(&self, dump: &Dump) -> Result<(), MapError> {
        dump.def.compatible_with(self.def())?;
        if dump.host_value_size != self.host_value_size() {
            let (expected, got) = (self.host_value_size() as u64, dump.host_value_size as u64);
            return Err(MapError::Incompatible {
                map: self.name().to_owned(),
                field: "value bytes of all slots",
                expected,
                got,
            });
        }
        dump.elements.iter().try_for_each(|(key, value)| self.update(key, value, update::ANY))
    }

    /// Writes [`Map::dump`] to a file. The file appears whole or not at all.
    ///
    /// # Errors
    /// As [`Map::dump`]; [`MapError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), MapError> {
        let dump = self.dump()?;
        let (temporary, file) = temporary_beside(path)?;
        let written = dump.write(std::io::BufWriter::new(Bounded(&file))).and_then(|()| {
            file.sync_all().map_err(io)?;
            std::fs::rename(&temporary, path).map_err(io)
        });
        if written.is_err() {
            // The first error is reported, not one of removing the file.
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }

    /// Restores the map from a file that [`Map::save`] wrote.
    ///
    /// # Errors
    /// As [`Dump::read`] and [`Map::restore`].
    pub fn load(&self, path: &Path) -> Result<(), MapError> {
        let file = File::open(path).map_err(io)?;
        self.restore(&Dump::read(std::io::BufReader::new(file))?)
    }
}
