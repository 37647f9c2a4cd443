//! UDP both ways, counted: `udp-load echo ADDR` sends back what comes; `udp-load ask ADDR COUNT` sends numbered
//! datagrams, never more than [`WINDOW`] ahead of the answers, and says how many answers came, and how many came twice;
//! `udp-load tell ADDR COUNT` sends COUNT datagrams without expecting answers; `udp-load flood ADDR SECONDS` sends as
//! fast as it goes and says how many.

use anyhow::{Context as _, bail};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Fewer than any socket's queue holds, so that nothing is lost for want of room.
const WINDOW: u64 = 32;
/// After this time an answer is lost.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["echo", address] => echo(&UdpSocket::bind(address)?),
        ["ask", address, count] => ask(&connect(address)?, count.parse().context("COUNT")?),
        ["tell", address, count] => tell(&connect(address)?, count.parse().context("COUNT")?),
        ["flood", address, seconds] => flood(&connect(address)?, seconds.parse().context("SECONDS")?),
        _ => bail!("usage: udp-load echo ADDR | ask ADDR COUNT | tell ADDR COUNT | flood ADDR SECONDS"),
    }
}

fn connect(address: &str) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(address)?;
    Ok(socket)
}

fn echo(socket: &UdpSocket) -> anyhow::Result<()> {
    println!("ready");
    let mut datagram = [0; 2048];
    loop {
        let (len, from) = socket.recv_from(&mut datagram)?;
        socket.send_to(&datagram[..len], from)?;
    }
}

fn ask(socket: &UdpSocket, count: u64) -> anyhow::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut answers = vec![0u8; usize::try_from(count)?];
    let (mut sent, mut answered) = (0, 0);
    let mut datagram = [0; 64];
    while answered < count {
        if sent < count && sent < answered + WINDOW {
            datagram[..8].copy_from_slice(&sent.to_le_bytes());
            socket.send(&datagram)?;
            sent += 1;
            continue;
        }
        let Ok(len) = socket.recv(&mut datagram) else { break };
        let number = datagram.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).filter(|_| len == datagram.len());
        let answer = number.and_then(|number| answers.get_mut(usize::try_from(number).ok()?));
        let Some(answer) = answer else { bail!("an answer to nothing that was asked") };
        answered += u64::from(*answer == 0);
        *answer = answer.saturating_add(1);
    }
    let twice = answers.iter().filter(|answer| **answer > 1).count();
    println!("sent={sent} answered={answered} twice={twice}");
    Ok(())
}

fn tell(socket: &UdpSocket, count: u64) -> anyhow::Result<()> {
    for _ in 0..count {
        socket.send(&[0; 18])?;
    }
    Ok(())
}

fn flood(socket: &UdpSocket, seconds: u64) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut sent, mut refused) = (0u64, 0u64);
    while Instant::now() < end {
        for _ in 0..64 {
            match socket.send(&[0; 18]) {
                Ok(_) => sent += 1,
                Err(_) => refused += 1,
            }
        }
    }
    println!("sent={sent} refused={refused}");
    Ok(())
}
