//! Exact summation of numbers in a fixed-point accumulator wide enough for every double.
//!
//! Additions lose nothing, so the sum does not depend on their order, and subtracting a number undoes its addition.

use std::fmt;

use super::{Number, Numeric};

/// The lowest bit has the value 2^-1074, the least positive double.
const LOWEST: i32 = 1074;
/// Enough for the largest double times 2^64, in limbs of 32 bits.
const LIMBS: usize = (LOWEST as usize + 1024 + 128) / 32 + 1;
/// The number of additions after which limbs are carried, so that no limb overflows.
const ADDITIONS_MAX: u32 = 1 << 28;

/// An exact sum of numbers.
#[derive(Clone)]
pub(crate) struct ExactSum {
    /// Little-endian, in base 2^32, each limb with its own sign; carried after [`ADDITIONS_MAX`] additions.
    limbs: Box<[i64; LIMBS]>,
    additions: u32,
}

impl Default for ExactSum {
    fn default() -> Self {
        ExactSum { limbs: Box::new([0; LIMBS]), additions: 0 }
    }
}

impl fmt::Debug for ExactSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.total())
    }
}

impl ExactSum {
    /// Adds a number `count` times.
    pub(crate) fn add(&mut self, number: Number, count: u64) {
        self.change(number, count, false);
    }

    /// Subtracts a number `count` times.
    pub(crate) fn subtract(&mut self, number: Number, count: u64) {
        self.change(number, count, true);
    }

    /// Adds another sum.
    pub(crate) fn add_sum(&mut self, other: &ExactSum) {
        carry(&mut self.limbs);
        let mut added = *other.limbs;
        carry(&mut added);
        self.limbs.iter_mut().zip(added).for_each(|(limb, added)| *limb += added);
        self.additions = 1;
    }

    fn change(&mut self, number: Number, count: u64, is_subtracted: bool) {
        let (is_negative, mantissa, exponent) = match number.numeric() {
            Numeric::I64(signed) => (signed < 0, signed.unsigned_abs(), 0),
            Numeric::U64(unsigned) => (false, unsigned, 0),
            Numeric::F64(double) => decompose(double),
        };
        debug_assert!(exponent + LOWEST >= 0, "no double has a bit below the lowest bit of the sum");
        let bit = (exponent + LOWEST) as usize;
        let mut rest = u128::from(mantissa) * u128::from(count);
        let (mut limb, shift) = (bit / 32, bit % 32);
        let mut add = |limb: usize, bits: u64| {
            let bits = bits as i64;
            self.limbs[limb] += if is_negative != is_subtracted { -bits } else { bits };
        };
        // The first limb takes the bits that fit above the shift.
        let first = rest & (u128::from(u32::MAX) >> shift);
        add(limb, (first as u64) << shift);
        rest >>= 32 - shift;
        while rest != 0 {
            limb += 1;
            add(limb, (rest & u128::from(u32::MAX)) as u64);
            rest >>= 32;
        }
        self.count_addition();
    }

    fn count_addition(&mut self) {
        self.additions += 1;
        if self.additions >= ADDITIONS_MAX {
            carry(&mut self.limbs);
            self.additions = 0;
        }
    }

    /// The carried limbs of the absolute value, and whether the sum is negative.
    fn magnitude(&self) -> ([i64; LIMBS], bool) {
        let mut limbs = *self.limbs;
        carry(&mut limbs);
        let is_negative = limbs[LIMBS - 1] < 0;
        if is_negative {
            limbs.iter_mut().for_each(|limb| *limb = -*limb);
            carry(&mut limbs);
        }
        (limbs, is_negative)
    }

