//! Parameters that several routes share, in groups.

use super::operation::{Parameter, flag, header, json, number, one_of, text};

/// Pagination and direction.
pub(super) const PAGE: &[Parameter] = &[
    number("skip", "The number of rows to skip."),
    number("limit", "The maximum number of rows."),
    flag("descending", "Return rows in descending order."),
];

/// A point in the past.
pub(super) const PAST: &[Parameter] = &[text(
    "as_of",
    "Read the database as it was: a sequence, a time such as `2026-11-24T12:00:00Z`, or `-90s`, `-30m`, `-2h`, `-7d`.",
)];

/// Whether a query is run to explain it.
pub(super) const ANALYZE: &[Parameter] =
    &[flag("analyze", "Run the query, and return the actual numbers of rows and the times beside the estimates.")];

/// A range of keys.
pub(super) const RANGE: &[Parameter] = &[
    json("key", "Return only rows with this key."),
    json("startkey", "Start at this key, in the direction of reading. Alias: `start_key`."),
    json("endkey", "Stop at this key, in the direction of reading. Alias: `end_key`."),
    flag("inclusive_end", "Include rows at `endkey`. Default: true."),
];

/// The number of ids.
pub(super) const COUNT: &[Parameter] = &[number("count", "The number of ids. Default: 1; maximum: 1,000.")];

/// Whether rows include documents.
pub(super) const DOCUMENTS: &[Parameter] = &[flag("include_docs", "Include the document in each row.")];

/// Whether requested revisions are replaced by their descendants.
pub(super) const LATEST: &[Parameter] =
    &[flag("latest", "Return the leaf revisions that descend from the requested revision.")];

/// Selection and content of document rows.
pub(super) const ROWS: &[Parameter] = &[
    json("keys", "Return one row for each of these keys, in this order."),
    flag("include_docs", "Include the document in each row."),
    flag("update_seq", "Include the sequence of the snapshot that was read."),
];

/// Parameters that only views have.
pub(super) const VIEW: &[Parameter] = &[
    text("startkey_docid", "Among the rows at `startkey`, start at this document id."),
    text("endkey_docid", "Among the rows at `endkey`, stop at this document id."),
    flag("reduce", "Apply the reduce function. Default: true if the view has one."),
    flag("group", "Reduce the rows of each key separately."),
    number("group_level", "Group array keys by this number of leading elements."),
    one_of("update", &["true", "false", "lazy"], "Update the view before the response, not at all, or afterwards."),
    one_of("stale", &["ok", "update_after"], "Deprecated form of `update`."),
    flag("sorted", "Return rows in key order. Default: true."),
];

/// Document metadata that the response includes.
pub(super) const SHOW: &[Parameter] = &[
    flag("revs", "Include `_revisions`."),
    flag("revs_info", "Include `_revs_info`."),
    flag("conflicts", "Include `_conflicts`."),
    flag("deleted_conflicts", "Include `_deleted_conflicts`."),
    flag("meta", "Same as `revs_info`, `conflicts` and `deleted_conflicts` together."),
    flag("local_seq", "Include `_local_seq`."),
    flag("attachments", "Include the content of attachments."),
    json("atts_since", "Include the content of attachments that were added after these revisions."),
];

/// The revision to read.
pub(super) const REVISION: &[Parameter] = &[
    text("rev", "The revision to read. Default: the winning revision."),
    flag("latest", "Read the leaf revision that descends from `rev`."),
];

/// Several leaf revisions of a document.
pub(super) const OPEN_REVISIONS: &[Parameter] =
    &[text("open_revs", "`all`, or a JSON array of revisions: return these revisions instead of one document.")];

/// A conditional read.
pub(super) const TAG: &[Parameter] = &[header("If-None-Match", "Return 304 if the entity tag still matches.")];

/// A range of bytes.
pub(super) const BYTES: &[Parameter] = &[header("Range", "A single range of bytes.")];

/// How a document is written.
pub(super) const WRITE: &[Parameter] = &[
    text("rev", "The parent revision, if the body has no `_rev`."),
    header("If-Match", "The parent revision as an entity tag."),
    BATCH,
    NEW_EDITS,
];

/// Which targets of replications a write waits for.
pub(super) const WAIT: &[Parameter] = &[WAIT_FOR, WAIT_TIMEOUT];

/// How several documents are written.
pub(super) const BULK: &[Parameter] = &[BATCH, NEW_EDITS, WAIT_FOR, WAIT_TIMEOUT];

const WAIT_FOR: Parameter = text(
    "wait_for",
    "Wait until targets of replications have the write durably: their names, separated by commas, or a number.",
);
const WAIT_TIMEOUT: Parameter = number(
    "wait_timeout",
    "The milliseconds to wait; the response is then 202 with the `missing` targets. Default: 10000.",
);
const BATCH: Parameter = one_of("batch", &["ok"], "Return 202 before the write is durable.");
const NEW_EDITS: Parameter =
    flag("new_edits", "`false`: store replicated revisions as they are, without conflict checks. Default: true.");

/// Which keys are listed.
pub(super) const KEY_LIST: &[Parameter] =
    &[text("prefix", "Return only keys that begin with this text."), number("limit", "The maximum number of rows.")];

