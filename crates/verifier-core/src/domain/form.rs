//! Linear forms: integer combinations of names, plus a constant.
//!
//! Problem: a proof about an access speaks of sums of unknown numbers, and arithmetic that wraps makes sums that are
//! wrong. Approach: a [`Name`] stands for one mathematical integer, and a [`Form`] for `sum a_i * n_i + c` over the
//! integers; every operation that may leave `i128` is checked, and an overflow is `None`: not derivable. Machine words
//! are residues of forms (`residue`), so addition, subtraction and multiplication by constants, which are the ring
//! operations of the integers modulo 2^64, are exact on forms.
//!
//! Invariants: terms ascend by name, no coefficient is 0, and there are at most [`Form::MAX_TERMS`].

/// A mathematical integer, identified by its index among the names of a state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(pub u32);

impl Name {
    /// Its number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The linear form `sum a_i * n_i + c`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Form {
    terms: Vec<(Name, i128)>,
    constant: i128,
}

impl Form {
    /// The most names in a form: a sum of more is not derivable, which bounds the work of each rule.
    pub const MAX_TERMS: usize = 8;

    /// The constant `c`.
    pub fn constant(c: i128) -> Form {
        Form { terms: Vec::new(), constant: c }
    }

    /// The integer that `n` stands for.
    pub fn name(n: Name) -> Form {
        Form { terms: vec![(n, 1)], constant: 0 }
    }

    /// The sum of terms and a constant; `None` on overflow or for too many names. A name may occur more than once.
    pub fn sum(terms: impl IntoIterator<Item = (Name, i128)>, constant: i128) -> Option<Form> {
        let mut form = Form::constant(constant);
        for (n, a) in terms {
            form.add_term(n, a)?;
        }
        Some(form)
    }

    fn add_term(&mut self, n: Name, a: i128) -> Option<()> {
        self.add_term_within(n, a, Self::MAX_TERMS)
    }

    fn add_term_within(&mut self, n: Name, a: i128, most: usize) -> Option<()> {
        match self.terms.binary_search_by_key(&n, |t| t.0) {
            Ok(i) => {
                self.terms[i].1 = self.terms[i].1.checked_add(a)?;
                if self.terms[i].1 == 0 {
                    self.terms.remove(i);
                }
            }
            Err(_) if a == 0 => {}
            Err(_) if self.terms.len() >= most => return None,
            Err(i) => self.terms.insert(i, (n, a)),
        }
        Some(())
    }

    /// The names and their coefficients, ascending by name; no coefficient is 0.
    pub fn terms(&self) -> &[(Name, i128)] {
        &self.terms
    }

    /// The constant part.
    pub fn offset(&self) -> i128 {
        self.constant
    }

    /// The value, if there is no name in it.
    pub fn as_const(&self) -> Option<i128> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The name, if the form is that name and nothing else.
    pub fn as_name(&self) -> Option<Name> {
        match (self.terms.as_slice(), self.constant) {
            ([(n, 1)], 0) => Some(*n),
            _ => None,
        }
    }

    /// `self + by`; `None` on overflow.
    pub fn shifted(&self, by: i128) -> Option<Form> {
        Some(Form { terms: self.terms.clone(), constant: self.constant.checked_add(by)? })
    }

    /// `self + times * other`; `None` on overflow or for too many names.
    pub fn plus(&self, other: &Form, times: i128) -> Option<Form> {
        let mut sum = self.shifted(other.constant.checked_mul(times)?)?;
        for (n, a) in &other.terms {
            sum.add_term(*n, a.checked_mul(times)?)?;
        }
        Some(sum)
    }

    /// `self + times * other` with up to four times [`Form::MAX_TERMS`] names: an intermediate sum whose names may
    /// cancel later.
    pub(crate) fn plus_wide(mut self, other: &Form, times: i128) -> Option<Form> {
        self.constant = self.constant.checked_add(other.constant.checked_mul(times)?)?;
        for (n, a) in &other.terms {
            self.add_term_within(*n, a.checked_mul(times)?, 4 * Self::MAX_TERMS)?;
        }
        Some(self)
    }

    /// `by * self`; `None` on overflow.
    pub fn times(&self, by: i128) -> Option<Form> {
        Form::default().plus(self, by)
    }

    /// `self / by`, if `by > 0` divides every coefficient and the constant.
    pub fn divided(&self, by: i128) -> Option<Form> {
        let divides = |a: &i128| a.checked_rem(by) == Some(0);
        (by > 0 && divides(&self.constant) && self.terms.iter().all(|(_, a)| divides(a))).then(|| Form {
            terms: self.terms.iter().map(|(n, a)| (*n, a / by)).collect(),
            constant: self.constant / by,
        })
    }

