//! Compression of the bodies of documents in the log, with the dictionaries of one database.
//!
//! Invariant: a dictionary is in the log before any body that is compressed with it. Dictionaries are never removed:
//! each is worth its own number, and there are few.
//!
//! Concurrency: any thread compresses and decompresses at any time. Dictionaries are added under the writer lock.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use super::codec::{self, compress};
use super::{Compression, Dictionary, Method};
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Error, Result};

/// Shorter bodies are stored as they are.
const BODY_BYTES_MIN: usize = 48;
/// Shorter bodies are compressed with a dictionary only: they don't repeat themselves enough.
const BODY_BYTES_ALONE: usize = 256;
/// Longer bodies are compressed without a dictionary: they repeat themselves enough.
const BODY_BYTES_SMALL: usize = 16 << 10;
/// Each further training is due after this many times as much as the one before.
const TRAINING_FACTOR: u64 = 8;
/// Numbers of dictionaries are below this.
const DICTIONARY_COUNT_MAX: u32 = 64;

/// The body of a document as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoredBody<'a> {
    /// As it is packed.
    Plain(Cow<'a, [u8]>),
    /// The number of the method (1 byte), then what it wrote.
    Compressed(Cow<'a, [u8]>),
}

impl StoredBody<'_> {
    /// The bytes that are stored.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            StoredBody::Plain(bytes) | StoredBody::Compressed(bytes) => bytes,
        }
    }
}

/// How a database compresses documents.
pub(crate) struct DocumentCompression {
    /// The first training is due once the bodies that a dictionary would help have this many bytes.
    training_bytes: u64,
    setting: AtomicU8,
    /// By number. One that is missing was lost with the log records that had it.
    dictionaries: RwLock<Vec<Option<Arc<Dictionary>>>>,
    /// Bytes of small bodies that were stored since the last training.
    untrained_bytes: AtomicU64,
    training_count: AtomicU64,
}

impl DocumentCompression {
    /// Nothing is compressed at first. `training_bytes`: after how many bytes of small bodies the first dictionary is
    /// due.
    pub(crate) fn new(training_bytes: u64) -> Self {
        let (setting, dictionaries, untrained_bytes, training_count) = Default::default();
        DocumentCompression { training_bytes, setting, dictionaries, untrained_bytes, training_count }
    }

    /// The compression of new records.
    pub(crate) fn setting(&self) -> Compression {
        Compression::from_code(self.setting.load(Ordering::Relaxed)).unwrap_or_default()
    }

    pub(crate) fn set(&self, compression: Compression) {
        self.setting.store(compression.code(), Ordering::Relaxed);
    }

