//! Tables of variable sizes, with each way to compute a row's address that [`super::products`] lacks, and one changed
//! line.
//!
//! Rows begin at an index times their length, at a distance from that (`(i - 3) * n` of an index that begins at 3,
//! `(i + 1) * n - n`), behind the end of the table, at a pointer or number that moves, or, wrongly, at the previous
//! round's product. A loop that counts up or down, or a callback, iterates over the rows; invariant values may be
//! spilled and compared again. Most programs have a line changed, moved, doubled or left out, so safe and unsafe
//! programs differ little.

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// How the address of a row is computed.
#[derive(Clone, Copy, PartialEq)]
enum Row {
    /// A pointer that moves.
    Pointer,
    /// A number that moves.
    Number,
    /// `i * n`
    Index,
    /// `(i - by) * n`, with `i` from `by` on.
    Less(u32),
    /// `(i + by) * n - by * n`
    More(u32),
    /// `end - (i + 1) * n`
    Behind,
    /// The product of the previous round.
    Stale,
}

/// `((i - 16384) * n) >> 9`, with `n` so large that `i * n` exceeds 64 bits in all rounds but the first. The access is
/// at that distance from the start of the buffer.
const WIDE: &str = "r3 = 0x3ffffffffffff ll
    r4 = *(u8 *)(r1 + 0)
    r4 += r3
    r5 = *(u64 *)(r1 + 8)
    r6 = 0
    r7 = *(u8 *)(r1 + 1)
    r7 &= 3
    r7 ^= 16384
    a: if r6 == 0 goto b
    r0 = r7
    r0 -= 16384
    r0 *= r4
    if r4 > r5 goto out
    r0 >>= 9
    r3 = r1
    r3 += r0
    r0 = *(u8 *)(r3 + 0)
    b: r6 = 1
    r7 += 1
    if r7 < 16400 goto a
    out: r0 = 0
    exit";

/// The construct that iterates over the rows.
#[derive(Clone, Copy, PartialEq)]
enum Over {
    Loop,
    Callback,
}

struct Lines(Vec<String>);

impl Lines {
    fn add(&mut self, lines: &str) {
        self.0.extend(lines.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()));
    }
}

/// The sizes: rows in r7, columns in r8, and their product in r3, which is no more than the length in r2.
fn sizes(c: &mut Choices<'_>, out: &mut Lines, shift: u32) {
    let mask = if shift < 2 { c.pick(&[3, 7, 15]) } else { c.pick(&[1, 3, 7]) };
    let least = c.below(3);
    out.add(&format!("r6 = r1\nr7 = *(u8 *)(r6 + 0)\nr7 &= {mask}\nr7 += {least}\nr8 = *(u8 *)(r6 + 1)"));
    match c.below(4) {
        0 => out.add("r8 = r7"),
        1 => out.add(&format!("r8 &= {mask}\nr8 += {least}")),
        2 => out.add(&format!("w8 &= {mask}")),
        _ => out.add(&format!("r8 &= 255\nif r8 > {} goto out", mask + 1)),
    }
    // The product of the sizes, or, as a mistake, of one row more.
    let apart = if c.one_in(3) { 1 } else { 0 };
    out.add(&format!("r3 = r7\nr3 += {apart}"));
    out.add(c.pick(&["r3 *= r8", "w3 *= w8"]));
    out.add(&format!("r3 <<= {shift}\nif r3 > r2 goto out"));
    out.add("if r7 == 0 goto out\nif r8 == 0 goto out");
}

