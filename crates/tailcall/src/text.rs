//! A site's instructions in loaded code.

use std::sync::Arc;

use bpf_jit_code::PatchSlot;
use bpf_prog_pack::{Patch, PokeError, Text};

use crate::site::{Insn, Slot, Slots};

/// The two patch slots of a site in a loaded program, which they keep alive.
#[derive(Debug)]
pub struct TextSlots {
    text: Arc<Text>,
    bypass: PatchSlot,
    target: PatchSlot,
    /// The address after the site.
    out: usize,
}

impl TextSlots {
    /// The slots `bypass` and `target` of `text`; `out` is the code offset after the site.
    ///
    /// # Errors
    /// [`PokeError::Outside`] if a slot was made for longer code.
    pub fn new(text: Arc<Text>, bypass: PatchSlot, target: PatchSlot, out: u32) -> Result<TextSlots, PokeError> {
        text.patch_site(bypass)?;
        text.patch_site(target)?;
        let out = text.base() as usize + out as usize;
        Ok(TextSlots { text, bypass, target, out })
    }

    fn patch(&self, insn: Insn) -> Patch {
        match insn {
            Insn::Nop => Patch::Nop,
            Insn::Out => Patch::Jump(self.out),
            Insn::Jump(address) => Patch::Jump(address),
        }
    }
}

impl Slots for TextSlots {
    type Error = PokeError;

    fn poke(&self, slot: Slot, old: Insn, new: Insn) -> Result<(), PokeError> {
        let slot = match slot {
            Slot::Bypass => self.bypass,
            Slot::Target => self.target,
        };
        self.text.poke(slot, self.patch(old), self.patch(new))
    }
}
