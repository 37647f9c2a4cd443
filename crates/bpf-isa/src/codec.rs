//! Eight-byte slots to instructions and back.
//!
//! Problem: the wire format leaves most bit patterns undefined, and another tool may read a wrongly accepted pattern
//! differently. Approach: every field that an instruction does not use must be zero, so that [`decode`] and
//! [`encode`] are inverses and nothing is lost. A table ([`SHAPES`]) unpacks the opcode byte.
//!
//! Invariants: `encode(decode(x)) == x` for every accepted `x`; `decode(encode(y)) == y` for every encodable `y`;
//! an error names the slot and the field.

use core::fmt;

use crate::opcode::{self as op, SHAPES, Shape};
use crate::{
    AddrSpace, AluOp, AtomicOp, ByteOrder, Callee, EndWidth, Imm64, Insn, InsnIdx, Reg, Size, Src, SxWidth, Width,
};

/// The fields of one eight-byte slot, little endian, before they are interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RawInsn {
    /// Opcode byte.
    pub code: u8,
    /// Destination register number, 4 bits.
    pub dst: u8,
    /// Source register number, 4 bits.
    pub src: u8,
    /// Signed offset.
    pub off: i16,
    /// Signed immediate.
    pub imm: i32,
}

impl RawInsn {
    /// Splits a slot into its fields.
    #[inline]
    pub fn from_bytes(bytes: [u8; 8]) -> RawInsn {
        // One load instead of eight byte loads.
        let slot = u64::from_le_bytes(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "each takes the bits of its field")]
        RawInsn {
            code: slot as u8,
            dst: (slot >> 8) as u8 & 0x0f,
            src: (slot >> 12) as u8 & 0x0f,
            off: (slot >> 16) as i16,
            imm: (slot >> 32) as i32,
        }
    }

    /// Packs the fields into a slot. Only the low 4 bits of the register numbers count.
    pub fn to_bytes(self) -> [u8; 8] {
        let [o0, o1] = self.off.to_le_bytes();
        let [i0, i1, i2, i3] = self.imm.to_le_bytes();
        [self.code, (self.src << 4) | (self.dst & 0x0f), o0, o1, i0, i1, i2, i3]
    }
}

/// A field of a slot, in messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Field {
    /// The opcode byte.
    Code,
    /// The destination register.
    Dst,
    /// The source register.
    Src,
    /// The offset.
    Off,
    /// The immediate.
    Imm,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Field::Code => "opcode",
            Field::Dst => "dst",
            Field::Src => "src",
            Field::Off => "off",
            Field::Imm => "imm",
        })
    }
}

/// The reason why bytes are not instructions, and the place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeError {
    /// The slot the error is in.
    pub slot: InsnIdx,
    /// The kind of error.
    pub kind: DecodeErrorKind,
}

