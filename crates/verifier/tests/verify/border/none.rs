//! Programs that go over a buffer and keep an index, or a pointer, that is none until something is found: `-1` in 64 or
//! 32 bits, or null. A test for none guards each use, except for the mistakes made here, which let none, or an index
//! beyond the end, be used, or make the loop go back without end.
//!
//! A round sets one of two such places to its index, the first time or each time; resets it to none; uses it; copies
//! one to the other; or continues from one of them, as a matcher does that tries again behind a mark. Mistakes are
//! tests that are missing or for another number, places that are set beside the index, and marks that do not move.

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

use super::Oracle;

/// Returns the oracle. Its limit on steps is low: refused programs use all their steps, and few accepted ones need
/// more.
pub(crate) fn oracle() -> Oracle {
    Oracle { steps: 3_000, ..Oracle::new(false) }
}

/// How a program holds its places.
struct Kept {
    /// Whether the places are pointers, for which none is null.
    pointers: bool,
    /// Whether the places are numbers of 32 bits.
    short: bool,
    /// Whether the places are spilled between rounds.
    spilled: bool,
    /// Whether programs test for none by its sign, or by equality.
    by_sign: bool,
    /// One in this many tests and places is a mistake.
    mistakes: u32,
    labels: u32,
    text: Vec<String>,
}

/// The two places, and the index.
const PLACES: [u32; 2] = [7, 9];
const INDEX: u32 = 3;

impl Kept {
    fn line(&mut self, s: impl Into<String>) {
        self.text.push(s.into());
    }