/// Computes the address of row r5 in r4, from the state in r9.
fn begin(out: &mut Lines, row: Row, shift: u32) {
    let times = |out: &mut Lines, index: &str| {
        out.add(&format!("r4 = r5\n{index}\nr4 *= r8\nr4 <<= {shift}"));
    };
    match row {
        Row::Pointer => out.add("r4 = r9"),
        Row::Number => out.add("r4 = r6\nr4 += r9"),
        Row::Index => {
            times(out, "");
            out.add("r4 += r6");
        }
        Row::Less(by) => {
            times(out, &format!("r4 -= {by}"));
            out.add("r4 += r6");
        }
        Row::More(by) => {
            times(out, &format!("r4 += {by}"));
            out.add(&format!("r3 = r8\nr3 *= {by}\nr3 <<= {shift}\nr4 += r6\nr4 -= r3"));
        }
        Row::Behind => {
            times(out, "r4 += 1");
            out.add("r3 = r9\nr3 -= r4\nr4 = r3");
        }
        // The stale product is used beside a row pointer (r2) that has advanced.
        Row::Stale => {
            out.add("r4 = r6\nr4 += r9\nr4 -= 1\nr0 = *(u8 *)(r2 + 0)\nr2 += r8");
            out.add(&format!("r9 = r5\nr9 *= r8\nr9 <<= {shift}\nr9 += 1"));
        }
    }
}

/// Accesses the elements of the row at r4, or only the first.
fn along(c: &mut Choices<'_>, out: &mut Lines, shift: u32) {
    let size = ["u8", "u16", "u32", "u64"][shift as usize];
    let access = match c.below(3) {
        0 => format!("*({size} *)(r4 + 0) = 1"),
        _ => format!("r0 = *({size} *)(r4 + 0)"),
    };
    if c.one_in(4) {
        out.add(&access);
        return;
    }
    out.add("r1 = 0");
    out.add(&format!("b: {access}\nr4 += {}\nr1 += 1\nif r1 < r8 goto b", 1 << shift));
}

/// The lines of a program.
fn lines(c: &mut Choices<'_>) -> Lines {
    let mut out = Lines(Vec::new());
    if c.one_in(16) {
        out.add(WIDE);
        return out;
    }
    let shift = if c.one_in(2) { 0 } else { c.below(4) };
    let over = if c.one_in(5) { Over::Callback } else { Over::Loop };
    let by = c.pick(&[1, 3, 16, 300, 16_384]);
    let more = c.below(3);
    let row = match over {
        Over::Callback => c.pick(&[Row::Index, Row::Index, Row::More(1), Row::Behind]),
        Over::Loop => c.pick(&[
            Row::Pointer,
            Row::Pointer,
            Row::Number,
            Row::Number,
            Row::Index,
            Row::Less(by),
            Row::More(more),
            Row::Behind,
            Row::Stale,
        ]),
    };
    sizes(c, &mut out, shift);
    match row {
        Row::Pointer => out.add("r9 = r6"),
        Row::Behind => out.add("r9 = r6\nr9 += r3"),
        Row::Stale => out.add("r2 = r6\nr9 = 1"),
        _ => out.add("r9 = 0"),
    }
    if over == Over::Callback {
        out.add("*(u64 *)(r10 - 8) = r6\n*(u64 *)(r10 - 16) = r7\n*(u64 *)(r10 - 24) = r8\n*(u64 *)(r10 - 32) = r9");
        out.add("r1 = r7\nr2 = subprog[f]\nr3 = r10\nr3 += -32\nr4 = 0\ncall 181\nout: r0 = 0\nexit\nf: r5 = r1");
        out.add("r6 = *(u64 *)(r2 + 24)\nr7 = *(u64 *)(r2 + 16)\nr8 = *(u64 *)(r2 + 8)\nr9 = *(u64 *)(r2 + 0)");
        out.add("if r5 >= r7 goto g");
        begin(&mut out, row, shift);
        along(c, &mut out, shift);
        out.add("g: r0 = 0\nexit");
        return out;
    }
    let down = !matches!(row, Row::Less(_)) && c.one_in(5);
    match row {
        // The factor has a name of its own, instead of a distance from a constant.
        Row::Less(by) if c.one_in(2) => {
            out.add(&format!("r5 = *(u16 *)(r6 + 2)\nif r5 < {by} goto out\nif r5 > {} goto out", by + 2));
        }
        Row::Less(by) => out.add(&format!("r5 = {by}")),
        _ if down => out.add("r5 = r7"),
        _ => out.add("r5 = 0"),
    }
    let spilled = c.one_in(4);
    if spilled {
        out.add("*(u64 *)(r10 - 8) = r8\n*(u64 *)(r10 - 16) = r9");
    }
    if let (Row::Less(by), true) = (row, c.one_in(2)) {
        out.add(&format!("r7 += {by}"));
    }
    out.add("a:");
    if down {
        out.add("r5 -= 1");
    }
    if spilled {
        out.add("r8 = *(u64 *)(r10 - 8)\nr9 = *(u64 *)(r10 - 16)");
    }
    begin(&mut out, row, shift);
    if c.one_in(3) {
        // A second comparison of one of the registers.
        let r = c.pick(&["r5", "r8", "r4"]);
        out.add(&format!("r0 = *(u64 *)(r6 + 8)\nif {} > r0 goto out", if r == "r4" { "r5" } else { r }));
    }
    along(c, &mut out, shift);
    if matches!(row, Row::Pointer | Row::Number) {
        out.add(&format!("r3 = r8\nr3 <<= {shift}\nr9 += r3"));
    }
    if spilled {
        out.add("*(u64 *)(r10 - 16) = r9");
    }
    match down {
        true => out.add("if r5 != 0 goto a"),
        false => out.add("r5 += 1\nif r5 < r7 goto a"),
    }
    out.add("out: r0 = 0\nexit");
    out
}

