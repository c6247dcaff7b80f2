//! Declared indexes: user-defined secondary indexes, and the key of a document in each of them.
//!
//! A declared index orders documents by one or more paths. It is represented by an additional path in the postings, at
//! which every document has exactly one term, a composite key: the concatenated keys of the document's values,
//! complemented bitwise for a descending path, with [`MISSING`] for a missing value. A composite key sorts in the
//! declared order; it is cut if it is too long for a key of the tree.

mod definition;

use std::sync::Arc;

use super::expiry::{ExpirationRule, expiration_key};
use super::number::PathNumber;
use super::paths::{Paths, Step};
use crate::retention::HistoryRules;
use crate::schema::{CollectionSchemas, Schema};
use crate::value::collate::key;
use crate::value::{Kind, PackedValue};
use crate::{Error, Result};
pub(crate) use definition::IndexDefinition;
pub use definition::{Index, IndexPath};

/// The maximum length of a value in an error message.
const SHOWN_CHARACTERS_MAX: usize = 80;

/// Represents a missing value in a composite key. Sorts before the key of every value.
pub(crate) const MISSING: u8 = 0x00;

/// The declared indexes, schemas and retention of a database at one point in time.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeclaredIndexes {
    /// Incremented with every change, to distinguish the states of one open database.
    pub(crate) generation: u64,
    /// The number of the next index. Numbers are never reused.
    pub(crate) next_number: u32,
    pub(crate) indexes: Vec<DeclaredIndex>,
    /// The schemas of collections.
    pub(crate) schemas: CollectionSchemas,
    /// How much of the past is kept.
    pub(crate) history: HistoryRules,
    /// Whether documents lack collection terms: the tree was written before they existed, and the database is
    /// read-only.
    pub(crate) lacks_collections: bool,
}

/// One declared index.
#[derive(Debug, Clone)]
pub(crate) struct DeclaredIndex {
    pub(crate) definition: Arc<IndexDefinition>,
    /// The path that represents the index in the postings.
    pub(crate) path: PathNumber,
    /// Whether every document has its term. Until then queries don't use the index.
    pub(crate) is_ready: bool,
}

/// A document's key in a declared index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeclaredKey {
    pub(crate) key: Vec<u8>,
    /// Whether a value is missing or null. Such documents are exempt from a unique constraint.
    pub(crate) is_partial: bool,
    /// For an expiration rule: the millisecond from which the document is expired.
    pub(crate) end_ms: Option<i64>,
}

impl DeclaredIndexes {
    /// Restores the declared indexes of a database that is being opened. None is ready.
    ///
    /// # Errors
    /// `Unavailable` if the path dictionary is full.
    pub(crate) fn restore(definitions: Vec<IndexDefinition>, next_number: u32, paths: &Paths) -> Result<Self> {
        let mut declared = DeclaredIndexes { next_number: next_number.max(1), ..DeclaredIndexes::default() };
        for definition in definitions {
            declared.add(definition, paths)?;
        }
        Ok(declared)
    }

    /// Adds an index that is not ready.
    ///
    /// # Errors
    /// `Unavailable` if the path dictionary is full.
    pub(crate) fn add(&mut self, definition: IndexDefinition, paths: &Paths) -> Result<()> {
        let path = paths.intern(PathNumber::ROOT, Step::Index(definition.number)).ok_or_else(|| {
            Error::unavailable("the dictionary of paths is full, and an index needs another path").with_hint(
                "documents have a million distinct paths: keep names that are data out of them, or exclude them",
            )
        })?;
        self.next_number = self.next_number.max(definition.number + 1);
        self.indexes.push(DeclaredIndex { definition: Arc::new(definition), path, is_ready: false });
        self.generation += 1;
        Ok(())
    }

    /// The index with this name.
    pub(crate) fn named(&self, name: &str) -> Option<&DeclaredIndex> {
        self.indexes.iter().find(|index| index.definition.expiry.is_none() && index.definition.name == name)
    }

