use bpf_tailcall::{Barrier, Draining, Slots, Target};

fn unlink<S: Slots, T: Target>(site: Draining<'_, S, T>, barrier: &Barrier) {
    let _ = site.unlink(barrier);
}

fn main() {}
