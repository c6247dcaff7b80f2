//! A JSON number, stored exactly: a signed or unsigned 64-bit integer, or a finite double.
//!
//! Invariants: an integer that fits an `i64` is stored as `i64`; a double is finite. The constructors guarantee both,
//! so other code need not handle `NaN`.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// A JSON number: an integer from -2^63 to 2^64 - 1, or a finite double. Neither is ever rounded to the other.
///
/// `==` is exact: `1` and `1.0` differ, and so do `0.0` and `-0.0`. Queries compare by collation order, in which `1`
/// equals `1.0`.
#[derive(Clone, Copy)]
pub struct Number(Numeric);

/// The three representations of a number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Numeric {
    /// Every integer that fits an `i64`.
    I64(i64),
    /// An integer above `i64::MAX`.
    U64(u64),
    /// A finite double.
    F64(f64),
}

impl Number {
    /// The number of this double; `None` for `NaN` and the infinities, which JSON doesn't have.
    pub fn from_f64(double: f64) -> Option<Self> {
        double.is_finite().then_some(Number(Numeric::F64(double)))
    }

    /// The number of this integer; `None` outside -2^63 to 2^64 - 1.
    pub fn from_i128(integer: i128) -> Option<Self> {
        match (i64::try_from(integer), u64::try_from(integer)) {
            (Ok(signed), _) => Some(Self::from(signed)),
            (_, Ok(unsigned)) => Some(Self::from(unsigned)),
            _ => None,
        }
    }

    /// Whether the number is stored as an integer (`1`, not `1.0`).
    pub fn is_integer(self) -> bool {
        !matches!(self.0, Numeric::F64(_))
    }

    /// The integer, if the number is stored as an integer that fits `i64`.
    pub fn as_i64(self) -> Option<i64> {
        match self.0 {
            Numeric::I64(signed) => Some(signed),
            _ => None,
        }
    }

    /// The integer, if the number is stored as an integer that fits `u64`.
    pub fn as_u64(self) -> Option<u64> {
        match self.0 {
            Numeric::I64(signed) => u64::try_from(signed).ok(),
            Numeric::U64(unsigned) => Some(unsigned),
            Numeric::F64(_) => None,
        }
    }

    /// The nearest double: exact for a double and for integers up to 2^53.
    pub fn as_f64(self) -> f64 {
        match self.0 {
            Numeric::I64(signed) => signed as f64,
            Numeric::U64(unsigned) => unsigned as f64,
            Numeric::F64(double) => double,
        }
    }

    /// The integer that the number equals, stored as an integer (`3`) or as a double without a fraction (`3.0`).
    pub(crate) fn to_integer(self) -> Option<i128> {
        match self.0 {
            Numeric::I64(signed) => Some(signed.into()),
            Numeric::U64(unsigned) => Some(unsigned.into()),
            // The bound keeps the cast from saturating. Larger doubles are integers too, but no caller needs them.
            Numeric::F64(double) if double.fract() == 0.0 && double.abs() < 2f64.powi(126) => Some(double as i128),
            Numeric::F64(_) => None,
        }
    }

    /// The representation of the number.
    pub(crate) fn numeric(self) -> Numeric {
        debug_assert!(
            match self.0 {
                Numeric::I64(_) => true,
                Numeric::U64(unsigned) => i64::try_from(unsigned).is_err(),
                Numeric::F64(double) => double.is_finite(),
            },
            "an integer that fits i64 is stored as i64, and a double is finite"
        );
        self.0
    }

    /// Compares numerically, exact across integers and doubles (2^53 + 1 is above the double 2^53).
    pub(crate) fn compare(self, other: Self) -> Ordering {
        match (self.0, other.0) {
            (Numeric::I64(a), Numeric::I64(b)) => a.cmp(&b),
            (Numeric::U64(a), Numeric::U64(b)) => a.cmp(&b),
            (Numeric::U64(_), Numeric::I64(_)) => Ordering::Greater,
            (Numeric::I64(_), Numeric::U64(_)) => Ordering::Less,
            _ => self.order().cmp(&other.order()),
        }
    }

    /// The sort key of the number: equal for numerically equal numbers, whatever their representation.
    ///
    /// The first part is the greatest double not above the number, mapped to an integer that increases with it. The
    /// second part, less than 2^11, is the amount by which an integer beyond 2^53 exceeds that double.
    pub(crate) fn order(self) -> (u64, u16) {
        match self.0 {
            Numeric::F64(double) => (order_of_double(double), 0),
            Numeric::I64(signed) => order_of_integer(signed as f64, signed.into()),
            Numeric::U64(unsigned) => order_of_integer(unsigned as f64, unsigned.into()),
        }
    }

    /// The number with this sort key, as an integer if it is one in range; `None` if no number has this key.
    pub(crate) fn from_order(order: u64, excess: u16) -> Option<Self> {
        let double = double_of_order(order)?;
        let number = match double.fract() == 0.0 && double.abs() <= 2f64.powi(64) {
            true => Self::from_i128(double as i128 + i128::from(excess)).or(Self::from_f64(double)),
            false => Self::from_f64(double),
        };
        number.filter(|number| number.order() == (order, excess))
    }
}

