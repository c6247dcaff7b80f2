//! Declared indexes: what a user asks for beyond the index of every path, and the key it gives each document.
//!
//! A declared index orders documents by one or more paths. It is a path of its own in the postings, at which every document has exactly
//! one term: the keys of its values one after the other, turned round bit by bit where the order is descending, a missing value as a
//! lowest byte. That is the sort key of a row in the order the index declares, cut where it is too long for a key of the tree.

mod definition;

use std::sync::Arc;

use super::expiry::{Rule, end_key};
use super::number::PathNumber;
use super::paths::{Paths, Step};
use crate::schema::{Schema, Schemas};
use crate::value::collate::key;
use crate::value::{Kind, PackedValue};
use crate::{Error, Result};
pub(crate) use definition::Definition;
pub use definition::{Index, IndexPath};

/// So much of a value is shown in an error.
const SHOWN_CHARACTERS_MAX: usize = 80;

/// Stands for the absence of a value: below every value's key.
pub(crate) const MISSING: u8 = 0x00;

/// The declared indexes of a database at one moment, and what else is declared with them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Declared {
    /// Changes with every change here; tells two states of one open database apart.
    pub(crate) generation: u64,
    /// The number of the next index: none is used twice.
    pub(crate) next_number: u32,
    pub(crate) indexes: Vec<DeclaredIndex>,
    /// What documents must look like.
    pub(crate) schemas: Schemas,
    /// Whether documents have no term of their collection: the tree is older than those, and is only read.
    pub(crate) lacks_collections: bool,
}

/// One declared index.
#[derive(Debug, Clone)]
pub(crate) struct DeclaredIndex {
    pub(crate) definition: Arc<Definition>,
    /// Its path in the postings.
    pub(crate) path: PathNumber,
    /// Whether every document has its term; until then nothing is answered from it.
    pub(crate) is_ready: bool,
}

/// A document's key in a declared index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeclaredKey {
    pub(crate) key: Vec<u8>,
    /// Whether a value is missing or null: such documents are not asked to be unique.
    pub(crate) is_partial: bool,
    /// Of a rule of expiry: the millisecond from which the document is gone.
    pub(crate) end_ms: Option<i64>,
}

impl Declared {
    /// These definitions, as they are when a database is opened: none is ready.
    ///
    /// # Errors
    /// `Unavailable` if the dictionary of paths is full.
    pub(crate) fn restore(definitions: Vec<Definition>, next_number: u32, paths: &Paths) -> Result<Self> {
        let mut declared = Declared { next_number: next_number.max(1), ..Declared::default() };
        for definition in definitions {
            declared.add(definition, paths)?;
        }
        Ok(declared)
    }

    /// Adds an index that is not ready.
    ///
    /// # Errors
    /// `Unavailable` if the dictionary of paths is full.
    pub(crate) fn add(&mut self, definition: Definition, paths: &Paths) -> Result<()> {
        let path = paths.intern(PathNumber::ROOT, Step::Index(definition.number)).ok_or_else(|| {
            Error::unavailable("there is no room for another path, which an index needs").with_hint(
                "documents have a million distinct paths: keep names that are data out of them, or exclude them",
            )
        })?;
        self.next_number = self.next_number.max(definition.number + 1);
        self.indexes.push(DeclaredIndex { definition: Arc::new(definition), path, is_ready: false });
        self.generation += 1;
        Ok(())
    }

    /// The index of this name.
    pub(crate) fn named(&self, name: &str) -> Option<&DeclaredIndex> {
        self.indexes.iter().find(|index| index.definition.expiry.is_none() && index.definition.name == name)
    }

    /// What keeps this rule of expiry.
    pub(crate) fn expiring(&self, rule: &Rule) -> Option<&DeclaredIndex> {
        self.indexes.iter().find(|index| index.definition.expiry.as_ref() == Some(rule))
    }

    /// The rules of expiry that are in force, each with its path in the postings.
    pub(crate) fn expiries(&self) -> impl Iterator<Item = (&Rule, PathNumber)> {
        let in_force = self.indexes.iter().filter(|index| index.is_ready);
        in_force.filter_map(|index| Some((index.definition.expiry.as_ref()?, index.path)))
    }

    /// The index of this number.
    pub(crate) fn numbered(&self, number: u32) -> Option<&DeclaredIndex> {
        self.indexes.iter().find(|index| index.definition.number == number)
    }

    /// Gives a collection a schema, or takes it away; whether it had another one.
    pub(crate) fn set_schema(&mut self, collection: &str, schema: Option<Schema>) -> bool {
        self.generation += 1;
        self.schemas.set(collection, schema)
    }

    /// Takes the index of this number out.
    pub(crate) fn remove(&mut self, number: u32) {
        self.indexes.retain(|index| index.definition.number != number);
        self.generation += 1;
    }

    /// Notes that the index of this number is ready.
    pub(crate) fn set_ready(&mut self, number: u32) {
        for index in self.indexes.iter_mut().filter(|index| index.definition.number == number) {
            index.is_ready = true;
        }
        self.generation += 1;
    }

    /// Those that refuse a value which another document has.
    pub(crate) fn unique(&self) -> impl Iterator<Item = &DeclaredIndex> {
        self.indexes.iter().filter(|index| index.definition.is_unique)
    }
}

impl Definition {
    /// The key that the document `id` has here; none if it has none, as those have that never end.
    ///
    /// # Errors
    /// `Corrupt` if the packed bytes are damaged.
    pub(crate) fn key(&self, id: &str, document: PackedValue<'_>) -> Result<Option<DeclaredKey>> {
        if let Some(rule) = &self.expiry {
            let end_ms = rule.end_ms(id, document)?;
            return Ok(end_ms.map(|end| DeclaredKey { key: end_key(end), is_partial: true, end_ms }));
        }
        let mut bytes = Vec::new();
        let mut is_partial = false;
        for path in &self.paths {
            let value = document.get(&path.path)?;
            is_partial |= value.is_none_or(|value| value.kind() == Kind::Null);
            path.append(&mut bytes, value)?;
        }
        let mut declared = DeclaredKey { key: Vec::with_capacity(bytes.len() + 8), is_partial, end_ms: None };
        key::encode_joined(&bytes, &mut declared.key);
        Ok(Some(declared))
    }
}

impl Definition {
    /// A document's values here, for people.
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
    /// Appends the part of a key that is this path's.
    fn append(&self, bytes: &mut Vec<u8>, value: Option<PackedValue<'_>>) -> Result<()> {
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
