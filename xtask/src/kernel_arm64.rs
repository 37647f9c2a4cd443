//! `cargo xtask kernel-arm64`: the kernel's arm64 JIT as the yardstick, on any host.
//!
//! Boots Debian's arm64 kernel under qemu-system with one static program of ours as init
//! (benches/src/bin/kernel_arm64.rs), which loads the same programs into the kernel and into our engine, prints the
//! comparison, and ends with a verdict, which becomes this command's exit status. The programs that lie in files (our
//! case suite, and the external cases where they are to be had) come along in the archive.
//!
//! Needs qemu-system-aarch64, apt (for the kernel package, 30 MB, kept in the target directory) and what the arm64
//! tests need; `--install` installs what is missing. Not part of the ordinary test run. docs/book/explanation/arm64.md
//! has what it printed.

use crate::{arm64, shell};
use anyhow::{Context, bail};
use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const QEMU: &str = "qemu-system-aarch64";
const QEMU_PACKAGE: &str = "qemu-system-arm";
/// Seconds the machine may run.
const TIMEOUT: &str = "600";
const GUEST: &str = "kernel_arm64";
/// The external cases' folder in the machine.
const SHARED: &str = "/shared";
/// Begins the init program's last line.
const VERDICT: &str = "verdict: ";
const PASSED: &str = "passed";

/// Modes of an archive's entries: a type (S_IFDIR, S_IFREG) and permissions.
const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const EXECUTABLE: u32 = 0o100_755;

pub(crate) fn run(install: bool) -> anyhow::Result<()> {
    let cross = match arm64::Cross::find(install)? {
        Ok(cross) => cross,
        Err(missing) => bail!("{}: {}", missing.what, missing.how),
    };
    if shell::first_available(&[QEMU]).is_none() {
        if !install {
            bail!("no {QEMU}: on Debian, `cargo xtask kernel-arm64 --install` (as root)");
        }
        arm64::install_emulator(QEMU_PACKAGE)?;
    }
    let folder = shell::target().join("kernel-arm64");
    fs::create_dir_all(&folder)?;
    let kernel = kernel(&folder, install)?;
    let mut build = cross.cargo();
    // Static, because the machine has no libraries; in a directory of its own, because every dependency is rebuilt for
    // it.
    build
        .args(["build", "--release", "-p", "bpf-benches", "--bin", GUEST])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("CARGO_TARGET_DIR", &folder);
    shell::run(&mut build)?;
    let guest = folder.join(arm64::TARGET).join("release").join(GUEST);
    let mut contents = vec![Entry { name: "init".into(), mode: EXECUTABLE, contents: fs::read(guest)? }];
    contents.extend(entries(&case_files()?)?);
    let archive = folder.join("initramfs");
    fs::write(&archive, cpio(&contents))?;
    boot(&kernel, &archive)
}

/// Runs the machine, passes its output on, and finds the verdict in it.
fn boot(kernel: &Path, archive: &Path) -> anyhow::Result<()> {
    let mut machine = Command::new("timeout");
    machine
        .args([TIMEOUT, QEMU, "-M", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on", "-m", "1024"])
        .args(["-nic", "none", "-nographic", "-no-reboot", "-append"])
        // Parameters that the kernel does not know become the init program's environment.
        .arg(format!("console=ttyAMA0 quiet panic=-1 BPF_SHARED={SHARED}"))
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(archive)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = machine.spawn().with_context(|| format!("cannot run `{}`", shell::line(&machine)))?;
    let output = child.stdout.take().context("the output was to be piped")?;
    let mut verdict = None;
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        // Fails when the reader is gone.
        writeln!(std::io::stdout(), "{line}")?;
        if let Some(text) = line.strip_prefix(VERDICT) {
            verdict = Some(text.to_owned());
        }
    }
    let status = child.wait()?;
    match verdict.as_deref() {
        Some(PASSED) => Ok(()),
        Some(why) => bail!("{why}"),
        None => bail!("the machine ended without a verdict: {status}"),
    }
}

/// A file to be put into the machine.
struct Copy {
    from: PathBuf,
    to: PathBuf,
}

/// Our case suite, at the path it has here, which is where the init program looks for it; and the external cases if
/// they are here.
fn case_files() -> anyhow::Result<Vec<Copy>> {
    let root = shell::root();
    let own = root.join("crates/testkit/cases");
    let shared = env::var_os("BPF_SHARED").map_or(root.join("../shared"), PathBuf::from).join("cases");
    let mut files = Vec::new();
    for (from, to) in [(&own, own.as_path()), (&shared, &Path::new(SHARED).join("cases"))] {
        // The init program says which of the external files it misses.
        if !from.exists() {
            continue;
        }
        for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
            let entry = entry?;
            files.push(Copy { from: entry.path(), to: to.join(entry.file_name()) });
        }
    }
    Ok(files)
}

/// The kernel image, from Debian's newest arm64 kernel package for virtual machines.
fn kernel(folder: &Path, install: bool) -> anyhow::Result<PathBuf> {
    let image = folder.join("vmlinuz");
    if image.exists() {
        return Ok(image);
    }
    let package = match newest_kernel()? {
        Some(package) => package,
        None if install => {
            arm64::add_architecture()?;
            newest_kernel()?.context("apt knows no arm64 kernel")?
        }
        None => bail!("apt knows no arm64 kernel: on Debian, `cargo xtask kernel-arm64 --install` (as root)"),
    };
    println!("fetching {package}");
    shell::run(Command::new("apt-get").args(["download", &format!("{package}:arm64")]).current_dir(folder))?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let archive = find(folder, is_package)?.context("no package was fetched")?;
    shell::run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(folder.join("package")))?;
    let is_image = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"));
    let unpacked = find(&folder.join("package/boot"), is_image)?.context("no vmlinuz in the package")?;
    fs::copy(unpacked, &image)?;
    Ok(image)
}

