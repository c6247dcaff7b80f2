//! The web console at `/_console`: the files of a single page, compiled into the program.
//!
//! The page is plain ES modules. Nothing builds them: a browser loads the files as they are in this directory. It uses
//! only public routes of the server, with the rights of the user who is logged in.

use std::sync::LazyLock;

/// The content security policy of every file. Scripts and styles come from this server only; nothing is evaluated, and
/// no text becomes markup (Trusted Types without any policy). Nothing is sent to other servers.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; \
    media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the console.
pub(crate) struct ConsoleFile {
    pub(crate) name: &'static str,
    pub(crate) content: &'static [u8],
    /// A weak entity tag: the same for the compressed and the plain form.
    pub(crate) etag: String,
}

/// Lists files of this directory, which are compiled into the program.
macro_rules! files {
    ($($name:literal,)*) => {
        [$(ConsoleFile::new($name, include_bytes!($name)),)*]
    };
}

/// All files of the console.
static FILES: LazyLock<Vec<ConsoleFile>> = LazyLock::new(|| {
    Vec::from(files![
        "index.html",
        "app.js",
        "icon.svg",
        "lib/api.js",
        "lib/diff.js",
        "lib/dom.js",
        "lib/fields.js",
        "lib/format.js",
        "lib/json.js",
        "lib/mango.js",
        "lib/router.js",
        "lib/tree.js",
        "pages.css",
        "pages/access.js",
        "pages/attachments.js",
        "pages/builder.js",
        "pages/changes.js",
        "pages/chart.js",
        "pages/databases.js",
        "pages/differences.js",
        "pages/document.js",
        "pages/documents.js",
        "pages/federations.js",
        "pages/fields.js",
        "pages/indexes.js",
        "pages/live.js",
        "pages/log.js",
        "pages/metrics.js",
        "pages/plan.js",
        "pages/query.js",
        "pages/roles.js",
        "pages/settings.js",
        "pages/stemma.js",
        "pages/tasks.js",
        "pages/time.js",
        "pages/tokens.js",
        "pages/topologies.js",
        "pages/triggers.js",
        "pages/users.js",
        "style.css",
        "ui/basics.js",
        "ui/charts.js",
        "ui/editor.js",
        "ui/palette.js",
        "ui/table.js",
        "vendor/LICENSES.txt",
        "vendor/hooks.js",
        "vendor/htm.js",
        "vendor/preact.js",
    ])
});

impl ConsoleFile {
    fn new(name: &'static str, content: &'static [u8]) -> Self {
        let etag = format!("W/\"{}\"", &blake3::hash(content).to_hex()[..16]);
        ConsoleFile { name, content, etag }
    }
}

/// The file of this name. A name is only looked up here; it never becomes part of a path.
pub(crate) fn file(name: &str) -> Option<&'static ConsoleFile> {
    FILES.iter().find(|file| file.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write as _;
    use std::path::Path;

    use super::*;

    /// The most bytes of all files, compressed.
    const COMPRESSED_BYTES_MAX: usize = 250_000;
    /// The most lines of a file that is not vendored.
    const LINES_MAX: usize = 800;

    fn names_below(directory: &Path, before: &str, names: &mut BTreeSet<String>) {
        for entry in directory.read_dir().unwrap().flatten() {
            let name = format!("{before}{}", entry.file_name().to_str().unwrap());
            if entry.path().is_dir() {
                names_below(&entry.path(), &format!("{name}/"), names);
            } else if !name.ends_with(".rs") {
                names.insert(name);
            }
        }
    }

    #[test]
    fn every_file_of_the_directory_is_served() {
        let mut names = BTreeSet::new();
        names_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/console"), "", &mut names);
        assert_eq!(FILES.iter().map(|file| file.name.to_owned()).collect::<BTreeSet<_>>(), names);
        assert!(file("mod.rs").is_none() && file("../mod.rs").is_none());
    }

    #[test]
    fn modules_import_files_that_exist() {
        for importing in FILES.iter().filter(|file| file.name.ends_with(".js")) {
            let text = std::str::from_utf8(importing.content).unwrap();
            let directory = importing.name.rsplit_once('/').map_or("", |(directory, _)| directory);
            for imported in text.split("from '").skip(1).filter_map(|rest| rest.split('\'').next()) {
                let name = match imported.strip_prefix("../") {
                    Some(name) => name.to_owned(),
                    None => format!("{directory}/{}", &imported[2..]).trim_start_matches('/').to_owned(),
                };
                assert!(file(&name).is_some(), "{} imports {imported}", importing.name);
            }
        }
    }

    #[test]
    fn files_are_small_and_have_no_inline_code() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        for file in FILES.iter() {
            encoder.write_all(file.content).unwrap();
            let text = std::str::from_utf8(file.content).unwrap();
            let is_ours = !file.name.starts_with("vendor/");
            assert!(!is_ours || text.lines().count() <= LINES_MAX, "{} has too many lines", file.name);
            let is_inert = ["eval(", "innerHTML", "new Function", "javascript:"].iter().all(|it| !text.contains(it));
            assert!(is_inert || !is_ours, "{} runs text as code", file.name);
        }
        let compressed = encoder.finish().unwrap().len();
        assert!(compressed <= COMPRESSED_BYTES_MAX, "{compressed} bytes");
    }
}
