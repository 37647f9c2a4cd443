//! Random programs that sleep, and a host that frees and changes memory meanwhile.
//!
//! Problem: whether the verifier ends at a sleep every pointer that another thread may free is a matter of all kinds of
//! memory, of registers, of stack slots, and of loops. Approach: a generator makes programs of look-ups, accesses,
//! spills, records, waits and loops, and uses stale pointers now and then. Accepted programs are run in the
//! interpreter, which knows what a run may access, with a host that replaces elements and holds other slots while a run
//! waits or has yielded. An access beyond what the run may use is a violation. Machine code then computes the same,
//! contained and not.

use bpf_runtime::{
    AsyncCaller, Config, Engine, Linker, LoadError, Map, MapDef, MapType, Mode, Raw, RunError, RunLimits, assemble,
};
use bpf_testkit::generate::Choices;
use std::fmt::Write as _;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The outcome for one program.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The verifier has refused the program.
    Refused,
    /// The program has run, with so many sleeps.
    Ran(u32),
    /// The program has run, with so many sleeps, and cannot be contained.
    Uncontained(u32),
    /// The program has accessed memory that it may not use, or machine code differs.
    Violation(String),
}

const ARRAY: u32 = 0;
const HASH: u32 = 1;
const SLOTS: u32 = 2;
const RING: u32 = 3;

/// Keys of the hash.
const KEYS: u32 = 4;

/// A register or a stack slot: what it points to, and whether a sleep has ended the pointer.
#[derive(Clone, Copy)]
struct Pointer {
    map: u32,
    stale: bool,
}

struct Generator<'c, 'b> {
    choices: &'c mut Choices<'b>,
    text: String,
    /// r6 to r9, and two stack slots.
    places: [Option<Pointer>; 6],
    labels: u32,
    depth: u32,
    /// Whether a record is reserved.
    record: bool,
    /// How many of ten uses may be of stale pointers.
    lures: u32,
}

/// Makes a program: its text.
fn generate(choices: &mut Choices<'_>) -> String {
    let lures = choices.below(4);
    let mut g =
        Generator { choices, text: String::new(), places: [None; 6], labels: 0, depth: 0, record: false, lures };
    g.line("*(u64 *)(r10 - 48) = 0");
    let statements = 3 + g.choices.below(8);
    g.block(statements);
    g.line("r0 = *(u64 *)(r10 - 48)");
    g.line("exit");
    g.text
}

