//! What do the numbers at one path come to? How many documents have one, and their sum.
//!
//! Kept as a histogram is: whoever changes a term tells it. The sum is exact, so whatever was added can be taken away again, and no order
//! shows in it.

use crate::value::collate::key;
use crate::value::{ExactSum, Kind, Value, varint};
use crate::{Error, Result};

/// The numbers of one path: those of a path that enters no array, one a document.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers {
    count: u64,
    sum: ExactSum,
}

impl Numbers {
    /// How many documents have a number.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    pub(crate) fn sum(&self) -> &ExactSum {
        &self.sum
    }

    /// Notes that so many documents more (or fewer) have the value `key`; what is no number plays no part.
    ///
    /// # Errors
    /// `Corrupt` if the key is not that of a value, or more documents lost a number than had one.
    pub(crate) fn add(&mut self, key: &[u8], change: i64) -> Result<()> {
        if change == 0 || key::kind_of(key) != Some(Kind::Number) {
            return Ok(());
        }
        let Value::Number(number) = key::decode(key)?.0 else { return Ok(()) };
        self.count = self.count.checked_add_signed(change).ok_or_else(damaged)?;
        match change > 0 {
            true => self.sum.add(number, change.unsigned_abs()),
            false => self.sum.subtract(number, change.unsigned_abs()),
        }
        Ok(())
    }

    /// Appends its bytes: about ten, for small numbers.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::write(self.count, out);
        self.sum.encode(out);
    }

    /// What those bytes stand for.
    ///
    /// # Errors
    /// `Corrupt` if they are not what [`Numbers::encode`] gives.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        let mut numbers = Numbers { count: varint::read(&mut rest)?, sum: ExactSum::default() };
        match numbers.sum.add_encoded(&mut rest) {
            Some(()) if rest.is_empty() => Ok(numbers),
            _ => Err(damaged()),
        }
    }
}

fn damaged() -> Error {
    Error::corrupt("the sum of the numbers at a path is damaged")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::value::Number;

    fn key_of(number: Number) -> Vec<u8> {
        let mut key = Vec::new();
        key::encode(&Value::Number(number), &mut key);
        key
    }

    fn number() -> impl Strategy<Value = Number> {
        prop_oneof![
            any::<i64>().prop_map(Number::from),
            any::<f64>().prop_filter_map("finite", Number::from_f64),
            (-5i64..5).prop_map(Number::from),
        ]
    }

    proptest! {
        #[test]
        fn what_was_added_can_be_taken_away(kept in prop::collection::vec(number(), 0..8), lost in prop::collection::vec(number(), 0..8)) {
            let (mut numbers, mut expected) = (Numbers::default(), ExactSum::default());
            for number in kept.iter().chain(&lost) {
                numbers.add(&key_of(*number), 1).unwrap();
            }
            for number in &lost {
                numbers.add(&key_of(*number), -1).unwrap();
            }
            kept.iter().for_each(|number| expected.add(*number, 1));
            let mut bytes = Vec::new();
            numbers.encode(&mut bytes);
            let decoded = Numbers::decode(&bytes).unwrap();
            prop_assert_eq!((decoded.count(), decoded.sum().total()), (kept.len() as u64, expected.total()));
            prop_assert!(Numbers::decode(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn what_is_no_number_plays_no_part() {
        let mut numbers = Numbers::default();
        let mut key = Vec::new();
        key::encode(&Value::from("7"), &mut key);
        numbers.add(&key, 1).unwrap();
        assert_eq!(numbers.count(), 0);
        assert!(numbers.add(&key_of(Number::from(7)), -1).is_err());
    }
}
