//! Test that the examples in docs/format.md match the bytes that the code writes. Run it with `STEMMA_BLESS=1` to
//! update them after an intended change of the format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use crate::compression::{Compression, DocumentCompression};
use crate::index::{Container, DocumentNumber, Histogram, Index, NumberSum, PathNumber, posting_key};
use crate::log::{Blobs, Level, Log, LogOptions, LogPosition, Payload, TimeSource};
use crate::revision::{Revision, Sequence};
use crate::tree::Table;
use crate::value::collate::key;
use crate::value::{PackedValue, Shapes, Value, pack};
use crate::vfs::{MemoryVfs, Vfs};

fn format_document() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/format.md")
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(16) {
        let pairs: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{}", pairs.join(" ")).unwrap();
    }
    text
}

fn value(json: &str) -> Value {
    Value::parse(json.as_bytes()).unwrap()
}

fn packed(json: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack(&value(json), &Shapes::new(), &mut bytes).unwrap();
    bytes
}

/// Segment 1 of a new log with one frame, and the offset of the frame.
fn segment(payload: &Payload) -> (Vec<u8>, usize) {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let database_id = Some(std::array::from_fn(|at| at as u8));
    let now_us = TimeSource::new(|| 1_790_000_000_000_000);
    let options = LogOptions { database_id, now_us, ..LogOptions::default() };
    let log = Log::open(vfs.clone(), options, &mut |_| Ok(())).unwrap();
    let appended = log.append(Sequence::new(7), payload).unwrap();
    log.commit(appended.end, Level::Flushed).unwrap();
    let mut bytes = vec![0; appended.end.offset() as usize];
    vfs.open("log/0000000001.log").unwrap().read_at(&mut bytes, 0).unwrap();
    (bytes, appended.payload.offset() as usize - 32)
}

/// A frame with a record in an encrypted log.
fn encrypted_frame(content: &[u8]) -> Vec<u8> {
    let keyring = Arc::new(crate::cipher::Keyring::example());
    let vfs: Arc<dyn Vfs> = Arc::new(crate::vfs::KeyedVfs::new(Arc::new(MemoryVfs::new()), keyring));
    let now_us = TimeSource::new(|| 1_790_000_000_000_000);
    let options = LogOptions { database_id: Some([0; 16]), now_us, ..LogOptions::default() };
    let log = Log::open(vfs.clone(), options, &mut |_| Ok(())).unwrap();
    let mut payload = log.new_payload();
    payload.add(|bytes| {
        bytes.extend([0, 0, 0, 0, content.len() as u8]);
        bytes.extend_from_slice(content);
    });
    let appended = log.append(Sequence::new(7), &payload).unwrap();
    log.commit(appended.end, Level::Flushed).unwrap();
    let start = appended.payload.offset() - 56;
    let mut bytes = vec![0; (appended.end.offset() - start) as usize];
    vfs.open("log/0000000001.log").unwrap().read_at(&mut bytes, u64::from(start)).unwrap();
    bytes
}

