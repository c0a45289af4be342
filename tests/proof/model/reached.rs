//! What a run must have met: a scenario in which nobody waited has shown nothing about waiting. Owns the list.

/// Something that a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// A commit changed the tree.
    Committed,
    /// A check of a commit failed.
    Conflict,
    /// An operation waited for a lock.
    Wait,
    /// An operation gave up waiting.
    Expiry,
    /// A rename was refused since it would have moved a directory below itself.
    IntoItself,
    /// A rename found under its locks that they are not those of its paths any more.
    MeansSomethingElse,
    /// A process died that held or awaited locks.
    CrashWithLocks,
    /// The claims of a dead session were taken out.
    Recovery,
    /// A claim of a session came back after its recovery, and was taken out again.
    Ghost,
    /// A change of a dead session was refused.
    DeadRefused,
    /// A release arrived after its sender's recovery.
    LateUnlock,
    /// A commit or decision that was under way arrived.
    LateCommit,
    /// A mark could not be set.
    MarkConflict,
    /// An intent was aborted by another session.
    AbortedByOther,
    /// Recovery completed a committed intent.
    RolledForward,
    /// A mark arrived that meant nothing any more.
    LateMark,
}

impl Reached {
    /// All of them.
    pub(crate) const ALL: [Self; 16] = [
        Self::Committed,
        Self::Conflict,
        Self::Wait,
        Self::Expiry,
        Self::IntoItself,
        Self::MeansSomethingElse,
        Self::CrashWithLocks,
        Self::Recovery,
        Self::Ghost,
        Self::DeadRefused,
        Self::LateUnlock,
        Self::LateCommit,
        Self::MarkConflict,
        Self::AbortedByOther,
        Self::RolledForward,
        Self::LateMark,
    ];
}

/// As one bit of a set.
pub(crate) fn bit(what: Reached) -> u32 {
    1 << what as u32
}

/// Those of all that are not in a set.
pub(crate) fn missing(set: u32) -> Vec<Reached> {
    Reached::ALL.into_iter().filter(|what| set & bit(*what) == 0).collect()
}
