//! Access rules: which documents of a database a user may read and write.
//!
//! A rule is a selector in the database's `_security` object, in which `{"$user": "name"}` and `{"$user": "roles"}`
//! stand for the user. With a user in place of these, it becomes a [`Restriction`], which is joined with the selector
//! of each query, so that the index answers both at once.

use std::sync::LazyLock;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use stemmadb::{Document, Object, Query, Selector, Value, all_of, any_of, field, not};
use uuid::Uuid;

use super::{Access, Route, Security, User};
use crate::error::{Failure, Result};

/// The member of `_security` with the rule.
pub(super) const MEMBER: &str = "access_rule";
/// The operator that stands for the user.
const USER_OPERATOR: &str = "$user";

/// Routes on which a restriction is applied: method and path. A restricted user may use no other route of a database.
const OBEYING: &[(&str, &str)] = &[
    ("GET", "/{db}"),
    ("POST", "/{db}"),
    ("GET", "/{db}/_security"),
    ("GET", "/{db}/_revs_limit"),
    ("POST", "/{db}/_ensure_full_commit"),
    ("GET", "/{db}/{doc}"),
    ("PUT", "/{db}/{doc}"),
    ("DELETE", "/{db}/{doc}"),
    ("PATCH", "/{db}/{doc}"),
    ("COPY", "/{db}/{doc}"),
    ("GET", "/{db}/{doc}/{file*}"),
    ("PUT", "/{db}/{doc}/{file*}"),
    ("DELETE", "/{db}/{doc}/{file*}"),
    ("GET", "/{db}/_local/{local*}"),
    ("PUT", "/{db}/_local/{local*}"),
    ("DELETE", "/{db}/_local/{local*}"),
    ("GET", "/{db}/_all_docs"),
    ("POST", "/{db}/_all_docs"),
    ("POST", "/{db}/_all_docs/queries"),
    ("POST", "/{db}/_bulk_docs"),
    ("POST", "/{db}/_bulk_get"),
    ("POST", "/{db}/_revs_diff"),
    ("POST", "/{db}/_missing_revs"),
    ("GET", "/{db}/_changes"),
    ("POST", "/{db}/_changes"),
    ("POST", "/{db}/_find"),
    ("POST", "/{db}/_aggregate"),
    ("POST", "/{db}/_transact"),
    ("POST", "/{db}/_function/{function}"),
    ("POST", "/{db}/_update_where"),
    ("POST", "/{db}/_prepare"),
    ("POST", "/{db}/_prepared/{handle}"),
    ("DELETE", "/{db}/_prepared/{handle}"),
    ("GET", "/{db}/_partition/{partition}"),
    ("GET", "/{db}/_partition/{partition}/_all_docs"),
    ("POST", "/{db}/_partition/{partition}/_all_docs"),
    ("POST", "/{db}/_partition/{partition}/_find"),
    ("GET", "/{db}/_partition/{partition}/_design/{ddoc}/_view/{view}"),
    ("POST", "/{db}/_partition/{partition}/_design/{ddoc}/_view/{view}"),
    ("GET", "/{db}/_design/{ddoc}/_view/{view}"),
    ("POST", "/{db}/_design/{ddoc}/_view/{view}"),
    ("POST", "/{db}/_design/{ddoc}/_view/{view}/queries"),
    ("GET", "/{db}/_history/{doc}"),
    ("GET", "/{db}/_watch"),
    ("POST", "/{db}/_watch"),
];

/// The rule of a database.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AccessRule {
    selector: Value,
}

impl AccessRule {
    /// Parses the rule of a `_security` object.
    ///
    /// # Errors
    /// 400 if it is malformed.
    pub(super) fn parse(value: &Value) -> Result<Self> {
        let hint = "`access_rule` must be {\"selector\": {…}}, where {\"$user\": \"name\"} and {\"$user\": \"roles\"} \
            stand for the user";
        let object = value.as_object().ok_or_else(|| Failure::bad_request(hint))?;
        let selector = object.get("selector").filter(|selector| selector.as_object().is_some());
        let selector = selector.filter(|_| object.names().count() == 1).ok_or_else(|| Failure::bad_request(hint))?;
        let rule = AccessRule { selector: selector.clone() };
        // Whether it can be applied does not depend on the user.
        rule.restriction(&User::default())?;
        Ok(rule)
    }

