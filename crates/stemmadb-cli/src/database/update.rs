//! Updates of documents by patches, and deletions of all documents that match.

use stemmadb::{DocumentId, Edit, Patch, Selector, Value};

use super::{Database, document_not_found, durability_of};
use crate::arguments::DurabilityChoice;
use crate::failure::Result;

impl Database {
    /// Updates `revision` of a document, or its current revision; returns the new revision.
    pub(crate) fn update(
        &self,
        id: &str,
        revision: Option<&str>,
        patch: &Value,
        durability: DurabilityChoice,
    ) -> Result<String> {
        let edit = update_of(id, revision, patch)?;
        Ok(self.inner.with_durability(durability_of(durability)).edit(edit)?.to_string())
    }

    /// Checks an update without writing it; returns the revision that it would change.
    pub(crate) fn check_update(&self, id: &str, revision: Option<&str>, patch: &Value) -> Result<String> {
        let patch = Patch::parse(patch)?;
        let document = match revision {
            Some(revision) => self.inner.get_revision(id, &revision.parse()?)?,
            None => self.inner.get(id)?,
        };
        let document = document.ok_or_else(|| document_not_found(id))?;
        patch.apply(&document.value()?)?;
        Ok(document.revision().to_string())
    }

    /// Updates all documents that match, in one transaction; returns how many changed.
    pub(crate) fn update_where(&self, selector: &Value, patch: &Value, durability: DurabilityChoice) -> Result<u64> {
        let (selector, patch) = (Selector::parse(selector)?, Patch::parse(patch)?);
        Ok(self.inner.with_durability(durability_of(durability)).update_where(selector, &patch)?)
    }

    /// The number of documents that [`Database::update_where`] would change.
    pub(crate) fn count_updates(&self, selector: &Value, patch: &Value) -> Result<u64> {
        let (selector, patch) = (Selector::parse(selector)?, Patch::parse(patch)?);
        let mut count = 0;
        for document in self.inner.find(selector).run()? {
            let body = document?.value()?;
            count += u64::from(patch.apply(&body)? != body);
        }
        Ok(count)
    }

    /// Deletes all documents that match, in one transaction; returns how many.
    pub(crate) fn delete_where(&self, selector: &Value, durability: DurabilityChoice) -> Result<u64> {
        Ok(self.inner.with_durability(durability_of(durability)).delete_where(Selector::parse(selector)?)?)
    }
}

pub(super) fn update_of(id: &str, revision: Option<&str>, patch: &Value) -> Result<Edit> {
    let revision = revision.map(str::parse).transpose()?;
    Ok(Edit::Update { id: DocumentId::new(id)?, revision, patch: Patch::parse(patch)? })
}
