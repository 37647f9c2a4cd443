//! Calls, tail calls, stops, far branches: what leaves the straight line.

use crate::check::{
    Builder, CALL_BACK, Data, EDGES, POISON, Random, address_of, all_ways, allocations, at, block, check, emissions,
    emit, in_frame, poison_result, run_ctx, some_ways,
};
use crate::machine::{HOST, Text, checks_landing_pads, fatal_signal, skipped};
use bpf_isa::{Size, SubprogId, Width};
use bpf_jit::{
    Alloc, Allocator, Backend, BinOp, CallTarget, Check, Cond, EmitOptions, HostReg, Lir, Loc, Op, TailKey, VReg, Val,
};
use bpf_jit_arm64::Arm64;
use bpf_jit_code::{Code, Reloc, RelocKind, RunCtx, StopCode, Symbol, TAIL_CALL_LIMIT, TailTarget};

const CTX: VReg = VReg(5);

fn mov(dst: VReg, imm: i64) -> Op {
    Op::Mov { width: Width::W64, dst, src: Val::Imm(imm) }
}

fn bin(op: BinOp, dst: VReg, a: VReg, b: Val) -> Op {
    Op::Bin { op, width: Width::W64, dst, a, b }
}

fn params(n: u32) -> Vec<VReg> {
    (0..n).map(VReg).collect()
}

/// Any value may be any argument, several of them, while others live on.
#[test]
fn arguments_in_any_order() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let mut b = Builder::with_params();
        let mut values = params(5);
        for _ in 0..4 {
            let args = [0; 5].map(|_| Some(random.of(&values)));
            let ret = b.vreg();
            b.op(Op::Call { target: CallTarget::Extern(POISON), args, ctx: Some(CTX), ret: Some(ret) });
            values.push(ret);
        }
        b.exit_with(&values);
        let input = [0; 5].map(|_| Some(random.value()));
        check(&b.finish_alone(), 2, &[input], 1, &some_ways(6));
    }
}

/// Three functions deep, each with a stack, slots and values that live across its calls.
#[test]
fn subprograms() {
    let level = |callee: Option<u32>, stack_bytes: u32| {
        let mut b = Builder::with_params();
        b.func.stack_bytes = stack_bytes;
        let mut values = params(5);
        for (i, v) in params(5).into_iter().enumerate() {
            b.op(Op::Store { size: Size::DW, mem: in_frame(-8 * (i as i32 + 1)), src: Val::Reg(v) });
            let sum = b.vreg();
            b.op(bin(BinOp::Add, sum, v, Val::Imm(i as i64 * 1000)));
            values.push(sum);
        }
        for n in 0..2 {
            let args = [0, 2, 4, 6, 9].map(|i| Some(values[i + n]));
            let target = match callee {
                Some(id) => CallTarget::Subprog(SubprogId(id)),
                None => CallTarget::Extern(POISON),
            };
            let ret = b.vreg();
            b.op(Op::Check { check: Check::Budget, ctx: CTX });
            b.op(Op::Call { target, args, ctx: Some(CTX), ret: Some(ret) });
            values.push(ret);
        }
        for i in 0..5 {
            let loaded = b.vreg();
            b.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: loaded, mem: in_frame(-8 * (i + 1)) });
            values.push(loaded);
        }
        b.exit_with(&values);
        b.finish()
    };
    let lir = Lir { funcs: vec![level(Some(1), 40), level(Some(2), 520), level(None, 48)] };
    let input = [Some(1), Some(u64::MAX), Some(3), Some(1 << 40), Some(5)];
    // With a budget that lasts, and with one that ends in each of the functions.
    for budget in [100, 13, 3, 2, 1, 0] {
        check(&lir, 2, &[input], budget, &all_ways(6));
    }
}

