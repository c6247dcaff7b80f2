//! Operations on databases: list, create, delete, describe, flush.

use stemmadb::Value;

use super::super::call::{Call, object};
use super::super::failure::Result;
use super::super::rights::RightsOf;

pub(super) fn list(call: &Call<'_>) -> Result<Vec<u8>> {
    call.allow(RightsOf::AllDatabases, None)?;
    let names = call.server.state.directory.names().into_iter().map(Value::from).collect::<Vec<_>>();
    Ok(call.reply(&Value::Array(names)))
}

pub(super) fn create(call: &Call<'_>) -> Result<Vec<u8>> {
    call.allow(RightsOf::CreateDatabase, None)?;
    call.server.wait(call.server.state.directory.create(call.request.database))?;
    Ok(call.reply(&Value::Null))
}

pub(super) fn delete(call: &Call<'_>) -> Result<Vec<u8>> {
    call.allow(RightsOf::DeleteDatabase, None)?;
    call.server.wait(call.server.state.directory.delete(call.request.database))?;
    Ok(call.reply(&Value::Null))
}

pub(super) fn info(call: &Call<'_>) -> Result<Vec<u8>> {
    let (served, restriction) = call.open_restricted(RightsOf::Info, None)?;
    let mut info = served.database().info()?;
    if let Some(restriction) = restriction {
        info.document_count = served.database().find(restriction.selector()).count()?;
        info.deleted_count = 0;
    }
    let info = object([
        ("documents", info.document_count.into()),
        ("deleted", info.deleted_count.into()),
        ("sequence", served.database().sequence().get().into()),
        ("instance", served.instance_id().into()),
    ]);
    Ok(call.reply(&info))
}

pub(super) fn flush(call: &Call<'_>) -> Result<Vec<u8>> {
    call.open_restricted(RightsOf::Flush, None)?.0.database().flush()?;
    Ok(call.reply(&Value::Null))
}
