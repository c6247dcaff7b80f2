//! Term extraction compared with a naive traversal of the value.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::value::{Shapes, Value, arbitrary, pack};

/// Terms and presence by the text of their path.
type NaiveTerms = (BTreeSet<(String, Vec<u8>)>, BTreeSet<(String, Presence)>);

struct Fixture {
    policy: Policy,
    paths: Paths,
    shapes: Shapes,
}

impl Fixture {
    fn new(policy: Policy) -> Self {
        Fixture { policy, paths: Paths::new(), shapes: Shapes::new() }
    }

    fn packed(&self, value: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(value, &self.shapes, &mut bytes).unwrap();
        bytes
    }

    fn terms(&self, value: &Value) -> DocumentTerms {
        let bytes = self.packed(value);
        document_terms(
            &self.policy,
            &DeclaredIndexes::default(),
            &self.paths,
            "x",
            PackedValue::new(&bytes, &self.shapes).unwrap(),
        )
        .unwrap()
    }

    fn json(&self, text: &str) -> DocumentTerms {
        self.terms(&Value::parse(text.as_bytes()).unwrap())
    }

    fn texts(&self, terms: &DocumentTerms) -> NaiveTerms {
        let text = |path| self.paths.text(path).unwrap();
        let presence = terms.presence().iter().map(|(path, presence)| (text(*path), *presence)).collect();
        (terms.terms().map(|term| (text(term.path), term.key.to_vec())).collect(), presence)
    }
}

fn naive(policy: &Policy, value: &Value) -> NaiveTerms {
    let mut found = NaiveTerms::default();
    found.1.insert((String::new(), value.kind().into()));
    walk(policy, value, "", &[], false, &mut found);
    found
}

fn walk(policy: &Policy, value: &Value, at: &str, names: &[&str], within_array: bool, found: &mut NaiveTerms) {
    let is_covered = policy.coverage(names.iter().copied()).covers_self;
    if is_covered && !within_array {
        found.1.insert((at.to_owned(), value.kind().into()));
    }
    match value {
        Value::Array(elements) => {
            elements.iter().for_each(|element| walk(policy, element, &format!("{at}[]"), names, true, found));
        }
        Value::Object(object) => {
            for (name, value) in object.iter() {
                let escaped = name.replace('\\', r"\\").replace('.', r"\.").replace('[', r"\[");
                let dot = if names.is_empty() && !at.ends_with("[]") { "" } else { "." };
                let names = [names, &[name]].concat();
                walk(policy, value, &format!("{at}{dot}{escaped}"), &names, within_array, found);
            }
        }
        scalar if is_covered => {
            let mut bytes = Vec::new();
            match scalar {
                Value::String(text) => drop(key::encode_string_bounded(text, policy.text_bytes_max(), &mut bytes)),
                _ => key::encode(scalar, &mut bytes),
            }
            found.0.insert((at.to_owned(), bytes));
        }
        _ => {}
    }
}

