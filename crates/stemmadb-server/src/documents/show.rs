//! The query parameters that select which document metadata a response includes.

use super::files::FileView;
use super::outgoing::ShowOptions;
use super::revs::parse_revisions;
use crate::error::Result;
use crate::http::Query;

/// Parses `revs`, `conflicts`, `attachments` and the related query parameters.
pub(crate) fn parse_show_options(query: &Query) -> Result<ShowOptions> {
    let meta = query.flag("meta", false)?;
    let since = match query.json("atts_since")? {
        Some(list) => parse_revisions(&list)?,
        None => Vec::new(),
    };
    let content = query.flag("attachments", false)? || query.text("atts_since").is_some();
    Ok(ShowOptions {
        revs: query.flag("revs", false)?,
        revs_info: meta || query.flag("revs_info", false)?,
        conflicts: meta || query.flag("conflicts", false)?,
        deleted_conflicts: meta || query.flag("deleted_conflicts", false)?,
        local_seq: query.flag("local_seq", false)?,
        files: FileView { content, since, follows: false },
    })
}
