//! Compiles the speed programs natively with -O2: the yardstick of every engine.
//!
//! clang 19 is preferred where it is installed and the build is no cross-compilation, because clang 19 compiled the
//! BPF objects: the yardstick then differs from the objects in the target alone. Elsewhere the C compiler is used
//! that Rust links with.
//!
//! The address of native code changes its speed by up to half. Each program is therefore compiled [`PLACES`] times,
//! each copy at another multiple of 16 in its cache line, and as many times without vector instructions, which BPF
//! does not have. A table in C for each of the two forms names the copies.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, process::Command};

/// Number of copies of each function; equals `bpf_benches::programs::PLACES`, the length of the tables there.
const PLACES: usize = 4;

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=programs");
    let mut sources = Vec::new();
    for entry in fs::read_dir("programs")? {
        let path = entry?.path();
        // Each program with a benchmark of its own needs maps and helpers, and has no native form.
        if path.extension().is_some_and(|extension| extension == "c") && is_speed_program(&path)? {
            sources.push(path);
        }
    }
    sources.sort();
    const FORMS: [&str; 2] = ["native", "scalar"];
    let mut table = String::from("typedef unsigned int run(unsigned char *, unsigned long long);\n");
    for form in FORMS {
        for source in &sources {
            let name = source.file_stem().and_then(|name| name.to_str()).ok_or(std::io::ErrorKind::InvalidFilename)?;
            let copies: Vec<String> = (0..PLACES).map(|place| format!("bench_{name}_{form}_{place}")).collect();
            let list = copies.join(", ");
            writeln!(table, "run {list};\nrun *const {form}_{name}[] = {{ {list} }};")
                .map_err(std::io::Error::other)?;
        }
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(std::io::ErrorKind::NotFound)?);
    let file = out.join("tables.c");
    fs::write(&file, table)?;
    // The library of the table comes before the library that it refers to: a linker searches libraries once, in
    // order.
    compiler().file(file).compile("speed_tables");
    for form in FORMS {
        for place in 0..PLACES {
            let mut build = compiler();
            build.define("FORM", form).define("PLACE", place.to_string().as_str()).files(&sources);
            // Warnings are shown for the first copy only: the other copies have the same source.
            build.warnings(form == FORMS[0] && place == 0);
            if form == "scalar" {
                build.flag_if_supported("-fno-tree-vectorize");
                build.flag_if_supported("-fno-vectorize").flag_if_supported("-fno-slp-vectorize");
            }
            build.compile(&format!("speed_{form}_{place}"));
        }
    }
    println!("cargo::rustc-env=NATIVE_COMPILER={}", compiler().get_compiler().path().display());
    Ok(())
}

fn compiler() -> cc::Build {
    let mut build = cc::Build::new();
    build.opt_level(2).debug(false).include("programs");
    let clang = "clang-19";
    let native = env::var("HOST") == env::var("TARGET");
    if native && Command::new(clang).arg("--version").output().is_ok_and(|output| output.status.success()) {
        build.compiler(clang);
    }
    build
}

fn is_speed_program(path: &Path) -> std::io::Result<bool> {
    Ok(fs::read_to_string(path)?.contains("#include \"bench.h\""))
}