fn find(folder: &Path, wanted: impl Fn(&PathBuf) -> bool) -> anyhow::Result<Option<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(entries.flatten().map(|entry| entry.path()).find(wanted))
}

/// The name of the newest kernel package that apt knows.
fn newest_kernel() -> anyhow::Result<Option<String>> {
    let names = Command::new("apt-cache").args(["pkgnames", "linux-image-"]).output().context("apt-cache")?;
    let names = String::from_utf8_lossy(&names.stdout).into_owned();
    Ok(names.lines().filter(|name| is_kernel(name)).max_by_key(|name| numbers(name)).map(str::to_owned))
}

/// `linux-image-6.12.95+deb12-cloud-arm64`: the flavour for virtual machines is a third of the size. No debug symbols,
/// no metapackages.
fn is_kernel(package: &str) -> bool {
    let version = package.strip_prefix("linux-image-").and_then(|rest| rest.strip_suffix("-cloud-arm64"));
    version.is_some_and(|version| numbers(version).len() > 2)
}

/// The numbers in a version, for comparison.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// An entry of an archive.
struct Entry {
    /// Its path, without the slash in front.
    name: String,
    mode: u32,
    contents: Vec<u8>,
}

/// Entries for these files, and before them for their folders, which unpacking does not make by itself.
fn entries(files: &[Copy]) -> anyhow::Result<Vec<Entry>> {
    let name = |path: &Path| path.to_string_lossy().trim_start_matches('/').to_owned();
    // In order, a folder stands before those in it.
    let folders: BTreeSet<&Path> =
        files.iter().flat_map(|file| file.to.ancestors().skip(1)).filter(|folder| folder.parent().is_some()).collect();
    let mut entries: Vec<Entry> =
        folders.into_iter().map(|folder| Entry { name: name(folder), mode: FOLDER, contents: Vec::new() }).collect();
    for file in files {
        let contents = fs::read(&file.from).with_context(|| file.from.display().to_string())?;
        entries.push(Entry { name: name(&file.to), mode: FILE, contents });
    }
    Ok(entries)
}

/// An archive in the "newc" format that the kernel unpacks
/// (Documentation/driver-api/early-userspace/buffer-format.rst): a header of thirteen 8-digit hex fields, name and
/// contents padded to 4 bytes, an entry `TRAILER!!!` at the end.
fn cpio(entries: &[Entry]) -> Vec<u8> {
    let mut archive = Vec::new();
    let end = Entry { name: "TRAILER!!!".into(), mode: 0, contents: Vec::new() };
    for (inode, entry) in entries.iter().chain([&end]).enumerate() {
        let fields = [
            inode as u32,
            entry.mode,
            0, // owner
            0, // group
            1, // links
            0, // time
            entry.contents.len() as u32,
            0, // device, major and minor
            0,
            0, // the device the file is, major and minor
            0,
            entry.name.len() as u32 + 1,
            0, // checksum: none in this format
        ];
        archive.extend_from_slice(b"070701");
        for field in fields {
            archive.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        archive.extend_from_slice(entry.name.as_bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend_from_slice(&entry.contents);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(numbers("linux-image-6.12.9+deb12-arm64") < numbers("linux-image-6.12.10+deb12-arm64"));
    }

    #[test]
    fn kernels_are_told_from_other_packages() {
        assert!(is_kernel("linux-image-6.12.95+deb12-cloud-arm64"));
        assert!(is_kernel("linux-image-6.1.0-49-cloud-arm64"));
        for other in ["6.12.95+deb12-cloud-arm64-dbg", "6.12.95+deb12-arm64", "cloud-arm64", "6.12-cloud-arm64"] {
            assert!(!is_kernel(&format!("linux-image-{other}")), "{other}");
        }
    }

    #[test]
    fn an_archive_has_aligned_entries_and_an_end() {
        let archive = cpio(&[Entry { name: "init".into(), mode: EXECUTABLE, contents: b"12345".to_vec() }]);
        // Header 110 and name 5 make 115, padded to 116; contents 5, padded to 124.
        assert_eq!(&archive[..6], b"070701");
        assert_eq!(&archive[110..114], b"init");
        assert_eq!(&archive[116..121], b"12345");
        assert_eq!(&archive[124..130], b"070701");
        assert!(archive.windows(10).any(|window| window == b"TRAILER!!!"));
        assert_eq!(archive.len() % 4, 0);
    }

    #[test]
    fn folders_stand_before_their_files_once() {
        let from = shell::root().join("xtask/Cargo.toml");
        let copies = ["/a/b/one", "/a/two", "/a/b/three"].map(|to| Copy { from: from.clone(), to: to.into() });
        let entries = entries(&copies).unwrap();
        let names: Vec<(&str, u32)> = entries.iter().map(|entry| (entry.name.as_str(), entry.mode)).collect();
        let expected = [("a", FOLDER), ("a/b", FOLDER), ("a/b/one", FILE), ("a/two", FILE), ("a/b/three", FILE)];
        assert_eq!(names, expected);
    }
}
