//! Backups in buckets of S3 and of stores that are compatible with it.
//!
//! An object of up to [`PART_BYTES`] is put by one request, a larger one in parts. A store's answer is not trusted:
//! what was put is asked for before a manifest refers to it, a manifest is read back, and a store that replaces an
//! object although it was told to create it is refused, since two writers could overwrite each other's backups there.

mod client;
mod reader;

use std::io::{self, Read};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::StreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    BackoffConfig, Error as StoreError, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig,
};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use stemmadb::backup::{DirectoryTarget, Target};
use stemmadb::{Error, ErrorKind, Result};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::outbound::https_client;
use client::Connector;
use reader::ObjectReader;

/// The scheme of URLs of buckets.
const SCHEME: &str = "s3://";

/// The size of a part of a large object. A store takes up to 10,000 parts: objects of 160 GB.
const PART_BYTES: usize = 16 << 20;

/// A request that fails is repeated this often; then the caller reports it, and decides.
const RETRIES_MAX: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a response may take to begin, and to continue.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

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
    store: AmazonS3,
    url: String,
    /// Precedes the names of all objects.
    prefix: Path,
    runtime: &'static Runtime,
    /// What was put since the last flush, with its length.
    unverified: Mutex<Vec<(String, u64)>>,
    is_probed: Mutex<bool>,
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
        Self::open_with(
            url,
            std::env::vars_os().filter_map(|(key, value)| key.into_string().ok().zip(value.into_string().ok())),
        )
    }

    /// Same as [`ObjectTarget::open`], with these variables instead of the environment.
    ///
    /// # Errors
    /// Those of [`ObjectTarget::open`].
    pub fn open_with(url: &str, variables: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let (bucket, prefix) = parse(url)?;
        let (mut builder, mut ca, mut timeout) = (AmazonS3Builder::new(), None, STALL_TIMEOUT);
        for (name, value) in variables {
            if name == "AWS_CA_BUNDLE" {
                ca = Some(PathBuf::from(value));
            } else if name == "AWS_TIMEOUT" {
                timeout = parse_timeout(&value)?;
            } else if name.starts_with("AWS_")
                && let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>()
                && key != AmazonS3ConfigKey::Bucket
            {
                builder = builder.with_config(key, value);
            }
        }
        let backoff = BackoffConfig { max_backoff: Duration::from_secs(5), ..BackoffConfig::default() };
        let retry = RetryConfig { backoff, max_retries: RETRIES_MAX, retry_timeout: RETRY_TIMEOUT };
        let client = https_client(ca.as_deref()).map_err(|failure| Error::invalid(failure.reason().to_owned()))?;
        let store = builder
            .with_bucket_name(bucket)
            // Some stores answer 200 to a request that deletes many objects, and delete none.
            .with_disable_bulk_delete(true)
            .with_retry(retry)
            .with_http_connector(Connector::new(client, timeout))
            .build();
        Ok(ObjectTarget {
            store: store.map_err(|error| Error::invalid(format!("{url} can't be reached: {error}")))?,
            url: url.to_owned(),
            prefix,
            runtime: runtime()?,
            unverified: Mutex::default(),
            is_probed: Mutex::new(false),
        })
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// The name of an object, without the prefix.
    fn name(&self, path: &Path) -> Option<String> {
        let parts: Vec<_> = path.prefix_match(&self.prefix)?.map(|part| part.as_ref().to_owned()).collect();
        Some(parts.join("/"))
    }

    fn failed(&self, operation: &str, name: &str, error: StoreError) -> Error {
        let message = format!("cannot {operation} {name} in {}: {error}", self.url);
        match error {
            StoreError::NotFound { .. } => Error::not_found(message),
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => Error::unavailable(message)
                .with_hint("check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what the store allows them to do"),
            _ => Error::unavailable(message),
        }
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let (path, payload) = (self.path(name), PutPayload::from(bytes.to_vec()));
        self.runtime.block_on(self.store.put_opts(&path, payload, PutMode::Create.into())).map(|_| ())
    }

    /// The bytes of a small object, if there is one.
    fn read_if_any(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        match self.get(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(mut reader) => {
                let read = reader.read_to_end(&mut bytes);
                read.map_err(|error| Error::unavailable(format!("cannot read {name} in {}: {error}", self.url)))?;
                Ok(Some(bytes))
            }
        }
    }

    /// Finds out, once, whether the store keeps what it is given, and whether it creates an object only if there is
    /// none.
    fn probe(&self) -> Result<()> {
        let mut is_probed = self.is_probed.lock();
        if *is_probed {
            return Ok(());
        }
        let name = format!("probe-{}", Uuid::new_v4().simple());
        self.create(&name, b"first").map_err(|error| self.failed("create", &name, error))?;
        let second = self.create(&name, b"second");
        let found = self.read_if_any(&name);
        self.delete(&name)?;
        match (second, found?.as_deref()) {
            (Err(StoreError::AlreadyExists { .. }), Some(b"first")) => *is_probed = true,
            (_, None) => return Err(self.lost(&name)),
            (Ok(()) | Err(StoreError::AlreadyExists { .. }), Some(_)) => {
                let what = format!("{} replaces objects that must only be created: it ignores If-None-Match", self.url);
                return Err(Error::invalid(what).with_hint(
                    "two writers could overwrite each other's backups there: use another store, or a newer version",
                ));
            }
            (Err(error), _) => return Err(self.failed("create", &name, error)),
        }
        Ok(())
    }

    fn lost(&self, name: &str) -> Error {
        Error::unavailable(format!("{} answered that {name} was stored, but did not store it", self.url))
            .with_hint("the store loses writes: make backups elsewhere")
    }

    /// Puts a large object of which the first part was read.
    fn put_parts(&self, name: &str, first: Vec<u8>, content: &mut dyn Read) -> Result<u64> {
        let failed = |error| self.failed("write", name, error);
        let mut upload = self.runtime.block_on(self.store.put_multipart(&self.path(name))).map_err(failed)?;
        match self.send_parts(name, &mut *upload, first, content) {
            Ok(length) => Ok(length),
            Err(error) => {
                // Parts that stay are no object; a rule of the bucket can remove them.
                self.runtime.block_on(upload.abort()).ok();
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
        let failed = |error| self.failed("write", name, error);
        let (mut part, mut length) = (first, 0);
        loop {
            length += part.len() as u64;
            let is_last = part.len() < PART_BYTES;
            // The next part is read while this one is sent.
            let sent = self.runtime.spawn(upload.put_part(part.into()));
            part = if is_last { Vec::new() } else { self.read_part(name, content)? };
            self.runtime.block_on(sent).map_err(|error| failed(error.into()))?.map_err(failed)?;
            if part.is_empty() {
                break;
            }
        }
        self.runtime.block_on(upload.complete()).map_err(failed)?;
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
        f.debug_tuple("ObjectTarget").field(&self.url).finish()
    }
}

impl Target for ObjectTarget {
    fn describe(&self) -> String {
        self.url.clone()
    }

    /// Excludes nobody, but refuses a store on which two writers could not be told apart.
    fn lock(&self) -> Result<Box<dyn Send>> {
        self.probe()?;
        Ok(Box::new(()))
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let created = self.create(name, bytes);
        // A request whose answer was lost may have been carried out, and then repeated in vain. Only what is stored
        // counts.
        let stored = self.read_if_any(name);
        match (created, stored) {
            (_, Ok(Some(stored))) if stored == bytes => Ok(true),
            (Ok(()), Ok(_)) => Err(self.lost(name)),
            (Err(StoreError::AlreadyExists { .. }), Ok(Some(_))) => Ok(false),
            (Err(error), _) => Err(self.failed("create", name, error)),
            (Ok(()), Err(error)) => Err(error),
        }
    }

    fn put(&self, name: &str, content: &mut dyn Read) -> Result<()> {
        let first = self.read_part(name, content)?;
        let length = match first.len() {
            PART_BYTES => self.put_parts(name, first, content)?,
            length => {
                let put = self.runtime.block_on(self.store.put(&self.path(name), first.into()));
                put.map_err(|error| self.failed("write", name, error))?;
                length as u64
            }
        };
        self.unverified.lock().push((name.to_owned(), length));
        Ok(())
    }

    /// Asks for everything that was put.
    fn flush(&self) -> Result<()> {
        for (name, length) in std::mem::take(&mut *self.unverified.lock()) {
            match self.runtime.block_on(self.store.head(&self.path(&name))) {
                Ok(stored) if stored.size == length => {}
                Ok(_) | Err(StoreError::NotFound { .. }) => return Err(self.lost(&name)),
                Err(error) => return Err(self.failed("verify", &name, error)),
            }
        }
        Ok(())
    }

    fn get(&self, name: &str) -> Result<Box<dyn Read + Send>> {
        let got = self.runtime.block_on(self.store.get(&self.path(name)));
        let got = got.map_err(|error| self.failed("read", name, error))?;
        Ok(Box::new(ObjectReader::new(got.into_stream(), self.runtime)))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let (directory, start) = prefix.rsplit_once('/').unwrap_or(("", prefix));
        let directory = if directory.is_empty() { self.prefix.clone() } else { self.path(directory) };
        let listed = self.runtime.block_on(async {
            let mut names = Vec::new();
            if start.is_empty() {
                let mut objects = self.store.list(Some(&directory));
                while let Some(object) = objects.next().await {
                    names.push(object?.location);
                }
            } else {
                let found = self.store.list_with_delimiter(Some(&directory)).await?;
                names.extend(found.objects.into_iter().map(|object| object.location));
            }
            Ok(names)
        });
        let listed: Vec<Path> = listed.map_err(|error| match error {
            StoreError::NotFound { .. } => Error::unavailable(format!("there is no bucket for {}", self.url))
                .with_hint("create it, or check the URL and AWS_ENDPOINT_URL"),
            error => self.failed("list", prefix, error),
        })?;
        Ok(listed.iter().filter_map(|path| self.name(path)).filter(|name| name.starts_with(prefix)).collect())
    }

    fn delete(&self, name: &str) -> Result<()> {
        match self.runtime.block_on(self.store.delete(&self.path(name))) {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("delete", name, error)),
        }
    }
}

/// The runtime of all requests to stores: one thread, which the first target starts.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<io::Result<Runtime>> = OnceLock::new();
    let started = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("stemma-objects").enable_all().build()
    });
    started.as_ref().map_err(|error| Error::no_thread(io::Error::new(error.kind(), error.to_string())))
}

