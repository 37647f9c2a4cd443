//! Ranks: for each kept point a lexicographic rank that each path from one point to the next decreases.
//!
//! Problem: a program ends if the graph of kept points has a rank that decreases along each of its edges. Approach
//! (Colon and Sipma, CAV 2002; Alias et al., SAS 2010): the strongly connected components of the graph are numbered in
//! topological order. In each component with a cycle, a measure is chosen for each point such that no edge increases
//! the measure and some edge decreases it; those edges are taken out, and what is left is treated in the same way.
//! Measures are forms that the point's invariant says are not negative: its rows, and the distance of names from their
//! bounds. Constants that are added to measures are potentials of a difference constraint system (Bellman 1958).

use std::collections::{BTreeMap, HashMap};

use bpf_verifier_core::{Form, Knowledge, Known, State};

use super::meter::Meter;
use super::multipliers;
use super::points::{PointState, bytes_of};
use crate::fuel;

/// The most edges: paths from one point to the next.
const MAX_EDGES: usize = 1024;
/// The most points of a component, and the most measures in a rank: both are depths of recursion.
const MAX_COMPONENT: usize = 256;
const MAX_RANK: usize = 32;
/// The most pairs of measures that are compared in one component, and in all.
const BUDGET: usize = 6000;
const ALL_PAIRS: usize = 8 * BUDGET;
/// The most times that a measure is tried for a point, and that the decrease along an edge is asked, which is known for
/// most pairs: the choice of a measure for each point goes back where no constants fit, so there are as many choices as
/// there are measures to the power of the points.
const TRIES: usize = 100_000;
const QUESTIONS: usize = 2_000_000;
/// The most measures of a point.
const MAX_MEASURES: usize = 64;

/// A path from one kept point to the next.
#[derive(Debug)]
struct Edge {
    from: usize,
    to: usize,
    known: Knowledge,
    renaming: Vec<Form>,
}

/// The edges that were seen, and the ranks found.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    edges: Vec<Edge>,
    ranks: Vec<Vec<Form>>,
}

impl Ranks {
    /// The rank of a point.
    pub(super) fn of(&self, point: usize) -> Vec<Form> {
        self.ranks.get(point).cloned().unwrap_or_default()
    }

    /// Notes a path from one point to another, and returns the bytes that the note takes.
    pub(super) fn see(&mut self, from: usize, to: usize, state: &State, renaming: Vec<Form>) -> usize {
        if self.edges.len() == MAX_EDGES {
            return 0;
        }
        // The definitions of the state are at most as many as its names.
        let names = state.known().names().len() * (size_of::<Known>() + 4 * size_of::<Form>());
        let bytes = names + bytes_of(state.known().rows()) + bytes_of(&renaming);
        self.edges.push(Edge { from, to, known: state.known().clone(), renaming });
        bytes
    }

    /// Finds ranks. If there are none, the check of the certificate fails.
    pub(super) fn find(&mut self, points: &[PointState], meter: &Meter) {
        self.ranks = vec![Vec::new(); points.len()];
        let measures = points.iter().map(measures).collect();
        let mut search = Search {
            edges: &self.edges,
            measures,
            ranks: &mut self.ranks,
            known: HashMap::new(),
            meter,
            budget: 0,
            pairs: ALL_PAIRS,
            tries: TRIES,
            questions: QUESTIONS,
        };
        search.order(&(0..points.len()).collect::<Vec<_>>(), &(0..self.edges.len()).collect::<Vec<_>>(), 0);
    }
}

/// Forms that are not negative at a point.
fn measures(point: &PointState) -> Vec<Form> {
    let claim = &point.claim;
    let mut all: Vec<Form> = Vec::new();
    for (n, known) in (0u32..).zip(&claim.names) {
        let (min, max) = known.bounds();
        let name = Form::name(bpf_verifier_core::Name(n));
        let above = min.checked_neg().and_then(|by| name.shifted(by));
        all.extend(above.into_iter().chain(name.times(-1).and_then(|f| f.shifted(max))));
    }
    let mut measures = claim.rows.clone();
    measures.extend(all);
    let mut kept: Vec<Form> = Vec::new();
    for form in measures {
        if kept.len() < MAX_MEASURES && kept.iter().all(|other| other.terms() != form.terms()) {
            kept.push(form);
        }
    }
    kept
}