/// The bits of a double without its sign.
const MAGNITUDE: u64 = u64::MAX >> 1;

/// The order of zero: magnitudes of positive doubles are added to it, those of negative ones subtracted.
const MIDDLE: u64 = 1 << 63;

fn order_of_double(double: f64) -> u64 {
    let magnitude = double.to_bits() & MAGNITUDE;
    if double.is_sign_negative() { MIDDLE - magnitude } else { MIDDLE + magnitude }
}

fn double_of_order(order: u64) -> Option<f64> {
    let double =
        if order >= MIDDLE { f64::from_bits(order - MIDDLE) } else { -f64::from_bits(MIDDLE.checked_sub(order)?) };
    double.is_finite().then_some(double)
}

fn order_of_integer(nearest: f64, integer: i128) -> (u64, u16) {
    let floor = if nearest as i128 > integer { nearest.next_down() } else { nearest };
    let excess = integer - floor as i128;
    debug_assert!((0..2048).contains(&excess), "doubles up to 2^64 are at most 2^11 apart");
    (order_of_double(floor), excess as u16)
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (Numeric::I64(a), Numeric::I64(b)) => a == b,
            (Numeric::U64(a), Numeric::U64(b)) => a == b,
            (Numeric::F64(a), Numeric::F64(b)) => a.to_bits() == b.to_bits(),
            _ => false,
        }
    }
}

impl Eq for Number {}

impl Hash for Number {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.0 {
            Numeric::I64(signed) => signed.hash(state),
            Numeric::U64(unsigned) => unsigned.hash(state),
            Numeric::F64(double) => (0xF6u8, double.to_bits()).hash(state),
        }
    }
}

impl fmt::Display for Number {
    /// Prints JSON: a double without a fraction keeps its `.0`, so that it parses as a double again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Numeric::I64(signed) => f.write_str(itoa::Buffer::new().format(signed)),
            Numeric::U64(unsigned) => f.write_str(itoa::Buffer::new().format(unsigned)),
            Numeric::F64(double) => f.write_str(zmij::Buffer::new().format_finite(double)),
        }
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<i64> for Number {
    fn from(signed: i64) -> Self {
        Number(Numeric::I64(signed))
    }
}

impl From<u64> for Number {
    fn from(unsigned: u64) -> Self {
        match i64::try_from(unsigned) {
            Ok(signed) => Number(Numeric::I64(signed)),
            Err(_) => Number(Numeric::U64(unsigned)),
        }
    }
}

macro_rules! from_small_integer {
    ($($integer:ty)*) => {$(
        impl From<$integer> for Number {
            fn from(integer: $integer) -> Self {
                Number(Numeric::I64(i64::from(integer)))
            }
        }
    )*};
}

from_small_integer!(i8 i16 i32 u8 u16 u32);

impl From<usize> for Number {
    fn from(count: usize) -> Self {
        Self::from(count as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn double(double: f64) -> Number {
        Number::from_f64(double).expect("finite")
    }

    #[test]
    fn compare_and_order_agree() {
        let two53 = 1i64 << 53;
        let ascending = [
            double(f64::MIN),
            Number::from(i64::MIN),
            Number::from(i64::MIN + 1),
            double(-1.5),
            Number::from(-1i64),
            double(-5e-324),
            Number::from(0i64),
            double(5e-324),
            double(0.5),
            Number::from(1i64),
            Number::from(two53),
            Number::from(two53 + 1),
            double((two53 + 2) as f64),
            Number::from(i64::MAX),
            double(9_223_372_036_854_775_808.0),
            Number::from(i64::MAX as u64 + 2),
            Number::from(u64::MAX),
            double(18_446_744_073_709_551_616.0),
            double(f64::MAX),
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(a.compare(*b), i.cmp(&j), "{a} and {b}");
                assert_eq!(a.order().cmp(&b.order()), i.cmp(&j), "{a} and {b}");
            }
            let (order, excess) = a.order();
            assert_eq!(Number::from_order(order, excess).map(|b| b.compare(*a)), Some(Ordering::Equal));
        }
    }

    #[test]
    fn equal_numbers_share_an_order_but_are_not_identical() {
        for integer in [0i64, 1, -1, 1 << 53, i64::MIN] {
            assert_eq!(Number::from(integer).order(), double(integer as f64).order());
            assert_ne!(Number::from(integer), double(integer as f64));
        }
        assert_eq!(double(0.0).order(), double(-0.0).order());
        assert_ne!(double(0.0), double(-0.0));
    }

    #[test]
    fn from_order_rejects_keys_of_no_number() {
        assert_eq!(Number::from_order(0, 0), None);
        assert_eq!(Number::from_order(u64::MAX, 0), None);
        let (one, _) = Number::from(1i64).order();
        assert_eq!(Number::from_order(one, 1), None, "2 has its own order");
        assert_eq!(Number::from_order(double(0.5).order().0, 1), None);
    }
}
