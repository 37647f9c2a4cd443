//! Statements about arrays on the stack that a loop fills, element after element.
//!
//! No store by itself says which bytes are written, so the verifier has to derive it from the loop; the bytes that were
//! written are read afterwards, and at times others. A lure leaves a hole in each element, fills some elements on one
//! of two ways only, or stores a pointer among the numbers. The bytes read go into a map; unwritten bytes and addresses
//! are noticed because they differ between two runs.

use super::emit::{Builder, SIZES, WIDTHS};
use super::{GLOBAL_VALUE, MapId};
use bpf_isa::{AluOp, Cond, Insn, Reg, Size, Src};

/// Offsets of the arrays, and their bytes.
const ARRAYS: [i16; 2] = [-512, -384];
const ARRAY: u32 = 120;

/// Planted error of a loop that fills an array.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// Some bytes of each element are not written.
    Hole,
    /// Some elements are not written.
    Sometimes,
    /// The first element is a pointer, from the second round on.
    Pointer,
    /// Bytes behind the last element are read.
    Beyond,
}

impl Builder<'_, '_> {
    pub(super) fn filled(&mut self) {
        if self.busy.numbers[0] || self.rounds >= 4 || self.depth >= 3 {
            return self.arithmetic();
        }
        let pointers = self.has_ctx() && !self.busy.owes;
        let wrong = self.lure(2).then(|| match self.c.below(4) {
            0 => Wrong::Hole,
            1 => Wrong::Sometimes,
            2 if pointers => Wrong::Pointer,
            _ => Wrong::Beyond,
        });
        let base = self.c.pick(&ARRAYS);
        let element = match wrong {
            Some(Wrong::Hole | Wrong::Pointer) => 8,
            _ => self.c.pick(&SIZES).bytes(),
        };
        let rounds = match wrong {
            Some(Wrong::Beyond) => 6 + self.c.below(ARRAY / 8 - 6),
            _ => 6 + self.c.below(ARRAY / 8 - 5),
        };
        let end = (rounds * element) as i32;
        let outside = (self.busy, self.rounds);
        self.rounds *= rounds;
        self.cost += 12 * self.rounds;
        self.busy.numbers[0] = true;
        let number = self.c.pick(&[Reg::R9, Reg::R0]);
        self.imm(Reg::R8, 0);
        let head = self.code.len();
        let sometimes = wrong == Some(Wrong::Sometimes);
        let (cond, than) = (self.c.pick(&Cond::ALL), self.small_imm());
        if sometimes {
            self.unknown(Reg::R0);
        }
        if wrong == Some(Wrong::Pointer) {
            self.packet_ends();
            self.store(Size::DW, Reg::R10, base, Src::Reg(Reg::R1));
        }
        self.address(Reg::R1, Reg::R10, base.into());
        self.add(Reg::R1, Reg::R8);
        let stores = |b: &mut Self| b.element_of(element, number, wrong == Some(Wrong::Hole));
        match sometimes {
            true => self.skip_if(cond, Reg::R0, Src::Imm(than), stores),
            false => stores(self),
        }
        self.alu(AluOp::Add, Reg::R8, Src::Imm(element as i32));
        let cond = self.c.pick(&[Cond::Ne, Cond::Lt, Cond::SLt]);
        let width = self.c.pick(&WIDTHS);
        let off = (head as i64 - self.code.len() as i64 - 1) as i16;
        self.push(Insn::JumpIf { width, cond, dst: Reg::R8, src: Src::Imm(end), off });
        (self.busy, self.rounds) = outside;
        let filled = rounds * element;
        self.read_back(base, if wrong == Some(Wrong::Beyond) { filled + 8 } else { filled });
    }

    /// An element at r1, in one store or in two.
    fn element_of(&mut self, bytes: u32, number: Reg, hole: bool) {
        let src = if self.c.one_in(2) { Src::Reg(number) } else { Src::Imm(self.small_imm()) };
        let size = SIZES.into_iter().find(|size| size.bytes() == bytes).unwrap_or(Size::DW);
        match size {
            Size::DW if hole => {
                self.store(Size::W, Reg::R1, 0, src);
                self.store(Size::H, Reg::R1, 6, src);
            }
            Size::DW if self.c.one_in(3) => {
                self.store(Size::W, Reg::R1, 0, src);
                self.store(Size::W, Reg::R1, 4, src);
            }
            _ => self.store(size, Reg::R1, 0, src),
        }
    }

    /// Some of the first so many bytes, into the global variable: eight from a place that is known, or not.
    fn read_back(&mut self, base: i16, bytes: u32) {
        let last = bytes - bytes.min(8);
        let size = if bytes < 8 { Size::W } else { Size::DW };
        if last >= 8 && self.c.one_in(2) {
            let ones = 31 - (last + 1).leading_zeros();
            let number = self.number();
            self.mov(Reg::R2, number);
            self.alu(AluOp::And, Reg::R2, Src::Imm((1 << ones) - 1));
            self.address(Reg::R1, Reg::R10, base.into());
            self.add(Reg::R1, Reg::R2);
            self.load(size, Reg::R2, Reg::R1, 0);
        } else {
            let at = if self.c.one_in(2) { last } else { self.c.below(last + 1) };
            self.load(size, Reg::R2, Reg::R10, base + at as i16);
        }
        let to = self.c.below(GLOBAL_VALUE / 8) * 8;
        self.map_value(Reg::R1, MapId::Global, to);
        self.store(Size::DW, Reg::R1, 0, Src::Reg(Reg::R2));
    }
}
