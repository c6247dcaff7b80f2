//! What the system refuses: space, files, memory, a second process; and a copy made while somebody writes.
//!
//! Each scene is played by a child process, in which the limit holds: on a file system in memory of a few megabytes, mounted in a world
//! of its own (`unshare -rm`), or under `ulimit`.

#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use stemmadb::testing;
use stemmadb::{Database, Durability, Error, ErrorKind, Options, Value, field};

const SCENE: &str = "STEMMA_LIMIT_SCENE";
const PLACE: &str = "STEMMA_LIMIT_PLACE";

/// Less than the memtable may take.
const LITTLE_BYTES: usize = 4 << 20;

fn options() -> Options {
    testing::small(Options::new().background(false).cache_bytes(0), 1 << 20, 256 << 10, 1000)
}

fn id(number: u64) -> String {
    format!("document-{number}")
}

fn body(number: u64) -> Value {
    let text = format!(r#"{{"number":{number},"even":{},"fill":"{}"}}"#, number.is_multiple_of(2), "x".repeat(700));
    Value::parse(text.as_bytes()).unwrap()
}

/// Everything up to `count` is there and found, nothing else, and everything agrees.
fn expect_documents(db: &Database, count: u64, uncertain: u64) {
    for number in 0..count {
        assert_eq!(db.get(&id(number)).unwrap().expect("acknowledged").value().unwrap(), body(number), "{number}");
    }
    let even = db.find(field("even").eq(true)).count().unwrap();
    assert!((count.div_ceil(2)..=(count + uncertain).div_ceil(2)).contains(&even), "{even} of {count} are even");
    let changes = db.changes(stemmadb::Sequence::ZERO).unwrap().run().count() as u64;
    assert!((count..=count + uncertain).contains(&changes), "{changes} changes of {count} documents");
}

fn expect_sound(db: &Database) {
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

/// Writes until it is refused, at most `count_max` documents; returns how many were taken, and how it was refused.
fn fill(db: &Database, from: u64, count_max: u64) -> (u64, Option<Error>) {
    for number in from..from + count_max {
        if let Err(error) = db.insert(&id(number), &body(number)) {
            return (number, Some(error));
        }
    }
    (from + count_max, None)
}

fn expect_full(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let says_so = |text: &str| text.contains("space");
    assert!(says_so(error.message()) || error.hint().is_some_and(says_so), "it says that the disk is full: {error:?}");
}

/// A file that takes up all space but so many bytes.
fn ballast(place: &Path, left_bytes: usize) -> PathBuf {
    let path = place.join("ballast");
    let mut file = std::fs::File::create(&path).unwrap();
    let mut written = 0;
    while file.write_all(&[1; 4096]).is_ok() {
        written += 4096_u64;
    }
    file.set_len(written.saturating_sub(left_bytes as u64)).unwrap();
    path
}

/// Filled by writes: reads work, writes work again after opening anew, once there is space.
fn full_by_writes(place: &Path) {
    let spare = place.join("spare");
    std::fs::write(&spare, vec![1; 4 << 20]).unwrap();
    let path = place.join("full.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    let (count, error) = fill(&db, 0, 1_000_000);
    expect_full(&error.expect("the disk is small"));
    expect_documents(&db, count, 0);
    let (same, again) = fill(&db, count, 1);
    assert!(same == count && again.is_some(), "nothing is taken after a failed write");
    std::fs::remove_file(&spare).unwrap();
    expect_documents(&db, count, 0);
    let without_reopening = db.insert(&id(count), &body(count)).is_ok();
    db.close().ok();
    let db = Database::open_with(&path, options()).unwrap();
    let there = if db.get(&id(count)).unwrap().is_some() { count + 1 } else { count };
    expect_documents(&db, there, 0);
    expect_sound(&db);
    let (more, error) = fill(&db, there, 200);
    assert!(error.is_none(), "{error:?}");
    expect_documents(&db, more, 0);
    db.close().unwrap();
    println!(
        "@full by {count} writes; writes go on {}",
        if without_reopening { "at once" } else { "after opening anew" }
    );
}

/// Full while the tree is written, or the log compacted: nothing is lost, reads work, and both succeed later.
fn full_by_upkeep(place: &Path, is_compaction: bool) {
    let path = place.join("upkeep.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    let (count, error) = fill(&db, 0, 3000);
    assert!(error.is_none(), "{error:?}");
    db.maintenance().checkpoint().unwrap();
    if is_compaction {
        for number in 0..count {
            let old = db.get(&id(number)).unwrap().unwrap();
            if number % 3 != 0 {
                db.replace(&id(number), old.revision(), &body(number)).unwrap();
            }
        }
    } else {
        let (more, error) = fill(&db, count, 500);
        assert!(error.is_none() && more == count + 500, "{error:?}");
    }
    let count = if is_compaction { count } else { count + 500 };
    let spare = ballast(place, 8192);
    let error = if is_compaction { db.maintenance().compact().err() } else { db.maintenance().checkpoint().err() };
    let error = error.expect("there is no space for it");
    expect_full(&error);
    expect_documents(&db, count, 0);
    std::fs::remove_file(spare).unwrap();
    let without_reopening =
        if is_compaction { db.maintenance().compact().is_ok() } else { db.maintenance().checkpoint().is_ok() };
    let writes = db.upsert("afterwards-local", &body(1)).is_ok();
    db.close().ok();
    let db = Database::open_with(&path, options()).unwrap();
    expect_documents(&db, count, 1);
    expect_sound(&db);
    db.maintenance().compact().unwrap();
    db.maintenance().checkpoint().unwrap();
    expect_documents(&db, count, 1);
    db.close().unwrap();
    println!(
        "@full by upkeep; it succeeds {}",
        if without_reopening && writes { "at once" } else { "after opening anew" }
    );
}

/// Writes until the limit of a file's length is reached, or for a while.
fn write_on(place: &Path) {
    // A segment may grow past the limit.
    let db = match Database::open_with(place.join("limited.stemma"), Options::new().background(false)) {
        Ok(db) => db,
        Err(error) => return println!("@refused {error}"),
    };
    insert_on(&db);
}

/// The same with little memory left to an open database.
fn write_on_starving(place: &Path) {
    let db = Database::open_with(place.join("limited.stemma"), Options::new().background(false)).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB")).unwrap();
    let bytes = size.parse::<u64>().unwrap() * 1024;
    let pid = std::process::id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &pid, &format!("--as={bytes}")]).status();
    assert!(limited.is_ok_and(|status| status.success()), "prlimit is there, as unshare is");
    // What was set aside for the process is taken, but for a little.
    let mut taken: Vec<Vec<u8>> = Vec::with_capacity(1 << 16);
    while taken.len() < taken.capacity() {
        let mut block = Vec::new();
        match block.try_reserve_exact(LITTLE_BYTES / 64) {
            Ok(()) => taken.push(block),
            Err(_) => break,
        }
    }
    taken.truncate(taken.len().saturating_sub(64));
    insert_on(&db);
}

fn insert_on(db: &Database) {
    for number in 0..8000 {
        match db.insert(&id(number), &body(number)) {
            Ok(_) => println!("@ack {number}"),
            Err(error) => return println!("@refused {error}"),
        }
    }
}

/// Many segments, each read, with few files open at a time.
fn many_files(place: &Path) {
    let options = || {
        testing::small(
            Options::new().background(false).durability(Durability::None).cache_bytes(0),
            1 << 20,
            16 << 10,
            1000,
        )
    };
    let path = place.join("many.stemma");
    let db = match Database::open_with(&path, options()) {
        Ok(db) => db,
        Err(error) => return println!("@refused {error}"),
    };
    let mut read = 0;
    // More than twice as many files as the process may have open.
    for number in 0..9000 {
        match db.insert(&id(number), &body(number)).and_then(|_| db.get(&id(number / 2))) {
            Ok(found) => read += u64::from(found.is_some()),
            Err(error) => return println!("@refused {error}"),
        }
    }
    println!("@ack {read}");
}

/// Opens a copy, which is a state that there was, or is refused.
fn judge_copy(place: &Path) {
    match Database::open_with(place.join("copy.stemma"), options()) {
        Ok(db) => {
            let count = db.sequence().get();
            expect_documents(&db, count, 0);
            expect_sound(&db);
            println!("@prefix {count}");
        }
        Err(error) => println!("@refused {:?}: {error}", error.kind()),
    }
}

/// The child: plays its scene.
#[test]
fn child() {
    let (Ok(scene), Ok(place)) = (std::env::var(SCENE), std::env::var(PLACE)) else { return };
    let place = Path::new(&place);
    match scene.as_str() {
        "full-by-writes" => full_by_writes(place),
        "full-by-checkpoint" => full_by_upkeep(place, false),
        "full-by-compaction" => full_by_upkeep(place, true),
        "write-on" => write_on(place),
        "write-on-starving" => write_on_starving(place),
        "many-files" => many_files(place),
        "judge-copy" => judge_copy(place),
        "hold" => {
            let _db = Database::open_with(place.join("held.stemma"), options()).unwrap();
            println!("@held");
            // Until this process is killed.
            std::io::stdin().lock().lines().for_each(drop);
        }
        other => panic!("there is no scene {other}"),
    }
}

/// What starts the child's scene in a shell, after `before`.
fn scene(before: &str, scene: &str, place: &Path) -> Command {
    let child = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    let line = format!("{before} exec '{}' --exact child --nocapture --test-threads 1", child.display());
    command.args(["-c", &line]).env(SCENE, scene).env(PLACE, place).env_remove("RUST_BACKTRACE");
    command
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| Some(line.split_once('@')?.1.to_owned())).collect()
}

fn can_mount() -> bool {
    let mount = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]).output();
    mount.is_ok_and(|output| output.status.success())
}