/// The bytes of the blob file of this content.
fn blob(content: &[u8], name: &str) -> Vec<u8> {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let _blob = Arc::new(Blobs::new(vfs.clone())).store_in_file(&mut &*content).unwrap();
    let file = vfs.open(name).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// A record as the first one of a log.
fn placed(payload: &Payload) -> Vec<u8> {
    let (segment, frame) = segment(payload);
    segment[frame + 32..frame + 32 + payload.len()].to_vec()
}

/// The log record of this content.
fn content_record(content: &[u8]) -> Vec<u8> {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let blob = Arc::new(Blobs::new(vfs)).store(&mut &*content).unwrap();
    placed(&crate::layout::example_content_record(blob.digest(), blob.content_to_log().unwrap()))
}

/// The files of a tree after one transaction.
fn tree_files() -> (Vec<u8>, Vec<u8>) {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let tree = crate::engine::directory::open_tree(vfs.clone(), &crate::Options::new()).unwrap();
    let mut transaction = tree.write().unwrap();
    transaction.put(Table::Ids, b"apple", &[1]).unwrap();
    transaction.put(Table::Ids, b"apply", &[2, 3]).unwrap();
    transaction.commit().unwrap();
    let content = |name: &str| {
        let file = vfs.open(name).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    (content("tree/0000000001.run"), content("tree/MANIFEST"))
}

fn examples() -> BTreeMap<&'static str, String> {
    let (segment, frame) = segment(&Payload::from(&b"hello"[..]));
    let record = placed(&crate::layout::example_record(
        &Revision::of_edit(None, false, b"content"),
        &packed(r#"{"year": 1961}"#),
    ));
    let document = r#"{"title": "Solaris", "year": 1961, "tags": ["novel", "space"], "rating": 4.5, "lent": false}"#;
    let keys = ["null", "true", "-1", "0", "1", "1.5", "1961", "\"a\""].map(|json| {
        let mut bytes = Vec::new();
        key::encode(&value(json), &mut bytes);
        bytes
    });
    let containers = [vec![7], vec![1, 5, 9], (100..=20_000).collect::<Vec<u16>>()].map(|members| {
        let mut bytes = Vec::new();
        Container::from_sorted(&members).encode(&mut bytes);
        bytes
    });
    let (mut histogram, mut number_sum) = (Histogram::default(), NumberSum::default());
    for json in ["1", "4"] {
        let mut bytes = Vec::new();
        key::encode(&value(json), &mut bytes);
        number_sum.add(&bytes, 1).unwrap();
    }
    let mut numbers = Vec::new();
    number_sum.encode(&mut numbers);
    for (json, entry_count) in [("1", 1), ("\"a\"", 2), ("\"b\"", 1)] {
        let mut bytes = Vec::new();
        key::encode(&value(json), &mut bytes);
        histogram.add(&bytes, entry_count, 1);
    }
    let mut statistics = Vec::new();
    histogram.encode(&mut statistics);
    let position = LogPosition::new(1, 112);
    let row = crate::layout::example_id_row(DocumentNumber(1), Sequence::new(1), position, 46);
    let (run_file, manifest) = tree_files();
    let container = |members: &[u16]| Container::from_sorted(members);
    let operands = [(&[7][..], &[][..]), (&[], &[7]), (&[1, 5], &[9])].map(|(gained, lost)| {
        let mut bytes = Vec::new();
        crate::layout::posting_operand::encode(&container(gained), &container(lost), &mut bytes);
        bytes
    });
    let lines = |parts: &[Vec<u8>]| parts.iter().map(|bytes| hex(bytes)).collect::<String>();
    BTreeMap::from([
        ("segment-header", hex(&segment[..64])),
        ("frame", hex(&segment[frame..])),
        ("encrypted-frame", hex(&encrypted_frame(b"hello"))),
        ("record", hex(&record)),
        ("content-record", hex(&content_record(b"hello"))),
        ("packed", hex(&packed(document))),
        ("compressed", hex(&compressed(&b"abc".repeat(100)))),
        ("dictionary-record", hex(&placed(&crate::layout::example_dictionary_record(b"hello")))),
        ("blob", hex(&blob(b"hello", "blobs/2c/f24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"))),
        ("keys", lines(&keys)),
        ("posting-key", hex(&posting_key(PathNumber(2), &keys[6], 1))),
        ("declared-keys", lines(&declared_keys())),
        ("containers", lines(&containers)),
        ("run-file", hex(&run_file)),
        ("manifest", hex(&manifest)),
        ("posting-operands", lines(&operands)),
        ("ids-row", hex(&row)),
        ("statistics", hex(&statistics)),
        ("numbers", hex(&numbers)),
        ("view-row", hex(&crate::view::example_row_key("a"))),
        ("view-sum", hex(&crate::view::example_sum(5))),
    ])
}

/// A body that is compressed by LZ4.
fn compressed(packed: &[u8]) -> Vec<u8> {
    let compression = DocumentCompression::new(u64::MAX);
    compression.set(Compression::Lz4);
    compression.store(packed).bytes().to_vec()
}

/// Keys in an index on `status`, then `at` descending.
fn declared_keys() -> Vec<Vec<u8>> {
    let definition = Index::on("status").then_descending("at").define(1).unwrap();
    let documents = [r#"{"status": 1, "at": 0}"#, r#"{"status": 1}"#];
    let key = |text: &&str| {
        let (mut packed, shapes) = (Vec::new(), Shapes::new());
        pack(&value(text), &shapes, &mut packed).unwrap();
        definition.key("", PackedValue::new(&packed, &shapes).unwrap()).unwrap().unwrap().key
    };
    documents.iter().map(key).collect()
}

/// The document with every `hex` block replaced by the bytes that the code writes.
fn with_examples(text: &str, examples: &BTreeMap<&str, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    let mut block_count = 0;
    while let Some(at) = rest.find("```hex ") {
        let name_end = at + rest[at..].find('\n').unwrap() + 1;
        let name = rest[at + "```hex ".len()..name_end].trim();
        let block_end = name_end + rest[name_end..].find("```").unwrap();
        out.push_str(&rest[..name_end]);
        out.push_str(examples.get(name).unwrap_or_else(|| panic!("docs/format.md has an unknown example {name}")));
        rest = &rest[block_end..];
        out.push_str("```");
        rest = &rest["```".len()..];
        block_count += 1;
    }
    assert_eq!(block_count, examples.len(), "docs/format.md contains every example once");
    out + rest
}

#[test]
fn format_document_examples_match_the_code() {
    let text = std::fs::read_to_string(format_document()).unwrap();
    let expected = with_examples(&text, &examples());
    if std::env::var_os("STEMMA_BLESS").is_some() {
        std::fs::write(format_document(), expected).unwrap();
    } else {
        assert_eq!(text, expected, "the format changed: raise its version, or run this test with STEMMA_BLESS=1");
    }
}
