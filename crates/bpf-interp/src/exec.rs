//! The interpreter loop: one function that executes one frame, and calls itself for calls.
//!
//! A tail call replaces the program that the function executes, so a tail call in a subprogram returns to that
//! subprogram's caller, as required. The recursion is bounded: within one program by validation, and again here for
//! callbacks, whose addresses a program may forge. A run enters at most [`MAX_TAIL_CALLS`] programs by tail calls.
//! Since the callers of a function that makes a tail call stay, a run has up to [`MAX_CALL_DEPTH`] frames of each
//! program. The host is asked before each nested frame whether its own stack suffices ([`Env::enters`]).

use core::borrow::Borrow;

use bpf_isa::{
    AddrSpace, Callee, Imm64, Insn, InsnIdx, MAX_CALL_DEPTH, MAY_GOTO_BUDGET, Program, Reg, Size, Src, SubprogId,
};
use bpf_uapi::legacy_load::LegacyBase;

use crate::alu::{self, low};
use crate::machine::{Caller, Frame, MAX_TAIL_CALLS, Machine, callback_address, callback_slot};
use crate::{Env, Step, Stop, StopKind};
use bpf_uapi::helper_id::TAIL_CALL;

impl Machine<'_> {
    /// Runs a program with `r1` and `r2`, and returns its r0. All other registers but r10 begin as zero.
    ///
    /// The budget is not renewed: all runs of a machine share it. The count of tail calls starts anew with each run.
    ///
    /// # Errors
    /// [`Stop`]: the run ended without a result.
    pub fn run<E: Env + ?Sized>(&mut self, env: &mut E, code: &E::Code, [r1, r2]: [u64; 2]) -> Result<u64, Stop> {
        self.r2 = r2;
        self.tail_calls = 0;
        let outer = self.memory.frames();
        let result = run(self, env, code, Frame { pc: InsnIdx(0), program: 0, depth: 1 }, [r1, r2, 0, 0, 0]);
        self.memory.pop_frames_to(outer);
        result
    }
}

impl Machine<'_> {
    /// Runs a single subprogram of a program, and returns its r0. `function` is its address as the program sees it,
    /// from `r2 = subprog[...]`. Otherwise as [`Machine::run`].
    ///
    /// # Errors
    /// [`StopKind::BadCallback`], and whatever stops the subprogram.
    pub fn run_function<E: Env + ?Sized>(
        &mut self,
        env: &mut E,
        code: &E::Code,
        function: u64,
        args: [u64; 5],
    ) -> Result<u64, Stop> {
        self.r2 = 0;
        self.tail_calls = 0;
        let mut frame = Frame { pc: InsnIdx(0), program: 0, depth: 1 };
        frame.pc = function_at(code.borrow(), function).ok_or_else(|| frame.stop(StopKind::BadCallback(function)))?;
        let outer = self.memory.frames();
        let result = run(self, env, code, frame, args);
        self.memory.pop_frames_to(outer);
        result
    }
}

/// The first instruction of the subprogram with this address; never that of the main program.
fn function_at(program: &Program, address: u64) -> Option<InsnIdx> {
    callback_slot(address).filter(|&slot| matches!(program.subprog_starting_at(slot), Some(id) if id != SubprogId(0)))
}

/// The instruction that an indirect jump at `at` may reach by this number.
fn indirect_target(program: &Program, at: InsnIdx, named: u64) -> Option<InsnIdx> {
    let target = InsnIdx::of_target_number(named)?;
    let targets = program.indirect_targets(program.subprog_of(at));
    targets.binary_search(&target).ok().map(|_| target)
}

/// The first instruction of the subprogram with this address, if the call through a register at `at` may call it.
fn indirect_callee(program: &Program, at: InsnIdx, address: u64) -> Option<InsnIdx> {
    let slot = function_at(program, address)?;
    let callee = program.subprog_starting_at(slot)?;
    let callees = program.indirect_callees(program.subprog_of(at));
    callees.binary_search_by_key(&callee, |pair| pair.callee).ok().map(|_| slot)
}

impl<C> Caller<'_, '_, C> {
    /// Calls back a subprogram of the calling program, and returns its r0. `callback` is its address as the program
    /// sees it, from `r2 = subprog[...]`.
    ///
    /// # Errors
    /// [`StopKind::BadCallback`], [`StopKind::CallDepth`], and whatever stops the subprogram.
    pub fn call<E: Env<Code = C> + ?Sized>(&mut self, env: &mut E, callback: u64, args: [u64; 5]) -> Result<u64, Stop>
    where
        C: Borrow<Program>,
    {
        let program = self.code.borrow();
        let slot = function_at(program, callback).ok_or_else(|| self.stop(StopKind::BadCallback(callback)))?;
        tick(self.machine, env, self.code, None).map_err(|kind| self.stop(kind))?;
        call(self.machine, env, self.code, self.frame, slot, args)
    }
}