/// Changes a line, removes it, or lets one path skip it.
fn change(c: &mut Choices<'_>, lines: &mut Vec<String>) {
    let at = c.below(lines.len() as u32) as usize;
    let reg = |c: &mut Choices<'_>| format!("r{}", c.below(10));
    let label = |line: &str| line.split_once(':').map_or(String::new(), |(label, _)| format!("{label}:"));
    let without = |line: &str| line.split_once(':').map_or(line, |(_, rest)| rest).trim().to_owned();
    match c.below(10) {
        0 => lines[at] = label(&lines[at]),
        8 | 9 => {
            let line = without(&lines[at]);
            let besides = ["r9 += r8", "r9 -= r8", "r9 += r3", "r8 += 1", "r7 += 1", "r5 -= 1", "r4 += r8", "r8 = r0"];
            let line = if c.one_in(3) { line } else { c.pick(&besides).into() };
            if lines.iter().any(|l| l.starts_with("z:")) {
                return;
            }
            // The fall-through branch is walked first.
            let over = c.one_in(2);
            let test = format!("if r0 > {} goto {}", c.pick(&[1, 40, 128]), if over { "z" } else { "y" });
            let inside = if over { line.clone() } else { String::new() };
            lines.splice(at..at, ["r0 = *(u8 *)(r6 + 3)".into(), test, inside, "z:".into()]);
            if !over {
                lines.extend([format!("y: {line}"), "goto z".into()]);
            }
        }
        1 => {
            let (from, to) = (reg(c), reg(c));
            lines[at] = lines[at].replacen(&from, &to, 1);
        }
        2 => {
            let (from, to) = (reg(c), reg(c));
            if let Some(i) = lines[at].rfind(&from) {
                lines[at].replace_range(i..i + from.len(), &to);
            }
        }
        3 => {
            let line = without(&lines[at]);
            lines[at] = label(&lines[at]);
            let to = c.below(lines.len() as u32 + 1) as usize;
            lines.insert(to, line);
        }
        4 => {
            let line = without(&lines[at]);
            let to = c.below(lines.len() as u32 + 1) as usize;
            lines.insert(to, line);
        }
        5 => {
            let op = c.pick(&["+=", "-=", "*=", "=", "&=", ">>="]);
            let line = match c.one_in(2) {
                true => format!("{} {op} {}", reg(c), reg(c)),
                false => format!("{} {op} {}", reg(c), c.pick(&[0, 1, 1, 2, 3, 7, 255])),
            };
            lines.insert(at, line);
        }
        6 => {
            let pairs =
                [("<", "<="), (">", ">="), ("+=", "-="), ("*=", "+="), ("== 0", "== 1"), ("r", "w"), ("<", "!=")];
            let (from, to) = c.pick(&pairs);
            lines[at] = lines[at].replacen(from, to, 1);
        }
        _ => {
            let number = |line: &str| line.rsplit_once(' ').and_then(|(_, n)| n.parse::<i64>().ok());
            if let Some(n) = number(&lines[at]) {
                let more = n + i64::from(c.pick(&[-1, 1, 1, 2, 8]));
                let keep = lines[at].len() - n.to_string().len();
                lines[at].truncate(keep);
                lines[at].push_str(&more.to_string());
            }
        }
    }
}

