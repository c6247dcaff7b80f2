//! I/O errors: no false acknowledgment, no writes after a failed one, and a log that reopens without damage.

use super::*;
use crate::ErrorKind;

/// Appends and commits until something fails; returns how many frames were acknowledged.
fn run(log: &Log, first: u64, count: u64) -> (u64, Option<Error>) {
    for number in first..first + count {
        let outcome = log
            .append_bytes(Sequence::new(number), &payload(number))
            .and_then(|appended| log.commit(appended.end, Level::Flushed))
            .and_then(|()| match number % 40 {
                39 => log
                    .segments()
                    .first()
                    .filter(|segment| !segment.is_active)
                    .map_or(Ok(()), |old| log.retire(old.number)),
                _ => Ok(()),
            });
        if let Err(error) = outcome {
            return (number, Some(error));
        }
    }
    (first + count, None)
}

/// The `n`th call of each kind fails, for every n, once or permanently, with EIO or ENOSPC.
#[test]
fn every_failing_call_preserves_acknowledged_frames() {
    let (mut points, mut failures) = (0, 0);
    for call in
        [Call::Write, Call::Sync, Call::SyncDir, Call::Rename, Call::Create, Call::SetLen, Call::Remove, Call::Read]
    {
        for (failure, is_sticky) in [(Failure::Broken, false), (Failure::Broken, true), (Failure::Full, false)] {
            for nth in 1.. {
                let vfs = FaultVfs::new(nth);
                vfs.fail(call, nth, failure, is_sticky);
                let opened = collect(&vfs, small());
                points += 1;
                let mut acknowledged = 0;
                if let Ok((log, _)) = &opened
                    && !log.is_poisoned()
                {
                    let (done, error) = run(log, 0, 100);
                    acknowledged = done;
                    let Some(error) = error else { break };
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{call:?} {nth}: {error:?}");
                    check_poisoned(log);
                }
                failures += 1;
                drop(opened);
                vfs.heal();
                // The process restarts, either on the same disk or after a power failure.
                for disk in [vfs.clone(), vfs.crash_image(nth), vfs.crash_image(nth + 1)] {
                    let opened = collect(&disk, small());
                    let (log, _) = opened.unwrap_or_else(|error| panic!("{call:?} {nth}: {error:?}"));
                    let found = all(&log);
                    let newest = found.last().cloned();
                    if acknowledged > 0 {
                        let least = payload(acknowledged - 1);
                        assert!(newest == Some(least) || newest == Some(payload(acknowledged)), "{call:?} {nth}");
                    }
                    let (_, error) = run(&log, 5000, 3);
                    assert!(error.is_none(), "{error:?}");
                    drop(log);
                    let (_, again) = collect(&disk.crash_image(7), small()).unwrap();
                    assert_eq!(again[..found.len()], found, "{call:?} {nth}: what was found once is durable");
                    assert_eq!(again.len(), found.len() + 3);
                }
            }
        }
    }
    assert!(points > 500 && failures > 400, "{points} points, {failures} failures");
}

/// The payloads of all segments. Unlike replay, this never includes segments that were retired before.
pub(super) fn all(log: &Log) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for segment in log.segments() {
        log.frames(segment.number, &mut |frame| {
            found.push(frame.payload.to_vec());
            Ok(())
        })
        .unwrap();
    }
    found
}

/// Checks the errors of a log whose write or flush failed. (A failed retirement need not poison the log.)
fn check_poisoned(log: &Log) {
    if !log.is_poisoned() {
        return;
    }
    let durable = log.durable();
    let error = log.append_bytes(Sequence::new(1), b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.message().contains("takes no writes") && error.hint().is_some(), "{error:?}");
    assert!(log.roll().is_err() && log.close().is_err());
    assert!(log.commit(durable, Level::Flushed).is_ok(), "what is durable stays so");
    assert_eq!(log.durable(), durable);
}

#[test]
fn failed_read_does_not_poison_the_log() {
    let vfs = FaultVfs::new(1);
    let (log, _) = collect(&vfs, small()).unwrap();
    let appended = log.append_bytes(Sequence::new(1), b"text").unwrap();
    log.commit(appended.end, Level::Flushed).unwrap();
    vfs.fail(Call::Read, 1, Failure::Broken, false);
    let mut out = Vec::new();
    assert_eq!(log.read(appended.payload, 4, &mut out).unwrap_err().kind(), ErrorKind::Unavailable);
    log.read(appended.payload, 4, &mut out).unwrap();
    assert_eq!(out, b"text");
    assert!(!log.is_poisoned());
}

