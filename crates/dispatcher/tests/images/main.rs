//! Images: what they look like, and what they do.
//!
//! One process: nothing here forks, raises signals, changes limits or counts what the process allocates.

mod run;
mod shapes;
