//! Compares CO-RE relocations with libbpf's: for generated pairs of types, the object's and a host's, both must
//! produce equal instructions for a program with every kind of query.
//!
//! Needs clang 19, a C compiler and libbpf's headers; without them the test prints SKIPPED. libbpf runs in a separate
//! process, whose system calls are answered by `libbpf/relocate.c`, so no privilege is needed. `BPF_SOAK=N` tests N
//! times as many pairs.
//!
//! Only pairs are generated that libbpf resolves without an error for the whole object: two types of one name agree in
//! all that the program asks of them, and no access is to the first bytes of an array, which libbpf before 1.6 refuses.
//! Other tests cover both.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bpf_isa::{Callee, Insn};
use bpf_object::{HostTypes, Object, UNRESOLVED_CALL};

/// The helper that libbpf calls in place of an instruction that it cannot relocate.
const BAD_RELOCATION: u32 = 0xbad_2310;

/// Number of pairs of files in a run, each with [`TYPES`] pairs of structures.
const PAIRS: u64 = 12;
const TYPES: usize = 6;

/// Random numbers that depend only on a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

#[derive(Clone, Debug)]
enum Ty {
    Int(&'static str),
    Bits(&'static str, usize),
    Pointer,
    Enum(&'static str),
    Float,
    Array(Box<Ty>, usize),
    Struct(Vec<Field>),
    Union(Vec<Field>),
    /// A type by the name of a typedef.
    Typedef(Box<Ty>),
}

impl Ty {
    /// The type under a name, unless it is a bit field, which is no type.
    fn named(self) -> Ty {
        if let Ty::Bits(..) = self { self } else { Ty::Typedef(Box::new(self)) }
    }
}

#[derive(Clone, Debug)]
struct Field {
    name: String,
    ty: Ty,
}

const INTS: [&str; 9] = ["__u8", "__u16", "__u32", "__u64", "__s8", "__s16", "int", "long long", "_Bool"];
const ENUMS: [&str; 3] = ["enum small", "enum negative", "enum wide"];

fn bits(random: &mut Random) -> Ty {
    let (base, most) = random.of(&[("__u32", 20), ("int", 14), ("__u8", 8), ("__u16", 16), ("__u64", 24)]);
    Ty::Bits(base, 1 + random.below(most))
}

fn ty(random: &mut Random, prefix: &str, depth: usize) -> Ty {
    match random.below(if depth == 0 { 11 } else { 16 }) {
        0..=3 => Ty::Int(random.of(&INTS)),
        4 | 5 => bits(random),
        6 => Ty::Pointer,
        7 => Ty::Enum(random.of(&ENUMS)),
        8 => Ty::Float,
        9 | 10 => {
            let elem = if random.one_in(3) && depth > 0 { ty(random, prefix, 0) } else { Ty::Int(random.of(&INTS)) };
            let elem = if let Ty::Bits(..) = elem { Ty::Pointer } else { elem };
            Ty::Array(Box::new(elem), 1 + random.below(4))
        }
        11 => Ty::Union(fields(random, prefix, depth - 1)),
        12 => Ty::Union(fields(random, prefix, depth - 1)).named(),
        13 => Ty::Struct(fields(random, prefix, depth - 1)).named(),
        _ => Ty::Struct(fields(random, prefix, depth - 1)),
    }
}

fn fields(random: &mut Random, prefix: &str, depth: usize) -> Vec<Field> {
    let count = 2 + random.below(5);
    // clang 19 emits no queries of bit fields that cross the structure's alignment; this member makes the alignment
    // large.
    let mut list = vec![Field { name: format!("{prefix}wide"), ty: Ty::Int("__u64") }];
    for i in 0..count {
        let name = format!("{prefix}{i}");
        let ty = ty(random, &format!("{name}_"), depth);
        list.push(Field { name, ty });
    }
    list
}

/// The host's version of a type.
fn changed(random: &mut Random, of: &Ty, prefix: &str) -> Ty {
    if random.one_in(12) {
        return ty(random, prefix, 1);
    }
    match of {
        Ty::Int(_) if random.one_in(3) => Ty::Int(random.of(&INTS)),
        Ty::Int(base) if *base != "_Bool" && random.one_in(8) => Ty::Bits(base, 1 + random.below(8)),
        Ty::Bits(..) if random.one_in(2) => bits(random),
        Ty::Bits(base, _) if random.one_in(6) => Ty::Int(base),
        Ty::Enum(_) if random.one_in(4) => Ty::Enum(random.of(&ENUMS)),
        Ty::Array(elem, len) => {
            let len = if random.one_in(3) { random.below(6) } else { *len };
            Ty::Array(Box::new(if random.one_in(3) { changed_elem(random, elem) } else { (**elem).clone() }), len)
        }
        Ty::Struct(fields) if random.one_in(6) => Ty::Union(changed_fields(random, fields, prefix)),
        Ty::Struct(fields) => Ty::Struct(changed_fields(random, fields, prefix)),
        Ty::Union(fields) => Ty::Union(changed_fields(random, fields, prefix)),
        Ty::Typedef(of) if random.one_in(4) => changed(random, of, prefix),
        Ty::Typedef(of) => changed(random, of, prefix).named(),
        same => same.clone(),
    }
}

fn changed_elem(random: &mut Random, of: &Ty) -> Ty {
    match of {
        Ty::Int(_) => Ty::Int(random.of(&INTS)),
        other => other.clone(),
    }
}

fn changed_fields(random: &mut Random, fields: &[Field], prefix: &str) -> Vec<Field> {
    let mut list: Vec<Field> = Vec::new();
    for field in fields {
        if random.one_in(8) {
            continue;
        }
        if random.one_in(4) {
            let ty = random.of(&INTS);
            list.push(Field { name: format!("{prefix}pad{}", list.len()), ty: Ty::Int(ty) });
        }
        let ty = changed(random, &field.ty, &format!("{}_", field.name));
        list.push(Field { name: field.name.clone(), ty });
    }
    for i in (1..list.len()).rev() {
        if random.one_in(3) {
            list.swap(i, random.below(i + 1));
        }
    }
    if list.is_empty() {
        list.push(Field { name: format!("{prefix}pad"), ty: Ty::Int("__u32") });
    }
    // Moves some of them into an anonymous structure or union.
    if random.one_in(3) {
        let from = random.below(list.len());
        let group = list.split_off(from);
        let ty = if random.one_in(2) { Ty::Struct(group) } else { Ty::Union(group) };
        list.push(Field { name: String::new(), ty });
        if random.one_in(2) {
            list.push(Field { name: format!("{prefix}tail"), ty: Ty::Int("__u16") });
        }
    }
    list
}

/// Typedefs of a file, which have different names.
#[derive(Default)]
struct Typedefs {
    /// The definitions that the file does not contain yet.
    text: String,
    made: usize,
}

/// A declaration in C, and the typedefs that it needs. Structures inside have names only if they are members with one.
fn declare(typedefs: &mut Typedefs, out: &mut String, Field { name, ty }: &Field) {
    let (mut ty, mut suffix) = (ty, String::new());
    while let Ty::Array(elem, len) = ty {
        write!(suffix, "[{len}]").unwrap();
        ty = elem;
    }
    match ty {
        Ty::Int(base) | Ty::Enum(base) => writeln!(out, "{base} {name}{suffix};"),
        Ty::Bits(base, width) => writeln!(out, "{base} {name}: {width};"),
        Ty::Pointer => writeln!(out, "void *{name}{suffix};"),
        Ty::Float => writeln!(out, "float {name}{suffix};"),
        Ty::Struct(fields) | Ty::Union(fields) => {
            out.push_str(if matches!(ty, Ty::Union(_)) { "union {\n" } else { "struct {\n" });
            fields.iter().for_each(|field| declare(typedefs, out, field));
            writeln!(out, "}} {name}{suffix};")
        }
        Ty::Typedef(of) => {
            let mut text = String::new();
            typedefs.made += 1;
            let of_type = format!("named{}", typedefs.made);
            declare(typedefs, &mut text, &Field { name: of_type.clone(), ty: (**of).clone() });
            write!(typedefs.text, "typedef {text}").unwrap();
            writeln!(out, "{of_type} {name}{suffix};")
        }
        Ty::Array(..) => Ok(()),
    }
    .unwrap();
}

/// The definition of a structure or union, with more text behind its members, and of variables of the type.
fn define(typedefs: &mut Typedefs, out: &mut String, of: &str, fields: &[Field], (more, variables): (&str, &str)) {
    let mut members = String::new();
    fields.iter().for_each(|field| declare(typedefs, &mut members, field));
    out.push_str(&std::mem::take(&mut typedefs.text));
    writeln!(out, "{of} {{\n{members}{more}}} {variables};").unwrap();
}

/// Statements with every query of a field at `path`.
fn ask(out: &mut String, random: &mut Random, path: &str, ty: &Ty) {
    let mut use_it = |what: String| writeln!(out, "USE({what});").unwrap();
    use_it(format!("bpf_core_field_exists({path})"));
    let info = |kind: &str| format!("__builtin_preserve_field_info({path}, BPF_FIELD_{kind})");
    let mut infos = |kinds: &[&str]| kinds.iter().for_each(|kind| use_it(info(kind)));
    match ty {
        Ty::Bits(..) => infos(&["BYTE_OFFSET", "BYTE_SIZE", "SIGNED", "LSHIFT_U64", "RSHIFT_U64"]),
        Ty::Int(base) => {
            infos(&["BYTE_OFFSET", "BYTE_SIZE", "SIGNED", "LSHIFT_U64", "RSHIFT_U64"]);
            use_it(path.to_owned());
            if *base != "_Bool" {
                writeln!(out, "{path} = {};", random.below(100)).unwrap();
            }
        }
        Ty::Pointer => {
            infos(&["BYTE_OFFSET", "BYTE_SIZE"]);
            use_it(format!("(__u64){path}"));
        }
        Ty::Enum(_) => {
            infos(&["BYTE_OFFSET", "BYTE_SIZE", "SIGNED"]);
            use_it(path.to_owned());
        }
        Ty::Float => infos(&["BYTE_OFFSET", "BYTE_SIZE"]),
        Ty::Array(elem, len) => {
            infos(&["BYTE_OFFSET", "BYTE_SIZE"]);
            let element = format!("{path}[{}]", random.below(*len));
            writeln!(out, "USE(bpf_core_field_exists({element}));").unwrap();
            if let Ty::Int(_) | Ty::Pointer | Ty::Enum(_) = **elem {
                writeln!(out, "USE((__u64){element});").unwrap();
            }
        }
        Ty::Struct(fields) | Ty::Union(fields) => {
            infos(&["BYTE_OFFSET", "BYTE_SIZE"]);
            for field in fields {
                ask(out, random, &format!("{path}.{}", field.name), &field.ty);
            }
        }
        Ty::Typedef(of) => ask(out, random, path, of),
    }
}

const HEAD: &str = "#include <linux/bpf.h>\n#include <linux/types.h>\n#include <bpf/bpf_helpers.h>\n\
    #include <bpf/bpf_core_read.h>\n#define USE(x) do { __u64 v = (__u64)(x); asm volatile(\"\" : \"+r\"(v)); } while (0)\n";

/// Queries of a type as a whole.
const WHOLE: [&str; 5] = ["exists", "size", "matches", "id_local", "id_kernel"];

/// The sources of a pair: the object's and the host's.
fn sources(seed: u64) -> (String, String) {
    let random = &mut Random(seed);
    let (mut local, mut host) = (HEAD.to_owned(), HEAD.to_owned());
    local.push_str(
        "#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)\n\
         enum small { S_A = 1, S_B, S_GONE };\nenum negative { N_A = -1, N_B = 7 };\nenum wide { W_A = 1ULL << 40 };\n",
    );
    let (a, b) = (random.below(1000), random.below(1000));
    writeln!(host, "enum small {{ S_B = {a}, S_A = {b} }};\nenum negative {{ N_A = -{}, N_B }};", a + 1).unwrap();
    host.push_str(if random.one_in(2) { "enum wide { W_A = 1ULL << 41 };\n" } else { "enum wide { W_A = 4 };\n" });
    host.push_str("enum small e1; enum negative e2; enum wide e3;\n");
    let mut programs = String::new();
    let mut types = [Typedefs::default(), Typedefs::default()];
    for i in 0..TYPES {
        let fields = fields(random, "f", 2);
        let theirs = changed_fields(random, &fields, "f");
        let flavour = if random.one_in(3) { "___mine" } else { "" };
        let keyword = if random.one_in(6) { "union" } else { "struct" };
        let theirs_keyword = if random.one_in(12) { "union" } else { keyword };
        // A flexible array; the host's may have a length, or other elements.
        let elem = (keyword == "struct" && random.one_in(2)).then(|| random.of(&["__u16", "int", "void *", "__u64"]));
        let flexible = elem.map(|elem| format!("{elem} flexible[];\n")).unwrap_or_default();
        let of = format!("{keyword} s{i}{flavour}");
        define(&mut types[0], &mut local, &of, &fields, (&flexible, ""));
        writeln!(local, "typedef {of} t{i}{flavour};").unwrap();
        // A second type of the name has the members of the first and one more, or none of them.
        let second = random.below(4);
        if !random.one_in(10) {
            let theirs_flexible = match elem {
                Some(elem) if second != 0 && theirs_keyword == "struct" => match random.below(4) {
                    0 => String::new(),
                    1 => format!("{elem} flexible[{}];\n", 1 + random.below(4)),
                    2 => String::from("__u32 flexible[];\n"),
                    _ => flexible.clone(),
                },
                Some(_) | None => String::new(),
            };
            let flavour = if random.one_in(4) { "___theirs" } else { "" };
            let of = format!("{theirs_keyword} s{i}{flavour}");
            define(&mut types[1], &mut host, &of, &theirs, (&theirs_flexible, &format!("v{i}")));
            let more = match second {
                0 => [&theirs[..], &[Field { name: String::from("more"), ty: Ty::Int("__u64") }]].concat(),
                1 => vec![Field { name: String::from("other"), ty: Ty::Int("__u64") }],
                _ => Vec::new(),
            };
            if !more.is_empty() {
                let of = format!("{theirs_keyword} s{i}___second");
                define(&mut types[1], &mut host, &of, &more, ("", &format!("w{i}")));
            }
            if !random.one_in(6) {
                writeln!(host, "typedef {of} t{i}; t{i} u{i};").unwrap();
            }
        }
        writeln!(programs, "SEC(\"xdp\") int p{i}(void *ctx) {{\n{of} *q = ctx;").unwrap();
        for field in &fields {
            ask(&mut programs, random, &format!("q->{}", field.name), &field.ty);
        }
        if elem.is_some() {
            let element = format!("q->flexible[{}]", random.below(6));
            writeln!(programs, "USE(bpf_core_field_exists({element})); USE((__u64){element});").unwrap();
            writeln!(programs, "USE(bpf_core_field_exists(q->flexible));").unwrap();
            writeln!(programs, "USE(__builtin_preserve_field_info(q->flexible, BPF_FIELD_BYTE_OFFSET));").unwrap();
        }
        // Two types that both have the members differ in these.
        let whole = if second == 0 { &["exists", "matches", "id_local"][..] } else { &WHOLE };
        for what in whole {
            writeln!(programs, "USE(bpf_core_type_{what}({of}));").unwrap();
        }
        for what in WHOLE {
            writeln!(programs, "USE(bpf_core_type_{what}(t{i}{flavour}));").unwrap();
        }
        programs.push_str("return 0; }\n");
    }
    programs.push_str("SEC(\"xdp\") int enums(void *ctx) {\n");
    for (of, value) in [
        ("small", "S_A"),
        ("small", "S_B"),
        ("small", "S_GONE"),
        ("negative", "N_A"),
        ("negative", "N_B"),
        ("wide", "W_A"),
    ] {
        writeln!(programs, "USE(bpf_core_enum_value_exists(enum {of}, {value}));").unwrap();
        writeln!(programs, "USE(bpf_core_enum_value(enum {of}, {value}));").unwrap();
        writeln!(programs, "USE(bpf_core_type_size(enum {of})); USE(bpf_core_type_matches(enum {of}));").unwrap();
    }
    programs.push_str("return 0; }\n");
    local.push_str("#pragma clang attribute pop\n");
    local.push_str(&programs);
    local.push_str("char _license[] SEC(\"license\") = \"GPL\";\n");
    (local, host)
}

/// Compiles a source; `None` if clang cannot compute the place of a bit field that the source queries.
fn compile(source: &Path, text: &str) -> Option<PathBuf> {
    std::fs::write(source, text).unwrap();
    let object = source.with_extension("o");
    let mut clang = Command::new("clang-19");
    clang.args([
        "-fno-crash-diagnostics",
        "-O2",
        "-g",
        "-target",
        "bpf",
        "-mcpu=v3",
        "-w",
        "-D__x86_64__",
        "-I/usr/include/x86_64-linux-gnu",
        "-c",
    ]);
    let output = clang.arg(source).arg("-o").arg(&object).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let cannot_tell = errors.contains("bitfield size greater than record alignment");
    assert!(output.status.success() || cannot_tell, "{}: {errors}", source.display());
    output.status.success().then_some(object)
}

/// Prints that the test did not run, in the form that `cargo xtask test` counts.
fn skipped(why: &str) {
    let _ = std::io::stderr().write_all(format!("SKIPPED relocations beside libbpf: {why}\n").as_bytes());
}

/// Builds the program that runs libbpf.
fn build_libbpf(folder: &Path) -> Result<PathBuf, String> {
    let missing = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    let clang = Command::new("clang-19").arg("--version").output();
    clang.map_err(|error| missing("clang-19", &error))?;
    let binary = folder.join("relocate");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libbpf/relocate.c");
    let mut cc = Command::new("cc");
    let built = cc.args(["-O1"]).arg(source).arg("-lbpf").arg("-o").arg(&binary).output();
    let built = built.map_err(|error| missing("cc", &error))?;
    if !built.status.success() {
        let error = String::from_utf8_lossy(&built.stderr);
        return Err(missing("apt-get install libbpf-dev", &error.lines().next().unwrap_or_default()));
    }
    Ok(binary)
}

/// libbpf's instructions for the programs of each pair; `None` for a pair that it refuses.
fn by_libbpf(binary: &Path, pairs: &[(u64, PathBuf, PathBuf)]) -> Vec<Option<HashMap<String, Vec<Insn>>>> {
    let output = Command::new(binary).args(pairs.iter().flat_map(|(_, object, host)| [host, object])).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut found: Vec<Option<HashMap<String, Vec<Insn>>>> = Vec::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("pair"), ..) => found.push(Some(HashMap::new())),
            (Some("refused"), ..) => *found.last_mut().unwrap() = None,
            (Some("code"), Some(name), Some(hex)) => {
                let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
                let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
                let mut insns = bpf_isa::decode(&bytes).unwrap();
                for insn in &mut insns {
                    if *insn == Insn::Call(Callee::Helper(BAD_RELOCATION)) {
                        *insn = Insn::Call(Callee::Helper(UNRESOLVED_CALL));
                    }
                }
                found.last_mut().unwrap().as_mut().unwrap().insert(name.to_owned(), insns);
            }
            _ => panic!("{line}"),
        }
    }
    if found.iter().any(Option::is_none) {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    }
    found
}

