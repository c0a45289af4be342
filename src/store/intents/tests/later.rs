//! Commits that return before they are cleaned up.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{add, clock, counter, entry, file, is_marked, node, session};
use crate::ambient;
use crate::document::SessionId;
use crate::later::{Background, Later};
use crate::store::cells::memory::MemoryCells;
use crate::store::conformance::{self, directory};
use crate::store::intents::settle;
use crate::store::{Commit, Reader, Store};

/// Work that is done when the test says so.
#[derive(Default)]
pub(super) struct Queue(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

impl Later for Queue {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        self.0.lock().push(work);
    }
}

impl Queue {
    pub(super) fn work_off(&self) {
        let works = std::mem::take(&mut *self.0.lock());
        works.into_iter().for_each(|work| work());
    }
}

#[test]
fn conforms() {
    for slots in [1, 8] {
        let later: Arc<dyn Later> = Arc::new(Background::new("clean-up", 4).unwrap());
        let store = || session(&Arc::new(MemoryCells::new()), &clock(), 1, slots);
        conformance::run(&|| Box::new(store().cleaning_up(Arc::clone(&later))));
    }
}

#[test]
fn what_is_decided_is_seen_by_all_before_it_is_cleaned_up() {
    let (cells, queue) = (Arc::new(MemoryCells::new()), Arc::new(Queue::default()));
    let ours = session(&cells, &clock(), 1, 2).cleaning_up(queue.clone());
    let theirs = session(&cells, &clock(), 2, 1);
    ours.commit(&Commit::new().put(node(7), directory(3)).put(entry("a"), file(9))).unwrap();
    assert!(is_marked(&cells, 7));
    for store in [&ours, &theirs] {
        assert_eq!(counter(store, 7), Some(3));
        assert!(store.get(&entry("a")).unwrap().is_some());
    }
    // Others need not wait for it either.
    theirs.commit(&Commit::new().merge(node(7), add(1))).unwrap();
    queue.work_off();
    assert!(!is_marked(&cells, 7));
    assert_eq!((counter(&ours, 7), counter(&theirs, 7)), (Some(4), Some(4)));
}

#[test]
fn who_dies_before_the_clean_up_has_committed() {
    let cells = Arc::new(MemoryCells::new());
    let ours = session(&cells, &clock(), 1, 2).cleaning_up(Arc::new(Queue::default()));
    ours.commit(&Commit::new().put(node(7), directory(3))).unwrap();
    drop(ours);
    assert_eq!(settle(&cells, &clock(), SessionId(1), 2).unwrap().rolled_forward, 1);
    assert!(!is_marked(&cells, 7));
    assert_eq!(counter(&session(&cells, &clock(), 2, 1), 7), Some(3));
}

#[test]
fn a_commit_waits_for_the_clean_up_of_what_it_marks_and_no_longer() {
    let (cells, queue) = (Arc::new(MemoryCells::new()), Arc::new(Queue::default()));
    let ours = Arc::new(session(&cells, &clock(), 1, 4).cleaning_up(queue.clone()));
    ours.commit(&Commit::new().put(node(7), directory(3))).unwrap();
    // Of another document there is nothing to wait for.
    ours.commit(&Commit::new().put(node(8), directory(0))).unwrap();
    let waits = {
        let ours = Arc::clone(&ours);
        let next = Commit::new().merge(node(7), add(1));
        ambient::spawn("commit", move || ours.commit(&next).map(drop)).unwrap()
    };
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!waits.is_finished());
    queue.work_off();
    waits.join().unwrap().unwrap();
    assert_eq!(counter(&*ours, 7), Some(4));
    queue.work_off();
    assert!(!is_marked(&cells, 7) && !is_marked(&cells, 8));
}
