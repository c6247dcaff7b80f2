//! The members of a container in order, from both ends.

use std::ops::Range;
use std::slice;

use super::bitmap::WORDS;
use super::{Form, Run};

/// Iterates over the members in ascending order; `rev()` descends.
#[derive(Debug, Clone)]
pub(crate) struct Iter<'a>(Members<'a>);

#[derive(Debug, Clone)]
enum Members<'a> {
    Array(slice::Iter<'a, u16>),
    Bitmap(Bits<'a>),
    Runs(Spans<'a>),
}

impl<'a> Iter<'a> {
    pub(super) fn new(form: &'a Form, lowest: u16, highest: u16) -> Self {
        Iter(match form {
            Form::Array(values) => {
                let from = if lowest == 0 { 0 } else { values.partition_point(|&value| value < lowest) };
                let to =
                    if highest == u16::MAX { values.len() } else { values.partition_point(|&value| value <= highest) };
                Members::Array(values.get(from..to).unwrap_or_default().iter())
            }
            Form::Bitmap(bitmap) => Members::Bitmap(Bits::new(bitmap.words(), lowest, highest)),
            Form::Runs(runs) => Members::Runs(Spans::new(runs, lowest, highest)),
        })
    }
}

impl Iterator for Iter<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        match &mut self.0 {
            Members::Array(values) => values.next().copied(),
            Members::Bitmap(bits) => bits.next(),
            Members::Runs(spans) => spans.next(),
        }
    }

    fn fold<B, F: FnMut(B, u16) -> B>(self, start: B, mut step: F) -> B {
        match self.0 {
            Members::Array(values) => values.fold(start, |folded, &value| step(folded, value)),
            Members::Bitmap(mut bits) => {
                let mut folded = start;
                while let Some(value) = bits.next() {
                    folded = step(folded, value);
                }
                folded
            }
            Members::Runs(mut spans) => {
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
            Members::Array(values) => values.next_back().copied(),
            Members::Bitmap(bits) => bits.next_back(),
            Members::Runs(spans) => spans.next_back(),
        }
    }
}

/// The set bits of a bitmap. While `front < back` both words hold what is left of theirs; when they are
/// equal, `front_word` alone counts.
#[derive(Clone)]
struct Bits<'a> {
    words: &'a [u64; WORDS],
    front: usize,
    front_word: u64,
    back: usize,
    back_word: u64,
}

impl std::fmt::Debug for Bits<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "words {} to {}", self.front, self.back)
    }
}

impl<'a> Bits<'a> {
    fn new(words: &'a [u64; WORDS], lowest: u16, highest: u16) -> Self {
        let (front, back) = (usize::from(lowest >> 6), usize::from(highest >> 6));
        if lowest > highest {
            return Bits { words, front: 0, front_word: 0, back: 0, back_word: 0 };
        }
        let from = u64::MAX << (lowest & 63);
        let to = u64::MAX >> (63 - (highest & 63));
        if front == back {
            return Bits { words, front, front_word: words[front] & from & to, back, back_word: 0 };
        }
        Bits { words, front, front_word: words[front] & from, back, back_word: words[back] & to }
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

/// The members of runs: the rest of the first run, the runs between, the rest of the last.
#[derive(Debug, Clone)]
struct Spans<'a> {
    front: Range<u32>,
    between: slice::Iter<'a, Run>,
    back: Range<u32>,
}

fn span(run: &Run, lowest: u16, highest: u16) -> Range<u32> {
    u32::from(run.first.max(lowest))..u32::from(run.last.min(highest)) + 1
}

impl<'a> Spans<'a> {
    fn new(runs: &'a [Run], lowest: u16, highest: u16) -> Self {
        let from = runs.partition_point(|run| run.last < lowest);
        let to = runs.partition_point(|run| run.first <= highest);
        match runs.get(from..to).unwrap_or_default() {
            [] => Spans { front: 0..0, between: [].iter(), back: 0..0 },
            [one] => Spans { front: span(one, lowest, highest), between: [].iter(), back: 0..0 },
            [first, between @ .., last] => Spans {
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
