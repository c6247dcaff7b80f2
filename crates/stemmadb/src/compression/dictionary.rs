//! Dictionary: what small documents have in common, so that each is compressed beyond what it repeats by itself.

use std::sync::{Arc, OnceLock};

use zstd::zstd_safe::{CDict, DDict};

use super::codec::{self, ZSTD_LEVEL};
use super::{Compression, Method};

/// The size of a new dictionary in bytes, at most.
const BYTES_MAX: usize = 8 << 10;
/// What a dictionary with entropy tables begins with; four bytes of an id follow.
const MAGIC: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];
/// One of so many samples is not trained with, but measured.
const MEASURED_SHARE: usize = 4;
/// A dictionary is taken if it makes the measured samples smaller by so many percent than what was used before.
const GAIN_PERCENT_MIN: usize = 5;

/// A dictionary, prepared for each direction when it is first used.
pub(crate) struct Dictionary {
    number: u32,
    bytes: Arc<[u8]>,
    encoder: OnceLock<Option<CDict<'static>>>,
    decoder: OnceLock<Option<DDict<'static>>>,
}

impl std::fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dictionary({}, {} bytes)", self.number, self.bytes.len())
    }
}

impl Dictionary {
    pub(crate) fn new(number: u32, bytes: &[u8]) -> Self {
        Dictionary { number, bytes: bytes.into(), encoder: OnceLock::new(), decoder: OnceLock::new() }
    }

    /// Makes a dictionary from samples; none if it would not be better than `current` or none. Costs tens of
    /// milliseconds for a few hundred KiB of samples.
    pub(crate) fn train(number: u32, samples: &[impl AsRef<[u8]>], current: Option<&Dictionary>) -> Option<Self> {
        let (trained, measured): (Vec<_>, Vec<_>) =
            samples.iter().map(AsRef::as_ref).enumerate().partition(|(at, _)| at % MEASURED_SHARE > 0);
        let trained: Vec<&[u8]> = trained.into_iter().map(|(_, sample)| sample).collect();
        let mut bytes = zstd::dict::from_samples(&trained, BYTES_MAX).ok()?;
        // Without an id, which the database does not need, frames don't repeat it.
        if bytes.starts_with(&MAGIC) {
            bytes.get_mut(MAGIC.len()..MAGIC.len() + 4)?.fill(0);
        }
        let dictionary = Dictionary::new(number, &bytes);
        let size = |dictionary: Option<&Dictionary>| {
            let stored = |sample: &[u8]| {
                codec::compress(Compression::Zstd, sample, dictionary, |result: Option<(Method, &[u8])>| {
                    result.map_or(sample.len(), |(_, bytes)| bytes.len())
                })
            };
            measured.iter().map(|(_, sample)| stored(sample)).sum::<usize>()
        };
        let (before, after) = (size(current), size(Some(&dictionary)));
        (after * 100 <= before * (100 - GAIN_PERCENT_MIN)).then_some(dictionary)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// None if the bytes are no dictionary.
    pub(super) fn encoder(&self) -> Option<&CDict<'static>> {
        self.encoder.get_or_init(|| CDict::try_create(&self.bytes, ZSTD_LEVEL)).as_ref()
    }

    /// None if the bytes are no dictionary.
    pub(super) fn decoder(&self) -> Option<&DDict<'static>> {
        self.decoder.get_or_init(|| DDict::try_create(&self.bytes)).as_ref()
    }
}
