//! The body of `_bulk_docs`: validates all documents before the first is written, but keeps only a group of them in
//! memory as parsed values.

use std::ops::Range;

use bytes::Bytes;
use stemmadb::{Object, Value};

use super::IncomingDocument;
use crate::error::{Failure, Result};
use crate::http::{JsonExtent, JsonPurpose, read_json, string_length};

/// The most documents of one group. A parsed document takes more memory than its text, so large requests are processed
/// in groups.
const GROUP_COUNT_MAX: usize = 2_000;
/// The most memory of the parsed documents of a group, unless a single document exceeds it.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// The most documents of one request. CouchDB's default is 10,000.
pub(crate) const COUNT_MAX: usize = 50_000;
/// Requests with at least this many bytes of text per document may exceed [`COUNT_MAX`]. The bound exists because each
/// document adds a row to the response.
const BYTES_PER_DOCUMENT_MIN: usize = 100;
/// The most fields of the body. Only two besides `docs` have a meaning.
const MEMBERS_MAX: usize = 100;

/// Checks the number of documents of a request.
///
/// # Errors
/// 413 with CouchDB's error `max_bulk_docs_count_exceeded`.
pub(crate) fn check_count(count: usize, count_max: usize) -> Result<()> {
    if count <= count_max {
        return Ok(());
    }
    let reason = format!("at most {count_max} documents in one request");
    Err(Failure::new(hyper::StatusCode::PAYLOAD_TOO_LARGE, "max_bulk_docs_count_exceeded", reason))
}

/// The body of `_bulk_docs`.
pub(crate) struct BulkRequest {
    text: Bytes,
    /// The fields besides `docs`: Booleans are kept, all other values are replaced by null.
    pub(crate) members: Object,
    /// The first group, already parsed. Most requests have only one.
    first: Vec<IncomingDocument>,
    /// The byte ranges of the further groups, including the commas between documents.
    further: Vec<Range<usize>>,
}

impl BulkRequest {
    /// Parses and validates the whole body. Blocks.
    ///
    /// # Errors
    /// 400 if the body or one of its documents is invalid; 413 if there are too many documents.
    pub(crate) fn parse(text: Bytes) -> Result<Self> {
        let mut reader = BulkReader { text: &text, at: 0 };
        if reader.token() != Some(b'{') {
            read_json(&text, JsonPurpose::Documents)?;
            return Err(Failure::bad_request("Request body must be a JSON object"));
        }
        reader.at += 1;
        let (mut members, mut groups) = (Object::new(), None);
        let mut ends = reader.consume(b'}');
        while !ends {
            let name = reader.name()?;
            let is_new = match name.as_str() {
                "docs" => groups.replace(reader.documents()?).is_none(),
                name => members.insert(name, reader.value()?.0.as_bool()).is_none(),
            };
            if members.len() > MEMBERS_MAX {
                return Err(Failure::bad_request(format!("Request body has more than {MEMBERS_MAX} members")));
            }
            if !is_new {
                return Err(invalid(format!("the field {name:?} is given twice in one object")));
            }
            ends = reader.comma_or_end(b'}')?;
        }
        if reader.token().is_some() {
            return Err(invalid(format!("expected the end of the text after one value at byte {}", reader.at)));
        }
        let Some(DocumentGroups { first, further, .. }) = groups else {
            return Err(Failure::bad_request("POST body must include `docs` parameter."));
        };
        Ok(BulkRequest { text, members, first, further })
    }

    /// Iterates over the groups of documents in order, parsing each group when it is reached.
    pub(crate) fn into_groups(self) -> impl Iterator<Item = Result<Vec<IncomingDocument>>> {
        let BulkRequest { text, first, further, .. } = self;
        let group = move |range: Range<usize>| {
            let mut reader = BulkReader { text: &text[..range.end], at: range.start };
            let mut documents = Vec::new();
            while reader.at < range.end {
                documents.push(IncomingDocument::parse_row(reader.value()?.0)?);
                reader.consume(b',');
            }
            Ok(documents)
        };
        std::iter::once(Ok(first)).chain(further.into_iter().map(group))
    }
}

/// The documents of a body, divided into groups.
#[derive(Default)]
struct DocumentGroups {
    first: Vec<IncomingDocument>,
    further: Vec<Range<usize>>,
    /// The number of documents of the last group, and their memory.
    count: usize,
    memory: usize,
}

