//! The operations of the protocol: each reads its arguments, checks rights, calls the library and writes frames.

mod databases;
mod declarations;
mod documents;
mod edits;
mod feeds;
mod files;
mod functions;
mod keys;
mod past;
mod queries;
mod shards;
mod transactions;
mod views;

use stemmadb::Value;
use stemmadb_wire::Operation;

use super::call::Call;
use super::failure::Result;

/// Executes a request; returns its last frame.
pub(super) fn execute(call: &Call<'_>) -> Result<Vec<u8>> {
    if let Some(operation) = shards::operation(call.request.operation)
        && call.is_virtual()
    {
        return shards::pass_on_if_elsewhere(call, operation(call));
    }
    shards::pass_on_if_elsewhere(call, execute_here(call))
}

/// Executes a request on a database of this server.
fn execute_here(call: &Call<'_>) -> Result<Vec<u8>> {
    match call.request.operation {
        Operation::Noop => Ok(call.reply(&Value::Null)),
        Operation::Databases => databases::list(call),
        Operation::CreateDatabase => databases::create(call),
        Operation::DeleteDatabase => databases::delete(call),
        Operation::Info => databases::info(call),
        Operation::Flush => databases::flush(call),
        Operation::Get => documents::get(call),
        Operation::GetMany => documents::get_many(call),
        Operation::GetRevision => documents::get_revision(call),
        Operation::Edit => edits::edit(call),
        Operation::Bulk => edits::bulk(call),
        Operation::Transact => transactions::transact(call),
        Operation::UpdateWhere => transactions::update_where(call),
        Operation::Batch => transactions::batch(call),
        Operation::ReadFile => files::read(call),
        Operation::AttachFile => files::attach(call),
        Operation::Find => queries::find(call),
        Operation::Count => queries::count(call),
        Operation::Aggregate => queries::aggregate(call),
        Operation::Distinct => queries::distinct(call),
        Operation::Explain => queries::explain(call),
        Operation::Summary => queries::summary(call),
        Operation::Extreme => queries::extreme(call),
        Operation::GroupBy => queries::group_by(call),
        Operation::OpenSnapshot => queries::open_snapshot(call),
        Operation::CloseSnapshot => queries::close_snapshot(call),
        Operation::KeyGet => keys::get(call),
        Operation::KeyList => keys::list(call),
        Operation::KeySet => keys::set(call),
        Operation::KeyRemove => keys::remove(call),
        Operation::KeyIncrement => keys::increment(call),
        Operation::Changes => feeds::changes(call),
        Operation::Subscribe => feeds::subscribe(call),
        Operation::Watch => feeds::watch(call),
        Operation::SubscribePaths => feeds::subscribe_paths(call),
        Operation::ViewDefine => views::define(call),
        Operation::ViewRemove => views::remove(call),
        Operation::ViewList => views::list(call),
        Operation::ViewInfo => views::info(call),
        Operation::ViewQuery => views::query(call),
        Operation::IndexCreate => declarations::create_index(call),
        Operation::IndexRemove => declarations::remove_index(call),
        Operation::IndexList => declarations::list_indexes(call),
        Operation::SchemaRequire => declarations::require_schema(call),
        Operation::SchemaRemove => declarations::remove_schema(call),
        Operation::SchemaList => declarations::list_schemas(call),
        Operation::SchemaViolations => declarations::schema_violations(call),
        Operation::Revisions => past::revisions(call),
        Operation::DocumentAt => past::document_at(call),
        Operation::Differences => past::differences(call),
        Operation::Undelete => past::undelete(call),
        Operation::Revert => past::revert(call),
        Operation::Pin => past::pin(call),
        Operation::Release => past::release(call),
        Operation::Keep => past::keep(call),
        Operation::Retention => past::retention(call),
        Operation::SequenceAt => past::sequence_at(call),
        Operation::CallFunction => functions::call(call),
        Operation::Publish => feeds::publish(call),
        Operation::SubscribeTopic => feeds::subscribe_topic(call),
    }
}
