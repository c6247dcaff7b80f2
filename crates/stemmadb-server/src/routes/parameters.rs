//! The parameters that routes have in common, in groups.

use super::shape::{Parameter, flag, header, json, number, one_of, text};

/// Which part of a list.
pub(super) const PAGE: &[Parameter] = &[
    number("skip", "Leaves out so many of the first."),
    number("limit", "At most so many."),
    flag("descending", "From the last to the first."),
];

/// A range of keys.
pub(super) const RANGE: &[Parameter] = &[
    json("key", "Only this key."),
    json("startkey", "From this key on, in the direction of reading. Also `start_key`."),
    json("endkey", "Up to this key, in the direction of reading. Also `end_key`."),
    flag("inclusive_end", "Whether `endkey` belongs to it; it does unless told."),
];

/// How many.
pub(super) const COUNT: &[Parameter] = &[number("count", "So many; one unless told, at most 1,000.")];

/// Rows with documents, if need be.
pub(super) const DOCUMENTS: &[Parameter] = &[flag("include_docs", "With the documents.")];

/// Revisions, or what came of them.
pub(super) const LATEST: &[Parameter] = &[flag("latest", "Or what came of a revision.")];

/// Rows of documents.
pub(super) const ROWS: &[Parameter] = &[
    json("keys", "Only these keys, a row each, in their order."),
    flag("include_docs", "With the documents."),
    flag("update_seq", "With the sequence of the state that is read."),
];

/// Rows of views beyond those of documents.
pub(super) const VIEW: &[Parameter] = &[
    text("startkey_docid", "Of the rows at `startkey`, from this document on."),
    text("endkey_docid", "Of the rows at `endkey`, up to this document."),
    flag("reduce", "Whether the rows are reduced; they are if the view can."),
    flag("group", "A row for each key."),
    number("group_level", "A row for each beginning of so many elements of array keys."),
    one_of(
        "update",
        &["true", "false", "lazy"],
        "Whether the view is brought up to date before, not at all, or after.",
    ),
    one_of("stale", &["ok", "update_after"], "An older form of `update`."),
    flag("sorted", "Whether the order matters; it does unless told."),
];

/// What is shown of a document beside its body.
pub(super) const SHOW: &[Parameter] = &[
    flag("revs", "With `_revisions`."),
    flag("revs_info", "With `_revs_info`."),
    flag("conflicts", "With `_conflicts`."),
    flag("deleted_conflicts", "With `_deleted_conflicts`."),
    flag("meta", "With all of `revs_info`, `conflicts` and `deleted_conflicts`."),
    flag("local_seq", "With `_local_seq`."),
    flag("attachments", "With the content of files."),
    json("atts_since", "With the content of files newer than these revisions."),
];

/// Which revision is read.
pub(super) const REVISION: &[Parameter] =
    &[text("rev", "This revision; the winning one unless told."), flag("latest", "Or what came of it.")];

/// All revisions that are leaves.
pub(super) const OPEN_REVISIONS: &[Parameter] =
    &[text("open_revs", "`all`, or a JSON array of revisions: each of them, instead of one document.")];

/// What a read need not be answered with.
pub(super) const TAG: &[Parameter] = &[header("If-None-Match", "Answers 304 if this is the tag still.")];

/// A range of bytes.
pub(super) const BYTES: &[Parameter] = &[header("Range", "One range of bytes.")];

/// How a document is written.
pub(super) const WRITE: &[Parameter] = &[
    text("rev", "The revision that is succeeded, if the body does not say."),
    header("If-Match", "The same, as a tag."),
    BATCH,
    NEW_EDITS,
];

/// How several documents are written.
pub(super) const BULK: &[Parameter] = &[BATCH, NEW_EDITS];

const BATCH: Parameter = one_of("batch", &["ok"], "Answers 202 before the write is flushed.");
const NEW_EDITS: Parameter = flag("new_edits", "`false`: revisions from elsewhere, taken as they are.");

/// Where a copy goes.
pub(super) const COPY: &[Parameter] =
    &[header("Destination", "The id of the copy; `?rev=` after it, if there is a document.")];

/// How long a feed goes on.
pub(super) const FEED: &[Parameter] = &[
    one_of(
        "feed",
        &["normal", "longpoll", "continuous", "eventsource"],
        "What there is; or the next; or what comes, a line each; or the same as server-sent events.",
    ),
    text("since", "What came after this sequence; `now` for what comes."),
    header("Last-Event-ID", "The same, as browsers send it."),
    number("limit", "At most so many."),
    number("heartbeat", "Milliseconds after which an idle feed shows that it lives. Also `true`."),
    number("timeout", "Milliseconds after which an idle feed without a heartbeat ends."),
];

/// Which changes.
pub(super) const CHANGES: &[Parameter] = &[
    one_of("style", &["main_only", "all_docs"], "The winning revision, or all leaves."),
    flag("descending", "From the newest to the oldest."),
    flag("include_docs", "With the documents."),
    number("seq_interval", "Only each so many-th row tells its sequence."),
    text("filter", "`_doc_ids`, `_selector`, `_design`, `_view`, or `design/function`."),
    text("view", "The view of `filter=_view`, as `design/view`."),
    json("doc_ids", "The ids of `filter=_doc_ids`."),
];

/// Where a browser goes after it logged in or out.
pub(super) const NEXT: &[Parameter] = &[text("next", "A path of this server to be led to.")];

/// What is watched.
pub(super) const WATCH: &[Parameter] = &[
    json("selector", "What rows must match."),
    json("sort", "The order of rows; makes a window of them, with places."),
    number("limit", "The size of the window, at most 1,000; 25 where there is only a sort."),
    number("skip", "Leaves so many rows out before the window."),
    json("fields", "What is told of rows; all unless told."),
    text("since", "The sequence of the answer that the client has, or `now`: only what came since is told."),
    header("Last-Event-ID", "The same, as browsers send it."),
    number("heartbeat", "Milliseconds between beats of an idle watch; 30,000 unless told."),
];
