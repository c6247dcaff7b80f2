//! The log: bytes of a segment, frames whose checksums are right and whose content is not, and damage to what was written.

use std::sync::Arc;

use arbitrary::Unstructured;

use crate::log::{Log, LogOptions, MemoryVfs, Vfs};
use crate::revision::Sequence;
use crate::tree::MemoryTree;
use crate::value::varint;
use crate::{Database, Durability, Options, Result};

/// The database all of them are of: bytes mean the same from one run to the next.
const DATABASE: [u8; 16] = *b"fuzzed database.";
const SEGMENT: &str = "log/0000000001.log";
/// Where the first frame begins, behind the segment's header.
const FRAMES_FROM: u64 = 64;
const FRAMES_MAX: usize = 12;

/// Opening says what is damaged, or shows what was written up to some point; neither it nor a database on it panics.
pub fn log(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 3 {
        0 => segment(rest),
        1 => records(rest),
        _ => damage(rest),
    }
}

fn options() -> LogOptions {
    LogOptions { segment_bytes: 4096, database_id: Some(DATABASE), ..LogOptions::default() }
}

/// The payloads of the frames that opening shows.
fn payloads(vfs: &Arc<dyn Vfs>) -> Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let log = Log::open(Arc::clone(vfs), options(), &mut |frame| {
        found.push(frame.payload.to_vec());
        Ok(())
    })?;
    log.close()?;
    Ok(found)
}

/// A log of frames with these payloads.
fn written<P: AsRef<[u8]>>(frames: &[P]) -> Arc<dyn Vfs> {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let log = Log::open(Arc::clone(&vfs), options(), &mut |_| Ok(())).expect("an empty one");
    for (number, payload) in frames.iter().enumerate() {
        let appended = log.append(Sequence::new(number as u64 + 1), payload.as_ref()).expect("in memory");
        log.commit(appended.end, crate::log::Level::Written).expect("in memory");
    }
    log.close().expect("in memory");
    vfs
}

/// Any bytes behind a good header, then a whole database on them.
fn segment(bytes: &[u8]) {
    let vfs = written::<&[u8]>(&[]);
    let file = vfs.open(SEGMENT).expect("just written");
    file.set_len(FRAMES_FROM).expect("in memory");
    file.write_at(bytes, FRAMES_FROM).expect("in memory");
    if payloads(&vfs).is_ok() {
        read(vfs);
    }
}

/// Transactions of records whose checksums are right: what lies behind them is not what anybody wrote.
fn records(bytes: &[u8]) {
    let mut given = Unstructured::new(bytes);
    let mut frames: Vec<Vec<u8>> = Vec::new();
    while let (true, Ok(count)) = (frames.len() < FRAMES_MAX && !given.is_empty(), given.int_in_range(1..=3)) {
        let mut payload = Vec::new();
        for _ in 0..count {
            let Ok(length) = given.int_in_range(1..=200).map(|length: usize| length.min(given.len())) else { break };
            let Ok(record) = given.bytes(length) else { break };
            push_record(record, &mut payload);
        }
        frames.push(payload);
    }
    read(written(&frames));
}

fn push_record(record: &[u8], payload: &mut Vec<u8>) {
    let mut checked = Vec::new();
    varint::write(record.len() as u64, &mut checked);
    checked.extend_from_slice(record);
    payload.extend_from_slice(&crc32c::crc32c(&checked).to_be_bytes());
    payload.extend_from_slice(&checked);
}

/// A few bytes of a good log changed, or its end cut off: what is shown is a beginning of what was written.
fn damage(bytes: &[u8]) {
    let frames: Vec<Vec<u8>> = (0..FRAMES_MAX).map(|number| vec![number as u8; 1 + number * 7]).collect();
    let vfs = written(&frames);
    let mut given = Unstructured::new(bytes);
    let file = vfs.open(SEGMENT).expect("just written");
    let length = file.len().expect("in memory").max(1);
    // More could forge a checksum.
    for _ in 0..3 {
        let (Ok(at), Ok(byte)) = (given.int_in_range(0..=length - 1), given.arbitrary::<u8>()) else { break };
        file.write_at(&[byte], at).expect("in memory");
    }
    if given.ratio(1, 3).unwrap_or(false) {
        let cut = given.int_in_range(0..=length).unwrap_or(length);
        file.set_len(cut).expect("in memory");
    }
    if let Ok(found) = payloads(&vfs) {
        assert_eq!(found, frames[..found.len()], "what was shown was never written");
        assert_eq!(payloads(&vfs).expect("opened before"), found, "opening again shows something else");
    }
}

/// Everything a database on such a log can be asked.
fn read(vfs: Arc<dyn Vfs>) {
    let options = Options::new().background(false).durability(Durability::None);
    let Ok(db) = Database::start(vfs, Box::new(MemoryTree::new()), options, None, None, &mut |_| ()) else { return };
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
