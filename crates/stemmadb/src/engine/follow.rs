//! Following the log of another process: its new frames are applied to the memtables and published, one transaction
//! after the other, as if they had been written here.
//!
//! Invariants:
//! - What is published refers only to segments that are complete in the directory, so reads don't depend on the store,
//!   nor on what the owner deletes there. Attachment contents in files, and history, are fetched when they are read.
//! - A segment is forgotten only after the tree holds everything that was applied before the owner retired it.
//! - Nothing is appended to the log.

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::cipher::KEY_FILE;
use crate::engine::log_prescan::LogPrescan;
use crate::engine::recover::restore_declared;
use crate::engine::{Store, key_file};
use crate::index::{DeclaredIndexes, DocumentTerms, TermDifference};
use crate::layout::meta;
use crate::layout::settings::Settings;
use crate::log::{FollowedEnd, Frame, Level, segment_file_name};
use crate::memtable::DocumentState;
use crate::publish::{Published, Written};
use crate::read::{Snapshot, StoreParts};
use crate::revision::Sequence;
use crate::vfs::{Look, StoredVfs};
use crate::{Error, Result};

/// How often a poll looks for the segment after a sealed one.
const LOOKS_MAX: usize = 3;

/// The outcome of a poll.
pub(crate) enum Poll {
    /// Everything that was acknowledged before the poll is published.
    Current,
    /// The log can't be followed any more, for this reason: the database has to be opened again.
    Lost(Error),
}

/// Follows the log of a replica.
pub(crate) struct Follower {
    store: Arc<Store>,
    stored: StoredVfs,
    end: FollowedEnd,
    /// Whether names may have changed that matter here.
    must_look: bool,
    index_builder: Option<JoinHandle<()>>,
}

impl Follower {
    /// Follows the log from where `store`, a replica, was opened.
    pub(crate) fn new(store: &Arc<Store>, stored: StoredVfs) -> Self {
        let end = FollowedEnd::default();
        Follower { store: store.clone(), stored, end, must_look: false, index_builder: None }
    }

    /// Applies what was appended to the log since the last poll. If nothing was, costs one request to the store.
    ///
    /// # Errors
    /// Errors of the store and of the directory: the next poll goes on where this one ended.
    pub(crate) fn poll(&mut self) -> Result<Poll> {
        self.store.parts.refuse_if_closed()?;
        self.store.refuse_if_broken()?;
        for _ in 0..LOOKS_MAX {
            if let Some(lost) = self.ask()? {
                return Ok(Poll::Lost(lost));
            }
            // A segment that is gone was retired before it was read to its end.
            if let Err(error) = self.stored.fetch_segments() {
                let error = Error::io("copy the log", error);
                return if is_gone(&error) { Ok(Poll::Lost(error)) } else { Err(error) };
            }
            let mut lost = None;
            let followed = self.store.parts.log.follow(&mut self.end, &mut |frame| {
                let applied = self.store.apply(&frame);
                lost = applied.is_err().then(|| Error::closed("a frame was applied in part"));
                applied?;
                self.store.merge_if_full()
            });
            match followed {
                Err(error) if lost.is_some() || error.kind() == crate::ErrorKind::Corrupt => {
                    return Ok(Poll::Lost(error));
                }
                followed => followed?,
            }
            if !self.end.is_sealed {
                break;
            }
            self.must_look = true;
        }
        self.forget_retired_segments()?;
        self.finish()?;
        Ok(Poll::Current)
    }

