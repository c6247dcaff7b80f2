//! Fuzz targets of run files and the manifest: damaged files, and malformed ones whose checksums are right.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use arbitrary::Unstructured;

use super::manifest::{NAME, RunList, newest_list, sealed};
use super::run_file::sections::Sections;
use super::*;
use crate::compression::Compression;
use crate::vfs::{MemoryVfs, read_exact_at};

/// Maximum number of changes to one file.
const CHANGES_MAX: usize = 8;
/// A tree has more memory than this times the bytes of its files only if it is empty.
const MEMORY_FACTOR: u64 = 300;

type Files = BTreeMap<String, Vec<u8>>;
type TableRows = Vec<(Vec<u8>, Vec<u8>)>;

/// Operands are lists of a sign and a letter; a value is the letters that were added.
struct Letters;

fn letters(operand: &[u8]) -> Result<BTreeMap<u8, u8>> {
    let (changes, rest) = operand.as_chunks::<2>();
    if !rest.is_empty() || changes.iter().any(|[sign, _]| !matches!(sign, b'+' | b'-')) {
        return Err(Error::corrupt("an operand is malformed"));
    }
    Ok(changes.iter().map(|[sign, letter]| (*letter, *sign)).collect())
}

impl MergeOperator for Letters {
    fn combine(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let mut combined = letters(older)?;
        combined.extend(letters(newer)?);
        // Added letters come first, so that they are one part of the operand.
        for sign in [b'+', b'-'] {
            combined.iter().filter(|(_, other)| **other == sign).for_each(|(letter, _)| out.extend([sign, *letter]));
        }
        Ok(())
    }

    fn finish<'a>(&self, operand: &'a [u8]) -> Result<Option<&'a [u8]>> {
        letters(operand)?;
        let count = operand.as_chunks::<2>().0.iter().take_while(|change| change[0] == b'+').count();
        Ok((count > 0).then(|| &operand[..2 * count]))
    }

    fn removes(&self, operand: &[u8]) -> bool {
        operand.as_chunks::<2>().0.iter().any(|change| change[0] == b'-')
    }
}

/// A valid tree, and what it holds.
struct Original {
    files: Files,
    rows: Vec<TableRows>,
    list: RunList,
}

fn open(vfs: Arc<dyn Vfs>) -> Result<Tree> {
    let operator = Arc::new(Letters);
    Tree::open(vfs, "tree", TreeOptions { cache_bytes: 1 << 20, file_bytes: 2 << 10, read_only: false, operator })
}

fn write(tree: &Tree, round: u32) -> Result<()> {
    let mut transaction = tree.write()?;
    for row in 0..60_u32 {
        let key = (row * 3 + round).to_be_bytes();
        match (row + round) % 7 {
            0 => transaction.delete(Table::Docs, &key)?,
            _ => transaction.put(Table::Docs, &key, &[round as u8; 12])?,
        }
        let operand = [if row % 5 == round % 5 { b'-' } else { b'+' }, b'a' + (round % 3) as u8];
        transaction.merge(Table::Postings, &[b't', row as u8], &operand)?;
    }
    transaction.commit()
}

fn original() -> &'static Original {
    static ORIGINAL: OnceLock<Original> = OnceLock::new();
    ORIGINAL.get_or_init(|| {
        let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
        let tree = open(vfs.clone()).expect("in memory");
        for round in 0..12 {
            tree.set_compression(Compression::ALL[round as usize % 3]);
            write(&tree, round).expect("in memory");
            // A merge is left unfinished: runs with cut files, and one of several files.
            (0..2).for_each(|_| _ = tree.merge_step(MergeGoal::Pace).expect("in memory"));
        }
        let rows = rows(&tree).expect("in memory");
        let files: Files = tree
            .file_names()
            .expect("in memory")
            .into_iter()
            .map(|name| {
                let file = vfs.open(&format!("tree/{name}")).expect("it is there");
                let mut bytes = vec![0; file.len().expect("in memory") as usize];
                read_exact_at(&*file, &mut bytes, 0).expect("in memory");
                (name, bytes)
            })
            .collect();
        let list = newest_list(&files[NAME], None).expect("it is valid").list;
        Original { files, rows, list }
    })
}

fn disk(files: &Files) -> Arc<dyn Vfs> {
    let vfs = MemoryVfs::new();
    vfs.create_dir_all("tree").expect("in memory");
    for (name, bytes) in files {
        vfs.create(&format!("tree/{name}")).and_then(|file| file.write_at(bytes, 0)).expect("in memory");
    }
    Arc::new(vfs)
}