impl Generator<'_, '_> {
    fn line(&mut self, line: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn block(&mut self, statements: u32) {
        for _ in 0..statements {
            match self.choices.below(12) {
                0..=2 => self.look_up(),
                3..=5 => self.access(),
                6 => self.copy(),
                7 | 8 => self.sleep(),
                9 => self.around_record(),
                _ => self.round(),
            }
        }
    }

    fn place(index: usize) -> (bool, String) {
        match index {
            0..4 => (true, format!("r{}", 6 + index)),
            _ => (false, format!("*(u64 *)(r10 - {})", 8 * (index - 1))),
        }
    }

    fn look_up(&mut self) {
        // A program does not end with a record that is to be given back.
        if self.record {
            return;
        }
        let map = self.choices.pick(&[ARRAY, HASH, HASH, SLOTS]);
        let key = if map == HASH { self.choices.below(KEYS) } else { 0 };
        let into = self.choices.below(4) as usize;
        self.labels += 1;
        let found = self.labels;
        self.line(&format!("*(u64 *)(r10 - 8) = {key}"));
        self.line(&format!("r1 = map[fd:{map}]\nr2 = r10\nr2 += -8\ncall 1\nif r0 != 0 goto found{found}"));
        self.line(&format!("r0 = 1\nexit\nfound{found}:\nr{} = r0", 6 + into));
        self.places[into] = Some(Pointer { map, stale: false });
    }

    /// A register with a pointer, which may be stale.
    fn pointer(&mut self) -> Option<(usize, Pointer)> {
        let lure = self.choices.below(10) < self.lures;
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
        self.line(&format!("r1 = {}", Self::place(at).1));
        match self.choices.below(3) {
            0 => self.line("r2 = 77\n*(u64 *)(r1 + 0) = r2"),
            // The value differs by slot, so it does not count.
            _ if pointer.map == SLOTS => self.line("r2 = *(u64 *)(r1 + 0)"),
            _ => {
                self.line("r2 = *(u64 *)(r1 + 0)\nr3 = *(u64 *)(r10 - 48)\nr3 *= 31\nr3 += r2\n*(u64 *)(r10 - 48) = r3")
            }
        }
    }

    fn copy(&mut self) {
        let Some((from, pointer)) = self.pointer() else { return };
        let to = self.choices.below(6) as usize;
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
    }

    fn sleep(&mut self) {
        if self.record && self.choices.below(4) != 0 {
            return;
        }
        self.line("r1 = 1\ncall 1001");
        self.end_pointers();
    }

    fn around_record(&mut self) {
        if self.record || self.depth > 1 {
            return;
        }
        self.labels += 1;
        let none = self.labels;
        self.line(&format!("r1 = map[fd:{RING}]\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto none{none}"));
        self.line("*(u64 *)(r10 - 56) = r0\nr1 = 5\n*(u64 *)(r0 + 0) = r1");
        let before = self.places;
        self.record = true;
        self.depth += 1;
        let statements = self.choices.below(3);
        self.block(statements);
        self.depth -= 1;
        self.record = false;
        self.line("r1 = *(u64 *)(r10 - 56)\nr2 = 0\ncall 132");
        self.line(&format!("none{none}:"));
        // Either way.
        for (place, before) in self.places.iter_mut().zip(before) {
            *place = match (*place, before) {
                (Some(a), Some(b)) if a.map == b.map => Some(Pointer { map: a.map, stale: a.stale || b.stale }),
                _ => None,
            };
        }
    }

    fn round(&mut self) {
        if self.depth > 1 {
            return;
        }
        self.labels += 1;
        let (label, counter) = (self.labels, 64 + 8 * self.depth);
        let rounds = 2 + self.choices.below(4);
        self.line(&format!("*(u64 *)(r10 - {counter}) = 0\nloop{label}:"));
        // A pointer that is overwritten in the loop is another one in the next round.
        if self.choices.below(4) != 0 && !self.record {
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
pub(crate) struct Sleepers {
    machine: Side,
    /// For machine code of contained programs: records of runs stay in the ring buffer, so that each has its own.
    contained: Side,
    interpreter: Side,
}

struct Side {
    engine: Engine,
    linker: Linker<u64>,
    maps: [Map; 4],
}

impl Side {
    fn new(mode: Option<Mode>) -> Side {
        let mut config = Config::default();
        if let Some(mode) = mode {
            config.mode = mode;
        }
        let engine = Engine::new(config).expect("an engine");
        let map = |name, ty, key, value, entries| {
            Map::create(MapDef::new(name, ty, key, value, entries), engine.domain()).expect("a map")
        };
        let maps = [
            map("array", MapType::Array, 4, 8, 1),
            map("hash", MapType::Hash, 8, 8, 64),
            map("slots", MapType::PerCpuArray, 4, 8, 1),
            map("ring", MapType::RingBuf, 0, 0, 4096),
        ];
        let mut linker = Linker::<u64>::new(&engine);
        let registered = linker.func_async(1001, "wait", async |_: AsyncCaller<'_, u64>, polls: u64| {
            let mut left = polls;
            poll_fn(|_| {
                left = left.wrapping_sub(1);
                if left == u64::MAX { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        });
        registered.expect("a free name");
        Side { engine, linker, maps }
    }

    /// Replaces the elements of the hash, each by another one elsewhere in memory, and changes the array.
    fn change(&self, round: u32) {
        let [array, hash, ..] = &self.maps;
        let key = |key: u32| u64::from(key).to_ne_bytes();
        for old in 0..KEYS {
            let _ = hash.delete(&key(old));
        }
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

    /// Runs the program: its result, and how often it has slept.
    fn run(&self, text: &str, every: Option<u64>, contained: bool) -> Result<(Result<u64, RunError>, u32), LoadError> {
        let maps = self.maps.each_ref();
        let loader = self.linker.loader::<Raw>().sleepable(true).yields(every.is_some()).maps(&maps);
        let loader = if contained { loader.contained() } else { loader };
        let program = loader.insns("random", assemble(text).expect("a program"))?;
        let limits = every.map_or_else(RunLimits::new, |every| RunLimits::new().yield_every(every));
        self.change(0);
        let mut host = 0;
        let mut run = pin!(program.run_async_with(&mut host, &mut [], &limits));
        let mut slept = 0;
        loop {
            let polled = if slept % 2 == 0 {
                run.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            } else {
                // In another slot: this thread has the one of before.
                let guard = self.engine.domain().enter().expect("a slot");
                let run = run.as_mut();
                let polled = std::thread::scope(|scope| {
                    let poll = move || run.poll(&mut Context::from_waker(Waker::noop()));
                    scope.spawn(poll).join().expect("no panic")
                });
                drop(guard);
                polled
            };
            if let Poll::Ready(result) = polled {
                return Ok((result, slept));
            }
            slept += 1;
            self.change(slept);
        }
    }
}

impl Sleepers {
    /// The engines.
    pub(crate) fn new() -> Sleepers {
        Sleepers {
            machine: Side::new(None),
            contained: Side::new(None),
            interpreter: Side::new(Some(Mode::Interpreter)),
        }
    }

    /// Makes a program by these choices, and runs it: without yielding, or yielding at every head of a loop.
    pub(crate) fn check(&self, choices: &mut Choices<'_>) -> Outcome {
        let every = (choices.below(2) == 0).then(|| u64::from(1 + choices.below(3)));
        let text = generate(choices);
        let (result, slept) = match self.interpreter.run(&text, every, false) {
            Ok(ran) => ran,
            Err(LoadError::Verifier { .. }) => return Outcome::Refused,
            Err(error) => return Outcome::Violation(format!("{error}\n{text}")),
        };
        let expected = match result {
            Ok(r0) => r0,
            Err(error) => return Outcome::Violation(format!("{error}\nevery {every:?}\n{text}")),
        };
        for (contained, side) in [(false, &self.machine), (true, &self.contained)] {
            match side.run(&text, every, contained) {
                Ok((Ok(r0), also)) if (r0, also) == (expected, slept) => {}
                // A pointer leads to different objects on two paths.
                Err(LoadError::Uncontained { .. }) => return Outcome::Uncontained(slept),
                other => {
                    let what = format!("interpreted {expected} with {slept} sleeps, contained {contained}: {other:?}");
                    return Outcome::Violation(format!("{what}\n{text}"));
                }
            }
        }
        Outcome::Ran(slept)
    }
}
