//! `cargo xtask book`: the book of `docs/book` as HTML, by mdBook.
//!
//! mdBook is a tool, installed by `--install` into the target folder in the version below, and no dependency of the
//! workspace. Where it is missing, the command says how to get it, and so does CI's log. Pages link to files outside of
//! the book (sources, SECURITY.md) by relative paths, as GitHub and editors want them; in HTML such a path leads
//! nowhere, so mdBook gets a copy of the pages in which these links are addresses: below `--repository`, or else of
//! this clone's files.

use crate::{links::BOOK, shell};
use anyhow::{Context, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The version of mdBook, the newest that the toolchain of CI builds.
const VERSION: &str = "0.5.4";

/// Builds the book and prints where its first page lies.
pub(crate) fn build(install: bool, repository: Option<String>) -> anyhow::Result<()> {
    let tools = shell::target().join("tools");
    let installed = tools.join("bin/mdbook");
    if install && !installed.is_file() {
        let mut cargo = shell::cargo();
        cargo.args([
            "install",
            "mdbook",
            "--locked",
            "--version",
            VERSION,
            "--no-default-features",
            "--debug",
            "--root",
        ]);
        // The tool is the host's, whatever is being compiled for.
        cargo.arg(&tools).env_remove("CARGO_BUILD_TARGET").env("CARGO_TARGET_DIR", tools.join("target"));
        if let Err(error) = shell::run(&mut cargo) {
            // Without a registry there is no tool; the pages and their links are checked by the rules all the same.
            println!("\nSKIPPED the book: it was not built, because mdBook cannot be installed: {error:#}");
            return Ok(());
        }
        fs::remove_dir_all(tools.join("target"))?;
    }
    let mdbook = if installed.is_file() {
        installed
    } else if shell::first_available(&["mdbook"]).is_some() {
        PathBuf::from("mdbook")
    } else {
        bail!("mdbook is not installed: run `cargo xtask book --install`");
    };
    let (from, to) = (shell::root().join("docs"), shell::target().join("book-source"));
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    let here = format!("file://{}", shell::root().display());
    let repository = repository.as_deref().unwrap_or(&here);
    copy(&shell::root().join(BOOK), &to.join("book"), Path::new(BOOK), repository)?;
    fs::copy(from.join("book.toml"), to.join("book.toml"))?;
    let book = shell::target().join("book");
    shell::run(Command::new(mdbook).arg("build").arg(&to).arg("--dest-dir").arg(&book))?;
    println!("{}", book.join("index.html").display());
    Ok(())
}

/// Copies a folder of the book, `place` in the repository, with its links to files outside of the book as addresses.
fn copy(from: &Path, to: &Path, place: &Path, repository: &str) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().context("an entry of a folder has a name")?;
        if path.is_dir() {
            copy(&path, &to.join(name), &place.join(name), repository)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            fs::write(to.join(name), outward(&fs::read_to_string(&path)?, place, repository))?;
        } else {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

/// The text of a page that lies in the folder `place`, with its links to files outside of the book as addresses.
fn outward(text: &str, place: &Path, repository: &str) -> String {
    let mut pieces = text.split("](../");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (mut up, mut rest) = (1, piece);
        while let Some(further) = rest.strip_prefix("../") {
            (up, rest) = (up + 1, further);
        }
        let folder = place.ancestors().nth(up).unwrap_or(Path::new(""));
        out.push_str("](");
        if folder.starts_with(BOOK) {
            out.push_str(&"../".repeat(up));
        } else {
            out.push_str(repository);
            out.push('/');
            if folder != Path::new("") {
                out.push_str(&folder.display().to_string());
                out.push('/');
            }
        }
        out.push_str(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_become_addresses() {
        let of = |link: &str| outward(&format!("a [b]({link}) c"), Path::new("docs/book/how-to"), "https://h/r");
        assert_eq!(of("x.md#y"), "a [b](x.md#y) c");
        assert_eq!(of("../reference/x.md"), "a [b](../reference/x.md) c");
        assert_eq!(of("../../decisions/x.md"), "a [b](https://h/r/docs/decisions/x.md) c");
        assert_eq!(of("../../../SECURITY.md"), "a [b](https://h/r/SECURITY.md) c");
    }
}
