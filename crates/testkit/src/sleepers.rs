//! Random programs that sleep, and a host that frees and changes memory meanwhile.
//!
//! Problem: whether the verifier ends at a sleep every pointer that another thread may free is a matter of all kinds of
//! memory, of registers, of stack slots, of loops, and of functions. Approach: a generator makes programs of look-ups,
//! accesses, spills, records, locks, sections, inner maps, dynptrs, objects, callbacks, functions, waits and loops, and
//! uses stale pointers, or sleeps where it may not, now and then. Accepted programs are run in the interpreter, which
//! knows what a run may access and where it may sleep, with a host that replaces elements and holds other slots while a
//! run waits or has yielded. An access beyond what the run may use is a violation. Machine code then computes the same,
//! at all levels, contained and not; and runs that are given up leave nothing behind.

use crate::generate::Choices;
use crate::soundness::check_emitted;
use bpf_runtime::oracle;
use bpf_runtime::{
    AsyncCaller, Caller, Config, Engine, Linker, LoadError, Mode, OptLevel, Raw, RunError, RunLimits,
    host::Pinned,
    isa::assemble,
    maps::{Map, MapDef, MapType, RingBuf},
};
use bpf_uapi::{Kfunc, OwnedField, OwnedKind, OwnedType};
use bpf_verifier::GlobalFunc;
use std::fmt::Write as _;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

/// The outcome for one program.
#[derive(Debug)]
pub enum Outcome {
    /// The verifier has refused the program.
    Refused,
    /// The program has run, with so many sleeps.
    Ran(u32),
    /// The program has run, with so many sleeps, and cannot be contained.
    Uncontained(u32),
    /// The program has accessed memory that it may not use, or machine code differs.
    Violation(String),
}

/// The statements that a program has more of than of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Pointers to values of maps.
    Values,
    /// Records of a ring buffer.
    Records,
    /// Locks.
    Locks,
    /// Sections in which a program may not sleep.
    Sections,
    /// Maps in a map, and their values.
    InnerMaps,
    /// Memory that functions return, and objects.
    Objects,
    /// Dynptrs.
    Dynptrs,
    /// Callbacks, and iterators.
    Callbacks,
    /// Functions of the program, global ones and others.
    Functions,
}

impl Kind {
    /// The kind whose programs are the first to show this bug.
    #[cfg(feature = "planted")]
    pub fn of(fault: bpf_verifier::faults::Fault) -> Kind {
        use bpf_verifier::faults::Fault;
        match fault {
            Fault::InnerMapSleeps => Kind::InnerMaps,
            Fault::MemorySleeps => Kind::Objects,
            Fault::DynptrSleeps => Kind::Dynptrs,
            Fault::SleepsOwing => Kind::Records,
            Fault::SleepsLocked | Fault::YieldsLocked => Kind::Locks,
            Fault::SleepsInSection | Fault::SectionsAlike | Fault::YieldsOnOnePath => Kind::Sections,
            Fault::CallbackSleeps => Kind::Callbacks,
            Fault::SectionLeftOpen | Fault::GlobalNeverSleeps | Fault::YieldsAlone => Kind::Functions,
            _others => Kind::Values,
        }
    }

    /// All of them.
    pub const ALL: [Kind; 9] = [
        Kind::Values,
        Kind::Records,
        Kind::Locks,
        Kind::Sections,
        Kind::InnerMaps,
        Kind::Objects,
        Kind::Dynptrs,
        Kind::Callbacks,
        Kind::Functions,
    ];
}

/// The maps, by their descriptors.
const ARRAY: u32 = 0;
const HASH: u32 = 1;
const SLOTS: u32 = 2;
const RING: u32 = 3;
const OUTER: u32 = 4;
const LOCKED: u32 = 5;
const HOLDING: u32 = 6;
/// A per-CPU array: each value is the number of its slot.
const NUMBERS: u32 = 7;
/// A value of an inner map, and memory that a function returned or that is an object's: of no map.
const INNER_VALUE: u32 = 100;
const MEMORY: u32 = 101;

/// Keys of the hash.
const KEYS: u32 = 4;

/// Offset, in the values of `HOLDING`, of the field that owns an object.
const STASH: u32 = 8;

/// The type of the values of `HOLDING`, and that of the objects.
fn types() -> Vec<OwnedType> {
    let ty = |name: &str, size, fields| OwnedType { name: name.into(), size, fields, per_cpu: false };
    let stash = OwnedField { offset: STASH, kind: OwnedKind::Kptr { to: 1 } };
    vec![ty("value", 16, vec![stash]), ty("object", 16, Vec::new())]
}

/// A register or a stack slot: what it points to, and whether a sleep has ended the pointer.
#[derive(Clone, Copy)]
struct Pointer {
    map: u32,
    stale: bool,
}

