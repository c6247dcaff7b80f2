//! Stemma through its public API.

use std::path::Path;

use stemmadb::encryption::EncryptionKey;
use stemmadb::{
    Compression, Database, DocumentId, Durability, Edit, Field, Options, Query, Selector, Value, all_of, any_of, field,
    not,
};

use super::{Body, DocumentForm, DocumentReader, Engine, PageReader, QueryRunner};
use crate::Result;
use crate::workload::{Condition, Predicate, Projection, QuerySpec};

/// A Stemma database.
pub(crate) struct Stemma {
    database: Database,
    durability: Durability,
}

/// Configuration of the document cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caching {
    Off,
    /// The library's default.
    Default,
    /// The given number of bytes.
    Bytes(u64),
}

impl Stemma {
    /// Opens the database in the directory `path`, creating it if needed.
    pub(crate) fn open(path: &Path, synced: bool, caching: Caching) -> Result<Self> {
        Self::open_durable(path, if synced { Durability::Sync } else { Durability::None }, caching)
    }

    /// Opens the database in the directory `path`, creating it if needed.
    pub(crate) fn open_durable(path: &Path, durability: Durability, caching: Caching) -> Result<Self> {
        Self::open_with(path, Options::new().durability(durability), durability, caching)
    }

    /// Like [`Stemma::open`], with this compression of what is written from now on.
    pub(crate) fn open_compressed(
        path: &Path,
        synced: bool,
        caching: Caching,
        compression: Compression,
    ) -> Result<Self> {
        let durability = if synced { Durability::Sync } else { Durability::None };
        let options = Options::new().durability(durability).compression(compression);
        Self::open_with(path, options, durability, caching)
    }

    /// Like [`Stemma::open`] without flushes, encrypted with a fixed key.
    pub(crate) fn open_encrypted(path: &Path, caching: Caching) -> Result<Self> {
        let options = Options::new().durability(Durability::None);
        let options = options.encryption(EncryptionKey::from_callback(|| Ok([7; 32])));
        Self::open_with(path, options, Durability::None, caching)
    }

    fn open_with(path: &Path, options: Options, durability: Durability, caching: Caching) -> Result<Self> {
        let options = match caching {
            Caching::Off => options.cache_bytes(0),
            Caching::Default => options,
            Caching::Bytes(bytes) => options.cache_bytes(bytes),
        };
        Ok(Stemma { database: Database::open_with(path, options)?, durability })
    }

    /// Inserts documents in one transaction.
    pub(crate) fn insert(&self, documents: &[(&str, &str)]) -> Result<()> {
        insert_json(&self.database, self.durability, documents)
    }

    /// Opens the database in the directory `path` with default caches, after rebuilding its tree from the log.
    pub(crate) fn rebuild(path: &Path, synced: bool) -> Result<Self> {
        let durability = if synced { Durability::Sync } else { Durability::None };
        Ok(Stemma { database: Database::rebuild(path, Options::new().durability(durability), |_| ())?, durability })
    }

    /// Inserts a document, or replaces it.
    pub(crate) fn upsert(&self, id: &str, json: &str) -> Result<()> {
        let edit = Edit::Upsert { id: DocumentId::new(id)?, body: Value::parse(json.as_bytes())? };
        self.database.with_durability(self.durability).edit(edit)?;
        Ok(())
    }

    /// Inserts or replaces documents in one transaction.
    pub(crate) fn upsert_all(&self, documents: &[(&str, &str)]) -> Result<()> {
        write_json(&self.database, self.durability, documents, |id, body| Edit::Upsert { id, body })
    }

    /// Counts the matching documents by the text in `field`.
    pub(crate) fn group_counts(&self, condition: &Condition, field: &str) -> Result<Vec<(String, u64)>> {
        let counts = self.database.find(selector(condition)).group_by(field).counts()?;
        let text = |value: Value| value.as_str().map(str::to_owned).ok_or("a group is not a text");
        counts.into_iter().map(|(value, count)| Ok((text(value)?, count))).collect()
    }

    /// Returns the sum of the integers in `field` of the matching documents.
    pub(crate) fn sum(&self, condition: &Condition, field: &str) -> Result<i64> {
        let sum = self.database.find(selector(condition)).sum(field)?;
        sum.as_i64().ok_or_else(|| "a sum of integers is not an integer".into())
    }

    /// Returns the database.
    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    /// Returns the number of documents.
    pub(crate) fn document_count(&self) -> Result<u64> {
        Ok(self.database.info()?.document_count)
    }

    /// Returns the number of log flushes since the database was opened.
    pub(crate) fn flush_count(&self) -> Result<u64> {
        Ok(self.database.info()?.flush_count)
    }

