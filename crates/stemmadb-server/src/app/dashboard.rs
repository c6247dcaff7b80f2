//! The files of the dashboard, from the directory that the configuration names.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::{Failure, Result};

/// The files of a dashboard by their names, found when the server starts: what a client sends is looked up, and never part of a path.
#[derive(Debug, Default)]
pub(crate) struct Dashboard(pub(crate) HashMap<String, PathBuf>);

/// More files than this are no dashboard.
const FILES_MAX: usize = 10_000;

/// What is shown first.
pub(crate) const INDEX: &str = "index.html";

impl Dashboard {
    /// The files below `directory`.
    ///
    /// # Errors
    /// 400 if it can't be read, or has no `index.html`.
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
        // Links are not followed.
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
    fn a_dashboard_has_the_files_below_its_directory_and_no_others() {
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