/// The thing that the program holds in a part of its code, and gives back before it may sleep.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    Nothing,
    Section,
    /// A record or an object: the program does not end with it.
    Owed,
    /// A lock: no function is called with it.
    Lock,
}

/// A program.
#[derive(Debug)]
struct Generated {
    text: String,
    globals: Vec<Option<GlobalFunc>>,
}

struct Generator<'c, 'b> {
    choices: &'c mut Choices<'b>,
    kind: Kind,
    text: String,
    /// Blocks of the main program behind its end.
    tails: String,
    /// The functions behind the main program, and whether each is global.
    functions: Vec<(String, bool)>,
    /// r6 to r9, and two stack slots.
    places: [Option<Pointer>; 6],
    /// Whether there is a dynptr, and whether a sleep has ended it.
    dynptr: Option<bool>,
    labels: u32,
    depth: u32,
    held: Held,
    /// How many of ten uses may be of stale pointers.
    lures: u32,
}

// The main program's frame:
//   -8 a key   -24, -32 places   -48 the result   -56 a record or an object   -64, -72 counters of loops
//   -80 the length of the context   -88 the context   -104 a dynptr   -112 an iterator   -120 read through the dynptr
//   -128 a lock's value

/// Makes a program, so many of ten of whose uses may be of stale pointers.
fn generate(kind: Kind, lures: u32, choices: &mut Choices<'_>) -> Generated {
    let mut g = Generator {
        choices,
        kind,
        text: String::new(),
        tails: String::new(),
        functions: Vec::new(),
        places: [None; 6],
        dynptr: None,
        labels: 0,
        depth: 0,
        held: Held::Nothing,
        lures,
    };
    g.line("*(u64 *)(r10 - 88) = r1\n*(u64 *)(r10 - 80) = r2\n*(u64 *)(r10 - 48) = 0");
    let statements = 3 + g.choices.below(8);
    g.block(statements);
    g.line("r0 = *(u64 *)(r10 - 48)");
    g.line("exit");
    let Generator { mut text, tails, functions, .. } = g;
    text.push_str(&tails);
    let mut globals = vec![None];
    for (function, global) in functions {
        text.push_str(&function);
        globals.push(global.then(|| GlobalFunc { name: "global".into(), args: Vec::new() }));
    }
    Generated { text, globals }
}

/// A call of a function by its name.
fn kfunc(kfunc: Kfunc) -> String {
    format!("call kfunc#{}", kfunc as u32)
}

