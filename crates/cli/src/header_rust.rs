//! The module that plug-ins in Rust include: a described host as `bpf-guest` declares it.
//!
//! Problem: a host is described by names and types of C. Approach: fields and functions keep their names, which the
//! load compares or links by; only names of types, which nothing compares, become Rust's. Maps that the host hands over
//! are type aliases, because each static with `map` would be a map of every object.
//!
//! Paths begin at the crate, so no name of the host hides one that the module uses.

use anyhow::{Result, bail};
use bpf_runtime::describe::{
    FieldInterface, FieldKind, FunctionInterface, HostInterface, MapInterface, ParamKind, ResultKind, StructInterface,
};
use bpf_runtime::host::IntType;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Words of Rust, and `_`, which is no name there.
const KEYWORDS: [&str; 53] = [
    "_", "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro",
    "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self", "Self", "static", "struct",
    "super", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where", "while",
    "yield",
];

/// Keywords that cannot be written as `r#name` either.
const NEVER: [&str; 5] = ["_", "crate", "self", "Self", "super"];

/// Whether a name means something else in Rust.
pub(crate) fn is_keyword(name: &str) -> bool {
    KEYWORDS.contains(&name)
}

/// The host's module, of a checked description.
pub(crate) fn module(host: &HostInterface) -> Result<String> {
    let mut out = String::from(
        "//! The host's context and functions, made from its description. Do not edit.\n\
         #![allow(dead_code, reason = \"a plug-in uses a part of its host\")]\n",
    );
    let mut types = Types::default();
    types.structure(&mut out, "context", &host.context, true)?;
    let mut functions = String::new();
    let mut memory = BTreeSet::new();
    for (i, function) in host.functions.iter().enumerate() {
        let name = ident(&format!("functions[{i}].name"), &function.name)?;
        memory.extend(function.params.iter().filter_map(|param| match param {
            ParamKind::Struct { bytes, align, .. } => Some((*bytes, *align)),
            ParamKind::Int(_) | ParamKind::Bytes { .. } => None,
        }));
        if function.sleeps {
            functions += "    /// Waits: only sleepable programs call it.\n";
        }
        if function.result == ResultKind::Never {
            functions += "    /// Ends the run: it does not return.\n";
        }
        // Writing to a string cannot fail.
        let _ = writeln!(functions, "    pub fn {name}({}){};", parameters(function), result(function.result));
    }
    for (bytes, align) in memory {
        let _ = writeln!(
            out,
            "\n/// Bytes that the host takes or returns.\n#[repr(C, align({align}))]\n\
             pub struct {}(pub [u8; {bytes}]);",
            raw(bytes, align)
        );
    }
    if !functions.is_empty() {
        let _ = write!(out, "\nbpf_guest::host_functions! {{\n{functions}}}\n");
    }
    for map in &host.maps {
        types.map(&mut out, map);
    }
    Ok(out)
}

/// The type of a plug-in's argument.
pub(crate) fn context_type(host: &HostInterface) -> String {
    let lifetime = if has_bytes(&host.context) { "<'_>" } else { "" };
    Types::default().name(&host.context.name) + lifetime
}

/// A name of C in Rust.
fn ident(place: &str, name: &str) -> Result<String> {
    if NEVER.contains(&name) {
        bail!("{place}: `{name}` can be no name in Rust");
    }
    Ok(if is_keyword(name) { format!("r#{name}") } else { name.to_owned() })
}

fn has_bytes(of: &StructInterface) -> bool {
    of.fields.iter().any(|field| match &field.ty {
        FieldKind::Bytes { .. } => true,
        FieldKind::Struct(inner) => has_bytes(inner),
        FieldKind::Int(_) | FieldKind::Array { .. } => false,
    })
}

const fn int(ty: IntType) -> &'static str {
    match ty {
        IntType::Bool => "bool",
        IntType::U8 => "u8",
        IntType::U16 => "u16",
        IntType::U32 => "u32",
        IntType::U64 => "u64",
        IntType::I8 => "i8",
        IntType::I16 => "i16",
        IntType::I32 => "i32",
        IntType::I64 => "i64",
    }
}

fn raw(bytes: u32, align: u32) -> String {
    format!("Bytes{bytes}Align{align}")
}

fn parameters(function: &FunctionInterface) -> String {
    let one = |(param, name): (&ParamKind, char)| match *param {
        ParamKind::Int(ty) => format!("{name}: {}", int(ty)),
        // Null is the empty slice: the length decides.
        ParamKind::Bytes { writable, null: _, shared: _ } => {
            format!("{name}: {}[u8]", if writable { "&mut " } else { "&" })
        }
        ParamKind::Struct { bytes, align, writable, null } => {
            let reference = format!("{}{}", if writable { "&mut " } else { "&" }, raw(bytes, align));
            if null { format!("{name}: ::core::option::Option<{reference}>") } else { format!("{name}: {reference}") }
        }
    };
    // A checked function has at most five.
    function.params.iter().zip('a'..='e').map(one).collect::<Vec<_>>().join(", ")
}

