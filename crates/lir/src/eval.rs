//! A naive evaluator of [`Lir`], the definition of the results that a backend's code must compute.
//!
//! One match over [`Op`], each arm the op's definition in plain arithmetic (for [`crate::BinOp`] see there), sharing
//! no code with any backend. Memory is a list of byte regions at given addresses, so that a test can use the
//! addresses that native code sees; the hidden argument is a [`RunCtx`] in one of them. External functions, symbols
//! and linked tail calls are provided by an [`Env`].
//!
//! Slow on purpose: its correctness must be obvious.

use crate::op::{bswap, extend, narrow};
use crate::{AtomicOp, Base, CallTarget, Check, Func, Lir, Mem, Op, TailKey, VReg, Val};
use bpf_isa::{Size, SubprogId, Width};
use bpf_jit_code::{RunCtx, StopCode, Symbol, TAIL_CALL_LIMIT};

/// The externals that a program refers to.
pub trait Env {
    /// The address of a symbol.
    fn symbol(&mut self, symbol: Symbol) -> u64;
    /// The address of a function of the program.
    fn subprog(&mut self, subprog: SubprogId) -> u64;
    /// Calls an external function.
    fn call(&mut self, symbol: Symbol, args: [Option<u64>; 5], ctx: Option<u64>) -> u64;
    /// The entry that a direct tail-call site is linked to, if any.
    fn linked(&mut self, table: Symbol, index: u32) -> Option<u64>;
}

/// Memory at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Address of the first byte.
    pub base: u64,
    /// Content.
    pub bytes: Vec<u8>,
}

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The program ended with this result.
    Exit(u64),
    /// The code stopped the run; the stop fields of [`RunCtx`] are set.
    Stop {
        /// The reason.
        code: StopCode,
        /// The instruction.
        insn: u32,
    },
    /// Replaced by another program.
    TailCall {
        /// Its entry.
        entry: u64,
        /// Its r1.
        arg: u64,
        /// Its hidden argument.
        ctx: u64,
        /// Its r2, if the site reloads it.
        len: Option<u64>,
    },
}

/// The reason why there is no outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EvalError {
    /// An access outside all regions.
    Memory {
        /// Its address.
        addr: u64,
        /// Its size in bytes.
        size: u32,
    },
    /// The fuel is used up.
    Fuel,
    /// The code is not well formed.
    Malformed(&'static str),
}

/// The evaluator.
#[derive(Clone, Debug)]
pub struct Eval {
    /// All memory except the BPF stacks.
    pub memory: Vec<Region>,
    /// Ops left to evaluate.
    pub fuel: u64,
    /// One past the highest byte of the next frame's stack.
    pub stack_top: u64,
}

impl Eval {
    /// Creates an evaluator with this memory, and stacks below `stack_top`, which must not overlap it.
    pub fn new(memory: Vec<Region>, stack_top: u64) -> Eval {
        Eval { memory, fuel: 1 << 20, stack_top }
    }

    /// Runs function 0 with these arguments.
    pub fn run(&mut self, lir: &Lir, args: [u64; 5], ctx: u64, env: &mut dyn Env) -> Result<Outcome, EvalError> {
        self.function(lir, SubprogId(0), args, ctx, env)
    }