/// All rows. Reads them in both directions, and by key.
fn rows(tree: &Tree) -> Result<Vec<TableRows>> {
    let snapshot = tree.read();
    let scan = |table, direction| -> Result<TableRows> {
        let mut rows = snapshot.scan(table, Bound::Unbounded, Bound::Unbounded, direction)?;
        let mut found = TableRows::new();
        while let Some((key, value)) = rows.next()? {
            found.push((key.to_vec(), value.to_vec()));
            // Each row takes more than a byte.
            assert!(found.len() as u64 <= tree.size().live_bytes, "a scan does not end");
        }
        Ok(found)
    };
    let mut tables = Vec::new();
    for table in Table::ALL {
        let rows = scan(table, Direction::Ascending)?;
        scan(table, Direction::Descending)?;
        for (key, _) in rows.iter().filter(|(key, _)| !key.is_empty()) {
            snapshot.get(table, key)?;
        }
        tables.push(rows);
    }
    Ok(tables)
}

/// Reads, verifies and merges a tree that may be malformed.
fn exercise(vfs: &Arc<dyn Vfs>, file_bytes: u64) {
    let progress = try_exercise(vfs, file_bytes);
    #[cfg(test)]
    tests::REACHED.with_borrow_mut(|reached| *reached.entry(progress).or_insert(0) += 1);
    _ = progress;
}

/// How far a malformed tree was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    Refused,
    Opened,
    Read,
    Merged,
}

fn try_exercise(vfs: &Arc<dyn Vfs>, file_bytes: u64) -> Progress {
    let is_expected = |error: &Error| assert_eq!(error.kind(), crate::ErrorKind::Corrupt, "{error:?}");
    let tree = match open(vfs.clone()) {
        Ok(tree) => tree,
        Err(error) => {
            is_expected(&error);
            return Progress::Refused;
        }
    };
    let progress = match rows(&tree).inspect_err(is_expected) {
        Ok(_) => Progress::Read,
        Err(_) => Progress::Opened,
    };
    assert!(tree.size().memory_bytes <= MEMORY_FACTOR * file_bytes, "{:?} for {file_bytes}", tree.size());
    _ = tree.verify().inspect_err(is_expected);
    for _ in 0..200 {
        match tree.merge_step(MergeGoal::All) {
            Ok(true) => {}
            Ok(false) => {
                _ = rows(&tree).inspect_err(is_expected);
                return Progress::Merged;
            }
            Err(error) => {
                is_expected(&error);
                return progress;
            }
        }
    }
    panic!("a merge does not end");
}

