//! The C types of host functions, and their comparison with the prototypes that objects declare.
//!
//! Problem: a plug-in declares the functions that it calls (`extern __u64 emit(__u64) __ksym;`), in a header that may
//! be older than the host. The verifier proves that a call is safe, not that both sides mean the same argument.
//! Approach: the registered function's registers are compared with the parameters of the BTF prototype: their number,
//! numbers with numbers and pointers with pointers, the size of each integer, and the size of a structure behind a
//! pointer.
//!
//! Invariant: where an object declares the prototype of a function of the host, or of a flavour of it, a program that
//! calls it is loaded only if the two agree. Signedness is not compared: registers of one size hold the same bits.
//! Lengths may be declared of any size, because the verifier proves the whole register. A result may be declared as an
//! integer of any size, because r0 is extended to 64 bits and a narrower one is its low bits, or as `void`. It may be
//! declared as `_Bool` if the host returns a `bool`.

use crate::context::int::IntType;
use bpf_object::btf::{self, Btf, Param, Type, TypeId};
use bpf_verifier::{Access, ArgKind, HelperProto, Ret};
use std::fmt;

/// The integer types of a host function's registers; `None` for registers that are no integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntTypes {
    /// The types of the arguments, r1 to r5.
    pub args: [Option<IntType>; 5],
    /// The type of the result, r0.
    pub ret: Option<IntType>,
}

/// A host function's prototype in C.
pub(crate) struct Declaration<'a> {
    pub(crate) proto: &'a HelperProto,
    pub(crate) ints: &'a IntTypes,
}

impl Declaration<'_> {
    fn params(&self) -> impl Iterator<Item = (ArgKind, Option<IntType>)> + '_ {
        let args = self.proto.args.iter().copied().take_while(|arg| *arg != ArgKind::None);
        args.zip(self.ints.args)
    }

    /// Returns whether a program that declares the function as this type calls it as the host means.
    pub(crate) fn is_declared_as(&self, btf: &Btf, ty: TypeId) -> bool {
        let params: Vec<_> = self.params().collect();
        // The number comes first: an object may declare any.
        if func_proto(btf, ty).is_none_or(|(_, declared)| declared.len() != params.len()) {
            return false;
        }
        let Some((ret, declared)) = btf.prototype(ty) else { return false };
        params.len() == declared.len()
            && params.iter().zip(&declared).all(|((kind, int), declared)| fits(btf, *kind, *int, *declared))
            && self.returns(btf, ty, ret)
    }

    fn returns(&self, btf: &Btf, ty: TypeId, declared: btf::ArgKind) -> bool {
        match declared {
            // The program does not use the result.
            btf::ArgKind::Other => func_proto(btf, ty).is_some_and(|(ret, _)| *btf.get(btf.resolve(ret)) == Type::Void),
            btf::ArgKind::Scalar { .. } => {
                // Compilers test one bit of a `_Bool` result, or eight. A host's `bool` alone has one value in both.
                let boolean = func_proto(btf, ty)
                    .is_some_and(|(ret, _)| matches!(btf.get(btf.resolve(ret)), Type::Int { boolean: true, .. }));
                self.ints.ret.is_some_and(|int| int == IntType::Bool || !boolean)
            }
            btf::ArgKind::Pointer { .. } => matches!(self.proto.ret, Ret::MemOrNull { .. }),
        }
    }
}

/// Returns whether the declaration of a register fits.
fn fits(btf: &Btf, kind: ArgKind, int: Option<IntType>, declared: btf::ArgKind) -> bool {
    match (declared, kind) {
        (btf::ArgKind::Scalar { size }, _) => match int {
            Some(int) => size == int.bytes(),
            None => may_be(kind, declared),
        },
        (btf::ArgKind::Pointer { to, size: Some(size) }, ArgKind::Fixed { bytes, .. })
            if matches!(btf.get(to), Type::Composite { .. }) =>
        {
            size == bytes
        }
        (btf::ArgKind::Pointer { .. } | btf::ArgKind::Other, _) => may_be(kind, declared),
    }
}

/// Returns whether the declaration of an argument fits: numbers as numbers, pointers as pointers.
pub(crate) fn may_be(arg: ArgKind, declared: btf::ArgKind) -> bool {
    let number = matches!(
        arg,
        ArgKind::Scalar | ArgKind::Size { .. } | ArgKind::Length | ArgKind::RecordSize | ArgKind::LocalType { .. }
    );
    let pointer = matches!(
        arg,
        ArgKind::Ctx
            | ArgKind::CtxOrNull
            | ArgKind::Map(_)
            | ArgKind::Mem(_)
            | ArgKind::MemOfLength(_)
            | ArgKind::Fixed { .. }
            | ArgKind::Local(..)
            | ArgKind::Object(_)
            | ArgKind::Root(_)
            | ArgKind::Node(..)
            | ArgKind::Peeked { .. }
            | ArgKind::Probed
            | ArgKind::SliceBuffer
            | ArgKind::Socket { .. }
    );
    match declared {
        btf::ArgKind::Scalar { .. } => !pointer,
        btf::ArgKind::Pointer { .. } => !number,
        btf::ArgKind::Other => !pointer && !number,
    }
}

