//! What the tests of this backend share: building Lir by hand, a repeatable source of choices, and (`native`) running
//! code.
#![allow(dead_code, reason = "each test file uses a part of it")]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod native;
pub(crate) mod random;

use bpf_isa::{Size, Width};
use bpf_jit::{
    Alloc, AllocOptions, Allocator, Backend, Base, Block, BlockId, EmitOptions, Func, HostRegSet, Lir, Mem, Op, Span,
    VReg, Val,
};
use bpf_jit_code::{Arch, Code};
use bpf_jit_x64::X64;

/// splitmix64: choices that a failing test can repeat from its seed.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
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
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    pub(crate) fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// Values at which arithmetic goes wrong first.
pub(crate) const EDGES: [u64; 20] = [
    0,
    1,
    2,
    7,
    31,
    32,
    63,
    64,
    0x7f,
    0x80,
    0xff,
    0x1234,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x0123_4567_89ab_cdef,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX,
];

/// A function under construction: ops, cut into blocks by [`Build::block`].
#[derive(Default)]
pub(crate) struct Build {
    func: Func,
    starts: Vec<u32>,
}

impl Build {
    pub(crate) fn new() -> Build {
        Build { func: Func::default(), starts: vec![0] }
    }
    pub(crate) fn reg(&mut self) -> VReg {
        self.func.vregs += 1;
        VReg(self.func.vregs - 1)
    }
    pub(crate) fn param(&mut self, i: usize) -> VReg {
        let v = self.reg();
        self.func.params[i] = Some(v);
        v
    }
    pub(crate) fn ctx(&mut self) -> VReg {
        let v = self.reg();
        self.func.ctx = Some(v);
        v
    }
    pub(crate) fn stack(&mut self, bytes: u32) {
        self.func.stack_bytes = bytes;
    }
    pub(crate) fn op(&mut self, op: Op) {
        let first = self.func.ops.len() as u32;
        self.func.ops.push(op);
        self.func.spans.push(Span { first, len: 1 });
    }
    /// Starts a block here and returns its number; an empty current block is it.
    pub(crate) fn block(&mut self) -> BlockId {
        let here = self.func.ops.len() as u32;
        if *self.starts.last().unwrap() != here {
            self.starts.push(here);
        }
        BlockId(self.starts.len() as u32 - 1)
    }
    pub(crate) fn imm(&mut self, value: u64) -> VReg {
        let dst = self.reg();
        self.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(value as i64) });
        dst
    }
    pub(crate) fn store(&mut self, base: VReg, off: i32, src: VReg) {
        self.op(Op::Store { size: Size::DW, mem: Mem::new(Base::Reg(base), off), src: Val::Reg(src) });
    }
    pub(crate) fn exit(&mut self, value: VReg) {
        self.op(Op::Exit { value });
    }
    /// Cuts the blocks.
    pub(crate) fn finish(mut self) -> Func {
        let ends = self.starts[1..].iter().copied().chain([self.func.ops.len() as u32]);
        for (start, end) in self.starts.iter().zip(ends) {
            self.func.order.push(BlockId(self.func.blocks.len() as u32));
            self.func.blocks.push(Block { ops: *start..end });
        }
        self.func
    }
}

/// The allocations every program is tried under: what production does, three registers, none, and some random ones.
pub(crate) fn allocations(backend: &X64, options: &EmitOptions, random: u64, seed: u64) -> Vec<AllocOptions> {
    let three = backend.machine(options).pool[..3].iter().fold(HostRegSet::EMPTY, |mut set, r| {
        set.insert(*r);
        set
    });
    let mut out = vec![
        AllocOptions::default(),
        AllocOptions { only: Some(three), seed: None },
        AllocOptions { only: Some(HostRegSet::EMPTY), seed: None },
    ];
    out.extend((0..random).map(|i| AllocOptions { only: None, seed: Some(seed.wrapping_mul(31).wrapping_add(i)) }));
    out
}

/// Allocates and emits.
pub(crate) fn emit(backend: &mut X64, lir: &Lir, alloc: &AllocOptions, options: &EmitOptions) -> Code {
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
    let mut code = Code::new(Arch::X64);
    backend.emit(lir, &allocs, options, &mut code).expect("emits");
    assert!(code.bytes.len() <= bpf_jit_x64::program_size_bound(lir), "size bound");
    code
}
