//! `bpf new`: a project for a plug-in, which compiles, is accepted and passes its tests as it is.
//!
//! The files are templates in `templates`, those of each language in a folder. Without `--host` the plug-in is for the
//! service of `templates/host.json`, and shows what its README says; for another service it is a program that does
//! nothing.

use crate::out::line;
use crate::{header_rust, host};
use anyhow::{Context, Result, bail, ensure};
use bpf_runtime::describe::HostInterface;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make a folder with a plug-in: its source, its tests, a Makefile, a CI file, and the description of its host.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The plug-in's name: that of its program. The folder is made in the current one.
    #[arg(value_name = "NAME")]
    name: String,
    /// The language of the plug-in.
    #[arg(long, value_enum, default_value_t = Language::C)]
    lang: Language,
    /// The service that the plug-in is for, as it described itself (`Linker::describe`). Default: an example service.
    #[arg(long, value_name = "FILE.json")]
    host: Option<PathBuf>,
    /// Where the project's CI file takes this command from, and a plug-in in Rust `bpf-guest`: the folder of a clone,
    /// or the address of a git repository. Default: from crates.io.
    #[arg(long, value_name = "FOLDER|ADDRESS")]
    source: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Language {
    C,
    Rust,
}

macro_rules! template {
    ($file:literal) => {
        include_str!(concat!("../templates/", $file))
    };
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let name = args.name.as_str();
    check_letters(name, args.lang)?;
    let (host, example) = match &args.host {
        Some(path) => (crate::input::read_text(path)?, false),
        None => (template!("host.json").to_owned(), true),
    };
    let file = || args.host.as_ref().map_or("host.json".to_owned(), |path| path.display().to_string());
    let described = host::parse(&host).with_context(file)?;
    check_name(name, args.lang, &described)?;
    let source = Source::new(args.source.as_deref())?;
    let mut files = match args.lang {
        Language::C => c(name, example),
        Language::Rust => rust(name, example, &described).with_context(file)?,
    };
    let context = &described.context.name;
    for (_, text) in &mut files {
        *text = text.replace("@NAME@", name).replace("@CONTEXT@", context);
        *text = text.replace("@GUEST@", &source.guest).replace("@COMMAND@", &source.command);
    }
    // Before the file that is made of it, so that `make` sees an older file.
    files.insert(0, ("host.json".to_owned(), host));
    write(name, &files)?;
    line!("made {name}: `make -C {name}` compiles, verifies and tests it")?;
    Ok(ExitCode::SUCCESS)
}

/// Where a project takes this repository's packages from.
struct Source {
    /// The arguments of `cargo install` for this command.
    command: String,
    /// The dependency on `bpf-guest`, in a manifest.
    guest: String,
}

impl Source {
    fn new(source: Option<&str>) -> Result<Source> {
        let Some(source) = source else {
            let guest = format!("\"{}\"", env!("CARGO_PKG_VERSION"));
            return Ok(Source { command: "--locked bpf-cli".to_owned(), guest });
        };
        if source.contains("://") || source.starts_with("git@") {
            let guest = format!("{{ git = \"{source}\" }}");
            check_place(source)?;
            return Ok(Source { command: format!("--locked --git {source} bpf-cli"), guest });
        }
        let folder = Path::new(source).canonicalize().with_context(|| format!("--source {source}"))?;
        for package in ["crates/cli", "crates/guest"] {
            ensure!(folder.join(package).join("Cargo.toml").is_file(), "--source {source}: there is no {package}");
        }
        let folder = folder.to_str().with_context(|| format!("--source {source}: the folder's name is no UTF-8"))?;
        check_place(folder)?;
        let guest = format!("{{ path = \"{folder}/crates/guest\" }}");
        Ok(Source { command: format!("--locked --path {folder}/crates/cli"), guest })
    }
}

/// Checks that a shell, YAML and TOML read a folder or an address as it is.
fn check_place(place: &str) -> Result<()> {
    let other = place.chars().find(|c| !c.is_ascii_alphanumeric() && !"/.:@_-~+=%".contains(*c));
    match other {
        Some(c) => {
            bail!("--source {place}: {c:?} cannot be written to a CI file as it is; take another folder or address")
        }
        None => Ok(()),
    }
}

/// The names of files and their texts.
type Files = Vec<(String, String)>;