    /// Flushes, merges and closes the database.
    pub(crate) fn close(self) -> Result<()> {
        Ok(self.database.close()?)
    }
}

/// Inserts documents in one transaction.
pub(crate) fn insert_json(database: &Database, durability: Durability, documents: &[(&str, &str)]) -> Result<()> {
    write_json(database, durability, documents, |id, body| Edit::Insert { id, body })
}

/// Makes an edit of each document and applies all in one transaction.
fn write_json(
    database: &Database,
    durability: Durability,
    documents: &[(&str, &str)],
    edit: impl Fn(DocumentId, Value) -> Edit,
) -> Result<()> {
    let mut edits = Vec::with_capacity(documents.len());
    for (id, json) in documents {
        edits.push(edit(DocumentId::new(id)?, Value::parse(json.as_bytes())?));
    }
    if edits.len() == 1 {
        database.with_durability(durability).edit(edits.remove(0))?;
        return Ok(());
    }
    for outcome in database.with_durability(durability).bulk(edits)? {
        outcome?;
    }
    Ok(())
}

impl Engine for Stemma {
    fn name(&self) -> &'static str {
        "stemma"
    }

    fn query_runner(&self, specs: &[QuerySpec]) -> Result<QueryRunner<'_>> {
        // A repeated query is prepared, as an application would do; varying ones are built each time.
        let prepared = match specs {
            [one] => Some(self.database.prepare(query(one))?),
            _ => None,
        };
        Ok(Box::new(move |spec, sink| {
            let find = match &prepared {
                Some(prepared) => self.database.find(prepared),
                None => self.database.find(query(spec)),
            };
            match spec.projection {
                Projection::Count => sink.count(find.count()?),
                Projection::Ids => {
                    for id in find.ids()? {
                        sink.id(id?.as_str())?;
                    }
                }
                Projection::Documents => {
                    for document in find.run()? {
                        let document = document?;
                        sink.document(document.id().as_str(), Body::Packed(&document))?;
                    }
                }
                Projection::Json => {
                    for document in find.run()? {
                        let document = document?;
                        sink.document(document.id().as_str(), Body::Text(&document.to_json()?))?;
                    }
                }
            }
            Ok(())
        }))
    }

    fn page_reader(&self, spec: &QuerySpec, row_count: usize) -> Result<PageReader<'_>> {
        let first = self.database.prepare(query(spec).limit(row_count as u64))?;
        let mut token: Option<String> = None;
        Ok(Box::new(move |is_first, sink| {
            let page = match token.take().filter(|_| !is_first) {
                Some(token) => self.database.find(&first).after(token),
                None => self.database.find(&first),
            };
            let mut rows = page.ids()?;
            for id in rows.by_ref() {
                sink.id(id?.as_str())?;
            }
            token = rows.token()?;
            Ok(token.is_some())
        }))
    }

    fn document_reader(&self, form: DocumentForm) -> Result<DocumentReader<'_>> {
        Ok(Box::new(move |id, sink| {
            let Some(document) = self.database.get(id)? else { return Ok(()) };
            match form {
                DocumentForm::Document => sink.document(id, Body::Packed(&document)),
                DocumentForm::Json => sink.document(id, Body::Text(&document.to_json()?)),
                DocumentForm::Field(field) => match document.get(field)? {
                    Some(Value::String(text)) => sink.document(id, Body::Field(&text)),
                    _ => Ok(()),
                },
            }
        }))
    }
}

fn query(spec: &QuerySpec) -> Query {
    let mut query = Query::new(selector(&spec.condition));
    if let Some(order) = spec.order {
        query = if order.descending { query.sort_descending(order.field) } else { query.sort(order.field) };
    }
    match spec.limit {
        Some(limit) => query.limit(limit as u64),
        None => query,
    }
}

fn selector(condition: &Condition) -> Selector {
    match condition {
        Condition::Everything => Selector::everything(),
        Condition::Field(path, predicate) => field_selector(field(path), predicate),
        Condition::All(all) => all_of(all.iter().map(selector)),
        Condition::Any(any) => any_of(any.iter().map(selector)),
        Condition::Not(one) => not(selector(one)),
    }
}

fn field_selector(field: Field, predicate: &Predicate) -> Selector {
    match predicate {
        Predicate::Equal(serde_json::Value::String(text)) => field.eq(text.as_str()),
        Predicate::Equal(value) => field.eq(Value::from_serialize(value).expect("JSON is a value")),
        Predicate::Between(lower, upper) => field.clone().ge(*lower).and(field.lt(*upper)),
        Predicate::Above(lower) => field.gt(*lower),
        Predicate::Prefix(prefix) => field.begins_with(prefix.as_str()),
        Predicate::Exists => field.exists(),
        Predicate::Regex(pattern) => field.matches_regex(pattern.text()),
    }
}
