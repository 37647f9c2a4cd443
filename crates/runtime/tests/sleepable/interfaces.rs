//! Interfaces with methods that wait.

use super::common::engines::engines;
use super::{Conn, block_on, poll, waits};
use bpf_runtime::{Engine, FromR0, Linker, MapSet, Object, RunError, RunLimits, host::InterfaceError, interface};
use std::task::Poll;

#[interface]
trait Lookups {
    async fn find(&mut self, conn: &mut Conn) -> Result<u32, RunError>;

    async fn hint(&mut self, conn: &mut Conn) -> Result<u32, RunError> {
        Ok(conn.port + 100)
    }

    fn pick(&mut self, conn: &mut Conn) -> Result<u32, RunError>;

    async fn done(&mut self, conn: &mut Conn) -> Result<(), RunError> {
        conn.seen = 99;
        Ok(())
    }
}

/// The interface in Rust: its methods are async functions.
struct InRust(u32);

impl Lookups for InRust {
    async fn find(&mut self, conn: &mut Conn) -> Result<u32, RunError> {
        super::after(1).await;
        self.0 += conn.port;
        Ok(self.0)
    }

    fn pick(&mut self, _: &mut Conn) -> Result<u32, RunError> {
        Ok(self.0)
    }
}

fn load(engine: &Engine, linker: &Linker<u64>, table: &str) -> Result<LookupsOps<u64>, InterfaceError> {
    let object = Object::parse(include_bytes!("../objects/waiting.o")).unwrap();
    let maps = MapSet::for_object(engine, &object).unwrap();
    LookupsOps::load(linker.loader().interruptible(true), &object, table, maps)
}

/// Calls through the trait, as a task of an executor that sends tasks to other threads.
async fn through<L: Lookups + Send>(mut lookups: L, conn: &mut Conn) -> Result<u32, RunError> {
    fn sent<F: Future + Send>(future: F) -> F {
        future
    }
    sent(lookups.find(conn)).await
}

#[test]
fn methods_are_awaited() {
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let ops = load(&engine, &linker, "waits").unwrap();
        let (mut host, mut conn) = (0, Conn { port: 3, seen: 0 });
        assert_eq!(block_on(ops.with(&mut host).find(&mut conn)).unwrap(), 1 + 3);
        assert_eq!(conn.seen, 1);
        block_on(ops.with(&mut host).done(&mut conn)).unwrap();
        assert_eq!((conn.seen, host), (11, 2));
        assert_eq!(ops.with(&mut host).pick(&mut conn).unwrap(), 3);
        // The default of an optional method.
        assert_eq!(block_on(ops.with(&mut host).hint(&mut conn)).unwrap(), 103);
        assert_eq!(block_on(through(ops.with(&mut host), &mut conn)).unwrap(), 3 + 3);
        assert_eq!(block_on(through(InRust(5), &mut conn)).unwrap(), 8);
        // A program that does not wait, in a method that is awaited.
        let plain = load(&engine, &linker, "plain").unwrap();
        assert_eq!(block_on(plain.with(&mut host).find(&mut conn)).unwrap(), 3);
        assert_eq!(block_on(plain.with(&mut host).hint(&mut conn)).unwrap(), 3);
        block_on(plain.with(&mut host).done(&mut conn)).unwrap();
        assert_eq!(conn.seen, 99);
    }
}

