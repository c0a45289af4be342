//! What the control files show.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::adapter::Shared;
use super::nodes::ControlNode;
use super::{breaking, intents};
use crate::document::{Document, Key, Session, SessionId, Stored};
use crate::lock::{LockError, OperationDocument, Timestamp};
use crate::namespace::{Result, WriteBackCounters};
use crate::store::Outage;
use crate::{check, mounts};

/// The text of a control file; none if what it shows is gone.
///
/// # Errors
/// When a document cannot be read.
pub(super) fn text(shared: &Shared, node: &ControlNode) -> Result<Option<String>> {
    let namespace = &shared.namespace;
    let value = match node {
        ControlNode::Status => Some(serde_json::to_value(status(shared)?)),
        ControlNode::Hold(_) | ControlNode::Break(_) => return Ok(Some(String::new())),
        ControlNode::Check => Some(serde_json::to_value(check(shared)?)),
        ControlNode::LockTable => Some(serde_json::to_value(namespace.locks().documents()?)),
        ControlNode::Advisory => Some(serde_json::to_value(namespace.advisory_of_all()?)),
        ControlNode::Session(id) => session(shared, *id)?.map(serde_json::to_value),
        ControlNode::Intent(which) => intents::text(namespace, *which)?.map(Ok),
        ControlNode::Lock(id) => namespace.locks().document(id)?.map(serde_json::to_value),
        ControlNode::Document(key) => {
            namespace.store().get(key)?.map(|stored| Ok(document_json(key, &stored)))
        }
        _ => None,
    };
    let Some(value) = value else { return Ok(None) };
    // Values of our own types always have a JSON form.
    let mut text = value.and_then(|v| serde_json::to_string_pretty(&v)).unwrap_or_default();
    text.push('\n');
    Ok(Some(text))
}

/// A document with its key and version, as `lockwood get` prints it.
pub fn document_json(key: &Key, stored: &Stored) -> Value {
    json!({ "key": key.to_string(), "version": stored.version, "document": *stored.document })
}

/// What a file of `sessions` shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionText {
    /// The key of its document.
    pub key: String,
    /// The version of its document.
    pub version: u64,
    /// Its document.
    pub document: Session,
    /// Whether it is at work: its mount is served, and nobody has fenced it.
    pub live: bool,
    /// Its operations that hold locks or wait for them.
    pub operations: Vec<OperationDocument>,
}

fn session(shared: &Shared, id: SessionId) -> Result<Option<SessionText>> {
    let (namespace, key) = (&shared.namespace, Key::Session(id));
    let Some(stored) = namespace.store().get(&key)? else { return Ok(None) };
    let Document::Session(document) = &*stored.document else { return Ok(None) };
    let operations = match namespace.locks().operations() {
        // Who has the volume mounted is to be seen also while nobody can say who holds what.
        Err(error @ LockError::NoMajority { .. }) => {
            log::warn!("sessions are shown without their locks: {error}");
            Vec::new()
        }
        operations => operations?,
    };
    Ok(Some(SessionText {
        key: key.to_string(),
        version: stored.version.0,
        document: document.clone(),
        live: breaking::is_live(shared, id),
        operations: operations.into_iter().filter(|operation| operation.session == id).collect(),
    }))
}