impl DocumentGroups {
    fn add(&mut self, document: IncomingDocument, range: Range<usize>, memory: usize) {
        self.count += 1;
        self.memory += memory;
        let is_full = self.count > GROUP_COUNT_MAX || (self.memory > GROUP_BYTES_MAX && self.count > 1);
        match (is_full, self.further.last_mut()) {
            (true, _) => {
                self.further.push(range);
                (self.count, self.memory) = (1, memory);
            }
            (false, Some(group)) => group.end = range.end,
            (false, None) => self.first.push(document),
        }
    }
}

/// Scans the outermost object and the array of documents; the JSON parser reads the values within them.
struct BulkReader<'t> {
    text: &'t [u8],
    at: usize,
}

impl BulkReader<'_> {
    /// Skips whitespace and returns the next byte.
    fn token(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// Consumes `byte` if it is the next token.
    fn consume(&mut self, byte: u8) -> bool {
        let is_next = self.token() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Consumes a comma, or `end`: returns whether it was `end`.
    fn comma_or_end(&mut self, end: u8) -> Result<bool> {
        if self.consume(b',') {
            return Ok(false);
        }
        if self.consume(end) { Ok(true) } else { Err(self.unexpected(&format!("`,` or `{}`", char::from(end)))) }
    }

    /// Reads a field name and the colon after it.
    fn name(&mut self) -> Result<String> {
        if self.token() != Some(b'"') {
            return Err(self.unexpected("a field's name in double quotes"));
        }
        let end = self.at + string_length(&self.text[self.at..]);
        let name = read_json(&self.text[self.at..end], JsonPurpose::Documents)?;
        self.at = end;
        if !self.consume(b':') {
            return Err(self.unexpected("`:` after the field's name"));
        }
        Ok(name.as_str().unwrap_or_default().to_owned())
    }

    /// Reads the next value, and estimates its memory.
    fn value(&mut self) -> Result<(Value, usize)> {
        let JsonExtent { length, memory } = JsonExtent::of_first(&self.text[self.at..]);
        if length == 0 {
            return Err(self.unexpected("a value"));
        }
        let value = read_json(&self.text[self.at..self.at + length], JsonPurpose::Documents)?;
        self.at += length;
        Ok((value, memory))
    }

    /// Reads the array of documents and validates each of them.
    fn documents(&mut self) -> Result<DocumentGroups> {
        let mut groups = DocumentGroups::default();
        if self.token() != Some(b'[') {
            self.value()?;
            return Err(Failure::bad_request("`docs` parameter must be an array."));
        }
        self.at += 1;
        let count_max = COUNT_MAX.max(self.text.len() / BYTES_PER_DOCUMENT_MIN);
        let (mut count, mut ends) = (0, self.consume(b']'));
        while !ends {
            let start = self.at;
            let (value, memory) = self.value()?;
            count += 1;
            check_count(count, count_max)?;
            groups.add(IncomingDocument::parse_row(value)?, start..self.at, memory);
            ends = self.comma_or_end(b']')?;
        }
        Ok(groups)
    }

    fn unexpected(&self, expected: &str) -> Failure {
        invalid(format!("expected {expected} at byte {}", self.at))
    }
}

fn invalid(what: String) -> Failure {
    Failure::bad_request(format!("invalid UTF-8 JSON: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(bulk: BulkRequest) -> Vec<Vec<String>> {
        let id = |document: IncomingDocument| document.id.unwrap_or_default();
        bulk.into_groups().map(|group| group.unwrap().into_iter().map(id).collect()).collect()
    }

    fn parse(text: &str) -> Result<BulkRequest> {
        BulkRequest::parse(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn documents_keep_their_order() {
        for (text, expected) in [
            (r#"{"docs":[]}"#, &[][..]),
            (
                r#" { "docs" : [ {"_id":"a"} , {"_id":"b,]}\"", "c": [{}] } ] , "new_edits" : false } "#,
                &["a", "b,]}\""],
            ),
            (r#"{"new_edits":false,"\u0064ocs":[{"_id":"a"}]}"#, &["a"]),
        ] {
            let bulk = parse(text).unwrap();
            assert_eq!(bulk.members.contains("new_edits"), text.contains("new_edits"), "{text}");
            assert_eq!(ids(bulk), [expected], "{text}");
        }
    }

    #[test]
    fn large_bodies_are_split_into_groups() {
        let list = |unit: &dyn Fn(usize) -> String, count: usize| -> String {
            format!("{{\"docs\":[{}]}}", (0..count).map(unit).collect::<Vec<_>>().join(" , "))
        };
        let small = |n: usize| format!("{{\"_id\":\"{n}\"}}");
        let large = |n: usize| format!("{{\"_id\":\"{n}\",\"x\":\"{}\"}}", "x".repeat(GROUP_BYTES_MAX / 3));
        for (text, count, sizes) in [
            (list(&small, GROUP_COUNT_MAX), GROUP_COUNT_MAX, &[GROUP_COUNT_MAX][..]),
            (list(&small, GROUP_COUNT_MAX * 2 + 1), GROUP_COUNT_MAX * 2 + 1, &[GROUP_COUNT_MAX, GROUP_COUNT_MAX, 1]),
            (list(&large, 7), 7, &[2, 2, 2, 1]),
        ] {
            let groups = ids(parse(&text).unwrap());
            assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
            assert_eq!(groups.concat(), (0..count).map(|n| n.to_string()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn invalid_documents_reject_the_whole_body() {
        let many = "{},".repeat(GROUP_COUNT_MAX + 1);
        for text in [
            "",
            "[]",
            "{",
            r#"{"docs""#,
            r#"{"docs":}"#,
            r#"{"docs":[}"#,
            r#"{"docs":[{},]}"#,
            r#"{"docs":[,{}]}"#,
            r#"{"docs":[{}]},"#,
            r#"{"docs":[{}]}{}"#,
            r#"{"docs":[{}],}"#,
            r#"{"docs":[{}] "x":1}"#,
            r#"{"docs":[{}],"docs":[]}"#,
            r#"{"docs":[{}],"x":1,"\u0078":2}"#,
            r#"{"docs":{}}"#,
            r#"{"x":1}"#,
            r#"{"docs":[{"a":1,"a":2}]}"#,
            r#"{"docs":[{"_x":1}]}"#,
            r#"{"docs":[1]}"#,
            &format!(r#"{{"docs":[{many}{{"_x":1}}]}}"#),
            &format!(r#"{{"docs":[{many}{{]}}"#),
            &format!("{{{}\"docs\":[]}}", (0..=MEMBERS_MAX).map(|n| format!("\"{n}\":0,")).collect::<String>()),
        ] {
            let failure = parse(text).err().unwrap_or_else(|| panic!("{text} is accepted"));
            assert_eq!(failure.status(), hyper::StatusCode::BAD_REQUEST, "{text}: {failure}");
        }
        let count = |count: usize| parse(&format!("{{\"docs\":[{}{{}}]}}", "{},".repeat(count - 1)));
        assert!(count(COUNT_MAX).is_ok());
        assert_eq!(count(COUNT_MAX + 1).err().unwrap().status(), hyper::StatusCode::PAYLOAD_TOO_LARGE);
    }

    /// Parses the whole body with the JSON parser: the reference result.
    fn parse_reference(text: &[u8]) -> Option<Vec<String>> {
        let whole = read_json(text, JsonPurpose::Documents).ok()?;
        let documents = whole.get("docs")?.as_array()?;
        documents
            .iter()
            .map(|document| Some(IncomingDocument::parse_row(document.clone()).ok()?.id.unwrap_or_default()))
            .collect()
    }

    /// A valid body, which the test mutates.
    const VALID_BODY: &[u8] =
        br#" {"x":[1,{"a":"}"}], "docs" :[{"_id":"a","t":"\\\",]"}, {"_id":"b","_deleted":true}],"new_edits":false} "#;

    #[test]
    fn accepts_the_same_bodies_as_the_json_parser() {
        let whole = VALID_BODY;
        let mut accepted = 0;
        for seed in 0..30_000 {
            let mut random = stemmadb::testing::Random::new(seed);
            let mut text = whole.to_vec();
            for _ in 0..=random.below(3) {
                let (at, other) = (random.below(text.len() as u64) as usize, random.below(whole.len() as u64) as usize);
                match random.below(3) {
                    0 => text[at] = whole[other],
                    1 => text.insert(at, whole[other]),
                    _ => drop(text.remove(at)),
                }
            }
            let shown = String::from_utf8_lossy(&text).into_owned();
            let ours = BulkRequest::parse(Bytes::copy_from_slice(&text)).ok().map(|bulk| ids(bulk).concat());
            accepted += usize::from(ours.is_some());
            assert_eq!(ours, parse_reference(&text), "{seed}: {shown}");
        }
        assert!((1_000..29_000).contains(&accepted), "{accepted} bodies were accepted");
    }
}
