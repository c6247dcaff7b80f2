//! Declaring schemas: what is there is looked at, then the schema is logged and in force.
//!
//! Concurrency: documents are read without a lock; those that were written meanwhile, and the declaration itself, under the writer lock,
//! so that no document slips through in between.

use std::ops::Bound;

use crate::engine::Store;
use crate::index::{DeclaredIndexes, DocumentNumber};
use crate::log::Level;
use crate::read::snapshot::Snapshot;
use crate::revision::{DocumentId, Sequence};
use crate::schema::{Schema, check_collection_name, collection_of};
use crate::{Error, Result};

/// Documents read together.
const BATCH_COUNT: usize = 256;
/// So many ids are named in an error.
const NAMED_MAX: usize = 3;

/// Documents that break a schema.
#[derive(Default)]
struct Found {
    count: u64,
    first: Vec<(DocumentId, String)>,
}

impl Store {
    /// Gives a collection a schema; whether it had another one.
    pub(crate) fn require_schema(&self, collection: &str, schema: Schema) -> Result<()> {
        check_collection_name(collection)?;
        let mut seen = Sequence::ZERO;
        if !schema.is_for_new_writes() {
            let snapshot = self.snapshot()?;
            let mut found = Found::default();
            snapshot.look_for_violations(collection, &schema, NAMED_MAX, &mut found)?;
            refuse(collection, &found)?;
            seen = snapshot.sequence();
        }
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        if !schema.is_for_new_writes() {
            let mut found = Found::default();
            self.newest_snapshot()?.look_at_written(seen, collection, &schema, &mut found)?;
            refuse(collection, &found)?;
        }
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        declared.set_schema(collection, Some(schema));
        self.redefine(&mut writer, declared)?;
        drop(writer);
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)
    }

    /// Takes the schema of a collection away.
    pub(crate) fn drop_schema(&self, collection: &str) -> Result<()> {
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        if !declared.set_schema(collection, None) {
            return Err(Error::not_found(format!("`{collection}` has no schema")));
        }
        self.redefine(&mut writer, declared)?;
        drop(writer);
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)
    }

    /// The schemas of collections, in the order of names.
    pub(crate) fn schemas(&self) -> Vec<(String, Schema)> {
        let declared = self.parts.declared();
        declared.schemas.iter().map(|(name, schema)| (name.to_owned(), schema.clone())).collect()
    }

    /// The first few documents that break the schema of their collection, and why.
    pub(crate) fn schema_violations(&self, collection: &str, limit: usize) -> Result<Vec<(DocumentId, String)>> {
        let snapshot = self.snapshot()?;
        let schema = snapshot.declared.schemas.of_collection(collection);
        let schema = schema.ok_or_else(|| Error::not_found(format!("`{collection}` has no schema")))?;
        let mut found = Found::default();
        snapshot.look_for_violations(collection, schema, limit, &mut found)?;
        Ok(found.first)
    }
}

impl Snapshot {
    fn look_for_violations(&self, collection: &str, schema: &Schema, limit: usize, found: &mut Found) -> Result<()> {
        // A semicolon is what comes after a colon.
        let (first, after) = (format!("{collection}:"), format!("{collection};"));
        let members = self.ids_in_range(Bound::Included(&first), Bound::Excluded(&after))?;
        let numbers: Vec<DocumentNumber> = self.without_ended(members)?.iter().collect();
        numbers.chunks(BATCH_COUNT).try_for_each(|numbers| self.look_at(numbers, schema, limit, found))
    }

    /// Looks at the members that were written after `seen`.
    fn look_at_written(&self, seen: Sequence, collection: &str, schema: &Schema, found: &mut Found) -> Result<()> {
        let mut after = seen;
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
            self.look_at(&numbers, schema, NAMED_MAX, found)?;
            after = batch.reached;
        }
    }

    fn look_at(&self, numbers: &[DocumentNumber], schema: &Schema, limit: usize, found: &mut Found) -> Result<()> {
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

fn refuse(collection: &str, found: &Found) -> Result<()> {
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
