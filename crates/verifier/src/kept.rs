//! Memory that is kept from one program to the next.

/// Bytes of working memory that a verifier keeps at most.
pub(crate) const MAX_KEPT: usize = 4 << 20;

/// Gives back what a vector has room for beyond so many bytes.
pub(crate) fn shrink<T>(v: &mut Vec<T>, bytes: usize) {
    let most = bytes / size_of::<T>();
    v.truncate(most);
    if v.capacity() > most {
        v.shrink_to(most);
    }
}
