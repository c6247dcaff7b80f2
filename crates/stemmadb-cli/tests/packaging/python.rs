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

/// A new virtual environment without packages. `pip` of another environment installs some.
fn environment(interpreter: &Path, directory: &Path, more: &[&str]) -> Result<PathBuf, String> {
    run(Command::new(interpreter).args(["-m", "venv"]).args(more).arg(directory))?;
    Ok(directory.join("bin/python"))
}

/// Installs packages for an interpreter by the pip of another one. Modules are compiled when they are imported: most
/// of those of the test tools never are.
fn install(pip: &Path, python: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut install = Command::new(pip);
    install.args(["-m", "pip", "--disable-pip-version-check", "--python"]).arg(python);
    install.args(["install", "--quiet", "--no-compile", "--only-binary", ":all:"]);
    run(install.args(arguments)).map(drop)
}

/// Builds the wheel as users get it, except for optimization. Dependencies that this build has compiled already are
/// used again.
fn wheel(builder: &Path, package: &Path, directory: &Path) -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_stemma")).ancestors().nth(2).unwrap();
    let build = ["-m", "maturin", "build", "--locked", "--profile", "dev", "--out"];
    let mut build_wheel = Command::new(builder);
    build_wheel.args(build).arg(directory).current_dir(package).env("CARGO_TARGET_DIR", target);
    run(&mut build_wheel).unwrap_or_else(|error| panic!("{error}"));
    let wheel = directory.read_dir().unwrap().map(|file| file.unwrap().path()).next().expect("there is a wheel");
    assert!(wheel.to_str().unwrap().contains("-cp310-abi3-"), "one wheel for all versions: {}", wheel.display());
    wheel
}

/// Builds the wheel, installs it beside nothing but test tools, and runs the tests of `crates/stemmadb-python/tests`.
/// Skipped without Python 3.10 or PyPI.
#[test]
fn python_wheel_passes_its_tests() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stemmadb-python").canonicalize().unwrap();
    let interpreters = interpreters();
    let Some(newest) = interpreters.last() else {
        eprintln!("skipped: there is no CPython 3.10 or newer with venv (STEMMA_PYTHON names one)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    // The pip of a newer interpreter also installs for older ones.
    let builder = environment(newest, &directory.path().join("builder"), &[])
        .and_then(|builder| install(&builder, &builder, &["maturin>=1.14,<2"]).map(|()| builder));
    let builder = match builder {
        Ok(builder) => builder,
        Err(error) => {
            eprintln!("skipped: maturin can't be installed from PyPI: {error}");
            return;
        }
    };
    // Tools are downloaded and unpacked while the wheel is built.
    let user = |(number, interpreter): (usize, &PathBuf)| {
        // Frames, notebooks and type stubs are tested once.
        let tools: &[&str] = match number + 1 == interpreters.len() {
            true => &["pytest", "pydantic", "pandas", "polars", "mypy", "nbclient", "ipykernel"],
            false => &["pytest"],
        };
        let directory = directory.path().join(format!("user{number}"));
        let python = environment(interpreter, &directory, &["--without-pip"]);
        python.and_then(|python| install(&builder, &python, tools).map(|()| python))
    };
    let (wheel, users) = std::thread::scope(|scope| {
        let users = scope.spawn(|| interpreters.iter().enumerate().map(user).collect::<Result<Vec<_>, _>>());
        let wheel = wheel(&builder, &package, &directory.path().join("wheels"));
        (wheel, users.join().unwrap().unwrap_or_else(|error| panic!("{error}")))
    });
    std::thread::scope(|scope| {
        for python in &users {
            scope.spawn(|| run_tests(&builder, python, &wheel, &package, directory.path()));
        }
    });
}

/// Installs the wheel and runs the tests with it.
fn run_tests(builder: &Path, python: &Path, wheel: &Path, package: &Path, directory: &Path) {
    let wheel = wheel.to_str().unwrap();
    install(builder, python, &["--no-index", "--no-deps", wheel]).unwrap_or_else(|error| panic!("{error}"));
    let mut tests = Command::new(python);
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]).arg(package.join("tests"));
    tests.current_dir(directory).env("STEMMA_BIN", env!("CARGO_BIN_EXE_stemma"));
    // Compiled modules are kept here, and not in the checkout.
    let printed = run(tests.env("PYTHONPYCACHEPREFIX", directory.join("compiled")));
    println!("{}", printed.unwrap_or_else(|error| panic!("{error}")).lines().last().unwrap_or_default());
}
