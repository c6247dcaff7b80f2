//! Power loss at any point: whichever unflushed writes the disk kept, every acknowledged transaction is complete, no
//! transaction is partially visible, and the database is consistent.
//!
//! A script of transactions runs on a fault-injecting disk. At every call that changes the disk, an *image* may be
//! taken: the disk as a power loss at that point may leave it. Half of the scripts keep the past. Each image is opened
//! and compared with the state that the script must have left. For a third of them, images are taken again during
//! recovery.
//!
//! `STEMMA_IMAGES` sets the number of images to verify (default 3,000; the nightly run verifies 1,000,000).
//! `STEMMA_IMAGE_SEED` sets the first script run (default 0), so that several processes can share the work.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::compression::Compression;
use crate::retention::Retention;
use crate::revision::DocumentId;
use crate::sync::Mutex;
use crate::tree::trace::{TreeChange, current_change};
use crate::value::Value;
use crate::vfs::{FaultVfs, Random, Vfs, VfsFile, VfsLock};
use crate::{Database, Durability, Edit, Index, IndexState, Options, Result, Sequence, testing};

/// The number of transactions in the script.
const SCRIPT: usize = 70;

/// The disk at one point, and the transactions acknowledged by then.
struct CrashImage {
    disk: FaultVfs,
    /// Transactions acknowledged as flushed.
    acknowledged: usize,
    /// Transactions begun.
    begun: usize,
    /// The change of the tree that was going on.
    during: Option<TreeChange>,
}

/// Takes images of a disk.
struct Camera {
    disk: FaultVfs,
    random: Mutex<Random>,
    per_mille: u32,
    crash_images: Mutex<Vec<CrashImage>>,
    acknowledged: AtomicUsize,
    begun: AtomicUsize,
    compression: Compression,
}

impl Camera {
    fn new(disk: FaultVfs, seed: u64, per_mille: u32) -> Arc<Self> {
        Arc::new(Camera {
            disk,
            random: Mutex::new(Random::new(seed)),
            per_mille,
            crash_images: Mutex::default(),
            acknowledged: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            compression: Compression::ALL[(seed % 3) as usize],
        })
    }

    fn maybe_take(&self) {
        let mut random = self.random.lock();
        if !random.chance(self.per_mille) {
            return;
        }
        let crash_image = CrashImage {
            disk: self.disk.crash_image(random.number()),
            acknowledged: self.acknowledged.load(Ordering::SeqCst),
            begun: self.begun.load(Ordering::SeqCst),
            during: current_change(),
        };
        self.crash_images.lock().push(crash_image);
    }

    fn open(self: &Arc<Self>) -> Result<Database> {
        let options = testing::with_small_limits(options(), 24 << 10, 16 << 10, 40).compression(self.compression);
        testing::open_database(Arc::new(Watched(self.clone())), options)
    }
}

fn options() -> Options {
    Options::new().background(false).cache_bytes(0)
}

/// The camera's disk; every change may take an image.
struct Watched(Arc<Camera>);

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watched")
    }
}

impl Watched {
    fn around<T>(&self, change: impl FnOnce(&FaultVfs) -> io::Result<T>) -> io::Result<T> {
        self.0.maybe_take();
        let changed = change(&self.0.disk);
        self.0.maybe_take();
        changed
    }

    fn watched(&self, file: Arc<dyn VfsFile>) -> Arc<dyn VfsFile> {
        Arc::new(WatchedFile { camera: self.0.clone(), file })
    }
}

impl Vfs for Watched {
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        self.0.disk.open(name).map(|file| self.watched(file))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        self.around(|disk| disk.create(name)).map(|file| self.watched(file))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.0.disk.list(directory)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.around(|disk| disk.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.around(|disk| disk.remove(name))
    }

    fn remove_dir(&self, name: &str) -> io::Result<()> {
        self.around(|disk| disk.remove_dir(name))
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        self.around(|disk| disk.sync_dir(directory))
    }

