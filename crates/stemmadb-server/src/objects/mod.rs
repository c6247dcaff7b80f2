//! Backups and logs in buckets of S3 and of stores that are compatible with it.
//!
//! An object of up to [`PART_BYTES`] is put by one request, a larger one in parts. A store's answer is not trusted:
//! what was put is asked for before a manifest refers to it, a manifest is read back, and a store that replaces an
//! object although it was told to create it is refused, since two writers could overwrite each other's backups there.

mod bucket;
mod client;
mod log;
mod reader;

use std::io::Read;
use std::path::Path as FilePath;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Error as StoreError, MultipartUpload, ObjectStoreExt};
use parking_lot::Mutex;
use stemmadb::backup::{DirectoryTarget, Target};
use stemmadb::{Error, Result};

use bucket::{Bucket, SCHEME, environment};
pub use log::ObjectLog;
use reader::ObjectReader;

/// The size of a part of a large object. A store takes up to 10,000 parts: objects of 160 GB.
const PART_BYTES: usize = 16 << 20;

/// Opens a place for backups: a bucket for `s3://bucket/prefix`, otherwise a directory. A directory is created if it is
/// opened for writing.
///
/// # Errors
/// `Invalid` if the URL or a setting of the store is not valid; those of [`DirectoryTarget`].
pub fn backup_target(place: &FilePath, writes: bool) -> Result<Arc<dyn Target>> {
    Ok(match place.to_str().filter(|text| text.starts_with(SCHEME)) {
        Some(url) => Arc::new(ObjectTarget::open(url)?),
        None if writes => Arc::new(DirectoryTarget::create(place)?),
        None => Arc::new(DirectoryTarget::open(place)?),
    })
}

/// Backups in a bucket, below a prefix.
pub struct ObjectTarget {
    bucket: Bucket,
    /// What was put since the last flush, with its length.
    unverified: Mutex<Vec<(String, u64)>>,
}

impl ObjectTarget {
    /// The bucket and prefix of `s3://bucket/prefix`, reached as the environment says: `AWS_ENDPOINT_URL`,
    /// `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_CA_BUNDLE` and the other usual variables.
    /// Without keys, the credentials of the machine or container are used. `AWS_TIMEOUT` is how long the store may stay
    /// silent, such as `60s`, the default. Sends no request.
    ///
    /// # Errors
    /// `Invalid` if the URL or a variable is not valid.
    pub fn open(url: &str) -> Result<Self> {
        Self::open_with(url, environment())
    }

    /// Same as [`ObjectTarget::open`], with these variables instead of the environment.
    ///
    /// # Errors
    /// Those of [`ObjectTarget::open`].
    pub fn open_with(url: &str, variables: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        Ok(ObjectTarget { bucket: Bucket::open(url, variables)?, unverified: Mutex::default() })
    }

    /// Puts a large object of which the first part was read.
    fn put_parts(&self, name: &str, first: Vec<u8>, content: &mut dyn Read) -> Result<u64> {
        let failed = |error| self.bucket.failed("write", name, error);
        let mut upload =
            self.bucket.runtime.block_on(self.bucket.store.put_multipart(&self.bucket.path(name))).map_err(failed)?;
        match self.send_parts(name, &mut *upload, first, content) {
            Ok(length) => Ok(length),
            Err(error) => {
                // Parts that stay are no object; a rule of the bucket can remove them.
                self.bucket.runtime.block_on(upload.abort()).ok();
                Err(error)
            }
        }
    }

    fn send_parts(
        &self,
        name: &str,
        upload: &mut dyn MultipartUpload,
        first: Vec<u8>,
        content: &mut dyn Read,
    ) -> Result<u64> {
        let failed = |error| self.bucket.failed("write", name, error);
        let (mut part, mut length) = (first, 0);
        loop {
            length += part.len() as u64;
            let is_last = part.len() < PART_BYTES;
            // The next part is read while this one is sent.
            let sent = self.bucket.runtime.spawn(upload.put_part(part.into()));
            part = if is_last { Vec::new() } else { self.read_part(name, content)? };
            self.bucket.runtime.block_on(sent).map_err(|error| failed(error.into()))?.map_err(failed)?;
            if part.is_empty() {
                break;
            }
        }
        self.bucket.runtime.block_on(upload.complete()).map_err(failed)?;
        Ok(length)
    }

