//! The rules of the protocols, each with a switch: what may be switched off to see that a checker objects.
//!
//! A checker that has never failed proves nothing. So every rule that safety or progress rests on asks [`holds`] at the one
//! place where it is enforced, and the mutation run switches them off in turn and demands that some checker objects to
//! each. In an ordinary build `holds` is the constant `true` and leaves no trace; only the feature `proof`, which is for
//! tests, makes it a question. Imports nothing of Lockwood.

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A rename locks the ancestors of its source, shared.
    SourceAncestorsLocked,
    /// A rename locks the ancestors of its destination, shared.
    DestinationAncestorsLocked,
    /// The commit of a rename checks the entries of the ancestors of its source.
    SourceAncestorsChecked,
    /// The commit of a rename checks the entries of the ancestors of its destination.
    DestinationAncestorsChecked,
    /// Under `global`, a rename locks the whole volume.
    VolumeLocked,
    /// Under `document`, a rename locks everything below what it moves.
    MembersLocked,
    /// Under `document`, a rename locks the directory that it puts something in.
    DestinationDirectoryLocked,
    /// Under `document`, a rename starts over if its paths came to lead to other documents than those walked.
    MembersStillMeant,
    /// An operation whose locks were broken changes nothing any more.
    RevokedOperationChangesNothing,
    /// A session that was fenced changes nothing any more.
    FencedSessionChangesNothing,
    /// Before a change of names is acknowledged, the other mounts of the process look names up again.
    NamesToldBeforeReply,
    /// Before a change of attributes is acknowledged, the other mounts of the process forget the old ones.
    AttributesToldBeforeReply,
    /// A rename locks its source and its destination exclusively.
    TargetsLockedExclusive,
    /// A path that a set needs in both modes is locked in the stronger one.
    StrongerModeWins,
    /// Every operation takes its locks in the same order.
    GlobalOrder,
    /// A move of a directory below itself is refused before anything is locked.
    IntoItselfRefused,
    /// What a rename resolved before it had its locks is compared with what it finds under them.
    RevalidatedUnderLocks,
    /// The commit of a rename checks the entry that it moves.
    SourceEntryChecked,
    /// The commit of a rename checks the entry that it replaces, or that there is none.
    TargetEntryChecked,
    /// The commit that removes a directory checks the version that it saw empty.
    RmdirChecksVersion,
    /// The commit that makes a name checks that it is free.
    CreateChecksAbsence,
    /// The commit that adds a name to an inode checks that the inode is as it was read.
    LinkChecksVersion,
    /// The commit that takes a name from an inode checks that the inode is as it was read.
    UnlinkChecksVersion,
    /// Who waits for a lock exclusive stops new shares of it.
    WaitingExclusiveStopsNewShares,
    /// Who comes to the queue of a lock goes to its end.
    QueueIsFirstComeFirstServed,
    /// A lock that is held keeps its mode, whatever its holder asks for.
    NoUpgrade,
    /// An operation stands in the queue of a lock once, however often it asks.
    ClaimAddedOnce,
    /// A release takes the lock from the operation that it names and from no other.
    ReleaseIsOwnerChecked,
    /// An operation that asks for its set again keeps what it has and gets nothing more.
    AcquireIsIdempotent,
    /// Who gives up at its deadline releases what it held meanwhile.
    ExpiredReleasesEverything,
    /// A session that is dropped leaves the queues too, not only the locks that it holds.
    DroppedSessionLeavesQueues,
    /// A session may be fenced only after its heartbeat has stood still for a whole lease on the observer's clock.
    LeaseObservedOnOwnClockForItsWholeLength,
    /// A heartbeat that has changed starts the lease again.
    HeartbeatChangeRestartsTheLease,
    /// A gap between two observations counts for a part of the lease at most.
    LongGapsCountInPart,
    /// Nothing of a session is recovered before it is fenced.
    FenceBeforeRelease,
    /// The claims of a dead session are removed only after its intents are settled.
    IntentsSettledBeforeLocksDropped,
    /// A session is called recovered only after its claims have been removed.
    ClaimsDroppedBeforeRecovered,
    /// A session is live only after it has made its intents.
    JoiningBeforeLive,
    /// A session that knows that it is fenced starts nothing any more.
    FencedSessionStops,
    /// A session whose heartbeat was not confirmed for a lease starts nothing until one is.
    UnconfirmedSessionStops,
    /// An operation removes its own claim and no other.
    ClaimRemovedByItsOwnerOnly,
    /// A claim whose operation is over for certain is removed by those whom it blocks.
    GhostsRemoved,
    /// A share that a session keeps is let go of when somebody waits for it.
    KeptSharesGivenUp,
    /// A claim is a ghost only if its session is gone or its operation is over.
    LiveClaimsAreNoGhosts,
    /// An intent is committed only from the very version at which its owner made it pending.
    IntentDecidedByCas,
    /// A mark is set only on the version of the document that the commit has read.
    MarkSetByCas,
    /// A document that a pending intent has marked is not written before that intent is decided.
    PendingMarksRespected,
    /// Who meets a mark asks its intent which side is true.
    ReaderAsksTheIntent,
    /// Who finds the slot of a mark used for something else reads the document again.
    ReaderReadsAgainWhenTheSlotMovedOn,
    /// A committed intent speaks for the marks that it lists with their versions, and for no others.
    DuplicateMarksIgnored,
    /// A page that shows several documents of an intent that was committed meanwhile is read again.
    PageReadAgainAfterItsIntents,
    /// What a commit checks and does not write is marked too, unless locks cover it.
    ChecksMarked,
    /// What locks cover is compared with what was read when all that is written has been marked.
    CoveredChecksValidatedAfterMarking,
    /// A slot is used again only when all marks of its committed use are gone.
    MarksGoneBeforeReuse,
    /// Recovery completes the committed intents of a dead session.
    CommittedIntentsRolledForward,
    /// Recovery seals the slots of a dead session.
    SlotsSealed,
    /// Who gets no answer reads again before it decides what has happened.
    UnknownResolvedByReading,
    /// A write that got no answer is given up only once it was refused: what is read may be older.
    LostOnlyWhenRefused,
    /// That nothing of the dead is there, or that a mark is gone, is concluded from writes alone.
    AbsenceMadeCertain,
    /// A slot of a dead session is deleted only once it is sealed.
    OpenSlotsNeverDeleted,
}