    /// The restriction of a user.
    ///
    /// # Errors
    /// 400 if the selector is malformed.
    fn restriction(&self, user: &User) -> Result<Restriction> {
        let value = substituted(&self.selector, user)?;
        let selector = all_of([Selector::parse(&value)?, not(field("_id").begins_with("_design/"))]);
        Ok(Restriction { selector, value, name: user.name.clone() })
    }
}

/// The value with the user in place of `$user`.
fn substituted(value: &Value, user: &User) -> Result<Value> {
    Ok(match value {
        Value::Object(object) => match object.get(USER_OPERATOR) {
            Some(named) if object.names().count() == 1 => match named.as_str() {
                Some("name") => Value::from(user.name.clone().unwrap_or_else(nobody)),
                Some("roles") => Value::Array(user.roles.iter().map(|role| Value::from(role.as_str())).collect()),
                _ => return Err(Failure::bad_request("`$user` is \"name\" or \"roles\"")),
            },
            Some(_) => return Err(Failure::bad_request("`$user` stands alone in its object")),
            None => {
                let replaced = object.iter().map(|(name, value)| Ok((name.to_owned(), substituted(value, user)?)));
                Value::Object(replaced.collect::<Result<Object>>()?)
            }
        },
        Value::Array(values) => {
            Value::Array(values.iter().map(|value| substituted(value, user)).collect::<Result<_>>()?)
        }
        other => other.clone(),
    })
}

/// A name that no document has: anonymous users have none.
fn nobody() -> String {
    static NOBODY: LazyLock<String> = LazyLock::new(|| format!("nobody {}", Uuid::new_v4().simple()));
    NOBODY.clone()
}

/// The documents that a user may read and write: those that the selector matches.
#[derive(Debug, Clone)]
pub(crate) struct Restriction {
    selector: Selector,
    /// The selector as JSON.
    value: Value,
    /// The user; `None`: anonymous.
    name: Option<String>,
}

impl PartialEq for Restriction {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value && self.name == other.name
    }
}

impl Restriction {
    /// The documents whose ids match one of the patterns: levels separated by `/`, where `+` is any one level, and `#`
    /// at the end the level before it and everything below.
    ///
    /// # Errors
    /// 400 if a pattern is malformed.
    pub(crate) fn to_documents(patterns: &[String], user: &User) -> Result<Self> {
        let alternatives: Vec<Selector> = patterns.iter().map(|pattern| of_pattern(pattern)).collect();
        let selector = all_of([any_of(alternatives), not(field("_id").begins_with("_design/"))]);
        // Reports a malformed selector.
        selector.to_value()?;
        let value = Value::Array(patterns.iter().map(|pattern| Value::from(pattern.as_str())).collect());
        Ok(Restriction { selector, value, name: user.name.clone() })
    }

    /// The documents that a selector matches, which another server made of its rules.
    ///
    /// # Errors
    /// 400 if the selector is malformed.
    pub(crate) fn to_selector(value: &Value, user: &User) -> Result<Self> {
        Ok(Restriction { selector: Selector::parse(value)?, value: value.clone(), name: user.name.clone() })
    }

    /// The documents of both.
    pub(crate) fn and(self, other: Restriction) -> Self {
        let value = Value::Array(vec![self.value, other.value]);
        Restriction { selector: all_of([self.selector, other.selector]), value, name: self.name.or(other.name) }
    }

    /// Matches the documents that the user may read; never design documents.
    pub(crate) fn selector(&self) -> Selector {
        self.selector.clone()
    }

    /// Whether the user may read a revision of a document.
    pub(crate) fn allows(&self, document: &Document) -> Result<bool> {
        self.allows_body(document.id().as_str(), &document.value()?)
    }

    /// Whether the user may read a document with this body.
    pub(crate) fn allows_body(&self, id: &str, body: &Value) -> Result<bool> {
        let mut whole = body.as_object().cloned().unwrap_or_default();
        whole.insert("_id", id);
        Ok(self.selector.matches(&Value::Object(whole))?)
    }
}