/// The kinds of errors in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The bytes end inside this slot.
    PartialSlot {
        /// Bytes left, 1 to 7.
        bytes: usize,
    },
    /// No instruction has this opcode.
    UnknownOpcode(u8),
    /// A register number above 10.
    BadRegister {
        /// [`Field::Dst`] or [`Field::Src`].
        field: Field,
        /// Its value, 11 to 15.
        value: u8,
    },
    /// A field has a value that this opcode does not define: it is unused and not zero, or not one of the few defined
    /// values.
    BadField {
        /// The opcode.
        code: u8,
        /// The field.
        field: Field,
        /// Its value.
        value: i32,
    },
    /// The program ends after the first slot of a two-slot instruction.
    MissingSecondSlot,
    /// A field of the second slot of a two-slot instruction is not zero.
    BadSecondSlot {
        /// The field.
        field: Field,
        /// Its value.
        value: i32,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: ", self.slot)?;
        match self.kind {
            DecodeErrorKind::PartialSlot { bytes } => write!(f, "{bytes} bytes left, a slot has 8"),
            DecodeErrorKind::UnknownOpcode(code) => write!(f, "unknown opcode {code:#04x}"),
            DecodeErrorKind::BadRegister { field, value: 11 } => {
                write!(
                    f,
                    "{field} is r11: no such register; newer compilers pass a sixth argument by it: pass a struct"
                )
            }
            DecodeErrorKind::BadRegister { field, value } => write!(f, "{field} is r{value}: no such register"),
            DecodeErrorKind::BadField { code, field, value } => {
                write!(f, "{field} is {value}, which opcode {code:#04x} does not define")
            }
            DecodeErrorKind::MissingSecondSlot => f.write_str("the second slot of a two-slot instruction is missing"),
            DecodeErrorKind::BadSecondSlot { field, value } => write!(f, "{field} of a second slot is {value}, not 0"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// The reason why an [`Insn`] made by hand has no encoding. The enum can express some instructions that the wire
/// format cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Malformed {
    /// A sign-extending load of 64 bits.
    SignedLoad64,
    /// A sign-extending move from 32 bits to 32 bits.
    MovSx32To32,
    /// LD_ABS or LD_IND of 64 bits.
    PacketLoad64,
    /// The offset of a jump that is not `wide` does not fit 16 bits.
    JumpOffset(i32),
    /// A two-slot instruction without [`Insn::SecondSlot`] after it.
    MissingSecondSlot,
    /// [`Insn::SecondSlot`] without a two-slot instruction before it.
    StraySecondSlot,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::SignedLoad64 => f.write_str("a sign-extending load of 64 bits does not exist"),
            Malformed::MovSx32To32 => f.write_str("a sign-extending move from 32 to 32 bits does not exist"),
            Malformed::PacketLoad64 => f.write_str("a packet load of 64 bits does not exist"),
            Malformed::JumpOffset(off) => write!(f, "jump offset {off} does not fit 16 bits"),
            Malformed::MissingSecondSlot => f.write_str("the second slot of a two-slot instruction is missing"),
            Malformed::StraySecondSlot => f.write_str("a second slot without a two-slot instruction before it"),
        }
    }
}

/// An instruction without an encoding, and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncodeError {
    /// The slot.
    pub slot: InsnIdx,
    /// The reason.
    pub kind: Malformed,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: {}", self.slot, self.kind)
    }
}

impl core::error::Error for EncodeError {}

/// Decodes a program: one [`Insn`] a slot, so that an index into the result is a slot number.
///
/// Accepts exactly the instructions of the ISA; checks nothing between instructions (see [`crate::Program`]).
///
/// # Errors
/// The first slot that is not an instruction.
///
/// ```
/// let insns = bpf_isa::decode(&[0xb7, 0, 0, 0, 7, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0])?;
/// assert_eq!(bpf_isa::disassemble(&insns), "r0 = 7\nexit\n");
/// # Ok::<(), bpf_isa::DecodeError>(())
/// ```
pub fn decode(bytes: &[u8]) -> Result<Vec<Insn>, DecodeError> {
    decode_with(bytes, &mut ())
}

/// A callback for each decoded instruction, called where its kind is known: a match on the kind then costs next to
/// nothing, instead of a mispredicted jump per instruction in a separate walk. Implementations are always inlined.
pub(crate) trait Visit {
    type Error: From<DecodeError>;
    fn visit(&mut self, at: InsnIdx, insn: &Insn) -> Result<(), Self::Error>;
}

impl Visit for () {
    type Error = DecodeError;
    #[inline(always)]
    fn visit(&mut self, _: InsnIdx, _: &Insn) -> Result<(), DecodeError> {
        Ok(())
    }
}