/// A host function calls back, through the address of a subprogram, which is entered like any function.
#[test]
fn call_backs() {
    let mut main = Builder::with_params();
    let (address, ret) = (main.vreg(), main.vreg());
    main.op(Op::SubprogAddr { dst: address, subprog: SubprogId(1) });
    let args = [Some(address), Some(VReg(0)), Some(VReg(1)), Some(VReg(2)), Some(VReg(3))];
    main.op(Op::Call { target: CallTarget::Extern(CALL_BACK), args, ctx: Some(CTX), ret: Some(ret) });
    main.exit_with(&[VReg(0), VReg(4), ret]);
    let mut callback = Builder::with_params();
    callback.func.stack_bytes = 16;
    let ret = callback.vreg();
    let args = params(5).into_iter().map(Some).collect::<Vec<_>>().try_into().unwrap();
    callback.op(Op::Call { target: CallTarget::Extern(POISON), args, ctx: Some(CTX), ret: Some(ret) });
    callback.op(Op::Exit { value: ret });
    callback.end();
    let lir = Lir { funcs: vec![main.finish(), callback.finish()] };

    let args = [3, 5, 7, 11, 13];
    let returned = poison_result([3, 5, 7, 11, 0]);
    let expected = [3, 13, returned].iter().fold(1u64, |h, v| h.wrapping_mul(31).wrapping_add(*v));
    for (alloc, options) in all_ways(4) {
        let code = emit(&mut Arm64::default(), &lir, &alloc, &options);
        let text = Text::load(&[code], &|s| address_of(s, 0), options.hardening.landing_pads);
        if HOST {
            assert_eq!(text.run(0, args, &mut run_ctx()), expected, "{alloc:?} {options:?}");
        }
    }
}

#[test]
fn a_loop_stops_when_the_budget_is_spent() {
    let mut b = Builder::with_params();
    let sum = b.vreg();
    b.op(mov(sum, 0));
    b.end();
    b.op(bin(BinOp::Add, sum, sum, Val::Reg(VReg(0))));
    b.op(Op::Store { size: Size::DW, mem: at(VReg(2), 0), src: Val::Reg(sum) });
    b.op(bin(BinOp::Sub, VReg(1), VReg(1), Val::Imm(1)));
    b.op(Op::Check { check: Check::Interrupt, ctx: CTX });
    b.op(Op::Check { check: Check::Budget, ctx: CTX });
    b.op(Op::Branch { width: Width::W64, cond: Cond::Ne, a: VReg(1), b: Val::Imm(0), target: block(1) });
    b.end();
    b.exit_with(&[sum]);
    let lir = b.finish_alone();
    let inputs = [1, 9, 10, 11].map(|n| [Some(7), Some(n), None, Some(0), Some(0)]);
    check(&lir, 2, &inputs, 10, &all_ways(4));
}

#[test]
fn another_thread_stops_a_run() {
    let mut b = Builder::with_params();
    b.func.stack_bytes = 600;
    b.op(mov(VReg(0), 1));
    b.op(Op::Check { check: Check::Interrupt, ctx: CTX });
    b.exit_with(&[VReg(0)]);
    stops(&b.finish_alone(), StopCode::Interrupted, 1);
}

/// Unsigned, against registers and constants of every form, with outcomes known and unknown.
#[test]
fn bounds() {
    let values = [0u64, 1, 4095, 4096, 1 << 24, 1 << 40, u64::MAX - 1, u64::MAX];
    for limit in values.map(Some).into_iter().chain([None]) {
        let mut b = Builder::with_params();
        let limit = limit.map_or(Val::Reg(VReg(1)), |limit| Val::Imm(limit as i64));
        b.op(Op::Bound { a: VReg(0), limit, ctx: CTX });
        b.op(bin(BinOp::Add, VReg(0), VReg(0), Val::Imm(1)));
        b.exit_with(&[VReg(0)]);
        let inputs: Vec<_> =
            values.iter().flat_map(|x| values.map(|y| [Some(*x), Some(y), None, Some(0), Some(0)])).collect();
        check(&b.finish_alone(), 2, &inputs, 10, &all_ways(4));
    }
}

#[test]
fn stops_of_every_kind() {
    for code in [StopCode::Budget, StopCode::Interrupted, StopCode::Access, StopCode::Host] {
        let mut inner = Builder::with_params();
        inner.op(mov(VReg(0), 1));
        inner.op(Op::Stop { code, ctx: CTX });
        inner.end();
        let mut outer = Builder::with_params();
        let args = params(5).into_iter().map(Some).collect::<Vec<_>>().try_into().unwrap();
        outer.op(Op::Call { target: CallTarget::Subprog(SubprogId(1)), args, ctx: Some(CTX), ret: Some(VReg(0)) });
        outer.exit_with(&params(5));
        stops(&Lir { funcs: vec![outer.finish(), inner.finish()] }, code, 1);
    }
}

