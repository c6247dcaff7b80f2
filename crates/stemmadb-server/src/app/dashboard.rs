//! The files of the dashboard, from the directory that the configuration names.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::{Failure, Result};

/// The files of a dashboard by name, listed when the server starts. A name from a client is only looked up here; it
/// never becomes part of a file path.
#[derive(Debug, Default)]
pub(crate) struct Dashboard(pub(crate) HashMap<String, PathBuf>);

/// The most files of a dashboard; a directory with more is rejected as a misconfiguration.
const FILES_MAX: usize = 10_000;

/// The start page.
pub(crate) const INDEX: &str = "index.html";

impl Dashboard {
    /// Lists the files below `directory`; no files if it is `None`.
    ///
    /// # Errors
    /// 400 if the directory can't be read or has no `index.html`.
    pub(crate) fn open(directory: Option<&Path>) -> Result<Self> {
        let Some(directory) = directory else { return Ok(Dashboard::default()) };
        let mut files = HashMap::new();
        let listed = list(directory, "", &mut files);
        listed.map_err(|error| Failure::bad_request(format!("the dashboard {}: {error}", directory.display())))?;
        match files.contains_key(INDEX) {
            true => Ok(Dashboard(files)),
            false => Err(Failure::bad_request(format!("the dashboard {} has no {INDEX}", directory.display()))),
        }
    }
}

fn list(directory: &Path, before: &str, files: &mut HashMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in directory.read_dir()? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let (name, path) = (format!("{before}{name}"), entry.path());
        // Symbolic links are not followed.
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&path, &format!("{name}/"), files)?;
        } else if kind.is_file() {
            files.insert(name, path);
        }
        if files.len() > FILES_MAX {
            return Err(std::io::Error::other(format!("it has more than {FILES_MAX} files")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashboard_contains_only_files_below_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("dashboard");
        std::fs::create_dir_all(root.join("js")).unwrap();
        assert!(Dashboard::open(Some(&root)).unwrap_err().reason().contains("has no index.html"));
        for name in ["index.html", "js/app.js", "../secret"] {
            std::fs::write(root.join(name), name).unwrap();
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(directory.path().join("secret"), root.join("link")).unwrap();
        let Dashboard(files) = Dashboard::open(Some(&root)).unwrap();
        let mut names: Vec<_> = files.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["index.html", "js/app.js"]);
        assert!(Dashboard::open(Some(&root.join("nothing"))).is_err());
    }
}