/// Options of a new database.
pub(super) const NEW_DATABASE: &[Parameter] = &[
    flag("partitioned", "Whether the id of each document names its partition, as `partition:id`."),
    flag("memory", "Keep the database in memory only: it is gone when the server stops."),
    text("log", "Where the log is kept, as `s3://bucket/prefix`. A log that exists is taken over."),
    number("shards", "Create a virtual database, whose documents are stored in this number of databases."),
    text(
        "servers",
        "With `shards`: the names of servers, separated by commas, that get a shard in turns; `here` is this one.",
    ),
    flag("adopt", "Take over a virtual database whose server is lost: the body has the databases of its `shards`."),
    number("replicas", "With `servers`: how many of the other servers have a replica of each shard."),
    number("shard_bytes_max", "With `shards`: the bytes of documents above which a shard is split. Default: never."),
    text(
        "prefix",
        "With `shards`: the character that ends the prefix of an id; documents with one prefix stay together.",
    ),
    json("index", "The index policy: an object with `include` and `exclude`, lists of paths. Default: all paths."),
];

/// How a key is changed.
pub(super) const KEY_WRITE: &[Parameter] = &[one_of("batch", &["ok"], "Respond before the write is durable.")];

/// How a key is set.
pub(super) const KEY_SET: &[Parameter] = &[
    one_of("if", &["absent", "present"], "Set the value only if the key does not exist, or only if it does."),
    json("expected", "Set the value only if the key has this value."),
    flag("previous", "Return the previous value."),
    number("ttl", "The number of seconds after which the key expires. Default: never."),
    one_of("batch", &["ok"], "Respond before the write is durable."),
];

/// The target of a copy.
pub(super) const COPY: &[Parameter] =
    &[header("Destination", "The id of the copy, followed by `?rev=` to replace an existing document.")];

/// The mode and duration of a feed.
pub(super) const FEED: &[Parameter] = &[
    one_of(
        "feed",
        &["normal", "longpoll", "continuous", "eventsource"],
        "Return existing rows; wait for at least one row; stream rows as lines; or stream rows as server-sent events.",
    ),
    text("since", "Return only rows after this sequence. `now` starts at the current sequence."),
    header("Last-Event-ID", "Same as `since`; sent by browsers when they reconnect."),
    number("limit", "The maximum number of rows."),
    number("heartbeat", "Send a heartbeat after this many idle milliseconds. `true` selects 60,000."),
    number("timeout", "Close the feed after this many idle milliseconds if there is no heartbeat."),
];

/// Which lines of the log are returned.
pub(super) const LOG: &[Parameter] = &[
    one_of("level", &["error", "warn", "info", "debug"], "The least severe level that is returned. Default: all."),
    number("limit", "The maximum number of existing lines: the last ones are returned. Default: 1,000."),
    text("since", "Return only lines after the one with this `seq`. `now`: only new lines."),
    header("Last-Event-ID", "Same as `since`; sent by browsers when they reconnect."),
    one_of(
        "feed",
        &["normal", "continuous", "eventsource"],
        "Return existing lines; stream them and new ones as lines; or stream them as server-sent events.",
    ),
    number("heartbeat", "Send a heartbeat after this many idle milliseconds. Default: 30,000."),
];

const PATH: Parameter = text(
    "path",
    "A pattern of paths, such as `color/+`, `orders/%23` or `_id/shops/+`; may be repeated. `+` is not a space.",
);

/// Selection and content of changes.
pub(super) const CHANGES: &[Parameter] = &[
    PATH,
    one_of("style", &["main_only", "all_docs"], "Report the winning revision only, or all leaf revisions."),
    flag("descending", "Return the newest changes first."),
    flag("include_docs", "Include the document in each row."),
    number("seq_interval", "Include the sequence only in every n-th row."),
    text("filter", "`_doc_ids`, `_selector`, `_design`, `_view`, or `design/function`."),
    text("view", "The view for `filter=_view`, as `design/view`."),
    json("doc_ids", "The document ids for `filter=_doc_ids`."),
];

/// Where a browser is redirected after logging in or out.
pub(super) const NEXT: &[Parameter] = &[text("next", "A path of this server to redirect to.")];

/// The query of a live query.
pub(super) const WATCH: &[Parameter] = &[
    json("selector", "A Mango selector: the documents to return."),
    PATH,
    json("sort", "The sort order. A live query with `sort` reports positions within the sorted result."),
    number("limit", "The number of rows in a sorted result. Default: 25; maximum: 1,000."),
    number("skip", "The number of rows to skip in a sorted result."),
    json("fields", "The fields to return. Default: the whole document."),
    text("since", "The sequence of the result that the client already has, or `now`: send only later changes."),
    header("Last-Event-ID", "Same as `since`; sent by browsers when they reconnect."),
    number("heartbeat", "Send a heartbeat after this many idle milliseconds. Default: 30,000."),
];

/// A subscription to messages.
pub(super) const SUBSCRIBE: &[Parameter] = &[
    text(
        "topic",
        "A pattern of topics: levels separated by `/`, where `+` is any one level, and `#` at the end the rest. \
         Several may be given.",
    ),
    number("heartbeat", "Send a heartbeat after this many idle milliseconds. Default: 30,000."),
];

/// A question to a federation.
pub(super) const FEDERATED: &[Parameter] = &[
    flag("partial", "Answer without the members that fail, and name them in `missing`. Default: fail."),
    text("tag", "Ask only the members with this tag."),
    number("timeout", "The milliseconds after which members that have not answered fail. Not for changes."),
];

/// Parameters of the changes of all tiers.
pub(super) const TIER_CHANGES: &[Parameter] = &[
    text("since", "Return only changes after this sequence."),
    number("limit", "The maximum number of rows."),
    flag("include_docs", "Include the document in each row."),
];

/// Changes of a federation.
pub(super) const FEDERATED_CHANGES: &[Parameter] = &[
    text("since", "Return only changes after this position: a `seq` or `last_seq` of the federation."),
    number("limit", "The maximum number of rows, of all members together."),
    flag("include_docs", "Include the document in each row."),
    one_of("style", &["main_only", "all_docs"], "Report the winning revision only, or all leaf revisions."),
];