/// The document, if a user with this restriction may read it.
pub(crate) fn readable(restriction: Option<&Restriction>, document: Option<Document>) -> Result<Option<Document>> {
    match (&document, restriction) {
        (Some(found), Some(restriction)) if !restriction.allows(found)? => Ok(None),
        _ => Ok(document),
    }
}

/// The query, of the documents that a user with this restriction may read.
pub(crate) fn narrowed(restriction: Option<&Restriction>, query: Query) -> Query {
    match restriction {
        Some(restriction) => query.within(restriction.selector()),
        None => query,
    }
}

/// The documents whose ids match a pattern.
fn of_pattern(pattern: &str) -> Selector {
    let (prefix, has_rest) = match pattern.strip_suffix('#') {
        Some(prefix) => (prefix, true),
        None => (pattern, false),
    };
    let levels: Vec<&str> = prefix.split('/').collect();
    if !levels.contains(&"+") {
        return match (has_rest, prefix.strip_suffix('/')) {
            (false, _) => field("_id").eq(pattern),
            (true, None) => Selector::everything(),
            (true, Some(whole)) => any_of([field("_id").eq(whole), field("_id").begins_with(prefix)]),
        };
    }
    let level = |level: &&str| match *level {
        "+" => "[^/]+".to_owned(),
        level => level.chars().map(escaped).collect(),
    };
    let path = levels.iter().filter(|level| !level.is_empty() || !has_rest).map(level).collect::<Vec<_>>().join("/");
    field("_id").matches_regex(format!("^{path}{}$", if has_rest { "(/.*)?" } else { "" }))
}

/// A character in a regular expression that stands for itself.
fn escaped(character: char) -> String {
    if character.is_alphanumeric() { character.to_string() } else { format!("\\x{{{:x}}}", u32::from(character)) }
}

impl Restriction {
    /// The id under which a local document of the user is stored: others can't read it. Replicators keep their
    /// checkpoints in local documents.
    pub(crate) fn local_id(&self, id: &str) -> String {
        let name = self.name.as_deref().unwrap_or_default();
        let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
        format!("_local/user/{name}/{}", id.strip_prefix("_local/").unwrap_or(id))
    }
}

impl Security {
    /// Whether the database has an access rule.
    pub(crate) fn has_rule(&self) -> bool {
        self.rule.is_some()
    }

    /// The restriction of a user; none if the database has no rule, or the user is an administrator of it.
    ///
    /// # Errors
    /// 400 if the rule is malformed.
    pub(crate) fn restriction(&self, user: &User) -> Result<Option<Restriction>> {
        match &self.rule {
            Some(rule) if !self.is_admin(user) => rule.restriction(user).map(Some),
            _ => Ok(None),
        }
    }

    /// The names of the fields that the rule reads, which deletions keep.
    pub(crate) fn rule_fields(&self) -> Vec<&str> {
        let mut fields = Vec::new();
        if let Some(rule) = &self.rule {
            collect_fields(&rule.selector, &mut fields);
        }
        fields.retain(|field| !field.starts_with('_'));
        fields
    }
}

/// Collects the first segments of the paths in a selector.
fn collect_fields<'a>(selector: &'a Value, fields: &mut Vec<&'a str>) {
    for (name, value) in selector.as_object().into_iter().flatten() {
        match (name.strip_prefix('$'), value) {
            (None, _) => fields.push(name.split(['.', '[']).next().unwrap_or(name)),
            (Some(_), Value::Array(parts)) => parts.iter().for_each(|part| collect_fields(part, fields)),
            (Some(_), part) => collect_fields(part, fields),
        }
    }
}

/// Checks that a restricted user may use a route.
///
/// # Errors
/// 403 if the route does not apply restrictions.
pub(crate) fn check_restricted_route(route: &Route) -> Result<()> {
    let obeys = OBEYING.iter().any(|(method, path)| route.method == *method && route.path == *path);
    match obeys || route.access != Access::Member {
        true => Ok(()),
        false => Err(refused(&format!("{} {}", route.method, route.path))),
    }
}

/// The error for what can't be answered from the documents that a user may read.
pub(crate) fn refused(what: &str) -> Failure {
    let instead =
        "use documents, queries, changes, live queries or transactions, or ask an administrator of the database";
    Failure::forbidden(format!(
        "An access rule limits you to some documents, and {what} has no form for them: {instead}."
    ))
}