/// Decodes as [`decode`] does, and passes each instruction to `visitor`.
#[inline(always)]
pub(crate) fn decode_with<V: Visit>(bytes: &[u8], visitor: &mut V) -> Result<Vec<Insn>, V::Error> {
    let (slots, rest) = bytes.as_chunks::<8>();
    let mut insns = Vec::with_capacity(slots.len());
    let mut iter = slots.iter();
    while let Some(&bytes) = iter.next() {
        let raw = RawInsn::from_bytes(bytes);
        let at = insns.len();
        let Some(shape) = SHAPES[usize::from(raw.code)] else {
            return Err(error_at(at, DecodeErrorKind::UnknownOpcode(raw.code)).into());
        };
        // A macro, not a closure, which would merge all kinds into one match again.
        macro_rules! put {
            ($insn:expr) => {{
                let insn = $insn;
                // Code that uses indices refuses programs with more slots than an index can name.
                visitor.visit(InsnIdx(u32::try_from(at).unwrap_or(u32::MAX)), &insn)?;
                insns.push(insn);
            }};
        }
        // The common instructions, in their regular form: equal to the result of `one_slot`, but with one check of
        // all fields.
        if let (Some(dst), Some(src)) = (Reg::new(raw.dst), Reg::new(raw.src)) {
            let RawInsn { off, imm, .. } = raw;
            let (no_off, no_imm, no_src) = (off == 0, imm == 0, raw.src == 0);
            match shape {
                Shape::Alu { width, op, reg: true } if no_off && no_imm => {
                    put!(Insn::Alu { width, op, dst, src: Src::Reg(src) });
                    continue;
                }
                Shape::Alu { width, op, reg: false } if no_off && no_src => {
                    put!(Insn::Alu { width, op, dst, src: Src::Imm(imm) });
                    continue;
                }
                Shape::Mov { width, reg: true } if no_off && no_imm => {
                    put!(Insn::Mov { width, dst, src: Src::Reg(src) });
                    continue;
                }
                Shape::Mov { width, reg: false } if no_off && no_src => {
                    put!(Insn::Mov { width, dst, src: Src::Imm(imm) });
                    continue;
                }
                Shape::Load { size, sign } if no_imm => {
                    put!(Insn::Load { size, sign, dst, base: src, off });
                    continue;
                }
                Shape::Store { size, reg: true } if no_imm => {
                    put!(Insn::Store { size, base: dst, off, src: Src::Reg(src) });
                    continue;
                }
                Shape::Store { size, reg: false } if no_src => {
                    put!(Insn::Store { size, base: dst, off, src: Src::Imm(imm) });
                    continue;
                }
                Shape::JumpIf { width, cond, reg: true } if no_imm => {
                    put!(Insn::JumpIf { width, cond, dst, src: Src::Reg(src), off });
                    continue;
                }
                Shape::JumpIf { width, cond, reg: false } if no_src => {
                    put!(Insn::JumpIf { width, cond, dst, src: Src::Imm(imm), off });
                    continue;
                }
                _ => {}
            }
        }
        if let Shape::LoadImm64 = shape {
            let second = iter.next().copied().map(RawInsn::from_bytes);
            put!(load_imm64(raw, second).map_err(|kind| error_at(at, kind))?);
            insns.push(Insn::SecondSlot);
        } else {
            put!(one_slot(raw, shape).map_err(|kind| error_at(at, kind))?);
        }
    }
    if rest.is_empty() {
        Ok(insns)
    } else {
        Err(error_at(insns.len(), DecodeErrorKind::PartialSlot { bytes: rest.len() }).into())
    }
}

/// An error in the instruction whose first slot is `first`.
fn error_at(first: usize, kind: DecodeErrorKind) -> DecodeError {
    let slot = first + usize::from(matches!(kind, DecodeErrorKind::BadSecondSlot { .. }));
    DecodeError { slot: InsnIdx(u32::try_from(slot).unwrap_or(u32::MAX)), kind }
}

