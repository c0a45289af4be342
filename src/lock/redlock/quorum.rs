//! When a set of locks is held: the votes of independent servers, and for how long they are good. Pure.
//!
//! The algorithm is Redlock (redis.io, "Distributed Locks with Redis"). A majority of the servers must have granted the set;
//! from the time for which it was asked the time that this took is taken off, and what clocks may differ by.

use std::time::Duration;

/// Clocks of servers and hosts may run apart by so much: one part in as many.
const DRIFT_PART: u32 = 100;
/// And expiry is as exact as this.
const DRIFT_LEAST: Duration = Duration::from_millis(2);

/// What the servers said to one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Votes {
    /// They granted it.
    pub(super) granted: usize,
    /// They have others who are in the way.
    pub(super) refused: usize,
    /// They did not answer, or do not count now.
    pub(super) absent: usize,
}

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is held, for so long from the moment at which it was asked for.
    Granted { valid_for: Duration },
    /// Others hold it, or a part of it, or want it too.
    Refused,
    /// Too few servers answered to say.
    NoMajority,
    /// It was granted, and is too old to be of use.
    TooSlow,
}

/// What may be lost of `ttl` because clocks differ.
pub(super) fn drift(ttl: Duration) -> Duration {
    ttl / DRIFT_PART + DRIFT_LEAST
}

/// Judges the votes of one request, of which the last came `elapsed` after it was begun.
pub(super) fn judge(votes: Votes, ttl: Duration, elapsed: Duration) -> Verdict {
    let majority = (votes.granted + votes.refused + votes.absent) / 2 + 1;
    let valid_for = ttl.saturating_sub(drift(ttl));
    match votes {
        Votes { granted, .. } if granted >= majority && elapsed < valid_for => Verdict::Granted { valid_for },
        Votes { granted, .. } if granted >= majority => Verdict::TooSlow,
        Votes { granted, refused, .. } if granted + refused < majority => Verdict::NoMajority,
        // Who answered is a majority and who granted is none, so somebody refused.
        _ => Verdict::Refused,
    }
}

/// Until when a grant is good that was to be extended; times are by the holder's clock. It was good until `until`, the
/// request was begun at `asked`, and its verdict was there at `now`. An extension that comes late does not count: between
/// the end and the new beginning somebody else may have held the locks.
pub(super) fn extended(until: Duration, asked: Duration, now: Duration, verdict: Verdict) -> Duration {
    match verdict {
        Verdict::Granted { valid_for } if now < until => until.max(asked.saturating_add(valid_for)),
        _ => until,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    /// 10 s less 1 % less 2 ms.
    const VALID: Duration = Duration::from_millis(9_898);

    #[test]
    fn a_majority_grants() {
        let valid = Verdict::Granted { valid_for: VALID };
        let table = [
            (1, 0, 0, valid),
            (0, 1, 0, Verdict::Refused),
            (0, 0, 1, Verdict::NoMajority),
            (3, 2, 0, valid),
            (3, 0, 2, valid),
            (2, 3, 0, Verdict::Refused),
            (2, 1, 2, Verdict::Refused),
            (2, 0, 3, Verdict::NoMajority),
            (1, 1, 3, Verdict::NoMajority),
            // Of an even number half is no majority.
            (2, 2, 0, Verdict::Refused),
            (2, 0, 2, Verdict::NoMajority),
            (3, 1, 0, valid),
        ];
        for (granted, refused, absent, expected) in table {
            let votes = Votes { granted, refused, absent };
            assert_eq!(judge(votes, TTL, Duration::from_millis(5)), expected, "{votes:?}");
        }
    }

    #[test]
    fn what_took_too_long_is_not_held() {
        let votes = Votes { granted: 3, refused: 0, absent: 2 };
        assert_eq!(judge(votes, TTL, VALID - Duration::from_nanos(1)), Verdict::Granted { valid_for: VALID });
        assert_eq!(judge(votes, TTL, VALID), Verdict::TooSlow);
        assert_eq!(judge(votes, Duration::from_millis(1), Duration::ZERO), Verdict::TooSlow);
    }

    #[test]
    fn an_extension_counts_only_while_the_grant_is_good() {
        let s = Duration::from_secs;
        let granted = Verdict::Granted { valid_for: s(10) };
        assert_eq!(extended(s(10), s(4), s(5), granted), s(14));
        assert_eq!(extended(s(10), s(9), s(10), granted), s(10));
        for verdict in [Verdict::Refused, Verdict::NoMajority, Verdict::TooSlow] {
            assert_eq!(extended(s(10), s(4), s(5), verdict), s(10));
        }
    }
}
