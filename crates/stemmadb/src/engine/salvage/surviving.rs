//! The records among the surviving bytes of a damaged log, and in its history files.
//!
//! A record is valid only where it was written, so the next record after a damaged one is at the first offset where one
//! is valid: bytes within a document or an attachment, and those left from an earlier use of the file, don't pass for
//! records. That does not hold for segments of version 1, whose records are valid anywhere.

use crate::Result;
use crate::layout::record::Record;
use crate::log::{DamagedLog, LogPosition, Skipped, SurvivingPayload, history_name, surviving_history};
use crate::vfs::Vfs;

type VisitRecord<'v> = &'v mut dyn FnMut(Skipped, LogPosition, Record<'_>) -> Result<()>;

/// A damaged log with its history files.
pub(super) struct Survivors<'a> {
    vfs: &'a dyn Vfs,
    log: DamagedLog<'a>,
}

impl<'a> Survivors<'a> {
    pub(super) fn find(vfs: &'a dyn Vfs) -> Result<Self> {
        Ok(Survivors { vfs, log: DamagedLog::find(vfs)? })
    }

    /// Visits all records with their ranges: those of the history files, which were replaced, and then those of the
    /// log. Returns the gaps between them. Can be called repeatedly.
    ///
    /// # Errors
    /// Errors of `visit`; `Unavailable` if a directory can't be listed.
    pub(super) fn records(&self, visit: VisitRecord<'_>) -> Result<Vec<Skipped>> {
        let mut unknown = Vec::new();
        let mut gaps = surviving_history(self.vfs, &mut |position, seed, bytes| {
            let (start, end) = (u64::from(position.offset()), u64::from(position.offset()) + bytes.len() as u64);
            let range = Skipped { file: history_name(position.segment()), start, end, what: String::new() };
            match Record::decode(bytes, position, seed) {
                Ok((record, _)) => visit(range, position, record),
                Err(error) => {
                    unknown.push(Skipped { what: error.message().to_owned(), ..range });
                    Ok(())
                }
            }
        })?;
        gaps.extend(unknown);
        self.log.payloads(&mut |payload| {
            gaps.extend(read_records(&payload, visit)?);
            Ok(())
        })?;
        Ok(gaps)
    }

    /// The parts of the log that can't be read or decoded as frames.
    pub(super) fn into_skipped(self) -> Vec<Skipped> {
        self.log.into_skipped()
    }
}

/// Visits the records of a payload with their ranges; returns the gaps between them.
///
/// # Errors
/// Errors of `visit`.
fn read_records(payload: &SurvivingPayload<'_>, visit: VisitRecord<'_>) -> Result<Vec<Skipped>> {
    let SurvivingPayload { position, bytes, is_whole, .. } = *payload;
    let range = |start: usize, end: usize, what: &str| {
        let at = u64::from(position.offset());
        let (start, end) = (at + start as u64, at + end as u64);
        Skipped { file: position.segment_file(), start, end, what: what.to_owned() }
    };
    let (mut gaps, mut offset) = (Vec::new(), 0);
    while !is_padding(&bytes[offset..]) {
        if let Some((record, length)) = record_at(payload, offset) {
            visit(range(offset, offset + length, ""), position.advance(offset as u32), record)?;
            offset += length;
            continue;
        }
        let is_searched = payload.has_bound_records || payload.is_of_this_use;
        let next = || (offset + 1..bytes.len()).find(|&at| record_at(payload, at).is_some());
        let end = if is_searched { next() } else { None }.unwrap_or(bytes.len());
        let what = if is_whole { "a record that can't be understood" } else { "the checksum of a record is wrong" };
        gaps.push(range(offset, end, what));
        offset = end;
    }
    Ok(gaps)
}

/// The record at `offset` with its length.
fn record_at<'b>(payload: &SurvivingPayload<'b>, offset: usize) -> Option<(Record<'b>, usize)> {
    let (bytes, position) = (&payload.bytes[offset..], payload.position.advance(offset as u32));
    Record::find(bytes, position, payload.seed, payload.has_bound_records)
}

fn is_padding(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
