//! Files that are appended to: a chain of objects for each, one for each append, and one that has all bytes after the
//! file was finished.
//!
//! An append creates the object with the next number. A new owner *fences* a file by creating the next object, without
//! bytes: what an earlier owner appends from then on collides with it. An owner appends only after it has learned the
//! outcome of the append before, and only to files that it has seen with a name; so the number that it creates next is
//! always that of the fence, or one before that exists. Fences are never deleted: those of a deleted file become empty
//! objects.
//!
//! Offsets follow from the sizes of the objects, since all have a header of the same size.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{Error as StoreError, MultipartUpload, ObjectStoreExt};
use parking_lot::Mutex;
use stemmadb::log_storage::{Deposed, FileId, StoredFile};
use uuid::Uuid;

use super::names::{id_text, parse_id};
use super::{CONCURRENT_REQUESTS, Creation, Requests, malformed};
use crate::objects::PART_BYTES;

const DIRECTORY: &str = "log/segments";

/// The last part of the name of the object with all bytes. It is behind all numbers.
const MERGED: &str = "merged";

/// What the objects of a chain begin with: this, the epoch, the offset, and a random number.
const MAGIC: [u8; 4] = *b"SLG1";
const HEADER_BYTES: usize = 36;

/// How often a read is repeated whose objects were merged meanwhile.
const READ_ATTEMPTS: usize = 3;

/// What is known of a file that is or was appended to.
#[derive(Default)]
pub(super) struct Segment {
    index: Mutex<Option<Arc<Index>>>,
    /// Held while the index may change.
    changing: tokio::sync::Mutex<()>,
    /// Held while the file is merged or deleted.
    merging: tokio::sync::Mutex<()>,
    /// The outcome of an append is unknown: none may follow.
    is_failed: AtomicBool,
    is_deleted: AtomicBool,
}

/// The objects of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// Those of the chain that have bytes, unless they were merged.
    entries: Vec<Entry>,
    /// The number that is created next.
    next: u64,
    length: u64,
    is_merged: bool,
    /// Whether objects of the chain are left that were merged.
    has_rest: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    number: u64,
    offset: u64,
    length: u64,
}

/// Part of a file that one object has.
struct Piece {
    name: String,
    range: std::ops::Range<u64>,
}

/// An object of a file as it is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Listed {
    /// One of the chain, with its number and its size.
    Entry(u64, u64),
    /// The one with all bytes, with its size.
    Merged(u64),
}

impl Segment {
    pub(super) fn found(index: Option<Index>) -> Self {
        Segment { index: Mutex::new(index.map(Arc::new)), ..Segment::default() }
    }
}

impl Index {
    /// The objects of a file, if they are complete: not if it was deleted.
    fn of_listed(listed: &[Listed]) -> Option<Self> {
        Self::default().with_listed(listed)
    }

    /// With the objects of the chain that follow, or the one with all bytes.
    fn with_listed(mut self, listed: &[Listed]) -> Option<Self> {
        if listed.iter().any(|object| matches!(object, Listed::Entry(_, 0))) {
            return None;
        }
        if let Some(Listed::Merged(length)) = listed.iter().find(|object| matches!(object, Listed::Merged(_))) {
            let is_rest = |object: &Listed| matches!(object, Listed::Entry(_, size) if *size > HEADER_BYTES as u64);
            let has_rest = listed.iter().any(is_rest);
            return Some(Index { length: *length, is_merged: true, has_rest, ..Index::default() });
        }
        for object in listed {
            let Listed::Entry(number, size) = *object else { continue };
            if number < self.next {
                continue;
            }
            if number > self.next {
                return None;
            }
            self.push(size);
        }
        (self.next > 0 && !self.is_merged).then_some(self)
    }

    /// Adds the next object of the chain.
    fn push(&mut self, size: u64) {
        let length = size.saturating_sub(HEADER_BYTES as u64);
        if length > 0 {
            self.entries.push(Entry { number: self.next, offset: self.length, length });
        }
        self.next += 1;
        self.length += length;
    }

    /// The objects that have a range, which is within the file.
    fn pieces(&self, file: FileId, offset: u64, end: u64) -> Vec<Piece> {
        if offset >= end {
            return Vec::new();
        }
        if self.is_merged {
            return vec![Piece { name: merged_name(file), range: offset..end }];
        }
        let first = self.entries.partition_point(|entry| entry.offset + entry.length <= offset);
        let within = self.entries[first..].iter().take_while(|entry| entry.offset < end);
        within
            .map(|entry| {
                let (from, to) = (offset.max(entry.offset), end.min(entry.offset + entry.length));
                let start = HEADER_BYTES as u64 + from - entry.offset;
                Piece { name: entry_name(file, entry.number), range: start..start + to - from }
            })
            .collect()
    }
}

