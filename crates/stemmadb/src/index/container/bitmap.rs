//! Bitmap of 65,536 bits with its cardinality.

use super::{Array, Repr, Run, Runs, are_apart};

pub(super) const WORDS: usize = 1024;
/// The size of the bits in bytes.
pub(super) const BITMAP_BYTES: usize = WORDS * 8;

#[derive(Clone)]
pub(super) struct Bitmap {
    words: Box<[u64; WORDS]>,
    len: u32,
}

fn word_of(value: u16) -> usize {
    usize::from(value >> 6)
}

fn bit_of(value: u16) -> u64 {
    1 << (value & 63)
}

/// The word of fewer than eight bytes; those that are missing are zero.
fn last_word(bytes: &[u8]) -> u64 {
    let mut last = [0; 8];
    last[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(last)
}

impl Bitmap {
    pub(super) fn new() -> Self {
        Bitmap { words: Box::new([0; WORDS]), len: 0 }
    }

    /// The bitmap of strictly ascending values.
    pub(super) fn of_sorted(values: &[u16]) -> Self {
        debug_assert!(values.is_sorted_by(|a, b| a < b), "the members of a container are strictly ascending");
        let mut bitmap = Self::new();
        let (mut at, mut word) = (0, 0);
        for &value in values {
            // The current word stays in a register and is stored every time but never loaded, so that consecutive
            // iterations don't depend on each other through memory.
            let next = word_of(value);
            word = if next == at { word } else { 0 } | bit_of(value);
            at = next;
            bitmap.words[at] = word;
        }
        bitmap.len = values.len() as u32;
        bitmap
    }

    pub(super) fn of_runs(runs: &[Run]) -> Self {
        debug_assert!(are_apart(runs), "runs are ascending and not adjacent");
        let mut bitmap = Self::new();
        for run in runs {
            let (first, last) = (word_of(run.first), word_of(run.last));
            let (from, to) = (u64::MAX << (run.first & 63), u64::MAX >> (63 - (run.last & 63)));
            if first == last {
                bitmap.words[first] |= from & to;
            } else {
                bitmap.words[first] |= from;
                bitmap.words[first + 1..last].fill(u64::MAX);
                bitmap.words[last] |= to;
            }
            bitmap.len += run.len();
        }
        bitmap
    }

    /// Decodes a bitmap in which number `n` is bit `n % 8` of byte `n / 8`. Bytes beyond the bitmap are ignored.
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        let mut bitmap = Self::new();
        let (whole, rest) = bytes.as_chunks::<8>();
        for (word, bytes) in bitmap.words.iter_mut().zip(whole) {
            *word = u64::from_le_bytes(*bytes);
        }
        if let Some(word) = bitmap.words.get_mut(whole.len()) {
            *word = last_word(rest);
        }
        bitmap.count();
        bitmap
    }

    /// Combines two bitmaps word by word.
    pub(super) fn combined(a: &Bitmap, b: &Bitmap, operation: impl Fn(u64, u64) -> u64) -> Self {
        let mut bitmap = Self::new();
        for (word, (a, b)) in bitmap.words.iter_mut().zip(a.words.iter().zip(b.words.iter())) {
            *word = operation(*a, *b);
        }
        bitmap.count();
        bitmap
    }

    /// Sets a bit without updating the cardinality, which is wrong until [`Bitmap::count`] is called.
    #[inline]
    pub(super) fn mark(&mut self, value: u16) {
        self.words[word_of(value)] |= bit_of(value);
    }

    /// As [`Bitmap::mark`], for all bits that are set in bytes in the layout of [`Bitmap::of_bytes`].
    pub(super) fn mark_bytes(&mut self, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<8>();
        for (word, bytes) in self.words.iter_mut().zip(whole) {
            *word |= u64::from_le_bytes(*bytes);
        }
        if let Some(word) = self.words.get_mut(whole.len()) {
            *word |= last_word(rest);
        }
    }

    /// As [`Bitmap::mark`], for all members of another container.
    pub(super) fn mark_all(&mut self, members: &Repr) {
        match members {
            Repr::Array(values) => values.iter().for_each(|&value| self.mark(value)),
            Repr::Bitmap(other) => {
                self.words.iter_mut().zip(other.words.iter()).for_each(|(word, other)| *word |= other)
            }
            Repr::Runs(runs) => runs.iter().for_each(|&run| self.insert_run(run)),
        }
    }

    /// Recomputes the cardinality.
    pub(super) fn count(&mut self) {
        self.len = self.words.iter().map(|word| word.count_ones()).sum();
    }

    pub(super) fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn contains(&self, value: u16) -> bool {
        self.words[word_of(value)] & bit_of(value) != 0
    }

    pub(super) fn insert(&mut self, value: u16) {
        let word = &mut self.words[word_of(value)];
        self.len += u32::from(*word & bit_of(value) == 0);
        *word |= bit_of(value);
    }

    pub(super) fn remove(&mut self, value: u16) {
        let word = &mut self.words[word_of(value)];
        self.len -= u32::from(*word & bit_of(value) != 0);
        *word &= !bit_of(value);
    }

    pub(super) fn insert_run(&mut self, run: Run) {
        self.change_run(run, |word, mask| word | mask);
    }

    pub(super) fn remove_run(&mut self, run: Run) {
        self.change_run(run, |word, mask| word & !mask);
    }

    fn change_run(&mut self, run: Run, change: impl Fn(u64, u64) -> u64) {
        let (first, last) = (word_of(run.first), word_of(run.last));
        for at in first..=last {
            let from = if at == first { u64::MAX << (run.first & 63) } else { u64::MAX };
            let to = if at == last { u64::MAX >> (63 - (run.last & 63)) } else { u64::MAX };
            let word = &mut self.words[at];
            let changed = change(*word, from & to);
            self.len = self.len + changed.count_ones() - word.count_ones();
            *word = changed;
        }
    }

    /// Combines this bitmap with another one word by word, in place.
    pub(super) fn combine(&mut self, other: &Bitmap, operation: impl Fn(u64, u64) -> u64) {
        for (word, other) in self.words.iter_mut().zip(other.words.iter()) {
            *word = operation(*word, *other);
        }
        self.count();
    }

    pub(super) fn and_len(&self, other: &Bitmap) -> u32 {
        self.words.iter().zip(other.words.iter()).map(|(a, b)| (a & b).count_ones()).sum()
    }

    /// The cardinality of the intersection with bits in the layout of [`Bitmap::of_bytes`].
    pub(super) fn bytes_and_len(&self, bytes: &[u8]) -> u32 {
        let (whole, rest) = bytes.as_chunks::<8>();
        let mut len = 0;
        for (word, bytes) in self.words.iter().zip(whole) {
            len += (word & u64::from_le_bytes(*bytes)).count_ones();
        }
        if let Some(word) = self.words.get(whole.len()) {
            len += (word & last_word(rest)).count_ones();
        }
        len
    }

    #[cfg(test)]
    pub(super) fn first(&self) -> Option<u16> {
        let at = self.words.iter().position(|&word| word != 0)?;
        Some((at * 64) as u16 + self.words[at].trailing_zeros() as u16)
    }

    pub(super) fn last(&self) -> Option<u16> {
        let at = self.words.iter().rposition(|&word| word != 0)?;
        Some((at * 64) as u16 + (63 - self.words[at].leading_zeros() as u16))
    }

    pub(super) fn rank(&self, value: u16) -> u32 {
        let at = word_of(value);
        let whole: u32 = self.words[..at].iter().map(|word| word.count_ones()).sum();
        whole + (self.words[at] & (bit_of(value) - 1)).count_ones()
    }

    #[cfg(test)]
    pub(super) fn select(&self, rank: u32) -> Option<u16> {
        let mut rest = rank;
        for (at, &word) in self.words.iter().enumerate() {
            let count = word.count_ones();
            if rest < count {
                let mut word = word;
                (0..rest).for_each(|_| word &= word - 1);
                return Some((at * 64) as u16 + word.trailing_zeros() as u16);
            }
            rest -= count;
        }
        None
    }

    /// The number of runs that the members form.
    pub(super) fn run_count(&self) -> usize {
        let mut before = 0;
        let mut count = 0;
        for &word in self.words.iter() {
            count += (word & !(word << 1 | before)).count_ones() as usize;
            before = word >> 63;
        }
        count
    }

    pub(super) fn to_runs(&self) -> Runs {
        let mut runs = Runs::new();
        let mut at = 0;
        while let Some(first) = self.next_where(at, |word| word) {
            at = self.next_where(first, |word| !word).unwrap_or(1 << 16);
            runs.push(Run { first: first as u16, last: (at - 1) as u16 });
        }
        runs
    }

    /// The first position from `at` on whose bit is set after `select` is applied to its word.
    fn next_where(&self, at: u32, select: impl Fn(u64) -> u64) -> Option<u32> {
        let start = (at / 64) as usize;
        let first = select(*self.words.get(start)?) & u64::MAX << (at % 64);
        if first != 0 {
            return Some(at / 64 * 64 + first.trailing_zeros());
        }
        let later = (start + 1..WORDS).map(|at| (at as u32 * 64, select(self.words[at])));
        later.into_iter().find(|(_, word)| *word != 0).map(|(at, word)| at + word.trailing_zeros())
    }

    pub(super) fn to_array(&self) -> Array {
        debug_assert_eq!(
            self.words.iter().map(|word| word.count_ones()).sum::<u32>(),
            self.len,
            "a bitmap stores its cardinality"
        );
        let mut values = Array::from_elem(0, self.len as usize);
        let mut targets = values.iter_mut();
        for (at, &word) in self.words.iter().enumerate() {
            let mut word = word;
            while word != 0
                && let Some(target) = targets.next()
            {
                *target = (at * 64) as u16 + word.trailing_zeros() as u16;
                word &= word - 1;
            }
        }
        values
    }
}

impl std::fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bitmap of {}", self.len)
    }
}
