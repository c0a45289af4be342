//! Advisory locks between hosts: namespaces of their own over one store, as mounts of several hosts are; and between the
//! mounts of one process that owns its store.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use super::away::Engine;
use super::world::{PATIENCE, ROOT, World, name, refused};
use crate::ambient;
use crate::check::{self, Inputs, Mode, Report};
use crate::content::{Chunks, Contents};
use crate::document::{
    AdvisoryFamily, AdvisoryLock, AdvisoryRecord, Document, Ino, Key, LockMode, Locking, OFFSET_MAX,
    SessionId, Volume,
};
use crate::lock::advisory::AdvisoryError;
use crate::namespace::ops::make::{Make, What};
use crate::namespace::{AdvisoryCall, Caller, Namespace, NamespaceError as E, Result, SessionInfo, Settings};
use crate::store::cached::CachedStore;
use crate::store::{Commit, Reader as _, Store, StoreError};
use AdvisoryFamily::{Fcntl, Flock};
use LockMode::{Exclusive, Shared};

/// Long enough for a machine that is busy, short enough to be waited for.
const LEASE: Duration = Duration::from_secs(4);

/// A volume that two hosts have mounted, and a file that both have open.
pub(super) struct Hosts {
    pub(super) engine: Arc<Engine>,
    pub(super) ada: Arc<Namespace>,
    pub(super) grace: Arc<Namespace>,
    pub(super) file: Ino,
}

fn info(host: &str) -> SessionInfo {
    SessionInfo {
        host: host.to_owned(),
        boot_id: host.to_owned(),
        pid: std::process::id(),
        mount_point: "/mnt".to_owned(),
    }
}

fn join(engine: &Arc<Engine>, host: &str, cached: bool) -> Arc<Namespace> {
    let store: Arc<dyn Store> = if cached {
        let engine = Arc::clone(engine) as Arc<dyn Store>;
        Arc::new(CachedStore::new(engine, 1 << 20, Duration::from_secs(3600)).unwrap())
    } else {
        Arc::clone(engine) as _
    };
    let contents = Chunks::new(Arc::clone(&store));
    let settings = Settings { lease: LEASE, ..Settings::default() };
    Arc::new(Namespace::join(store, contents, settings, info(host)).unwrap())
}

impl Hosts {
    fn new() -> Self {
        Self::over(Engine::default(), false)
    }

    pub(super) fn over(engine: Engine, cached: bool) -> Self {
        let created = ambient::wall_clock().into();
        let volume = Volume::empty("0".repeat(32), Locking::Tree, 64, created);
        engine.commit(&Commit::format(volume, 0, 0)).unwrap();
        let engine = Arc::new(engine);
        let (ada, grace) = (join(&engine, "ada", cached), join(&engine, "grace", cached));
        let make = Make {
            parent: ROOT,
            name: &name("f"),
            what: What::Regular,
            mode: 0o644,
            umask: 0,
            caller: Caller::ROOT,
        };
        let (file, _) = ada.create(&make).unwrap();
        grace.open(file).unwrap();
        Self { engine, ada, grace, file }
    }

    /// A lock of a whole file, through the open file `handle`, by a process or open file of that number.
    fn call(&self, family: AdvisoryFamily, handle: u64) -> AdvisoryCall {
        AdvisoryCall { ino: self.file, handle, owner: handle, family, start: 0, end: OFFSET_MAX, pid: 11 }
    }

    fn locks(&self) -> Vec<AdvisoryLock> {
        match self.engine.get(&Key::Advisory(self.file)).unwrap() {
            None => Vec::new(),
            Some(stored) => match &*stored.document {
                Document::Advisory(record) => record.locks.clone(),
                other => panic!("{other:?}"),
            },
        }
    }

    fn check(&self) -> Report {
        let contents = Contents::from(Chunks::new(Arc::clone(&self.engine) as _));
        let inputs = Inputs {
            documents: &*self.engine,
            live: Some(&*self.engine),
            backing: Some(&contents),
            mode: Mode::Shared { sessions: &[] },
        };
        check::run(&inputs, &mut |_| {}).unwrap()
    }

    /// The end of every test: nothing is left but a sound volume, which nobody has.
    pub(super) fn finish(self) {
        for host in [&self.ada, &self.grace] {
            host.end().unwrap();
        }
        assert_eq!(self.locks(), []);
        let report = self.check();
        assert!(report.is_clean(), "{:#?}", report.violations);
        self.let_go();
    }

