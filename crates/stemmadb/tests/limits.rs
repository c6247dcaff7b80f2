//! Resource limits: disk space, file descriptors, memory, a second process, and a copy made during writes.
//!
//! A child process runs each scenario under the limit: on an in-memory file system of a few megabytes mounted in its
//! own namespace (`unshare -rm`), or under `ulimit`.

#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use stemmadb::testing;
use stemmadb::{Database, Durability, Error, ErrorKind, Options, Value, field};

const SCENARIO: &str = "STEMMA_LIMIT_SCENARIO";
const DIRECTORY: &str = "STEMMA_LIMIT_DIRECTORY";

/// Less than the maximum size of a memtable.
const LITTLE_BYTES: usize = 4 << 20;

fn options() -> Options {
    testing::with_small_limits(Options::new().background(false).cache_bytes(0), 1 << 20, 256 << 10, 1000)
}

fn id(number: u64) -> String {
    format!("document-{number}")
}

fn body(number: u64) -> Value {
    let text = format!(r#"{{"number":{number},"even":{},"fill":"{}"}}"#, number.is_multiple_of(2), "x".repeat(700));
    Value::parse(text.as_bytes()).unwrap()
}

/// Checks that exactly the documents up to `count` exist (with up to `uncertain` more), and that index and feed agree.
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

/// Writes until an error, at most `count_max` documents; returns the number written and the error.
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
    let mentions_space = |text: &str| text.contains("space");
    assert!(
        mentions_space(error.message()) || error.hint().is_some_and(mentions_space),
        "the error names the full disk: {error:?}"
    );
}

/// Creates a file that takes all free space except `left_bytes`.
fn ballast(directory: &Path, left_bytes: usize) -> PathBuf {
    let path = directory.join("ballast");
    let mut file = std::fs::File::create(&path).unwrap();
    let mut written = 0;
    while file.write_all(&[1; 4096]).is_ok() {
        written += 4096_u64;
    }
    file.set_len(written.saturating_sub(left_bytes as u64)).unwrap();
    path
}

/// A disk filled by writes: reads work, and writes work again after reopening with free space.
fn full_by_writes(directory: &Path) {
    let spare = directory.join("spare");
    std::fs::write(&spare, vec![1; 4 << 20]).unwrap();
    let path = directory.join("full.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    let (count, error) = fill(&db, 0, 1_000_000);
    expect_full(&error.expect("the disk is small"));
    expect_documents(&db, count, 0);
    let (same, again) = fill(&db, count, 1);
    assert!(same == count && again.is_some(), "no write is accepted after a failed one");
    std::fs::remove_file(&spare).unwrap();
    expect_documents(&db, count, 0);
    let without_reopening = db.insert(&id(count), &body(count)).is_ok();
    db.close().ok();
    let db = Database::open_with(&path, options()).unwrap();
    let count_after_reopening = if db.get(&id(count)).unwrap().is_some() { count + 1 } else { count };
    expect_documents(&db, count_after_reopening, 0);
    expect_sound(&db);
    let (more, error) = fill(&db, count_after_reopening, 200);
    assert!(error.is_none(), "{error:?}");
    expect_documents(&db, more, 0);
    db.close().unwrap();
    println!(
        "@full by {count} writes; writes go on {}",
        if without_reopening { "immediately" } else { "after reopening" }
    );
}

/// A disk that is full during a checkpoint or compaction: nothing is lost, reads work, and both succeed later.
fn full_by_maintenance(directory: &Path, is_compaction: bool) {
    let path = directory.join("upkeep.stemma");
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
    let spare = ballast(directory, 8192);
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
        if without_reopening && writes { "immediately" } else { "after reopening" }
    );
}

/// Writes until the file length limit is reached, or a number of documents.
fn write_until_error(directory: &Path) {
    // A segment may grow past the limit.
    let db = match Database::open_with(directory.join("limited.stemma"), Options::new().background(false)) {
        Ok(db) => db,
        Err(error) => return println!("@refused {error}"),
    };
    insert_until_error(&db);
}