    fn reg(&self, n: u32) -> String {
        format!("{}{n}", if self.short { 'w' } else { 'r' })
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    fn wrong(&self, c: &mut Choices<'_>) -> bool {
        c.one_in(self.mistakes)
    }

    fn set_none(&mut self, c: &mut Choices<'_>, place: u32) {
        let none = match self.pointers {
            true if self.wrong(c) => "r6".into(),
            true => "0".into(),
            false if self.wrong(c) => c.pick(&["-2", "0"]).to_owned(),
            false => "-1".to_owned(),
        };
        self.line(format!("{} = {none}", self.reg(place)));
    }

    /// Goes to the label if the place holds none.
    fn test(&mut self, c: &mut Choices<'_>, place: u32, label: &str) {
        if self.wrong(c) && c.one_in(3) {
            return;
        }
        let test = match (self.pointers, self.by_sign) {
            (true, _) => "== 0",
            (false, true) if self.wrong(c) => c.pick(&["s< -1", "s< 1", "s> 0"]),
            (false, true) => c.pick(&["s< 0", "s< 0", "s<= -1"]),
            (false, false) if self.wrong(c) => c.pick(&["== -2", "== 0", "!= -1"]),
            (false, false) => "== -1",
        };
        self.line(format!("if {} {test} goto {label}", self.reg(place)));
    }

    /// Accesses the memory that the place refers to.
    fn access(&mut self, c: &mut Choices<'_>, place: u32) {
        let at = if self.wrong(c) { c.pick(&["- 1", "+ 1", "+ 2"]) } else { "+ 0" };
        let base = if self.pointers {
            place
        } else {
            self.line("r4 = r6");
            self.line(format!("r4 += r{place}"));
            4
        };
        if c.one_in(5) {
            self.line(format!("*(u8 *)(r{base} {at}) = 7"));
        }
        self.line(format!("r0 = *(u8 *)(r{base} {at})"));
    }

    fn set(&mut self, c: &mut Choices<'_>, place: u32) {
        self.line(format!("{} = {}", self.reg(place), self.reg(INDEX)));
        if self.wrong(c) {
            self.line(format!("{} += {}", self.reg(place), c.pick(&[1, 1, 2, -1])));
        }
    }

    /// One of the actions of a round on a place.
    fn act(&mut self, c: &mut Choices<'_>, place: u32) {
        let skip = format!("s{}", self.label());
        match c.below(14) {
            0 | 1 => self.set(c, place),
            2 => {
                let set = format!("t{}", self.label());
                self.test(c, place, &set);
                self.line(format!("goto {skip}"));
                self.line(format!("{set}:"));
                self.set(c, place);
            }
            3 => {
                self.test(c, place, &skip);
                if !c.one_in(3) {
                    self.access(c, place);
                }
                self.set_none(c, place);
            }
            4 => {
                self.test(c, place, &skip);
                self.access(c, place);
            }
            5 => {
                let (to, from) = c.pick(&[(9, 7), (7, 9)]);
                self.line(format!("{} = {}", self.reg(to), self.reg(from)));
            }
            6 => {
                // A loop from behind the place up to the round's index.
                self.test(c, place, &skip);
                let again = self.label();
                self.line(format!("{} = {}", self.reg(5), self.reg(place)));
                self.line(format!("l{again}:"));
                self.access(c, 5);
                self.line(format!("{} += 1", self.reg(5)));
                self.line(format!("if {} {} {} goto l{again}", self.reg(5), self.less(c), self.reg(INDEX)));
            }
            7 => {
                // Continues behind a mark, if there is one, and advances the mark.
                self.test(c, place, &skip);
                if !self.wrong(c) && !c.one_in(3) {
                    self.line(format!("{} += 1", self.reg(place)));
                }
                self.line(format!("{} = {}", self.reg(INDEX), self.reg(place)));
                if c.one_in(2) {
                    self.set_none(c, place);
                }
                self.line("goto n");
            }
            8 => {
                // Restarts from the beginning, once.
                let set = format!("t{}", self.label());
                self.test(c, place, &set);
                self.line(format!("goto {skip}"));
                self.line(format!("{set}:"));
                self.set(c, place);
                self.line(format!("r{INDEX} = {}", if self.pointers { "r6" } else { "0" }));
                self.line("goto n");
            }
            9 => self.unseen(c, place, &skip),
            _ => self.set(c, place),
        }
        self.line(format!("{skip}:"));
    }

    /// Sets the place to a loaded number, in rounds from which no candidate is made: the rounds begin where a number
    /// wraps round, which it does whenever they are reached.
    fn unseen(&mut self, c: &mut Choices<'_>, place: u32, skip: &str) {
        let at = c.below(24);
        self.line(format!("r4 = {}", if c.one_in(4) { -2 } else { -1 }));
        self.line(format!("*(u64 *)(r6 + {at}) = r4"));
        self.line(format!("r5 = *(u64 *)(r6 + {at})"));
        self.line("r4 = r5");
        self.line("r5 += 1");
        self.line(format!("if r5 != 0 goto {skip}"));
        self.line(format!("r5 = *(u8 *)(r6 + {})", c.below(32)));
        if self.pointers {
            self.line("r4 = r6");
            self.line("r4 += r5");
            self.line("r5 = r4");
        }
        if c.one_in(2) {
            self.line(format!("if r5 >= r8 goto {skip}"));
        }
        self.line(format!("{} = {}", self.reg(place), self.reg(5)));
    }

    fn less(&self, c: &mut Choices<'_>) -> &'static str {
        if self.wrong(c) { "<=" } else { "<" }
    }

    fn spills(&mut self, store: bool) {
        if !self.spilled {
            return;
        }
        for (slot, place) in [8, 16].into_iter().zip(PLACES) {
            let (reg, slot) = (format!("r{place}"), format!("*(u64 *)(r10 - {slot})"));
            let (to, from) = if store { (slot, reg) } else { (reg, slot) };
            self.line(format!("{to} = {from}"));
        }
    }
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let pointers = c.one_in(3);
    let mut k = Kept {
        pointers,
        short: !pointers && c.one_in(2),
        spilled: c.one_in(5),
        by_sign: c.one_in(2),
        mistakes: c.pick(&[8, 16, 32, 64]),
        labels: 0,
        text: Vec::new(),
    };
    k.line("r6 = r1");
    k.line(if pointers { "r8 = r1" } else { "r8 = r2" });
    if pointers {
        k.line("r8 += r2");
    }
    let most = c.pick(&["", "", "r8 &= 127", "if r8 > 64 goto out"]);
    if !pointers && !most.is_empty() {
        k.line("r0 = 0");
        k.line(most);
    }
    for place in PLACES {
        if c.one_in(6) {
            k.line(format!("r{place} = {}", if pointers { "r6" } else { "0" }));
        } else {
            k.set_none(c, place);
        }
    }
    k.spills(true);
    k.line(format!("r{INDEX} = {}", if pointers { "r6" } else { "0" }));
    let begins = c.pick(&["if r3 >= r8 goto end", "goto t", "goto a"]);
    k.line(begins);
    k.line("a:");
    k.spills(false);
    k.access(c, INDEX);
    let ways = 2 + c.below(3);
    let mut tests = [30, 60, 120, 200];
    if c.one_in(2) {
        tests.reverse();
    }
    for way in 0..ways {
        if way + 1 < ways {
            k.line(format!("if r0 > {} goto w{way}", tests[way as usize]));
        }
        for _ in 0..c.pick(&[0, 1, 1, 1, 2]) {
            let place = c.pick(&PLACES);
            k.act(c, place);
        }
        k.line("goto m");
        k.line(format!("w{way}:"));
    }
    k.line("m:");
    let step = if c.one_in(8) { 2 } else { 1 };
    k.line(format!("{} += {step}", k.reg(INDEX)));
    k.line("n:");
    k.spills(true);
    k.line("t:");
    let less = k.less(c);
    k.line(format!("if r{INDEX} {less} r8 goto a"));
    k.line("end:");
    k.spills(false);
    for (i, place) in PLACES.into_iter().enumerate() {
        if !c.one_in(3) {
            k.test(c, place, &format!("e{i}"));
            k.access(c, place);
            k.line(format!("e{i}:"));
        }
    }
    k.line("out: r0 = 0");
    k.line("exit");
    let text = k.text.join("\n");
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
