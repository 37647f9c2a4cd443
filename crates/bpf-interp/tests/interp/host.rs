//! Tests of the interface between the interpreter and its host: helpers, callbacks, tail calls, host memory, budget,
//! interruption, and the message of each error.
//!
//! Runs the unsafe code under Miri (except the two tests that depend on time):
//! `MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-disable-isolation" cargo +nightly miri test -p bpf-interp --test
//! host -- --skip interruption --skip atomics_are_atomic`

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use bpf_interp::{Caller, Env, HostMemory, MAX_TAIL_CALLS, Machine, Memory, Options, Step, Stop, StopKind};
use bpf_isa::{Imm64, Insn, Program, assemble};

fn program(text: &str) -> Arc<Program> {
    let insns = assemble(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    Arc::new(Program::new(insns).unwrap_or_else(|error| panic!("{text}: {error}")))
}

/// The address by which programs know the prog array.
const ARRAY: u64 = 0xa44a;

/// A host with a few functions of each kind.
#[derive(Default)]
struct Host {
    /// The prog array.
    slots: HashMap<u32, Arc<Program>>,
    /// How often `tail_call` was called.
    asked: u32,
    /// Map values: `map[fd:1]` is read-write, `map[fd:2]` read-only.
    values: Option<Arc<[AtomicU8]>>,
    /// The observed steps: (frames, slot, r0).
    steps: Vec<(usize, u32, u64)>,
    /// Whether programs that tail calls enter are under no limits.
    frees: bool,
    /// Number of frames for which the host has stack, if that is bounded.
    room: Option<usize>,
}

/// Helper ids. [`CHECK`] takes (address, length, whether it is a write).
const CHECK: u32 = 6;
const SUM: u32 = 1;
const FAIL: u32 = 2;
const REPEAT: u32 = 181;
const READ_BYTE: u32 = 3;
const WRITE_BYTE: u32 = 4;
const SWALLOW: u32 = 5;

impl Env for Host {
    type Code = Arc<Program>;

    fn helper(&mut self, id: u32, args: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
        let [a, b, c, ..] = args;
        match id {
            SUM => Ok(args.iter().sum()),
            FAIL => Err(caller.fail("no such thing")),
            // bpf_loop(count, callback, context).
            REPEAT => {
                for i in 0..a {
                    if caller.call(self, b, [i, c, 0, 0, 0])? == 1 {
                        return Ok(i + 1);
                    }
                }
                Ok(a)
            }
            READ_BYTE => {
                let mut byte = [0];
                caller.read(self, a, &mut byte)?;
                Ok(byte[0].into())
            }
            WRITE_BYTE => caller.write(self, a, &[b as u8]).map(|()| 0),
            CHECK => caller.check(self, a, b as usize, c != 0).map(|()| 1),
            // A helper that returns the failure of a callback as its result.
            SWALLOW => Ok(caller.call(self, a, [0; 5]).unwrap_or_else(|stop| stop.at.0.into())),
            _ => Err(caller.stop(StopKind::UnknownHelper(id))),
        }
    }

    fn host_function(&mut self, id: i32, args: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
        if id == 7 { Ok(args[0] * args[1]) } else { Err(caller.stop(StopKind::UnknownHostFunction(id))) }
    }

    fn tail_call(
        &mut self,
        array: u64,
        index: u32,
        caller: &mut Caller<'_, '_, Self::Code>,
    ) -> Result<Option<Arc<Program>>, Stop> {
        self.asked += 1;
        if array != ARRAY {
            return Err(caller.fail("not a prog array"));
        }
        if self.frees {
            caller.allow(None, None);
        }
        Ok(self.slots.get(&index).cloned())
    }

    fn enters(&mut self, machine: &Machine<'_>) -> Result<(), StopKind> {
        match self.room {
            Some(room) if machine.frames() >= room => Err(StopKind::Stack { needed: 1, left: 0 }),
            Some(_) | None => Ok(()),
        }
    }

    fn resolve(&mut self, _code: &Self::Code, imm: Imm64) -> Option<u64> {
        let start = |values: &Arc<[AtomicU8]>| values.as_ptr().expose_provenance() as u64;
        match imm {
            Imm64::Map(0) => Some(ARRAY),
            Imm64::MapValue { map: 1, off } => Some(start(self.values.as_ref()?) + u64::from(off)),
            _ => None,
        }
    }

    fn region(&mut self, addr: u64, len: u64, write: bool) -> Option<HostMemory<'_>> {
        let values = self.values.as_ref()?;
        // The second half is read-only.
        let writable = if write { values.len() / 2 } else { values.len() };
        HostMemory::within(&values[..writable], addr, len)
    }

    fn observe(&mut self, step: &Step<'_, Self::Code>, machine: &Machine<'_>) {
        self.steps.push((machine.frames(), step.at.0, step.regs[0]));
    }
}