    /// The next bytes of what is put.
    fn read_part(&self, name: &str, content: &mut dyn Read) -> Result<Vec<u8>> {
        let mut part = Vec::new();
        let read = content.take(PART_BYTES as u64).read_to_end(&mut part);
        read.map_err(|error| Error::io(format_args!("read the bytes of {name}"), error))?;
        Ok(part)
    }
}

impl std::fmt::Debug for ObjectTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ObjectTarget").field(&self.bucket.url).finish()
    }
}

impl Target for ObjectTarget {
    fn describe(&self) -> String {
        self.bucket.url.clone()
    }

    /// Excludes nobody, but refuses a store on which two writers could not be told apart.
    fn lock(&self) -> Result<Box<dyn Send>> {
        self.bucket.runtime.block_on(self.bucket.probe())?;
        Ok(Box::new(()))
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let bucket = &self.bucket;
        let created = bucket.runtime.block_on(bucket.create(name, Bytes::copy_from_slice(bytes)));
        // A request whose answer was lost may have been carried out, and then repeated in vain. Only what is stored
        // counts.
        let stored =
            bucket.runtime.block_on(bucket.read_if_any(name)).map_err(|error| bucket.failed("read", name, error));
        match (created, stored) {
            (_, Ok(Some(stored))) if stored == bytes => Ok(true),
            (Ok(()), Ok(_)) => Err(self.bucket.lost(name)),
            (Err(StoreError::AlreadyExists { .. }), Ok(Some(_))) => Ok(false),
            (Err(error), _) => Err(self.bucket.failed("create", name, error)),
            (Ok(()), Err(error)) => Err(error),
        }
    }

    fn put(&self, name: &str, content: &mut dyn Read) -> Result<()> {
        let first = self.read_part(name, content)?;
        let length = match first.len() {
            PART_BYTES => self.put_parts(name, first, content)?,
            length => {
                let put = self.bucket.runtime.block_on(self.bucket.store.put(&self.bucket.path(name), first.into()));
                put.map_err(|error| self.bucket.failed("write", name, error))?;
                length as u64
            }
        };
        self.unverified.lock().push((name.to_owned(), length));
        Ok(())
    }

    /// Asks for everything that was put.
    fn flush(&self) -> Result<()> {
        for (name, length) in std::mem::take(&mut *self.unverified.lock()) {
            match self.bucket.runtime.block_on(self.bucket.store.head(&self.bucket.path(&name))) {
                Ok(stored) if stored.size == length => {}
                Ok(_) | Err(StoreError::NotFound { .. }) => return Err(self.bucket.lost(&name)),
                Err(error) => return Err(self.bucket.failed("verify", &name, error)),
            }
        }
        Ok(())
    }

    fn get(&self, name: &str) -> Result<Box<dyn Read + Send>> {
        let got = self.bucket.runtime.block_on(self.bucket.store.get(&self.bucket.path(name)));
        let got = got.map_err(|error| self.bucket.failed("read", name, error))?;
        Ok(Box::new(ObjectReader::new(got.into_stream(), self.bucket.runtime)))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let (directory, start) = prefix.rsplit_once('/').unwrap_or(("", prefix));
        let directory = if directory.is_empty() { self.bucket.prefix.clone() } else { self.bucket.path(directory) };
        let listed = self.bucket.runtime.block_on(async {
            let mut names = Vec::new();
            if start.is_empty() {
                let mut objects = self.bucket.store.list(Some(&directory));
                while let Some(object) = objects.next().await {
                    names.push(object?.location);
                }
            } else {
                let found = self.bucket.store.list_with_delimiter(Some(&directory)).await?;
                names.extend(found.objects.into_iter().map(|object| object.location));
            }
            Ok(names)
        });
        let listed: Vec<Path> = listed.map_err(|error| match error {
            StoreError::NotFound { .. } => Error::unavailable(format!("there is no bucket for {}", self.bucket.url))
                .with_hint("create it, or check the URL and AWS_ENDPOINT_URL"),
            error => self.bucket.failed("list", prefix, error),
        })?;
        Ok(listed.iter().filter_map(|path| self.bucket.name(path)).filter(|name| name.starts_with(prefix)).collect())
    }

    fn delete(&self, name: &str) -> Result<()> {
        match self.bucket.runtime.block_on(self.bucket.store.delete(&self.bucket.path(name))) {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.bucket.failed("delete", name, error)),
        }
    }
}