    /// Asks the store what there is. Returns why the log can't be followed any more.
    fn ask(&mut self) -> Result<Option<Error>> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::not_found("the log was deleted"),
            _ => Error::io("look at the log", error),
        };
        // The one that is read, which need not be the last any more.
        let last = segment_file_name(self.store.parts.log.end().segment());
        if !self.must_look && self.stored.measure_segment(&last).map_err(failed)? {
            return Ok(None);
        }
        let changed = match self.stored.look().map_err(failed)? {
            Look::Same(changed) => changed,
            Look::Another => return Ok(Some(Error::not_found("the log was deleted, and another one has its name"))),
        };
        if !self.end.is_sealed && changed.contains(&last) {
            return Ok(Some(Error::not_found(format!("{last} was retired before it was read to its end"))));
        }
        if changed.iter().any(|name| name == KEY_FILE) {
            self.store.reload_keys()?;
        }
        if changed.iter().any(|name| name.starts_with("history/")) {
            self.store.refresh_history(&[])?;
        }
        self.must_look = false;
        Ok(None)
    }

    /// Forgets the segments that the owner has retired. The next look finds their history.
    fn forget_retired_segments(&mut self) -> Result<()> {
        let retired = self.store.parts.log.omitted_segments(&self.end);
        if retired.is_empty() {
            return Ok(());
        }
        self.store.checkpoint_to_end()?;
        let failed = |error| Error::io("look at the log", error);
        if let Look::Same(changed) = self.stored.look().map_err(failed)?
            && changed.iter().any(|name| name == KEY_FILE)
        {
            self.store.reload_keys()?;
        }
        for number in &retired {
            self.store.parts.log.forget_segment(*number)?;
            let name = segment_file_name(*number);
            let forgotten = self.stored.forget_segment(&name);
            forgotten.map_err(|error| Error::io(format_args!("delete the copy of {name}"), error))?;
        }
        self.store.refresh_history(&retired)?;
        self.store.forget_live_bytes(&retired)
    }

    /// Does what the applied frames have left to do.
    fn finish(&mut self) -> Result<()> {
        let store = &self.store;
        if !store.parts.options.background {
            return store.finish_index_work();
        }
        store.watch_idleness();
        let is_building = self.index_builder.as_ref().is_some_and(|builder| !builder.is_finished());
        if is_building || !store.has_buildable_indexes() {
            return Ok(());
        }
        let building = store.clone();
        let thread = std::thread::Builder::new().name("stemma-index".to_owned());
        // An index that is not ready is built again after the next poll.
        let thread = thread.spawn(move || _ = building.build_unfinished()).map_err(Error::no_thread)?;
        self.index_builder = Some(thread);
        Ok(())
    }

    /// Ends the feeds of a database that is not followed any more. It stays readable until it is closed.
    pub(crate) fn abandon(mut self) {
        self.stop();
        self.store.parts.publisher.wake(true);
    }

    /// Waits for the end of index builds.
    pub(crate) fn stop(&mut self) {
        self.store.stop_building();
        if let Some(builder) = self.index_builder.take() {
            // Nothing depends on an index that is not ready.
            builder.join().ok();
        }
    }
}

/// Whether the cause of an error may be that the owner of a log has deleted a file.
pub(crate) fn is_gone(error: &Error) -> bool {
    use std::io::ErrorKind;
    error.io_cause().is_some_and(|cause| matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof))
}

/// What a frame that is followed does beside filling the memtable.
pub(super) struct FrameEffects {
    /// The documents whose winner it changes, if there is an observer.
    written: Option<Vec<Written>>,
    /// The settings in it.
    pub(super) settings: Option<Vec<u8>>,
}

impl FrameEffects {
    /// Takes note of a document that gets a new state, before readers can see it.
    pub(super) fn add(
        &mut self,
        snapshot: &Snapshot,
        old: Option<&DocumentState>,
        state: &DocumentState,
        terms: Option<&DocumentTerms>,
        change: TermDifference<'_>,
    ) -> Result<()> {
        let cache = &snapshot.parts.caches.documents;
        cache.begin(state.sequence);
        cache.touch(state.number, state.sequence, terms, change);
        let Some(written) = &mut self.written else { return Ok(()) };
        let winner = |state: &DocumentState| state.tree.winner().map(|leaf| leaf.revision);
        if old.and_then(winner) == winner(state) {
            return Ok(());
        }
        let document = |state: &DocumentState| state.is_live().then(|| snapshot.winner(state)).transpose();
        let end_ms = terms.and_then(DocumentTerms::end_ms);
        let has_expired =
            snapshot.read_timestamp.as_ref().is_some_and(|now| end_ms.is_some_and(|end| end <= now.now_ms));
        let (old, new) = (old.map_or(Ok(None), document)?, document(state)?.filter(|_| !has_expired));
        if old.is_some() || new.is_some() {
            let (number, id) = (state.number, state.id.clone());
            written.push(Written { number, id, old, new, checks_uniqueness: false });
        }
        Ok(())
    }
}

impl Store {
    /// Whether there are snapshots, such as those of iterators.
    pub(crate) fn has_readers(&self) -> bool {
        Arc::strong_count(&self.parts) > 1
    }

    /// Prepares a replica that was opened.
    pub(super) fn begin_to_follow(&self, known_segments: impl Iterator<Item = u32>) -> Result<()> {
        // The owner numbers them.
        self.parts.shapes.freeze();
        // The tree may be older than the retirement of segments that it knows.
        let segments = self.parts.log.segments_snapshot();
        let lost = known_segments.into_iter().any(|number| !segments.contains(number));
        let in_files = self.parts.log.history().files().iter().map(|file| file.floor).max().unwrap_or(Sequence::ZERO);
        self.raise_floor(if lost { self.parts.publisher.published() } else { in_files })
    }

