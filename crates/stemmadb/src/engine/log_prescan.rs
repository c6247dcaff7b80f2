//! The log pre-scan: collects what replay needs to know before the first record, because compaction may have moved it
//! after the records that need it. That is the settings in force, the names of shapes, the dictionaries of compressed
//! bodies, the newest snapshot record of each document, which documents have more than one record, and which segments
//! exist.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use crate::compression::{Dictionary, DocumentCompression};
use crate::index::DocumentNumber;
use crate::layout::record::{Record, RevisionRecord, records};
use crate::log::{Frame, Log, LogPosition};
use crate::memtable::RecordLocation;
use crate::value::{ShapeNumber, Shapes};
use crate::{Error, Result};

/// The result of a pre-scan. The default is that of frames which are applied in the order in which they were written:
/// nothing that they refer to was moved before.
#[derive(Default)]
pub(super) struct LogPrescan {
    settings: Option<Vec<u8>>,
    /// The position of each document's newest snapshot record. Takes some tens of bytes for each.
    snapshot_records: HashMap<DocumentNumber, LogPosition>,
    /// The segments that exist; none if everything that the frames refer to does.
    segments: Option<BTreeSet<u32>>,
    record_counts: RecordCounts,
}

impl LogPrescan {
    /// Scans the log's last frames; `settings` are those in force before them. Snapshot records are ignored, because no
    /// record in these frames may be skipped: an interrupted merge may have written terms of a state in between, and
    /// only the record that changed them removes them again.
    pub(super) fn scan_tail<'f>(log: &Log, tail: impl Iterator<Item = Frame<'f>>, settings: &[u8]) -> Result<Self> {
        let mut prescan = LogPrescan { settings: Some(settings.to_vec()), ..Self::with_segments_of(log) };
        for frame in tail {
            for record in records(&frame) {
                if let (_, Record::Settings(settings)) = record? {
                    prescan.settings = Some(settings.to_vec());
                }
            }
        }
        Ok(prescan)
    }

    /// Scans the whole log, and fills `shapes` and the dictionaries of `compression` from it.
    pub(super) fn scan_log(log: &Log, shapes: &Shapes, compression: &DocumentCompression) -> Result<Self> {
        let mut prescan = Self::with_segments_of(log);
        let mut named = BTreeMap::new();
        for segment in log.segments() {
            log.frames(segment.number, &mut |frame| {
                records(&frame).try_for_each(|record| {
                    let record = record?;
                    if let Record::Dictionary { number, bytes } = record.1 {
                        compression.add(Dictionary::new(number, bytes))?;
                    }
                    prescan.add(record, &mut named);
                    Ok(())
                })
            })?;
        }
        for (number, names) in named {
            restore_shape(shapes, number, names.iter().map(String::as_str))?;
        }
        Ok(prescan)
    }

    fn with_segments_of(log: &Log) -> Self {
        let segments = Some(log.segments().iter().map(|segment| segment.number).collect());
        LogPrescan { segments, ..LogPrescan::default() }
    }

    fn add(&mut self, (location, record): (RecordLocation, Record<'_>), named: &mut BTreeMap<u32, Vec<String>>) {
        match record {
            Record::Settings(settings) => self.settings = Some(settings.to_vec()),
            Record::Shape { number, names } => {
                named.entry(number).or_insert_with(|| names.into_iter().map(str::to_owned).collect());
            }
            Record::Snapshot { number, .. } => {
                self.snapshot_records.insert(number, location.position);
                self.record_counts.add(number);
            }
            Record::Revision(RevisionRecord { number, .. }) | Record::Leaves { number, .. } => {
                self.record_counts.add(number);
            }
            Record::Local { .. } | Record::Content { .. } | Record::Dictionary { .. } => {}
        }
    }

    /// The newest settings.
    pub(super) fn settings(&self) -> Option<&[u8]> {
        self.settings.as_deref()
    }

    /// Whether a document has a snapshot record after `position`, so that the record at `position` is obsolete.
    pub(super) fn has_snapshot_after(&self, number: DocumentNumber, position: LogPosition) -> bool {
        self.snapshot_records.get(&number).is_some_and(|snapshot| *snapshot > position)
    }

    /// Whether the whole log was scanned and a document has one record in it.
    pub(super) fn is_only_record(&self, number: DocumentNumber) -> bool {
        self.record_counts.is_one(number)
    }

    /// Whether the segment of `position` was retired, and the record with it.
    pub(super) fn is_retired(&self, position: LogPosition) -> bool {
        self.segments.as_ref().is_some_and(|segments| !segments.contains(&position.segment()))
    }
}

/// Which documents have one record, and which have more: two bits for each.
#[derive(Default)]
struct RecordCounts {
    chunks: HashMap<u64, Box<RecordCountChunk>>,
}

/// The documents of one chunk that have a record, and those that have another.
#[derive(Default)]
struct RecordCountChunk {
    any: [u64; CHUNK_WORDS],
    several: [u64; CHUNK_WORDS],
}

const CHUNK_WORDS: usize = 32;

/// The chunk, word and bit of a document.
fn count_location(number: DocumentNumber) -> (u64, usize, u64) {
    let word = number.0 / u64::from(u64::BITS);
    (word / CHUNK_WORDS as u64, word as usize % CHUNK_WORDS, 1 << (number.0 % u64::from(u64::BITS)))
}

impl RecordCounts {
    fn add(&mut self, number: DocumentNumber) {
        let (chunk, word, bit) = count_location(number);
        let chunk = self.chunks.entry(chunk).or_default();
        chunk.several[word] |= chunk.any[word] & bit;
        chunk.any[word] |= bit;
    }

    fn is_one(&self, number: DocumentNumber) -> bool {
        let (chunk, word, bit) = count_location(number);
        self.chunks.get(&chunk).is_some_and(|chunk| chunk.any[word] & !chunk.several[word] & bit != 0)
    }
}

/// Registers a shape under the number that the log gives it.
pub(super) fn restore_shape<'n, N>(shapes: &Shapes, number: u32, names: N) -> Result<()>
where
    N: IntoIterator<Item = &'n str, IntoIter: ExactSizeIterator + Clone>,
{
    let shape = ShapeNumber::new(u64::from(number))
        .ok_or_else(|| Error::corrupt(format!("a record of the log is of shape {number}, which can't be one")))?;
    shapes.restore(shape, names)
}