/// Calls the subprogram at `slot` from `caller`, and leaves its frame again.
pub(crate) fn call<E: Env + ?Sized>(
    machine: &mut Machine<'_>,
    env: &mut E,
    code: &E::Code,
    caller: Frame,
    slot: InsnIdx,
    args: [u64; 5],
) -> Result<u64, Stop> {
    if caller.depth >= MAX_CALL_DEPTH {
        return Err(caller.stop(StopKind::CallDepth));
    }
    env.enters(machine).map_err(|kind| caller.stop(kind))?;
    let outer = machine.memory.frames();
    let frame = Frame { pc: slot, program: caller.program, depth: caller.depth + 1 };
    let result = run(machine, env, code, frame, args);
    machine.memory.pop_frames_to(outer);
    result.map_err(|mut stop| {
        stop.callers.push((caller.program, caller.pc));
        stop
    })
}

/// Executes from `frame.pc` to the frame's exit, and returns r0. The caller leaves the stack frame.
pub(crate) fn run<E: Env + ?Sized>(
    machine: &mut Machine<'_>,
    env: &mut E,
    code: &E::Code,
    frame: Frame,
    args: [u64; 5],
) -> Result<u64, Stop> {
    // The caller's program continues under its own limits, whatever programs this frame enters.
    let limits = machine.limits();
    let result = run_entered(machine, env, code, frame, args);
    machine.restore(limits);
    result
}

/// Executes as [`run`] does, and leaves the limits of the last program that was entered.
#[inline(always)]
fn run_entered<E: Env + ?Sized>(
    machine: &mut Machine<'_>,
    env: &mut E,
    code: &E::Code,
    mut frame: Frame,
    mut args: [u64; 5],
) -> Result<u64, Stop> {
    let outer = machine.memory.frames();
    // The program that the last tail call of this frame entered.
    let mut entered: Option<E::Code> = None;
    loop {
        let mut regs = Registers::new(args, machine.memory.push_frame());
        let current = entered.as_ref().unwrap_or(code);
        if machine.memory.is_filled()
            && let Some((depth, bytes)) = env.zeroed(current, frame.pc)
        {
            machine.memory.zero(depth, bytes);
        }
        match run_program(machine, env, current, &mut frame, &mut regs) {
            Ok(Exit::Return) => return Ok(regs.get(Reg::R0)),
            Ok(Exit::TailCall(next)) => {
                machine.memory.pop_frames_to(outer);
                frame = Frame { pc: InsnIdx(0), program: machine.tail_calls, depth: 1 };
                args = [regs.get(Reg::R1), machine.r2, 0, 0, 0];
                entered = Some(next);
            }
            Err(Halt::Here(kind)) => return Err(frame.stop(kind)),
            Err(Halt::Inside(stop)) => return Err(stop),
        }
    }
}

/// How a frame leaves its current program.
enum Exit<C> {
    /// The function returns r0 to its caller.
    Return,
    /// The run continues in this program, with r1 unchanged.
    TailCall(C),
}

/// The reason why a frame cannot continue.
enum Halt {
    /// The instruction at `pc` failed.
    Here(StopKind),
    /// An instruction of a frame that this one called failed.
    Inside(Stop),
}

impl From<StopKind> for Halt {
    fn from(kind: StopKind) -> Halt {
        Halt::Here(kind)
    }
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Halt {
        Halt::Inside(stop)
    }
}

/// The registers of a frame.
struct Registers([u64; 11]);

impl Registers {
    fn new([r1, r2, r3, r4, r5]: [u64; 5], r10: u64) -> Registers {
        Registers([0, r1, r2, r3, r4, r5, 0, 0, 0, 0, r10])
    }
    fn get(&self, reg: Reg) -> u64 {
        self.0[reg.index()]
    }
    fn set(&mut self, reg: Reg, value: u64) {
        self.0[reg.index()] = value;
    }
    /// A second operand; an immediate is sign-extended.
    fn operand(&self, src: Src) -> u64 {
        match src {
            Src::Reg(reg) => self.get(reg),
            Src::Imm(imm) => imm as u64,
        }
    }
    fn args(&self) -> [u64; 5] {
        Reg::ARGS.map(|reg| self.get(reg))
    }
}

