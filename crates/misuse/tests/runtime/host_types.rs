//! Functions whose types cannot be those of host functions.
use bpf_runtime::{Caller, Config, Engine, Linker};
use zerocopy::FromBytes;

#[derive(FromBytes)]
#[repr(C)]
struct Padded {
    a: u8,
    b: u32,
}

fn main() {
    let engine = Engine::new(Config::new()).unwrap();
    let mut linker = Linker::<u64>::new(&engine);
    // A program's byte may not be a valid `bool`.
    let _ = linker.func(1, "plain", |_: &mut Caller<'_, u64>, flag: &bool| u64::from(*flag));
    // Padding that the function writes would be uninitialised in the program.
    let _ = linker.func(2, "padding", |_: &mut Caller<'_, u64>, p: &mut Padded| p.b = u32::from(p.a));
    // The returned reference is not kept alive.
    let _ = linker.func(3, "lend", |_: &mut Caller<'_, u64>| -> Option<&'static u64> { Some(&7) });
    // A slice that outlives the call.
    let _ = linker.func(4, "keep", |_: &mut Caller<'_, u64>, bytes: &'static [u8]| bytes.len() as u64);
}
