//! The guide: the answers of the search to the core's questions.

use std::collections::{BTreeMap, BTreeSet};

use bpf_analysis::RegSet;
use bpf_isa::{Cond, Imm64, Insn, Program, Src, Width};
use bpf_verifier_core::{Advice, Combination, Env, Form, Guide, KnownMap, Point, Value};

use super::meter::Meter;
use super::multipliers;
use super::partition::{Keys, Partition};
use super::points::{Change, PointState, Points};
use super::ranks::Ranks;
use super::thresholds::ThresholdSets;

/// The purpose of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Points are created, and weakened until they cover the states that reach them.
    Weaken,
    /// Paths between points are noted, for their ranks.
    Rank,
    /// The answers are recorded.
    Answer,
}

/// The state of the search.
#[derive(Debug)]
pub(super) struct Search<'m> {
    meter: &'m Meter,
    insns: Vec<Insn>,
    heads: Vec<(u32, u32)>,
    /// The instructions at which points are kept, each with its live-in registers.
    keeps: BTreeMap<u32, RegSet>,
    /// The point that the segment began at.
    pub(super) from: Option<usize>,
    pub(super) points: Points,
    pub(super) ranks: Ranks,
    pub(super) mode: Mode,
    /// Points that were created or weakened since their segment was walked, in program order.
    pub(super) dirty: BTreeSet<(Vec<u32>, Option<usize>)>,
    /// For each point, the segments that lead to it: of other points, or of the entry.
    sources: Vec<BTreeSet<Option<usize>>>,
}