/// Checks on one raw slot. Each returns the meaning of a field, or the error that names the field.
impl RawInsn {
    fn bad(self, field: Field, value: i32) -> DecodeErrorKind {
        DecodeErrorKind::BadField { code: self.code, field, value }
    }
    fn dst(self) -> Result<Reg, DecodeErrorKind> {
        Reg::new(self.dst).ok_or(DecodeErrorKind::BadRegister { field: Field::Dst, value: self.dst })
    }
    fn src(self) -> Result<Reg, DecodeErrorKind> {
        Reg::new(self.src).ok_or(DecodeErrorKind::BadRegister { field: Field::Src, value: self.src })
    }
    fn no_dst(self) -> Result<(), DecodeErrorKind> {
        if self.dst == 0 { Ok(()) } else { Err(self.bad(Field::Dst, self.dst.into())) }
    }
    fn no_src(self) -> Result<(), DecodeErrorKind> {
        if self.src == 0 { Ok(()) } else { Err(self.bad(Field::Src, self.src.into())) }
    }
    fn no_off(self) -> Result<(), DecodeErrorKind> {
        if self.off == 0 { Ok(()) } else { Err(self.bad(Field::Off, self.off.into())) }
    }
    fn no_imm(self) -> Result<(), DecodeErrorKind> {
        if self.imm == 0 { Ok(()) } else { Err(self.bad(Field::Imm, self.imm)) }
    }
    /// The second operand: the register if `reg` (then `imm` is unused), else the immediate (then `src` is unused).
    fn operand(self, reg: bool) -> Result<Src, DecodeErrorKind> {
        if reg {
            self.no_imm()?;
            Ok(Src::Reg(self.src()?))
        } else {
            self.no_src()?;
            Ok(Src::Imm(self.imm))
        }
    }
}

