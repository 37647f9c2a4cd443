//! The host as data: what a plug-in is verified against, without the service that loads it.
//!
//! Problem: whether a plug-in is accepted depends on the host's context, functions and limits, which only the service's
//! code knows, so its author could verify it nowhere else. Approach: [`Linker::describe`] writes them down as a
//! [`HostInterface`], which can be a file. [`HostInterface::header`] is the C header that plug-ins include,
//! [`HostContext`] is the described context, and [`Linker::func_described`] registers a described function with any
//! body.
//!
//! Invariant: a linker with all functions of the description, in an engine whose configuration
//! [`HostInterface::configure`] has set, gives the verdict of the described linker for programs on [`HostContext`]: the
//! layout, the prototypes and the limits are equal.
//!
//! A description may come from anyone: [`HostInterface::check`] names the place of each thing that is no host.

use crate::call::Caller;
use crate::call::described::{HostValue, described_fn};
use crate::call::prototype;
use crate::call::state::Host;
use crate::call::types::{Declaration, IntTypes};
use crate::context::derive::{self, BpfContext, ContextField, Member, Shape};
use crate::context::int::IntType;
use crate::context::{Context, ContextLayout, EMPTY, Parts};
use crate::engine::config::Config;
use crate::error::{HelperError, LinkError, LoadError};
use crate::load::host_error::{HostInterfaceError, check_name, wrong};
use crate::load::host_maps::{HostFeatures, MapInterface, check_maps};
use crate::load::linker::{Linker, Registered, Types};
use crate::load::map_set::MapSet;
use bpf_maps::Map;
use bpf_object::CoreType;
use bpf_verifier::{Access, ArgKind, Effect, HelperProto, MemArg, MemSet, Region, Ret};
use std::collections::HashSet;
use std::fmt::{self, Write};
use std::sync::OnceLock;

/// The version of the description's form.
pub const HOST_INTERFACE_VERSION: u32 = 2;

/// Structs inside each other, at most, in a described context.
const MAX_DEPTH: usize = 16;

/// Bytes of a described context, at most: as of a derived one.
const MAX_CONTEXT: u32 = i16::MAX as u32;

/// Functions, removed helpers, and fields of a context with the structs in it, at most, each.
const MAX_ITEMS: usize = 4096;

/// The host as plug-ins are verified against it: [`Linker::describe`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct HostInterface {
    /// The version of this form: [`HOST_INTERFACE_VERSION`].
    pub version: u32,
    /// The context.
    pub context: StructInterface,
    /// The functions of the host, in the order of their registration.
    pub functions: Vec<FunctionInterface>,
    /// Ids of shipped helpers that the host removed ([`Linker::remove_helper`]), ascending.
    pub removed_helpers: Vec<u32>,
    /// The limits of verification.
    pub limits: HostLimits,
    /// The maps that the host hands to plug-ins ([`HostInterface::offer`]).
    #[cfg_attr(feature = "serde", serde(default))]
    pub maps: Vec<MapInterface>,
    /// The settings under which the host loads plug-ins. The service sets them: [`Linker::describe`] does not know
    /// them.
    #[cfg_attr(feature = "serde", serde(default))]
    pub features: HostFeatures,
}

/// Settings of the engine on which verdicts depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct HostLimits {
    /// [`Limits::steps`](crate::verify::Limits::steps).
    pub steps: u64,
    /// [`Limits::states`](crate::verify::Limits::states).
    pub states: u64,
    /// [`Limits::memory`](crate::verify::Limits::memory), in bytes.
    pub memory: u64,
    /// [`Limits::fuel`](crate::verify::Limits::fuel).
    pub fuel: u64,
    /// [`Config::frame_bytes`].
    pub frame_bytes: u32,
    /// [`Config::object_memory_limit`], in bytes.
    pub object_memory: u64,
    /// [`Config::budget`].
    pub budget: Option<u64>,
    /// [`Config::contained`].
    pub contained: bool,
}

/// A struct of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct StructInterface {
    /// Its name in C.
    pub name: String,
    /// Its fields, which lie one behind the other.
    pub fields: Vec<FieldInterface>,
}

/// A field of a struct of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct FieldInterface {
    /// Its name.
    pub name: String,
    /// Whether programs may write it.
    pub writable: bool,
    /// Its type.
    #[cfg_attr(feature = "serde", serde(rename = "type"))]
    pub ty: FieldKind,
}

