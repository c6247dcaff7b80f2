//! Sequences: positions in the update history of a database.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// A position in the update history of one database. Every written revision gets the next one; none is ever reused.
///
/// [`Sequence::ZERO`] precedes the first revision. "The changes since `s`" are those after `s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub(crate) u64);

impl Sequence {
    /// The position before the first revision.
    pub const ZERO: Sequence = Sequence(0);

    /// A position after every revision. Reads at it see everything.
    pub(crate) const EVERYTHING: Sequence = Sequence(u64::MAX >> 1);

    /// The sequence with this number.
    pub const fn new(number: u64) -> Self {
        Sequence(number)
    }

    /// The number of the sequence.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next sequence. At a million revisions per second the numbers last half a million years.
    #[must_use]
    pub const fn next(self) -> Self {
        Sequence(self.0.saturating_add(1))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Sequence {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.parse() {
            Ok(number) => Ok(Sequence(number)),
            Err(_) => Err(Error::invalid(format!("`{}` is not a sequence", text.escape_debug()))
                .with_hint("a sequence is a whole number, as `changes` prints it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_increment_and_round_trip_as_text() {
        assert_eq!(Sequence::ZERO.next(), Sequence::new(1));
        assert_eq!(Sequence::new(u64::MAX).next().get(), u64::MAX);
        assert_eq!("17".parse::<Sequence>().unwrap().to_string(), "17");
        assert!("-1".parse::<Sequence>().is_err());
    }
}
