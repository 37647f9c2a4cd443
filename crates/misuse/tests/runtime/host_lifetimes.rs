//! A host function may use the program's memory during the call only.
use bpf_runtime::{Caller, Config, Engine, Linker, SharedBytes};

fn main() {
    let engine = Engine::new(Config::new()).unwrap();
    let mut linker = Linker::<Vec<&'static [u8]>>::new(&engine);
    let _ = linker.func(1, "keep", |c: &mut Caller<'_, Vec<&'static [u8]>>, bytes: &[u8]| c.host().push(bytes));

    let mut linker = Linker::<Option<SharedBytes<'static>>>::new(&engine);
    let _ = linker.func(1, "keep", |c: &mut Caller<'_, Option<SharedBytes<'static>>>, bytes: SharedBytes<'_>| {
        *c.host() = Some(bytes);
    });
}