fn run_with(host: &mut Host, options: Options<'_>, text: &str) -> Result<u64, Stop> {
    Machine::new(Memory::new(), options).run(host, &program(text), [0, 0])
}

fn run(host: &mut Host, text: &str) -> Result<u64, Stop> {
    run_with(host, Options::default(), text)
}

/// Checks that the run stops at this instruction with this message.
fn stops(host: &mut Host, text: &str, message: &str) {
    match run(host, text) {
        Ok(r0) => panic!("{text}: returned {r0:#x}"),
        Err(stop) => assert_eq!(stop.to_string(), message, "{text}"),
    }
}

#[test]
fn helpers_and_host_functions() {
    let host = &mut Host::default();
    let text = "r1 = 1\nr2 = 2\nr3 = 3\nr4 = 4\nr5 = 5\ncall 1\nr1 = r0\nr2 = 2\ncall kfunc#7\nexit";
    assert_eq!(run(host, text).unwrap(), 30);
    stops(host, "r0 = 1\ncall 99\nexit", "instruction 1: no helper has id 99");
    stops(host, "call kfunc#8\nexit", "instruction 0: no host function has id 8");
    stops(host, "call 2\nexit", "instruction 0: no such thing");
    stops(host, "r1 = map[fd:9]\nexit", "instruction 0: nothing is bound to map[fd:9]");
    stops(host, "r1 = var[id:3]\nexit", "instruction 0: nothing is bound to var[id:3]");
}

#[test]
fn helpers_reach_the_programs_memory() {
    let host = &mut Host::default();
    let text = "*(u8 *)(r10 - 1) = 9\nr1 = r10\nr1 += -1\ncall 3\nr6 = r0\nr1 = r10\nr1 += -1\nr2 = 7\ncall 4
                r0 = *(u8 *)(r10 - 1)\nr0 += r6\nexit";
    assert_eq!(run(host, text).unwrap(), 16);
    let error = run(host, "r1 = r10\ncall 3\nexit").unwrap_err();
    assert!(matches!(error.kind, StopKind::BadAccess { size: 1, write: false, .. }));
    assert_eq!(error.at.0, 1);
    let check = |addr: &str, len: u64, write: u64| {
        let text = format!("r1 = {addr}\nr1 += -16\nr2 = {len:#x} ll\nr3 = {write}\ncall 6\nexit");
        run(&mut Host::default(), &text).is_ok()
    };
    assert!(check("r10", 16, 1) && !check("r10", 17, 1) && !check("r10", u64::MAX, 0) && !check("16", 1, 0));
    assert!(check("r10", 0, 1) && !check("16", 0, 0), "no bytes lie somewhere, too");
    assert!(matches!(
        run(host, "r1 = 5\ncall 4\nexit").unwrap_err().kind,
        StopKind::BadAccess { addr: 5, write: true, .. }
    ));
}

