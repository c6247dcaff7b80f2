//! Tests of retired segments: permanently removed, readable for older snapshots, their files reused.

use super::*;
use crate::ErrorKind;

/// Appends frames until the log reaches segment `until`; returns all of them.
fn fill(log: &Log, until: u32, from: u64) -> Vec<(u64, Appended)> {
    let mut frames = Vec::new();
    while log.end().segment() < until {
        let number = from + frames.len() as u64;
        let appended = log.append_bytes(Sequence::new(number), &payload(number)).unwrap();
        log.commit(appended.end, Level::Written).unwrap();
        frames.push((number, appended));
    }
    log.commit(log.end(), Level::Flushed).unwrap();
    frames
}

fn free_names(vfs: &dyn Vfs) -> usize {
    vfs.list("log").unwrap().iter().filter(|name| name.starts_with("free-")).count()
}

#[test]
fn retired_segment_is_readable_only_through_older_snapshots() {
    let vfs = FaultVfs::new(1);
    let (log, _) = collect(&vfs, small()).unwrap();
    let frames = fill(&log, 4, 0);
    let held = log.segments_snapshot();
    log.retire(2).unwrap();
    assert_eq!(log.segments().iter().map(|segment| segment.number).collect::<Vec<_>>(), [1, 3, 4]);
    let mut out = Vec::new();
    let (number, inside) = *frames.iter().find(|(_, position)| position.payload.segment() == 2).unwrap();
    let error = log.read(inside.payload, 8, &mut out).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(log.frames(2, &mut |_| Ok(())).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(log.retire(2).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(log.retire(4).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(log.retire(99).unwrap_err().kind(), ErrorKind::NotFound);

    // Segments added after the snapshot are readable through it, even after retirement.
    let later = fill(&log, 8, 1000);
    log.retire(5).unwrap();
    for (number, position) in frames.iter().chain(&later) {
        held.read(position.payload, payload(*number).len(), &mut out).unwrap();
        assert_eq!(out, payload(*number));
    }
    assert_eq!(log.statistics().recycle_count, 0, "the snapshot holds their files");
    drop(held);
    fill(&log, 9, 2000);
    assert_eq!(log.statistics().recycle_count, 1);
    assert!(log.read(inside.payload, payload(number).len(), &mut out).is_err());

    drop(log);
    let (log, found) = collect(&vfs, small()).unwrap();
    assert_eq!(log.segments().iter().map(|segment| segment.number).collect::<Vec<_>>(), [1, 3, 4, 6, 7, 8, 9]);
    let kept = |(_, position): &&(u64, Appended)| ![2, 5].contains(&position.payload.segment());
    let expected = frames.iter().chain(&later).filter(kept).map(|(number, _)| payload(*number));
    assert_eq!(found[..expected.clone().count()], expected.collect::<Vec<_>>());
}

/// A retirement fails at any call, then reopening fails at any call: the segment is either complete or gone, and the
/// log opens.
#[test]
fn retirement_is_all_or_nothing() {
    for failing in 1..8 {
        for nth in 1.. {
            let vfs = FaultVfs::new(1);
            let (log, _) = collect(&vfs, small()).unwrap();
            let frames = fill(&log, 4, 0);
            vfs.fail(Call::AnyChange, failing, Failure::Broken, false);
            let is_retired = log.retire(2).is_ok();
            drop(log);
            vfs.heal();
            vfs.fail(Call::AnyChange, nth, Failure::Broken, true);
            let is_open = collect(&vfs, small()).is_ok();
            for seed in 0..12 {
                let (log, _) = collect(&vfs.crash_image(seed), small())
                    .unwrap_or_else(|error| panic!("failing {failing}, then {nth}, image {seed}: {error:?}"));
                let found = super::failure::all(&log);
                let left = frames.iter().filter(|(_, position)| position.payload.segment() != 2);
                let is_gone = found.len() == left.count();
                assert!(is_gone || !is_retired && found.len() == frames.len(), "{failing} {nth} {seed}");
            }
            if is_open {
                break;
            }
        }
    }
}

#[test]
fn reused_files_expose_no_old_frames() {
    let vfs = FaultVfs::new(1);
    let (log, _) = collect(&vfs, small()).unwrap();
    let mut newest = Vec::new();
    for round in 0..40 {
        let next = log.end().segment() + 1;
        newest = fill(&log, next, round * 100);
        log.retire(next - 1).unwrap();
    }
    // The frame that no longer fitted is the first one of the only remaining segment.
    let left = newest.last().map(|(number, _)| payload(*number)).unwrap();
    assert!(log.statistics().recycle_count >= 38, "{:?}", log.statistics());
    assert!(free_names(&vfs) <= 2);
    let last = log.append_bytes(Sequence::new(1), b"last").unwrap();
    log.commit(last.end, Level::Flushed).unwrap();
    for close in [false, true] {
        if close {
            log.close().unwrap();
        }
        let image = vfs.crash_image(1);
        let (reopened, found) = collect(&image, small()).unwrap();
        assert_eq!(found, [left.clone(), b"last".to_vec()]);
        assert_eq!(reopened.segments().len(), 1);
    }
}

#[test]
fn few_retired_files_and_no_large_ones_are_kept() {
    let vfs = FaultVfs::new(1);
    let (log, _) = collect(&vfs, small()).unwrap();
    log.append_bytes(Sequence::new(1), &[5; 20_000]).unwrap();
    fill(&log, 7, 0);
    let large = log.segments().iter().find(|segment| segment.used_bytes > 20_000).unwrap().number;
    log.retire(large).unwrap();
    assert_eq!(free_names(&vfs), 0);
    for segment in log.segments() {
        if !segment.is_active {
            log.retire(segment.number).unwrap();
        }
    }
    assert_eq!(free_names(&vfs), 1);
    drop(log);
    let (log, _) = collect(&vfs, small()).unwrap();
    fill(&log, 10, 0);
    assert_eq!(log.statistics().recycle_count, 1);
    assert_eq!(free_names(&vfs), 0);
}

#[test]
fn retired_segment_in_memory_is_freed() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let log = Log::open(Arc::clone(&vfs), small(), &mut |_| Ok(())).unwrap();
    fill(&log, 5, 0);
    for segment in 1..5 {
        log.retire(segment).unwrap();
    }
    assert_eq!(vfs.list("log").unwrap(), ["0000000005.log"]);
    assert_eq!(log.statistics().recycle_count, 0);
}

#[test]
fn empty_segment_is_not_rolled() {
    let vfs = FaultVfs::new(1);
    let (log, _) = collect(&vfs, small()).unwrap();
    log.roll().unwrap();
    let segments = log.segments();
    log.roll().unwrap();
    assert_eq!(log.segments(), segments);
    log.append_bytes(Sequence::new(1), b"x").unwrap();
    log.roll().unwrap();
    assert_eq!(log.segments().len(), segments.len() + 1);
    assert!(log.durable() == log.end() && log.written() == log.end());
}

/// The file of a segment that a backup has linked keeps its bytes, whatever becomes of the segment.
#[cfg(unix)]
#[test]
fn shared_file_is_never_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let vfs: Arc<dyn Vfs> = Arc::new(DiskVfs::new(&directory.path().join("db")).unwrap());
    let backup = DiskVfs::new(&directory.path().join("backup")).unwrap();
    let link = |from: &str, to: &str| assert!(backup.link_from(&*vfs, from, to).unwrap());
    let bytes = |name: &str| std::fs::read(directory.path().join("backup").join(name)).unwrap();
    let (log, _) = collect(&vfs, small()).unwrap();
    fill(&log, 4, 0);
    let expected: Vec<_> = (1..=3)
        .map(|number| std::fs::read(directory.path().join("db").join(segment_file_name(number))).unwrap())
        .collect();

    // Linked before it is retired: it is not kept for reuse.
    link(&segment_file_name(1), "1");
    log.retire(1).unwrap();
    assert_eq!(free_names(&*vfs), 0);
    // Linked after it is retired, while it waits for its reader.
    let held = log.segments_snapshot();
    log.retire(2).unwrap();
    link("log/free-0000000002", "2");
    drop(held);
    fill(&log, 6, 1000);
    assert_eq!((log.statistics().recycle_count, free_names(&*vfs)), (0, 0));
    // The same with a reopening in between.
    log.retire(3).unwrap();
    link("log/free-0000000003", "3");
    drop(log);
    let (log, _) = collect(&vfs, small()).unwrap();
    assert_eq!(free_names(&*vfs), 0);
    fill(&log, 9, 2000);
    for (number, expected) in expected.iter().enumerate() {
        assert!(bytes(&(number + 1).to_string()) == *expected, "segment {} was written to", number + 1);
    }

    // A file that is not shared is reused.
    log.retire(4).unwrap();
    fill(&log, 10, 3000);
    assert_eq!(log.statistics().recycle_count, 1);
}
