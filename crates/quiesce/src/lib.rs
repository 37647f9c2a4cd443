//! Run guards, execution slots, grace periods and cross-core barriers