impl<'m> Search<'m> {
    /// Keeps points at these instructions.
    pub(super) fn new(
        program: &Program,
        env: &Env<'_>,
        meter: &'m Meter,
        heads: Vec<(u32, u32)>,
        keeps: BTreeMap<u32, RegSet>,
        partition: Partition,
    ) -> Search<'m> {
        let imm = |src: Src| match src {
            Src::Imm(imm) => Some(i128::from(imm)),
            Src::Reg(_) => None,
        };
        let constants = program.insns().iter().filter_map(|insn| match *insn {
            Insn::JumpIf { src, .. } | Insn::Alu { src, .. } | Insn::Mov { src, .. } => imm(src),
            Insn::LoadImm64 { imm: Imm64::Const(value), .. } => Some(i128::from(value)),
            _other => None,
        });
        let compared = program.insns().iter().filter_map(|insn| match *insn {
            Insn::JumpIf { src, .. } => imm(src),
            _other => None,
        });
        let ordered = program.insns().iter().filter_map(|insn| match *insn {
            Insn::JumpIf { cond: Cond::Eq | Cond::Ne | Cond::Set, .. } => None,
            Insn::JumpIf { src, .. } => imm(src),
            _other => None,
        });
        let flags = program.insns().iter().filter_map(|insn| match *insn {
            // The constant as a word of 64 bits, or as the low half of one.
            Insn::Mov { src: Src::Imm(imm), width, .. } => match width {
                Width::W64 => Some(i128::from(imm)),
                Width::W32 => Some(i128::from(imm.cast_unsigned())),
            },
            _other => None,
        });
        let lengths = env.context.regions.iter().map(|region| i128::from(region.max_len)).collect::<Vec<_>>();
        let flags: BTreeSet<i128> = flags.collect();
        let compared = compared.chain(lengths.iter().copied()).chain(flags.iter().copied());
        let thresholds = ThresholdSets::new(
            constants.chain(lengths.iter().copied()),
            compared,
            ordered.chain(lengths.iter().copied()),
        );
        Search {
            meter,
            points: Points::new(Keys { partition, flags, frozen: frozen(env) }, thresholds),
            ranks: Ranks::default(),
            insns: program.insns().to_vec(),
            heads,
            keeps,
            from: None,
            mode: Mode::Answer,
            dirty: BTreeSet::new(),
            sources: Vec::new(),
        }
    }

    /// Notes paths between points from here on.
    pub(super) fn begin_ranks(&mut self) {
        self.mode = Mode::Rank;
    }

    /// Finds ranks for the noted paths.
    pub(super) fn end_ranks(&mut self) {
        self.ranks.find(&self.points.all, self.meter);
    }

    fn at_point(&mut self, point: &Point<'_>, live: RegSet) -> Advice {
        let Some(i) = self.points.find(point.pc, point.state, live) else {
            if self.mode != Mode::Weaken || self.points.all.len() == MAX_POINTS {
                return Advice::Stop;
            }
            let i = self.points.begin(point.pc, point.state, live);
            self.meter.hold(self.points.all[i].bytes());
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
            let before = kept.bytes();
            let change = self.points.weaken(i, point.state, is_head);
            self.meter.free(before);
            self.meter.hold(self.points.all[i].bytes());
            match change {
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
        if let (Mode::Rank, Some(from)) = (self.mode, self.from) {
            self.meter.hold(self.ranks.see(from, i, point.state, renaming.clone()));
        }
        Advice::Cover { kept: i, renaming }
    }

    /// The case split that decides whether a compared number has wrapped, if both are possible.
    fn split(&self, point: &Point<'_>) -> Option<Form> {
        let Insn::JumpIf { width, cond, dst, src, .. } = *self.insns.get(point.pc.index())? else { return None };
        let (bits, signed) = match (width, cond) {
            (_, Cond::Set) => return None,
            (Width::W64, Cond::SGt | Cond::SGe | Cond::SLt | Cond::SLe) => (64, true),
            (Width::W32, Cond::SGt | Cond::SGe | Cond::SLt | Cond::SLe) => (32, true),
            (Width::W64, Cond::Eq | Cond::Ne | Cond::Gt | Cond::Ge | Cond::Lt | Cond::Le) => (64, false),
            (Width::W32, Cond::Eq | Cond::Ne | Cond::Gt | Cond::Ge | Cond::Lt | Cond::Le) => (32, false),
        };
        let known = point.state.known();
        let (modulus, least) = (1i128 << bits, if signed { -(1i128 << (bits - 1)) } else { 0 });
        let regs = [Some(dst), if let Src::Reg(reg) = src { Some(reg) } else { None }];
        regs.into_iter().flatten().find_map(|reg| {
            let Value::Number(form) = point.state.reg(reg) else { return None };
            let form = form.residue(bits);
            let (min, max) = known.bounds(&form)?;
            let period = |at: i128| Some(at.checked_sub(least)?.div_euclid(modulus));
            let (first, last) = (period(min)?, period(max)?);
            if form.terms().len() < 2 && bits == 64 || first.checked_add(1) != Some(last) {
                return None;
            }
            // The start of the later period.
            let later = form.shifted(last.checked_mul(modulus)?.checked_add(least)?.checked_neg()?)?;
            let earlier = later.times(-1)?.shifted(-1)?;
            (!multipliers::holds(known, &later) && !multipliers::holds(known, &earlier)).then_some(later)
        })
    }

    /// Marks the segment of a point, or of the entry, to be walked again.
    fn mark(&mut self, segment: Option<usize>) {
        let order = segment.and_then(|i| self.points.all.get(i)).map(PointState::order);
        self.dirty.insert((order.unwrap_or_default(), segment));
    }
}

/// The constant maps, by index.
pub(super) fn frozen(env: &Env<'_>) -> BTreeSet<u32> {
    let constant = |(i, map): (u32, &KnownMap)| (map.frozen.is_some() && !map.access.writes()).then_some(i);
    (0..).zip(env.maps).filter_map(constant).collect()
}

/// Most points that are kept.
const MAX_POINTS: usize = 4096;

impl Guide for Search<'_> {
    fn advise(&mut self, point: &Point<'_>) -> Advice {
        if !self.meter.step(point.state) {
            return Advice::Stop;
        }
        match self.keeps.get(&point.pc.0) {
            Some(live) if !point.starts => self.at_point(point, *live),
            Some(_) | None => self.split(point).map_or(Advice::Step, Advice::Split),
        }
    }

    fn prove(&mut self, point: &Point<'_>, claim: &Form) -> Option<Combination> {
        if !self.meter.goes_on() {
            return None;
        }
        multipliers::find(point.state.known(), claim)
    }
}
