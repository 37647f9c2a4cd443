//! Dependencies of the workspace: licences, advisories, versions that occur twice, and where packages come from.
//!
//! cargo-deny decides, by `deny.toml`. It is not installed by us: building it takes minutes. Where it is missing, and
//! where the database of advisories cannot be had, that is said in a line that starts with `SKIPPED`.

use crate::shell;
use std::process::Stdio;

pub(crate) fn check() -> anyhow::Result<()> {
    if shell::first_available(&["cargo-deny"]).is_none() {
        println!("SKIPPED licences, advisories and duplicates of dependencies: no cargo-deny");
        println!("To check them: cargo install --locked cargo-deny");
        return Ok(());
    }
    shell::run(shell::cargo().args(["deny", "--locked", "check", "licenses", "bans", "sources"]))?;
    // Quietly: cargo-deny's own message is about git.
    let mut fetch = shell::cargo();
    fetch.args(["deny", "--locked", "fetch", "db"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !fetch.status()?.success() {
        println!("SKIPPED advisories on dependencies: their database cannot be had from here");
        return Ok(());
    }
    shell::run(shell::cargo().args(["deny", "--locked", "check", "--disable-fetch", "advisories"]))
}
