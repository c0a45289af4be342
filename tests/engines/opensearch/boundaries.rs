//! One rename, ended at each of its requests in turn, before the server saw it and after: all of it is seen, or nothing,
//! whoever looks and however often those die who recover it. The same as over memory in `store::intents`, here by HTTP.

use std::sync::Arc;
use std::time::Duration;

use lockwood::ambient::{Clock, SystemClock};
use lockwood::document::{
    Document, Entry, FileKind, Ino, Key, LockRecord, Name, NodeDelta, SessionId, Timestamp, Version,
};
use lockwood::lock::LockId;
use lockwood::store::cells::{Along, Cell, CellKey, Change};
use lockwood::store::intents::decide::is_open;
use lockwood::store::intents::settle;
use lockwood::store::opensearch::{self, Options};
use lockwood::store::{Commit, CommitError, Range, Scan, Start, Store, StoreError, conformance};

use super::proxy::{End, Proxy};
use crate::common::lockwood;

/// What a rename adds to the counter of its directory.
const RENAMED: i64 = 100;
/// A request that found no server is not worth waiting for: it is dead.
const PATIENCE: Duration = Duration::from_millis(50);
/// Those of a rename that knows nothing. It reads, while one request begins its intent and takes its lock. Then it marks,
/// decides, takes the marks away, and begins the next use of its slot.
const REQUESTS: u64 = 6;
/// Those of one that knows all, in a use that is begun: it takes its lock and marks, decides, takes the marks away, and
/// begins the next.
const REQUESTS_AT_ONCE: u64 = 4;
/// Whoever recovers makes fewer than this.
const REQUESTS_MAX: u64 = 40;

/// The directory of one case: a counter, something that is checked, and the file `a`.
struct Stage<'a> {
    store: &'a Arc<dyn Store>,
    directory: Ino,
    checked: Ino,
    rename: Commit,
}

impl<'a> Stage<'a> {
    /// `maker` makes it, and so knows what is there.
    fn new(
        store: &'a Arc<dyn Store>,
        maker: (&Arc<dyn Store>, SessionId),
        case: u64,
        covered: bool,
        session: SessionId,
    ) -> Self {
        let [directory, checked] = [Ino(1000 + 2 * case), Ino(1001 + 2 * case)];
        let file = || Document::Entry(Entry { ino: Ino(7), kind: FileKind::Regular });
        let [a, b] = ["a", "b"].map(|text| entry(directory, text));
        let setup = Commit::new()
            .put(Key::Node(directory), conformance::directory(0))
            .put(Key::Node(checked), conformance::directory(0))
            .put(a.clone(), file())
            .by(maker.1);
        maker.0.commit(&setup).unwrap();
        let version = |key: Key| store.get(&key).unwrap().unwrap().version;
        let rename = Commit::new()
            .at(Key::Node(checked), version(Key::Node(checked)))
            .at(a.clone(), version(a.clone()))
            .absent(b.clone())
            .delete(a)
            .put(b, file())
            .merge(Key::Node(directory), add(RENAMED))
            .by(session);
        Self { store, directory, checked, rename: Commit { covered, ..rename } }
    }

    /// Uses each slot of the session once, so that its next use is begun; and knows what is checked.
    fn begin_ahead(&self, victim: &Arc<dyn Store>, session: SessionId) {
        let intents = self.store.intents().unwrap();
        let has_begun = |slot| {
            let found = intents.cells().read(&CellKey::Slot(session, slot)).unwrap();
            found.is_some_and(|stored| matches!(&*stored.cell, Cell::Slot(slot) if is_open(slot)))
        };
        let nothing = Commit::new().merge(Key::Node(self.directory), NodeDelta::default()).by(session);
        while !(0..intents.per_session()).all(has_begun) {
            victim.commit(&nothing).unwrap();
        }
        for key in [Key::Node(self.checked), entry(self.directory, "a")] {
            victim.get(&key).unwrap();
        }
    }

    /// Takes a lock by the request that begins the rename's intent.
    fn rename_under_a_lock(&self, store: &Arc<dyn Store>) -> Result<Version, CommitError> {
        let path = format!("/{}", self.directory.0);
        let key = CellKey::Lock(LockId::from_path(path.as_bytes()).unwrap().document_id(512).into());
        let record = LockRecord { path: path.into(), holders: Vec::new(), waiters: Vec::new() };
        let change = Change { key, expected: None, cell: Some(Cell::Lock(record)), awaited: false };
        let granting = Box::new(|along: Option<Along<'_>>| {
            along.is_some_and(|along| along(&[change]).iter().all(Result::is_ok))
        });
        let made = store.commit_once(&self.rename, granting)?;
        made.ok_or(CommitError::Conflict(Key::Volume))
    }

    /// Whether the rename is seen: all or nothing of it.
    fn is_renamed(&self, what: &str) -> bool {
        let range = Range::Entries(self.directory);
        let page = self.store.scan(&Scan { range, start: Start::First, limit: 10 }).unwrap();
        let names: Vec<Key> = page.into_iter().map(|(key, _)| key).collect();
        let [a, b] = ["a", "b"].map(|text| entry(self.directory, text));
        let renamed = names == [b.clone()];
        assert!(renamed || names == [a.clone()], "{names:?}; {what}");
        let there = |key: &Key| self.store.get(key).unwrap().is_some();
        assert_eq!((there(&a), there(&b)), (!renamed, renamed), "{what}");
        assert_eq!(self.counter(), if renamed { RENAMED.cast_unsigned() } else { 0 }, "{what}");
        renamed
    }

    fn counter(&self) -> u64 {
        let (_, node) = self.store.node(self.directory).unwrap().unwrap();
        node.directory().unwrap().children
    }

    /// No mark is left on what the rename touches.
    fn require_clean(&self, what: &str) {
        let cells = self.store.intents().unwrap().cells();
        let keys = [self.directory, self.checked].map(Key::Node).into_iter();
        for key in keys.chain(["a", "b"].map(|text| entry(self.directory, text))) {
            let Some(stored) = cells.read(&CellKey::Document(key.clone())).unwrap() else { continue };
            let Cell::Document(document) = &*stored.cell else { panic!("{stored:?}") };
            assert!(document.mark.is_none() && document.before.is_some(), "{key}: {document:?}; {what}");
        }
    }
}