    fn create_dir_all(&self, directory: &str) -> io::Result<()> {
        self.around(|disk| disk.create_dir_all(directory))
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn VfsLock>> {
        self.0.disk.lock(name)
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

struct WatchedFile {
    camera: Arc<Camera>,
    file: Arc<dyn VfsFile>,
}

impl WatchedFile {
    fn around(&self, change: impl FnOnce(&dyn VfsFile) -> io::Result<()>) -> io::Result<()> {
        self.camera.maybe_take();
        let changed = change(&*self.file);
        self.camera.maybe_take();
        changed
    }
}

impl VfsFile for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.around(|file| file.write_at(bytes, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.around(|file| file.sync_data())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.around(|file| file.set_len(bytes))
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

/// The documents after each number of transactions, as JSON.
type States = Vec<BTreeMap<String, String>>;

fn body(number: usize, salt: usize) -> Value {
    let fill = "f".repeat(1 + (number * 131 + salt * 17) % 700);
    Value::parse(format!(r#"{{"number":{number},"salt":{salt},"fill":"{fill}"}}"#).as_bytes()).unwrap()
}

/// Transaction `number`: a marker with its number, inserts, updates and deletions.
fn edits(number: usize, state: &BTreeMap<String, String>) -> Vec<(String, Option<Value>)> {
    let mut random = Random::new(number as u64);
    let mut edits = vec![("marker".to_owned(), Some(body(number, 0)))];
    for salt in 1..=1 + random.below(5) as usize {
        let id = format!("document-{}", random.below(40));
        if edits.iter().any(|(other, _)| *other == id) {
            continue;
        }
        let delete = state.contains_key(&id) && random.chance(300);
        edits.push((id, (!delete).then(|| body(number, salt))));
    }
    edits
}

fn states() -> States {
    let mut states: States = vec![BTreeMap::new()];
    for number in 1..=SCRIPT {
        let mut state = states[number - 1].clone();
        for (id, body) in edits(number, &states[number - 1]) {
            match body {
                Some(body) => state.insert(id, body.to_json()),
                None => state.remove(&id),
            };
        }
        states.push(state);
    }
    states
}

/// Declares and drops indexes between transactions.
fn declare(db: &Database, number: usize) -> Result<()> {
    match number {
        20 | 31 | 60 => db.indexes().create(Index::on("salt").then_descending("number")),
        34 => db.indexes().create(Index::on("number").then("salt").unique()),
        28 | 47 | 66 => db.indexes().remove("salt,-number"),
        _ => Ok(()),
    }
}

fn run_script(camera: &Arc<Camera>, states: &States, retention: Retention) -> Result<()> {
    let db = camera.open()?;
    if retention != Retention::Nothing {
        db.history().keep(retention)?;
    }
    for number in 1..=SCRIPT {
        camera.begun.store(number, Ordering::SeqCst);
        let durability = if number % 3 == 1 { Durability::None } else { Durability::Sync };
        // Each content is attached several times, replaced, and swept.
        let content = db.files().store(vec![(number % 5) as u8; 100 + number % 5 * 300].as_slice())?;
        db.with_durability(durability).write(|tx| {
            for (id, body) in edits(number, &states[number - 1]) {
                match body {
                    Some(body) => tx.upsert(&id, &body)?,
                    None => {
                        let revision = *tx.get(&id)?.expect("the script knows it is there").revision();
                        tx.delete(&id, &revision)?
                    }
                };
            }
            if number % 4 == 2 {
                let revision = *tx.get("marker")?.expect("each transaction writes it").revision();
                tx.attach("marker", &revision, &format!("file-{}", number % 3), "", &content)?;
            }
            Ok(())
        })?;
        if durability == Durability::Sync {
            camera.acknowledged.store(number, Ordering::SeqCst);
        }
        if number % 16 == 9 {
            db.maintenance().checkpoint()?;
        }
        declare(&db, number)?;
        if number % 11 == 7 {
            drop(content);
            db.files().sweep()?;
        }
        if number % 24 == 23 {
            db.maintenance().compact()?;
        }
    }
    db.close()?;
    camera.acknowledged.store(SCRIPT, Ordering::SeqCst);
    Ok(())
}

/// Opens an image, compares it with the expected state, and writes to it. Returns what is wrong, if anything.
fn verify(db: &Database, states: &States, acknowledged: usize, begun: usize) -> std::result::Result<(), String> {
    let to_text = |error: crate::Error| format!("{error:?}");
    let found: BTreeMap<String, String> = db
        .changes(Sequence::ZERO)
        .map_err(to_text)?
        .documents(true)
        .run()
        .filter(|change| change.as_ref().map_or(true, |change| !change.deleted))
        .map(|change| {
            let change = change?;
            let document = change.document.expect("documents were asked for");
            Ok((change.id.to_string(), document.to_json()?))
        })
        .collect::<Result<_>>()
        .map_err(to_text)?;
    let marker = db.get("marker").map_err(to_text)?;
    let reached = match marker {
        Some(marker) => marker.get("number").map_err(to_text)?.and_then(|number| number.as_u64()).unwrap_or(0) as usize,
        None => 0,
    };
    if reached < acknowledged || reached > begun {
        return Err(format!("{reached} transactions are there, {acknowledged} were acknowledged, {begun} begun"));
    }
    if found != states[reached] {
        return Err(format!("the documents are not those after transaction {reached}"));
    }
    if let Some(index) = db.indexes().list().iter().find(|index| index.state != IndexState::Ready) {
        return Err(format!("the index {} is not ready", index.name));
    }
    let report = db.maintenance().check().map_err(to_text)?;
    if !report.is_sound() {
        return Err(format!("{:?}", report.damages));
    }
    verify_past(db, states, reached)?;
    let id = DocumentId::new("after").map_err(to_text)?;
    db.edit(Edit::Upsert { id, body: body(reached, 99) }).map_err(to_text)?;
    Ok(())
}

/// Compares the database as of earlier transactions with what they left, if the past is kept.
fn verify_past(db: &Database, states: &States, reached: usize) -> std::result::Result<(), String> {
    let to_text = |error: crate::Error| format!("{error:?}");
    if db.history().retention() != Retention::Everything || reached < 2 {
        return Ok(());
    }
    if db.history().oldest() > Sequence::ZERO {
        return Err(format!("the past begins at {}", db.history().oldest()));
    }
    let revisions = db.history().revisions("marker").map_err(to_text)?;
    let mut random = Random::new(reached as u64);
    for _ in 0..3 {
        let number = 1 + random.below(reached as u64 - 1) as usize;
        // The next transaction wrote its marker first.
        let is_next = |body: &Value| body.get("number").and_then(Value::as_u64) == Some(number as u64 + 1);
        let next = revisions.iter().filter(|revision| revision.document.value().is_ok_and(|body| is_next(&body)));
        let next = next.map(|revision| revision.sequence).min();
        let next = next.ok_or_else(|| format!("the marker of transaction {} is not kept", number + 1))?;
        let past = db.as_of(Sequence(next.0 - 1)).map_err(to_text)?;
        let documents = past.find(crate::Selector::everything()).documents().map_err(to_text)?;
        let pairs = documents.iter().map(|document| Ok((document.id().to_string(), document.to_json()?)));
        if pairs.collect::<Result<BTreeMap<_, _>>>().map_err(to_text)? != states[number] {
            return Err(format!("as of transaction {number}, the documents are not those after it"));
        }
    }
    Ok(())
}

/// The number of images verified, and the failures.
#[derive(Default)]
struct Tally {
    images: usize,
    double: usize,
    wrong: Vec<String>,
    /// Images by the change of the tree that was going on.
    during: BTreeMap<TreeChange, usize>,
    /// The script run of the last image.
    last_seed: u64,
}

fn verify_image(
    crash_image: CrashImage,
    states: &States,
    random: &mut Random,
    may_crash_again: bool,
    tally: &mut Tally,
) {
    let CrashImage { disk, acknowledged, begun, during } = crash_image;
    if let Some(change) = during {
        *tally.during.entry(change).or_default() += 1;
    }
    let crash_again = may_crash_again && random.chance(333);
    let camera = Camera::new(disk, random.number(), if crash_again { 150 } else { 0 });
    tally.images += 1;
    let verified = match camera.open() {
        Ok(db) => verify(&db, states, acknowledged, begun),
        Err(error) => Err(format!("it can't be opened: {error:?}")),
    };
    if let Err(wrong) = verified {
        tally.wrong.push(wrong);
    }
    // What survived the first crash must survive the second: at least the acknowledged transactions. An image taken
    // after "after" was written has one more document, which identifies it.
    let again: Vec<CrashImage> = std::mem::take(&mut *camera.crash_images.lock());
    for crash_image in again.into_iter().take(3) {
        let camera = Camera::new(crash_image.disk, 0, 0);
        tally.images += 1;
        tally.double += 1;
        let verified = match camera.open() {
            Ok(db) if db.get("after").is_ok_and(|after| after.is_some()) => Ok(()),
            Ok(db) => verify(&db, states, acknowledged, begun),
            Err(error) => Err(format!("it can't be opened after a second crash: {error:?}")),
        };
        if let Err(wrong) = verified {
            tally.wrong.push(wrong);
        }
    }
}

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs the script and verifies images until there were `images`; `dropped` per mille of flushes are silently skipped.
fn enumerate(images: usize, first_seed: u64, dropped: u32) -> Tally {
    let states = states();
    let mut tally = Tally::default();
    for seed in first_seed.. {
        let disk = FaultVfs::new(seed);
        disk.drop_syncs(dropped);
        let camera = Camera::new(disk, seed, 400);
        let retention = if seed % 2 == 0 { Retention::Nothing } else { Retention::Everything };
        let ran = run_script(&camera, &states, retention);
        if dropped == 0 {
            ran.unwrap();
        }
        let mut random = Random::new(seed);
        let crash_images = std::mem::take(&mut *camera.crash_images.lock());
        for crash_image in crash_images {
            verify_image(crash_image, &states, &mut random, true, &mut tally);
            if tally.images >= images {
                tally.last_seed = seed;
                return tally;
            }
        }
    }
    tally
}

#[test]
fn no_loss_of_power_loses_acknowledged_transactions() {
    let images = number_from("STEMMA_IMAGES", 3_000) as usize;
    let first_seed = number_from("STEMMA_IMAGE_SEED", 0);
    let tally = enumerate(images, first_seed, 0);
    println!(
        "{} images of seeds {first_seed} to {}, {} of them after a second crash, {} wrong",
        tally.images,
        tally.last_seed,
        tally.double,
        tally.wrong.len()
    );
    println!("images during changes of the tree: {:?}", tally.during);
    assert!(tally.double > images / 50, "second crashes are part of it");
    for change in [TreeChange::Commit, TreeChange::MergeStep, TreeChange::RangeRemoval, TreeChange::ManifestRewrite] {
        let count = tally.during.get(&change).copied().unwrap_or(0);
        assert!(count > images / 500, "{count} of {images} images during {change:?}");
    }
    assert!(tally.wrong.is_empty(), "{:#?}", &tally.wrong[..tally.wrong.len().min(5)]);
}

/// The same on a disk that drops one flush in twenty. If this test found no loss, the test above could not find one
/// either.
#[test]
fn a_disk_that_drops_flushes_is_detected() {
    let tally = enumerate(2_000, 0, 50);
    println!("{} images with 5 % of flushes dropped, {} wrong", tally.images, tally.wrong.len());
    assert!(!tally.wrong.is_empty(), "dropped flushes went undetected, so the test detects nothing");
}