#[test]
fn callbacks() {
    let host = &mut Host::default();
    let sum = "*(u64 *)(r10 - 8) = 0\nr1 = 10\nr2 = subprog[f]\nr3 = r10\nr3 += -8\ncall 181
               r0 = *(u64 *)(r10 - 8)\nexit
               f: r3 = *(u64 *)(r2 + 0)\nr3 += r1\n*(u64 *)(r2 + 0) = r3\nr0 = 0\nexit";
    assert_eq!(run(host, sum).unwrap(), 45);
    // Ends early.
    assert_eq!(
        run(host, "r1 = 10\nr2 = subprog[f]\ncall 181\nexit\nf: r0 = 0\nif r1 != 4 goto +1\nr0 = 1\nexit").unwrap(),
        5
    );
    // A failure in a callback names the instruction in the callback.
    stops(host, "r1 = 10\nr2 = subprog[f]\ncall 181\nexit\nf: call 2\nexit", "instruction 5: no such thing");
    // A failure that the helper catches leaves the run unchanged.
    assert_eq!(
        run(
            host,
            "*(u64 *)(r10 - 8) = 3\nr1 = subprog[f]\ncall 5\nr1 = *(u64 *)(r10 - 8)\nr0 += r1\nexit\nf: call 2\nexit"
        )
        .unwrap(),
        7 + 3
    );
    // Forged callbacks: a number, main, the middle of a subprogram.
    stops(host, "r1 = 1\nr2 = 5\ncall 181\nexit", "instruction 2: 0x5 is not the address of a subprogram");
    for slot in [0, 8] {
        let text = format!("r1 = 1\nr2 = 0xbf0000000000000{slot} ll\ncall 181\nexit\nr3 = subprog[f]\nf: r0 = 0\nexit");
        assert!(run(host, &text).is_err());
    }
    // A callback that forges its own address recurses no deeper than eight frames.
    let text = "r1 = 1\nr2 = subprog[f]\ncall 181\nexit\nf: r1 = 1\nr2 = 0xbf00000000000005 ll\ncall 181\nexit";
    stops(host, text, "instruction 8: more than 8 frames");
}

#[test]
fn budget_counts_back_edges_and_calls() {
    let host = &mut Host::default();
    let mut left = |budget: u64, text: &str| {
        let mut machine = Machine::new(Memory::new(), Options { budget: Some(budget), ..Options::default() });
        machine.run(host, &program(text), [0, 0]).map(|_| machine.budget()).map_err(|stop| stop.to_string())
    };
    let spent = |at: u32| Err(format!("instruction {at}: the budget is spent"));
    let looping = "r0 = 0\na: r0 += 1\nif r0 != 5 goto a\nexit";
    assert_eq!(left(10, looping), Ok(Some(6)));
    assert_eq!(left(4, looping), Ok(Some(0)));
    assert_eq!(left(3, looping), spent(2));
    // Forward jumps are not counted; a jump to itself is.
    assert_eq!(left(0, "goto a\na: if r0 == 0 goto b\nb: gotol c\nc: exit"), Ok(Some(0)));
    assert_eq!(left(7, "a: goto a"), spent(0));
    // Helpers, host functions, subprograms, tail calls, taken or not, count one each.
    assert_eq!(left(9, "call 1\ncall kfunc#7\ncall f\nr2 = map[fd:0]\ncall 12\nexit\nf: exit"), Ok(Some(5)));
    assert_eq!(left(0, "call 1\nexit"), spent(0));
    assert_eq!(left(0, "r1 = 1\ncall f\nexit\nf: exit"), spent(1));
    // A callback counts as a call of its own.
    assert_eq!(left(9, "r1 = 3\nr2 = subprog[f]\ncall 181\nexit\nf: exit"), Ok(Some(5)));
    assert_eq!(left(3, "r1 = 3\nr2 = subprog[f]\ncall 181\nexit\nf: exit"), spent(3));
    // may_goto counts when it jumps back.
    let mut machine = Machine::new(Memory::new(), Options::default());
    machine.run(&mut Host::default(), &program("exit"), [0, 0]).unwrap();
    assert_eq!(machine.budget(), None);
}

#[test]
fn interruption() {
    let stop = AtomicU64::new(u64::MAX >> 1);
    let text = "a: goto a";
    let result = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            /// An observer that ignores all steps, because the run is long.
            struct Quiet;
            impl Env for Quiet {
                type Code = Arc<Program>;
                fn helper(
                    &mut self,
                    id: u32,
                    _: [u64; 5],
                    caller: &mut Caller<'_, '_, Self::Code>,
                ) -> Result<u64, Stop> {
                    Err(caller.stop(StopKind::UnknownHelper(id)))
                }
            }
            let options = Options { interrupt: Some(&stop), ..Options::default() };
            Machine::new(Memory::new(), options).run(&mut Quiet, &program(text), [0, 0])
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        stop.store(1 << 63, Ordering::Relaxed);
        run.join().unwrap()
    });
    assert_eq!(result.unwrap_err().to_string(), "instruction 0: interrupted");
    // A run without back-edges and calls is short, and ends by itself.
    let options = Options { interrupt: Some(&stop), ..Options::default() };
    assert_eq!(run_with(&mut Host::default(), options, "r0 = 3\nexit").unwrap(), 3);
}

