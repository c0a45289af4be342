//! Stands between a store and its server, and does to one request what networks do.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::ambient;

/// What happens to the next request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It arrives, and the answer does not.
    LoseAnswer,
    /// It does not arrive.
    LoseRequest,
    /// It arrives when [`Proxy::release`] lets it; the sender loses its connection at once.
    Hold,
    /// The same, and no other request gets through until [`Proxy::set_up`].
    HoldAndDown,
}

#[derive(Default)]
struct Shared {
    port: u16,
    fault: Mutex<Option<Fault>>,
    held: Mutex<Vec<(TcpStream, Vec<u8>)>>,
    /// While it is set every request is lost.
    down: AtomicBool,
    /// How many requests, or pipelines of them, have passed.
    requests: AtomicUsize,
}

/// The proxy. Its threads end with the connections.
pub(super) struct Proxy {
    shared: Arc<Shared>,
    pub(super) port: u16,
}

impl Proxy {
    pub(super) fn new(port: u16) -> Self {
        let shared = Arc::new(Shared { port, ..Shared::default() });
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let all = Arc::clone(&shared);
        ambient::spawn("proxy", move || {
            for client in listener.incoming() {
                let (client, shared) = (client.unwrap(), Arc::clone(&all));
                ambient::spawn("proxied", move || shared.serve(&client)).unwrap();
            }
        })
        .unwrap();
        Self { shared, port }
    }

    /// Does this to the next request.
    pub(super) fn arm(&self, fault: Fault) {
        *self.shared.fault.lock() = Some(fault);
    }

    /// Whether the fault has happened.
    pub(super) fn has_struck(&self) -> bool {
        self.shared.fault.lock().is_none()
    }

    pub(super) fn set_up(&self) {
        self.shared.down.store(false, Ordering::SeqCst);
    }

    /// Sends what was held, and returns what the server answered.
    pub(super) fn release(&self) -> Vec<String> {
        let held = std::mem::take(&mut *self.shared.held.lock());
        let answer = |(mut server, request): (TcpStream, Vec<u8>)| {
            server.write_all(&request).unwrap();
            let mut answer = [0; 4096];
            let n = server.read(&mut answer).unwrap();
            String::from_utf8_lossy(&answer[..n]).into_owned()
        };
        held.into_iter().map(answer).collect()
    }

    /// How many round trips there have been.
    pub(super) fn round_trips(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, client: &TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.port)) else { return };
        server.set_nodelay(true).unwrap();
        client.set_nodelay(true).unwrap();
        // Set as long as the client waits for an answer: what it sends meanwhile belongs to the same request.
        let waits = Arc::new(AtomicBool::new(false));
        let mute = Arc::new(AtomicBool::new(false));
        let (back, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let (waits_too, mute_too) = (Arc::clone(&waits), Arc::clone(&mute));
        ambient::spawn("answers", move || {
            copy(&back, &to, |_| {
                waits_too.store(false, Ordering::SeqCst);
                !mute_too.load(Ordering::SeqCst)
            });
        })
        .unwrap();
        copy(client, &server, |bytes| {
            if !waits.swap(true, Ordering::SeqCst) {
                self.requests.fetch_add(1, Ordering::SeqCst);
            }
            if self.down.load(Ordering::SeqCst) {
                return false;
            }
            match self.fault.lock().take() {
                None => true,
                Some(Fault::LoseAnswer) => {
                    mute.store(true, Ordering::SeqCst);
                    true
                }
                Some(Fault::LoseRequest) => false,
                Some(fault @ (Fault::Hold | Fault::HoldAndDown)) => {
                    self.down.store(fault == Fault::HoldAndDown, Ordering::SeqCst);
                    // Of a socket of its own: the client's one is closed with this connection.
                    let own = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
                    self.held.lock().push((own, bytes.to_vec()));
                    false
                }
            }
        });
    }
}

/// Passes bytes on while `pass` agrees; closes both ends then.
fn copy(mut from: &TcpStream, mut to: &TcpStream, mut pass: impl FnMut(&[u8]) -> bool) {
    let mut bytes = vec![0; 1 << 20];
    while let Ok(n) = from.read(&mut bytes) {
        if n == 0 || !pass(&bytes[..n]) || to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
