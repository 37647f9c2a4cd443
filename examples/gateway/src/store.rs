//! A key-value server for the example, and the connection to it that all requests share.
//!
//! Problem: replies come in any order, late, or never, and requests that wait for them may be given up. Approach: each
//! request on the wire has a number, by which the reply finds the future that waits for it. A request line is
//! `number key`, a reply line `number value`, or `number` alone if there is no such key; keys have no white space.
//!
//! Invariant: a number waits at most once. An answer, a timeout, a dropped future and a lost connection each take it
//! out of the list, and a reply whose number is not in the list is dropped.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

/// Lines that wait to be written, on either side.
const QUEUE: usize = 1024;
/// The time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(100);

/// Serves lookups until the listener fails: `answer` gives the value of a key, when it is ready.
///
/// # Errors
/// Fails if the listener fails.
pub async fn serve<F, A>(listener: TcpListener, answer: F) -> std::io::Result<()>
where
    F: Fn(String) -> A + Clone + Send + 'static,
    A: Future<Output = Option<u64>> + Send + 'static,
{
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve_client(stream, answer.clone()));
    }
}

async fn serve_client<F, A>(stream: TcpStream, answer: F) -> std::io::Result<()>
where
    F: Fn(String) -> A,
    A: Future<Output = Option<u64>> + Send + 'static,
{
    let (reader, writer) = stream.into_split();
    let (replies, mut queue) = mpsc::channel(QUEUE);
    tokio::spawn(async move { write_lines(writer, &mut queue).await });
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await? {
        let Some((number, key)) = line.split_once(' ') else { continue };
        let (number, answer, replies) = (number.to_owned(), answer(key.to_owned()), replies.clone());
        tokio::spawn(async move {
            let reply = match answer.await {
                Some(value) => format!("{number} {value}\n"),
                None => format!("{number}\n"),
            };
            // The client may be gone.
            let _ = replies.send(reply).await;
        });
    }
    Ok(())
}

/// Writes lines as they come; lines that wait are written together.
async fn write_lines(
    writer: impl tokio::io::AsyncWrite + Unpin,
    queue: &mut mpsc::Receiver<String>,
) -> std::io::Result<()> {
    let mut writer = BufWriter::new(writer);
    while let Some(line) = queue.recv().await {
        writer.write_all(line.as_bytes()).await?;
        if queue.is_empty() {
            writer.flush().await?;
        }
    }
    Ok(())
}

/// Why a lookup has no value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookupError {
    /// The server has no such key.
    NoKey,
    /// There was no reply in time.
    Timeout,
    /// There is no connection, or it was lost before the reply.
    NoConnection,
}

/// The lookups that wait for a reply, by number.
type Waiting = HashMap<u64, oneshot::Sender<Option<u64>>>;

/// A connection to the key-value server: cheap to clone, and made again when it is lost.
#[derive(Clone, Debug)]
pub struct Client(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    requests: mpsc::Sender<String>,
    waiting: Mutex<Waiting>,
    next: AtomicU64,
}

impl Shared {
    /// Nothing under the lock panics, so poison means nothing.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a reply to the lookup that waits for it, if it still does.
    fn reply(&self, line: &str) {
        let (number, value) = line.split_once(' ').map_or((line, None), |(number, value)| (number, Some(value)));
        let waiting = number.parse().ok().and_then(|number| self.waiting().remove(&number));
        if let Some(waiting) = waiting {
            // A lookup that is being given up has dropped its end.
            let _ = waiting.send(value.and_then(|value| value.parse().ok()));
        }
    }
}

/// Takes its number out of the list, however its lookup ends.
struct Numbered<'c>(&'c Shared, u64);

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        self.0.waiting().remove(&self.1);
    }
}

impl Client {
    /// Returns a client of the server at this address, which need not be there yet. Must be called in a runtime; its
    /// task ends when the last clone is dropped.
    pub fn new(server: SocketAddr) -> Client {
        let (requests, queue) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared { requests, waiting: Mutex::default(), next: AtomicU64::new(1) });
        tokio::spawn(keep_connected(server, queue, Arc::downgrade(&shared)));
        Client(shared)
    }

    /// Looks a key up.
    ///
    /// # Errors
    /// Fails if there is no such key, no reply in time, or no connection.
    pub async fn get(&self, key: &str, time: Duration) -> Result<u64, LookupError> {
        // Relaxed: only uniqueness matters.
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        self.0.waiting().insert(number, sender);
        let _numbered = Numbered(&self.0, number);
        let asked = async {
            let line = format!("{number} {key}\n");
            self.0.requests.send(line).await.map_err(|_| LookupError::NoConnection)?;
            reply.await.map_err(|_| LookupError::NoConnection)?.ok_or(LookupError::NoKey)
        };
        tokio::time::timeout(time, asked).await.unwrap_or(Err(LookupError::Timeout))
    }

    /// Returns how many lookups wait for a reply.
    pub fn waiting(&self) -> usize {
        self.0.waiting().len()
    }
}

/// Connects, and again when the connection is lost, until the last client is gone.
async fn keep_connected(server: SocketAddr, mut queue: mpsc::Receiver<String>, shared: std::sync::Weak<Shared>) {
    while shared.strong_count() > 0 {
        if let Ok(stream) = TcpStream::connect(server).await
            && exchange(stream, &mut queue, &shared).await.is_ok()
        {
            return;
        }
        // Lookups that wait fail at once: the server may stay away for longer than they may wait.
        if let Some(shared) = shared.upgrade() {
            shared.waiting().clear();
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Sends requests and receives replies until the connection is lost (an error) or the last client is gone.
async fn exchange(
    stream: TcpStream,
    queue: &mut mpsc::Receiver<String>,
    shared: &std::sync::Weak<Shared>,
) -> std::io::Result<()> {
    let (reader, writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    let receive = async {
        loop {
            match (lines.next_line().await?, shared.upgrade()) {
                (Some(line), Some(shared)) => shared.reply(&line),
                (_, None) => return Ok(()),
                (None, Some(_)) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            }
        }
    };
    // Beside each other: a server may read no further until its replies are read.
    tokio::select! {
        ended = receive => ended,
        ended = write_lines(writer, queue) => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    /// More than the buffers of a connection hold.
    const MUCH: usize = 16 << 20;

    #[tokio::test]
    async fn replies_are_read_while_a_request_is_written() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // Reads no further until the client has read replies, to lookups that were given up.
            let _ = stream.read_u8().await.unwrap();
            stream.write_all("0 0\n".repeat(MUCH / 4).as_bytes()).await.unwrap();
            let (reader, mut writer) = stream.into_split();
            let line = BufReader::new(reader).lines().next_line().await.unwrap().unwrap();
            assert!(line.len() >= MUCH);
            // The number is 1, which was read above.
            writer.write_all(b"1 7\n").await.unwrap();
            std::future::pending::<()>().await;
        });
        let value = Client::new(address).get(&"k".repeat(MUCH), Duration::from_secs(10)).await;
        assert_eq!(value, Ok(7));
    }
}
