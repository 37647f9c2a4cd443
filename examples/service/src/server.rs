//! The service on a UDP socket: a runtime of tokio's on each thread, all with the same socket.
//!
//! A request is answered between two waits, never across one: a run holds a guard that programs are freed after, so a
//! task that waited within one would hold up every reload.

use crate::Service;
use std::net::UdpSocket;
use std::sync::Arc;
use tokio::sync::watch;

/// Answers until `stop` changes, on this thread; how many requests were answered.
///
/// # Errors
/// Fails if the socket fails.
pub fn serve(service: &Service, socket: &UdpSocket, mut stop: watch::Receiver<bool>) -> anyhow::Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let socket = Arc::new(tokio::net::UdpSocket::from_std(socket.try_clone()?)?);
        let mut answered = 0;
        let mut datagram = [0; 64];
        loop {
            tokio::select! {
                received = socket.recv_from(&mut datagram) => {
                    let (len, client) = received?;
                    let answer = service.answer(&datagram[..len]);
                    socket.send_to(&answer.to_bytes(), client).await?;
                    answered += 1;
                }
                _ = stop.changed() => return Ok(answered),
            }
        }
    })
}
