//! What is in a target: increments, retention, damage, several writers.

use super::*;

fn files(disk: &FaultVfs) -> Vec<String> {
    let mut names = disk.list("files").unwrap();
    names.sort();
    names
}

#[test]
fn second_backup_adds_only_what_is_new() {
    let mut random = Random::new(21);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    (0..200).for_each(|_| write(&db, &mut random));
    let first = back_up_to(&db, &target).unwrap();
    assert_eq!((first.number, first.copied_bytes), (1, first.byte_count));
    let before = files(&target_disk);
    db.insert("new", &serde_json::json!({})).unwrap();
    let second = back_up_to(&db, &target).unwrap();
    assert!(second.byte_count > first.byte_count && second.copied_bytes < 1000, "{second:?}");
    let after = files(&target_disk);
    assert!(before.iter().all(|name| after.contains(name)), "files are added, not replaced");
    // Nothing was written: nothing is copied.
    let third = back_up_to(&db, &target).unwrap();
    assert_eq!((third.number, third.copied_bytes, third.sequence), (3, 0, second.sequence));
    let listed = list(&target).unwrap();
    assert_eq!(listed.iter().map(|backup| backup.number).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((listed[2].sequence, listed[2].byte_count), (third.sequence, third.byte_count));
}

#[test]
fn retention_keeps_the_newest_and_their_files() {
    let mut random = Random::new(22);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    let mut states = Vec::new();
    for round in 0..8 {
        (0..60).for_each(|_| write(&db, &mut random));
        db.maintenance().compact().unwrap();
        db.files().sweep().unwrap();
        let report = db.maintenance().backup_with(&target, &BackupOptions::new().keep(3), |_| ()).unwrap();
        assert_eq!((report.deleted_count, report.cleanup_error.is_none()), (u64::from(round >= 3), true));
        states.push(content(&db));
    }
    assert_eq!(list(&target).unwrap().iter().map(|backup| backup.number).collect::<Vec<_>>(), [6, 7, 8]);
    for number in [6, 7, 8] {
        assert_eq!(content(&restored(&target, At::Backup(number)).unwrap().1), states[number as usize - 1]);
    }
    let mut listed: Vec<String> = Vec::new();
    for number in [6, 7, 8] {
        let manifest = manifest::Manifest::read(&target, number).unwrap();
        listed.extend(manifest.files().map(|file| file.name["files/".len()..].to_owned()));
    }
    listed.sort();
    listed.dedup();
    assert_eq!(files(&target_disk), listed, "what no backup lists is deleted");
}

#[test]
fn verification_names_every_damaged_file() {
    let mut random = Random::new(23);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    for _ in 0..2 {
        (0..80).for_each(|_| write(&db, &mut random));
        back_up_to(&db, &target).unwrap();
    }
    assert!(verify(&target).unwrap().is_sound());
    let report = verify(&target).unwrap();
    assert_eq!((report.backup_count, report.file_count), (2, files(&target_disk).len() as u64));
    assert_eq!(report.byte_count, files(&target_disk).iter().map(|name| length(&target_disk, name)).sum::<u64>());
    for name in files(&target_disk) {
        let name = format!("files/{name}");
        let original = target_disk.content(&name).unwrap();
        let at = random.below(original.len() as u64) as usize;
        target_disk.damage(&name, |bytes| bytes[at] ^= 1 << random.below(8));
        let report = verify(&target).unwrap();
        assert_eq!(report.damages.iter().map(|damage| &*damage.file).collect::<Vec<_>>(), [&*name], "at {at}");
        let error = restored(&target, At::Latest).map(|_| ()).err();
        let is_needed = manifest::Manifest::read(&target, 2).unwrap().files().any(|file| file.name == name);
        assert_eq!(error.is_some_and(|error| error.message().contains(&name)), is_needed);
        target_disk.damage(&name, |bytes| bytes.truncate(at));
        assert_eq!(verify(&target).unwrap().damages[0].file, name);
        target_disk.remove(&name).unwrap();
        assert_eq!(verify(&target).unwrap().damages[0].file, name);
        target.put(&name, &mut &original[..]).unwrap();
    }
    for number in [1, 2] {
        let name = manifest::name_of(number);
        let original = target_disk.content(&name).unwrap();
        let at = random.below(original.len() as u64) as usize;
        target_disk.damage(&name, |bytes| bytes[at] = bytes[at].wrapping_add(1));
        assert_eq!(verify(&target).unwrap().damages[0].file, name, "at {at}");
        target_disk.damage(&name, |bytes| *bytes = original);
    }
    assert!(verify(&target).unwrap().is_sound());
    // A damaged newest backup is not silently replaced by an older one.
    target_disk.damage(&manifest::name_of(2), |bytes| bytes[30] ^= 1);
    let error = restored(&target, At::Latest).err().unwrap();
    assert_eq!((error.kind(), error.hint()), (ErrorKind::Corrupt, Some("restore backup 1 by its number")));
    restored(&target, At::Backup(1)).unwrap();
    // Nor does it keep the next backup from being complete.
    back_up_to(&db, &target).unwrap();
    assert_eq!(content(&restored(&target, At::Latest).unwrap().1), content(&db));
}

/// Nobody knows which files a damaged manifest lists, so that none is deleted.
#[test]
fn files_of_a_damaged_manifest_are_kept() {
    let mut random = Random::new(25);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    let change = |random: &mut Random| {
        (0..80).for_each(|_| write(&db, random));
        db.maintenance().compact().unwrap();
    };
    change(&mut random);
    back_up_to(&db, &target).unwrap();
    let expected = content(&db);
    change(&mut random);
    let of_first = manifest::Manifest::read(&target, 1).unwrap();
    target_disk.damage(&manifest::name_of(1), |bytes| bytes[30] ^= 1);
    let report = back_up_to(&db, &target).unwrap();
    let newest = manifest::Manifest::read(&target, report.number).unwrap();
    assert!(!newest.has_all_files_of(&of_first), "the newest backup needs all files, too");
    target_disk.damage(&manifest::name_of(1), |bytes| bytes[30] ^= 1);
    assert!(verify(&target).unwrap().is_sound());
    assert_eq!(content(&restored(&target, At::Backup(1)).unwrap().1), expected);
}

fn length(disk: &FaultVfs, name: &str) -> u64 {
    disk.content(&format!("files/{name}")).unwrap().len() as u64
}

#[test]
fn backups_of_another_database_are_refused() {
    let target_disk = FaultVfs::new(2);
    let target = target(&target_disk);
    let (db, other) = (open(&FaultVfs::new(1)), open(&FaultVfs::new(3)));
    db.insert("a", &serde_json::json!({})).unwrap();
    back_up_to(&db, &target).unwrap();
    assert_eq!(back_up_to(&other, &target).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(list(&target).unwrap().len(), 1);
    let empty = DirectoryTarget::of(Arc::new(FaultVfs::new(4)), "nowhere".to_owned());
    assert_eq!(verify(&empty).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(restored(&empty, At::Latest).err().unwrap().kind(), ErrorKind::NotFound);
}

#[test]
fn one_writer_at_a_time() {
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    db.insert("a", &serde_json::json!({})).unwrap();
    let lock = target.lock().unwrap();
    assert_eq!(back_up_to(&db, &target).unwrap_err().kind(), ErrorKind::Locked);
    drop(lock);
    back_up_to(&db, &target).unwrap();
}

/// Without a lock, the second writer of a manifest fails, and its backup changes nothing.
#[test]
fn second_writer_of_a_manifest_is_refused() {
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    db.insert("a", &serde_json::json!({})).unwrap();
    let known = create::KnownTarget::read(db.store(), &target).unwrap();
    let export = db.store().export(None).unwrap();
    db.insert("b", &serde_json::json!({})).unwrap();
    back_up_to(&db, &target).unwrap();
    let refused = create::ship(db.store(), &target, &export, &known, "second", true, &mut |_| ()).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert_eq!(content(&restored(&target, At::Latest).unwrap().1), content(&db));
    // A writer that slept through a deletion of backups withdraws its own.
    db.insert("c", &serde_json::json!({})).unwrap();
    db.maintenance().backup_with(&target, &BackupOptions::new().keep(1), |_| ()).unwrap();
    let late = create::ship(db.store(), &target, &export, &known, "late", true, &mut |_| ()).unwrap();
    let refused = clean::clean(&target, &late.manifest, &clean::Keep::All, false, &known.files).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert_eq!(list(&target).unwrap().iter().map(|backup| backup.number).collect::<Vec<_>>(), [2]);
    assert_eq!(content(&restored(&target, At::Latest).unwrap().1), content(&db));
}

/// What a target has lost is put again, and counted.
#[test]
fn lost_files_are_put_again() {
    let mut random = Random::new(24);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    db.history().keep(crate::past::Retention::Everything).unwrap();
    for _ in 0..3 {
        (0..80).for_each(|_| write(&db, &mut random));
        db.maintenance().compact().unwrap();
        back_up_to(&db, &target).unwrap();
    }
    let manifest = manifest::Manifest::read(&target, 3).unwrap();
    let names: std::collections::BTreeSet<String> = manifest.files().map(|file| file.name.clone()).collect();
    for kind in ["-log-", "-history-", "-content-"] {
        let name = names.iter().find(|name| name.contains(kind)).unwrap_or_else(|| panic!("there is no {kind}"));
        target_disk.remove(name).unwrap();
    }
    assert!(restored(&target, At::Latest).is_err());
    write(&db, &mut random);
    let report = back_up_to(&db, &target).unwrap();
    assert_eq!(report.lost_count, 3);
    assert_eq!(content(&restored(&target, At::Latest).unwrap().1), content(&db));
    assert_eq!(back_up_to(&db, &target).unwrap().lost_count, 0);
}

/// Everything that is intact is salvaged from a backup with damaged and missing files.
#[test]
fn damaged_backups_are_salvaged() {
    let mut random = Random::new(25);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    (0..300).for_each(|_| write(&db, &mut random));
    back_up_to(&db, &target).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let salvaged = |number| {
        let mut ids = std::collections::BTreeSet::new();
        let key = Options::new().encryption;
        let report = salvage(&target, number, directory.path(), key.as_ref(), |item| {
            if let crate::salvage::Salvaged::Revision(revision) = item {
                let id = revision.id.as_str().to_owned();
                ids.insert(format!("{id} {} {}", revision.revisions[0], revision.body.to_json()));
            }
            Ok(())
        });
        assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing is left behind");
        report.map(|report| (report, ids))
    };
    let (report, all) = salvaged(None).unwrap();
    assert!(report.skipped.is_empty(), "{:?}", report.skipped);
    let names: Vec<String> = files(&target_disk).into_iter().filter(|name| name.contains("-log-")).collect();
    assert!(names.len() > 2);
    target_disk.damage(&format!("files/{}", names[0]), |bytes| bytes[700] ^= 4);
    target_disk.remove(&format!("files/{}", names[1])).unwrap();
    assert!(restored(&target, At::Latest).is_err());
    let (report, rest) = salvaged(Some(1)).unwrap();
    assert!(!report.skipped.is_empty() && rest.is_subset(&all) && rest.len() > all.len() / 3, "{}", rest.len());
    assert_eq!(salvaged(Some(7)).unwrap_err().kind(), ErrorKind::NotFound);
    target_disk.damage(&manifest::name_of(1), |bytes| bytes[30] ^= 1);
    assert_eq!(salvaged(None).unwrap_err().kind(), ErrorKind::Corrupt);
}