/// What `status` shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The version of the daemon.
    pub lockwood: String,
    /// The store, as it was given.
    pub store: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// Where that process has it mounted, this place included.
    #[serde(default)]
    pub mount_points: Vec<String>,
    /// The daemon's process.
    pub pid: u32,
    /// The session of this mount.
    pub session: String,
    /// Whether the session was declared dead: nothing is changed through this mount any more.
    #[serde(default)]
    pub fenced: bool,
    /// The id of the volume.
    pub volume: String,
    /// Its lock strategy.
    pub locking: String,
    /// The servers that keep the locks, if that is not with the tree.
    #[serde(default)]
    pub lock_servers: Option<String>,
    /// When it was mounted.
    pub mounted: Timestamp,
    /// Where the daemon logs to.
    pub log: Option<String>,
    /// Requests of the kernel served.
    pub requests: u64,
    /// Changes through other mounts of the process that this mount's kernel was told of.
    #[serde(default)]
    pub notices: u64,
    /// Renames of which the store has not said yet whether they were made: they keep their locks.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_doubt: usize,
    /// Inodes that are open.
    pub open_inodes: u64,
    /// Room for more, in bytes.
    pub free_bytes: u64,
    /// Since when the store does not answer, and why, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away: Option<Away>,
    /// The object store that has the bytes of large files, if one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<ObjectsStatus>,
    /// Which open files with a backing file the kernel reads and writes itself: `read`, those that are open to be read;
    /// `write`, all; `off`, and why.
    #[serde(default)]
    pub passthrough: String,
    /// Whether there are extended attributes and access control lists (the option `noxattr`).
    #[serde(default)]
    pub xattr: bool,
    /// What is written and kept back, if it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_back: Option<WriteBackCounters>,
    /// What the lock table has done.
    pub locks: Value,
    /// What the store has done.
    pub documents: Value,
}

/// An object store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ObjectsStatus {
    /// Where it is.
    pub location: String,
    /// Since when it does not answer, and why, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away: Option<Away>,
    /// What was asked of it.
    pub requests: Value,
}

/// A store that does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Away {
    /// When a request failed first.
    pub since: Timestamp,
    /// How the last one failed.
    pub cause: String,
}

impl From<Outage> for Away {
    fn from(outage: Outage) -> Self {
        let since = Timestamp::before(outage.since, std::time::Duration::ZERO);
        Self { since, cause: outage.cause }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // Serde's choice.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn status(shared: &Shared) -> Result<Status> {
    let (namespace, facts) = (&shared.namespace, shared.control.facts());
    let space = namespace.space()?;
    let volume = namespace.volume();
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    Ok(Status {
        lockwood: env!("CARGO_PKG_VERSION").to_owned(),
        store: facts.store.clone(),
        mount_point: text(&facts.mount_point),
        mount_points: facts.mount_points.iter().filter(|path| mounts::is_ours(path)).map(text).collect(),
        pid: std::process::id(),
        session: namespace.session().to_string(),
        fenced: namespace.is_fenced(),
        volume: volume.id.clone(),
        locking: volume.locking.to_string(),
        lock_servers: namespace.locks().servers().map(ToString::to_string),
        mounted: Timestamp::before(facts.since, std::time::Duration::ZERO),
        log: facts.log.clone(),
        requests: shared.requests.load(Relaxed),
        notices: shared.cache.told(),
        in_doubt: namespace.in_doubt(),
        open_inodes: namespace.open_inodes() as u64,
        free_bytes: space.blocks_available.saturating_mul(space.block_size),
        away: namespace.store().outage().map(Into::into),
        objects: namespace.contents().objects().map(|objects| ObjectsStatus {
            location: objects.location().to_owned(),
            away: objects.outage().map(Into::into),
            requests: json!(objects.counters()),
        }),
        passthrough: shared.passthrough.status(),
        xattr: shared.attributes,
        write_back: namespace.write_back(),
        locks: json!(namespace.locks().counters()),
        documents: json!(namespace.store().counters()),
    })
}

fn check(shared: &Shared) -> Result<check::Report> {
    let namespace = &shared.namespace;
    let (snapshot, sessions) = namespace.snapshot();
    let inputs = check::Inputs {
        documents: &*snapshot,
        live: Some(namespace.store()),
        backing: Some(namespace.contents()),
        mode: if namespace.is_shared() {
            check::Mode::Shared { sessions: &sessions }
        } else {
            check::Mode::Online { sessions: &sessions }
        },
    };
    let judge = check::judge_in_use(namespace.store());
    Ok(judge(&inputs, &mut |_| {})?)
}
