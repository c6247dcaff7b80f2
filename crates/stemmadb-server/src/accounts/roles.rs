//! Roles with statements: what users with a role may do in databases of which they are no members.
//!
//! A statement names a database, patterns of documents or keys, and actions. Statements only allow: what none allows,
//! and `_security` does not either, is refused. An API token with roles of its own is scoped by their statements.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use stemmadb::Value;

use super::token::only_reads;
use crate::auth::{Restriction, Route, User};
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::http::Parameters;
use crate::settings::SettingStore;

/// The kind of their records in the catalog.
const KIND: &str = "role";
const NAME_BYTES_MAX: usize = 64;
const ROLES_MAX: usize = 10_000;
const STATEMENTS_MAX: usize = 1_000;
/// All databases but the system's.
const EVERY_DATABASE: &str = "*";

/// What a role allows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Role {
    statements: Vec<Statement>,
}

/// Allows actions on a database, or on some documents or keys of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    /// A name, or `*`.
    database: String,
    /// Patterns of ids, with levels separated by `/`: `orders/+`, `orders/#`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    documents: Option<Vec<String>>,
    /// Patterns of keys, which begin with the namespace: `carts/#`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keys: Option<Vec<String>>,
    actions: Vec<Action>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Read,
    Write,
}

/// What the statements of a user allow on a route.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Grant {
    /// The route, for the whole database.
    Whole,
    /// The route, for some documents.
    Documents(Restriction),
}

/// All roles with statements, by name.
#[derive(Default)]
pub(crate) struct Roles(RwLock<BTreeMap<String, Arc<Role>>>);

impl Role {
    /// Parses a request's body.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(crate) fn parse(body: Value) -> Result<Self> {
        let role: Role =
            body.deserialize_into().map_err(|error| Failure::bad_request(format!("this is no role: {error}")))?;
        let refuse = |reason: &'static str| Err(Failure::bad_request(reason));
        if role.statements.len() > STATEMENTS_MAX {
            return refuse("a role has at most 1,000 statements");
        }
        for statement in &role.statements {
            let patterns = statement.documents.iter().chain(&statement.keys).flatten();
            if statement.actions.is_empty() || statement.database.is_empty() {
                return refuse("a statement needs a `database` and `actions`: \"read\", \"write\"");
            }
            if patterns
                .clone()
                .any(|pattern| pattern.is_empty() || pattern.split('/').rev().skip(1).any(|level| level == "#"))
            {
                return refuse("a pattern has levels separated by `/`, and `#` only at its end");
            }
            Restriction::to_documents(statement.documents.as_deref().unwrap_or_default(), &User::default())?;
        }
        Ok(role)
    }
}

impl Roles {
    /// Loads the roles of the catalog. Blocks.
    pub(crate) fn load(directory: &Directory) -> Result<Self> {
        let roles = directory.records(KIND)?.into_iter();
        let roles = roles.map(|(name, value)| Ok((name, Arc::new(value.deserialize_into::<Role>()?))));
        roles.collect::<Result<_>>().map(|roles| Roles(RwLock::new(roles)))
    }

    /// Reads what other servers of the cluster have changed. Blocks.
    pub(super) fn reload(&self, directory: &Directory) -> Result<()> {
        // A change of this server holds the lock from before it is stored.
        let mut roles = self.0.write();
        *roles = Self::load(directory)?.0.into_inner();
        Ok(())
    }

