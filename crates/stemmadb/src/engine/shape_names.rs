//! Shape and dictionary records in the log: while there are few shapes, every segment names all of them, and has all
//! dictionaries.

use crate::layout::record::Record;
use crate::layout::settings::Settings;
use crate::log::Payload;
use crate::read::StoreParts;

/// Every segment names all shapes if their names take at most one part in this many of the segment.
const NAMED_SHARE: usize = 32;

impl StoreParts {
    /// The current settings, in their stored form.
    pub(super) fn settings(&self) -> Vec<u8> {
        Settings::encode(&self.policy, &self.declared(), self.compression_setting())
    }

    /// Whether the shapes are few enough that every segment can name them all, so that a lost segment does not make
    /// others unreadable.
    pub(super) fn may_name_all_shapes(&self) -> bool {
        self.shapes.text_bytes() <= self.options.segment_bytes as usize / NAMED_SHARE
    }

    /// Appends the records of all dictionaries if they are small enough for every segment to have them all; returns how
    /// many there are then.
    pub(super) fn log_dictionaries(&self, payload: &mut Payload) -> usize {
        if self.compression.dictionary_bytes() > self.options.segment_bytes as usize / NAMED_SHARE {
            return 0;
        }
        let dictionaries = self.compression.dictionaries_since(0);
        dictionaries.iter().for_each(|dictionary| _ = Record::from(&**dictionary).encode(payload));
        dictionaries.last().map_or(0, |last| last.number() as usize + 1)
    }

    /// Appends the records of the shapes from number `from` on; returns the number of shapes.
    pub(super) fn log_shapes_since(&self, from: usize, payload: &mut Payload) -> usize {
        let mut count = from;
        for (number, shape) in self.shapes.since(from) {
            Record::Shape { number: number.get() as u32, names: shape.names().collect() }.encode(payload);
            count = number.get() + 1;
        }
        count
    }
}
