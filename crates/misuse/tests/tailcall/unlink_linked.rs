use bpf_tailcall::{Elapsed, Linked, Slots, Target};

fn unlink<S: Slots, T: Target>(site: Linked<'_, S, T>, elapsed: &Elapsed) {
    let _ = site.unlink(elapsed);
}

fn main() {}
