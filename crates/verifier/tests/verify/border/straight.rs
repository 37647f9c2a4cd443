//! Straight lines: numbers that are copied, split, masked, shifted, added, subtracted, spilled in parts and compared,
//! and then used as an index into the stack or the buffer. Branches only lead forward.
//!
//! An operation uses a name, a definition or a fact that another one made several operations earlier, which random
//! programs with many kinds of statements hardly ever do. Each comparison may leave the program, or skip a few
//! operations, so that paths with different results meet. The bound of an index is close to the size of its memory.
//!
//! Another kind of program uses addresses, too, for privileged programs ([`generate_shown`]): subtracted from each
//! other, cut, negated, byte-swapped, added to memory, spilled and loaded in parts, compared with numbers and returned.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// Registers that hold numbers; `r7` is the buffer, `r8` its length, `r1` and `r5` are of one statement.
const NUMBERS: [u32; 5] = [0, 2, 3, 4, 6];
const LOADS: [&str; 6] = ["u8", "u8", "u16", "u32", "u64", "s8"];
/// Slots of eight bytes that numbers are spilled to.
const SLOTS: [i32; 3] = [-8, -16, -24];

struct Text {
    out: String,
    /// Labels so far.
    labels: u32,
    /// Whether programs reveal addresses.
    shown: bool,
}

