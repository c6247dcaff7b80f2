//! How far along is it, and how long will it take? Told on standard error, on a terminal only.

use std::borrow::Cow;
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};

/// A line that shows the progress of long work; it clears itself away when dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Work on `bytes` of input, of unknown length for `None`; what is counted besides are documents.
    pub(crate) fn of_bytes(verb: &'static str, bytes: Option<u64>) -> Self {
        let known = "{prefix} {bar:30} {percent:>3}%  {msg}  {binary_bytes_per_sec}  {eta} left";
        let unknown = "{prefix} {spinner}  {binary_bytes}  {msg}  {binary_bytes_per_sec}";
        Self::new(verb, bytes, known, unknown)
    }

    /// Work on `count` documents, of unknown number for `None`.
    pub(crate) fn of_documents(verb: &'static str, count: Option<u64>) -> Self {
        let known = "{prefix} {bar:30} {percent:>3}%  {human_pos} of {human_len}  {per_sec}  {eta} left";
        let unknown = "{prefix} {spinner}  {human_pos}  {per_sec}";
        Self::new(verb, count, known, unknown)
    }

    /// Work that says itself how far it is.
    pub(crate) fn of_work(verb: &'static str) -> Self {
        let template = "{prefix} {bar:30} {percent:>3}%  {elapsed}  {eta} left";
        Self::new(verb, Some(0), template, template)
    }

    fn new(verb: &'static str, length: Option<u64>, known: &str, unknown: &str) -> Self {
        let bar = match length {
            Some(length) => ProgressBar::new(length),
            None => ProgressBar::new_spinner(),
        };
        let template = if length.is_some() { known } else { unknown };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("━╸ "));
        bar.set_prefix(Cow::Borrowed(verb));
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar }
    }

    /// This much is done.
    pub(crate) fn reached(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// This much of that much is done.
    pub(crate) fn reached_of(&self, position: u64, length: u64) {
        self.bar.set_length(length);
        self.bar.set_position(position);
    }

    /// This many documents are through, where the bar itself counts bytes.
    pub(crate) fn documents(&self, count: u64) {
        let seconds = self.bar.elapsed().as_secs_f64();
        let rate = if seconds > 0.0 { (count as f64 / seconds) as u64 } else { 0 };
        self.bar.set_message(format!("{} documents, {}/s", HumanCount(count), HumanCount(rate)));
    }

    /// What the work took, in words: `imported 50,000 documents in 1.2 s (41,666/s)`.
    pub(crate) fn summary(&self, done: &str, count: u64) -> String {
        let seconds = self.bar.elapsed().as_secs_f64();
        let documents = if count == 1 { "document" } else { "documents" };
        let summary = format!("{done} {} {documents} in {seconds:.1} s", HumanCount(count));
        // A rate over the blink of an eye says nothing.
        if seconds < 0.5 { summary } else { format!("{summary} ({}/s)", HumanCount((count as f64 / seconds) as u64)) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