    /// Both hosts are gone, whether they have left or not.
    pub(super) fn let_go(self) {
        let Self { engine, ada, grace, .. } = self;
        drop((ada, grace));
        assert_eq!(Arc::strong_count(&engine), 1, "a host that is gone has the store");
    }
}

fn take(host: &Namespace, call: &AdvisoryCall, mode: LockMode) -> Result<()> {
    host.lock_advisory(call, mode, None)
}

fn wait(host: &Namespace, call: &AdvisoryCall, mode: LockMode) -> Result<()> {
    let begun = ambient::monotonic();
    host.lock_advisory(call, mode, Some(&|| begun.elapsed() > PATIENCE))
}

/// Runs `release` while grace waits for the file, and returns how long after it she was granted the lock, or refused.
fn while_grace_waits(hosts: &Hosts, release: impl FnOnce()) -> (Duration, Result<()>) {
    while_grace_waits_for(Duration::from_millis(150), hosts, release)
}

fn while_grace_waits_for(
    wait_first: Duration,
    hosts: &Hosts,
    release: impl FnOnce(),
) -> (Duration, Result<()>) {
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let outcome = wait(&hosts.grace, &hosts.call(Flock, 2), Exclusive);
            (ambient::monotonic(), outcome)
        });
        std::thread::sleep(wait_first);
        assert!(!waits.is_finished());
        let released: Instant = ambient::monotonic();
        release();
        let (ended, outcome) = waits.join().unwrap();
        (ended.saturating_duration_since(released), outcome)
    })
}

#[test]
fn hosts_exclude_each_other_and_share_what_is_shared() {
    let hosts = Hosts::new();
    let Hosts { ada, grace, .. } = &hosts;
    for family in [Flock, Fcntl] {
        let (hers, theirs) = (hosts.call(family, 1), hosts.call(family, 2));
        take(ada, &hers, Exclusive).unwrap();
        match take(grace, &theirs, Shared) {
            Err(E::Advisory(AdvisoryError::Held(by))) => assert_eq!((&*by.host, by.pid), ("ada", 11)),
            other => panic!("{other:?}"),
        }
        // Another process of the same host, and the same one once more.
        refused!(take(ada, &hosts.call(family, 3), Shared), E::Advisory(AdvisoryError::Held(_)));
        take(ada, &hers, Exclusive).unwrap();
        take(ada, &hers, Shared).unwrap();
        take(grace, &theirs, Shared).unwrap();
        refused!(take(grace, &theirs, Exclusive), E::Advisory(AdvisoryError::Held(_)));
        ada.unlock_advisory(&hers).unwrap();
        take(grace, &theirs, Exclusive).unwrap();
        grace.unlock_advisory(&theirs).unwrap();
        assert_eq!(hosts.locks(), []);
    }
    // The families say nothing to each other.
    take(ada, &hosts.call(Flock, 1), Exclusive).unwrap();
    take(grace, &hosts.call(Fcntl, 2), Exclusive).unwrap();
    assert!(hosts.check().is_clean());
    hosts.finish();
}

#[test]
fn ranges_exclude_where_they_overlap_and_who_asks_is_told_by_whom() {
    let hosts = Hosts::new();
    let range = |handle, start, end| AdvisoryCall { start, end, ..hosts.call(Fcntl, handle) };
    take(&hosts.ada, &range(1, 0, 9), Exclusive).unwrap();
    take(&hosts.grace, &range(2, 10, 19), Exclusive).unwrap();
    refused!(take(&hosts.grace, &range(2, 9, 9), Shared), E::Advisory(AdvisoryError::Held(_)));
    let found = hosts.grace.test_advisory(&range(2, 5, 30), Shared).unwrap().unwrap();
    // The number of a process says nothing on another host.
    assert_eq!((found.start, found.end, found.mode, found.pid), (0, 9, Exclusive, 0));
    let found = hosts.ada.test_advisory(&range(3, 5, 30), Shared).unwrap().unwrap();
    assert_eq!((found.start, found.pid), (0, 11));
    assert_eq!(hosts.ada.test_advisory(&range(1, 0, 9), Exclusive).unwrap(), None);
    hosts.ada.unlock_advisory(&range(1, 3, 5)).unwrap();
    take(&hosts.grace, &range(2, 4, 4), Exclusive).unwrap();
    refused!(take(&hosts.grace, &range(2, 4, 6), Exclusive), E::Advisory(AdvisoryError::Held(_)));
    assert_eq!(hosts.locks().len(), 4);
    hosts.finish();
}

