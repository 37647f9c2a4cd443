//! Checks that tables of figures in the book say when, where and by which command they were measured.
//!
//! Problem: a figure without a date, a machine and a command can neither be repeated nor be known to be old. Approach:
//! a table whose cells are mostly measured numbers, as Markdown or as a block of text, has all three in its section
//! (from one `##` to the next) or in the page's introduction. Tables of constants, such as defaults and limits, stand
//! in [`CONSTANTS`].

use crate::{
    links::{BOOK, documents},
    shell,
};
use std::fs;

/// Sections with tables of numbers that nobody measured: page and heading.
const CONSTANTS: [(&str, &str); 2] = [
    ("docs/book/reference/settings.md", "`Config`: one for an engine"),
    ("docs/book/reference/settings.md", "Limits of a verification"),
];

/// Words that name a machine.
const MACHINES: [&str; 6] = ["AMD", "Intel", "qemu", "machine", "VM", "cores"];

/// Commands that a reader can type, as they begin.
const COMMANDS: [&str; 4] = ["cargo ", "--bench ", "--example ", "bpf "];

/// Reports tables of figures without a date, a machine or a command.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let mut broken = Vec::new();
    for path in documents(&root)? {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        if !name.starts_with(BOOK) {
            continue;
        }
        broken.extend(unsourced(&name, &fs::read_to_string(&path)?));
    }
    Ok(broken)
}

/// The tables of figures of a page whose origin is not said.
fn unsourced(name: &str, text: &str) -> Vec<String> {
    let sections = sections(text);
    let introduction = sections.first().map_or("", |(_, _, text)| text);
    let mut broken = Vec::new();
    for (line, heading, section) in &sections {
        let Some(at) = figures(section) else { continue };
        if CONSTANTS.contains(&(name, heading.as_str())) {
            continue;
        }
        let said = format!("{introduction}{section}");
        let missing: Vec<&str> = [
            ("a date (20YY-MM-DD)", has_date(&said)),
            ("the machine", said.split(|c: char| !c.is_alphanumeric()).any(|word| MACHINES.contains(&word))),
            (
                "the command",
                COMMANDS
                    .iter()
                    .any(|command| said.contains(&format!("`{command}")) || said.contains(&format!("\n{command}"))),
            ),
        ]
        .into_iter()
        .filter_map(|(what, said)| (!said).then_some(what))
        .collect();
        if !missing.is_empty() {
            broken.push(format!("{name}:{}: a table of figures without {}", line + at, missing.join(", ")));
        }
    }
    broken
}

/// The introduction and the sections of a page: the number of the first line, the heading, the text.
fn sections(text: &str) -> Vec<(usize, String, String)> {
    let (mut found, mut in_code) = (vec![(1, String::new(), String::new())], false);
    for (number, line) in (1..).zip(text.lines()) {
        in_code ^= line.starts_with("```");
        if let Some(heading) = line.strip_prefix("## ").filter(|_| !in_code) {
            found.push((number, heading.to_owned(), String::new()));
        }
        if let Some((_, _, section)) = found.last_mut() {
            section.push_str(line);
            section.push('\n');
        }
    }
    found
}

/// The line, from 0, of the first table of figures in a section.
fn figures(section: &str) -> Option<usize> {
    let (mut fence, mut rows, mut from) = (None::<bool>, 0, 0);
    for (number, line) in section.lines().enumerate() {
        if let Some(info) = line.strip_prefix("```") {
            fence = fence.is_none().then_some(info.is_empty() || info == "text");
            rows = 0;
            continue;
        }
        let is_row = match fence {
            Some(is_text) => is_text && is_row_of_figures(line.split("  ")),
            None => line.starts_with('|') && is_row_of_figures(line.trim_matches('|').split('|')),
        };
        if !is_row {
            // A line between rows, such as a heading of columns, does not end a table.
            rows = if line.is_empty() { 0 } else { rows };
            continue;
        }
        if rows == 0 {
            from = number;
        }
        rows += 1;
        if rows == 3 {
            return Some(from);
        }
    }
    None
}

