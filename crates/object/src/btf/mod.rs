//! BTF: the types, prototypes and names that the compiler recorded.
//!
//! Problem: maps are *defined* by BTF, global functions get their prototypes from it, and messages need its names;
//! all of it is hostile input. Approach: one pass decodes `.BTF` into a closed enum, [`Type`]; a second pass checks
//! that every type and string reference is valid. Layout per the kernel's Documentation/bpf/btf.rst.
//!
//! Invariants: after [`Btf::parse`] a [`TypeId`] found in a type indexes the table and a string offset lies in the
//! string section. Type graphs may still be cyclic where C forbids it (a typedef of itself), so every walk is
//! bounded by [`MAX_DEPTH`]. Memory is linear in the section.

mod ext;

pub(crate) use ext::{BtfExt, CoreRecord, LineRecord};

use std::borrow::Cow;
use std::collections::HashMap;

use crate::error::{BtfProblem, ObjectError};

/// Longest chain of typedefs, qualifiers and array dimensions that is followed (Linux: MAX_RESOLVE_DEPTH, 32).
pub const MAX_DEPTH: usize = 32;

/// Largest number of bytes read of a string, so that a look-up takes constant time.
const MAX_STRING: usize = 4096;

/// Index of a type. 0 is `void`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TypeId(pub u32);

/// Offset of a string in the string section. 0 is the empty string.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct StrOffset(pub u32);

/// A type qualifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Qualifier {
    /// `volatile`.
    Volatile,
    /// `const`.
    Const,
    /// `restrict`.
    Restrict,
}

/// Linkage of a function or variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linkage {
    /// `static`.
    Static,
    /// Defined here, visible outside.
    Global,
    /// Defined elsewhere.
    Extern,
}

/// A member of a structure or union.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Name; empty for anonymous members.
    pub name: StrOffset,
    /// Type.
    pub ty: TypeId,
    /// Offset in bits.
    pub bit_offset: u32,
    /// Width in bits if it is a bit field, else 0.
    pub bit_size: u8,
}

/// A parameter of a function prototype.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Param {
    /// Name.
    pub name: StrOffset,
    /// Type; `void` for the `...` of a variadic function.
    pub ty: TypeId,
}

/// A variable of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SectionVar {
    /// The [`Type::Var`] (or, in `.ksyms`, [`Type::Func`]).
    pub ty: TypeId,
    /// Byte offset in the section.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// A type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Type {
    /// `void`, type 0.
    Void,
    /// An integer.
    Int {
        /// Name.
        name: StrOffset,
        /// Size in bytes.
        size: u32,
        /// Significant bits.
        bits: u8,
        /// The first significant bit. Compilers before LLVM 8 used it to describe bit fields.
        offset: u8,
        /// Whether it is signed.
        signed: bool,
        /// Whether it is C's `_Bool`.
        boolean: bool,
    },
    /// A pointer.
    Ptr {
        /// Pointee.
        to: TypeId,
    },
    /// An array.
    Array {
        /// Element.
        elem: TypeId,
        /// Number of elements.
        len: u32,
    },
    /// A structure or union.
    Composite {
        /// Name.
        name: StrOffset,
        /// Size in bytes.
        size: u32,
        /// Whether it is a union.
        union: bool,
        /// Members, in declaration order.
        members: Box<[Member]>,
    },
    /// An enumeration, of 32 or 64 bits.
    Enum {
        /// Name.
        name: StrOffset,
        /// Size in bytes.
        size: u32,
        /// Whether its values are signed.
        signed: bool,
        /// Names and values.
        values: Box<[(StrOffset, i64)]>,
    },
    /// A forward declaration of a structure or union.
    Fwd {
        /// Name.
        name: StrOffset,
        /// Whether it is a union.
        union: bool,
    },
    /// A typedef.
    Typedef {
        /// Name.
        name: StrOffset,
        /// The aliased type.
        to: TypeId,
    },
    /// A qualified type.
    Qualified {
        /// The qualifier.
        qualifier: Qualifier,
        /// The type.
        to: TypeId,
    },
    /// A function.
    Func {
        /// Name.
        name: StrOffset,
        /// Its [`Type::FuncProto`].
        proto: TypeId,
        /// Linkage.
        linkage: Linkage,
    },
    /// A function prototype.
    FuncProto {
        /// Return type.
        ret: TypeId,
        /// Parameters.
        params: Box<[Param]>,
    },
    /// A variable.
    Var {
        /// Name.
        name: StrOffset,
        /// Type.
        ty: TypeId,
        /// Linkage.
        linkage: Linkage,
    },
    /// The variables of a section.
    DataSec {
        /// Section name.
        name: StrOffset,
        /// Its variables.
        vars: Box<[SectionVar]>,
    },
    /// A floating-point number.
    Float {
        /// Name.
        name: StrOffset,
        /// Size in bytes.
        size: u32,
    },
    /// `__attribute__((btf_decl_tag))`.
    DeclTag {
        /// The tag.
        name: StrOffset,
        /// The tagged declaration.
        to: TypeId,
        /// Member or parameter index; -1 for the declaration itself.
        component: i32,
    },
    /// `__attribute__((btf_type_tag))`.
    TypeTag {
        /// The tag.
        name: StrOffset,
        /// The tagged type.
        to: TypeId,
    },
}

