//! The request body of `_find` and `_explain`.

use hyper::StatusCode;
use stemmadb::past::At;
use stemmadb::{Database, Object, Query, Selector, Sort, Value, all_of, field};

use super::exclude_design_documents;
use crate::error::{Failure, Result};

/// CouchDB's default limit.
const LIMIT: u64 = 25;
/// The bookmark of an empty page. As a request's bookmark it means the first page.
const NIL: &str = "nil";
/// The bookmark after the last row: the next page is empty.
const END: &str = "end";

/// A parsed `_find` request.
#[derive(Debug, Clone)]
pub(crate) struct FindRequest {
    pub(crate) selector: Selector,
    /// The selector in CouchDB's normal form, for `_explain`.
    pub(crate) normalized_selector: Value,
    pub(crate) sort: Option<Value>,
    pub(crate) limit: u64,
    pub(crate) skip: u64,
    pub(crate) fields: Option<Vec<String>>,
    bookmark: Option<String>,
    pub(crate) conflicts: bool,
    pub(crate) execution_stats: bool,
    pub(crate) use_index: Option<Value>,
    /// The partition of a partitioned database to search.
    pub(crate) partition: Option<String>,
    /// The point in the past to answer as of.
    pub(crate) as_of: Option<At>,
    /// Whether to use another index if the one that `use_index` names can't be used.
    pub(crate) allow_fallback: bool,
    /// The prepared selector and order of a prepared query.
    prepared: Option<PreparedFind>,
    /// Whether an access rule is part of the selector: what tells about other documents is left out of the response.
    pub(crate) is_restricted: bool,
}

/// A query whose plan the library has cached, for snapshots with or without design documents.
#[derive(Debug, Clone)]
struct PreparedFind {
    query: Query,
    has_design_documents: bool,
}

fn missing(name: &str) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "missing_required_key", format!("Missing required key: {name}"))
}

fn invalid(name: &str, value: &Value) -> Failure {
    let reason = format!("Invalid value for {name}: {}", value.to_json().chars().take(100).collect::<String>());
    Failure::new(StatusCode::BAD_REQUEST, "invalid_key", reason)
}

fn parse_bookmark(value: &Value) -> Result<Option<String>> {
    match value {
        Value::Null => Ok(None),
        Value::String(bookmark) if bookmark.is_empty() || bookmark == NIL => Ok(None),
        Value::String(bookmark) => Ok(Some(bookmark.clone())),
        value => Err(invalid("bookmark", value)),
    }
}

impl FindRequest {
    /// Parses a request body.
    ///
    /// # Errors
    /// 400, with CouchDB's errors where it defines them.
    pub(crate) fn parse(body: &Value) -> Result<Self> {
        let object = body.as_object().ok_or_else(|| Failure::bad_request("Request body must be a JSON object"))?;
        let selector = object.get("selector").ok_or_else(|| missing("selector"))?;
        if selector.as_object().is_none() {
            return Err(invalid("selector", selector));
        }
        let mut request = FindRequest {
            selector: Selector::parse(selector).map_err(selector_failure)?,
            normalized_selector: normalize_selector(selector),
            sort: None,
            limit: LIMIT,
            skip: 0,
            fields: None,
            bookmark: None,
            conflicts: false,
            execution_stats: false,
            use_index: None,
            partition: None,
            as_of: None,
            allow_fallback: true,
            prepared: None,
            is_restricted: false,
        };
        for (name, value) in object {
            match (name, value) {
                ("limit", value) => request.limit = value.as_u64().ok_or_else(|| invalid(name, value))?,
                ("skip", value) => request.skip = value.as_u64().ok_or_else(|| invalid(name, value))?,
                ("sort", Value::Array(keys)) if keys.is_empty() => {}
                ("sort", value) => request.sort = Some(value.clone()),
                ("fields", Value::Array(fields)) => {
                    let fields = fields.iter().map(|field| field.as_str().map(str::to_owned));
                    let fields = fields.collect::<Option<Vec<_>>>().ok_or_else(|| invalid(name, value))?;
                    request.fields = Some(fields).filter(|fields| !fields.is_empty());
                }
                ("fields", Value::String(all)) if all == "all_fields" => {}
                ("fields", value) => return Err(invalid(name, value)),
                ("bookmark", value) => request.bookmark = parse_bookmark(value)?,
                ("conflicts", value) => request.conflicts = value.as_bool().ok_or_else(|| invalid(name, value))?,
                ("execution_stats", value) => {
                    request.execution_stats = value.as_bool().ok_or_else(|| invalid(name, value))?;
                }
                ("use_index", value) => request.use_index = Some(value.clone()),
                ("allow_fallback", value) => {
                    request.allow_fallback = value.as_bool().ok_or_else(|| invalid(name, value))?;
                }
                ("partition", Value::String(partition)) if partition.is_empty() => {}
                ("partition", Value::String(partition)) => request.partition = Some(partition.clone()),
                ("partition", value) => return Err(invalid(name, value)),
                // Ignore options for clusters (`r`) and for stale indexes (`stable`, `update`): neither exists here.
                _ => {}
            }
        }
        Ok(request)
    }

