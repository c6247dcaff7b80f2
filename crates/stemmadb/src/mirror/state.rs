//! Whose copy is it, and how far has it come? The file `.stemma-mirror.json`.

use super::disk::Disk;
use super::link::LinkPath;
use crate::value::{Object, Value};
use crate::{Error, Result};

/// The file's name.
pub(super) const FILE: &str = ".stemma-mirror.json";

/// The version of the copy's layout.
const VERSION: u64 = 1;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// What changes is copied.
    Following,
    /// All links are made anew, since others were chosen.
    Linking,
    /// Everything is removed, to begin anew.
    Clearing,
}

impl Stage {
    const ALL: [(Stage, &str); 3] =
        [(Stage::Following, "following"), (Stage::Linking, "linking"), (Stage::Clearing, "clearing")];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(stage, _)| *stage == self).map_or("", |(_, name)| name)
    }
}

/// Whose copy it is, how far it has come, and what was chosen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct State {
    pub(super) stage: Stage,
    database: String,
    /// Everything up to here is in the copy; none at the beginning.
    pub(super) position: Option<Value>,
    by: Vec<String>,
    files: bool,
}

impl State {
    /// Of a copy that has nothing yet.
    pub(super) fn new(database: String, paths: &[LinkPath], files: bool) -> Self {
        State { stage: Stage::Following, database, position: None, by: texts(paths), files }
    }

    /// The same at another stage.
    pub(super) fn at(self, stage: Stage) -> Self {
        State { stage, ..self }
    }

    /// What the directory has, if it is a copy.
    ///
    /// # Errors
    /// `Corrupt` if the file is not what was written.
    pub(super) fn read(disk: &Disk) -> Result<Option<Self>> {
        let Some(bytes) = disk.read(FILE.as_ref())? else { return Ok(None) };
        let damaged = || {
            Error::corrupt(format!("{} is not what a mirror wrote", disk.root().join(FILE).display()))
                .with_hint("empty the directory, and mirror the database again")
        };
        let value = Value::parse(&bytes).map_err(|_| damaged())?;
        Self::from_value(&value).map(Some).ok_or_else(damaged)
    }

    fn from_value(value: &Value) -> Option<Self> {
        if value.get("stemma_mirror")?.as_u64()? != VERSION {
            return None;
        }
        let stage = value.get("stage")?.as_str()?;
        let by =
            value.get("by")?.as_array()?.iter().map(|path| path.as_str().map(str::to_owned)).collect::<Option<_>>()?;
        Some(State {
            stage: Stage::ALL.iter().find(|(_, name)| *name == stage)?.0,
            database: value.get("database")?.as_str()?.to_owned(),
            position: value.get("sequence").filter(|sequence| !sequence.is_null()).cloned(),
            by,
            files: value.get("files")?.as_bool()?,
        })
    }

    pub(super) fn write(&self, disk: &Disk) -> Result<()> {
        let mut object = Object::new();
        object.insert("stemma_mirror", VERSION);
        object.insert("database", self.database.as_str());
        object.insert("sequence", self.position.clone().unwrap_or_default());
        object.insert("stage", self.stage.name());
        object.insert("by", self.by.iter().map(|path| Value::from(path.as_str())).collect::<Vec<_>>());
        object.insert("files", self.files);
        disk.write_flushed(FILE.as_ref(), format!("{}\n", Value::Object(object).to_json_pretty()).as_bytes())
    }

    /// Refuses the copy of another database.
    pub(super) fn refuse_other(&self, database: &str, disk: &Disk) -> Result<()> {
        if self.database == database {
            return Ok(());
        }
        let place = disk.root().display();
        Err(Error::invalid(format!("{place} is the mirror of another database"))
            .with_hint("name another directory, or rebuild the mirror: what is in it is removed then"))
    }

    /// What is to be done so that the copy has what is chosen now.
    pub(super) fn chosen(self, paths: &[LinkPath], files: bool) -> Self {
        let by = texts(paths);
        let stage = match self.stage {
            Stage::Following if self.by != by => Stage::Linking,
            stage => stage,
        };
        // Files that were left out so far are those of all documents.
        let position = if files && !self.files { None } else { self.position };
        State { stage, by, files, position, ..self }
    }
}

fn texts(paths: &[LinkPath]) -> Vec<String> {
    let mut texts: Vec<String> = paths.iter().map(|path| path.text().to_owned()).collect();
    texts.sort();
    texts
}