/// A host whose programs get in r1 the address of a counter of entered programs.
fn tail_call_host(targets: &[(u32, &str)]) -> Host {
    Host { slots: targets.iter().map(|&(index, text)| (index, program(text))).collect(), ..Host::default() }
}

/// Runs with a counter in the context; returns r0, the counter, and the number of tail calls taken.
fn run_counting(host: &mut Host, text: &str) -> (Result<u64, Stop>, u64, u32) {
    let mut counter = [0u8; 8];
    let mut memory = Memory::new();
    let r1 = memory.add_writable(&mut counter);
    let mut machine = Machine::new(memory, Options::default());
    let result = machine.run(host, &program(text), [r1, 8]);
    let taken = machine.tail_calls();
    drop(machine);
    (result, u64::from_le_bytes(counter), taken)
}

const COUNT: &str = "r3 = *(u64 *)(r1 + 0)\nr3 += 1\n*(u64 *)(r1 + 0) = r3\n";

#[test]
fn tail_calls() {
    // Into another program: its r1 and r2 are the run's, its other registers are zero, and it has its own frame.
    let other = "r0 = r2\nr3 = *(u64 *)(r10 - 8)\nr0 += r3\nr0 += r6\nr0 += r7\nr0 += 100\nexit";
    let mut host = tail_call_host(&[(3, other)]);
    let main = "r6 = 6\nr7 = 7\n*(u64 *)(r10 - 8) = 8\nr2 = map[fd:0]\nr3 = 3\ncall 12\nr0 = 5\nexit";
    let (result, _, taken) = run_counting(&mut host, main);
    assert_eq!((result.unwrap(), taken), (108, 1));
    // The index is 32 bits wide.
    let main = "r2 = map[fd:0]\nr3 = 0x700000003 ll\ncall 12\nr0 = 5\nexit";
    assert_eq!(run_counting(&mut host, main).0.unwrap(), 108);
    // An empty slot falls through; a value that is not a prog array ends the run.
    let main = "r2 = map[fd:0]\nr3 = 4\ncall 12\nr0 = 5\nexit";
    assert_eq!(run_counting(&mut host, main).0.unwrap(), 5);
    assert_eq!(run_counting(&mut host, "call 12\nexit").0.unwrap_err().to_string(), "instruction 0: not a prog array");
    // An error after a tail call names the program.
    let mut host = tail_call_host(&[(0, "r0 = 0\ncall 2\nexit")]);
    let error = run_counting(&mut host, "r2 = map[fd:0]\nr3 = 0\ncall 12\nexit").0.unwrap_err();
    assert_eq!(error.to_string(), "instruction 1 after tail call 1: no such thing");
}

#[test]
fn tail_calls_are_limited_to_33_taken() {
    let jump = "r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 99\nexit";
    let mut host = tail_call_host(&[(0, &format!("{COUNT}{jump}"))]);
    let (result, entered, taken) = run_counting(&mut host, jump);
    assert_eq!((result.unwrap(), entered, taken), (99, 33, MAX_TAIL_CALLS));
    assert_eq!(host.asked, 33, "the host is not asked for the 34th");
    // Failed tail calls do not count: forty of them, then 33 taken.
    let failing = "r6 = 0\na: r2 = map[fd:0]\nr3 = 1\ncall 12\nr6 += 1\nif r6 != 40 goto a\n";
    let (result, entered, _) = run_counting(&mut host, &format!("r7 = r1\n{failing}r1 = r7\n{jump}"));
    assert_eq!((result.unwrap(), entered), (99, 33));
}

/// One counter per run, shared by all frames. Each program entered here calls a subprogram that makes two tail calls:
/// with one counter per branch this would be 2^33 programs.
#[test]
fn tail_calls_in_subprograms() {
    // The tail call returns to the subprogram's caller.
    let mut host = tail_call_host(&[(0, "r0 = 40\nexit")]);
    let main = "call f\nr0 += 2\nexit\nf: r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 9\nexit";
    assert_eq!(run_counting(&mut host, main).0.unwrap(), 42);
    // The caller's frame outlives the program that replaced its callee.
    let main = "*(u64 *)(r10 - 8) = 1\ncall f\nr1 = *(u64 *)(r10 - 8)\nr0 += r1\nexit
                f: r2 = map[fd:0]\nr3 = 0\ncall 12\nexit";
    assert_eq!(run_counting(&mut host, main).0.unwrap(), 41);

    let twice = format!(
        "{COUNT}r6 = r1\ncall f\nr1 = r6\ncall f\nr0 = 1\nexit\nf: r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 0\nexit"
    );
    let mut host = tail_call_host(&[(0, &twice)]);
    let (result, entered, taken) = run_counting(&mut host, &twice);
    assert_eq!((result.unwrap(), entered, taken), (1, 1 + 33, 33));
}

