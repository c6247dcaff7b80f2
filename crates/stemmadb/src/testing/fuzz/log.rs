//! Log fuzz target: arbitrary segment bytes, frames with valid checksums and arbitrary content, and damage to written
//! frames.

use std::sync::Arc;

use arbitrary::Unstructured;

use crate::log::{Log, LogOptions, Payload};
use crate::revision::Sequence;
use crate::varint;
use crate::vfs::{MemoryVfs, Vfs};
use crate::{Durability, Options, Result};

/// Id of the fuzzed databases: fixed, so that bytes mean the same in every run.
const DATABASE: [u8; 16] = *b"fuzzed database.";
const SEGMENT: &str = "log/0000000001.log";
/// Offset of the first frame, after the segment's header.
const FRAMES_FROM: u64 = 64;
const FRAMES_MAX: usize = 12;

/// Opening a log reports damage or replays a prefix of what was written; neither it nor a database on it panics.
pub fn log(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 3 {
        0 => fuzz_segment(rest),
        1 => fuzz_records(rest),
        _ => fuzz_damage(rest),
    }
}

fn options() -> LogOptions {
    LogOptions { segment_bytes: 4096, database_id: Some(DATABASE), ..LogOptions::default() }
}

/// The payloads of the frames that opening replays.
fn payloads(vfs: &Arc<dyn Vfs>) -> Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let log = Log::open(Arc::clone(vfs), options(), &mut |frame| {
        found.push(frame.payload.to_vec());
        Ok(())
    })?;
    log.close()?;
    Ok(found)
}

/// Writes a log of frames with these payloads.
fn write_log(frames: &[Payload]) -> Arc<dyn Vfs> {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let log = Log::open(Arc::clone(&vfs), options(), &mut |_| Ok(())).expect("an empty log opens");
    for (number, payload) in frames.iter().enumerate() {
        let appended = log.append(Sequence::new(number as u64 + 1), payload).expect("in memory");
        log.commit(appended.end, crate::log::Level::Written).expect("in memory");
    }
    log.close().expect("in memory");
    vfs
}

/// Arbitrary bytes after a valid segment header, then a database on them.
fn fuzz_segment(bytes: &[u8]) {
    let vfs = write_log(&[]);
    let file = vfs.open(SEGMENT).expect("just written");
    file.set_len(FRAMES_FROM).expect("in memory");
    file.write_at(bytes, FRAMES_FROM).expect("in memory");
    if payloads(&vfs).is_ok() {
        exercise_database(vfs);
    }
}

/// Transactions of records with valid checksums and arbitrary content.
fn fuzz_records(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let mut frames = Vec::new();
    while let (true, Ok(count)) = (frames.len() < FRAMES_MAX && !input.is_empty(), input.int_in_range(1..=3)) {
        let mut payload = Payload::default();
        for _ in 0..count {
            let Ok(length) = input.int_in_range(1..=200).map(|length: usize| length.min(input.len())) else { break };
            let Ok(record) = input.bytes(length) else { break };
            payload.add(|bytes| push_record(record, bytes));
        }
        frames.push(payload);
    }
    exercise_database(write_log(&frames));
}

fn push_record(record: &[u8], payload: &mut Vec<u8>) {
    let mut checked = Vec::new();
    varint::write(record.len() as u64, &mut checked);
    let length_bytes = checked.len();
    checked.extend_from_slice(record);
    // A record whose checksum holds only at its position.
    if let Some(kind) = checked.get_mut(length_bytes) {
        *kind |= 0x80;
    }
    payload.extend_from_slice(&crc32c::crc32c(&checked).to_be_bytes());
    payload.extend_from_slice(&checked);
}

/// A few changed bytes in a valid log, or a truncated one: the replayed frames are a prefix of those written.
fn fuzz_damage(bytes: &[u8]) {
    let frames: Vec<Vec<u8>> = (0..FRAMES_MAX).map(|number| vec![number as u8; 1 + number * 7]).collect();
    let vfs = write_log(&frames.iter().map(|frame| Payload::from(&frame[..])).collect::<Vec<_>>());
    let mut input = Unstructured::new(bytes);
    let file = vfs.open(SEGMENT).expect("just written");
    let length = file.len().expect("in memory").max(1);
    // More changes could forge a checksum.
    for _ in 0..3 {
        let (Ok(at), Ok(byte)) = (input.int_in_range(0..=length - 1), input.arbitrary::<u8>()) else { break };
        file.write_at(&[byte], at).expect("in memory");
    }
    if input.ratio(1, 3).unwrap_or(false) {
        let cut = input.int_in_range(0..=length).unwrap_or(length);
        file.set_len(cut).expect("in memory");
    }
    if let Ok(found) = payloads(&vfs) {
        assert_eq!(found, frames[..found.len()], "a replayed frame was never written");
        assert_eq!(payloads(&vfs).expect("opened before"), found, "opening again replays other frames");
    }
}

/// Calls the database's read operations and then some writes on such a log.
fn exercise_database(vfs: Arc<dyn Vfs>) {
    let options = Options::new().background(false).durability(Durability::None);
    let Ok(db) = crate::testing::open_database(vfs, options) else { return };
    if let Ok(ids) = db.find(crate::Selector::everything()).ids() {
        for id in ids.flatten().take(100) {
            db.get(id.as_str()).map(|found| found.map(|found| found.value())).ok();
            db.revisions(id.as_str()).ok();
        }
    }
    if let Ok(changes) = db.changes(Sequence::ZERO) {
        changes.run().take(100).for_each(|change| _ = change.is_ok());
    }
    db.maintenance().check().ok();
    let body = crate::Value::parse(br#"{"a": 1}"#).expect("good JSON");
    db.insert("written after", &body).ok();
    db.maintenance().checkpoint().ok();
    db.maintenance().compact().ok();
    db.maintenance().check().ok();
    db.close().ok();
}
