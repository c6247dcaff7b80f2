//! The state file of a mirror, `.stemma-mirror.json`: source database, position and options.

use super::disk::Disk;
use super::link::LinkPath;
use crate::value::{Object, Value};
use crate::{Error, Result};

/// Name of the state file.
pub(super) const FILE: &str = ".stemma-mirror.json";

/// Version of the mirror's directory layout.
const VERSION: u64 = 1;

/// The operation in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Changes are copied.
    Following,
    /// All links are being rebuilt, because the link paths changed.
    Linking,
    /// Everything is being removed for a rebuild.
    Clearing,
}

impl Stage {
    const ALL: [(Stage, &str); 3] =
        [(Stage::Following, "following"), (Stage::Linking, "linking"), (Stage::Clearing, "clearing")];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(stage, _)| *stage == self).map_or("", |(_, name)| name)
    }
}

/// The source database, the position, and the options of a mirror.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MirrorState {
    pub(super) stage: Stage,
    database: String,
    /// Everything up to this position is in the mirror; `None` at the beginning.
    pub(super) position: Option<Value>,
    by: Vec<String>,
    files: bool,
}

impl MirrorState {
    /// The state of an empty mirror.
    pub(super) fn new(database: String, paths: &[LinkPath], files: bool) -> Self {
        MirrorState { stage: Stage::Following, database, position: None, by: sorted_texts(paths), files }
    }

    /// Sets the stage.
    pub(super) fn with_stage(self, stage: Stage) -> Self {
        MirrorState { stage, ..self }
    }

    /// Reads the state; `None` if the directory is not a mirror.
    ///
    /// # Errors
    /// `Corrupt` if the state file is malformed.
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
        Some(MirrorState {
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

    /// Refuses the mirror of another database.
    pub(super) fn refuse_other_database(&self, database: &str, disk: &Disk) -> Result<()> {
        if self.database == database {
            return Ok(());
        }
        let directory = disk.root().display();
        Err(Error::invalid(format!("{directory} is the mirror of another database"))
            .with_hint("name another directory, or rebuild the mirror: what is in it is removed then"))
    }

    /// Applies the options of this run: selects the stage and position from which the mirror gets everything that was
    /// chosen.
    pub(super) fn with_options(self, paths: &[LinkPath], files: bool) -> Self {
        let by = sorted_texts(paths);
        let stage = match self.stage {
            Stage::Following if self.by != by => Stage::Linking,
            stage => stage,
        };
        // Enabling files requires copying those of all documents.
        let position = if files && !self.files { None } else { self.position };
        MirrorState { stage, by, files, position, ..self }
    }
}

fn sorted_texts(paths: &[LinkPath]) -> Vec<String> {
    let mut texts: Vec<String> = paths.iter().map(|path| path.text().to_owned()).collect();
    texts.sort();
    texts
}
