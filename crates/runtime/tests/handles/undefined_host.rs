//! The described context of a process that has not defined one: it has no fields, and no other comes after it.

use crate::common::engines::engines;
use bpf_runtime::{
    BpfContext, Config, Engine, Linker,
    describe::{HostContext, HostContextBuff},
    isa::assemble,
};

#[derive(BpfContext)]
#[repr(C)]
struct Late {
    field: u64,
}

#[test]
fn an_undefined_context_has_no_fields() {
    let mut context = HostContextBuff::default();
    assert!(context.fields().is_empty() && !context.set("field", &[0; 8]) && context.get("field").is_none());
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let load = |text| linker.loader::<HostContext>().insns("p", assemble(text).unwrap());
        assert_eq!(load("r0 = 3\nexit").unwrap().run(&mut (), &mut context).unwrap(), 3);
        let error = load("r0 = *(u64 *)(r1 + 0)\nexit").unwrap_err().to_string();
        assert!(error.contains("(undefined: `HostContext::define` comes first) has no field at offset 0"), "{error}");
    }
    // Contexts were made already, so they can no longer be defined.
    let host = Linker::<()>::new(&Engine::new(Config::new()).unwrap()).describe::<Late>().unwrap();
    let error = HostContext::define(&host).unwrap_err().to_string();
    assert_eq!(error, "context: the process has used the context before it was defined");
    assert!(HostContextBuff::new().fields().is_empty());
}
