//! A Python environment under the target directory, with the published client and what its tests need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::shell;

/// How long installing may take.
const INSTALL_LIMIT: Duration = Duration::from_mins(15);
/// The client whose own tests are run against the broker.
const CLIENT: &str = "queen-mq==2.6.0";

/// An interpreter that finds the packages of `tests/python/requirements.txt`.
#[derive(Clone)]
pub(crate) struct Python {
    program: PathBuf,
    /// Where the packages are when the environment has none of its own.
    path: Option<PathBuf>,
}

impl Python {
    /// Makes the environment, or takes the one made from the same list before.
    pub(crate) fn set_up() -> anyhow::Result<Self> {
        Self::from_list("requirements.txt", "venv")
    }

    /// The same from another list, at a place of its own.
    pub(crate) fn from_list(list: &str, place: &str) -> anyhow::Result<Self> {
        let list = directory().join(list);
        let wanted = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
        let place = shell::target()?.join(place);
        let stamp = place.join("requirements.done");
        let bare = place.join("packages");
        let is_current = fs::read_to_string(&stamp).is_ok_and(|text| text == wanted);
        if !is_current {
            drop(fs::remove_dir_all(&place));
            install(&place, &bare, &list)?;
            fs::write(&stamp, &wanted)?;
        }
        Ok(if bare.is_dir() {
            Self { program: "python3".into(), path: Some(bare) }
        } else {
            Self { program: place.join("bin").join("python"), path: None }
        })
    }

    /// An interpreter to add arguments to.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUNBUFFERED", "1");
        if let Some(path) = &self.path {
            command.env("PYTHONPATH", path);
        }
        command
    }

    /// The client's own tests, unpacked from its source archive beside our fixtures.
    pub(crate) fn client_tests(&self) -> anyhow::Result<PathBuf> {
        let place = shell::target()?.join("client-tests");
        let stamp = place.join("archive.done");
        if !fs::read_to_string(&stamp).is_ok_and(|text| text == CLIENT) {
            drop(fs::remove_dir_all(&place));
            fs::create_dir_all(&place)?;
            let mut command = self.command();
            command.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"]);
            command.args(["--no-deps", "--no-binary", ":all:", "--dest"]).arg(&place).arg(CLIENT);
            shell::must(&mut command, INSTALL_LIMIT)?;
            let archive = find(&place, |name| name.contains(".tar.gz"))?;
            let mut command = self.command();
            command.args(["-m", "tarfile", "-e"]).arg(archive).arg(&place);
            shell::must(&mut command, INSTALL_LIMIT)?;
            fs::write(&stamp, CLIENT)?;
        }
        let source = find(&place, |name| name.starts_with("queen") && !name.contains(".tar"))?;
        // The package itself comes from the environment; beside it lies only what runs it.
        let tests = place.join("tests");
        drop(fs::remove_dir_all(&tests));
        fs::create_dir_all(&tests)?;
        for entry in fs::read_dir(source.join("tests"))? {
            let entry = entry?;
            fs::copy(entry.path(), tests.join(entry.file_name()))?;
        }
        for name in ["conftest.py", "pytest.ini"] {
            fs::copy(directory().join(name), tests.join(name))?;
        }
        Ok(tests)
    }
}

/// Our own Python files.
pub(crate) fn directory() -> PathBuf {
    shell::root().join("tests").join("python")
}

fn install(place: &Path, bare: &Path, list: &Path) -> anyhow::Result<()> {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(place);
    let has_own =
        shell::capture(&mut venv, INSTALL_LIMIT).context("python3 is needed")?.status.success();
    let mut pip = if has_own {
        Command::new(place.join("bin").join("python"))
    } else {
        // A system without the module that puts pip into an environment.
        drop(fs::remove_dir_all(place));
        fs::create_dir_all(bare)?;
        Command::new("python3")
    };
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    pip.arg(list);
    if !has_own {
        pip.arg("--target").arg(bare);
    }
    shell::must(&mut pip, INSTALL_LIMIT)?;
    Ok(())
}

fn find(place: &Path, is_it: impl Fn(&str) -> bool) -> anyhow::Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        if is_it(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    ensure!(found.len() == 1, "{} should hold one such thing: {found:?}", place.display());
    found.pop().context("nothing found")
}