/// Plays a scene on a file system of its own; none where nothing can be mounted.
fn on_small_disk(megabytes: u32, name: &str) {
    if !can_mount() {
        println!("passed over: nothing can be mounted here (unshare -rm)");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size={megabytes}m tmpfs '{}' &&", directory.path().display());
    let mut inner = scene(&mount, name, directory.path());
    let mut command = Command::new("unshare");
    command.arg("-rm").arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    inner.stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{name}: {:?}", lines(&output));
}

#[test]
fn a_disk_filled_by_writes_can_be_read_and_recovers() {
    on_small_disk(16, "full-by-writes");
}

#[test]
fn a_disk_filled_by_a_checkpoint_can_be_read_and_recovers() {
    on_small_disk(24, "full-by-checkpoint");
}

#[test]
fn a_disk_filled_by_compaction_can_be_read_and_recovers() {
    on_small_disk(24, "full-by-compaction");
}

/// Plays a scene under a limit; returns how many documents were acknowledged, and the refusal if there was one.
fn limited(limit: &str, name: &str, place: &Path) -> (u64, Option<String>) {
    let output = scene(limit, name, place).stdin(Stdio::null()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!message.contains("panicked"), "{limit}: {message}");
    let lines = lines(&output);
    let acknowledged = lines.iter().filter(|line| line.starts_with("ack ")).count() as u64;
    (acknowledged, lines.iter().find_map(|line| line.strip_prefix("refused ")).map(str::to_owned))
}

#[test]
fn a_limit_of_file_length_loses_nothing_acknowledged() {
    // Unless the signal is ignored, it ends the process: as `kill -9` does.
    for limit in ["ulimit -f 6000;", "trap '' XFSZ; ulimit -f 6000;"] {
        let directory = tempfile::tempdir().unwrap();
        let (acknowledged, refused) = limited(limit, "write-on", directory.path());
        assert!(acknowledged > 0 && acknowledged < 8000, "{limit} {acknowledged} were acknowledged, {refused:?}");
        assert_eq!(refused.is_some(), limit.contains("trap"), "{limit} {refused:?}");
        let db = Database::open_with(directory.path().join("limited.stemma"), Options::new()).unwrap();
        expect_documents(&db, acknowledged, 1);
        expect_sound(&db);
        println!("{limit} {acknowledged} acknowledged, then {refused:?}");
    }
}

#[test]
fn few_open_files_are_enough_or_refused_clearly() {
    for limit in [12, 24, 48, 200] {
        let directory = tempfile::tempdir().unwrap();
        let (acknowledged, refused) = limited(&format!("ulimit -n {limit};"), "many-files", directory.path());
        assert!(acknowledged == 1 || refused.is_some(), "{limit} files: neither done nor refused");
        println!("{limit} files: {}", refused.as_deref().unwrap_or("enough"));
        if limit == 200 {
            assert_eq!(refused, None, "a process has as many files");
        }
        let path = directory.path().join("many.stemma");
        if path.join("log").is_dir() {
            expect_sound(&Database::open_with(&path, Options::new()).unwrap());
        }
    }
}

#[test]
fn too_little_memory_is_refused_clearly_or_ends_the_process() {
    for kilobytes in [60_000, 200_000, 2_000_000] {
        let directory = tempfile::tempdir().unwrap();
        let (acknowledged, refused) = limited(&format!("ulimit -v {kilobytes};"), "write-on", directory.path());
        println!("{kilobytes} kB of addresses: {acknowledged} acknowledged, {refused:?}");
        let db = Database::open_with(directory.path().join("limited.stemma"), Options::new()).unwrap();
        expect_documents(&db, acknowledged, 1);
        expect_sound(&db);
    }
}

/// To run out of memory is the end of a process: as `kill -9` is.
#[test]
fn a_process_that_runs_out_of_memory_loses_nothing_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let (acknowledged, refused) = limited("", "write-on-starving", directory.path());
    assert!(acknowledged > 0 && acknowledged < 8000, "{acknowledged} were acknowledged, {refused:?}");
    println!("{LITTLE_BYTES} bytes left: {acknowledged} acknowledged, {refused:?}");
    let db = Database::open_with(directory.path().join("limited.stemma"), Options::new()).unwrap();
    expect_documents(&db, acknowledged, 1);
    expect_sound(&db);
}

