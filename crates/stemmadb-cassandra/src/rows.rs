//! Bytes of a file as rows.

use crate::schema::{PART_BYTES, ROW_BYTES};

/// The rows of bytes that begin at `offset`, each with its offset.
pub(crate) fn rows_of(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    bytes.chunks(ROW_BYTES as usize).enumerate().map(move |(index, row)| (offset + index as u64 * ROW_BYTES, row))
}

/// The partition of a row at `offset`.
pub(crate) fn part_of(offset: u64) -> i32 {
    (offset / PART_BYTES) as i32
}

/// A range of a file that is put together from rows.
pub(crate) struct Reassembled {
    offset: u64,
    bytes: Vec<u8>,
    /// How many bytes from the start on are there.
    complete: usize,
}

impl Reassembled {
    pub(crate) fn new(offset: u64, length: u64) -> Self {
        Reassembled { offset, bytes: vec![0; length as usize], complete: 0 }
    }

    /// Adds a row; rows come in ascending order.
    pub(crate) fn add(&mut self, at: u64, row: &[u8]) {
        let skipped = self.offset.saturating_sub(at) as usize;
        let Some(row) = row.get(skipped..) else { return };
        let start = at.saturating_sub(self.offset) as usize;
        if start > self.complete || start >= self.bytes.len() {
            return;
        }
        let count = row.len().min(self.bytes.len() - start);
        self.bytes[start..start + count].copy_from_slice(&row[..count]);
        self.complete = self.complete.max(start + count);
    }

    /// The bytes up to the first that is missing.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.truncate(self.complete);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_from_rows() {
        let bytes: Vec<u8> = (0..100).collect();
        let read = |offset: u64, length: u64, gap: usize| {
            let mut out = Reassembled::new(offset, length);
            for (index, row) in bytes.chunks(10).enumerate().filter(|(index, _)| *index != gap) {
                out.add(index as u64 * 10, row);
            }
            out.finish()
        };
        assert_eq!(read(0, 100, 99), bytes);
        assert_eq!(read(15, 30, 99), bytes[15..45]);
        assert_eq!(read(95, 30, 99), bytes[95..]);
        assert_eq!(read(15, 30, 3), bytes[15..30], "nothing after a gap");
    }
}
