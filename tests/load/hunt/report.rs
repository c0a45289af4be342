//! What the rounds gave, and whether that is enough to have looked.

use crate::options::Options;
use std::collections::BTreeMap;
use std::time::Duration;

/// Of so many rounds the calls must have overlapped: one in this number.
const OVERLAP_SHARE: u64 = 20;

/// The kind of rounds of which one of two sides wins, each as often as the other.
pub(crate) const TELLING: &str = "deep";

/// Counts of one thread, or of all.
#[derive(Default)]
pub(crate) struct Tally {
    /// Rounds judged.
    pub(crate) rounds: u64,
    /// Rounds in which all calls were under way at the same moment.
    pub(crate) overlapped: u64,
    /// Rounds in which more moves took effect than one after the other allow.
    pub(crate) loops: u64,
    /// Looks and moves back that met what was before, and were tried again.
    pub(crate) stale: u64,
    /// For how long one of them did at the most.
    pub(crate) stale_longest: Duration,
    /// The longest that a move has taken, done or refused.
    pub(crate) move_longest: Duration,
    /// Walks that counted every directory and file.
    pub(crate) walks: u64,
    /// By kind of round: which sides succeeded, and how often.
    pub(crate) winners: BTreeMap<(&'static str, String), u64>,
    /// Why a side was refused.
    pub(crate) refusals: BTreeMap<String, u64>,
    /// What must not be.
    pub(crate) violations: Vec<String>,
}

impl Tally {
    /// The sum of two.
    pub(crate) fn add(mut self, other: Self) -> Self {
        self.rounds += other.rounds;
        self.overlapped += other.overlapped;
        self.loops += other.loops;
        self.walks += other.walks;
        self.stale += other.stale;
        self.stale_longest = self.stale_longest.max(other.stale_longest);
        self.move_longest = self.move_longest.max(other.move_longest);
        other.winners.into_iter().for_each(|(k, n)| *self.winners.entry(k).or_default() += n);
        other.refusals.into_iter().for_each(|(k, n)| *self.refusals.entry(k).or_default() += n);
        self.violations.extend(other.violations);
        self
    }

    pub(crate) fn print(&self, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        println!(
            "{} rounds in {seconds:.1} s ({:.0} a second), {} overlapped, {} walks, moves took up to {} ms, \
             {} stale looks (up to {} ms), {} loops",
            self.rounds,
            self.rounds as f64 / seconds,
            self.overlapped,
            self.walks,
            self.move_longest.as_millis(),
            self.stale,
            self.stale_longest.as_millis(),
            self.loops
        );
        for ((kind, sides), count) in &self.winners {
            println!("  {kind:<10} done by {sides:<8} {count}");
        }
        let refusals: Vec<String> = self.refusals.iter().map(|(name, n)| format!("{name} {n}")).collect();
        println!("  refused: {}", refusals.join(", "));
    }

    /// What is wrong with the outcome.
    pub(crate) fn judge(&self, options: &Options) -> Vec<String> {
        if options.expect_loops {
            let none = self.loops == 0;
            return none.then(|| "no loop was found, though the rules are off".into()).into_iter().collect();
        }
        let mut wrong = self.violations.clone();
        if self.overlapped * OVERLAP_SHARE < self.rounds {
            wrong.push(format!("only {} of {} rounds overlapped", self.overlapped, self.rounds));
        }
        for side in ["0", "1"] {
            if !self.winners.keys().any(|(kind, sides)| *kind == TELLING && sides == side) {
                wrong.push(format!("side {side} never came first: the two orders were not both seen"));
            }
        }
        wrong
    }
}