#[test]
fn a_second_process_is_refused_until_the_first_ends_however_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("held.stemma");
    for _ in 0..3 {
        let mut child =
            scene("", "hold", directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().contains("@held")));
        let error = Database::open_with(&path, options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked, "{error:?}");
        let error = Database::open_with(&path, options().read_only(true)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked, "{error:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        expect_sound(&Database::open_with(&path, options()).unwrap());
    }
}

/// What `cp -r` gives while somebody writes: everything acknowledged before it began, as a whole state, or a refusal.
#[test]
fn a_copy_made_while_writing_is_a_state_there_was_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("source.stemma"), directory.path().join("copy.stemma"));
    let db = Database::open_with(&path, options().durability(Durability::None).background(true)).unwrap();
    let acknowledged = std::sync::atomic::AtomicU64::new(0);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::SeqCst;
    let (mut prefixes, mut refusals) = (0, Vec::new());
    std::thread::scope(|scope| {
        let (acknowledged, is_done, db) = (&acknowledged, &is_done, &db);
        scope.spawn(move || {
            for number in (0..60_000).take_while(|_| !is_done.load(order)) {
                db.insert(&id(number), &body(number)).unwrap();
                acknowledged.store(number + 1, order);
            }
        });
        for _ in 0..8 {
            std::fs::remove_dir_all(&copy).ok();
            let before = acknowledged.load(order);
            let copied = Command::new("cp").arg("-r").arg(&path).arg(&copy).output().unwrap();
            let output = scene("", "judge-copy", directory.path()).stdin(Stdio::null()).output().unwrap();
            let lines = lines(&output);
            let line = lines.first().cloned().unwrap_or_default();
            let message = String::from_utf8_lossy(&output.stderr);
            match line.strip_prefix("prefix ").and_then(|count| count.parse::<u64>().ok()) {
                Some(count) if copied.status.success() => {
                    assert!(count >= before, "{count} of {before} acknowledged before the copy was begun");
                    prefixes += 1;
                }
                Some(_) => prefixes += 1,
                None if line.starts_with("refused Corrupt") => refusals.push(line),
                None => panic!("neither a state nor refused: {:?} {lines:?} {message}", output.status),
            }
        }
        is_done.store(true, order);
    });
    println!("copies while writing: {prefixes} states, {} refused: {:?}", refusals.len(), refusals.first());
    assert!(prefixes + refusals.len() == 8);
}
