//! The test bench for a target: emits a program in several ways, runs each from several states, and compares with the
//! evaluator.

use crate::Target;
use crate::host::{Called, DATA, MEMORY_SYMBOL, Machine, Run, Text, WITH_CTX, arity, mix};
use crate::kinds::Rng;
use bpf_isa::SubprogId;
use bpf_jit::eval::{Env, Eval, Outcome, Region};
use bpf_jit::{Alloc, AllocOptions, Allocator, EmitOptions, HostRegSet, Lir, MachineDesc};
use bpf_jit_code::{Code, RunCtx, StopCode, Symbol};

/// The options with which a program is compiled.
pub type Way = (AllocOptions, EmitOptions);

/// The state that a run starts from.
#[derive(Clone, Debug)]
pub struct Start {
    /// r1 to r5. [`Start::MEMORY`] stands for the address of the memory's middle.
    pub args: [u64; 5],
    /// The memory.
    pub memory: Vec<u64>,
    /// Number of tail calls taken before.
    pub tail_calls: u32,
    /// The interrupt word; its sign bit is set if another thread requested the stop.
    pub interrupt: u64,
    /// The budget.
    pub budget: i64,
    /// The length of the raw context.
    pub packet_len: u64,
    /// The entry that direct tail-call sites are linked to.
    pub linked: Option<u64>,
}

impl Start {
    /// A placeholder among the arguments for the address of the memory's middle.
    pub const MEMORY: u64 = 0x6d65_6d6f_7279_0001;

    /// A start with `words` words of random memory, and a budget that suffices.
    pub fn new(args: [u64; 5], words: usize) -> Start {
        let mut rng = Rng(words as u64);
        let memory = (0..words).map(|_| rng.bits()).collect();
        Start { args, memory, tail_calls: 0, interrupt: 0, budget: 1 << 40, packet_len: 99, linked: None }
    }

    fn run_ctx(&self) -> RunCtx {
        RunCtx {
            tail_calls: self.tail_calls,
            stop_code: 0,
            stop_insn: 0,
            interrupt: self.interrupt,
            budget: self.budget,
            stop_to: 0,
            exit_sp: 0,
            exit_pc: 0,
            exit_saved: [0; 2],
            packet: 0x7061,
            packet_len: self.packet_len,
            host_env: 0x7e57,
            slot: 0x5107,
            context: 0xc0,
            stop_pc: 0,
            stop_sp: 0,
            stop_link: 0,
            thrown: 0,
            lent: [0; 5],
            allowance: 0x411e,
            counters: 0,
        }
    }
}

/// The bytes of the hidden argument's fields that tested programs may access, at their offsets.
fn ctx_bytes(ctx: &RunCtx) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<RunCtx>()];
    let mut put = |offset: i32, field: &[u8]| bytes[offset as usize..][..field.len()].copy_from_slice(field);
    put(RunCtx::TAIL_CALLS_OFFSET, &ctx.tail_calls.to_le_bytes());
    put(RunCtx::STOP_CODE_OFFSET, &ctx.stop_code.to_le_bytes());
    put(RunCtx::STOP_INSN_OFFSET, &ctx.stop_insn.to_le_bytes());
    put(RunCtx::INTERRUPT_OFFSET - 4, &ctx.interrupt.to_le_bytes());
    put(RunCtx::BUDGET_OFFSET, &ctx.budget.to_le_bytes());
    put(RunCtx::PACKET_OFFSET, &ctx.packet.to_le_bytes());
    put(RunCtx::PACKET_LEN_OFFSET, &ctx.packet_len.to_le_bytes());
    put(RunCtx::HOST_ENV_OFFSET, &ctx.host_env.to_le_bytes());
    put(RunCtx::SLOT_OFFSET, &ctx.slot.to_le_bytes());
    put(RunCtx::CONTEXT_OFFSET, &ctx.context.to_le_bytes());
    bytes
}

/// The largest memory of a test, in words: twice the largest offset that one uses.
pub(crate) const WIDE: usize = 2 * (0x1_2345 + 16) / 8;

/// A target, memory that its code may use, and its code.
#[expect(missing_debug_implementations, reason = "a target need not have one")]
pub struct Bench<'t> {
    target: &'t mut dyn Target,
    machine: Machine,
    allocator: Allocator,
    memory: Vec<u64>,
    ctx: Box<RunCtx>,
    depths: Vec<u64>,
}