/// The same with little memory left for an open database.
fn write_until_out_of_memory(directory: &Path) {
    let db = Database::open_with(directory.join("limited.stemma"), Options::new().background(false)).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB")).unwrap();
    let bytes = size.parse::<u64>().unwrap() * 1024;
    let pid = std::process::id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &pid, &format!("--as={bytes}")]).status();
    assert!(limited.is_ok_and(|status| status.success()), "prlimit is there, as unshare is");
    // Takes the memory reserved for the process, except for a little.
    let mut taken: Vec<Vec<u8>> = Vec::with_capacity(1 << 16);
    while taken.len() < taken.capacity() {
        let mut block = Vec::new();
        match block.try_reserve_exact(LITTLE_BYTES / 64) {
            Ok(()) => taken.push(block),
            Err(_) => break,
        }
    }
    taken.truncate(taken.len().saturating_sub(64));
    insert_until_error(&db);
}

fn insert_until_error(db: &Database) {
    for number in 0..8000 {
        match db.insert(&id(number), &body(number)) {
            Ok(_) => println!("@ack {number}"),
            Err(error) => return println!("@refused {error}"),
        }
    }
}

/// Reads from many segments with few open files.
fn many_files(directory: &Path) {
    let options = || {
        testing::with_small_limits(
            Options::new().background(false).durability(Durability::None).cache_bytes(0),
            1 << 20,
            16 << 10,
            1000,
        )
    };
    let path = directory.join("many.stemma");
    let db = match Database::open_with(&path, options()) {
        Ok(db) => db,
        Err(error) => return println!("@refused {error}"),
    };
    let mut read = 0;
    // More than twice the number of files that the process may open.
    for number in 0..9000 {
        match db.insert(&id(number), &body(number)).and_then(|_| db.get(&id(number / 2))) {
            Ok(found) => read += u64::from(found.is_some()),
            Err(error) => return println!("@refused {error}"),
        }
    }
    println!("@ack {read}");
}

/// Opens a copy, which must be a state that existed, or be refused.
fn check_copy(directory: &Path) {
    match Database::open_with(directory.join("copy.stemma"), options()) {
        Ok(db) => {
            let count = db.sequence().get();
            expect_documents(&db, count, 0);
            expect_sound(&db);
            println!("@prefix {count}");
        }
        Err(error) => println!("@refused {:?}: {error}", error.kind()),
    }
}

/// The child process: runs its scenario.
#[test]
fn child() {
    let (Ok(scenario), Ok(directory)) = (std::env::var(SCENARIO), std::env::var(DIRECTORY)) else { return };
    let directory = Path::new(&directory);
    match scenario.as_str() {
        "full-by-writes" => full_by_writes(directory),
        "full-by-checkpoint" => full_by_maintenance(directory, false),
        "full-by-compaction" => full_by_maintenance(directory, true),
        "write-on" => write_until_error(directory),
        "write-on-starving" => write_until_out_of_memory(directory),
        "many-files" => many_files(directory),
        "judge-copy" => check_copy(directory),
        "hold" => {
            let _db = Database::open_with(directory.join("held.stemma"), options()).unwrap();
            println!("@held");
            // Blocks until this process is killed.
            std::io::stdin().lock().lines().for_each(drop);
        }
        other => panic!("there is no scenario {other}"),
    }
}

