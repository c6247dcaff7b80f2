//! Measures how many files of 4 KiB can be attached in a second, each flushed to disk. Nothing is asserted:
//! `cargo test --release -p stemmadb --test file_rates -- --ignored --nocapture`
//!
//! `STEMMA_RATE_SECONDS` sets the time per row (default 5).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stemmadb::testing::Random;
use stemmadb::{Blob, Database, Durability, Edit, File, FileContent, Options, Value};

const FILE_BYTES: usize = 4 << 10;

fn content(number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    (0..FILE_BYTES).map(|_| random.below(256) as u8).collect()
}

fn put(number: u64, blob: Arc<Blob>) -> Edit {
    let content =
        FileContent::Stored { content_type: "application/octet-stream".to_owned(), blob, md5: None, generation: None };
    Edit::Put {
        id: format!("file-{number:09}").parse().unwrap(),
        parent: None,
        deleted: false,
        body: Value::parse(format!(r#"{{"number":{number}}}"#).as_bytes()).unwrap(),
        files: vec![File { name: "content".to_owned(), content }],
    }
}

/// Attaches files with this many threads, in transactions of this many documents; prints the rate.
fn measure(threads: u64, documents: u64) {
    let seconds = std::env::var("STEMMA_RATE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5.0);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("files.stemma");
    let db = Database::open_with(&path, Options::new().durability(Durability::Sync)).unwrap();
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while Instant::now() < end {
                    let first = next.fetch_add(documents, Ordering::Relaxed);
                    let edits: Vec<_> = (first..first + documents)
                        .map(|number| put(number, db.files().store(&content(number)[..]).unwrap()))
                        .collect();
                    db.write(|tx| edits.into_iter().try_for_each(|edit| tx.edit(edit).map(|_| ()))).unwrap();
                    done.fetch_add(documents, Ordering::Relaxed);
                }
            });
        }
    });
    let rate = done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    println!("{threads:2} threads, {documents:3} documents a transaction: {rate:.0} files/s");
}

#[test]
#[ignore = "a measurement"]
fn rates_of_small_files() {
    for (threads, documents) in [(1, 1), (16, 1), (1, 100)] {
        measure(threads, documents);
    }
}