fn stops(lir: &Lir, reason: StopCode, insn: u32) {
    for (alloc, options) in all_ways(3) {
        let code = emit(&mut Arm64::default(), lir, &alloc, &options);
        let text = Text::load(&[code], &|s| address_of(s, 0), options.hardening.landing_pads);
        if HOST {
            let mut ctx = RunCtx { interrupt: 1, ..run_ctx() };
            assert_eq!(text.run(0, [0; 5], &mut ctx), 0);
            assert_eq!((ctx.stop_code, ctx.stop_insn), (reason as u32, insn), "{alloc:?} {options:?}");
        }
    }
}

/// Returns a hash of r1 and r2: the target of the tail calls below.
fn target() -> Lir {
    let mut b = Builder::with_params();
    b.exit_with(&[VReg(0), VReg(1)]);
    b.finish_alone()
}

fn hash(values: &[u64]) -> u64 {
    values.iter().fold(1, |h: u64, v| h.wrapping_mul(31).wrapping_add(*v))
}

/// What a run of [`tail_caller`] returns if the call is taken: the hash, by the target, of the argument and the length.
fn taken(args: [u64; 5]) -> u64 {
    hash(&[args[2], run_ctx().packet_len])
}

/// What it returns if it falls through: that of all its values.
fn fallen(args: [u64; 5]) -> u64 {
    hash(&[args[0], args[1], args[2], args[3], args[4], args[0] ^ args[1]])
}

/// Tail-calls with r3 and falls through to a hash of all it has, some of which lived across a call, so that registers
/// are saved.
fn tail_caller(key: TailKey) -> bpf_jit::Func {
    let mut b = Builder::with_params();
    b.func.stack_bytes = 24;
    let (x, ignored) = (b.vreg(), b.vreg());
    b.op(bin(BinOp::Xor, x, VReg(0), Val::Reg(VReg(1))));
    let args = params(5).into_iter().map(Some).collect::<Vec<_>>().try_into().unwrap();
    b.op(Op::Call { target: CallTarget::Extern(POISON), args, ctx: None, ret: Some(ignored) });
    b.op(Op::TailCall { key, arg: VReg(2), ctx: CTX, reload_len: true });
    b.exit_with(&[VReg(0), VReg(1), VReg(2), VReg(3), VReg(4), x]);
    b.finish()
}

/// The table is r1 and the index r2. The index has 32 bits: what is above them in the register does not count (the
/// kernel's arm64 JIT once compared all 64).
#[test]
fn dynamic_tail_calls() {
    let lir = Lir { funcs: vec![tail_caller(TailKey::Dynamic { table: VReg(0), index: VReg(1) })] };
    for (alloc, options) in all_ways(6) {
        let guarded = options.hardening.landing_pads;
        let mut backend = Arm64::default();
        let caller = emit(&mut backend, &lir, &alloc, &options);
        assert_eq!(caller.tail_calls.len(), 1);
        assert_eq!(caller.tail_calls[0].target, TailTarget::Indirect);
        let text =
            Text::load(&[caller, emit(&mut backend, &target(), &alloc, &options)], &|s| address_of(s, 0), guarded);
        if !HOST {
            continue;
        }
        // Two entries, the second empty.
        let table: Vec<u64> = vec![2, text.entry(1), 0, text.entry(1)];
        for (index, hit) in [
            (0u64, true),
            (1, false),
            (2, false),
            (u32::MAX.into(), false),
            (1 << 32, true),
            (2 << 32 | 1, false),
            (u64::MAX << 32, true),
        ] {
            for count in [0, 1, TAIL_CALL_LIMIT - 1, TAIL_CALL_LIMIT] {
                let args = [table.as_ptr() as u64, index, 0xa46, 4, 5];
                let mut ctx = RunCtx { tail_calls: count, ..run_ctx() };
                let result = text.run(0, args, &mut ctx);
                let hit = hit && count < TAIL_CALL_LIMIT;
                assert_eq!(
                    result,
                    if hit { taken(args) } else { fallen(args) },
                    "index {index:#x}, count {count}: {alloc:?}"
                );
                assert_eq!(ctx.tail_calls, count + u32::from(hit));
            }
        }
    }
}