/// The type of a field of a struct of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase", deny_unknown_fields)
)]
pub enum FieldKind {
    /// A number.
    Int(IntType),
    /// An array of numbers.
    Array {
        /// Their type.
        of: IntType,
        /// Number of elements.
        count: u32,
    },
    /// A byte slice: two pointers, `name` and `name_end`.
    Bytes {
        /// Whether programs may write the bytes.
        writable: bool,
    },
    /// A nested struct.
    Struct(StructInterface),
}

/// A function of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct FunctionInterface {
    /// Its name.
    pub name: String,
    /// Its number, if objects may call it by one.
    pub id: Option<u32>,
    /// Its parameters.
    pub params: Vec<ParamKind>,
    /// Its result.
    pub result: ResultKind,
    /// Whether it may wait ([`Linker::func_async`]), so that only sleepable programs call it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sleeps: bool,
}

/// The kind of a parameter of a function of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase", deny_unknown_fields)
)]
pub enum ParamKind {
    /// A number.
    Int(IntType),
    /// A byte slice: a pointer and a length.
    Bytes {
        /// Whether the function writes it.
        writable: bool,
        /// Whether it may be null, with the length 0.
        null: bool,
        /// Whether it may lie in memory that others share, such as a map's value.
        shared: bool,
    },
    /// A pointer to a structure.
    Struct {
        /// Its size in bytes.
        bytes: u32,
        /// Its alignment in bytes.
        align: u32,
        /// Whether the function writes it.
        writable: bool,
        /// Whether it may be null.
        null: bool,
    },
}

/// The kind of a result of a function of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase", deny_unknown_fields)
)]
pub enum ResultKind {
    /// Nothing.
    Nothing,
    /// The function always ends the run.
    Never,
    /// A number.
    Int(IntType),
    /// A pointer to writable memory, or null.
    Memory {
        /// Its size in bytes.
        bytes: u32,
    },
}

impl ParamKind {
    const fn memory(writable: bool, null: bool, align: u32, from: MemSet) -> MemArg {
        MemArg { access: if writable { Access::ReadWrite } else { Access::Read }, null, align, from }
    }

    /// The kinds of its registers.
    fn registers(self) -> (ArgKind, Option<ArgKind>) {
        match self {
            ParamKind::Int(_) => (ArgKind::Scalar, None),
            ParamKind::Bytes { writable, null, shared } => {
                let from = if shared { MemSet::ANY } else { MemSet::OWNED };
                let length = ArgKind::Size { zero: true, half: false };
                (ArgKind::Mem(ParamKind::memory(writable, null, 1, from)), Some(length))
            }
            ParamKind::Struct { bytes, align, writable, null } => {
                (ArgKind::Fixed { bytes, mem: ParamKind::memory(writable, null, align, MemSet::OWNED) }, None)
            }
        }
    }
}

impl FunctionInterface {
    /// Describes a registered function, `numbered` if its id calls it; `None` if a description could not say all of it.
    fn of(function: &Registered, numbered: bool) -> Option<FunctionInterface> {
        let Registered { proto, ints, .. } = function;
        let mut params = Vec::new();
        for (kind, int) in proto.args.iter().zip(ints.args) {
            match (kind, int) {
                (_, Some(int)) => params.push(ParamKind::Int(int)),
                (ArgKind::Mem(mem), None) => {
                    let (writable, shared) = (mem.access.writes(), mem.from == MemSet::ANY);
                    params.push(ParamKind::Bytes { writable, null: mem.null, shared });
                }
                (ArgKind::Fixed { bytes, mem }, None) => {
                    let (writable, null) = (mem.access.writes(), mem.null);
                    params.push(ParamKind::Struct { bytes: *bytes, align: mem.align, writable, null });
                }
                // The length of the memory before it, or no argument: the comparison below finds all else.
                (_, None) => {}
            }
        }
        let result = match (proto.ret, ints.ret) {
            (_, Some(int)) => ResultKind::Int(int),
            (Ret::Never, None) => ResultKind::Never,
            (Ret::MemOrNull { bytes, .. }, None) => ResultKind::Memory { bytes },
            (_, None) => ResultKind::Nothing,
        };
        let (id, sleeps) = (Some(proto.id), proto.effect == Effect::Sleeps);
        let described = FunctionInterface { name: proto.name.clone().into_owned(), id, params, result, sleeps };
        check_name("", &described.name).ok()?;
        described.check().ok()?;
        let whole = described.proto() == *proto && described.types().2 == *ints;
        whole.then_some(FunctionInterface { id: id.filter(|_| numbered), ..described })
    }

