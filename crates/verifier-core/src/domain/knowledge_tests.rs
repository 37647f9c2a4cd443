//! Tests of the rules of `Knowledge` against their meaning: all assignments within small boxes, for thousands of random
//! facts.

use super::*;

/// A generator of numbers: xorshift64 (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
    fn between(&mut self, min: i128, max: i128) -> i128 {
        min + i128::from(self.below(u64::try_from(max - min + 1).expect("a small range")))
    }
    fn form(&mut self, names: u32, most: i128) -> Form {
        let terms: Vec<_> = (0..names).map(|n| (Name(n), self.between(-most, most))).collect();
        Form::sum(terms, self.between(-9, 9)).expect("small numbers")
    }
    fn known(&mut self) -> Known {
        let signed = self.below(2) == 0;
        let min = self.between(if signed { -3 } else { 0 }, 2);
        let max = self.between(min, min + 4);
        let mut known = Known::range(min, max, signed).expect("a range");
        if self.below(3) == 0 {
            let even = Scalar::UNKNOWN.alu(AluOp::Lsh, Width::W64, &Scalar::constant(1));
            known.word = known.word.meet(&even).unwrap_or(known.word);
        }
        known
    }
}

fn value(form: &Form, at: &[i128]) -> i128 {
    form.terms().iter().map(|(n, a)| a * at[n.index()]).sum::<i128>() + form.offset()
}

/// Every assignment that satisfies all facts.
fn points(k: &Knowledge) -> Vec<Vec<i128>> {
    let mut all = vec![Vec::new()];
    for known in k.names() {
        let (min, max) = known.bounds();
        let values: Vec<i128> = (min..=max).filter(|v| known.word.contains(low_word(*v))).collect();
        all = all.iter().flat_map(|p| values.iter().map(move |v| p.iter().copied().chain([*v]).collect())).collect();
    }
    all.retain(|p| k.rows().iter().all(|row| value(row, p) >= 0));
    all
}

fn knowledge(random: &mut Random) -> Knowledge {
    let mut k = Knowledge::default();
    for _ in 0..3 {
        let known = random.known();
        k.name(known).expect("few names");
    }
    k
}

#[test]
fn what_is_learnt_loses_no_assignment_and_gains_none() {
    let (mut random, mut cut, mut none) = (Random(88172645463325252), 0, 0);
    for _ in 0..6_000 {
        let mut k = knowledge(&mut random);
        for _ in 0..2 {
            let form = random.form(3, 3);
            let before = points(&k);
            let wanted: Vec<_> = before.iter().filter(|p| value(&form, p) >= 0).cloned().collect();
            let possible = k.learn(form.clone());
            if !possible {
                assert!(wanted.is_empty(), "{form:?} is possible");
                none += 1;
                break;
            }
            assert_eq!(points(&k), wanted, "{form:?}");
            cut += usize::from(wanted.len() < before.len());
        }
    }
    assert!(cut > 300 && none > 300, "{cut} {none}: the facts say nothing");
}

#[test]
fn what_is_proven_holds_for_every_assignment() {
    let (mut random, mut proven, mut by_rows) = (Random(362436069), 0, 0);
    for _ in 0..12_000 {
        let mut k = knowledge(&mut random);
        for _ in 0..2 {
            let form = random.form(3, 2);
            if !k.learn(form) {
                break;
            }
        }
        let points = points(&k);
        // Most attempts use rows that exist and multipliers that are allowed.
        let odd = random.below(4) == 0;
        let count = k.rows().len() as u64 + u64::from(odd);
        let least = if odd { -1 } else { 0 };
        let rows = (0..count.min(2)).map(|_| (random.below(count) as u32, random.between(least, 3)));
        let rows: Vec<_> = rows.collect();
        let scale = if odd { random.between(-1, 3) } else { 1 };
        let mut by = Combination::of(scale, rows.clone());
        // Most claims are near a combination of the rows.
        let mut claim = if random.below(4) == 0 { random.form(3, 2) } else { Form::constant(random.between(-2, 2)) };
        for (row, times) in &rows {
            if let Some(row) = k.rows().get(*row as usize) {
                claim = claim.plus(row, *times).expect("small numbers");
            }
        }
        // A second step may prove the claim that the first one left.
        if random.below(3) == 0 {
            let rows = (0..count.min(1)).map(|_| (random.below(count) as u32, random.between(least, 2)));
            let rows = rows.collect();
            by.steps.push(Step { scale: random.between(least, 2), rows });
        }
        if k.proves(&claim, &by) {
            assert!(points.iter().all(|p| value(&claim, p) >= 0), "{claim:?} by {by:?} of {k:?}");
            proven += 1;
            by_rows += usize::from(!k.is_not_negative(&claim));
        }
        let (min, max) = k.bounds(&claim).expect("small numbers");
        let word = k.word(&claim);
        for p in &points {
            assert!((min..=max).contains(&value(&claim, p)));
            assert!(word.contains(low_word(value(&claim, p))), "{claim:?} at {p:?} is not in {word:?}");
        }
    }
    assert!(proven > 500 && by_rows > 100, "{proven} {by_rows}: nothing was proven");
}