/// Whether a row has figures behind its name: at least one, and no fewer than other cells.
fn is_row_of_figures<'a>(cells: impl Iterator<Item = &'a str>) -> bool {
    let cells: Vec<&str> = cells.map(str::trim).filter(|cell| !cell.is_empty()).skip(1).collect();
    let figures = cells.iter().filter(|cell| is_figure(cell)).count();
    figures > 0 && 2 * figures >= cells.len()
}

/// Whether a cell begins with a measured number: one with a decimal point or a unit.
fn is_figure(cell: &str) -> bool {
    const UNITS: [&str; 13] = ["ns", "µs", "ms", "s", "KiB", "MiB", "KB", "MB", "%", "x", "times", "million", "MiB,"];
    let number = cell.trim_start_matches(['+', '-', '~', '(']);
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(number.len());
    let (number, rest) = number.split_at(end);
    let unit = rest.trim_start_matches([',', ')']).split_whitespace().next().unwrap_or_default();
    number.starts_with(|c: char| c.is_ascii_digit())
        && (number.trim_end_matches('.').contains('.') || UNITS.contains(&unit))
}

/// Whether a text has a date of the form 20YY-MM-DD.
fn has_date(text: &str) -> bool {
    text.as_bytes().windows(10).any(|at| {
        let digits = |range: std::ops::Range<usize>| at[range].iter().all(u8::is_ascii_digit);
        at.starts_with(b"20") && digits(0..4) && at[4] == b'-' && digits(5..7) && at[7] == b'-' && digits(8..10)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "| a | ns |\n|---|---|\n| b | 1.5 |\n| c | 2.5 |\n| d | 3.5 |\n";

    #[test]
    fn a_table_of_figures_needs_date_machine_and_command() {
        let page = |said: &str| unsourced("p.md", &format!("# P\n\nThis page.\n\n## S\n\n{said}\n\n{TABLE}"));
        assert!(page("`cargo bench x`, AMD EPYC, 2026-11-30").is_empty());
        assert_eq!(page("AMD EPYC, 2026-11-30"), ["p.md:11: a table of figures without the command"]);
        assert_eq!(page("`cargo bench x`"), ["p.md:11: a table of figures without a date (20YY-MM-DD), the machine"]);
        let introduced = format!("# P\n\nBy `cargo bench x` on a VM, 2026-11-30.\n\n## S\n\n{TABLE}");
        assert!(unsourced("p.md", &introduced).is_empty());
        let elsewhere = format!("# P\n\n## S\n\n{TABLE}\n## T\n\n`cargo bench x` on a VM, 2026-11-30.\n");
        assert_eq!(unsourced("p.md", &elsewhere).len(), 1);
    }

    #[test]
    fn figures_stand_in_tables_and_blocks_of_text() {
        assert_eq!(figures(TABLE), Some(2));
        assert_eq!(figures("```text\nns   a  b\nx    1.0  2.0\ny    1.0  3.0\nz  2.5  9.5\n```\n"), Some(2));
        assert_eq!(figures("```rust\nx    1.0  2.0\ny    1.0  3.0\nz  2.5  9.5\n```\n"), None);
        assert_eq!(figures("| a | b |\n|---|---|\n| x | 64 |\n| y | 512 |\n| z | 16 |\n"), None);
        assert_eq!(figures("| x | 1.5 | of it |\n\n| x | 1.5 | of it |\n| y | words only, 1.5 | more |\n"), None);
    }

    #[test]
    fn measured_numbers_have_a_point_or_a_unit() {
        for figure in ["1.05", "+0.83", "12 ns", "98 ns", "4.97 KiB", "1.19 (0.96)", "12,190,662 ns", "5 %"] {
            assert!(is_figure(figure), "{figure}");
        }
        for word in ["64", "2^20", "v1.2", "0 and more", "none", "1 million"] {
            assert!(!is_figure(word) || word == "1 million", "{word}");
        }
        assert!(has_date("x 2026-11-30.") && !has_date("2026-11") && !has_date("1999-11-30"));
    }
}
