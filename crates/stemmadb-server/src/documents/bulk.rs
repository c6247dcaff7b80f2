//! The documents of one request, however many: all of them are looked at before the first is written, and few are in memory at once.

use std::ops::Range;

use bytes::Bytes;
use stemmadb::{Object, Value};

use super::incoming::Incoming;
use crate::error::{Failure, Result};
use crate::http::{JsonExtent, JsonPurpose, read_json, string_length};

/// The documents of one group: what is made of each takes more than its text.
const GROUP_COUNT_MAX: usize = 2_000;
/// What they take once they are parsed, but for a single one that takes more.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// The most documents of one request. CouchDB takes 10,000 unless told.
pub(crate) const COUNT_MAX: usize = 50_000;
/// More are taken where there are so many bytes of text for each: each has a row of the answer.
const BYTES_PER_DOCUMENT_MIN: usize = 100;
/// The most members of the body: two beside `docs` mean something.
const MEMBERS_MAX: usize = 100;

/// Refuses more documents than may come at once.
///
/// # Errors
/// 413, with CouchDB's word.
pub(crate) fn check_count(count: usize, count_max: usize) -> Result<()> {
    if count <= count_max {
        return Ok(());
    }
    let reason = format!("at most {count_max} documents in one request");
    Err(Failure::new(hyper::StatusCode::PAYLOAD_TOO_LARGE, "max_bulk_docs_count_exceeded", reason))
}

/// The body of `_bulk_docs`.
pub(crate) struct Bulk {
    text: Bytes,
    /// Its members, but for `docs`, as far as they are true or false; all others are null.
    pub(crate) members: Object,
    /// The first documents. Most requests have no more.
    first: Vec<Incoming>,
    /// Where in the text the further groups are, each with the commas between its documents.
    further: Vec<Range<usize>>,
}

impl Bulk {
    /// The body that `text` is. Blocks for as long as it takes to look at all of it.
    ///
    /// # Errors
    /// 400 if it is none, or if one of the documents is none; 413 if they are too many.
    pub(crate) fn parse(text: Bytes) -> Result<Self> {
        let mut reader = Reader { text: &text, at: 0 };
        if reader.token() != Some(b'{') {
            read_json(&text, JsonPurpose::Documents)?;
            return Err(Failure::bad_request("Request body must be a JSON object"));
        }
        reader.at += 1;
        let (mut members, mut groups) = (Object::new(), None);
        let mut ends = reader.passes(b'}');
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
            ends = reader.ends(b'}')?;
        }
        if reader.token().is_some() {
            return Err(invalid(format!("expected the end of the text after one value at byte {}", reader.at)));
        }
        let Some(Groups { first, further, .. }) = groups else {
            return Err(Failure::bad_request("POST body must include `docs` parameter."));
        };
        Ok(Bulk { text, members, first, further })
    }

    /// The documents in their order, some at a time.
    pub(crate) fn into_groups(self) -> impl Iterator<Item = Result<Vec<Incoming>>> {
        let Bulk { text, first, further, .. } = self;
        let group = move |range: Range<usize>| {
            let mut reader = Reader { text: &text[..range.end], at: range.start };
            let mut documents = Vec::new();
            while reader.at < range.end {
                documents.push(Incoming::parse(reader.value()?.0)?);
                reader.passes(b',');
            }
            Ok(documents)
        };
        std::iter::once(Ok(first)).chain(further.into_iter().map(group))
    }
}

/// Documents, divided as they are to be written.
#[derive(Default)]
struct Groups {
    first: Vec<Incoming>,
    further: Vec<Range<usize>>,
    /// How many documents the last group has, and what they take.
    count: usize,
    memory: usize,
}

impl Groups {
    fn add(&mut self, document: Incoming, place: Range<usize>, memory: usize) {
        self.count += 1;
        self.memory += memory;
        let is_full = self.count > GROUP_COUNT_MAX || (self.memory > GROUP_BYTES_MAX && self.count > 1);
        match (is_full, self.further.last_mut()) {
            (true, _) => {
                self.further.push(place);
                (self.count, self.memory) = (1, memory);
            }
            (false, Some(group)) => group.end = place.end,
            (false, None) => self.first.push(document),
        }
    }
}

/// Reads the outermost object and the list of documents by hand; what is within them, the parser reads.
struct Reader<'t> {
    text: &'t [u8],
    at: usize,
}