    /// The request for only those documents that also match the selector of an access rule.
    pub(crate) fn restricted_to(self, rule: Selector) -> Self {
        let selector = all_of([rule, self.selector]);
        FindRequest { selector, prepared: None, execution_stats: false, is_restricted: true, ..self }
    }

    /// The bookmark, unless it means the first page.
    pub(crate) fn bookmark(&self) -> Option<&str> {
        self.bookmark.as_deref()
    }

    /// Whether the previous page was the last.
    pub(crate) fn is_at_end(&self) -> bool {
        self.bookmark.as_deref() == Some(END)
    }

    /// The design document that `use_index` names, without `_design/`, and the index, if it names one.
    pub(crate) fn named_index(&self) -> Option<(&str, Option<&str>)> {
        let design = |text: &'_ str| -> usize { if text.starts_with("_design/") { "_design/".len() } else { 0 } };
        match self.use_index.as_ref()? {
            Value::String(text) => {
                let text = &text[design(text)..];
                Some(text.split_once('/').map_or((text, None), |(ddoc, name)| (ddoc, Some(name))))
            }
            Value::Array(parts) => {
                let ddoc = parts.first()?.as_str()?;
                Some((&ddoc[design(ddoc)..], parts.get(1).and_then(Value::as_str)))
            }
            _ => None,
        }
    }

    /// The paths that rows are sorted by.
    fn sort_paths(&self) -> Vec<String> {
        let keys = self.sort.as_ref().and_then(Value::as_array).unwrap_or_default();
        let path = |key: &Value| match key {
            Value::String(path) => Some(path.clone()),
            key => key.as_object().and_then(|object| object.names().next().map(str::to_owned)),
        };
        keys.iter().filter_map(path).collect()
    }

    /// Builds the library's query. As in CouchDB, documents without the sort fields are excluded (a CouchDB index does
    /// not contain them), and so are design documents.
    ///
    /// # Errors
    /// 400 if the sort order or the bookmark is invalid.
    pub(crate) fn query(&self, has_design_documents: bool) -> Result<Query> {
        let query = match &self.prepared {
            Some(prepared) if prepared.has_design_documents == has_design_documents => prepared.query.clone(),
            _ => self.unpaginated_query(has_design_documents)?,
        };
        self.paginate(query)
    }

    /// Like [`FindRequest::query`], for the documents of a partial index with this selector.
    ///
    /// # Errors
    /// Also 400 if the selector is invalid.
    pub(crate) fn query_in_partial_index(&self, partial: &Value, has_design_documents: bool) -> Result<Query> {
        let selector = all_of([self.selector.clone(), Selector::parse(partial).map_err(selector_failure)?]);
        let narrowed = FindRequest { selector, prepared: None, ..self.clone() };
        narrowed.paginate(narrowed.unpaginated_query(has_design_documents)?)
    }

    fn paginate(&self, query: Query) -> Result<Query> {
        let mut query = query.limit(self.limit).skip(self.skip);
        if let Some(fields) = &self.fields {
            query = query.fields(fields);
        }
        if let Some(bookmark) = &self.bookmark {
            query = query.after(bookmark.clone());
        }
        Ok(query)
    }

    /// Builds the query without pagination.
    fn unpaginated_query(&self, has_design_documents: bool) -> Result<Query> {
        let mut parts = vec![self.selector.clone()];
        // The partition is a term of the index.
        parts.extend(self.partition.iter().map(|partition| field("_id").begins_with(format!("{partition}:"))));
        parts.extend(self.sort_paths().iter().filter(|path| *path != "_id").map(|path| field(path).exists()));
        let selector = if parts.len() == 1 { self.selector.clone() } else { all_of(parts) };
        let query = Query::new(if has_design_documents { exclude_design_documents(selector) } else { selector });
        match &self.sort {
            Some(sort) => Ok(query.order(Sort::parse(sort).map_err(sort_failure)?)),
            None => Ok(query),
        }
    }

    /// Prepares the query in the library, for repeated execution while the database has, or has no, design documents.
    ///
    /// # Errors
    /// 400 if the query is invalid.
    pub(super) fn prepared(mut self, database: &Database, has_design_documents: bool) -> Result<Self> {
        let query = database.prepare(self.unpaginated_query(has_design_documents)?)?;
        self.prepared = Some(PreparedFind { query, has_design_documents });
        Ok(self)
    }

    /// Applies the pagination options of a request body, which may contain no other options.
    ///
    /// # Errors
    /// 400 if an option is unknown or invalid.
    pub(super) fn page(&self, body: &Object) -> Result<Self> {
        let mut page = self.clone();
        for (name, value) in body.iter() {
            match name {
                "limit" => page.limit = value.as_u64().ok_or_else(|| invalid(name, value))?,
                "skip" => page.skip = value.as_u64().ok_or_else(|| invalid(name, value))?,
                "bookmark" => page.bookmark = parse_bookmark(value)?,
                "execution_stats" => page.execution_stats = value.as_bool().ok_or_else(|| invalid(name, value))?,
                _ => return Err(Failure::bad_request(format!("A prepared query has no option `{name}`"))),
            }
        }
        Ok(page)
    }

