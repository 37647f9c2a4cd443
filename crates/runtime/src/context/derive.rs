//! The user's own struct as a context: what `#[derive(BpfContext)]` builds on.
//!
//! Problem: hosts have contexts of their own (a request, an event), with plain numbers and with bytes of any length
//! beside them. Approach: a `#[repr(C)]` struct is passed as it lies in memory. Its numbers are fields; its byte slices
//! are pairs of pointers ([`ContextBytes`], [`ContextBytesMut`]), which programs see as `body` and `body_end` and
//! compare as they do a packet's ends, so that the verifier knows what may be read without a copy and without a check
//! at run time.
//!
//! Invariant: the two pointers of a pair are those of a slice that is borrowed for as long as the pair lives, or both
//! are `EMPTY`. Programs cannot write them: the layout says so, and programs on contexts with regions are only loaded
//! verified.

use crate::context::int::IntType;
use crate::context::{Context, EMPTY, check_start};
use crate::error::RunError;
use bpf_object::{CoreField, CoreType, FieldType};
use bpf_verifier::{Access, ContextLayout, Field, FieldKind, Region};
use core::fmt::{self, Write};
use core::marker::PhantomData;
use core::mem::offset_of;

/// A struct of the host's own as the context of programs: r1 points to it.
///
/// Derive it. The struct must be `#[repr(C)]` with named fields and without padding; fields are integers, arrays of
/// integers, [`ContextBytes`] and [`ContextBytesMut`] (eight of them at most), and other structs that derive it.
/// Programs may read all fields, and write the fields marked `#[bpf(writable)]`. A field of a nested struct is writable
/// if both it and the nested struct are marked. The struct itself names the context: programs are loaded with
/// `load::<Request>`, and run on a `&mut Request`.
///
/// ```
/// use bpf_runtime::{BpfContext, Config, ContextBytes, Engine, Linker, Program, isa::assemble};
///
/// #[derive(BpfContext)]
/// #[repr(C)]
/// struct Request<'p> {
///     method: u32,
///     #[bpf(writable)]
///     verdict: u32,
///     body: ContextBytes<'p>,
/// }
///
/// let engine = Engine::new(Config::new())?;
/// let linker = Linker::<()>::new(&engine);
/// // if (ctx->body + 1 <= ctx->body_end) ctx->verdict = ctx->body[0];
/// let insns = assemble(
///     "r2 = *(u64 *)(r1 + 8)\nr3 = *(u64 *)(r1 + 16)\nr4 = r2\nr4 += 1\nif r4 > r3 goto out\n\
///      r0 = *(u8 *)(r2 + 0)\n*(u32 *)(r1 + 4) = r0\nout:\nr0 = 0\nexit",
/// )?;
/// let program: Program<Request, ()> = linker.loader().insns("filter", insns)?;
/// let mut request = Request { method: 1, verdict: 0, body: ContextBytes::new(b"\x2a..")? };
/// program.run_on(&mut request)?;
/// assert_eq!(request.verdict, 42);
///
/// // What authors of programs include:
/// assert!(Request::c_struct().contains("const __u8 *const body_end;"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait BpfContext: Context {
    /// The C struct's name. Programs on differently named contexts do not tail-call each other. `#[bpf(name = "…")]` on
    /// the struct, or its own name in snake case.
    const NAME: &'static str;

    /// The struct in C, for the header that programs include after `linux/types.h`. Fields that programs may not write
    /// are `const`.
    fn c_struct() -> String;
}

/// A type that a field of a context may have.
///
/// # Safety
/// [`ContextField::SHAPE`] must describe the type. A scalar may be read and hold any bytes, without padding or interior
/// references; a pair of pointers is as [`ContextBytes`]; a struct has the members named, of such types, and no
/// padding.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of a BPF context",
    label = "not an integer, an array of integers, `ContextBytes`, `ContextBytesMut` or a struct that derives `BpfContext`",
    note = "byte slices are `ContextBytes<'_>` or `ContextBytesMut<'_>`; for `bool` and enums, use an integer",
    note = "derive `BpfContext` for a struct to use it as a field; of several, make one field each"
)]
pub unsafe trait ContextField {
    /// The shape of the field for programs.
    const SHAPE: Shape;
}

