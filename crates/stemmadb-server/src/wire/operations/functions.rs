//! Calls of the program's functions.

use stemmadb::Value;

use super::super::call::Call;
use super::super::failure::Result;
use super::super::rights::RightsOf;
use crate::functions::FunctionContext;

/// Calls a function; the result is the function's.
pub(super) fn call(call: &Call<'_>) -> Result<Vec<u8>> {
    let (served, restriction) = call.open_restricted(RightsOf::CallFunction, None)?;
    let input = call.arguments.get("input").cloned().unwrap_or(Value::Null);
    let limits = call.server.state.settings.config().limits.clone();
    let context = FunctionContext::new(served.into_served(), call.write_options(restriction, false), limits.query_time);
    let output = call.server.state.functions.call(call.text("name")?, input, &context, limits.body_bytes)?;
    Ok(call.reply(&output))
}