/// The kind of a global function's argument, as its prototype says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgKind {
    /// An integer or enumeration.
    Scalar {
        /// Size in bytes.
        size: u32,
    },
    /// A pointer.
    Pointer {
        /// The pointee, qualifiers and typedefs removed.
        to: TypeId,
        /// Size of the pointee in bytes, if it has one (`void` and forward declarations have none).
        size: Option<u32>,
    },
    /// A structure by value, a float, or anything else that is not passed in one register.
    Other,
}

/// The types of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Btf {
    types: Vec<Type>,
    strings: Vec<u8>,
    /// Bytes of a pointer: 8 in objects; 4 in the BTF of a 32-bit host.
    pointer: u32,
    /// Functions with tags on their arguments.
    arg_tags: HashMap<TypeId, [ArgTags; MAX_ARGS]>,
}

/// The largest number of arguments of a program's function.
pub const MAX_ARGS: usize = 5;

/// The tags of one argument of a function (`btf_decl_tag("arg:...")`, as set by libbpf's macro `__arg_ctx` and
/// similar ones).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ArgTags {
    /// `arg:ctx`: the argument is the program's context.
    pub ctx: bool,
    /// `arg:nonnull`: the argument is never null.
    pub nonnull: bool,
    /// `arg:trusted`: the argument points to a kernel object.
    pub trusted: bool,
    /// `arg:arena`: the argument points into the program's arena.
    pub arena: bool,
}

/// Collects the tags of all functions' arguments in one walk over the types.
fn arg_tags(btf: &Btf) -> HashMap<TypeId, [ArgTags; MAX_ARGS]> {
    let mut found: HashMap<TypeId, [ArgTags; MAX_ARGS]> = HashMap::new();
    for (_, ty) in btf.types() {
        #[cfg(test)]
        LOOKED_AT.set(LOOKED_AT.get() + 1);
        let Type::DeclTag { name, to, component } = *ty else { continue };
        let Some(arg) = usize::try_from(component).ok().filter(|arg| *arg < MAX_ARGS) else { continue };
        // Compared without a copy, because a tag may be as long as the section.
        let text = btf.strings.get(name.0 as usize..).unwrap_or_default();
        let is = |tag: &[u8]| text.starts_with(tag);
        let said = ArgTags {
            ctx: is(b"arg:ctx\0"),
            nonnull: is(b"arg:nonnull\0"),
            trusted: is(b"arg:trusted\0"),
            arena: is(b"arg:arena\0"),
        };
        if said != ArgTags::default() {
            let tags = &mut found.entry(to).or_default()[arg];
            tags.ctx |= said.ctx;
            tags.nonnull |= said.nonnull;
            tags.trusted |= said.trusted;
            tags.arena |= said.arena;
        }
    }
    found
}

