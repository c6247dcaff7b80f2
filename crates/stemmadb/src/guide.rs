//! Doctests of the samples in docs/guide.

#[doc = include_str!("../../../docs/tutorial.md")]
struct Tutorial;

#[doc = include_str!("../../../docs/guide/documents.md")]
struct Documents;

#[doc = include_str!("../../../docs/guide/bulk.md")]
struct Bulk;

#[doc = include_str!("../../../docs/guide/asynchronous.md")]
struct Asynchronous;

#[doc = include_str!("../../../docs/guide/queries.md")]
struct Queries;

#[doc = include_str!("../../../docs/guide/indexes.md")]
struct Indexes;

#[doc = include_str!("../../../docs/guide/changes.md")]
struct Changes;

#[doc = include_str!("../../../docs/guide/live.md")]
struct Live;

#[cfg(feature = "encryption")]
#[doc = include_str!("../../../docs/guide/encryption.md")]
struct Encryption;

#[doc = include_str!("../../../docs/guide/time-travel.md")]
struct TimeTravel;

#[doc = include_str!("../../../docs/guide/messages.md")]
struct Messages;

#[doc = include_str!("../../../docs/guide/transactions.md")]
struct Transactions;

#[doc = include_str!("../../../docs/guide/durability.md")]
struct Durability;

#[doc = include_str!("../../../docs/guide/backup-and-restore.md")]
struct BackupAndRestore;

#[doc = include_str!("../../../docs/guide/operating.md")]
struct Operating;

#[doc = include_str!("../../../docs/guide/expiration.md")]
struct Expiration;

#[doc = include_str!("../../../docs/guide/schemas.md")]
struct Schemas;

#[doc = include_str!("../../../docs/guide/keys.md")]
struct Keys;

#[doc = include_str!("../../../docs/guide/collections.md")]
struct Collections;

#[doc = include_str!("../../../docs/guide/views.md")]
struct Views;

#[doc = include_str!("../../../docs/guide/files.md")]
struct Files;

#[doc = include_str!("../../../docs/guide/replication.md")]
struct Replication;

#[doc = include_str!("../../../docs/guide/mirror.md")]
struct Mirror;
