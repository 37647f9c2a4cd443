//! The opcode byte.
//!
//! Problem: an opcode packs class, operation, size and mode differently for each class, and the numbers must be known
//! in one place only. Approach: the field constants below, and [`Shape`], the unpacked opcode byte. The 256 shapes
//! are a table computed at compile time, so the decoder branches once per instruction.
//!
//! Source: RFC 9669 sections 3 to 5; Linux 6.18 for JCOND, address space casts, and for load-acquire and store-release.

use crate::{AluOp, ByteOrder, Cond, Size, Width};

// Classes, the low three bits.
pub(crate) const LD: u8 = 0;
pub(crate) const LDX: u8 = 1;
pub(crate) const ST: u8 = 2;
pub(crate) const STX: u8 = 3;
pub(crate) const ALU: u8 = 4;
pub(crate) const JMP: u8 = 5;
pub(crate) const JMP32: u8 = 6;
pub(crate) const ALU64: u8 = 7;

/// The second operand is a register (ALU and jump classes).
pub(crate) const X: u8 = 0x08;

// ALU operations that are not two-operand arithmetic.
pub(crate) const DIV: u8 = 0x30;
pub(crate) const NEG: u8 = 0x80;
pub(crate) const MOD: u8 = 0x90;
pub(crate) const MOV: u8 = 0xb0;
pub(crate) const END: u8 = 0xd0;

// The `off` of a 64-bit move that is a cast between address spaces, and its `imm`: the upper 16 bits are the space
// that it casts to, the lower ones the space that it casts from.
pub(crate) const CAST: i16 = 1;
pub(crate) const CAST_TO_KERNEL: i32 = 1;
pub(crate) const CAST_TO_USER: i32 = 1 << 16;

// Jump operations that are not conditions.
pub(crate) const JA: u8 = 0x00;
pub(crate) const CALL: u8 = 0x80;
pub(crate) const EXIT: u8 = 0x90;
pub(crate) const JCOND: u8 = 0xe0;

// Modes of the load and store classes.
pub(crate) const IMM: u8 = 0x00;
pub(crate) const ABS: u8 = 0x20;
pub(crate) const IND: u8 = 0x40;
pub(crate) const MEM: u8 = 0x60;
pub(crate) const MEMSX: u8 = 0x80;
pub(crate) const ATOMIC: u8 = 0xc0;

/// LD_IMM64: class LD, mode IMM, size DW.
pub(crate) const LD_IMM64: u8 = LD | IMM | size_bits(Size::DW);

// The `imm` of an atomic instruction.
pub(crate) const FETCH: i32 = 0x01;
pub(crate) const ATOMIC_ADD: i32 = 0x00;
pub(crate) const ATOMIC_OR: i32 = 0x40;
pub(crate) const ATOMIC_AND: i32 = 0x50;
pub(crate) const ATOMIC_XOR: i32 = 0xa0;
pub(crate) const XCHG: i32 = 0xe1;
pub(crate) const CMPXCHG: i32 = 0xf1;
pub(crate) const LOAD_ACQ: i32 = 0x100;
pub(crate) const STORE_REL: i32 = 0x110;

/// The meaning of an opcode byte.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// Two-operand arithmetic; for DIV and MOD the unsigned operation, which `off` may turn into the signed one.
    Alu {
        width: Width,
        op: AluOp,
        reg: bool,
    },
    Mov {
        width: Width,
        reg: bool,
    },
    Neg {
        width: Width,
    },
    End {
        order: ByteOrder,
    },
    LoadImm64,
    LoadAbs {
        size: Size,
    },
    LoadInd {
        size: Size,
    },
    Load {
        size: Size,
        sign: bool,
    },
    Store {
        size: Size,
        reg: bool,
    },
    /// Any atomic operation; `imm` selects it.
    Atomic {
        size: Size,
    },
    Jump {
        wide: bool,
    },
    JumpReg,
    JumpIf {
        width: Width,
        cond: Cond,
        reg: bool,
    },
    MayGoto,
    Call {
        reg: bool,
    },
    Exit,
}

/// The shape of each opcode byte; `None` if it is not an instruction.
pub(crate) static SHAPES: [Option<Shape>; 256] = {
    let mut table = [None; 256];
    let mut code = 0u8;
    loop {
        table[code as usize] = shape(code);
        if code == u8::MAX {
            break table;
        }
        code += 1;
    }
};