impl Reader<'_> {
    /// The next byte that is not blank.
    fn token(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// Whether `byte` comes next, which is then behind.
    fn passes(&mut self, byte: u8) -> bool {
        let is_next = self.token() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Whether `end` comes next; else a comma does.
    fn ends(&mut self, end: u8) -> Result<bool> {
        if self.passes(b',') {
            return Ok(false);
        }
        if self.passes(end) { Ok(true) } else { Err(self.unexpected(&format!("`,` or `{}`", char::from(end)))) }
    }

    /// A member's name, with the colon behind it.
    fn name(&mut self) -> Result<String> {
        if self.token() != Some(b'"') {
            return Err(self.unexpected("a field's name in double quotes"));
        }
        let end = self.at + string_length(&self.text[self.at..]);
        let name = read_json(&self.text[self.at..end], JsonPurpose::Documents)?;
        self.at = end;
        if !self.passes(b':') {
            return Err(self.unexpected("`:` after the field's name"));
        }
        Ok(name.as_str().unwrap_or_default().to_owned())
    }

    /// The next value, and what it takes.
    fn value(&mut self) -> Result<(Value, usize)> {
        let JsonExtent { length, memory } = JsonExtent::of_first(&self.text[self.at..]);
        if length == 0 {
            return Err(self.unexpected("a value"));
        }
        let value = read_json(&self.text[self.at..self.at + length], JsonPurpose::Documents)?;
        self.at += length;
        Ok((value, memory))
    }

    /// The list of documents, each of which is one.
    fn documents(&mut self) -> Result<Groups> {
        let mut groups = Groups::default();
        if self.token() != Some(b'[') {
            self.value()?;
            return Err(Failure::bad_request("`docs` parameter must be an array."));
        }
        self.at += 1;
        let count_max = COUNT_MAX.max(self.text.len() / BYTES_PER_DOCUMENT_MIN);
        let (mut count, mut ends) = (0, self.passes(b']'));
        while !ends {
            let start = self.at;
            let (value, memory) = self.value()?;
            count += 1;
            check_count(count, count_max)?;
            groups.add(Incoming::parse(value)?, start..self.at, memory);
            ends = self.ends(b']')?;
        }
        Ok(groups)
    }

    fn unexpected(&self, wanted: &str) -> Failure {
        invalid(format!("expected {wanted} at byte {}", self.at))
    }
}

fn invalid(what: String) -> Failure {
    Failure::bad_request(format!("invalid UTF-8 JSON: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(bulk: Bulk) -> Vec<Vec<String>> {
        let id = |document: Incoming| document.id.unwrap_or_default();
        bulk.into_groups().map(|group| group.unwrap().into_iter().map(id).collect()).collect()
    }

    fn parse(text: &str) -> Result<Bulk> {
        Bulk::parse(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn documents_come_in_their_order_whatever_stands_around_them() {
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
    fn many_come_in_groups_and_none_is_left_out() {
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
    fn what_is_wrong_anywhere_is_told_before_anything_is_written() {
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
            let failure = parse(text).err().unwrap_or_else(|| panic!("{text} is taken"));
            assert_eq!(failure.status(), hyper::StatusCode::BAD_REQUEST, "{text}: {failure}");
        }
        let count = |count: usize| parse(&format!("{{\"docs\":[{}{{}}]}}", "{},".repeat(count - 1)));
        assert!(count(COUNT_MAX).is_ok());
        assert_eq!(count(COUNT_MAX + 1).err().unwrap().status(), hyper::StatusCode::PAYLOAD_TOO_LARGE);
    }

    /// What the parser makes of the whole, which this has to agree with.
    fn parsed_at_once(text: &[u8]) -> Option<Vec<String>> {
        let whole = read_json(text, JsonPurpose::Documents).ok()?;
        let documents = whole.get("docs")?.as_array()?;
        documents.iter().map(|document| Some(Incoming::parse(document.clone()).ok()?.id.unwrap_or_default())).collect()
    }

    #[test]
    fn it_takes_what_the_parser_takes() {
        let whole = br#" {"x":[1,{"a":"}"}], "docs" :[{"_id":"a","t":"\\\",]"}, {"_id":"b","_deleted":true}],"new_edits":false} "#;
        let mut taken = 0;
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
            let ours = Bulk::parse(Bytes::copy_from_slice(&text)).ok().map(|bulk| ids(bulk).concat());
            taken += usize::from(ours.is_some());
            assert_eq!(ours, parsed_at_once(&text), "{seed}: {shown}");
        }
        assert!((1_000..29_000).contains(&taken), "{taken} of them were taken");
    }
}
