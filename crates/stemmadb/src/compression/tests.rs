//! Tests of compression: round trips, and bytes that are malformed.

use proptest::prelude::*;

use super::*;

/// Bodies of one kind, each with something of its own.
fn bodies(count: usize) -> Vec<Vec<u8>> {
    let body = |at: usize| {
        let (city, words) = (at * 7919 % 1000, ["amber", "birch", "cedar", "coral"]);
        format!("kind:payment country:portugal city-{city:03} {} at {}", words[at % 4], at * 104_729 % 99_991)
    };
    (0..count).map(|at| body(at).into_bytes()).collect()
}

fn compressed(compression: Compression, bytes: &[u8]) -> Option<(Method, Vec<u8>)> {
    compress(compression, bytes, None, |result| result.map(|(method, stored)| (method, stored.to_vec())))
}

fn documents_without_dictionary() -> DocumentCompression {
    DocumentCompression::new(100 << 10)
}

fn trained() -> DocumentCompression {
    let documents = documents_without_dictionary();
    documents.set(Compression::Zstd);
    documents.add(documents.train(&bodies(4_000)).expect("the samples have much in common")).unwrap();
    documents
}

#[test]
fn bytes_are_compressed_only_if_they_get_a_tenth_smaller() {
    let repeated = b"0123456789".repeat(30);
    let random: Vec<u8> =
        (0..300_u32).flat_map(|number| blake3::hash(&number.to_be_bytes()).as_bytes()[..4].to_vec()).collect();
    for compression in [Compression::Lz4, Compression::Zstd] {
        let (method, stored) = compressed(compression, &repeated).unwrap();
        assert!(stored.len() * 10 <= repeated.len() * 9);
        assert_eq!(&*decompress(method, &stored, |_| None).unwrap(), &repeated[..]);
        assert_eq!(compressed(compression, &random), None);
        assert_eq!(compressed(compression, b""), None);
    }
    assert_eq!(compressed(Compression::None, &repeated), None);
}

#[test]
fn what_zstd_makes_too_small_is_compressed_by_lz4() {
    let zeros = vec![0; 1 << 20];
    let (method, stored) = compressed(Compression::Zstd, &zeros).unwrap();
    assert_eq!(method, Method::Lz4);
    assert_eq!(&*decompress(method, &stored, |_| None).unwrap(), &zeros[..]);
}

#[test]
fn hostile_lengths_are_refused_without_much_memory() {
    let (method, stored) = compressed(Compression::Lz4, &b"0123456789".repeat(30)).unwrap();
    for length in [0, 1, 299, 301, 10_000, u64::from(u32::MAX), 1 << 40, u64::MAX] {
        for method in [method, Method::Zstd] {
            let mut bytes = Vec::new();
            crate::varint::write(length, &mut bytes);
            bytes.extend_from_slice(&stored[2..]);
            assert!(decompress(method, &bytes, |_| None).is_none(), "{length}");
        }
    }
}

#[test]
fn small_bodies_are_compressed_with_a_dictionary() {
    let documents = trained();
    let mut sums = (0, 0);
    for body in bodies(5_000).split_off(4_000) {
        let stored = documents.store(&body);
        let StoredBody::Compressed(bytes) = &stored else { panic!("{body:?} is not compressed") };
        assert_eq!(bytes[0], Method::ZstdWithDictionary as u8);
        assert_eq!(&*documents.packed(&stored).unwrap(), &body[..]);
        sums = (sums.0 + body.len(), sums.1 + bytes.len());
    }
    assert!(sums.1 * 5 < sums.0 * 3, "{sums:?}");
}

#[test]
fn a_lost_dictionary_is_named() {
    let body = bodies(1).remove(0);
    let stored = trained().store(&body);
    let lost = documents_without_dictionary().packed(&stored).map(|_| ()).unwrap_err();
    assert_eq!(lost.message(), "the body is compressed with dictionary 0, which is lost");
}

#[test]
fn a_dictionary_must_be_better_than_the_one_before() {
    let documents = trained();
    assert!(documents.train(&bodies(4_000)).is_none(), "it would be the same");
    let others: Vec<Vec<u8>> = (0..4_000_u32)
        .map(|at| format!("invoice {} for customer number {} was paid in cash", at * 7919 % 9973, at * 31 % 977).into())
        .collect();
    let second = documents.train(&others).unwrap();
    assert_eq!(second.number(), 1);
    documents.add(second).unwrap();
    assert_eq!(documents.dictionary_count(), 2);
    let random: Vec<[u8; 32]> = (0..4_000_u32).map(|at| *blake3::hash(&at.to_be_bytes()).as_bytes()).collect();
    assert!(documents.train(&random).is_none());
}

