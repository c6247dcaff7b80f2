//! The tree's table `meta`: the checkpoint, and the dictionaries, settings and statistics that belong to it.
//!
//! | key | value |
//! |---|---|
//! | `checkpoint` | log position to replay from, next sequence, next document number |
//! | `compacted` | log position of the last explicit compaction: older records of replaced revisions are not read |
//! | `history` | the lowest sequence as of which the database can be read |
//! | `past/` + segment | a history file has what was replaced in that segment |
//! | `unreferenced/` + digest | a content that only the past needs: the newest sequence when that was found |
//! | `settings` | the settings the index was built with, as JSON |
//! | `terms` | the version of the terms derived from documents besides those of their values: 1, their collection |
//! | `path/` + number | parent and name of a path |
//! | `shape/` + number | field names of a shape |
//! | `dictionary/` + number | method and bytes of a dictionary for compressed bodies |
//! | `index/` + number | a declared index is ready: the format of its keys |
//! | `live/` + segment | bytes of that segment's records that are still needed |
//! | `statistics/` + number | the histogram of a path's values |
//! | `numbers/` + number | the count and sum of a path's numbers |

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use crate::Result;
use crate::compression::{Dictionary, DocumentCompression, Method};
use crate::index::{DocumentNumber, Histogram, NumberSum, PathEntry, PathNumber, Paths};
use crate::layout;
use crate::layout::record::{Reader, put_varint};
use crate::log::{Digest, LogPosition};
use crate::revision::Sequence;
use crate::tree::{Direction, Slice, Table, TreeSnapshot, TreeTransaction};
use crate::value::{ShapeNumber, Shapes};

const CHECKPOINT: &[u8] = b"checkpoint";
const COMPACTED: &[u8] = b"compacted";
const HISTORY: &[u8] = b"history";
const PAST: &[u8] = b"past/";
const UNREFERENCED: &[u8] = b"unreferenced/";
const SETTINGS: &[u8] = b"settings";
const TERMS: &[u8] = b"terms";
const PATH: &[u8] = b"path/";
const SHAPE: &[u8] = b"shape/";
const DICTIONARY: &[u8] = b"dictionary/";
const INDEX: &[u8] = b"index/";
const LIVE: &[u8] = b"live/";
const STATISTICS: &[u8] = b"statistics/";
const NUMBERS: &[u8] = b"numbers/";

/// Incremented when documents get other terms: a tree with another version is rebuilt.
const CURRENT_TERMS: &[u8] = &[1];

/// The position of the last checkpoint, and the counters as of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) replay_from: LogPosition,
    pub(crate) next_sequence: Sequence,
    pub(crate) next_number: DocumentNumber,
}

pub(crate) fn checkpoint(tree: &TreeSnapshot) -> Result<Option<Checkpoint>> {
    let Some(value) = tree.get(Table::Meta, CHECKPOINT)? else { return Ok(None) };
    let mut reader = Reader::new(&value);
    Ok(Some(Checkpoint {
        replay_from: LogPosition::from_u64(reader.varint()?),
        next_sequence: Sequence(reader.varint()?),
        next_number: DocumentNumber(reader.varint()?),
    }))
}

pub(crate) fn put_checkpoint(tree: &mut TreeTransaction<'_>, checkpoint: &Checkpoint) -> Result<()> {
    let mut value = Vec::new();
    put_varint(&mut value, checkpoint.replay_from.to_u64());
    put_varint(&mut value, checkpoint.next_sequence.0);
    put_varint(&mut value, checkpoint.next_number.0);
    tree.put(Table::Meta, CHECKPOINT, &value)
}

/// The log position of the last explicit compaction; none if there was none since the tree was built.
pub(crate) fn compacted_before(tree: &TreeSnapshot) -> Result<LogPosition> {
    let Some(value) = tree.get(Table::Meta, COMPACTED)? else { return Ok(LogPosition::START) };
    Ok(LogPosition::from_u64(Reader::new(&value).varint()?))
}

