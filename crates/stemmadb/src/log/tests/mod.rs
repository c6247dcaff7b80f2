//! The log as its callers see it.

use super::*;

mod crash;
mod failure;
mod groups;
mod retire;
mod tail;

/// Opens the log and returns its payloads.
fn collect(disk: &impl Disk, options: LogOptions) -> Result<(Log, Vec<Vec<u8>>)> {
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

/// What a log can be opened on, again and again.
trait Disk {
    fn share(&self) -> Arc<dyn Vfs>;
}

impl Disk for FaultVfs {
    fn share(&self) -> Arc<dyn Vfs> {
        Arc::new(self.clone())
    }
}

impl Disk for Arc<dyn Vfs> {
    fn share(&self) -> Arc<dyn Vfs> {
        Arc::clone(self)
    }
}

fn round_trip(vfs: Arc<dyn Vfs>) {
    let (log, found) = collect(&vfs, small()).unwrap();
    assert!(found.is_empty());
    let mut places = Vec::new();
    for number in 0..300 {
        let place = log.append(Sequence::new(number), &payload(number)).unwrap();
        let mut read = Vec::new();
        log.read(place.payload, payload(number).len(), &mut read).unwrap();
        assert_eq!(read, payload(number), "not written yet");
        let level = if number % 3 == 0 { Level::Flushed } else { Level::Written };
        log.commit(place.end, level).unwrap();
        places.push(place);
    }
    assert!(log.segments().len() > 3);
    let mut read = Vec::new();
    for (number, place) in places.iter().enumerate() {
        log.read(place.payload, payload(number as u64).len(), &mut read).unwrap();
        assert_eq!(read, payload(number as u64));
    }
    let mut seen = Vec::new();
    for segment in log.segments() {
        log.frames(segment.number, &mut |frame| {
            assert_eq!(frame.position, places[seen.len()].payload);
            assert_eq!(frame.end, places[seen.len()].end);
            assert_eq!(frame.first_sequence.get(), seen.len() as u64);
            seen.push(frame.payload.to_vec());
            Ok(())
        })
        .unwrap();
    }
    assert_eq!(seen, (0..300).map(payload).collect::<Vec<_>>());
    log.close().unwrap();
    log.close().unwrap();
    assert!(log.append(Sequence::new(300), b"x").is_err());
    let segments = log.segments();
    drop(log);

    let (log, found) = collect(&vfs, small()).unwrap();
    assert_eq!(found, seen);
    assert_eq!(log.segments(), segments);
    drop(log);
    for from in [0, 1, 150, 299] {
        let options = LogOptions { replay_from: Some(places[from].end), ..small() };
        let (log, found) = collect(&vfs, options).unwrap();
        assert_eq!(found, seen[from + 1..]);
        assert_eq!(log.segments(), segments);
    }
}

#[test]
fn what_is_appended_is_found_again_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    round_trip(Arc::new(DiskVfs::new(directory.path()).unwrap()));
}

#[test]
fn what_is_appended_is_found_again_in_memory() {
    round_trip(Arc::new(MemoryVfs::new()));
}