    /// Appends the stored form: sign, limb count, index of the first limb, limbs. About ten bytes for small numbers.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (limbs, is_negative) = self.magnitude();
        let first = limbs.iter().position(|limb| *limb != 0).unwrap_or(0);
        let end = limbs.iter().rposition(|limb| *limb != 0).map_or(0, |last| last + 1);
        // Every limb fits 32 bits: the accumulator holds the sum of 2^64 doubles.
        out.extend_from_slice(&[u8::from(is_negative), (end - first) as u8, first as u8]);
        limbs[first..end].iter().for_each(|limb| out.extend_from_slice(&(*limb as u32).to_le_bytes()));
    }

    /// Adds a sum in the stored form from the front of `input` and advances it; `None` if the bytes are malformed.
    pub(crate) fn add_encoded(&mut self, input: &mut &[u8]) -> Option<()> {
        let (&[sign, count, first], rest) = input.split_first_chunk::<3>()?;
        let (limbs, rest) = rest.split_at_checked(4 * usize::from(count))?;
        let targets = self.limbs.get_mut(usize::from(first)..)?.get_mut(..usize::from(count))?;
        for (target, limb) in targets.iter_mut().zip(limbs.as_chunks::<4>().0) {
            let limb = i64::from(u32::from_le_bytes(*limb));
            *target += if sign == 1 { -limb } else { limb };
        }
        *input = rest;
        self.count_addition();
        Some(())
    }

    /// The sum: an integer if it is a whole number that fits 64 bits, else the nearest double; `None` if that is
    /// infinite.
    pub(crate) fn total(&self) -> Option<Number> {
        let (limbs, is_negative) = self.magnitude();
        let Some(top) = limbs.iter().rposition(|limb| *limb != 0) else { return Some(Number::from(0)) };
        let highest = top * 32 + 31 - (limbs[top] as u32).leading_zeros() as usize;
        let bit = |at: usize| limbs[at / 32] >> (at % 32) & 1 == 1;
        let one = LOWEST as usize;
        if highest < one + 64 && (0..one).all(|at| !bit(at)) {
            let integer = (one..=highest).filter(|at| bit(*at)).map(|at| 1i128 << (at - one)).sum::<i128>();
            if let Some(number) = Number::from_i128(if is_negative { -integer } else { integer }) {
                return Some(number);
            }
        }
        // Take the highest 53 bits, or fewer for a subnormal; then round to nearest, ties to even.
        let lowest = highest.saturating_sub(52);
        let mut mantissa = (lowest..=highest).filter(|at| bit(*at)).map(|at| 1u64 << (at - lowest)).sum::<u64>();
        if lowest > 0 && bit(lowest - 1) {
            let is_above_half = (0..lowest - 1).any(bit);
            mantissa += u64::from(is_above_half || mantissa & 1 == 1);
        }
        // Both factors are exact, and the product is exact unless it overflows.
        let exponent = lowest as i32 - LOWEST;
        let scaled = if exponent < -1000 {
            mantissa as f64 * 2f64.powi(exponent + 1000) * 2f64.powi(-1000)
        } else {
            mantissa as f64 * 2f64.powi(exponent)
        };
        Number::from_f64(if is_negative { -scaled } else { scaled })
    }
}

/// Splits a double into sign, mantissa and exponent of two.
fn decompose(double: f64) -> (bool, u64, i32) {
    let bits = double.to_bits();
    let (fraction, exponent) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7ff) as i32);
    let (mantissa, exponent) = if exponent == 0 { (fraction, 1) } else { (fraction | 1 << 52, exponent) };
    (double.is_sign_negative(), mantissa, exponent - 1075)
}