    /// Reads `size` bytes, little-endian.
    pub fn load(&self, addr: u64, size: Size) -> Result<u64, EvalError> {
        let (region, at) = self.find(addr, size)?;
        let mut bytes = [0; 8];
        bytes[..size.bytes() as usize].copy_from_slice(&self.memory[region].bytes[at..at + size.bytes() as usize]);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes the low `size` bytes of `value`, little-endian.
    pub fn store(&mut self, addr: u64, size: Size, value: u64) -> Result<(), EvalError> {
        let (region, at) = self.find(addr, size)?;
        let n = size.bytes() as usize;
        self.memory[region].bytes[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
        Ok(())
    }

    fn find(&self, addr: u64, size: Size) -> Result<(usize, usize), EvalError> {
        let size = size.bytes();
        for (i, region) in self.memory.iter().enumerate() {
            let at = addr.wrapping_sub(region.base);
            if at < region.bytes.len() as u64 && region.bytes.len() as u64 - at >= u64::from(size) {
                return Ok((i, usize::try_from(at).unwrap_or(usize::MAX)));
            }
        }
        Err(EvalError::Memory { addr, size })
    }

    fn field(ctx: u64, offset: i32) -> u64 {
        ctx.wrapping_add_signed(offset.into())
    }

    fn function(
        &mut self,
        lir: &Lir,
        id: SubprogId,
        args: [u64; 5],
        ctx: u64,
        env: &mut dyn Env,
    ) -> Result<Outcome, EvalError> {
        let func = lir.funcs.get(id.0 as usize).ok_or(EvalError::Malformed("no such function"))?;
        let frame = self.stack_top;
        let bytes = vec![0; func.stack_bytes as usize];
        self.stack_top -= u64::from(func.stack_bytes);
        self.memory.push(Region { base: self.stack_top, bytes });
        let outcome = self.body(lir, func, frame, args, ctx, env);
        self.memory.pop();
        self.stack_top = frame;
        outcome
    }

    fn body(
        &mut self,
        lir: &Lir,
        func: &Func,
        frame: u64,
        args: [u64; 5],
        ctx: u64,
        env: &mut dyn Env,
    ) -> Result<Outcome, EvalError> {
        let mut regs = vec![0u64; func.vregs as usize];
        for (param, value) in func.params.iter().zip(args).chain([(&func.ctx, ctx)]) {
            if let Some(v) = param {
                regs[v.index()] = value;
            }
        }
        let runs_off = EvalError::Malformed("control runs off the end");
        // The block's index in the order, and the op's in the block.
        let (mut place, mut at) = (0, 0);
        loop {
            let block = *func.order.get(place).ok_or(runs_off)?;
            let range = func.range(block);
            if at == range.len() {
                (place, at) = (place + 1, 0);
                continue;
            }
            let (op, insn) = (func.ops[range.start + at], func.spans[range.start + at].first);
            self.fuel = self.fuel.checked_sub(1).ok_or(EvalError::Fuel)?;
            at += 1;

            let get = |v: VReg| regs[v.index()];
            let val = |v: Val| match v {
                Val::Reg(v) => regs[v.index()],
                Val::Imm(imm) => imm as u64,
            };
            let address = |m: Mem| {
                let base = match m.base {
                    Base::Reg(v) => regs[v.index()],
                    Base::Frame => frame,
                    Base::Indexed { base, index, shift } => {
                        regs[base.index()].wrapping_add(regs[index.index()] << shift)
                    }
                };
                base.wrapping_add_signed(m.off.into())
            };
            let target = |block: crate::BlockId| {
                let place = func.order.iter().position(|b| *b == block);
                place.map(|place| (place, 0)).ok_or(EvalError::Malformed("a jump to a block without a place"))
            };

            match op {
                Op::Mov { width, dst, src } => regs[dst.index()] = narrow(width, val(src)),
                Op::Ext { width, signed, from, dst, src } => {
                    regs[dst.index()] = narrow(width, extend(signed, from, get(src)));
                }
                Op::Bin { op, width, dst, a, b } => regs[dst.index()] = op.apply(width, get(a), val(b)),
                Op::Neg { width, dst, src } => regs[dst.index()] = narrow(width, get(src).wrapping_neg()),
                Op::Bswap { size, dst, src } => regs[dst.index()] = bswap(size, get(src)),
                Op::AddShift { width, dst, a, b, shift } => {
                    regs[dst.index()] = narrow(width, get(a).wrapping_add(get(b) << shift));
                }
                Op::Select { width, cond, a, b, dst, yes, no } => {
                    regs[dst.index()] = if cond.holds(width, get(a), val(b)) { get(yes) } else { get(no) };
                }
                Op::Confine { a, limit, dst, yes, no } => {
                    regs[dst.index()] = if get(a) < val(limit) { get(yes) } else { get(no) };
                }
                Op::FrameAddr { dst, off } => regs[dst.index()] = frame.wrapping_add_signed(off.into()),
                Op::SymAddr { dst, symbol } => regs[dst.index()] = env.symbol(symbol),
                Op::SubprogAddr { dst, subprog } => regs[dst.index()] = env.subprog(subprog),
                Op::Load { size, signed, swap, dst, mem } => {
                    let value = self.load(address(mem), size)?;
                    let value = if swap { bswap(size, value) } else { value };
                    regs[dst.index()] = extend(signed, size, value);
                }
                Op::LoadAcquire { size, dst, mem } => regs[dst.index()] = self.load(address(mem), size)?,
                Op::Store { size, mem, src } => self.store(address(mem), size, val(src))?,
                Op::StoreRelease { size, mem, src } => self.store(address(mem), size, get(src))?,
                Op::Atomic { op, width, mem, src, fetch } => {
                    let old = self.load(address(mem), access(width))?;
                    let src = get(src);
                    let new = match op {
                        AtomicOp::Add => old.wrapping_add(src),
                        AtomicOp::Or => old | src,
                        AtomicOp::And => old & src,
                        AtomicOp::Xor => old ^ src,
                        AtomicOp::Xchg => src,
                    };
                    self.store(address(mem), access(width), new)?;
                    if let Some(dst) = fetch {
                        regs[dst.index()] = old;
                    }
                }
                Op::CmpXchg { width, mem, expected, new, dst } => {
                    let old = self.load(address(mem), access(width))?;
                    if old == narrow(width, get(expected)) {
                        self.store(address(mem), access(width), get(new))?;
                    }
                    regs[dst.index()] = old;
                }
                Op::Call { target, args, ctx, ret } => {
                    let args = args.map(|a| a.map(get));
                    let ctx = ctx.map(get);
                    let result = match target {
                        CallTarget::Extern(symbol) => env.call(symbol, args, ctx),
                        CallTarget::Subprog(id) => {
                            let args = args.map(|a| a.unwrap_or(0));
                            match self.function(lir, id, args, ctx.unwrap_or(0), env)? {
                                Outcome::Exit(value) => value,
                                // A tail call in a subprogram returns to the subprogram's caller, with a result that
                                // only its target determines.
                                Outcome::TailCall { .. } => {
                                    return Err(EvalError::Malformed("the target of a nested tail call is unknown"));
                                }
                                stop @ Outcome::Stop { .. } => return Ok(stop),
                            }
                        }
                    };
                    if let Some(dst) = ret {
                        regs[dst.index()] = result;
                    }
                }
                Op::TailCall { key, arg, ctx, reload_len } => {
                    let entry = match key {
                        TailKey::Const { table, index } => env.linked(table, index),
                        TailKey::Dynamic { table, index } => {
                            let index = narrow(Width::W32, get(index));
                            if index < self.load(get(table), Size::W)? {
                                let entry = self.load(get(table).wrapping_add(8 + 8 * index), Size::DW)?;
                                Some(entry).filter(|e| *e != 0)
                            } else {
                                None
                            }
                        }
                    };
                    let ctx = get(ctx);
                    let count = Self::field(ctx, RunCtx::TAIL_CALLS_OFFSET);
                    let taken = self.load(count, Size::W)?;
                    if let Some(entry) = entry
                        && taken < u64::from(TAIL_CALL_LIMIT)
                    {
                        self.store(count, Size::W, taken + 1)?;
                        let len = match reload_len {
                            true => Some(self.load(Self::field(ctx, RunCtx::PACKET_LEN_OFFSET), Size::DW)?),
                            false => None,
                        };
                        return Ok(Outcome::TailCall { entry, arg: get(arg), ctx, len });
                    }
                }
                Op::Check { check, ctx } => {
                    let ctx = get(ctx);
                    let (fails, code) = match check {
                        Check::Budget(times) => {
                            let budget = Self::field(ctx, RunCtx::BUDGET_OFFSET);
                            let left = self.load(budget, Size::DW)?.wrapping_sub(times.into());
                            self.store(budget, Size::DW, left)?;
                            ((left as i64) < 0, StopCode::Budget)
                        }
                        Check::Interrupt => {
                            let asked = self.load(Self::field(ctx, RunCtx::INTERRUPT_OFFSET), Size::W)?;
                            (asked >> 31 & 1 != 0, StopCode::Interrupted)
                        }
                    };
                    if fails {
                        return self.stop(ctx, code, insn);
                    }
                }
                Op::Bound { a, limit, ctx } => {
                    if get(a) >= val(limit) {
                        return self.stop(get(ctx), StopCode::Access, insn);
                    }
                }
                Op::Stop { code, ctx } => {
                    let ctx = get(ctx);
                    return self.stop(ctx, code, insn);
                }
                Op::Jump { target: block } => (place, at) = target(block)?,
                Op::Branch { width, cond, a, b, target: block } => {
                    if cond.holds(width, get(a), val(b)) {
                        (place, at) = target(block)?;
                    }
                }
                Op::Exit { value } => return Ok(Outcome::Exit(get(value))),
            }
        }
    }

    fn stop(&mut self, ctx: u64, code: StopCode, insn: u32) -> Result<Outcome, EvalError> {
        self.store(Self::field(ctx, RunCtx::STOP_CODE_OFFSET), Size::W, code as u64)?;
        self.store(Self::field(ctx, RunCtx::STOP_INSN_OFFSET), Size::W, insn.into())?;
        Ok(Outcome::Stop { code, insn })
    }
}

fn access(width: Width) -> Size {
    match width {
        Width::W32 => Size::W,
        Width::W64 => Size::DW,
    }
}