impl Requests {
    fn segment(&self, file: FileId) -> Arc<Segment> {
        self.segments.lock().entry(file).or_default().clone()
    }

    /// What there is of all files, by one listing. `None`: it was deleted.
    pub(super) async fn all_segments(&self) -> io::Result<HashMap<FileId, Option<Index>>> {
        let mut files: BTreeMap<FileId, Vec<Listed>> = BTreeMap::new();
        for (name, size) in self.list(DIRECTORY, None).await? {
            let Some((file, object)) = parse_name(&name, size) else { continue };
            files.entry(file).or_default().push(object);
        }
        Ok(files.into_iter().map(|(file, listed)| (file, Index::of_listed(&listed))).collect())
    }

    async fn list_segment(&self, file: FileId, after: Option<u64>) -> io::Result<Vec<Listed>> {
        let after = after.map(|number| entry_name(file, number));
        let listed = self.list(&directory(file), after.as_deref()).await?;
        Ok(listed.iter().filter_map(|(name, size)| Some(parse_name(name, *size)?.1)).collect())
    }

    /// Makes appends of earlier epochs to a file impossible; returns its length.
    pub(super) async fn fence(&self, file: FileId) -> io::Result<u64> {
        let segment = self.segment(file);
        let _changing = segment.changing.lock().await;
        let mut index = segment.index.lock().as_deref().cloned().unwrap_or_default();
        loop {
            let fence = self.entry_bytes(index.length, &[]);
            match self.create(&entry_name(file, index.next), fence).await? {
                Creation::Created => {
                    index.push(HEADER_BYTES as u64);
                    let length = index.length;
                    *segment.index.lock() = Some(Arc::new(index));
                    return Ok(length);
                }
                // Of an earlier owner, unless this one was deposed meanwhile.
                Creation::Collided(stored) => {
                    let (epoch, offset) = parse_header(&stored)?;
                    if epoch > self.epoch() {
                        return Err(Deposed.into());
                    }
                    if offset != index.length {
                        return Err(malformed("a segment of the log"));
                    }
                    index.push(stored.len() as u64);
                }
            }
        }
    }

    pub(super) async fn append(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let segment = self.segment(file);
        let _changing = segment.changing.lock().await;
        let index = segment.index.lock().clone().unwrap_or_default();
        if segment.is_failed.load(Ordering::Acquire) {
            return Err(io::Error::other("the outcome of an earlier append is unknown: open the database again"));
        }
        if index.next == 0 && !self.owned.lock().await.as_ref().is_some_and(|owned| owned.names.has(file)) {
            // The next owner fences the files that have names.
            return Err(io::Error::other("an append to a file without a name"));
        }
        if index.is_merged || index.length != offset {
            return Err(io::Error::other(format!("append at {offset}, but the file has {} bytes", index.length)));
        }
        // Until it has succeeded.
        segment.is_failed.store(true, Ordering::Release);
        let entry = self.entry_bytes(offset, bytes);
        match self.create(&entry_name(file, index.next), entry).await? {
            Creation::Created => {}
            // The next owner has deleted the file.
            Creation::Collided(stored) if stored.is_empty() => return Err(Deposed.into()),
            Creation::Collided(stored) => {
                let (epoch, _) = parse_header(&stored)?;
                return Err(match epoch > self.epoch() {
                    true => Deposed.into(),
                    false => io::Error::other("an append of this owner has appeared that it has not made"),
                });
            }
        }
        segment.is_failed.store(false, Ordering::Release);
        let mut index = index;
        Arc::make_mut(&mut index).push((HEADER_BYTES + bytes.len()) as u64);
        *segment.index.lock() = Some(index);
        Ok(())
    }

    /// The bytes of an object of a chain, which no other attempt to create one has.
    fn entry_bytes(&self, offset: u64, bytes: &[u8]) -> Bytes {
        let attempt = Uuid::new_v4();
        let epoch = self.epoch().to_be_bytes();
        [&MAGIC[..], &epoch, &offset.to_be_bytes(), attempt.as_bytes(), bytes].concat().into()
    }

