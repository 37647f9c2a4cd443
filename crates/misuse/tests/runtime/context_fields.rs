//! Fields are plain numbers and pairs of pointers.
use bpf_runtime::BpfContext;

#[derive(BpfContext)]
#[repr(C)]
struct Fields<'p> {
    slice: &'p [u8],
    flag: bool,
}

fn main() {}