/// Decodes any one-slot instruction. Not inlined, so that the loop over the common instructions keeps the registers.
#[inline(never)]
fn one_slot(raw: RawInsn, shape: Shape) -> Result<Insn, DecodeErrorKind> {
    Ok(match shape {
        Shape::Alu { width, op, reg } => {
            let op = match (op, raw.off) {
                (op, 0) => op,
                (AluOp::Div, 1) => AluOp::SDiv,
                (AluOp::Mod, 1) => AluOp::SMod,
                (_, off) => return Err(raw.bad(Field::Off, off.into())),
            };
            Insn::Alu { width, op, dst: raw.dst()?, src: raw.operand(reg)? }
        }
        // The only instruction with an immediate beside a register, and with this offset; the immediate holds two
        // address spaces, 16 bits each.
        Shape::Mov { width: Width::W64, reg: true } if raw.off == op::CAST => {
            let to = match raw.imm {
                op::CAST_TO_KERNEL => AddrSpace::Kernel,
                op::CAST_TO_USER => AddrSpace::User,
                imm => return Err(raw.bad(Field::Imm, imm)),
            };
            Insn::Cast { dst: raw.dst()?, src: raw.src()?, to }
        }
        Shape::Mov { width, reg } => {
            let (dst, src) = (raw.dst()?, raw.operand(reg)?);
            let from = match (raw.off, width, src) {
                (0, _, _) => return Ok(Insn::Mov { width, dst, src }),
                (8, _, Src::Reg(src)) => (src, SxWidth::S8),
                (16, _, Src::Reg(src)) => (src, SxWidth::S16),
                (32, Width::W64, Src::Reg(src)) => (src, SxWidth::S32),
                (off, _, _) => return Err(raw.bad(Field::Off, off.into())),
            };
            Insn::MovSx { width, dst, src: from.0, from: from.1 }
        }
        Shape::Neg { width } => {
            raw.no_src()?;
            raw.no_off()?;
            raw.no_imm()?;
            Insn::Neg { width, dst: raw.dst()? }
        }
        Shape::End { order } => {
            raw.no_src()?;
            raw.no_off()?;
            let width = match raw.imm {
                16 => EndWidth::B16,
                32 => EndWidth::B32,
                64 => EndWidth::B64,
                imm => return Err(raw.bad(Field::Imm, imm)),
            };
            Insn::End { order, width, dst: raw.dst()? }
        }
        // `load_imm64` decodes it together with its second slot.
        Shape::LoadImm64 => return Err(DecodeErrorKind::MissingSecondSlot),
        Shape::LoadAbs { size } => {
            raw.no_dst()?;
            raw.no_src()?;
            raw.no_off()?;
            Insn::LoadAbs { size, imm: raw.imm }
        }
        Shape::LoadInd { size } => {
            raw.no_dst()?;
            raw.no_off()?;
            Insn::LoadInd { size, src: raw.src()?, imm: raw.imm }
        }
        Shape::Load { size, sign } => {
            raw.no_imm()?;
            Insn::Load { size, sign, dst: raw.dst()?, base: raw.src()?, off: raw.off }
        }
        Shape::Store { size, reg } => Insn::Store { size, base: raw.dst()?, off: raw.off, src: raw.operand(reg)? },
        Shape::Atomic { size } => atomic(raw, size)?,
        Shape::Jump { wide } => {
            raw.no_dst()?;
            raw.no_src()?;
            if wide {
                raw.no_off()?;
                Insn::Jump { off: raw.imm, wide }
            } else {
                raw.no_imm()?;
                Insn::Jump { off: raw.off.into(), wide }
            }
        }
        Shape::JumpReg => {
            raw.no_src()?;
            raw.no_off()?;
            raw.no_imm()?;
            Insn::JumpReg { target: raw.dst()? }
        }
        Shape::JumpIf { width, cond, reg } => {
            Insn::JumpIf { width, cond, dst: raw.dst()?, src: raw.operand(reg)?, off: raw.off }
        }
        Shape::MayGoto => {
            raw.no_dst()?;
            raw.no_src()?;
            raw.no_imm()?;
            Insn::MayGoto { off: raw.off }
        }
        Shape::Call { reg: true } => {
            raw.no_src()?;
            raw.no_off()?;
            raw.no_imm()?;
            Insn::Call(Callee::Reg(raw.dst()?))
        }
        Shape::Call { reg: false } => {
            raw.no_dst()?;
            raw.no_off()?;
            Insn::Call(match raw.src {
                0 => Callee::Helper(raw.imm as u32),
                1 => Callee::Subprog(raw.imm),
                2 => Callee::Host(raw.imm),
                src => return Err(raw.bad(Field::Src, src.into())),
            })
        }
        Shape::Exit => {
            raw.no_dst()?;
            raw.no_src()?;
            raw.no_off()?;
            raw.no_imm()?;
            Insn::Exit
        }
    })
}

fn atomic(raw: RawInsn, size: Size) -> Result<Insn, DecodeErrorKind> {
    let off = raw.off;
    match raw.imm {
        op::LOAD_ACQ => return Ok(Insn::LoadAcquire { size, dst: raw.dst()?, base: raw.src()?, off }),
        op::STORE_REL => return Ok(Insn::StoreRelease { size, base: raw.dst()?, off, src: raw.src()? }),
        _ => {}
    }
    let width = match size {
        Size::W => Width::W32,
        Size::DW => Width::W64,
        // Read-modify-writes have two sizes only: the opcode is known, but not with this operation.
        Size::B | Size::H => return Err(raw.bad(Field::Imm, raw.imm)),
    };
    let fetch = raw.imm & op::FETCH != 0;
    let op = match raw.imm {
        op::XCHG => AtomicOp::Xchg,
        op::CMPXCHG => AtomicOp::CmpXchg,
        imm => match imm & !op::FETCH {
            op::ATOMIC_ADD => AtomicOp::Add { fetch },
            op::ATOMIC_OR => AtomicOp::Or { fetch },
            op::ATOMIC_AND => AtomicOp::And { fetch },
            op::ATOMIC_XOR => AtomicOp::Xor { fetch },
            _ => return Err(raw.bad(Field::Imm, imm)),
        },
    };
    Ok(Insn::Atomic { width, op, base: raw.dst()?, off, src: raw.src()? })
}

