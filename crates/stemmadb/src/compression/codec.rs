//! Codec: compresses and decompresses independent byte strings. Each thread keeps the memory that this takes.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::LocalKey;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use zstd::zstd_safe::{CCtx, DCtx, compress_bound};

use super::{Compression, Dictionary, Method, RATIO_MAX, is_smaller};
use crate::varint;

/// What a zstd frame begins with, which is not stored.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The level of zstd.
pub(super) const ZSTD_LEVEL: i32 = 1;

/// Longer buffers are not kept.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// Calls `use_result` with the compressed bytes and their method, or with none if they are not a tenth smaller than
/// `bytes`. `dictionary` is for zstd only.
pub(crate) fn compress<T>(
    compression: Compression,
    bytes: &[u8],
    dictionary: Option<&Dictionary>,
    use_result: impl FnOnce(Option<(Method, &[u8])>) -> T,
) -> T {
    thread_local! {
        static COMPRESSOR: RefCell<Compressor> = RefCell::default();
    }
    with_local(&COMPRESSOR, |compressor| {
        let method = compressor.compress(compression, bytes, dictionary);
        let method = method.filter(|_| is_smaller(compressor.buffer.len(), bytes.len()));
        let used = use_result(method.map(|method| (method, &*compressor.buffer)));
        if compressor.buffer.capacity() > KEPT_BYTES_MAX {
            compressor.buffer = Vec::new();
        }
        used
    })
}

/// Calls `use_value` with the thread's value, or with a new one while the thread ends and its own is gone.
fn with_local<V: Default, T>(local: &'static LocalKey<RefCell<V>>, use_value: impl FnOnce(&mut V) -> T) -> T {
    let mut value = local.try_with(RefCell::take).unwrap_or_default();
    let used = use_value(&mut value);
    local.try_with(|kept| kept.replace(value)).ok();
    used
}

#[derive(Default)]
struct Compressor {
    table: Option<CompressTable>,
    context: Option<CCtx<'static>>,
    /// What is stored.
    buffer: Vec<u8>,
}

impl Compressor {
    fn compress(&mut self, compression: Compression, bytes: &[u8], dictionary: Option<&Dictionary>) -> Option<Method> {
        match compression {
            Compression::None => None,
            Compression::Lz4 => self.compress_lz4(bytes),
            Compression::Zstd => {
                let method = self.compress_zstd(bytes, dictionary)?;
                // Reading refuses a length this much longer than the stored bytes.
                if bytes.len() > RATIO_MAX * self.buffer.len() { self.compress_lz4(bytes) } else { Some(method) }
            }
        }
    }

    fn compress_lz4(&mut self, bytes: &[u8]) -> Option<Method> {
        self.buffer.clear();
        varint::write(bytes.len() as u64, &mut self.buffer);
        let start = self.buffer.len();
        self.buffer.resize(start + get_maximum_output_size(bytes.len()), 0);
        let table = self.table.get_or_insert_with(CompressTable::small);
        let written = compress_into_with_table(bytes, &mut self.buffer[start..], table).ok()?;
        self.buffer.truncate(start + written);
        Some(Method::Lz4)
    }

    fn compress_zstd(&mut self, bytes: &[u8], dictionary: Option<&Dictionary>) -> Option<Method> {
        let dictionary = dictionary.and_then(|dictionary| Some((dictionary.number(), dictionary.encoder()?)));
        self.buffer.clear();
        varint::write(bytes.len() as u64, &mut self.buffer);
        if let Some((number, _)) = dictionary {
            varint::write(u64::from(number), &mut self.buffer);
        }
        let start = self.buffer.len();
        self.buffer.resize(start + compress_bound(bytes.len()), 0);
        let context = match &mut self.context {
            Some(context) => context,
            none => none.insert(CCtx::try_create()?),
        };
        let target = &mut self.buffer[start..];
        let written = match dictionary {
            Some((_, encoder)) => context.compress_using_cdict(target, bytes, encoder),
            None => context.compress(target, bytes, ZSTD_LEVEL),
        };
        let end = start + written.ok()?;
        assert!(self.buffer[start..end].starts_with(&ZSTD_MAGIC), "a zstd frame begins with its magic number");
        self.buffer.copy_within(start + ZSTD_MAGIC.len()..end, start);
        self.buffer.truncate(end - ZSTD_MAGIC.len());
        Some(if dictionary.is_some() { Method::ZstdWithDictionary } else { Method::Zstd })
    }
}

/// Decompresses what [`compress`] returned; `dictionary_of` finds a dictionary by its number. `None` if the bytes are
/// malformed, or the dictionary is missing.
pub(crate) fn decompress(
    method: Method,
    stored: &[u8],
    dictionary_of: impl FnOnce(u32) -> Option<Arc<Dictionary>>,
) -> Option<Arc<[u8]>> {
    let mut input = stored;
    let length = usize::try_from(varint::read(&mut input).ok()?).ok()?;
    if length > RATIO_MAX * stored.len() {
        return None;
    }
    let dictionary = match method {
        Method::ZstdWithDictionary => {
            let number = u32::try_from(varint::read(&mut input).ok()?).ok()?;
            Some(dictionary_of(number)?)
        }
        Method::Lz4 | Method::Zstd => None,
    };
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, length).collect();
    let output = Arc::get_mut(&mut bytes)?;
    let written = match method {
        Method::Lz4 => decompress_into(input, output).ok()?,
        Method::Zstd | Method::ZstdWithDictionary => decompress_zstd(input, output, dictionary.as_deref())?,
    };
    (written == length).then_some(bytes)
}

fn decompress_zstd(input: &[u8], output: &mut [u8], dictionary: Option<&Dictionary>) -> Option<usize> {
    thread_local! {
        static DECOMPRESSOR: RefCell<Decompressor> = RefCell::default();
    }
    with_local(&DECOMPRESSOR, |Decompressor { context, frame }| {
        let context = match context {
            Some(context) => context,
            none => none.insert(DCtx::try_create()?),
        };
        frame.clear();
        frame.extend_from_slice(&ZSTD_MAGIC);
        frame.extend_from_slice(input);
        let written = match dictionary {
            Some(dictionary) => context.decompress_using_ddict(output, frame, dictionary.decoder()?),
            None => context.decompress(output, frame),
        };
        if frame.capacity() > KEPT_BYTES_MAX {
            *frame = Vec::new();
        }
        written.ok()
    })
}

#[derive(Default)]
struct Decompressor {
    context: Option<DCtx<'static>>,
    /// The frame with its magic number.
    frame: Vec<u8>,
}
