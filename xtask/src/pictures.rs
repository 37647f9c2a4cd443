//! `cargo xtask pictures`: the pictures of the documents, docs/book/images, except pictures that a bench draws by
//! itself.
//!
//! A picture that is made by hand is right once. These are made from few lines of data, and the plots from the tables
//! of figures in the document they stand in; `cargo xtask rules` fails when a committed one is not what this makes.

use crate::shell;
use anyhow::Context;
use std::fmt::{Display, Write};
use std::fs;

/// The folder of the pictures.
const IMAGES: &str = "docs/book/images";

/// Rewrites the pictures.
pub(crate) fn draw() -> anyhow::Result<()> {
    for (name, picture) in pictures()? {
        fs::write(shell::root().join(IMAGES).join(name), picture)?;
        println!("{IMAGES}/{name}");
    }
    Ok(())
}

/// Pictures that are not what their data says.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let is_stale = |(name, picture): &(&str, String)| {
        fs::read_to_string(shell::root().join(IMAGES).join(name)).ok().as_ref() != Some(picture)
    };
    let stale = pictures()?.into_iter().filter(is_stale);
    Ok(stale
        .map(|(name, _)| format!("{IMAGES}/{name} is not what it is made from: run `cargo xtask pictures`"))
        .collect())
}

fn pictures() -> anyhow::Result<[(&'static str, String); 7]> {
    let read = |page: &str| fs::read_to_string(shell::root().join("docs/book/explanation").join(page));
    let (comparison, speed) = (read("comparison.md")?, read("speed.md")?);
    Ok([
        ("data-path.svg", data_path()),
        ("pack.svg", pack()),
        ("poke.svg", poke()),
        ("tree.svg", tree()),
        ("comparison.svg", bars(&tables(&comparison)?)),
        ("speed.svg", dots(&tables(section(&speed, "## Time a run")?)?)),
        ("quality.svg", quality(&tables(section(&speed, "## What code costs")?)?)?),
    ])
}

const BLUE: &str = "#cfe3f4";
const GREEN: &str = "#d5ecd4";
const ORANGE: &str = "#fbe0c3";
const GREY: &str = "#e6e6e6";

/// A picture in the making.
struct Svg {
    width: u32,
    height: u32,
    body: String,
}

#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    fn new(width: u32, height: u32) -> Svg {
        Svg { width, height, body: String::new() }
    }

    fn push(&mut self, element: impl Display) {
        writeln!(self.body, "{element}").expect("a string takes everything");
    }

    fn text(&mut self, x: u32, y: u32, anchor: Anchor, style: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.push(format_args!(r#"<text x="{x}" y="{y}" text-anchor="{anchor}"{style}>{text}</text>"#));
    }

    fn rect(&mut self, [x, y, width, height]: [u32; 4], fill: &str) {
        self.push(format_args!(
            r##"<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{fill}" stroke="#555"/>"##
        ));
    }

    /// A box with a title, and what is smaller below it.
    fn card(&mut self, [x, y, width, height]: [u32; 4], fill: &str, title: &str, below: &str) {
        self.rect([x, y, width, height], fill);
        let middle = y + height / 2;
        let at = if below.is_empty() { middle + 4 } else { middle - 3 };
        self.text(x + width / 2, at, Anchor::Middle, r#" font-weight="bold""#, title);
        self.text(x + width / 2, middle + 13, Anchor::Middle, SMALL, below);
    }

    /// A line along these points, with a head at its end.
    fn arrow(&mut self, points: &[(u32, u32)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
        let points = points.join(" ");
        self.push(format_args!(
            r##"<polyline fill="none" stroke="#333" stroke-width="1.5" marker-end="url(#head)" points="{points}"/>"##
        ));
    }

    fn finish(self) -> String {
        let Svg { width, height, body } = self;
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">
<!-- made by `cargo xtask pictures` -->
<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#333"/></marker></defs>
<rect width="{width}" height="{height}" fill="white"/>
{body}</svg>
"##
        )
    }
}

const SMALL: &str = r##" font-size="10" fill="#444""##;
const CODE: &str = r#" font-family="monospace" font-size="11""#;

/// The way of a program: ARCHITECTURE.md.
fn data_path() -> String {
    const STEPS: [[(&str, &str, &str); 5]; 2] = [
        [
            ("ELF object", "clang, bpf build", GREY),
            ("instructions", "bpf-object", BLUE),
            ("bound", "bpf-runtime: Linker", BLUE),
            ("valid Program", "bpf-isa", BLUE),
            ("proven: Facts", "bpf-verifier", GREEN),
        ],
        [
            ("Lir", "bpf-jit lowers", BLUE),
            ("better Lir", "bpf-opt", BLUE),
            ("registers", "bpf-jit allocates", BLUE),
            ("Code", "bpf-jit-x64, -arm64", ORANGE),
            ("executable Text", "bpf-prog-pack", ORANGE),
        ],
    ];
    let mut svg = Svg::new(920, 330);
    let (width, height, step) = (140, 54, 180);
    for (row, y) in STEPS.iter().zip([20, 130]) {
        for ((title, below, fill), column) in row.iter().zip(0..) {
            let x = 20 + column * step;
            svg.card([x, y, width, height], fill, title, below);
            if column > 0 {
                svg.arrow(&[(x - step + width, y + height / 2), (x, y + height / 2)]);
            }
        }
    }
    svg.arrow(&[(810, 74), (810, 102), (90, 102), (90, 130)]);
    svg.text(450, 98, Anchor::Middle, SMALL, "what is accepted goes on; a refusal names the line of the source");
    svg.card([20, 250, 320, 54], GREY, "the host", "maps, helpers, host functions, contexts");
    svg.card([560, 250, 320, 54], GREEN, "Program::run", "under a guard, by any thread; or the interpreter");
    svg.arrow(&[(810, 184), (810, 250)]);
    svg.arrow(&[(340, 277), (560, 277)]);
    svg.text(450, 271, Anchor::Middle, SMALL, "called, read and written by programs");
    svg.finish()
}

/// Programs in a pack, and the two mappings of its memory: docs/book/explanation/loading.md.
fn pack() -> String {
    const CHUNKS: u32 = 40;
    let programs = [(2, BLUE), (4, GREEN), (2, ORANGE), (3, GREY), (4, BLUE), (2, ORANGE), (4, GREY), (3, GREEN)];
    let names = ["parse", "firewall", "drop", "", "nat", "log", "", "count"];
    let mut svg = Svg::new(760, 250);
    svg.text(20, 24, Anchor::Start, r#" font-weight="bold""#, "a pack: 2 MiB, in chunks of 64 bytes");
    let (left, size, top) = (20, 18, 40);
    let mut at = 0;
    for ((chunks, fill), name) in programs.into_iter().zip(names) {
        svg.rect([left + at * size, top, chunks * size, 44], fill);
        let word = if name.is_empty() { "traps" } else { name };
        svg.text(left + at * size + chunks * size / 2, top + 26, Anchor::Middle, SMALL, word);
        at += chunks;
    }
    svg.rect([left + at * size, top, (CHUNKS - at) * size, 44], GREY);
    svg.text(left + (at + CHUNKS) * size / 2, top + 26, Anchor::Middle, SMALL, "free: traps");
    for chunk in 0..=CHUNKS {
        let x = left + chunk * size;
        svg.push(format_args!(r##"<line x1="{x}" y1="84" x2="{x}" y2="90" stroke="#888"/>"##));
    }
    svg.card(
        [60, 160, 270, 60],
        GREEN,
        "mapping for threads: r-x",
        "near the host's text; calls and jumps arrive here",
    );
    svg.card([430, 160, 270, 60], ORANGE, "mapping for prog-pack: rw-", "elsewhere; nothing else writes code");
    svg.arrow(&[(195, 160), (195, 94)]);
    svg.arrow(&[(565, 160), (565, 94)]);
    svg.text(
        380,
        240,
        Anchor::Middle,
        SMALL,
        "the same memory twice: no page is writable and executable through one mapping",
    );
    svg.finish()
}

/// The states of a direct tail call's site: docs/book/reference/abi.md.
fn poke() -> String {
    let mut svg = Svg::new(760, 300);
    svg.text(380, 24, Anchor::Middle, CODE, "count check;  BYPASS;  count;  unwind the frame;  TARGET;  out:");
    let states = [
        (20, 60, GREY, "Unlinked", "BYPASS: jmp out, TARGET: nop"),
        (280, 60, BLUE, "Armed", "jmp out, jmp program"),
        (540, 60, GREEN, "Linked", "nop, jmp program"),
        (280, 200, ORANGE, "Draining", "jmp out, jmp program"),
    ];
    for (x, y, fill, title, below) in states {
        svg.card([x, y, 200, 54], fill, title, below);
    }
    svg.arrow(&[(220, 87), (280, 87)]);
    svg.text(250, 80, Anchor::Middle, SMALL, "arm");
    svg.arrow(&[(480, 87), (540, 87)]);
    svg.text(510, 80, Anchor::Middle, SMALL, "open");
    svg.text(510, 104, Anchor::Middle, SMALL, "Barrier");
    svg.arrow(&[(640, 114), (640, 227), (480, 227)]);
    svg.text(650, 175, Anchor::Start, SMALL, "close");
    svg.arrow(&[(280, 227), (120, 227), (120, 114)]);
    svg.text(112, 175, Anchor::End, SMALL, "unlink");
    svg.text(128, 175, Anchor::Start, SMALL, "Elapsed");
    svg.arrow(&[(340, 114), (340, 200)]);
    svg.text(332, 160, Anchor::End, SMALL, "abandon");
    svg.arrow(&[(420, 200), (420, 114)]);
    svg.text(428, 160, Anchor::Start, SMALL, "arm");
    svg.text(380, 285, Anchor::Middle, SMALL, "Barrier: every CPU sees the target. Elapsed: every run that could not see the bypass is over. Both nops: never.");
    svg.finish()
}

/// The compares of a dispatcher over eight programs, by address: docs/book/explanation/dispatcher.md.
fn tree() -> String {
    let mut svg = Svg::new(860, 330);
    svg.text(20, 24, Anchor::Start, CODE, "the program's address is in rax (x16), all arguments are as they were");
    split(&mut svg, 0, 8, 0);
    svg.card([330, 280, 200, 36], ORANGE, "any other: indirectly", "");
    svg.text(540, 302, Anchor::Start, SMALL, "a tree is right about every address, also when it is out of date");
    svg.finish()
}

/// The split of programs `first..end`, or the leaf that tests one for equality. Returns the middle of its box.
fn split(svg: &mut Svg, first: u32, end: u32, depth: u32) -> u32 {
    let y = 44 + depth * 58;
    if end - first == 1 {
        let x = 10 + first * 105;
        svg.card([x, y, 100, 42], GREEN, &format!("= program {first}"), "jmp to it");
        svg.arrow(&[(x + 50, y + 42), (x + 50, 262), (430, 262), (430, 280)]);
        return x + 50;
    }
    let middle = first + (end - first) / 2;
    let [left, right] = [(first, middle), (middle, end)].map(|(first, end)| split(svg, first, end, depth + 1));
    let x = (left + right) / 2;
    for child in [left, right] {
        svg.arrow(&[(x, y + 34), (x, y + 46), (child, y + 46), (child, y + 58)]);
    }
    svg.card([x - 55, y, 110, 34], BLUE, &format!("> program {}", middle - 1), "");
    x
}

/// A column of figures.
struct Plot {
    title: String,
    /// "-" in the table is no figure: `None`.
    bars: Vec<(String, Option<f64>)>,
}

/// The columns of figures in a document's tables.
fn tables(document: &str) -> anyhow::Result<Vec<Plot>> {
    let mut plots: Vec<Plot> = Vec::new();
    let mut columns = 0..0;
    for line in document.lines() {
        let Some(row) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            // The line under a header.
            if !line.starts_with("|--") {
                columns = 0..0;
            }
            continue;
        };
        let cells: Vec<&str> = row.split(" | ").collect();
        if columns.is_empty() {
            columns = plots.len()..plots.len() + cells.len() - 1;
            let title = |unit: &&str| Plot { title: format!("{}: {unit}", cells[0]), bars: Vec::new() };
            plots.extend(cells[1..].iter().map(title));
            continue;
        }
        for (plot, cell) in plots[columns.clone()].iter_mut().zip(&cells[1..]) {
            let value = (*cell != "-").then(|| cell.parse()).transpose();
            let value = value.with_context(|| format!("`{cell}` in `{line}` is no figure"))?;
            plot.bars.push((cells[0].replace("**", ""), value));
        }
    }
    anyhow::ensure!(!plots.is_empty(), "the document has no tables of figures");
    Ok(plots)
}

/// A document's section, to the next heading of its level.
fn section<'d>(document: &'d str, heading: &str) -> anyhow::Result<&'d str> {
    let (_, rest) = document.split_once(&format!("\n{heading}\n")).with_context(|| format!("no `{heading}`"))?;
    Ok(rest.split("\n## ").next().unwrap_or(rest))
}

/// A colour for each contender, distinguishable with colour-blindness, too.
const CONTENDERS: [&str; 7] = ["#e69f00", "#0072b2", "#56b4e9", "#009e73", "#999999", "#cc79a7", "#d55e00"];

/// Where `value` is on a logarithmic scale of `length` pixels.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a picture")]
fn logarithmic(value: f64, least: f64, most: f64, length: u32) -> u32 {
    ((value.clamp(least, most) / least).ln() / (most / least).ln() * f64::from(length)) as u32
}

/// A row for each label, a dot in it for each plot, by one logarithmic scale of times of native code.
fn dots(plots: &[Plot]) -> String {
    let (left, top, width, row_height) = (110, 50, 660, 16);
    let rows = plots.first().map_or(0, |plot| u32::try_from(plot.bars.len()).unwrap_or(0));
    let mut svg = Svg::new(left + width + 40, top + rows * row_height + 20);
    let mut x = left;
    for (plot, fill) in plots.iter().zip(CONTENDERS) {
        let name = plot.title.rsplit(": ").next().unwrap_or(&plot.title);
        svg.push(format_args!(r#"<circle cx="{x}" cy="12" r="5" fill="{fill}"/>"#));
        svg.text(x + 9, 16, Anchor::Start, SMALL, name);
        x += 100;
    }
    let place = |value| left + logarithmic(value, 0.4, 4.0, width);
    for (mark, label) in [(0.5, "0.5"), (0.75, "0.75"), (1.0, "native"), (1.5, "1.5"), (2.0, "2"), (3.0, "3")] {
        let (x, end) = (place(mark), top + rows * row_height);
        let stroke = if label == "native" { "#555" } else { "#ddd" };
        svg.push(format_args!(r#"<path d="M{x},{top} V{end}" stroke="{stroke}"/>"#));
        svg.text(x, top - 8, Anchor::Middle, SMALL, label);
    }
    for row in 0..rows {
        let y = top + row * row_height + row_height / 2;
        if let Some((label, _)) = plots.first().and_then(|plot| plot.bars.get(row as usize)) {
            svg.text(left - 8, y + 4, Anchor::End, SMALL, label);
        }
        // Ours last, on top.
        for (plot, fill) in plots.iter().zip(CONTENDERS).rev() {
            if let Some((_, Some(value))) = plot.bars.get(row as usize) {
                let x = place(*value);
                svg.push(format_args!(r#"<circle cx="{x}" cy="{y}" r="4" fill="{fill}"/>"#));
            }
        }
    }
    svg.finish()
}

/// Draws compile time and quality of the code: two plots with the same labels, microseconds and times of
/// native code.
fn quality(plots: &[Plot]) -> anyhow::Result<String> {
    let (left, top, width, height) = (60, 20, 640, 300);
    let [micros, native, ..] = plots else { anyhow::bail!("a table of two columns of figures is wanted") };
    let mut svg = Svg::new(left + width + 60, top + height + 50);
    let across = |value| left + logarithmic(value, 1.0, 10_000.0, width);
    let down = |value| top + height - logarithmic(value, 1.0, 2.2, height);
    for mark in [1.0, 10.0, 100.0, 1000.0, 10_000.0] {
        let (x, end) = (across(mark), top + height);
        svg.push(format_args!(r##"<path d="M{x},{top} V{end}" stroke="#ddd"/>"##));
        svg.text(x, end + 18, Anchor::Middle, SMALL, &mark.to_string());
    }
    for mark in [1.0, 1.2, 1.4, 1.6, 1.8, 2.0] {
        let (y, end) = (down(mark), left + width);
        svg.push(format_args!(r##"<path d="M{left},{y} H{end}" stroke="#ddd"/>"##));
        svg.text(left - 8, y + 4, Anchor::End, SMALL, &mark.to_string());
    }
    svg.text(
        left + width / 2,
        top + height + 38,
        Anchor::Middle,
        SMALL,
        "microseconds to load a program of some 64 instructions",
    );
    svg.text(left, 12, Anchor::Start, SMALL, "time a run, x native");
    for ((label, micros), (_, native)) in micros.bars.iter().zip(&native.bars) {
        let (Some(micros), Some(native)) = (micros, native) else { continue };
        let (x, y) = (across(*micros), down(*native));
        let fill = if label.starts_with("ours") { "#0072b2" } else { "#d55e00" };
        svg.push(format_args!(r#"<circle cx="{x}" cy="{y}" r="5" fill="{fill}"/>"#));
        svg.text(x + 9, y + 4, Anchor::Start, SMALL, label);
    }
    Ok(svg.finish())
}

/// Bars below each other, each plot by its own scale.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length of at most 300 pixels")]
fn bars(plots: &[Plot]) -> String {
    let rows: usize = plots.iter().map(|plot| plot.bars.len() + 2).sum();
    let mut svg = Svg::new(820, u32::try_from(rows).unwrap_or(0) * 20 + 10);
    let mut y = 24;
    for plot in plots {
        svg.text(20, y, Anchor::Start, r#" font-weight="bold""#, &plot.title);
        let figures = || plot.bars.iter().filter_map(|(label, value)| Some((label, (*value)?)));
        let most = figures().map(|(_, value)| value).fold(f64::MIN_POSITIVE, f64::max);
        for (label, value) in figures() {
            y += 20;
            let fill = if label.contains("wasmtime") {
                "#d55e00"
            } else if label.contains("ours") {
                "#0072b2"
            } else {
                "#999999"
            };
            let width = ((value / most * 300.0) as u32).max(1);
            svg.text(400, y, Anchor::End, SMALL, label);
            let top = y - 11;
            svg.push(format_args!(r#"<rect x="410" y="{top}" width="{width}" height="14" fill="{fill}"/>"#));
            svg.text(416 + width, y, Anchor::Start, SMALL, &value.to_string());
        }
        y += 40;
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_tables() {
        let document = "| runs | ns | µs |\n|---|---|---|\n| **a**: b | 1.5 | 2 |\n| c | 3 | - |\n\ntext | here\n";
        let plots = tables(document).unwrap();
        let read: Vec<_> = plots.iter().map(|plot| (plot.title.as_str(), plot.bars.clone())).collect();
        let bars = |a, c| vec![("a: b".to_owned(), Some(a)), ("c".to_owned(), c)];
        assert_eq!(read, [("runs: ns", bars(1.5, Some(3.0))), ("runs: µs", bars(2.0, None))]);
        assert!(tables("text").is_err() && tables("| a | b |\n| c | d |").is_err());
    }
}
