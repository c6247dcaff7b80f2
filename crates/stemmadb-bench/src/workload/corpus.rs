//! Documents made before the clock starts: ids and JSON texts, the same for every contender.

use std::fmt::Write as _;
use std::ops::Range;

use super::Records;

/// Ids and JSON texts of documents numbered from zero.
pub(crate) struct Corpus {
    json: String,
    /// Where each text ends.
    ends: Vec<usize>,
    ids: String,
}

/// An id is a letter and nine digits: in order, as ids made of a time are.
const ID_BYTES: usize = 10;

/// The number of the document with this id, if it can be one of ours.
pub(crate) fn number_of(id: &str) -> Option<u64> {
    id.strip_prefix('d').filter(|digits| digits.len() == ID_BYTES - 1)?.parse().ok()
}

impl Corpus {
    /// The first `count` documents of `records`.
    pub(crate) fn generate(records: Records, count: u64) -> Self {
        Self::generate_range(records, 0..count)
    }

    /// The documents with these numbers.
    pub(crate) fn generate_range(records: Records, numbers: Range<u64>) -> Self {
        let count = (numbers.end - numbers.start) as usize;
        let mut corpus = Corpus {
            json: String::with_capacity(400 * count),
            ends: Vec::with_capacity(count),
            ids: String::with_capacity(ID_BYTES * count),
        };
        for number in numbers {
            records.write_json(number, &mut corpus.json);
            corpus.ends.push(corpus.json.len());
            write!(corpus.ids, "d{number:09}").expect("a string takes everything");
        }
        corpus
    }

    /// How many documents there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all JSON texts.
    pub(crate) fn json_bytes(&self) -> u64 {
        self.json.len() as u64
    }

    /// The id of the document at `position`.
    pub(crate) fn id(&self, position: usize) -> &str {
        &self.ids[ID_BYTES * position..ID_BYTES * (position + 1)]
    }

    /// The JSON text of the document at `position`.
    pub(crate) fn json(&self, position: usize) -> &str {
        let start = if position == 0 { 0 } else { self.ends[position - 1] };
        &self.json[start..self.ends[position]]
    }

    /// Ids and JSON texts of these positions.
    pub(crate) fn documents(&self, positions: Range<usize>) -> Vec<(&str, &str)> {
        positions.map(|position| (self.id(position), self.json(position))).collect()
    }

    /// All documents in batches of `batch_count`.
    pub(crate) fn batches(&self, batch_count: usize) -> impl Iterator<Item = Vec<(&str, &str)>> {
        let starts = (0..self.len()).step_by(batch_count);
        starts.map(move |start| self.documents(start..(start + batch_count).min(self.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(number: u64) -> String {
        format!("d{number:09}")
    }

    #[test]
    fn documents_come_back_by_position_and_in_batches() {
        let corpus = Corpus::generate(Records::new(1), 25);
        let mut second = String::new();
        Records::new(1).write_json(1, &mut second);
        assert_eq!((corpus.id(1), corpus.json(1)), ("d000000001", second.as_str()));
        assert_eq!(corpus.batches(10).map(|batch| batch.len()).collect::<Vec<_>>(), [10, 10, 5]);
        let total: usize = corpus.batches(10).flatten().map(|(_, json)| json.len()).sum();
        assert_eq!(total as u64, corpus.json_bytes());
        let later = Corpus::generate_range(Records::new(1), 1..2);
        assert_eq!((later.id(0), later.json(0)), (corpus.id(1), corpus.json(1)));
    }

    #[test]
    fn ids_and_numbers() {
        assert_eq!(number_of(&id_of(417)), Some(417));
        assert_eq!(number_of("x000000417"), None);
        assert_eq!(number_of("d417"), None);
    }
}
