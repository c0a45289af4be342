//! Fences: once the change of a session's state has returned, nothing of that session takes effect.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockwood::document::{Document, Ino, Key, Orphan, Session, SessionId, SessionState, Timestamp, Version};
use lockwood::store::{Commit, CommitError, Reader, Store, StoreError};

use super::server::PostgresServer;
use super::{empty, open};
use crate::common::until;

pub(super) fn session(id: SessionId, heartbeat: u64, state: SessionState) -> Document {
    Document::Session(Session {
        id,
        host: "host".to_owned(),
        boot_id: "boot".to_owned(),
        pid: 1,
        mount_point: "/mnt".to_owned(),
        started: Timestamp::default(),
        lease_ms: 10_000,
        heartbeat,
        epoch: 1,
        intents: 0,
        operations_below: 0,
        state,
        locks: Some("redis://a:6379/0?prefix=p".to_owned()),
    })
}

/// Waits until it is so, for 10 seconds at most; the caller judges what has come of it.
fn wait_for(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nothing_lands_after_the_fence() {
    let Some(server) = PostgresServer::start() else { return };
    let store = empty(&server.url("fence"));
    let fencer = open_without_volume(&server.url("fence"));
    let (next, landed) = (AtomicU64::new(1), AtomicU64::new(0));
    let mut refused = 0;
    for round in 0..25 {
        let id = SessionId(100 + round);
        store.commit(&Commit::new().put(Key::Session(id), session(id, 0, SessionState::Live))).unwrap();
        let fenced = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let work = || {
                let mut made = 0;
                loop {
                    // Begun after the fence had returned: it must be refused.
                    let late = fenced.load(Ordering::SeqCst);
                    let orphan = Key::Orphan(Ino(next.fetch_add(1, Ordering::Relaxed)));
                    let document = Document::Orphan(Orphan { session: id });
                    match store.commit(&Commit::new().absent(orphan.clone()).put(orphan, document).by(id)) {
                        Ok(_) => assert!(!late, "a commit of a fenced session was made"),
                        Err(CommitError::Store(StoreError::Fenced)) => return made,
                        Err(other) => panic!("{other}"),
                    }
                    made += 1;
                    landed.fetch_add(1, Ordering::Relaxed);
                }
            };
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            // The heart beats meanwhile, through a version check, until it finds the fence.
            let heart = scope.spawn(|| {
                for beat in 1.. {
                    let version = store.get(&Key::Session(id)).unwrap().unwrap().version;
                    let document = session(id, beat, SessionState::Live);
                    let put =
                        Commit::new().at(Key::Session(id), version).put(Key::Session(id), document).by(id);
                    if store.commit(&put).is_err() {
                        return beat;
                    }
                }
                0_u64
            });
            std::thread::sleep(Duration::from_millis(20 + round % 5 * 10));
            wait_for(|| landed.load(Ordering::Relaxed) > 5 * (round + 1));
            loop {
                let stored = fencer.get(&Key::Session(id)).unwrap().unwrap();
                let fence = session(id, 0, SessionState::Fenced);
                match fencer
                    .commit(&Commit::new().at(Key::Session(id), stored.version).put(Key::Session(id), fence))
                {
                    Ok(_) => break,
                    Err(CommitError::Conflict(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            fenced.store(true, Ordering::SeqCst);
            // Committed before the fence returned, whoever was told so later.
            let count = || {
                server.psql("lockwood", &format!("SELECT count(*) FROM fence.orphan WHERE session = '{id}'"))
            };
            let at_the_fence = count();
            let made: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
            assert!(heart.join().unwrap() > 0);
            assert_eq!(count(), at_the_fence, "something landed behind the fence");
            assert_eq!(at_the_fence, made.to_string());
            refused += 4;
        });
    }
    let landed = landed.into_inner();
    eprintln!("{landed} commits landed before their fence, {refused} were refused behind it");
    assert!(landed > 100);
}

fn open_without_volume(url: &str) -> lockwood::store::postgres::PostgresStore {
    // `open` wants a volume; a store is as empty as it was made.
    empty(url)
}

/// A commit that names the session and waits for something else holds up no heartbeat, and a fence until it is over.
#[test]
fn a_heartbeat_does_not_wait_for_commits() {
    let Some(server) = PostgresServer::start() else { return };
    drop(super::format(&server.url("beat")));
    let store = open(&server.url("beat"));
    let id = SessionId(7);
    let key = Key::Session(id);
    let mut version =
        store.commit(&Commit::new().put(key.clone(), session(id, 0, SessionState::Live))).unwrap();
    let asleep = |what: &str| {
        let of_sleepers = "FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        server.psql("lockwood", &format!("SELECT {what} {of_sleepers}"))
    };
    std::thread::scope(|scope| {
        // A transaction of somebody's that names the session and does not end, until it is told to.
        let commit = scope.spawn(|| {
            let sql = format!(
                "DO $$ BEGIN PERFORM 1 FROM beat.session WHERE id = '{id}' FOR KEY SHARE; \
                 BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END $$"
            );
            server.psql("lockwood", &sql);
        });
        until("it has the session and sleeps", || asleep("count(*)") == "1");
        for beat in 1..20 {
            let put = Commit::new()
                .at(key.clone(), version)
                .put(key.clone(), session(id, beat, SessionState::Live));
            version = store.commit(&put).unwrap();
        }
        assert!(!commit.is_finished(), "heartbeats waited for a commit");
        let fence =
            Commit::new().at(key.clone(), version).put(key.clone(), session(id, 0, SessionState::Fenced));
        let store = &store;
        let fencing = scope.spawn(move || store.commit(&fence));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!fencing.is_finished(), "the fence did not wait");
        assert_eq!(asleep("pg_cancel_backend(pid)"), "t");
        fencing.join().unwrap().unwrap();
    });
}

/// Commits that overlap without end, each of which holds the row of the session for 3 to 6 ms.
#[test]
fn a_busy_session_is_fenced_soon() {
    let Some(server) = PostgresServer::start() else { return };
    let store = empty(&server.url("busy"));
    server.psql(
        "lockwood",
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_sleep(0.003 + 0.003 * random()); RETURN NEW; END'; \
         CREATE TRIGGER slow BEFORE UPDATE ON busy.outcome FOR EACH ROW EXECUTE FUNCTION slow()",
    );
    let fencer = open_without_volume(&server.url("busy"));
    let id = SessionId(7);
    let key = Key::Session(id);
    let version = store.commit(&Commit::new().put(key.clone(), session(id, 0, SessionState::Live))).unwrap();
    let fence = |at| Commit::new().at(key.clone(), at).put(key.clone(), session(id, 0, SessionState::Fenced));
    let landed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for worker in 0..12 {
            let (store, landed) = (&store, &landed);
            scope.spawn(move || {
                let document = Document::Orphan(Orphan { session: id });
                let put = Commit::new().put(Key::Orphan(Ino(worker)), document).by(id);
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_secs(30) {
                    match store.commit(&put) {
                        Ok(_) => landed.fetch_add(1, Ordering::Relaxed),
                        Err(CommitError::Store(StoreError::Fenced)) => return,
                        Err(other) => panic!("{other}"),
                    };
                }
            });
        }
        wait_for(|| landed.load(Ordering::Relaxed) > 12);
        // One that is refused holds nobody up any longer.
        let refused = fencer.commit(&fence(Version(version.0 + 1_000_000)));
        assert!(matches!(refused, Err(CommitError::Conflict(_))), "{refused:?}");
        let before = landed.load(Ordering::Relaxed);
        assert!(before > 12, "{before}");
        wait_for(|| landed.load(Ordering::Relaxed) > before + 12);
        assert!(landed.load(Ordering::Relaxed) > before + 12);
        let begun = Instant::now();
        fencer.commit(&fence(version)).unwrap();
        let took = begun.elapsed();
        eprintln!("fenced in {took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
    });
}
