//! The same C, compiled for this machine: the yardstick.

use crate::{
    engine::{Engine, Loaded},
    programs::{ALL, Program},
};

/// Native code.
#[derive(Debug)]
pub(super) struct Native;

impl Engine for Native {
    fn name(&self) -> &str {
        "native"
    }

    fn load(&self, code: &[u8], _length: usize) -> Result<Box<dyn Loaded>, String> {
        let program = ALL.iter().find(|program| program.code() == code).ok_or("not one of the speed programs")?;
        Ok(Box::new(*program))
    }
}

impl Loaded for Program {
    fn run(&mut self, memory: &mut [u8], repeat: u32) -> Result<u32, String> {
        let mut result = 0;
        for _ in 0..repeat {
            result = std::hint::black_box(self.run_native(std::hint::black_box(memory)));
        }
        Ok(result)
    }
}