fn check_second(raw: RawInsn) -> Result<(), DecodeErrorKind> {
    let fields = [
        (Field::Code, raw.code.into()),
        (Field::Dst, raw.dst.into()),
        (Field::Src, raw.src.into()),
        (Field::Off, i32::from(raw.off)),
    ];
    match fields.into_iter().find(|&(_, value)| value != 0) {
        None => Ok(()),
        Some((field, value)) => Err(DecodeErrorKind::BadSecondSlot { field, value }),
    }
}

fn load_imm64(raw: RawInsn, second: Option<RawInsn>) -> Result<Insn, DecodeErrorKind> {
    raw.no_off()?;
    let second = second.ok_or(DecodeErrorKind::MissingSecondSlot)?;
    check_second(second)?;
    let (low, high) = (raw.imm, second.imm);
    let imm = match (raw.src, high) {
        (0, _) => Imm64::Const(u64::from(low as u32) | u64::from(high as u32) << 32),
        (2, _) => Imm64::MapValue { map: low, off: high as u32 },
        (6, _) => Imm64::MapIdxValue { map: low, off: high as u32 },
        (1, 0) => Imm64::Map(low),
        (3, 0) => Imm64::Var(low),
        (4, 0) => Imm64::Func(low),
        (5, 0) => Imm64::MapIdx(low),
        (1 | 3 | 4 | 5, high) => return Err(DecodeErrorKind::BadSecondSlot { field: Field::Imm, value: high }),
        (src, _) => return Err(raw.bad(Field::Src, src.into())),
    };
    Ok(Insn::LoadImm64 { dst: raw.dst()?, imm })
}

/// The reason why slot `i` has no encoding, if it has none.
#[inline(always)]
pub(crate) fn malformed_at(insns: &[Insn], i: usize) -> Option<Malformed> {
    let fault = match insns[i] {
        Insn::MovSx { width, from, .. } => (width == Width::W32 && from == SxWidth::S32, Malformed::MovSx32To32),
        Insn::Load { size, sign, .. } => (sign && size == Size::DW, Malformed::SignedLoad64),
        Insn::LoadAbs { size, .. } | Insn::LoadInd { size, .. } => (size == Size::DW, Malformed::PacketLoad64),
        Insn::Jump { off, wide } => (!wide && i16::try_from(off).is_err(), Malformed::JumpOffset(off)),
        Insn::LoadImm64 { .. } => (insns.get(i + 1) != Some(&Insn::SecondSlot), Malformed::MissingSecondSlot),
        Insn::SecondSlot => {
            let before = i.checked_sub(1).map(|i| insns[i]);
            (!matches!(before, Some(Insn::LoadImm64 { .. })), Malformed::StraySecondSlot)
        }
        Insn::Alu { .. }
        | Insn::Mov { .. }
        | Insn::Cast { .. }
        | Insn::Neg { .. }
        | Insn::End { .. }
        | Insn::Store { .. }
        | Insn::Atomic { .. }
        | Insn::LoadAcquire { .. }
        | Insn::StoreRelease { .. }
        | Insn::JumpReg { .. }
        | Insn::JumpIf { .. }
        | Insn::MayGoto { .. }
        | Insn::Call(_)
        | Insn::Exit => return None,
    };
    fault.0.then_some(fault.1)
}

/// Encodes instructions, one a slot: the inverse of [`decode`].
///
/// # Errors
/// The first [`Insn`] that the wire format cannot express; none for a result of [`decode`].
pub fn encode(insns: &[Insn]) -> Result<Vec<u8>, EncodeError> {
    let malformed = (0..insns.len()).find_map(|i| Some((i, malformed_at(insns, i)?)));
    match malformed {
        None => Ok(encode_valid(insns)),
        Some((i, kind)) => Err(EncodeError { slot: InsnIdx(u32::try_from(i).unwrap_or(u32::MAX)), kind }),
    }
}

