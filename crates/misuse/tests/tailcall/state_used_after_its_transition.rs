use bpf_tailcall::{Clock, Fences, Linked, Slots, Target};

fn close_twice<S: Slots, T: Target, F: Fences>(site: Linked<'_, S, T>, clock: &Clock<F>) {
    let _ = site.close(clock);
    let _ = site.close(clock);
}

fn main() {}
