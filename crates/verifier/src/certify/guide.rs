//! The guide: what the search answers when the core asks.

use bpf_isa::{Imm64, Insn, Program, Src};
use bpf_verifier_core::{Advice, Combination, Env, Form, Guide, Point};

use super::multipliers;
use super::points::Points;
use super::ranks::Ranks;

/// What a walk is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Points are made, and weakened until they cover what reaches them.
    Weaken,
    /// Measures that do not decrease are dropped.
    Rank,
    /// The answers are recorded.
    Answer,
}

/// See the head of the module.
#[derive(Debug)]
pub(super) struct Search {
    heads: Vec<(u32, u32)>,
    pub(super) points: Points,
    pub(super) ranks: Ranks,
    pub(super) mode: Mode,
    /// A point was made or weakened.
    pub(super) dirty: bool,
}

impl Search {
    pub(super) fn new(program: &Program, env: &Env<'_>, heads: Vec<(u32, u32)>) -> Search {
        let imm = |src: Src| match src {
            Src::Imm(imm) => Some(i128::from(imm)),
            Src::Reg(_) => None,
        };
        let constants = program.insns().iter().filter_map(|insn| match *insn {
            Insn::JumpIf { src, .. } | Insn::Alu { src, .. } | Insn::Mov { src, .. } => imm(src),
            Insn::LoadImm64 { imm: Imm64::Const(value), .. } => Some(i128::from(value)),
            _other => None,
        });
        let lengths = env.context.regions.iter().map(|region| i128::from(region.max_len));
        Search {
            points: Points::new(constants.chain(lengths)),
            ranks: Ranks::default(),
            heads,
            mode: Mode::Answer,
            dirty: false,
        }
    }

    /// Every measure is a candidate again.
    pub(super) fn begin_ranks(&mut self) {
        self.mode = Mode::Rank;
        self.ranks = Ranks::new(&self.heads, &self.points.all);
    }

    fn at_head(&mut self, point: &Point<'_>) -> Advice {
        let Some(i) = self.points.find(point.pc, point.state) else {
            if self.mode != Mode::Weaken || self.points.all.len() == 64 {
                return Advice::Stop;
            }
            self.dirty = true;
            return Advice::Cover { kept: self.points.begin(point.pc, point.state), renaming: Vec::new() };
        };
        let Some(kept) = self.points.all.get(i) else { return Advice::Stop };
        if let Some((form, signed)) = kept.unnamed(point.state) {
            return Advice::Name { form, signed };
        }
        if self.mode == Mode::Weaken {
            self.dirty |= self.points.weaken(i, point.state);
            return Advice::Cover { kept: i, renaming: Vec::new() };
        }
        let Some(renaming) = kept.renaming(point.state) else { return Advice::Stop };
        if let (Mode::Rank, Some(from)) = (self.mode, point.from)
            && let Some(source) = self.points.all.get(from)
        {
            self.ranks.see((from, source), (i, kept), point.state, &renaming);
        }
        Advice::Cover { kept: i, renaming }
    }
}

impl Guide for Search {
    fn advise(&mut self, point: &Point<'_>) -> Advice {
        match self.heads.iter().any(|(head, _)| *head == point.pc.0) && !point.starts {
            true => self.at_head(point),
            false => Advice::Step,
        }
    }

    fn prove(&mut self, point: &Point<'_>, claim: &Form) -> Option<Combination> {
        multipliers::find(point.state.known(), claim)
    }
}
