//! Judging a volume whose documents cannot be read as of one instant.
//!
//! Owns what it takes to be sure of a violation there. Imports the report, `document` and `store`.
//!
//! Documents are read one after the other while others change them, so one may not fit the other though each was right at
//! its time: of a directory that is filled meanwhile the entries are always more than its node says. So all is judged
//! again, and a violation is certain if two judgements accuse the same document of the same, and it was not changed from
//! before the second until after it. Whoever changes an entry changes the directory's node in the same commit, so what such
//! a document is accused of was no other's doing in that time.

use std::collections::BTreeMap;

use super::{Inputs, Progress, Report, Rule, run};
use crate::document::Key;
use crate::store::{Reader, Store, StoreError};

/// How often a volume is judged at most.
const LOOKS_MAX: usize = 5;

/// What a judgement accuses, and at what version the documents were afterwards: none for what has no version, or cannot be
/// read.
type Accused = BTreeMap<(Rule, String), Option<u64>>;

/// A way to judge a volume: [`run`], or what comes to the same.
pub type Judgement = fn(&Inputs<'_>, &mut dyn FnMut(Progress)) -> Result<Report, StoreError>;

/// How a volume on this store is judged while it is in use.
pub fn judge_in_use(store: &dyn Store) -> Judgement {
    if store.capabilities().snapshots { run } else { run_while_changing }
}

/// Judges a volume as [`run`] does, on an engine that has no snapshots. What is not certain is judged again, up to five
/// times; what was being changed each time is counted ([`Counts::changing`](super::Counts::changing)) and not accused.
///
/// # Errors
/// As [`run`].
pub(super) fn run_while_changing(
    inputs: &Inputs<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, StoreError> {
    let mut before = Accused::new();
    let mut looks = 0;
    loop {
        looks += 1;
        let mut report = run(inputs, progress)?;
        if report.is_clean() || !report.keeps_all() {
            return Ok(report); // What is only counted cannot be compared, and so much is no coincidence.
        }
        let now = accused(&report, inputs.documents)?;
        let is_certain =
            |what: &(Rule, String)| before.get(what).is_some_and(|then| now.get(what) == Some(then));
        let uncertain = now.keys().filter(|what| !is_certain(what)).count();
        if uncertain == 0 || looks == LOOKS_MAX {
            report.keep(|violation| is_certain(&(violation.rule, violation.document.clone())));
            report.counts.changing = uncertain as u64;
            return Ok(report);
        }
        before = now;
    }
}

fn accused(report: &Report, documents: &dyn Reader) -> Result<Accused, StoreError> {
    let version = |document: &str| match document.parse::<Key>().map(|key| documents.get(&key)) {
        Ok(Ok(stored)) => Ok(stored.map(|stored| stored.version.0)),
        Err(_) | Ok(Err(StoreError::Damaged { .. })) => Ok(None),
        Ok(Err(error)) => Err(error),
    };
    let with_version = |violation: &super::Violation| {
        Ok(((violation.rule, violation.document.clone()), version(&violation.document)?))
    };
    report.violations.iter().map(with_version).collect()
}