#[test]
fn sets_of_words_lose_no_assignment() {
    let mut random = Random(521288629);
    for _ in 0..6_000 {
        let mut k = knowledge(&mut random);
        let form = random.form(3, 1);
        let low = random.between(-8, 8);
        let word = Scalar::signed(low as i64, (low + random.between(0, 6)) as i64);
        let wanted: Vec<_> = points(&k).into_iter().filter(|p| word.contains(low_word(value(&form, p)))).collect();
        if k.meet_word(&form, &word) {
            let left = points(&k);
            assert!(wanted.iter().all(|p| left.contains(p)), "{form:?} in {word:?}");
        } else {
            assert!(wanted.is_empty(), "{form:?} in {word:?} is possible");
        }
    }
}

#[test]
fn a_combination_rounds_to_integers_and_takes_no_row_away() {
    let mut k = Knowledge::default();
    let known = Known::range(0, 100, false).expect("a range");
    let (x, y) = (k.name(known).expect("a name"), k.name(known).expect("a name"));
    let form = |a, b, c| Form::sum([(x, a), (y, b)], c).expect("small");
    // 2x - 3y + 1 >= 0 and 2x - y - 1 >= 0 sum up to 4x - 4y >= 0.
    assert!(k.learn(form(2, -3, 1)) && k.learn(form(2, -1, -1)));
    let claim = form(1, -1, 0);
    let both = || vec![(0, 1), (1, 1)];
    assert!(k.proves(&claim, &Combination::of(4, both())));
    assert!(!k.proves(&claim, &Combination::of(3, both())));
    let opposite = claim.times(-1).expect("small");
    assert!(!k.proves(&opposite, &Combination::of(4, vec![(0, -1), (1, -1)])), "rows were taken away");
    assert!(!k.proves(&claim, &Combination::of(0, both())), "nothing was claimed");
    assert!(!k.proves(&claim, &Combination::of(4, vec![(7, 1)])), "there is no such row");
    assert!(!k.proves(&claim, &Combination { steps: Vec::new() }), "no step proves nothing");
}

#[test]
fn what_a_step_leaves_is_tightened_for_the_next() {
    let mut k = Knowledge::default();
    let known = |min| Known::range(min, 100, false).expect("a range");
    let [n, q, h] = [0, 1, 0].map(|min| k.name(known(min)).expect("a name"));
    // 4q <= n, 2h <= q, 1 <= q: h < q, so 4h + 4 <= n, which no one step proves.
    let form = |a, b, c, d| Form::sum([(n, a), (q, b), (h, c)], d).expect("small");
    assert!(k.learn(form(1, -4, 0, 0)) && k.learn(form(0, 1, -2, 0)));
    let (first, second) = (Step { scale: 1, rows: vec![(0, 1)] }, Step { scale: 2, rows: vec![(1, 1)] });
    let by = Combination { steps: vec![first.clone(), second.clone()] };
    assert!(k.proves(&form(1, 0, -4, -4), &by));
    assert!(!k.proves(&form(1, 0, -4, -5), &by) && !k.proves(&form(1, 0, -4, -8), &by));
    assert!(!k.proves(&form(1, 0, -4, -4), &Combination { steps: vec![first] }));
    // A step with scale 0 says nothing about the claim.
    let none = Step { scale: 0, rows: Vec::new() };
    assert!(!k.proves(&form(-1, 0, 0, -1), &Combination { steps: vec![none, second] }));
}
