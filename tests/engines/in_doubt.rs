//! Renames whose answers do not come in time, and what is under way to the server then arrives late.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::until;
use crate::postgres::server::PostgresServer;
use crate::redis_server::RedisServer;
use crate::search_server::SearchServer;
use crate::two::Two;

/// A way to a server on which everything stands still for a while, and then goes on.
struct Way {
    port: u16,
    stands_still: Arc<AtomicBool>,
}

impl Way {
    fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let way = Self { port, stands_still: Arc::default() };
        let stands_still = Arc::clone(&way.stands_still);
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let ends = [(&client, &server), (&server, &client)];
                for (from, to) in ends.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
                {
                    to.set_nodelay(true).unwrap();
                    let stands_still = Arc::clone(&stands_still);
                    thread::spawn(move || pass(from, to, &stands_still));
                }
            }
        });
        way
    }
}

/// Also what was sent by who has hung up since.
fn pass(mut from: TcpStream, mut to: TcpStream, stands_still: &AtomicBool) {
    let mut buffer = [0; 65536];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        while stands_still.load(SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write); // It has hung up as well.
}

const THREADS: usize = 6;
const ROUNDS_MAX: u32 = 20;

/// The one that there is, once this mount knows which.
fn name_in(directory: &Path) -> &'static str {
    let mut there = [false; 2];
    until("one of the names is there", || {
        there = ["a", "b"].map(|name| directory.join(name).exists());
        there[0] != there[1]
    });
    if there[0] { "a" } else { "b" }
}

/// Renames back and forth until the first error.
fn rename_until_it_fails(directory: &Path, mut now: &'static str) {
    loop {
        let next = if now == "a" { "b" } else { "a" };
        if fs::rename(directory.join(now), directory.join(next)).is_err() {
            return;
        }
        now = next;
    }
}

/// Their locks were kept until the mount ended.
fn doubts_pass(url: String, way: &Way) {
    // The first comes into doubt; the other waits for whatever is slow.
    let Some(two) = Two::mounted_with(url, ["soft=1,lease=60", "lease=60"]) else { return };
    let directories =
        |at: usize| (0..THREADS).map(|n| two.point(at).join(format!("d{n}"))).collect::<Vec<_>>();
    for directory in directories(1) {
        fs::create_dir_all(directory.join("a")).unwrap();
    }
    // None, rarely: where the server is back for some requests and not for others.
    let in_doubt = || {
        let text = fs::read_to_string(two.point(0).join(".lockwood/status")).ok()?;
        Some(serde_json::from_str::<Value>(&text).unwrap()["in_doubt"].as_u64().unwrap_or(0))
    };
    let (mut rounds, mut seen) = (0, 0);
    while seen == 0 {
        rounds += 1;
        assert!(rounds <= ROUNDS_MAX, "nothing was in doubt");
        let names: Vec<_> = directories(0).iter().map(|directory| name_in(directory)).collect();
        thread::scope(|scope| {
            for (directory, now) in directories(0).into_iter().zip(names) {
                scope.spawn(move || rename_until_it_fails(&directory, now));
            }
            thread::sleep(Duration::from_millis(300));
            way.stands_still.store(true, SeqCst);
        });
        seen += in_doubt().unwrap_or(0);
        way.stands_still.store(false, SeqCst);
        until("nothing is in doubt", || in_doubt() == Some(0));
        for directory in directories(1) {
            let now = name_in(&directory);
            let other = if now == "a" { "b" } else { "a" };
            for (from, to) in [(now, other), (other, now)] {
                fs::rename(directory.join(from), directory.join(to)).unwrap();
            }
        }
    }
    eprintln!("{seen} renames were in doubt in {rounds} rounds");
    two.finish();
}

#[test]
fn a_rename_in_doubt_is_decided_when_the_server_is_back_over_redis() {
    let Some(server) = RedisServer::start() else { return };
    let way = Way::to(server.port());
    doubts_pass(format!("redis://127.0.0.1:{}/0?prefix=v", way.port), &way);
}

#[test]
fn a_rename_in_doubt_is_decided_when_the_server_is_back_over_postgresql() {
    let Some(server) = PostgresServer::start() else { return };
    let way = Way::to(server.port());
    doubts_pass(server.url_through(way.port, "volume"), &way);
}

#[test]
fn a_rename_in_doubt_is_decided_when_the_server_is_back_over_opensearch() {
    let Some(server) = SearchServer::start("opensearch") else { return };
    let url = server.url("volume");
    let (before, port) = url.rsplit_once('/').unwrap().0.rsplit_once(':').unwrap();
    let way = Way::to(port.parse().unwrap());
    doubts_pass(format!("{before}:{}/volume", way.port), &way);
}
