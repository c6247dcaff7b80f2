//! Where does the log end? Every case of the rule, one by one.

use super::*;
use crate::ErrorKind;

/// A log of `count` frames, each committed as told; returns where they are. Not closed: as after a kill.
fn log_of(vfs: &FaultVfs, count: u64, flushed: &[u64]) -> Vec<Appended> {
    let (log, _) = collect(vfs, small()).unwrap();
    let append = |number| {
        let appended = log.append(Sequence::new(number), &payload(number)).unwrap();
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

/// All files of the log with their bytes.
fn files(vfs: &FaultVfs) -> Vec<(String, Vec<u8>)> {
    let mut names = vfs.list("log").unwrap();
    names.sort();
    names.into_iter().map(|name| (name.clone(), vfs.content(&format!("log/{name}")).unwrap())).collect()
}

fn expect_damage(vfs: &FaultVfs, options: LogOptions, place: LogPosition) {
    let before = files(vfs);
    let error = collect(vfs, options).err().expect("damage is reported");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    let place = format!("log/{:010}.log is damaged at offset {}", place.segment(), place.offset());
    assert!(error.message().starts_with(&place), "{error:?} does not name {place}");
    assert_eq!(files(vfs), before, "a damaged log is left as it is");
}

fn header_of(appended: &Appended) -> LogPosition {
    LogPosition::new(appended.payload.segment(), appended.payload.offset() - frame::FRAME_HEADER_BYTES)
}

#[test]
fn the_last_frame_torn_is_the_end_and_is_kept_aside() {
    let vfs = FaultVfs::new(1);
    let places = log_of(&vfs, 5, &[]);
    flip(&vfs, places[4].payload);
    let torn = vfs.content("log/0000000001.log").unwrap()[header_of(&places[4]).offset() as usize..].to_vec();
    let (log, found) = collect(&vfs, small()).unwrap();
    assert_eq!(found, (0..4).map(payload).collect::<Vec<_>>());
    let name = format!("log/torn-0000000001-{:010}", header_of(&places[4]).offset());
    let kept = vfs.content(&name).unwrap();
    assert_eq!(kept, torn[..kept.len()]);
    assert!(torn[kept.len()..].iter().all(|&byte| byte == 0));
    let appended = log.append(Sequence::new(9), b"next").unwrap();
    assert!(appended.payload > places[4].payload, "a mark lies between");
}

/// A write was cut short within the padding of its last frame, in a file that was used before. The frame is whole; what was left in its
/// padding was damage to `check` from then on. Found by letting every call fail: 8 of 3,580.
#[test]
fn padding_that_was_not_written_is_zero_once_opened() {
    let vfs = FaultVfs::new(1);
    let last = log_of(&vfs, 12, &[]).pop().unwrap();
    let padding = last.payload.offset() as usize + payload(11).len()..last.end.offset() as usize;
    assert!(!padding.is_empty());
    vfs.damage("log/0000000001.log", |bytes| bytes[padding].fill(7));
    let (log, found) = collect(&vfs, small()).unwrap();
    assert_eq!((found.len(), log.first_stray(1).unwrap()), (12, None));
}

#[test]
fn a_frame_that_a_later_one_knows_as_flushed_is_damaged() {
    let vfs = FaultVfs::new(1);
    let places = log_of(&vfs, 5, &[2, 3]);
    for damaged in &places[..3] {
        let vfs = vfs.crash_image(1);
        flip(&vfs, damaged.payload);
        expect_damage(&vfs, small(), header_of(damaged));
    }
    // Frame 3 was flushed after the last frame was stamped: nothing on the disk knows.
    let vfs = vfs.crash_image(2);
    flip(&vfs, header_of(&places[3]));
    let (_, found) = collect(&vfs, small()).unwrap();
    assert_eq!(found.len(), 3);
}

#[test]
fn an_end_before_what_the_caller_knows_is_damage() {
    let vfs = FaultVfs::new(1);
    let places = log_of(&vfs, 5, &[4]);
    flip(&vfs, places[4].payload);
    let knows = |durable_at_least| LogOptions { durable_at_least, ..small() };
    expect_damage(&vfs, knows(places[4].end), header_of(&places[4]));
    let from_the_end = LogOptions { replay_from: Some(places[4].end), ..small() };
    collect(&vfs.crash_image(1), from_the_end).expect("what is not replayed is not looked at");
    collect(&vfs, knows(header_of(&places[4]))).unwrap();
}

#[test]
fn a_finished_segment_ends_with_its_seal() {
    let vfs = FaultVfs::new(1);
    let places = log_of(&vfs, 120, &[]);
    let last_of_first = places.iter().rev().find(|place| place.payload.segment() == 1).unwrap();
    for place in [last_of_first.payload, last_of_first.end] {
        let vfs = vfs.crash_image(1);
        flip(&vfs, place);
        let end = if place == last_of_first.end { place } else { header_of(last_of_first) };
        expect_damage(&vfs, small(), end);
    }
    // A file longer than its seal, as a crash leaves it, is as good, and shortened.
    vfs.damage("log/0000000001.log", |bytes| bytes.extend_from_slice(&[0; 999]));
    let from_later = LogOptions { replay_from: Some(places[100].end), ..small() };
    let (_, found) = collect(&vfs, from_later).unwrap();
    assert_eq!(found.len(), 19);
    let length = vfs.content("log/0000000001.log").unwrap().len();
    assert_eq!(length, (last_of_first.end.offset() + frame::FRAME_HEADER_BYTES) as usize);
}

#[test]
fn a_torn_frame_does_not_come_back_behind_later_ones() {
    let vfs = FaultVfs::new(1);
    let places = {
        let (log, _) = collect(&vfs, small()).unwrap();
        let a = log.append(Sequence::new(1), b"torn....").unwrap();
        let b = log.append(Sequence::new(2), b"unsaved").unwrap();
        let c = log.append(Sequence::new(3), b"unsaved, too").unwrap();
        log.commit(c.end, Level::Written).unwrap();
        [a, b, c]
    };
    flip(&vfs, places[0].payload);
    let (log, found) = collect(&vfs, small()).unwrap();
    assert!(found.is_empty());
    // The mark that recovery wrote took the torn frame's place; now b is written over, and c would follow.
    let next = log.append(Sequence::new(4), b"another").unwrap();
    log.commit(next.end, Level::Flushed).unwrap();
    assert_eq!((next.payload, next.end), (places[1].payload, places[1].end), "the frame behind it would fit");
    drop(log);
    let (_, found) = collect(&vfs, small()).unwrap();
    assert_eq!(found, [b"another".to_vec()]);
}

/// Whenever recovery is cut off, the torn bytes are in the log still, or in their copy already.
#[test]
fn a_torn_end_is_kept_before_it_is_zeroed() {
    let disk = FaultVfs::new(1);
    let places = log_of(&disk, 40, &[38]);
    flip(&disk, places[39].payload);
    let (name, start) = (segment::segment_name(places[39].end.segment()), header_of(&places[39]).offset() as usize);
    let torn = disk.content(&name).unwrap()[start..places[39].end.offset() as usize].to_vec();
    let copy = format!("log/torn-{:010}-{start:010}", places[39].end.segment());
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
fn few_torn_ends_are_kept() {
    let vfs = FaultVfs::new(1);
    for _ in 0..9 {
        let (log, _) = collect(&vfs, small()).unwrap();
        let appended = log.append(Sequence::new(1), b"torn").unwrap();
        log.commit(appended.end, Level::Written).unwrap();
        drop(log);
        flip(&vfs, appended.payload);
    }
    collect(&vfs, small()).unwrap();
    assert_eq!(vfs.list("log").unwrap().iter().filter(|name| name.starts_with("torn-")).count(), 4);
}

/// Each bit of a closed log, flipped: an error, or every frame as it was.
#[test]
fn no_flipped_bit_of_a_closed_log_goes_unnoticed() {
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

/// Each finished segment cut anywhere, or with a page of zeros, or with another place's page: an error.
#[test]
fn cut_zeroed_and_misplaced_pages_are_noticed() {
    let vfs = FaultVfs::new(1);
    let places = log_of(&vfs, 60, &[59]);
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
    // The last segment cut: the caller knows how far the log went.
    let last = places[59].end;
    let knows = LogOptions { durable_at_least: last, ..small() };
    let name = segment::segment_name(last.segment());
    for cut in 0..last.offset() as usize {
        let vfs = vfs.crash_image(1);
        vfs.damage(&name, |bytes| bytes.truncate(cut));
        assert_eq!(collect(&vfs, knows.clone()).err().unwrap().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn missing_and_foreign_segments_are_named() {
    let vfs = FaultVfs::new(1);
    let places = log_of(&vfs, 120, &[119]);
    let count = places[119].end.segment();
    assert!(count > 3);
    for lost in 1..count {
        let vfs = vfs.crash_image(1);
        let name = segment::segment_name(lost);
        vfs.remove(&name).unwrap();
        let error = collect(&vfs, small()).err().expect("a lost segment is missed");
        assert!(error.kind() == ErrorKind::Corrupt && error.message().contains(&name), "{error:?}");
    }
    let all_lost = FaultVfs::new(2);
    let knows = LogOptions { durable_at_least: places[50].end, ..small() };
    assert_eq!(collect(&all_lost, knows.clone()).err().unwrap().kind(), ErrorKind::Corrupt);
    let last_lost = vfs.crash_image(1);
    last_lost.remove(&segment::segment_name(count)).unwrap();
    let knows = LogOptions { replay_from: Some(places[119].end), ..small() };
    assert_eq!(collect(&last_lost, knows).err().unwrap().kind(), ErrorKind::Corrupt);

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
fn replay_begins_at_frames_only() {
    let vfs = FaultVfs::new(1);
    let places = log_of(&vfs, 20, &[19]);
    let last = places[19].end;
    for offset in 0..5000 {
        let from = LogPosition::new(last.segment(), offset);
        let options = LogOptions { replay_from: Some(from), ..small() };
        let vfs = vfs.crash_image(1);
        let before = files(&vfs);
        let outcome = collect(&vfs, options);
        let is_end =
            from.offset() == 64 || from == header_of(&places[0]) || places.iter().any(|place| place.end == from);
        assert_eq!(outcome.is_ok(), is_end, "offset {offset}");
        assert!(is_end || files(&vfs) == before);
    }
}

#[test]
fn random_bytes_are_no_log_and_no_panic() {
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
