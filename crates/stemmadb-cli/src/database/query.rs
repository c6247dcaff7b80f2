//! The query of a request, for databases of this machine and of servers.

use stemmadb::{Query, Selector};

use super::{FindRequest, SortKey};
use crate::failure::Result;

/// The query of a request.
pub(super) fn query_of(request: &FindRequest) -> Result<Query> {
    let mut query = Query::new(Selector::parse(&request.selector)?).skip(request.skip);
    for SortKey { path, descending } in &request.sort {
        query = match (&request.collation, *descending) {
            (None, false) => query.sort(path),
            (None, true) => query.sort_descending(path),
            (Some(language), false) => query.sort_collated(path, language),
            (Some(language), true) => query.sort_collated_descending(path, language),
        };
    }
    if let Some(limit) = request.limit {
        query = query.limit(limit);
    }
    if let Some(token) = &request.page {
        query = query.after(token);
    }
    if let Some(time) = request.timeout {
        query = query.time_limit(time);
    }
    Ok(query)
}
