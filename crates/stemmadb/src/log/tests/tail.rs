//! Tests of the end of the log: every case of the rule that separates a torn write from damage.

use super::*;
use crate::ErrorKind;

/// Writes a log of `count` frames, those in `flushed` committed as flushed and the rest as written; returns their
/// positions. The log is not closed, as after a kill.
fn log_of(vfs: &FaultVfs, count: u64, flushed: &[u64]) -> Vec<Appended> {
    let (log, _) = collect(vfs, small()).unwrap();
    let append = |number| {
        let appended = log.append_bytes(Sequence::new(number), &payload(number)).unwrap();
        let level = if flushed.contains(&number) { Level::Flushed } else { Level::Written };
        log.commit(appended.end, level).unwrap();
        appended
    };
    (0..count).map(append).collect()
}

fn flip(vfs: &FaultVfs, position: LogPosition) {
    let name = segment::segment_name(position.segment());
    vfs.damage(&name, |bytes| bytes[position.offset() as usize] ^= 4);
}

/// All files of the log with their content.
fn files(vfs: &FaultVfs) -> Vec<(String, Vec<u8>)> {
    let mut names = vfs.list("log").unwrap();
    names.sort();
    names.into_iter().map(|name| (name.clone(), vfs.content(&format!("log/{name}")).unwrap())).collect()
}

fn expect_damage(vfs: &FaultVfs, options: LogOptions, position: LogPosition) {
    let before = files(vfs);
    let error = collect(vfs, options).err().expect("damage is reported");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    let position = format!("log/{:010}.log is damaged at offset {}", position.segment(), position.offset());
    assert!(error.message().starts_with(&position), "{error:?} does not name {position}");
    assert_eq!(files(vfs), before, "a damaged log is left as it is");
}

fn header_of(appended: &Appended) -> LogPosition {
    LogPosition::new(appended.payload.segment(), appended.payload.offset() - frame::FRAME_HEADER_BYTES)
}

#[test]
fn torn_last_frame_ends_the_log_and_is_copied() {
    let vfs = FaultVfs::new(1);
    let frames = log_of(&vfs, 5, &[]);
    flip(&vfs, frames[4].payload);
    let torn = vfs.content("log/0000000001.log").unwrap()[header_of(&frames[4]).offset() as usize..].to_vec();
    let (log, found) = collect(&vfs, small()).unwrap();
    assert_eq!(found, (0..4).map(payload).collect::<Vec<_>>());
    let name = format!("log/torn-0000000001-{:010}", header_of(&frames[4]).offset());
    let kept = vfs.content(&name).unwrap();
    assert_eq!(kept, torn[..kept.len()]);
    assert!(torn[kept.len()..].iter().all(|&byte| byte == 0));
    let appended = log.append_bytes(Sequence::new(9), b"next").unwrap();
    assert!(appended.payload > frames[4].payload, "a mark comes between");
}

/// The write of the last frame was cut short within its padding, in a recycled file. The frame itself is complete, but
/// `check` reported the old bytes in its padding as damage. Found by failing every call: 8 of 3,580.
#[test]
fn unwritten_padding_is_zeroed_on_open() {
    let vfs = FaultVfs::new(1);
    let last = log_of(&vfs, 12, &[]).pop().unwrap();
    let padding = last.payload.offset() as usize + payload(11).len()..last.end.offset() as usize;
    assert!(!padding.is_empty());
    vfs.damage("log/0000000001.log", |bytes| bytes[padding].fill(7));
    let (log, found) = collect(&vfs, small()).unwrap();
    assert_eq!((found.len(), log.first_unexpected_byte(1).unwrap()), (12, None));
}

#[test]
fn frame_proven_flushed_by_a_later_one_is_damaged() {
    let vfs = FaultVfs::new(1);
    let frames = log_of(&vfs, 5, &[2, 3]);
    for damaged in &frames[..3] {
        let vfs = vfs.crash_image(1);
        flip(&vfs, damaged.payload);
        expect_damage(&vfs, small(), header_of(damaged));
    }
    // Frame 3 was flushed after the last frame was encoded: nothing on the disk records that.
    let vfs = vfs.crash_image(2);
    flip(&vfs, header_of(&frames[3]));
    let (_, found) = collect(&vfs, small()).unwrap();
    assert_eq!(found.len(), 3);
}

#[test]
fn end_before_the_known_durable_position_is_damage() {
    let vfs = FaultVfs::new(1);
    let frames = log_of(&vfs, 5, &[4]);
    flip(&vfs, frames[4].payload);
    let with_durable_end = |durable_at_least| LogOptions { durable_at_least, ..small() };
    expect_damage(&vfs, with_durable_end(frames[4].end), header_of(&frames[4]));
    let from_the_end = LogOptions { replay_from: Some(frames[4].end), ..small() };
    collect(&vfs.crash_image(1), from_the_end).expect("frames that are not replayed are not checked");
    collect(&vfs, with_durable_end(header_of(&frames[4]))).unwrap();
}

