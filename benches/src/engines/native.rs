//! The native code of the C source: the yardstick. Each load takes the next of a program's copies.

use crate::{
    engine::{Engine, Loaded},
    programs::{self, ALL},
};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Native code.
#[derive(Debug)]
pub(super) struct Native {
    name: &'static str,
    vectors: bool,
    loads: AtomicUsize,
}

impl Native {
    /// Makes the engine of code with all optimisations.
    pub(super) fn new() -> Native {
        Native { name: "native", vectors: true, loads: AtomicUsize::new(0) }
    }

    /// Makes the engine of code without vector instructions, which BPF does not have.
    pub(super) fn scalar() -> Native {
        Native { name: "no vectors", vectors: false, loads: AtomicUsize::new(0) }
    }
}

/// One copy of a program.
struct Copy(programs::Native);

impl Engine for Native {
    fn name(&self) -> &str {
        self.name
    }

    fn load(&self, code: &[u8], _length: usize) -> Result<Box<dyn Loaded>, String> {
        let program = ALL.iter().find(|program| program.code() == code).ok_or("not one of the speed programs")?;
        let copies = program.natives(self.vectors);
        // Relaxed: the number orders no other access.
        Ok(Box::new(Copy(copies[self.loads.fetch_add(1, Ordering::Relaxed) % copies.len()])))
    }
}

impl Loaded for Copy {
    fn run(&mut self, memory: &mut [u8], repeat: u32) -> Result<u32, String> {
        let mut result = 0;
        for _ in 0..repeat {
            result = std::hint::black_box(programs::run(self.0, std::hint::black_box(memory)));
        }
        Ok(result)
    }
}
