//! Programs verified and interpreted, in the smallest build: no machine code, no executable memory, any system.
//!
//! Why one would: a platform that forbids executable memory, a service that runs rules now and then and wants a
//! small build, a target that there is no backend for. Interpreted programs differ from compiled ones in their time only.
//!
//! Invariant: nothing here says how programs are executed, so the same source runs compiled where `jit` is on.

use bpf_runtime::{
    Caller, Config, Dispatcher, Engine, HelperError, Hook, HookPolicy, Linker, LoadError, Program, Raw,
    isa::assemble,
    maps::{Map, MapDef, MapType},
};
use std::error::Error;

/// State of the host that its functions change: values that programs reported.
#[derive(Default)]
struct Host {
    reported: Vec<u64>,
}

/// Counts packets in a map and reports the first byte of each; the verdict is that byte.
const COUNT: &str = "r6 = r1
    if r2 == 0 goto +7
    r1 = map[fd:0][0]+0
    r3 = *(u64 *)(r1 + 0)
    r3 += 1
    *(u64 *)(r1 + 0) = r3
    r1 = *(u8 *)(r6 + 0)
    call 1001
    r0 = 0
    exit";

/// Lets everything pass but packets of one byte.
const SHORT: &str = "r0 = 0\nif r2 != 1 goto +1\nr0 = 1\nexit";

/// Reads beyond the packet: never loaded.
const BAD: &str = "r0 = *(u8 *)(r1 + 0)\nexit";

struct Service {
    hook: Hook<Raw, Host>,
    dispatcher: Dispatcher<Raw, Host>,
    short: Program<Raw, Host>,
    counter: Map,
}

impl Service {
    fn new() -> Result<Service, Box<dyn Error>> {
        let engine = Engine::new(Config::new())?;
        let mut linker = Linker::<Host>::new(&engine);
        linker.func(1001, "report", |c: &mut Caller<'_, Host>, value: u64| -> Result<(), HelperError> {
            c.host().reported.push(value);
            Ok(())
        })?;
        let refused = linker.loader::<Raw>().insns("bad", assemble(BAD)?);
        assert!(matches!(refused, Err(LoadError::Verifier { .. })), "the verifier stands before the interpreter");

        let counter = engine.create_map(MapDef::new("counter", MapType::Array, 4, 8, 1))?;
        let count = linker.loader::<Raw>().maps(&[&counter]).insns("count", assemble(COUNT)?)?;
        let short = linker.loader::<Raw>().insns("short", assemble(SHORT)?)?;
        // One run of both: the first verdict that is not 0.
        let hook = Hook::new(&engine, HookPolicy::FirstVerdict { pass: 0 })?;
        hook.attach(&count)?;
        hook.attach(&short)?;
        let dispatcher = Dispatcher::new(&engine)?;
        dispatcher.attach(&short)?;
        Ok(Service { hook, dispatcher, short, counter })
    }

    fn counted(&self) -> Result<u64, Box<dyn Error>> {
        let mut value = [0; 8];
        self.counter.lookup(&0u32.to_ne_bytes(), &mut value, 0)?;
        Ok(u64::from_ne_bytes(value))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let service = Service::new()?;
    let mut host = Host::default();
    for packet in [&mut [7u8, 8, 9][..], &mut [5], &mut []] {
        let verdict = service.hook.run(&mut host, packet)?;
        println!("{} bytes: verdict {verdict}", packet.len());
    }
    let direct = service.dispatcher.call(&service.short, &mut host, &mut [1])?;
    println!("dispatched: {direct}; counted {}, reported {:?}", service.counted()?, host.reported);
    assert_eq!((direct, service.counted()?, &host.reported[..]), (1, 2, &[7, 5][..]));
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn hooks_dispatchers_maps_and_host_functions_work() {
        super::main().unwrap();
    }
}
