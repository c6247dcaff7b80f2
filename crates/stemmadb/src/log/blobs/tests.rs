//! Tests of the blob store: round trips, deduplication, sweeps, and detection of damaged or incomplete files.

use proptest::prelude::*;

use super::*;
use crate::ErrorKind;
use crate::vfs::{Call, Failure, FaultVfs, MemoryVfs};

fn blobs() -> Arc<Blobs> {
    Arc::new(Blobs::new(Arc::new(MemoryVfs::new())))
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * at) >> 7) as u8).collect()
}

fn all(blobs: &Blobs, digest: &Digest) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    blobs.read(digest).unwrap().read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn content_of_any_length_round_trips() {
    let blobs = blobs();
    for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7] {
        let bytes = content(length);
        let blob = blobs.store_in_file(&mut &bytes[..]).unwrap();
        assert_eq!(blob.length(), length as u64);
        assert_eq!(blob.digest().to_string().parse::<Digest>().unwrap(), blob.digest());
        assert_eq!(all(&blobs, &blob.digest()).unwrap(), bytes);
    }
    assert_eq!(blobs.list().unwrap().len(), 6);
    // The digest equals the standard SHA-256.
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert!(blobs.read(&empty.parse().unwrap()).is_ok());
}

#[test]
fn equal_content_is_stored_once_and_kept_while_pinned() {
    let blobs = blobs();
    let first = blobs.store_in_file(&mut &b"content"[..]).unwrap();
    let second = blobs.store_in_file(&mut &b"content"[..]).unwrap();
    let digest = first.digest();
    assert_eq!((digest, blobs.list().unwrap().len()), (second.digest(), 1));
    assert_eq!(blobs.vfs.list(DIRECTORY).unwrap().len(), 1, "no unfinished file remains");
    drop(first);
    let sweep = blobs.begin_sweep();
    assert_eq!(sweep.remove(&digest).unwrap(), 0);
    drop(second);
    assert_eq!(sweep.remove(&digest).unwrap(), 0, "it was pinned when the sweep started, and may be referenced since");
    drop(sweep);
    let sweep = blobs.begin_sweep();
    drop(blobs.store_in_file(&mut &b"content"[..]).unwrap());
    assert_eq!(sweep.remove(&digest).unwrap(), 0, "it was pinned for a while during the sweep");
    drop(sweep);
    assert!(blobs.begin_sweep().remove(&digest).unwrap() > 7);
    let pins = blobs.pins.lock();
    assert!(pins.pinned.is_empty() && pins.since_sweep.is_none());
    drop(pins);
    assert_eq!(blobs.read(&digest).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn failed_source_leaves_no_file() {
    struct Fails(usize);
    impl Read for Fails {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(1).ok_or_else(|| io::Error::other("the line is cut"))?;
            buffer.fill(7);
            Ok(buffer.len().min(1000))
        }
    }
    let blobs = blobs();
    let error = blobs.store_in_file(&mut Fails(200)).unwrap_err();
    assert!(error.to_string().contains("the line is cut"), "{error}");
    assert_eq!(blobs.vfs.list(DIRECTORY).unwrap(), Vec::<String>::new());
}

#[test]
fn full_disk_leaves_no_file_and_crash_remains_are_removed() {
    let vfs = FaultVfs::new(1);
    let blobs = Arc::new(Blobs::new(Arc::new(vfs.clone())));
    vfs.fail(Call::Write, 2, Failure::Full, false);
    let error = blobs.store_in_file(&mut &content(3 * CHUNK_BYTES)[..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(blobs.list().unwrap(), []);
    vfs.create(&format!("{DIRECTORY}/{NEW}7")).unwrap();
    blobs.remove_unfinished().unwrap();
    assert!(vfs.list(DIRECTORY).unwrap().iter().all(|name| !name.starts_with(NEW)));
}

#[test]
fn stored_blob_survives_a_crash() {
    for seed in 0..200 {
        let vfs = FaultVfs::new(seed);
        let blobs = Arc::new(Blobs::new(Arc::new(vfs.clone())));
        let bytes = content(seed as usize * 997);
        let digest = blobs.store_in_file(&mut &bytes[..]).unwrap().digest();
        let after = Blobs::new(Arc::new(vfs.crash_image(seed)));
        assert_eq!(all(&after, &digest).unwrap(), bytes, "seed {seed}");
    }
}

#[test]
fn damaged_bytes_are_never_returned() {
    let vfs = FaultVfs::new(3);
    let blobs = Arc::new(Blobs::new(Arc::new(vfs.clone())));
    let bytes = content(2 * CHUNK_BYTES + 100);
    let digest = blobs.store_in_file(&mut &bytes[..]).unwrap().digest();
    let name = digest.file_name();
    let length = vfs.content(&name).unwrap().len();
    for at in (0..length).step_by(4999).chain(length - FOOTER_BYTES..length) {
        vfs.damage(&name, |file| file[at] ^= 0x10);
        let read = blobs.read(&digest).map_err(|error| assert_eq!(error.kind(), ErrorKind::Corrupt));
        if let Ok(mut reader) = read {
            let mut seen = Vec::new();
            let end = reader.read_to_end(&mut seen);
            assert_eq!(end.unwrap_err().kind(), io::ErrorKind::InvalidData, "byte {at}");
            assert!(bytes.starts_with(&seen), "byte {at}");
        }
        vfs.damage(&name, |file| file[at] ^= 0x10);
    }
    // Valid checksums under a wrong name.
    let other = blobs.store_in_file(&mut &b"other"[..]).unwrap().digest();
    let wrong = vfs.content(&other.file_name()).unwrap();
    vfs.damage(&name, |file| *file = wrong);
    assert!(all(&blobs, &digest).unwrap_err().to_string().contains("not what its name says"));
}

proptest! {
    #[test]
    fn any_range_reads_as_in_the_content(
        length in 0..3 * CHUNK_BYTES,
        ranges in prop::collection::vec((0..4 * CHUNK_BYTES, 0..2 * CHUNK_BYTES), 1..6),
    ) {
        let blobs = blobs();
        let bytes = content(length);
        let digest = blobs.store_in_file(&mut &bytes[..]).unwrap().digest();
        let mut reader = blobs.read(&digest).unwrap();
        for (start, count) in ranges {
            reader.seek(SeekFrom::Start(start as u64)).unwrap();
            let mut seen = Vec::new();
            reader.by_ref().take(count as u64).read_to_end(&mut seen).unwrap();
            let from = start.min(length);
            prop_assert_eq!(&seen[..], &bytes[from..(from + count).min(length)]);
        }
    }
}
