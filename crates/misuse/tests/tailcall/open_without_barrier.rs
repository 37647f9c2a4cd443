use bpf_tailcall::{Armed, Slots, Target};

fn open<S: Slots, T: Target>(site: Armed<'_, S, T>) {
    let _ = site.open();
}

fn main() {}
