//! The parameters of a view query.

use stemmadb::past::At;
use stemmadb::views::{ProgramQuery, ProgramView, RowBound, RowChoice};
use stemmadb::{Access, Value};

use super::row_parameters::{Precedence, RowParameters, incompatible_keys};
use crate::app::parse_as_of;
use crate::auth::refused;
use crate::documents::check_partition;
use crate::error::{Failure, Result};
use crate::http::Query;

/// The parameters of a view query.
#[derive(Debug, Clone, Default)]
pub(super) struct ViewQuery {
    choice: RowChoice,
    descending: bool,
    pub(super) limit: Option<u64>,
    pub(super) skip: u64,
    /// `None`: reduce if the view has a reduce function.
    reduce: Option<bool>,
    /// `Some(None)` groups by whole keys, `Some(Some(n))` by the first `n` elements of array keys.
    pub(super) group: Option<Option<usize>>,
    pub(super) include_docs: bool,
    pub(super) update_seq: bool,
    pub(super) is_sorted: bool,
    /// The partition that the request names.
    partition: Option<String>,
    access: Access,
    /// The point in the past as of which rows are returned.
    pub(super) as_of: Option<At>,
}

impl ViewQuery {
    pub(super) fn parse(query: &Query, body: Option<&Value>, precedence: Precedence) -> Result<Self> {
        let parameters = RowParameters::new(query, body, precedence)?;
        let descending = parameters.flag("descending")?.unwrap_or(false);
        let group = match (parameters.number("group_level")?, parameters.flag("group")?) {
            (Some(0), _) => None,
            (Some(level), _) => Some(Some(usize::try_from(level).unwrap_or(usize::MAX))),
            (None, Some(true)) => Some(None),
            (None, _) => None,
        };
        Ok(ViewQuery {
            choice: parse_choice(&parameters, descending)?,
            descending,
            limit: parameters.number("limit")?,
            skip: parameters.number("skip")?.unwrap_or(0),
            reduce: parameters.flag("reduce")?,
            group,
            include_docs: parameters.flag("include_docs")?.unwrap_or(false),
            update_seq: parameters.flag("update_seq")?.unwrap_or(false),
            is_sorted: parameters.flag("sorted")?.unwrap_or(true),
            partition: parameters.text(&["partition"]),
            access: parse_access(&parameters)?,
            as_of: parse_as_of(query)?,
        })
    }

    /// Whether the query reduces rows.
    ///
    /// # Errors
    /// 400 if the parameters don't fit the view.
    pub(super) fn is_reduced(&self, can_reduce: bool) -> Result<bool> {
        let invalid = |reason: &'static str| Err(Failure::query_parse(reason));
        let is_reduced = self.reduce.unwrap_or(can_reduce);
        match (is_reduced, can_reduce) {
            (true, false) => return invalid("Reduce is invalid for map-only views."),
            (false, _) if self.group.is_some() => return invalid("Invalid use of grouping on a map view."),
            (true, _) if self.include_docs => return invalid("`include_docs` is invalid for reduce"),
            _ => {}
        }
        let key_count = match &self.choice {
            RowChoice::Keys(keys) => keys.len(),
            RowChoice::Ranges(ranges) => ranges.len(),
            _ => 0,
        };
        if is_reduced && self.group.is_none() && key_count > 1 {
            return invalid("Multi-key fetches for reduce views must use `group=true`");
        }
        Ok(is_reduced)
    }

    /// Checks that the query names a partition exactly if the view has partitions.
    ///
    /// # Errors
    /// 400 if it does not.
    pub(super) fn check_partition(&self, is_partitioned: bool) -> Result<()> {
        match (is_partitioned, &self.partition) {
            (true, None) => Err(Failure::query_parse("`partition` parameter is mandatory for queries to this view.")),
            (false, Some(_)) => Err(Failure::query_parse("`partition` parameter is not supported in this design doc")),
            (true, Some(partition)) => check_partition(partition),
            (false, None) => Ok(()),
        }
    }

    /// The same query of a view that is not stored by partition.
    pub(super) fn of_all_partitions(self) -> Self {
        ViewQuery { partition: None, ..self }
    }