#[test]
fn sealed_segment_must_end_with_its_seal() {
    let vfs = FaultVfs::new(1);
    let frames = log_of(&vfs, 120, &[]);
    let last_of_first = frames.iter().rev().find(|position| position.payload.segment() == 1).unwrap();
    for position in [last_of_first.payload, last_of_first.end] {
        let vfs = vfs.crash_image(1);
        flip(&vfs, position);
        let end = if position == last_of_first.end { position } else { header_of(last_of_first) };
        expect_damage(&vfs, small(), end);
    }
    // A file longer than its seal, as a crash leaves it, is valid, and is truncated.
    vfs.damage("log/0000000001.log", |bytes| bytes.extend_from_slice(&[0; 999]));
    let from_later = LogOptions { replay_from: Some(frames[100].end), ..small() };
    let (_, found) = collect(&vfs, from_later).unwrap();
    assert_eq!(found.len(), 19);
    let length = vfs.content("log/0000000001.log").unwrap().len();
    assert_eq!(length, (last_of_first.end.offset() + frame::FRAME_HEADER_BYTES) as usize);
}

#[test]
fn torn_frame_stays_invalid_after_later_appends() {
    let vfs = FaultVfs::new(1);
    let frames = {
        let (log, _) = collect(&vfs, small()).unwrap();
        let a = log.append_bytes(Sequence::new(1), b"torn....").unwrap();
        let b = log.append_bytes(Sequence::new(2), b"unsaved").unwrap();
        let c = log.append_bytes(Sequence::new(3), b"unsaved, too").unwrap();
        log.commit(c.end, Level::Written).unwrap();
        [a, b, c]
    };
    flip(&vfs, frames[0].payload);
    let (log, found) = collect(&vfs, small()).unwrap();
    assert!(found.is_empty());
    // The mark written by recovery replaced the torn frame; `b` is overwritten next, and `c` would follow.
    let next = log.append_bytes(Sequence::new(4), b"another").unwrap();
    log.commit(next.end, Level::Flushed).unwrap();
    assert_eq!((next.payload, next.end), (frames[1].payload, frames[1].end), "the frame after it would fit");
    drop(log);
    let (_, found) = collect(&vfs, small()).unwrap();
    assert_eq!(found, [b"another".to_vec()]);
}

/// Wherever recovery is interrupted, the torn bytes are either still in the log or already in their copy.
#[test]
fn torn_end_is_copied_before_it_is_zeroed() {
    let disk = FaultVfs::new(1);
    let frames = log_of(&disk, 40, &[38]);
    flip(&disk, frames[39].payload);
    let (name, start) = (segment::segment_name(frames[39].end.segment()), header_of(&frames[39]).offset() as usize);
    let torn = disk.content(&name).unwrap()[start..frames[39].end.offset() as usize].to_vec();
    let copy = format!("log/torn-{:010}-{start:010}", frames[39].end.segment());
    for nth in 1.. {
        let vfs = disk.crash_image(nth);
        vfs.fail(Call::AnyChange, nth, Failure::Broken, true);
        let is_open = collect(&vfs, small()).is_ok();
        for seed in 0..20 {
            let vfs = vfs.crash_image(seed);
            let is_in_log = vfs.content(&name).unwrap()[start..].starts_with(&torn);
            let is_copied = vfs.content(&copy).is_some_and(|kept| !kept.is_empty() && torn.starts_with(&kept));
            assert!(is_in_log || is_copied, "call {nth}, image {seed}");
        }
        if is_open {
            break;
        }
    }
}

#[test]
fn at_most_four_torn_ends_are_kept() {
    let vfs = FaultVfs::new(1);
    for _ in 0..9 {
        let (log, _) = collect(&vfs, small()).unwrap();
        let appended = log.append_bytes(Sequence::new(1), b"torn").unwrap();
        log.commit(appended.end, Level::Written).unwrap();
        drop(log);
        flip(&vfs, appended.payload);
    }
    collect(&vfs, small()).unwrap();
    assert_eq!(vfs.list("log").unwrap().iter().filter(|name| name.starts_with("torn-")).count(), 4);
}

