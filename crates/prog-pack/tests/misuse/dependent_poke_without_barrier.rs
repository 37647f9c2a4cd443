use bpf_prog_pack::{Batch, Packs, Patch, PatchSite};

fn link(packs: &Packs, target: PatchSite<'_>, bypass: PatchSite<'_>, program: usize, out: usize) {
    let batch = Batch::new(packs);
    batch.poke(&target, Patch::Nop, Patch::Jump(program)).unwrap();
    batch.poke_dependent(&bypass, Patch::Jump(out), Patch::Nop).unwrap();
}

fn main() {}