impl Generator<'_, '_> {
    fn line(&mut self, line: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    /// Whether to do what may be refused.
    fn lure(&mut self) -> bool {
        self.choices.below(10) < self.lures
    }

    fn block(&mut self, statements: u32) {
        for _ in 0..statements {
            match self.choices.below(20) {
                0..=2 => self.look_up(),
                3..=6 => self.access(),
                7 => self.copy(),
                8..=10 => self.sleep(),
                11..=13 => self.round(),
                14 if self.held == Held::Lock => {}
                14 => self.slot(),
                15 => {
                    let kind = self.choices.pick(&Kind::ALL);
                    self.of(kind);
                }
                _ => self.of(self.kind),
            }
        }
    }

    fn of(&mut self, kind: Kind) {
        // Under a lock no function is called.
        if self.held == Held::Lock {
            return self.access();
        }
        match kind {
            Kind::Values => self.look_up(),
            Kind::Records => self.around_record(),
            Kind::Locks => self.around_lock(),
            Kind::Sections if self.choices.below(2) == 0 => self.around_section(),
            Kind::Sections => self.maybe_section(),
            Kind::InnerMaps => self.look_up_in(OUTER),
            Kind::Objects => match self.choices.below(3) {
                0 => self.around_object(),
                1 => self.stash(),
                _ => self.memory(),
            },
            Kind::Dynptrs => self.dynptr(),
            Kind::Callbacks if self.choices.below(2) == 0 => self.callback(),
            Kind::Callbacks => self.iterate(),
            Kind::Functions => self.function(),
        }
    }

    fn place(index: usize) -> (bool, String) {
        match index {
            0..4 => (true, format!("r{}", 6 + index)),
            _ => (false, format!("*(u64 *)(r10 - {})", 8 * (index - 1))),
        }
    }

    fn look_up(&mut self) {
        let map = self.choices.pick(&[ARRAY, HASH, HASH, SLOTS]);
        self.look_up_in(map);
    }

    fn look_up_in(&mut self, map: u32) {
        // The look-up may end the program, which must have given everything back.
        if matches!(self.held, Held::Owed | Held::Lock) {
            return;
        }
        let key = if map == HASH { self.choices.below(KEYS) } else { 0 };
        let into = self.choices.below(4) as usize;
        let found = self.label();
        self.line(&format!("*(u64 *)(r10 - 8) = {key}"));
        self.line(&format!("r1 = map[fd:{map}]\nr2 = r10\nr2 += -8\ncall 1\nif r0 != 0 goto found{found}"));
        self.line(&format!("r0 = 1\nexit\nfound{found}:\nr{} = r0", 6 + into));
        self.places[into] = Some(Pointer { map, stale: false });
    }

    /// A register with a pointer, which may be stale.
    fn pointer(&mut self) -> Option<(usize, Pointer)> {
        let lure = self.lure();
        let usable = |place: &Option<Pointer>| place.is_some_and(|pointer| lure || !pointer.stale);
        let found: Vec<usize> = (0..6).filter(|&i| usable(&self.places[i])).collect();
        if found.is_empty() {
            return None;
        }
        let at = self.choices.pick(&found);
        Some((at, self.places[at]?))
    }

    fn access(&mut self) {
        let Some((at, pointer)) = self.pointer() else { return };
        if pointer.map == OUTER {
            return self.access_inner(at);
        }
        self.line(&format!("r1 = {}", Self::place(at).1));
        match self.choices.below(3) {
            0 => self.line("r2 = 77\n*(u64 *)(r1 + 0) = r2"),
            // The value differs by slot or by engine, so it does not count.
            _ if !matches!(pointer.map, ARRAY | HASH) => self.line("r2 = *(u64 *)(r1 + 0)"),
            _ => {
                self.line("r2 = *(u64 *)(r1 + 0)\nr3 = *(u64 *)(r10 - 48)\nr3 *= 31\nr3 += r2\n*(u64 *)(r10 - 48) = r3")
            }
        }
    }

    /// Looks a value of an inner map up.
    fn access_inner(&mut self, at: usize) {
        if self.held == Held::Lock {
            return;
        }
        let (none, into) = (self.label(), self.choices.below(4) as usize);
        self.line(&format!("*(u64 *)(r10 - 8) = 0\nr1 = {}", Self::place(at).1));
        self.line(&format!("r2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto none{none}\nr1 = *(u64 *)(r0 + 0)"));
        if self.held != Held::Owed {
            self.line(&format!("goto found{none}\nnone{none}:\nr0 = 3\nexit\nfound{none}:\nr{} = r0", 6 + into));
            self.places[into] = Some(Pointer { map: INNER_VALUE, stale: false });
        } else {
            self.line(&format!("none{none}:"));
        }
    }

    fn copy(&mut self) {
        let Some((from, pointer)) = self.pointer() else { return };
        let to = self.choices.pick(&[0, 1, 2, 3, 4, 4, 5, 5]);
        let from = Self::place(from).1;
        match Self::place(to) {
            (true, register) => self.line(&format!("{register} = {from}")),
            (false, slot) => self.line(&format!("r1 = {from}\n{slot} = r1")),
        }
        self.places[to] = Some(pointer);
    }

    /// The program sleeps here: marks pointers that end.
    fn end_pointers(&mut self) {
        for pointer in self.places.iter_mut().flatten() {
            pointer.stale |= pointer.map != ARRAY;
        }
        self.dynptr = self.dynptr.map(|_| true);
    }

    fn sleep(&mut self) {
        if self.held != Held::Nothing && !self.lure() {
            return;
        }
        self.line("r1 = 1\ncall 1001");
        self.end_pointers();
    }

    /// The program tells the host in which slot it is. It asks a function, or looks a value of a per-CPU array up
    /// before and after a sleep, in one basic block.
    fn slot(&mut self) {
        if self.choices.below(2) == 0 {
            return self.line("call 8\nr1 = r0\ncall 1003");
        }
        let tell = format!(
            "*(u64 *)(r10 - 8) = 0\nr1 = map[fd:{NUMBERS}]\nr2 = r10\nr2 += -8\ncall 1\nr1 = *(u64 *)(r0 + 0)\n\
             call 1003"
        );
        self.line(&tell);
        self.sleep();
        self.line(&tell);
    }

    /// Two paths meet: a place that holds different pointers on them holds none.
    fn meet(&mut self, before: [Option<Pointer>; 6]) {
        for (place, before) in self.places.iter_mut().zip(before) {
            *place = match (*place, before) {
                (Some(a), Some(b)) if a.map == b.map => Some(Pointer { map: a.map, stale: a.stale || b.stale }),
                _ => None,
            };
        }
    }

    /// A few statements with something that is held.
    fn within(&mut self, held: Held) {
        let outer = std::mem::replace(&mut self.held, held);
        self.depth += 1;
        let statements = self.choices.below(4);
        self.block(statements);
        self.depth -= 1;
        self.held = outer;
    }

    fn around_record(&mut self) {
        if self.held == Held::Owed || self.depth > 1 {
            return;
        }
        let none = self.label();
        self.line(&format!("r1 = map[fd:{RING}]\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto none{none}"));
        self.line("*(u64 *)(r10 - 56) = r0\nr1 = 5\n*(u64 *)(r0 + 0) = r1");
        let (before, dynptr) = (self.places, self.dynptr);
        self.within(Held::Owed);
        self.line("r1 = *(u64 *)(r10 - 56)\nr2 = 0\ncall 132");
        self.line(&format!("none{none}:"));
        self.meet(before);
        self.dynptr = self.dynptr.and(dynptr);
    }

    /// Owns an object for a while.
    fn around_object(&mut self) {
        if self.held == Held::Owed || self.depth > 1 {
            return;
        }
        let none = self.label();
        self.line(&format!("r1 = 1\nr2 = 0\n{}\nif r0 == 0 goto none{none}", kfunc(Kfunc::ObjNew)));
        self.line("*(u64 *)(r10 - 56) = r0\nr1 = 5\n*(u64 *)(r0 + 0) = r1");
        let (before, dynptr) = (self.places, self.dynptr);
        self.within(Held::Owed);
        self.line(&format!("r1 = *(u64 *)(r10 - 56)\nr2 = 0\n{}", kfunc(Kfunc::ObjDrop)));
        self.line(&format!("none{none}:"));
        self.meet(before);
        self.dynptr = self.dynptr.and(dynptr);
    }

    /// Stashes an object in a map, and keeps a pointer to it.
    fn stash(&mut self) {
        self.look_up_in(HOLDING);
        if matches!(self.held, Held::Owed | Held::Lock) {
            return;
        }
        let (none, into) = (self.label(), self.choices.below(4) as usize);
        self.line("*(u64 *)(r10 - 56) = r0");
        self.line(&format!("r1 = 1\nr2 = 0\n{}\nif r0 == 0 goto none{none}", kfunc(Kfunc::ObjNew)));
        self.line(&format!("r2 = r0\nr1 = *(u64 *)(r10 - 56)\nr1 += {STASH}\ncall 194\nif r0 == 0 goto none{none}"));
        self.line(&format!("r1 = r0\nr2 = 0\n{}\nnone{none}:", kfunc(Kfunc::ObjDrop)));
        self.line(&format!("r1 = *(u64 *)(r10 - 56)\nr1 = *(u64 *)(r1 + {STASH})\nif r1 != 0 goto found{none}"));
        self.line(&format!("r0 = 4\nexit\nfound{none}:\nr{} = r1", 6 + into));
        self.places[into] = Some(Pointer { map: MEMORY, stale: false });
    }

    /// Memory that the host returns.
    fn memory(&mut self) {
        if self.held == Held::Owed {
            return;
        }
        let (found, into) = (self.label(), self.choices.below(4) as usize);
        self.line(&format!("call 1002\nif r0 != 0 goto found{found}\nr0 = 2\nexit\nfound{found}:\nr{} = r0", 6 + into));
        self.places[into] = Some(Pointer { map: MEMORY, stale: false });
    }

    fn around_lock(&mut self) {
        if self.held == Held::Owed || self.depth > 1 {
            return;
        }
        let found = self.label();
        self.line(&format!("*(u64 *)(r10 - 8) = 0\nr1 = map[fd:{LOCKED}]\nr2 = r10\nr2 += -8\ncall 1"));
        self.line(&format!("if r0 != 0 goto found{found}\nr0 = 1\nexit\nfound{found}:"));
        self.line("*(u64 *)(r10 - 128) = r0\nr1 = r0\nr1 += 8\ncall 93");
        self.within(Held::Lock);
        self.line("r1 = *(u64 *)(r10 - 128)\nr1 += 8\ncall 94");
    }

    fn around_section(&mut self) {
        if self.depth > 1 {
            return;
        }
        let (enter, leave) = self.section();
        self.line(&enter);
        self.within(self.held.max(Held::Section));
        self.line(&leave);
    }

    fn section(&mut self) -> (String, String) {
        let (enter, leave) = match self.choices.below(2) {
            0 => (Kfunc::RcuReadLock, Kfunc::RcuReadUnlock),
            _ => (Kfunc::PreemptDisable, Kfunc::PreemptEnable),
        };
        (kfunc(enter), kfunc(leave))
    }

    /// A section that one of two paths enters.
    fn maybe_section(&mut self) {
        let (enter, leave) = self.section();
        let (label, bit) = (self.label(), 1 << self.choices.below(2));
        self.line(&format!("r1 = *(u64 *)(r10 - 80)\nr1 &= {bit}"));
        if self.choices.below(2) == 0 {
            self.line(&format!("if r1 == 0 goto on{label}\n{enter}\non{label}:\nr0 = 0"));
        } else {
            self.line(&format!("if r1 != 0 goto enter{label}\non{label}:\nr0 = 0"));
            let _ = writeln!(self.tails, "enter{label}:\n{enter}\ngoto on{label}");
        }
        self.within(self.held.max(Held::Section));
        self.line(&leave);
    }

    /// Makes a dynptr, or reads through one.
    fn dynptr(&mut self) {
        let stale = self.dynptr.unwrap_or(true);
        if self.dynptr.is_some() && (!stale || self.lure()) && self.choices.below(4) != 0 {
            self.line("r1 = r10\nr1 += -120\nr2 = 8\nr3 = r10\nr3 += -104\nr4 = 0\nr5 = 0\ncall 201");
            return;
        }
        let Some((at, pointer)) = self.pointer() else { return };
        if pointer.map == OUTER {
            return;
        }
        self.line(&format!("r1 = {}", Self::place(at).1));
        self.line("r2 = 8\nr3 = 0\nr4 = r10\nr4 += -104\ncall 197");
        self.dynptr = Some(pointer.stale);
        if self.held == Held::Nothing && self.choices.below(2) == 0 {
            self.sleep();
        }
    }

    /// A function that a helper calls.
    fn callback(&mut self) {
        let (label, rounds) = (self.label(), 1 + self.choices.below(3));
        self.line(&format!("r1 = {rounds}\nr2 = subprog[each{label}]\nr3 = 0\nr4 = 0\ncall 181"));
        let sleep = if self.lure() { "r1 = 1\ncall 1001\n" } else { "" };
        self.functions.push((format!("each{label}:\n{sleep}r0 = 0\nexit\n"), false));
    }

    /// A loop that an iterator bounds.
    fn iterate(&mut self) {
        if self.held == Held::Owed || self.depth > 0 {
            return;
        }
        let (label, rounds) = (self.label(), self.choices.below(4));
        let on_iterator = "r1 = r10\nr1 += -112\n";
        self.line(&format!("{on_iterator}r2 = 0\nr3 = {rounds}\n{}", kfunc(Kfunc::IterNumNew)));
        self.end_pointers();
        self.line(&format!("loop{label}:\n{on_iterator}{}\nif r0 == 0 goto out{label}", kfunc(Kfunc::IterNumNext)));
        let before = self.places;
        // A program does not end in the loop.
        self.within(Held::Nothing.max(self.held));
        self.line(&format!("goto loop{label}\nout{label}:\n{on_iterator}{}", kfunc(Kfunc::IterNumDestroy)));
        self.places = before;
        self.end_pointers();
    }

    /// A function of the program: global or not, which may sleep, or enter a section, or loop.
    fn function(&mut self) {
        let (label, global) = (self.label(), self.choices.below(3) != 0);
        let may_sleep = self.held == Held::Nothing || self.lure();
        let (enter, leave) = self.section();
        let given = if global { None } else { self.pointer() };
        let given = given.filter(|(_, pointer)| pointer.map != OUTER);
        if let Some((at, _)) = given {
            self.line(&format!("r1 = {}", Self::place(at).1));
        }
        self.line(&format!("call f{label}"));
        let mut body = if given.is_some() { "r6 = r1\n".to_owned() } else { String::new() };
        let sleep = "r1 = 1\ncall 1001\n";
        let sleeps = match self.choices.below(6) {
            0 | 1 if may_sleep => {
                body += sleep;
                true
            }
            2 => {
                // Not left if it lures.
                let leave = if self.lure() { String::new() } else { format!("{leave}\n") };
                let _ = write!(body, "{enter}\nr1 = 1\n{leave}");
                false
            }
            3 | 5 => {
                let rounds = 2 + self.choices.below(4);
                let _ = writeln!(body, "r7 = 0\nagain{label}:\nr7 += 1\nif r7 != {rounds} goto again{label}");
                false
            }
            4 if may_sleep => {
                // One of two paths sleeps.
                let _ = writeln!(body, "call 8\nif r0 > 99 goto not{label}\n{sleep}not{label}:");
                true
            }
            _ => false,
        };
        if let Some((_, pointer)) = given
            && (!sleeps || pointer.map == ARRAY || self.lure())
        {
            body += "r1 = *(u64 *)(r6 + 0)\n";
        }
        self.functions.push((format!("f{label}:\n{body}r0 = 0\nexit\n"), global));
        if sleeps {
            self.end_pointers();
        }
    }

    fn round(&mut self) {
        if self.depth > 1 {
            return;
        }
        let (label, counter) = (self.label(), 64 + 8 * self.depth);
        let rounds = 2 + self.choices.below(4);
        self.line(&format!("*(u64 *)(r10 - {counter}) = 0\nloop{label}:"));
        // A pointer that is overwritten in the loop is another one in the next round.
        if self.choices.below(4) != 0 && self.held == Held::Nothing {
            self.end_pointers();
        }
        let before = self.places;
        self.depth += 1;
        let statements = 1 + self.choices.below(4);
        self.block(statements);
        self.depth -= 1;
        self.line(&format!(
            "r1 = *(u64 *)(r10 - {counter})\nr1 += 1\n*(u64 *)(r10 - {counter}) = r1\nif r1 != {rounds} goto loop{label}"
        ));
        if self.choices.below(2) == 0 {
            self.places = before;
        }
    }
}

/// The engines that a program is run in, with their maps.
#[derive(Debug)]
pub struct Sleepers {
    machine: Side,
    contained: Side,
    interpreter: Side,
}

/// The host's knowledge of a run.
#[derive(Debug, Default)]
struct Known {
    /// Futures that the run waits for.
    live: AtomicUsize,
    /// The slot of the thread that polls.
    slot: AtomicU32,
    /// How often a program took itself to be in another slot.
    elsewhere: AtomicUsize,
}

#[derive(Debug)]
struct Side {
    engine: Engine,
    linker: Linker<()>,
    maps: [Map; 8],
    inner: [Map; 2],
    known: Arc<Known>,
}

/// A future that is waited for.
struct Live(Arc<Known>);

impl Live {
    fn new(known: &Arc<Known>) -> Live {
        known.live.fetch_add(1, Ordering::Relaxed);
        Live(Arc::clone(known))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a program is compiled.
#[derive(Clone, Copy, Debug)]
struct How {
    /// The run yields each time that it has spent so much.
    every: Option<u64>,
    level: OptLevel,
    contained: bool,
    /// Bytes of the context.
    bytes: usize,
    /// The run is given up when it has slept so often.
    until: u32,
    /// Whether the run has a deadline, which is far away, and whether its waits count.
    deadline: Option<bool>,
    /// Whether its machine code is checked.
    checked: bool,
}

/// The end of a run: its result, if it was not given up, how often it has slept, and what is wrong.
#[derive(Debug)]
struct Ended {
    result: Option<Result<u64, RunError>>,
    slept: u32,
    wrong: Option<String>,
}

impl Side {
    fn new(mode: Option<Mode>) -> Side {
        let mut config = Config::new();
        if let Some(mode) = mode {
            config = config.mode(mode);
        }
        let engine = Engine::new(config).expect("an engine");
        let create = |def| Map::create(def, engine.domain()).expect("a map");
        let inner = || MapDef::new("inner", MapType::Array, 4, 8, 1);
        let mut holding = MapDef::new("holding", MapType::Array, 4, 16, 1);
        holding.owned = Some(types().into());
        let maps = [
            MapDef::new("array", MapType::Array, 4, 8, 1),
            MapDef::new("hash", MapType::Hash, 8, 8, 64),
            MapDef::new("slots", MapType::PerCpuArray, 4, 8, 1),
            MapDef::new("ring", MapType::RingBuf, 0, 0, 4096),
            MapDef::new("outer", MapType::ArrayOfMaps, 4, 4, 1).inner(inner()),
            MapDef::new("locked", MapType::Array, 4, 16, 1).spin_lock(8),
            holding,
            MapDef::new("numbers", MapType::PerCpuArray, 4, 8, 1),
        ]
        .map(create);
        let numbers = &maps[NUMBERS as usize];
        let slots = (0..numbers.host_value_size() as u64 / 8).flat_map(u64::to_ne_bytes).collect::<Vec<u8>>();
        numbers.update(&[0; 4], &slots, 0).expect("a value for each slot");
        let inner = [0, 1].map(|_| create(inner()));
        let known = Arc::new(Known::default());
        let mut linker = Linker::<()>::new(&engine);
        let (memory, counted, here) = (Pinned::new(&engine, &0u64), Arc::clone(&known), Arc::clone(&known));
        let registered = linker
            .func_async(1001, "wait", move |_: AsyncCaller<'_, ()>, polls: u64| {
                let (mut left, live) = (polls, Live::new(&counted));
                async move {
                    let _live = live;
                    poll_fn(|_| {
                        left = left.wrapping_sub(1);
                        if left == u64::MAX { Poll::Ready(()) } else { Poll::Pending }
                    })
                    .await;
                }
            })
            .and_then(|linker| linker.func(1002, "memory", move |_: &mut Caller<'_, ()>| Some(memory.clone())))
            .and_then(|linker| {
                linker.func(1003, "here", move |_: &mut Caller<'_, ()>, slot: u32| {
                    let elsewhere = usize::from(here.slot.load(Ordering::Relaxed) != slot);
                    here.elsewhere.fetch_add(elsewhere, Ordering::Relaxed);
                })
            });
        registered.expect("free names");
        Side { engine, linker, maps, inner, known }
    }

    /// Replaces the elements of the hash and the inner map, each by another one elsewhere in memory, and changes the
    /// array.
    fn change(&self, round: u32) {
        let [array, hash, ..] = &self.maps;
        let key = |key: u32| u64::from(key).to_ne_bytes();
        for old in 0..KEYS {
            let _ = hash.delete(&key(old));
        }
        self.maps[OUTER as usize].set_inner(&[0; 4], &self.inner[round as usize % 2], 0).expect("an inner map");
        self.engine.domain().synchronize().expect("no run is in progress");
        self.engine.domain().reclaim();
        // Other elements take the places of the old ones first.
        for other in 0..KEYS {
            let _ = hash.update(&key(100 + round % 8 * KEYS + other), &1u64.to_ne_bytes(), 0);
        }
        for new in 0..KEYS {
            hash.update(&key(new), &(1000 + u64::from(round)).to_ne_bytes(), 0).expect("room");
        }
        array.update(&0u32.to_ne_bytes(), &u64::from(round).to_ne_bytes(), 0).expect("an element");
        self.engine.domain().reclaim();
    }

    /// Runs the program.
    fn run(&self, generated: &Generated, how: How) -> Result<Ended, LoadError> {
        let maps = self.maps.each_ref();
        oracle::declare_types(types());
        oracle::declare(generated.globals.clone());
        let loader = self.linker.loader::<Raw>().sleepable(true).yields(how.every.is_some()).maps(&maps);
        let loader = loader.opt_level(how.level).interruptible(how.deadline.is_some());
        let loader = loader.contained(how.contained);
        oracle::ask_for_code();
        let program = loader.insns("random", assemble(&generated.text).expect("a program"));
        oracle::declare(Vec::new());
        oracle::declare_types(Vec::new());
        let (program, emitted) = (program?, oracle::code());
        let limits = how.every.map_or_else(RunLimits::new, |every| RunLimits::new().yield_every(every));
        let far = self.engine.deadline_in(Duration::from_secs(3600)).expect("a clock");
        let limits = match how.deadline {
            None => limits,
            Some(true) => limits.deadline(far),
            Some(false) => limits.deadline(far).waits_count(false),
        };
        let (mut host, mut bytes) = ((), [1; 8]);
        let mut run = Box::pin(program.run_async_with(&mut host, &mut bytes[..how.bytes], &limits));
        let (mut slept, mut result) = (0, None);
        loop {
            if self.engine.domain().in_guard() {
                // Nothing can be freed any more.
                let wrong = Some("a run that waits keeps its guard".to_owned());
                return Ok(Ended { result: None, slept, wrong });
            }
            self.change(slept);
            if slept == how.until {
                break;
            }
            if let Poll::Ready(ended) = self.poll(run.as_mut(), slept % 2 != 0) {
                result = Some(ended);
                break;
            }
            slept += 1;
        }
        drop(run);
        let mut wrong = self.wrong();
        if let Some(emitted) = emitted.filter(|_| how.checked) {
            wrong = wrong.or(check_emitted(&emitted).err());
        }
        // For the records of the next run.
        let mut ring = RingBuf::new(&self.maps[RING as usize]).expect("a consumer");
        while ring.next_record().is_some() {}
        Ok(Ended { result, slept, wrong })
    }

    /// Polls the run, with the fault of the runtime that is planted on this thread. `elsewhere`: on another thread and
    /// in another slot, since this thread has the one of before.
    fn poll<F: Future + Send>(&self, run: Pin<&mut F>, elsewhere: bool) -> Poll<F::Output>
    where
        F::Output: Send,
    {
        let fault = Planted::current();
        let poll = move || {
            let slot = self.engine.domain().enter().expect("a slot").slot();
            self.known.slot.store(slot, Ordering::Relaxed);
            let _planted = Planted::new(fault);
            run.poll(&mut Context::from_waker(Waker::noop()))
        };
        if !elsewhere {
            return poll();
        }
        let _guard = self.engine.domain().enter().expect("a slot");
        thread::scope(|scope| scope.spawn(poll).join().expect("no panic"))
    }

    /// Describes the futures and runs that a run has left behind, and the wrong slots that it was in.
    fn wrong(&self) -> Option<String> {
        let (futures, runs) = (self.known.live.swap(0, Ordering::Relaxed), self.engine.async_runs());
        let (elsewhere, listed) = (self.known.elsewhere.swap(0, Ordering::Relaxed), self.engine.listed_runs());
        let wrong = format!(
            "{futures} futures and {runs} runs are left, {listed} are listed, {elsewhere} times in another slot"
        );
        (futures + runs + listed + elsewhere != 0).then_some(wrong)
    }
}

impl Default for Sleepers {
    fn default() -> Sleepers {
        Sleepers {
            machine: Side::new(None),
            contained: Side::new(None),
            interpreter: Side::new(Some(Mode::Interpreter)),
        }
    }
}

impl How {
    /// How the interpreter runs a program.
    fn interpreted(choices: &mut Choices<'_>) -> How {
        let every = (choices.below(2) == 0).then(|| u64::from(1 + choices.below(3)));
        let bytes = choices.below(4) as usize;
        let deadline = choices.pick(&[None, Some(false), Some(true)]);
        let (level, until) = (OptLevel::Speed, u32::MAX);
        How { every, level, contained: false, bytes, until, deadline, checked: false }
    }
}

/// Keeps a fault of the runtime planted on this thread.
struct Planted;

#[cfg(feature = "planted")]
impl Planted {
    /// Plants it.
    fn new(fault: Option<bpf_runtime::faults::Fault>) -> Planted {
        bpf_runtime::faults::plant(fault);
        Planted
    }

    /// The fault that is planted on this thread.
    fn current() -> Option<bpf_runtime::faults::Fault> {
        bpf_runtime::faults::Fault::ALL.iter().copied().find(|fault| bpf_runtime::faults::is_planted(*fault))
    }
}

#[cfg(not(feature = "planted"))]
impl Planted {
    fn new(_: Option<()>) -> Planted {
        Planted
    }

    fn current() -> Option<()> {
        None
    }
}

impl Sleepers {
    /// Makes a program by these choices, and runs it as machine code, contained or not, with this bug in the runtime,
    /// to its end or giving it up. Returns whether the run shows the bug. These engines are of no use then.
    #[cfg(feature = "planted")]
    pub fn shows_in_runs(&self, fault: bpf_runtime::faults::Fault, choices: &mut Choices<'_>) -> bool {
        let how = How::interpreted(choices);
        let generated = generate(Kind::Values, 0, choices);
        let contained = choices.below(2) == 0;
        let until = if choices.below(2) == 0 { 1 } else { u32::MAX };
        bpf_runtime::faults::plant(Some(fault));
        let ran = self.machine.run(&generated, How { contained, until, ..how });
        bpf_runtime::faults::plant(None);
        ran.is_ok_and(|ended| ended.wrong.is_some())
    }

    /// Makes a program by these choices, and runs it as machine code that was made by this bug of the optimiser.
    /// Returns whether the run shows the bug.
    #[cfg(feature = "faults")]
    pub fn shows_in_code(&self, fault: bpf_jit::faults::Fault, choices: &mut Choices<'_>) -> bool {
        let how = How::interpreted(choices);
        let generated = generate(Kind::Values, 0, choices);
        let contained = choices.below(2) == 0;
        bpf_jit::faults::plant(Some(fault));
        let ran = self.machine.run(&generated, How { contained, ..how });
        bpf_jit::faults::plant(None);
        ran.is_ok_and(|ended| ended.wrong.is_some())
    }

    /// Makes a program by these choices, and runs it in the interpreter, verified with this bug. Returns whether the
    /// run shows the bug.
    #[cfg(feature = "planted")]
    pub fn shows(&self, fault: bpf_verifier::faults::Fault, kind: Kind, choices: &mut Choices<'_>) -> bool {
        let how = How::interpreted(choices);
        let generated = generate(kind, 4, choices);
        bpf_verifier::faults::plant(Some(fault));
        let ran = self.interpreter.run(&generated, how);
        bpf_verifier::faults::plant(None);
        ran.is_ok_and(|ended| matches!(ended.result, Some(Err(_))))
    }

    /// Makes a program by these choices, and runs it: without yielding, or yielding at every head of a loop.
    pub fn check(&self, kind: Kind, choices: &mut Choices<'_>) -> Outcome {
        let how = How::interpreted(choices);
        let generated = generate(kind, choices.below(4), choices);
        let violation = |what: String| Outcome::Violation(format!("{what}\n{how:?}\n{}", generated.text));
        let interpreted = match self.interpreter.run(&generated, how) {
            Ok(ran) => ran,
            Err(LoadError::Verifier { .. }) => return Outcome::Refused,
            Err(error) => return violation(error.to_string()),
        };
        let Ended { result: Some(Ok(expected)), slept, wrong: None } = interpreted else {
            return violation(format!("interpreted: {interpreted:?}"));
        };
        let tiered = if choices.below(2) == 0 { OptLevel::Tiered } else { OptLevel::Speed };
        for (side, level, contained) in [
            (&self.machine, OptLevel::Speed, false),
            (&self.machine, if tiered == OptLevel::Tiered { tiered } else { OptLevel::None }, false),
            (&self.contained, tiered, true),
        ] {
            let how = How { level, contained, checked: contained, ..how };
            match side.run(&generated, how) {
                Ok(Ended { result: Some(Ok(r0)), slept: also, wrong: None }) if (r0, also) == (expected, slept) => {}
                // A pointer leads to different objects on two paths, or the core knows a function not.
                Err(LoadError::Uncontained { .. }) if contained => return Outcome::Uncontained(slept),
                other => return violation(format!("interpreted {expected} with {slept} sleeps; {how:?}: {other:?}")),
            }
            // Given up meanwhile.
            if slept > 0 && level == OptLevel::Speed {
                let until = 1 + choices.below(slept);
                match side.run(&generated, How { until, ..how }) {
                    Ok(Ended { result: None, wrong: None, .. }) => {}
                    other => return violation(format!("given up at sleep {until}: {other:?}")),
                }
            }
        }
        Outcome::Ran(slept)
    }
}