impl Text {
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        self.out.write_fmt(text).expect("a string");
        self.out.push('\n');
    }

    /// An operation that makes one number of others.
    fn operation(&mut self, c: &mut Choices<'_>) {
        let (r, s) = (c.pick(&NUMBERS), c.pick(&NUMBERS));
        let w = c.pick(&["r", "r", "w"]);
        let small = c.pick(&[1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64]);
        match c.below(19) {
            0..=2 => self.line(format_args!("{w}{r} = {w}{s}")),
            3 | 4 => {
                let mask = c.pick(&[1, 3, 7, 15, 63, 255, 0xff00, 0xffff, -8, -16, 0x1f8]);
                self.line(format_args!("{w}{r} &= {mask}"));
            }
            5 => self.line(format_args!("{w}{r} += {}", c.pick(&[1, 4, -1, -4, -16, 255, -256]))),
            6 => self.line(format_args!("{w}{r} -= {w}{s}")),
            7 => self.line(format_args!("{w}{r} += {w}{s}")),
            8 => {
                self.line(format_args!("{w}{r} {}= {}", c.pick(&[">>", ">>", "<<", "s>>"]), c.pick(&[1, 2, 4, 8, 16])))
            }
            9 => self.line(format_args!("r{r} {}= 32\nr{r} {}= 32", "<<", c.pick(&[">>", "s>>"]))),
            10 => self.line(format_args!("{w}{r} {}= {small}", c.pick(&["/", "%", "*", "|", "^"]))),
            11 => self.line(format_args!("{w}{r} {}= {w}{s}", c.pick(&["|", "&", "^", "*", "/", "%"]))),
            12 => self.line(format_args!("{w}{r} = {small}\n{w}{r} -= {w}{s}")),
            13 => self.line(format_args!("r{r} = *({} *)(r7 + {})", c.pick(&LOADS), c.below(24))),
            14 => self.line(format_args!("*(u64 *)(r10 {}) = r{r}", c.pick(&SLOTS))),
            15 => {
                let (size, bytes) = c.pick(&[("u64", 8), ("u32", 4), ("u16", 2), ("u8", 1)]);
                let at = c.pick(&SLOTS) + (c.below(8 / bytes) * bytes) as i32;
                self.line(format_args!("r{r} = *({size} *)(r10 {at})"));
            }
            16 => {
                // The quotient and the rest of one number.
                let by = c.pick(&[1, 2, 3, 4]);
                self.line(format_args!("r{r} = r{s}\nr{r} >>= {by}\nr{s} &= {}", (1 << by) - 1));
            }
            17 => self.line(format_args!("r{r} = r8\nr{r} -= r{s}")),
            _ => self.line(format_args!("r{r} = {} r{r}", c.pick(&["be16", "be32", "le16", "bswap32"]))),
        }
    }

    /// An operation on addresses.
    fn address(&mut self, c: &mut Choices<'_>) {
        let (r, s) = (c.pick(&NUMBERS), c.pick(&NUMBERS));
        let p = c.pick(&[7, 10]);
        match c.below(11) {
            0 => self.line(format_args!("r{r} = r{p}\nr{r} -= r{}", 17 - p)),
            1 => self.line(format_args!("w{r} = w{p}")),
            2 => self.line(format_args!("*(u64 *)(r10 {}) = r{p}", c.pick(&SLOTS))),
            3 => {
                // Part of the spilled address is overwritten.
                let at = c.pick(&SLOTS);
                self.line(format_args!("*(u64 *)(r10 {at}) = r{p}\n*(u16 *)(r10 {}) = r{s}", at + 2));
            }
            4 => self.line(format_args!("r{r} = r{p}\nw{r} -= w{s}")),
            5 => self.line(format_args!("*(u64 *)(r7 + {}) = r{p}", 8 * c.below(3))),
            6 => self.line(format_args!("r5 = r{p}\nif r5 > r{s} goto out")),
            7 => self.line(format_args!("r{r} = r7\nr{r} += {}\nr{r} -= r7", c.below(9))),
            8 => self.line(format_args!("r{r} = r{p}\nr{r} = {} r{r}", c.pick(&["-", "be64", "be16", "bswap32"]))),
            9 => self.line(format_args!("lock *(u64 *)(r10 {}) += r{p}", c.pick(&SLOTS))),
            _ => self.line(format_args!("r0 = r{p}\nif r{s} > 200 goto done")),
        }
    }

    /// Calls a function that reads as many bytes behind a pointer as the verifier has recorded.
    fn probe(&mut self, c: &mut Choices<'_>) {
        let (p, off) = if c.one_in(3) { (7, c.below(24) as i32) } else { (10, -8 - c.below(24) as i32) };
        self.line(format_args!("r2 = r{p}\nr2 += {off}"));
        if c.one_in(4) {
            let r = c.pick(&[0, 6]);
            self.line(format_args!("if r{r} > 3 goto out\nr2 += r{r}"));
        }
        self.line(format_args!("r1 = 0\ncall 183"));
        for r in [2, 3, 4] {
            self.line(format_args!("r{r} = *({} *)(r7 + {})", c.pick(&LOADS), c.below(24)));
        }
    }

    /// A comparison that leaves the program, or skips a few operations.
    fn comparison(&mut self, c: &mut Choices<'_>) {
        let (r, s) = (c.pick(&NUMBERS), c.pick(&NUMBERS));
        let w = c.pick(&["r", "r", "r", "w"]);
        let cond = c.pick(&[">", ">", ">=", "<", "<=", "==", "!=", "s>", "s<", "&"]);
        let other = match c.below(5) {
            0 => format!("{w}{s}"),
            1 => format!("{w}8"),
            _ => c.pick(&[0, 1, 7, 8, 15, 16, 24, 31, 63, 255, -1, -8]).to_string(),
        };
        if c.one_in(3) {
            let label = self.labels;
            self.labels += 1;
            self.line(format_args!("if {w}{r} {cond} {other} goto l{label}"));
            for _ in 0..1 + c.below(3) {
                self.operation(c);
            }
            self.line(format_args!("l{label}:"));
        } else {
            self.line(format_args!("if {w}{r} {cond} {other} goto out"));
        }
    }

    /// An access at a number, with a bound that is close to the right one, or without a further bound.
    fn access(&mut self, c: &mut Choices<'_>) {
        let r = c.pick(&NUMBERS);
        let off = c.pick(&[0, 0, 0, 1, -1]);
        if c.one_in(2) {
            let reach = c.pick(&[8, 16, 24, 32, 64, 256]);
            match c.below(4) {
                0 => self.line(format_args!("r{r} &= {}", reach - 1)),
                1 => self.line(format_args!("if r{r} > {} goto out", reach - c.pick(&[0, 1, 1, 1]))),
                _ => {}
            }
            self.line(format_args!("r5 = r10\nr5 += -{}\nr5 += r{r}\n*(u8 *)(r5 {off:+}) = 1", reach + 32));
        } else {
            match c.below(4) {
                0 => self.line(format_args!("r{r} &= {}", c.pick(&[7, 15, 31, 32]))),
                1 | 2 => self.line(format_args!("if r{r} {} r8 goto out", c.pick(&[">=", ">=", ">"]))),
                _ => {}
            }
            let value = c.pick(&NUMBERS);
            self.line(format_args!("r5 = r7\nr5 += r{r}\nr{value} = *(u8 *)(r5 {off:+})"));
        }
    }
}

fn program(c: &mut Choices<'_>, shown: bool) -> Option<Program> {
    let mut text = Text { out: String::from("r7 = r1\nr8 = r2\n"), labels: 0, shown };
    for r in NUMBERS {
        text.line(format_args!("r{r} = *({} *)(r7 + {})", c.pick(&LOADS), c.below(24)));
    }
    for at in SLOTS {
        text.line(format_args!("*(u64 *)(r10 {at}) = r{}", c.pick(&NUMBERS)));
    }
    for _ in 0..6 + c.below(16) {
        match c.below(9) {
            0 | 1 => text.comparison(c),
            2 if c.one_in(4) => text.probe(c),
            2 => text.access(c),
            3 | 4 if text.shown => text.address(c),
            _ => text.operation(c),
        }
    }
    text.access(c);
    text.out.push_str("out: r0 = 0\ndone: exit");
    let insns = assemble(&text.out).unwrap_or_else(|e| panic!("{e}\n{}", text.out));
    Program::new(insns).ok()
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    program(c, false)
}

/// Makes a program that shows addresses.
pub(crate) fn generate_shown(c: &mut Choices<'_>) -> Option<Program> {
    program(c, true)
}