    fn proto(&self) -> HelperProto {
        let (args, ret, _) = self.types();
        let effect = if self.sleeps { Effect::Sleeps } else { Effect::None };
        HelperProto { effect, ..prototype(self.id.unwrap_or(0), &self.name, args, ret) }
    }

    /// The kinds of registers, and which are integers. Parameters beyond the fifth register are left out:
    /// [`FunctionInterface::check`].
    fn types(&self) -> Types {
        let mut args = [ArgKind::None; 5];
        let mut ints = IntTypes { args: [None; 5], ret: None };
        let mut at = 0;
        for param in &self.params {
            let (first, second) = param.registers();
            for kind in [Some(first), second].into_iter().flatten() {
                if let Some(slot) = args.get_mut(at) {
                    *slot = kind;
                    if let ParamKind::Int(int) = param {
                        ints.args[at] = Some(*int);
                    }
                }
                at += 1;
            }
        }
        let ret = match self.result {
            ResultKind::Nothing => Ret::Between(0, 0),
            ResultKind::Never => Ret::Never,
            ResultKind::Int(int) => {
                ints.ret = Some(int);
                int.range().map_or(Ret::Scalar, |(least, most)| Ret::Between(least, most))
            }
            ResultKind::Memory { bytes } => Ret::MemOrNull { bytes, writable: true },
        };
        (args, ret, ints)
    }

    /// Checks the parameters and the result: returns the place and the problem of the first that no closure has.
    fn check(&self) -> Result<(), (String, String)> {
        let mut registers = 0;
        for (i, param) in self.params.iter().enumerate() {
            let place = |part: &str| format!("params[{i}]{part}");
            registers += if param.registers().1.is_some() { 2 } else { 1 };
            if registers > 5 {
                return Err((
                    place(""),
                    "the parameters take more than five registers (a byte slice takes two)".to_owned(),
                ));
            }
            match *param {
                ParamKind::Int(IntType::Bool) => return Err((place(""), "a parameter is no bool".to_owned())),
                ParamKind::Int(_) | ParamKind::Bytes { .. } => {}
                ParamKind::Struct { bytes, align, .. } => {
                    if !(1..=Region::MAX_LEN).contains(&bytes) {
                        return Err((
                            place(".struct.bytes"),
                            format!("{bytes} is not between 1 and {}", Region::MAX_LEN),
                        ));
                    }
                    if !align.is_power_of_two() || align > Region::MAX_LEN {
                        return Err((
                            place(".struct.align"),
                            format!("{align} is no power of two up to {}", Region::MAX_LEN),
                        ));
                    }
                }
            }
        }
        match self.result {
            ResultKind::Memory { bytes } if !(1..=Region::MAX_LEN).contains(&bytes) => {
                Err(("result.memory.bytes".to_owned(), format!("{bytes} is not between 1 and {}", Region::MAX_LEN)))
            }
            ResultKind::Nothing | ResultKind::Never | ResultKind::Int(_) | ResultKind::Memory { .. } => Ok(()),
        }
    }

    /// Returns the declaration in C, without `extern` and semicolon.
    fn c_declaration(&self) -> String {
        Declaration { proto: &self.proto(), ints: &self.types().2 }.to_string()
    }
}

