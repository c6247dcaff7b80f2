//! Sets of byte ranges.

use std::ops::Range;

/// A set of bytes, as disjoint ranges in ascending order that do not touch.
#[derive(Debug, Default)]
pub(super) struct Extents(Vec<Range<u64>>);

impl Extents {
    /// Adds a range.
    pub(super) fn add(&mut self, mut range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|known| known.end < range.start);
        let end = first + self.0[first..].partition_point(|known| known.start <= range.end);
        for known in &self.0[first..end] {
            range = range.start.min(known.start)..range.end.max(known.end);
        }
        self.0.splice(first..end, [range]);
    }

    /// How many bytes it has.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// The part of a range from its first missing byte up to the next byte that is there; `None` if it is all there.
    pub(super) fn first_missing(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let mut start = range.start;
        let next = self.0.partition_point(|known| known.end <= start);
        let mut following = self.0[next..].iter();
        let mut known = following.next();
        if let Some(containing) = known.filter(|known| known.start <= start) {
            start = containing.end;
            known = following.next();
        }
        let end = known.map_or(range.end, |known| known.start.min(range.end));
        (start < end).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Random;

    #[test]
    fn ranges_equal_those_of_a_set_of_bytes() {
        let mut random = Random::new(7);
        for _ in 0..500 {
            let (mut extents, mut bytes) = (Extents::default(), [false; 64]);
            for _ in 0..12 {
                let start = random.below(64);
                let range = start..start + random.below(64 - start);
                bytes[range.start as usize..range.end as usize].fill(true);
                extents.add(range);
                assert!(extents.0.is_sorted_by(|first, second| first.end < second.start), "{extents:?}");
                let start = random.below(64);
                let asked = start..start + random.below(64 - start);
                let missing = |at: &u64| !bytes[*at as usize];
                let expected = asked
                    .clone()
                    .find(missing)
                    .map(|first| first..(first..asked.end).find(|at| !missing(at)).unwrap_or(asked.end));
                assert_eq!(extents.bytes(), bytes.iter().filter(|byte| **byte).count() as u64);
                assert_eq!(extents.first_missing(&asked), expected, "{extents:?} {asked:?}");
            }
        }
    }
}
