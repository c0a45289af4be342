//! `lockwood recover`: cleans up after dead sessions where no mount does it.
//!
//! On a volume that many hosts share, by the steps of a surviving mount, with none there. A store in a directory is
//! recovered as the next mount of it would.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use super::sessions::{self, Seen, readable_session};
use crate::cli::Failure;
use crate::cli::args::Recover;
use crate::cli::output::{countdown, print, print_json};
use crate::cli::target::{SharedVolume, Target};
use crate::content::BackingFiles;
use crate::document::{Document, Kind, Orphan, Session, SessionId};
use crate::fuse::control::refusals;
use crate::lock::printable;
use crate::lock::session::{DEFAULT_LEASE, Observer, observe};
use crate::namespace::{Looked, Namespace, Outsider, Recovered, SessionInfo, Settings};
use crate::shell::quoted;
use crate::store::embedded::Tuning;
use crate::store::embedded::open::OpenVolume;
use crate::store::embedded::owner;
use crate::store::intents::Settled;
use crate::store::{Range, Reader, StoreError, for_each};

/// A heartbeat is looked at so often while it must be seen to stand still.
const LOOKS_PER_LEASE: u32 = 2 * observe::PARTS;
/// Nobody is asked more often.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// A recovery opens few files at once.
const BACKING_FILES_OPEN: usize = 64;

/// What came of it.
#[derive(Debug, Default)]
struct Report {
    recovered: Vec<Recovered>,
    live: Vec<Session>,
    /// Whether a store in a directory had not been closed by its last owner. It is now.
    crashed: bool,
    /// What named no session, and was cut short.
    of_nobody: Settled,
    /// Why something of that is left.
    unsettled: Option<String>,
}

