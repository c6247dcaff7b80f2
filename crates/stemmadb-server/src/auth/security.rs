//! The `_security` object of a database: its members and administrators.

use stemmadb::{Object, Value};

use super::access_rule::{AccessRule, MEMBER};
use super::{ADMIN_ROLE, User};
use crate::error::{Failure, Result};

/// The `_security` object of a database.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Security {
    value: Value,
    /// The access rule of the database.
    pub(super) rule: Option<AccessRule>,
}

impl Default for Security {
    /// As in CouchDB 3, a new database is open to administrators only until its members are named.
    fn default() -> Self {
        let only_admins = || {
            let names = ("names", Value::Array(Vec::new()));
            let roles = ("roles", Value::Array(vec![Value::from(ADMIN_ROLE)]));
            Value::Object([names, roles].into_iter().collect())
        };
        let value = Value::Object([("members", only_admins()), ("admins", only_admins())].into_iter().collect());
        Security { value, rule: None }
    }
}

impl Security {
    /// Parses a `_security` object.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(crate) fn parse(value: Value) -> Result<Self> {
        let Some(object) = value.as_object() else {
            return Err(Failure::bad_request("Request body must be a JSON object"));
        };
        for group in ["admins", "members"] {
            for list in ["names", "roles"] {
                let entries = object.get(group).and_then(|group| group.get(list));
                let are_texts = |entries: &Value| {
                    entries.as_array().is_some_and(|entries| entries.iter().all(|entry| entry.as_str().is_some()))
                };
                if entries.is_some_and(|entries| !are_texts(entries)) {
                    return Err(Failure::bad_request(format!("{group}.{list} must be a JSON list of strings")));
                }
            }
        }
        let rule = object.get(MEMBER).map(AccessRule::parse).transpose()?;
        Ok(Security { value, rule })
    }

    /// The object as it was set.
    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    pub(crate) fn is_admin(&self, user: &User) -> bool {
        user.is_server_admin() || self.names(user, "admins")
    }

    /// Whether `user` may read and write. Everyone may if no member is named.
    pub(crate) fn is_member(&self, user: &User) -> bool {
        let is_open = ["names", "roles"].iter().all(|list| self.list("members", list).is_none_or(<[Value]>::is_empty));
        is_open || self.is_admin(user) || self.names(user, "members")
    }

    fn list(&self, group: &str, list: &str) -> Option<&[Value]> {
        self.value.as_object().and_then(|object: &Object| object.get(group))?.get(list)?.as_array()
    }

    fn names(&self, user: &User, group: &str) -> bool {
        let has = |list: &str, wanted: &str| {
            self.list(group, list).is_some_and(|entries| entries.iter().any(|entry| entry.as_str() == Some(wanted)))
        };
        user.name.as_deref().is_some_and(|name| has("names", name)) || user.roles.iter().any(|role| has("roles", role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: Option<&str>, roles: &[&str]) -> User {
        User { name: name.map(str::to_owned), roles: roles.iter().map(|role| (*role).to_owned()).collect(), how: None }
    }

    #[test]
    fn everyone_is_a_member_if_none_is_named() {
        let open = Security::parse(Value::parse(b"{}").unwrap()).unwrap();
        assert!(open.is_member(&user(None, &[])) && !open.is_admin(&user(None, &[])));
        let named = br#"{"admins": {"names": ["ada"], "roles": []}, "members": {"roles": ["staff"]}}"#;
        let named = Security::parse(Value::parse(named).unwrap()).unwrap();
        assert!(named.is_admin(&user(Some("ada"), &[])) && named.is_member(&user(Some("ada"), &[])));
        assert!(named.is_member(&user(Some("bob"), &["staff"])) && !named.is_admin(&user(Some("bob"), &["staff"])));
        assert!(!named.is_member(&user(Some("eve"), &[])) && !named.is_member(&user(None, &[])));
        assert!(!Security::default().is_member(&user(Some("eve"), &[])));
        assert!(Security::default().is_member(&user(Some("root"), &["_admin"])));
        assert!(Security::parse(Value::parse(br#"{"members": {"names": [1]}}"#).unwrap()).is_err());
    }
}
