//! A bucket of an object store, below a prefix.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig};
use percent_encoding::percent_decode_str;
use stemmadb::{Error, Result};
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::client::Connector;
use crate::outbound::https_client;

/// The scheme of URLs of buckets.
pub(super) const SCHEME: &str = "s3://";

/// A request that fails is repeated this often; then the caller reports it, and decides.
const RETRIES_MAX: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a response may take to begin, and to continue.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A bucket, below a prefix.
pub(super) struct Bucket {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) url: String,
    /// Precedes the names of all objects.
    pub(super) prefix: Path,
    pub(super) runtime: &'static Runtime,
    /// How long the store may stay silent.
    pub(super) timeout: Duration,
    is_probed: AtomicBool,
}

impl Bucket {
    /// The bucket and prefix of a URL, reached as these variables say. Sends no request.
    ///
    /// # Errors
    /// `Invalid` if the URL or a variable is not valid.
    pub(super) fn open(url: &str, variables: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
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
        let store = store.map_err(|error| Error::invalid(format!("{url} can't be reached: {error}")))?;
        Self::of_store(Arc::new(store), url, prefix, timeout)
    }

    /// A place in any store.
    pub(super) fn of_store(store: Arc<dyn ObjectStore>, url: &str, prefix: Path, timeout: Duration) -> Result<Self> {
        let (url, runtime, is_probed) = (url.to_owned(), runtime()?, AtomicBool::new(false));
        Ok(Bucket { store, url, prefix, runtime, timeout, is_probed })
    }

    pub(super) fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// The name of an object, without the prefix.
    pub(super) fn name(&self, path: &Path) -> Option<String> {
        let parts: Vec<_> = path.prefix_match(&self.prefix)?.map(|part| part.as_ref().to_owned()).collect();
        Some(parts.join("/"))
    }

    pub(super) fn failed(&self, operation: &str, name: &str, error: StoreError) -> Error {
        let message = format!("cannot {operation} {name} in {}: {error}", self.url);
        match error {
            StoreError::NotFound { .. } => Error::not_found(message),
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => Error::unavailable(message)
                .with_hint("check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what the store allows them to do"),
            _ => Error::unavailable(message),
        }
    }

    /// The error for a store that does not have what it answered to have stored.
    pub(super) fn lost(&self, name: &str) -> Error {
        Error::unavailable(format!("{} answered that {name} was stored, but did not store it", self.url))
            .with_hint("the store loses writes: use another one")
    }

    /// Creates an object if there is none of its name.
    pub(super) async fn create(&self, name: &str, bytes: Bytes) -> Result<(), StoreError> {
        let payload = PutPayload::from_bytes(bytes);
        self.store.put_opts(&self.path(name), payload, PutMode::Create.into()).await.map(|_| ())
    }

    /// The bytes of an object, if there is one.
    pub(super) async fn read_if_any(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        let read = async { self.store.get(&self.path(name)).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes an object, if there is one.
    pub(super) async fn delete(&self, name: &str) -> Result<(), StoreError> {
        match self.store.delete(&self.path(name)).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Finds out, once, whether the store keeps what it is given, and whether it creates an object only if there is
    /// none.
    pub(super) async fn probe(&self) -> Result<()> {
        if self.is_probed.load(Ordering::Acquire) {
            return Ok(());
        }
        let name = format!("probe-{}", Uuid::new_v4().simple());
        let first = self.create(&name, Bytes::from_static(b"first")).await;
        first.map_err(|error| self.failed("create", &name, error))?;
        let second = self.create(&name, Bytes::from_static(b"second")).await;
        let found = self.read_if_any(&name).await;
        self.delete(&name).await.map_err(|error| self.failed("delete", &name, error))?;
        match (second, found.map_err(|error| self.failed("read", &name, error))?.as_deref()) {
            (Err(StoreError::AlreadyExists { .. }), Some(b"first")) => self.is_probed.store(true, Ordering::Release),
            (_, None) => return Err(self.lost(&name)),
            (Ok(()) | Err(StoreError::AlreadyExists { .. }), Some(_)) => {
                let what = format!("{} replaces objects that must only be created: it ignores If-None-Match", self.url);
                return Err(Error::invalid(what).with_hint(
                    "two writers could overwrite each other's objects there: use another store, or a newer version",
                ));
            }
            (Err(error), _) => return Err(self.failed("create", &name, error)),
        }
        Ok(())
    }

    /// Runs a future on the runtime of all stores, and waits for it on this thread, whatever this thread is.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.runtime.spawn(async move { sender.send(future.await) });
        receiver.recv().unwrap_or_else(|_| Err(io::Error::other("a request to an object store was given up")))
    }
}

/// The variables of the environment.
pub(super) fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(key, value)| key.into_string().ok().zip(value.into_string().ok()))
}

/// The runtime of all requests to stores: one thread, which the first bucket starts.
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
    use stemmadb::ErrorKind;

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
        let bucket = Bucket::open("s3://backups/library/1", []).unwrap();
        let path = bucket.path("files/0000000001-log");
        assert_eq!(path.as_ref(), "library/1/files/0000000001-log");
        assert_eq!(bucket.name(&path).unwrap(), "files/0000000001-log");
        assert_eq!(bucket.name(&Path::from("library/2/x")), None);
    }

    #[test]
    fn settings_that_are_not_complete_are_reported() {
        let only_id = [("AWS_ACCESS_KEY_ID".to_owned(), "x".to_owned())];
        let error = Bucket::open("s3://backups", only_id).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let ca = [("AWS_CA_BUNDLE".to_owned(), "/no/such/file".to_owned())];
        assert!(Bucket::open("s3://backups", ca).err().unwrap().message().contains("/no/such/file"));
    }
}
