//! Arguments of `Database` that have several forms.

use std::io::Read;
use std::time::UNIX_EPOCH;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;
use stemmadb::encryption::EncryptionKey;
use stemmadb::past::{At, Retention};
use stemmadb::{Error, Sequence};

use crate::errors::Raise;
use crate::find;

/// A point in the past: a sequence, text, a `datetime` or a `timedelta`.
pub(crate) fn point(at: &Bound<'_, PyAny>) -> PyResult<At> {
    let py = at.py();
    if let Ok(text) = at.cast::<PyString>() {
        return text.to_str()?.parse().or_raise(py);
    }
    if let Ok(sequence) = at.extract::<u64>() {
        return Ok(At::Sequence(Sequence::new(sequence)));
    }
    if at.hasattr(intern!(py, "total_seconds"))? {
        let seconds: f64 = at.call_method0(intern!(py, "total_seconds"))?.extract()?;
        return Ok(At::Ago(find::duration(py, seconds.abs())?));
    }
    if at.hasattr(intern!(py, "timestamp"))? {
        let seconds: f64 = at.call_method0(intern!(py, "timestamp"))?.extract()?;
        let time = UNIX_EPOCH.checked_add(find::duration(py, seconds)?);
        return Ok(At::Time(time.unwrap_or(UNIX_EPOCH)));
    }
    Err(Error::invalid(format!("{at} is not a point in the past"))
        .with_hint("give a sequence, a datetime, a timedelta, or text such as \"-2h\" or \"2026-11-24T12:00:00Z\""))
    .or_raise(py)
}

pub(crate) fn retention(kept: Option<&Bound<'_, PyAny>>) -> PyResult<Retention> {
    let Some(kept) = kept else { return Ok(Retention::Nothing) };
    let py = kept.py();
    if let Ok(text) = kept.cast::<PyString>() {
        if text.to_str()? == "everything" {
            return Ok(Retention::Everything);
        }
    } else if let Ok(count) = kept.extract::<u32>() {
        return Ok(Retention::Revisions(count));
    } else if kept.hasattr(intern!(py, "total_seconds"))? {
        let seconds: f64 = kept.call_method0(intern!(py, "total_seconds"))?.extract()?;
        return Ok(Retention::For(find::duration(py, seconds)?));
    }
    Err(Error::invalid(format!("{kept} does not say how much is kept"))
        .with_hint("give a timedelta, a number of revisions, \"everything\", or None"))
    .or_raise(py)
}

pub(crate) fn durability(py: Python<'_>, name: &str, interval: f64) -> PyResult<stemmadb::Durability> {
    Ok(match name {
        "sync" => stemmadb::Durability::Sync,
        "none" => stemmadb::Durability::None,
        "interval" => stemmadb::Durability::Interval(find::duration(py, interval)?),
        _ => {
            let error = Error::invalid(format!("there is no durability {name:?}"));
            return Err(error.with_hint("\"sync\", \"interval\" or \"none\"")).or_raise(py);
        }
    })
}

/// The key of an encrypted database: a passphrase, or the 32 bytes of a key.
pub(crate) fn key(key: &Bound<'_, PyAny>) -> PyResult<EncryptionKey> {
    let py = key.py();
    if let Ok(passphrase) = key.cast::<PyString>() {
        return EncryptionKey::from_passphrase(passphrase.to_str()?).or_raise(py);
    }
    let bytes: Vec<u8> = key.extract()?;
    let bytes = <[u8; 32]>::try_from(bytes.as_slice());
    let bytes = bytes.map_err(|_| Error::invalid("a key has 32 bytes; a passphrase is a string")).or_raise(py)?;
    Ok(EncryptionKey::from_callback(move || Ok(bytes)))
}

/// The content of a file that a program gives: bytes, or an object that is read with the interpreter's lock.
pub(crate) enum FileReader {
    Bytes(std::io::Cursor<Vec<u8>>),
    Object(Py<PyAny>),
}

impl FileReader {
    pub(crate) fn new(content: &Bound<'_, PyAny>) -> PyResult<Self> {
        if content.hasattr(intern!(content.py(), "read"))? {
            return Ok(FileReader::Object(content.clone().unbind()));
        }
        let bytes: Vec<u8> = content.extract()?;
        Ok(FileReader::Bytes(std::io::Cursor::new(bytes)))
    }
}

impl Read for FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            FileReader::Bytes(bytes) => bytes.read(buffer),
            FileReader::Object(file) => Python::attach(|py| {
                let read = file.bind(py).call_method1(intern!(py, "read"), (buffer.len(),));
                let read = read.and_then(|read| read.extract::<Vec<u8>>()).map_err(std::io::Error::other)?;
                let Some(target) = buffer.get_mut(..read.len()) else {
                    return Err(std::io::Error::other("the file returned more than it was asked for"));
                };
                target.copy_from_slice(&read);
                Ok(read.len())
            }),
        }
    }
}
