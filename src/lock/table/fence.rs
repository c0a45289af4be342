//! The fence of one operation: what makes it unable to change anything once its locks have been broken.
//!
//! Owns the moment at which an operation either has made its change or can make none any more. Imports the layer's error
//! and the rules.
//!
//! What is hard: a break must not return while the change that it stops may still come. So the change itself runs under
//! the fence's mutex ([`Fence::pass`]), and a revocation takes the same mutex: it waits for a change that has begun, and
//! every later one is refused. An operation that has ended without a change and starts over does so as a new operation;
//! [`Fence::close`] tells it whether it may.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::lock::error::LockError;
use crate::rules::{Rule, holds};

/// What a break met, and so what became of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakOutcome {
    /// It had changed nothing, and never will.
    RolledBack,
    /// Its change had taken effect before; only its locks were still held.
    AlreadyDone,
    /// It waited for a lock. It was sent away, changed nothing, and never will.
    SentAway,
    /// It held its locks for somebody outside, and had nothing to change.
    Released,
}

impl fmt::Display for BreakOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RolledBack => "rolled back: it had changed nothing",
            Self::AlreadyDone => "its change was done already, and stays",
            Self::SentAway => "it was waiting: sent away, it has changed nothing",
            Self::Released => "it only held its locks: there was nothing to roll back",
        })
    }
}

/// How far an operation has come.
enum Stage {
    /// It has changed nothing yet.
    Pending,
    /// It holds locks and will change nothing.
    Holding,
    /// Its change has taken effect.
    Done,
    /// It has ended.
    Over,
    /// It was broken, by whom and why this says.
    Revoked(Arc<str>),
}

/// The fence of one operation.
pub(super) struct Fence(Mutex<Stage>);

impl Fence {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Stage::Pending))
    }

    /// Makes the operation's change, unless it was revoked. A revocation meanwhile waits.
    pub(super) fn pass<T, E: From<LockError>>(&self, change: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut stage = self.0.lock();
        if let Stage::Revoked(by) = &*stage
            && holds(Rule::RevokedOperationChangesNothing)
        {
            return Err(LockError::Revoked { by: Arc::clone(by) }.into());
        }
        let changed = change();
        if changed.is_ok() {
            *stage = Stage::Done;
        }
        changed
    }

    /// The operation only holds its locks.
    pub(super) fn hold_only(&self) {
        let mut stage = self.0.lock();
        if matches!(*stage, Stage::Pending) {
            *stage = Stage::Holding;
        }
    }

    /// Revokes the operation; `None` if it has ended, or was revoked before. What had taken effect stays.
    pub(super) fn revoke(&self, by: &Arc<str>) -> Option<BreakOutcome> {
        let mut stage = self.0.lock();
        let outcome = match *stage {
            Stage::Pending => BreakOutcome::RolledBack,
            Stage::Holding => BreakOutcome::Released,
            Stage::Done => return Some(BreakOutcome::AlreadyDone),
            Stage::Over | Stage::Revoked(_) => return None,
        };
        *stage = Stage::Revoked(Arc::clone(by));
        Some(outcome)
    }

    /// Who revoked it, if anybody did.
    pub(super) fn revoked(&self) -> Option<LockError> {
        match &*self.0.lock() {
            Stage::Revoked(by) => Some(LockError::Revoked { by: Arc::clone(by) }),
            _ => None,
        }
    }

    /// The operation ends; who revokes it afterwards finds nothing. An error if it was revoked before.
    pub(super) fn close(&self) -> Result<(), LockError> {
        let mut stage = self.0.lock();
        match &*stage {
            Stage::Revoked(by) => Err(LockError::Revoked { by: Arc::clone(by) }),
            _ => {
                *stage = Stage::Over;
                Ok(())
            }
        }
    }
}