pub(in crate::cli) fn run(arguments: &Recover) -> Result<ExitCode, Failure> {
    let only = arguments.session;
    let target = Target::find(&arguments.target)?;
    let report = match (target.shared()?, &target) {
        (Some(volume), _) => of_shared(&volume, only)?,
        (None, _) if only.is_some() => {
            return Err("a store in a directory is recovered as a whole: leave the session out".into());
        }
        (None, Target::Store(store)) => of_directory(store)?,
        // Who owns the store recovered it before it was mounted.
        (None, _) => {
            let live = sessions::all(&target)?.into_iter().filter(Seen::is_live);
            Report { live: live.map(|seen| seen.session).collect(), ..Report::default() }
        }
    };
    if arguments.json {
        let Report { recovered, live, of_nobody, crashed, .. } = &report;
        print_json(&json!({
            "recovered": recovered,
            "live": live,
            "of_no_session": of_nobody,
            "crashed": crashed,
        }))?;
    } else {
        print(&words(&report))?;
    }
    if let Some(why) = &report.unsettled {
        return Err(format!(
            "commits that name no session were not all settled: {why}; to call this again goes on, and `lockwood check {}` \
             tells what is damaged",
            quoted(&arguments.target)
        )
        .into());
    }
    match report.live.first().filter(|_| only.is_some()) {
        Some(Session { id, .. }) => Err(format!(
            "session {id} shows that it lives and was left alone; `lockwood break {} {id} --force` fences it",
            quoted(&arguments.target)
        )
        .into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn of_shared(volume: &SharedVolume, only: Option<SessionId>) -> Result<Report, Failure> {
    let outsider = volume.outsider()?;
    if let Some(only) = only
        && !outsider.sessions()?.iter().any(|session| session.id == only)
    {
        return Err(refusals::no_session(only, &volume.to_string()).into());
    }
    watch(&outsider, only)
}

/// Recovers who is dead, and watches the others until each has shown that it lives or has not for a lease.
fn watch(outsider: &Outsider, only: Option<SessionId>) -> Result<Report, Failure> {
    let mut observer = Observer::default();
    // The heartbeats of those that were there at the first look, until each is decided.
    let mut undecided: Option<BTreeMap<SessionId, u64>> = None;
    let mut strays = Strays::default();
    let mut report = Report::default();
    let mut bar = None;
    loop {
        let Looked { dead, others } = outsider.look(&mut observer, only)?;
        for session in &dead {
            let failed = |error| format!("session {} was not recovered: {error}", session.id);
            report.recovered.push(outsider.recover(session).map_err(failed)?);
        }
        let first = || others.iter().map(|session| (session.id, session.heartbeat)).collect();
        let waiting = undecided.get_or_insert_with(first);
        waiting.retain(|id, heartbeat| match others.iter().find(|session| session.id == *id) {
            Some(session) if session.heartbeat != *heartbeat => {
                report.live.push(session.clone());
                false
            }
            // It has ended, or somebody else has recovered it.
            found => found.is_some(),
        });
        let of_nobody = sweep(outsider, only, &mut strays, &mut report);
        let watched = || others.iter().filter(|session| waiting.contains_key(&session.id));
        let leases = || watched().map(|session| session.lease_ms).chain(of_nobody);
        let (Some(shortest), Some(longest)) = (leases().min(), leases().max()) else { break };
        let bar = bar.get_or_insert_with(|| {
            let lease = longest as f64 / 1000.0;
            let why = match waiting.len() {
                0 => "an intent of no session may be in use: watching whether it changes".to_owned(),
                1 => "1 session may live: watching for a heartbeat".to_owned(),
                count => format!("{count} sessions may live: watching for a heartbeat"),
            };
            eprintln!("lockwood: {why}, for a lease ({lease} s)");
            countdown("watching for changes", Duration::from_millis(longest))
        });
        let pause = (Duration::from_millis(shortest) / LOOKS_PER_LEASE).max(PAUSE_MIN);
        std::thread::sleep(pause);
        bar.inc(u64::try_from(pause.as_millis()).unwrap_or_default());
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(report)
}

/// The intents that belong to no session.
#[derive(Default)]
struct Strays {
    observer: Observer,
    /// Those that were there at the first look, until they are gone.
    undecided: Option<BTreeSet<SessionId>>,
}

/// Looks for intents of nobody, unless one session alone is meant. Returns for how many milliseconds those of the first look
/// are watched, if there are any.
fn sweep(
    outsider: &Outsider,
    only: Option<SessionId>,
    strays: &mut Strays,
    report: &mut Report,
) -> Option<u64> {
    if only.is_some() || report.unsettled.is_some() {
        return None;
    }
    match outsider.sweep_intents(&mut strays.observer) {
        Ok(swept) => {
            report.of_nobody += swept.settled;
            let undecided = strays.undecided.get_or_insert_with(|| swept.left.clone());
            undecided.retain(|id| swept.left.contains(id));
            let lease = u64::try_from(DEFAULT_LEASE.as_millis()).unwrap_or(u64::MAX);
            (!undecided.is_empty()).then_some(lease)
        }
        Err(error) => {
            report.unsettled = Some(error.to_string());
            None
        }
    }
}

/// What the next mount of the store would do first, and nothing else.
fn of_directory(store: &Path) -> Result<Report, Failure> {
    let mut volume = OpenVolume::open(store, &[], Tuning::default())?;
    let (before, crashed) = (left(&*volume.store)?, volume.crashed());
    if before.sessions.is_empty() && before.files.is_empty() && !crashed {
        volume.close()?;
        return Ok(Report::default());
    }
    let backing = BackingFiles::open(&volume.layout.content(), BACKING_FILES_OPEN)?;
    let info = SessionInfo {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        boot_id: owner::boot_id(),
        pid: std::process::id(),
        mount_point: "lockwood recover".to_owned(),
    };
    Namespace::begin(volume.store.clone(), backing, Settings::default(), info)?.end()?;
    let after = left(&*volume.store)?;
    if after.sessions.is_empty() {
        volume.recovered()?;
    }
    volume.close()?;
    if !after.files.is_empty() {
        let (count, store) = (after.files.len(), quoted(store));
        return Err(format!(
            "{count} files that nothing names could not be removed; `lockwood check {store}` says why"
        )
        .into());
    }
    let recovered = |session: Session| Recovered {
        files: before.files.iter().filter(|owner| **owner == Some(session.id)).count() as u64,
        session,
        before: false,
        rolled_forward: 0,
        aborted: 0,
        operations: Some(Vec::new()),
        advisory_locks: 0,
        objects: 0,
    };
    let recovered = before.sessions.into_iter().map(recovered).collect();
    Ok(Report { recovered, crashed, ..Report::default() })
}

/// What those left that had the store open.
#[derive(Default)]
struct Left {
    sessions: Vec<Session>,
    /// For each file without a name, whose it was.
    files: Vec<Option<SessionId>>,
}

fn left(store: &dyn Reader) -> Result<Left, StoreError> {
    let mut left = Left::default();
    for_each::<_, StoreError>(store, Range::All(Kind::Session), |_, stored| {
        left.sessions.extend(readable_session(stored));
        Ok(())
    })?;
    for_each::<_, StoreError>(store, Range::All(Kind::Orphan), |_, stored| {
        left.files.push(match stored.as_ref().map(|stored| &*stored.document) {
            Ok(Document::Orphan(Orphan { session })) => Some(*session),
            _ => None,
        });
        Ok(())
    })?;
    Ok(left)
}

fn words(report: &Report) -> String {
    let mut text = String::new();
    for done in &report.recovered {
        let by = if done.before { ", and had been fenced" } else { "" };
        text.push_str(&format!("{} was dead{by}: it is cleaned up after\n", named(&done.session)));
        text.push_str(&left_words(done));
    }
    let Settled { rolled_forward, aborted } = report.of_nobody;
    for (count, what) in [(rolled_forward, "completed"), (aborted, "undone")] {
        if count > 0 {
            text.push_str(&format!("{what}: {count} commits of no session that were cut short\n"));
        }
    }
    if report.crashed {
        text.push_str("who had the store open last died without closing it: it is closed now\n");
    } else if report.recovered.is_empty() && report.of_nobody == Settled::default() {
        text.push_str("nothing to recover\n");
    }
    for session in &report.live {
        text.push_str(&format!("{} lives and is left alone\n", named(session)));
    }
    text
}

fn named(session: &Session) -> String {
    let Session { id, pid, host, mount_point, .. } = session;
    format!(
        "session {id} (process {pid} on {}, {})",
        printable(host.as_bytes()),
        printable(mount_point.as_bytes())
    )
}

/// What was done about what a session had left.
pub(super) fn left_words(done: &Recovered) -> String {
    let mut text = String::new();
    for (count, what) in [
        (u64::from(done.rolled_forward), "commits completed that had been decided"),
        (u64::from(done.aborted), "commits undone that had not been decided"),
        (done.advisory_locks, "advisory locks released"),
        (done.files, "files removed that it had open and that nothing names"),
        (done.objects, "objects removed that it had put and that nothing names"),
    ] {
        if count > 0 {
            text.push_str(&format!("  {count} {what}\n"));
        }
    }
    let Some(operations) = &done.operations else {
        text.push_str("  its locks are on servers of which no majority answers: they end by themselves\n");
        return text;
    };
    for operation in operations {
        text.push_str(&super::breaking::released_words(operation));
    }
    text
}
