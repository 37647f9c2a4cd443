//! `cargo xtask kernel-arm64`: the kernel's arm64 JIT as the yardstick, on any host.
//!
//! Boots Debian's arm64 kernel under qemu-system with one static program of ours as init (benches/src/bin/kernel_arm64.rs), which
//! loads the same programs into the kernel and into our engine and prints the comparison. Needs qemu-system-aarch64, apt
//! (for the kernel package, 60 MB, kept in the target directory) and what the arm64 tests need. Not part of the
//! ordinary test run.

use crate::{arm64, shell};
use anyhow::{Context, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const QEMU: &str = "qemu-system-aarch64";
/// Seconds the machine may run.
const TIMEOUT: &str = "600";
const GUEST: &str = "kernel_arm64";

pub(crate) fn run() -> anyhow::Result<()> {
    if shell::first_available(&[QEMU]).is_none() {
        bail!("no {QEMU}: apt-get install qemu-system-arm");
    }
    let cross = match arm64::Cross::find(false)? {
        Ok(cross) => cross,
        Err(missing) => bail!("{}: {}", missing.what, missing.how),
    };
    let folder = shell::target().join("kernel-arm64");
    fs::create_dir_all(&folder)?;
    let kernel = kernel(&folder)?;
    let mut build = cross.cargo();
    // Static, because the machine has no other file; in a directory of its own, because every dependency is rebuilt for it.
    build
        .args(["build", "--release", "-p", "bpf-benches", "--bin", GUEST])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("CARGO_TARGET_DIR", &folder);
    shell::run(&mut build)?;
    let guest = folder.join(arm64::TARGET).join("release").join(GUEST);
    let archive = folder.join("initramfs");
    fs::write(&archive, cpio(&[("init", 0o100_755, &fs::read(guest)?)]))?;
    shell::run(
        Command::new("timeout")
            .args([TIMEOUT, QEMU, "-M", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on", "-m", "1024"])
            .args(["-nic", "none", "-nographic", "-no-reboot", "-append", "console=ttyAMA0 quiet panic=-1"])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(archive)
            .stdin(Stdio::null()),
    )
}

/// The kernel image, from Debian's newest arm64 kernel package.
fn kernel(folder: &Path) -> anyhow::Result<PathBuf> {
    let image = folder.join("vmlinuz");
    if image.exists() {
        return Ok(image);
    }
    let names = Command::new("apt-cache").args(["pkgnames", "linux-image-"]).output().context("apt-cache")?;
    let names = String::from_utf8_lossy(&names.stdout).into_owned();
    let newest = names
        .lines()
        // linux-image-6.12.95+deb12-arm64, and no flavours: -cloud-arm64, -rt-arm64, -arm64-unsigned, -arm64-dbg.
        .filter(|name| {
            let version = name.strip_prefix("linux-image-").and_then(|rest| rest.strip_suffix("-arm64"));
            version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()) && !version.contains("-"))
        })
        .max_by_key(|name| numbers(name))
        .context("apt knows no arm64 kernel: dpkg --add-architecture arm64; apt-get update")?;
    println!("fetching {newest}");
    shell::run(Command::new("apt-get").args(["download", &format!("{newest}:arm64")]).current_dir(folder))?;
    let package = fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("no package was fetched")?;
    shell::run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(folder.join("package")))?;
    let found = fs::read_dir(folder.join("package/boot"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz")))
        .context("no vmlinuz in the package")?;
    fs::copy(found, &image)?;
    Ok(image)
}

/// The numbers in a version, for comparison.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// An archive in the "newc" format that the kernel unpacks (Documentation/driver-api/early-userspace/buffer-format.rst): a
/// header of thirteen 8-digit hex fields, name and contents padded to 4 bytes, an entry `TRAILER!!!` at the end.
fn cpio(files: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (inode, (name, mode, contents)) in files.iter().chain(&[("TRAILER!!!", 0, &[][..])]).enumerate() {
        let fields = [
            inode as u32,
            *mode,
            0, // owner
            0, // group
            1, // links
            0, // time
            contents.len() as u32,
            0, // device, major and minor
            0,
            0, // the device the file is, major and minor
            0,
            name.len() as u32 + 1,
            0, // checksum: none in this format
        ];
        archive.extend_from_slice(b"070701");
        for field in fields {
            archive.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        archive.extend_from_slice(name.as_bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend_from_slice(contents);
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
    fn an_archive_has_aligned_entries_and_an_end() {
        let archive = cpio(&[("init", 0o100_755, b"12345")]);
        // Header 110 and name 5 make 115, padded to 116; contents 5, padded to 124.
        assert_eq!(&archive[..6], b"070701");
        assert_eq!(&archive[110..114], b"init");
        assert_eq!(&archive[116..121], b"12345");
        assert_eq!(&archive[124..130], b"070701");
        assert!(archive.windows(10).any(|window| window == b"TRAILER!!!"));
        assert_eq!(archive.len() % 4, 0);
    }
}