/// Changes some bytes as the input says.
fn change(input: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> arbitrary::Result<()> {
    let at = input.int_in_range(0..=bytes.len())?;
    match input.int_in_range(0..=5)? {
        0 => bytes.insert(at, input.arbitrary()?),
        1 => bytes.truncate(at),
        2 => {
            let end = bytes.len().min(at + input.int_in_range(0..=40)?);
            bytes.drain(at..end);
        }
        3 => {
            let end = bytes.len().min(at + input.int_in_range(0..=40)?);
            bytes.extend_from_within(at..end);
        }
        4 if at < bytes.len() => bytes[at] ^= 1 << input.int_in_range(0..=7)?,
        _ if at < bytes.len() => bytes[at] = input.arbitrary()?,
        _ => {}
    }
    Ok(())
}

pub(crate) fn runs(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let mut input = Unstructured::new(rest);
    match kind % 3 {
        0 => _ = damaged_run(&mut input),
        1 => _ = malformed_run(&mut input),
        _ => replaced_section(rest),
    }
}

/// A few changed bytes in run files: all rows, or an error.
fn damaged_run(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut files = original().files.clone();
    let names: Vec<String> = files.keys().filter(|name| *name != NAME).cloned().collect();
    for _ in 0..input.int_in_range(1..=CHANGES_MAX)? {
        let name = input.choose(&names)?;
        change(input, files.get_mut(name).expect("it is there"))?;
    }
    match open(disk(&files)).and_then(|tree| Ok((rows(&tree)?, tree.verify()?))) {
        Ok((found, report)) => {
            assert!(found == original().rows, "rows are wrong");
            assert!(files == original().files || report.problem_count > 0, "`verify` finds nothing");
        }
        Err(error) => assert_eq!(error.kind(), crate::ErrorKind::Corrupt, "{error:?}"),
    }
    Ok(())
}

/// Seals changed sections again, and reads the tree that the file is in.
fn exercise_sections(mut sections: Sections, is_rebuilt: [bool; 2]) {
    let original = original();
    let mut list = original.list.clone();
    // The run in several files, or else the newest.
    let at = list.runs.iter().position(|run| run.is_merged).unwrap_or(0);
    let record = &mut list.runs[at].slices[0].file;
    if is_rebuilt[0] {
        sections.rebuild_index();
    }
    if is_rebuilt[1] {
        sections.rebuild_properties(record);
    }
    let bytes = sections.seal(record);
    let mut files = original.files.clone();
    let file_bytes = files.values().map(Vec::len).sum::<usize>() + bytes.len();
    files.insert(run_file::file_name(record.number), bytes);
    let mut payload = Vec::new();
    list.encode(&mut payload);
    files.insert(NAME.to_owned(), sealed(&[&payload]));
    exercise(&disk(&files), file_bytes as u64);
}

fn original_sections() -> Sections {
    let original = original();
    let run = original.list.runs.iter().find(|run| run.is_merged).unwrap_or(&original.list.runs[0]);
    Sections::of(&original.files[&run_file::file_name(run.slices[0].file.number)])
}

/// Changed sections of a run file whose checksums are right.
fn malformed_run(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut sections = original_sections();
    for _ in 0..input.int_in_range(1..=CHANGES_MAX)? {
        let block_count = sections.blocks.len();
        let section = match input.int_in_range(0..=8)? {
            8 => {
                let block = input.choose_index(block_count)?;
                sections.encodings[block] = input.int_in_range(0..=4)?;
                continue;
            }
            0 => &mut sections.filter,
            1 => &mut sections.index,
            2 => &mut sections.properties,
            3 => input.choose_index(block_count).map(|block| &mut sections.fences[block])?,
            _ => input.choose_index(block_count).map(|block| &mut sections.blocks[block])?,
        };
        change(input, section)?;
    }
    exercise_sections(sections, [input.ratio(3, 4)?, input.ratio(7, 8)?]);
    Ok(())
}

/// A section that is the input.
fn replaced_section(data: &[u8]) {
    let Some((section, bytes)) = data.split_first() else { return };
    let mut sections = original_sections();
    match section % 8 {
        0 => sections.filter = bytes.to_vec(),
        1 => sections.index = bytes.to_vec(),
        2 => sections.properties = bytes.to_vec(),
        number => {
            let block = usize::from(number) % sections.blocks.len();
            sections.blocks[block] = bytes.to_vec();
        }
    }
    exercise_sections(sections, [section % 8 != 1, section % 8 != 2]);
}

pub(crate) fn manifest(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let mut input = Unstructured::new(rest);
    match kind % 3 {
        0 => _ = damaged_manifest(&mut input),
        1 => _ = malformed_list(&mut input),
        _ => {
            read_list(rest);
            let records = &sealed(&[])[..];
            newest_list(&[records, rest].concat(), None);
        }
    }
}

/// Some changed bytes in a manifest of several lists: one of these lists, the last one if its record is unchanged.
fn damaged_manifest(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let lists: Vec<RunList> = (1..6).map(|state| RunList { state, ..original().list.clone() }).collect();
    let payloads: Vec<Vec<u8>> = lists.iter().map(encoded).collect();
    let bytes = sealed(&payloads.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let mut changed = bytes.clone();
    for _ in 0..input.int_in_range(1..=CHANGES_MAX)? {
        change(input, &mut changed)?;
    }
    let last_start = bytes.len() - payloads[4].len() - 20;
    let is_last_intact = changed.get(..12) == bytes.get(..12) && changed.get(last_start..) == bytes.get(last_start..);
    let newest = newest_list(&changed, None);
    assert!(newest.as_ref().is_none_or(|newest| lists.contains(&newest.list)), "a list that was never written");
    if is_last_intact {
        let newest = newest.expect("the last record is valid");
        assert_eq!((newest.list.state, newest.damage.is_some()), (5, changed != bytes));
    }
    Ok(())
}

fn encoded(list: &RunList) -> Vec<u8> {
    let mut payload = Vec::new();
    list.encode(&mut payload);
    payload
}

/// A list has one encoding.
fn read_list(payload: &[u8]) {
    if let Some(list) = RunList::decode(payload) {
        assert_eq!(encoded(&list), payload);
    }
}

/// A changed list whose checksum is right, and the tree that it names.
fn malformed_list(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut payload = encoded(&original().list);
    for _ in 0..input.int_in_range(1..=2)? {
        change(input, &mut payload)?;
    }
    read_list(&payload);
    let mut files = original().files.clone();
    files.insert(NAME.to_owned(), sealed(&[&payload]));
    exercise(&disk(&files), files.values().map(Vec::len).sum::<usize>() as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::vfs::Random;

    thread_local! {
        pub(super) static REACHED: RefCell<BTreeMap<Progress, usize>> = const { RefCell::new(BTreeMap::new()) };
    }

    #[test]
    fn malformed_files_are_refused_at_every_depth() {
        let of_runs = [Progress::Opened, Progress::Read, Progress::Merged];
        let of_manifests = [Progress::Refused, Progress::Opened];
        for (target, expected) in [(runs as fn(&[u8]), &of_runs[..]), (manifest, &of_manifests)] {
            REACHED.take();
            for seed in 0..4_000 {
                let mut random = Random::new(seed);
                let bytes: Vec<u8> = (0..random.below(100)).map(|_| random.number() as u8).collect();
                target(&bytes);
            }
            let reached = REACHED.take();
            println!("{reached:?}");
            let is_reached = |progress| reached.get(progress).is_some_and(|count| *count > 3);
            assert!(expected.iter().all(is_reached), "{reached:?}");
        }
    }
}
