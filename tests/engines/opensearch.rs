//! The engine over OpenSearch and Elasticsearch. A server takes long to start, so few tests have one, and do all with it.

mod boundaries;
mod proxy;

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use lockwood::content::CHUNK_BYTES;
use lockwood::document::{
    Chunk, Document, Entry, FileKind, Ino, Key, Kind, LockRecord, Marked, Name, SessionId, Slot, SlotState,
    Stored, Version,
};
use lockwood::store::cells::{Cell, CellKey, Listed};
use lockwood::store::opensearch::{self, Options};
use lockwood::store::{
    Capabilities, Commit, CommitError, Intents, Range, Reader, Scan, ScanItem, Start, Store, StoreCounters,
    StoreError, conformance,
};

use self::proxy::Proxy;
use crate::common::interrupted::renames_end;
use crate::common::{lockwood, until};
use crate::moved::a_look_finds_what_was_known_for_long;
use crate::recovery::{Lonely, break_by_url, recover_by_url};
use crate::search_server::SearchServer;
use crate::two::Two;

/// A store without any document, as one session changes it.
struct AsSession {
    store: Arc<dyn Store>,
    session: SessionId,
}

impl AsSession {
    fn empty(url: &str) -> Self {
        let options = Options { password: None, allow_weak: false, patience: Duration::from_secs(5) };
        let store = opensearch::format(url, &options, &Commit::new()).unwrap();
        let session = SessionId(1);
        store.intents().unwrap().begin(session).unwrap();
        Self { store, session }
    }
}

impl Reader for AsSession {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.store.get(key)
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Stored>>, StoreError> {
        self.store.get_many(keys)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.store.scan(scan)
    }

    fn scan_keys(&self, scan: &Scan) -> Result<Vec<Key>, StoreError> {
        self.store.scan_keys(scan)
    }
}

impl Store for AsSession {
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        match commit.session {
            Some(_) => self.store.commit(commit),
            None => self.store.commit(&commit.clone().by(self.session)),
        }
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.store.sync()
    }

    fn stop(&self, cause: &str) {
        self.store.stop(cause);
    }

    fn intents(&self) -> Option<&dyn Intents> {
        self.store.intents()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        self.store.snapshot()
    }

    fn counters(&self) -> StoreCounters {
        self.store.counters()
    }
}

#[test]
fn it_does_what_every_engine_must() {
    let Some(server) = SearchServer::start("opensearch") else { return };
    conforms(&server);
    keys_are_listed_without_bytes(&server.url("keys"));
    only_a_full_disk_is_no_space(&server.url("blocked"));
    documents_of_others_are_passed_over(&server.url("others"));
}

fn conforms(server: &SearchServer) {
    let prefixes = AtomicU32::new(0);
    conformance::run(&|| {
        let prefix = format!("volume-{}", prefixes.fetch_add(1, Ordering::Relaxed));
        Box::new(AsSession::empty(&server.url(&prefix))) as Box<dyn Store>
    });
}

/// A file of 5 MiB is walked by its keys, chunk by chunk, each time that a part of it is copied or a hole is looked for.
fn keys_are_listed_without_bytes(url: &str) {
    const CHUNKS: u64 = 40;
    let (start, prefix) = url.rsplit_once('/').unwrap();
    let (host, port) = start.rsplit_once(':').unwrap();
    let proxy = Proxy::before(port.parse().unwrap());
    let store = AsSession::empty(&format!("{host}:{}/{prefix}", proxy.port));
    let chunk = |index| Key::Chunk(Ino(7), index);
    let bytes: Arc<[u8]> = vec![0xff; CHUNK_BYTES as usize].into();
    let commit = (0..CHUNKS).fold(Commit::new(), |commit, index| {
        commit.put(chunk(index), Document::Chunk(Chunk { bytes: Arc::clone(&bytes) }))
    });
    store.commit(&commit).unwrap();
    let scan = Scan { range: Range::Chunks(Ino(7)), start: Start::First, limit: 100 };
    proxy.answered();
    let page = store.scan(&scan).unwrap();
    let with_bytes = proxy.answered();
    assert!(with_bytes > CHUNKS * CHUNK_BYTES, "{with_bytes}");
    let keys = store.scan_keys(&scan).unwrap();
    let without = proxy.answered();
    assert_eq!(keys, page.into_iter().map(|(key, _)| key).collect::<Vec<_>>());
    assert!((1..CHUNKS * 1024).contains(&without), "{without} of {with_bytes}");
    eprintln!("{CHUNKS} chunks of {CHUNK_BYTES}: {with_bytes} bytes with their documents, {without} without");
}