impl Rule {
    /// Every rule, in the order of their declaration.
    pub const ALL: &[Self] = &[
        Self::SourceAncestorsLocked,
        Self::DestinationAncestorsLocked,
        Self::SourceAncestorsChecked,
        Self::DestinationAncestorsChecked,
        Self::VolumeLocked,
        Self::MembersLocked,
        Self::DestinationDirectoryLocked,
        Self::MembersStillMeant,
        Self::RevokedOperationChangesNothing,
        Self::FencedSessionChangesNothing,
        Self::NamesToldBeforeReply,
        Self::AttributesToldBeforeReply,
        Self::TargetsLockedExclusive,
        Self::StrongerModeWins,
        Self::GlobalOrder,
        Self::IntoItselfRefused,
        Self::RevalidatedUnderLocks,
        Self::SourceEntryChecked,
        Self::TargetEntryChecked,
        Self::RmdirChecksVersion,
        Self::CreateChecksAbsence,
        Self::LinkChecksVersion,
        Self::UnlinkChecksVersion,
        Self::WaitingExclusiveStopsNewShares,
        Self::QueueIsFirstComeFirstServed,
        Self::NoUpgrade,
        Self::ClaimAddedOnce,
        Self::ReleaseIsOwnerChecked,
        Self::AcquireIsIdempotent,
        Self::ExpiredReleasesEverything,
        Self::DroppedSessionLeavesQueues,
        Self::LeaseObservedOnOwnClockForItsWholeLength,
        Self::HeartbeatChangeRestartsTheLease,
        Self::LongGapsCountInPart,
        Self::FenceBeforeRelease,
        Self::IntentsSettledBeforeLocksDropped,
        Self::ClaimsDroppedBeforeRecovered,
        Self::JoiningBeforeLive,
        Self::FencedSessionStops,
        Self::UnconfirmedSessionStops,
        Self::ClaimRemovedByItsOwnerOnly,
        Self::GhostsRemoved,
        Self::KeptSharesGivenUp,
        Self::LiveClaimsAreNoGhosts,
        Self::IntentDecidedByCas,
        Self::MarkSetByCas,
        Self::PendingMarksRespected,
        Self::ReaderAsksTheIntent,
        Self::ReaderReadsAgainWhenTheSlotMovedOn,
        Self::DuplicateMarksIgnored,
        Self::PageReadAgainAfterItsIntents,
        Self::ChecksMarked,
        Self::CoveredChecksValidatedAfterMarking,
        Self::MarksGoneBeforeReuse,
        Self::CommittedIntentsRolledForward,
        Self::SlotsSealed,
        Self::UnknownResolvedByReading,
        Self::LostOnlyWhenRefused,
        Self::AbsenceMadeCertain,
        Self::OpenSlotsNeverDeleted,
    ];

