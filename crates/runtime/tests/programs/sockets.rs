//! Sockets that the host answers for: what programs read of them, and that each is given back.

use crate::support;
use crate::support::ways::{self, Way};
use bpf_runtime::net::{Network, SockFields, Socket, SocketLookup, TcpFields};
use bpf_runtime::{
    Caller, HelperError, Linker, Program,
    net::{SkBuff, SkLookup, SkLookupBuff, SkLookupFields, Skb},
};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];

/// Answers any look-up by one socket, and notes the questions.
struct Answers(Arc<Socket>, Mutex<Vec<SocketLookup>>);

impl Network for Answers {
    fn socket(&self, lookup: &SocketLookup) -> Option<Arc<Socket>> {
        self.1.lock().unwrap().push(*lookup);
        (lookup.destination.port() != 9).then(|| Arc::clone(&self.0))
    }
}

fn socket(state: u32) -> Arc<Socket> {
    let fields = SockFields { family: 2, protocol: 6, state, src_port: 80, dst_port: 0x5000, ..SockFields::default() };
    let listener = Socket { fields: SockFields { state: 10, mark: 77, ..fields }, cookie: 5, ..Socket::default() };
    let tcp = Some(TcpFields { bytes_acked: 1 << 40, icsk_retransmits: 3, ..TcpFields::default() });
    Arc::new(Socket { fields, tcp, cookie: 42, uid: 1000, listener: Some(Arc::new(listener)) })
}

