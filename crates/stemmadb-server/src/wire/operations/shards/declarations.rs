//! Indexes of a virtual database. They are stored in design documents, as over HTTP, so that every shard has them, also
//! one that is added later.

use std::sync::Arc;

use stemmadb::{Document, Error, Index, Object, Value};

use super::super::super::call::{Call, object};
use super::super::super::failure::Result;
use super::super::super::rights::RightsOf;
use super::super::super::rows::RowStream;
use crate::directory::ServedDatabase;
use crate::documents::IncomingDocument;
use crate::mango::{IndexDefinition, ListedIndex, add_to_design_document, without_index};
use crate::virtual_databases::{OpenVirtual, Shard};
use crate::writes::write_one;

/// The design document of an index, and its shard.
struct IndexDesign {
    open: Arc<OpenVirtual>,
    served: Arc<ServedDatabase>,
    id: String,
    current: Option<Document>,
}

impl IndexDesign {
    fn open(call: &Call<'_>, id: String) -> Result<Self> {
        let entered = call.enter_all(RightsOf::CreateIndex)?;
        let open = entered.open.clone();
        if entered.is_spread() {
            return Err(call.unsupported_there());
        }
        let Shard::Here(served) = entered.shard_of(&id) else { return Err(call.unsupported_there()) };
        let current = served.database().get(&id)?;
        Ok(IndexDesign { open, served, id, current })
    }

    fn body(&self) -> Result<Option<Value>> {
        Ok(self.current.as_ref().map(Document::value).transpose()?)
    }

    /// Writes the document, or deletes it, and lets all shards have its indexes.
    fn write(&self, call: &Call<'_>, body: Option<Value>) -> Result<()> {
        let document = IncomingDocument {
            id: Some(self.id.clone()),
            revision: self.current.as_ref().map(|current| *current.revision()),
            deleted: body.is_none(),
            body: body.unwrap_or_else(|| Object::new().into()),
            ..IncomingDocument::default()
        };
        write_one(&self.served, document, &call.write_options(None, true))?;
        Ok(call.server.wait(self.open.sync_indexes())?)
    }
}

/// Declares an index, and builds it in all shards.
pub(super) fn create_index(call: &Call<'_>) -> Result<Vec<u8>> {
    call.allow(RightsOf::CreateIndex, None)?;
    let requested = call.arguments.get("index").ok_or_else(|| Error::invalid("`index` is missing"))?;
    let index = Index::parse(requested)?;
    let name = index.name();
    if index.to_value()?.get("unique") == Some(&true.into()) {
        return Err(call.unsupported("an index of all shards is not unique, so make the value a part of the id"));
    }
    let mut fields = Vec::new();
    for path in index.paths() {
        if path.language().is_some() {
            return Err(call.unsupported("an index of all shards has no collation"));
        }
        let order = if path.is_descending() { "desc" } else { "asc" };
        fields.push(object([(path.path().to_string().as_str(), order.into())]));
    }
    let definition = object([
        ("index", object([("fields", fields.into())])),
        ("ddoc", name.as_str().into()),
        ("name", name.as_str().into()),
    ]);
    let definition = IndexDefinition::parse(&definition)?;
    let design = IndexDesign::open(call, definition.design_id())?;
    if let Some(changed) = add_to_design_document(design.body()?, &definition, false)? {
        design.write(call, Some(changed))?;
    }
    Ok(call.reply(&object([("rows", Value::Array(Vec::new()))])))
}

/// The indexes of all shards, of which one has this name.
fn index_named(call: &Call<'_>, name: &str) -> Result<ListedIndex> {
    let open = call.enter_all(RightsOf::CreateIndex)?.open.clone();
    let found = open.indexes().into_iter().find(|index| index.name == name);
    Ok(found.ok_or_else(|| Error::not_found(format!("there is no index `{name}`")))?)
}

pub(super) fn remove_index(call: &Call<'_>) -> Result<Vec<u8>> {
    call.allow(RightsOf::CreateIndex, None)?;
    let name = call.text("name")?;
    let index = index_named(call, name)?;
    let design = IndexDesign::open(call, index.ddoc)?;
    let body = design.body()?.ok_or_else(|| Error::not_found(format!("there is no index `{name}`")))?;
    design.write(call, without_index(body, false, Some(name))?)?;
    Ok(call.reply(&Value::Null))
}

pub(super) fn list_indexes(call: &Call<'_>) -> Result<Vec<u8>> {
    let open = call.enter_all(RightsOf::ListIndexes)?.open.clone();
    let mut rows = RowStream::new(call);
    for index in open.indexes() {
        let path =
            |(path, is_descending): (&str, bool)| object([("path", path.into()), ("descending", is_descending.into())]);
        rows.add_value(&object([
            ("name", index.name.as_str().into()),
            ("on", index.paths().map(path).collect::<Vec<_>>().into()),
            ("unique", false.into()),
            ("state", "ready".into()),
            ("detail", Value::Null),
        ]))?;
    }
    Ok(rows.finish(&[]))
}
