//! What must be known of the log before its first record is replayed? The settings in force, the names that bodies go without, and where
//! documents are stated last: compaction may have put each of them behind the records that need it. And which segments are left.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use crate::index::DocumentNumber;
use crate::layout::record::{Record, records};
use crate::log::{Frame, Log, LogPosition};
use crate::memtable::RecordLocation;
use crate::value::{ShapeNumber, Shapes};
use crate::{Error, Result};

/// What lies ahead.
#[derive(Default)]
pub(super) struct LogPrescan {
    settings: Option<Vec<u8>>,
    /// The newest statement of each document that has one. Takes some tens of bytes for each.
    statements: HashMap<DocumentNumber, LogPosition>,
    segments: BTreeSet<u32>,
}

impl LogPrescan {
    /// Of the log's last frames; `settings` are those in force before them. Statements are not looked for, since no record there counts for
    /// nothing: a merge that was cut short may have brought the terms into the tree that a document had in between, and only the record that
    /// changed them takes them back.
    pub(super) fn of_tail<'f>(log: &Log, tail: impl Iterator<Item = Frame<'f>>, settings: &[u8]) -> Result<Self> {
        let mut prescan = LogPrescan { settings: Some(settings.to_vec()), ..Self::before(log) };
        for frame in tail {
            for record in records(&frame) {
                if let (_, Record::Settings(settings)) = record? {
                    prescan.settings = Some(settings.to_vec());
                }
            }
        }
        Ok(prescan)
    }

    /// Of the whole log; fills `shapes` from it.
    pub(super) fn of_log(log: &Log, shapes: &Shapes) -> Result<Self> {
        let mut prescan = Self::before(log);
        let mut named = BTreeMap::new();
        for segment in log.segments() {
            log.frames(segment.number, &mut |frame| {
                records(&frame).try_for_each(|record| {
                    prescan.look(record?, &mut named);
                    Ok(())
                })
            })?;
        }
        for (number, names) in named {
            restore_shape(shapes, number, names.iter().map(String::as_str))?;
        }
        Ok(prescan)
    }

    fn before(log: &Log) -> Self {
        let segments = log.segments().iter().map(|segment| segment.number).collect();
        LogPrescan { segments, ..LogPrescan::default() }
    }

    fn look(&mut self, (place, record): (RecordLocation, Record<'_>), named: &mut BTreeMap<u32, Vec<String>>) {
        match record {
            Record::Settings(settings) => self.settings = Some(settings.to_vec()),
            Record::Shape { number, names } => {
                named.entry(number).or_insert_with(|| names.into_iter().map(str::to_owned).collect());
            }
            Record::Statement { number, .. } => {
                self.statements.insert(number, place.position);
            }
            Record::Revision(_) | Record::Local { .. } | Record::Leaves { .. } => {}
        }
    }

    /// The newest settings.
    pub(super) fn settings(&self) -> Option<&[u8]> {
        self.settings.as_deref()
    }

    /// Whether a document is stated after `position`, so that what stands there counts for nothing.
    pub(super) fn is_stated_after(&self, number: DocumentNumber, position: LogPosition) -> bool {
        self.statements.get(&number).is_some_and(|statement| *statement > position)
    }

    /// Whether what lay at `position` was given up with its segment.
    pub(super) fn is_gone(&self, position: LogPosition) -> bool {
        !self.segments.contains(&position.segment())
    }
}

/// Gives a shape that the log names its number.
pub(super) fn restore_shape<'n, N>(shapes: &Shapes, number: u32, names: N) -> Result<()>
where
    N: IntoIterator<Item = &'n str, IntoIter: ExactSizeIterator + Clone>,
{
    let shape = ShapeNumber::new(u64::from(number))
        .ok_or_else(|| Error::corrupt(format!("a record of the log is of shape {number}, which can't be one")))?;
    shapes.restore(shape, names)
}