/// Makes a program, or none if the changed line does not assemble.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let mut lines = lines(c).0;
    for _ in 0..c.pick(&[0, 1, 1, 1, 2]) {
        change(c, &mut lines);
    }
    Program::new(assemble(&lines.join("\n")).ok()?).ok()
}

/// Makes a program in which the row pointer advances by the row length on one path, and on another by something
/// similar: twice the length, nothing, forth and back, or another number. The program writes its sizes first, mostly so
/// large that one row too many lies behind the buffer.
pub(crate) fn generate_moves(c: &mut Choices<'_>) -> Option<Program> {
    // r6: the buffer, r7: rows, r8: their length, r5: the round, r9: the row.
    let mut out = Lines(Vec::new());
    let (rows, columns) = c.pick(&[(7, 7), (7, 7), (7, 5), (7, 3), (3, 7), (1, 1)]);
    out.add(&format!("r6 = r1\n*(u8 *)(r6 + 0) = {rows}\n*(u8 *)(r6 + 1) = {columns}"));
    for (r, at) in [(7, 0), (8, 1)] {
        out.add(&format!("r{r} = *(u8 *)(r6 + {at})\nr{r} &= 7\nr{r} += 1"));
    }
    out.add("r3 = r7\nr3 *= r8\nif r3 > r2 goto out");
    let pointer = !c.one_in(3);
    out.add(if pointer { "r9 = r6" } else { "r9 = 0" });
    out.add("r5 = 0\na:");
    out.add(if pointer { "r4 = r9" } else { "r4 = r6\nr4 += r9" });
    match c.below(6) {
        0 => out.add("r1 = 0\nb: r0 = *(u8 *)(r4 + 0)\nr4 += 1\nr1 += 1\nif r1 < r8 goto b"),
        1 => out.add("*(u8 *)(r4 + 0) = 1\nr0 = 99"),
        _ => out.add("r0 = *(u8 *)(r4 + 0)"),
    }
    // The branch depends on the round, or on the number read there.
    let test = match c.below(3) {
        0 => format!("if r0 > {} goto w", c.pick(&[0, 30, 100, 200])),
        1 => format!("if r5 > {} goto w", c.below(3)),
        _ => format!("r0 = r5\nr0 &= {}\nif r0 != 0 goto w", c.pick(&[1, 3, 7])),
    };
    out.add(&test);
    out.add("m: r9 += r8\ns: r5 += 1\nif r5 < r7 goto a\ngoto out");
    let moves = [
        "r9 += r8\ngoto m",
        "r9 += r8\ngoto m",
        "r9 += r8\nr9 += r8\ngoto s",
        "r9 += r8\nr9 -= 1\ngoto s",
        "r9 += r8\nr9 += 1\ngoto s",
        "r3 = r8\nr3 <<= 1\nr9 += r3\ngoto s",
        "r9 -= r8\nr9 += r8\ngoto m",
        "r9 += r7\ngoto s",
        "r9 += r5\ngoto m",
        "r9 += 1\ngoto m",
        "goto s",
        "r9 += r8\ngoto s",
        "r3 = r8\nr9 += r3\ngoto s",
        "goto m",
    ];
    out.add("w:");
    out.add(c.pick(&moves));
    out.add("out: r0 = 0\nexit");
    let text = out.0.join("\n");
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
