//! The guide: what the search answers when the core asks.

use std::collections::{BTreeMap, BTreeSet};

use bpf_analysis::RegSet;
use bpf_isa::{Imm64, Insn, Program, Src};
use bpf_verifier_core::{Advice, Combination, Env, Form, Guide, Point};

use super::multipliers;
use super::points::{Change, PointState, Points};
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
    /// The instructions at which points are kept, each with its live-in registers.
    keeps: BTreeMap<u32, RegSet>,
    /// The point that the segment began at.
    pub(super) from: Option<usize>,
    pub(super) points: Points,
    pub(super) ranks: Ranks,
    pub(super) mode: Mode,
    /// Points that were made or weakened since their segment was walked, in the order of the program.
    pub(super) dirty: BTreeSet<(Vec<u32>, Option<usize>)>,
    /// By point, the segments that lead to it: of other points, or of the entry.
    sources: Vec<BTreeSet<Option<usize>>>,
}

impl Search {
    /// Keeps points at these instructions.
    pub(super) fn new(
        program: &Program,
        env: &Env<'_>,
        heads: Vec<(u32, u32)>,
        keeps: BTreeMap<u32, RegSet>,
    ) -> Search {
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
            keeps,
            from: None,
            mode: Mode::Answer,
            dirty: BTreeSet::new(),
            sources: Vec::new(),
        }
    }

    /// Every measure is a candidate again.
    pub(super) fn begin_ranks(&mut self) {
        self.mode = Mode::Rank;
        self.ranks = Ranks::new(&self.heads, &self.points.all);
    }

    fn at_point(&mut self, point: &Point<'_>, live: RegSet) -> Advice {
        let Some(i) = self.points.find(point.pc, point.state) else {
            if self.mode != Mode::Weaken || self.points.all.len() == MAX_POINTS {
                return Advice::Stop;
            }
            let i = self.points.begin(point.pc, point.state, live);
            self.sources.push(BTreeSet::from([self.from]));
            self.mark(Some(i));
            return Advice::Cover { kept: i, renaming: Vec::new() };
        };
        let Some(kept) = self.points.all.get(i) else { return Advice::Stop };
        if let Some((form, signed)) = kept.unnamed(point.state) {
            return Advice::Name { form, signed };
        }
        if self.mode == Mode::Weaken {
            let is_head = self.heads.iter().any(|(head, _)| *head == point.pc.0);
            self.sources[i].insert(self.from);
            match self.points.weaken(i, point.state, is_head) {
                Change::None => {}
                Change::Weaker => self.mark(Some(i)),
                Change::New => {
                    self.mark(Some(i));
                    self.sources[i].clone().into_iter().for_each(|source| self.mark(source));
                }
            }
            return Advice::Cover { kept: i, renaming: Vec::new() };
        }
        let Some(renaming) = kept.renaming(point.state) else { return Advice::Stop };
        if let (Mode::Rank, Some(from)) = (self.mode, self.from)
            && let Some(source) = self.points.all.get(from)
        {
            self.ranks.see((from, source), (i, kept), point.state, &renaming);
        }
        Advice::Cover { kept: i, renaming }
    }

    /// Marks the segment of a point, or of the entry, to be walked again.
    fn mark(&mut self, segment: Option<usize>) {
        let order = segment.and_then(|i| self.points.all.get(i)).map(PointState::order);
        self.dirty.insert((order.unwrap_or_default(), segment));
    }
}

/// Most points that are kept.
const MAX_POINTS: usize = 4096;

impl Guide for Search {
    fn advise(&mut self, point: &Point<'_>) -> Advice {
        match self.keeps.get(&point.pc.0) {
            Some(live) if !point.starts => self.at_point(point, *live),
            Some(_) | None => Advice::Step,
        }
    }

    fn prove(&mut self, point: &Point<'_>, claim: &Form) -> Option<Combination> {
        multipliers::find(point.state.known(), claim)
    }
}
