//! Stemma, through its public face only.

use std::path::Path;

use stemmadb::{
    Database, DocumentId, Durability, Edit, Field, Options, Query, Selector, Value, all_of, any_of, field, not,
};

use super::{Asker, Body, Engine, Form, Getter, Pager};
use crate::Result;
use crate::workload::{Condition, Question, Test, Wanted};

/// A Stemma database.
pub(crate) struct Stemma {
    database: Database,
    durability: Durability,
}

/// Whether documents that were read stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caching {
    Off,
    /// As a database is opened when nothing is said.
    Default,
    /// So many bytes.
    Bytes(u64),
}

impl Stemma {
    /// The database in the directory `path`, made if there is none.
    pub(crate) fn open(path: &Path, synced: bool, caching: Caching) -> Result<Self> {
        let durability = if synced { Durability::Sync } else { Durability::None };
        let options = Options::new().durability(durability);
        let options = match caching {
            Caching::Off => options.cache_bytes(0),
            Caching::Default => options,
            Caching::Bytes(bytes) => options.cache_bytes(bytes),
        };
        Ok(Stemma { database: Database::open_with(path, options)?, durability })
    }

    /// Inserts documents, in one transaction.
    pub(crate) fn insert(&self, documents: &[(&str, &str)]) -> Result<()> {
        insert_json(&self.database, self.durability, documents)
    }

    /// How many documents there are.
    pub(crate) fn document_count(&self) -> Result<u64> {
        Ok(self.database.info()?.document_count)
    }

    /// How often the log was flushed since the database was opened.
    pub(crate) fn flush_count(&self) -> Result<u64> {
        Ok(self.database.info()?.flush_count)
    }

    /// Closes it: flushed and merged.
    pub(crate) fn close(self) -> Result<()> {
        Ok(self.database.close()?)
    }
}

/// Inserts documents into a database, in one transaction.
pub(crate) fn insert_json(database: &Database, durability: Durability, documents: &[(&str, &str)]) -> Result<()> {
    let mut edits = Vec::with_capacity(documents.len());
    for (id, json) in documents {
        edits.push(Edit::Insert { id: DocumentId::new(id)?, body: Value::parse(json.as_bytes())? });
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

    fn asker(&self, questions: &[Question]) -> Result<Asker<'_>> {
        // A question that is asked again and again is prepared, as an application would; others are made anew each time.
        let prepared = match questions {
            [one] => Some(self.database.prepare(query(one))?),
            _ => None,
        };
        Ok(Box::new(move |question, sink| {
            let find = match &prepared {
                Some(prepared) => self.database.find(prepared),
                None => self.database.find(query(question)),
            };
            match question.wanted {
                Wanted::Count => sink.count(find.count()?),
                Wanted::Ids => {
                    for id in find.ids()? {
                        sink.id(id?.as_str())?;
                    }
                }
                Wanted::Documents => {
                    for document in find.run()? {
                        let document = document?;
                        sink.document(document.id().as_str(), Body::Packed(&document))?;
                    }
                }
                Wanted::Json => {
                    for document in find.run()? {
                        let document = document?;
                        sink.document(document.id().as_str(), Body::Text(&document.to_json()?))?;
                    }
                }
            }
            Ok(())
        }))
    }

    fn pager(&self, question: &Question, row_count: usize) -> Result<Pager<'_>> {
        let first = self.database.prepare(query(question).limit(row_count as u64))?;
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

    fn getter(&self, form: Form) -> Result<Getter<'_>> {
        Ok(Box::new(move |id, sink| {
            let Some(document) = self.database.get(id)? else { return Ok(()) };
            match form {
                Form::Document => sink.document(id, Body::Packed(&document)),
                Form::Json => sink.document(id, Body::Text(&document.to_json()?)),
                Form::Field(field) => match document.get(field)? {
                    Some(Value::String(text)) => sink.document(id, Body::Field(&text)),
                    _ => Ok(()),
                },
            }
        }))
    }
}

fn query(question: &Question) -> Query {
    let mut query = Query::new(selector(&question.condition));
    if let Some(order) = question.order {
        query = if order.descending { query.sort_descending(order.field) } else { query.sort(order.field) };
    }
    match question.limit {
        Some(limit) => query.limit(limit as u64),
        None => query,
    }
}

fn selector(condition: &Condition) -> Selector {
    match condition {
        Condition::Everything => Selector::everything(),
        Condition::At(path, test) => at(field(path), test),
        Condition::All(all) => all_of(all.iter().map(selector)),
        Condition::Any(any) => any_of(any.iter().map(selector)),
        Condition::Not(one) => not(selector(one)),
    }
}

fn at(place: Field, test: &Test) -> Selector {
    match test {
        Test::Equal(serde_json::Value::String(text)) => place.eq(text.as_str()),
        Test::Equal(value) => place.eq(Value::from_serialize(value).expect("JSON is a value")),
        Test::Between(lower, upper) => place.clone().ge(*lower).and(place.lt(*upper)),
        Test::Above(lower) => place.gt(*lower),
        Test::Prefix(prefix) => place.begins_with(prefix.as_str()),
        Test::Exists => place.exists(),
        Test::Regex(pattern) => place.matches_regex(pattern.text()),
    }
}