#[cfg(test)]
thread_local! {
    /// Counts the types inspected for tags, and the functions whose tags were asked for.
    static LOOKED_AT: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// A little-endian reader over a section that turns every short read into a typed error.
pub(crate) struct Reader<'a> {
    pub(crate) section: &'static str,
    pub(crate) bytes: &'a [u8],
    /// Offset of `bytes[0]` in the section, for messages.
    pub(crate) base: usize,
    pub(crate) pos: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn fail(&self, problem: BtfProblem) -> ObjectError {
        ObjectError::Btf { section: self.section, offset: self.base + self.pos, problem }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], ObjectError> {
        let end = self.pos.checked_add(len).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| self.fail(BtfProblem::Truncated))?;
        let taken = &self.bytes[self.pos..end];
        self.pos = end;
        Ok(taken)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ObjectError> {
        let bytes = self.take(4)?;
        bytes.try_into().map(u32::from_le_bytes).map_err(|_| ObjectError::Internal("four bytes are not four bytes"))
    }

    pub(crate) fn at_end(&self) -> bool {
        self.pos >= self.bytes.len()
    }

    /// Reads the header shared by `.BTF` and `.BTF.ext`: magic, version, flags, header length. Leaves the reader
    /// after the four fixed fields and returns the header length.
    pub(crate) fn header(&mut self, least: u32) -> Result<u32, ObjectError> {
        let magic_version_flags = self.u32()?;
        if magic_version_flags & 0xffff != 0xeb9f {
            return Err(self.fail(BtfProblem::Header("magic is not 0xeb9f")));
        }
        if (magic_version_flags >> 16) & 0xff != 1 {
            return Err(self.fail(BtfProblem::Header("version is not 1")));
        }
        let len = self.u32()?;
        if len < least || len as usize > self.bytes.len() {
            return Err(self.fail(BtfProblem::Header("header length")));
        }
        Ok(len)
    }

    /// A reader for the `len` bytes at `offset` after the header.
    pub(crate) fn part(&self, header: u32, offset: u32, len: u32) -> Result<Reader<'a>, ObjectError> {
        let start = header as usize + offset as usize;
        let bytes = start.checked_add(len as usize).and_then(|end| self.bytes.get(start..end));
        let bytes = bytes.ok_or_else(|| self.fail(BtfProblem::Truncated))?;
        Ok(Reader { section: self.section, bytes, base: self.base + start, pos: 0 })
    }
}

impl Btf {
    /// Parses the contents of `.BTF` (relocated: section variables at their offsets).
    pub fn parse(bytes: &[u8]) -> Result<Btf, ObjectError> {
        let mut reader = Reader { section: ".BTF", bytes, base: 0, pos: 0 };
        let header = reader.header(24)?;
        let [type_off, type_len] = [reader.u32()?, reader.u32()?];
        let [str_off, str_len] = [reader.u32()?, reader.u32()?];
        let mut strings = reader.part(header, str_off, str_len)?.bytes.to_vec();
        crate::text::clean(&mut strings);
        if strings.first() != Some(&0) || strings.last() != Some(&0) {
            return Err(reader.fail(BtfProblem::Header("string section does not begin and end with NUL")));
        }
        let mut types = vec![Type::Void];
        let mut starts = vec![0];
        let mut reader = reader.part(header, type_off, type_len)?;
        while !reader.at_end() {
            starts.push(reader.base + reader.pos);
            types.push(parse_type(&mut reader)?);
        }
        let mut btf = Btf { types, strings, pointer: 8, arg_tags: HashMap::new() };
        for (ty, &offset) in btf.types.iter().zip(&starts) {
            btf.check_references(ty).map_err(|problem| ObjectError::Btf { section: ".BTF", offset, problem })?;
        }
        btf.arg_tags = arg_tags(&btf);
        Ok(btf)
    }

    /// Types without a section: only `void`. [`Btf::add`] and [`Btf::intern`] add more.
    pub(crate) fn empty() -> Btf {
        Btf { types: vec![Type::Void], strings: vec![0], pointer: 8, arg_tags: HashMap::new() }
    }

    /// Adds a type whose references are valid, and returns its id.
    pub(crate) fn add(&mut self, ty: Type) -> TypeId {
        // Fits: lists that a host describes in memory are far shorter.
        let id = TypeId(u32::try_from(self.types.len()).unwrap_or(0));
        self.types.push(ty);
        id
    }

