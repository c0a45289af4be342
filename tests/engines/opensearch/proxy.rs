//! Stands between a store and its server, and ends the store's life at one of its requests: before that has reached the
//! server, or when the server has answered it and nobody has heard.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;

/// Where a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server never sees the request.
    Before,
    /// The server has answered it.
    After,
}

#[derive(Default)]
struct Life {
    requests: u64,
    end: Option<(u64, End)>,
    is_over: bool,
}

/// A way to a server that ends when it is told to.
pub(super) struct Proxy {
    pub(super) port: u16,
    life: Arc<Mutex<Life>>,
    /// How many bytes the server has answered with.
    answered: Arc<AtomicU64>,
}

impl Proxy {
    /// Before the server at this port of this host.
    pub(super) fn before(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (life, answered) = Default::default();
        let proxy = Self { port: listener.local_addr().unwrap().port(), life, answered };
        let (life, answered) = (Arc::clone(&proxy.life), Arc::clone(&proxy.answered));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, life, answered) = (client.unwrap(), Arc::clone(&life), Arc::clone(&answered));
                // Whoever is cut off loses the connection; that is all that a thread has to say.
                thread::spawn(move || serve(client, server, &life, &answered));
            }
        });
        proxy
    }

    /// Counts from here on, and ends at the request with this number, counted from 0.
    pub(super) fn end_at(&self, request: u64, end: End) {
        *self.life.lock() = Life { end: Some((request, end)), ..Life::default() };
    }

    /// Lets all pass again. Whether it had ended.
    pub(super) fn revive(&self) -> bool {
        std::mem::take(&mut *self.life.lock()).is_over
    }

    /// With how many bytes the server has answered since this was asked last.
    pub(super) fn answered(&self) -> u64 {
        self.answered.swap(0, Ordering::Relaxed)
    }
}

fn serve(client: TcpStream, server: u16, life: &Mutex<Life>, answered: &AtomicU64) -> Option<()> {
    client.set_nodelay(true).ok()?;
    let behind = TcpStream::connect(("127.0.0.1", server)).ok()?;
    behind.set_nodelay(true).ok()?;
    let mut requests = BufReader::new(client.try_clone().ok()?);
    let mut answers = BufReader::new(behind.try_clone().ok()?);
    let (mut client, mut behind) = (client, behind);
    loop {
        let request = message(&mut requests, false)?;
        let ends = {
            let mut life = life.lock();
            if life.is_over {
                return None;
            }
            let ends = life.end.filter(|(at, _)| *at == life.requests).map(|(_, end)| end);
            life.requests += 1;
            life.is_over = ends.is_some();
            ends
        };
        if ends == Some(End::Before) {
            return None;
        }
        behind.write_all(&request).ok()?;
        let answer = message(&mut answers, request.starts_with(b"HEAD "))?;
        answered.fetch_add(answer.len() as u64, Ordering::Relaxed);
        if ends.is_some() {
            return None;
        }
        client.write_all(&answer).ok()?;
    }
}

/// One message of HTTP with its body. None at the end of the connection.
fn message(from: &mut BufReader<TcpStream>, is_head_alone: bool) -> Option<Vec<u8>> {
    let (mut bytes, mut length) = (Vec::new(), 0);
    loop {
        let begin = bytes.len();
        if from.read_until(b'\n', &mut bytes).ok()? == 0 {
            return None;
        }
        let line = String::from_utf8_lossy(&bytes[begin..]).to_ascii_lowercase();
        assert!(!line.starts_with("transfer-encoding"), "{line}");
        if let Some(text) = line.strip_prefix("content-length:") {
            length = text.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    if !is_head_alone {
        let begin = bytes.len();
        bytes.resize(begin + length, 0);
        from.read_exact(&mut bytes[begin..]).ok()?;
    }
    Some(bytes)
}