    /// Applies a frame that another process has appended, and publishes it.
    fn apply(&self, frame: &Frame<'_>) -> Result<()> {
        let parts = &self.parts;
        {
            let mut writer = self.writer.lock();
            let previous_sequence = Sequence(writer.next_sequence.0 - 1);
            let written = parts.publisher.is_observed().then(Vec::new);
            let mut effects = Some(FrameEffects { written, settings: None });
            self.replay_records(frame, &LogPrescan::default(), None, &mut writer, &mut effects)?;
            let effects = effects.take();
            let sequence = Sequence(writer.next_sequence.0 - 1);
            if let Some(settings) = effects.as_ref().and_then(|effects| effects.settings.as_deref()) {
                self.follow_settings(settings, &mut writer)?;
            }
            if sequence > previous_sequence {
                let written = effects.and_then(|effects| effects.written);
                let published = Published { after: previous_sequence, sequence, written };
                parts.publisher.enqueue(frame.end, Level::Flushed, writer.next_number, published);
            }
            self.seal_if_full(&mut writer);
        }
        parts.publisher.advance(&parts.log);
        Ok(())
    }

    /// Puts settings in force that the owner has logged.
    fn follow_settings(&self, stored: &[u8], writer: &mut super::write::Writer) -> Result<()> {
        let parts = &self.parts;
        if stored == parts.settings() {
            return Ok(());
        }
        let settings = Settings::decode(stored)?;
        if settings.policy != parts.policy {
            return Err(Error::closed("the owner has changed which paths are indexed"));
        }
        let compression = settings.compression;
        let before = parts.declared();
        let mut declared = restore_declared(Some(settings), &parts.paths)?;
        for index in before.indexes.iter().filter(|index| index.is_ready) {
            declared.set_ready(index.definition.number);
        }
        let is_dropped = |number| declared.numbered(number).is_none();
        let drops = before.indexes.iter().any(|index| is_dropped(index.definition.number));
        let generation = before.generation + declared.generation;
        let declared = DeclaredIndexes { generation, lacks_collections: before.lacks_collections, ..declared };
        parts.set_compression(compression);
        {
            let _view = self.view.write();
            parts.set_declared(declared);
        }
        if drops {
            self.seal(writer);
            self.find_garbage()?;
            self.request_checkpoint();
        }
        Ok(())
    }

    /// Merges what is sealed while memory is full.
    fn merge_if_full(&self) -> Result<()> {
        if self.memory_bytes() > self.parts.memory_bytes_max() { self.merge_sealed() } else { Ok(()) }
    }

    /// Merges everything that was applied into the tree, which needs nothing before the end of the log then.
    fn checkpoint_to_end(&self) -> Result<()> {
        {
            let mut writer = self.writer.lock();
            writer.log_end = self.parts.log.end();
            self.seal_even_if_empty(&mut writer);
        }
        self.merge_sealed()?;
        self.parts.tree.settle()
    }

    fn forget_live_bytes(&self, retired: &[u32]) -> Result<()> {
        let mut tree = self.parts.tree.write()?;
        retired.iter().try_for_each(|number| meta::forget_segment(&mut tree, *number))?;
        tree.commit()
    }

    /// Takes over the keys that the owner has added.
    fn reload_keys(&self) -> Result<()> {
        let StoreParts { vfs, options, .. } = &*self.parts;
        let (Some(keyring), Some(key)) = (vfs.keyring(), &options.encryption) else { return Ok(()) };
        match key_file::read(&**vfs)? {
            Some(bytes) => keyring.reload(&bytes, key),
            None => Ok(()),
        }
    }

    /// Takes over what the owner keeps of the past, after these segments were retired. Where something is gone, the
    /// floor rises.
    fn refresh_history(&self, retired: &[u32]) -> Result<()> {
        let log = &self.parts.log;
        let segments: Vec<u32> = log.segments().iter().map(|segment| segment.number).collect();
        let gone = log.history().refresh(|number| segments.contains(&number))?;
        let files = log.history().files();
        let in_files = files.iter().map(|file| file.floor).max().unwrap_or(Sequence::ZERO);
        let is_kept = |number: &u32| files.iter().any(|file| file.segment == *number);
        let is_lost = !retired.iter().all(is_kept) || !gone.is_empty();
        self.raise_floor(if is_lost { self.parts.publisher.published() } else { in_files })?;
        let mut tree = self.parts.tree.write()?;
        gone.iter().try_for_each(|file| meta::forget_history_file(&mut tree, file.segment))?;
        files.iter().try_for_each(|file| meta::put_history_file(&mut tree, file.segment))?;
        tree.commit()
    }
}
