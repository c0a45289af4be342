//! Points in time as lock documents show them: RFC 3339, UTC, milliseconds. Never used to decide anything. Imports the
//! layer's error.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::error::LockError;

const DAY_S: u64 = 86_400;

/// A point in time by the wall clock, in whole milliseconds: `2026-03-01T12:00:00.000Z`. Text in JSON; its text sorts
/// as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub unix_ms: u64,
}

impl Timestamp {
    /// What the wall clock said `ago` before it said `wall_clock`; at the earliest the epoch.
    pub fn before(wall_clock: SystemTime, ago: Duration) -> Timestamp {
        let since_epoch = wall_clock.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(ago);
        Timestamp { unix_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX) }
    }
}

/// The civil date of a day counted from 1970-01-01 (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// The inverse, for years from 1970.
fn days_from_civil(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day.checked_sub(1)?;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, ms) = (self.unix_ms / 1_000, self.unix_ms % 1_000);
        let (year, month, day) = civil_from_days(seconds / DAY_S);
        let second_of_day = seconds % DAY_S;
        let (hour, minute, second) = (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

/// Reads what [`Timestamp`] displays, and nothing else of RFC 3339.
impl FromStr for Timestamp {
    type Err = LockError;

    fn from_str(text: &str) -> Result<Timestamp, LockError> {
        parse(text).ok_or_else(|| LockError::InvalidTime { text: text.escape_debug().to_string() })
    }
}

fn parse(text: &str) -> Option<Timestamp> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let days = days_from_civil(number(0, 4)?, number(5, 7)?, number(8, 10)?)?;
    let second_of_day = number(11, 13)? * 3_600 + number(14, 16)? * 60 + number(17, 19)?;
    let timestamp = Timestamp { unix_ms: (days * DAY_S + second_of_day) * 1_000 + number(20, 23)? };
    // Writing it again is the test of everything else: separators, signs, days that the month does not have.
    (timestamp.to_string() == text).then_some(timestamp)
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_times() {
        let table = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_210_096_789, "2024-02-29T12:34:56.789Z"),
            (1_767_225_599_999, "2025-12-31T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (unix_ms, text) in table {
            assert_eq!(Timestamp { unix_ms }.to_string(), text);
            assert_eq!(text.parse::<Timestamp>().unwrap(), Timestamp { unix_ms });
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2026-02-30T00:00:00.000Z",
            "2026-13-01T00:00:00.000Z",
            "2026-00-01T00:00:00.000Z",
            "2026-01-00T00:00:00.000Z",
            "1969-12-31T23:59:59.000Z",
            "0000-01-01T00:00:00.000Z",
            "2026-01-01T24:00:00.000Z",
            "2026-01-01 00:00:00.000Z",
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:00.000+00:00",
            "+026-01-01T00:00:00.000Z",
            "2026-01-0\u{e9}T00:00:00.000Z",
        ] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_before_the_epoch_is_the_epoch() {
        let early = UNIX_EPOCH + Duration::from_secs(5);
        assert_eq!(Timestamp::before(early, Duration::from_secs(9)).unix_ms, 0);
        assert_eq!(Timestamp::before(early, Duration::from_millis(1)).unix_ms, 4_999);
    }

    proptest! {
        #[test]
        fn text_and_time_are_inverse(unix_ms in 0_u64..253_402_300_800_000) {
            let time = Timestamp { unix_ms };
            prop_assert_eq!(time.to_string().parse::<Timestamp>().unwrap(), time);
        }
    }
}
