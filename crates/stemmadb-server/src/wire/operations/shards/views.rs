//! Views of a virtual database: each shard has the rows of its documents, and the results are merged.

use std::sync::Arc;

use stemmadb::views::{MergedQuery, ProgramQuery, ProgramView};
use stemmadb::{Access, Error, Value};

use super::super::super::call::{Call, object};
use super::super::super::failure::Result;
use super::super::super::rights::RightsOf;
use super::super::super::rows::{RowStream, document_value};
use super::super::views::{access, choice, design_of, level, with_range};
use crate::design::DesignView;
use crate::virtual_databases::{EnteredVirtual, Shard};

/// A view, opened in every shard.
struct ShardsView {
    entered: EnteredVirtual,
    /// In the order of the shards.
    parts: Vec<ProgramView>,
}

impl ShardsView {
    /// Opens the view that the request names.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Invalid` if shards are on other servers.
    fn open(call: &Call<'_>, entered: EnteredVirtual) -> Result<Self> {
        if entered.is_spread() {
            return Err(call.unsupported_there());
        }
        let (id, view) = design_of(call.text("name")?);
        let missing = || Error::not_found(format!("there is no view `{view}` in `{id}`"));
        // Of the newest state, also for a read of the past.
        let Shard::Here(of_design) = entered.open.layout().shard_of(&id) else { return Err(call.unsupported_there()) };
        let design = of_design.database().get(&id)?.ok_or_else(missing)?.value()?;
        let open = |served: &Arc<_>| {
            let program = DesignView::new(served, &call.server.state.scripts, &design, view)?;
            Ok(served.database().views().open_program(Arc::new(program))?)
        };
        let parts = entered.layout().shards().iter().map(open).collect::<Result<_>>()?;
        Ok(ShardsView { entered, parts })
    }

    /// The query of the request in each shard. Rows of documents that another shard owns don't count: there may be some
    /// while documents are copied, and after that until the view is updated.
    fn merged(&self, query: impl Fn(ProgramQuery) -> Result<ProgramQuery>) -> Result<MergedQuery> {
        let layout = self.entered.layout();
        let mut queries = Vec::with_capacity(self.parts.len());
        for (served, part) in layout.shards().iter().zip(&self.parts) {
            let of_shard = query(part.query())?;
            queries.push(match self.entered.state_of(&Shard::Here(served.clone()))? {
                Some(state) => of_shard.as_of(&served.database().as_of(state)?),
                None => of_shard,
            });
        }
        let merged = MergedQuery::over(queries);
        Ok(match layout.is_moving() || layout.has_moved() {
            true => merged.counting(move |shard, id| layout.index_of(id) == shard),
            false => merged,
        })
    }
}

/// Lists the names and definitions of views that are defined by paths.
pub(super) fn list(call: &Call<'_>) -> Result<Vec<u8>> {
    let entered = call.enter_all(RightsOf::Find)?;
    if entered.is_spread() {
        return Err(call.unsupported_there());
    }
    let layout = entered.layout();
    let mut definitions = Vec::new();
    for (index, served) in layout.shards().iter().enumerate() {
        let of_shard = served.database().views().definitions()?.into_iter();
        definitions.extend(of_shard.filter(|(name, _)| layout.index_of(&design_of(name).0) == index));
    }
    definitions.sort_by(|one, other| one.0.cmp(&other.0));
    let mut rows = RowStream::new(call);
    for (name, definition) in definitions {
        rows.add_value(&[name.into(), definition].into())?;
    }
    Ok(rows.finish(&[]))
}

/// The state of a view in all shards; with `update`, after it was updated. `seq` is null.
pub(super) fn info(call: &Call<'_>) -> Result<Vec<u8>> {
    let design = design_of(call.text("name")?).0;
    call.allow(RightsOf::View, Some(&design))?;
    let view = ShardsView::open(call, call.enter_all(RightsOf::View)?)?;
    let (mut row_count, mut failed_count, mut failures) = (0, 0, Vec::new());
    for part in &view.parts {
        if call.flag("update") {
            part.update()?;
        }
        let info = part.info()?;
        row_count += info.row_count;
        failed_count += info.failed_count;
        failures.extend(info.failures.iter().map(|(id, error)| Value::from_iter([id.to_string(), error.clone()])));
    }
    Ok(call.reply(&object([
        ("rows", row_count.into()),
        ("failed", failed_count.into()),
        ("failures", failures.into()),
        ("seq", 0.into()),
        ("progress", Value::Null),
    ])))
}

/// Streams rows or groups, counts or reduces.
pub(super) fn query(call: &Call<'_>) -> Result<Vec<u8>> {
    let design = design_of(call.text("name")?).0;
    call.allow(RightsOf::View, Some(&design))?;
    let access = access(call)?;
    if access == Access::UpdateBefore {
        // Without the fence, so that an update delays no move. Documents that are written during it are added below.
        let ShardsView { entered, parts } = ShardsView::open(call, call.enter_all(RightsOf::View)?)?;
        drop(entered);
        parts.iter().try_for_each(ProgramView::update)?;
    }
    let (entered, _) = call.enter_restricted(RightsOf::View)?;
    let view = ShardsView::open(call, entered)?;
    let (choice, is_descending) = (choice(call)?, call.flag("descending"));
    let merged =
        view.merged(|query| with_range(call, query.access(access).descending(is_descending).among(choice.clone())))?;
    let layout = view.entered.layout();
    let mut rows = RowStream::new(call);
    match call.optional_text("shape").unwrap_or("rows") {
        "rows" => {
            let mut found = merged.rows()?;
            // Documents may change their shards from now on.
            drop(view);
            while let Some(row) = found.next().transpose()? {
                let (_, row) = row;
                let document = match call.flag("documents") {
                    true => {
                        let id = row.value.get("_id").and_then(Value::as_str).unwrap_or(&row.id);
                        found.snapshot(layout.index_of(id)).get(id)?
                    }
                    false => None,
                };
                let mut value = object([("id", row.id.into()), ("key", row.key), ("value", row.value)]);
                if let (Some(document), Some(fields)) = (document, value.as_object_mut()) {
                    fields.insert("document", document_value(&document, &document.attachments()?)?);
                }
                rows.add_value(&value)?;
            }
            Ok(rows.finish(&[("stale", (access != Access::UpdateBefore).into())]))
        }
        "count" => Ok(call.reply(&merged.rows()?.try_fold(0u64, |count, row| row.map(|_| count + 1))?.into())),
        "reduce" => Ok(call.reply(&Value::Array(merged.reduce()?.into_iter().collect()))),
        "groups" => {
            for group in merged.groups(level(call)?)? {
                let (key, reduced) = group?;
                rows.add_value(&[key, reduced].into())?;
            }
            Ok(rows.finish(&[]))
        }
        other => Err(Error::invalid(format!("there are no rows of shape `{other}`")).into()),
    }
}
