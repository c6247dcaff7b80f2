//! Adapts a [`ViewProgram`] to the engine's [`Mapping`].

use std::sync::Arc;

use super::reduce::CountingReducer;
use super::{ViewProgram, keys};
use crate::document::Document;
use crate::value::Value;
use crate::value::collate::VERSION;
use crate::varint;
use crate::view::definition::{Emitted, Mapping, Refresh};
use crate::view::layout::damaged;
use crate::view::reduce::{Reducer, row_value, stored_value};
use crate::{Error, Result};

/// A [`ViewProgram`] as a [`Mapping`].
pub(in crate::view) struct ProgramMapping {
    program: Arc<dyn ViewProgram>,
}

impl ProgramMapping {
    pub(in crate::view) fn new(program: Arc<dyn ViewProgram>) -> Self {
        ProgramMapping { program }
    }
}

impl Mapping for ProgramMapping {
    fn name(&self) -> &str {
        self.program.name()
    }

    fn version(&self) -> String {
        format!("{VERSION} program")
    }

    fn includes_design_documents(&self) -> bool {
        self.program.includes_design_documents()
    }

    fn refresh(&self) -> Refresh {
        Refresh::Lazy
    }

    fn map(&self, documents: &[&Document]) -> Result<Vec<Result<Emitted>>> {
        let mapped = self.program.map(documents)?;
        if mapped.len() != documents.len() {
            return Err(Error::internal(format!("`{}` did not map every document", self.name())));
        }
        let is_partitioned = self.program.is_partitioned();
        let emitted = |(document, rows): (&&Document, Result<Vec<(Value, Value)>>)| {
            let id = document.id().as_str();
            let partition = is_partitioned.then(|| keys::partition_prefix(keys::partition_of(id)));
            let stored = |(emitted, value)| {
                let key = keys::key_bytes_within(partition.as_ref(), &emitted);
                (keys::row_key(&key, id), stored_row(&emitted, &value))
            };
            let mut rows: Emitted = rows?.into_iter().map(stored).collect();
            rows.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(rows)
        };
        Ok(documents.iter().zip(mapped).map(emitted).collect())
    }

    fn reducer(&self) -> Option<Arc<dyn Reducer>> {
        Some(Arc::new(CountingReducer::new(self.program.clone())))
    }
}

fn stored_row(key: &Value, value: &Value) -> Vec<u8> {
    let (mut json, mut stored) = (Vec::new(), Vec::new());
    key.write_json(&mut json);
    varint::write(json.len() as u64, &mut stored);
    stored.extend_from_slice(&json);
    stored.extend_from_slice(&stored_value(value));
    stored
}

/// Splits a stored row into the emitted key as JSON and the stored value.
pub(super) fn split_row(stored: &[u8]) -> Result<(&[u8], &[u8])> {
    let mut rest = stored;
    let length = varint::read(&mut rest)?;
    rest.split_at_checked(length as usize).ok_or_else(|| damaged("a row"))
}

/// Decodes the emitted key and value of a row.
pub(super) fn decode_row(stored: &[u8]) -> Result<(Value, Value)> {
    let (key, value) = split_row(stored)?;
    Ok((row_value(key)?, row_value(value)?))
}