    /// Takes `skip` and `limit` out of a query whose rows are filtered before they are counted.
    ///
    /// # Errors
    /// 403 if the query's result can't be made of the rows of some documents: a reduction, or rows of earlier states.
    pub(super) fn unlimited(&self, can_reduce: bool) -> Result<Self> {
        if self.is_reduced(can_reduce)? {
            return Err(refused("a reduction (use `reduce=false`)"));
        }
        if !self.needs_update() {
            return Err(refused("a view that is not updated (`update`, `stale`)"));
        }
        Ok(ViewQuery { skip: 0, limit: None, ..self.clone() })
    }

    /// Whether the single row of a reduction is within `skip` and `limit`.
    pub(super) fn shows_reduction(&self) -> bool {
        self.skip == 0 && self.limit != Some(0)
    }

    /// Whether the view is updated before the rows are read.
    pub(super) fn needs_update(&self) -> bool {
        self.access == Access::UpdateBefore
    }

    pub(super) fn program_query(&self, view: &ProgramView) -> ProgramQuery {
        let query = view.query().among(self.choice.clone()).descending(self.descending);
        let query = query.skip(self.skip).access(self.access);
        let query = match &self.partition {
            Some(partition) => query.within(partition),
            None => query,
        };
        match self.limit {
            Some(limit) => query.limit(limit),
            None => query,
        }
    }
}

fn parse_choice(parameters: &RowParameters<'_>, descending: bool) -> Result<RowChoice> {
    let key = parameters.json(&["key"])?;
    let start = parameters.json(&["startkey", "start_key"])?;
    let end = parameters.json(&["endkey", "end_key"])?;
    let start_id = parameters.text(&["startkey_docid", "start_key_doc_id"]);
    let end_id = parameters.text(&["endkey_docid", "end_key_doc_id"]);
    let (lower_id, upper_id) = if descending { (&end_id, &start_id) } else { (&start_id, &end_id) };
    match parameters.json(&["keys"])? {
        None => {}
        Some(Value::Array(keys)) if !keys.is_empty() && (key.is_some() || start.is_some() || end.is_some()) => {
            return Err(incompatible_keys());
        }
        // Rows are returned in the order of the requested keys, reversed if descending.
        Some(Value::Array(mut keys)) => {
            if descending {
                keys.reverse();
            }
            if lower_id.is_none() && upper_id.is_none() {
                return Ok(RowChoice::Keys(keys));
            }
            // The ids bound the rows of every key.
            let bound =
                |key: &Value, id: &Option<String>| RowBound { key: key.clone(), id: id.clone(), is_inclusive: true };
            let ranges = keys.iter().map(|key| (bound(key, lower_id), bound(key, upper_id)));
            return Ok(RowChoice::Ranges(ranges.collect()));
        }
        Some(_) => return Err(Failure::bad_request("`keys` must be an array.")),
    }
    let is_inclusive = parameters.flag("inclusive_end")?.unwrap_or(true);
    let bound = |key: Option<Value>, id, is_inclusive| key.map(|key| RowBound { key, id, is_inclusive });
    let (start, end) = match key {
        Some(key) => (Some(key.clone()), Some(key)),
        None => (start, end),
    };
    let (start, end) = (bound(start, start_id, true), bound(end, end_id, is_inclusive));
    let choice = if descending { RowChoice::Range(end, start) } else { RowChoice::Range(start, end) };
    if choice.is_reversed() {
        return Err(Failure::query_parse(
            "No rows can match your key range, reverse your start_key and end_key or set descending=true",
        ));
    }
    Ok(choice)
}

fn parse_access(parameters: &RowParameters<'_>) -> Result<Access> {
    match (
        parameters.text(&["update"]).as_deref(),
        parameters.text(&["stale"]).as_deref(),
        parameters.flag("update").ok().flatten(),
    ) {
        (None, None, None) | (Some("true"), _, _) | (None, _, Some(true)) => Ok(Access::UpdateBefore),
        (Some("false"), _, _) | (None, Some("ok"), None) | (None, _, Some(false)) => Ok(Access::NoUpdate),
        (Some("lazy"), _, _) | (None, Some("update_after"), None) => Ok(Access::UpdateAfter),
        (Some(_), _, _) => Err(Failure::query_parse("Invalid value for `update`.")),
        (None, Some(_), _) => Err(Failure::query_parse("Invalid value for `stale`.")),
    }
}
