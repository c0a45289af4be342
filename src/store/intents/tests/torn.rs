//! What a commit reads is of several instants.

use std::sync::Arc;

use super::behind::Behind;
use super::{add, entry, file, impatient, node, session};
use crate::store::cells::{CellKey, Cells as _};
use crate::store::conformance::directory;
use crate::store::{Commit, CommitError, Store as _, StoreError};

#[test]
fn an_entry_that_goes_between_two_looks_is_a_conflict_and_no_damage() {
    let behind = Arc::new(Behind::default());
    let [own, other] = [1, 2].map(|id| session(&behind, &impatient(), id, 1));
    let made = Commit::new().put(node(1), directory(1)).put(entry("a"), file(7));
    let version = other.commit(&made).unwrap();
    let removal = || Commit::new().at(entry("a"), version).delete(entry("a")).merge(node(1), add(-1));
    let place = CellKey::Document(entry("a"));
    let before = behind.read(&place).unwrap();
    other.commit(&removal()).unwrap();
    behind.early.lock().push((place, before));
    let refused = own.commit(&removal());
    assert!(matches!(&refused, Err(CommitError::Conflict(key)) if *key == entry("a")), "{refused:?}");
    assert!(behind.early.lock().is_empty(), "it was looked at too late");
}

#[test]
fn a_count_that_is_wrong_is_damage_however_often_it_is_looked_at() {
    let behind = Arc::new(Behind::default());
    let own = session(&behind, &impatient(), 1, 1);
    let version = own.commit(&Commit::new().put(node(1), directory(0)).put(entry("a"), file(7))).unwrap();
    let refused =
        own.commit(&Commit::new().at(entry("a"), version).delete(entry("a")).merge(node(1), add(-1)));
    assert!(matches!(&refused, Err(CommitError::Store(StoreError::Damaged { .. }))), "{refused:?}");
}
