//! Documents generated before timing: ids and JSON texts, the same for every contender.

use std::ops::Range;

/// Documents as a function of their number.
pub(crate) trait Documents {
    /// Appends the id of document `number`, which ends with the number in decimal digits.
    fn write_id(&self, number: u64, id: &mut String);

    /// Appends document `number` as JSON.
    fn write_json(&self, number: u64, json: &mut String);
}

/// 32 characters, so that a two-character prefix selects 1 document of 1,024.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Appends `count` characters, at most 12, that these bits select.
pub(super) fn push_characters(bits: u64, count: u32, text: &mut String) {
    text.extend((0..count).map(|position| char::from(ALPHABET[(bits >> (5 * position)) as usize & 31])));
}

/// The number of distinct values of each field in the first 20,000 documents of a workload, which have no other fields;
/// and the mean size of these documents in bytes.
#[cfg(test)]
pub(super) fn profile(documents: &impl Documents, fields: &[&str]) -> (Vec<usize>, usize) {
    const COUNT: usize = 20_000;
    let mut distinct = vec![std::collections::HashSet::new(); fields.len()];
    let mut byte_count = 0;
    for number in 0..COUNT as u64 {
        let mut json = String::new();
        documents.write_json(number, &mut json);
        byte_count += json.len();
        let document: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(document.as_object().unwrap().len(), fields.len());
        for (values, field) in distinct.iter_mut().zip(fields) {
            values.insert(document[field].to_string());
        }
    }
    (distinct.iter().map(std::collections::HashSet::len).collect(), byte_count / COUNT)
}

/// Ids and JSON texts of documents with consecutive numbers.
pub(crate) struct Corpus {
    first: u64,
    json: Texts,
    ids: Texts,
}

/// Concatenated texts.
#[derive(Default)]
struct Texts {
    text: String,
    /// End offset of each text.
    ends: Vec<usize>,
}

impl Texts {
    fn push(&mut self, write: impl FnOnce(&mut String)) {
        write(&mut self.text);
        self.ends.push(self.text.len());
    }

    fn get(&self, position: usize) -> &str {
        let start = if position == 0 { 0 } else { self.ends[position - 1] };
        &self.text[start..self.ends[position]]
    }
}

impl Corpus {
    /// Generates the first `count` documents.
    pub(crate) fn generate(documents: impl Documents, count: u64) -> Self {
        Self::generate_range(documents, 0..count)
    }

    /// Generates the documents with these numbers.
    pub(crate) fn generate_range(documents: impl Documents, numbers: Range<u64>) -> Self {
        let mut corpus = Corpus { first: numbers.start, json: Texts::default(), ids: Texts::default() };
        for number in numbers {
            corpus.json.push(|json| documents.write_json(number, json));
            corpus.ids.push(|id| documents.write_id(number, id));
        }
        corpus
    }

    /// Returns the number of documents.
    pub(crate) fn len(&self) -> usize {
        self.ids.ends.len()
    }

    /// Returns the total bytes of all JSON texts.
    pub(crate) fn json_bytes(&self) -> u64 {
        self.json.text.len() as u64
    }

    /// Returns the id of the document at `position`.
    pub(crate) fn id(&self, position: usize) -> &str {
        self.ids.get(position)
    }

    /// Returns the position of the document with this id, if it belongs to the corpus.
    pub(crate) fn position_of(&self, id: &str) -> Option<usize> {
        let digit_count = id.bytes().rev().take_while(u8::is_ascii_digit).count();
        let number: u64 = id[id.len() - digit_count..].parse().ok()?;
        let position = number.checked_sub(self.first)? as usize;
        (position < self.len() && self.id(position) == id).then_some(position)
    }

    /// Returns the JSON text of the document at `position`.
    pub(crate) fn json(&self, position: usize) -> &str {
        self.json.get(position)
    }

    /// Returns ids and JSON texts of these positions.
    pub(crate) fn documents(&self, positions: Range<usize>) -> Vec<(&str, &str)> {
        positions.map(|position| (self.id(position), self.json(position))).collect()
    }

    /// Returns all documents in batches of `batch_count`.
    pub(crate) fn batches(&self, batch_count: usize) -> impl Iterator<Item = Vec<(&str, &str)>> {
        let starts = (0..self.len()).step_by(batch_count);
        starts.map(move |start| self.documents(start..(start + batch_count).min(self.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Records;
    use super::*;

    #[test]
    fn documents_are_returned_by_position_and_in_batches() {
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
    fn ids_map_to_positions() {
        let corpus = Corpus::generate_range(Records::new(1), 400..500);
        assert_eq!(corpus.position_of("d000000417"), Some(17));
        for stranger in ["x000000417", "d417", "d000000500", "d000000399", "d", ""] {
            assert_eq!(corpus.position_of(stranger), None, "{stranger}");
        }
    }
}