impl<'t> Bench<'t> {
    /// Creates a bench without memory.
    pub fn new(target: &'t mut dyn Target) -> Bench<'t> {
        let ctx = Box::new(Start::new([0; 5], 0).run_ctx());
        Bench {
            target,
            machine: Machine::default(),
            allocator: Allocator::default(),
            memory: vec![0; WIDE],
            ctx,
            depths: Vec::new(),
        }
    }

    /// The target.
    pub fn target(&self) -> &dyn Target {
        self.target
    }

    /// The machine to allocate for.
    pub fn machine(&self, options: &EmitOptions) -> &'static MachineDesc {
        self.target.machine(options)
    }

    /// The tested register allocations: the one of production, the three cheapest registers only, three registers of
    /// different sorts, none, and `random` random allocations.
    pub fn allocations(&self, options: &EmitOptions, random: u64, seed: u64) -> Vec<AllocOptions> {
        let machine = self.machine(options);
        let only = |set| AllocOptions { only: Some(set), seed: None };
        let mut all = vec![
            AllocOptions::default(),
            only(HostRegSet::of(&machine.pool[..3])),
            only(HostRegSet::of(&[machine.args[0], machine.pool[0], machine.callee_saved[0]])),
            only(HostRegSet::EMPTY),
        ];
        let seeds = (0..random).map(|i| seed.wrapping_mul(31).wrapping_add(i));
        all.extend(seeds.map(|seed| AllocOptions { only: None, seed: Some(seed) }));
        all
    }

    fn product(&self, options: &[EmitOptions], random: u64, seed: u64) -> Vec<Way> {
        let with = |options: &EmitOptions| {
            let allocations = self.allocations(options, random, seed);
            allocations.into_iter().map(|alloc| (alloc, *options)).collect::<Vec<_>>()
        };
        options.iter().flat_map(with).collect()
    }

    /// Every allocation with and without the optional instructions.
    pub fn plain_ways(&self, random: u64, seed: u64) -> Vec<Way> {
        self.product(&self.target.options()[..2], random, seed)
    }

    /// Every allocation with every way of emitting.
    pub fn all_ways(&self, random: u64, seed: u64) -> Vec<Way> {
        self.product(&self.target.options(), random, seed)
    }

    /// Every allocation, each with one of the ways of emitting.
    pub fn some_ways(&self, random: u64, seed: u64) -> Vec<Way> {
        let options = self.target.options();
        let allocations = self.allocations(&options[0], random, seed);
        allocations.into_iter().zip(options.into_iter().cycle()).collect()
    }

    /// Emits with given allocations.
    pub fn emit_with(&mut self, lir: &Lir, allocs: &[Alloc], options: &EmitOptions) -> Code {
        let mut code = Code::new(self.target.arch());
        self.target.emit(lir, allocs, options, &mut code).expect("the backend emits what the allocator made");
        assert!(code.bytes.len() <= self.target.size_bound(lir), "the stated size bound");
        if self.target.host().is_none() {
            // The result is equal on every host, and slow where this is emulated.
            self.target.assert_decodes(&code);
        }
        code
    }

    /// Allocates and emits.
    pub fn emit(&mut self, lir: &Lir, (alloc, options): &Way) -> Code {
        let machine = self.machine(options);
        let mut allocs = Vec::new();
        for func in &lir.funcs {
            let mut out = Alloc::default();
            self.allocator.allocate(func, machine, alloc, &mut out);
            allocs.push(out);
        }
        self.emit_with(lir, &allocs, options)
    }

    /// Places codes; with `guarded`, indirect branches must lead to landing pads. `None` on a host that cannot run
    /// them.
    pub fn place(&mut self, codes: &[Code], guarded: bool) -> Option<Text> {
        let host = self.target.host()?;
        Some(self.machine.place(self.target, &host, codes, guarded && host.guard != 0, self.memory.as_ptr() as u64))
    }

    /// Writes to placed code.
    pub fn patch(&mut self, text: &Text, address: u64, bytes: &[u8]) {
        let host = self.target.host().expect("there is placed code only on a host that runs it");
        self.machine.patch(&host, text, address, bytes);
    }

    fn args(&self, start: &Start) -> [u64; 5] {
        let middle = self.memory.as_ptr() as u64 + start.memory.len() as u64 / 2 * 8;
        start.args.map(|arg| if arg == Start::MEMORY { middle } else { arg })
    }

    /// Enters placed code.
    pub fn run(&mut self, entry: u64, start: &Start) -> Run {
        let host = self.target.host().expect("there is placed code only on a host that runs it");
        let args = self.args(start);
        let memory = &mut self.memory[..start.memory.len()];
        memory.copy_from_slice(&start.memory);
        *self.ctx = start.run_ctx();
        let (value, calls) = self.machine.run(&host, entry, &args, &mut self.ctx, &mut self.depths);
        let outcome = match value {
            Some(value) => Outcome::Exit(value),
            None => {
                let code = StopCode::new(self.ctx.stop_code).expect("a stop code");
                Outcome::Stop { code, insn: self.ctx.stop_insn }
            }
        };
        Run { outcome, calls, memory: self.memory[..start.memory.len()].to_vec(), ctx: ctx_bytes(&self.ctx) }
    }

