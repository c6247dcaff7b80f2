//! The log: one line for each request, and for what goes wrong; as text or JSON.
//!
//! Lines tell the pattern of a route, never the path or the query; the name of a user who was verified, never one that was claimed. What
//! clients send stays out of it, so no password, cookie or token can get in.

mod lines;

use std::io::Write;
use std::str::FromStr;

use tracing_subscriber::filter::LevelFilter;

use crate::error::{Failure, Result};
use lines::{Lines, Writing};

/// How much is written, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Log {
    /// The least level that is written.
    pub level: Level,
    /// How a line looks.
    pub format: Format,
}

/// How much something matters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Level {
    /// Nothing is written.
    Off,
    /// What went wrong here.
    Error,
    /// What somebody should look at.
    Warn,
    /// Each request too.
    #[default]
    Info,
    /// Also what is of use to those who look for a fault.
    Debug,
}

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// The names of levels, and of formats.
const LEVELS: [(&str, Level); 5] = [
    ("off", Level::Off),
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
];
const FORMATS: [(&str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];

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

/// Writes the log, on a thread of its own; dropped, it writes what is left and ends.
#[must_use = "the log ends with it"]
pub struct Logging {
    _writing: Option<Writing>,
}

impl Log {
    /// Has everything in this process logged to `writer` from now on, until what is returned is dropped.
    ///
    /// # Errors
    /// 500 if something else is logging already.
    pub fn install(self, writer: impl Write + Send + 'static) -> Result<Logging> {
        let level = match self.level {
            Level::Off => return Ok(Logging { _writing: None }),
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
        };
        let to = Lines::default();
        let lines = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(to.clone());
        let installed = match self.format {
            Format::Text => tracing::subscriber::set_global_default(lines.finish()),
            Format::Json => tracing::subscriber::set_global_default(lines.json().flatten_event(true).finish()),
        };
        installed.map_err(|error| Failure::internal(error.to_string()))?;
        let writing =
            to.write_to(writer).map_err(|error| Failure::internal(format!("no thread for the log: {error}")))?;
        Ok(Logging { _writing: Some(writing) })
    }
}
