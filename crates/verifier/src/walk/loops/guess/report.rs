//! Descriptions of a candidate, for messages and the log.

use super::Guess;
use super::place::{Place, What, places, value};
use crate::env::Env;
use crate::error::LoopFailure;
use crate::state::State;
use crate::value::Value;

impl Guess {
    /// The candidate's description: registers of the running frame, and slots that a round changes.
    pub(in crate::walk::loops) fn parts(&self, env: &Env<'_>) -> Vec<(String, String)> {
        let top = self.state.top();
        let rounds = match top.loops.last() {
            Some(mark) if !self.uncounted => mark.k.n.to_string(),
            _ => "any number".into(),
        };
        let mut out = vec![("rounds".into(), rounds)];
        for place in places(&self.state) {
            let of_frame = matches!(place.what, What::Reg(_)) || self.moves(place);
            if let (Some(v), true) = (value(&self.state, place), of_frame) {
                out.push((place.to_string(), v.describe(env)));
            }
        }
        for c in &top.contents {
            let (first, last) = (-c.grid.first, -c.grid.last);
            let mut n = c.n.map_or("not written".into(), |n| Value::scalar(n).describe(env));
            if let Some(base) = c.order.base {
                n += &format!(", no more than its index from [r10 - {}] on", -base);
            }
            for (region, below) in c.order.lens[..env.context.regions.len()]
                .iter()
                .enumerate()
                .filter_map(|(r, below)| Some((r, (*below)?)))
            {
                n += &format!(", {below} or more below the length of {}", env.region(crate::num::few(region)).name);
            }
            out.push((format!("each of [r10 - {first}] to [r10 - {last}]"), n));
        }
        out
    }

    fn moves(&self, place: Place) -> bool {
        self.steps.contains(&place) || self.own.iter().any(|o| o.place == place)
    }

    /// The first place that came back to the havocked candidate and did not change as assumed.
    pub(in crate::walk::loops) fn unstable(&self, env: &Env<'_>) -> LoopFailure {
        match &self.back {
            Some(back) => self.change(back, env),
            None => LoopFailure::Unlike,
        }
    }

    /// The first place of the state at the back-edge that the guess does not cover.
    pub(in crate::walk::loops) fn change(&self, back: &State, env: &Env<'_>) -> LoopFailure {
        let unlike = |place: &Place| match (value(&self.state, *place), value(back, *place)) {
            (Some(g), Some(b)) => g.ty != b.ty || !b.n.subset(&g.n),
            (Some(_), None) => true,
            (None, _) => false,
        };
        let broken = self.broken.iter().map(|(p, _)| *p).find(|p| value(&self.state, *p).is_some());
        let Some(place) = places(&self.state).find(unlike).or(broken) else {
            return LoopFailure::Unlike;
        };
        let text = |state: &State| value(state, place).map_or("not known".into(), |v| v.describe(env));
        LoopFailure::Changes { what: place.to_string(), guessed: text(&self.state), came_back: text(back) }
    }

    /// The candidate's description for the log.
    pub(in crate::walk::loops) fn describe(&self, env: &Env<'_>) -> String {
        let parts = self.parts(env);
        parts
            .iter()
            .enumerate()
            .map(|(i, (what, v))| format!("{} {what} = {v}", if i == 0 { "" } else { "," }))
            .chain(self.relations.iter().map(|(r, _)| format!(", {r}")))
            .collect()
    }
}
