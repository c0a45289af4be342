//! All mounts of a volume keep their locks at the same place, or are refused.

use std::time::Duration;

use lockwood::document::{Kind, LockMode};
use lockwood::lock::LockError;
use lockwood::lock::redlock::{Settings, lock_documents};
use lockwood::namespace::NamespaceError;
use lockwood::store::{Range, Reader, Scan, Start};

use super::volume::{Host, format};
use super::{Fleet, Party, VOLUME, WAIT, servers};

fn sessions(store: &dyn Reader) -> usize {
    store.scan(&Scan { range: Range::All(Kind::Session), start: Start::First, limit: 100 }).unwrap().len()
}

#[test]
fn a_mount_that_names_other_servers_is_refused() {
    let (Some(fleet), Some((_server, url))) = (Fleet::start(3), format()) else { return };
    let list = |which: &[usize]| Some(servers(&fleet.list_of(which), Duration::ZERO));
    let join = |name, locks| Host::join(&url, name, WAIT, locks);
    let first = join("ada", list(&[0, 1])).unwrap();
    for locks in [None, list(&[0]), list(&[0, 1, 2]), list(&[0, 2])] {
        let Err(refused) = join("grace", locks) else { panic!("two places for the locks of one volume") };
        assert!(matches!(refused, NamespaceError::OtherLocks { .. }), "{refused}");
        let (text, session) = (refused.to_string(), first.namespace.session().to_string());
        let port = format!("127.0.0.1:{}", fleet.0[0].port());
        for part in [&*session, "on ada, mounted at /ada", &port, "must name the same lock servers"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(sessions(&*first.store), 1, "a session was left");
    }
    // The order is nothing.
    let second = join("grace", list(&[1, 0])).unwrap();
    first.namespace.end().unwrap();
    second.namespace.end().unwrap();
    // When nobody has it mounted, the place may change.
    join("ada", None).unwrap().namespace.end().unwrap();
    let moved = join("ada", list(&[2])).unwrap();
    assert!(matches!(join("grace", None), Err(NamespaceError::OtherLocks { .. })));
    moved.namespace.end().unwrap();
}

#[test]
fn a_user_with_the_rights_that_the_docs_list_can_lock_look_and_release() {
    let Some(fleet) = Fleet::start(1) else { return };
    let rights = include_str!("../../../docs/redlock.md")
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER locks "))
        .unwrap()
        .replace("PASSWORD", "s3cret");
    let words: Vec<&str> = ["ACL", "SETUSER", "locks"].into_iter().chain(rights.split_whitespace()).collect();
    fleet.ask::<()>(0, &words);
    let port = fleet.0[0].port();
    let servers =
        servers(&format!("redis://locks:s3cret@127.0.0.1:{port}/0?prefix=lockwood"), Duration::ZERO);
    let party = Party::with(servers.clone(), 1, Settings { ttl: WAIT, extend: true });
    let held = party.try_hold("/a/b", LockMode::Exclusive).unwrap();
    assert!(matches!(party.try_hold("/a/b", LockMode::Shared), Err(LockError::WouldBlock(_))));
    assert!(!lock_documents(&servers, VOLUME).unwrap().is_empty());
    drop(held);
    drop(party.wait_for("/a/b", LockMode::Shared).unwrap());
}

#[test]
fn of_two_that_begin_at_once_and_differ_at_most_one_is_let_in() {
    let (Some(fleet), Some((_server, url))) = (Fleet::start(2), format()) else { return };
    for _ in 0..5 {
        let joined = std::thread::scope(|scope| {
            let join = |name, at: usize| {
                let servers = servers(&fleet.list_of(&[at]), Duration::ZERO);
                let url = &url;
                move || Host::join(url, name, WAIT, Some(servers))
            };
            let (one, other) = (scope.spawn(join("ada", 0)), scope.spawn(join("grace", 1)));
            [one.join().unwrap(), other.join().unwrap()]
        });
        assert!(joined.iter().flatten().count() <= 1, "both were let in");
        for host in joined.into_iter().flatten() {
            host.namespace.end().unwrap();
        }
    }
}

#[test]
fn a_mount_without_a_majority_is_refused() {
    let (Some(mut fleet), Some((_server, url))) = (Fleet::start(3), format()) else { return };
    fleet.0[0].kill();
    fleet.0[2].kill();
    let refused = Host::join(&url, "ada", WAIT, Some(servers(&fleet.list(), Duration::ZERO))).map(drop);
    let Err(NamespaceError::Lock(LockError::NoMajority { answered: 1, causes, .. })) = refused else {
        panic!("{refused:?}")
    };
    assert!(causes.contains(&fleet.0[2].port().to_string()), "{causes}");
    fleet.0[0].restart();
    let host = Host::join(&url, "ada", WAIT, Some(servers(&fleet.list(), Duration::ZERO))).unwrap();
    assert_eq!(sessions(&*host.store), 1);
    host.namespace.end().unwrap();
}

/// Who counts servers that were started again for nothing does so for as long as a lock of his own lasts.
#[test]
fn a_mount_with_another_lease_is_refused() {
    let (Some(fleet), Some((_server, url))) = (Fleet::start(1), format()) else { return };
    let join = |name, lease, servers_too: bool| {
        Host::join(&url, name, lease, servers_too.then(|| servers(&fleet.list(), Duration::ZERO)))
    };
    let first = join("ada", WAIT, true).unwrap();
    let Err(refused) = join("grace", 2 * WAIT, true) else { panic!("its locks last longer") };
    assert!(refused.to_string().contains("the same lease"), "{refused}");
    first.namespace.end().unwrap();
    // Locks that are with the tree end with their session.
    let (first, second) = (join("ada", WAIT, false).unwrap(), join("grace", 2 * WAIT, false).unwrap());
    first.namespace.end().unwrap();
    second.namespace.end().unwrap();
}
