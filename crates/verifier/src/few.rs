//! A list that is mostly short, and allocates nothing then.

/// A list whose first `N` elements are in place; the others are in a vector.
#[derive(Debug)]
pub(crate) struct Few<T, const N: usize> {
    first: [T; N],
    len: usize,
    rest: Vec<T>,
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Few { first: [T::default(); N], len: 0, rest: Vec::new() }
    }
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    pub(crate) fn push(&mut self, element: T) {
        match self.first.get_mut(self.len) {
            Some(free) => *free = element,
            None => self.rest.push(element),
        }
        self.len += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The element at an index, or the default beyond the end.
    pub(crate) fn get(&self, at: usize) -> T {
        match self.first.get(at) {
            Some(element) => *element,
            None => self.rest.get(at - N).copied().unwrap_or_default(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first[..self.len.min(N)].iter().chain(&self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_in_place_comes_after_it() {
        let mut few: Few<u32, 3> = Few::default();
        for n in 0..8 {
            assert_eq!(few.len(), n as usize);
            assert!(few.iter().copied().eq(0..n) && (0..n).all(|at| few.get(at as usize) == at));
            few.push(n);
        }
    }
}