    /// The length of a file, with everything that was appended to it before; none if there is nothing of it.
    pub(super) async fn measure(&self, file: FileId) -> io::Result<Option<u64>> {
        let segment = self.segment(file);
        let _changing = segment.changing.lock().await;
        let known = segment.index.lock().clone().filter(|known| !known.is_merged).unwrap_or_default();
        // The listing includes the last object that is known: it has to be there still, unless the file was merged.
        let listed = self.list_segment(file, known.next.checked_sub(2)).await?;
        let is_continued = known.next == 0
            || listed.iter().any(|object| match object {
                Listed::Entry(number, _) => number + 1 == known.next,
                Listed::Merged(_) => true,
            });
        let index = if is_continued { Index::clone(&known).with_listed(&listed) } else { None };
        let length = index.as_ref().map(|index| index.length);
        *segment.index.lock() = index.map(Arc::new);
        Ok(length)
    }

    pub(super) async fn read_segment(&self, file: FileId, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        let segment = self.segment(file);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let known = segment.index.lock().clone();
            let index = match known.filter(|known| attempts == 1 && offset + length <= known.length) {
                Some(known) => known,
                None => {
                    if attempts > 1 {
                        // What was known may have been merged.
                        let _changing = segment.changing.lock().await;
                        *segment.index.lock() = None;
                    }
                    if self.measure(file).await?.is_none() {
                        return Err(io::Error::new(io::ErrorKind::NotFound, "the bucket has nothing of a file"));
                    }
                    segment.index.lock().clone().unwrap_or_default()
                }
            };
            let pieces = index.pieces(file, offset, (offset + length).min(index.length));
            let pieces = pieces.into_iter().map(|piece| self.read_piece(piece));
            match stream::iter(pieces).buffered(CONCURRENT_REQUESTS).try_collect::<Vec<Bytes>>().await {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < READ_ATTEMPTS => {}
                read => return Ok(read?.concat()),
            }
        }
    }

    async fn read_piece(&self, piece: Piece) -> io::Result<Bytes> {
        let length = piece.range.end - piece.range.start;
        let read = self.bucket.store.get_range(&self.bucket.path(&piece.name), piece.range).await;
        let bytes = read.map_err(|error| self.failed("read", &piece.name, error))?;
        match bytes.len() as u64 == length {
            true => Ok(bytes),
            false => Err(malformed("a segment of the log")),
        }
    }

    pub(super) async fn delete_segment(&self, file: FileId) -> io::Result<()> {
        let segment = self.segment(file);
        segment.is_deleted.store(true, Ordering::Release);
        let _merging = segment.merging.lock().await;
        let _changing = segment.changing.lock().await;
        let (mut fences, mut others) = (Vec::new(), Vec::new());
        for object in self.list_segment(file, None).await? {
            match object {
                Listed::Entry(_, 0) => {}
                Listed::Entry(number, size) if size <= HEADER_BYTES as u64 => fences.push(entry_name(file, number)),
                Listed::Entry(number, _) => others.push(entry_name(file, number)),
                Listed::Merged(_) => others.push(merged_name(file)),
            }
        }
        for fence in fences {
            let put = self.bucket.store.put(&self.bucket.path(&fence), Bytes::new().into()).await;
            put.map_err(|error| self.failed("write", &fence, error))?;
        }
        self.delete_listed(others.into_iter()).await?;
        self.segments.lock().remove(&file);
        Ok(())
    }

    /// The objects of all files, without fences.
    pub(super) async fn segment_objects(&self) -> io::Result<Vec<String>> {
        let listed = self.list(DIRECTORY, None).await?.into_iter();
        let has_bytes = |(name, size): &(String, u64)| match parse_name(name, *size) {
            Some((_, Listed::Entry(_, size))) => size > HEADER_BYTES as u64,
            object => object.is_some(),
        };
        Ok(listed.filter(has_bytes).map(|(name, _)| name).collect())
    }

    /// Puts all bytes of a finished file into one object, in the background. If that does not succeed, the next owner
    /// does it.
    pub(super) fn start_merge(self: &Arc<Self>, file: &StoredFile) {
        let known = self.segment(file.id).index.lock().clone();
        if known.is_some_and(|index| !index.has_rest && (index.is_merged || index.entries.len() <= 1)) {
            return;
        }
        let (this, file) = (self.clone(), file.clone());
        self.unfinished_merge_count.fetch_add(1, Ordering::AcqRel);
        self.bucket.runtime.spawn(async move {
            if let Err(error) = this.merge(&file).await {
                tracing::warn!(target: "stemma::database", "merging {} in {}: {error}", file.name, this.bucket.url);
            }
            this.unfinished_merge_count.fetch_sub(1, Ordering::AcqRel);
        });
    }

    async fn merge(&self, file: &StoredFile) -> io::Result<()> {
        let _turn = self.merging.acquire().await.map_err(io::Error::other)?;
        let segment = self.segment(file.id);
        let _merging = segment.merging.lock().await;
        let is_ended = || segment.is_deleted.load(Ordering::Acquire) || self.is_closed.load(Ordering::Acquire);
        if is_ended() {
            return Ok(());
        }
        let mut listed = self.list_segment(file.id, None).await?;
        if !listed.contains(&Listed::Merged(file.bytes)) {
            let index = Index::of_listed(&listed).filter(|index| index.length == file.bytes && !index.is_merged);
            let index = index.ok_or_else(|| malformed("a finished segment"))?;
            if index.entries.len() <= 1 || !self.put_merged(file, &index, &is_ended).await? {
                return Ok(());
            }
            listed.push(Listed::Merged(file.bytes));
        }
        {
            let _changing = segment.changing.lock().await;
            *segment.index.lock() = Index::of_listed(&listed).map(Arc::new);
        }
        let entries = listed.into_iter().filter_map(|object| match object {
            Listed::Entry(number, size) if size > HEADER_BYTES as u64 => Some(entry_name(file.id, number)),
            _ => None,
        });
        self.delete_listed(entries).await
    }

    /// Stores the object with all bytes. Returns false if that was ended.
    async fn put_merged(&self, file: &StoredFile, index: &Index, is_ended: &impl Fn() -> bool) -> io::Result<bool> {
        let name = merged_name(file.id);
        let (path, failed) = (self.bucket.path(&name), |error: StoreError| self.failed("write", &name, error));
        let entries = index.entries.clone().into_iter().map(|entry| self.read_entry(file.id, entry));
        let mut entries = stream::iter(entries).buffered(CONCURRENT_REQUESTS);
        let mut upload: Option<Box<dyn MultipartUpload>> = None;
        let mut part = Vec::new();
        while let Some(bytes) = entries.next().await {
            part.extend_from_slice(&bytes?);
            while part.len() > PART_BYTES {
                if is_ended() {
                    if let Some(mut upload) = upload {
                        upload.abort().await.ok();
                    }
                    return Ok(false);
                }
                let rest = part.split_off(PART_BYTES);
                let full = std::mem::replace(&mut part, rest);
                if upload.is_none() {
                    upload = Some(self.bucket.store.put_multipart(&path).await.map_err(failed)?);
                }
                if let Some(upload) = &mut upload {
                    upload.put_part(full.into()).await.map_err(failed)?;
                }
            }
        }
        if is_ended() {
            return Ok(false);
        }
        match upload {
            None => drop(self.bucket.store.put(&path, part.into()).await.map_err(failed)?),
            Some(mut upload) => {
                upload.put_part(part.into()).await.map_err(failed)?;
                upload.complete().await.map_err(failed)?;
            }
        }
        // The objects of the chain are deleted next.
        let stored = self.bucket.store.head(&path).await.map_err(|error| self.failed("verify", &name, error))?;
        match stored.size == file.bytes {
            true => Ok(true),
            false => Err(io::Error::other(self.bucket.lost(&name))),
        }
    }

    /// The bytes of an object of a chain, without its header.
    async fn read_entry(&self, file: FileId, entry: Entry) -> io::Result<Bytes> {
        let name = entry_name(file, entry.number);
        let read = self.bucket.read_if_any(&name).await.map_err(|error| self.failed("read", &name, error))?;
        let bytes = read.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name} was deleted")))?;
        let (_, offset) = parse_header(&bytes)?;
        let bytes = bytes.slice(HEADER_BYTES..);
        match offset == entry.offset && bytes.len() as u64 == entry.length {
            true => Ok(bytes),
            false => Err(malformed("a segment of the log")),
        }
    }
}

fn directory(file: FileId) -> String {
    format!("{DIRECTORY}/{}", id_text(file))
}

fn entry_name(file: FileId, number: u64) -> String {
    format!("{}/{number:010}", directory(file))
}

fn merged_name(file: FileId) -> String {
    format!("{}/{MERGED}", directory(file))
}

/// The file that an object belongs to, and what it is of it.
fn parse_name(name: &str, size: u64) -> Option<(FileId, Listed)> {
    let (file, object) = name.strip_prefix(DIRECTORY)?.strip_prefix('/')?.split_once('/')?;
    let object = match object {
        MERGED => Listed::Merged(size),
        number => Listed::Entry(number.parse().ok()?, size),
    };
    Some((parse_id(file).ok()?, object))
}

/// The epoch and the offset of an object of a chain.
fn parse_header(bytes: &[u8]) -> io::Result<(u64, u64)> {
    let number = |at: usize| bytes[at..at + 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    match bytes.len() >= HEADER_BYTES && bytes.starts_with(&MAGIC) {
        true => Ok((number(4), number(12))),
        false => Err(malformed("a segment of the log")),
    }
}