#[test]
fn a_call_that_waits_keeps_its_version() {
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let (ops, plain) = (load(&engine, &linker, "waits").unwrap(), load(&engine, &linker, "plain").unwrap());
        let (mut host, mut conn) = (0, Conn { port: 2, seen: 0 });
        let mut with = ops.with(&mut host);
        let mut call = Box::pin(with.find(&mut conn));
        assert!(poll(call.as_mut()).is_pending());
        assert_eq!(engine.async_runs(), 1);
        // Nothing is held: the replacement, and a grace period, are over at once.
        ops.replace(&plain).unwrap();
        engine.domain().synchronize().unwrap();
        assert!(poll(call.as_mut()).is_pending());
        assert!(matches!(poll(call.as_mut()), Poll::Ready(Ok(3))));
        drop(call);
        assert_eq!(block_on(ops.with(&mut host).find(&mut conn)).unwrap(), 2);
        // Given up.
        ops.replace(&load(&engine, &linker, "waits").unwrap()).unwrap();
        let mut with = ops.with(&mut host);
        let mut call = Box::pin(with.find(&mut conn));
        assert!(poll(call.as_mut()).is_pending());
        drop(call);
        assert_eq!(engine.async_runs(), 0);
        // Limits are those of each call.
        let interrupter = engine.interrupter();
        let limits = RunLimits::new().interrupter(&interrupter);
        let mut with = ops.with(&mut host).limits(&limits);
        let mut call = Box::pin(with.find(&mut conn));
        assert!(poll(call.as_mut()).is_pending());
        interrupter.interrupt();
        assert!(matches!(poll(call.as_mut()), Poll::Ready(Err(RunError::Interrupted { .. }))));
    }
}

/// The answers that a host expects of `find`.
#[derive(FromR0, PartialEq, Debug)]
#[repr(u32)]
enum Answer {
    Two = 2,
    Three,
}

/// [`Lookups`] with a result of the host's own.
#[interface]
trait Typed {
    async fn find(&mut self, conn: &mut Conn) -> Result<Answer, RunError>;

    async fn hint(&mut self, conn: &mut Conn) -> Result<u32, RunError> {
        Ok(conn.port)
    }

    fn pick(&mut self, conn: &mut Conn) -> Result<u32, RunError>;

    async fn done(&mut self, conn: &mut Conn) -> Result<(), RunError> {
        conn.seen = 99;
        Ok(())
    }
}

#[test]
fn a_result_that_its_type_does_not_have_names_the_program_that_ran() {
    fn sent<F: Future + Send>(future: F) -> F {
        future
    }
    let refused = |error: RunError, program: &str| {
        assert_eq!(error.origin().expect("a program").program, program);
        assert!(matches!(error, RunError::Result { value: 1, .. }), "{error}");
    };
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let object = Object::parse(include_bytes!("../objects/waiting.o")).unwrap();
        let load = |table| {
            let maps = MapSet::for_object(&engine, &object).unwrap();
            TypedOps::load(linker.loader(), &object, table, maps).unwrap()
        };
        let (ops, plain) = (load("waits"), load("plain"));
        let (mut host, mut conn) = (0, Conn { port: 2, seen: 0 });
        assert_eq!(block_on(ops.with(&mut host).find(&mut conn)).unwrap(), Answer::Three);
        let find = ops.instance().program_returning::<Conn, Answer>("find").unwrap();
        host = 0;
        assert_eq!(block_on(sent(find.run_async(&mut host, &mut conn))).unwrap(), Answer::Three);
        conn.port = 0;
        assert_eq!(block_on(find.run_async(&mut host, &mut conn)).unwrap(), Answer::Two);
        host = 0;
        refused(block_on(find.run_async(&mut host, &mut conn)).unwrap_err(), "find");

        // The call ends after its table is replaced.
        (host, conn.port) = (u64::MAX - 1, 2);
        let mut with = ops.with(&mut host);
        let mut call = Box::pin(sent(with.find(&mut conn)));
        assert!(poll(call.as_mut()).is_pending());
        ops.replace(&plain).unwrap();
        assert!(poll(call.as_mut()).is_pending());
        let Poll::Ready(Err(error)) = poll(call.as_mut()) else { panic!("a result") };
        refused(error, "find");
        drop(call);
        conn.port = 1;
        refused(block_on(ops.with(&mut host).find(&mut conn)).unwrap_err(), "pick");
    }
}

#[test]
fn a_method_that_is_not_awaited_has_no_sleepable_program() {
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let error = load(&engine, &linker, "wrong").unwrap_err();
        let InterfaceError::Sleepable { table, program, method } = &error else { panic!("{error}") };
        assert_eq!((table.as_str(), program.as_str(), *method), ("wrong", "find", "pick"), "{error}");
    }
}
