//! `lockwood sessions`: who has a volume mounted, and what they hold and wait for.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use crate::cli::Failure;
use crate::cli::args::Sessions;
use crate::cli::output::{age, print, print_json, table};
use crate::cli::target::{Target, control_path, read_control};
use crate::document::{Document, Kind, Session, SessionState, Stored};
use crate::fuse::control::{SessionText, Status};
use crate::lock::{OperationDocument, Timestamp, operations_of};
use crate::store::embedded::Tuning;
use crate::store::embedded::open::OpenVolume;
use crate::store::{Range, StoreError, for_each};

/// A session, and what is known of it beside its document.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Seen {
    /// Its document.
    #[serde(flatten)]
    pub(super) session: Session,
    /// Whether it is at work.
    live: bool,
    /// Its operations that hold locks or wait for them.
    operations: Vec<OperationDocument>,
}

pub(in crate::cli) fn run(arguments: &Sessions) -> Result<ExitCode, Failure> {
    let target = Target::find(&arguments.target)?;
    let sessions = all(&target)?;
    if let Target::Mount(mount_point) = &target
        && let Some(session) = fenced(mount_point)?
    {
        eprintln!(
            "lockwood: {}: the session of this mount, {session}, was declared dead: nothing is changed through it any \
             more; unmount it and mount it again",
            mount_point.display()
        );
    }
    if arguments.json {
        print_json(&serde_json::to_value(&sessions)?)?;
    } else if sessions.is_empty() {
        print("no session\n")?;
    } else {
        let rows: Vec<_> = sessions.iter().map(Seen::row).collect();
        let header =
            ["SESSION", "HOST", "PID", "MOUNT POINT", "STATE", "FOR", "HEARTBEAT", "LEASE", "HOLDS", "WAITS"];
        print(&table(&header, &rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The session of a mount, if it was declared dead. Its document may be gone, with all that it left.
fn fenced(mount_point: &Path) -> Result<Option<String>, Failure> {
    let Some(text) = read_control(mount_point, "status")? else { return Ok(None) };
    let Status { fenced, session, .. } = serde_json::from_str(&text)?;
    Ok(fenced.then_some(session))
}

/// All sessions of a volume, in the order of their ids.
pub(super) fn all(target: &Target) -> Result<Vec<Seen>, Failure> {
    let mut sessions = Vec::new();
    match target {
        Target::Mount(mount_point) => {
            let directory = control_path(mount_point, "sessions");
            let names = std::fs::read_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
            for name in names {
                let name = format!("sessions/{}", name?.file_name().to_string_lossy());
                // A session that has ended since the directory was read is not there.
                let Some(text) = read_control(mount_point, &name)? else { continue };
                let SessionText { document: session, live, operations, .. } = serde_json::from_str(&text)?;
                sessions.push(Seen { session, live, operations });
            }
        }
        Target::Shared(volume) => {
            // Who has the volume mounted is to be seen also while nobody can say who holds what.
            let locks = volume.locks().unwrap_or_else(|error| {
                eprintln!("lockwood: the sessions are shown without their locks: {error}");
                Vec::new()
            });
            let operations = operations_of(&locks);
            for_each::<_, StoreError>(&*volume.open()?.0, Range::All(Kind::Session), |_, stored| {
                if let Some(session) = readable_session(stored) {
                    let own = operations.iter().filter(|operation| operation.session == session.id);
                    let live = session.state == SessionState::Live;
                    let operations = own.cloned().collect();
                    sessions.push(Seen { session, live, operations });
                }
                Ok(())
            })?;
        }
        Target::Store(store) => {
            // Nobody has it open, so what is found ended without saying so.
            let volume = OpenVolume::open(store, &[], Tuning::default())?;
            let read = for_each::<_, StoreError>(&*volume.store, Range::All(Kind::Session), |_, stored| {
                if let Some(session) = readable_session(stored) {
                    sessions.push(Seen { session, live: false, operations: Vec::new() });
                }
                Ok(())
            });
            volume.close()?;
            read?;
        }
    }
    sessions.sort_by_key(|seen| seen.session.id);
    Ok(sessions)
}

/// None if it is damaged, which is said on standard error.
pub(super) fn readable_session(stored: Result<Stored, StoreError>) -> Option<Session> {
    match stored.map(|stored| Document::clone(&stored.document)) {
        Ok(Document::Session(session)) => Some(session),
        Ok(_) => None,
        Err(error) => {
            eprintln!("lockwood: {error}; see: lockwood check");
            None
        }
    }
}

impl Seen {
    /// Whether it is at work: nobody has fenced it.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    fn state(&self) -> &'static str {
        match self.session.state {
            SessionState::Joining => "joining",
            SessionState::Live if self.live => "live",
            SessionState::Live => "dead",
            SessionState::Fenced => "fenced",
            SessionState::Recovered => "recovered",
        }
    }

    fn row(&self) -> Vec<String> {
        let session = &self.session;
        // A session without a heartbeat is proved alive by the process that owns the store, and has no lease.
        let beats = session.heartbeat > 0;
        let beside = |value: String| if beats { value } else { "-".to_owned() };
        let started = u64::try_from(session.started.sec).unwrap_or_default();
        let since = Timestamp { unix_ms: started * 1000 + u64::from(session.started.nsec) / 1_000_000 };
        let holds: usize = self.operations.iter().map(|operation| operation.holds.len()).sum();
        let waits = self.operations.iter().filter(|operation| operation.waits_for.is_some()).count();
        vec![
            session.id.to_string(),
            session.host.clone(),
            session.pid.to_string(),
            session.mount_point.clone(),
            self.state().to_owned(),
            age(since),
            beside(session.heartbeat.to_string()),
            beside(format!("{} s", session.lease_ms as f64 / 1000.0)),
            holds.to_string(),
            waits.to_string(),
        ]
    }
}
