//! Files that are written once: objects of 16 MiB, and a last one with the rest.
//!
//! Each attempt to write a file has objects of its own, whose common name is stored together with the file's name. So
//! requests of a deposed owner, or late ones, change no file that a name leads to.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::ObjectStoreExt;
use stemmadb::log_storage::{FileId, FileState, NameChange};
use uuid::Uuid;

use super::names::{Names, id_text};
use super::{CONCURRENT_REQUESTS, Requests};
use crate::objects::PART_BYTES;

pub(super) const DIRECTORY: &str = "log/contents";

/// What is known of files that are written once.
#[derive(Default)]
pub(super) struct Contents {
    /// Those that have names.
    named: HashMap<FileId, Written>,
    /// Those that are being written.
    unfinished: HashMap<FileId, Unfinished>,
}

/// A file that was written.
#[derive(Clone)]
pub(super) struct Written {
    /// Which of the attempts to write it counts.
    pub(super) writing: String,
    pub(super) bytes: u64,
}

/// A file that is being written.
struct Unfinished {
    writing: String,
    /// Bytes that the store has.
    stored: u64,
    /// Those behind them.
    rest: Vec<u8>,
}

impl Contents {
    /// A file that was written; none if it is not known as a file that is written once.
    pub(super) fn find(&self, file: FileId) -> Option<Written> {
        self.named.get(&file).cloned()
    }

    /// Takes over the names that this owner has stored.
    pub(super) fn replace(&mut self, names: &Names) {
        self.named = names.written().collect();
        self.unfinished
            .retain(|file, unfinished| self.named.get(file).is_none_or(|known| known.writing != unfinished.writing));
    }

    /// Takes over the names that the owner has stored. A reader may still have files open that they don't have.
    pub(super) fn extend(&mut self, names: &Names) {
        self.named.extend(names.written());
    }
}

impl Requests {
    pub(super) async fn write_content(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut unfinished = match self.contents.lock().unfinished.remove(&file) {
            _ if offset == 0 => {
                Unfinished { writing: Uuid::new_v4().simple().to_string(), stored: 0, rest: Vec::new() }
            }
            Some(known) if known.stored + known.rest.len() as u64 == offset => known,
            _ => return Err(io::Error::other(format!("a part at offset {offset} does not follow the one before"))),
        };
        unfinished.rest.extend_from_slice(bytes);
        while unfinished.rest.len() >= PART_BYTES {
            let rest = unfinished.rest.split_off(PART_BYTES);
            let part = std::mem::replace(&mut unfinished.rest, rest);
            self.put_part(file, &unfinished.writing, unfinished.stored, part.into()).await?;
            unfinished.stored += PART_BYTES as u64;
        }
        self.contents.lock().unfinished.insert(file, unfinished);
        Ok(())
    }

    /// Stores the rest of the files that get their names and lengths now. Returns which attempts to write them count.
    pub(super) async fn finish_contents(&self, changes: &[NameChange]) -> io::Result<HashMap<FileId, String>> {
        let mut writings = HashMap::new();
        for change in changes {
            let NameChange::Set(file) = change else { continue };
            if file.state != FileState::Whole || file.bytes == 0 {
                continue;
            }
            let part = {
                let contents = self.contents.lock();
                let unfinished = contents.unfinished.get(&file.id);
                // Of one that is written again, the last attempt that was finished counts.
                let finished = unfinished.filter(|known| known.stored + known.rest.len() as u64 == file.bytes);
                finished.map(|known| (known.writing.clone(), known.stored, Bytes::copy_from_slice(&known.rest)))
            };
            let Some((writing, stored, rest)) = part else { continue };
            if !rest.is_empty() {
                self.put_part(file.id, &writing, stored, rest).await?;
            }
            writings.insert(file.id, writing);
        }
        Ok(writings)
    }

    async fn put_part(&self, file: FileId, writing: &str, offset: u64, bytes: Bytes) -> io::Result<()> {
        let name = part_name(file, writing, offset / PART_BYTES as u64);
        let put = self.bucket.store.put(&self.bucket.path(&name), bytes.into()).await;
        put.map(drop).map_err(|error| self.failed("write", &name, error))
    }

    pub(super) async fn read_content(
        &self,
        file: FileId,
        written: &Written,
        offset: u64,
        length: u64,
    ) -> io::Result<Vec<u8>> {
        let (part, end) = (PART_BYTES as u64, written.bytes.min(offset + length));
        if offset >= end {
            return Ok(Vec::new());
        }
        let ranges = (offset / part..end.div_ceil(part)).map(|number| {
            let start = number * part;
            (part_name(file, &written.writing, number), offset.max(start) - start..end.min(start + part) - start)
        });
        let parts = ranges.map(|(name, range)| async move {
            let read = self.bucket.store.get_range(&self.bucket.path(&name), range).await;
            read.map_err(|error| self.failed("read", &name, error))
        });
        let parts: Vec<Bytes> = stream::iter(parts).buffered(CONCURRENT_REQUESTS).try_collect().await?;
        Ok(parts.concat())
    }

    pub(super) async fn delete_content(&self, file: FileId) -> io::Result<()> {
        {
            let mut contents = self.contents.lock();
            contents.named.remove(&file);
            contents.unfinished.remove(&file);
        }
        let listed = self.list(&directory(file), None).await?;
        self.delete_listed(listed.into_iter().map(|(name, _)| name)).await
    }
}

fn directory(file: FileId) -> String {
    format!("{DIRECTORY}/{}", id_text(file))
}

fn part_name(file: FileId, writing: &str, number: u64) -> String {
    format!("{}/{writing}-{number:06}", directory(file))
}
