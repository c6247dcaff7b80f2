//! Stands in for schema validation in builds without the `schema` feature.

use crate::value::Value;
use crate::{Error, Result};

/// A compiled schema: never constructed in such a build.
#[derive(Debug)]
pub(super) enum Validator {}

impl Validator {
    /// Fails: this build can't compile schemas.
    ///
    /// # Errors
    /// Always `Unavailable`.
    pub(super) fn compile(_: &Value) -> Result<Self> {
        Err(Error::unavailable("this build of Stemma has no JSON Schema support")
            .with_hint("build it with the cargo feature `schema`"))
    }

    pub(super) fn violation(&self, _: &Value) -> Result<Option<String>> {
        match *self {}
    }
}