/// The shape of a field for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Numbers.
    Scalar {
        /// The type of one.
        int: IntType,
        /// How many there are, if it is an array.
        count: Option<usize>,
    },
    /// Two pointers, to the first of some bytes and behind the last.
    Bytes {
        /// Whether programs may write the bytes.
        writable: bool,
    },
    /// A nested struct, which also is a context itself.
    Struct {
        /// Its name in C.
        name: &'static str,
        /// Its fields.
        members: &'static [Member],
    },
}

macro_rules! integers {
    ($($int:ty: $name:ident),*) => {$(
        // SAFETY: integers are plain.
        unsafe impl ContextField for $int {
            const SHAPE: Shape = Shape::Scalar { int: IntType::$name, count: None };
        }
        // SAFETY: and so are arrays of them.
        unsafe impl<const N: usize> ContextField for [$int; N] {
            const SHAPE: Shape = Shape::Scalar { int: IntType::$name, count: Some(N) };
        }
    )*};
}
integers!(
    u8: U8, u16: U16, u32: U32, u64: U64, i8: I8, i16: I16, i32: I32, i64: I64
);

/// Bytes that programs may read, in a context. In C two pointers: `name` and `name_end`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ContextBytes<'p> {
    start: *const u8,
    end: *const u8,
    bytes: PhantomData<&'p [u8]>,
}

// SAFETY: it is a `&[u8]` in another form, which may be sent.
unsafe impl Send for ContextBytes<'_> {}
// SAFETY: a shared one gives no more than the `&[u8]` it is, which may be shared.
unsafe impl Sync for ContextBytes<'_> {}

// SAFETY: two pointers to a borrowed slice.
unsafe impl ContextField for ContextBytes<'_> {
    const SHAPE: Shape = Shape::Bytes { writable: false };
}

impl fmt::Debug for ContextBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// Returns the ends of a slice for programs. Refuses more bytes than programs are verified for, and addresses that the
/// verifier assumes no memory to have.
fn ends(start: *mut u8, len: usize) -> Result<(*mut u8, *mut u8), RunError> {
    let max = Region::MAX_LEN as usize;
    if len > max {
        return Err(RunError::TooLong { len, max });
    }
    let start = if len == 0 { core::ptr::without_provenance_mut(EMPTY) } else { start };
    check_start(start)?;
    Ok((start, start.wrapping_add(len)))
}

impl<'p> ContextBytes<'p> {
    /// Makes a field of these bytes.
    ///
    /// # Errors
    /// [`RunError::TooLong`] for more than 1 GiB; [`RunError::LowAddress`] for bytes below [`Region::MIN_START`].
    pub fn new(bytes: &'p [u8]) -> Result<Self, RunError> {
        let (start, end) = ends(bytes.as_ptr().cast_mut(), bytes.len())?;
        Ok(ContextBytes { start, end, bytes: PhantomData })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &'p [u8] {
        // SAFETY: the pointers are those of a slice that is borrowed for 'p, or of no bytes.
        unsafe { core::slice::from_raw_parts(self.start, self.end.addr() - self.start.addr()) }
    }
}

/// Bytes that programs may read and write, in a context. In C two pointers: `name` and `name_end`.
#[repr(C)]
pub struct ContextBytesMut<'p> {
    start: *mut u8,
    end: *mut u8,
    bytes: PhantomData<&'p mut [u8]>,
}

// SAFETY: it is a `&mut [u8]` in another form, which may be sent.
unsafe impl Send for ContextBytesMut<'_> {}
// SAFETY: a shared one gives a `&[u8]` only, which may be shared.
unsafe impl Sync for ContextBytesMut<'_> {}

// SAFETY: two pointers to a borrowed slice.
unsafe impl ContextField for ContextBytesMut<'_> {
    const SHAPE: Shape = Shape::Bytes { writable: true };
}

