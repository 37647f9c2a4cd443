//! Lir made by hand, compiled under many allocations, against the evaluator of `bpf-jit`.
//!
//! On any host the code is emitted and decoded; on arm64 it also runs, and must leave the same result, the same memory
//! and the same `RunCtx` as the evaluator.

use crate::machine::{HOST, Text, calling_helper, poisoning_helper};
use bpf_isa::{Size, SubprogId, Width};
use bpf_jit::eval::{Env, Eval, Outcome, Region};
use bpf_jit::{
    Alloc, AllocOptions, Allocator, Backend, Base, BinOp, Block, BlockId, EmitOptions, Func, HostReg, HostRegSet, Lir,
    Mem, Op, Span, VReg, Val,
};
use bpf_jit_arm64::{Arm64, func_size_bound, program_size_bound};
use bpf_jit_code::{Arch, Code, CpuFeatures, Hardening, RunCtx, Symbol};

/// A function that returns [`poison_result`] of its arguments.
pub(crate) const POISON: Symbol = Symbol::new(0);
/// A function that calls its first argument.
pub(crate) const CALL_BACK: Symbol = Symbol::new(1);
/// The address of the data.
pub(crate) const DATA: Symbol = Symbol::new(2);

/// What the host function behind [`POISON`] returns.
pub(crate) fn poison_result(args: [u64; 5]) -> u64 {
    args.iter().zip(1..).fold(0, |sum: u64, (a, n)| sum.wrapping_add(a.wrapping_mul(n)))
}

/// Values at the borders of the widths and of arithmetic, and some in between.
pub(crate) const EDGES: [u64; 20] = [
    0,
    1,
    2,
    3,
    31,
    33,
    63,
    64,
    0x7f,
    0x8000,
    0x1234_5678,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x0123_4567_89ab_cdef,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_8000_0000,
    u64::MAX,
];

/// Builds one function.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) func: Func,
    open: u32,
}

impl Builder {
    /// A function with r1 to r5 and the hidden argument in registers 0 to 5.
    pub(crate) fn with_params() -> Builder {
        let mut b = Builder::default();
        for i in 0..5 {
            b.func.params[i] = Some(b.vreg());
        }
        b.func.ctx = Some(b.vreg());
        b
    }

    pub(crate) fn vreg(&mut self) -> VReg {
        self.func.vregs += 1;
        VReg(self.func.vregs - 1)
    }

    pub(crate) fn op(&mut self, op: Op) {
        let first = self.func.ops.len() as u32;
        self.func.spans.push(Span { first, len: 1 });
        self.func.ops.push(op);
    }

    /// Ends the block; the next one begins.
    pub(crate) fn end(&mut self) {
        let ops = self.open..self.func.ops.len() as u32;
        self.open = ops.end;
        self.func.order.push(BlockId(self.func.blocks.len() as u32));
        self.func.blocks.push(Block { ops });
    }

    /// Returns a hash of these registers.
    pub(crate) fn exit_with(&mut self, regs: &[VReg]) {
        let hash = self.vreg();
        self.op(Op::Mov { width: Width::W64, dst: hash, src: Val::Imm(1) });
        for reg in regs {
            self.op(Op::Bin { op: BinOp::Mul, width: Width::W64, dst: hash, a: hash, b: Val::Imm(31) });
            self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: hash, a: hash, b: Val::Reg(*reg) });
        }
        self.op(Op::Exit { value: hash });
        self.end();
    }

    /// The function.
    pub(crate) fn finish(self) -> Func {
        self.func
    }

    pub(crate) fn finish_alone(self) -> Lir {
        Lir { funcs: vec![self.finish()] }
    }
}

pub(crate) fn at(base: VReg, off: i32) -> Mem {
    Mem::new(Base::Reg(base), off)
}

pub(crate) fn in_frame(off: i32) -> Mem {
    Mem::new(Base::Frame, off)
}

pub(crate) fn block(n: u32) -> BlockId {
    BlockId(n)
}

/// What the allocator is told: production, three registers, none, and chance.
pub(crate) fn allocations(seeds: u64) -> Vec<AllocOptions> {
    let three = HostRegSet::of(&[HostReg(0), HostReg(6), HostReg(19)]);
    let mut all = vec![
        AllocOptions::default(),
        AllocOptions { only: Some(three), seed: None },
        AllocOptions { only: Some(HostRegSet::EMPTY), seed: None },
    ];
    all.extend((0..seeds).map(|seed| AllocOptions { only: None, seed: Some(seed) }));
    all
}

