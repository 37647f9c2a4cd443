use bpf_prog_pack::Packs;

fn run(packs: &Packs) -> *const u8 {
    let staged = packs.reserve(64).unwrap();
    staged.entry(0).unwrap()
}

fn main() {}