    /// The form divided by the greatest common divisor of its coefficients, with the constant rounded down. Over the
    /// integers, `self >= 0` and `self.tightened() >= 0` are equivalent (Gomory 1958; Schrijver 1986, chapter 23).
    pub fn tightened(&self) -> Form {
        let gcd = self.terms.iter().fold(0, |by, (_, a)| gcd(a.unsigned_abs(), by));
        let by = match i128::try_from(gcd) {
            Ok(by) if by > 1 => by,
            Ok(_) | Err(_) => return self.clone(),
        };
        Form { terms: self.terms.iter().map(|(n, a)| (*n, a / by)).collect(), constant: self.constant.div_euclid(by) }
    }

    /// The form with each name `i` replaced by `of[i]`; `None` if one has no replacement.
    pub fn substitute(&self, of: &[Form]) -> Option<Form> {
        let mut form = Form::constant(self.constant);
        for (n, a) in &self.terms {
            form = form.plus(of.get(n.index())?, *a)?;
        }
        Some(form)
    }

    /// The representative, modulo 2^`bits` (1 to 64), whose coefficients and constant are nearest to 0. Two forms with
    /// equal representatives are congruent for all values of their names.
    pub fn residue(&self, bits: u32) -> Form {
        let nearest = |a: i128| {
            let low = a & ((1i128 << bits) - 1);
            if low >> (bits - 1) == 1 { low - (1i128 << bits) } else { low }
        };
        let terms = self.terms.iter().map(|(n, a)| (*n, nearest(*a))).filter(|(_, a)| *a != 0);
        Form { terms: terms.collect(), constant: nearest(self.constant) }
    }

    /// Whether every name in it is one of the first `count`.
    pub fn is_over(&self, count: usize) -> bool {
        self.terms.last().is_none_or(|(n, _)| n.index() < count)
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(f: &Form, names: &[i128]) -> i128 {
        f.terms().iter().map(|(n, a)| a * names[n.index()]).sum::<i128>() + f.offset()
    }

    fn forms() -> Vec<Form> {
        const FEW: [i128; 6] = [-17, -1, 0, 1, 3, 16];
        let pairs = FEW.iter().flat_map(|a| FEW.iter().map(move |b| (*a, *b)));
        let all = pairs.flat_map(|(a, b)| FEW.iter().map(move |c| (a, b, *c)));
        all.filter_map(|(a, b, c)| Form::sum([(Name(0), a), (Name(1), b)], c)).collect()
    }

    #[test]
    fn operations_are_those_of_the_integers() {
        let names = [5, -7];
        for f in forms() {
            assert!(f.terms().iter().all(|(_, a)| *a != 0));
            for g in forms().iter().step_by(7) {
                let sum = f.plus(g, 3).map(|s| value(&s, &names));
                assert_eq!(sum, Some(value(&f, &names) + 3 * value(g, &names)));
                let replaced = f.substitute(&[g.clone(), f.clone()]).map(|s| value(&s, &names));
                assert_eq!(replaced, Some(value(&f, &[value(g, &names), value(&f, &names)])));
            }
            for bits in [1, 4, 5, 64] {
                let (r, modulus) = (f.residue(bits), 1i128 << bits);
                assert_eq!((value(&r, &names) - value(&f, &names)) % modulus, 0, "{f:?} {bits}");
                assert!(r.terms().iter().all(|(_, a)| -modulus / 2 <= *a && *a < modulus / 2));
            }
            // The tightened form is not negative for the same integers.
            let tight = f.tightened();
            for names in [[5, -7], [0, 0], [-1, 3], [2, 2], [-4, -4], [16, -1], [7, 7]] {
                assert_eq!(value(&f, &names) >= 0, value(&tight, &names) >= 0, "{f:?} {tight:?} {names:?}");
            }
            if let Some(d) = f.divided(16) {
                assert_eq!(value(&d, &names) * 16, value(&f, &names));
            }
        }
    }

    #[test]
    fn what_leaves_128_bits_is_not_derivable() {
        let large = Form::sum([(Name(0), i128::MAX)], i128::MAX).expect("two numbers");
        assert!(large.plus(&large, 1).is_none() && large.times(2).is_none() && large.shifted(1).is_none());
        assert!(large.substitute(&[Form::constant(2)]).is_none() && large.substitute(&[]).is_none());
        let wide = Form::sum((0..9).map(|n| (Name(n), 1)), 0);
        assert!(wide.is_none(), "more names than a form has");
    }
}
