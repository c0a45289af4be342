//! Seeded randomness (SplitMix64, Steele, Lea and Flood 2014): the same seed makes the same choices.

/// A stream of random numbers.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// The seed of a run: fixed, so that a run can be had again, unless `LOCKWOOD_SEED` gives another one.
pub(crate) fn seed() -> u64 {
    std::env::var("LOCKWOOD_SEED").map_or(20_260_301, |text| text.parse().expect("LOCKWOOD_SEED is a number"))
}
