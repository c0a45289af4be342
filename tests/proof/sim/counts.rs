//! How often what happened: a run that has not seen what it claims to exercise has shown nothing.

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Turns that the scheduler gave.
    Steps,
    /// Cells read.
    Reads,
    /// Cells changed.
    Writes,
    /// Compare-and-sets that found another version.
    CasConflicts,
    /// Compare-and-sets whose sender learned nothing.
    Unknown,
    /// Requests that landed after their sender had gone on, and changed something.
    LateLandings,
    /// Requests that landed late or twice, and were refused by their version.
    LateRefused,
    /// Reads that failed.
    FailedReads,
    /// Hosts that stood still for a while.
    Pauses,
    /// Clocks that jumped.
    ClockJumps,
    /// Hosts that died.
    Crashes,
    /// Requests of a session that had been fenced: zombies at work.
    ZombieRequests,
    /// Sessions that were fenced.
    Fences,
    /// Sessions whose recovery was finished.
    Recoveries,
    /// Changes of several documents that took effect.
    Commits,
    /// Commits that were refused because a check failed.
    CommitConflicts,
    /// Commits whose intent was aborted.
    Aborts,
    /// Commits of which their caller learned nothing.
    UnknownCommits,
    /// Lock sets that were granted.
    Grants,
    /// Lock sets that were granted while their commit was being prepared.
    TakenBeside,
    /// Lock sets that were asked for together with the beginning of an intent.
    TakenAlong,
    /// Commits whose marks were sent with their first request.
    MarkedAtOnce,
    /// Those of them that took locks by it, too.
    LockedAtOnce,
    /// Operations that had to wait for a lock.
    Waits,
    /// Shares that were used which the session had kept.
    KeptUses,
    /// Lock sets whose wait timed out.
    TimeOuts,
    /// Operations that started over because what they had locked was not what they meant any more.
    Revalidations,
}

impl Count {
    /// Every count, in the order of their declaration.
    pub(crate) const ALL: [Self; 27] = [
        Self::Steps,
        Self::Reads,
        Self::Writes,
        Self::CasConflicts,
        Self::Unknown,
        Self::LateLandings,
        Self::LateRefused,
        Self::FailedReads,
        Self::Pauses,
        Self::ClockJumps,
        Self::Crashes,
        Self::ZombieRequests,
        Self::Fences,
        Self::Recoveries,
        Self::Commits,
        Self::CommitConflicts,
        Self::Aborts,
        Self::UnknownCommits,
        Self::Grants,
        Self::TakenBeside,
        Self::TakenAlong,
        Self::MarkedAtOnce,
        Self::LockedAtOnce,
        Self::Waits,
        Self::KeptUses,
        Self::TimeOuts,
        Self::Revalidations,
    ];
}

/// A number for each [`Count`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts([u64; Count::ALL.len()]);

impl Counts {
    pub(crate) fn add(&mut self, what: Count) {
        self.0[what as usize] += 1;
    }

    pub(crate) fn add_many(&mut self, what: Count, times: u64) {
        self.0[what as usize] += times;
    }

    pub(crate) fn get(&self, what: Count) -> u64 {
        self.0[what as usize]
    }

    /// Adds those of another run.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, others) in self.0.iter_mut().zip(other.0) {
            *mine += others;
        }
    }
}