#[test]
fn who_waits_is_woken_when_another_host_unlocks() {
    let hosts = Hosts::new();
    let hers = hosts.call(Flock, 1);
    take(&hosts.ada, &hers, Exclusive).unwrap();
    // Just after a look of her own, of which the next is 1.6 s away.
    let wait_first = Duration::from_millis(1600);
    let (after, outcome) =
        while_grace_waits_for(wait_first, &hosts, || hosts.ada.unlock_advisory(&hers).unwrap());
    outcome.unwrap();
    assert!(after < Duration::from_millis(800), "{after:?}");
    refused!(take(&hosts.ada, &hers, Shared), E::Advisory(AdvisoryError::Held(_)));
    hosts.finish();
}

#[test]
fn who_waits_finds_a_free_lock_also_where_notices_are_lost() {
    let hosts = Hosts::over(Engine::silent(), false);
    let hers = hosts.call(Flock, 1);
    take(&hosts.ada, &hers, Exclusive).unwrap();
    let (after, outcome) = while_grace_waits(&hosts, || hosts.ada.unlock_advisory(&hers).unwrap());
    outcome.unwrap();
    assert!(after < Duration::from_secs(4), "{after:?}");
    hosts.finish();
}

#[test]
fn who_waits_can_give_up_and_then_has_nothing() {
    let hosts = Hosts::new();
    take(&hosts.ada, &hosts.call(Flock, 1), Exclusive).unwrap();
    let begun = ambient::monotonic();
    let outcome = hosts.grace.lock_advisory(
        &hosts.call(Flock, 2),
        Exclusive,
        Some(&|| begun.elapsed() > Duration::from_millis(50)),
    );
    refused!(outcome, E::Advisory(AdvisoryError::Interrupted));
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(hosts.locks().len(), 1);
    hosts.finish();
}

#[test]
fn two_who_share_by_flock_and_both_want_it_alone_do_not_wait_for_each_other_for_ever() {
    let hosts = Hosts::new();
    take(&hosts.ada, &hosts.call(Flock, 1), Shared).unwrap();
    take(&hosts.grace, &hosts.call(Flock, 2), Shared).unwrap();
    let (_, outcome) = while_grace_waits(&hosts, || {
        // She has given her share up to wait, so this one need not.
        wait(&hosts.ada, &hosts.call(Flock, 1), Exclusive).unwrap();
        hosts.ada.unlock_advisory(&hosts.call(Flock, 1)).unwrap();
    });
    outcome.unwrap();
    hosts.finish();
}

#[test]
fn a_close_gives_up_the_locks_of_the_process_and_the_end_of_the_open_file_the_others() {
    let hosts = Hosts::new();
    let Hosts { ada, file, .. } = &hosts;
    let through =
        |owner, handle, family, at| AdvisoryCall { owner, start: at, end: at, ..hosts.call(family, handle) };
    // Process 50 locks through the open files 1 and 2; the open file 2 has a lock of its own, and one of flock.
    for call in [through(50, 1, Fcntl, 1), through(50, 2, Fcntl, 5), through(9002, 2, Fcntl, 3)] {
        take(ada, &call, Exclusive).unwrap();
    }
    take(ada, &through(9002, 2, Flock, 0), Exclusive).unwrap();
    ada.flush_advisory(*file, 51).unwrap();
    assert_eq!(hosts.locks().len(), 4);
    ada.flush_advisory(*file, 50).unwrap();
    assert_eq!(hosts.locks().iter().map(|lock| lock.start).collect::<Vec<_>>(), [3, 0]);
    ada.release_advisory(*file, 1).unwrap();
    assert_eq!(hosts.locks().len(), 2);
    ada.release_advisory(*file, 2).unwrap();
    assert_eq!(hosts.locks(), []);
    hosts.finish();
}