#[test]
fn the_same_instructions_as_libbpf() {
    let folder = std::env::temp_dir().join(format!("bpf-libbpf-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let binary = match build_libbpf(&folder) {
        Ok(binary) => binary,
        Err(why) => return skipped(&why),
    };
    let soak: u64 = std::env::var("BPF_SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let (mut programs, mut relocations, mut poisoned, mut refused) = (0, 0, 0, 0);
    let mut kinds = BTreeSet::new();
    for first in (0..PAIRS * soak).step_by(PAIRS as usize) {
        let seeds: Vec<u64> = (first..first + PAIRS).collect();
        let mut pairs = Vec::new();
        for seed in &seeds {
            let (local, host) = sources(*seed);
            let object = compile(&folder.join(format!("local{seed}.c")), &local);
            let host = compile(&folder.join(format!("host{seed}.c")), &host);
            pairs.extend(object.zip(host).map(|(object, host)| (*seed, object, host)));
        }
        for ((seed, object, host), theirs) in pairs.iter().zip(by_libbpf(&binary, &pairs)) {
            let Some(theirs) = theirs else {
                refused += 1;
                continue;
            };
            let mut object = Object::parse(&std::fs::read(object).unwrap()).unwrap();
            object.target_btf(&std::fs::read(host).unwrap()).unwrap();
            for program in object.programs() {
                let linked = object.link_for(program, &HostTypes::new(&[]), |_| false).unwrap();
                programs += 1;
                relocations += linked.code().core_relocations().len();
                poisoned += linked.unresolved().len();
                kinds.extend(linked.code().core_relocations().iter().map(|relocation| relocation.kind.name()));
                let (ours, theirs) = (linked.code().insns(), &theirs[program.name()]);
                for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                    let of: Vec<_> = linked.code().core_relocations().iter().filter(|r| r.insn.index() == at).collect();
                    let why = linked.unresolved().iter().find(|unresolved| unresolved.insn.index() == at);
                    let what: Vec<_> = of.iter().map(|r| (r.kind, linked.code().core_names(r))).collect();
                    assert_eq!(
                        ours,
                        theirs,
                        "seed {seed}, program {}, instruction {at}: {what:?} {why:?}; the sources are in {}",
                        program.name(),
                        folder.display()
                    );
                }
                assert_eq!(ours.len(), theirs.len());
            }
        }
    }
    println!(
        "{programs} programs, {relocations} relocations, {poisoned} of them unresolved, {refused} pairs refused by libbpf"
    );
    let least = PAIRS * soak / 2 * TYPES as u64;
    assert!(programs >= least, "{programs} programs of {least} at least; libbpf refused {refused} pairs, clang others");
    assert!(relocations as u64 > 20 * programs && poisoned > 0);
    assert_eq!(kinds.len(), 13, "{kinds:?}");
    let _ = std::fs::remove_dir_all(&folder);
}