pub(crate) fn put_compacted_before(tree: &mut TreeTransaction<'_>, position: LogPosition) -> Result<()> {
    let mut value = Vec::new();
    put_varint(&mut value, position.to_u64());
    tree.put(Table::Meta, COMPACTED, &value)
}

/// The lowest sequence as of which the database can be read; `None` if nothing was removed since the tree was built.
pub(crate) fn history_floor(tree: &TreeSnapshot) -> Result<Option<Sequence>> {
    let Some(value) = tree.get(Table::Meta, HISTORY)? else { return Ok(None) };
    Reader::new(&value).varint().map(|floor| Some(Sequence(floor)))
}

pub(crate) fn put_history_floor(tree: &mut TreeTransaction<'_>, floor: Sequence) -> Result<()> {
    let mut value = Vec::new();
    put_varint(&mut value, floor.0);
    tree.put(Table::Meta, HISTORY, &value)
}

/// The retired segments whose replaced revisions are in a history file.
pub(crate) fn history_files(tree: &TreeSnapshot) -> Result<Vec<u32>> {
    Ok(numbered(tree, PAST)?.into_iter().map(|(segment, _)| segment as u32).collect())
}

pub(crate) fn put_history_file(tree: &mut TreeTransaction<'_>, segment: u32) -> Result<()> {
    tree.put(Table::Meta, &numbered_key(PAST, u64::from(segment)), &[])
}

pub(crate) fn forget_history_file(tree: &mut TreeTransaction<'_>, segment: u32) -> Result<()> {
    tree.delete(Table::Meta, &numbered_key(PAST, u64::from(segment)))
}

/// The attachment contents that were found unreferenced but are kept for the past, each with the newest sequence then.
pub(crate) fn unreferenced_contents(tree: &TreeSnapshot) -> Result<BTreeMap<Digest, Sequence>> {
    let mut found = BTreeMap::new();
    each_row(tree, UNREFERENCED, |rest, value| {
        let digest = rest.first_chunk().ok_or_else(|| layout::damaged(Table::Meta))?;
        found.insert(Digest::from_stored(*digest), Sequence(Reader::new(value).varint()?));
        Ok(())
    })?;
    Ok(found)
}

pub(crate) fn put_unreferenced_content(tree: &mut TreeTransaction<'_>, digest: &Digest, at: Sequence) -> Result<()> {
    let mut value = Vec::new();
    put_varint(&mut value, at.0);
    tree.put(Table::Meta, &[UNREFERENCED, digest.as_bytes()].concat(), &value)
}

pub(crate) fn forget_unreferenced_content(tree: &mut TreeTransaction<'_>, digest: &Digest) -> Result<()> {
    tree.delete(Table::Meta, &[UNREFERENCED, digest.as_bytes()].concat())
}

pub(crate) fn settings(tree: &TreeSnapshot) -> Result<Option<Vec<u8>>> {
    Ok(tree.get(Table::Meta, SETTINGS)?.map(|value| value.to_vec()))
}

pub(crate) fn put_settings(tree: &mut TreeTransaction<'_>, settings: &[u8]) -> Result<()> {
    tree.put(Table::Meta, SETTINGS, settings)
}

/// Whether the tree holds all terms that this version derives from documents.
pub(crate) fn has_current_terms(tree: &TreeSnapshot) -> Result<bool> {
    Ok(tree.get(Table::Meta, TERMS)?.as_deref() == Some(CURRENT_TERMS))
}

pub(crate) fn put_current_terms(tree: &mut TreeTransaction<'_>) -> Result<()> {
    tree.put(Table::Meta, TERMS, CURRENT_TERMS)
}

/// The rows whose key begins with `prefix`, each with the number that follows the prefix.
fn numbered(tree: &TreeSnapshot, prefix: &[u8]) -> Result<Vec<(u64, Vec<u8>)>> {
    let mut found = Vec::new();
    each_row(tree, prefix, |rest, value| {
        found.push((layout::number_of_key(Table::Meta, rest)?, value.to_vec()));
        Ok(())
    })?;
    Ok(found)
}

