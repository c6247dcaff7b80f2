//! Continuation tokens: a position in a federated result, and a sequence of each member.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use stemmadb::merging::RowKey;
use stemmadb::{Error, Object, Query, Result, Sequence, Value};

use crate::member::OpenMember;

const VERSION: u64 = 1;

/// Where a result continues.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Position {
    /// Of a sorted result: after this row.
    After(RowKey),
    /// Of a result without a sort: in this member, after its token, and that many further rows.
    In { member: usize, token: Option<String>, skip: u64 },
}

/// A decoded token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    /// For each member, the sequence as of which it is read; `None` for the newest state.
    pub(crate) sequences: Vec<Option<Sequence>>,
    pub(crate) position: Position,
}

/// A checksum of what a token belongs to: the members' names, the selector and the sort.
pub(crate) fn query_hash(members: &[OpenMember], query: &Query) -> Result<u32> {
    let names = members.iter().map(|member| Value::from(member.name.as_str())).collect();
    let parts = Value::Array(vec![Value::Array(names), query.selector().to_value()?, query.sort_order().to_value()]);
    Ok(crc32c::crc32c(parts.to_json().as_bytes()))
}

/// Encodes an object as text for URLs.
pub(crate) fn encode(mut object: Object) -> String {
    object.insert("v", VERSION);
    URL_SAFE_NO_PAD.encode(Value::Object(object).to_json())
}

/// Decodes the object of a token.
pub(crate) fn decode(token: &str) -> Result<Value> {
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| damaged())?;
    let value = Value::parse(&bytes).map_err(|_| damaged())?;
    match value.get("v").and_then(Value::as_u64) {
        Some(VERSION) => Ok(value),
        _ => Err(damaged()),
    }
}

pub(crate) fn damaged() -> Error {
    Error::invalid("the token is malformed").with_hint("pass a token as it was returned, to the same federation")
}

fn sequence_value(sequence: &Option<Sequence>) -> Value {
    sequence.map_or(Value::Null, |sequence| sequence.get().into())
}

impl Token {
    pub(crate) fn encode(&self, hash: u32) -> String {
        let mut object = Object::new();
        object.insert("query", u64::from(hash));
        object.insert("sequences", Value::Array(self.sequences.iter().map(sequence_value).collect()));
        match &self.position {
            Position::After(key) => object.insert("after", key.to_value()),
            Position::In { member, token, skip } => {
                object.insert("token", token.as_deref().map_or(Value::Null, Value::from));
                object.insert("skip", *skip);
                object.insert("member", *member as u64)
            }
        };
        encode(object)
    }

    /// Decodes a token and checks that it belongs to the query.
    pub(crate) fn decode(token: &str, hash: u32, member_count: usize) -> Result<Self> {
        let value = decode(token)?;
        if value.get("query").and_then(Value::as_u64) != Some(u64::from(hash)) {
            return Err(Error::invalid("the continuation token belongs to another query or to other members")
                .with_hint("continue with the same members, selector and sort, or start without a token"));
        }
        let sequences = value.get("sequences").and_then(Value::as_array).ok_or_else(damaged)?;
        let sequences: Vec<_> = sequences.iter().map(|sequence| sequence.as_u64().map(Sequence::new)).collect();
        let position = match value.get("after") {
            Some(key) => Position::After(RowKey::from_value(key)?),
            None => {
                let number = |name| value.get(name).and_then(Value::as_u64).ok_or_else(damaged);
                let member = usize::try_from(number("member")?).map_err(|_| damaged())?;
                let token = value.get("token").and_then(Value::as_str).map(str::to_owned);
                Position::In { member, token, skip: number("skip")? }
            }
        };
        let is_member = !matches!(position, Position::In { member, .. } if member >= member_count);
        if sequences.len() != member_count || !is_member {
            return Err(damaged());
        }
        Ok(Token { sequences, position })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_as_written() {
        let key = RowKey::from_value(&r#"["AQI","a"]"#.parse().unwrap()).unwrap();
        for position in [
            Position::After(key),
            Position::In { member: 1, token: Some("t".into()), skip: 0 },
            Position::In { member: 0, token: None, skip: 7 },
        ] {
            let token = Token { sequences: vec![None, Some(Sequence::new(9))], position };
            let text = token.encode(5);
            assert_eq!(Token::decode(&text, 5, 2).unwrap(), token);
            assert!(Token::decode(&text, 6, 2).is_err());
            assert!(Token::decode(&text, 5, 1).is_err());
            assert!(Token::decode(&text[1..], 5, 2).is_err());
        }
    }
}