#[test]
fn a_lock_and_an_unlock_that_nobody_disputes_are_one_commit_each_and_a_close_without_locks_is_none() {
    let hosts = Hosts::new();
    let counted = |work: &dyn Fn()| {
        let before = hosts.engine.counters();
        work();
        let after = hosts.engine.counters();
        [after.gets - before.gets, after.commits - before.commits, after.conflicts - before.conflicts]
    };
    let (hers, theirs) = (hosts.call(Flock, 1), hosts.call(Flock, 2));
    // Heartbeats are counted with the rest, but come seldom: the least of some tries is the cost.
    let least = |work: &dyn Fn()| (0..5).map(|_| counted(work)).min_by_key(|cost| cost.iter().sum::<u64>());
    let lock_unlock = least(&|| {
        take(&hosts.ada, &hers, Exclusive).unwrap();
        hosts.ada.unlock_advisory(&hers).unwrap();
    });
    assert_eq!(lock_unlock, Some([0, 2, 0]));
    let close = least(&|| {
        hosts.ada.flush_advisory(hosts.file, 1).unwrap();
        hosts.ada.release_advisory(hosts.file, 1).unwrap();
    });
    assert_eq!(close, Some([0, 0, 0]));
    take(&hosts.ada, &hers, Exclusive).unwrap();
    let refusal = least(&|| refused!(take(&hosts.grace, &theirs, Shared), E::Advisory(_)));
    assert_eq!(refusal, Some([1, 0, 0]), "the first guess costs a conflict, later ones know better");
    take(&hosts.ada, &hers, Shared).unwrap();
    let beside = least(&|| {
        take(&hosts.grace, &theirs, Shared).unwrap();
        hosts.grace.unlock_advisory(&theirs).unwrap();
    });
    assert_eq!(beside, Some([0, 2, 0]));
    hosts.finish();
}

#[test]
fn a_fenced_session_loses_its_locks_to_who_waits_and_is_granted_none() {
    let hosts = Hosts::new();
    let hers = hosts.call(Flock, 1);
    take(&hosts.ada, &hers, Exclusive).unwrap();
    let (_, outcome) = while_grace_waits(&hosts, || {
        hosts.grace.fence_other(hosts.ada.session(), &"by the test".into()).unwrap();
    });
    outcome.unwrap();
    let held: Vec<_> = hosts.locks().iter().map(|lock| lock.session).collect();
    assert_eq!(held, [hosts.grace.session()]);
    let range = AdvisoryCall { end: 3, ..hosts.call(Fcntl, 1) };
    refused!(take(&hosts.ada, &range, Shared), E::Store(StoreError::Fenced));
    refused!(wait(&hosts.ada, &hers, Shared), E::Store(StoreError::Fenced));
    assert!(hosts.check().is_clean());
    hosts.finish();
}

#[test]
fn a_host_that_falls_silent_loses_its_locks_after_its_lease() {
    let Hosts { engine, ada, grace, file } = Hosts::new();
    let call = |owner| AdvisoryCall {
        ino: file,
        handle: owner,
        owner,
        family: Flock,
        start: 0,
        end: OFFSET_MAX,
        pid: 11,
    };
    take(&ada, &call(1), Exclusive).unwrap();
    drop(ada); // Its heart stops, and nobody says a word.
    let begun = ambient::monotonic();
    wait(&grace, &call(2), Exclusive).unwrap();
    assert!(begun.elapsed() < 3 * LEASE, "{:?}", begun.elapsed());
    grace.end().unwrap();
    assert!(engine.get(&Key::Advisory(file)).unwrap().is_none());
}

#[test]
fn the_end_of_a_session_gives_up_its_locks_and_ends_its_waits() {
    let hosts = Hosts::new();
    take(&hosts.ada, &hosts.call(Flock, 1), Exclusive).unwrap();
    let (after, outcome) = while_grace_waits(&hosts, || hosts.grace.close_advisory());
    refused!(outcome, E::Advisory(AdvisoryError::Closed));
    assert!(after < Duration::from_secs(2), "{after:?}");
    refused!(take(&hosts.grace, &hosts.call(Fcntl, 2), Shared), E::Advisory(AdvisoryError::Closed));
    hosts.ada.end().unwrap();
    assert_eq!(hosts.locks(), []);
    hosts.grace.end().unwrap();
}

#[test]
fn what_cannot_be_given_up_while_the_store_is_away_is_given_up_later() {
    let hosts = Hosts::new();
    let Hosts { engine, ada, grace, file } = &hosts;
    for handle in [1, 2] {
        take(ada, &AdvisoryCall { start: handle, end: handle, ..hosts.call(Fcntl, handle) }, Exclusive)
            .unwrap();
    }
    assert!(!ada.owes_advisory());
    engine.away.store(true, SeqCst);
    assert!(ada.flush_advisory(*file, 1).is_err() && ada.flush_advisory(*file, 2).is_err());
    assert!(ada.owes_advisory() && ada.settle_advisory().is_err());
    engine.away.store(false, SeqCst);
    assert_eq!(hosts.locks().len(), 2);
    // The process locks anew: what it has closed goes, what it takes stays.
    let anew = AdvisoryCall { start: 7, end: 7, ..hosts.call(Fcntl, 1) };
    take(ada, &anew, Exclusive).unwrap();
    assert_eq!(hosts.locks().iter().map(|lock| lock.start).collect::<Vec<_>>(), [7]);
    ada.settle_advisory().unwrap();
    assert!(!ada.owes_advisory());
    refused!(take(grace, &AdvisoryCall { start: 7, ..hosts.call(Fcntl, 2) }, Shared), E::Advisory(_));
    hosts.finish();
}

