//! Tests of the log through its public methods.

use super::*;
use crate::vfs::{Call, DiskVfs, Failure, FaultVfs, MemoryVfs, Random};

mod crash;
mod failure;
mod groups;
mod retire;
mod tail;

/// Opens the log and returns its payloads.
fn collect(disk: &impl TestDisk, options: LogOptions) -> Result<(Log, Vec<Vec<u8>>)> {
    let mut payloads = Vec::new();
    let log = Log::open(disk.share(), options, &mut |frame| {
        payloads.push(frame.payload.to_vec());
        Ok(())
    })?;
    Ok((log, payloads))
}

fn small() -> LogOptions {
    LogOptions { segment_bytes: 4096, ..LogOptions::default() }
}

fn payload(number: u64) -> Vec<u8> {
    format!("frame {number} ").repeat(1 + number as usize % 23).into_bytes()
}

/// A disk on which a log can be reopened.
trait TestDisk {
    fn share(&self) -> Arc<dyn Vfs>;
}

impl TestDisk for FaultVfs {
    fn share(&self) -> Arc<dyn Vfs> {
        Arc::new(self.clone())
    }
}

impl TestDisk for Arc<dyn Vfs> {
    fn share(&self) -> Arc<dyn Vfs> {
        Arc::clone(self)
    }
}

fn round_trip(vfs: Arc<dyn Vfs>) {
    let (log, found) = collect(&vfs, small()).unwrap();
    assert!(found.is_empty());
    let mut frames = Vec::new();
    for number in 0..300 {
        let appended = log.append_bytes(Sequence::new(number), &payload(number)).unwrap();
        let mut read = Vec::new();
        log.read(appended.payload, payload(number).len(), &mut read).unwrap();
        assert_eq!(read, payload(number), "a frame is readable before it is written");
        let level = if number % 3 == 0 { Level::Flushed } else { Level::Written };
        log.commit(appended.end, level).unwrap();
        frames.push(appended);
    }
    assert!(log.segments().len() > 3);
    let mut read = Vec::new();
    for (number, appended) in frames.iter().enumerate() {
        log.read(appended.payload, payload(number as u64).len(), &mut read).unwrap();
        assert_eq!(read, payload(number as u64));
    }
    let mut seen = Vec::new();
    for segment in log.segments() {
        log.frames(segment.number, &mut |frame| {
            assert_eq!(frame.position, frames[seen.len()].payload);
            assert_eq!(frame.end, frames[seen.len()].end);
            assert_eq!(frame.first_sequence.get(), seen.len() as u64);
            seen.push(frame.payload.to_vec());
            Ok(())
        })
        .unwrap();
    }
    assert_eq!(seen, (0..300).map(payload).collect::<Vec<_>>());
    log.close().unwrap();
    log.close().unwrap();
    assert!(log.append_bytes(Sequence::new(300), b"x").is_err());
    let segments = log.segments();
    drop(log);

    let (log, found) = collect(&vfs, small()).unwrap();
    assert_eq!(found, seen);
    assert_eq!(log.segments(), segments);
    drop(log);
    for from in [0, 1, 150, 299] {
        let options = LogOptions { replay_from: Some(frames[from].end), ..small() };
        let (log, found) = collect(&vfs, options).unwrap();
        assert_eq!(found, seen[from + 1..]);
        assert_eq!(log.segments(), segments);
    }
}

#[test]
fn frames_survive_reopening_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    round_trip(Arc::new(DiskVfs::new(directory.path()).unwrap()));
}

#[test]
fn frames_survive_reopening_in_memory() {
    round_trip(Arc::new(MemoryVfs::new()));
}
