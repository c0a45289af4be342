//! Totals of a run, and whether it exercised what it claims.

use crate::common::sys::errno_name;
use crate::common::{Res, command};
use crate::ledger::Ledger;
use crate::locker::Held;
use crate::options::Options;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Kinds that must have succeeded at least once; those with `true` are renames.
const KINDS: [(&str, bool); 19] = [
    ("rename", true),
    ("move", true),
    ("exchange", true),
    ("deepen", true),
    ("own-create", false),
    ("own-move", true),
    ("own-overwrite", true),
    ("own-noreplace", true),
    ("own-exchange", true),
    ("own-unlink", false),
    ("contest", true),
    ("take", true),
    ("give-back", true),
    ("replace-empty", true),
    ("exchange-empty", true),
    ("rmdir-empty", false),
    ("create-in-empty", false),
    ("move-into-empty", true),
    ("loop", true),
];

/// Kinds that need RENAME_EXCHANGE or RENAME_NOREPLACE.
const FLAGGED: [&str; 6] =
    ["exchange", "own-noreplace", "own-exchange", "take", "give-back", "exchange-empty"];

/// Kinds in which somebody must have lost a race, with the errnos that show it.
const RACES: [(&str, &[i32]); 5] = [
    ("into-itself", &[libc::EINVAL]),
    ("take", &[libc::EEXIST]),
    ("loop", &[libc::ENOENT, libc::EINVAL, libc::ENOTEMPTY]),
    ("replace-empty", &[libc::ENOTEMPTY, libc::EEXIST]),
    ("create-in-empty", &[libc::ENOENT]),
];

/// How often operations stood in each other's way, as `lockwood status` counts it.
pub(crate) struct Contention {
    /// Whether the volume's strategy has locks: not under `version`.
    pub(crate) locks: bool,
    /// Operations that waited for a lock.
    waits: f64,
    /// Commits of which a check failed: somebody else had changed what was read.
    conflicts: f64,
}

impl Contention {
    /// Since the volume was mounted.
    pub(crate) fn so_far(mount: &Path) -> Res<Self> {
        let status = command::status(mount)?;
        let lacks = |name: &str| format!("`lockwood status --json` has no `{name}`");
        let number = |name: &str| status.number(name).ok_or_else(|| lacks(name));
        let locking = status.text("locking").ok_or_else(|| lacks("locking"))?;
        let (waits, conflicts) = (number("locks.waits")?, number("documents.conflicts")?);
        Ok(Self { locks: locking != "version", waits, conflicts })
    }

    /// Between then and now.
    pub(crate) fn since(self, before: &Self) -> Self {
        Self {
            waits: self.waits - before.waits,
            conflicts: self.conflicts - before.conflicts,
            locks: self.locks,
        }
    }
}

/// The operations that must have succeeded and the races that must have been lost, of which none was `met`.
pub(crate) fn lacking(options: &Options, met: impl Fn(&'static str, i32) -> bool) -> Vec<String> {
    let mut missing = Vec::new();
    let wanted = |kind: &str| !options.no_flags || !FLAGGED.contains(&kind);
    for (kind, _) in KINDS.iter().filter(|(kind, _)| wanted(kind)) {
        if !met(kind, 0) {
            missing.push(format!("no {kind} succeeded; is it supported? Run longer, or --no-flags"));
        }
    }
    for (kind, errnos) in RACES.iter().filter(|(kind, _)| wanted(kind)) {
        if !errnos.iter().any(|errno| met(kind, *errno)) {
            missing.push(format!("nobody lost a race of {kind}: run longer or with more --workers"));
        }
    }
    missing
}

/// Successes and errnos of every kind, of all workers.
pub(crate) struct Totals {
    outcomes: BTreeMap<(&'static str, i32), u64>,
    granted: u64,
    refused: u64,
    last_refusal: String,
}

impl Totals {
    /// Adds up.
    pub(crate) fn of(ledgers: &[Ledger], held: &[Held]) -> Self {
        let mut outcomes = BTreeMap::new();
        for (key, count) in ledgers.iter().flat_map(|l| &l.outcomes) {
            *outcomes.entry(*key).or_default() += count;
        }
        Self {
            outcomes,
            granted: held.iter().map(|h| h.granted).sum(),
            refused: held.iter().map(|h| h.refused).sum(),
            last_refusal: held.iter().map(|h| h.last_refusal.clone()).max().unwrap_or_default(),
        }
    }

    fn refusals(&self) -> u64 {
        self.outcomes.iter().filter(|((_, errno), _)| *errno != 0).map(|(_, count)| count).sum()
    }

    /// Prints what was done; `contention` is that of this run, `None` on a plain directory.
    pub(crate) fn print(&self, elapsed: Duration, contention: Option<&Contention>) {
        let is_rename = |kind: &str| KINDS.iter().any(|(name, rename)| *name == kind && *rename);
        let renames: u64 =
            self.outcomes.iter().filter(|((k, e), _)| *e == 0 && is_rename(k)).map(|(_, n)| n).sum();
        let seconds = elapsed.as_secs_f64();
        println!("{renames} renames in {seconds:.1} s: {:.0} per second", renames as f64 / seconds);
        let mut kinds: Vec<&str> = self.outcomes.keys().map(|(kind, _)| *kind).collect();
        kinds.dedup();
        for kind in kinds {
            print!("  {kind:<16}");
            for ((_, errno), count) in self.outcomes.iter().filter(|((k, _), _)| *k == kind) {
                let name = if *errno == 0 { "ok".to_owned() } else { errno_name(*errno) };
                print!(" {name} {count} ");
            }
            println!();
        }
        if let Some(Contention { waits, conflicts, .. }) = contention {
            println!("  locks held by command: {}, refused: {}", self.granted, self.refused);
            println!(
                "  lock waits: {waits}; commits that conflicted: {conflicts}; calls refused: {}",
                self.refusals()
            );
        }
    }

    /// What the run claims but did not do.
    pub(crate) fn not_exercised(&self, options: &Options, contention: Option<&Contention>) -> Vec<String> {
        let mut missing = lacking(options, |kind, errno| self.outcomes.contains_key(&(kind, errno)));
        match contention {
            Some(Contention { locks: true, waits, .. }) => {
                if *waits <= 0.0 {
                    missing.push("no rename waited for a lock: run longer or with more --workers".into());
                }
                if self.granted == 0 {
                    missing.push(format!(
                        "`lockwood lock` never got a lock; it last said: {}",
                        self.last_refusal
                    ));
                }
            }
            // Nobody can wait there: who meets somebody finds at the commit that what it read has changed. Within one
            // mount the kernel keeps renames apart, so there the lost races above have to do.
            Some(Contention { locks: false, waits, conflicts }) => {
                if *conflicts <= 0.0 && options.mounts.len() > 1 {
                    missing.push("no commit conflicted: run longer or with more --workers".into());
                }
                if *waits > 0.0 {
                    missing.push(format!("{waits} waits for locks on a volume that has none"));
                }
            }
            None => {}
        }
        missing
    }
}