    /// Adds a string, cleaned and cut at its first NUL, and returns its offset.
    pub(crate) fn intern(&mut self, text: &str) -> StrOffset {
        if text.is_empty() {
            return StrOffset(0);
        }
        let at = self.strings.len();
        self.strings.extend(text.bytes());
        crate::text::clean(&mut self.strings[at..]);
        self.strings.push(0);
        StrOffset(u32::try_from(at).unwrap_or(0))
    }

    fn check_references(&self, ty: &Type) -> Result<(), BtfProblem> {
        let id = |id: TypeId| {
            if (id.0 as usize) < self.types.len() { Ok(()) } else { Err(BtfProblem::TypeId(id.0)) }
        };
        let name = |s: StrOffset| self.check_string(s);
        match ty {
            Type::Void => Ok(()),
            Type::Int { name: n, .. } | Type::Fwd { name: n, .. } | Type::Float { name: n, .. } => name(*n),
            Type::Ptr { to } | Type::Qualified { to, .. } => id(*to),
            Type::Array { elem, .. } => id(*elem),
            Type::Composite { name: n, members, .. } => {
                name(*n)?;
                members.iter().try_for_each(|m| name(m.name).and(id(m.ty)))
            }
            Type::Enum { name: n, values, .. } => {
                name(*n)?;
                values.iter().try_for_each(|&(n, _)| name(n))
            }
            Type::Typedef { name: n, to } | Type::TypeTag { name: n, to } | Type::DeclTag { name: n, to, .. } => {
                name(*n).and(id(*to))
            }
            Type::Func { name: n, proto, .. } => name(*n).and(id(*proto)),
            Type::FuncProto { ret, params } => {
                id(*ret)?;
                params.iter().try_for_each(|p| name(p.name).and(id(p.ty)))
            }
            Type::Var { name: n, ty, .. } => name(*n).and(id(*ty)),
            Type::DataSec { name: n, vars } => {
                name(*n)?;
                vars.iter().try_for_each(|v| id(v.ty))
            }
        }
    }

    pub(crate) fn check_string(&self, s: StrOffset) -> Result<(), BtfProblem> {
        if (s.0 as usize) < self.strings.len() { Ok(()) } else { Err(BtfProblem::StringOffset(s.0)) }
    }

    /// The type with this id; `void` for an id that does not exist.
    pub fn get(&self, id: TypeId) -> &Type {
        self.types.get(id.0 as usize).unwrap_or(&Type::Void)
    }

