//! Two interfaces with a hook between them.
//!
//! Problem: each packet is read, judged and written on by one thread, while others change the hook and ask for the
//! counts. Approach: a thread for each direction, packet sockets (`AF_PACKET`) that both write to under a lock, and
//! counters. The packet is copied once, into a buffer with room before and behind it, so that programs may add headers.
//!
//! Invariant: a packet is counted once, by its outcome. One whose run ends with an error is dropped: a filter that is
//! broken lets nothing in.

use anyhow::{Context as _, bail};
use bpf_runtime::{
    Hook,
    net::{Redirect, Xdp, XdpBuff},
};
use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender, NetworkInterface};
use std::fmt;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Scope;
use std::time::Duration;

const XDP_DROP: u64 = 1;
pub(crate) const XDP_PASS: u64 = 2;
const XDP_TX: u64 = 3;
const XDP_REDIRECT: u64 = 4;

/// As the kernel's `XDP_PACKET_HEADROOM`.
const HEADROOM: usize = 256;
/// The longest frame, before and after a run.
const FRAME: usize = 9216;
/// How long a thread waits for a packet before it looks whether it is to end.
const WAKE: Duration = Duration::from_millis(100);

/// An interface, and the half of its socket that sends.
struct Port {
    index: u32,
    sender: Mutex<Box<dyn DataLinkSender>>,
}

impl Port {
    /// Whether the packet went out.
    fn send(&self, packet: &[u8]) -> bool {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(sender.send_to(packet, None), Some(Ok(())))
    }
}

/// The network on one side, the host on the other.
pub(crate) struct Edge {
    hook: Hook<Xdp, ()>,
    wire: Port,
    host: Port,
    outs: Vec<Port>,
    receivers: Mutex<Vec<Box<dyn DataLinkReceiver>>>,
    counts: Counts,
    stop: AtomicBool,
}

impl Edge {
    pub(crate) fn open(hook: Hook<Xdp, ()>, wire: &str, host: &str, outs: &[String]) -> anyhow::Result<Edge> {
        let interfaces = pnet_datalink::interfaces();
        let (wire, from_wire) = open(&interfaces, wire)?;
        let (host, from_host) = open(&interfaces, host)?;
        let outs = outs.iter().map(|name| Ok(open(&interfaces, name)?.0)).collect::<anyhow::Result<_>>()?;
        let receivers = Mutex::new(vec![from_wire, from_host]);
        Ok(Edge { hook, wire, host, outs, receivers, counts: Counts::default(), stop: AtomicBool::new(false) })
    }

    pub(crate) fn hook(&self) -> &Hook<Xdp, ()> {
        &self.hook
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Starts a thread for each direction, once.
    pub(crate) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let mut receivers = std::mem::take(&mut *self.receivers.lock().unwrap_or_else(PoisonError::into_inner));
        if let (Some(from_host), Some(from_wire)) = (receivers.pop(), receivers.pop()) {
            scope.spawn(move || self.inbound(from_wire));
            scope.spawn(move || self.outbound(from_host));
        }
    }

    /// Lets the threads end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// From the network, through the program.
    fn inbound(&self, mut from: Box<dyn DataLinkReceiver>) {
        let mut buffer = vec![0; HEADROOM + FRAME + HEADROOM];
        self.receive(&mut *from, |frame| self.counts.add(self.judge(frame, &mut buffer)));
    }

    /// Runs the program on a packet, carries out the verdict, and returns the counter of that outcome.
    fn judge(&self, frame: &[u8], buffer: &mut [u8]) -> &AtomicU64 {
        if frame.len() > FRAME {
            return &self.counts.too_long;
        }
        buffer[HEADROOM..HEADROOM + frame.len()].copy_from_slice(frame);
        let mut packet = XdpBuff::with_room(buffer, HEADROOM, frame.len());
        packet.ingress_ifindex = self.wire.index;
        match self.hook.run_on(&mut packet) {
            Ok(XDP_DROP) => &self.counts.dropped,
            Ok(XDP_PASS) => self.counts.sent(&self.counts.passed, self.host.send(packet.packet())),
            Ok(XDP_TX) => self.counts.sent(&self.counts.returned, self.wire.send(packet.packet())),
            Ok(XDP_REDIRECT) => self.redirect(&packet),
            Ok(_aborted) => &self.counts.aborted,
            Err(_) => &self.counts.failed,
        }
    }