    /// Stores a role, in place of another one of the name. Blocks.
    ///
    /// # Errors
    /// 400 if the name is not valid; 503 if it can't be stored.
    pub(crate) fn put(&self, directory: &Directory, name: &str, role: Role) -> Result<()> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        let is_valid = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_name);
        if !is_valid || name.starts_with('_') {
            let reason = format!("a role's name has 1 to {NAME_BYTES_MAX} letters, digits, `-`, `.` or `_`, not first");
            return Err(Failure::bad_request(reason));
        }
        let mut roles = self.0.write();
        if roles.len() >= ROLES_MAX && !roles.contains_key(name) {
            return Err(Failure::bad_request(format!("There are {ROLES_MAX} roles: delete some first.")));
        }
        let record = serde_json::to_value(&role).map_err(|error| Failure::internal(error.to_string()))?;
        directory.put_record(KIND, name, &record)?;
        roles.insert(name.to_owned(), Arc::new(role));
        Ok(())
    }

    /// Removes a role. Blocks.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) fn remove(&self, directory: &Directory, name: &str) -> Result<()> {
        let mut roles = self.0.write();
        if !roles.contains_key(name) {
            return Err(Failure::missing());
        }
        directory.remove_record(KIND, name)?;
        roles.remove(name);
        Ok(())
    }

    /// All roles by name.
    pub(crate) fn list(&self) -> BTreeMap<String, Role> {
        self.0.read().iter().map(|(name, role)| (name.clone(), (**role).clone())).collect()
    }

    /// What the statements of a user's roles allow on a route of a database; `None`: nothing.
    ///
    /// # Errors
    /// 400 if a pattern is malformed.
    pub(super) fn grant(
        &self,
        user: &User,
        database: &str,
        route: &Route,
        parameters: &Parameters,
    ) -> Result<Option<Grant>> {
        let roles: Vec<Arc<Role>> = {
            let known = self.0.read();
            user.roles.iter().filter_map(|role| known.get(role).cloned()).collect()
        };
        let action = if only_reads(&route.method, route.path) { Action::Read } else { Action::Write };
        let is_of_database = |statement: &&Statement| match statement.database.as_str() {
            EVERY_DATABASE => !database.starts_with('_'),
            name => name == database,
        };
        let statements = roles.iter().flat_map(|role| &role.statements).filter(is_of_database);
        let statements: Vec<&Statement> = statements.filter(|statement| statement.actions.contains(&action)).collect();
        if statements.iter().any(|statement| statement.documents.is_none() && statement.keys.is_none()) {
            return Ok(Some(Grant::Whole));
        }
        if let Some(namespace) = parameters.get("namespace").filter(|_| route.path.starts_with("/{db}/_keys/")) {
            // A list needs all keys of the namespace.
            let key =
                parameters.get("key").map_or_else(|| format!("{namespace}/#"), |key| format!("{namespace}/{key}"));
            let mut patterns = statements.iter().flat_map(|statement| statement.keys.iter().flatten());
            return Ok(patterns.any(|pattern| matches(pattern, &key)).then_some(Grant::Whole));
        }
        let patterns: Vec<String> =
            statements.iter().flat_map(|statement| statement.documents.iter().flatten().cloned()).collect();
        match patterns.is_empty() {
            true => Ok(None),
            false => Restriction::to_documents(&patterns, user).map(|restriction| Some(Grant::Documents(restriction))),
        }
    }
}