/// The server sets the one block by itself when its disk is nearly full, and people set the other.
fn only_a_full_disk_is_no_space(url: &str) {
    let (_, at) = url.split_once('+').unwrap();
    let store = AsSession::empty(url);
    let block = |block: &str, set: &str| {
        curl(&[
            "-XPUT",
            &format!("{at}-node/_settings"),
            "-d",
            &format!(r#"{{"index.blocks.{block}": {set}}}"#),
        ]);
    };
    let change = || store.commit(&Commit::new().put(Key::Node(Ino(7)), conformance::directory(0)));
    block("read_only_allow_delete", "true");
    let full = change();
    assert!(matches!(&full, Err(CommitError::Store(StoreError::NoSpace))), "{full:?}");
    block("read_only_allow_delete", "null");
    block("write", "true");
    let refused = change().unwrap_err().to_string();
    assert!(refused.contains("FORBIDDEN/8/index write (api)"), "{refused}");
    block("write", "null");
    change().unwrap();
}

/// Somebody has put documents into the indices, more than one page of them and before all that is Lockwood's, and a copy of
/// an entry under an id of his own.
fn documents_of_others_are_passed_over(url: &str) {
    const OTHERS: u32 = 1100;
    let (_, at) = url.split_once('+').unwrap();
    let store = AsSession::empty(url);
    let intents = store.intents().unwrap();
    let entry = Key::Entry(Ino::ROOT, Name::new(b"a").unwrap());
    let file = Document::Entry(Entry { ino: Ino(2), kind: FileKind::Regular });
    store.commit(&Commit::new().put(entry.clone(), file)).unwrap();
    let lock = CellKey::Lock("%2Fa".into());
    let record = LockRecord { path: b"/a".into(), holders: Vec::new(), waiters: Vec::new() };
    intents.cells().cas(&lock, None, Some(Cell::Lock(record))).unwrap();
    for index in ["entry", "lock", "session", "intent"] {
        let lines = (0..OTHERS).map(|i| format!("{{\"index\":{{}}}}\n{{\"key\":\"!{i}\"}}\n"));
        let bulk = format!("{at}-{index}/_bulk");
        curl(&["-XPOST", &bulk, "-o", "/dev/null", "--data-binary", &lines.collect::<String>()]);
    }
    let key: String = entry.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    for (id, key) in [("copy", &*key), ("note", "0000000000000001a note")] {
        let copy = format!(r#"{{"key": "{key}", "version": 1, "entry": {{"ino": 3, "kind": "regular"}}}}"#);
        curl(&["-XPUT", &format!("{at}-entry/_doc/{id}"), "-d", &copy]);
    }
    for range in [Range::All(Kind::Entry), Range::Entries(Ino::ROOT)] {
        let page = store.scan(&Scan { range, start: Start::First, limit: 10 }).unwrap();
        let found: Vec<_> =
            page.into_iter().map(|(key, stored)| (key, stored.map(|stored| stored.document))).collect();
        assert!(matches!(&found[..], [(key, Ok(_))] if *key == entry), "{range:?}: {found:?}");
    }
    let sessions = Scan { range: Range::All(Kind::Session), start: Start::First, limit: 10 };
    assert!(store.scan(&sessions).unwrap().is_empty());
    let listed = |what| intents.cells().list(what).unwrap();
    assert!(matches!(&listed(Listed::Locks)[..], [(key, Ok(_))] if *key == lock));
    let slots = listed(Listed::Slots);
    assert_eq!(slots.len(), usize::from(intents.per_session()));
    assert!(slots.iter().all(|(_, slot)| slot.is_ok()));
}

/// What programs meet: two mounts of one volume, and one that nobody else recovers.
#[test]
fn mounts_share_a_volume_and_clean_up_after_each_other() {
    let Some(server) = SearchServer::start("opensearch") else { return };
    mounts_share_volumes(&server);
}

#[test]
#[ignore = "takes two minutes, and shows what the tests of OpenSearch show, but for a few differences; scripts/test --long"]
fn elasticsearch_does_what_opensearch_does() {
    let Some(server) = SearchServer::start("elasticsearch") else { return };
    conforms(&server);
    mounts_share_volumes(&server);
}

fn mounts_share_volumes(server: &SearchServer) {
    if let Some(two) = Two::mounted(server.url("renames")) {
        renames_of_two_hosts_lose_nothing(&two);
        renames_end(&two.point(0), &two.point(1), Duration::from_secs(5));
        a_look_finds_what_was_known_for_long(&two);
        a_change_under_way_is_a_file(&server.url("renames"), &two);
        two.finish();
        nothing_is_left(&server.url("renames"));
    }
    // A server that is busy may take seconds for an answer.
    let patient = Duration::from_secs(10);
    for (prefix, test) in [("recovered", recover_by_url as fn(Lonely)), ("broken", break_by_url)] {
        if let Some(lonely) = Lonely::mounted_with(server.url(prefix), patient, patient) {
            test(lonely);
            nothing_is_left(&server.url(prefix));
        }
    }
    what_someone_has_changed_is_refused(&server.url("changed"));
}

#[test]
#[ignore = "takes five minutes: a life that ends costs its patience; scripts/test --long"]
fn any_request_of_a_rename_may_be_the_last() {
    let Some(server) = SearchServer::start("opensearch") else { return };
    boundaries::any_request_may_be_the_last(&server.url("boundaries"));
}

/// Of a volume that nobody has mounted: no lock, no session and no intent, those of commits without a session included.
fn nothing_is_left(url: &str) {
    let (_, at) = url.split_once('+').unwrap();
    for index in ["lock", "session", "intent"] {
        let ask =
            |arguments: &[&str]| Command::new("curl").arg("-sSf").args(arguments).output().unwrap().stdout;
        ask(&["-XPOST", &format!("{at}-{index}/_refresh")]);
        let found: serde_json::Value =
            serde_json::from_slice(&ask(&[&format!("{at}-{index}/_search")])).unwrap();
        assert_eq!(found["hits"]["total"]["value"], 0, "{index}: {found:#}");
    }
}

/// One that somebody has begun and does not go on with.
fn a_change_under_way_is_a_file(url: &str, two: &Two) {
    let options = Options { password: None, allow_weak: false, patience: Duration::from_secs(5) };
    let (store, _) = opensearch::open(url, &options).unwrap();
    let cells = store.intents().unwrap().cells();
    let marked = vec![Marked { key: Key::Node(Ino(1)), version: None }];
    let slot = Slot { number: 1, state: SlotState::Pending, marked };
    let key = CellKey::Slot(SessionId(0x77), 3);
    let shown = two.point(1).join(".lockwood/intents");
    until("nothing is under way", || fs::read_dir(&shown).unwrap().next().is_none());
    let begun = cells.cas(&key, None, Some(Cell::Slot(slot))).unwrap();
    let names: Vec<_> = fs::read_dir(&shown).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["0000000000000077:3"]);
    let text = fs::read_to_string(shown.join(&names[0])).unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&found["use"], &found["marked"]), (&1.into(), &serde_json::json!(["node:1"])));
    cells.cas(&key, Some(begun), None).unwrap();
    assert!(!shown.join(&names[0]).exists() && fs::read_dir(&shown).unwrap().next().is_none());
}