#[test]
fn bodies_are_stored_again_as_the_setting_wants_them() {
    let documents = trained();
    let body = b"0123456789".repeat(100);
    let code = |stored: &StoredBody<'_>| match stored {
        StoredBody::Plain(_) => 0,
        StoredBody::Compressed(bytes) => bytes[0],
    };
    let mut stored = StoredBody::Plain(body.clone().into());
    for (setting, expected) in [
        (Compression::Zstd, 3),
        (Compression::Lz4, 1),
        (Compression::None, 0),
        (Compression::Lz4, 1),
        (Compression::Zstd, 3),
    ] {
        documents.set(setting);
        let next = documents.restore(&stored).unwrap();
        assert_eq!(code(&next), expected, "{setting}");
        assert_eq!(&*documents.packed(&next).unwrap(), &body[..]);
        stored = match next {
            StoredBody::Plain(bytes) => StoredBody::Plain(bytes.into_owned().into()),
            StoredBody::Compressed(bytes) => StoredBody::Compressed(bytes.into_owned().into()),
        };
    }
}

#[test]
fn training_is_due_after_enough_small_bodies() {
    let documents = documents_without_dictionary();
    let body = bodies(1).remove(0);
    let store_until_due = |limit: usize| {
        (0..limit).find(|_| {
            documents.store(&body);
            documents.is_training_due()
        })
    };
    assert_eq!(store_until_due(10_000), None, "nothing is compressed");
    documents.set(Compression::Zstd);
    let first = store_until_due(100_000).unwrap();
    assert!(documents.train(&[b""]).is_none());
    assert!(!documents.is_training_due());
    let second = store_until_due(1_000_000).unwrap();
    assert!((7 * first..9 * first).contains(&second), "{first} {second}");
}

proptest! {
    #[test]
    fn round_trips(parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..20), 0..60_usize), 0..20)) {
        let bytes: Vec<u8> = parts.iter().flat_map(|(part, count)| part.repeat(*count)).collect();
        let documents = trained_once();
        for compression in Compression::ALL {
            if let Some((method, stored)) = compressed(compression, &bytes) {
                prop_assert_eq!(&*decompress(method, &stored, |_| None).unwrap(), &bytes[..]);
            }
        }
        let stored = documents.store(&bytes);
        let packed = documents.packed(&stored).unwrap();
        prop_assert_eq!(&*packed, &bytes[..]);
    }

    #[test]
    fn malformed_bytes_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        at in 0..100_usize,
        bit in 0..8,
    ) {
        let documents = trained_once();
        for code in 0..5 {
            let hostile = [&[code][..], &bytes].concat();
            documents.decompress(&hostile).map(|_| ()).ok();
        }
        let body = bodies(at + 1).remove(at);
        let StoredBody::Compressed(stored) = documents.store(&body) else { return Ok(()) };
        let mut damaged = stored.into_owned();
        let index = at % damaged.len();
        damaged[index] ^= 1_u8 << bit;
        if let Ok(found) = documents.decompress(&damaged) {
            prop_assert!(found.len() <= RATIO_MAX * damaged.len());
        }
    }
}

fn trained_once() -> &'static DocumentCompression {
    static TRAINED: std::sync::OnceLock<DocumentCompression> = std::sync::OnceLock::new();
    TRAINED.get_or_init(trained)
}

#[test]
fn dictionaries_are_restored_by_number() {
    let documents = trained();
    let restored = documents_without_dictionary();
    for dictionary in documents.dictionaries_since(0) {
        restored.add(Dictionary::new(dictionary.number(), dictionary.bytes())).unwrap();
    }
    let body = bodies(1).remove(0);
    assert_eq!(&*restored.packed(&documents.store(&body)).unwrap(), &body[..]);
    assert!(restored.add(Dictionary::new(1_000_000, b"abc")).is_err());
    let garbage = documents_without_dictionary();
    garbage.add(Dictionary::new(0, &[0x37, 0xa4, 0x30, 0xec, 0, 0, 0, 0, 255, 255])).unwrap();
    assert!(garbage.packed(&documents.store(&body)).is_err());
}