impl fmt::Debug for ContextBytesMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl<'p> ContextBytesMut<'p> {
    /// Makes a field of these bytes.
    ///
    /// # Errors
    /// [`RunError::TooLong`] for more than 1 GiB; [`RunError::LowAddress`] for bytes below [`Region::MIN_START`].
    pub fn new(bytes: &'p mut [u8]) -> Result<Self, RunError> {
        let (start, end) = ends(bytes.as_mut_ptr(), bytes.len())?;
        Ok(ContextBytesMut { start, end, bytes: PhantomData })
    }

    fn len(&self) -> usize {
        self.end.addr() - self.start.addr()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the pointers are those of a slice that is borrowed for 'p, or of no bytes; while it is borrowed from
        // `self`, nobody writes.
        unsafe { core::slice::from_raw_parts(self.start, self.len()) }
    }

    /// The bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the pointers are those of a slice that is borrowed mutably for 'p, and now from `self`, or of no
        // bytes.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.len()) }
    }
}

/// A field of a derived context. Made by the macro.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its name.
    pub name: &'static str,
    /// Its offset in the struct.
    pub offset: usize,
    /// Its size.
    pub size: usize,
    /// The shape of the field for programs.
    pub shape: Shape,
    /// Whether programs may write it.
    pub writable: bool,
}

/// Compiles if the field behind the pointer is a `T`: a `*mut` is invariant, and none is made into one to another type.
pub const fn same_type<T>(_: *mut T) {}

/// Refuses, at compile time, what the verifier could not describe.
pub const fn check(members: &[Member]) {
    assert!(
        regions(members) <= Region::MAX_REGIONS,
        "a context has at most 8 fields of bytes: put several into one, with their lengths or offsets as fields beside it"
    );
}

/// Checks each member, and counts the fields of bytes.
const fn regions(members: &[Member]) -> usize {
    let (mut i, mut count) = (0, 0);
    let mut end = 0;
    while i < members.len() {
        assert!(members[i].size > 0, "a field without bytes");
        assert!(
            members[i].offset == end,
            "an attribute after the derive moved the fields: a context's lie as they were derived, one behind the other"
        );
        end += members[i].size;
        assert!(members[i].offset + members[i].size <= i16::MAX as usize, "a context is at most 32 KiB long");
        match members[i].shape {
            Shape::Scalar { .. } => {}
            Shape::Bytes { .. } => {
                count += 1;
                assert!(
                    !members[i].writable,
                    "programs cannot move the ends of bytes: leave out `#[bpf(writable)]`; `ContextBytesMut` lets them write the bytes"
                );
            }
            Shape::Struct { members, .. } => count += regions(members),
        }
        i += 1;
    }
    count
}

/// The layout of a derived context.
pub fn layout(name: &'static str, members: &[Member]) -> ContextLayout {
    let (mut fields, mut regions) = (Vec::new(), Vec::new());
    // In the order of their offsets, as `check` has seen.
    add_fields(&mut fields, &mut regions, "", 0, true, members);
    ContextLayout { name: name.into(), raw: false, fields, regions, legacy_loads: None, returns: None }
}

/// The fields of a struct that lies at `base`, their names after `prefix`.
fn add_fields(
    fields: &mut Vec<Field>,
    regions: &mut Vec<Region>,
    prefix: &str,
    base: usize,
    writable: bool,
    members: &[Member],
) {
    for member in members {
        let name = format!("{prefix}{}", member.name);
        let start = base + member.offset;
        let mut field = |name: String, offset: usize, size: usize, kind, access| {
            let (offset, size) = (crate::num::small(offset), crate::num::small(size));
            fields.push(Field { name: name.into(), offset, size, access, kind, host_offset: offset, host_size: size });
        };
        match member.shape {
            Shape::Scalar { .. } => {
                let access = if writable && member.writable { Access::ReadWrite } else { Access::Read };
                field(name, start, member.size, FieldKind::Scalar, access);
            }
            Shape::Bytes { writable } => {
                #[expect(clippy::cast_possible_truncation, reason = "at most `Region::MAX_REGIONS`: `check`")]
                let region = regions.len() as u8;
                let (first, end) = (offset_of!(ContextBytes<'static>, start), offset_of!(ContextBytes<'static>, end));
                let size = size_of::<*const u8>();
                field(name.clone(), start + first, size, FieldKind::Data(region), Access::Read);
                field(format!("{name}_end"), start + end, size, FieldKind::DataEnd(region), Access::Read);
                regions.push(Region {
                    name: name.into(),
                    writable,
                    max_len: Region::MAX_LEN,
                    min_len: 0,
                    align: 1,
                    ends_at_start_of: None,
                });
            }
            Shape::Struct { members, .. } => {
                add_fields(fields, regions, &format!("{name}."), start, writable && member.writable, members);
            }
        }
    }
}

