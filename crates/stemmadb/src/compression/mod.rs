//! Compression: bytes that are stored in fewer bytes, each compressed on its own.
//!
//! ```text
//! compressed     length before compression (varint), number of the dictionary (varint) if the method has one, then
//!                what the method wrote
//! method         1 LZ4 block; 2 zstd frame without its magic number; 3 as 2, with a dictionary
//! ```
//!
//! Bytes are stored compressed only if that takes at most nine tenths of the space.
//!
//! Invariant: the length before compression is at most [`RATIO_MAX`] times the stored bytes, so that damaged or hostile
//! bytes can't demand much memory. What zstd compresses further is compressed by LZ4, which can't exceed that ratio.

mod codec;
mod dictionary;
mod documents;

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

pub(crate) use codec::{compress, decompress};
pub(crate) use dictionary::Dictionary;
pub(crate) use documents::{DocumentCompression, PackedBytes, StoredBody};

/// The most that a length before compression may exceed the stored bytes: that of an LZ4 block.
const RATIO_MAX: usize = 255;

/// How a database compresses what it stores.
///
/// Set it with [`Options::compression`](crate::Options::compression), which has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Nothing is compressed.
    #[default]
    None,
    /// LZ4, which is fast: the tree, and documents that repeat themselves.
    Lz4,
    /// The tree by LZ4, documents by Zstandard: smaller, and slower to write and read. Small documents are compressed
    /// with a dictionary that the database makes of its first documents.
    Zstd,
}

impl Compression {
    pub(crate) const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

    /// Its name: `none`, `lz4` or `zstd`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }

    /// The compression of the tree. Its blocks are read for every uncached lookup, and LZ4 reads them faster than zstd.
    pub(crate) fn of_tree(self) -> Self {
        match self {
            Compression::None => Compression::None,
            Compression::Lz4 | Compression::Zstd => Compression::Lz4,
        }
    }

    /// Its number in stored bytes.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|compression| compression.code() == code)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|compression| compression.name() == name);
        found.ok_or_else(|| {
            Error::invalid(format!("`{name}` is no compression")).with_hint("use `none`, `lz4` or `zstd`")
        })
    }
}

/// How bytes were compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Method {
    /// An LZ4 block.
    Lz4 = 1,
    /// A zstd frame.
    Zstd = 2,
    /// Zstd with a dictionary, whose number follows the length.
    ZstdWithDictionary = 3,
}

impl Method {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Method::Lz4),
            2 => Some(Method::Zstd),
            3 => Some(Method::ZstdWithDictionary),
            _ => None,
        }
    }
}

/// Whether compressed bytes are worth it.
fn is_smaller(compressed: usize, bytes: usize) -> bool {
    compressed * 10 <= bytes * 9
}

#[cfg(test)]
mod tests;
