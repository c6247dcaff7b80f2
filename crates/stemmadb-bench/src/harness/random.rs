//! A seeded random generator, so that every run and every peer sees the same data.

/// The splitmix64 generator.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates a generator from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Creates the generator of item `number` in the stream `seed`, so that items can be generated independently.
    pub(crate) fn at(seed: u64, number: u64) -> Self {
        Random(mix(seed ^ mix(number.wrapping_add(GAMMA))))
    }

    /// Returns the next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Returns a number below `bound`; the bias is below 2^-32 for the bounds used here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true with the given probability.
    pub(crate) fn chance(&mut self, share: f64) -> bool {
        // 53 bits form a fraction that a double holds exactly.
        ((self.next() >> 11) as f64) < share * (1_u64 << 53) as f64
    }
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_matches_splitmix64() {
        // The reference sequence of seed 1234567.
        let mut random = Random::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.next(), random.next(), random.next()], expected);
    }

    #[test]
    fn below_covers_the_whole_range() {
        let mut random = Random::new(1);
        let mut seen = [false; 10];
        for _ in 0..1_000 {
            seen[random.below(10) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
    }
}
