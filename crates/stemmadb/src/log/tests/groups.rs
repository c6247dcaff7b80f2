//! Tests of group commit: concurrent appends share writes and flushes, and every acknowledgment is true.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::*;

/// A disk with slow flushes, so that groups form.
fn slow_disk() -> FaultVfs {
    let vfs = FaultVfs::new(5);
    vfs.slow_syncs(Duration::from_micros(300));
    vfs
}

fn open_small(vfs: &FaultVfs) -> Log {
    let options = LogOptions { segment_bytes: 16 * 1024, ..LogOptions::default() };
    Log::open(Arc::new(vfs.clone()), options, &mut |_| Ok(())).unwrap()
}

#[test]
fn hundred_writers_share_flushes() {
    let vfs = slow_disk();
    let log = open_small(&vfs);
    let before = log.statistics();
    thread::scope(|scope| {
        for writer in 0..100 {
            let log = &log;
            scope.spawn(move || {
                for number in 0..30 {
                    let payload = [writer, number];
                    let appended = log.append_bytes(Sequence::new(1), &payload).unwrap();
                    log.commit(appended.end, Level::Flushed).unwrap();
                    assert!(log.durable() >= appended.end && log.written() >= appended.end);
                }
            });
        }
    });
    let after = log.statistics();
    let (frames, flushes) = (after.frame_count - before.frame_count, after.flush_count - before.flush_count);
    let rolls = after.roll_count - before.roll_count;
    assert_eq!(frames, 3000 + rolls);
    assert!(flushes * 8 < frames, "{frames} frames took {flushes} flushes");
}

/// Frames committed as flushed, as written and not at all, from many threads and over many segments, until the disk
/// fails. Every frame acknowledged as flushed survives, and the surviving frames are a prefix of those appended.
#[test]
fn acknowledgments_hold_after_a_crash() {
    for seed in 0..60 {
        let vfs = FaultVfs::new(seed);
        let mut random = Random::new(seed);
        let log = open_small(&vfs);
        vfs.fail(Call::AnyChange, 1 + random.below(400), Failure::Broken, seed % 2 == 0);
        let order = crate::sync::Mutex::new(Vec::new());
        let acknowledged = crate::sync::Mutex::new(Vec::new());
        let start = Barrier::new(6);
        thread::scope(|scope| {
            for writer in 0..6 {
                let (log, order, acknowledged, start) = (&log, &order, &acknowledged, &start);
                let mut random = Random::new(seed * 100 + writer);
                scope.spawn(move || {
                    start.wait();
                    for number in 0..100 {
                        let id = writer * 1000 + number;
                        let payload = vec![id as u8; random.below(700) as usize];
                        let appended = {
                            let mut order = order.lock();
                            let Ok(appended) = log.append_bytes(Sequence::new(id), &payload) else { return };
                            order.push(id);
                            appended
                        };
                        let outcome = match random.below(4) {
                            0 => continue,
                            1 => log.commit(appended.end, Level::Written),
                            _ => log.commit(appended.end, Level::Flushed).map(|()| acknowledged.lock().push(id)),
                        };
                        if outcome.is_err() {
                            assert!(log.is_poisoned());
                            return;
                        }
                    }
                });
            }
        });
        let (order, acknowledged) = (order.into_inner(), acknowledged.into_inner());
        for image in 0..4 {
            let mut found = Vec::new();
            let image: Arc<dyn Vfs> = Arc::new(vfs.crash_image(seed * 10 + image));
            Log::open(image, LogOptions::default(), &mut |frame| {
                found.push(frame.first_sequence.get());
                Ok(())
            })
            .unwrap();
            assert_eq!(found, order[..found.len()], "seed {seed}");
            let lost = acknowledged.iter().find(|id| !found.contains(id));
            assert_eq!(lost, None, "seed {seed}");
        }
    }
}

#[test]
fn frame_is_written_while_a_flush_runs() {
    let vfs = FaultVfs::new(1);
    let log = open_small(&vfs);
    vfs.slow_syncs(Duration::from_millis(300));
    let first = log.append_bytes(Sequence::new(1), b"flushed").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| log.commit(first.end, Level::Flushed).unwrap());
        while log.written() < first.end {
            thread::yield_now();
        }
        assert!(log.durable() < first.end, "its flush takes 300 ms");
        let second = log.append_bytes(Sequence::new(2), b"written").unwrap();
        log.commit(second.end, Level::Written).unwrap();
        assert!(log.durable() < first.end, "the flush still runs");
    });
    assert_eq!(log.durable(), first.end, "what was written during a flush is not flushed by it");
    let flushes = vfs.count(Call::Sync);
    log.commit(log.written(), Level::Flushed).unwrap();
    assert_eq!(log.durable(), log.end());
    assert_eq!(vfs.count(Call::Sync), flushes + 1);
}

