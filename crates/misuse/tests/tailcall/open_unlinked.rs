use bpf_tailcall::{Barrier, Slots, Target, Unlinked};

fn open<S: Slots, T: Target>(site: Unlinked<'_, S, T>, barrier: &Barrier) {
    let _ = site.open(barrier);
}

fn main() {}