impl<H: Host + ?Sized> Linker<H> {
    /// Describes the host to authors of plug-ins on context `C`: the context, the registered functions, and the limits
    /// of the engine. With the feature `serde` a description can be written to a file, from which `bpf header` makes
    /// the C header, and with which `bpf verify --host` gives the verdict of this linker.
    ///
    /// ```
    /// # use bpf_runtime::{BpfContext, Caller, Config, Engine, Linker};
    /// #[derive(BpfContext)]
    /// #[repr(C)]
    /// struct Request {
    ///     client: u32,
    ///     #[bpf(writable)]
    ///     cost: u32,
    /// }
    /// # let engine = Engine::new(Config::new())?;
    /// let mut linker = Linker::<u64>::new(&engine);
    /// linker.func_named("charge", |c: &mut Caller<'_, u64>, amount: u32| *c.host() += u64::from(amount))?;
    /// let host = linker.describe::<Request>()?;
    /// assert!(host.header()?.contains("extern void charge(__u32) __ksym;"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Undescribed`] for a function with arguments of the host's own [`HostArg`](crate::host::HostArg)
    /// types, or with a name that C does not have.
    pub fn describe<C: BpfContext + ContextField>(&self) -> Result<HostInterface, LinkError> {
        let config = self.engine.config();
        let members = match C::SHAPE {
            Shape::Struct { members, .. } => members,
            // A derived context is a struct.
            Shape::Scalar { .. } | Shape::Bytes { .. } => &[],
        };
        let functions = self.funcs.iter().enumerate().map(|(place, function)| {
            let name = || function.proto.name.clone().into_owned();
            let described = FunctionInterface::of(function, self.is_numbered(place));
            described.ok_or_else(|| LinkError::Undescribed { name: name() })
        });
        Ok(HostInterface {
            version: HOST_INTERFACE_VERSION,
            context: describe_struct(C::NAME, members),
            functions: functions.collect::<Result<_, _>>()?,
            removed_helpers: self.removed.iter().copied().collect(),
            limits: HostLimits {
                steps: config.limits.steps,
                states: config.limits.states as u64,
                memory: config.limits.memory as u64,
                fuel: config.limits.fuel,
                frame_bytes: config.frame_bytes,
                object_memory: config.object_memory_limit,
                budget: config.budget,
                contained: config.contained,
            },
            maps: Vec::new(),
            features: HostFeatures::default(),
        })
    }

    /// Registers a function as described, with any body: a tool's replacement for the service's closure. The body is
    /// given one value for each parameter. Its result is cut to the described type; it is ignored for functions that
    /// return nothing, and 0 (null) for functions that return memory. A function that never returns ends the run after
    /// its body.
    ///
    /// # Errors
    /// [`LinkError`] if the id or the name is taken or reserved, or if the description is none of a function
    /// ([`HostInterface::check`] says why); nothing is registered then.
    pub fn func_described(
        &mut self,
        function: &FunctionInterface,
        body: impl Fn(&mut Caller<'_, H>, &[HostValue<'_>]) -> Result<u64, HelperError> + Send + Sync + 'static,
    ) -> Result<&mut Self, LinkError> {
        if function.check().is_err() {
            return Err(LinkError::Undescribed { name: function.name.clone() });
        }
        let types = function.types();
        self.register(function.id, function.proto(), types.2, || described_fn(types, body))
    }
}

fn describe_struct(name: &str, members: &[Member]) -> StructInterface {
    let field = |member: &Member| {
        let ty = match member.shape {
            Shape::Scalar { int, count: None } => FieldKind::Int(int),
            Shape::Scalar { int, count: Some(count) } => FieldKind::Array { of: int, count: crate::num::small(count) },
            Shape::Bytes { writable } => FieldKind::Bytes { writable },
            Shape::Struct { name, members } => FieldKind::Struct(describe_struct(name, members)),
        };
        FieldInterface { name: member.name.to_owned(), writable: member.writable, ty }
    };
    StructInterface { name: name.to_owned(), fields: members.iter().map(field).collect() }
}

impl HostInterface {
    /// Checks that this describes a host: a derived context, and functions that closures can be.
    ///
    /// # Errors
    /// [`HostInterfaceError`] for the first part that does not, with its place.
    pub fn check(&self) -> Result<(), HostInterfaceError> {
        if self.version != HOST_INTERFACE_VERSION {
            let problem = format!("{} is not a version that is known here, {HOST_INTERFACE_VERSION}", self.version);
            return wrong("version", problem);
        }
        let mut structs = Vec::new();
        let mut count = Counts::default();
        check_struct("context", &self.context, 0, &mut count, &mut structs)?;
        for (place, len) in [("functions", self.functions.len()), ("removed_helpers", self.removed_helpers.len())] {
            if len > MAX_ITEMS {
                return wrong(place, format!("{len} items; at most {MAX_ITEMS} are possible"));
            }
        }
        let mut names = HashSet::new();
        for (i, function) in self.functions.iter().enumerate() {
            let place = format!("functions[{i}]");
            check_name(&format!("{place}.name"), &function.name)?;
            if !names.insert(&function.name) {
                return wrong(format!("{place}.name"), format!("there are two functions `{}`", function.name));
            }
            function
                .check()
                .map_err(|(part, problem)| HostInterfaceError { place: format!("{place}.{part}"), problem })?;
        }
        check_maps(&self.maps)?;
        let HostLimits { frame_bytes, budget, .. } = self.limits;
        if !frame_bytes.is_multiple_of(8) || frame_bytes >= 1 << 16 {
            return wrong("limits.frame_bytes", format!("{frame_bytes} is no multiple of 8 below 65536"));
        }
        if budget == Some(0) {
            return wrong("limits.budget", "0 lets no run begin; null is no budget");
        }
        Ok(())
    }