/// The types of the result and of the parameters of a function or its prototype.
fn func_proto(btf: &Btf, ty: TypeId) -> Option<(TypeId, &[Param])> {
    let ty = match btf.get(ty) {
        Type::Func { proto, .. } => *proto,
        _ => ty,
    };
    match btf.get(ty) {
        Type::FuncProto { ret, params } => Some((*ret, params)),
        _ => None,
    }
}

/// As it is declared in a header.
impl fmt::Display for Declaration<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ints.ret, self.proto.ret) {
            (Some(int), _) => f.write_str(int.c_type())?,
            (None, Ret::MemOrNull { .. }) => f.write_str("void *")?,
            (None, _) => f.write_str("void")?,
        }
        let space = if matches!(self.proto.ret, Ret::MemOrNull { .. }) { "" } else { " " };
        write!(f, "{space}{}(", self.proto.name)?;
        for (i, (kind, int)) in self.params().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let ty = match (kind, int) {
                (_, Some(int)) => int.c_type(),
                (ArgKind::Mem(mem) | ArgKind::Fixed { mem, .. }, None) if mem.access == Access::Read => "const void *",
                (ArgKind::Mem(_) | ArgKind::Fixed { .. }, None) => "void *",
                // Lengths, the only other arguments of host functions.
                (_, None) => "__u64",
            };
            write!(f, "{comma}{ty}")?;
        }
        if self.proto.arity() == 0 {
            f.write_str("void")?;
        }
        f.write_str(")")
    }
}

/// Parameters of a declared prototype that are shown: an object may declare any number, each of a type with a long
/// name.
const SHOWN: usize = 8;

/// Letters of a type's name that are shown.
const LETTERS: usize = 64;

/// The name of a declared type.
fn type_name(btf: &Btf, ty: TypeId) -> String {
    let name = btf.type_name(ty);
    match name.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

/// Returns the prototype that the object declares, in C.
pub(crate) fn declared(btf: &Btf, name: &str, ty: TypeId) -> String {
    let Some((ret, params)) = func_proto(btf, ty) else { return format!("{name}, no function") };
    let mut types: Vec<String> = params.iter().take(SHOWN).map(|param| c_type(btf, param.ty)).collect();
    if params.len() > SHOWN {
        types.push(format!("{} more", params.len() - SHOWN));
    }
    let params = if params.is_empty() { "void".to_owned() } else { types.join(", ") };
    let ret = c_type(btf, ret);
    let space = if ret.ends_with('*') { "" } else { " " };
    format!("{ret}{space}{name}({params})")
}

/// A type in C, by its name where it has one; pointers by the type behind them.
fn c_type(btf: &Btf, ty: TypeId) -> String {
    let mut ty = ty;
    for _ in 0..btf::MAX_DEPTH {
        match btf.get(ty) {
            Type::Void => return "void".to_owned(),
            Type::Qualified { to, .. } | Type::TypeTag { to, .. } => ty = *to,
            Type::Ptr { to } => return format!("{} *", pointee(btf, *to)),
            Type::Composite { union: true, .. } => return format!("union {}", type_name(btf, ty)),
            Type::Composite { .. } | Type::Fwd { .. } => return format!("struct {}", type_name(btf, ty)),
            Type::Enum { .. } => return format!("enum {}", type_name(btf, ty)),
            Type::Int { .. } | Type::Typedef { .. } | Type::Float { .. } => return type_name(btf, ty),
            Type::Array { .. }
            | Type::Func { .. }
            | Type::FuncProto { .. }
            | Type::Var { .. }
            | Type::DataSec { .. }
            | Type::DeclTag { .. } => return "?".to_owned(),
        }
    }
    "?".to_owned()
}

/// The type behind a pointer: a pointer to a pointer is not followed, so a cycle of pointers ends.
fn pointee(btf: &Btf, ty: TypeId) -> String {
    let constant = matches!(btf.get(ty), Type::Qualified { qualifier: btf::Qualifier::Const, .. });
    let name = match btf.get(btf.resolve(ty)) {
        Type::Ptr { .. } => "void *".to_owned(),
        _ => c_type(btf, ty),
    };
    if constant { format!("const {name}") } else { name }
}
