use bpf_tailcall::Site;

fn write_down<S, T>(slots: S) -> Site<S, T> {
    Site { slots, state: State::Nops }
}

fn main() {}