#[test]
fn every_scalar_is_a_term_and_every_node_has_presence() {
    let fixture = Fixture::new(Policy::default());
    let terms = fixture.json(
        r#"{"a": {"b": 1}, "tags": ["x", "y", "x", [true]], "items": [{"p": 2}, {"p": 2.0}], "n": null, "e": []}"#,
    );
    let text = |(path, key): (String, Vec<u8>)| format!("{path}={}", key::decode(&key).unwrap().0);
    let found = fixture.texts(&terms);
    let mut shown: Vec<_> = found.0.into_iter().map(text).collect();
    shown.sort();
    assert_eq!(shown, ["a.b=1", "items[].p=2", "n=null", r#"tags[]="x""#, r#"tags[]="y""#, "tags[][]=true"]);
    let present: Vec<_> = found.1.iter().map(|(path, presence)| format!("{path}:{presence:?}")).collect();
    assert_eq!(present, [":Object", "a:Object", "a.b:Number", "e:Array", "items:Array", "n:Null", "tags:Array"]);
    assert!(!terms.overflow());
}

#[test]
fn excluded_paths_have_no_terms_and_no_numbers() {
    let fixture = Fixture::new(Policy::new(["a.b", "c"], ["c.d"]).unwrap());
    let terms = fixture.json(r#"{"a": {"b": [1], "x": 2}, "c": {"d": {"deep": 1}, "e": 3}, "z": 4}"#);
    let (found, present) = fixture.texts(&terms);
    assert_eq!(found.into_iter().map(|(path, _)| path).collect::<Vec<_>>(), ["a.b[]", "c.e"]);
    let present: Vec<_> = present.into_iter().map(|(path, _)| path).collect();
    assert_eq!(present, ["", "a.b", "c", "c.e"]);
    assert!(fixture.paths.lookup([Step::Field("z")]).is_none(), "an excluded path has no number");
}

#[test]
fn a_document_with_too_many_terms_overflows() {
    let policy = Policy::default().with_document_terms_max(3).unwrap();
    let fixture = Fixture::new(policy);
    assert!(!fixture.json(r#"{"a": [1, 2, 3]}"#).overflow());
    let terms = fixture.json(r#"{"a": [1, 2, 3, 4], "b": 1}"#);
    assert_eq!((terms.overflow(), terms.terms().len()), (true, 3));
    assert_eq!(terms.presence()[..2], [(PathNumber::ROOT, Presence::Overflow), (PathNumber::ROOT, Presence::Object)]);
    assert!(fixture.json(r#"{"a": {}, "b": {}, "c": {}}"#).overflow(), "presence terms count, too");
}

#[test]
fn a_policy_change_invalidates_cached_plans() {
    let mut fixture = Fixture::new(Policy::default());
    assert_eq!(fixture.json(r#"{"a": 1, "b": 2}"#).terms().len(), 2);
    fixture.policy = Policy::new([], ["a"]).unwrap();
    assert_eq!(fixture.json(r#"{"a": 1, "b": 2}"#).terms().len(), 1);
    fixture.policy = Policy::default();
    assert_eq!(fixture.json(r#"{"a": 1, "b": 2}"#).terms().len(), 2);
}

fn policies() -> impl Strategy<Value = Policy> {
    let patterns = || prop::collection::vec("[ab]{1,2}(\\.[ab]{1,2})?", 0..3);
    let drawn = (patterns(), patterns(), 16..40usize).prop_map(|(include, exclude, bytes)| {
        let policy = Policy::new(include.iter().map(String::as_str), exclude.iter().map(String::as_str)).unwrap();
        policy.with_text_bytes_max(bytes).unwrap()
    });
    prop_oneof![Just(Policy::default()), drawn]
}

fn owned(term: Term<'_>) -> (PathNumber, Vec<u8>) {
    (term.path, term.key.to_vec())
}

proptest! {
    #[test]
    fn terms_match_the_naive_traversal(
        policy in policies(),
        documents in prop::collection::vec(arbitrary::document(), 1..4),
    ) {
        let fixture = Fixture::new(policy);
        let mut reused = DocumentTerms::default();
        for document in documents {
            let terms = fixture.terms(&document);
            prop_assert!(terms.terms().is_sorted_by(|a, b| a < b));
            prop_assert!(terms.presence().is_sorted_by(|a, b| a < b));
            prop_assert_eq!(fixture.texts(&terms), naive(&fixture.policy, &document));
            let bytes = fixture.packed(&document);
            let packed = PackedValue::new(&bytes, &fixture.shapes).unwrap();
            reused.collect(&fixture.policy, &DeclaredIndexes::default(), &fixture.paths, "x", packed).unwrap();
            prop_assert!(reused.terms().eq(terms.terms()));
        }
    }

    #[test]
    fn differences_match_set_differences(
        a in arbitrary::document(),
        b in arbitrary::document(),
        shared in arbitrary::value(),
    ) {
        let fixture = Fixture::new(Policy::default());
        let with = |document: &Value| {
            let mut document = document.clone();
            document.as_object_mut().unwrap().insert("shared", shared.clone());
            fixture.terms(&document)
        };
        let (a, b) = (with(&a), with(&b));
        let versions =
            [(Some(&a), Some(&b)), (None, Some(&b)), (Some(&a), None), (Some(&a), Some(&a)), (None, None)];
        for (old, new) in versions {
            let of = |version: Option<&DocumentTerms>| match version {
                Some(terms) => (terms.terms().map(owned).collect(), terms.presence().iter().copied().collect()),
                None => (BTreeSet::new(), BTreeSet::new()),
            };
            let (before, after) = (of(old), of(new));
            let found = difference(old, new);
            prop_assert_eq!(found.removed_terms().map(owned).collect::<BTreeSet<_>>(), &before.0 - &after.0);
            prop_assert_eq!(found.added_terms().map(owned).collect::<BTreeSet<_>>(), &after.0 - &before.0);
            prop_assert_eq!(found.removed_presence().collect::<BTreeSet<_>>(), &before.1 - &after.1);
            prop_assert_eq!(found.added_presence().collect::<BTreeSet<_>>(), &after.1 - &before.1);
        }
    }

    #[test]
    fn damaged_documents_never_panic(document in arbitrary::document(), at: prop::sample::Index, byte: u8) {
        let fixture = Fixture::new(Policy::default());
        let mut bytes = fixture.packed(&document);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(packed) = PackedValue::new(&bytes, &fixture.shapes) {
            let _outcome = document_terms(&fixture.policy, &DeclaredIndexes::default(), &fixture.paths, "x", packed);
        }
    }
}
