//! Programs of many tenants behind one tail call.
//!
//! The operator's program takes a message and jumps to the program of its tenant, which jumps on to the operator's way
//! out. The tenants' object is compiled once. Each tenant has its own maps, budget and account of memory, shares only
//! the way out, and can be replaced while messages pass. `--measure` compares with the same in Rust.

use bpf_runtime::maps::typed::{TypedArray, TypedHash};
use bpf_runtime::{
    BpfContext, Config, Engine, Instance, Linker, MapSet, Object, ProgArray, Program, Tenants,
    instances::{Tenant as Settings, TenantError},
};
use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Context of the programs: a message.
#[derive(BpfContext, Clone, Copy, Default)]
#[bpf(name = "message")]
#[repr(C)]
struct Message {
    tenant: u32,
    kind: u32,
    size: u32,
    /// The queue that the message is put into.
    #[bpf(writable)]
    queue: u32,
}

const DELIVERED: u64 = 0;
const DROPPED: u64 = 1;

/// The operator's side.
struct Gateway {
    way_in: Program<Message, ()>,
    tenants: Tenants<Message, ()>,
    delivered: TypedArray<u64>,
}

impl Gateway {
    fn new() -> Result<Self, Box<dyn Error>> {
        let engine = Engine::new(Config::new())?;
        let linker = Linker::<()>::new(&engine);
        let object = Object::parse(include_bytes!("../gateway.o"))?;
        let gateway = linker.load::<Message>(&object, MapSet::for_object(&engine, &object)?)?;
        let by_number = Arc::new(gateway.prog_array("tenants")?);
        let after: Arc<ProgArray<Message, ()>> = Arc::new(gateway.prog_array("after")?);
        after.set(0, &gateway.program("way_out")?)?;
        let (way_in, delivered) = (gateway.program("way_in")?, gateway.map("delivered")?.typed()?);
        let object = Object::parse(include_bytes!("../tenant.o"))?;
        let module = linker.loader::<Message>().budget(10_000).compile(&object)?;
        let tenants = Tenants::new(&module).in_array(&by_number, "tenant").with_array("after", &after);
        Ok(Gateway { way_in, tenants, delivered })
    }

    /// Admits a tenant with a limit on its memory, or replaces it by a new instance, while messages pass.
    fn admit(&self, tenant: u32, memory: u64) -> Result<Instance<()>, TenantError> {
        self.tenants.admit(Settings::new(&format!("tenant {tenant}")).memory(memory).slot(tenant))
    }

    fn pass(&self, message: &mut Message) -> Result<u64, bpf_runtime::RunError> {
        self.way_in.run_on(message)
    }
}

/// A tenant in Rust.
trait Tenant {
    fn take(&self, message: &mut Message) -> bool;
}

#[derive(Default)]
struct InRust(Mutex<std::collections::HashMap<u32, u64>>);

impl Tenant for InRust {
    fn take(&self, message: &mut Message) -> bool {
        let mut kinds = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *kinds.entry(message.kind).or_default() += 1;
        message.queue = 1 + message.kind % 4;
        message.size <= 4096
    }
}

/// Nanoseconds a message to one of 16 tenants, of the best of five rounds.
fn time(mut pass: impl FnMut(&mut Message)) -> f64 {
    const MESSAGES: u32 = 1_000_000;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let begin = Instant::now();
        for i in 0..MESSAGES {
            let mut message = Message { tenant: i % 16, kind: i % 7, size: 100, queue: 0 };
            pass(black_box(&mut message));
        }
        best = best.min(begin.elapsed().as_secs_f64() * 1e9 / f64::from(MESSAGES));
    }
    best
}

fn main() -> Result<(), Box<dyn Error>> {
    let gateway = Gateway::new()?;
    let mut message = Message { tenant: 3, kind: 5, size: 100, queue: 0 };
    assert_eq!(gateway.pass(&mut message)?, DROPPED);

    let third = gateway.admit(3, 1 << 20)?;
    // This one has a limit of its own, in the same compiled code.
    let fourth = Settings::new("tenant 4").memory(1 << 20).slot(4).global("largest", &9000u32.to_ne_bytes());
    gateway.tenants.admit(fourth)?;
    assert_eq!((gateway.pass(&mut message)?, message.queue), (DELIVERED, 2));
    let mut large = Message { size: 5000, ..message };
    assert_eq!(gateway.pass(&mut large)?, DROPPED);
    assert_eq!(gateway.pass(&mut Message { tenant: 4, ..large })?, DELIVERED);
    assert_eq!((gateway.delivered.get(3)?, gateway.delivered.get(4)?), (Some(100), Some(5000)));
    let kinds: TypedHash<u32, u64> = third.map("kinds")?.typed()?;
    assert_eq!(kinds.get(&5)?, Some(2));

    // A tenant with too little memory is refused, and its previous version stays.
    let error = gateway.admit(3, 100).err().ok_or("taken")?;
    assert!(error.to_string().contains("that the maps, tables and code of this account may take"), "{error}");
    assert_eq!(gateway.pass(&mut message)?, DELIVERED);
    println!("tenant 3 has had {} bytes; refused: {error}", gateway.delivered.get(3)?.unwrap_or_default());

    gateway.tenants.remove("tenant 3")?;
    assert_eq!(gateway.pass(&mut message)?, DROPPED);

    if std::env::args().any(|arg| arg == "--measure") {
        let begin = Instant::now();
        for tenant in 0..16 {
            gateway.admit(tenant, 1 << 20)?;
        }
        let admit = begin.elapsed().as_secs_f64() * 1e6 / 16.0;
        let tenants: Vec<Box<dyn Tenant>> = (0..16).map(|_| Box::new(InRust::default()) as Box<dyn Tenant>).collect();
        let delivered: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
        let rust = time(|message| {
            let tenant = message.tenant as usize;
            if tenants[tenant].take(message) {
                delivered[tenant].fetch_add(message.size.into(), Ordering::Relaxed);
            }
        });
        let ours = time(|message| drop(gateway.pass(message)));
        println!("ns a message: {ours:.0} by tail calls, {rust:.0} by `dyn Tenant` in Rust, {:.2} x", ours / rust);
        println!("µs to admit a tenant: {admit:.0}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_runs() {
        main().unwrap();
        assert_eq!(Message::c_struct(), include_str!("../message.h"));
    }

    /// Every message is taken by the version before or after the exchange, and counted by the way out.
    #[test]
    fn a_tenant_is_exchanged_under_traffic() {
        let gateway = Gateway::new().unwrap();
        gateway.admit(1, 1 << 20).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20 {
                    gateway.admit(1, 1 << 20).unwrap();
                }
            });
            for _ in 0..10_000 {
                let mut message = Message { tenant: 1, kind: 1, size: 1, queue: 0 };
                assert_eq!(gateway.pass(&mut message).unwrap(), DELIVERED);
            }
        });
        assert_eq!(gateway.delivered.get(1).unwrap(), Some(10_000));
    }
}
