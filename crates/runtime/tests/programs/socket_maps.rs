//! Maps of sockets: what programs find in them, put there and give back.

use crate::support;
use crate::support::ways::{self, Way};
use bpf_runtime::net::{Network, SockFields, Socket};
use bpf_runtime::{
    Caller, Context, HelperError, Linker, LoadError, Program,
    maps::{Map, MapDef, MapType},
    net::{SkLookup, SkLookupBuff, SkLookupFields, SockOps, SockOpsBuff, SockOpsFields},
};
use std::sync::Arc;

const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];
const TYPES: [MapType; 2] = [MapType::SockMap, MapType::SockHash];

/// Knows one socket by its cookie.
struct One(Arc<Socket>);

impl Network for One {
    fn socket_by_number(&self, number: u64) -> Option<Arc<Socket>> {
        (number == self.0.cookie).then(|| Arc::clone(&self.0))
    }
}

/// A number that needs all eight bytes.
const COOKIE: u64 = 0x1_0000_002a;

fn socket() -> Arc<Socket> {
    let fields = SockFields { family: 2, protocol: 6, state: 10, src_port: 80, ..SockFields::default() };
    Arc::new(Socket { fields, cookie: COOKIE, ..Socket::default() })
}

struct Bench {
    linker: Linker<()>,
    map: Map,
    socket: Arc<Socket>,
}

