//! Declarations of maps in an object.
//!
//! A [`MapDecl`] is plain data: the linker creates the map. Fields hold the values that the object declares, before a
//! map implementation adapts them (a ring buffer's size is not rounded here, a per-CPU map has one value size), so
//! that a definition can be compared with its source.

use std::fmt;

use bpf_uapi::MapType;

use crate::btf::TypeId;

/// The map type that an object declares: a number in the kernel's `enum bpf_map_type`, or an unknown one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MapTypeNumber(pub u32);

impl MapTypeNumber {
    /// The type, if the kernel has one with this number.
    pub fn known(self) -> Option<MapType> {
        MapType::from_number(self.0)
    }

    /// Whether its values are maps.
    pub fn is_map_of_maps(self) -> bool {
        self.known().is_some_and(MapType::is_map_of_maps)
    }
}

impl From<MapType> for MapTypeNumber {
    fn from(map_type: MapType) -> Self {
        MapTypeNumber(map_type.number())
    }
}

impl PartialEq<MapType> for MapTypeNumber {
    fn eq(&self, other: &MapType) -> bool {
        self.0 == other.number()
    }
}

impl fmt::Display for MapTypeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(map_type) => map_type.fmt(f),
            None => write!(f, "type {}", self.0),
        }
    }
}

/// Whether the object requests that the map be shared by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pinning {
    /// Private to the object.
    #[default]
    None,
    /// Shared under its name (LIBBPF_PIN_BY_NAME).
    ByName,
    /// A loader's own value (iproute2 and Cilium have some): treated as private to the object.
    Other(u32),
}

/// An initial value of a map of maps or a prog array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InitialValue {
    /// The map with this index in [`crate::Object::maps`].
    Map(usize),
    /// The program with this name.
    Program(String),
}

/// A global variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Name.
    pub name: String,
    /// Byte offset in the section.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
    /// Its type ([`crate::btf::Type::Var`]), if BTF has it.
    pub ty: Option<TypeId>,
}

/// The kind of a data section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataKind {
    /// `.data*`: initialised and writable.
    Data,
    /// `.rodata*`: initialised and read-only for programs.
    Rodata,
    /// `.bss*`: zeroed and writable.
    Bss,
    /// `.addr_space.1`: the variables at the start of an arena.
    Arena,
    /// `.kconfig`: the values of external configuration variables, read-only for programs.
    Kconfig,
}

/// The contents of a map that holds global data: its one value, or the start of an arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GlobalData {
    /// The kind of section.
    pub kind: DataKind,
    /// Initial contents, as long as the map's value (for an arena, as its section).
    pub bytes: Vec<u8>,
    /// Its variables, by offset.
    pub variables: Vec<Variable>,
    /// The first pointer in the section, which cannot be represented: `(offset, symbol)`.
    pub(crate) pointer: Option<(u64, String)>,
}

/// A map that an object defines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapDecl {
    /// Name: the variable's, or the section's for global data. `outer.inner` for an inner map without a name.
    pub name: String,
    /// The ELF section that defines it.
    pub section: String,
    /// Type.
    pub map_type: MapTypeNumber,
    /// Key size in bytes.
    pub key_size: u32,
    /// Value size in bytes.
    pub value_size: u32,
    /// Number of elements (bytes, for ring buffers).
    pub max_entries: u32,
    /// BPF_F_* flags.
    pub flags: u32,
    /// Extra parameter of some types (hashes of a bloom filter).
    pub map_extra: u64,
    /// NUMA node, if one is requested.
    pub numa_node: Option<u32>,
    /// Pinning.
    pub pinning: Pinning,
    /// Type of the key, if BTF has it.
    pub key_type: Option<TypeId>,
    /// Type of the value, if BTF has it.
    pub value_type: Option<TypeId>,
    /// Shape of the inner maps, for a map of maps.
    pub inner: Option<Box<MapDecl>>,
    /// Initial values: `(slot or key, value)`, in file order. For a `struct_ops` table: the programs, by the index of
    /// their eight-byte word in the structure ([`MapDecl::value_type`]).
    pub initial: Vec<(u32, InitialValue)>,
    /// Contents, for a map that holds global data.
    pub data: Option<GlobalData>,
    /// The structure's bytes, for a `struct_ops` table, with zeros in place of programs.
    pub table: Option<Vec<u8>>,
    /// Its place in the file (section index and byte range), by which relocations find it.
    pub(crate) place: Place,
}

/// The place of a map in the ELF file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Place {
    pub(crate) section: usize,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Byte offset of `values` in the map variable, if it has that field.
    pub(crate) values: Option<u64>,
    /// For an arena with variables: the index of their section; otherwise 0.
    pub(crate) variables: usize,
}

impl MapDecl {
    /// Whether the map holds the global data of this section.
    pub(crate) fn holds_data_of(&self, section: usize) -> bool {
        match &self.data {
            Some(GlobalData { kind: DataKind::Arena, .. }) => self.place.variables == section,
            Some(_) => true,
            None => false,
        }
    }

    pub(crate) fn new(name: String, section: &str) -> MapDecl {
        MapDecl {
            name,
            section: section.to_owned(),
            map_type: MapType::Unspec.into(),
            key_size: 0,
            value_size: 0,
            max_entries: 0,
            flags: 0,
            map_extra: 0,
            numa_node: None,
            pinning: Pinning::None,
            key_type: None,
            value_type: None,
            inner: None,
            initial: Vec::new(),
            data: None,
            table: None,
            place: Place::default(),
        }
    }
}
