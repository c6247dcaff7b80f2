//! Large attachments in constant memory; alone in its process, whose memory use is measured.
//!
//! `STEMMA_FILE_BYTES` sets the length (`just nightly-files`: 1 GiB).

use std::io::{Read, Seek, SeekFrom};

use serde_json::json;
use stemmadb::Database;

/// A reader that generates bytes on the fly.
struct GeneratedBytes {
    left: u64,
    at: u64,
}

impl Read for GeneratedBytes {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = buffer.len().min(self.left as usize);
        for byte in &mut buffer[..count] {
            *byte = (self.at ^ (self.at >> 11)) as u8;
            self.at += 1;
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// Peak memory use of the process, in bytes.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

#[test]
fn large_attachment_is_written_and_read_in_constant_memory() {
    let length = std::env::var("STEMMA_FILE_BYTES").ok().and_then(|text| text.parse().ok()).unwrap_or(96 << 20);
    let directory = tempfile::tempdir().unwrap();
    let db = Database::open(directory.path().join("files.stemma")).unwrap();
    let revision = db.insert("film", &json!({})).unwrap();
    let before = peak_bytes();
    db.files()
        .attach("film", &revision, "film.mkv", "video/x-matroska", GeneratedBytes { left: length, at: 0 })
        .unwrap();
    let mut film = db.files().open("film", "film.mkv").unwrap().unwrap();
    let copied = std::io::copy(&mut film, &mut std::io::sink()).unwrap();
    assert_eq!(copied, length);
    film.seek(SeekFrom::Start(length / 2 + 5)).unwrap();
    let (mut range, mut expected) = ([0; 1000], [0; 1000]);
    film.read_exact(&mut range).unwrap();
    GeneratedBytes { left: 1000, at: length / 2 + 5 }.read_exact(&mut expected).unwrap();
    assert_eq!(range, expected);
    if let (Some(before), Some(after)) = (before, peak_bytes()) {
        let grown = after - before;
        println!("{length} bytes in and out: the peak of memory grew by {grown} bytes");
        assert!(grown < 32 << 20, "memory grew by {grown} bytes for a file of {length}");
    }
}
