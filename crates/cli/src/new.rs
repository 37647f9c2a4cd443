//! `bpf new`: a project for a plug-in, which compiles, is accepted and passes its tests as it is.
//!
//! The files are templates in `templates/c`. Without `--host` the plug-in is for the service of the template's own
//! `host.json`, and shows what its README says; for another service it is a program that does nothing.

use crate::host;
use crate::out::line;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make a folder with a plug-in in C: its source, its tests, a Makefile, a CI file, and the description of its host.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The plug-in's name: that of its program in C. The folder is made in the current one.
    #[arg(value_name = "NAME")]
    name: String,
    /// The service that the plug-in is for, as it described itself (`Linker::describe`). Default: an example service.
    #[arg(long, value_name = "FILE.json")]
    host: Option<PathBuf>,
}

macro_rules! template {
    ($file:literal) => {
        include_str!(concat!("../templates/c/", $file))
    };
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let name = args.name.as_str();
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    ensure!(first && name.len() <= 64 && name.chars().all(letters), "{name:?} is no name in C of at most 64 letters");
    let (host, example) = match &args.host {
        Some(path) => (crate::input::read_text(path)?, false),
        None => (template!("host.json").to_owned(), true),
    };
    let file = || args.host.as_ref().map_or("host.json".to_owned(), |path| path.display().to_string());
    let described = host::parse(&host).with_context(file)?;
    let is_function = described.functions.iter().any(|function| function.name == name);
    let is_taken = name.starts_with("__") || name.starts_with("bpf_") || TAKEN.contains(&name) || is_function;
    ensure!(
        name != "host" && !KEYWORDS.contains(&name) && !is_taken,
        "`{name}` cannot be the plug-in's name, because it is a word of C, of the headers, of the example or of the \
         host: choose another"
    );
    let context = described.context.name;
    let filled = |text: &str| text.replace("@NAME@", name).replace("@CONTEXT@", &context);
    let (source, tests, more) = match example {
        true => (template!("plugin.c"), template!("plugin_test.toml"), template!("mistakes.md")),
        false => (template!("bare.c"), template!("bare_test.toml"), ""),
    };
    let files = [
        (format!("{name}.c"), filled(source)),
        (format!("{name}_test.toml"), filled(tests)),
        ("host.json".to_owned(), host),
        ("Makefile".to_owned(), filled(template!("Makefile"))),
        ("README.md".to_owned(), filled(&[template!("README.md"), more].concat())),
        (".gitignore".to_owned(), template!("gitignore").to_owned()),
        (".github/workflows/test.yml".to_owned(), template!("ci.yml").to_owned()),
    ];
    let folder = Path::new(name);
    // Fails if there is anything of that name, so that nothing is overwritten.
    if let Err(error) = fs::create_dir(folder) {
        bail!("cannot make the folder {name}: {error}");
    }
    for (file, text) in files {
        let path = folder.join(file);
        let place = || format!("cannot write {}", path.display());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(place)?;
        }
        fs::write(&path, text).with_context(place)?;
    }
    line!("made {name}: `make -C {name}` compiles, verifies and tests it")?;
    Ok(ExitCode::SUCCESS)
}

/// Names that the example or the headers have.
const TAKEN: [&str; 7] = ["ALLOW", "LICENSE", "NULL", "REFUSE", "SEC", "main", "seen"];

/// Words that no function in C is named by.
const KEYWORDS: [&str; 37] = [
    "_Bool", "asm", "restrict", "typeof", "auto", "break", "case", "char", "const", "continue", "default", "do",
    "double", "else", "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "return",
    "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile",
    "while",
];