/// With any bit of a closed log flipped, opening either fails or returns every frame unchanged.
#[test]
fn every_flipped_bit_of_a_closed_log_is_detected_or_harmless() {
    let vfs = FaultVfs::new(1);
    log_of(&vfs, 80, &[3, 30, 75]);
    let (log, all) = collect(&vfs, small()).unwrap();
    log.close().unwrap();
    drop(log);
    let vfs = vfs.crash_image(1);
    let (mut refused, mut harmless) = (0, 0);
    for name in ["log/0000000001.log", "log/0000000002.log", "log/0000000003.log"] {
        let bits = vfs.content(name).expect("the log has three segments").len() as u64 * 8;
        for bit in (0..bits).step_by(5) {
            let vfs = vfs.crash_image(1);
            vfs.damage(name, |bytes| bytes[bit as usize / 8] ^= 1 << (bit % 8));
            match collect(&vfs, small()) {
                Ok((_, found)) => {
                    assert_eq!(found, all, "bit {bit} of {name}");
                    harmless += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit} of {name}: {error:?}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 5 * harmless / 4, "{refused} refused, {harmless} harmless");
}

/// A sealed segment truncated anywhere, or with a zeroed or misplaced page, is an error.
#[test]
fn truncated_zeroed_and_misplaced_pages_are_detected() {
    let vfs = FaultVfs::new(1);
    let frames = log_of(&vfs, 60, &[59]);
    let name = "log/0000000001.log";
    let length = vfs.content(name).unwrap().len();
    let check = |change: &dyn Fn(&mut Vec<u8>)| {
        let vfs = vfs.crash_image(1);
        vfs.damage(name, change);
        let error = collect(&vfs, small()).err().expect("damage is reported");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    };
    (0..length).step_by(7).for_each(|cut| check(&|bytes| bytes.truncate(cut)));
    (0..length).step_by(512).for_each(|start| check(&|bytes| bytes[start..(start + 512).min(length)].fill(0)));
    (512..length - 512)
        .step_by(512)
        .for_each(|start| check(&|bytes| bytes.copy_within(start..start + 512, start - 512)));
    // For a truncated last segment, the caller's knowledge of the log's end reveals the damage.
    let last = frames[59].end;
    let with_durable_end = LogOptions { durable_at_least: last, ..small() };
    let name = segment::segment_name(last.segment());
    for cut in 0..last.offset() as usize {
        let vfs = vfs.crash_image(1);
        vfs.damage(&name, |bytes| bytes.truncate(cut));
        assert_eq!(collect(&vfs, with_durable_end.clone()).err().unwrap().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn missing_and_foreign_segments_are_reported_by_name() {
    let vfs = FaultVfs::new(1);
    let frames = log_of(&vfs, 120, &[119]);
    let count = frames[119].end.segment();
    assert!(count > 3);
    for lost in 1..count {
        let vfs = vfs.crash_image(1);
        let name = segment::segment_name(lost);
        vfs.remove(&name).unwrap();
        let error = collect(&vfs, small()).err().expect("a lost segment is detected");
        assert!(error.kind() == ErrorKind::Corrupt && error.message().contains(&name), "{error:?}");
    }
    let all_lost = FaultVfs::new(2);
    let with_durable_end = LogOptions { durable_at_least: frames[50].end, ..small() };
    assert_eq!(collect(&all_lost, with_durable_end.clone()).err().unwrap().kind(), ErrorKind::Corrupt);
    let last_lost = vfs.crash_image(1);
    last_lost.remove(&segment::segment_name(count)).unwrap();
    let with_durable_end = LogOptions { replay_from: Some(frames[119].end), ..small() };
    assert_eq!(collect(&last_lost, with_durable_end).err().unwrap().kind(), ErrorKind::Corrupt);

    let other = FaultVfs::new(3);
    log_of(&other, 120, &[119]);
    let foreign = other.content("log/0000000002.log").unwrap();
    vfs.damage("log/0000000002.log", |bytes| *bytes = foreign);
    let error = collect(&vfs, small()).err().unwrap();
    assert!(error.message().contains("another database"), "{error:?}");
    let mine = LogOptions { database_id: Some([1; 16]), ..small() };
    assert!(collect(&other, mine).err().unwrap().message().contains("another database"));
}

#[test]
fn replay_starts_only_at_frame_boundaries() {
    let vfs = FaultVfs::new(1);
    let frames = log_of(&vfs, 20, &[19]);
    let last = frames[19].end;
    for offset in 0..5000 {
        let from = LogPosition::new(last.segment(), offset);
        let options = LogOptions { replay_from: Some(from), ..small() };
        let vfs = vfs.crash_image(1);
        let before = files(&vfs);
        let outcome = collect(&vfs, options);
        let is_end =
            from.offset() == 64 || from == header_of(&frames[0]) || frames.iter().any(|position| position.end == from);
        assert_eq!(outcome.is_ok(), is_end, "offset {offset}");
        assert!(is_end || files(&vfs) == before);
    }
}

#[test]
fn random_bytes_never_panic_or_replay_as_frames() {
    let vfs = FaultVfs::new(1);
    log_of(&vfs, 80, &[70]);
    for seed in 0..300 {
        let vfs = vfs.crash_image(1);
        let mut random = Random::new(seed);
        let name = ["log/0000000001.log", "log/0000000002.log"][random.below(2) as usize];
        vfs.damage(name, |bytes| {
            let start = random.below(bytes.len() as u64) as usize;
            let end = start + random.below((bytes.len() - start) as u64) as usize;
            bytes[start..end].iter_mut().for_each(|byte| *byte = random.number() as u8);
        });
        if let Ok((_, found)) = collect(&vfs, small()) {
            assert_eq!(found, (0..found.len() as u64).map(payload).collect::<Vec<_>>());
        }
    }
}