#[test]
fn who_is_granted_a_lock_sees_what_was_written_under_it_before() {
    let hosts = Hosts::over(Engine::silent(), true);
    let Hosts { ada, grace, file, .. } = &hosts;
    let counter = |host: &Namespace, owner| {
        let call = hosts.call(Fcntl, owner);
        wait(host, &call, Exclusive).unwrap();
        let size = u32::try_from(host.attributes(*file).unwrap().size()).unwrap();
        let text = String::from_utf8(host.read(*file, 0, size).unwrap()).unwrap();
        let next = text.trim().parse::<u64>().unwrap_or(0) + 1;
        host.write(*file, 0, format!("{next:200}").as_bytes(), false).unwrap();
        host.unlock_advisory(&call).unwrap();
        next
    };
    for round in 0..10 {
        assert_eq!((counter(ada, 1), counter(grace, 2)), (2 * round + 1, 2 * round + 2));
    }
    hosts.finish();
}

#[test]
fn a_lock_of_a_session_that_does_not_exist_is_a_violation_and_removed_by_who_waits_for_it() {
    let hosts = Hosts::new();
    let key = Key::Advisory(hosts.file);
    take(&hosts.ada, &hosts.call(Flock, 1), Exclusive).unwrap();
    let mut locks = hosts.locks();
    locks[0].session = SessionId(99);
    let left = Document::Advisory(AdvisoryRecord { locks });
    hosts.engine.commit(&Commit::new().put(key, left)).unwrap();
    let report = hosts.check();
    assert_eq!(report.by_rule.into_keys().collect::<Vec<_>>(), [check::Rule::AdvisorySession]);
    wait(&hosts.grace, &hosts.call(Flock, 2), Exclusive).unwrap();
    hosts.finish();
}

#[test]
fn the_mounts_of_a_process_that_owns_its_store_exclude_each_other_too() {
    let world = World::new();
    let file = world.file(ROOT, "f");
    let other = world.beside(info("ada")).unwrap();
    world.open(file).unwrap();
    other.open(file).unwrap();
    let call = |owner| AdvisoryCall {
        ino: file,
        handle: owner,
        owner,
        family: Flock,
        start: 0,
        end: OFFSET_MAX,
        pid: 5,
    };
    // The kernel of each mount has its own numbers.
    take(&world, &call(1), Exclusive).unwrap();
    refused!(take(&other, &call(1), Shared), E::Advisory(AdvisoryError::Held(_)));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| wait(&other, &call(1), Exclusive));
        std::thread::sleep(Duration::from_millis(50));
        world.release_advisory(file, 1).unwrap();
        waits.join().unwrap().unwrap();
    });
    refused!(take(&world, &call(1), Shared), E::Advisory(AdvisoryError::Held(_)));
    other.end().unwrap();
    take(&world, &call(1), Shared).unwrap();
    world.release_advisory(file, 1).unwrap();
    world.close_file(file).unwrap();
    world.finish();
}

#[test]
fn a_fenced_mount_of_such_a_process_loses_its_locks_to_the_others() {
    let world = World::new();
    let file = world.file(ROOT, "f");
    let other = world.beside(info("ada")).unwrap();
    world.open(file).unwrap();
    other.open(file).unwrap();
    let call =
        AdvisoryCall { ino: file, handle: 1, owner: 1, family: Fcntl, start: 0, end: OFFSET_MAX, pid: 5 };
    take(&other, &call, Exclusive).unwrap();
    other.fence(&"by the test".into()).unwrap();
    take(&world, &call, Exclusive).unwrap();
    refused!(take(&other, &AdvisoryCall { owner: 2, ..call }, Shared), E::Advisory(AdvisoryError::Closed));
    other.end().unwrap();
    world.release_advisory(file, 1).unwrap();
    world.close_file(file).unwrap();
    world.finish();
}

#[test]
fn a_host_that_is_gone_without_leaving_lets_go_of_the_store() {
    for remembers in [false, true] {
        Hosts::over(Engine::default(), remembers).let_go();
    }
}
