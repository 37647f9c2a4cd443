//! Tests of the memory access of each form of instruction, and of the register that an atomic one changes.

use bpf_isa::{AccessKind, AtomicOp, Insn, MemoryAccess, Reg, Size, Src, assemble};

fn insn(line: &str) -> Insn {
    let insns = assemble(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    insns[0]
}

/// Each form, with its access.
#[test]
fn every_form() {
    use AccessKind::{Load, LoadAcquire, StoreRelease, Update};
    let (stored, of) = (AccessKind::Store(Src::Imm(7)), AccessKind::Store(Src::Reg(Reg::R2)));
    let at = |base, off, size, kind| Some(MemoryAccess { base, off, size, kind });
    for (line, access) in [
        ("r1 = *(u8 *)(r2 + 3)", at(Reg::R2, 3, Size::B, Load)),
        ("r1 = *(s16 *)(r2 - 4)", at(Reg::R2, -4, Size::H, Load)),
        ("*(u32 *)(r10 - 8) = 7", at(Reg::R10, -8, Size::W, stored)),
        ("*(u64 *)(r1 + 8) = r2", at(Reg::R1, 8, Size::DW, of)),
        ("lock *(u32 *)(r1 + 4) += w2", at(Reg::R1, 4, Size::W, Update(Reg::R2))),
        ("r2 = atomic_fetch_or((u64 *)(r1 - 16), r2)", at(Reg::R1, -16, Size::DW, Update(Reg::R2))),
        ("r0 = cmpxchg_64(r10 - 8, r0, r2)", at(Reg::R10, -8, Size::DW, Update(Reg::R2))),
        ("r0 = load_acquire((u64 *)(r1 + 0))", at(Reg::R1, 0, Size::DW, LoadAcquire)),
        ("store_release((u8 *)(r1 + 1), w2)", at(Reg::R1, 1, Size::B, StoreRelease(Reg::R2))),
        ("r0 = *(u32 *)skb[4]", None),
        ("r0 = *(u32 *)skb[r2 + 4]", None),
        ("r1 += r2", None),
        ("r1 = 5 ll", None),
        ("if r1 == r2 goto +0", None),
        ("call 1", None),
        ("exit", None),
    ] {
        assert_eq!(insn(line).memory_access(), access, "{line}");
    }
}

/// The kind of access determines the written or combined operand; the operation determines the register that receives
/// a value.
#[test]
fn operands_and_results() {
    for (kind, operand) in [
        (AccessKind::Load, None),
        (AccessKind::Store(Src::Reg(Reg::R3)), Some(Reg::R3)),
        (AccessKind::Store(Src::Imm(0)), None),
        (AccessKind::Update(Reg::R4), Some(Reg::R4)),
        (AccessKind::LoadAcquire, None),
        (AccessKind::StoreRelease(Reg::R5), Some(Reg::R5)),
    ] {
        assert_eq!(kind.operand(), operand);
    }
    assert_eq!(AtomicOp::Add { fetch: false }.result(Reg::R2), None);
    assert_eq!(AtomicOp::Xor { fetch: true }.result(Reg::R2), Some(Reg::R2));
    assert_eq!(AtomicOp::Xchg.result(Reg::R2), Some(Reg::R2));
    assert_eq!(AtomicOp::CmpXchg.result(Reg::R2), Some(Reg::R0));
}