/// The struct and those in it, for CO-RE relocations.
pub fn core_types(name: &'static str, size: usize, members: &[Member]) -> Vec<CoreType> {
    let mut types = Vec::new();
    each_struct(name, size, members, &mut |name, size, members| {
        let fields = core_fields(members);
        types.push(CoreType::Struct { name: name.into(), size: crate::num::small(size), fields });
    });
    types
}

/// Calls `f` with name, size and members of each struct in the struct and then of itself; of several fields of one type
/// once.
fn each_struct(name: &'static str, size: usize, members: &[Member], f: &mut dyn FnMut(&'static str, usize, &[Member])) {
    fn visit(
        seen: &mut Vec<(&'static str, &'static [Member])>,
        members: &[Member],
        f: &mut dyn FnMut(&'static str, usize, &[Member]),
    ) {
        for member in members {
            let Shape::Struct { name, members } = member.shape else { continue };
            if !seen.contains(&(name, members)) {
                seen.push((name, members));
                visit(seen, members, f);
                f(name, member.size, members);
            }
        }
    }
    visit(&mut Vec::new(), members, f);
    f(name, size, members);
}

/// Returns the fields as CO-RE relocations know them. A pair of pointers is two fields.
fn core_fields(members: &[Member]) -> Vec<CoreField> {
    let mut fields = Vec::new();
    for member in members {
        let mut field = |name: String, offset: usize, ty| {
            fields.push(CoreField { name: name.into(), offset: crate::num::small(offset), ty });
        };
        let (name, offset) = (member.name.to_owned(), member.offset);
        match member.shape {
            Shape::Scalar { int, count } => {
                let number = FieldType::Int { size: int.bytes(), signed: int.is_signed() };
                let ty = match count {
                    Some(count) => FieldType::array(number, crate::num::small(count)),
                    None => number,
                };
                field(name, offset, ty);
            }
            Shape::Bytes { .. } => {
                field(format!("{name}_end"), offset + size_of::<*const u8>(), FieldType::Pointer(None));
                field(name, offset, FieldType::Pointer(None));
            }
            Shape::Struct { name: inner, members } => {
                let (size, fields) = (crate::num::small(member.size), core_fields(members));
                field(name, offset, FieldType::Struct { name: inner.into(), size, fields });
            }
        }
    }
    fields
}

/// The struct in C, after those in it.
pub fn c_struct(name: &'static str, members: &[Member]) -> String {
    let mut out = String::new();
    each_struct(name, 0, members, &mut |name, _, members| {
        out.push_str(&format!("struct {name} {{\n"));
        members.iter().for_each(|member| c_member(&mut out, member));
        out.push_str("} __attribute__((preserve_access_index));\n");
    });
    out
}

fn c_member(out: &mut String, Member { name, shape, writable, .. }: &Member) {
    let constant = if *writable { "" } else { "const " };
    // Writing to a string cannot fail.
    let _ = match shape {
        Shape::Scalar { int, count: None } => writeln!(out, "\t{constant}{} {name};", int.c_type()),
        Shape::Scalar { int, count: Some(n) } => writeln!(out, "\t{constant}{} {name}[{n}];", int.c_type()),
        Shape::Bytes { writable } => {
            let constant = if *writable { "" } else { "const " };
            writeln!(out, "\t{constant}__u8 *const {name};\n\t{constant}__u8 *const {name}_end;")
        }
        Shape::Struct { name: inner, .. } => writeln!(out, "\t{constant}struct {inner} {name};"),
    };
}
