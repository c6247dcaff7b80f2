//! Double-ended iterator over the members of a container.

use std::ops::Range;
use std::slice;

use super::bitmap::WORDS;
use super::{Repr, Run};

/// Iterates over the members in ascending order; `rev()` descends.
#[derive(Debug, Clone)]
pub(crate) struct Iter<'a>(ReprIter<'a>);

#[derive(Debug, Clone)]
enum ReprIter<'a> {
    Array(slice::Iter<'a, u16>),
    Bitmap(BitIter<'a>),
    Runs(RunIter<'a>),
}

impl<'a> Iter<'a> {
    pub(super) fn new(members: &'a Repr, lowest: u16, highest: u16) -> Self {
        Iter(match members {
            Repr::Array(values) => {
                let from = if lowest == 0 { 0 } else { values.partition_point(|&value| value < lowest) };
                let to =
                    if highest == u16::MAX { values.len() } else { values.partition_point(|&value| value <= highest) };
                ReprIter::Array(values.get(from..to).unwrap_or_default().iter())
            }
            Repr::Bitmap(bitmap) => ReprIter::Bitmap(BitIter::new(bitmap.words(), lowest, highest)),
            Repr::Runs(runs) => ReprIter::Runs(RunIter::new(runs, lowest, highest)),
        })
    }
}

impl Iterator for Iter<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        match &mut self.0 {
            ReprIter::Array(values) => values.next().copied(),
            ReprIter::Bitmap(bits) => bits.next(),
            ReprIter::Runs(spans) => spans.next(),
        }
    }

    fn fold<B, F: FnMut(B, u16) -> B>(self, start: B, mut step: F) -> B {
        match self.0 {
            ReprIter::Array(values) => values.fold(start, |folded, &value| step(folded, value)),
            ReprIter::Bitmap(mut bits) => {
                let mut folded = start;
                while let Some(value) = bits.next() {
                    folded = step(folded, value);
                }
                folded
            }
            ReprIter::Runs(mut spans) => {
                let mut folded = start;
                while let Some(value) = spans.next() {
                    folded = step(folded, value);
                }
                folded
            }
        }
    }
}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<u16> {
        match &mut self.0 {
            ReprIter::Array(values) => values.next_back().copied(),
            ReprIter::Bitmap(bits) => bits.next_back(),
            ReprIter::Runs(spans) => spans.next_back(),
        }
    }
}

/// Iterator over the set bits of a bitmap. While `front < back`, both words hold their remaining bits; when they are
/// equal, only `front_word` counts.
#[derive(Clone)]
struct BitIter<'a> {
    words: &'a [u64; WORDS],
    front: usize,
    front_word: u64,
    back: usize,
    back_word: u64,
}

impl std::fmt::Debug for BitIter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "words {} to {}", self.front, self.back)
    }
}

impl<'a> BitIter<'a> {
    fn new(words: &'a [u64; WORDS], lowest: u16, highest: u16) -> Self {
        let (front, back) = (usize::from(lowest >> 6), usize::from(highest >> 6));
        if lowest > highest {
            return BitIter { words, front: 0, front_word: 0, back: 0, back_word: 0 };
        }
        let from = u64::MAX << (lowest & 63);
        let to = u64::MAX >> (63 - (highest & 63));
        if front == back {
            return BitIter { words, front, front_word: words[front] & from & to, back, back_word: 0 };
        }
        BitIter { words, front, front_word: words[front] & from, back, back_word: words[back] & to }
    }

    fn next(&mut self) -> Option<u16> {
        while self.front_word == 0 {
            if self.front >= self.back {
                return None;
            }
            self.front += 1;
            self.front_word = if self.front == self.back { self.back_word } else { self.words[self.front] };
        }
        let bit = self.front_word.trailing_zeros() as u16;
        self.front_word &= self.front_word - 1;
        Some((self.front * 64) as u16 | bit)
    }

    fn next_back(&mut self) -> Option<u16> {
        while self.front < self.back {
            if self.back_word != 0 {
                let bit = 63 - self.back_word.leading_zeros() as u16;
                self.back_word &= !(1 << bit);
                return Some((self.back * 64) as u16 | bit);
            }
            self.back -= 1;
            self.back_word = self.words[self.back];
        }
        if self.front_word == 0 {
            return None;
        }
        let bit = 63 - self.front_word.leading_zeros() as u16;
        self.front_word &= !(1 << bit);
        Some((self.front * 64) as u16 | bit)
    }
}

/// Iterator over the members of runs: the rest of the first run, the runs in between, and the rest of the last.
#[derive(Debug, Clone)]
struct RunIter<'a> {
    front: Range<u32>,
    between: slice::Iter<'a, Run>,
    back: Range<u32>,
}

fn span(run: &Run, lowest: u16, highest: u16) -> Range<u32> {
    u32::from(run.first.max(lowest))..u32::from(run.last.min(highest)) + 1
}

impl<'a> RunIter<'a> {
    fn new(runs: &'a [Run], lowest: u16, highest: u16) -> Self {
        let from = runs.partition_point(|run| run.last < lowest);
        let to = runs.partition_point(|run| run.first <= highest);
        match runs.get(from..to).unwrap_or_default() {
            [] => RunIter { front: 0..0, between: [].iter(), back: 0..0 },
            [one] => RunIter { front: span(one, lowest, highest), between: [].iter(), back: 0..0 },
            [first, between @ .., last] => RunIter {
                front: span(first, lowest, highest),
                between: between.iter(),
                back: span(last, lowest, highest),
            },
        }
    }

    fn next(&mut self) -> Option<u16> {
        if self.front.is_empty() {
            self.front = match self.between.next() {
                Some(run) => span(run, 0, u16::MAX),
                None => std::mem::take(&mut self.back),
            };
        }
        self.front.next().map(|value| value as u16)
    }

    fn next_back(&mut self) -> Option<u16> {
        if self.back.is_empty() {
            self.back = match self.between.next_back() {
                Some(run) => span(run, 0, u16::MAX),
                None => std::mem::take(&mut self.front),
            };
        }
        self.back.next_back().map(|value| value as u16)
    }
}
