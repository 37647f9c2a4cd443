//! Programs whose safety hangs on a chain of comparisons: each number is no more than the next, the last below the
//! length, and the first is an offset.
//!
//! The numbers lie in slots, most of which nothing reads after their comparison; one comparison or another is missing,
//! the wrong way round or skipped on a path that joins later. The proof of a finished path therefore depends on numbers
//! that no register holds.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// Numbers, each in a slot of its own.
const NUMBERS: u32 = 5;

struct Gen<'c, 'b> {
    c: &'c mut Choices<'b>,
    text: String,
    labels: u32,
}

impl Gen<'_, '_> {
    fn line(&mut self, s: &str) {
        writeln!(self.text, "{s}").expect("a string");
    }

    fn slot(&mut self, register: &str, number: u32) {
        self.line(&format!("{register} = *(u64 *)(r10 - {})", 8 * (number + 1)));
    }

    /// Emits `body`, at times not on every path.
    fn perhaps(&mut self, often: u32, body: impl FnOnce(&mut Self)) {
        let skipped = self.c.one_in(often);
        self.labels += 1;
        let label = format!("s{}", self.labels);
        if skipped {
            let (at, bit) = (self.c.below(32), self.c.pick(&[1, 2, 4]));
            self.line(&format!("r5 = *(u8 *)(r9 + {at})"));
            self.line(&format!("if r5 & {bit} goto {label}"));
        }
        body(self);
        self.line(&format!("{label}:"));
        if self.c.one_in(2) {
            self.line("r5 = 0");
        }
    }

    fn ordered(&mut self, low: u32, high: u32) {
        let cond = self.c.pick(&[">", ">", ">", ">", ">=", "s>", "!="]);
        self.slot("r3", low);
        self.slot("r4", high);
        self.line(&format!("if r3 {cond} r4 goto out"));
    }

    fn below_the_length(&mut self, number: u32) {
        let cond = self.c.pick(&[">=", ">=", ">=", ">"]);
        self.slot("r3", number);
        self.line(&format!("if r3 {cond} r8 goto out"));
    }
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let mut g = Gen { c, text: String::new(), labels: 0 };
    // A loop, since orders are tracked only in programs with loops.
    for line in ["r9 = r1", "r8 = r2", "r2 = 0", "first: r2 += 1", "if r2 < 3 goto first"] {
        g.line(line);
    }
    for number in 0..NUMBERS {
        let at = g.c.below(32);
        g.line(&format!("r0 = *(u8 *)(r9 + {at})"));
        // A copy gives the number a name.
        g.line("r1 = r0");
        g.line(&format!("*(u64 *)(r10 - {}) = r0", 8 * (number + 1)));
    }
    let first = g.c.below(NUMBERS - 1);
    let mut tests: Vec<u32> = (first..NUMBERS).collect();
    if g.c.one_in(2) {
        tests.reverse();
    }
    for low in tests {
        g.perhaps(5, |g| if low + 1 < NUMBERS { g.ordered(low, low + 1) } else { g.below_the_length(low) });
        if g.c.one_in(4) {
            let (low, high) = (g.c.below(NUMBERS), g.c.below(NUMBERS));
            g.perhaps(2, |g| g.ordered(low, high));
        }
    }
    g.line("r1 = r9");
    g.slot("r3", first);
    g.line("r1 += r3");
    g.line("r0 = *(u8 *)(r1 + 0)");
    g.line("out: r0 = 0");
    g.line("exit");
    let insns = assemble(&g.text).unwrap_or_else(|e| panic!("{e}\n{}", g.text));
    Program::new(insns).ok()
}