/// The session of who looks on.
const OWN: SessionId = SessionId(1);

fn entry(directory: Ino, text: &str) -> Key {
    Key::Entry(directory, Name::new(text.as_bytes()).unwrap())
}

fn add(children: i64) -> NodeDelta {
    NodeDelta::entries_changed(children, 0, Timestamp::default())
}

fn open(url: &str, patience: Duration) -> Arc<dyn Store> {
    opensearch::open(url, &Options { password: None, allow_weak: false, patience }).unwrap().0
}

/// What an outcome says: done, not done, or no more than that it is one of them.
fn said(outcome: &Result<Version, CommitError>) -> Option<bool> {
    match outcome {
        Ok(_) => Some(true),
        Err(CommitError::Store(StoreError::Unknown(_))) => None,
        Err(_) => Some(false),
    }
}

/// The server is at `url`, which is `opensearch+http://127.0.0.1:PORT/PREFIX`.
pub(super) fn any_request_may_be_the_last(url: &str) {
    lockwood(["format", url]).ok();
    let (start, prefix) = url.rsplit_once('/').unwrap();
    let (host, port) = start.rsplit_once(':').unwrap();
    let proxies = [(); 2].map(|()| Proxy::before(port.parse().unwrap()));
    let behind = |proxy: &Proxy| open(&format!("{host}:{}/{prefix}", proxy.port), PATIENCE);
    let store = open(url, Duration::from_secs(5));
    store.intents().unwrap().begin(OWN).unwrap();
    let victim = behind(&proxies[0]);
    let rescuer = behind(&proxies[1]);
    let (mut case, mut met, mut rescues) = (0, [0; 3], 0);
    let of_each = [true, false].into_iter().flat_map(|c| [(c, End::Before), (c, End::After)]);
    for (at_once, (covered, end)) in of_each.flat_map(|each| [(false, each), (true, each)]) {
        for request in 0.. {
            assert!(request < REQUESTS_MAX);
            case += 1;
            let session = SessionId(100 + case);
            victim.intents().unwrap().begin(session).unwrap();
            let maker = if at_once { (&victim, session) } else { (&store, OWN) };
            let stage = Stage::new(&store, maker, case, covered, session);
            if at_once {
                stage.begin_ahead(&victim, session);
            }
            proxies[0].end_at(request, end);
            let outcome = stage.rename_under_a_lock(&victim);
            let what =
                format!("at once {at_once}, covered {covered}, ended {end:?} request {request}: {outcome:?}");
            let before = stage.is_renamed(&what);
            rescues += rescue(&stage, before, &rescuer, &proxies[1], session, &what);
            met[said(&outcome).map_or(2, usize::from)] += 1;
            assert_eq!(said(&outcome).unwrap_or(before), before, "{what}");
            stage.require_clean(&what);
            let has_ended = proxies[0].revive();
            // The dead one comes back and can change nothing, and others go on.
            let late = victim.commit(&Commit::new().merge(Key::Node(stage.directory), add(1)).by(session));
            assert!(matches!(late, Err(CommitError::Store(StoreError::Fenced))), "{late:?}; {what}");
            victim.intents().unwrap().end(session);
            let counter = stage.counter();
            store.commit(&Commit::new().merge(Key::Node(stage.directory), add(1)).by(OWN)).unwrap();
            assert_eq!(stage.counter(), counter + 1, "{what}");
            if !has_ended {
                assert_eq!(request, if at_once { REQUESTS_AT_ONCE } else { REQUESTS }, "{what}");
                break; // All requests of a rename were the last one.
            }
        }
    }
    assert!(met.iter().all(|count| *count > 0), "not all outcomes were met: {met:?}");
    assert!(rescues > case, "hardly anybody died while recovering: {rescues} in {case} cases");
}

/// Settles the session; each who does it dies one request later than the one before, before it and after. How many died.
fn rescue(
    stage: &Stage<'_>,
    before: bool,
    rescuer: &Arc<dyn Store>,
    proxy: &Proxy,
    session: SessionId,
    what: &str,
) -> u64 {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let intents = rescuer.intents().unwrap();
    let mut died = 0;
    for request in 0..REQUESTS_MAX {
        for end in [End::Before, End::After] {
            proxy.end_at(request, end);
            let settled = settle(&intents.cells(), &clock, session, intents.per_session());
            let has_ended = proxy.revive();
            assert_eq!(stage.is_renamed(what), before, "recovery changed what was seen; {what}");
            if !has_ended {
                settled.unwrap();
                return died;
            }
            died += 1;
        }
    }
    panic!("recovery does not end; {what}")
}
