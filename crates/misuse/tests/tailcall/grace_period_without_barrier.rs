use bpf_tailcall::{Clock, Fences};

fn begin<F: Fences>(clock: &Clock<F>) {
    let _ = clock.grace();
}

fn main() {}