    /// The index that represents this expiration rule.
    pub(crate) fn expiring(&self, rule: &ExpirationRule) -> Option<&DeclaredIndex> {
        self.indexes.iter().find(|index| index.definition.expiry.as_ref() == Some(rule))
    }

    /// The active expiration rules, each with its path in the postings.
    pub(crate) fn expiries(&self) -> impl Iterator<Item = (&ExpirationRule, PathNumber)> {
        let active = self.indexes.iter().filter(|index| index.is_ready);
        active.filter_map(|index| Some((index.definition.expiry.as_ref()?, index.path)))
    }

    /// The index with this number.
    pub(crate) fn numbered(&self, number: u32) -> Option<&DeclaredIndex> {
        self.indexes.iter().find(|index| index.definition.number == number)
    }

    /// Sets or removes the schema of a collection. Returns whether it had one before.
    pub(crate) fn set_schema(&mut self, collection: &str, schema: Option<Schema>) -> bool {
        self.generation += 1;
        self.schemas.set(collection, schema)
    }

    /// Removes the index with this number.
    pub(crate) fn remove(&mut self, number: u32) {
        self.indexes.retain(|index| index.definition.number != number);
        self.generation += 1;
    }

    /// Marks the index with this number as ready.
    pub(crate) fn set_ready(&mut self, number: u32) {
        for index in self.indexes.iter_mut().filter(|index| index.definition.number == number) {
            index.is_ready = true;
        }
        self.generation += 1;
    }

    /// The indexes with a unique constraint.
    pub(crate) fn unique(&self) -> impl Iterator<Item = &DeclaredIndex> {
        self.indexes.iter().filter(|index| index.definition.is_unique)
    }
}

impl IndexDefinition {
    /// The key of the document `id` in this index; `None` if an expiration rule does not apply to it.
    ///
    /// # Errors
    /// `Corrupt` if the packed bytes are damaged.
    pub(crate) fn key(&self, id: &str, document: PackedValue<'_>) -> Result<Option<DeclaredKey>> {
        if let Some(rule) = &self.expiry {
            let end_ms = rule.end_ms(id, document)?;
            return Ok(end_ms.map(|end| DeclaredKey { key: expiration_key(end), is_partial: true, end_ms }));
        }
        let mut bytes = Vec::new();
        let mut is_partial = false;
        for path in &self.paths {
            let value = document.get(&path.path)?;
            is_partial |= value.is_none_or(|value| value.kind() == Kind::Null);
            path.append_key(&mut bytes, value)?;
        }
        let mut declared = DeclaredKey { key: Vec::with_capacity(bytes.len() + 8), is_partial, end_ms: None };
        key::encode_composite(&bytes, &mut declared.key);
        Ok(Some(declared))
    }

    /// The values of a document at the indexed paths, formatted for an error message.
    ///
    /// # Errors
    /// `Corrupt` if the packed bytes are damaged.
    pub(crate) fn shown(&self, document: PackedValue<'_>) -> Result<String> {
        let mut texts = Vec::new();
        for path in &self.paths {
            let value = document.get(&path.path)?.map(PackedValue::to_value).transpose()?;
            let text = value.map_or_else(|| "nothing".to_owned(), |value| value.to_json());
            let is_long = text.chars().nth(SHOWN_CHARACTERS_MAX).is_some();
            let shown: String = text.chars().take(SHOWN_CHARACTERS_MAX).collect();
            texts.push(if is_long { shown + "…" } else { shown });
        }
        Ok(texts.join(", "))
    }
}

impl IndexPath {
    /// Appends the part of a composite key that represents this path.
    fn append_key(&self, bytes: &mut Vec<u8>, value: Option<PackedValue<'_>>) -> Result<()> {
        let start = bytes.len();
        match (value, &self.language) {
            (None, _) => bytes.push(MISSING),
            (Some(value), Some(language)) => language.encode_packed(value, bytes)?,
            (Some(value), None) => key::encode_packed(value, bytes)?,
        }
        if self.descending {
            bytes[start..].iter_mut().for_each(|byte| *byte = !*byte);
        }
        Ok(())
    }
}
