//! The stored form of settings in the log and the tree: index policy, declared indexes and schemas, as one JSON object.
//!
//! The newest settings in the log are in force. Those in the tree are the ones that its index was built with, as of its
//! checkpoint position.

use crate::index::{DeclaredIndexes, IndexDefinition, Policy};
use crate::retention::HistoryRules;
use crate::schema::CollectionSchemas;
use crate::value::Value;
use crate::{Error, Result};

const FIELD_INDEXES: &str = "indexes";
const FIELD_NEXT_INDEX: &str = "next_index";
const FIELD_SCHEMAS: &str = "schemas";
const FIELD_HISTORY: &str = "history";

/// Decoded settings.
pub(crate) struct Settings {
    pub(crate) policy: Policy,
    pub(crate) definitions: Vec<IndexDefinition>,
    /// The number of the next index.
    pub(crate) next_index: u32,
    pub(crate) schemas: CollectionSchemas,
    pub(crate) history: HistoryRules,
}

impl Settings {
    /// The stored form. If nothing was ever declared, it is that of the policy alone.
    pub(crate) fn encode(policy: &Policy, declared: &DeclaredIndexes) -> Vec<u8> {
        let mut value = policy.to_value();
        if let (Some(object), true) = (value.as_object_mut(), declared.next_number > 1) {
            let definitions = declared.indexes.iter().map(|index| index.definition.to_value());
            object.insert(FIELD_INDEXES, Value::Array(definitions.collect()));
            object.insert(FIELD_NEXT_INDEX, u64::from(declared.next_number));
        }
        if let (Some(object), false) = (value.as_object_mut(), declared.schemas.is_empty()) {
            object.insert(FIELD_SCHEMAS, declared.schemas.to_value());
        }
        if let (Some(object), Some(history)) = (value.as_object_mut(), declared.history.to_value()) {
            object.insert(FIELD_HISTORY, history);
        }
        value.to_json().into_bytes()
    }

    /// Decodes stored settings.
    ///
    /// # Errors
    /// `Invalid` or `Corrupt` if the bytes are not settings.
    pub(crate) fn decode(json: &[u8]) -> Result<Self> {
        let damaged = || Error::corrupt("the stored settings are damaged");
        let mut value = Value::parse(json)?;
        let object = value.as_object_mut().ok_or_else(damaged)?;
        let definitions = match object.remove(FIELD_INDEXES) {
            None => Vec::new(),
            Some(Value::Array(definitions)) => {
                definitions.iter().map(IndexDefinition::from_value).collect::<Result<_>>()?
            }
            Some(_) => return Err(damaged()),
        };
        let next_index = match object.remove(FIELD_NEXT_INDEX) {
            None => 1,
            Some(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()).ok_or_else(damaged)?,
        };
        let schemas =
            object.remove(FIELD_SCHEMAS).as_ref().map(CollectionSchemas::from_value).transpose()?.unwrap_or_default();
        let history =
            object.remove(FIELD_HISTORY).as_ref().map(HistoryRules::from_value).transpose()?.unwrap_or_default();
        Ok(Settings { policy: Policy::from_value(&value)?, definitions, next_index, schemas, history })
    }
}
