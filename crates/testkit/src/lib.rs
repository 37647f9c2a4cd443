//! Generators, oracles and the snapshot runner (tests only)