/// A time such as `60s` or `500ms`.
fn parse_timeout(text: &str) -> Result<Duration> {
    let seconds = |text: &str| text.parse::<u32>().ok().filter(|count| *count > 0).map(u64::from);
    let parsed = match text.strip_suffix("ms") {
        Some(count) => seconds(count).map(Duration::from_millis),
        None => seconds(text.trim_end_matches('s')).map(Duration::from_secs),
    };
    parsed.ok_or_else(|| Error::invalid(format!("AWS_TIMEOUT is {text:?}")).with_hint("write a time, such as 60s"))
}

/// The bucket and the prefix of a URL.
fn parse(url: &str) -> Result<(String, Path)> {
    let invalid = |what: &str| {
        Error::invalid(format!("{url:?} is not the URL of a bucket: {what}")).with_hint("write s3://bucket/prefix")
    };
    let rest = url.strip_prefix(SCHEME).ok_or_else(|| invalid("it does not begin with s3://"))?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() || bucket.contains(['@', ':', '?', '#', '%']) {
        return Err(invalid("the bucket has no valid name"));
    }
    let prefix = percent_decode_str(prefix).decode_utf8().map_err(|_| invalid("the prefix is not UTF-8"))?;
    let prefix = Path::parse(prefix.trim_matches('/')).map_err(|error| invalid(&error.to_string()))?;
    Ok((bucket.to_owned(), prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_buckets_are_parsed() {
        for (url, bucket, prefix) in [
            ("s3://backups", "backups", ""),
            ("s3://backups/", "backups", ""),
            ("s3://backups/library", "backups", "library"),
            ("s3://my.backups/a/b%20c/", "my.backups", "a/b c"),
        ] {
            let (found, path) = parse(url).unwrap();
            assert_eq!((&*found, path.as_ref()), (bucket, prefix), "{url}");
        }
        for url in ["s3://", "s3:///x", "s3://user:secret@backups/x", "s3://a/../b", "http://a/b"] {
            assert_eq!(parse(url).unwrap_err().kind(), ErrorKind::Invalid, "{url}");
        }
    }

    #[test]
    fn names_are_below_the_prefix() {
        let target = ObjectTarget::open_with("s3://backups/library/1", []).unwrap();
        let path = target.path("files/0000000001-log");
        assert_eq!(path.as_ref(), "library/1/files/0000000001-log");
        assert_eq!(target.name(&path).unwrap(), "files/0000000001-log");
        assert_eq!(target.name(&Path::from("library/2/x")), None);
    }

    #[test]
    fn settings_that_are_not_complete_are_reported() {
        let only_id = [("AWS_ACCESS_KEY_ID".to_owned(), "x".to_owned())];
        let error = ObjectTarget::open_with("s3://backups", only_id).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let ca = [("AWS_CA_BUNDLE".to_owned(), "/no/such/file".to_owned())];
        assert!(ObjectTarget::open_with("s3://backups", ca).unwrap_err().message().contains("/no/such/file"));
    }
}