/// What people do to a cluster by hand.
fn curl(arguments: &[&str]) {
    let json = ["-sSf", "-H", "Content-Type: application/json"];
    let done = Command::new("curl").args(json).args(arguments).output().unwrap();
    assert!(done.status.success(), "curl {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Indices on which the promises do not hold any more: nobody is let in, and is told which one and why.
fn what_someone_has_changed_is_refused(url: &str) {
    let (_, at) = url.split_once('+').unwrap();
    let open = |allow_weak| {
        let patience = Duration::from_secs(5);
        let options = Options { password: None, allow_weak, patience };
        opensearch::open(url, &options).map(drop).map_err(|error| error.to_string())
    };
    lockwood(["format", url]).ok();
    open(false).unwrap();
    let settings = format!("{at}-node/_settings");
    curl(&["-XPUT", &settings, "-d", r#"{"index.translog.durability": "async"}"#]);
    let weak = open(false).unwrap_err();
    assert!(weak.contains("-node may forget") && weak.contains("-o allow-weak"), "{weak}");
    open(true).unwrap();
    curl(&["-XDELETE", &format!("{at}-lock")]);
    let missing = open(true).unwrap_err();
    assert!(missing.contains("-lock is not as lockwood has made it: it is missing"), "{missing}");
    curl(&["-XPUT", &format!("{at}-lock"), "-d", r#"{"settings": {"number_of_shards": 2}}"#]);
    let split = open(true).unwrap_err();
    assert!(split.contains("number_of_shards is 2, and must be 1"), "{split}");
    curl(&["-XDELETE", &format!("{at}-lock")]);
    curl(&["-XPUT", &format!("{at}-lock")]);
    let unmapped = open(true).unwrap_err();
    assert!(unmapped.contains("field key is mapped as nothing"), "{unmapped}");
}

/// The book's example, again and again: one host renames a directory, the other a file deep inside it.
fn renames_of_two_hosts_lose_nothing(two: &Two) {
    let [one, other] = [two.point(0), two.point(1)];
    let text = "more than nothing";
    fs::create_dir_all(one.join("clinton/projects/elasticsearch")).unwrap();
    fs::write(one.join("clinton/projects/elasticsearch/README.txt"), text).unwrap();
    // What the other host remembers may be old for as long.
    until("the other host sees it", || other.join("clinton/projects/elasticsearch/README.txt").exists());
    for round in 0..20 {
        let (from, to) = if round % 2 == 0 { ("clinton", "bill") } else { ("bill", "clinton") };
        let (name, next) = (format!("README.{round}"), format!("README.{}", round + 1));
        let names = if round == 0 { ("README.txt".to_owned(), next) } else { (name, next) };
        thread::scope(|scope| {
            scope.spawn(|| fs::rename(one.join(from), one.join(to)).unwrap());
            // Through whichever name it meets: the directory moves meanwhile.
            scope.spawn(|| {
                until("the file is renamed", || {
                    [from, to].iter().any(|top| {
                        let dir = other.join(top).join("projects/elasticsearch");
                        fs::rename(dir.join(&names.0), dir.join(&names.1)).is_ok()
                    })
                });
            });
        });
        let kept = one.join(to).join("projects/elasticsearch").join(&names.1);
        until("the first host sees it", || fs::read_to_string(&kept).is_ok_and(|found| found == text));
    }
    two.clean();
}
