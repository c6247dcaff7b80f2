//! One behaviour for every implementation.

use std::io;

use super::*;

/// What the log relies on, whatever the files are made of.
fn behaves(vfs: &dyn Vfs) {
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
    assert_eq!(file.read_at(&mut buffer, 70_000).unwrap(), 10, "who has it open goes on reading");
    assert!(vfs.remove("log/b").is_err() && vfs.rename("log/b", "log/c").is_err());

    let lock = DatabaseLock::acquire(vfs).unwrap();
    let refused = DatabaseLock::acquire(vfs).err().unwrap();
    assert_eq!(refused.kind(), crate::ErrorKind::Unavailable);
    drop(lock);
    DatabaseLock::acquire(vfs).unwrap();
}

#[test]
fn the_disk_behaves() {
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("a/b.stemma");
    behaves(&DiskVfs::new(&below).unwrap());
    behaves(&DiskVfs::new(&directory.path().join("again")).unwrap());
}

#[test]
fn the_faulty_disk_behaves_until_told_otherwise() {
    behaves(&FaultVfs::new(1));
}

#[test]
fn memory_behaves() {
    behaves(&MemoryVfs::new());
}
