//! Documents of Barrel's benchmark: users of eight to ten values, deterministic, about 150 bytes of JSON.

use std::fmt::Write as _;

use super::corpus::Documents;

/// The workload of users.
#[derive(Clone, Copy)]
pub(crate) struct Users;

const STATUS: [&str; 3] = ["active", "inactive", "pending"];
const PLACES: [(&str, &str); 8] = [
    ("Paris", "France"),
    ("London", "UK"),
    ("Berlin", "Germany"),
    ("Madrid", "Spain"),
    ("Rome", "Italy"),
    ("Amsterdam", "Netherlands"),
    ("Vienna", "Austria"),
    ("Prague", "Czech Republic"),
];
const TAGS: [&str; 3] = [r#""tag1""#, r#""tag1","tag2""#, r#""tag1","tag2","tag3""#];

impl Documents for Users {
    fn write_id(&self, number: u64, id: &mut String) {
        write!(id, "user_{number}").expect("a string takes everything");
    }

    fn write_json(&self, number: u64, json: &mut String) {
        let third = (number % 3) as usize;
        let (city, country) = PLACES[(number % 8) as usize];
        write!(
            json,
            r#"{{"type":"user","name":"User {number}","age":{},"status":"{}","#,
            18 + number % 63,
            STATUS[third],
        )
        .expect("a string takes everything");
        write!(
            json,
            r#""profile":{{"city":"{city}","country":"{country}"}},"tags":[{}],"created_at":{number}}}"#,
            TAGS[third],
        )
        .expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests {
    use super::super::query_spec::{Condition, Predicate, Projection, QuerySpec};
    use super::super::{Corpus, ExpectedRows};
    use super::*;

    #[test]
    fn documents_match_barrel() {
        let corpus = Corpus::generate(Users, 5_000);
        assert_eq!(corpus.json_bytes() / 5_000, 150);
        let count = |path, predicate| {
            let spec = QuerySpec::all(Condition::Field(path, predicate), Projection::Count);
            ExpectedRows::compute(&corpus, &[spec])[0].row_count(None)
        };
        assert_eq!(count("status", Predicate::Equal("active".into())), 1_667);
        assert_eq!(count("profile.city", Predicate::Equal("Paris".into())), 625);
        assert_eq!(count("age", Predicate::Above(50)), 2_370);
        assert_eq!(count("name", Predicate::Prefix("User 1".to_owned())), 1_111);
    }
}
