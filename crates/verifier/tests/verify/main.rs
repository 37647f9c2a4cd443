//! The verifier's tests, in one binary: none needs a process of its own but `memory.rs` beside this folder, which
//! replaces the allocator.
//!
//! | files | what |
//! |---|---|
//! | `pairs`, `messages` | unsafe programs and their safe twins; what authors read about each |
//! | `soundness`, `loops_oracle`, `loops_faults`, `assumptions`, `kernel` | generated programs (`border`), run, or before the kernel's verifier |
//! | `lengths`, `constants`, `needed`, `paths`, `rests_on` | pruning against naive twins, and attacks on it |
//! | `relations`, `searches`, `products`, `quotients`, `pincers`, `habits`, `straight` | conclusions against naive twins, and attacks on them |
//! | `loops`, `precision`, `samples`, `sources` | compiled programs: the folders beside this one, and samples and C from elsewhere |
//! | `facts`, `hybrid` | results for the optimiser and for run time |
//! | `environment`, `hostile` | bad environments, programs that want endless work |

mod assumptions;
mod border;
mod common;
mod constants;
mod deterministic;
mod environment;
mod facts;
mod habits;
mod hostile;
mod hybrid;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod kernel_compare;
mod lengths;
mod loop_programs;
mod loops;
#[cfg(feature = "faults")]
mod loops_faults;
mod loops_oracle;
mod messages;
mod mutants;
mod needed;
mod none;
mod objects;
mod pairs;
mod paths;
mod pincers;
mod precision;
mod products;
mod quotients;
mod relations;
mod rests_on;
mod samples;
mod searches;
mod soundness;
mod sources;
mod stale;
mod straight;
mod yields;