/// The error for a write that the rule does not allow.
pub(crate) fn write_refused() -> Failure {
    Failure::forbidden(
        "The access rule of this database does not let you read this document, before or after the write.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: Option<&str>, roles: &[&str]) -> User {
        User { name: name.map(str::to_owned), roles: roles.iter().map(|role| (*role).to_owned()).collect(), how: None }
    }

    fn rule(selector: &str) -> Result<AccessRule> {
        AccessRule::parse(&format!("{{\"selector\": {selector}}}").parse().unwrap())
    }

    fn allows(rule: &AccessRule, user: &User, body: &str) -> bool {
        rule.restriction(user).unwrap().allows_body("x", &body.parse().unwrap()).unwrap()
    }

    #[test]
    fn rule_is_applied_to_the_user() {
        let own = rule(r#"{"owner": {"$user": "name"}}"#).unwrap();
        assert!(allows(&own, &user(Some("ada"), &[]), r#"{"owner": "ada"}"#));
        for body in [r#"{"owner": "bob"}"#, "{}", r#"{"owner": null}"#, r#"{"owner": ["ada"]}"#, r#"{"owner": "*"}"#] {
            assert!(!allows(&own, &user(Some("ada"), &[]), body), "{body}");
            assert!(!allows(&own, &user(None, &[]), body), "{body}");
        }
        assert!(
            !own.restriction(&user(Some("ada"), &[]))
                .unwrap()
                .allows_body("_design/x", &r#"{"owner": "ada"}"#.parse().unwrap())
                .unwrap()
        );
        let shared =
            r#"{"$or": [{"owner": {"$user": "name"}}, {"team": {"$in": {"$user": "roles"}}}, {"public": true}]}"#;
        let shared = rule(shared).unwrap();
        let ada = user(Some("ada"), &["sales", "staff"]);
        for (body, is_allowed) in [
            (r#"{"owner": "ada", "team": "legal"}"#, true),
            (r#"{"owner": "bob", "team": "staff"}"#, true),
            (r#"{"owner": "bob", "team": "legal"}"#, false),
            (r#"{"owner": "bob", "team": "legal", "public": true}"#, true),
            (r#"{"public": "true"}"#, false),
        ] {
            assert_eq!(allows(&shared, &ada, body), is_allowed, "{body}");
        }
        assert!(!allows(&shared, &user(Some("eve"), &[]), r#"{"team": "staff"}"#));
        assert_eq!(shared.restriction(&ada).unwrap(), shared.restriction(&ada).unwrap());
        assert_ne!(shared.restriction(&ada).unwrap(), shared.restriction(&user(Some("ada"), &[])).unwrap());
    }

    #[test]
    fn malformed_rules_are_refused() {
        for text in [
            "{}",
            "[]",
            "true",
            r#"{"selector": 1}"#,
            r#"{"selector": {}, "more": 1}"#,
            r#"{"selector": {"a": {"$user": "password"}}}"#,
            r#"{"selector": {"a": {"$user": "name", "$gt": 1}}}"#,
            r#"{"selector": {"a": {"$unknown": 1}}}"#,
            r#"{"selector": {"a": {"$in": {"$user": "name"}}}}"#,
        ] {
            assert!(AccessRule::parse(&text.parse().unwrap()).is_err(), "{text}");
        }
    }

    #[test]
    fn fields_of_a_rule_are_known() {
        let text = r#"{"access_rule": {"selector":
            {"$or": [{"a.b": {"$user": "name"}}, {"c[]": 1}, {"$not": {"d": 2}}], "_id": "x"}}}"#;
        let security = Security::parse(text.parse().unwrap()).unwrap();
        let mut fields = security.rule_fields();
        fields.sort_unstable();
        assert_eq!(fields, ["a", "c", "d"]);
    }

    #[test]
    fn obeying_routes_are_known() {
        let known = crate::routes::route_descriptions();
        for (method, path) in OBEYING {
            let found = known.iter().find(|route| route.method == *method && route.path == *path);
            assert_eq!(found.map(|route| route.access), Some(Access::Member), "{method} {path}");
        }
    }
}
