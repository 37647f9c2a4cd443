use bpf_prog_pack::Packs;

fn run(packs: &Packs) {
    let mut staged = packs.reserve(64).unwrap();
    let bytes = staged.bytes_mut();
    let _text = staged.finalize().unwrap();
    bytes[0] = 0;
}

fn main() {}