fn loaded(way: Way, network: &Arc<Answers>, text: &str) -> Program<Skb, ()> {
    let network: Arc<dyn Network> = Arc::clone(network) as _;
    let engine = ways::engine(way, |config| config.network(network));
    let mut linker = Linker::<()>::new(&engine);
    linker.func(1001, "fail", |_: &mut Caller<'_, ()>| Err::<u64, _>(HelperError::new("enough"))).unwrap();
    linker.loader::<Skb>().insns("test", support::program(text)).unwrap_or_else(|e| panic!("{e} in\n{text}"))
}

fn run(program: &Program<Skb, ()>, of: Option<Arc<Socket>>) -> (Result<u64, String>, Option<Arc<Socket>>) {
    let mut packet = [0; 64];
    let mut buff = SkBuff::new(&mut packet);
    buff.socket = of;
    let r0 = program.run(&mut (), &mut buff).map_err(|e| e.to_string());
    (r0, buff.assigned)
}

/// Looks a socket of IPv4 up, to this port.
fn look_up(helper: u32, port: u16) -> String {
    format!(
        "r6 = r1; *(u32 *)(r10 - 16) = 0x0100000a; *(u32 *)(r10 - 12) = 0x0200000a; \
         *(u16 *)(r10 - 8) = 0x3930; *(u16 *)(r10 - 6) = {}; \
         r2 = r10; r2 += -16; r3 = 12; r4 = -1; r5 = 0; call {helper}; ",
        port.to_be()
    )
}

#[test]
fn looked_up_sockets_are_read_and_given_back() {
    for way in VERIFIED {
        let established = socket(1);
        let network = Arc::new(Answers(Arc::clone(&established), Mutex::default()));
        let read = |call: &str, offset: u32, size: &str| {
            let text = format!(
                "{}if r0 == 0 goto none; r7 = r0; r9 = 1111; r1 = r0; {call} if r0 == 0 goto no; \
                 r9 = *({size} *)(r0 + {offset}); no:; r1 = r7; call 86; r0 = r9; exit; none:; r0 = 2222; exit",
                look_up(84, 80)
            );
            run(&loaded(way, &network, &text), None).0.unwrap()
        };
        assert_eq!(read("", 44, "u32"), 80, "src_port, {way:?}");
        assert_eq!(read("", 48, "u16"), 0x5000, "dst_port, {way:?}");
        assert_eq!(read("", 72, "u32"), 1, "state, {way:?}");
        assert_eq!(read("call 95;", 4, "u32"), 2, "a full socket's family, {way:?}");
        assert_eq!(read("call 96;", 88, "u64"), 1 << 40, "bytes_acked, {way:?}");
        assert_eq!(read("call 96;", 108, "u32"), 3, "the last number of a TCP socket, {way:?}");
        assert_eq!(read("call 98;", 16, "u32"), 77, "the listener's mark, {way:?}");
        let asked = network.1.lock().unwrap()[0];
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let expected =
            SocketLookup { protocol: 6, source: at("10.0.0.1:12345"), destination: at("10.0.0.2:80"), namespace: None };
        assert_eq!(asked, expected);
        assert_eq!(Arc::strong_count(&established), 2, "the test's and the network's, {way:?}");
    }
}

#[test]
fn what_is_no_full_socket_is_found_only_as_such() {
    for way in VERIFIED {
        let waiting = socket(6);
        let network = Arc::new(Answers(Arc::clone(&waiting), Mutex::default()));
        let found = |helper, port| {
            let text = format!(
                "{}if r0 == 0 goto none; r1 = r0; call 86; r0 = 1; exit; none:; r0 = 0; exit",
                look_up(helper, port)
            );
            run(&loaded(way, &network, &text), None).0.unwrap()
        };
        assert_eq!([found(84, 80), found(85, 80), found(99, 80), found(99, 9)], [0, 0, 1, 0], "{way:?}");
        let protocols: Vec<u8> = network.1.lock().unwrap().iter().map(|lookup| lookup.protocol).collect();
        assert_eq!(protocols, [6, 17, 6, 6]);
        assert_eq!(Arc::strong_count(&waiting), 2, "{way:?}");
    }
}

/// Tuples of no family, flags, and namespaces that there are not: no socket, and no question.
#[test]
fn questions_that_mean_nothing_are_not_asked() {
    for way in VERIFIED {
        let network = Arc::new(Answers(socket(1), Mutex::default()));
        for (len, namespace, flags) in [(13, -1, 0), (1, -1, 0), (12, -2, 0), (12, i64::MAX, 0), (12, -1, 1)] {
            let text = format!(
                "*(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 8) = 0; r2 = r10; r2 += -16; r3 = {len}; r4 = {namespace} ll; \
                 r5 = {flags}; call 84; if r0 == 0 goto none; r1 = r0; call 86; r0 = 1; exit; none:; r0 = 0; exit"
            );
            assert_eq!(run(&loaded(way, &network, &text), None).0, Ok(0), "{len} {namespace} {flags}");
        }
        assert!(network.1.lock().unwrap().is_empty());
    }
}

/// A run that is stopped has not released its sockets: its end does.
#[test]
fn stopped_runs_give_their_sockets_back() {
    for way in VERIFIED {
        let held = socket(1);
        let network = Arc::new(Answers(Arc::clone(&held), Mutex::default()));
        let text = format!(
            "{}r7 = r0; if r0 == 0 goto none; call 1001; r1 = r7; call 86; none:; r0 = 0; exit",
            look_up(84, 80)
        );
        let program = loaded(way, &network, &text);
        for _ in 0..3 {
            let error = run(&program, None).0.unwrap_err();
            assert!(error.contains("enough"), "{error}");
            assert_eq!(Arc::strong_count(&held), 2, "{way:?}");
        }
    }
}

/// A program may hold fifteen sockets; a further look-up finds none.
#[test]
fn no_more_sockets_than_a_run_can_hold() {
    for way in VERIFIED {
        let held = socket(1);
        let network = Arc::new(Answers(Arc::clone(&held), Mutex::default()));
        let mut text = String::new();
        for i in 1..=16 {
            let look_up = look_up(84, 80);
            let again = look_up.replace("r6 = r1", "r1 = r6");
            text += if i == 1 { &look_up } else { &again };
            text += &format!("*(u64 *)(r10 - {}) = r0; ", 16 + 8 * i);
        }
        text += "r9 = 0; ";
        for i in 1..=16 {
            text +=
                &format!("r1 = *(u64 *)(r10 - {}); if r1 == 0 goto none{i}; r9 += 1; call 86; none{i}:; ", 16 + 8 * i);
        }
        text += "r0 = r9; exit";
        assert_eq!(run(&loaded(way, &network, &text), None).0, Ok(15), "{way:?}");
        assert_eq!(Arc::strong_count(&held), 2, "{way:?}");
    }
}

#[test]
fn a_packet_has_its_socket_and_is_assigned_one() {
    for way in VERIFIED {
        let own = socket(1);
        let other = socket(10);
        let network = Arc::new(Answers(Arc::clone(&other), Mutex::default()));
        let fields = loaded(
            way,
            &network,
            "r6 = r1; call 46; r7 = r0; r7 <<= 32; r1 = r6; call 47; r7 |= r0; \
             r1 = *(u64 *)(r6 + 168); if r1 == 0 goto out; r0 = *(u32 *)(r1 + 44); r7 += r0; call 95; \
             if r0 == 0 goto out; r0 = *(u32 *)(r0 + 12); r7 += r0; out:; r0 = r7; exit",
        );
        assert_eq!(run(&fields, Some(Arc::clone(&own))).0, Ok((42 << 32) + 1000 + 80 + 6), "{way:?}");
        assert_eq!(run(&fields, None).0, Ok(65534), "{way:?}");

        let text = format!(
            "{}if r0 == 0 goto none; r7 = r0; r1 = r6; r2 = r0; r3 = 0; call 124; r8 = r0; r1 = r6; r2 = r7; r3 = 1; \
             call 124; r9 = r0; r1 = r7; call 86; r0 = r8; r0 -= r9; none:; exit",
            look_up(84, 80)
        );
        let (r0, assigned) = run(&loaded(way, &network, &text), None);
        assert_eq!(r0, Ok(22), "0 and EINVAL, {way:?}");
        assert!(assigned.is_some_and(|socket| Arc::ptr_eq(&socket, &other)), "{way:?}");
        assert_eq!((Arc::strong_count(&own), Arc::strong_count(&other)), (1, 2), "{way:?}");
    }
}

/// The SYN cookies of `bpf_tcp_raw_gen_syncookie_ipv4`: only cookies that were made here are accepted.
#[test]
fn syn_cookies_are_accepted_by_who_made_them() {
    for way in VERIFIED {
        let network = Arc::new(Answers(socket(1), Mutex::default()));
        // An IP header of zeros, and a SYN with sequence number 7; its answer acknowledges the cookie and one.
        let program = |change: &str| {
            let text = format!(
                "*(u64 *)(r10 - 24) = 0; *(u64 *)(r10 - 16) = 0x01020304; *(u64 *)(r10 - 8) = 0; \
                 *(u64 *)(r10 - 48) = 0; *(u64 *)(r10 - 40) = 0; *(u64 *)(r10 - 32) = 0; \
                 *(u8 *)(r10 - 41) = 7; *(u8 *)(r10 - 36) = 0x50; \
                 r1 = r10; r1 += -24; r2 = r10; r2 += -48; r3 = 20; call 204; if r0 s< 0 goto out; r6 = r0; r6 >>= 32; \
                 w0 = w0; r0 += 1; w0 = w0; r0 = be32 r0; *(u32 *)(r10 - 40) = r0; *(u8 *)(r10 - 41) = 8; {change} \
                 r1 = r10; r1 += -24; r2 = r10; r2 += -48; call 206; if r0 != 0 goto out; r0 = r6; out:; exit"
            );
            run(&loaded(way, &network, &text), None).0.unwrap() as i64
        };
        assert_eq!(program(""), 536, "{way:?}");
        assert_eq!(program("*(u8 *)(r10 - 41) = 9;"), -13, "{way:?}");
        assert_eq!(program("*(u8 *)(r10 - 9) = 9;"), -13, "{way:?}");
    }
}

fn choose(way: Way, network: &Arc<Answers>, text: &str) -> Program<SkLookup, ()> {
    let network: Arc<dyn Network> = Arc::clone(network) as _;
    let engine = ways::engine(way, |config| config.network(network));
    let linker = Linker::<()>::new(&engine);
    linker.loader::<SkLookup>().insns("test", support::program(text)).unwrap_or_else(|e| panic!("{e} in\n{text}"))
}

/// A program of `bpf_sk_lookup` sees the packet's addresses, chooses, sees its choice and replaces it.
#[test]
fn programs_choose_sockets() {
    for way in VERIFIED {
        let chosen = socket(10);
        let network = Arc::new(Answers(Arc::clone(&chosen), Mutex::default()));
        let text = format!(
            "r9 = *(u32 *)(r1 + 60); r0 = *(u64 *)(r1 + 0); if r0 != 0 goto bad; {}if r0 == 0 goto bad; r7 = r0; \
             r1 = r6; r2 = r7; r3 = 0; call 124; if r0 != 0 goto drop; \
             r8 = *(u64 *)(r6 + 0); if r8 == 0 goto drop; \
             r1 = r6; r2 = r7; r3 = 0; call 124; if w0 != -17 goto drop; \
             r1 = r6; r2 = 0; r3 = 1; call 124; if r0 != 0 goto drop; \
             r1 = *(u64 *)(r6 + 0); if r1 != 0 goto drop; \
             r1 = r6; r2 = r7; r3 = 2; call 124; if r0 != 0 goto drop; \
             r1 = r7; call 86; r0 = *(u32 *)(r8 + 44); if r0 != 80 goto bad; if r9 != 443 goto bad; r0 = 1; exit; \
             drop:; r1 = r7; call 86; bad:; r0 = 0; exit",
            look_up(84, 80)
        );
        let program = choose(way, &network, &text);
        let fields = SkLookupFields { family: 2, protocol: 6, local_port: 443, ..SkLookupFields::default() };
        let mut buff = SkLookupBuff::new(fields);
        for _ in 0..2 {
            buff.selected = None;
            assert_eq!(program.run(&mut (), &mut buff).unwrap(), 1, "{way:?}");
            assert!(buff.selected.as_ref().is_some_and(|s| Arc::ptr_eq(s, &chosen)) && buff.no_reuseport, "{way:?}");
        }
        buff.fields.protocol = 17;
        buff.selected = None;
        assert_eq!(program.run(&mut (), &mut buff).unwrap(), 0, "a socket of another protocol, {way:?}");
        drop(buff);
        assert_eq!(Arc::strong_count(&chosen), 2, "{way:?}");
    }
}

/// Verdicts are 0 and 1, and the fields are not written.
#[test]
fn programs_that_choose_sockets_keep_to_their_context() {
    let linker = Linker::<()>::new(&ways::engine(Way::Verified, |config| config));
    for (text, reason) in [
        ("r0 = 2; exit", "0..=1"),
        ("*(u32 *)(r1 + 8) = 0; r0 = 0; exit", "may not be written"),
        ("r0 = *(u64 *)(r1 + 68); exit", "no field"),
        ("r0 = *(u32 *)(r1 + 0); exit", "read whole"),
    ] {
        let error = linker.loader::<SkLookup>().insns("test", support::program(text)).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}
