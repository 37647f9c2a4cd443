//! Programs that misuse the family's types, and that the compiler must refuse: see `tests/misuse.rs`.
