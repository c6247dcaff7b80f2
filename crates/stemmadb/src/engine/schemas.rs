//! Schema declaration: validates the existing documents, then logs the schema and puts it in force.
//!
//! Concurrency: documents are validated without a lock. Those written in the meantime are validated under the writer
//! lock, in which the schema is also logged, so no invalid document is missed.

use std::ops::Bound;

use crate::engine::{Operation, Store};
use crate::index::{DeclaredIndexes, DocumentNumber};
use crate::log::Level;
use crate::read::snapshot::Snapshot;
use crate::revision::{DocumentId, Sequence};
use crate::schema::{Schema, check_collection_name, collection_of};
use crate::{Error, Result};

/// Documents read in one batch.
const BATCH_COUNT: usize = 256;
/// The maximum number of ids in an error.
const NAMED_MAX: usize = 3;

/// Documents that violate a schema.
#[derive(Default)]
struct Violations {
    count: u64,
    first: Vec<(DocumentId, String)>,
}

impl Store {
    /// Sets the schema of a collection, replacing an existing one.
    pub(crate) fn require_schema(&self, collection: &str, schema: Schema) -> Result<()> {
        self.refuse_reentry(Operation::Write)?;
        check_collection_name(collection)?;
        let mut validated_to = Sequence::ZERO;
        if !schema.is_for_new_writes() {
            let snapshot = self.snapshot()?;
            let mut found = Violations::default();
            snapshot.find_violations(collection, &schema, NAMED_MAX, &mut found)?;
            refuse(collection, &found)?;
            validated_to = snapshot.sequence();
        }
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        if !schema.is_for_new_writes() {
            let mut found = Violations::default();
            self.newest_snapshot()?.validate_written(validated_to, collection, &schema, &mut found)?;
            refuse(collection, &found)?;
        }
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        declared.set_schema(collection, Some(schema));
        self.set_definitions(&mut writer, declared)?;
        drop(writer);
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)
    }

    /// Removes the schema of a collection.
    pub(crate) fn drop_schema(&self, collection: &str) -> Result<()> {
        self.refuse_reentry(Operation::Write)?;
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        if !declared.set_schema(collection, None) {
            return Err(Error::not_found(format!("`{collection}` has no schema")));
        }
        self.set_definitions(&mut writer, declared)?;
        drop(writer);
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)
    }

    /// The schemas of collections, ordered by collection name.
    pub(crate) fn schemas(&self) -> Vec<(String, Schema)> {
        let declared = self.parts.declared();
        declared.schemas.iter().map(|(name, schema)| (name.to_owned(), schema.clone())).collect()
    }

    /// The first documents, up to `limit`, that violate the schema of their collection, each with the reason.
    pub(crate) fn schema_violations(&self, collection: &str, limit: usize) -> Result<Vec<(DocumentId, String)>> {
        let snapshot = self.snapshot()?;
        let schema = snapshot.declared.schemas.of_collection(collection);
        let schema = schema.ok_or_else(|| Error::not_found(format!("`{collection}` has no schema")))?;
        let mut found = Violations::default();
        snapshot.find_violations(collection, schema, limit, &mut found)?;
        Ok(found.first)
    }
}

impl Snapshot {
    fn find_violations(&self, collection: &str, schema: &Schema, limit: usize, found: &mut Violations) -> Result<()> {
        // A semicolon is the next byte after a colon.
        let (first, after) = (format!("{collection}:"), format!("{collection};"));
        let members = self.ids_in_range(Bound::Included(&first), Bound::Excluded(&after))?;
        let numbers: Vec<DocumentNumber> = self.without_expired(members)?.iter().collect();
        numbers.chunks(BATCH_COUNT).try_for_each(|numbers| self.validate(numbers, schema, limit, found))
    }

    /// Validates the members of the collection that were written after `seen`.
    fn validate_written(
        &self,
        since: Sequence,
        collection: &str,
        schema: &Schema,
        found: &mut Violations,
    ) -> Result<()> {
        let mut after = since;
        loop {
            let batch = self.events_after(after, BATCH_COUNT)?;
            if batch.events.is_empty() {
                return Ok(());
            }
            let mut numbers = Vec::new();
            for (_, number) in batch.events {
                let state = self.state(number)?.filter(|state| state.is_live());
                if state.is_some_and(|state| collection_of(state.id.as_str()) == Some(collection)) {
                    numbers.push(number);
                }
            }
            self.validate(&numbers, schema, NAMED_MAX, found)?;
            after = batch.reached;
        }
    }

    fn validate(
        &self,
        numbers: &[DocumentNumber],
        schema: &Schema,
        limit: usize,
        found: &mut Violations,
    ) -> Result<()> {
        self.load(numbers, &mut |_, document| {
            if let Some(what) = schema.violation(&document.value()?)? {
                found.count += 1;
                if found.first.len() < limit {
                    found.first.push((document.id().clone(), what));
                }
            }
            Ok(())
        })
    }
}

fn refuse(collection: &str, found: &Violations) -> Result<()> {
    let Some((id, what)) = found.first.first() else { return Ok(()) };
    let others: Vec<String> = found.first[1..].iter().map(|(id, _)| format!("`{id}`")).collect();
    let others = if others.is_empty() { String::new() } else { format!("; also {}", others.join(", ")) };
    let count = match found.count {
        1 => "1 document does".to_owned(),
        count => format!("{count} documents do"),
    };
    Err(Error::invalid(format!("{count} not meet the schema of `{collection}`: `{id}`: {what}{others}"))
        .with_hint("correct them first, or declare the schema for new writes only"))
}
