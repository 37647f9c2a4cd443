//! Rate limits and an allow list on a request path.
//!
//! The service knows nothing of limits: it asks the program, with the client's address and the time. The operator writes
//! networks without limits into the program's trie while requests are served. `--measure` compares with the same in Rust.

use bpf_runtime::maps::typed::TypedHash;
use bpf_runtime::zerocopy::{FromBytes, Immutable, IntoBytes};
use bpf_runtime::{BpfContext, Config, Engine, Linker, MapSet, Object, Program};
use std::collections::{HashMap as StdMap, HashSet};
use std::error::Error;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Context of the program: the fields of a request that it may read.
#[derive(BpfContext, Clone, Copy)]
#[bpf(name = "request")]
#[repr(C)]
struct Request {
    /// IPv4, in network order.
    client: u32,
    /// How many of the cheapest requests it counts for.
    cost: u32,
    /// Nanoseconds of a clock that only goes forward.
    now: u64,
}

/// A key of the trie: the first `bits` of `address`.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[zerocopy(crate = "bpf_runtime::zerocopy")]
#[repr(C)]
struct Network {
    bits: u32,
    address: [u8; 4],
}

/// The program and the map that the operator writes.
struct Limiter {
    program: Program<Request, ()>,
    trusted: TypedHash<Network, u32>,
}

impl Limiter {
    fn load(engine: &Engine) -> Result<Self, Box<dyn Error>> {
        let object = Object::parse(include_bytes!("../limiter.o"))?;
        let instance = Linker::<()>::new(engine).load::<Request>(&object, MapSet::for_object(engine, &object)?)?;
        Ok(Limiter { program: instance.program("limit")?, trusted: instance.map("trusted")?.typed()? })
    }

    /// Whether the request is served. May be called by any number of threads.
    fn allows(&self, client: Ipv4Addr, now: Duration) -> Result<bool, Box<dyn Error>> {
        let now = u64::try_from(now.as_nanos())?;
        let mut request = Request { client: u32::from_ne_bytes(client.octets()), cost: 1, now };
        Ok(self.program.run_on(&mut request)? == 0)
    }

    fn trust(&self, address: Ipv4Addr, bits: u32) -> Result<(), Box<dyn Error>> {
        Ok(self.trusted.insert(&Network { bits, address: address.octets() }, &1)?)
    }
}

/// The limit in Rust, behind a trait object and a lock, as in a service without plug-ins.
trait Limit {
    fn allows(&self, client: Ipv4Addr, now: Duration) -> bool;
}

#[derive(Default)]
struct InRust {
    trusted: HashSet<[u8; 3]>,
    paid: Mutex<StdMap<Ipv4Addr, Duration>>,
}

impl Limit for InRust {
    fn allows(&self, client: Ipv4Addr, now: Duration) -> bool {
        let [a, b, c, _] = client.octets();
        if self.trusted.contains(&[a, b, c]) {
            return true;
        }
        let mut paid = self.paid.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let paid = paid.entry(client).or_default();
        let from = now.max(*paid);
        if from - now > Duration::from_millis(400) {
            return false;
        }
        *paid = from + Duration::from_millis(100);
        true
    }
}

/// Nanoseconds a request, of the best of five rounds over 1000 clients.
fn time(mut allows: impl FnMut(Ipv4Addr, Duration) -> bool) -> f64 {
    const REQUESTS: u32 = 1_000_000;
    let round = |round: u32| {
        let begin = Instant::now();
        for i in 0..REQUESTS {
            let client = Ipv4Addr::from(0x0a00_0000 + i.wrapping_mul(2_654_435_761) % 1000);
            black_box(allows(client, Duration::from_micros(u64::from(round * REQUESTS + i))));
        }
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(REQUESTS)
    };
    (0..5).map(round).fold(f64::INFINITY, f64::min)
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Config::new())?;
    let limiter = Limiter::load(&engine)?;
    let (stranger, neighbour) = (Ipv4Addr::new(203, 0, 113, 9), Ipv4Addr::new(198, 51, 100, 7));

    // Five at once, then ten a second.
    let served = |client, now| (0..20).filter(|_| limiter.allows(client, now).is_ok_and(|allowed| allowed)).count();
    assert_eq!(served(stranger, Duration::from_secs(1)), 5);
    assert_eq!(served(stranger, Duration::from_millis(1200)), 2);
    assert_eq!(served(neighbour, Duration::from_secs(1)), 5);

    // From now on, a network without limits.
    limiter.trust(Ipv4Addr::new(198, 51, 100, 0), 24)?;
    assert_eq!(served(neighbour, Duration::from_secs(1)), 20);
    println!("a client has 5 requests at once and 10 a second; 198.51.100.0/24 has as many as it likes");

    if std::env::args().any(|arg| arg == "--measure") {
        let native: Box<dyn Limit> = Box::new(InRust { trusted: [[198, 51, 100]].into(), ..InRust::default() });
        let rust = time(|client, now| native.allows(client, now));
        let ours = time(|client, now| limiter.allows(client, now).is_ok_and(|allowed| allowed));
        println!("ns a request: {ours:.0} by the program, {rust:.0} by Rust with a lock, {:.2} x", ours / rust);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_runs() {
        main().unwrap();
        assert_eq!(Request::c_struct(), include_str!("../limiter.h"));
    }

    #[test]
    fn threads_share_a_client_s_limit() {
        let limiter = Limiter::load(&Engine::new(Config::new()).unwrap()).unwrap();
        let client = Ipv4Addr::new(203, 0, 113, 9);
        let served: usize = std::thread::scope(|scope| {
            let thread = || (0..1000).filter(|_| limiter.allows(client, Duration::from_secs(1)).unwrap()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(thread)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(served, 5);
    }
}