    /// All types with their ids; the first is `void`.
    pub fn types(&self) -> impl ExactSizeIterator<Item = (TypeId, &Type)> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a type takes at least 12 bytes of a part of the section whose length is a u32"
        )]
        self.types.iter().enumerate().map(|(i, ty)| (TypeId(i as u32), ty))
    }

    /// Returns the tags of a function's arguments, by argument.
    pub fn arg_tags(&self, function: TypeId) -> [ArgTags; MAX_ARGS] {
        #[cfg(test)]
        LOOKED_AT.set(LOOKED_AT.get() + 1);
        self.arg_tags.get(&function).copied().unwrap_or_default()
    }

    /// The name at this offset; empty if the type is anonymous, or if the name is not UTF-8, which no compiler
    /// writes.
    pub fn name(&self, at: StrOffset) -> &str {
        std::str::from_utf8(self.string_bytes(at)).unwrap_or("")
    }

    /// The text at this offset, for messages: source lines may be in any encoding.
    pub fn text(&self, at: StrOffset) -> Cow<'_, str> {
        String::from_utf8_lossy(self.string_bytes(at))
    }

    /// The bytes of the string at this offset, at most [`MAX_STRING`].
    pub(crate) fn string_bytes(&self, at: StrOffset) -> &[u8] {
        let tail = self.strings.get(at.0 as usize..).unwrap_or(&[]);
        let window = &tail[..tail.len().min(MAX_STRING)];
        &window[..window.iter().position(|&b| b == 0).unwrap_or(window.len())]
    }

    /// Whether the string at this offset is empty: an anonymous type or member.
    pub(crate) fn string_bytes_are_empty(&self, at: StrOffset) -> bool {
        matches!(self.strings.get(at.0 as usize), None | Some(0))
    }

    /// Whether the string at this offset equals `text`, which has fewer than [`MAX_STRING`] bytes.
    pub(crate) fn string_is(&self, at: StrOffset, text: &[u8]) -> bool {
        let tail = self.strings.get(at.0 as usize..).unwrap_or(&[]);
        tail.get(..text.len()) == Some(text) && tail.get(text.len()) == Some(&0)
    }

    /// Takes the size of pointers from the size of the type `long`, which equals it on Linux.
    pub(crate) fn with_pointers_of_long(mut self) -> Btf {
        let long = |(id, ty): (TypeId, &Type)| match *ty {
            Type::Int { size: size @ (4 | 8), .. } => {
                let names = ["long", "long int", "unsigned long", "long unsigned int"];
                names.contains(&self.type_name(id)).then_some(size)
            }
            _ => None,
        };
        let pointer = self.types().find_map(long).unwrap_or(8);
        self.pointer = pointer;
        self
    }

    /// The offset of the type's own name; 0 for types without a name.
    pub(crate) fn name_offset(&self, id: TypeId) -> StrOffset {
        match *self.get(id) {
            Type::Int { name, .. }
            | Type::Composite { name, .. }
            | Type::Enum { name, .. }
            | Type::Fwd { name, .. }
            | Type::Typedef { name, .. }
            | Type::Func { name, .. }
            | Type::Var { name, .. }
            | Type::DataSec { name, .. }
            | Type::Float { name, .. }
            | Type::DeclTag { name, .. }
            | Type::TypeTag { name, .. } => name,
            Type::Void | Type::Ptr { .. } | Type::Array { .. } | Type::Qualified { .. } | Type::FuncProto { .. } => {
                StrOffset(0)
            }
        }
    }

    /// The type's own name; empty for types without a name.
    pub fn type_name(&self, id: TypeId) -> &str {
        match self.get(id) {
            Type::Void => "void",
            _ => self.name(self.name_offset(id)),
        }
    }

    /// The type in a form close to C, for messages: `struct flow`, `__u64[2]`, `const char *`.
    pub fn display(&self, mut id: TypeId) -> String {
        let (mut qualifiers, mut suffix) = (String::new(), String::new());
        for _ in 0..MAX_DEPTH {
            let keyword = match *self.get(id) {
                Type::Ptr { to } => {
                    suffix.insert_str(0, " *");
                    id = to;
                    continue;
                }
                Type::Array { elem, len } => {
                    suffix.push_str(&format!("[{len}]"));
                    id = elem;
                    continue;
                }
                Type::Qualified { qualifier, to } => {
                    qualifiers.push_str(match qualifier {
                        Qualifier::Volatile => "volatile ",
                        Qualifier::Const => "const ",
                        Qualifier::Restrict => "restrict ",
                    });
                    id = to;
                    continue;
                }
                Type::TypeTag { to, .. } | Type::Var { ty: to, .. } => {
                    id = to;
                    continue;
                }
                Type::Composite { union: true, .. } => "union ",
                Type::Composite { union: false, .. } | Type::Fwd { .. } => "struct ",
                Type::Enum { .. } => "enum ",
                Type::FuncProto { .. } => "function",
                Type::Void
                | Type::Int { .. }
                | Type::Typedef { .. }
                | Type::Func { .. }
                | Type::DataSec { .. }
                | Type::Float { .. }
                | Type::DeclTag { .. } => "",
            };
            let name = match self.type_name(id) {
                "" if keyword.ends_with(' ') => "{...}",
                name => name,
            };
            return format!("{qualifiers}{keyword}{name}{suffix}");
        }
        "...".to_owned()
    }

    /// The type behind typedefs, qualifiers and type tags; the last one reached if there are more than [`MAX_DEPTH`]
    /// of them.
    pub fn resolve(&self, mut id: TypeId) -> TypeId {
        for _ in 0..MAX_DEPTH {
            match *self.get(id) {
                Type::Typedef { to, .. } | Type::Qualified { to, .. } | Type::TypeTag { to, .. } => id = to,
                _ => break,
            }
        }
        id
    }

    /// Size of a value of the type in bytes; `None` for types without one, and beyond 4 GiB.
    pub fn size_of(&self, mut id: TypeId) -> Option<u32> {
        let mut elements: u32 = 1;
        for _ in 0..MAX_DEPTH {
            let size = match *self.get(id) {
                Type::Typedef { to, .. } | Type::Qualified { to, .. } | Type::TypeTag { to, .. } => {
                    id = to;
                    continue;
                }
                Type::Var { ty, .. } => {
                    id = ty;
                    continue;
                }
                Type::Array { elem, len } => {
                    elements = elements.checked_mul(len)?;
                    id = elem;
                    continue;
                }
                Type::Int { size, .. }
                | Type::Composite { size, .. }
                | Type::Enum { size, .. }
                | Type::Float { size, .. } => size,
                Type::Ptr { .. } => self.pointer,
                Type::Void
                | Type::Fwd { .. }
                | Type::Func { .. }
                | Type::FuncProto { .. }
                | Type::DataSec { .. }
                | Type::DeclTag { .. } => return None,
            };
            return elements.checked_mul(size);
        }
        None
    }

    /// Return type and argument kinds of a [`Type::Func`] or [`Type::FuncProto`].
    pub fn prototype(&self, id: TypeId) -> Option<(ArgKind, Vec<ArgKind>)> {
        match self.get(id) {
            Type::Func { proto, .. } => match self.get(*proto) {
                Type::FuncProto { ret, params } => Some(self.kinds(*ret, params)),
                _ => None,
            },
            Type::FuncProto { ret, params } => Some(self.kinds(*ret, params)),
            _ => None,
        }
    }

    fn kinds(&self, ret: TypeId, params: &[Param]) -> (ArgKind, Vec<ArgKind>) {
        (self.arg_kind(ret), params.iter().map(|p| self.arg_kind(p.ty)).collect())
    }

    fn arg_kind(&self, id: TypeId) -> ArgKind {
        match *self.get(self.resolve(id)) {
            Type::Int { size, .. } | Type::Enum { size, .. } => ArgKind::Scalar { size },
            Type::Ptr { to } => ArgKind::Pointer { to: self.resolve(to), size: self.size_of(to) },
            _ => ArgKind::Other,
        }
    }
}