/// What the emitter is told: with and without LSE, hardened, saving everything.
pub(crate) fn emissions() -> [EmitOptions; 4] {
    let plain = EmitOptions { features: CpuFeatures::BASELINE, ..EmitOptions::default() };
    let hardening = Hardening { landing_pads: true, return_signing: true, ..Hardening::default() };
    [
        EmitOptions { features: CpuFeatures::ALL, ..plain },
        plain,
        EmitOptions { hardening, ..plain },
        EmitOptions { save_all: true, features: CpuFeatures::ALL, hardening, ..plain },
    ]
}

pub(crate) fn emit(backend: &mut Arm64, lir: &Lir, alloc: &AllocOptions, options: &EmitOptions) -> Code {
    let machine = backend.machine(options);
    let mut allocator = Allocator::default();
    let allocs: Vec<Alloc> = lir
        .funcs
        .iter()
        .map(|func| {
            let mut out = Alloc::default();
            allocator.allocate(func, machine, alloc, &mut out);
            out
        })
        .collect();
    let mut code = Code::new(Arch::Arm64);
    backend.emit(lir, &allocs, options, &mut code).unwrap();
    assert!(code.bytes.len() <= program_size_bound(lir));
    assert!(program_size_bound(lir) >= lir.funcs.iter().map(func_size_bound).sum());
    if !HOST {
        // Every word decodes and every branch leads to an instruction. Slow under emulation, and the same on any host.
        bpf_disasm::lines(&code, &|s| format!("symbol{}", s.index)).unwrap();
    }
    code
}

/// Memory that code and evaluator share, 64-bit aligned; pointers are made to its middle.
pub(crate) struct Data {
    words: Vec<u64>,
}

impl Data {
    pub(crate) fn new(words: usize) -> Data {
        let mut random = Random(words as u64);
        Data { words: (0..words).map(|_| random.next()).collect() }
    }
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }
    pub(crate) fn middle(&self) -> u64 {
        self.address() + self.words.len() as u64 / 2 * 8
    }
    fn region(&self) -> Region {
        Region { base: self.address(), bytes: self.words.iter().flat_map(|w| w.to_le_bytes()).collect() }
    }
}

/// A `RunCtx` with recognisable fields and no limit in sight.
pub(crate) fn run_ctx() -> RunCtx {
    RunCtx {
        tail_calls: 0,
        stop_code: 0,
        stop_insn: 0,
        interrupt: 0,
        budget: 1 << 40,
        exit_sp: 0,
        exit_pc: 0,
        exit_saved: [0; 2],
        packet: 0x7061,
        packet_len: 0x1e57,
        host_env: 0x7e57,
        slot: 0x5107,
        context: 0xc0,
        stop_pc: 0,
    }
}

/// The fields that emitted code reads or writes, at their offsets.
fn ctx_region(ctx: &RunCtx) -> Region {
    let mut bytes = vec![0; size_of::<RunCtx>()];
    let mut put = |offset: i32, field: &[u8]| bytes[offset as usize..][..field.len()].copy_from_slice(field);
    put(RunCtx::TAIL_CALLS_OFFSET, &ctx.tail_calls.to_le_bytes());
    put(RunCtx::STOP_CODE_OFFSET, &ctx.stop_code.to_le_bytes());
    put(RunCtx::STOP_INSN_OFFSET, &ctx.stop_insn.to_le_bytes());
    put(RunCtx::INTERRUPT_OFFSET, &ctx.interrupt.to_le_bytes());
    put(RunCtx::BUDGET_OFFSET, &ctx.budget.to_le_bytes());
    put(RunCtx::EXIT_SP_OFFSET, &ctx.exit_sp.to_le_bytes());
    put(RunCtx::EXIT_PC_OFFSET, &ctx.exit_pc.to_le_bytes());
    put(RunCtx::PACKET_OFFSET, &ctx.packet.to_le_bytes());
    put(RunCtx::PACKET_LEN_OFFSET, &ctx.packet_len.to_le_bytes());
    put(RunCtx::HOST_ENV_OFFSET, &ctx.host_env.to_le_bytes());
    put(RunCtx::SLOT_OFFSET, &ctx.slot.to_le_bytes());
    Region { base: core::ptr::from_ref(ctx) as u64, bytes }
}

/// The world outside, for the evaluator.
struct Outside {
    data: u64,
}