impl Bench {
    fn new(way: Way, map_type: MapType) -> Bench {
        let socket = socket();
        let network: Arc<dyn Network> = Arc::new(One(Arc::clone(&socket)));
        let engine = ways::engine(way, |config| config.network(network));
        let map = Map::create(MapDef::new("sockets", map_type, 4, 8, 4), engine.domain()).unwrap();
        let mut linker = Linker::<()>::new(&engine);
        linker.func(1001, "fail", |_: &mut Caller<'_, ()>| Err::<u64, _>(HelperError::new("enough"))).unwrap();
        Bench { linker, map, socket }
    }

    fn load<C: Context>(&self, text: &str) -> Result<Program<C, ()>, LoadError> {
        self.linker.loader::<C>().maps(&[&self.map]).insns("test", support::program(text))
    }

    /// Runs a program that chooses; whether the socket was chosen.
    fn choose(&self, text: &str) -> (Result<u64, String>, bool) {
        let program = self.load::<SkLookup>(text).unwrap_or_else(|e| panic!("{e} in\n{text}"));
        let fields = SkLookupFields { family: 2, protocol: 6, local_port: 443, ..SkLookupFields::default() };
        let mut buff = SkLookupBuff::new(fields);
        let r0 = program.run(&mut (), &mut buff).map_err(|e| e.to_string());
        (r0, buff.selected.is_some_and(|chosen| Arc::ptr_eq(&chosen, &self.socket)))
    }
}

/// Looks up what is at key 1, `found` if there is a socket, in r0.
fn with_socket(found: &str) -> String {
    format!(
        "r6 = r1; *(u32 *)(r10 - 4) = 1; r1 = map[fd:0]; r2 = r10; r2 += -4; call 1; if r0 == 0 goto none; r7 = r0; \
         {found} none:; r0 = 0; exit"
    )
}

#[test]
fn a_socket_in_a_map_is_chosen_and_given_back() {
    for (way, map_type) in VERIFIED.into_iter().flat_map(|way| TYPES.map(|map_type| (way, map_type))) {
        let bench = Bench::new(way, map_type);
        let text = with_socket(
            "r9 = *(u32 *)(r7 + 44); r1 = r6; r2 = r7; r3 = 0; call 124; r8 = r0; r1 = r7; call 86; \
             if r8 != 0 goto none; if r9 != 80 goto none; r0 = 1; exit;",
        );
        assert_eq!(bench.choose(&text), (Ok(0), false), "an empty map, {way:?}, {map_type}");
        bench.map.update(&1u32.to_ne_bytes(), &COOKIE.to_ne_bytes(), 0).unwrap();
        for _ in 0..3 {
            assert_eq!(bench.choose(&text), (Ok(1), true), "{way:?}, {map_type}");
        }
        bench.map.update(&1u32.to_ne_bytes(), &7u64.to_ne_bytes(), 0).unwrap();
        assert_eq!(bench.choose(&text), (Ok(0), false), "a number that the host does not know, {way:?}, {map_type}");
        assert_eq!(Arc::strong_count(&bench.socket), 2, "the test's and the network's, {way:?}, {map_type}");
    }
}

/// A run that is stopped gives back what it found; and it finds nothing once it holds as many as it can.
#[test]
fn found_sockets_are_given_back_by_runs_that_are_stopped_and_are_no_more_than_fifteen() {
    for (way, map_type) in VERIFIED.into_iter().flat_map(|way| TYPES.map(|map_type| (way, map_type))) {
        let bench = Bench::new(way, map_type);
        bench.map.update(&1u32.to_ne_bytes(), &COOKIE.to_ne_bytes(), 0).unwrap();
        let (r0, _) = bench.choose(&with_socket("call 1001; r1 = r7; call 86;"));
        assert!(r0.as_ref().is_err_and(|e| e.contains("enough")), "{r0:?}");
        assert_eq!(Arc::strong_count(&bench.socket), 2, "{way:?}, {map_type}");

        let mut text = String::from("*(u32 *)(r10 - 4) = 1; r9 = 0; ");
        for i in 1..=16 {
            text += &format!("r1 = map[fd:0]; r2 = r10; r2 += -4; call 1; *(u64 *)(r10 - {}) = r0; ", 8 + 8 * i);
        }
        for i in 1..=16 {
            text += &format!("r1 = *(u64 *)(r10 - {}); if r1 == 0 goto n{i}; r9 += 1; call 86; n{i}:; ", 8 + 8 * i);
        }
        // The program must return 0 or 1.
        text += "r0 = 0; if r9 != 15 goto out; r0 = 1; out:; exit";
        assert_eq!(bench.choose(&text).0, Ok(1), "{way:?}, {map_type}");
        assert_eq!(Arc::strong_count(&bench.socket), 2, "{way:?}, {map_type}");
    }
}

/// A program of `sockops` puts its connection's socket into a map and takes it out.
#[test]
fn connections_are_put_into_maps() {
    for (way, map_type, helper) in
        VERIFIED.into_iter().flat_map(|way| TYPES.map(|t| (way, t, 53 + 17 * u64::from(t == TYPES[1]))))
    {
        let bench = Bench::new(way, map_type);
        let put = |key: u32, flags: u64, socket: Option<&Arc<Socket>>| {
            let text = format!(
                "*(u32 *)(r10 - 4) = {key}; r2 = map[fd:0]; r3 = r10; r3 += -4; r4 = {flags}; call {helper}; \
                 r0 = -r0; r1 = r0; r0 = 0; if r1 == 0 goto out; r0 = 1; *(u32 *)(r6 + 4) = r1; out:; exit"
            );
            let program = bench.load::<SockOps>(&format!("r6 = r1; {text}")).unwrap_or_else(|e| panic!("{e}"));
            let mut buff = SockOpsBuff::new(SockOpsFields::default());
            buff.socket = socket.cloned();
            let r0 = program.run(&mut (), &mut buff).unwrap();
            if r0 == 0 { 0 } else { buff.reply() }
        };
        let of = Some(&bench.socket);
        let what = format!("{way:?}, {map_type}");
        assert_eq!(put(1, 2, of), 2, "ENOENT: nothing to replace, {what}");
        assert_eq!(put(1, 0, None), 95, "EOPNOTSUPP: no socket, {what}");
        assert_eq!(put(1, 3, of), 22, "EINVAL: flags, {what}");
        assert_eq!(put(1, 1, of), 0, "{what}");
        assert_eq!(put(1, 1, of), 17, "EEXIST, {what}");
        assert_eq!(put(1, 2, of), 0, "{what}");
        if map_type == MapType::SockMap {
            assert_eq!(put(4, 0, of), 7, "E2BIG: beyond the end, {what}");
        }
        assert_eq!(bench.map.get(&1u32.to_ne_bytes()).unwrap(), Some(COOKIE.to_ne_bytes().to_vec()), "{what}");
        let take = "*(u32 *)(r10 - 4) = 1; r1 = map[fd:0]; r2 = r10; r2 += -4; call 3; r0 = -r0; r1 = r0; r0 = 1; \
                    if r1 != 0 goto out; r0 = 0; out:; exit";
        assert_eq!([bench.choose(take).0, bench.choose(take).0], [Ok(0), Ok(1)], "once, {what}");
        assert_eq!(bench.map.len(), 0, "{what}");
    }
}

#[test]
fn what_is_not_given_back_or_used_as_memory_is_refused() {
    for map_type in TYPES {
        let bench = Bench::new(Way::Verified, map_type);
        let key = "*(u32 *)(r10 - 4) = 1; r1 = map[fd:0]; r2 = r10; r2 += -4;";
        for (text, reason) in [
            (with_socket(""), "is not released"),
            (with_socket("r1 = r7; call 86; r1 = r7; call 86;"), "r1"),
            (with_socket("*(u32 *)(r7 + 0) = 1; r1 = r7; call 86;"), "r7"),
            (with_socket("r0 = *(u64 *)(r7 + 80); r1 = r7; call 86;"), "r7"),
            (format!("{key} call 1; r1 = r0; call 86; r0 = 0; exit"), "socket"),
            (
                format!("{key} r3 = r10; r3 += -8; *(u64 *)(r10 - 16) = 0; r3 += -8; r4 = 0; call 2; r0 = 0; exit"),
                "a map of a kind",
            ),
            (format!("{key} r3 = 0; call 195; r0 = 0; exit"), "a map of a kind"),
            ("r2 = map[fd:0]; r3 = r10; r4 = 0; call 53; r0 = 0; exit".into(), "bpf_sock_map_update"),
        ] {
            let error = bench.load::<SkLookup>(&text).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
