//! The example between real interfaces: network namespaces of a client, of the edge, of a server and of a further
//! interface, joined by veth pairs, with real `ping` and UDP through it.
//!
//! ```text
//! client c0 ---- w0 edge h0 ---- s0 server
//!                     o0 ---- r0 other
//! ```
//!
//! The client waits for each answer before it sends the next request, so no queue overflows: a packet that is missing
//! was lost by the edge.

use bpf_testkit::skipped;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

const EDGE: &str = env!("CARGO_BIN_EXE_bpf-example-live");
const LOAD: &str = env!("CARGO_BIN_EXE_udp-load");
const SERVER: &str = "10.77.0.2";

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The namespaces, for as long as this lives.
struct Network {
    prefix: String,
}

impl Network {
    const SPACES: [&str; 4] = ["client", "edge", "server", "other"];

    /// Makes the network, or returns the reason for which it cannot be made here.
    fn new(test: &str) -> Result<Network, String> {
        let network = Network { prefix: format!("bpf-live-{}-{test}", std::process::id()) };
        let [client, edge, server, other] = Self::SPACES.map(|space| network.space(space));
        let mut script = String::from("set -e\n");
        for space in [&client, &edge, &server, &other] {
            script += &format!("ip netns add {space}\n");
            // Unsolicited IPv6 packets would be counted, so IPv6 is off.
            script += &format!(
                "ip netns exec {space} sh -c 'echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6'\n"
            );
            script += &format!("ip -n {space} link set lo up\n");
        }
        for (space, name, peer_name) in [(&client, "c0", "w0"), (&server, "s0", "h0"), (&other, "r0", "o0")] {
            script += &format!("ip -n {space} link add {name} type veth peer name {peer_name} netns {edge}\n");
            script += &format!("ip -n {space} link set {name} up\nip -n {edge} link set {peer_name} up\n");
            // A packet socket gets what the kernel has not finished: checksums that a device would compute, packets
            // that it would cut.
            script += &format!("ip netns exec {space} ethtool -K {name} tx off gso off tso off >/dev/null\n");
        }
        script += &format!("ip -n {client} addr add 10.77.0.1/24 dev c0\nip -n {server} addr add {SERVER}/24 dev s0\n");
        let set_up = Command::new("sh").args(["-c", &script]).output().map_err(|error| error.to_string())?;
        if !set_up.status.success() {
            return Err(String::from_utf8_lossy(&set_up.stderr).trim().replace('\n', "; "));
        }
        for (program, argument) in [("ping", "-V"), (EDGE, "--version")] {
            let works = network.command("edge", program).arg(argument).output().map_err(|error| error.to_string())?;
            if !works.status.success() {
                return Err(format!("{program}: {}", String::from_utf8_lossy(&works.stderr).trim()));
            }
        }
        Ok(network)
    }

    fn space(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn command(&self, space: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(space), program]);
        command
    }

    fn run(&self, space: &str, program: &str, args: &[&str]) -> Output {
        let output = self.command(space, program).args(args).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {output:?}");
        output
    }

    /// Asks a port of the server so many times: how many were asked, answered, and answered twice.
    fn ask(&self, port: u16, count: u32) -> String {
        let output = self.run("client", LOAD, &["ask", &format!("{SERVER}:{port}"), &count.to_string()]);
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn echo(&self, port: u16) -> Talk {
        let mut talk = Talk::start(self.command("server", LOAD).args(["echo", &format!("{SERVER}:{port}")]));
        assert_eq!(talk.line(), "ready");
        talk
    }

    fn edge(&self, object: &Path) -> Talk {
        let args = ["--wire", "w0", "--host", "h0", "--out", "o0"];
        let mut talk = Talk::start(self.command("edge", EDGE).arg(object).args(args));
        assert!(talk.line().starts_with("ready "));
        talk
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for space in Self::SPACES {
            let _ = Command::new("ip").args(["netns", "del", &self.space(space)]).stderr(Stdio::null()).status();
        }
    }
}