/// A frame appended while the one before it is being flushed records, once written, that this flush succeeded.
#[test]
fn group_records_the_flush_before_it() {
    let vfs = FaultVfs::new(1);
    let log = open_small(&vfs);
    vfs.slow_syncs(Duration::from_millis(200));
    let first = log.append_bytes(Sequence::new(1), b"first").unwrap();
    let second = thread::scope(|scope| {
        scope.spawn(|| log.commit(first.end, Level::Flushed).unwrap());
        while log.written() < first.end {
            thread::yield_now();
        }
        log.append_bytes(Sequence::new(2), b"second").unwrap()
    });
    log.commit(second.end, Level::Flushed).unwrap();
    let vfs = vfs.crash_image(1);
    vfs.damage("log/0000000001.log", |bytes| bytes[first.payload.offset() as usize] ^= 1);
    let error = collect(&vfs, LogOptions::default()).err().expect("the second frame knows");
    assert_eq!(error.kind(), crate::ErrorKind::Corrupt);
}

/// While several threads wait for the next round, another thread's write fails: all of them receive the error.
#[test]
fn write_failure_between_rounds_reaches_all_waiting_threads() {
    let vfs = FaultVfs::new(1);
    let log = open_small(&vfs);
    vfs.slow_syncs(Duration::from_millis(200));
    let first = log.append_bytes(Sequence::new(1), b"first").unwrap();
    thread::scope(|scope| {
        let led = scope.spawn(|| log.commit(first.end, Level::Flushed));
        while log.written() < first.end {
            thread::yield_now();
        }
        let wait = || {
            let appended = log.append_bytes(Sequence::new(2), b"next round").unwrap();
            log.commit(appended.end, Level::Flushed)
        };
        let waiting: Vec<_> = (0..5).map(|_| scope.spawn(wait)).collect();
        while log.end() < first.end.advance(5 * frame::Version::CURRENT.frame_bytes(10)) {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(20));
        vfs.fail(Call::Write, 1, Failure::Broken, false);
        log.commit(log.end(), Level::Written).unwrap_err();
        led.join().unwrap().expect("its flush was not the one that failed");
        waiting.into_iter().for_each(|waiting| assert!(waiting.join().unwrap().is_err()));
    });
    assert!(log.is_poisoned());
}

#[test]
fn every_thread_of_a_group_gets_its_failure() {
    for call in [Call::Write, Call::Sync] {
        let vfs = slow_disk();
        let log = open_small(&vfs);
        let (failed_count, acknowledged_count) = (AtomicU64::new(0), AtomicU64::new(0));
        vfs.fail(call, 20, Failure::Full, true);
        thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    loop {
                        let Ok(appended) = log.append_bytes(Sequence::new(1), &[7; 50]) else { return };
                        match log.commit(appended.end, Level::Flushed) {
                            Ok(()) => acknowledged_count.fetch_add(1, Ordering::Relaxed),
                            Err(error) => {
                                assert_eq!(error.kind(), crate::ErrorKind::Unavailable, "{error:?}");
                                assert!(error.hint().is_some_and(|hint| hint.contains("free some space")));
                                failed_count.fetch_add(1, Ordering::Relaxed);
                                return;
                            }
                        };
                    }
                });
            }
        });
        assert!(log.is_poisoned());
        assert!(failed_count.into_inner() > 1, "a group failed, not a thread");
        let found = {
            let mut count = 0;
            Log::open(Arc::new(vfs.crash_image(3)), LogOptions::default(), &mut |_| {
                count += 1;
                Ok(())
            })
            .unwrap();
            count
        };
        assert!(found >= acknowledged_count.into_inner());
    }
}

#[test]
fn reads_succeed_during_appends_writes_and_rolls() {
    let vfs = FaultVfs::new(2);
    let log = open_small(&vfs);
    let positions = crate::sync::RwLock::new(Vec::new());
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..4 {
            let (log, positions, stop) = (&log, &positions, &stop);
            scope.spawn(move || {
                let mut random = Random::new(reader);
                let mut out = Vec::new();
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) || count == 0 {
                    let set = log.segments_snapshot();
                    let (number, position): (u64, LogPosition) = {
                        let positions = positions.read();
                        if positions.is_empty() {
                            continue;
                        }
                        // Mostly one of the newest frames, which may not be written yet.
                        let back =
                            if random.chance(800) { random.below(3) } else { random.below(positions.len() as u64) };
                        positions[positions.len() - 1 - (back as usize).min(positions.len() - 1)]
                    };
                    let expected = payload(number);
                    set.read(position, expected.len(), &mut out).unwrap();
                    assert_eq!(out, expected);
                    log.read(position.advance(2), expected.len() - 2, &mut out).unwrap();
                    assert_eq!(out, expected[2..]);
                    count += 1;
                }
            });
        }
        for number in 0..2000 {
            let appended = log.append_bytes(Sequence::new(number), &payload(number)).unwrap();
            positions.write().push((number, appended.payload));
            match number % 7 {
                0 => log.commit(appended.end, Level::Flushed).unwrap(),
                1..=4 => log.commit(appended.end, Level::Written).unwrap(),
                _ => {}
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(log.statistics().roll_count > 10);
}
