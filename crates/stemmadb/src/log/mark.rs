//! Payload of a mark frame: the list of existing segments.
//!
//! Layout: for each run of consecutive segment numbers the first and the last number, 4 bytes each, big-endian,
//! ascending. A mark in segment M lists all segments up to M (up to, not including, M if it is the first frame of M). M
//! and later segments exist because the log continues in them.
//!
//! Without marks, a lost segment file would go unnoticed: retired segments leave gaps in the numbering, too.

use super::segment::{Segment, segment_name};
use crate::{Error, Result};

use std::collections::BTreeSet;
use std::sync::Arc;

/// The segments that must exist, as runs of (first, last) numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExpectedSegments {
    runs: Vec<(u32, u32)>,
}

impl ExpectedSegments {
    /// Every segment from `first` on.
    pub(super) fn starting_at(first: u32) -> Self {
        ExpectedSegments { runs: vec![(first, u32::MAX)] }
    }

    /// Decodes a mark found in segment `marked`.
    pub(super) fn decode(marked: u32, payload: &[u8]) -> Result<Self> {
        let nonsense = || Error::corrupt(format!("a mark in {} has no meaning", segment_name(marked)));
        let mut runs = Vec::new();
        for run in payload.chunks(8) {
            let run = <[u8; 8]>::try_from(run).map_err(|_| nonsense())?;
            let first = u32::from_be_bytes([run[0], run[1], run[2], run[3]]);
            let last = u32::from_be_bytes([run[4], run[5], run[6], run[7]]);
            if first > last || last > marked || runs.last().is_some_and(|&(_, before)| before >= first) {
                return Err(nonsense());
            }
            runs.push((first, last));
        }
        match runs.last_mut() {
            Some((_, last)) if *last == marked => *last = u32::MAX,
            _ => runs.push((marked, u32::MAX)),
        }
        Ok(ExpectedSegments { runs })
    }

    /// Encodes the payload of a mark. `numbers` must be ascending.
    pub(super) fn encode(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for number in numbers {
            assert!(
                runs.last().is_none_or(|&(_, last)| last < number),
                "a mark lists segments in ascending order: {number} is not above the last of {runs:?}"
            );
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => runs.push((number, number)),
            }
        }
        runs.iter().flat_map(|(first, last)| [first.to_be_bytes(), last.to_be_bytes()].concat()).collect()
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.runs.iter().any(|&(first, last)| (first..=last).contains(&number))
    }

    /// The expected numbers below the greatest of `present` that are missing from it, at most 1,000.
    pub(super) fn lost(&self, present: &BTreeSet<u32>) -> Vec<u32> {
        let newest = present.last().copied().unwrap_or(0);
        let expected = self.runs.iter().flat_map(|&(first, last)| first..=last.min(newest));
        expected.filter(|number| !present.contains(number)).take(1000).collect()
    }

    /// Returns an error if an expected segment up to the last of `segments` (ascending) is missing.
    pub(super) fn check(&self, segments: &[Arc<Segment>]) -> Result<()> {
        let Some(newest) = segments.last().map(|segment| segment.number) else { return Ok(()) };
        for &(first, last) in &self.runs {
            let mut expected = first;
            for segment in segments.iter().skip_while(|segment| segment.number < first) {
                if expected > last {
                    break;
                }
                if segment.number != expected {
                    return Err(missing(expected));
                }
                expected = expected.saturating_add(1);
            }
            if expected <= last.min(newest) {
                return Err(missing(expected));
            }
        }
        Ok(())
    }
}

fn missing(number: u32) -> Error {
    Error::corrupt(format!("{} is missing", segment_name(number))).with_hint("restore the file, then open again")
}

#[cfg(test)]
mod tests {
    use super::super::frame::FrameFormat;
    use super::super::handles::{Handle, Handles};
    use super::*;
    use crate::vfs::MemoryVfs;

    fn segments(numbers: &[u32]) -> Vec<Arc<Segment>> {
        let handles = Handles::new(Arc::new(MemoryVfs::new()));
        let one = |&number: &u32| {
            let handle = Handle::closed(&handles, segment_name(number));
            Arc::new(Segment::new(number, handle, FrameFormat::current(&[0; 16], None)))
        };
        numbers.iter().map(one).collect()
    }

    #[test]
    fn missing_segment_is_named() {
        let payload = ExpectedSegments::encode([2, 3, 4, 7, 9].into_iter());
        assert_eq!(payload.len(), 24);
        let with_itself = ExpectedSegments::encode([2, 3, 4, 7, 9, 11].into_iter());
        let expected = ExpectedSegments::decode(11, &payload).unwrap();
        assert_eq!(ExpectedSegments::decode(11, &with_itself).unwrap(), expected);
        assert!(expected.contains(3) && expected.contains(11) && expected.contains(99));
        assert!(!expected.contains(1) && !expected.contains(5) && !expected.contains(10));
        for (numbers, missing) in [
            (&[2, 3, 4, 7, 9, 11][..], None),
            (&[1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13], None),
            (&[3, 4, 7, 9, 11], Some(2)),
            (&[2, 3, 7, 9, 11], Some(4)),
            (&[2, 3, 4, 9, 11], Some(7)),
            (&[2, 3, 4, 7, 11], Some(9)),
            (&[2, 3, 4, 7, 9, 12], Some(11)),
            (&[2, 3, 4, 7, 9, 11, 13], Some(12)),
        ] {
            let error = expected.check(&segments(numbers)).err();
            let message = error.map(|error| error.message().to_owned());
            assert_eq!(message, missing.map(|number| format!("{} is missing", segment_name(number))), "{numbers:?}");
        }
    }

    #[test]
    fn invalid_mark_payload_is_rejected() {
        for payload in [&[0; 7][..], &[0, 0, 0, 2, 0, 0, 0, 1], &[0, 0, 0, 1, 0, 0, 0, 10]] {
            assert!(ExpectedSegments::decode(9, payload).is_err(), "{payload:?}");
        }
        let twice = ExpectedSegments::encode([1].into_iter()).repeat(2);
        assert!(ExpectedSegments::decode(9, &twice).is_err());
        assert_eq!(ExpectedSegments::decode(1, &[]).unwrap(), ExpectedSegments::starting_at(1));
    }
}
