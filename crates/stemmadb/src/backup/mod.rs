//! Backups, restores and branches: copies of an open database, made of the files of its log.
//!
//! A sealed segment never changes, and the log up to any frame boundary is a complete log. A backup is therefore the
//! sealed segments, the durable beginning of the active one, the contents of attachments, and a *manifest* that lists
//! them and is written last. Backups of a database in one [`Target`] share their files, so that each adds only what is
//! new. On one file system, files are linked rather than copied; then those of the tree are part of the backup, too.
//! Otherwise the tree is computed from the log after a restore.
//!
//! ```text
//! manifest-0000000007.json     the newest backup
//! files/0000000007-…           what backup 7 added: segments, parts of segments, contents, links to the tree
//! LOCK                         locked while a backup is made
//! ```
//!
//! Invariants:
//! - A manifest is created only after everything it lists is flushed, and never replaced: a crash at any step leaves
//!   the earlier backups as they were.
//! - A file is deleted only if no manifest lists it, right after this writer has created the newest manifest.
//! - Of two writers that create the same manifest, one fails and changes nothing more.
//! - A file with two names is never written to: the log reuses no shared file, and a copy of a database has a last
//!   segment of its own ([`restore()`], `branch`).

mod branch;
mod clean;
mod create;
mod cut;
mod destination;
mod directory_target;
mod follow;
mod lag;
mod manifest;
mod rehearse;
mod restore;
mod salvage;
mod ship;
mod target;
mod transfer;
mod verify;

pub(crate) use branch::{branch, branch_to_store};
pub(crate) use create::back_up;
pub use create::{BackupOptions, BackupReport};
pub use directory_target::DirectoryTarget;
pub(crate) use follow::Shared as FollowerState;
pub use follow::{FollowOptions, FollowStatus, Follower};
pub use lag::BackupLag;
pub(crate) use lag::backup_lag;
pub use manifest::{BackupInfo, list};
pub use rehearse::{RestoreCheck, check_restore};
pub use restore::{At, RestoreOptions, RestoreReport, restore, restore_with_progress};
pub use salvage::salvage;
pub use ship::Shipper;
pub use target::{LocalFile, Target};
pub use verify::{BackupDamage, VerifyReport, verify, verify_with_progress};

#[cfg(test)]
mod tests;
