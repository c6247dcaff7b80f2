//! The records among the surviving bytes of a damaged log.
//!
//! After a damaged record, the next one is where the damaged one's length says, if a record is there. If the length
//! itself is damaged, every offset is tried. Bytes within a document or an attachment may look like a record, for
//! example in a copy of a log. So an offset counts only if the records from there on either reach the end of the
//! payload, or have a revision whose sequence belongs to the frame, and come before the sequences of the records that
//! reach the end. No revision among them may have a sequence that does not belong to the frame.

use std::cell::OnceCell;
use std::ops::Range;

use crate::Result;
use crate::layout::record::Record;
use crate::log::{DamagedLog, LogPosition, Skipped, SurvivingPayload};
use crate::revision::Sequence;

/// The least size of the record of a revision: its checksum, hash, and nine fields of a byte or more.
const REVISION_BYTES_MIN: usize = 29;

type VisitRecord<'v> = &'v mut dyn FnMut(Skipped, LogPosition, Record<'_>) -> Result<()>;

/// Reads the records of one payload after another, in log order.
pub(super) struct RecordReader {
    /// The sequence after the last that was seen.
    next: Sequence,
    /// How many sequences lost revisions may have taken since.
    lost_max: u64,
}

impl Default for RecordReader {
    fn default() -> Self {
        RecordReader { next: Sequence::ZERO, lost_max: u64::MAX }
    }
}

impl RecordReader {
    /// Visits the records of a payload with their ranges; returns the gaps between them.
    ///
    /// # Errors
    /// Errors of `visit`.
    pub(super) fn read(&mut self, payload: SurvivingPayload<'_>, visit: VisitRecord<'_>) -> Result<Vec<Skipped>> {
        let SurvivingPayload { position, bytes, is_whole, has_header, ref sequences } = payload;
        let range = |start: usize, end: usize, what: &str| {
            let at = u64::from(position.offset());
            let (start, end) = (at + start as u64, at + end as u64);
            Skipped { file: position.segment_file(), start, end, what: what.to_owned() }
        };
        if let Some(sequences) = sequences
            && has_header
        {
            *self = RecordReader { next: sequences.start, lost_max: 0 };
        }
        let (mut is_relocated, mut gaps, mut offset) = (false, Vec::new(), 0);
        while !is_padding(&bytes[offset..]) {
            if let Ok((record, length)) = Record::decode(&bytes[offset..]) {
                is_relocated |= self.learn(&record);
                visit(range(offset, offset + length, ""), position.advance(offset as u32), record)?;
                offset += length;
                continue;
            }
            let search = || {
                let sequences = sequences.clone()?;
                let start = self.next.max(sequences.start);
                let frame = FrameRecords { bytes, sequences: start..sequences.end, is_relocated };
                frame.search(offset, self.next.get().saturating_add(self.lost_max))
            };
            let end = linked(bytes, offset).or_else(search).unwrap_or(bytes.len());
            self.lost_max = self.lost_max.saturating_add(revision_count_max(end - offset));
            let what = if is_whole { "a record that can't be understood" } else { "the checksum of a record is wrong" };
            gaps.push(range(offset, end, what));
            offset = end;
        }
        Ok(gaps)
    }

    /// Returns whether compaction wrote the record.
    fn learn(&mut self, record: &Record<'_>) -> bool {
        match record {
            Record::Revision(record) if record.relocated => return true,
            Record::Revision(record) => {
                *self = RecordReader { next: self.next.max(record.sequence.next()), lost_max: 0 };
            }
            // A transaction of local documents takes a sequence.
            Record::Local { .. } => self.lost_max = self.lost_max.saturating_add(1),
            _ => {}
        }
        false
    }
}

/// How many revisions this many bytes can have held, the last of them in part.
fn revision_count_max(byte_count: usize) -> u64 {
    (byte_count / REVISION_BYTES_MIN) as u64 + 1
}

fn is_padding(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn is_record(bytes: &[u8], at: usize) -> bool {
    bytes.get(at..).is_some_and(|rest| Record::decode(rest).is_ok())
}

/// Where the record after a damaged one begins, by the damaged one's length or because a frame ends here. The end of
/// the payload counts.
fn linked(bytes: &[u8], damaged: usize) -> Option<usize> {
    let behind_it = Record::claimed_length(&bytes[damaged..]).map(|length| damaged + length);
    let is_end = |at: usize| bytes.get(at..).is_some_and(is_padding);
    behind_it
        .filter(|&at| is_end(at) || is_record(bytes, at) || is_record(bytes, DamagedLog::next_payload(at)))
        .or_else(|| Some(DamagedLog::next_payload(damaged)).filter(|&at| is_record(bytes, at)))
}

/// The payload of a frame, and what is known about the records that follow.
struct FrameRecords<'a> {
    bytes: &'a [u8],
    /// The sequences that new revisions can have.
    sequences: Range<Sequence>,
    /// Whether compaction wrote it: the sequences are older and in any order.
    is_relocated: bool,
}

/// Consecutive records.
struct Chain {
    end: usize,
    /// Whether one of them is a revision whose sequence belongs to the frame.
    is_proven: bool,
    /// The first and the last sequence of new revisions among them.
    sequences: Option<(Sequence, Sequence)>,
}

impl FrameRecords<'_> {
    /// The first offset after a damaged record where a record begins. The damaged one has at most the sequence
    /// `sequence_max`.
    fn search(&self, damaged: usize, sequence_max: u64) -> Option<usize> {
        let chain_at = |at: usize| {
            let end = sequence_max.saturating_add(revision_count_max(at - damaged)).saturating_add(1);
            self.chain(at, Sequence::new(end).min(self.sequences.end))
        };
        let reaches_end = |chain: &Chain| {
            let rest = &self.bytes[chain.end..];
            is_padding(rest) || is_record(self.bytes, DamagedLog::next_payload(chain.end))
        };
        // The first sequence of the records that reach the end of the payload.
        let last_records = OnceCell::new();
        (damaged + 1..self.bytes.len()).find(|&at| {
            let Some(chain) = chain_at(at) else { return false };
            let is_before_last = || {
                let last = last_records.get_or_init(|| {
                    let mut chains = (chain.end..self.bytes.len()).filter_map(chain_at).filter(reaches_end);
                    chains.find_map(|chain| chain.sequences)
                });
                // A copy may have later sequences than what follows it.
                last.is_none_or(|(first, _)| chain.sequences.is_none_or(|(_, last)| last < first))
            };
            reaches_end(&chain) || chain.is_proven && is_before_last()
        })
    }

    /// The records from `start` on, of which the first new revision has a sequence before `first_end`; none if there is
    /// no record, or a revision among them is not of this frame.
    fn chain(&self, start: usize, first_end: Sequence) -> Option<Chain> {
        let mut chain = Chain { end: start, is_proven: false, sequences: None };
        let mut sequences = self.sequences.start..first_end;
        while let Ok((record, length)) = Record::decode(&self.bytes[chain.end..]) {
            if let Record::Revision(record) = record {
                if record.relocated {
                    chain.is_proven |= self.is_relocated;
                } else if sequences.contains(&record.sequence) {
                    chain.is_proven = true;
                    sequences = record.sequence.next()..self.sequences.end;
                    let first = chain.sequences.map_or(record.sequence, |(first, _)| first);
                    chain.sequences = Some((first, record.sequence));
                } else {
                    return None;
                }
            }
            chain.end += length;
        }
        (chain.end > start).then_some(chain)
    }
}
