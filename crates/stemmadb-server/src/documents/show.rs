//! The query parameters that say what is shown of a document.

use super::files::FileView;
use super::outgoing::Show;
use super::revs::revision_list;
use crate::error::Result;
use crate::http::Query;

/// What a request's query asks to see of documents.
pub(crate) fn show_of(query: &Query) -> Result<Show> {
    let meta = query.flag("meta", false)?;
    let since = match query.json("atts_since")? {
        Some(list) => revision_list(&list)?,
        None => Vec::new(),
    };
    let content = query.flag("attachments", false)? || query.text("atts_since").is_some();
    Ok(Show {
        revs: query.flag("revs", false)?,
        revs_info: meta || query.flag("revs_info", false)?,
        conflicts: meta || query.flag("conflicts", false)?,
        deleted_conflicts: meta || query.flag("deleted_conflicts", false)?,
        local_seq: query.flag("local_seq", false)?,
        files: FileView { content, since, follows: false },
    })
}
