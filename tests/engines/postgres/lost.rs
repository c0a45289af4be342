//! Lost answers: connections that are cut at any byte or fall silent, and a server that crashes, while commits are made.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use lockwood::document::{Document, Ino, Key, Orphan, SessionId};
use lockwood::store::{Commit, CommitError, Durability, Reader, Store, StoreError};

use super::server::PostgresServer;
use super::{empty, format, open};
use crate::common::until;

/// Between client and server: delays what passes, cuts a connection when so many bytes have come from the server, or keeps
/// all answers back from the connections that there are, without ending them.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    cut: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
    made: Arc<AtomicU64>,
    silent_below: Arc<AtomicU64>,
}

impl Proxy {
    pub(crate) fn before(server: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cut, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (made, silent_below) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let proxy = Self {
            port,
            cut: Arc::clone(&cut),
            cuts: Arc::clone(&cuts),
            made: Arc::clone(&made),
            silent_below: Arc::clone(&silent_below),
        };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let number = made.fetch_add(1, Ordering::SeqCst);
                let Ok(client) = client else { continue };
                let Ok(behind) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                client.set_nodelay(true).unwrap();
                behind.set_nodelay(true).unwrap();
                let bytes = 600 + number * 7919 % 6000;
                let (to, from) = (behind.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || pump(from, to, delay, || false));
                let (cut, cuts) = (Arc::clone(&cut), Arc::clone(&cuts));
                let silent_below = Arc::clone(&silent_below);
                std::thread::spawn(move || {
                    let mut passed = 0;
                    pump(behind, client, delay, move || {
                        passed += 1;
                        while number < silent_below.load(Ordering::SeqCst) {
                            std::thread::park();
                        }
                        let now = cut.load(Ordering::Relaxed) && passed * 150 > bytes;
                        cuts.fetch_add(u64::from(now), Ordering::Relaxed);
                        now
                    });
                });
            }
        });
        proxy
    }

    /// What was made until now hears nothing more; what is sent still arrives.
    pub(crate) fn silence(&self) {
        self.silent_below.store(self.made.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, delay: Duration, mut cut: impl FnMut() -> bool) {
    let mut buffer = [0; 65536];
    while let Ok(read) = from.read(&mut buffer) {
        // What the server has answered is lost, and with it whether it was done.
        if read == 0 || cut() {
            break;
        }
        std::thread::sleep(delay);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Threads that each make documents which must not be there yet: a commit that is made twice, or said to have failed and was
/// made, is found out by its check, and one that is said to be made and was not is missing in the end.
fn make(store: &dyn Store, threads: u64, each: u64, mut meanwhile: impl FnMut(&AtomicU64)) {
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let done = &done;
            scope.spawn(move || {
                for i in 0..each {
                    let key = Key::Orphan(Ino(1 + thread * each + i));
                    let document = Document::Orphan(Orphan { session: SessionId(thread) });
                    match store.commit(&Commit::new().absent(key.clone()).put(key.clone(), document)) {
                        Ok(version) => assert_eq!(store.get(&key).unwrap().unwrap().version, version),
                        Err(CommitError::Conflict(_)) => panic!("{key} was made by a commit that was not"),
                        Err(other) => panic!("{other}"),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        meanwhile(&done);
    });
    let keys: Vec<Key> = (1..=threads * each).map(|ino| Key::Orphan(Ino(ino))).collect();
    assert!(store.get_many(&keys).unwrap().iter().all(Option::is_some));
}

#[test]
fn lost_answers_are_found_out() {
    let Some(server) = PostgresServer::start() else { return };
    let proxy = Proxy::before(server.port(), Duration::ZERO);
    let store = empty(&server.url_through(proxy.port, "lost"));
    proxy.cut.store(true, Ordering::Relaxed);
    make(&store, 4, 100, |_| {});
    proxy.cut.store(false, Ordering::Relaxed);
    let closed: u64 =
        server.psql("lockwood", "SELECT count(*) FROM lost.outcome WHERE closed").parse().unwrap();
    let made = server.psql("lockwood", "SELECT count(*) FROM lost.outcome WHERE closed AND number > 0");
    eprintln!(
        "{} connections cut, {closed} commits in doubt found out ({made} connections had made some)",
        proxy.cuts.load(Ordering::Relaxed)
    );
    assert!(closed > 5, "no commit was in doubt");
}

/// Whoever takes locks looks for himself.
#[test]
fn a_delayed_commit_whose_answer_was_lost_says_so() {
    let Some(server) = PostgresServer::start() else { return };
    let proxy = Proxy::before(server.port(), Duration::ZERO);
    let store = empty(&server.url_through(proxy.port, "delayed"));
    proxy.cut.store(true, Ordering::Relaxed);
    let (mut made, mut unknown) = (Vec::new(), Vec::new());
    for ino in 1..=400 {
        let key = Key::Orphan(Ino(ino));
        let document = Document::Orphan(Orphan { session: SessionId(1) });
        let commit = Commit::new().absent(key.clone()).put(key.clone(), document);
        match store.commit(&Commit { durability: Durability::Delayed, ..commit }) {
            Ok(version) => made.push((key, version)),
            Err(CommitError::Store(StoreError::Unknown(_))) => unknown.push(key),
            Err(other) => panic!("{other}"),
        }
    }
    proxy.cut.store(false, Ordering::Relaxed);
    let has = |key: &Key| store.get(key).unwrap().map(|found| found.version);
    assert!(made.iter().all(|(key, version)| has(key) == Some(*version)));
    let of_unknown = unknown.iter().filter(|key| has(key).is_some()).count();
    eprintln!("{} made, {} not known, of which {of_unknown} were made", made.len(), unknown.len());
    assert!(of_unknown > 5, "no answer was lost");
}

/// Reads at once, so that there are as many idle connections behind them.
pub(super) fn open_connections(store: &dyn Store, count: usize) {
    let (store, barrier) = (&store, Barrier::new(count));
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                barrier.wait();
                for ino in 0..50 {
                    store.get(&Key::Orphan(Ino(ino))).unwrap();
                }
            });
        }
    });
}

/// One of them is waited for, which takes 10 seconds, and not one after the other.
#[test]
fn connections_that_fell_silent_are_given_up_together() {
    let Some(server) = PostgresServer::start() else { return };
    let proxy = Proxy::before(server.port(), Duration::from_millis(1));
    let store = empty(&server.url_through(proxy.port, "silent"));
    open_connections(&store, 6);
    let connections = "SELECT count(*) FROM silent.outcome";
    assert!(server.psql("lockwood", connections).parse::<u32>().unwrap() >= 4);
    proxy.silence();
    let begun = Instant::now();
    assert!(store.get(&Key::Volume).unwrap().is_none());
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let key = Key::Orphan(Ino(1));
    let document = Document::Orphan(Orphan { session: SessionId(1) });
    store.commit(&Commit::new().absent(key.clone()).put(key, document)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn a_crash_of_the_server_is_survived() {
    let Some(mut server) = PostgresServer::start() else { return };
    drop(format(&server.url("crash")));
    let store = open(&server.url("crash"));
    make(&store, 4, 150, |done| {
        for crash in [true, false, true] {
            let enough = (done.load(Ordering::Relaxed) + 50).min(590);
            until("some are made", || done.load(Ordering::Relaxed) >= enough);
            server.stop(crash);
            server.run();
        }
    });
}
