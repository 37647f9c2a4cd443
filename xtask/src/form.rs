//! The form of documents that a script can hold: words of a page, headings and lines of the changelog.
//!
//! Problem: pages grow until they are about several subjects, and lines are long or short as their editor likes, so a
//! number of lines bounds nothing. Approach: a page of `docs` has at most [`WORDS`] words; lists that are whole by a
//! rule, and tables of figures, have bounds of their own. The changelog has the headings of Keep a Changelog, and one
//! line of at most [`LINE`] characters for a change.

use crate::{links::documents, shell};
use std::fs;

/// Words of a page of `docs`, separated by white space.
const WORDS: usize = 2500;

/// Pages with other bounds, and why.
const LONGER: [(&str, usize, &str); 4] = [
    ("docs/book/explanation/faults.md", 4000, "one table with a row for each planted bug"),
    ("docs/book/explanation/maps.md", 3400, "tables of figures"),
    ("docs/book/how-to/refused.md", 3000, "a row for each message of the verifier"),
    ("docs/book/reference/errors.md", 3000, "a row for each variant of each error"),
];

/// Characters of a line of the changelog.
const LINE: usize = 220;

/// The headings of a version in the changelog, of which each may be missing.
const HEADINGS: [&str; 6] = ["Security", "Added", "Changed", "Deprecated", "Removed", "Fixed"];

/// Reports pages that are too long, and lines of the changelog that do not have its form.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let mut broken = Vec::new();
    for path in documents(&root)? {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        let text = fs::read_to_string(&path)?;
        if name.starts_with("docs/") {
            broken.extend(too_long(&name, &text));
        }
        if name == "CHANGELOG.md" {
            broken.extend(changelog(&text).into_iter().map(|problem| format!("{name}:{problem}")));
        }
    }
    Ok(broken)
}

fn too_long(name: &str, text: &str) -> Option<String> {
    let words = text.split_whitespace().count();
    let bound = LONGER.iter().find(|(page, ..)| *page == name).map_or(WORDS, |(_, bound, _)| *bound);
    (words > bound).then(|| format!("{name}: {words} words, and at most {bound} are allowed: split it by subject"))
}

fn changelog(text: &str) -> Vec<String> {
    let (mut broken, mut last) = (Vec::new(), None);
    for (number, line) in (1..).zip(text.lines()) {
        if line.starts_with("## ") {
            last = None;
        }
        if let Some(heading) = line.strip_prefix("### ") {
            let place = HEADINGS.iter().position(|known| *known == heading);
            match place {
                None => broken.push(format!("{number}: `{heading}` is none of {}", HEADINGS.join(", "))),
                Some(_) if place <= last => broken.push(format!("{number}: `{heading}` comes too late, or twice")),
                Some(_) => last = place,
            }
        }
        let characters = line.chars().count();
        if characters > LINE {
            broken
                .push(format!("{number}: {characters} characters, and at most {LINE} are allowed: one change a line"));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_a_bounded_number_of_words() {
        assert_eq!(too_long("docs/x.md", &"word ".repeat(WORDS)), None);
        assert!(too_long("docs/x.md", &"word ".repeat(WORDS + 1)).is_some());
        assert_eq!(too_long(LONGER[0].0, &"word ".repeat(WORDS + 1)), None);
    }

    #[test]
    fn the_changelog_has_its_form() {
        let of = |text: &str| changelog(text).len();
        assert_eq!(of("# Changelog\n\n## Unreleased\n\n### Security\n\n- A.\n\n### Fixed\n\n## 0.1\n\n### Added\n"), 0);
        assert_eq!(of("## Unreleased\n### Added: loading\n"), 1);
        assert_eq!(of("## Unreleased\n### Added\n### Security\n"), 1);
        assert_eq!(of("## Unreleased\n### Added\n### Added\n"), 1);
        assert_eq!(of(&format!("- {}\n", "a".repeat(LINE))), 1);
    }
}
