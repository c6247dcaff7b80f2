//! Changing the encryption of a database: every file is written again as new files are, with another key, with the
//! first one, or without any.
//!
//! The log is relocated by compaction, segment by segment; runs are merged; history and contents are copied. So a crash
//! leaves a database that works, with some files in either form, and doing it again completes it. Until then the key
//! file has the keys of both.

use std::sync::Arc;

use crate::cipher::{EncryptionKey, Keyring};
use crate::engine::{ActiveTaskKind, Operation, Store, key_file};
use crate::log::RetiredFile;
use crate::options::{Options, Progress};
use crate::{Error, Result};

impl Store {
    /// Has the database opened with another key from now on. Writes one small file.
    ///
    /// # Errors
    /// `Invalid` if the database is not encrypted; those of reading the key; `Unavailable` if the file can't be
    /// written.
    pub(crate) fn rekey(&self, key: &EncryptionKey) -> Result<()> {
        let keyring = self.keyring()?;
        self.parts.refuse_if_closed()?;
        self.refuse_if_read_only()?;
        // First: a copy that is made from now on may need it.
        self.newer_keys.lock().push(key.clone());
        keyring.rewrap(key)?;
        key_file::write(&*self.parts.vfs, &keyring.encode()?)
    }

    /// The keys that copies of the database may need since it was opened, newest first.
    pub(crate) fn user_keys(&self) -> Vec<EncryptionKey> {
        let newer = self.newer_keys.lock();
        newer.iter().rev().chain(&self.parts.options.encryption).cloned().collect()
    }

    /// Replaces the database key, and encrypts everything with the new one.
    ///
    /// # Errors
    /// Those of [`Store::rekey`], and of a compaction.
    pub(crate) fn replace_key(&self, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let keyring = self.keyring()?.clone();
        self.refuse_if_read_only()?;
        keyring.add_key()?;
        key_file::write(&*self.parts.vfs, &keyring.encode()?)?;
        self.reencrypt(progress)?;
        keyring.keep_only_active();
        key_file::write(&*self.parts.vfs, &keyring.encode()?)
    }

    /// Completes the encryption of a database whose files were not encrypted.
    pub(crate) fn complete_encryption(&self, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let keyring = self.keyring()?.clone();
        self.reencrypt(progress)?;
        keyring.set_accepts_plain(false);
        keyring.keep_only_active();
        key_file::write(&*self.parts.vfs, &keyring.encode()?)
    }

    /// Completes the decryption of a database: removes its keys at the end.
    pub(crate) fn complete_decryption(&self, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        self.reencrypt(progress)?;
        key_file::remove(&*self.parts.vfs)
    }

    fn keyring(&self) -> Result<&Arc<Keyring>> {
        self.parts.vfs.keyring().ok_or_else(|| {
            Error::invalid("the database is not encrypted").with_hint("encrypt it first: `stemma encrypt DATABASE`")
        })
    }

    fn refuse_if_read_only(&self) -> Result<()> {
        match self.parts.options {
            Options { read_only: true, .. } => Err(Error::unavailable("the database is open for reading only")),
            Options { is_replica: true, .. } => Err(super::replica_refuses_writes()),
            _ => Ok(()),
        }
    }

    /// Writes everything again that is stored otherwise than new files are.
    fn reencrypt(&self, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        self.refuse_if_closed()?;
        let _running = self.begin(Operation::Compact)?;
        let _compaction = self.compaction.lock();
        let task = self.list_task(ActiveTaskKind::Reencryption, "");
        let mut progress = task.showing(progress);
        let log = &self.parts.log;

        // 1. The log: all segments but the one that is written to from here on.
        self.checkpoint()?;
        log.remove_free()?;
        self.complete_segment()?;
        let wanted = self.parts.vfs.keyring().and_then(|keyring| keyring.active()).unwrap_or(0);
        let old: Vec<_> = log.segments().into_iter().filter(|segment| segment.key != wanted).collect();
        let total: u64 = old.iter().map(|segment| segment.used_bytes).sum();
        let mut done = 0;
        for segment in old {
            if segment.is_active {
                return Err(Error::internal("the active segment is stored otherwise than new ones"));
            }
            let mut show = |bytes: u64| progress(Progress { done: (done + bytes).min(total), total });
            self.compact_segment(segment.number, RetiredFile::Removed, &mut show)?;
            done += segment.used_bytes;
            progress(Progress { done, total });
        }
        log.remove_torn()?;

        // 2. What is kept of retired segments, and contents in files.
        log.history().reencrypt(wanted)?;
        let sweep = self.parts.blobs.begin_sweep();
        self.parts.blobs.reencrypt()?;
        drop(sweep);

        // 3. The tree.
        self.checkpoint()?;
        self.parts.tree.reencrypt()
    }
}