    /// The name, as the variable `LOCKWOOD_RULES_OFF` and the mutation table write it.
    pub fn name(self) -> String {
        let camel = format!("{self:?}");
        let mut name = String::with_capacity(camel.len() + 8);
        for (at, character) in camel.char_indices() {
            if character.is_uppercase() && at > 0 {
                name.push('-');
            }
            name.extend(character.to_lowercase());
        }
        name
    }
}

/// Whether a rule is in force.
#[cfg(not(feature = "proof"))]
#[inline(always)]
pub const fn holds(_rule: Rule) -> bool {
    true
}

#[cfg(feature = "proof")]
pub use switches::{holds, only_off, read_environment};

#[cfg(feature = "proof")]
mod switches {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::Rule;

    /// A bit for each rule that is switched off, in the whole process.
    static OFF: AtomicU64 = AtomicU64::new(0);

    /// Whether a rule is in force.
    pub fn holds(rule: Rule) -> bool {
        OFF.load(Relaxed) & bit(rule) == 0
    }

    /// Switches off these rules and no others, for the whole process.
    pub fn only_off(rules: &[Rule]) {
        OFF.store(rules.iter().fold(0, |bits, rule| bits | bit(*rule)), Relaxed);
    }

    /// Switches off the rules that the variable `LOCKWOOD_RULES_OFF` names, separated by commas.
    ///
    /// # Errors
    /// The first name that is none.
    pub fn read_environment() -> Result<(), String> {
        let Ok(text) = std::env::var("LOCKWOOD_RULES_OFF") else { return Ok(()) };
        let named = |name: &str| {
            let found = Rule::ALL.iter().copied().find(|rule| rule.name() == name);
            found.ok_or_else(|| format!("LOCKWOOD_RULES_OFF: there is no rule {name:?}"))
        };
        let names = text.split(',').filter(|name| !name.is_empty());
        only_off(&names.map(named).collect::<Result<Vec<_>, _>>()?);
        Ok(())
    }

    fn bit(rule: Rule) -> u64 {
        1 << rule as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_table() {
        assert_eq!(Rule::SourceAncestorsLocked.name(), "source-ancestors-locked");
        assert!(Rule::ALL.len() <= 64, "a bit a rule");
        assert!(
            Rule::ALL.windows(2).all(|pair| (pair[0] as u8) + 1 == pair[1] as u8),
            "ALL names every rule"
        );
    }
}