/// The limits of a program hold again where a function of it returns that has entered a program without limits.
#[test]
fn limits_are_those_of_the_frames_program() {
    let jumps = "f: r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 9\nexit";
    let forever = "again: r6 += 1\ngoto again";
    let called = format!("call f\n{forever}\n{jumps}");
    let called_back = format!("r1 = 1\nr2 = subprog[f]\ncall 181\n{forever}\n{jumps}");
    let swallowed = format!("r1 = subprog[f]\ncall 5\n{forever}\n{jumps}");
    for (text, target) in [
        (&called, "r0 = 40\nexit"),
        (&called_back, "r0 = 40\nexit"),
        (&swallowed, "call 2\nexit"),
        // The program that is entered has more ticks than the budget.
        (&called, "r6 = 0\nagain: r6 += 1\nif r6 < 500 goto again\nexit"),
    ] {
        let mut host = Host { frees: true, ..tail_call_host(&[(0, target)]) };
        let options = Options { budget: Some(100), ..Options::default() };
        let mut machine = Machine::new(Memory::new(), options);
        let stop = machine.run(&mut host, &program(text), [0; 2]).unwrap_err();
        assert!(matches!(stop, Stop { program: 0, kind: StopKind::Budget, .. }), "{text}: {stop}");
        let word = AtomicU64::new(0);
        let options = Options { interrupt: Some(&word), ..Options::default() };
        let mut host = Interrupts { host, word: &word };
        let mut machine = Machine::new(Memory::new(), options);
        let stop = machine.run(&mut host, &program(text), [0; 2]).unwrap_err();
        assert!(matches!(stop, Stop { program: 0, kind: StopKind::Interrupted, .. }), "{text}: {stop}");
    }
}

/// A host that interrupts the run when it enters a program, which is not interrupted.
struct Interrupts<'w> {
    host: Host,
    word: &'w AtomicU64,
}

impl Env for Interrupts<'_> {
    type Code = Arc<Program>;

    fn helper(&mut self, id: u32, args: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
        let [a, b, ..] = args;
        match id {
            REPEAT => caller.call(self, b, [0; 5]),
            SWALLOW => Ok(caller.call(self, a, [0; 5]).unwrap_or(0)),
            id => self.host.helper(id, args, caller),
        }
    }

    fn tail_call(
        &mut self,
        array: u64,
        index: u32,
        caller: &mut Caller<'_, '_, Self::Code>,
    ) -> Result<Option<Arc<Program>>, Stop> {
        self.word.store(1 << 63, Ordering::Relaxed);
        self.host.tail_call(array, index, caller)
    }

    fn resolve(&mut self, code: &Self::Code, imm: Imm64) -> Option<u64> {
        self.host.resolve(code, imm)
    }
}

/// The host is asked before each frame but the first one, those of programs that tail calls enter included.
#[test]
fn frames_end_before_the_hosts_stack() {
    let jumps = "call f\nr0 = 1\nexit\nf: r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 2\nexit";
    let by_callback = "r1 = 1\nr2 = subprog[f]\ncall 181\nr0 = 1\nexit\nf: r2 = map[fd:0]\nr3 = 0\ncall 12\nexit";
    for text in [jumps, by_callback] {
        let mut host = Host { room: Some(10), ..tail_call_host(&[(0, text)]) };
        let stop = run(&mut host, text).unwrap_err();
        assert!(matches!(stop.kind, StopKind::Stack { needed: 1, left: 0 }), "{text}: {stop}");
        assert_eq!((stop.program, stop.callers.len()), (9, 9), "{text}");
        host.room = Some(35);
        assert_eq!(run(&mut host, text).unwrap(), 1, "{text}");
    }
}