/// Parses one type, per btf.rst: `name_off`, `info`, `size`/`type`, then the data of its kind.
fn parse_type(r: &mut Reader<'_>) -> Result<Type, ObjectError> {
    let name = StrOffset(r.u32()?);
    let info = r.u32()?;
    let size = r.u32()?;
    let to = TypeId(size);
    // Bits 16 to 23 extend the original 16 bits of the number of items.
    let vlen = (info & 0xff_ffff) as usize;
    let kind_flag = info >> 31 == 1;
    let kind = ((info >> 24) & 0x7f) as u8;
    let signed_flag = kind_flag;
    Ok(match kind {
        1 => {
            let encoding = r.u32()?;
            let (bits, offset) = ((encoding & 0xff) as u8, ((encoding >> 16) & 0xff) as u8);
            // BTF_INT_ENCODING (linux/btf.h): BTF_INT_SIGNED is bit 0, BTF_INT_BOOL bit 2.
            let (signed, boolean) = ((encoding >> 24) & 1 == 1, (encoding >> 26) & 1 == 1);
            Type::Int { name, size, bits, offset, signed, boolean }
        }
        2 => Type::Ptr { to },
        3 => {
            let elem = TypeId(r.u32()?);
            // The index type is always an integer, and is ignored.
            r.u32()?;
            Type::Array { elem, len: r.u32()? }
        }
        4 | 5 => Type::Composite {
            name,
            size,
            union: kind == 5,
            members: list(r, vlen, |r| {
                let (name, ty, offset) = (StrOffset(r.u32()?), TypeId(r.u32()?), r.u32()?);
                // With kind_flag the top byte is the width of a bit field.
                let (bit_offset, bit_size) =
                    if kind_flag { (offset & 0xff_ffff, (offset >> 24) as u8) } else { (offset, 0) };
                Ok(Member { name, ty, bit_offset, bit_size })
            })?,
        },
        6 => Type::Enum {
            name,
            size,
            signed: signed_flag,
            values: list(r, vlen, |r| {
                let (name, value) = (StrOffset(r.u32()?), r.u32()?);
                Ok((name, if signed_flag { i64::from(value as i32) } else { i64::from(value) }))
            })?,
        },
        7 => Type::Fwd { name, union: kind_flag },
        8 => Type::Typedef { name, to },
        9 => Type::Qualified { qualifier: Qualifier::Volatile, to },
        10 => Type::Qualified { qualifier: Qualifier::Const, to },
        11 => Type::Qualified { qualifier: Qualifier::Restrict, to },
        12 => Type::Func { name, proto: to, linkage: linkage(info & 0xff_ffff) },
        13 => Type::FuncProto {
            ret: to,
            params: list(r, vlen, |r| Ok(Param { name: StrOffset(r.u32()?), ty: TypeId(r.u32()?) }))?,
        },
        14 => Type::Var { name, ty: to, linkage: linkage(r.u32()?) },
        15 => Type::DataSec {
            name,
            vars: list(r, vlen, |r| Ok(SectionVar { ty: TypeId(r.u32()?), offset: r.u32()?, size: r.u32()? }))?,
        },
        16 => Type::Float { name, size },
        17 => Type::DeclTag { name, to, component: r.u32()? as i32 },
        18 => Type::TypeTag { name, to },
        19 => Type::Enum {
            name,
            size,
            signed: signed_flag,
            values: list(r, vlen, |r| {
                let (name, low, high) = (StrOffset(r.u32()?), r.u32()?, r.u32()?);
                Ok((name, (u64::from(high) << 32 | u64::from(low)) as i64))
            })?,
        },
        _ => return Err(r.fail(BtfProblem::Kind(kind))),
    })
}

