//! Contract tests run on every implementation of `Vfs`.

use std::io;

use super::*;

/// Checks the behavior that the log relies on.
fn check_contract(vfs: &dyn Vfs) {
    assert_eq!(vfs.list("log").unwrap(), Vec::<String>::new());
    vfs.create_dir_all("log/inner").unwrap();
    vfs.create_dir_all("log/inner").unwrap();
    assert!(vfs.list("").unwrap().contains(&"log".to_owned()));
    assert_eq!(vfs.list("log").unwrap(), ["inner"]);
    assert_eq!(vfs.open("log/a").err().unwrap().kind(), io::ErrorKind::NotFound);

    let file = vfs.create("log/a").unwrap();
    assert_eq!(vfs.create("log/a").err().unwrap().kind(), io::ErrorKind::AlreadyExists);
    file.write_at(b"hello", 70_000).unwrap();
    assert_eq!(file.len().unwrap(), 70_005);
    let mut buffer = [7; 10];
    assert_eq!(file.read_at(&mut buffer, 69_998).unwrap(), 7);
    assert_eq!(&buffer[..7], b"\0\0hello");
    assert_eq!(file.read_at(&mut buffer, 80_000).unwrap(), 0);
    assert!(read_exact_at(&*file, &mut buffer, 70_000).is_err());

    file.set_len(70_002).unwrap();
    file.set_len(70_010).unwrap();
    assert_eq!(file.read_at(&mut buffer, 70_000).unwrap(), 10);
    assert_eq!(&buffer, b"he\0\0\0\0\0\0\0\0");
    file.sync_data().unwrap();

    vfs.create("log/b").unwrap();
    vfs.rename("log/a", "log/b").unwrap();
    vfs.sync_dir("log").unwrap();
    vfs.sync_dir("").unwrap();
    let mut names = vfs.list("log").unwrap();
    names.sort();
    assert_eq!(names, ["b", "inner"]);
    assert_eq!(vfs.open("log/b").unwrap().len().unwrap(), 70_010);
    vfs.remove("log/b").unwrap();
    assert_eq!(vfs.list("log").unwrap(), ["inner"]);
    assert_eq!(file.read_at(&mut buffer, 70_000).unwrap(), 10, "an open handle stays readable after removal");
    assert!(vfs.remove("log/b").is_err() && vfs.rename("log/b", "log/c").is_err());

    let lock = DatabaseLock::acquire(vfs).unwrap();
    let refused = DatabaseLock::acquire(vfs).err().unwrap();
    assert_eq!(refused.kind(), crate::ErrorKind::Locked);
    drop(lock);
    DatabaseLock::acquire(vfs).unwrap();
}

/// A read-only directory behaves like a writable one, except that readers share the lock and the disk does not change.
#[test]
fn read_only_vfs_shows_writes_without_changing_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("log")).unwrap();
    let path = directory.path().join("log/a");
    std::fs::write(&path, "x".repeat(10_000)).unwrap();
    let vfs = ReadOnlyVfs::new(directory.path()).unwrap();
    assert_eq!(vfs.open("log/nothing").err().unwrap().kind(), io::ErrorKind::NotFound);
    assert_eq!(vfs.create("log/a").err().unwrap().kind(), io::ErrorKind::AlreadyExists);
    let read = |vfs: &dyn Vfs, name: &str| {
        let file = vfs.open(name).unwrap();
        let mut bytes = vec![7; 20_000];
        let count = file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(count as u64, file.len().unwrap());
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    };
    let mut expected = "x".repeat(10_000);
    vfs.open("log/a").unwrap().write_at(b"hello", 4_094).unwrap();
    expected.replace_range(4_094..4_099, "hello");
    assert_eq!(read(&vfs, "log/a"), expected, "reopening the file shows the written bytes");
    let file = vfs.open("log/a").unwrap();
    file.set_len(9_000).unwrap();
    file.set_len(9_100).unwrap();
    file.write_at(b"end", 9_200).unwrap();
    expected = format!("{}{}end", &expected[..9_000], "\0".repeat(200));
    assert_eq!(read(&vfs, "log/a"), expected);
    vfs.create("log/b").unwrap().write_at(b"b", 1).unwrap();
    vfs.rename("log/a", "log/b").unwrap();
    assert_eq!((vfs.list("log").unwrap(), read(&vfs, "log/b")), (vec!["b".to_owned()], expected));
    vfs.remove("log/b").unwrap();
    assert!(vfs.list("log").unwrap().is_empty() && vfs.open("log/b").is_err() && vfs.open("log/a").is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "x".repeat(10_000));
    assert_eq!(std::fs::read_dir(directory.path().join("log")).unwrap().count(), 1);
}

#[test]
fn readers_share_the_lock_and_writers_are_exclusive() {
    let directory = tempfile::tempdir().unwrap();
    let disk = DiskVfs::new(directory.path()).unwrap();
    let reading = || ReadOnlyVfs::new(directory.path()).unwrap();
    drop(DatabaseLock::acquire(&reading()).unwrap());
    let writer = DatabaseLock::acquire(&disk).unwrap();
    assert!(DatabaseLock::acquire(&reading()).is_err());
    drop(writer);
    let readers = [DatabaseLock::acquire(&reading()).unwrap(), DatabaseLock::acquire(&reading()).unwrap()];
    assert!(DatabaseLock::acquire(&disk).is_err());
    drop(readers);
    DatabaseLock::acquire(&disk).unwrap();
}

#[test]
fn disk_vfs_meets_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("a/b.stemma");
    check_contract(&DiskVfs::new(&below).unwrap());
    check_contract(&DiskVfs::new(&directory.path().join("again")).unwrap());
}

#[test]
fn fault_vfs_meets_the_contract_without_planned_failures() {
    check_contract(&FaultVfs::new(1));
}

#[test]
fn memory_vfs_meets_the_contract() {
    check_contract(&MemoryVfs::new());
}
