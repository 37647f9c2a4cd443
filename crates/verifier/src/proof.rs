//! The items that `cargo xtask prove` proves of this crate and of the number domain. Not for users.

pub use crate::fields::{counted_pairs, lost_by_mask, masked_within};
pub use crate::integer::{
    BEYOND, Integer, Place, distance, line_fits, product_at_least, product_at_most, product_beside, product_fits,
    product_of_line, product_range, row_sum, sum_at_least,
};
pub use crate::lens::{Length, Since, kept_length};
pub use bpf_verifier_core::proof::*;