/// Encodes instructions in which [`malformed_at`] finds no fault.
pub(crate) fn encode_valid(insns: &[Insn]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(insns.len() * 8);
    for &insn in insns {
        match insn {
            // Written together with the slot before it.
            Insn::SecondSlot => {}
            Insn::LoadImm64 { dst, imm } => {
                let (first, high) = raw_load_imm64(dst, imm);
                bytes.extend_from_slice(&first.to_bytes());
                bytes.extend_from_slice(&RawInsn { imm: high, ..RawInsn::default() }.to_bytes());
            }
            other => bytes.extend_from_slice(&raw_one_slot(other).to_bytes()),
        }
    }
    bytes
}

/// The first slot and the second slot's `imm`.
fn raw_load_imm64(dst: Reg, imm: Imm64) -> (RawInsn, i32) {
    let (src, low, high) = match imm {
        Imm64::Const(value) => (0, crate::low(value).cast_signed(), crate::low(value >> 32).cast_signed()),
        Imm64::Map(map) => (1, map, 0),
        Imm64::MapValue { map, off } => (2, map, off as i32),
        Imm64::Var(id) => (3, id, 0),
        Imm64::Func(off) => (4, off, 0),
        Imm64::MapIdx(map) => (5, map, 0),
        Imm64::MapIdxValue { map, off } => (6, map, off as i32),
    };
    (RawInsn { code: op::LD_IMM64, dst: dst as u8, src, off: 0, imm: low }, high)
}

