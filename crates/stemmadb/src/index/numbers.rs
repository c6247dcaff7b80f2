//! Count and exact sum of the numbers at one path.
//!
//! Maintained like a histogram: every change of a term updates it. The sum is exact, so removing a number undoes its
//! addition, and the sum does not depend on the order of updates.

use crate::value::collate::key;
use crate::value::{ExactSum, Kind, Value};
use crate::varint;
use crate::{Error, Result};

/// Count and sum of the numbers at one path that does not enter an array, so that a document has at most one.
#[derive(Debug, Clone, Default)]
pub(crate) struct NumberSum {
    count: u64,
    sum: ExactSum,
}

impl NumberSum {
    /// The number of documents that have a number at the path.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The sum of the numbers.
    pub(crate) fn sum(&self) -> &ExactSum {
        &self.sum
    }

    /// Records that `change` more (or fewer) documents have the value `key`. Keys of other values than numbers are
    /// ignored.
    ///
    /// # Errors
    /// `Corrupt` if the key is malformed, or more documents lost a number than had one.
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

    /// Appends the stored form: about ten bytes for small numbers.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::write(self.count, out);
        self.sum.encode(out);
    }

    /// Decodes the stored form.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not the output of [`NumberSum::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        let mut numbers = NumberSum { count: varint::read(&mut rest)?, sum: ExactSum::default() };
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
        fn removals_undo_additions(
            kept in prop::collection::vec(number(), 0..8),
            removed in prop::collection::vec(number(), 0..8),
        ) {
            let (mut numbers, mut expected) = (NumberSum::default(), ExactSum::default());
            for number in kept.iter().chain(&removed) {
                numbers.add(&key_of(*number), 1).unwrap();
            }
            for number in &removed {
                numbers.add(&key_of(*number), -1).unwrap();
            }
            kept.iter().for_each(|number| expected.add(*number, 1));
            let mut bytes = Vec::new();
            numbers.encode(&mut bytes);
            let decoded = NumberSum::decode(&bytes).unwrap();
            prop_assert_eq!((decoded.count(), decoded.sum().total()), (kept.len() as u64, expected.total()));
            prop_assert!(NumberSum::decode(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn other_values_are_ignored() {
        let mut numbers = NumberSum::default();
        let mut key = Vec::new();
        key::encode(&Value::from("7"), &mut key);
        numbers.add(&key, 1).unwrap();
        assert_eq!(numbers.count(), 0);
        assert!(numbers.add(&key_of(Number::from(7)), -1).is_err());
    }
}
