//! Builds functions of the intermediate form by hand.

use bpf_isa::{Size, Width};
use bpf_jit::{Base, Block, BlockId, Func, Lir, Mem, Op, Span, VReg, Val};

/// A function under construction: ops, cut into blocks by [`Build::block`].
#[derive(Debug)]
pub struct Build {
    func: Func,
    starts: Vec<u32>,
}

impl Default for Build {
    fn default() -> Self {
        Build::new()
    }
}

impl Build {
    /// Creates an empty function.
    pub fn new() -> Build {
        Build { func: Func::default(), starts: vec![0] }
    }
    /// Creates a register.
    pub fn reg(&mut self) -> VReg {
        self.func.new_vreg()
    }
    /// The register of r1 (`i` is 0) to r5.
    pub fn param(&mut self, i: usize) -> VReg {
        let v = self.reg();
        self.func.params[i] = Some(v);
        v
    }
    /// r1 to r5.
    pub fn params(&mut self) -> [VReg; 5] {
        [0, 1, 2, 3, 4].map(|i| self.param(i))
    }
    /// The register of the hidden argument.
    pub fn ctx(&mut self) -> VReg {
        let v = self.reg();
        self.func.ctx = Some(v);
        v
    }
    /// Gives the function a stack.
    pub fn stack(&mut self, bytes: u32) {
        self.func.stack_bytes = bytes;
    }
    /// Appends an op.
    pub fn op(&mut self, op: Op) {
        let first = self.func.ops.len() as u32;
        self.func.ops.push(op);
        self.func.spans.push(Span { first, len: 1 });
    }
    /// Starts a block here and returns its number; if the current block is empty, returns that.
    pub fn block(&mut self) -> BlockId {
        let here = self.func.ops.len() as u32;
        if self.starts.last() != Some(&here) {
            self.starts.push(here);
        }
        BlockId(self.starts.len() as u32 - 1)
    }
    /// Copies a value.
    pub fn copy(&mut self, src: VReg) -> VReg {
        let dst = self.reg();
        self.op(Op::Mov { width: Width::W64, dst, src: Val::Reg(src) });
        dst
    }
    /// Creates a register with a constant.
    pub fn imm(&mut self, value: u64) -> VReg {
        let dst = self.reg();
        self.set(dst, value);
        dst
    }
    /// Sets a register to a constant.
    pub fn set(&mut self, dst: VReg, value: u64) {
        self.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(value as i64) });
    }
    /// Loads 64 bits.
    pub fn load(&mut self, mem: Mem) -> VReg {
        let dst = self.reg();
        self.load_to(dst, mem);
        dst
    }
    /// Loads 64 bits into a register.
    pub fn load_to(&mut self, dst: VReg, mem: Mem) {
        self.op(Op::Load { size: Size::DW, signed: false, swap: false, dst, mem });
    }
    /// Stores 64 bits.
    pub fn store(&mut self, base: VReg, off: i32, src: VReg) {
        self.op(Op::Store { size: Size::DW, mem: at(base, off), src: Val::Reg(src) });
    }
    /// Returns a value.
    pub fn exit(&mut self, value: VReg) {
        self.op(Op::Exit { value });
    }
    /// Stores these values where the test reads them, one word each from `off` on.
    pub fn keep(&mut self, base: VReg, off: i32, values: &[VReg]) {
        for (i, v) in values.iter().enumerate() {
            self.store(base, off + 8 * i as i32, *v);
        }
    }
    /// Completes the function.
    pub fn finish(mut self) -> Func {
        let ends = self.starts[1..].iter().copied().chain([self.func.ops.len() as u32]);
        for (start, end) in self.starts.iter().zip(ends) {
            self.func.order.push(BlockId(self.func.blocks.len() as u32));
            self.func.blocks.push(Block { ops: *start..end });
        }
        self.func
    }
    /// A program with this function only.
    pub fn alone(self) -> Lir {
        Lir { funcs: vec![self.finish()] }
    }
}

/// Memory at a register.
pub(crate) fn at(base: VReg, off: i32) -> Mem {
    Mem::new(Base::Reg(base), off)
}

/// Memory in the function's stack.
pub(crate) fn in_frame(off: i32) -> Mem {
    Mem::new(Base::Frame, off)
}