/// A program that answers lines with lines.
struct Talk {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Talk {
    fn start(command: &mut Command) -> Talk {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Talk { child, stdin, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn say(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}").unwrap();
        self.line()
    }

    fn count(&mut self, name: &str) -> u64 {
        let stats = self.say("stats");
        let mut counts = stats.split(' ').filter_map(|count| count.split_once('='));
        let (_, count) = counts.find(|(counted, _)| *counted == name).unwrap_or_else(|| panic!("{name}: {stats}"));
        count.parse().unwrap()
    }

    /// The count once it is as much as this: a packet is counted when it is known what became of it, so its answer may
    /// be here before.
    fn counted(&mut self, name: &str, least: u64) -> u64 {
        loop {
            let count = self.count(name);
            if count >= least {
                return count;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn packets_pass_are_dropped_returned_and_redirected() {
    let network = match Network::new("verdicts") {
        Ok(network) => network,
        Err(reason) => return skipped("the live example between interfaces", &reason),
    };
    let mut edge = network.edge(&here("edge.o"));
    let pinged = network.run("client", "ping", &["-c", "3", "-i", "0.05", "-W", "20", SERVER]);
    assert!(String::from_utf8_lossy(&pinged.stdout).contains(" 0% packet loss"), "{pinged:?}");
    edge.counted("passed", 3);

    let _server = network.echo(10);
    assert_eq!(network.ask(10, 500), "sent=500 answered=500 twice=0");
    // The edge answers this one itself.
    assert_eq!(network.ask(7, 500), "sent=500 answered=500 twice=0");
    assert_eq!(edge.counted("returned", 500), 500);

    // The map has no interface yet.
    tell(&network, &mut edge, 8, "aborted");
    assert_eq!(edge.say("device outs 0 o0"), "set");
    let other = || -> u64 {
        let read = network.run("other", "cat", &["/sys/class/net/r0/statistics/rx_packets"]);
        String::from_utf8(read.stdout).unwrap().trim().parse().unwrap()
    };
    let before = other();
    tell(&network, &mut edge, 8, "redirected");
    assert_eq!(other() - before, 5);
    tell(&network, &mut edge, 9, "dropped");
    assert_eq!((edge.count("aborted"), edge.count("failed"), edge.count("unsent")), (5, 0, 0));

    // A refused load changes nothing.
    assert!(edge.say("load /dev/null").starts_with("refused /dev/null"));
    assert!(edge.say("device outs 9 o0").starts_with("refused"));
    assert!(edge.say("device outs 0 nothing").starts_with("refused"));
    assert_eq!(network.ask(10, 20), "sent=20 answered=20 twice=0");
    writeln!(edge.stdin, "quit").unwrap();
    assert!(edge.child.wait().unwrap().success());
}

/// Sends five datagrams without answers, and waits until the edge has counted them.
fn tell(network: &Network, edge: &mut Talk, port: u16, counter: &str) {
    let before = edge.count(counter);
    network.run("client", LOAD, &["tell", &format!("{SERVER}:{port}"), "5"]);
    assert_eq!(edge.counted(counter, before + 5), before + 5);
}

/// The program is exchanged as often as it goes while packets pass: none is lost, none is doubled.
#[test]
fn nothing_is_lost_while_the_program_is_exchanged() {
    let network = match Network::new("reload") {
        Ok(network) => network,
        Err(reason) => return skipped("the live example's reload under traffic", &reason),
    };
    let (ours, filter) = (here("edge.o"), here("../xdp_filter.o"));
    let mut edge = network.edge(&ours);
    let _server = network.echo(10);
    let mut asks = network.command("client", LOAD);
    let asks = asks.args(["ask", &format!("{SERVER}:10"), "20000"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut reloads = 0;
    let mut asks = Some(asks);
    let output = std::thread::scope(|scope| {
        let asked = scope.spawn(|| asks.take().unwrap().wait_with_output().unwrap());
        while !asked.is_finished() {
            for object in [&filter, &ours] {
                assert!(edge.say(&format!("load {}", object.display())).starts_with("loaded "));
                reloads += 1;
            }
        }
        asked.join().unwrap()
    });
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "sent=20000 answered=20000 twice=0");
    assert!(reloads > 1, "{reloads}");
    // The address is asked for as well.
    edge.counted("passed", 20_000);
    assert_eq!((edge.count("dropped"), edge.count("failed")), (0, 0));
    println!("{reloads} reloads under 20000 datagrams each way");
}
