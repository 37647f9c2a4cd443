//! Working memory that a verifier keeps from one program to the next.

/// The most bytes of working memory that a verifier keeps.
pub(crate) const MAX_KEPT: usize = 4 << 20;

/// Shrinks a vector whose capacity exceeds `bytes`.
pub(crate) fn shrink<T>(v: &mut Vec<T>, bytes: usize) {
    let most = bytes / size_of::<T>();
    v.truncate(most);
    if v.capacity() > most {
        v.shrink_to(most);
    }
}
