//! The names of shapes in the log: every segment repeats them where they are few.

use crate::layout::record::Record;
use crate::layout::settings::Settings;
use crate::read::StoreParts;

/// The names of all shapes are written into every segment if they take no more than one part in so many of it.
const NAMED_SHARE: usize = 32;

impl StoreParts {
    /// What the index is built by, as it is stored.
    pub(super) fn settings(&self) -> Vec<u8> {
        Settings::encode(&self.policy, &self.declared())
    }

    /// Whether there are so few shapes that every segment can name them: a segment that is lost then takes no others with it.
    pub(super) fn may_name_all_shapes(&self) -> bool {
        self.shapes.text_bytes() <= self.options.segment_bytes as usize / NAMED_SHARE
    }

    /// Appends the records of the shapes from number `from` on; returns how many shapes there are.
    pub(super) fn log_shapes_since(&self, from: usize, payload: &mut Vec<u8>) -> usize {
        let mut count = from;
        for (number, shape) in self.shapes.since(from) {
            Record::Shape { number: number.get() as u32, names: shape.names().collect() }.encode(payload);
            count = number.get() + 1;
        }
        count
    }
}
