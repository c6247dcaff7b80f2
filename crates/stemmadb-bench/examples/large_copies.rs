//! Branches and hot backups of a large database on one file system, and how much backups slow down writers:
//!
//! ```text
//! cargo run --release -p stemmadb-bench --example large_copies -- DIRECTORY [GIB]
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stemmadb::backup::At;
use stemmadb::{Database, DocumentId, Durability, Edit, Options, Value};

/// Characters of each document's text, in base 64 of random bytes.
const TEXT_COUNT: usize = 8_000;
const BATCH_COUNT: usize = 100;
const COPY_COUNT: usize = 7;
/// Pairs of turns of inserts, with and without a backup.
const PAIR_COUNT: usize = 30;
const TURN_BATCH_COUNT: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or("usage: large_copies DIRECTORY [GIB]")?);
    let gib: u64 = arguments.next().map_or(Ok(10), |text| text.parse())?;
    std::fs::create_dir_all(&directory)?;
    let database = Database::open_with(directory.join("large.stemma"), Options::new().durability(Durability::None))?;
    // A second run uses the database of the first.
    let document_count = database.info()?.document_count;
    let mut writer = Writer { database: &database, random: document_count + 1, document_count };
    let begun = Instant::now();
    while writer.document_count * (TEXT_COUNT as u64) < gib << 30 {
        writer.batch()?;
    }
    println!("{} documents in {:.0} s", writer.document_count, begun.elapsed().as_secs_f64());

    let mut branches = Vec::new();
    let mut backups = Vec::new();
    for number in 0..COPY_COUNT {
        writer.batch()?;
        let branch = directory.join(format!("branch-{number}.stemma"));
        branches.push(timed(|| Ok(database.maintenance().branch(&branch, At::Latest)?))?);
        let backup = directory.join(format!("backup-{number}"));
        backups.push(timed(|| {
            database.maintenance().backup(&backup)?;
            Ok(())
        })?);
        std::fs::remove_dir_all(branch)?;
        std::fs::remove_dir_all(backup)?;
    }
    report("branch", &mut branches);
    report("hot backup", &mut backups);

    let mut ratios = Vec::new();
    for pair in 0..PAIR_COUNT {
        let mut turns = [Duration::ZERO; 2];
        for is_backed_up in [pair % 2 == 0, pair % 2 != 0] {
            turns[usize::from(is_backed_up)] =
                writer.turn(is_backed_up.then(|| directory.join("backup")).as_deref())?;
        }
        ratios.push(turns[0].as_secs_f64() / turns[1].as_secs_f64());
        if pair < 3 {
            println!("turns of {:?} without, {:?} with a backup", turns[0], turns[1]);
        }
    }
    ratios.sort_by(f64::total_cmp);
    let quarter = PAIR_COUNT / 4;
    let (low, high) = (ratios[quarter], ratios[PAIR_COUNT - 1 - quarter]);
    println!("writers during a backup: {:.3} x ({low:.3} to {high:.3} in half of the pairs)", ratios[PAIR_COUNT / 2]);
    Ok(database.close()?)
}

struct Writer<'d> {
    database: &'d Database,
    random: u64,
    document_count: u64,
}

impl Writer<'_> {
    fn batch(&mut self) -> Result<(), Box<dyn Error>> {
        let edits: Result<Vec<Edit>, stemmadb::Error> = (0..BATCH_COUNT).map(|_| self.edit()).collect();
        for outcome in self.database.bulk(edits?)? {
            outcome?;
        }
        Ok(())
    }

    fn edit(&mut self) -> Result<Edit, stemmadb::Error> {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut text = String::with_capacity(TEXT_COUNT);
        while text.len() < TEXT_COUNT {
            // An xorshift generator.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (0..10).for_each(|digit| text.push(char::from(DIGITS[(self.random >> (6 * digit)) as usize & 63])));
        }
        let number = self.document_count;
        self.document_count += 1;
        let body = Value::parse(format!(r#"{{"number":{number},"text":"{text}"}}"#).as_bytes())?;
        Ok(Edit::Insert { id: DocumentId::new(format!("d{number:09}"))?, body })
    }

    /// The time of some batches, beside a backup to `target` that begins with them.
    fn turn(&mut self, target: Option<&Path>) -> Result<Duration, Box<dyn Error>> {
        let database = self.database;
        std::thread::scope(|scope| {
            let backup = target.map(|target| scope.spawn(move || database.maintenance().backup(target).map(drop)));
            let begun = Instant::now();
            for _ in 0..TURN_BATCH_COUNT {
                self.batch()?;
            }
            let elapsed = begun.elapsed();
            if let Some(backup) = backup {
                backup.join().map_err(|_| "the backup panicked")??;
            }
            Ok(elapsed)
        })
    }
}

fn timed(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64() * 1_000.0)
}

fn report(name: &str, milliseconds: &mut [f64]) {
    milliseconds.sort_by(f64::total_cmp);
    let (median, last) = (milliseconds[milliseconds.len() / 2], milliseconds.len() - 1);
    println!("{name}: {median:.1} ms ({:.1} to {:.1})", milliseconds[0], milliseconds[last]);
}