    /// A packed body as it is to be stored.
    pub(crate) fn store<'a>(&self, packed: &'a [u8]) -> StoredBody<'a> {
        let compression = self.setting();
        if compression == Compression::None || packed.len() < BODY_BYTES_MIN {
            return StoredBody::Plain(packed.into());
        }
        let is_small = packed.len() <= BODY_BYTES_SMALL;
        let dictionary = if compression == Compression::Zstd && is_small { self.current() } else { None };
        if compression == Compression::Zstd && is_small {
            self.untrained_bytes.fetch_add(packed.len() as u64, Ordering::Relaxed);
        }
        if dictionary.is_none() && packed.len() < BODY_BYTES_ALONE {
            return StoredBody::Plain(packed.into());
        }
        compress(compression, packed, dictionary.as_deref(), |compressed| match compressed {
            Some((method, bytes)) => {
                let mut stored = Vec::with_capacity(1 + bytes.len());
                stored.push(method as u8);
                stored.extend_from_slice(bytes);
                StoredBody::Compressed(stored.into())
            }
            None => StoredBody::Plain(packed.into()),
        })
    }

    /// The packed bytes of a body, if it is compressed.
    ///
    /// # Errors
    /// `Corrupt` if it is malformed, or its dictionary is lost.
    pub(crate) fn decompress(&self, compressed: &[u8]) -> Result<Arc<[u8]>> {
        let (&code, stored) = compressed.split_first().ok_or_else(malformed)?;
        let method = Method::from_code(code).ok_or_else(malformed)?;
        let mut lost = None;
        let dictionary_of = |number| {
            let dictionary = self.dictionary(number);
            lost = dictionary.is_none().then_some(number);
            dictionary
        };
        codec::decompress(method, stored, dictionary_of).ok_or_else(|| match lost {
            Some(number) => Error::corrupt(format!("the body is compressed with dictionary {number}, which is lost")),
            None => malformed(),
        })
    }

    /// The packed bytes of a stored body.
    ///
    /// # Errors
    /// Those of [`DocumentCompression::decompress`].
    pub(crate) fn packed<'b>(&self, body: &'b StoredBody<'_>) -> Result<PackedBytes<'b>> {
        Ok(match body {
            StoredBody::Plain(packed) => PackedBytes::Borrowed(packed),
            StoredBody::Compressed(compressed) => PackedBytes::Shared(self.decompress(compressed)?),
        })
    }

    /// A stored body as the setting wants it: one that is compressed otherwise is compressed again.
    ///
    /// # Errors
    /// Those of [`DocumentCompression::decompress`].
    pub(crate) fn restore<'a>(&self, body: &'a StoredBody<'a>) -> Result<StoredBody<'a>> {
        let compressed = match body {
            StoredBody::Plain(packed) => return Ok(self.store(packed)),
            StoredBody::Compressed(compressed) => compressed,
        };
        let method = compressed.first().and_then(|code| Method::from_code(*code));
        let is_as_set = match self.setting() {
            Compression::None => false,
            Compression::Lz4 => method == Some(Method::Lz4),
            Compression::Zstd => matches!(method, Some(Method::Zstd | Method::ZstdWithDictionary)),
        };
        if is_as_set {
            return Ok(StoredBody::Compressed(Cow::Borrowed(compressed)));
        }
        let packed = self.decompress(compressed)?;
        Ok(match self.store(&packed) {
            StoredBody::Plain(_) => StoredBody::Plain(packed.to_vec().into()),
            StoredBody::Compressed(stored) => StoredBody::Compressed(stored.into_owned().into()),
        })
    }

    /// The dictionary for new bodies.
    fn current(&self) -> Option<Arc<Dictionary>> {
        self.dictionaries.read().last().cloned().flatten()
    }

    fn dictionary(&self, number: u32) -> Option<Arc<Dictionary>> {
        self.dictionaries.read().get(number as usize).cloned().flatten()
    }

    /// Adds a dictionary that is in the log.
    ///
    /// # Errors
    /// `Corrupt` if its number is not that of one.
    pub(crate) fn add(&self, dictionary: Dictionary) -> Result<()> {
        let number = dictionary.number();
        if number >= DICTIONARY_COUNT_MAX {
            return Err(Error::corrupt(format!("a record of the log is of dictionary {number}, which can't be one")));
        }
        let mut dictionaries = self.dictionaries.write();
        let count = dictionaries.len().max(number as usize + 1);
        dictionaries.resize(count, None);
        dictionaries[number as usize].get_or_insert_with(|| Arc::new(dictionary));
        Ok(())
    }

    /// The number of dictionaries.
    pub(crate) fn dictionary_count(&self) -> usize {
        self.dictionaries.read().len()
    }

    /// The dictionaries from number `from` on.
    pub(crate) fn dictionaries_since(&self, from: usize) -> Vec<Arc<Dictionary>> {
        self.dictionaries.read().iter().skip(from).flatten().cloned().collect()
    }

    /// The bytes of all dictionaries.
    pub(crate) fn dictionary_bytes(&self) -> usize {
        self.dictionaries.read().iter().flatten().map(|dictionary| dictionary.bytes().len()).sum()
    }

    /// Whether enough was stored since the last training that another dictionary may be better.
    pub(crate) fn is_training_due(&self) -> bool {
        let count = self.training_count.load(Ordering::Relaxed).max(self.dictionary_count() as u64);
        count < u64::from(DICTIONARY_COUNT_MAX)
            && self.setting() == Compression::Zstd
            && self.untrained_bytes.load(Ordering::Relaxed)
                >= self.training_bytes.saturating_mul(TRAINING_FACTOR.saturating_pow(count as u32))
    }

    /// Whether small bodies are to be compressed and there is no dictionary for them yet.
    pub(crate) fn lacks_dictionary(&self) -> bool {
        self.setting() == Compression::Zstd && self.dictionary_count() == 0
    }

    /// Whether a body is of those that a dictionary helps.
    pub(crate) fn is_sample(packed: &[u8]) -> bool {
        (BODY_BYTES_MIN..=BODY_BYTES_SMALL).contains(&packed.len())
    }

    /// Makes a dictionary from samples that is better than the current one, to be logged and then added; none if there
    /// is nothing to gain.
    pub(crate) fn train(&self, samples: &[impl AsRef<[u8]>]) -> Option<Dictionary> {
        self.untrained_bytes.store(0, Ordering::Relaxed);
        let count = self.dictionary_count();
        let trainings = self.training_count.load(Ordering::Relaxed).max(count as u64) + 1;
        self.training_count.store(trainings, Ordering::Relaxed);
        let number = u32::try_from(count).ok().filter(|number| *number < DICTIONARY_COUNT_MAX)?;
        Dictionary::train(number, samples, self.current().as_deref())
    }
}

/// The packed bytes of a body.
pub(crate) enum PackedBytes<'b> {
    Borrowed(&'b [u8]),
    Shared(Arc<[u8]>),
}

impl std::ops::Deref for PackedBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            PackedBytes::Borrowed(bytes) => bytes,
            PackedBytes::Shared(bytes) => bytes,
        }
    }
}

#[cold]
fn malformed() -> Error {
    Error::corrupt("a compressed body is malformed")
}