fn result(of: ResultKind) -> String {
    match of {
        // `!` cannot be the result of a closure's type, which a mock has.
        ResultKind::Nothing | ResultKind::Never => String::new(),
        ResultKind::Int(ty) => format!(" -> {}", int(ty)),
        ResultKind::Memory { bytes } => format!(" -> ::core::option::Option<::core::ptr::NonNull<[u8; {bytes}]>>"),
    }
}

/// The names of types, each given once.
#[derive(Default)]
struct Types {
    /// Structs by their names in C, with those in Rust.
    structs: Vec<(String, String)>,
    taken: BTreeSet<String>,
}

impl Types {
    /// A name in Rust that no other type has, `HttpRequest` for `http_request`.
    fn name(&mut self, of: &str) -> String {
        let mut name: String = of.split('_').filter(|word| !word.is_empty()).map(capital).collect();
        if name == "Self" || !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            name.insert_str(0, "Host");
        }
        while !self.taken.insert(name.clone()) {
            name.push('_');
        }
        name
    }

    /// Writes a struct after those in it, each once.
    fn structure(&mut self, out: &mut String, place: &str, of: &StructInterface, is_context: bool) -> Result<()> {
        let name = self.name(&of.name);
        self.structs.push((of.name.clone(), name.clone()));
        for (i, field) in of.fields.iter().enumerate() {
            if let FieldKind::Struct(inner) = &field.ty
                && !self.structs.iter().any(|(known, _)| *known == inner.name)
            {
                self.structure(out, &format!("{place}.fields[{i}].type.struct"), inner, false)?;
            }
        }
        let lifetime = if has_bytes(of) { "<'c>" } else { "" };
        out.push('\n');
        if is_context {
            *out += "/// The context of programs. They write only fields with `#[bpf(writable)]`.\n";
            let _ = writeln!(out, "#[derive(bpf_guest::BpfContext)]\n#[bpf(name = \"{}\")]", of.name);
        }
        let _ = writeln!(out, "#[repr(C)]\npub struct {name}{lifetime} {{");
        for (i, field) in of.fields.iter().enumerate() {
            let FieldInterface { name, writable, ty } = field;
            let name = ident(&format!("{place}.fields[{i}].name"), name)?;
            if *writable {
                // Only the derive knows the attribute.
                *out += if is_context { "    #[bpf(writable)]\n" } else { "    /// Writable.\n" };
            }
            let ty = match ty {
                FieldKind::Int(ty) => int(*ty).to_owned(),
                FieldKind::Array { of, count } => format!("[{}; {count}]", int(*of)),
                FieldKind::Bytes { writable: true } => "bpf_guest::ContextBytesMut<'c>".to_owned(),
                FieldKind::Bytes { writable: false } => "bpf_guest::ContextBytes<'c>".to_owned(),
                FieldKind::Struct(inner) => {
                    let known = self.structs.iter().find(|(known, _)| *known == inner.name);
                    let lifetime = if has_bytes(inner) { "<'c>" } else { "" };
                    known.map(|(_, name)| name.clone()).unwrap_or_default() + lifetime
                }
            };
            let _ = writeln!(out, "    pub {name}: {ty},");
        }
        *out += "}\n";
        Ok(())
    }

    /// Writes the type of a map that the host hands over.
    fn map(&mut self, out: &mut String, map: &MapInterface) {
        let MapInterface { name, map_type, key_size, value_size, max_entries, flags, map_extra, .. } = map;
        let (key, value) = (plain(*key_size), plain(*value_size));
        let special = map.spin_lock.is_some() || map.timer.is_some() || map.inner.is_some();
        let ty = match map_type.as_str() {
            _ if special || *flags != 0 || *map_extra != 0 => None,
            "hash" => Some(format!("HashMap<{key}, {value}, {max_entries}>")),
            "lru_hash" => Some(format!("LruHashMap<{key}, {value}, {max_entries}>")),
            "percpu_hash" => Some(format!("PerCpuHashMap<{key}, {value}, {max_entries}>")),
            "lru_percpu_hash" => Some(format!("LruPerCpuHashMap<{key}, {value}, {max_entries}>")),
            "array" => Some(format!("Array<{value}, {max_entries}>")),
            "percpu_array" => Some(format!("PerCpuArray<{value}, {max_entries}>")),
            "ringbuf" => Some(format!("RingBuf<{max_entries}>")),
            _ => None,
        };
        let _ = match ty {
            Some(ty) => {
                let alias = self.name(name);
                writeln!(
                    out,
                    "\n/// The host's map `{name}`: `#[bpf_guest::map(name = \"{name}\")] static {}: {alias} = \
                     {alias}::new();`\npub type {alias} = bpf_guest::maps::{ty};",
                    name.to_ascii_uppercase()
                )
            }
            None => writeln!(out, "\n// The host's map `{name}` ({map_type}) has no type in bpf-guest."),
        };
    }
}

/// A type of keys and values of this size.
fn plain(size: u32) -> String {
    match size {
        1 | 2 | 4 | 8 => format!("u{}", size * 8),
        _ => format!("[u8; {size}]"),
    }
}

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_ascii_uppercase() + rest
}