#[test]
fn map_values_are_the_hosts() {
    let values: Arc<[AtomicU8]> = (0..32).map(AtomicU8::new).collect();
    let host = &mut Host { values: Some(values.clone()), ..Host::default() };
    assert_eq!(run(host, "r1 = map[fd:1][0]+4\nr0 = *(u32 *)(r1 + 0)\nexit").unwrap(), 0x0706_0504);
    assert_eq!(run(host, "r1 = map[fd:1][0]+5\nr0 = *(u32 *)(r1 + 0)\nexit").unwrap(), 0x0807_0605);
    run(host, "r1 = map[fd:1][0]+8\n*(u16 *)(r1 + 0) = -1\nexit").unwrap();
    assert_eq!([7, 8, 9, 10].map(|i: usize| values[i].load(Ordering::Relaxed)), [7, 255, 255, 10]);
    for text in [
        "r1 = map[fd:1][0]+32\nr0 = *(u8 *)(r1 + 0)\nexit",
        "r1 = map[fd:1][0]+29\nr0 = *(u32 *)(r1 + 0)\nexit",
        "r1 = map[fd:1][0]+0\nr0 = *(u8 *)(r1 - 1)\nexit",
        "r1 = map[fd:1][0]+16\n*(u8 *)(r1 + 0) = 1\nexit",
        "r1 = map[fd:1][0]+16\nlock *(u64 *)(r1 + 0) += r1\nexit",
    ] {
        let error = run(host, text).unwrap_err();
        assert!(matches!(error.kind, StopKind::BadAccess { .. }), "{text}: {error}");
        assert_eq!(error.at.0, 2);
    }
}

/// Two threads add to the same map value; no addition is lost.
#[test]
fn atomics_are_atomic() {
    #[repr(align(8))]
    struct Value([AtomicU8; 8]);
    static VALUE: Value = Value([const { AtomicU8::new(0) }; 8]);
    struct Shared;
    impl Env for Shared {
        type Code = Arc<Program>;
        fn helper(&mut self, id: u32, _: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
            Err(caller.stop(StopKind::UnknownHelper(id)))
        }
        fn region(&mut self, addr: u64, len: u64, _write: bool) -> Option<HostMemory<'_>> {
            HostMemory::within(&VALUE.0, addr, len)
        }
    }
    let text = "r2 = 1\nr3 = 0\na: lock *(u64 *)(r1 + 0) += r2\nr3 += 1\nif r3 != 20000 goto a\nexit";
    let program = program(text);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let r1 = VALUE.0.as_ptr().expose_provenance() as u64;
                Machine::new(Memory::new(), Options::default()).run(&mut Shared, &program, [r1, 8]).unwrap();
            });
        }
    });
    let value = std::array::from_fn(|i| VALUE.0[i].load(Ordering::Relaxed));
    assert_eq!(u64::from_le_bytes(value), 40_000);
}

