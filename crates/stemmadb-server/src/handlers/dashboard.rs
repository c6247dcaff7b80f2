//! `/_utils`: a page to look into databases with, Fauxton as a rule. Its files come from a directory that the configuration names.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, LOCATION, X_CONTENT_TYPE_OPTIONS};

use crate::error::{Failure, Result};
use crate::http::{Answer, Call, blocking};

/// The files of a dashboard by their names, found when the server starts: what a client sends is looked up, and never part of a path.
#[derive(Debug, Default)]
pub(crate) struct Dashboard(HashMap<String, PathBuf>);

/// More files than this are no dashboard.
const FILES_MAX: usize = 10_000;

/// What is shown first.
const INDEX: &str = "index.html";

/// What is shown where no directory is named.
const ABSENT: &str = include_str!("dashboard.html");

/// What the page may load and do: nothing from elsewhere. Fauxton makes code of text.
const POLICY: &str = "default-src 'self'; child-src 'self' blob:; img-src 'self' data:; font-src 'self' data:; \
    script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; frame-ancestors 'self'";

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

/// `GET /_utils`, `GET /_utils/{file*}`
pub(crate) async fn get(call: Call) -> Result<Answer> {
    // Its addresses are relative to a directory.
    if call.parts.uri.path() == "/_utils" {
        return Ok(Answer::empty(StatusCode::MOVED_PERMANENTLY).with(LOCATION, "/_utils/"));
    }
    let Dashboard(files) = &call.state.dashboard;
    let name = call.parameters.get("file").unwrap_or(INDEX);
    let answer = match files.get(name) {
        _ if files.is_empty() && name == INDEX => Answer::text(StatusCode::OK, content_type(INDEX), ABSENT),
        None => return Err(Failure::missing()),
        Some(path) => {
            let path = path.clone();
            let lost = |error| Failure::internal(format!("a file of the dashboard can't be read: {error}"));
            let content = blocking(move || std::fs::read(path).map_err(lost)).await?;
            Answer::text(StatusCode::OK, content_type(name), content)
        }
    };
    Ok(answer.with(CONTENT_SECURITY_POLICY, POLICY).with(X_CONTENT_TYPE_OPTIONS, "nosniff"))
}

/// What a file of this name is.
fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "gif" => "image/gif",
        "jpg" | "jpeg" => "image/jpeg",
        "ico" => "image/x-icon",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
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
