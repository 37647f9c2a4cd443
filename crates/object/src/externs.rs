//! The external objects of an object file: host functions, and variables of the kernel.
//!
//! An undefined symbol that is called is a host function, declared in `.ksyms` by BTF or not: the linker resolves it
//! by name. An undefined symbol whose address is loaded is one of
//! - a host function, if BTF declares one: the load is the idiom `if (bpf_ksym_exists(f))`;
//! - `LINUX_KERNEL_VERSION` or a weak variable in `.kconfig`: it gets a place in an internal map of that name;
//! - any other variable: 0 if weak, otherwise the programs that use it cannot be linked.

use std::collections::HashMap;

use crate::btf::{Btf, SectionVar, Type, TypeId};
use crate::elf::{Binding, Symbol};
use crate::function::Target;
use crate::global::data_map;
use crate::map::{DataKind, GlobalData, MapDecl, Variable};

/// The value of `LINUX_KERNEL_VERSION`: the version whose semantics this project follows, 6.18.0, as
/// KERNEL_VERSION(6, 18, 0). Set the variable to simulate another version.
pub const LINUX_KERNEL_VERSION: u32 = 6 << 16 | 18 << 8;

/// Largest size of `.kconfig` in bytes: a variable costs its file 24 bytes, whatever its size.
const MAX_KCONFIG: usize = 64 << 10;

/// A function that the object calls and does not define.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostFunction {
    /// Its name.
    pub name: String,
    /// Whether it may be missing; the program must then test for it before it calls.
    pub weak: bool,
    /// Its prototype, a [`Type::Func`], if BTF declares it.
    pub ty: Option<TypeId>,
}

impl HostFunction {
    /// Returns the name without a flavour: `bpf_dynptr_size` of `bpf_dynptr_size___old`, which declares that function
    /// with another prototype.
    pub fn essential_name(&self) -> &str {
        crate::co_re::essential(&self.name)
    }
}

/// A variable that the object refers to and does not define.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExternVariable {
    /// Its name.
    pub name: String,
    /// `.ksyms` or `.kconfig`; empty if BTF does not declare it.
    pub section: String,
    /// Whether it may be missing; its address then reads as 0.
    pub weak: bool,
}

struct Declaration<'a> {
    section: &'a str,
    ty: TypeId,
    function: bool,
}

/// Collects the external references of an object while its code is relocated.
pub(crate) struct Externs<'a> {
    btf: Option<&'a Btf>,
    declared: HashMap<&'a str, Declaration<'a>>,
    function_index: HashMap<String, usize>,
    variable_index: HashMap<String, Target>,
    functions: Vec<HostFunction>,
    variables: Vec<ExternVariable>,
    kconfig: GlobalData,
    /// The index that the `.kconfig` map will have.
    kconfig_map: usize,
}

impl<'a> Externs<'a> {
    pub(crate) fn new(
        btf: Option<&'a Btf>,
        datasecs: &HashMap<&'a str, &'a [SectionVar]>,
        kconfig_map: usize,
    ) -> Externs<'a> {
        let mut declared = HashMap::new();
        for section in [".ksyms", ".kconfig"] {
            let Some((btf, vars)) = btf.zip(datasecs.get(section)) else { continue };
            for var in vars.iter() {
                let function = matches!(btf.get(var.ty), Type::Func { .. });
                declared.insert(btf.type_name(var.ty), Declaration { section, ty: var.ty, function });
            }
        }
        let kconfig = GlobalData { kind: DataKind::Kconfig, bytes: Vec::new(), variables: Vec::new(), pointer: None };
        Externs {
            btf,
            declared,
            function_index: HashMap::new(),
            variable_index: HashMap::new(),
            functions: Vec::new(),
            variables: Vec::new(),
            kconfig,
            kconfig_map,
        }
    }

    /// The index of the host function that this symbol names.
    pub(crate) fn host_function(&mut self, symbol: &Symbol<'_>) -> usize {
        let weak = symbol.binding == Binding::Weak;
        if let Some(&index) = self.function_index.get(symbol.name) {
            return index;
        }
        let index = self.functions.len();
        let ty = self.declared.get(symbol.name).filter(|d| d.function).map(|d| d.ty);
        self.functions.push(HostFunction { name: symbol.name.to_owned(), weak, ty });
        self.function_index.insert(symbol.name.to_owned(), index);
        index
    }

    /// The object at `addend` bytes into this undefined symbol; `None` if there is no such byte.
    pub(crate) fn address(&mut self, symbol: &Symbol<'_>, addend: u64) -> Option<Target> {
        match self.symbol(symbol) {
            target if addend == 0 => Some(target),
            Target::MapValue { map, off } => {
                let at = |v: &&Variable| v.offset == off;
                let size = self.kconfig.variables.iter().find(at)?.size;
                let addend = u32::try_from(addend).ok().filter(|&addend| addend < size)?;
                Some(Target::MapValue { map, off: off + addend })
            }
            _ => None,
        }
    }

    fn symbol(&mut self, symbol: &Symbol<'_>) -> Target {
        let declared = self.declared.get(symbol.name);
        if declared.is_some_and(|d| d.function) {
            return Target::HostAddress(self.host_function(symbol));
        }
        if let Some(&target) = self.variable_index.get(symbol.name) {
            return target;
        }
        let weak = symbol.binding == Binding::Weak;
        let section = declared.map_or("", |d| d.section);
        let target = declared
            .filter(|d| d.section == ".kconfig")
            .map(|d| d.ty)
            .and_then(|ty| self.kconfig_variable(symbol.name, ty, weak))
            .unwrap_or_else(|| {
                self.variables.push(ExternVariable { name: symbol.name.to_owned(), section: section.to_owned(), weak });
                Target::Extern(self.variables.len() - 1)
            });
        self.variable_index.insert(symbol.name.to_owned(), target);
        target
    }

    /// Allocates a place in `.kconfig` for a variable with a value: the kernel's version, or zero for weak ones.
    fn kconfig_variable(&mut self, name: &str, ty: TypeId, weak: bool) -> Option<Target> {
        let size = self.btf?.size_of(ty).filter(|&size| size != 0)?;
        let start = self.kconfig.bytes.len().next_multiple_of(8);
        start.checked_add(size as usize).filter(|&end| end <= MAX_KCONFIG)?;
        let mut value = vec![0; size as usize];
        if name == "LINUX_KERNEL_VERSION" && matches!(size, 4 | 8) {
            value[..4].copy_from_slice(&LINUX_KERNEL_VERSION.to_le_bytes());
        } else if !weak {
            return None;
        }
        self.kconfig.bytes.resize(start, 0);
        self.kconfig.bytes.append(&mut value);
        let off = u32::try_from(start).ok()?;
        self.kconfig.variables.push(Variable { name: name.to_owned(), offset: off, size, ty: Some(ty) });
        Some(Target::MapValue { map: self.kconfig_map, off })
    }

    /// The host functions, the variables, and the `.kconfig` map if it is used.
    pub(crate) fn finish(self) -> (Vec<HostFunction>, Vec<ExternVariable>, Option<MapDecl>) {
        const { assert!(MAX_KCONFIG <= u32::MAX as usize) };
        #[expect(clippy::cast_possible_truncation, reason = "kconfig_variable() adds none beyond MAX_KCONFIG")]
        let size = self.kconfig.bytes.len() as u32;
        let map = (size != 0).then(|| data_map(".kconfig", self.kconfig, size));
        (self.functions, self.variables, map)
    }
}