/// Linux marks the pages of a failed flush as clean. After a restart the frames are read from the page cache and must
/// be written again.
#[test]
fn recovery_rewrites_frames_of_a_failed_flush() {
    let vfs = FaultVfs::new(1);
    let (log, _) = collect(&vfs, small()).unwrap();
    let appended = log.append_bytes(Sequence::new(1), b"forgotten").unwrap();
    vfs.fail(Call::Sync, 1, Failure::Broken, false);
    log.commit(appended.end, Level::Flushed).unwrap_err();
    drop(log);
    let (log, found) = collect(&vfs, small()).unwrap();
    assert_eq!(found, [b"forgotten".to_vec()]);
    drop(log);
    for seed in 0..50 {
        let (_, found) = collect(&vfs.crash_image(seed), small()).unwrap();
        assert_eq!(found, [b"forgotten".to_vec()]);
    }
}

#[test]
fn disk_too_full_for_preallocation_still_accepts_frames() {
    let vfs = FaultVfs::new(1);
    let (log, _) = collect(&vfs, LogOptions { segment_bytes: 1 << 20, ..small() }).unwrap();
    let mut refused = 0;
    for number in 0..100 {
        let appended = log.append_bytes(Sequence::new(number), &[7; 100]).unwrap();
        // The frame itself is the first write, the preallocated zeros are the second.
        vfs.heal();
        vfs.fail(Call::Write, 2, Failure::Full, false);
        let writes = vfs.count(Call::Write);
        log.commit(appended.end, Level::Flushed).unwrap();
        refused += vfs.count(Call::Write) - writes - 1;
    }
    assert!(refused > 10);
}

#[test]
fn log_on_a_full_disk_is_readable() {
    let vfs = FaultVfs::new(1);
    let (log, _) = collect(&vfs, small()).unwrap();
    assert_eq!(run(&log, 0, 20).0, 20);
    drop(log);
    // Repair takes no space; only the mark does not fit.
    vfs.fail(Call::Write, 2, Failure::Full, true);
    let (log, found) = collect(&vfs, small()).unwrap();
    assert_eq!(found.len(), 20);
    assert_eq!(all(&log), found);
    let error = log.append_bytes(Sequence::new(1), b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.message().contains("no space is left"), "{error:?}");
    drop(log);
    vfs.heal();
    assert!(run(&collect(&vfs, small()).unwrap().0, 20, 20).1.is_none());
}

#[test]
fn visitor_errors_are_returned() {
    let vfs = FaultVfs::new(1);
    let (log, _) = collect(&vfs, small()).unwrap();
    log.append_bytes(Sequence::new(1), b"x").unwrap();
    log.close().unwrap();
    let refuse = &mut |_: Frame<'_>| Err(Error::conflict("no"));
    assert_eq!(log.frames(1, refuse).unwrap_err().kind(), ErrorKind::Conflict);
    drop(log);
    let outcome = Log::open(Arc::new(vfs.clone()), small(), refuse);
    assert_eq!(outcome.err().map(|error| error.kind()), Some(ErrorKind::Conflict));
    assert_eq!(collect(&vfs, small()).unwrap().1.len(), 1);
}

#[test]
fn invalid_requests_are_rejected() {
    let vfs = FaultVfs::new(1);
    for segment_bytes in [0, 4095, u32::MAX] {
        let outcome = collect(&vfs, LogOptions { segment_bytes, ..small() });
        assert_eq!(outcome.err().map(|error| error.kind()), Some(ErrorKind::Invalid));
    }
    let (log, _) = collect(&vfs, small()).unwrap();
    let too_long = vec![0; frame::PAYLOAD_BYTES_MAX + 1];
    assert_eq!(log.append_bytes(Sequence::new(1), &too_long).unwrap_err().kind(), ErrorKind::Invalid);
    let beyond = log.end().advance(8);
    assert_eq!(log.commit(beyond, Level::Flushed).unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(log.commit(beyond, Level::Written).unwrap_err().kind(), ErrorKind::Internal);
    let mut out = vec![1];
    for position in [LogPosition::START, log.end(), beyond, LogPosition::new(1, 0), LogPosition::from_u64(u64::MAX)] {
        assert_eq!(log.read(position, 1, &mut out).unwrap_err().kind(), ErrorKind::Corrupt, "{position}");
    }
    assert!(log.read(LogPosition::new(1, 64), usize::MAX, &mut out).is_err());
    assert!(log.read(LogPosition::new(1, 64), u32::MAX as usize, &mut out).is_err());
}