/// Whether a pattern matches a key, which may end with `#` itself.
fn matches(pattern: &str, key: &str) -> bool {
    let (mut levels, mut parts) = (pattern.split('/'), key.split('/'));
    loop {
        match (levels.next(), parts.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(part)) if part != "#" => {}
            (Some(level), Some(part)) if level == part => {}
            // `carts/#` matches `carts` as well.
            (Some(_), _) | (None, Some(_)) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Access;

    fn roles(statements: serde_json::Value) -> Roles {
        let role = Role::parse(Value::from_serialize(&serde_json::json!({ "statements": statements })).unwrap());
        Roles(RwLock::new([("r".to_owned(), Arc::new(role.unwrap()))].into()))
    }

    fn granted(
        roles: &Roles,
        method: &'static str,
        path: &'static str,
        parameters: &[(&'static str, &str)],
    ) -> Option<Grant> {
        let route = Route { method: method.parse().unwrap(), path, access: Access::Member };
        let mut given = Parameters::default();
        parameters.iter().for_each(|(name, value)| given.push(name, (*value).to_owned()));
        let user = User { name: Some("ada".to_owned()), roles: vec!["x".to_owned(), "r".to_owned()], how: None };
        roles.grant(&user, "shop", &route, &given).unwrap()
    }

    #[test]
    fn statements_allow_actions_on_databases() {
        let reading = roles(serde_json::json!([{"database": "shop", "actions": ["read"]}]));
        assert_eq!(granted(&reading, "GET", "/{db}/{doc}", &[]), Some(Grant::Whole));
        assert_eq!(granted(&reading, "POST", "/{db}/_find", &[]), Some(Grant::Whole));
        assert_eq!(granted(&reading, "PUT", "/{db}/{doc}", &[]), None);
        assert_eq!(granted(&reading, "POST", "/{db}/_bulk_docs", &[]), None);
        let other = roles(serde_json::json!([{"database": "other", "actions": ["read", "write"]}]));
        assert_eq!(granted(&other, "GET", "/{db}/{doc}", &[]), None);
        let every = roles(serde_json::json!([{"database": "*", "actions": ["write"]}]));
        assert_eq!(granted(&every, "PUT", "/{db}/{doc}", &[]), Some(Grant::Whole));
        assert_eq!(granted(&every, "GET", "/{db}/{doc}", &[]), None);
        let nobody = User { name: Some("eve".to_owned()), roles: Vec::new(), how: None };
        let route = Route { method: hyper::Method::PUT, path: "/{db}/{doc}", access: Access::Member };
        assert_eq!(every.grant(&nobody, "shop", &route, &Parameters::default()).unwrap(), None);
    }

    #[test]
    fn statements_allow_some_documents_and_keys() {
        let some = roles(serde_json::json!([
            {"database": "shop", "documents": ["orders/+", "carts/#", "one"], "actions": ["read"]},
            {"database": "shop", "keys": ["carts/#", "names/+/last"], "actions": ["read"]},
        ]));
        let Some(Grant::Documents(restriction)) = granted(&some, "GET", "/{db}/{doc}", &[]) else { panic!("nothing") };
        let body = "{}".parse().unwrap();
        for (id, is_allowed) in [
            ("orders/1", true),
            ("orders", false),
            ("orders/1/2", false),
            ("carts", true),
            ("carts/a/b", true),
            ("cartsx", false),
            ("one", true),
            ("one/two", false),
            ("ones", false),
            ("_design/one", false),
        ] {
            assert_eq!(restriction.allows_body(id, &body).unwrap(), is_allowed, "{id}");
        }
        let key = |key: &str| {
            let (namespace, key) = key.split_once('/').unwrap();
            granted(&some, "GET", "/{db}/_keys/{namespace}/{key*}", &[("namespace", namespace), ("key", key)]).is_some()
        };
        assert!(key("carts/1") && key("carts/1/2") && key("names/x/last"));
        assert!(!key("names/x/first") && !key("names/last") && !key("other/1"));
        let list =
            |namespace: &str| granted(&some, "GET", "/{db}/_keys/{namespace}", &[("namespace", namespace)]).is_some();
        assert!(list("carts") && !list("names"));
    }

    #[test]
    fn malformed_roles_are_refused() {
        for text in [
            "{}",
            r#"{"statements": [{"database": "a", "actions": []}]}"#,
            r#"{"statements": [{"database": "", "actions": ["read"]}]}"#,
            r#"{"statements": [{"database": "a", "actions": ["steal"]}]}"#,
            r##"{"statements": [{"database": "a", "documents": ["#/a"], "actions": ["read"]}]}"##,
            r#"{"statements": [{"database": "a", "documents": [""], "actions": ["read"]}]}"#,
            r#"{"statements": [{"actions": ["read"]}]}"#,
        ] {
            assert!(Role::parse(text.parse().unwrap()).is_err(), "{text}");
        }
    }
}