const fn shape(code: u8) -> Option<Shape> {
    match code & 0x07 {
        LD => load_imm(code),
        LDX => match (code & 0xe0, size(code)) {
            (MEM, size) => Some(Shape::Load { size, sign: false }),
            (MEMSX, size @ (Size::B | Size::H | Size::W)) => Some(Shape::Load { size, sign: true }),
            _ => None,
        },
        ST => match code & 0xe0 {
            MEM => Some(Shape::Store { size: size(code), reg: false }),
            _ => None,
        },
        STX => match code & 0xe0 {
            MEM => Some(Shape::Store { size: size(code), reg: true }),
            ATOMIC => Some(Shape::Atomic { size: size(code) }),
            _ => None,
        },
        ALU => alu(code, Width::W32),
        ALU64 => alu(code, Width::W64),
        JMP => jump(code, Width::W64),
        JMP32 => jump(code, Width::W32),
        _ => None,
    }
}

const fn load_imm(code: u8) -> Option<Shape> {
    match (code & 0xe0, size(code)) {
        (IMM, Size::DW) => Some(Shape::LoadImm64),
        (ABS, size @ (Size::B | Size::H | Size::W)) => Some(Shape::LoadAbs { size }),
        (IND, size @ (Size::B | Size::H | Size::W)) => Some(Shape::LoadInd { size }),
        _ => None,
    }
}

const fn alu(code: u8, width: Width) -> Option<Shape> {
    let reg = code & X != 0;
    let bits = code & 0xf0;
    match (bits, width) {
        (MOV, _) => return Some(Shape::Mov { width, reg }),
        // NEG has one operand: its X form is not an instruction.
        (NEG, _) => return if reg { None } else { Some(Shape::Neg { width }) },
        // In END the X bit selects the byte order; the 64-bit class has one unconditional swap.
        (END, Width::W32) => {
            return Some(Shape::End { order: if reg { ByteOrder::ToBe } else { ByteOrder::ToLe } });
        }
        (END, Width::W64) => return if reg { None } else { Some(Shape::End { order: ByteOrder::Swap }) },
        _ => {}
    }
    let mut i = 0;
    while i < AluOp::ALL.len() {
        let op = AluOp::ALL[i];
        // The signed forms share the opcode of the unsigned ones, which come first in the list.
        if alu_bits(op) == bits {
            return Some(Shape::Alu { width, op, reg });
        }
        i += 1;
    }
    None
}

const fn jump(code: u8, width: Width) -> Option<Shape> {
    let reg = code & X != 0;
    let bits = code & 0xf0;
    match (bits, width, reg) {
        (JA, _, false) => return Some(Shape::Jump { wide: matches!(width, Width::W32) }),
        (JA, Width::W64, true) => return Some(Shape::JumpReg),
        (CALL, Width::W64, reg) => return Some(Shape::Call { reg }),
        (EXIT, Width::W64, false) => return Some(Shape::Exit),
        (JCOND, Width::W64, false) => return Some(Shape::MayGoto),
        _ => {}
    }
    let mut i = 0;
    while i < Cond::ALL.len() {
        let cond = Cond::ALL[i];
        if cond_bits(cond) == bits {
            return Some(Shape::JumpIf { width, cond, reg });
        }
        i += 1;
    }
    None
}

const fn size(code: u8) -> Size {
    match code & 0x18 {
        0x00 => Size::W,
        0x08 => Size::H,
        0x10 => Size::B,
        _ => Size::DW,
    }
}

/// The size field of a load or store opcode.
pub(crate) const fn size_bits(size: Size) -> u8 {
    match size {
        Size::W => 0x00,
        Size::H => 0x08,
        Size::B => 0x10,
        Size::DW => 0x18,
    }
}

/// The operation field of an ALU opcode.
pub(crate) const fn alu_bits(op: AluOp) -> u8 {
    match op {
        AluOp::Add => 0x00,
        AluOp::Sub => 0x10,
        AluOp::Mul => 0x20,
        AluOp::Div | AluOp::SDiv => DIV,
        AluOp::Or => 0x40,
        AluOp::And => 0x50,
        AluOp::Lsh => 0x60,
        AluOp::Rsh => 0x70,
        AluOp::Mod | AluOp::SMod => MOD,
        AluOp::Xor => 0xa0,
        AluOp::Arsh => 0xc0,
    }
}

/// The operation field of a conditional jump's opcode.
pub(crate) const fn cond_bits(cond: Cond) -> u8 {
    match cond {
        Cond::Eq => 0x10,
        Cond::Gt => 0x20,
        Cond::Ge => 0x30,
        Cond::Set => 0x40,
        Cond::Ne => 0x50,
        Cond::SGt => 0x60,
        Cond::SGe => 0x70,
        Cond::Lt => 0xa0,
        Cond::Le => 0xb0,
        Cond::SLt => 0xc0,
        Cond::SLe => 0xd0,
    }
}
