//! What locks cover is compared behind the marks, and the answer is final.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::behind::Behind;
use super::{entry, file, impatient, session};
use crate::store::{Commit, Reader as _, Store as _};

#[test]
fn a_comparison_that_fails_is_not_made_good_by_a_read() {
    let behind = Arc::new(Behind::default());
    let store = session(&behind, &impatient(), 2, 1);
    let checked = store.commit(&Commit::new().put(entry("above"), file(1))).unwrap();
    let commit = Commit::new().at(entry("above"), checked).put(entry("b"), file(7)).covered();
    behind.refused.store(2, SeqCst);
    store.commit(&commit).unwrap();
    assert_eq!(behind.compared.load(SeqCst), 3, "each refusal costs an attempt");
    // Refused for ever it is never made, though every read says that nothing has changed.
    behind.refused.store(i64::MAX, SeqCst);
    let commit = Commit::new().at(entry("above"), checked).put(entry("c"), file(8)).covered();
    assert!(store.commit(&commit).is_err());
    assert!(store.get(&entry("c")).unwrap().is_none());
}
