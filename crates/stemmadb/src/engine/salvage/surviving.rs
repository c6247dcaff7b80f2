//! The records among the surviving bytes of a damaged log.
//!
//! A record is valid only where it was written, so the next record after a damaged one is at the first offset where one
//! is valid: bytes within a document or an attachment, and those left from an earlier use of the file, don't pass for
//! records. That does not hold for segments of version 1, whose records are valid anywhere.

use crate::Result;
use crate::layout::record::Record;
use crate::log::{LogPosition, Skipped, SurvivingPayload};

type VisitRecord<'v> = &'v mut dyn FnMut(Skipped, LogPosition, Record<'_>) -> Result<()>;

/// Visits the records of a payload with their ranges; returns the gaps between them.
///
/// # Errors
/// Errors of `visit`.
pub(super) fn read_records(payload: &SurvivingPayload<'_>, visit: VisitRecord<'_>) -> Result<Vec<Skipped>> {
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