/// The target of a taken jump or callback reference. Validation has checked that it exists.
#[inline]
fn target(at: InsnIdx, off: i32) -> Result<InsnIdx, StopKind> {
    at.jump(off).ok_or(StopKind::Internal("a jump leads out of the program"))
}

/// Takes a jump; a backward jump counts against the budget.
#[inline]
fn jump<E: Env + ?Sized>(
    machine: &mut Machine<'_>,
    env: &mut E,
    code: &E::Code,
    at: InsnIdx,
    off: i32,
) -> Result<InsnIdx, StopKind> {
    let target = target(at, off)?;
    if target <= at {
        tick(machine, env, code, Some(target))?;
    }
    Ok(target)
}

/// Counts a taken back-edge to `head`, or a call.
#[inline]
fn tick<E: Env + ?Sized>(
    machine: &mut Machine<'_>,
    env: &mut E,
    code: &E::Code,
    head: Option<InsnIdx>,
) -> Result<(), StopKind> {
    match machine.tick() {
        Err(StopKind::Budget) => {
            let ticks = env.spent(head, code)?;
            machine.renew(ticks)?;
            machine.tick()
        }
        ticked => ticked,
    }
}

fn run_program<E: Env + ?Sized>(
    machine: &mut Machine<'_>,
    env: &mut E,
    code: &E::Code,
    frame: &mut Frame,
    regs: &mut Registers,
) -> Result<Exit<E::Code>, Halt> {
    let program: &Program = code.borrow();
    let insns = program.insns();
    // One counter per frame, however many may_goto it has, as in the kernel.
    let mut passes = MAY_GOTO_BUDGET;
    loop {
        let pc = frame.pc;
        let Some(insn) = insns.get(pc.index()) else {
            return Err(Halt::Here(StopKind::Internal("execution left the program")));
        };
        let step = Step { code, at: pc, regs: &regs.0 };
        env.observe(&step, machine);
        if !env.admits(&step) {
            return Err(Halt::Here(StopKind::NotAdmitted));
        }
        let mut next = InsnIdx(pc.0 + 1);
        match *insn {
            Insn::Alu { width, op, dst, src } => {
                regs.set(dst, alu::alu(width, op, regs.get(dst), regs.operand(src)));
            }
            Insn::Mov { width, dst, src } => regs.set(dst, alu::truncate(width, regs.operand(src))),
            Insn::MovSx { width, dst, src, from } => regs.set(dst, alu::sign_extend(width, from, regs.get(src))),
            Insn::Cast { dst, src, to } => {
                let half = u64::from(low(regs.get(src)));
                regs.set(
                    dst,
                    match to {
                        AddrSpace::User if half != 0 => env.user_half(code) | half,
                        AddrSpace::User | AddrSpace::Kernel => half,
                    },
                );
            }
            Insn::Neg { width, dst } => regs.set(dst, alu::neg(width, regs.get(dst))),
            Insn::End { order, width, dst } => regs.set(dst, alu::end(order, width, regs.get(dst))),
            Insn::LoadImm64 { dst, imm } => {
                let value = match imm {
                    Imm64::Const(value) => value,
                    Imm64::Func(off) => callback_address(target(pc, off)?),
                    Imm64::Map(_)
                    | Imm64::MapValue { .. }
                    | Imm64::Var(_)
                    | Imm64::MapIdx(_)
                    | Imm64::MapIdxValue { .. } => env.resolve(code, imm).ok_or(StopKind::Unresolved(imm))?,
                };
                regs.set(dst, value);
                next = InsnIdx(pc.0 + 2);
            }
            Insn::SecondSlot => return Err(Halt::Here(StopKind::Internal("execution reached a second slot"))),
            Insn::Load { size, sign, dst, base, off } => {
                let at = env.address(&step, regs.get(base), off);
                let value = machine.place(env, at, size, false)?.load();
                regs.set(dst, if sign { sign_extended(size, value) } else { value });
            }
            Insn::Store { size, base, off, src } => {
                let at = env.address(&step, regs.get(base), off);
                machine.place(env, at, size, true)?.store(regs.operand(src));
            }
            Insn::Atomic { width, op, base, off, src } => {
                let at = env.address(&step, regs.get(base), off);
                let place = machine.atomic_place(env, at, width.into(), true)?;
                let old = place
                    .modify(op, regs.get(src), regs.get(Reg::R0))
                    .ok_or(StopKind::Internal("an aligned place is not aligned"))?;
                if let Some(result) = op.result(src) {
                    regs.set(result, old);
                }
            }
            Insn::LoadAcquire { size, dst, base, off } => {
                let at = env.address(&step, regs.get(base), off);
                let place = machine.atomic_place(env, at, size, false)?;
                regs.set(dst, place.load_acquire());
            }
            Insn::StoreRelease { size, base, off, src } => {
                let at = env.address(&step, regs.get(base), off);
                let place = machine.atomic_place(env, at, size, true)?;
                place.store_release(regs.get(src)).ok_or(StopKind::Internal("an aligned place is not aligned"))?;
            }
            Insn::LoadAbs { size, imm } => match load_packet(machine, env, code, imm as u32, size)? {
                Some(value) => regs.set(Reg::R0, value),
                None => {
                    regs.set(Reg::R0, 0);
                    return Ok(Exit::Return);
                }
            },
            Insn::LoadInd { size, src, imm } => {
                let offset = low(regs.get(src)).wrapping_add(imm as u32);
                match load_packet(machine, env, code, offset, size)? {
                    Some(value) => regs.set(Reg::R0, value),
                    None => {
                        regs.set(Reg::R0, 0);
                        return Ok(Exit::Return);
                    }
                }
            }
            Insn::Jump { off, wide: _ } => next = jump(machine, env, code, pc, off)?,
            Insn::JumpReg { target } => {
                let named = regs.get(target);
                next = indirect_target(program, pc, named).ok_or(StopKind::BadJump(named))?;
                if next <= pc {
                    tick(machine, env, code, Some(next))?;
                }
            }
            Insn::JumpIf { width, cond, dst, src, off } => {
                if cond.holds(width, regs.get(dst), regs.operand(src)) {
                    next = jump(machine, env, code, pc, off.into())?;
                }
            }
            Insn::MayGoto { off } => {
                if passes == 0 {
                    next = jump(machine, env, code, pc, off.into())?;
                } else {
                    passes -= 1;
                }
            }
            Insn::Call(callee) => {
                tick(machine, env, code, None)?;
                let args = regs.args();
                let mut caller = Caller { machine: &mut *machine, code, frame: *frame };
                let value = match callee {
                    Callee::Subprog(off) => call(machine, env, code, *frame, target(pc, off)?, args)?,
                    Callee::Reg(reg) => {
                        let address = regs.get(reg);
                        let program = code.borrow();
                        let slot = indirect_callee(program, pc, address).ok_or(StopKind::BadCall(address))?;
                        call(machine, env, code, *frame, slot, args)?
                    }
                    Callee::Helper(TAIL_CALL) => {
                        if caller.machine.tail_calls < MAX_TAIL_CALLS {
                            // The index is 32 bits wide, whatever the upper half of r3 holds.
                            if let Some(next) = env.tail_call(args[1], low(args[2]), &mut caller)? {
                                machine.tail_calls += 1;
                                return Ok(Exit::TailCall(next));
                            }
                        }
                        // A tail call that is not taken continues with the next instruction. Its result has no
                        // meaning, but must be equal on all engines.
                        u64::MAX
                    }
                    Callee::Helper(id) => env.helper(id, args, &mut caller)?,
                    Callee::Host(id) => env.host_function(id, args, &mut caller)?,
                };
                regs.set(Reg::R0, value);
                if machine.thrown {
                    if frame.depth == 1 {
                        machine.thrown = false;
                        if let Some(callback) = env.exception(code) {
                            tick(machine, env, code, None)?;
                            let value = call(machine, env, code, *frame, callback, [value, 0, 0, 0, 0])?;
                            regs.set(Reg::R0, value);
                        }
                    }
                    return Ok(Exit::Return);
                }
            }
            Insn::Exit => return Ok(Exit::Return),
        }
        frame.pc = next;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the bits above are what is to be replaced")]
fn sign_extended(size: Size, value: u64) -> u64 {
    match size {
        Size::B => value as i8 as u64,
        Size::H => value as i16 as u64,
        Size::W => value as i32 as u64,
        Size::DW => value,
    }
}

/// Packet bytes in network order; `None` if the packet ends before.
fn load_packet<E: Env + ?Sized>(
    machine: &Machine<'_>,
    env: &mut E,
    code: &E::Code,
    offset: u32,
    size: Size,
) -> Result<Option<u64>, StopKind> {
    let Some((base, offset)) = LegacyBase::split(offset) else { return Ok(None) };
    let header = match base {
        LegacyBase::Packet => Some(0),
        LegacyBase::Link | LegacyBase::Network => env.header(code, base),
    };
    let at = header.and_then(|header| header.checked_add(offset.into()));
    let Some(addr) = at.and_then(|at| machine.memory.packet_address(at, size)) else { return Ok(None) };
    let value = machine.place(env, addr, size, false)?.load();
    Ok(Some(value.swap_bytes() >> (64 - size.bits())))
}