    /// The bookmark after a page of `row_count` rows; `token` is the library's continuation token.
    pub(crate) fn bookmark_of(row_count: u64, token: Option<String>) -> String {
        match (row_count, token) {
            (0, _) => NIL.to_owned(),
            (_, Some(token)) => token,
            (_, None) => END.to_owned(),
        }
    }
}

/// Normalizes a selector as CouchDB's `_explain` does: equality as `$eq`, several conditions as `$and`, nested fields
/// as paths.
pub(crate) fn normalize_selector(selector: &Value) -> Value {
    let mut conditions = Vec::new();
    collect_conditions(selector, "", &mut conditions);
    match conditions.len() {
        0 => Object::new().into(),
        1 => conditions.remove(0),
        _ => single("$and", Value::Array(conditions)),
    }
}

fn collect_conditions(selector: &Value, prefix: &str, out: &mut Vec<Value>) {
    for (name, value) in selector.as_object().into_iter().flatten() {
        match (name, value) {
            ("$and" | "$or" | "$nor", Value::Array(parts)) => {
                out.push(single(name, Value::Array(parts.iter().map(normalize_selector).collect())));
            }
            ("$not", part) => out.push(single(name, normalize_selector(part))),
            (name, value) => {
                let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
                let names = || value.as_object().into_iter().flat_map(Object::names);
                match value {
                    Value::Object(object) if !object.is_empty() && names().all(|name| !name.starts_with('$')) => {
                        collect_conditions(value, &path, out);
                    }
                    Value::Object(object) if !object.is_empty() => {
                        out.extend(
                            object.iter().map(|(operator, operand)| single(&path, single(operator, operand.clone()))),
                        );
                    }
                    _ => out.push(single(&path, single("$eq", value.clone()))),
                }
            }
        }
    }
}

fn single(name: &str, value: Value) -> Value {
    Value::Object([(name, value)].into_iter().collect())
}

fn selector_failure(error: stemmadb::Error) -> Failure {
    let kind = if error.message().contains("operator") { "invalid_operator" } else { "bad_arg" };
    Failure::new(StatusCode::BAD_REQUEST, kind, Failure::from(error).reason().to_owned())
}

fn sort_failure(error: stemmadb::Error) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "invalid_sort_json", Failure::from(error).reason().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_use_couchdb_names() {
        for (body, error) in [
            ("[]", "bad_request"),
            ("{}", "missing_required_key"),
            (r#"{"selector": 3}"#, "invalid_key"),
            (r#"{"selector": {"a": {"$nonsense": 1}}}"#, "invalid_operator"),
            (r#"{"selector": {}, "limit": -1}"#, "invalid_key"),
            (r#"{"selector": {}, "fields": 1}"#, "invalid_key"),
            (r#"{"selector": {}, "bookmark": 1}"#, "invalid_key"),
        ] {
            let failure = FindRequest::parse(&Value::parse(body).unwrap()).unwrap_err();
            assert_eq!((failure.status(), failure.error()), (StatusCode::BAD_REQUEST, error), "{body}");
        }
        let invalid = FindRequest::parse(&Value::parse(r#"{"selector": {}, "sort": [{"a": "up"}]}"#).unwrap()).unwrap();
        assert_eq!(invalid.query(false).unwrap_err().error(), "invalid_sort_json");
    }

    #[test]
    fn selectors_are_normalized() {
        for (selector, expected) in [
            ("{}", "{}"),
            (r#"{"a":1}"#, r#"{"a":{"$eq":1}}"#),
            (r#"{"a":{"$gt":1,"$lt":3}}"#, r#"{"$and":[{"a":{"$gt":1}},{"a":{"$lt":3}}]}"#),
            (
                r#"{"a":{"b":{"c":1}},"$or":[{"x":1},{"y":{}}]}"#,
                r#"{"$and":[{"a.b.c":{"$eq":1}},{"$or":[{"x":{"$eq":1}},{"y":{"$eq":{}}}]}]}"#,
            ),
            (r#"{"$not":{"a":1}}"#, r#"{"$not":{"a":{"$eq":1}}}"#),
        ] {
            assert_eq!(normalize_selector(&Value::parse(selector).unwrap()).to_json(), expected);
        }
    }

    #[test]
    fn last_page_has_an_end_bookmark() {
        assert_eq!(FindRequest::bookmark_of(0, None), "nil");
        assert_eq!(FindRequest::bookmark_of(3, Some("x".to_owned())), "x");
        let last = FindRequest::bookmark_of(3, None);
        let body = format!(r#"{{"selector": {{}}, "bookmark": "{last}"}}"#);
        assert!(FindRequest::parse(&Value::parse(&body).unwrap()).unwrap().is_at_end());
    }
}
