//! Errors as values: kind, message and hint of the library's error.

use stemmadb::{Error, ErrorKind, Object, Value};

/// The kinds and their names in frames.
const KINDS: [(ErrorKind, &str); 13] = [
    (ErrorKind::Conflict, "conflict"),
    (ErrorKind::Duplicate, "duplicate"),
    (ErrorKind::NotFound, "not_found"),
    (ErrorKind::Invalid, "invalid"),
    (ErrorKind::Forbidden, "forbidden"),
    (ErrorKind::Unavailable, "unavailable"),
    (ErrorKind::Stopped, "stopped"),
    (ErrorKind::Locked, "locked"),
    (ErrorKind::Corrupt, "corrupt"),
    (ErrorKind::KeyRequired, "key_required"),
    (ErrorKind::WrongKey, "wrong_key"),
    (ErrorKind::Closed, "closed"),
    (ErrorKind::Internal, "internal"),
];

/// The name of a kind in frames.
pub fn kind_name(kind: ErrorKind) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or("internal", |(_, name)| name)
}

/// The kind with this name. `Internal` for a name that this version does not know.
pub fn kind_from_name(name: &str) -> ErrorKind {
    KINDS.iter().find(|(_, known)| *known == name).map_or(ErrorKind::Internal, |(kind, _)| *kind)
}

/// The error as an object: `error`, `message`, and `hint` if there is one.
pub fn error_to_value(error: &Error) -> Value {
    let mut object = Object::new();
    object.insert("error", kind_name(error.kind()));
    object.insert("message", error.message());
    if let Some(hint) = error.hint() {
        object.insert("hint", hint);
    }
    Value::Object(object)
}

/// The error of an object that [`error_to_value`] made; `None` if it is none.
pub fn error_from_value(value: &Value) -> Option<Error> {
    let kind = kind_from_name(value.get("error")?.as_str()?);
    let error = Error::new(kind, value.get("message").and_then(Value::as_str).unwrap_or_default());
    Some(match value.get("hint").and_then(Value::as_str) {
        Some(hint) => error.with_hint(hint),
        None => error,
    })
}

/// Adds to the object of an error that another server of a cluster has the database, and its URL.
pub fn add_owner(error: &mut Value, owner: &str) {
    if let Value::Object(object) = error {
        object.insert("owner", owner);
    }
}

/// The URL of the server that has the database; `None` if the error says nothing about it. The request was not executed
/// then.
pub fn owner_of_error(error: &Value) -> Option<&str> {
    error.get("owner")?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_round_trip() {
        for (kind, _) in KINDS {
            let error = Error::new(kind, "it failed").with_hint("do not");
            let returned = error_from_value(&error_to_value(&error)).unwrap();
            assert_eq!((returned.kind(), returned.message(), returned.hint()), (kind, "it failed", Some("do not")));
        }
        assert_eq!(kind_from_name("of a later version"), ErrorKind::Internal);
        assert!(error_from_value(&Value::Null).is_none());
        let mut elsewhere = error_to_value(&Error::unavailable("it is elsewhere"));
        assert_eq!(owner_of_error(&elsewhere), None);
        add_owner(&mut elsewhere, "http://10.0.0.7:5984");
        assert_eq!(owner_of_error(&elsewhere), Some("http://10.0.0.7:5984"));
    }
}