/// Calls `visit` with the rest of the key and the value of each row whose key begins with `prefix`.
fn each_row(tree: &TreeSnapshot, prefix: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
    let mut upper = prefix.to_vec();
    *upper.last_mut().expect("a prefix has bytes") += 1;
    let mut rows = tree.scan(Table::Meta, Bound::Included(prefix), Bound::Excluded(&upper), Direction::Ascending)?;
    while let Some((key, value)) = rows.next()? {
        visit(&key[prefix.len()..], value)?;
    }
    Ok(())
}

fn numbered_key(prefix: &[u8], number: u64) -> Vec<u8> {
    [prefix, &layout::number_key(number)].concat()
}

/// Fills the dictionaries from the tree.
pub(crate) fn restore_dictionaries(tree: &TreeSnapshot, paths: &Paths, shapes: &Shapes) -> Result<()> {
    for (number, value) in numbered(tree, PATH)? {
        let number = u32::try_from(number).map_err(|_| layout::damaged(Table::Meta))?;
        paths.restore(&PathEntry::decode(PathNumber(number), &value)?)?;
    }
    each_shape(tree, |number, names| shapes.restore(number, names))
}

/// Adds the shapes, and the dictionaries for compressed bodies, that a damaged log lacks.
pub(crate) fn salvage_dictionaries(
    tree: &TreeSnapshot,
    shapes: &Shapes,
    compression: &DocumentCompression,
) -> Result<()> {
    restore_compression(tree, compression)?;
    each_shape(tree, |number, names| {
        shapes.restore_sparse(number, names);
        Ok(())
    })
}

fn each_shape(tree: &TreeSnapshot, mut visit: impl FnMut(ShapeNumber, Vec<&str>) -> Result<()>) -> Result<()> {
    for (number, value) in numbered(tree, SHAPE)? {
        let mut reader = Reader::new(&value);
        let count = reader.varint()?;
        let names = (0..count).map(|_| reader.text()).collect::<Result<Vec<_>>>()?;
        visit(ShapeNumber::new(number).ok_or_else(|| layout::damaged(Table::Meta))?, names)?;
    }
    Ok(())
}

/// Stores the paths from number `from` on.
pub(crate) fn put_paths(tree: &mut TreeTransaction<'_>, paths: &Paths, from: usize) -> Result<()> {
    for entry in paths.entries_since(from) {
        let mut value = Vec::new();
        entry.encode(&mut value);
        tree.put(Table::Meta, &numbered_key(PATH, u64::from(entry.number.0)), &value)?;
    }
    Ok(())
}

/// Stores the shapes with these numbers.
pub(crate) fn put_shapes(tree: &mut TreeTransaction<'_>, shapes: &Shapes, numbers: Range<usize>) -> Result<()> {
    for (number, shape) in shapes.since(numbers.start).take(numbers.len()) {
        let mut value = Vec::new();
        put_varint(&mut value, shape.len() as u64);
        for name in shape.names() {
            put_varint(&mut value, name.len() as u64);
            value.extend_from_slice(name.as_bytes());
        }
        tree.put(Table::Meta, &numbered_key(SHAPE, number.get() as u64), &value)?;
    }
    Ok(())
}

/// Adds the dictionaries for compressed bodies.
pub(crate) fn restore_compression(tree: &TreeSnapshot, compression: &DocumentCompression) -> Result<()> {
    for (number, value) in numbered(tree, DICTIONARY)? {
        let number = u32::try_from(number).map_err(|_| layout::damaged(Table::Meta))?;
        match value.split_first() {
            Some((&method, bytes)) if method == Method::ZstdWithDictionary as u8 => {
                compression.add(Dictionary::new(number, bytes))?;
            }
            _ => return Err(layout::damaged(Table::Meta)),
        }
    }
    Ok(())
}

