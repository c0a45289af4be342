//! Random sequences of operations on a namespace of each lock strategy, and on a reference that is too simple to be wrong:
//! every outcome, and after each sequence every name, link count, mode, attribute and byte, must be the same, also after
//! the mount has ended or died in between.
//!
//! The seed is fixed, so that a run can be had again. `LOCKWOOD_SEED=N` takes another one, `LOCKWOOD_CASES=N` more cases;
//! a failure prints the seed and the shortest sequence that fails.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may stop at what it does not expect")]
#![allow(clippy::disallowed_methods, reason = "a server is waited for in real time")]

#[path = "../common/postgres.rs"]
#[allow(dead_code, reason = "its other users need the rest")]
mod postgres;
#[path = "../engines/redis_server.rs"]
#[allow(dead_code, reason = "its other users need the rest")]
mod redis_server;
mod reference;
#[path = "../engines/search_server.rs"]
mod search_server;
mod steps;
mod subject;

use std::cell::Cell;

use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use lockwood::document::Locking;

use postgres::PostgresServer;
use redis_server::RedisServer;
use reference::{Body, Id, ROOT, Reference};
use search_server::SearchServer;
use steps::{Step, apply, step};
use subject::{Place, Subject};

const SEED: u64 = 20_260_301;
/// Under each strategy.
const CASES: u32 = 100;
const STEPS_MAX: usize = 120;

/// What came about, for the run must have exercised what it claims.
#[derive(Default)]
struct Tally {
    done: Cell<usize>,
    refused: Cell<usize>,
    renamed: Cell<usize>,
}