fn raw_one_slot(insn: Insn) -> RawInsn {
    let zero = RawInsn::default();
    let alu_class = |width| if width == Width::W32 { op::ALU } else { op::ALU64 };
    // The bits a second operand adds: X and the register, or the immediate.
    let with = |raw: RawInsn, x: u8, src| match src {
        Src::Reg(reg) => RawInsn { code: raw.code | x, src: reg as u8, ..raw },
        Src::Imm(imm) => RawInsn { imm, ..raw },
    };
    match insn {
        Insn::Alu { width, op, dst, src } => {
            let off = i16::from(matches!(op, AluOp::SDiv | AluOp::SMod));
            with(RawInsn { code: alu_class(width) | op::alu_bits(op), dst: dst as u8, off, ..zero }, op::X, src)
        }
        Insn::Mov { width, dst, src } => {
            with(RawInsn { code: alu_class(width) | op::MOV, dst: dst as u8, ..zero }, op::X, src)
        }
        Insn::MovSx { width, dst, src, from } => RawInsn {
            code: alu_class(width) | op::MOV | op::X,
            dst: dst as u8,
            src: src as u8,
            off: match from {
                SxWidth::S8 => 8,
                SxWidth::S16 => 16,
                SxWidth::S32 => 32,
            },
            ..zero
        },
        Insn::Cast { dst, src, to } => RawInsn {
            code: op::ALU64 | op::MOV | op::X,
            dst: dst as u8,
            src: src as u8,
            off: op::CAST,
            imm: match to {
                AddrSpace::Kernel => op::CAST_TO_KERNEL,
                AddrSpace::User => op::CAST_TO_USER,
            },
        },
        Insn::Neg { width, dst } => RawInsn { code: alu_class(width) | op::NEG, dst: dst as u8, ..zero },
        Insn::End { order, width, dst } => {
            let code = match order {
                ByteOrder::ToLe => op::ALU | op::END,
                ByteOrder::ToBe => op::ALU | op::END | op::X,
                ByteOrder::Swap => op::ALU64 | op::END,
            };
            RawInsn { code, dst: dst as u8, imm: width.bits() as i32, ..zero }
        }
        Insn::LoadImm64 { dst, imm } => raw_load_imm64(dst, imm).0,
        Insn::SecondSlot => zero,
        Insn::Load { size, sign, dst, base, off } => {
            let mode = if sign { op::MEMSX } else { op::MEM };
            RawInsn { code: op::LDX | mode | op::size_bits(size), dst: dst as u8, src: base as u8, off, imm: 0 }
        }
        Insn::Store { size, base, off, src } => {
            let raw = RawInsn { code: op::MEM | op::size_bits(size), dst: base as u8, off, ..zero };
            // Register and immediate stores differ in class.
            match src {
                Src::Reg(reg) => RawInsn { code: raw.code | op::STX, src: reg as u8, ..raw },
                Src::Imm(imm) => RawInsn { code: raw.code | op::ST, imm, ..raw },
            }
        }
        Insn::Atomic { width, op, base, off, src } => {
            let size = Size::from(width);
            RawInsn { imm: atomic_imm(op), ..raw_atomic(size, base, src, off) }
        }
        Insn::LoadAcquire { size, dst, base, off } => RawInsn { imm: op::LOAD_ACQ, ..raw_atomic(size, dst, base, off) },
        Insn::StoreRelease { size, base, off, src } => {
            RawInsn { imm: op::STORE_REL, ..raw_atomic(size, base, src, off) }
        }
        Insn::LoadAbs { size, imm } => RawInsn { code: op::LD | op::ABS | op::size_bits(size), imm, ..zero },
        Insn::LoadInd { size, src, imm } => {
            RawInsn { code: op::LD | op::IND | op::size_bits(size), src: src as u8, imm, ..zero }
        }
        Insn::Jump { off, wide: true } => RawInsn { code: op::JMP32 | op::JA, imm: off, ..zero },
        #[expect(clippy::cast_possible_truncation, reason = "`malformed_at` refuses what does not fit")]
        Insn::Jump { off, wide: false } => RawInsn { code: op::JMP | op::JA, off: off as i16, ..zero },
        Insn::JumpReg { target } => RawInsn { code: op::JMP | op::JA | op::X, dst: target as u8, ..zero },
        Insn::JumpIf { width, cond, dst, src, off } => {
            let class = if width == Width::W32 { op::JMP32 } else { op::JMP };
            with(RawInsn { code: class | op::cond_bits(cond), dst: dst as u8, off, ..zero }, op::X, src)
        }
        Insn::MayGoto { off } => RawInsn { code: op::JMP | op::JCOND, off, ..zero },
        Insn::Call(callee) => {
            let (x, dst, src, imm) = match callee {
                Callee::Helper(id) => (0, 0, 0, id as i32),
                Callee::Subprog(off) => (0, 0, 1, off),
                Callee::Host(id) => (0, 0, 2, id),
                Callee::Reg(reg) => (op::X, reg as u8, 0, 0),
            };
            RawInsn { code: op::JMP | op::CALL | x, dst, src, imm, ..zero }
        }
        Insn::Exit => RawInsn { code: op::JMP | op::EXIT, ..zero },
    }
}

fn raw_atomic(size: Size, dst: Reg, src: Reg, off: i16) -> RawInsn {
    RawInsn { code: op::STX | op::ATOMIC | op::size_bits(size), dst: dst as u8, src: src as u8, off, imm: 0 }
}

fn atomic_imm(op: AtomicOp) -> i32 {
    let fetched = |imm, fetch| if fetch { imm | op::FETCH } else { imm };
    match op {
        AtomicOp::Add { fetch } => fetched(op::ATOMIC_ADD, fetch),
        AtomicOp::Or { fetch } => fetched(op::ATOMIC_OR, fetch),
        AtomicOp::And { fetch } => fetched(op::ATOMIC_AND, fetch),
        AtomicOp::Xor { fetch } => fetched(op::ATOMIC_XOR, fetch),
        AtomicOp::Xchg => op::XCHG,
        AtomicOp::CmpXchg => op::CMPXCHG,
    }
}
