//! The Python package: its wheel is built by maturin, installed into new environments, and tested there with pytest.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;

/// The interpreters to test with: the oldest and the newest of those installed. `STEMMA_PYTHON` names others, separated
/// by colons.
fn interpreters() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("STEMMA_PYTHON") {
        return std::env::split_paths(&named).collect();
    }
    let mut candidates: Vec<PathBuf> = (10..=14).map(|minor| format!("python3.{minor}").into()).collect();
    candidates.push("python3".into());
    // pyenv has several, of which only one is in the search path.
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".pyenv")));
    if let Some(Ok(versions)) = pyenv.map(|pyenv| pyenv.join("versions").read_dir()) {
        candidates.extend(versions.flatten().map(|version| version.path().join("bin/python3")));
    }
    let version = "import sys, venv, ensurepip; print(sys.implementation.name, sys.version_info.minor)";
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for candidate in candidates {
        let Ok(printed) = run(Command::new(&candidate).args(["-c", version])) else { continue };
        let minor = printed.trim().strip_prefix("cpython ").and_then(|minor| minor.parse().ok());
        found.extend(minor.filter(|minor| *minor >= 10).map(|minor| (minor, candidate)));
    }
    found.sort();
    found.dedup_by_key(|(minor, _)| *minor);
    let last = found.len().saturating_sub(1);
    found.into_iter().enumerate().filter(|(at, _)| *at == 0 || *at == last).map(|(_, (_, path))| path).collect()
}

/// A new virtual environment with packages from PyPI.
fn environment(interpreter: &Path, directory: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    run(Command::new(interpreter).args(["-m", "venv"]).arg(directory))?;
    let python = directory.join("bin/python");
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"])
        .args(packages))?;
    Ok(python)
}

/// Builds the wheel as users get it, except for optimization, installs it beside nothing but test tools, and runs the
/// tests of `crates/stemmadb-python/tests`. Skipped without Python 3.10 or PyPI.
#[test]
fn python_wheel_passes_its_tests() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stemmadb-python").canonicalize().unwrap();
    let interpreters = interpreters();
    let Some(first) = interpreters.first() else {
        eprintln!("skipped: there is no CPython 3.10 or newer with venv (STEMMA_PYTHON names one)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let builder = match environment(first, &directory.path().join("builder"), &["maturin>=1.14,<2"]) {
        Ok(builder) => builder,
        Err(error) => {
            eprintln!("skipped: maturin can't be installed from PyPI: {error}");
            return;
        }
    };
    let wheels = directory.path().join("wheels");
    // Dependencies that this build has compiled already are used again.
    let target = Path::new(env!("CARGO_BIN_EXE_stemma")).ancestors().nth(2).unwrap();
    let build = ["-m", "maturin", "build", "--locked", "--profile", "dev", "--out"];
    let mut build_wheel = Command::new(&builder);
    build_wheel.args(build).arg(&wheels).current_dir(&package).env("CARGO_TARGET_DIR", target);
    run(&mut build_wheel).unwrap_or_else(|error| panic!("{error}"));
    let wheel = wheels.read_dir().unwrap().map(|file| file.unwrap().path()).next().expect("there is a wheel");
    assert!(wheel.to_str().unwrap().contains("-cp310-abi3-"), "one wheel for all versions: {}", wheel.display());

    for (number, interpreter) in interpreters.iter().enumerate() {
        let is_newest = number + 1 == interpreters.len();
        // Frames, notebooks and type stubs are tested once.
        let tools: &[&str] = match is_newest {
            true => &["pytest", "pydantic", "pandas", "polars", "mypy", "nbclient", "ipykernel"],
            false => &["pytest"],
        };
        let python = environment(interpreter, &directory.path().join(format!("user{number}")), tools);
        let python = python.unwrap_or_else(|error| panic!("{error}"));
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"];
        run(Command::new(&python).args(install).arg(&wheel)).unwrap_or_else(|error| panic!("{error}"));
        let mut tests = Command::new(&python);
        tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]).arg(package.join("tests"));
        tests.current_dir(directory.path()).env("STEMMA_BIN", env!("CARGO_BIN_EXE_stemma"));
        let printed = run(tests.env("PYTHONDONTWRITEBYTECODE", "1")).unwrap_or_else(|error| panic!("{error}"));
        println!("{}", printed.lines().last().unwrap_or_default());
    }
}