    /// Returns the header that plug-ins in C include: the context's struct, and the declarations of the functions.
    ///
    /// # Errors
    /// As [`HostInterface::check`].
    pub fn header(&self) -> Result<String, HostInterfaceError> {
        self.check()?;
        let mut out = String::from(
            "/* The host's context and functions, made from its description. Do not edit. */\n#pragma once\n\n\
             #include <linux/bpf.h>\n#include <linux/types.h>\n#include <bpf/bpf_helpers.h>\n",
        );
        let mut seen = Vec::new();
        c_struct(&mut out, &self.context, &mut seen);
        if !self.functions.is_empty() {
            out.push('\n');
        }
        for function in &self.functions {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "extern {} __ksym;", function.c_declaration());
        }
        Ok(out)
    }

    /// Returns an engine's configuration with the described limits.
    pub fn configure(&self, config: Config) -> Config {
        let HostLimits { steps, states, memory, fuel, frame_bytes, object_memory, budget, contained } = self.limits;
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        config
            .limits(|limits| limits.steps(steps).states(size(states)).memory(size(memory)).fuel(fuel))
            .frame_bytes(frame_bytes)
            .object_memory_limit(object_memory)
            .budget(budget)
            .contained(contained)
    }
}

#[derive(Default)]
struct Counts {
    fields: usize,
    regions: usize,
}

/// Checks a struct, and returns its size in bytes.
fn check_struct<'s>(
    place: &str,
    of: &'s StructInterface,
    depth: usize,
    count: &mut Counts,
    structs: &mut Vec<&'s StructInterface>,
) -> Result<u32, HostInterfaceError> {
    check_name(&format!("{place}.name"), &of.name)?;
    if depth > MAX_DEPTH {
        return wrong(place, format!("structs are nested more than {MAX_DEPTH} deep"));
    }
    if structs.iter().any(|other| other.name == of.name && *other != of) {
        return wrong(format!("{place}.name"), format!("there are two different structs `{}`", of.name));
    }
    if of.fields.is_empty() {
        return wrong(format!("{place}.fields"), "a struct has at least one field");
    }
    let (mut size, mut align) = (0u32, 1u32);
    let mut names = HashSet::new();
    for (i, field) in of.fields.iter().enumerate() {
        let place = format!("{place}.fields[{i}]");
        check_name(&format!("{place}.name"), &field.name)?;
        let mut taken = |name: String| {
            if names.insert(name.clone()) {
                Ok(())
            } else {
                wrong(format!("{place}.name"), format!("there are two fields `{name}`"))
            }
        };
        taken(field.name.clone())?;
        count.fields += 1;
        if count.fields > MAX_ITEMS {
            return wrong(place, format!("more than {MAX_ITEMS} fields"));
        }
        let (bytes, aligned) = match &field.ty {
            FieldKind::Int(int) => (Some(int.bytes()), int.bytes()),
            FieldKind::Array { of, count } => (of.bytes().checked_mul(*count).filter(|n| *n != 0), of.bytes()),
            FieldKind::Bytes { .. } => {
                taken(format!("{}_end", field.name))?;
                count.regions += 1;
                if field.writable {
                    return wrong(
                        format!("{place}.writable"),
                        "programs cannot move the ends of bytes; `type.bytes.writable` lets them write the bytes",
                    );
                }
                (Some(16), 8)
            }
            FieldKind::Struct(inner) => {
                let bytes = check_struct(&format!("{place}.type.struct"), inner, depth + 1, count, structs)?;
                (Some(bytes), alignment(inner))
            }
        };
        if matches!(field.ty, FieldKind::Int(IntType::Bool) | FieldKind::Array { of: IntType::Bool, .. }) {
            return wrong(format!("{place}.type"), "a field is no bool: programs may write any bytes");
        }
        let end = bytes.and_then(|bytes| size.checked_add(bytes)).filter(|end| *end <= MAX_CONTEXT);
        let Some(end) = end else {
            return wrong(place, format!("the struct has more than {MAX_CONTEXT} bytes, or the field has none"));
        };
        if !size.is_multiple_of(aligned) {
            return wrong(place, format!("the field would lie behind padding, at offset {size}"));
        }
        (size, align) = (end, align.max(aligned));
    }
    if !size.is_multiple_of(align) {
        return wrong(place, format!("the struct of {size} bytes would end with padding"));
    }
    if count.regions > Region::MAX_REGIONS {
        return wrong(place, format!("{} byte slices; at most {} are possible", count.regions, Region::MAX_REGIONS));
    }
    structs.push(of);
    Ok(size)
}