/// Normalizes every limb but the last to the range 0 to 2^32 - 1.
fn carry(limbs: &mut [i64; LIMBS]) {
    let mut carried = 0;
    let (last, others) = limbs.split_last_mut().expect("LIMBS is not zero");
    for limb in others {
        let sum = *limb + carried;
        carried = sum >> 32;
        *limb = sum & i64::from(u32::MAX);
    }
    *last += carried;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(numbers: &[Number]) -> Option<Number> {
        let mut sum = ExactSum::default();
        numbers.iter().for_each(|number| sum.add(*number, 1));
        sum.total()
    }

    fn double(double: f64) -> Number {
        Number::from_f64(double).expect("finite")
    }

    #[test]
    fn sums_are_exact() {
        assert_eq!(sum(&[]), Some(Number::from(0)));
        assert_eq!(sum(&[double(1e100), Number::from(1), double(-1e100)]), Some(Number::from(1)));
        assert_eq!(sum(&[double(0.5), double(0.5)]), Some(Number::from(1)));
        assert_eq!(sum(&[double(0.1), double(0.2)]), Some(double(0.1 + 0.2)));
        assert_eq!(sum(&[Number::from(u64::MAX), Number::from(1)]), Some(double(18446744073709551616.0)));
        assert_eq!(sum(&[Number::from(i64::MIN)]), Some(Number::from(i64::MIN)));
        assert_eq!(sum(&[Number::from(i64::MIN), Number::from(-1)]), Some(double(-9223372036854775808.0)));
        assert_eq!(sum(&[double(f64::MAX), double(f64::MAX)]), None);
        assert_eq!(sum(&[double(f64::MAX), double(f64::MAX), double(-f64::MAX)]), Some(double(f64::MAX)));
        for least in [f64::from_bits(1), f64::from_bits(3), f64::MIN_POSITIVE, -f64::from_bits(7), f64::MAX, 1e300] {
            assert_eq!(sum(&[double(least)]), Some(double(least)));
        }
    }

    proptest! {
        #[test]
        fn integers_and_small_fractions_agree_with_wide_integers(
            numbers in prop::collection::vec((any::<i64>(), 0u32..20, 1u64..9), 0..40),
        ) {
            let (mut exact, mut wide) = (ExactSum::default(), 0i128);
            for (integer, power, count) in numbers {
                // A double of at most twenty bits of fraction is exact.
                let integer = integer >> 12;
                exact.add(double(integer as f64 / f64::from(1u32 << power)), count);
                wide += (i128::from(integer) * i128::from(count)) << (20 - power);
            }
            let expected = match wide % (1 << 20) {
                0 => Number::from_i128(wide >> 20).expect("small"),
                _ => double(wide as f64 / f64::from(1u32 << 20)),
            };
            prop_assert_eq!(exact.total(), Some(expected));
        }

        #[test]
        fn stored_partial_sums_add_up(
            doubles in prop::collection::vec(any::<f64>().prop_filter("finite", |double| double.is_finite()), 0..20),
            at in 0usize..20,
        ) {
            let numbers: Vec<Number> = doubles.into_iter().map(double).collect();
            let (mut stored, mut combined) = (Vec::new(), ExactSum::default());
            let (left, right) = numbers.split_at(at.min(numbers.len()));
            for part in [left, right] {
                let mut sum = ExactSum::default();
                part.iter().for_each(|number| sum.add(*number, 1));
                sum.encode(&mut stored);
            }
            let mut rest = stored.as_slice();
            while !rest.is_empty() {
                prop_assert!(combined.add_encoded(&mut rest).is_some());
            }
            prop_assert_eq!(combined.total(), sum(&numbers));
            let mut added = ExactSum::default();
            for part in [left, right] {
                let mut sum = ExactSum::default();
                part.iter().for_each(|number| sum.add(*number, 1));
                added.add_sum(&sum);
            }
            prop_assert_eq!(added.total(), sum(&numbers));
            prop_assert!(combined.add_encoded(&mut &stored[..2]).is_none());
        }

        #[test]
        fn sum_does_not_depend_on_order(
            doubles in prop::collection::vec(any::<f64>().prop_filter("finite", |double| double.is_finite()), 1..20),
        ) {
            let numbers: Vec<Number> = doubles.into_iter().map(double).collect();
            let reversed: Vec<Number> = numbers.iter().rev().copied().collect();
            prop_assert_eq!(sum(&numbers), sum(&reversed));
            if let [one] = numbers.as_slice() {
                prop_assert!(sum(&[*one]).is_some_and(|total| total.compare(*one).is_eq()));
            }
        }
    }
}