/// Stores the dictionaries with these numbers.
pub(crate) fn put_dictionaries(
    tree: &mut TreeTransaction<'_>,
    compression: &DocumentCompression,
    numbers: Range<usize>,
) -> Result<()> {
    for dictionary in compression.dictionaries_since(numbers.start) {
        if (dictionary.number() as usize) < numbers.end {
            let value = [&[Method::ZstdWithDictionary as u8], dictionary.bytes()].concat();
            tree.put(Table::Meta, &numbered_key(DICTIONARY, u64::from(dictionary.number())), &value)?;
        }
    }
    Ok(())
}

/// The declared indexes that are ready, each with the format of its keys.
pub(crate) fn ready_indexes(tree: &TreeSnapshot) -> Result<Vec<(u64, Vec<u8>)>> {
    numbered(tree, INDEX)
}

/// Records that a declared index is ready, with keys in this format.
pub(crate) fn put_ready_index(tree: &mut TreeTransaction<'_>, number: u32, form: &[u8]) -> Result<()> {
    tree.put(Table::Meta, &numbered_key(INDEX, u64::from(number)), form)
}

/// Removes the record that a declared index is ready.
pub(crate) fn forget_ready_index(tree: &mut TreeTransaction<'_>, number: u32) -> Result<()> {
    tree.delete(Table::Meta, &numbered_key(INDEX, u64::from(number)))
}

/// The bytes of each segment's records that are still needed.
pub(crate) fn live_bytes(tree: &TreeSnapshot) -> Result<BTreeMap<u32, u64>> {
    numbered(tree, LIVE)?
        .into_iter()
        .map(|(number, value)| Ok((number as u32, Reader::new(&value).varint()?)))
        .collect()
}

/// Adds `change` to the live bytes of `segment` in the state `before`, at most once in a transaction.
pub(crate) fn change_live_bytes(
    before: &TreeSnapshot,
    tree: &mut TreeTransaction<'_>,
    segment: u32,
    change: i64,
) -> Result<()> {
    let key = numbered_key(LIVE, u64::from(segment));
    let live_bytes = match before.get(Table::Meta, &key)? {
        Some(value) => Reader::new(&value).varint()?,
        None => 0,
    };
    let mut value = Vec::new();
    put_varint(&mut value, live_bytes.saturating_add_signed(change));
    tree.put(Table::Meta, &key, &value)
}

/// Removes the live bytes of a retired segment.
pub(crate) fn forget_segment(tree: &mut TreeTransaction<'_>, segment: u32) -> Result<()> {
    tree.delete(Table::Meta, &numbered_key(LIVE, u64::from(segment)))
}

/// The stored histogram of a path.
pub(crate) fn statistics(tree: &TreeSnapshot, path: PathNumber) -> Result<Option<Slice>> {
    tree.get(Table::Meta, &numbered_key(STATISTICS, u64::from(path.0)))
}

/// The stored histograms of all paths that have one.
pub(crate) fn all_statistics(tree: &TreeSnapshot) -> Result<Vec<(u64, Vec<u8>)>> {
    numbered(tree, STATISTICS)
}

/// The stored count and sum of a path's numbers. Present whenever the histogram is, unless an older version wrote the
/// histogram.
pub(crate) fn numbers(tree: &TreeSnapshot, path: PathNumber) -> Result<Option<Slice>> {
    tree.get(Table::Meta, &numbered_key(NUMBERS, u64::from(path.0)))
}

/// Stores the statistics of a path; removes them if the path has no values any more.
pub(crate) fn put_statistics(
    tree: &mut TreeTransaction<'_>,
    path: PathNumber,
    histogram: &Histogram,
    numbers: &NumberSum,
) -> Result<()> {
    let [histogram_key, numbers_key] = [STATISTICS, NUMBERS].map(|kind| numbered_key(kind, u64::from(path.0)));
    if histogram.entry_count() == 0 {
        tree.delete(Table::Meta, &histogram_key)?;
        return tree.delete(Table::Meta, &numbers_key);
    }
    let mut value = Vec::new();
    histogram.encode(&mut value);
    tree.put(Table::Meta, &histogram_key, &value)?;
    value.clear();
    numbers.encode(&mut value);
    tree.put(Table::Meta, &numbers_key, &value)
}
