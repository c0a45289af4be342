//! What goes wrong in a simulation, and how often: drawn anew for each seed.

use crate::rng::Rng;

/// The faults of one simulation. Rates are per thousand requests, or per hundred thousand turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Requests that never arrive; the sender times out.
    pub(crate) lost_requests: u64,
    /// Requests that are carried out and whose answer never arrives.
    pub(crate) lost_answers: u64,
    /// Requests that are carried out after the sender has timed out.
    pub(crate) late_requests: u64,
    /// Requests that are carried out, answered, and carried out again later.
    pub(crate) duplicates: u64,
    /// Reads that fail.
    pub(crate) failed_reads: u64,
    /// Hosts that stand still, per hundred thousand turns.
    pub(crate) pauses: u64,
    /// Clocks that jump forward, per hundred thousand turns.
    pub(crate) clock_jumps: u64,
    /// Hosts that die, per hundred thousand turns.
    pub(crate) crashes: u64,
    /// The longest pause or jump, in nanoseconds.
    pub(crate) pause_max_ns: u64,
    /// How much time a turn takes at most, in nanoseconds.
    pub(crate) step_max_ns: u64,
    /// How often the same actor goes on, per thousand turns.
    pub(crate) sticky: u64,
    /// Nothing goes wrong that a protocol may answer by declaring somebody dead.
    pub(crate) calm: bool,
    /// After so many turns nothing goes wrong any more, and what is left must come to an end.
    pub(crate) quiet_after_steps: u64,
}

impl Faults {
    /// Draws which faults there are and how often. `lease_ns` gives the scale of pauses.
    pub(crate) fn draw(rng: &mut Rng, lease_ns: u64) -> Self {
        let mut rate = |most: u64| if rng.below(2) == 0 { 0 } else { 1 + rng.below(most) };
        let mut faults = Self {
            lost_requests: rate(60),
            lost_answers: rate(60),
            late_requests: rate(60),
            duplicates: rate(60),
            failed_reads: rate(30),
            pauses: rate(1_500),
            clock_jumps: rate(500),
            crashes: rate(500),
            ..Self::default()
        };
        faults.pause_max_ns = lease_ns * (1 + rng.below(4));
        // From a hundredth of a thousandth of a lease to a twentieth: nearly no time passes, or leases end in mid-flight.
        faults.step_max_ns = (lease_ns / 100_000) << rng.below(13);
        faults.sticky = [0, 0, 300, 700, 900][rng.below(5) as usize];
        faults.quiet_after_steps = 200 + rng.below(1_000);
        faults
    }

    /// A world in which nothing goes wrong.
    pub(crate) fn none() -> Self {
        Self { step_max_ns: 1_000, pause_max_ns: 1, ..Self::default() }
    }

    /// Nothing goes wrong, and little time passes between two turns.
    pub(crate) fn none_for(lease_ns: u64) -> Self {
        Self { step_max_ns: lease_ns / 5_000, ..Self::none() }
    }

    /// Nothing goes wrong but that clocks jump, and everybody has time: nobody has a reason to declare anybody dead.
    pub(crate) fn calm(lease_ns: u64) -> Self {
        let clock_jumps = 1_000;
        let pause_max_ns = 4 * lease_ns;
        Self { clock_jumps, pause_max_ns, calm: true, quiet_after_steps: 5_000, ..Self::none_for(lease_ns) }
    }

    /// Ends all faults; time goes on as it did.
    pub(crate) fn end(&mut self) {
        *self = Self {
            pause_max_ns: self.pause_max_ns,
            step_max_ns: self.step_max_ns,
            sticky: self.sticky,
            ..Self::default()
        };
    }
}