/// A tail call in a subprogram returns to the subprogram's caller, whose registers are as they were.
#[test]
fn tail_calls_in_subprograms() {
    let mut main = Builder::with_params();
    let mut values = params(5);
    for _ in 0..2 {
        let ret = main.vreg();
        let args = params(5).into_iter().map(Some).collect::<Vec<_>>().try_into().unwrap();
        main.op(Op::Call { target: CallTarget::Subprog(SubprogId(1)), args, ctx: Some(CTX), ret: Some(ret) });
        values.push(ret);
    }
    main.exit_with(&values);
    let inner = tail_caller(TailKey::Dynamic { table: VReg(0), index: VReg(1) });
    let lir = Lir { funcs: vec![main.finish(), inner] };
    for (alloc, options) in all_ways(6) {
        let mut backend = Arm64::default();
        let codes = [emit(&mut backend, &lir, &alloc, &options), emit(&mut backend, &target(), &alloc, &options)];
        let text = Text::load(&codes, &|s| address_of(s, 0), options.hardening.landing_pads);
        if HOST {
            let table: Vec<u64> = vec![1, text.entry(1)];
            let args = [table.as_ptr() as u64, 0, 3, 4, 5];
            // The limit is one for the whole run: the second call falls through.
            let mut ctx = RunCtx { tail_calls: TAIL_CALL_LIMIT - 1, ..run_ctx() };
            let mut values = args.to_vec();
            values.extend([taken(args), fallen(args)]);
            assert_eq!(text.run(0, args, &mut ctx), hash(&values), "{alloc:?} {options:?}");
            assert_eq!(ctx.tail_calls, TAIL_CALL_LIMIT);
        }
    }
}

/// A direct site, as it is emitted and as the poke sites link it: BYPASS a nop, TARGET a `b`.
#[test]
fn direct_tail_calls() {
    const TABLE: Symbol = Symbol::new(40);
    const PROGRAM: Symbol = Symbol::new(41);
    let lir = Lir { funcs: vec![tail_caller(TailKey::Const { table: TABLE, index: 3 })] };
    for (alloc, options) in all_ways(6) {
        let guarded = options.hardening.landing_pads;
        let mut backend = Arm64::default();
        let code = emit(&mut backend, &lir, &alloc, &options);
        let [site] = code.tail_calls[..] else { panic!("{:?}", code.tail_calls) };
        let TailTarget::Direct { table: TABLE, index: 3, bypass, target: jump, out } = site.target else {
            panic!("{site:?}")
        };
        let word = |at: u32| u32::from_le_bytes(code.bytes[at as usize..at as usize + 4].try_into().unwrap());
        assert_eq!(word(bypass.at()), 0x1400_0000 | ((out - bypass.at()) / 4), "b out");
        assert_eq!(word(jump.at()), 0xd503_201f, "nop");
        assert_eq!(jump.at() + 4, out);

        let mut linked = code.clone();
        linked.bytes[bypass.at() as usize..][..4].copy_from_slice(&0xd503_201fu32.to_le_bytes());
        linked.bytes[jump.at() as usize..][..4].copy_from_slice(&0x1400_0000u32.to_le_bytes());
        linked.relocs.push(Reloc { at: jump.at(), kind: RelocKind::Arm64Branch26, symbol: PROGRAM });
        let program = Text::load(&[emit(&mut backend, &target(), &alloc, &options)], &|_| 0, guarded);
        let symbol = |s| if s == PROGRAM { program.entry(0) } else { address_of(s, 0) };
        let text = Text::load(&[code, linked], &symbol, guarded);
        if !HOST {
            continue;
        }
        for count in [0, TAIL_CALL_LIMIT - 1, TAIL_CALL_LIMIT] {
            for is_linked in [false, true] {
                let args = [1, 2, 3, 4, 5];
                let mut ctx = RunCtx { tail_calls: count, ..run_ctx() };
                let result = text.run(usize::from(is_linked), args, &mut ctx);
                let hit = is_linked && count < TAIL_CALL_LIMIT;
                assert_eq!(result, if hit { taken(args) } else { fallen(args) }, "{count} {is_linked} {alloc:?}");
                assert_eq!(ctx.tail_calls, count + u32::from(hit));
            }
        }
    }
}