/// The alignment of a struct whose fields were checked.
fn alignment(of: &StructInterface) -> u32 {
    let each = of.fields.iter().map(|field| match &field.ty {
        FieldKind::Int(int) | FieldKind::Array { of: int, .. } => int.bytes(),
        FieldKind::Bytes { .. } => 8,
        FieldKind::Struct(inner) => alignment(inner),
    });
    each.max().unwrap_or(1)
}

/// Writes a struct in C after those in it, each once, as [`BpfContext::c_struct`] does.
fn c_struct<'s>(out: &mut String, of: &'s StructInterface, seen: &mut Vec<&'s str>) {
    for field in &of.fields {
        if let FieldKind::Struct(inner) = &field.ty
            && !seen.contains(&inner.name.as_str())
        {
            c_struct(out, inner, seen);
        }
    }
    seen.push(&of.name);
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\nstruct {} {{", of.name);
    for FieldInterface { name, writable, ty } in &of.fields {
        let constant = if *writable { "" } else { "const " };
        let _ = match ty {
            FieldKind::Int(int) => writeln!(out, "\t{constant}{} {name};", int.c_type()),
            FieldKind::Array { of, count } => writeln!(out, "\t{constant}{} {name}[{count}];", of.c_type()),
            FieldKind::Bytes { writable } => {
                let constant = if *writable { "" } else { "const " };
                writeln!(out, "\t{constant}__u8 *const {name};\n\t{constant}__u8 *const {name}_end;")
            }
            FieldKind::Struct(inner) => writeln!(out, "\t{constant}struct {} {name};", inner.name),
        };
    }
    out.push_str("} __attribute__((preserve_access_index));\n");
}

/// The described context of this process.
struct Described {
    /// `None` if the context was used before it was defined.
    described: Option<StructInterface>,
    members: &'static [Member],
    layout: ContextLayout,
    types: Vec<CoreType>,
}

static DESCRIBED: OnceLock<Described> = OnceLock::new();

/// A context that is described by a [`HostInterface`]. A tool verifies and runs programs of one host: a process defines
/// this context once ([`HostContext::define`]). A process that uses it undefined has a context without fields, which
/// stays so.
///
/// Its runs are given a [`HostContextBuff`].
#[derive(Debug)]
pub enum HostContext {}

impl HostContext {
    /// Defines the context as described, for the rest of the process.
    ///
    /// # Errors
    /// As [`HostInterface::check`]; and if the process has defined another context, or has used this one already.
    pub fn define(host: &HostInterface) -> Result<(), HostInterfaceError> {
        host.check()?;
        let described = DESCRIBED.get_or_init(|| {
            let (name, members, size) = leak(&host.context);
            let layout = derive::layout(name, members);
            let types = derive::core_types(name, size as usize, members);
            Described { described: Some(host.context.clone()), members, layout, types }
        });
        match &described.described {
            Some(context) if *context == host.context => Ok(()),
            Some(_) => wrong("context", "the process has defined another context"),
            None => wrong("context", "the process has used the context before it was defined"),
        }
    }

    /// The context of this process: from the first use on one without fields, if none was defined, so that a program
    /// is never run on another context than it was verified for.
    fn defined() -> &'static Described {
        DESCRIBED.get_or_init(|| {
            let layout = derive::layout("(undefined: `HostContext::define` comes first)", &[]);
            Described { described: None, members: &[], layout, types: Vec::new() }
        })
    }
}

/// A struct as derived ones are described, for the rest of the process: its name, its members and its size.
fn leak(of: &StructInterface) -> (&'static str, &'static [Member], u32) {
    let text = |text: &str| -> &'static str { String::leak(text.to_owned()) };
    let mut members = Vec::with_capacity(of.fields.len());
    let mut offset = 0u32;
    for field in &of.fields {
        let (shape, size) = match &field.ty {
            FieldKind::Int(int) => (Shape::Scalar { int: *int, count: None }, int.bytes()),
            FieldKind::Array { of, count } => {
                (Shape::Scalar { int: *of, count: Some(*count as usize) }, of.bytes() * count)
            }
            FieldKind::Bytes { writable } => (Shape::Bytes { writable: *writable }, 16),
            FieldKind::Struct(inner) => {
                let (name, members, size) = leak(inner);
                (Shape::Struct { name, members }, size)
            }
        };
        members.push(Member {
            name: text(&field.name),
            offset: offset as usize,
            size: size as usize,
            shape,
            writable: field.writable,
        });
        offset += size;
    }
    (text(&of.name), Vec::leak(members), offset)
}

