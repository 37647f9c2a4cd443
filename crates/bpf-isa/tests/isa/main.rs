//! Encoding, text and structure of instructions.

mod accesses;
mod external_cases;
mod inverses;
mod text_table;
mod validation;