    /// The depth of the machine stack at each call of an external function in the last run.
    pub fn depths(&self) -> &[u64] {
        &self.depths
    }

    /// The result according to the evaluator.
    pub fn evaluate(&self, lir: &Lir, start: &Start) -> Run {
        let bytes = start.memory.iter().flat_map(|word| word.to_le_bytes()).collect();
        let memory = Region { base: self.memory.as_ptr() as u64, bytes };
        let ctx = core::ptr::from_ref(&*self.ctx) as u64;
        let fields = Region { base: ctx, bytes: ctx_bytes(&start.run_ctx()) };
        let mut eval = Eval::new(vec![memory, fields], 0x7f00_0000_0000_0000);
        let mut env = Outside { calls: Vec::new(), start, bench: self };
        let outcome = eval.run(lir, self.args(start), ctx, &mut env).expect("the test's program is well defined");
        let words = eval.memory[0].bytes.as_chunks().0;
        Run {
            outcome,
            calls: env.calls,
            memory: words.iter().map(|word| u64::from_le_bytes(*word)).collect(),
            ctx: eval.memory[1].bytes.clone(),
        }
    }

    /// Compiles a program in each way, runs each code from each state, and compares with the evaluator.
    pub fn compare(&mut self, what: &str, lir: &Lir, ways: &[Way], starts: &[Start]) {
        for guarded in [false, true] {
            let ways: Vec<&Way> = ways.iter().filter(|(_, emit)| emit.hardening.landing_pads == guarded).collect();
            let codes: Vec<Code> = ways.iter().map(|way| self.emit(lir, way)).collect();
            let Some(text) = self.place(&codes, guarded) else { continue };
            for start in starts.iter().filter(|_| !ways.is_empty()) {
                let want = self.evaluate(lir, start);
                for ((way, entry), code) in ways.iter().zip(&text.entries).zip(&codes) {
                    let got = self.run(*entry, start);
                    assert!(got == want, "{}", failure(what, lir, way, start, code, &got, &want));
                }
            }
        }
    }
}

fn failure(what: &str, lir: &Lir, way: &Way, start: &Start, code: &Code, got: &Run, want: &Run) -> String {
    let mut memory = got.memory.iter().zip(&want.memory).enumerate().filter(|(_, (got, want))| got != want);
    let memory = memory.next().map(|(i, (got, want))| format!("word {i} is {got:#x}, not {want:#x}"));
    let bytes = if code.bytes.len() < 4096 { format!("{:02x?}", code.bytes) } else { String::new() };
    format!(
        "{what}: args {:x?}, {way:?}\n{lir}\n{bytes}\noutcome {:x?}, not {:x?}\ncalls {:x?}, not {:x?}\nmemory: {memory:?}\n\
         hidden argument {:?}, not {:?}",
        start.args, got.outcome, want.outcome, got.calls, want.calls, got.ctx, want.ctx,
    )
}

/// The external environment for the evaluator.
struct Outside<'a, 't> {
    calls: Vec<Called>,
    start: &'a Start,
    bench: &'a Bench<'t>,
}

impl Env for Outside<'_, '_> {
    fn symbol(&mut self, symbol: Symbol) -> u64 {
        assert!(symbol.index >= DATA, "the address of a function differs from host to host");
        if symbol == MEMORY_SYMBOL {
            self.bench.memory.as_ptr() as u64
        } else {
            self.bench.target.data_address(symbol.index)
        }
    }
    fn subprog(&mut self, subprog: SubprogId) -> u64 {
        // Differs between hosts, so a program that computes with it differs too.
        0x5ab0 + u64::from(subprog.0)
    }
    fn call(&mut self, symbol: Symbol, given: [Option<u64>; 5], ctx: Option<u64>) -> u64 {
        let arity = arity(symbol.index);
        let mut args = [0; 5];
        for (to, from) in args.iter_mut().zip(given).take(arity) {
            *to = from.expect("the test passes as many arguments as the symbol says");
        }
        let ctx = if symbol.index & WITH_CTX != 0 { ctx.map_or(0, |_| 1) } else { 0 };
        self.calls.push(Called { symbol: symbol.index, args, ctx });
        mix(symbol.index, &args[..arity])
    }
    fn linked(&mut self, _: Symbol, _: u32) -> Option<u64> {
        self.start.linked
    }
}
