//! The judge: after a remount the tree of each thread is what its ledger says, but for the one operation that was in
//! flight, which is there wholly or not at all.
//!
//! One exception is honest: a write of several pages that was never acknowledged may be there by pages, as on any local
//! filesystem whose writer is killed. Each page is old or new, and no other byte changes; `--whole-writes` forbids it.

use crate::Verdict;
use crate::common::{Res, sys};
use crate::ledger::{self, History, Ledger, Outcome};
use crate::model::{Body, Model, Torn, parts};
use crate::op::{Op, bytes_of};
use crate::options::{Options, TREE, thread_dir};
use crate::scan::{self, Tree};
use std::collections::BTreeMap;
use std::io;

/// What was found of all threads.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) wrong: Vec<String>,
    /// What became of each operation in flight: thread, number, outcome.
    pub(crate) resolved: Vec<(usize, u64, Outcome)>,
    paths: usize,
    bytes: usize,
}

/// Judges, and writes into the ledger what became of the operations in flight.
pub(crate) fn run(options: &Options) -> Res<Verdict> {
    let histories = ledger::replay(&options.ledger)?;
    let findings = judge(options, &histories)?;
    for wrong in findings.wrong.iter().take(40) {
        eprintln!("crash-load: WRONG: {wrong}");
    }
    if !findings.wrong.is_empty() {
        return Ok(Verdict::Failed);
    }
    let ledger = Ledger::open(&options.ledger)?;
    for (thread, number, outcome) in &findings.resolved {
        ledger.resolve(*thread, *number, *outcome)?;
    }
    let count = |wanted: fn(&Outcome) -> bool| findings.resolved.iter().filter(|(_, _, o)| wanted(o)).count();
    let acknowledged: u64 = histories.values().map(|h| h.acknowledged).sum();
    println!(
        "acked={acknowledged} paths={} bytes={} in-flight: done={} undone={} torn={}",
        findings.paths,
        findings.bytes,
        count(|o| *o == Outcome::Done),
        count(|o| *o == Outcome::Undone),
        count(|o| matches!(o, Outcome::Torn(_)))
    );
    Ok(Verdict::Passed)
}

/// Compares every thread's tree with its history.
pub(crate) fn judge(options: &Options, histories: &BTreeMap<usize, History>) -> Res<Findings> {
    let mut findings = Findings::default();
    let home = options.mount.join(TREE);
    let cannot =
        |e: io::Error| format!("{}: {e}; is it mounted, and by the daemon of this run?", home.display());
    let top = match sys::open_dir(&home) {
        Ok(top) => top,
        Err(e) if e.kind() == io::ErrorKind::NotFound && histories.is_empty() => return Ok(findings),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            findings.wrong.push(format!("{TREE} is missing"));
            return Ok(findings);
        }
        Err(e) => return Err(cannot(e)),
    };
    let names: Vec<String> = sys::read_dir(&top).map_err(cannot)?.into_iter().map(|(name, _)| name).collect();
    for name in &names {
        // The directory of a thread that had no time to do anything may be there.
        if name.strip_prefix('t').is_none_or(|n| n.parse::<usize>().is_err()) {
            findings.wrong.push(format!("{name} is there, but must not be"));
        }
    }
    for (thread, history) in histories {
        let name = thread_dir(*thread);
        if !names.contains(&name) {
            findings.wrong.push(format!("{name} is missing"));
            continue;
        }
        let dir = sys::open_dir_at(&top, &name).map_err(cannot)?;
        match scan::scan(&dir) {
            Ok(tree) => one_thread(options, *thread, history, &tree, &mut findings),
            Err(e) => findings.wrong.push(format!("{name}: {e}")),
        }
    }
    Ok(findings)
}

fn one_thread(options: &Options, thread: usize, history: &History, tree: &Tree, findings: &mut Findings) {
    findings.paths += tree.len();
    findings.bytes +=
        tree.values().map(|a| if let Body::File(b) = &a.body { b.len() } else { 0 }).sum::<usize>();
    let before = scan::compare(&history.model, tree);
    let Some((number, op)) = &history.in_flight else {
        findings.wrong.extend(before.into_iter().map(|w| format!("t{thread}: {w}")));
        return;
    };
    let mut resolve = |outcome| findings.resolved.push((thread, *number, outcome));
    if before.is_empty() {
        return resolve(Outcome::Undone);
    }
    let mut done = history.model.clone();
    done.apply(*number, op, None);
    let after = scan::compare(&done, tree);
    if after.is_empty() {
        return resolve(Outcome::Done);
    }
    if !options.whole_writes
        && let Some(torn) = tear(thread, *number, op, &history.model, tree)
    {
        let mut partly = history.model.clone();
        partly.apply(*number, op, Some(torn));
        if scan::compare(&partly, tree).is_empty() {
            return resolve(Outcome::Torn(torn));
        }
    }
    let in_flight = op.to_text();
    findings
        .wrong
        .extend(before.into_iter().map(|w| format!("t{thread}: if `{in_flight}` did not happen: {w}")));
    findings.wrong.extend(after.into_iter().map(|w| format!("t{thread}: if `{in_flight}` did happen: {w}")));
}

/// Which pages of a write are there: those that hold its bytes. The caller compares the whole tree with that.
fn tear(thread: usize, number: u64, op: &Op, before: &Model, tree: &Tree) -> Option<Torn> {
    let (Op::Write { path, offset, length } | Op::Append { path, offset, length }) = op else { return None };
    let Body::File(found) = &tree.get(path)?.body else { return None };
    let size = found.len() as u64;
    let parts = parts(*offset, *length);
    // The size is the old one, or ends with one of the pages written.
    if size != before.size(path) && !parts.iter().any(|(at, length)| at + length == size) {
        return None;
    }
    let new = bytes_of(thread, number, *offset, *length);
    let mut pages = 0;
    for (index, (at, length)) in parts.iter().enumerate() {
        // Of a page that the size ends in, what is before the size.
        let seen = (at + length).min(size).saturating_sub(*at) as usize;
        let (from, here) = ((at - offset) as usize, *at as usize);
        if seen > 0 && found.get(here..here + seen) == new.get(from..from + seen) {
            pages |= 1 << index;
        }
    }
    Some(Torn { pages, size })
}
