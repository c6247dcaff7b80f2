//! Dictionaries for compressed bodies: made from documents that are stored, logged, and then used for new bodies.
//!
//! Invariant: a dictionary is appended to the log under the writer lock before it is used, so it precedes every body
//! that needs it, and a crash that loses it loses those as well.

use crate::Result;
use crate::compression::DocumentCompression;
use crate::engine::Store;
use crate::engine::background::Work;
use crate::engine::write::Writer;
use crate::index::DocumentNumber;
use crate::layout::FIRST_NUMBER;
use crate::layout::record::Record;
use crate::layout::settings::{CompressionSetting, Settings};
use crate::log::Level;

/// How many documents a dictionary is made from, at most, and how many bytes they have.
const SAMPLE_COUNT_MAX: u64 = 4_096;
const SAMPLE_BYTES_MAX: usize = 256 << 10;

impl Store {
    /// Appends a frame with one record to the log.
    pub(super) fn append_record(&self, writer: &mut Writer, record: &Record<'_>) -> Result<()> {
        let mut payload = self.parts.log.new_payload();
        record.encode(&mut payload);
        writer.log_end = self.parts.log.append(writer.next_sequence, &payload)?.end;
        Ok(())
    }

    /// Logs the compression of what is written from now on, and puts it in force.
    pub(super) fn log_compression(&self, setting: CompressionSetting) -> Result<()> {
        let parts = &self.parts;
        {
            let mut writer = self.writer.lock();
            let settings = Settings::encode(&parts.policy, &parts.declared(), setting);
            self.append_record(&mut writer, &Record::Settings(&settings))?;
            parts.set_compression(setting);
        }
        parts.log.commit(parts.log.end(), Level::Flushed)
    }

    /// Makes a new dictionary, or leaves it to the background, if enough was written since the last one.
    pub(super) fn keep_dictionary_current(&self) {
        if !self.parts.compression.is_training_due() {
            return;
        }
        if self.parts.options.background {
            self.background.schedule(Work::Train, std::time::Duration::ZERO);
        } else {
            self.try_training();
        }
    }

    /// Makes a new dictionary if that succeeds. Nothing depends on it: a later read or write reports an error that
    /// matters.
    pub(super) fn try_training(&self) {
        self.train_dictionary().ok();
    }

    /// Makes a dictionary from the documents there are, and uses it if it is better than the one before.
    pub(super) fn train_dictionary(&self) -> Result<()> {
        let samples = self.dictionary_samples()?;
        let Some(dictionary) = self.parts.compression.train(&samples) else { return Ok(()) };
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        // Another thread may have been faster.
        if self.parts.compression.dictionary_count() == dictionary.number() as usize {
            self.append_record(&mut writer, &Record::from(&dictionary))?;
            self.parts.compression.add(dictionary)?;
            writer.logged_dictionary_count = self.parts.compression.dictionary_count();
        }
        Ok(())
    }

    /// Packed bodies of small documents from all over the database.
    fn dictionary_samples(&self) -> Result<Vec<Vec<u8>>> {
        let snapshot = self.snapshot()?;
        let end = self.parts.publisher.published_numbers().0;
        let step = (end.saturating_sub(FIRST_NUMBER.0) / SAMPLE_COUNT_MAX).max(1);
        let (mut samples, mut byte_count) = (Vec::new(), 0);
        // The newest first: they are like those that follow.
        for number in (FIRST_NUMBER.0..end).rev().step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let Some(state) = snapshot.state(DocumentNumber(number))?.filter(|state| state.is_live()) else { continue };
            let document = snapshot.winner(&state)?;
            let packed = document.packed_bytes();
            if DocumentCompression::is_sample(packed) {
                byte_count += packed.len();
                samples.push(packed.to_vec());
            }
            if byte_count >= SAMPLE_BYTES_MAX {
                break;
            }
        }
        Ok(samples)
    }
}