impl Tally {
    fn count(&self, step: &Step, done: bool) {
        let add = |counter: &Cell<usize>| counter.set(counter.get() + 1);
        add(if done { &self.done } else { &self.refused });
        if done && matches!(step, Step::Rename(..)) {
            add(&self.renamed);
        }
    }
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Holds one directory and everything below it against the reference.
fn compare(reference: &Reference, subject: &Subject, directory: Id) -> Result<(), String> {
    let namespace = subject.namespace();
    let mut listed = Vec::new();
    namespace
        .list(subject.inos[directory], 0, 3, |entry| {
            listed.push((String::from_utf8_lossy(&entry.name).into_owned(), entry.ino));
            true
        })
        .map_err(|e| format!("listing {directory}: {e}"))?;
    listed.drain(..2);
    listed.sort();
    let entries = reference.entries(directory).map_err(|r| format!("{r:?}"))?;
    let expected: Vec<_> = entries.iter().map(|(name, id)| (name.clone(), subject.inos[*id])).collect();
    if listed != expected {
        return Err(format!("directory {directory} lists {listed:?}, and it should be {expected:?}"));
    }
    compare_node(reference, subject, directory)?;
    for &child in entries.values() {
        if reference.is_directory(child) {
            compare(reference, subject, child)?;
        } else {
            compare_node(reference, subject, child)?;
        }
    }
    Ok(())
}

fn compare_node(reference: &Reference, subject: &Subject, id: Id) -> Result<(), String> {
    let namespace = subject.namespace();
    let (ino, expected) = (subject.inos[id], &reference.nodes[id]);
    let node = namespace.attributes(ino).map_err(|e| format!("node {id}: {e}"))?;
    let nlink = reference.nlink(id);
    if (node.nlink as usize, node.mode) != (nlink, expected.mode) {
        let found = (node.nlink, node.mode);
        return Err(format!("node {id} has {found:?} and should have {:?}", (nlink, expected.mode)));
    }
    let same = match &expected.body {
        Body::File(bytes) => {
            node.size() == bytes.len() as u64
                && namespace.read(ino, 0, 4096).map_err(|e| format!("reading {id}: {e}"))? == *bytes
        }
        Body::Symlink(target) => namespace.readlink(ino).is_ok_and(|found| found == *target),
        Body::Directory(entries) => node.size() == entries.len() as u64,
        Body::Whiteout => matches!(node.body, lockwood::document::Body::CharDevice { rdev: 0 }),
    };
    if !same {
        return Err(format!("node {id} should hold {:?}, and is {:?}", expected.body, *node));
    }
    let names =
        namespace.list_attributes(lockwood::namespace::Caller::ROOT, ino).map_err(|e| e.to_string())?;
    let mut names: Vec<&[u8]> = names.split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
    names.sort_unstable();
    if names != expected.xattrs.keys().map(String::as_bytes).collect::<Vec<_>>() {
        return Err(format!("node {id} has other attributes: {names:?}"));
    }
    for (name, value) in &expected.xattrs {
        if namespace.get_attribute(ino, name.as_bytes()).is_ok_and(|found| *found != **value) {
            return Err(format!("attribute {name} of node {id} has another value"));
        }
    }
    Ok(())
}

fn run(
    locking: Locking,
    place: Place,
    url: Option<String>,
    steps: &[Step],
    tally: &Tally,
) -> Result<(), String> {
    let mut reference = Reference::new();
    let mut subject = Subject::new(locking, place, url);
    for (at, step) in steps.iter().enumerate() {
        let (expected, found) = apply(step, &mut reference, &mut subject);
        if expected != found {
            return Err(format!("step {at}, {step:?}: {found:?}, and it should be {expected:?}"));
        }
        tally.count(step, found.is_ok());
        if reference.nodes.len() != subject.inos.len() {
            return Err(format!("step {at}, {step:?}: the two sides made different things"));
        }
    }
    compare(&reference, &subject, ROOT)?;
    for id in 0..reference.nodes.len() {
        // Files without a name that are open are in no directory, and still there.
        if !reference.nodes[id].gone && !reference.is_directory(id) {
            compare_node(&reference, &subject, id)?;
        }
    }
    let report = subject.check();
    if !report.is_clean() {
        return Err(format!("under the mount: {:#?}", report.violations));
    }
    reference.remount();
    subject.remount(steps.len().is_multiple_of(2));
    compare(&reference, &subject, ROOT)?;
    let report = subject.close_and_check();
    if !report.is_clean() || report.counts.garbage > 0 {
        return Err(format!("after the mount: {:#?} {:#?}", report.violations, report.garbage));
    }
    Ok(())
}

fn compare_random_sequences(locking: Locking, place: Place) {
    compare_over(locking, place, None, 1);
}

/// In memory; or in volumes of a server, each under a URL that `volumes` makes of a name. What is so many times slower than
/// memory gets so many times fewer sequences.
fn compare_over(locking: Locking, place: Place, volumes: Option<&dyn Fn(&str) -> String>, slowness: u32) {
    let seed = from_env("LOCKWOOD_SEED", SEED);
    let cases = u32::try_from(from_env("LOCKWOOD_CASES", CASES.into())).unwrap();
    let cases = if slowness > 1 { cases / slowness + 1 } else { cases };
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 4000, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    // Each strategy and place gets sequences of its own.
    bytes[8] = locking as u8;
    bytes[9] = place as u8;
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let (tally, count) = (Tally::default(), Cell::new(0));
    let outcome = runner.run(&vec(step(), 1..STEPS_MAX), |steps| {
        count.set(count.get() + 1);
        let url = volumes.map(|url_of| url_of(&format!("model{}", count.get())));
        run(locking, place, url, &steps, &tally).map_err(TestCaseError::fail)
    });
    if let Err(failure) = outcome {
        panic!("{locking}, {place:?}, LOCKWOOD_SEED={seed} LOCKWOOD_CASES={cases}: {failure}");
    }
    let [done, refused, renamed] = [&tally.done, &tally.refused, &tally.renamed].map(Cell::get);
    println!(
        "{locking}, {place:?}, seed {seed}: {done} operations done ({renamed} of them renames), {refused} refused"
    );
    assert!(done > refused / 4 && renamed > cases as usize, "the sequences exercise too little");
}

#[test]
fn under_tree_the_namespace_does_what_the_reference_does() {
    compare_random_sequences(Locking::Tree, Place::Backing);
}

#[test]
fn under_document_the_namespace_does_what_the_reference_does() {
    compare_random_sequences(Locking::Document, Place::Backing);
}

#[test]
fn under_global_the_namespace_does_what_the_reference_does() {
    compare_random_sequences(Locking::Global, Place::Backing);
}

#[test]
fn under_version_the_namespace_does_what_the_reference_does() {
    compare_random_sequences(Locking::Version, Place::Backing);
}

#[test]
fn over_chunks_the_namespace_does_what_the_reference_does() {
    compare_random_sequences(Locking::Tree, Place::Chunks);
}

/// Each object is synced, so there are fewer sequences.
#[test]
fn over_objects_the_namespace_does_what_the_reference_does() {
    compare_over(Locking::Tree, Place::Objects, None, 4);
}

#[test]
fn over_redis_the_namespace_does_what_the_reference_does() {
    let Some(server) = RedisServer::start() else { return };
    compare_over(Locking::Tree, Place::Chunks, Some(&|volume| server.url(volume)), 4);
}

#[test]
fn over_postgres_the_namespace_does_what_the_reference_does() {
    let Some(server) = PostgresServer::start() else { return };
    compare_over(Locking::Tree, Place::Chunks, Some(&|volume| server.url(volume)), 4);
}

#[test]
fn over_opensearch_the_namespace_does_what_the_reference_does() {
    let Some(server) = SearchServer::start("opensearch") else { return };
    compare_over(Locking::Tree, Place::Chunks, Some(&|volume| server.url(volume)), 33);
}