fn linkage(value: u32) -> Linkage {
    match value {
        0 => Linkage::Static,
        1 => Linkage::Global,
        _ => Linkage::Extern,
    }
}

fn list<'a, T>(
    r: &mut Reader<'a>,
    len: usize,
    mut item: impl FnMut(&mut Reader<'a>) -> Result<T, ObjectError>,
) -> Result<Box<[T]>, ObjectError> {
    (0..len).map(|_| item(r)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A megabyte of tags, with as many functions as fit beside them.
    #[test]
    fn tags_of_many_functions_are_looked_at_once() {
        const FUNCTIONS: u32 = 10_000;
        const TAGS: u32 = 50_000;
        let names = b"\0arg:ctx\0arg:nonnull\0arg:unknown\0f\0";
        let at = |name: &str| {
            let name = [name.as_bytes(), b"\0"].concat();
            names.windows(name.len()).position(|window| window == name).unwrap() as u32
        };
        // `FUNC_PROTO` without arguments, functions of it, tags.
        let mut words = vec![0, 13 << 24, 0];
        for _ in 0..FUNCTIONS {
            words.extend([at("f"), 12 << 24, 1]);
        }
        let tags = [at("arg:ctx"), at("arg:nonnull"), at("arg:unknown")];
        for i in 0..TAGS {
            // Half of the tags are on one function.
            let function = if i % 2 == 0 { 2 } else { 2 + i % FUNCTIONS };
            words.extend([tags[i as usize % 3], 17 << 24, function, i % 7]);
        }
        let types: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut bytes = Vec::new();
        for word in [0x1_eb9f, 24, 0, types.len() as u32, types.len() as u32, names.len() as u32] {
            bytes.extend(u32::to_le_bytes(word));
        }
        bytes.extend(types);
        bytes.extend(names);
        LOOKED_AT.set(0);
        let btf = Btf::parse(&bytes).unwrap();
        let all = |of: ArgTags| of.ctx && of.nonnull && !of.trusted && !of.arena;
        assert!(btf.arg_tags(TypeId(2)).into_iter().all(all));
        for function in 2..2 + FUNCTIONS {
            btf.arg_tags(TypeId(function));
        }
        assert_eq!(LOOKED_AT.get(), (2 + FUNCTIONS + TAGS + 1 + FUNCTIONS) as usize);
    }
}