fn c(name: &str, example: bool) -> Files {
    let (source, more) = match example {
        true => (template!("c/plugin.c"), template!("c/mistakes.md")),
        false => (template!("c/bare.c"), ""),
    };
    let own = [
        (format!("{name}.c"), source.to_owned()),
        ("Makefile".to_owned(), template!("c/Makefile").to_owned()),
        ("README.md".to_owned(), [template!("c/README.md"), more].concat()),
        (".gitignore".to_owned(), template!("c/gitignore").to_owned()),
        (".github/workflows/test.yml".to_owned(), template!("c/ci.yml").to_owned()),
    ];
    own.into_iter().chain([tests(name, example, &format!("{name}.o"))]).collect()
}

fn rust(name: &str, example: bool, host: &HostInterface) -> Result<Files> {
    let (source, tests_in_rust, more) = match example {
        true => (template!("rust/plugin.rs.in"), template!("rust/plugin_tests.rs.in"), template!("rust/mistakes.md")),
        false => (template!("rust/bare.rs.in"), template!("rust/bare_tests.rs.in"), ""),
    };
    let own = [
        ("Cargo.toml".to_owned(), template!("rust/manifest.toml").to_owned()),
        ("rust-toolchain.toml".to_owned(), template!("rust/rust-toolchain.toml").to_owned()),
        ("src/lib.rs".to_owned(), source.replace("@TYPE@", &header_rust::context_type(host))),
        ("src/host.rs".to_owned(), header_rust::module(host)?),
        ("tests/native.rs".to_owned(), tests_in_rust.to_owned()),
        ("Makefile".to_owned(), template!("rust/Makefile").to_owned()),
        ("README.md".to_owned(), [template!("rust/README.md"), more].concat()),
        (".gitignore".to_owned(), template!("rust/gitignore").to_owned()),
        (".github/workflows/test.yml".to_owned(), template!("rust/ci.yml").to_owned()),
    ];
    Ok(own.into_iter().chain([tests(name, example, &format!("target/{name}.o"))]).collect())
}

/// The cases of `bpf test`.
fn tests(name: &str, example: bool, object: &str) -> (String, String) {
    let tests = if example { template!("plugin_test.toml") } else { template!("bare_test.toml") };
    (format!("{name}_test.toml"), tests.replace("@OBJECT@", object))
}

/// Writes the files to a new folder.
fn write(folder: &str, files: &Files) -> Result<()> {
    let folder = Path::new(folder);
    // Fails if there is anything of that name, so that nothing is overwritten.
    if let Err(error) = fs::create_dir(folder) {
        bail!("cannot make the folder {}: {error}", folder.display());
    }
    for (file, text) in files {
        let path = folder.join(file);
        let place = || format!("cannot write {}", path.display());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(place)?;
        }
        fs::write(&path, text).with_context(place)?;
    }
    Ok(())
}

fn check_letters(name: &str, lang: Language) -> Result<()> {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let language = match lang {
        Language::C => "C",
        Language::Rust => "Rust",
    };
    ensure!(
        first && name.len() <= 64 && name.chars().all(letters),
        "{name:?} is no name in {language} of at most 64 letters"
    );
    Ok(())
}

/// Checks that a program can have this name beside what the project's files name.
fn check_name(name: &str, lang: Language, host: &HostInterface) -> Result<()> {
    let is_function = host.functions.iter().any(|function| function.name == name);
    let is_word = match lang {
        Language::C => KEYWORDS.contains(&name) || TAKEN.contains(&name),
        Language::Rust => header_rust::is_keyword(name) || TAKEN_IN_RUST.contains(&name),
    };
    let is_taken = name.starts_with("__") || name.starts_with("bpf_") || name == "host" || is_word || is_function;
    let words = match lang {
        Language::C => "of C, of the headers",
        Language::Rust => "of Rust, of its libraries",
    };
    ensure!(
        !is_taken,
        "`{name}` cannot be the plug-in's name, because it is a word {words}, of the example or of the host: choose \
         another"
    );
    Ok(())
}

/// Names that the example or the headers have.
const TAKEN: [&str; 7] = ["ALLOW", "LICENSE", "NULL", "REFUSE", "SEC", "main", "seen"];

/// Names that the example, crates, or functions that compilers call have.
const TAKEN_IN_RUST: [&str; 14] = [
    "ALLOW", "REFUSE", "SEEN", "seen", "alloc", "bcmp", "core", "main", "memcmp", "memcpy", "memmove", "memset", "std",
    "test",
];

/// Words that no function in C is named by.
const KEYWORDS: [&str; 37] = [
    "_Bool", "asm", "restrict", "typeof", "auto", "break", "case", "char", "const", "continue", "default", "do",
    "double", "else", "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "return",
    "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile",
    "while",
];
