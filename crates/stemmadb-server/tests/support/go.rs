//! Programs in Go that tests need: built once into the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a command of a Go module with its version, unless it is there; `None`, with a message, if it can't be built
/// here.
pub(crate) fn program(module: &str) -> Option<PathBuf> {
    let (path, version) = module.split_once('@').expect("a module with its version");
    let name = path.rsplit('/').next().expect("a name");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{version}"));
    let binary = directory.join(name);
    if binary.exists() {
        return Some(binary);
    }
    let built = directory.with_extension(std::process::id().to_string());
    let output = Command::new("go").args(["install", module]).env("GOBIN", &built).env("GOFLAGS", "-trimpath").output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: {name} can't be built, because Go is missing ({error})");
            return None;
        }
    };
    if !output.status.success() {
        println!("SKIPPED: {name} can't be built: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    // Another test may have built it meanwhile.
    if std::fs::rename(&built, &directory).is_err() {
        std::fs::remove_dir_all(&built).expect("the directory was just made");
    }
    Some(binary)
}