/// A field of a [`HostContextBuff`]: a number, an array of numbers, or a byte slice. Fields of nested structs have
/// names of several parts, `outer.inner`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostField {
    /// Its name.
    pub name: String,
    /// Its type, which is no struct.
    pub ty: FieldKind,
    offset: usize,
    size: usize,
}

/// The context of one run on a [`HostContext`]: its fields by name.
pub struct HostContextBuff {
    fields: Vec<HostField>,
    /// The struct, aligned for all integers. Its pointers are set when a run begins.
    words: Vec<u64>,
    size: usize,
    /// The byte slices, in the order of their fields.
    slices: Vec<Vec<u8>>,
}

impl fmt::Debug for HostContextBuff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.fields.iter().map(|field| (&field.name, self.get(&field.name)));
        f.debug_map().entries(values).finish()
    }
}

impl Default for HostContextBuff {
    fn default() -> Self {
        HostContextBuff::new()
    }
}

impl HostContextBuff {
    /// Makes a context of zeros and empty byte slices: without fields, if the process has not defined the context
    /// ([`HostContext::define`]).
    pub fn new() -> HostContextBuff {
        let mut fields = Vec::new();
        let size = add_fields(&mut fields, "", 0, HostContext::defined().members);
        let slices = fields.iter().filter(|field| matches!(field.ty, FieldKind::Bytes { .. })).map(|_| Vec::new());
        HostContextBuff { words: vec![0; size.div_ceil(8)], size, slices: slices.collect(), fields }
    }

    /// The fields, in the order of the struct.
    pub fn fields(&self) -> &[HostField] {
        &self.fields
    }

    /// The field of this name, with its place among the byte slices.
    fn find(&self, name: &str) -> Option<(&HostField, usize)> {
        let at = self.fields.iter().position(|field| field.name == name)?;
        let before = self.fields[..at].iter().filter(|field| matches!(field.ty, FieldKind::Bytes { .. })).count();
        Some((&self.fields[at], before))
    }

    /// Returns the bytes of a field: those of the numbers, in the machine's order, or of the slice. `None` if there is
    /// no such field.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        let (field, slice) = self.find(name)?;
        match field.ty {
            FieldKind::Bytes { .. } => self.slices.get(slice).cloned(),
            FieldKind::Int(_) | FieldKind::Array { .. } | FieldKind::Struct(_) => {
                let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                bytes.get(field.offset..field.offset + field.size).map(<[u8]>::to_vec)
            }
        }
    }

    /// Sets a field: the bytes of its numbers, as many as it has, or those of its slice. Returns whether there is such
    /// a field, of that size.
    pub fn set(&mut self, name: &str, bytes: &[u8]) -> bool {
        let Some((field, slice)) = self.find(name) else { return false };
        match field.ty {
            FieldKind::Bytes { .. } => {
                let fits = bytes.len() <= Region::MAX_LEN as usize;
                if fits && let Some(held) = self.slices.get_mut(slice) {
                    *held = bytes.to_vec();
                }
                fits
            }
            FieldKind::Int(_) | FieldKind::Array { .. } | FieldKind::Struct(_) => {
                let (offset, fits) = (field.offset, bytes.len() == field.size);
                if fits {
                    self.write(offset, bytes);
                }
                fits
            }
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            if let Some(word) = self.words.get_mut(at / 8) {
                let mut held = word.to_ne_bytes();
                held[at % 8] = *byte;
                *word = u64::from_ne_bytes(held);
            }
        }
    }
}

