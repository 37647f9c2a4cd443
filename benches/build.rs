//! Compiles the speed programs natively, with -O2: what every engine is measured against.
//!
//! clang 19 is preferred where it is installed and we do not cross-compile, because it made the BPF objects: the
//! yardstick then differs from them in the target alone. Elsewhere the C compiler that Rust links with serves.

use std::{env, fs, path::Path, process::Command};

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=programs");
    let mut build = cc::Build::new();
    build.opt_level(2).debug(false).warnings(true).include("programs");
    let clang = "clang-19";
    let native = env::var("HOST") == env::var("TARGET");
    if native && Command::new(clang).arg("--version").output().is_ok_and(|output| output.status.success()) {
        build.compiler(clang);
    }
    for entry in fs::read_dir("programs")? {
        let path = entry?.path();
        // The programs with a bench of their own need maps and helpers, and have no native form.
        if path.extension().is_some_and(|extension| extension == "c") && is_speed_program(&path)? {
            build.file(path);
        }
    }
    let compiler = build.get_compiler();
    println!("cargo::rustc-env=NATIVE_COMPILER={}", compiler.path().display());
    build.compile("speed_programs");
    Ok(())
}

fn is_speed_program(path: &Path) -> std::io::Result<bool> {
    Ok(fs::read_to_string(path)?.contains("#include \"bench.h\""))
}