/// The command that runs the child's scenario in a shell, after `before`.
fn scenario(before: &str, scenario: &str, directory: &Path) -> Command {
    let child = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    let line = format!("{before} exec '{}' --exact child --nocapture --test-threads 1", child.display());
    command.args(["-c", &line]).env(SCENARIO, scenario).env(DIRECTORY, directory).env_remove("RUST_BACKTRACE");
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

/// Runs a scenario on its own small file system, if mounting is possible.
fn on_small_disk(megabytes: u32, name: &str) {
    if !can_mount() {
        // Not captured, unlike `println!`: a skipped test is reported also if it passes.
        std::io::stderr()
            .write_all(format!("{name}: skipped, mounting is not possible here (unshare -rm)\n").as_bytes())
            .unwrap();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size={megabytes}m tmpfs '{}' &&", directory.path().display());
    let mut inner = scenario(&mount, name, directory.path());
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
fn disk_filled_by_writes_is_readable_and_recovers() {
    on_small_disk(16, "full-by-writes");
}

#[test]
fn disk_filled_by_a_checkpoint_is_readable_and_recovers() {
    on_small_disk(24, "full-by-checkpoint");
}

#[test]
fn disk_filled_by_compaction_is_readable_and_recovers() {
    on_small_disk(24, "full-by-compaction");
}

/// Runs a scenario under a limit; returns the number of acknowledged documents, and the error if there was one.
fn limited(limit: &str, name: &str, directory: &Path) -> (u64, Option<String>) {
    let output = scenario(limit, name, directory).stdin(Stdio::null()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!message.contains("panicked"), "{limit}: {message}");
    let lines = lines(&output);
    let acknowledged = lines.iter().filter(|line| line.starts_with("ack ")).count() as u64;
    (acknowledged, lines.iter().find_map(|line| line.strip_prefix("refused ")).map(str::to_owned))
}

#[test]
fn file_length_limit_loses_nothing_acknowledged() {
    // Unless the signal is ignored, it ends the process, like `kill -9`.
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
fn few_open_files_suffice_or_fail_with_a_clear_error() {
    for limit in [12, 24, 48, 200] {
        let directory = tempfile::tempdir().unwrap();
        let (acknowledged, refused) = limited(&format!("ulimit -n {limit};"), "many-files", directory.path());
        assert!(acknowledged == 1 || refused.is_some(), "{limit} files: neither completed nor refused");
        println!("{limit} files: {}", refused.as_deref().unwrap_or("enough"));
        if limit == 200 {
            assert_eq!(refused, None, "a process may have this many files");
        }
        let path = directory.path().join("many.stemma");
        if path.join("log").is_dir() {
            expect_sound(&Database::open_with(&path, Options::new()).unwrap());
        }
    }
}

#[test]
fn little_memory_fails_with_a_clear_error_or_ends_the_process() {
    for kilobytes in [60_000, 200_000, 2_000_000] {
        let directory = tempfile::tempdir().unwrap();
        let (acknowledged, refused) = limited(&format!("ulimit -v {kilobytes};"), "write-on", directory.path());
        println!("{kilobytes} kB of addresses: {acknowledged} acknowledged, {refused:?}");
        let db = Database::open_with(directory.path().join("limited.stemma"), Options::new()).unwrap();
        expect_documents(&db, acknowledged, 1);
        expect_sound(&db);
    }
}

/// Running out of memory ends the process, like `kill -9`.
#[test]
fn process_out_of_memory_loses_nothing_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let (acknowledged, refused) = limited("", "write-on-starving", directory.path());
    assert!(acknowledged > 0 && acknowledged < 8000, "{acknowledged} were acknowledged, {refused:?}");
    println!("{LITTLE_BYTES} bytes left: {acknowledged} acknowledged, {refused:?}");
    let db = Database::open_with(directory.path().join("limited.stemma"), Options::new()).unwrap();
    expect_documents(&db, acknowledged, 1);
    expect_sound(&db);
}

#[test]
fn second_process_is_refused_until_the_first_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("held.stemma");
    for _ in 0..3 {
        let mut child =
            scenario("", "hold", directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output_lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(output_lines.any(|line| line.unwrap().contains("@held")));
        let error = Database::open_with(&path, options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked, "{error:?}");
        let error = Database::open_with(&path, options().read_only(true)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked, "{error:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        expect_sound(&Database::open_with(&path, options()).unwrap());
    }
}

/// A copy made by `cp -r` during writes is a complete state with everything acknowledged before the copy started, or it
/// is refused.
#[test]
fn copy_made_during_writes_is_a_complete_state_or_refused() {
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
            let output = scenario("", "judge-copy", directory.path()).stdin(Stdio::null()).output().unwrap();
            let lines = lines(&output);
            let line = lines.first().cloned().unwrap_or_default();
            let message = String::from_utf8_lossy(&output.stderr);
            match line.strip_prefix("prefix ").and_then(|count| count.parse::<u64>().ok()) {
                Some(count) if copied.status.success() => {
                    assert!(count >= before, "{count} of {before} acknowledged before the copy was started");
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