/// Adds the fields of a struct at `base`, and returns the end of the last.
fn add_fields(fields: &mut Vec<HostField>, prefix: &str, base: usize, members: &[Member]) -> usize {
    for member in members {
        let (name, offset) = (format!("{prefix}{}", member.name), base + member.offset);
        let ty = match member.shape {
            Shape::Scalar { int, count: None } => FieldKind::Int(int),
            Shape::Scalar { int, count: Some(count) } => FieldKind::Array { of: int, count: crate::num::small(count) },
            Shape::Bytes { writable } => FieldKind::Bytes { writable },
            Shape::Struct { members, .. } => {
                add_fields(fields, &format!("{name}."), offset, members);
                continue;
            }
        };
        fields.push(HostField { name, ty, offset, size: member.size });
    }
    members.last().map_or(base, |last| base + last.offset + last.size)
}

// SAFETY: the parts are the struct in `words`, which has the size of the layout's struct. Its pointers are the ends of
// the slices, which nothing moves while `data` is borrowed; the layout lets programs write neither the pointers nor
// slices that are not writable.
unsafe impl Context for HostContext {
    type Data<'r, 'p>
        = &'r mut HostContextBuff
    where
        'p: 'r;

    fn layout() -> &'static ContextLayout {
        &HostContext::defined().layout
    }

    fn types() -> Vec<CoreType> {
        HostContext::defined().types.clone()
    }

    fn own_struct() -> Option<CoreType> {
        HostContext::defined().types.last().cloned()
    }

    fn parts(data: &mut &mut HostContextBuff) -> Parts {
        let data: &mut HostContextBuff = data;
        let bytes = data.fields.iter().filter(|field| matches!(field.ty, FieldKind::Bytes { .. }));
        let offsets: Vec<usize> = bytes.map(|field| field.offset).collect();
        for (i, offset) in offsets.into_iter().enumerate() {
            let slice = &mut data.slices[i];
            // The memory is the allocator's, which has none below `Region::MIN_START`.
            let start = if slice.is_empty() { EMPTY } else { slice.as_mut_ptr().expose_provenance() };
            let ends = [start as u64, (start + slice.len()) as u64];
            data.write(offset, &ends[0].to_ne_bytes());
            data.write(offset + 8, &ends[1].to_ne_bytes());
        }
        // A struct without fields has no memory, and its vector's pointer is dangling.
        let context = match data.size {
            0 => core::ptr::without_provenance_mut(EMPTY),
            _ => data.words.as_mut_ptr().cast(),
        };
        let none = core::ptr::null_mut();
        Parts { context, context_len: data.size, packet: none, packet_len: 0, memory: none, memory_len: 0 }
    }
}

impl HostInterface {
    /// Adds a map that the service hands to plug-ins ([`MapSet::reuse_each`]). An object that defines a map of this
    /// name must define it so, which `bpf verify --host` and `bpf test` compare. The contents are not described: in the
    /// service, a verdict may also depend on those of a frozen map.
    ///
    /// ```
    /// # use bpf_runtime::{BpfContext, Config, Engine, Linker, maps::{MapDef, MapType}};
    /// # #[derive(BpfContext)]
    /// # #[repr(C)]
    /// # struct Request {
    /// #     client: u32,
    /// # }
    /// let engine = Engine::new(Config::new())?;
    /// let quota = engine.create_map(MapDef::new("quota", MapType::Hash, 4, 8, 1024))?;
    /// let host = Linker::<()>::new(&engine).describe::<Request>()?.offer(&quota)?;
    /// assert_eq!(host.maps[0].map_type, "hash");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`HostInterfaceError`] for a map of which a description does not say all (values that own objects, resilient
    /// locks, deferred work), and as [`HostInterface::check`].
    pub fn offer(mut self, map: &Map) -> Result<HostInterface, HostInterfaceError> {
        let place = format!("maps[{}]", self.maps.len());
        match MapInterface::of(map.def()) {
            Some(map) => self.maps.push(map),
            None => return wrong(place, format!("a description cannot say all of map `{}`", map.name())),
        }
        check_maps(&self.maps)?;
        Ok(self)
    }
}

impl MapSet {
    /// Compares each map of the object with the map of that name that a described host hands to plug-ins, if there is
    /// one, as [`MapSet::reuse`] does. The maps themselves are in the service only, so new ones are made here.
    ///
    /// # Errors
    /// As [`MapSet::reuse`], for the first map that the service could not hand over.
    pub fn check_offered(self, host: &HostInterface) -> Result<MapSet, LoadError> {
        for map in &host.maps {
            if self.defines(&map.name) {
                let unknown = || LoadError::Internal(format!("map `{}` of an unchecked description", map.name));
                self.fits(&map.name, &map.def().ok_or_else(unknown)?)?;
            }
        }
        Ok(self)
    }
}
