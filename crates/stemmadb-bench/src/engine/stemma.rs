//! Stemma, through its public face only.

use std::path::Path;

use stemmadb::{Database, DocumentId, Durability, Edit, Options, Selector, Value, field};

use super::{Asker, Body, Engine, Form, Getter};
use crate::Result;
use crate::workload::{Condition, Question, Wanted};

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
        let mut edits = Vec::with_capacity(documents.len());
        for (id, json) in documents {
            edits.push(Edit::Insert { id: DocumentId::new(id)?, body: Value::parse(json.as_bytes())? });
        }
        if edits.len() == 1 {
            self.database.edit_with(self.durability, edits.remove(0))?;
            return Ok(());
        }
        for outcome in self.database.bulk_with(self.durability, edits)? {
            outcome?;
        }
        Ok(())
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

impl Engine for Stemma {
    fn name(&self) -> &'static str {
        "stemma"
    }

    fn asker(&self, form: &Question) -> Result<Asker<'_>> {
        let wanted = form.wanted;
        Ok(Box::new(move |question, sink| {
            // There is no prepared query: the selector is made anew for each question, as an application would.
            let mut find = self.database.find(selector(question));
            if let Some(limit) = question.limit {
                find = find.limit(limit as u64);
            }
            match wanted {
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

fn selector(question: &Question) -> Selector {
    let place = field(question.field);
    match &question.condition {
        Condition::Equal(serde_json::Value::String(text)) => place.eq(text.as_str()),
        Condition::Equal(value) => place.eq(Value::from_serialize(value).expect("JSON is a value")),
        Condition::Between(lower, upper) => place.clone().ge(*lower).and(place.lt(*upper)),
        Condition::Prefix(prefix) => place.begins_with(prefix.as_str()),
    }
}