struct Search<'a> {
    edges: &'a [Edge],
    measures: Vec<Vec<Form>>,
    ranks: &'a mut Vec<Vec<Form>>,
    /// By edge and the measures of both ends: the least decrease, `None` if it may increase.
    known: HashMap<(usize, usize, usize), Option<i128>>,
    meter: &'a Meter,
    /// The rests of [`BUDGET`], [`ALL_PAIRS`], [`TRIES`] and [`QUESTIONS`].
    budget: usize,
    pairs: usize,
    tries: usize,
    questions: usize,
}

impl Search<'_> {
    /// Whether the search for ranks may go on.
    fn goes_on(&self) -> bool {
        self.budget > 0 && self.pairs > 0 && self.tries > 0 && self.questions > 0 && self.meter.goes_on()
    }

    /// Ranks the points by these edges, at this place of the rank.
    fn order(&mut self, points: &[usize], edges: &[usize], place: usize) {
        let components = components(points, edges.iter().map(|e| (self.edges[*e].from, self.edges[*e].to)));
        // Edges lead from later components to earlier ones.
        for (i, component) in (0i128..).zip(&components) {
            component.iter().for_each(|p| self.ranks[*p].push(Form::constant(i)));
        }
        for component in components {
            let inside = |e: &usize| component.contains(&self.edges[*e].from) && component.contains(&self.edges[*e].to);
            let inside: Vec<usize> = edges.iter().copied().filter(inside).collect();
            if inside.is_empty() || component.len() > MAX_COMPONENT || place >= MAX_RANK {
                continue;
            }
            self.budget = BUDGET;
            let mut chosen = BTreeMap::new();
            let Some(left) = self.choose(&component, &inside, &mut chosen) else { continue };
            self.order(&component, &left, place + 1);
        }
    }

    /// The least decrease along an edge, from one measure to another.
    fn decrease(&mut self, e: usize, from: usize, to: usize) -> Option<i128> {
        self.questions = self.questions.saturating_sub(1);
        if let Some(known) = self.known.get(&(e, from, to)) {
            return *known;
        }
        (self.budget, self.pairs) = (self.budget.saturating_sub(1), self.pairs.saturating_sub(1));
        if !self.meter.work(fuel::VALUE) {
            return None;
        }
        let edge = &self.edges[e];
        let after = self.measures[edge.to][to].substitute(&edge.renaming);
        let less = after.and_then(|after| self.measures[edge.from][from].plus(&after, -1));
        let decrease = less.and_then(|less| match less.as_const() {
            Some(c) => Some(c),
            None => [1, 0, -1]
                .into_iter()
                .find(|by| less.shifted(-by).is_some_and(|less| multipliers::holds(&edge.known, &less))),
        });
        // The measure itself must not be negative; its invariant says so.
        self.known.insert((e, from, to), decrease);
        decrease
    }

    /// Chooses measures for the points of a component, and returns the edges that do not decrease them.
    fn choose(
        &mut self,
        component: &[usize],
        edges: &[usize],
        chosen: &mut BTreeMap<usize, usize>,
    ) -> Option<Vec<usize>> {
        self.tries = self.tries.saturating_sub(1);
        if !self.meter.work(fuel::VALUE * edges.len() as u64) || !self.goes_on() {
            return None;
        }
        // A point that an edge connects with a point that has a measure.
        let touches = |p: &&usize| {
            edges.iter().any(|e| {
                let (from, to) = (self.edges[*e].from, self.edges[*e].to);
                from == **p && chosen.contains_key(&to) || to == **p && chosen.contains_key(&from)
            })
        };
        let open = component.iter().filter(|p| !chosen.contains_key(p));
        let next = open.clone().find(touches).or_else(|| open.clone().next()).copied();
        let Some(p) = next else { return self.settle(component, edges, chosen) };
        let mut fitting: Vec<(i128, usize)> = Vec::new();
        for m in 0..self.measures[p].len() {
            let mut least = Some(0i128);
            for e in edges {
                let (from, to) = (self.edges[*e].from, self.edges[*e].to);
                let pair = match (from == p, to == p) {
                    (true, true) => Some((m, m)),
                    (true, false) => chosen.get(&to).map(|to| (m, *to)),
                    (false, true) => chosen.get(&from).map(|from| (*from, m)),
                    (false, false) => None,
                };
                let Some((a, b)) = pair else { continue };
                let by = self.decrease(*e, a, b).filter(|by| from != to || *by >= 0);
                least = least.zip(by).and_then(|(least, by)| least.checked_add(by));
                if least.is_none() {
                    break;
                }
            }
            fitting.extend(least.map(|least| (least, m)));
        }
        // The greatest decrease comes first.
        fitting.sort_by_key(|(least, _)| std::cmp::Reverse(*least));
        for (_, m) in fitting {
            chosen.insert(p, m);
            let found = self.choose(component, edges, chosen);
            if found.is_some() {
                return found;
            }
            chosen.remove(&p);
        }
        None
    }

    /// With a measure for each point: adds constants, and notes the measures if some edge decreases them.
    fn settle(&mut self, component: &[usize], edges: &[usize], chosen: &BTreeMap<usize, usize>) -> Option<Vec<usize>> {
        let mut constants: BTreeMap<usize, i128> = component.iter().map(|p| (*p, 0)).collect();
        let mut steps = Vec::new();
        for e in edges {
            let (from, to) = (self.edges[*e].from, self.edges[*e].to);
            steps.push((*e, from, to, self.decrease(*e, *chosen.get(&from)?, *chosen.get(&to)?)?));
        }
        let mut settled = false;
        for _ in 0..=component.len() {
            if !self.meter.work(fuel::VALUE * steps.len() as u64) {
                return None;
            }
            settled = true;
            for (_, from, to, by) in &steps {
                let most = constants[from].checked_add(*by)?;
                if constants[to] > most {
                    constants.insert(*to, most);
                    settled = false;
                }
            }
            if settled {
                break;
            }
        }
        if !settled {
            return None;
        }
        let least = constants.values().copied().min()?;
        let stays = |from: i128, by: i128, to: i128| from.saturating_add(by) <= to;
        let left: Vec<usize> =
            steps.iter().filter(|(_, from, to, by)| stays(constants[from], *by, constants[to])).map(|s| s.0).collect();
        if left.len() == edges.len() {
            return None;
        }
        for p in component {
            let measure = self.measures[*p][chosen[p]].shifted(constants[p].checked_sub(least)?)?;
            self.ranks[*p].push(measure);
        }
        Some(left)
    }
}