    /// To the interface that the program named, if it is open.
    fn redirect(&self, packet: &XdpBuff<'_>) -> &AtomicU64 {
        let to = match packet.redirect {
            Some(Redirect::Device { ifindex, .. } | Redirect::MapDevice { ifindex, .. }) => ifindex,
            _ => return &self.counts.nowhere,
        };
        let mut ports = self.outs.iter().chain([&self.host, &self.wire]);
        match ports.find(|port| port.index == to) {
            Some(port) => self.counts.sent(&self.counts.redirected, port.send(packet.packet())),
            None => &self.counts.nowhere,
        }
    }

    /// From the host, as it is.
    fn outbound(&self, mut from: Box<dyn DataLinkReceiver>) {
        self.receive(&mut *from, |frame| {
            self.counts.add(self.counts.sent(&self.counts.outbound, self.wire.send(frame)));
        });
    }

    /// Does this with each packet until it is time to end.
    fn receive(&self, from: &mut dyn DataLinkReceiver, mut each: impl FnMut(&[u8])) {
        while !self.stop.load(Ordering::Relaxed) {
            match from.next() {
                Ok(frame) => each(frame),
                Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
                Err(error) => return eprintln!("cannot receive: {error}"),
            }
        }
    }
}

/// The number by which the kernel and device maps know an interface.
pub(crate) fn index_of(name: &str) -> Option<u32> {
    pnet_datalink::interfaces().iter().find(|interface| interface.name == name).map(|interface| interface.index)
}

/// Opens the socket of an interface.
fn open(interfaces: &[NetworkInterface], name: &str) -> anyhow::Result<(Port, Box<dyn DataLinkReceiver>)> {
    let Some(interface) = interfaces.iter().find(|interface| interface.name == name) else {
        let names: Vec<_> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
        bail!("no interface {name}; there are {}", names.join(", "));
    };
    let config = Config { read_timeout: Some(WAKE), read_buffer_size: FRAME + 1, ..Config::default() };
    match pnet_datalink::channel(interface, config).with_context(|| format!("cannot open a packet socket on {name}"))? {
        Channel::Ethernet(sender, receiver) => {
            Ok((Port { index: interface.index, sender: Mutex::new(sender) }, receiver))
        }
        _ => bail!("{name}: not Ethernet"),
    }
}

/// Numbers of packets by outcome.
#[derive(Default)]
pub(crate) struct Counts {
    passed: AtomicU64,
    dropped: AtomicU64,
    returned: AtomicU64,
    redirected: AtomicU64,
    /// Packets redirected to an interface that is not open.
    nowhere: AtomicU64,
    aborted: AtomicU64,
    /// Their run ended with an error.
    failed: AtomicU64,
    too_long: AtomicU64,
    /// The interface did not take them.
    unsent: AtomicU64,
    outbound: AtomicU64,
}

impl Counts {
    fn add(&self, counter: &AtomicU64) {
        // Relaxed: counts order nothing.
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn sent<'c>(&'c self, counter: &'c AtomicU64, sent: bool) -> &'c AtomicU64 {
        if sent { counter } else { &self.unsent }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counters = [
            ("passed", &self.passed),
            ("dropped", &self.dropped),
            ("returned", &self.returned),
            ("redirected", &self.redirected),
            ("nowhere", &self.nowhere),
            ("aborted", &self.aborted),
            ("failed", &self.failed),
            ("too-long", &self.too_long),
            ("unsent", &self.unsent),
            ("outbound", &self.outbound),
        ];
        for (i, (name, counter)) in counters.into_iter().enumerate() {
            write!(f, "{}{name}={}", if i == 0 { "" } else { " " }, counter.load(Ordering::Relaxed))?;
        }
        Ok(())
    }
}
