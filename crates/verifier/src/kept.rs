//! Memory that is kept from one program to the next.

/// Bytes of working memory that a verifier keeps at most.
pub(crate) const MAX_KEPT: usize = 4 << 20;

/// Shrinks a vector whose capacity exceeds `bytes`.
pub(crate) fn shrink<T>(v: &mut Vec<T>, bytes: usize) {
    let most = bytes / size_of::<T>();
    v.truncate(most);
    if v.capacity() > most {
        v.shrink_to(most);
    }
}