/// One function in which every kind of branch leads `filler` instructions forward, over nothing but additions.
fn far(filler: u32) -> Lir {
    let mut b = Builder::with_params();
    let sum = b.vreg();
    b.op(mov(sum, 0));
    let kinds = [
        (Cond::Eq, Val::Imm(0)),
        (Cond::Ne, Val::Imm(0)),
        (Cond::SLt, Val::Imm(0)),
        (Cond::SGe, Val::Imm(0)),
        (Cond::Set, Val::Imm(4)),
        (Cond::Gt, Val::Imm(100)),
        (Cond::SLe, Val::Reg(VReg(1))),
    ];
    let last = kinds.len() as u32 + 1;
    for (i, (cond, operand)) in kinds.into_iter().enumerate() {
        // r1 + i, so that each branch is the first that is taken for some r1.
        b.op(bin(BinOp::Add, sum, sum, Val::Imm(1 << i)));
        b.op(bin(BinOp::Sub, VReg(0), VReg(0), Val::Reg(VReg(3))));
        b.op(Op::Branch { width: Width::W64, cond, a: VReg(0), b: operand, target: block(last) });
        b.end();
    }
    for _ in 0..filler {
        b.op(bin(BinOp::Add, sum, sum, Val::Reg(VReg(4))));
    }
    b.end();
    b.exit_with(&[sum, VReg(0)]);
    b.finish_alone()
}

/// Beyond 32 KiB a `tbz` and beyond 1 MiB a `b.cond` or `cbz` becomes its inverse over a `b`.
#[test]
fn branches_beyond_their_reach() {
    let inputs: Vec<_> =
        EDGES.into_iter().step_by(3).map(|a| [Some(a), Some(77), Some(0), Some(1), Some(1 << 32)]).collect();
    for (filler, words) in [(8000, 0), (8300, 3), (270_000, 7)] {
        let lir = far(filler);
        let plain = emissions()[1];
        let code = emit(&mut Arm64::default(), &lir, &allocations(0)[0], &plain);
        let near = emit(&mut Arm64::default(), &far(0), &allocations(0)[0], &plain);
        assert_eq!(code.bytes.len() - near.bytes.len(), 4 * (filler as usize + words), "{filler}");
        check(&lir, 2, &inputs, 1, &[(allocations(0)[0], plain)]);
    }
}

/// The same backward: a loop over more than 1 MiB of code.
#[test]
fn a_loop_longer_than_a_branch_reaches() {
    let mut b = Builder::with_params();
    let sum = b.vreg();
    b.op(mov(sum, 0));
    b.end();
    for _ in 0..270_000 {
        b.op(bin(BinOp::Add, sum, sum, Val::Reg(VReg(4))));
    }
    b.op(bin(BinOp::Sub, VReg(0), VReg(0), Val::Imm(1)));
    b.op(Op::Branch { width: Width::W32, cond: Cond::SGt, a: VReg(0), b: Val::Reg(VReg(1)), target: block(1) });
    b.end();
    b.exit_with(&[sum]);
    check(&b.finish_alone(), 2, &[[Some(3), Some(0), None, None, Some(7)]], 1, &some_ways(0)[..1]);
}

/// The address of a subprogram 1 MiB away: `adr` does not reach it.
#[test]
fn far_subprogram_addresses() {
    let mut main = Builder::with_params();
    let (address, sum) = (main.vreg(), main.vreg());
    main.op(Op::SubprogAddr { dst: address, subprog: SubprogId(1) });
    main.op(mov(sum, 0));
    main.op(Op::Branch { width: Width::W64, cond: Cond::Ne, a: VReg(0), b: Val::Imm(0), target: block(2) });
    main.end();
    for _ in 0..270_000 {
        main.op(bin(BinOp::Add, sum, sum, Val::Reg(VReg(4))));
    }
    main.end();
    let ret = main.vreg();
    let args = [Some(address), Some(VReg(0)), Some(VReg(1)), Some(VReg(2)), Some(VReg(3))];
    main.op(Op::Call { target: CallTarget::Extern(CALL_BACK), args, ctx: Some(CTX), ret: Some(ret) });
    main.exit_with(&[ret, sum]);
    // Backward, too.
    let mut far = Builder::with_params();
    let back = far.vreg();
    far.op(Op::SubprogAddr { dst: back, subprog: SubprogId(0) });
    far.op(bin(BinOp::Sub, back, back, Val::Reg(VReg(1))));
    far.exit_with(&[VReg(0), back]);
    let lir = Lir { funcs: vec![main.finish(), far.finish()] };
    for alloc in [allocations(0)[0], allocations(0)[2]] {
        let options: EmitOptions = emissions()[2];
        let code: Code = emit(&mut Arm64::default(), &lir, &alloc, &options);
        let text = Text::load(&[code], &|s| address_of(s, 0), true);
        if HOST {
            let result = text.run(0, [9, text.entry(0), 0, 0, 0], &mut run_ctx());
            assert_eq!(result, hash(&[hash(&[9, 0]), 0]));
        }
    }
}

