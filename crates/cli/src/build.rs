//! `bpf build`: compiles a crate of plug-ins in Rust to an object.
//!
//! Problem: rustc's BPF target requires a linker that is not part of Rust, and produces bitcode. Approach: the crate
//! and its dependencies are optimised to one module (`lto = "fat"`, one codegen unit), which is what a linker would
//! produce, and the toolchain's own `llc` compiles it to an object, BTF included. Panics end the run in place (`panic
//! = "immediate-abort"`: a call of `__bpf_trap`), so no formatting code is compiled.

use anyhow::{Context, Result, bail};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Compile a crate of plug-ins in Rust, which uses bpf-guest, to an object.
///
/// Needs the nightly toolchain: `rustup toolchain install nightly --component rust-src --component llvm-tools`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The crate's folder.
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// The object to write [default: the crate's name and `.o`, in its folder's `target`].
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Instruction set: v1 to v4.
    #[arg(long, default_value = "v3", value_parser = ["v1", "v2", "v3", "v4"])]
    mcpu: String,
    /// The toolchain to compile with [default: that of `rust-toolchain.toml` in the crate's folder, or `nightly`].
    #[arg(long)]
    toolchain: Option<String>,
}

const TARGET: &str = "bpfel-unknown-none";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let manifest = args.folder.join("Cargo.toml");
    if !manifest.is_file() {
        bail!("{}: not there; name the folder of a crate", manifest.display());
    }
    let toolchain = match &args.toolchain {
        Some(toolchain) => toolchain.clone(),
        None => pinned(&args.folder)?.unwrap_or_else(|| "nightly".to_owned()),
    };
    let tools = Tools::of(&toolchain)?;
    let target = args.folder.join("target");
    std::fs::create_dir_all(&target).with_context(|| format!("{}: cannot be made", target.display()))?;
    let target = target.canonicalize()?;
    let bitcode = target.join(format!("{}.bc", crate_name(&manifest)?));
    compile(args, &toolchain, &manifest, &target, &bitcode)?;
    let object = args.output.clone().unwrap_or_else(|| bitcode.with_extension("o"));
    let mut command = Command::new(&tools.llc);
    command.args(["-march=bpfel", "-filetype=obj"]).arg(format!("-mcpu={}", args.mcpu)).arg(&bitcode);
    run_tool(command.arg("-o").arg(&object))?;
    // DWARF is ten times as large as the rest; BTF, which is kept, contains the source lines.
    run_tool(Command::new(&tools.strip).arg("-g").arg(&object))?;
    crate::out::line!("{}", object.display())?;
    Ok(ExitCode::SUCCESS)
}

/// The toolchain that a crate asks for.
fn pinned(folder: &Path) -> Result<Option<String>> {
    let path = folder.join("rust-toolchain.toml");
    if !path.is_file() {
        return Ok(None);
    }
    let wrong = || path.display().to_string();
    let file: toml::Table = crate::input::read_text(&path)?.parse().with_context(wrong)?;
    let channel = file.get("toolchain").and_then(|toolchain| toolchain.get("channel")).and_then(|name| name.as_str());
    channel.map(|channel| Some(channel.to_owned())).context("it names no `toolchain.channel`").with_context(wrong)
}

/// Compiles the crate to a single bitcode module.
fn compile(args: &Args, toolchain: &str, manifest: &Path, target: &Path, bitcode: &Path) -> Result<()> {
    let mut emit = OsString::from("--emit=llvm-bc=");
    emit.push(bitcode);
    let mut command = Command::new("cargo");
    command
        .arg(format!("+{toolchain}"))
        .args(["rustc", "--release", "--lib", "--crate-type=staticlib", "-Zbuild-std=core", "-Ztrim-paths"])
        .args(["--target", TARGET, "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(target)
        .arg("--")
        .arg(emit)
        // Cargo would otherwise use the flags and the toolchain of the calling process.
        .env("CARGO_ENCODED_RUSTFLAGS", flags(&args.mcpu).join("\u{1f}"))
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "2")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3")
        // The object must not depend on the machine; source lines are named relative to the crate's folder.
        .env("CARGO_PROFILE_RELEASE_TRIM_PATHS", "all");
    for inherited in ["RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN", "CARGO_BUILD_TARGET", "CARGO"] {
        command.env_remove(inherited);
    }
    run_tool(&mut command)
}

fn flags(mcpu: &str) -> Vec<String> {
    let cpu = format!("-Ctarget-cpu={mcpu}");
    // Functions of one section lie one after the other; the loader extracts the functions that a program calls.
    let fixed = ["-Zfunction-sections=no", "-Zunstable-options", "-Cpanic=immediate-abort"].map(str::to_owned);
    fixed.into_iter().chain([cpu]).collect()
}

/// Tools that come with the toolchain.
struct Tools {
    /// The compiler from bitcode to objects.
    llc: PathBuf,
    strip: PathBuf,
}

impl Tools {
    fn of(toolchain: &str) -> Result<Tools> {
        let rustc = |what: &[&str]| -> Result<String> {
            let mut command = Command::new("rustc");
            command.arg(format!("+{toolchain}")).args(what).env_remove("RUSTUP_TOOLCHAIN");
            let output = command.output().context("rustc cannot be run: is rustup installed?")?;
            if !output.status.success() {
                bail!("there is no toolchain `{toolchain}`: {}", install(toolchain));
            }
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let library = PathBuf::from(rustc(&["--print", "sysroot"])?).join("lib/rustlib");
        let version = rustc(&["--version", "--verbose"])?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
        let tool = |name: &str| library.join(host).join("bin").join(format!("{name}{}", env::consts::EXE_SUFFIX));
        let tools = Tools { llc: tool("llc"), strip: tool("llvm-strip") };
        for needed in [&tools.llc, &tools.strip, &library.join("src/rust/library/core")] {
            if !needed.exists() {
                bail!("{}: not there: {}", needed.display(), install(toolchain));
            }
        }
        Ok(tools)
    }
}

fn install(toolchain: &str) -> String {
    format!("`rustup toolchain install {toolchain} --component rust-src --component llvm-tools`")
}

/// The name of the crate's artifacts.
fn crate_name(manifest: &Path) -> Result<String> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"]).arg(manifest);
    let output = command.stderr(Stdio::inherit()).output().context("cargo cannot be run")?;
    if !output.status.success() {
        bail!("{}: not the manifest of a crate", manifest.display());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let manifest = manifest.canonicalize()?;
    let is_this = |package: &&serde_json::Value| package["manifest_path"].as_str().map(Path::new) == Some(&manifest);
    let packages = metadata["packages"].as_array().context("cargo names no packages")?;
    let package = packages.iter().find(is_this).context("a workspace of several crates: name the folder of one")?;
    Ok(package["name"].as_str().context("a crate has a name")?.replace('-', "_"))
}

/// Runs a tool that prints its own errors.
fn run_tool(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Standard output is for results; the tools' output is discarded.
    let status = command.stdout(Stdio::null()).status().with_context(|| format!("{name} cannot be run"))?;
    if !status.success() {
        bail!("{name} has failed");
    }
    Ok(())
}