#[test]
fn memory_is_checked() {
    #[repr(align(8))]
    struct Aligned([u8; 16]);
    // With gaps, because otherwise the end of one could be the start of the next.
    let mut spaced = [Aligned([0; 16]), Aligned([0; 16]), Aligned([0; 16]), Aligned([9; 16]), Aligned([0; 16])];
    let [_, writable, _, frozen, _] = &mut spaced;
    let frozen = &*frozen;
    let access = |text: &str, writable: &mut Aligned| {
        let mut memory = Memory::new();
        let r1 = memory.add_writable(&mut writable.0);
        let r2 = memory.add_read_only(&frozen.0);
        Machine::new(memory, Options::default())
            .run(&mut Host::default(), &program(&format!("{text}\nexit")), [r1, r2])
            .map_err(|stop| (stop.at.0, stop.kind))
    };
    for text in [
        "r0 = *(u8 *)(r2 + 15)",
        "r0 = *(u16 *)(r2 + 7)",
        "r0 = load_acquire((u64 *)(r2 + 8))",
        "*(u64 *)(r1 + 8) = 9",
        "*(u8 *)(r10 - 512) = 1\n*(u8 *)(r10 - 1) = 1",
        "*(u32 *)(r1 + 5) = 9",
    ] {
        assert!(access(text, writable).is_ok(), "{text}");
    }
    for (text, bad_size, bad_write) in [
        ("r0 = *(u8 *)(r1 + 16)", 1, false),
        ("r0 = *(u8 *)(r1 - 1)", 1, false),
        ("r0 = *(u64 *)(r1 + 9)", 8, false),
        ("r0 = *(u64 *)(r1 - 7)", 8, false),
        ("*(u8 *)(r2 + 0) = 1", 1, true),
        ("*(u16 *)(r2 + 1) = 1", 2, true),
        ("store_release((u64 *)(r2 + 0), r1)", 8, true),
        ("lock *(u32 *)(r2 + 0) += r1", 4, true),
        ("r0 = cmpxchg_64(r2 + 0, r0, r1)", 8, true),
        ("r0 = *(u8 *)(r10 + 0)", 1, false),
        ("*(u8 *)(r10 - 513) = 1", 1, true),
        ("r0 = *(u32 *)(r10 - 2)", 4, false),
        ("r0 = *(u8 *)(r3 + 0)", 1, false),
        ("r0 = *(u64 *)(r3 - 4)", 8, false),
        ("r3 = -4\nr0 = *(u64 *)(r3 + 0)", 8, false),
    ] {
        match access(text, writable) {
            Err((_, StopKind::BadAccess { size, write, .. })) => {
                assert_eq!((size, write), (bad_size, bad_write), "{text}")
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    for text in [
        "lock *(u64 *)(r1 + 4) += r1",
        "w3 = xchg32_32(r1 + 2, w3)",
        "r0 = cmpxchg_64(r1 + 1, r0, r1)",
        "r0 = load_acquire((u16 *)(r1 + 1))",
        "r0 = load_acquire((u64 *)(r2 + 4))",
        "store_release((u32 *)(r1 + 2), r3)",
    ] {
        assert!(matches!(access(text, writable), Err((0, StopKind::UnalignedAtomic { .. }))), "{text}");
    }
    // A frame that was left is not accessible.
    let stale = "call f\nr0 = *(u64 *)(r0 + 0)\nexit\nf: r0 = r10\nr0 += -8\n*(u64 *)(r0 + 0) = 1";
    assert!(matches!(access(stale, writable), Err((1, StopKind::BadAccess { size: 8, .. }))));
}

#[test]
fn stack_size_is_an_option() {
    let host = &mut Host::default();
    let text = "*(u8 *)(r10 - 4096) = 1\ncall f\nexit\nf: *(u8 *)(r10 - 4096) = 1\nr0 = 3\nexit";
    assert_eq!(run_with(host, Options { stack_bytes: 4096, ..Options::default() }, text).unwrap(), 3);
    assert!(run_with(host, Options { stack_bytes: 4088, ..Options::default() }, text).is_err());
    assert!(run_with(host, Options { stack_bytes: 0, ..Options::default() }, "*(u8 *)(r10 - 1) = 1\nexit").is_err());
}

#[test]
fn every_instruction_is_observed() {
    let host = &mut Host::default();
    run(host, "r0 = 1\nr1 = 5 ll\ncall f\nexit\nf: r0 = 2\nexit").unwrap();
    assert_eq!(host.steps, [(1, 0, 0), (1, 1, 1), (1, 3, 1), (2, 5, 0), (2, 6, 2), (1, 4, 2)]);
}

/// The observer sees the stack of every frame.
#[test]
fn stacks_are_seen() {
    struct Watch(Vec<Option<Vec<u8>>>);
    impl Env for Watch {
        type Code = Arc<Program>;
        fn helper(&mut self, id: u32, _: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
            Err(caller.stop(StopKind::UnknownHelper(id)))
        }
        fn observe(&mut self, step: &Step<'_, Self::Code>, machine: &Machine<'_>) {
            if machine.frames() == 2 && step.code.insns()[step.at.index()] == Insn::Exit {
                self.0 = (0..3).map(|frame| machine.stack(frame)).collect();
            }
        }
    }
    let mut watch = Watch(Vec::new());
    let options = Options { stack_bytes: 16, ..Options::default() };
    let text = "*(u8 *)(r10 - 1) = 1\ncall f\nexit\nf: *(u8 *)(r10 - 16) = 2\nexit";
    Machine::new(Memory::new(), options).run(&mut watch, &program(text), [0, 0]).unwrap();
    let (mut outer, mut inner) = (vec![0; 16], vec![0; 16]);
    (outer[15], inner[0]) = (1, 2);
    assert_eq!(watch.0, [Some(outer), Some(inner), None]);
}
