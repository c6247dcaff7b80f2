//! Progress bars on standard error, shown only on a terminal.

use std::borrow::Cow;
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};

/// A progress bar; cleared when dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar that counts bytes, of unknown total for `None`, and also shows a number of documents.
    pub(crate) fn for_bytes(label: &'static str, bytes: Option<u64>) -> Self {
        let determinate = "{prefix} {bar:30} {percent:>3}%  {msg}  {binary_bytes_per_sec}  {eta} left";
        let indeterminate = "{prefix} {spinner}  {binary_bytes}  {msg}  {binary_bytes_per_sec}";
        Self::new(label, bytes, determinate, indeterminate)
    }

    /// A bar that counts documents, of unknown total for `None`.
    pub(crate) fn for_documents(label: &'static str, count: Option<u64>) -> Self {
        let determinate = "{prefix} {bar:30} {percent:>3}%  {human_pos} of {human_len}  {per_sec}  {eta} left";
        let indeterminate = "{prefix} {spinner}  {human_pos}  {per_sec}";
        Self::new(label, count, determinate, indeterminate)
    }

    /// A bar whose position and length the operation reports.
    pub(crate) fn for_steps(label: &'static str) -> Self {
        let template = "{prefix} {bar:30} {percent:>3}%  {elapsed}  {eta} left";
        Self::new(label, Some(0), template, template)
    }

    fn new(label: &'static str, length: Option<u64>, determinate: &str, indeterminate: &str) -> Self {
        let bar = match length {
            Some(length) => ProgressBar::new(length),
            None => ProgressBar::new_spinner(),
        };
        let template = if length.is_some() { determinate } else { indeterminate };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("━╸ "));
        bar.set_prefix(Cow::Borrowed(label));
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar }
    }

    /// Sets the position.
    pub(crate) fn set_position(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// Sets the position and the length.
    pub(crate) fn set_position_and_length(&self, position: u64, length: u64) {
        self.bar.set_length(length);
        self.bar.set_position(position);
    }

    /// Sets the number of documents shown beside the bar, which counts bytes.
    pub(crate) fn set_document_count(&self, count: u64) {
        let seconds = self.bar.elapsed().as_secs_f64();
        let rate = if seconds > 0.0 { (count as f64 / seconds) as u64 } else { 0 };
        self.bar.set_message(format!("{} documents, {}/s", HumanCount(count), HumanCount(rate)));
    }

    /// A summary such as `imported 50,000 documents in 1.2 s (41,666/s)`.
    pub(crate) fn summary(&self, done: &str, count: u64) -> String {
        let seconds = self.bar.elapsed().as_secs_f64();
        let documents = if count == 1 { "document" } else { "documents" };
        let summary = format!("{done} {} {documents} in {seconds:.1} s", HumanCount(count));
        // The rate of a very short run is not meaningful.
        if seconds < 0.5 { summary } else { format!("{summary} ({}/s)", HumanCount((count as f64 / seconds) as u64)) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