/// Symbols' addresses take three words, whatever they are.
#[test]
fn addresses_of_symbols() {
    let mut b = Builder::with_params();
    let (data, other, loaded) = (b.vreg(), b.vreg(), b.vreg());
    b.op(Op::SymAddr { dst: data, symbol: crate::check::DATA });
    b.op(Op::SymAddr { dst: other, symbol: Symbol::new(99) });
    b.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: loaded, mem: at(data, 8) });
    b.exit_with(&[other, loaded]);
    check(&b.finish_alone(), 4, &[[None; 5]], 1, &all_ways(3));
    assert!(Data::new(4).address() >> 48 == 0, "user space has 48 bits");
}

/// The negative control of every test above that runs with landing pads on: without one, the same call is fatal.
#[test]
fn a_missing_landing_pad_is_fatal() {
    if !checks_landing_pads() {
        return skipped("a_missing_landing_pad_is_fatal", "no branch target identification here");
    }
    let [_, bare, padded, _] = emissions();
    let codes = [bare, padded].map(|options| emit(&mut Arm64::default(), &target(), &allocations(0)[0], &options));
    let text = Text::load(&codes, &|_| 0, true);
    let signal = |code| {
        fatal_signal(|| {
            text.run(code, [0; 5], &mut run_ctx());
        })
    };
    assert_eq!(signal(0), Some(libc::SIGILL));
    assert_eq!(signal(1), None);
}

/// What the allocator or the lowering got wrong is an error of ours, not a panic.
#[test]
fn malformed_input_is_refused() {
    let good = far(1);
    let options = emissions()[0];
    let refused = |lir: &Lir, spoil: &dyn Fn(&mut Alloc)| {
        let mut alloc = Alloc::default();
        Allocator::default().allocate(
            &good.funcs[0],
            Arm64::default().machine(&options),
            &allocations(0)[0],
            &mut alloc,
        );
        spoil(&mut alloc);
        bpf_jit::check(lir, &[alloc], Arm64::default().machine(&options)).is_err()
    };
    assert!(!refused(&good, &|_| {}));
    assert!(refused(&good, &|alloc| alloc.locs.clear()));
    for reg in [14, 17, 18, 19, 29, 30, 31, 32, 255] {
        assert!(refused(&good, &|alloc| alloc.locs[0] = Loc::Reg(HostReg(reg))), "x{reg} is not saved or not ours");
    }
    assert!(refused(&good, &|alloc| alloc.locs[0] = Loc::Slot(alloc.slots)));
    assert!(refused(&good, &|alloc| alloc.saves = vec![HostReg(19); 12]));
    let spoiled: [fn(&mut bpf_jit::Func); 6] = [
        |func| func.ops[0] = Op::Jump { target: block(1000) },
        |func| func.ops[0] = mov(VReg(1000), 0),
        |func| func.ops[0] = Op::Exit { value: VReg(1000) },
        |func| func.params[2] = Some(VReg(1000)),
        |func| func.blocks[0].ops.end = 1_000_000,
        |func| func.ops[0] = Op::SubprogAddr { dst: VReg(0), subprog: SubprogId(7) },
    ];
    for (i, spoil) in spoiled.iter().enumerate() {
        let mut lir = good.clone();
        spoil(&mut lir.funcs[0]);
        assert!(refused(&lir, &|_| {}), "{i}");
    }
}
