//! `cargo xtask objects`: C sources to the committed BPF objects.
//!
//! A fresh machine has no clang with a BPF target, so the objects are committed beside their sources. Each source names
//! the instruction-set versions it is built for in a comment, `mcpu: v3 v2`; the first is `name.o`, a further one
//! `name.v2.o`. DWARF is stripped (BTF and its line info stay) unless a comment says `dwarf: kept`, and paths are made
//! relative, so that the bytes do not depend on where the tree lies and `--check` can compare them.

use crate::shell;
use anyhow::{Context, bail, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The folders whose C sources are BPF programs.
const FOLDERS: [&str; 17] = [
    "examples",
    "examples/ballista",
    "examples/datafusion",
    "examples/gateway/objects",
    "examples/limiter",
    "examples/live",
    "examples/policy",
    "examples/service",
    "examples/tenants",
    "benches/programs",
    "benches/wasm",
    "crates/cli/tests/objects",
    "crates/object/tests/objects",
    "crates/runtime/tests/objects",
    "crates/runtime/tests/objects/net",
    "crates/verifier/tests/precision",
    "crates/verifier/tests/loops",
];

pub(crate) fn run(check: bool) -> anyhow::Result<()> {
    let strip =
        shell::first_available(&["llvm-strip-19"]).context("llvm-strip-19 is missing: apt-get install llvm-19")?;
    let mut stale = Vec::new();
    for source in sources()? {
        let text = fs::read_to_string(shell::root().join(&source))?;
        let compiler = compiler(&text);
        shell::first_available(&[compiler])
            .with_context(|| format!("{compiler} is missing: `apt-get install` it, or `gcc-bpf` for bpf-gcc"))?;
        for (i, cpu) in versions(&source, &text)?.iter().enumerate() {
            let object = source.with_extension(if i == 0 { "o".into() } else { format!("{cpu}.o") });
            let built = object.with_extension("o.new");
            let mut compile = shell::command(compiler);
            compile.args(["-O2", "-Wall", "-Wextra", "-Werror", &format!("-mcpu={cpu}")]);
            if compiler.starts_with("clang") {
                compile.args(["-g", "-target", "bpf", "-ffile-compilation-dir=."]);
                // <linux/icmp.h> includes a part of libc, which asks for its 32-bit files otherwise.
                compile.arg("-D__x86_64__");
            } else {
                compile.args(["-gbtf", "-isystem/usr/include"]);
            }
            // Debian keeps <asm/types.h> in the multiarch folder, which the bpf target does not search.
            compile.args(["-I/usr/include/x86_64-linux-gnu", "-c"]).arg(&source).arg("-o").arg(&built);
            shell::run(&mut compile)?;
            if !text.contains("dwarf: kept") {
                shell::run(shell::command(strip).arg("-g").arg(&built))?;
            }
            let (old, new) = (shell::root().join(&object), shell::root().join(&built));
            if check {
                if fs::read(&old).ok() != Some(fs::read(&new)?) {
                    stale.push(object.display().to_string());
                }
                fs::remove_file(new)?;
            } else {
                fs::rename(new, old)?;
                println!("{}", object.display());
            }
        }
    }
    ensure!(stale.is_empty(), "stale objects, run `cargo xtask objects`: {}", stale.join(", "));
    Ok(())
}

/// Every C source, relative to the root, in order.
fn sources() -> anyhow::Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(shell::root().join(folder)).with_context(|| folder.to_owned())? {
            let name = entry?.file_name();
            if Path::new(&name).extension().is_some_and(|e| e == "c") {
                sources.push(Path::new(folder).join(name));
            }
        }
    }
    sources.sort();
    Ok(sources)
}

/// Returns the compiler of a source: clang 19, unless a comment names another one, `compiler: clang-22`.
fn compiler(text: &str) -> &str {
    let named = text.split_once("compiler: ").and_then(|(_, rest)| rest.split_whitespace().next());
    named.unwrap_or("clang-19")
}

/// The instruction-set versions the source asks for.
fn versions(source: &Path, text: &str) -> anyhow::Result<Vec<String>> {
    let Some((_, rest)) = text.split_once("mcpu: ") else { bail!("{}: no `mcpu:` comment", source.display()) };
    let versions: Vec<String> = rest
        .split_whitespace()
        .take_while(|word| matches!(*word, "v1" | "v2" | "v3" | "v4"))
        .map(str::to_owned)
        .collect();
    ensure!(!versions.is_empty(), "{}: `mcpu:` names no version of v1 to v4", source.display());
    Ok(versions)
}
