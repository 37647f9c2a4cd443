use bpf_jit_code::PatchSlot;
use bpf_prog_pack::{Patch, Text};

fn poke(text: Text, slot: PatchSlot) {
    let site = text.patch_site(slot).unwrap();
    drop(text);
    site.poke(Patch::Nop, Patch::Jump(0)).unwrap();
}

fn main() {}
