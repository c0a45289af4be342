//! Points in time as files carry them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A wall-clock time: whole seconds since 1970 (negative before), and nanoseconds after that second, below 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC, rounded down.
    pub sec: i64,
    /// Nanoseconds after `sec`.
    pub nsec: u32,
}

const NANOS_PER_SECOND: u32 = 1_000_000_000;

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self { sec: saturate(after.as_secs()), nsec: after.subsec_nanos() },
            Err(error) => {
                let before = error.duration();
                let sec = saturate(before.as_secs()).saturating_neg();
                match before.subsec_nanos() {
                    0 => Self { sec, nsec: 0 },
                    nanos => Self { sec: sec.saturating_sub(1), nsec: NANOS_PER_SECOND - nanos },
                }
            }
        }
    }
}

fn saturate(secs: u64) -> i64 {
    i64::try_from(secs).unwrap_or(i64::MAX)
}

impl Timestamp {
    /// The same point as the standard library's type; the nearest that it can hold when it cannot hold this one.
    pub fn to_system_time(self) -> SystemTime {
        let nanos = Duration::from_nanos(u64::from(self.nsec.min(NANOS_PER_SECOND - 1)));
        let whole = Duration::from_secs(self.sec.unsigned_abs());
        let second =
            if self.sec >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
        second.and_then(|s| s.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_round_down() {
        for t in [
            Timestamp { sec: -1, nsec: 999_999_999 },
            Timestamp { sec: -86_400, nsec: 0 },
            Timestamp { sec: 0, nsec: 0 },
            Timestamp { sec: 1 << 40, nsec: 1 },
            Timestamp { sec: -(1 << 40), nsec: 1 },
        ] {
            assert_eq!(Timestamp::from(t.to_system_time()), t);
        }
        assert!(Timestamp { sec: -1, nsec: 5 } < Timestamp { sec: 0, nsec: 0 });
    }
}