impl Env for Outside {
    fn symbol(&mut self, symbol: Symbol) -> u64 {
        address_of(symbol, self.data)
    }
    fn subprog(&mut self, subprog: SubprogId) -> u64 {
        panic!("the address of subprogram {} differs from host to host", subprog.0)
    }
    fn call(&mut self, symbol: Symbol, args: [Option<u64>; 5], _: Option<u64>) -> u64 {
        assert_eq!(symbol, POISON);
        poison_result(args.map(|a| a.unwrap()))
    }
    fn linked(&mut self, _: Symbol, _: u32) -> Option<u64> {
        None
    }
}

/// The address behind a symbol, as far as the tests have some. Only 48 bits, as all addresses of user space.
pub(crate) fn address_of(symbol: Symbol, data: u64) -> u64 {
    match symbol {
        POISON => poisoning_helper(),
        CALL_BACK => calling_helper(),
        DATA => data,
        Symbol { index: n, .. } => 0xabcd_1234_5678 + u64::from(n),
    }
}

/// Compiles `lir` in every way and compares each with the evaluator on every input. In an input, `None` is the address
/// of the middle of `words` words of data.
pub(crate) fn check(
    lir: &Lir,
    words: usize,
    inputs: &[[Option<u64>; 5]],
    budget: i64,
    ways: &[(AllocOptions, EmitOptions)],
) {
    let mut backend = Arm64::default();
    let codes: Vec<Code> =
        ways.iter().map(|(alloc, emit_options)| emit(&mut backend, lir, alloc, emit_options)).collect();
    let mut data = Data::new(words);
    let fresh = data.words.clone();
    // The mapping has landing pads on or off as a whole.
    let texts = [false, true].map(|guarded| {
        let here = codes.iter().zip(ways).filter(|(_, (_, e))| e.hardening.landing_pads == guarded);
        let codes: Vec<Code> = here.map(|(code, _)| code.clone()).collect();
        Text::load(&codes, &|s| address_of(s, data.address()), guarded)
    });
    let mut ctx = run_ctx();
    for input in inputs {
        let args = input.map(|a| a.unwrap_or(data.middle()));
        data.words.copy_from_slice(&fresh);
        ctx = RunCtx { budget, ..run_ctx() };
        let memory = vec![data.region(), ctx_region(&ctx)];
        let mut eval = Eval::new(memory, 0x7f00_0000_0000_0000);
        let ctx_address = core::ptr::from_ref(&ctx) as u64;
        let outcome = eval.run(lir, args, ctx_address, &mut Outside { data: data.address() }).unwrap();
        if !HOST {
            continue;
        }
        let mut next = [0usize; 2];
        for way in ways {
            data.words.copy_from_slice(&fresh);
            ctx = RunCtx { budget, ..run_ctx() };
            let guarded = usize::from(way.1.hardening.landing_pads);
            let result = texts[guarded].run(next[guarded], args, &mut ctx);
            next[guarded] += 1;
            let context = || format!("{args:x?} {way:?}\n{:#?}", lir.funcs[0].ops);
            match outcome {
                Outcome::Exit(value) => assert_eq!(result, value, "{}", context()),
                Outcome::Stop { code, insn } => {
                    assert_eq!((ctx.stop_code, ctx.stop_insn), (code as u32, insn), "{}", context());
                }
                Outcome::TailCall { .. } => panic!("no target was given"),
            }
            (ctx.exit_sp, ctx.exit_pc) = (0, 0);
            assert!(data.region() == eval.memory[0], "memory: {}", context());
            assert!(ctx_region(&ctx) == eval.memory[1], "RunCtx: {}", context());
        }
    }
    // Written by the code under test only.
    let _ = ctx;
}

/// Every allocation with every way of emitting.
pub(crate) fn all_ways(seeds: u64) -> Vec<(AllocOptions, EmitOptions)> {
    allocations(seeds).into_iter().flat_map(|a| emissions().map(|e| (a, e))).collect()
}

/// Every allocation, each with one way of emitting.
pub(crate) fn some_ways(seeds: u64) -> Vec<(AllocOptions, EmitOptions)> {
    allocations(seeds).into_iter().zip(emissions().into_iter().cycle()).collect()
}

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub(crate) fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    /// A border value, or noise of any length.
    pub(crate) fn value(&mut self) -> u64 {
        let shift = self.next() % 64;
        match self.below(3) {
            0 => self.of(&EDGES),
            1 => self.next() >> shift,
            _ => (self.next() as i64 >> shift) as u64,
        }
    }
    pub(crate) fn width(&mut self) -> Width {
        self.of(&[Width::W32, Width::W64])
    }
    pub(crate) fn size(&mut self) -> Size {
        self.of(&[Size::B, Size::H, Size::W, Size::DW])
    }
}