/// The strongly connected components of the points (Tarjan 1972), each after all that edges from it lead to.
fn components(points: &[usize], edges: impl Iterator<Item = (usize, usize)>) -> Vec<Vec<usize>> {
    let mut next: BTreeMap<usize, Vec<usize>> = points.iter().map(|p| (*p, Vec::new())).collect();
    edges.for_each(|(from, to)| next.entry(from).or_default().push(to));
    let mut found = Vec::new();
    let (mut index, mut low): (BTreeMap<usize, usize>, BTreeMap<usize, usize>) = Default::default();
    let mut open: Vec<usize> = Vec::new();
    for start in points {
        if index.contains_key(start) {
            continue;
        }
        // The points on the depth-first path, each with the number of its edges that were followed.
        let mut way = vec![(*start, 0)];
        while let Some((p, followed)) = way.pop() {
            if followed == 0 {
                let number = index.len();
                index.insert(p, number);
                low.insert(p, number);
                open.push(p);
            }
            match next.get(&p).and_then(|next| next.get(followed)).copied() {
                Some(q) => {
                    way.push((p, followed + 1));
                    if !index.contains_key(&q) {
                        way.push((q, 0));
                    } else if open.contains(&q) {
                        let least = low[&p].min(index[&q]);
                        low.insert(p, least);
                    }
                }
                None => {
                    if let Some((parent, _)) = way.last() {
                        let least = low[parent].min(low[&p]);
                        low.insert(*parent, least);
                    }
                    if low[&p] == index[&p] {
                        let at = open.iter().position(|q| *q == p).unwrap_or(0);
                        found.push(open.split_off(at));
                    }
                }
            }
        }
    }
    found
}
