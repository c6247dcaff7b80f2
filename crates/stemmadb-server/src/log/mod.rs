//! The log: one line for each request and each problem, as text or JSON.
//!
//! Lines contain the pattern of a route, never the path or the query, and the name of an authenticated user, never a
//! claimed name. They contain nothing else that clients send, so no password, cookie or token can get into the log.

mod queue;
mod recent;

use std::io::Write;
use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;

use crate::error::{Failure, Result};
use queue::{LogQueue, LogWriterThread};
use recent::RecentLayer;
pub(crate) use recent::{LogLine, recent_lines};

/// The level and format of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Log {
    /// The least severe level that is written.
    pub level: Level,
    /// The format of lines.
    pub format: Format,
}

/// The severity of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Level {
    /// Nothing is written.
    Off,
    /// Failures of the server.
    Error,
    /// Problems that an administrator should look at.
    Warn,
    /// Requests.
    #[default]
    Info,
    /// Details for debugging.
    Debug,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

/// The names of levels and formats.
const LEVELS: [(&str, Level); 5] = [
    ("off", Level::Off),
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
];
const FORMATS: [(&str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];

impl Level {
    /// The filter that lets lines of this level and more severe ones pass.
    fn filter(self) -> LevelFilter {
        match self {
            Level::Off => LevelFilter::OFF,
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
        }
    }
}

impl FromStr for Level {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        LEVELS.iter().find(|(name, _)| *name == text).map(|(_, level)| *level).ok_or(())
    }
}

impl FromStr for Format {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        FORMATS.iter().find(|(name, _)| *name == text).map(|(_, format)| *format).ok_or(())
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        LEVELS.iter().find(|(_, level)| level == self).map_or(Ok(()), |(name, _)| f.write_str(name))
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        FORMATS.iter().find(|(_, format)| format == self).map_or(Ok(()), |(name, _)| f.write_str(name))
    }
}

/// An installed log with its writing thread. When dropped, it writes the remaining lines and ends.
#[must_use = "the log ends with it"]
pub struct Logging {
    _writing: Option<LogWriterThread>,
}

/// The target of the lines of the driver of clusters.
const DRIVER: &str = "scylla";

impl Log {
    /// Installs a logger for this process that writes to `writer` until the returned guard is dropped.
    ///
    /// # Errors
    /// 500 if a logger is already installed.
    pub fn install(self, writer: impl Write + Send + 'static) -> Result<Logging> {
        if self.level == Level::Off {
            return Ok(Logging { _writing: None });
        }
        let (queue, level) = (LogQueue::default(), self.level.filter());
        let lines = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(queue.clone());
        // The driver of clusters reports what is no news.
        let targets = Targets::new().with_default(level).with_target(DRIVER, level.min(LevelFilter::WARN));
        let installed = match self.format {
            Format::Text => {
                let lines = lines.finish().with(RecentLayer(recent_lines())).with(targets);
                tracing::subscriber::set_global_default(lines)
            }
            Format::Json => {
                let lines = lines.json().flatten_event(true).finish();
                tracing::subscriber::set_global_default(lines.with(RecentLayer(recent_lines())).with(targets))
            }
        };
        installed.map_err(|error| Failure::internal(error.to_string()))?;
        let writing =
            queue.write_to(writer).map_err(|error| Failure::internal(format!("no thread for the log: {error}")))?;
        Ok(Logging { _writing: Some(writing) })
    }
}
