//! Direct jumps in place of indirect calls, updated live
